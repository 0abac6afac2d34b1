"""Where a documented command runs: as at a reader who has just followed the page.

A clone of this work tree's HEAD, an empty home, and the variables that a login sets, pip's and the
proxy's. Commands share only what a reader would wait for: the environments of ``./nox``, the
caches of pip and uv and the verified downloads in the store.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.documented.pages import ROOT

# What pip, git and libraries for TLS need to reach a package index from this machine, and the mark
# by which an interrupted .ci/night finds the processes that it has to end.
PASSED = (
    *("PIP_", "UV_", "SSL_", "REQUESTS_", "CURL_", "http", "HTTP", "no_proxy", "NO_PROXY"),
    "NIGHT",
)
NO_ENGINE = "unix:///nowhere/docker.sock"  # a machine without Docker, also where tests have one
CACHE = ".cache/executorch-qnn-ci"
SHARED = ("store", "downloads")
BASE = "refs/cloned"  # what a clone was made of
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))  # of all worker processes


@dataclass(frozen=True)
class Ended:
    """How a command ended, and all that it printed."""

    code: int
    text: str


@dataclass(frozen=True)
class Place:
    """One command's clone, home, and the directory in which it runs.

    ``folder`` contains both. ``programs`` come first on PATH: those of an environment into which
    the wheel was installed. ``set_variables`` are variables that the machine sets.
    """

    folder: Path
    directory: Path
    programs: Path | None = None
    set_variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def clone(self) -> Path:
        return self.folder / "executorch-qnn-ci"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def variables(self) -> dict[str, str]:
        prefix = Path(sys.prefix).resolve()
        paths = os.environ["PATH"].split(os.pathsep)
        paths = [path for path in paths if not Path(path).resolve().is_relative_to(prefix)]
        first = [str(folder) for folder in (self.programs, self.home / ".local/bin") if folder]
        passed = {name: text for name, text in os.environ.items() if name.startswith(PASSED)}
        path = os.pathsep.join(first + paths)
        reader_variables = {
            "PATH": path,
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "DOCKER_HOST": NO_ENGINE,
        }
        return {**passed, **reader_variables, **self.set_variables}

    def run(self, line: str, timeout_s: float) -> Ended:
        """Run a line as a reader types it. What it started is killed with it after
        ``timeout_s``."""
        with subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.directory,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                text, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                text, _ = process.communicate()
                text += f"\n[killed after {timeout_s:.0f} s]"
            except KeyboardInterrupt:  # of which a session of its own gets nothing
                os.killpg(process.pid, 9)
                raise
        return Ended(process.returncode, text)


def make_place(folder: Path) -> Place:
    """A clone in ``folder``, with an empty home next to it. The clone of an earlier place in the
    folder is restored, except that compiled modules stay: the kernel takes a second of CPU time for
    the files of a new clone if it has just removed as many.
    """
    place = Place(folder, folder / "executorch-qnn-ci")
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path != place.clone:
            shutil.rmtree(path)
    place.home.mkdir()
    if not place.clone.exists():
        git(folder, "clone", "--quiet", str(ROOT), str(place.clone))
        # A runner of CI checks out a commit; a reader's clone is on main.
        git(place.clone, "update-ref", BASE, "HEAD")
    environments = place.clone / ".nox"
    if environments.is_dir() and not environments.is_symlink():
        shutil.rmtree(environments)  # git would leave its compiled modules
    git(place.clone, "checkout", "--quiet", "--force", "-B", "main", BASE)
    git(place.clone, "clean", "-ffdxq", "--exclude", "__pycache__")
    git(place.clone, "update-ref", "refs/remotes/origin/main", BASE)
    for branch in git(
        place.clone, "for-each-ref", "--format=%(refname:short)", "refs/heads"
    ).split():
        if branch != "main":
            git(place.clone, "branch", "--quiet", "-D", branch)
    for name in ("user.name", "user.email"):
        git(place.clone, "config", "--file", str(place.home / ".gitconfig"), name, "a-reader")
    (place.clone / ".nox").symlink_to(ROOT / ".nox")
    link_caches(place.home)
    return place


def link_caches(home: Path) -> None:
    """pip's configuration and the caches of pip and uv are the machine's."""
    real = Path.home()
    for name in (".config/pip", ".cache/pip", ".cache/uv"):
        if (real / name).is_dir():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).symlink_to(real / name)


def give_downloads(seed: Path, home: Path) -> None:
    """The store as ``seed``'s, by hard links: every command has its own locks and may remove its
    copy."""
    for name in SHARED:
        if (seed / CACHE / name).is_dir():
            shutil.copytree(
                seed / CACHE / name, home / CACHE / name, symlinks=True, copy_function=os.link
            )


def git(directory: Path, *words: str) -> str:
    words = ("git", *words)
    return subprocess.run(
        words, cwd=directory, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


@contextmanager
def share_folder() -> Iterator[Path]:
    """A directory in which all worker processes of a run share what takes long.

    It is on the disk of .nox, because the files of its packages are linked into the environments of
    readers. The last process removes it; what a killed run has left is removed by the next run.
    """
    folder = ROOT / ".nox" / f"readers-{RUN}"
    for reader_folder in folder.parent.glob("readers-*"):
        if reader_folder != folder:
            remove_unless_used(reader_folder)
    use = hold(folder)
    try:
        yield folder
    finally:
        os.close(use)
        remove_unless_used(folder)


def hold(folder: Path) -> int:
    """Make a directory, and keep others from removing it until the returned descriptor is
    closed."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another process has just removed it
            use = os.open(folder, os.O_RDONLY)
            fcntl.flock(use, fcntl.LOCK_SH)
            if folder.exists():
                return use
            os.close(use)


def remove_unless_used(folder: Path) -> None:
    """Remove a directory unless a process uses it."""
    with suppress(OSError):  # another process uses it, or has just removed it
        use = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(use)
