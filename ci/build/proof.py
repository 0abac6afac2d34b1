"""Lower one model with the adaptor that was just built, in a process of its own.

``python -m ci.build.proof DIRECTORY``: the adaptor must come from below DIRECTORY and the
program must hold a QNN delegate. An import proves nothing: the adaptor needs neither torch nor
QNN for it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from provisioning.errors import FailedError
from provisioning.process import run_process

ADAPTOR = "executorch.backends.qualcomm.python.PyQnnManagerAdaptor"
LIMIT_S = 300.0
DELEGATE = b"QnnBackend"
SOC = "SM8650"


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
    root = Path(__file__).resolve().parents[2]
    paths = [str(overlay), str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(paths)}
    ended = run_process(
        [python, "-m", "ci.build.proof", overlay], env=env, timeout_s=LIMIT_S, check=False
    )
    last = ended.output.splitlines()[-1] if ended.output else ""
    if ended.returncode != 0 or not last.startswith("proved "):
        raise FailedError(
            f"no model could be lowered with the adaptor in {overlay}: it {ended.describe()}",
            why=last or "it printed nothing",
            todo="the executorch of this Python must be of the checkout's version",
        )
    _, size, adaptor = last.split(" ", 2)
    return Proof(adaptor, int(size), ended.wall_s)


def prove(overlay: Path) -> str:
    """The last line of a good proof: ``proved BYTES ADAPTOR``. Raises FailedError."""
    adaptor = Path(str(importlib.import_module(ADAPTOR).__file__)).resolve()
    if overlay.resolve() not in adaptor.parents:
        raise FailedError(f"the adaptor is {adaptor}, which is not below {overlay}")
    program = lower_model()
    if DELEGATE not in program:
        raise FailedError("the lowered program holds no QNN delegate")
    return f"proved {len(program)} {adaptor}"


def lower_model() -> bytes:
    """A convolution with a linear layer, in float16 for the HTP: the program's bytes."""
    import torch
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
    from executorch.backends.qualcomm.utils import utils

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 4)
    )
    options = utils.generate_qnn_executorch_compiler_spec(
        soc_model=getattr(QcomChipset, SOC),
        backend_options=utils.generate_htp_compiler_spec(use_fp16=True),
    )
    lowered = utils.to_edge_transform_and_lower_to_qnn(
        model.eval(), (torch.randn(1, 3, 8, 8),), options
    )
    return bytes(lowered.to_executorch().buffer)


def main() -> int:
    """Print the proof, or in one line what lowering raised."""
    try:
        text, code = prove(Path(sys.argv[1])), 0
    except Exception as error:  # noqa: BLE001 - torch and ExecuTorch raise what they like
        text, code = f"{type(error).__name__}: {error}", 1
    sys.stdout.write(text + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
