"""torch -> ONNX, by torch.onnx's exporter on torch.export, with one opset."""

from __future__ import annotations

import functools
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from ci.cases.forked import still_tqdm
from ci.models.eager import keep_state
from ci.models.user_code import Inputs

OPSET = 21  # the first in which QuantizeLinear of the standard has 16 and 4 bits


def export_module(module: torch.nn.Module, inputs: Inputs, target: Path) -> None:
    """Write ``module`` as ONNX, weights inside. Raises what the exporter raises."""
    with torch.no_grad(), keep_state(module):
        program = torch.onnx.export(
            module, inputs, dynamo=True, opset_version=OPSET, verbose=False, external_data=False
        )
    if program is None:
        raise RuntimeError("torch.onnx.export gave nothing")
    program.save(str(target), external_data=False)


@functools.cache
def warm_exporter() -> None:
    """Let the exporter load, once a process, what takes it seconds the first time."""
    still_tqdm()
    with TemporaryDirectory() as scratch:
        target = Path(scratch, "warm-up.onnx")
        export_module(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),), target)
