"""Lower one model with the adaptor that was just built, in a process of its own.

The adaptor must come from the overlay and the program must hold a QNN delegate. An import
proves nothing: the adaptor needs neither torch nor QNN for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from provisioning.errors import FailedError
from provisioning.process import run_process

PROGRAM = Path(__file__).resolve().with_name("proof_program.py")
LIMIT_S = 300.0


@dataclass(frozen=True)
class Proof:
    """What the lowering came to: the program's size in bytes and the seconds that it took."""

    adaptor: str
    program_bytes: int
    wall_s: float


class Record(msgspec.Struct, frozen=True):
    """A proof that was made, and the digest of everything that it was made with."""

    key: str
    proof: Proof


def recall_proof(record: Path, key: str) -> Proof | None:
    """The proof in ``record`` when it was made with the same things."""
    try:
        found = msgspec.json.decode(record.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None
    return found.proof if found.key == key else None


def remember_proof(record: Path, key: str, proof: Proof) -> None:
    """Replace ``record`` in one step."""
    fresh = record.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(Record(key, proof)))
    fresh.replace(record)


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
            todo="the executorch of this Python must be of the checkout's version",
        )
    _, size, adaptor = last.split(" ", 2)
    return Proof(adaptor, int(size), ended.wall_s)
