"""What a module computes in eager mode: the references that a program is judged against."""

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
    """Outputs of each input set, in order; the module's state is as it was before.

    Raises FailedError for a module that fails or that draws random numbers, UsageError for one
    without outputs or with a dtype that HTP has not.
    """
    with blame_model(name, " on its inputs, before anything was lowered"):
        with keep_state(module):
            outputs = run_eager(module, sets)
        with keep_state(module):
            again = run_eager(module, sets[:1])
    if not outputs[0]:
        raise UsageError(f"{name} gives no tensor", fix="return a tensor, or a tuple or dict")
    for index, tensor in enumerate(outputs[0]):
        check_dtype(name, f"output {index}", tensor)
    shapes = {tuple(tuple(tensor.shape) for tensor in tensors): None for tensors in outputs}
    if len(shapes) > 1:
        first, second, *_ = shapes
        raise FailedError(
            f"{name} gives outputs whose shape depends on the data",
            why=f"{first} for one input, {second} for another",
            fix="a program for QNN has fixed shapes: give a mask, or the first k of torch.topk",
        )
    pairs = zip(outputs[0], again[0], strict=True)
    if not all(np.array_equal(one, other, equal_nan=True) for one, other in pairs):
        raise FailedError(
            f"{name} gives other outputs for the same inputs",
            why="it draws random numbers, or keeps state that is not a buffer",
            fix="switch dropout and noise off in eval mode, and make state a buffer",
        )
    return tuple(outputs)


def run_eager(module: Callable[..., Any], sets: Sequence[Inputs]) -> list[Inputs]:
    """Outputs of each input set, always as a tuple of tensors that later runs do not change."""
    with torch.no_grad():
        return [
            tuple(tensor.clone() for tensor in flatten_outputs(module(*copy_inputs(inputs))))
            for inputs in sets
        ]


def copy_inputs(inputs: Inputs) -> Inputs:
    """For a model that writes into what it is given."""
    return tuple(tensor.clone() for tensor in inputs)


def list_tensors(made: Any) -> Inputs:
    """Return the tensors of any structure, in its order."""
    leaves, _ = torch.utils._pytree.tree_flatten(made)
    return tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))


def flatten_outputs(made: Any) -> Inputs:
    """Return the tensors of a model's output, in the order in which ExecuTorch gives them.

    Numbers and None are left out. Raises UsageError for anything else, which no program returns.
    """
    leaves, _ = torch.utils._pytree.tree_flatten(made)
    for leaf in leaves:
        if leaf is not None and not isinstance(leaf, (Tensor, int, float)):
            kind = type(leaf).__name__
            raise UsageError(
                f"the model gives a {kind} among its outputs",
                why="a program for QNN gives tensors",
                fix=f"return no {kind}, or a tensor of its values",
            )
    return list_tensors(leaves)


@contextmanager
def keep_state(module: nn.Module, names: Collection[str] | None = None) -> Iterator[None]:
    """Put buffers back as they were: those of ``names``, or all.

    A KV cache or the statistics of a BatchNorm that counts on would otherwise start where the
    reference ended, and the program with it.
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
