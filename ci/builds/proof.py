"""What the adaptor that was just built can do: be imported, and lower one model.

Each in a process of its own. Lowering is the proof: the adaptor must come from the overlay and
the program must hold a QNN delegate. An import needs neither torch nor QNN and so says less.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ci.builds.inputs import read_record
from ci.builds.toolchains import PROBE_S, ask_python
from provisioning.console.process import run_process
from provisioning.errors import FailedError, UnfitError
from provisioning.files import write_whole

PROGRAM = Path(__file__).resolve().with_name("proof_program.py")
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
LACKS = 3
MISSING = "install what is missing into this Python, or add --no-proof"
OTHER_VERSION = "the executorch of this Python must have the checkout's version"


@dataclass(frozen=True)
class Proof:
    """What the lowering came to: the program's size in bytes and the seconds that it took."""

    adaptor: str
    program_bytes: int
    wall_s: float


class Record(msgspec.Struct, frozen=True):
    """A proof that was made, and the digest of everything that it was made with."""

    key: str = ""
    proof: Proof | None = None


def recall_proof(record: Path, key: str) -> Proof | None:
    """The proof in ``record`` when it was made with the same things."""
    found = read_record(record, Record)
    return found.proof if found.key == key else None


def remember_proof(record: Path, key: str, proof: Proof) -> None:
    write_whole(record, msgspec.json.encode(Record(key, proof)))


def check_provable(python: Path) -> None:
    """Raises UnfitError when ``python`` has no torch to lower a model with."""
    if not ask_python(python, ["torch"]).modules["torch"]:
        raise UnfitError(
            f"torch is not installed in {python}",
            why="the adaptor is proven by lowering a model with it",
            fix="install it there, or add --no-proof: then the adaptor is only imported",
        )


def run_import(adaptor: Path, python: Path, variables: Mapping[str, str]) -> str:
    """Load ``adaptor`` into ``python``: empty, or the module of Python that it lacks for that.

    The adaptor needs neither torch nor QNN to be imported, but numpy: this tells that it is for
    this Python and that nothing it links is missing, and no more. Raises FailedError.
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
            fix="build it for this Python with --python, and with --clean",
        )
    return ""


def run_proof(overlay: Path, python: Path, variables: Mapping[str, str]) -> Proof:
    """Lower a model with the adaptor in ``overlay``. Raises FailedError with the last lines."""
    paths = [str(overlay), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(paths)}
    ended = run_process([python, PROGRAM, overlay], env=env, timeout_s=LIMIT_S, check=False)
    last = ended.output.splitlines()[-1] if ended.output else ""
    if ended.returncode != 0 or not last.startswith("proved "):
        raise FailedError(
            f"no model could be lowered with the adaptor in {overlay}: it {ended.describe()}",
            why=last or "it printed nothing",
            fix=MISSING if last.startswith("ModuleNotFoundError") else OTHER_VERSION,
        )
    _, size, adaptor = last.split(" ", 2)
    return Proof(adaptor, int(size), ended.wall_s)
