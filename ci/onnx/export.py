"""Exports torch modules to ONNX. Only a model from PyTorch needs this module, and with it torch."""

from __future__ import annotations

import functools
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from ci.cases.forked import still_tqdm
from ci.models.eager import keep_state
from ci.models.factory import Inputs

OPSET = 21  # the first opset with 16-bit and 4-bit QuantizeLinear


def export_module(module: torch.nn.Module, inputs: Inputs, target: Path) -> None:
    """Write ``module`` as an ONNX file that includes its weights. The exporter's exceptions are not
    caught."""
    with torch.no_grad(), keep_state(module):
        program = torch.onnx.export(
            module, inputs, dynamo=True, opset_version=OPSET, verbose=False, external_data=False
        )
    program.save(str(target), external_data=False)


@functools.cache
def warm_exporter() -> None:
    """Export a small model, because the first export in a process takes seconds."""
    # Before the forks, which would lose tqdm's thread with a warning.
    still_tqdm()
    with TemporaryDirectory() as scratch:
        target = Path(scratch, "warm-up.onnx")
        export_module(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),), target)
