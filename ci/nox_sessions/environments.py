"""Python environments with the packages of one dependency group of pyproject.toml."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ci.nox_sessions.links import link_packages
from provisioning.quoting import shell_word

if TYPE_CHECKING:
    import nox

ROOT = Path(__file__).resolve().parents[2]
# On the default package index, torch is a CUDA build of several GB.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_S, HEARTBEAT_S = 2.0, 15.0
STAMP = "installed.sha256"  # in an environment that is complete: the digest of what it was made for
# Modules that are rarely imported, although they are half of the files of an environment. They are
# compiled only when they are imported.
RARE = (
    r"site-packages/((pip|setuptools|pygments/lexers|scipy|sklearn|sympy/physics|coremltools"
    r"|huggingface_hub|textual|narwhals|onnxruntime/transformers|torchao/(prototype|_models)"
    r"|numpy/(distutils|f2py)|sympy/(parsing|stats)|torch/(_inductor|_vendor)"
    r"|executorch/backends/(?!qualcomm|transforms)\w+)/"
    r"|(.*/)?(tests?|testing|examples|benchmarks)/)"
)
# Not `pip install .`: nox adds a full stop, and not everyone is in that directory.
INSTALL = f"`pip install {shell_word(str(ROOT))}`"
MOVE = f"install the checkout with {INSTALL}, or copy it to a directory that you own"


class UnwritableError(Exception):
    """This user cannot write an environment's directory or its lock."""


@dataclass(frozen=True)
class PythonEnvironment:
    """The environment in ``folder`` for ``packages``, such as "torch==2.13.0". It need not exist
    yet, and may have been created for other packages."""

    folder: Path
    packages: tuple[str, ...]

    @property
    def python(self) -> Path:
        """Return the path of the environment's Python, which need not exist."""
        return self.folder / "bin" / "python"

    def can_run(self) -> bool:
        """Return whether this user can run the environment's Python: it may belong to another user,
        or be a link to a Python that was removed."""
        effective = os.access in os.supports_effective_ids
        return os.access(self.python, os.X_OK, effective_ids=effective)

    def digest(self) -> str:
        """Return a digest of the packages and of the version of the running Python."""
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return hashlib.sha256("\n".join([python, *self.packages]).encode()).hexdigest()

    def is_complete(self) -> bool:
        """Return whether this user can run the environment, and all of the packages are installed
        in it for the running version of Python."""
        try:
            stamp = (self.folder / STAMP).read_text()
        except (OSError, UnicodeDecodeError):
            return False
        return self.can_run() and stamp == self.digest()

    def create(self, session: nox.Session) -> None:
        """Create or update the environment, unless it is complete. Two processes that want the same
        environment do this one after the other.

        Raises UnwritableError, and CommandFailed of nox if a command fails.
        """
        if self.is_complete():
            return
        # Two runs in one fresh checkout would otherwise install into the same folder at once.
        lock = self.folder.with_name(f"{self.folder.name}.lock")
        with hold_lock(lock, session.log):
            if not self.is_complete():
                self._install(session)

    def _install(self, session: nox.Session) -> None:
        stamp = self.folder / STAMP
        try:
            stamp.unlink(missing_ok=True)
        except OSError as error:
            problem = f"{self.folder} cannot be written ({error.strerror})"
            raise UnwritableError(f"{problem}; remove it, or {MOVE}") from error
        # nox depends on virtualenv, so it is there before anything is installed.
        virtualenv = [sys.executable, "-m", "virtualenv", "-q"]
        session.run(*virtualenv, str(self.folder), silent=True, log=False)
        activity = f"installing {len(self.packages)} packages into {self.folder.name}"
        with show_progress(activity, session.log):
            missing = link_packages(self.folder, self.packages, list_others(self.folder))
            if missing:
                self._install_missing(session, missing)
        # Last, so that an environment whose installation was interrupted counts as incomplete.
        stamp.write_text(self.digest())

    def _install_missing(self, session: nox.Session, missing: Sequence[str]) -> None:
        # Nothing but pip's errors is printed: show_progress says what goes on.
        pip = [str(self.python), "-m", "pip", "install", "-q", "--no-compile"]
        if "torch" in missing:
            for package in self.packages:
                if package.startswith("torch=="):
                    index = choose_torch_index(session.log)
                    session.run(*pip, "--no-deps", package, *index, silent=True, log=False)
        session.run(*pip, *self.packages, silent=True, log=False)
        # pip would compile on one core. Exit code 1 is accepted: packages contain files that do not
        # compile.
        compile_all = [str(self.python), "-m", "compileall", "-qq", "-j0", "-x", RARE]
        library = str(self.folder / "lib")
        session.run(*compile_all, library, success_codes=[0, 1], silent=True, log=False)


def list_others(folder: Path) -> list[Path]:
    """Return the complete environments beside ``folder``."""
    return [stamp.parent.resolve() for stamp in sorted(folder.parent.glob(f"*/{STAMP}"))]


@contextmanager
def hold_lock(path: Path, log: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock for the duration of the block. While another process holds it, print a note and
    wait. Raises UnwritableError if the lock cannot be written."""
    import fcntl  # does not exist on Windows

    try:
        path.parent.mkdir(exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        raise UnwritableError(
            f"{path.parent} cannot be written ({error.strerror}); {MOVE}"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with show_progress(f"waiting for another nox process that creates {path.stem}", log):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def show_progress(activity: str, log: Callable[[str], None]) -> Iterator[None]:
    """Print ``activity`` at the start of the block and then, with the elapsed time, every
    HEARTBEAT_S seconds until its end."""
    begun, ended = time.monotonic(), threading.Event()

    def repeat() -> None:
        while not ended.wait(HEARTBEAT_S):
            log(f"{activity}: {time.monotonic() - begun:.0f} s")

    log(activity)
    threading.Thread(target=repeat, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def choose_torch_index(log: Callable[[str], None]) -> list[str]:
    """Return pip's options for the package index of torch: QNN_CI_TORCH_INDEX if it is set,
    otherwise PyTorch's CPU index if it responds. An empty list selects pip's configured index."""
    index = os.environ.get("QNN_CI_TORCH_INDEX")
    if index is None and responds(f"{CPU_INDEX}/torch/"):
        log(f"torch: 0.2 GB from {CPU_INDEX}")
        return ["--index-url", CPU_INDEX]
    if index is None:
        log(f"torch: {CPU_INDEX} does not respond, so pip's index is used")
        log("torch: if that has a CUDA build, 3 GB; QNN_CI_TORCH_INDEX=URL chooses another")
        return []
    if index in {"", "none"}:
        log("torch: from pip's index (QNN_CI_TORCH_INDEX); 3 GB if that has a CUDA build")
        return []
    log(f"torch: from {index} (QNN_CI_TORCH_INDEX)")
    return ["--index-url", index]


def responds(url: str) -> bool:
    """Return whether a URL can be read. This takes at most PROBE_S seconds, even if resolving the
    host's name hangs."""
    has_answered = threading.Event()

    def ask() -> None:
        with suppress(OSError, ValueError):
            request = urllib.request.Request(url, method="HEAD")  # noqa: S310
            with urllib.request.urlopen(request, timeout=PROBE_S):  # noqa: S310
                has_answered.set()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PROBE_S)
    return has_answered.is_set()
