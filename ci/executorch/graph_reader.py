"""Reads the graphs of a torch module for the analyses that have to see it before it is lowered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from ci.analysis.exponents import try_to_measure_low
from ci.analysis.parts import find_parts
from ci.analysis.steps import Step, describe_steps, list_unread
from ci.graphs.candidates import Candidate
from ci.graphs.torch_candidates import list_candidates
from ci.graphs.torch_program import read_torch
from ci.graphs.torch_reader import read_module
from ci.models.factory import Inputs
from ci.models.model import read_source, split_inputs, split_module
from ci.models.tensors import OutputPart
from ci.models.user_code import blame_model
from ci.models.user_models import Source


def describe_module(
    module: nn.Module, inputs: Inputs, notes: list[str] | None = None
) -> tuple[Step, ...]:
    """Return the steps of a module, and add what they lack to ``notes``. The result is empty if the
    module cannot be exported, such as for a shape that depends on the data. Lowering the module
    reports the reason later."""
    try:
        graph = read_module(module, inputs, functional=False)
    except Exception:  # noqa: BLE001 - any that torch.export raises
        return ()
    if notes is not None:
        notes += list_unread(graph)
    return describe_steps(graph)


def measure_module(module: nn.Module, sets: Sequence[Inputs]) -> tuple[Step, ...]:
    """Return the steps of a module whose numbers are those of the samples ``sets``, as far as they
    can be measured."""
    steps = describe_module(module, sets[0])
    return try_to_measure_low(steps, partial(read_torch, module, sets[0]), sets)


def find_module_parts(module: nn.Module, inputs: Inputs) -> list[tuple[OutputPart, ...]]:
    """Return the parts from which a module joins each of its outputs, for all methods, in order.
    Raises the errors of torch.export."""
    inputs_of = split_inputs(module, inputs)
    parts: list[tuple[OutputPart, ...]] = []
    for name, method in split_module(module).items():
        parts += find_parts(read_module(method, inputs_of[name]))
    return parts


def list_model_candidates(reference: str, source: Source) -> list[Candidate]:
    """Return the calls in the graphs of a model's methods that parts can select. Raises UsageError
    or FailedError as load_model does."""
    module, example, _, _ = read_source(reference, source)
    module.eval()
    with torch.no_grad(), blame_model(Path(reference).name, " (in torch.export)"):
        inputs = split_inputs(module, example)
        candidates = []
        for name, method in split_module(module).items():
            # As in ci.executorch.quantize, whose nodes the parts select.
            program = torch.export.export(method, inputs[name], strict=True)
            candidates += list_candidates(program.graph)
    return candidates
