"""A Python that the SDK's signer runs in: below 3.12, since it imports ``imp``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.signing.policy import SignerPython
from provisioning.console.command import user_program
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.errors import ToolError, UnfitError
from provisioning.files import explain_writes
from provisioning.versions import is_older, parse_version

VARIABLE = "QNN_CI_SIGNER_PYTHON"
PROBE = "import imp, sys; print('probed', '.'.join(map(str, sys.version_info[:3])))"
PROBE_TIMEOUT_S = 20.0
MAKE_TIMEOUT_S = 900.0
OLDEST_MINOR = 7


@dataclass(frozen=True)
class Interpreter:
    """A Python and its version, which it printed itself."""

    path: Path
    version: str


def probe_interpreter(path: Path) -> Interpreter | None:
    """``path`` as an interpreter with ``imp``; None when it is not one."""
    try:
        ended = run_process(
            [path, "-W", "ignore", "-c", PROBE], timeout_s=PROBE_TIMEOUT_S, check=False
        )
    except ToolError:
        return None
    words = ended.output.split()
    fits = ended.returncode == 0 and words[:1] == ["probed"]
    return Interpreter(path, words[1]) if fits else None


def find_interpreter(
    policy: SignerPython, given: str = "", environment: Mapping[str, str] = os.environ
) -> Interpreter | None:
    """The first fit of: ``given``, the variable, this Python, PATH, pyenv's, one made before.

    Raises UnfitError when ``given`` or the variable's Python is not fit.
    """
    named = given or environment.get(VARIABLE, "")
    if named:
        return _require(named, policy)
    this = Interpreter(Path(sys.executable), ".".join(map(str, sys.version_info[:3])))
    if is_fit(this, policy):
        return this
    for path in list_candidates(policy, environment):
        found = probe_interpreter(path)
        if found and is_fit(found, policy):
            return found
    return None


def is_fit(interpreter: Interpreter, policy: SignerPython) -> bool:
    return is_older(interpreter.version, policy.below)


def _require(named: str, policy: SignerPython) -> Interpreter:
    program = user_program(named)
    found = probe_interpreter(Path(shutil.which(program) or program))
    if not found or not is_fit(found, policy):
        raise UnfitError(
            f"{named} is not a Python below {policy.below}",
            why="the Hexagon SDK's signer imports the module imp, which Python 3.12 removed",
            fix=f"correct --signer-python or {VARIABLE}, or leave both out to have one found",
        )
    return found


def list_candidates(policy: SignerPython, environment: Mapping[str, str]) -> Iterator[Path]:
    """Where a fit Python may be, the likeliest first; no path twice."""
    seen = set()
    for path in _list_places(policy, environment):
        if path not in seen and path.is_file() and os.access(path, os.X_OK):
            seen.add(path)
            yield path


def _list_places(policy: SignerPython, environment: Mapping[str, str]) -> Iterator[Path]:
    minors = range(parse_version(policy.below).minor - 1, OLDEST_MINOR - 1, -1)
    search = environment.get("PATH", os.defpath)
    folders = [Path(folder) for folder in search.split(os.pathsep) if folder]
    for name in (*(f"python3.{minor}" for minor in minors), "python3", "python"):
        yield from (folder / name for folder in folders)
    if pyenv := shutil.which("pyenv", path=search):
        yield from _list_pyenv(Path(pyenv), minors)
    yield made_interpreter(policy)


def _list_pyenv(pyenv: Path, minors: range) -> Iterator[Path]:
    """pyenv's Pythons, which its shims hide until they are chosen."""
    listed = run_process([pyenv, "versions", "--bare"], timeout_s=PROBE_TIMEOUT_S, check=False)
    root = run_process([pyenv, "root"], timeout_s=PROBE_TIMEOUT_S, check=False).output.strip()
    names = listed.output.split()
    for minor in minors:
        for name in reversed(names):
            if name.startswith(f"3.{minor}."):
                yield Path(root) / "versions" / name / "bin" / "python"


def made_interpreter(policy: SignerPython) -> Path:
    """Where a made Python is kept, whether there is one or not."""
    from provisioning.store.store import store_home  # 10 ms that most runs do not need

    return store_home() / "tools" / f"python-{policy.make}" / "bin" / "python3"


def make_interpreter(policy: SignerPython, progress: Progress) -> Interpreter:
    """Fetch the pinned Python below the store's home.

    Raises UnfitError when it cannot be had, StoreError when it cannot be written.
    """
    target = made_interpreter(policy).parents[1]
    progress.step(f"no Python below {policy.below} found: fetching {policy.make} into {target}")
    with explain_writes(target, "set QNN_CI_HOME"), _scratch(target.parent) as scratch:
        tools, made = Path(scratch) / "venv", Path(scratch) / "python"
        python = tools / "bin" / "python"
        try:
            commands: list[list[str | os.PathLike[str]]] = [
                [sys.executable, "-m", "venv", tools],
                [python, "-m", "pip", "install", "--quiet", policy.installer],
                [python, "-m", "pbs_installer", "--destination", made, policy.make],
            ]
            for command in commands:
                run_process(command, cwd=Path(scratch), timeout_s=MAKE_TIMEOUT_S)
        except ToolError as error:
            last = error.why.splitlines()[-1] if error.why else ""
            raise _cannot_make(policy, f"{policy.make} could not be fetched: {last}") from error
        if not target.exists():
            made.rename(target)
    found = probe_interpreter(made_interpreter(policy))
    if not found:
        raise _cannot_make(policy, f"{target} holds no Python that runs")
    return found


def _scratch(place: Path) -> tempfile.TemporaryDirectory[str]:
    place.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=place, prefix=".making-")


def _cannot_make(policy: SignerPython, why: str) -> UnfitError:
    return UnfitError(
        f"no Python below {policy.below} is here, and none could be made",
        why=f"the Hexagon SDK's signer imports imp, which Python 3.12 removed; {why}",
        fix=f"install Python 3.11 and name it with --signer-python or {VARIABLE}",
    )
