"""The suite lowered and run one by one, as ExecuTorch's own tests for QNN do it.

No fork, no cache, no second case at a time; the models and what is asked of QNN are the same.
Run as a program: ``python one_by_one.py SUITE``, where SUITE is JSON, schemes by model. Prints a
line for each case.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from executorch.runtime import Runtime

from tests.plain_script import lower

SETS = 4


def lower_and_run(model: str, scheme: str, folder: Path) -> None:
    """Quantize, lower, write the program, load it and run it on SETS input sets."""
    module, example, calibration = importlib.import_module(f"ci.models.suite.{model}").make_case()
    sets = [example, *calibration]
    expected = [module(*inputs) for inputs in sets[:SETS]]
    program = folder / f"{model}-{scheme}.pte"
    program.write_bytes(lower(module, sets, scheme))
    method = Runtime.get().load_program(program).load_method("forward")
    assert method is not None
    for inputs, wanted in zip(sets[:SETS], expected, strict=True):
        outputs = method.execute(inputs)
        assert len(outputs) == len(torch.utils._pytree.tree_leaves(wanted))


def main() -> None:
    suite: dict[str, list[str]] = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for model, schemes in suite.items():
            for scheme in schemes:
                began = time.monotonic()
                try:
                    lower_and_run(model, scheme, Path(folder))
                    said = "ok"
                except Exception as error:  # noqa: BLE001 - a case that fails counts with its time
                    said = f"{type(error).__name__}: {error}".splitlines()[0][:60]
                print(f"CASE {model} {scheme} {time.monotonic() - began:.3f} {said}", flush=True)


if __name__ == "__main__":
    main()
