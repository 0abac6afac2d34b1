"""Where a documented command runs: a checkout of this project, a home, and a shell.

The checkout is a copy whose tests are one file, so that ``./nox -s tests`` ends. All stages share
one, compiled once, by hard links: a set-up changes a file by putting another in its place. They
share its nox environments, too: they stand on the packages of the Python that runs the tests, and
``core`` on those of its group alone, without torch. ``.ci/run`` makes environments for real.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import distribution
from pathlib import Path

import nox.project
from packaging.requirements import Requirement

from tests.documented.pages import ROOT

FOLDERS = (
    *("ci", "docs", "manifests", "provisioning"),
    *("tests/bench", "tests/mutants", "tests/realistic", "tests/stand_ins"),
)
FILES = ("nox", "noxfile.py", "pyproject.toml", "README.md", "LICENSE", "tests/plain_script.py")
BORROWED = ("core", "lowering", "onnx", "test", "unit")
KEPT = ("PIP_", "SSL_", "REQUESTS_", "CURL_", "LANG", "TMPDIR", "http", "HTTP", "NO_PROXY")
TEST = "def test_that_the_session_runs_tests():\n    assert 1 + 1 == 2\n"
PROGRAM = """#!{python}
import sys; sys.path.insert(0, {project!r})
from ci.__main__ import main
if __name__ == '__main__': sys.exit(main())
"""
LIMIT_S = 300


@dataclass(frozen=True)
class Ended:
    """How a command ended, and all that it printed."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        return self.stdout + self.stderr


@dataclass
class Stage:
    """A place for one command, which runs in ``directory``: the checkout, unless a set-up moves it.

    ``cleanup`` ends what a set-up started, such as a server.
    """

    folder: Path
    variables: dict[str, str]
    directory: Path
    cleanup: ExitStack = field(default_factory=ExitStack)

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def shared(self) -> Path:
        """Where the checkout and the environments of all stages are."""
        return (self.project / ".nox").resolve().parents[1]

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def programs(self) -> Path:
        """Programs that stand in for others, first on PATH."""
        return self.folder / "bin"

    def run(self, line: str) -> Ended:
        """Run a line as a user does: in a shell, in ``directory``."""
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.directory,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def write(self, name: str, text: str) -> None:
        """Put a file of the checkout in the place of the one that all stages share."""
        path = self.project / name
        path.unlink()
        path.write_text(text, "utf-8")

    def edit(self, name: str, old: str, new: str) -> None:
        """Change a file of the checkout."""
        text = (self.project / name).read_text("utf-8")
        assert text.count(old) == 1, f"{name} has not one {old!r}"
        self.write(name, text.replace(old, new))


def make_stage(folder: Path, environments: Path) -> Stage:
    """A fresh checkout, whose files are those beside ``environments``, and an empty home."""
    variables = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    stage = Stage(folder, variables, folder / "project")
    for path in (stage.home, stage.programs):
        path.mkdir()
    link = partial(shutil.copytree, environments.parent, copy_function=os.link)
    link(stage.project, ignore=shutil.ignore_patterns(".nox"))
    # As in a clone, a model's file goes by its path there: in keys of what was lowered, too.
    subprocess.run(["git", "init", "-q", "-b", "main", str(stage.project)], check=True)
    (stage.project / ".nox").symlink_to(environments)
    program = stage.programs / "qnn-ci"  # as pip would install it
    program.write_text(PROGRAM.format(python=sys.executable, project=str(stage.project)))
    program.chmod(0o755)
    here = Path(sys.executable).parent
    # pip's own configuration is the user's: a package index may be named there.
    configuration = os.environ.get("XDG_CONFIG_HOME", str(Path.home() / ".config"))
    variables |= {
        "PATH": f"{stage.programs}:{here}:{os.environ['PATH']}",
        "HOME": str(stage.home),
        "XDG_CONFIG_HOME": configuration,
        "QNN_CI_HOME": str(folder / "store"),
        "QNN_CI_CACHE": "none",
        "QNN_CI_JOBS": "1",  # each process of a second one would load the compiler, too
        "QNN_CI_TORCH_INDEX": os.environ.get("QNN_CI_TORCH_INDEX", ""),
        "COLUMNS": "200",
        "PYTEST_DEBUG_TEMPROOT": str(folder),  # else a session's pytest clears up after others
    }
    return stage


def copy_project(target: Path) -> None:
    """What a clone holds, with one test in place of all, and its bytecode."""
    (target / "tests").mkdir(parents=True)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, target / name)
    for name in FILES:
        shutil.copy2(ROOT / name, target / name)
    test = target / "tests" / "unit" / "test_miniature.py"
    test.parent.mkdir(parents=True)
    test.write_text(TEST)
    compileall.compile_dir(target, quiet=1)


def list_times(project: Path) -> dict[str, int]:
    """When each source of a checkout was changed."""
    files = (path for name in FOLDERS for path in (project / name).rglob("*.*"))
    sources = (path for path in files if path.parent.name != "__pycache__")
    return {str(path): path.stat().st_mtime_ns for path in sources}


def make_environments(folder: Path) -> Path:
    """The .nox of all stages, below ``folder``: ``./nox`` makes what it runs from, if need be."""
    project = folder / "project"
    copy_project(project)
    environments = project / ".nox"
    environments.mkdir()
    if (ROOT / ".nox/bootstrap/bin/python").exists():
        (environments / "bootstrap").symlink_to(ROOT / ".nox/bootstrap")
    for group in BORROWED:
        borrow(environments / group, group)
    words = ["./nox", "-s", "qnn_ci", "--", "--version"]
    subprocess.run(words, cwd=project, check=True, timeout=LIMIT_S)
    return environments


def borrow(environment: Path, group: str) -> None:
    """An environment that imports what this Python does, marked as noxfile.py marks its own."""
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    wanted = nox.project.dependency_groups(nox.project.load_toml(ROOT / "pyproject.toml"), group)
    if group == "core":
        for path in list_files([*wanted, "pip"]):
            (site / path.name).symlink_to(path)
    else:
        paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        lines = [f"import site; site.addsitedir({path!r})\n" for path in sorted(paths)]
        (site / "borrowed.pth").write_text("".join(lines))
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256("\n".join([python, *wanted]).encode()).hexdigest()
    (environment / "installed.sha256").write_text(key)


def list_files(requirements: Iterable[str]) -> set[Path]:
    """What some packages, and all that these require, have in site-packages."""
    left, seen, found = [Requirement(text) for text in requirements], set(), set()
    while left:
        one = left.pop()
        if one.name in seen or (one.marker and not one.marker.evaluate({"extra": ""})):
            continue
        seen.add(one.name)
        package = distribution(one.name)
        left += [Requirement(text) for text in package.requires or ()]
        tops = {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}
        found |= {Path(str(package.locate_file(top))) for top in tops}
    return found
