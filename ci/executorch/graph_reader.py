"""Reads the graphs of a torch module for the analyses that have to see it before it is lowered."""

from __future__ import annotations

from torch import nn

from ci.analysis.parts import find_parts
from ci.analysis.steps import Step, describe_steps, list_unread
from ci.graphs.torch_reader import read_module
from ci.models.factory import Inputs
from ci.models.model import split_inputs, split_module
from ci.models.tensors import OutputPart


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


def find_module_parts(module: nn.Module, inputs: Inputs) -> list[tuple[OutputPart, ...]]:
    """Return the parts from which a module joins each of its outputs, for all methods, in order.
    Raises the errors of torch.export."""
    inputs_of = split_inputs(module, inputs)
    parts: list[tuple[OutputPart, ...]] = []
    for name, method in split_module(module).items():
        parts += find_parts(read_module(method, inputs_of[name]))
    return parts
