"""Install a published adaptor, and prove that the installed adaptor works.

The adaptor is the Python extension with which ExecuTorch lowers for QNN. The first check imports it
in a new process, and needs neither torch nor QNN. The second check lowers a model with an adaptor
in an overlay. It fails if Python loads a different adaptor, or if the program contains no QNN
delegate.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from ci.builds.builder import Result
from ci.builds.checkout import find_package, require_same_version
from ci.builds.files import python_tag, read_record, write_record
from ci.builds.plan import BuildJob, Place
from ci.builds.targets import Target
from ci.builds.toolchains import PROBE_S, ask_python
from provisioning.artifacts.choice import OverlayRecord, write_overlay
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.errors import FailedError, UnfitError
from provisioning.files import digest_sources, explain_writes, staged_directory

OVERLAY, CHECKOUT, _ = PLACES = ("overlay", "checkout", "none")


def deliver(
    job: BuildJob, result: Result, where: str, progress: Progress, *, with_proof: bool
) -> dict[str, Any]:
    """Install the adaptor in the checkout, in an overlay of the installed wheel, or nowhere.

    The adaptor is always imported. If the Python of the build lacks a module for that, the result
    only names the module. ``with_proof`` also lowers a model with the adaptor in an overlay, unless
    this was done before with the same inputs. Returns the entries for artifacts.json, or an empty
    dict if the target installs nothing. Raises FailedError if the import or the proof fails,
    UnfitError if there is no wheel for the overlay, and StoreError if files cannot be written.
    """
    target, place = job.plan.target, job.plan.place
    if not target.installs:
        return {}
    python = job.request.python
    names = (artifact.path.name for artifact in result.artifacts)
    paths = [place.artifacts / name for name in names if name.startswith("Py")]
    missing_modules = {run_import(path, python, job.variables) for path in paths} - {""}
    entries: dict[str, Any] = {"python": str(python), "import_lacks": sorted(missing_modules)}
    if where == CHECKOUT:
        entries["installed"] = [str(path) for path in install_files(target, place, job.plan.source)]
    if where == OVERLAY:
        entries |= _deliver_overlay(job, result, progress, with_proof=with_proof)
    return entries


def _deliver_overlay(
    job: BuildJob, result: Result, progress: Progress, *, with_proof: bool
) -> dict[str, Any]:
    place, package = job.plan.place, _find_wheel(job)
    overlay = place.root / "overlay"
    proven = [  # what a proof depends on
        digest_sources(Path(__file__), PROGRAM),
        *(artifact.sha256 for artifact in result.artifacts),
        # Its time instead of the content of its files: pip sets it when it installs another wheel.
        f"{package} {package.stat().st_mtime_ns}",
        *(f"{name}={value}" for name, value in sorted(job.variables.items())),
    ]
    key = hashlib.sha256("\0".join(proven).encode()).hexdigest()
    version = ask_python(job.request.python).distributions["executorch"]
    entries = {"overlay": str(overlay), "wheel": {"path": str(package), "version": version}}
    record = read_record(place.proof, Record)
    if record.proof and record.key == key and overlay.is_dir():
        return {**entries, "proof": {**asdict(record.proof), "cached": True}}
    make_overlay(job.plan.target, place, package, overlay)
    values = job.plan.values
    checkout, sdk = values["executorch_version"], values["qnn_sdk_version"]
    write_overlay(overlay, OverlayRecord(checkout, sdk, python_tag(job.plan)))
    if not with_proof:
        return entries
    progress.step(f"lowering a model with the adaptor in {overlay}")
    with progress.waiting("lowering"):
        proof = run_proof(overlay, job.request.python, job.variables)
    write_record(place.proof, Record(key, proof))
    return {**entries, "proof": {**asdict(proof), "cached": False}}


def check_delivery(job: BuildJob, where: str, *, with_proof: bool) -> None:
    """Raise UnfitError if, after the build, an overlay could not be made or proven.

    An overlay needs an installed wheel of the checkout's version. The proof needs torch.
    """
    if job.plan.target.installs and where == OVERLAY:
        _find_wheel(job)
        python = job.request.python
        # Before the build, which takes minutes, and not after it.
        facts = ask_python(python, ["torch"])
        installed = facts.distributions["executorch"]
        require_same_version(python, installed, job.plan.values["executorch_version"])
        if with_proof and not facts.modules["torch"]:
            raise UnfitError(
                f"torch is not installed for {python}",
                why="to prove that the adaptor works, a model is lowered with it",
                fix="install torch there, or add --no-proof to only import the adaptor",
            )


def _find_wheel(job: BuildJob) -> Path:
    return find_package(job.request.python, job.plan.source, job.plan.place.root.parent)


def install_files(target: Target, place: Place, root: Path) -> tuple[Path, ...]:
    """Copy the target's files into ``root``, an ExecuTorch checkout. Each file is written under a
    temporary name and then renamed.

    Returns the written paths. Raises StoreError if ``root`` cannot be written.
    """
    written: list[Path] = []
    for row in target.installs:
        directory = root / row.to
        for source in sorted(place.root.glob(row.path)):
            with explain_writes(directory):
                directory.mkdir(parents=True, exist_ok=True)
                fresh = directory / f".{source.name}.new"
                shutil.copy2(source, fresh)
                # A process that has the old library mapped keeps it; writing into it would crash
                # that process.
                fresh.replace(directory / source.name)
            written.append(directory / source.name)
    return tuple(written)


def make_overlay(target: Target, place: Place, package: Path, parent: Path) -> None:
    """Make ``parent``, a directory for PYTHONPATH that contains ``package`` as executorch, with the
    target's files in it.

    Everything except the directories that receive files is a link into ``package``, so that the
    installed wheel stays unchanged. Raises StoreError if the directory cannot be written.
    """
    with explain_writes(parent), staged_directory(parent) as fresh:
        opened = {Path(row.to) for row in target.installs}
        _link_tree(package, fresh / "executorch", Path(), opened)
        for row in target.installs:
            for source in sorted(place.root.glob(row.path)):
                written = fresh / "executorch" / row.to / source.name
                # It is a link into the installed wheel, which has to stay unchanged.
                written.unlink(missing_ok=True)
                shutil.copy2(source, written)


def _link_tree(package: Path, target: Path, below: Path, opened: set[Path]) -> None:
    """Fill ``target`` with links into ``package``, except for the wheel's own adaptor. The
    directories in ``opened`` are created as real directories.
    """
    # Links to directories instead of to files where possible: an overlay has few entries, and a new
    # file of the wheel appears in it.
    (target / below).mkdir(parents=True, exist_ok=True)
    for entry in sorted((package / below).iterdir()):
        path = below / entry.name
        if any(path == directory or path in directory.parents for directory in opened):
            _link_tree(package, target, path, opened)
        elif not entry.name.startswith("PyQnn"):
            (target / path).symlink_to((package / path).absolute())
    # The wheel may lack a directory into which the target installs.
    for directory in opened:
        (target / directory).mkdir(parents=True, exist_ok=True)


PROGRAM = Path(__file__).resolve().with_name("proof_program.py")
# The first import of torch from a cold disk takes long.
LIMIT_S = 300.0
IMPORT = """
import importlib.util, pathlib, sys
name = pathlib.Path(sys.argv[1]).name.partition(".")[0]
spec = importlib.util.spec_from_file_location(name, sys.argv[1])
try:
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
except Exception as error:
    cause = error.__cause__ or error
    if isinstance(cause, ModuleNotFoundError):
        print(cause.name)
        sys.exit(LACKS)
    print(f"{type(cause).__name__}: {cause}")
    sys.exit(1)
"""
# Not 1, which Python returns for any other exception.
LACKS = 3
MISSING = "install the missing modules into the Python of the build (--python), or add --no-proof"
OTHER_VERSION = (
    "check that the executorch in the Python of the build (--python) has the checkout's version"
)


@dataclass(frozen=True)
class Proof:
    """The result of lowering a model: the path of the adaptor, the program's size in bytes, and the
    time in seconds."""

    adaptor: str
    program_bytes: int
    wall_s: float


class Record(msgspec.Struct, frozen=True):
    """A proof and the digest of its inputs."""

    key: str = ""
    proof: Proof | None = None


def run_import(adaptor: Path, python: Path, variables: Mapping[str, str]) -> str:
    """Import ``adaptor`` in ``python``. Return "", or the name of a missing Python module.

    The import needs numpy, but neither torch nor QNN. It proves only that the adaptor is built for
    this Python and that all its libraries can be loaded. Raises FailedError if the import fails for
    any reason other than a missing module.
    """
    env = {**os.environ, **variables}
    program = IMPORT.replace("LACKS", str(LACKS))
    ended = run_process([python, "-c", program, adaptor], env=env, timeout_s=PROBE_S, check=False)
    last = ended.output.splitlines()[-1] if ended.output else ended.describe()
    if ended.returncode == LACKS:
        return last
    if ended.returncode != 0:
        raise FailedError(
            f"{python} cannot import {adaptor.name}",
            why=last,
            fix="build the adaptor for this Python, with --python and --clean",
        )
    return ""


def run_proof(overlay: Path, python: Path, variables: Mapping[str, str]) -> Proof:
    """Lower a model with the adaptor in ``overlay``. Raises FailedError, with the last line of the
    process's output as the cause, if that fails."""
    paths = [str(overlay), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(paths)}
    ended = run_process([python, PROGRAM, overlay], env=env, timeout_s=LIMIT_S, check=False)
    last = ended.output.splitlines()[-1] if ended.output else ""
    if ended.returncode != 0 or not last.startswith("proved "):
        raise FailedError(
            f"could not prove that the overlay {overlay} works: the process {ended.describe()}",
            why=last or "it printed nothing",
            fix=MISSING if last.startswith("ModuleNotFoundError") else OTHER_VERSION,
        )
    _, size, adaptor = last.split(" ", 2)
    return Proof(adaptor, int(size), ended.wall_s)
