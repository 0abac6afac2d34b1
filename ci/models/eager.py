"""Computes a module's outputs in eager mode. A program is judged against these references."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ci.models.user_code import Inputs, blame_model, check_dtype
from provisioning.errors import FailedError, UsageError


def compute_reference(name: str, module: nn.Module, sets: Sequence[Inputs]) -> tuple[Inputs, ...]:
    """Return the outputs for each input set, in order. The module's state does not change.

    Raises FailedError if the module fails or draws random numbers, UsageError if it has no
    outputs or a dtype that HTP does not support.
    """
    with blame_model(name, " on its inputs, before anything was lowered"):
        with keep_state(module):
            outputs = run_eager(module, sets)
        with keep_state(module):
            again = run_eager(module, sets[:1])
    if not outputs[0]:
        raise UsageError(f"{name} returns no tensor", fix="return a tensor, or a tuple or dict")
    for index, tensor in enumerate(outputs[0]):
        check_dtype(name, f"output {index}", tensor)
    shapes = {tuple(tuple(tensor.shape) for tensor in tensors): None for tensors in outputs}
    if len(shapes) > 1:
        first, second, *_ = shapes
        raise FailedError(
            f"{name} returns outputs whose shape depends on the data",
            why=f"{first} for one input, {second} for another",
            fix="a program for QNN has fixed shapes: return a mask, or the first k of torch.topk",
        )
    pairs = zip(outputs[0], again[0], strict=True)
    if not all(np.array_equal(one, other, equal_nan=True) for one, other in pairs):
        raise FailedError(
            f"{name} returns different outputs for the same inputs",
            why="it draws random numbers, or keeps state outside its buffers",
            fix="switch dropout and noise off in eval mode, and make the state a buffer",
        )
    return tuple(outputs)


def run_eager(module: Callable[..., Any], sets: Sequence[Inputs]) -> list[Inputs]:
    """Return the outputs for each input set, as tuples of tensors that later runs do not
    change."""
    with torch.no_grad():
        return [
            tuple(tensor.clone() for tensor in flatten_outputs(module(*copy_inputs(inputs))))
            for inputs in sets
        ]


def copy_inputs(inputs: Inputs) -> Inputs:
    """Return copies of the inputs, because a model may write to its inputs."""
    return tuple(tensor.clone() for tensor in inputs)


def list_tensors(made: Any) -> Inputs:
    """Return the tensors in a nested structure, in order."""
    leaves, _ = torch.utils._pytree.tree_flatten(made)
    return tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))


def flatten_outputs(made: Any) -> Inputs:
    """Return the tensors of a model's output, in the order in which ExecuTorch returns them.

    Numbers and None are omitted. Raises UsageError for other types, which no program can return.
    """
    leaves, _ = torch.utils._pytree.tree_flatten(made)
    for leaf in leaves:
        if leaf is not None and not isinstance(leaf, (Tensor, int, float)):
            kind = type(leaf).__name__
            raise UsageError(
                f"the model has a {kind} in its outputs",
                why="a program for QNN returns tensors",
                fix=f"omit the {kind}, or return a tensor of its values",
            )
    return list_tensors(leaves)


@contextmanager
def keep_state(module: nn.Module, names: Collection[str] | None = None) -> Iterator[None]:
    """Restore buffers when the block ends: those in ``names``, or all.

    Otherwise the program would start with the state that the reference run left behind, such as a
    filled KV cache or the statistics of a BatchNorm layer.
    """
    kept = {
        name: (buffer, buffer.clone())
        for name, buffer in module.named_buffers()
        if names is None or name in names
    }
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in kept.values():
                buffer.copy_(before)
