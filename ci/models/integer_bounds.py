"""Finds outputs that small errors can change (of comparisons and argmax), and outputs that the
model concatenates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ci.models.eager import flatten_outputs, keep_state, list_tensors, run_eager
from ci.models.schemes import Scheme
from ci.models.user_code import Inputs

# The error that elements may have before a comparison, as a share of the tensor's RMS, by bits of
# an activation. It equals the error that the gate allows in magnitudes: 20 dB and 40 dB.
NOISE = {8: 0.1, 11: 0.01, 16: 0.01}
DRAWS = 16


class Disturbance(TorchDispatchMode):
    """Adds a small error to the input of each comparison, argmax, top-k or conversion.

    Zeros stay zero, as in a program. Affected are all operators that take floating-point tensors
    and return another dtype, except quantizing operators.
    """

    def __init__(self, share: float, seed: int) -> None:
        super().__init__()
        self.share, self.generator = share, torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        kinds = [leaf for leaf in list_tensors(made) if not leaf.is_floating_point()]
        takes = any(leaf.is_floating_point() for leaf in list_tensors((args, kwargs)))
        if not kinds or not takes or func.namespace == "quantized_decomposed":
            return made
        moved = torch.utils._pytree.tree_map(self._move, args)
        return func(*moved, **kwargs)

    def _move(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() == 0:
            return value
        signs = torch.randint(0, 2, value.shape, generator=self.generator) * 2 - 1
        rms = value.float().square().mean().sqrt()
        return torch.where(value == 0, value, value + signs * (self.share * rms))


def find_ties(
    module: nn.Module, sets: Sequence[Inputs], scheme: Scheme, outputs: Sequence[Inputs]
) -> tuple[list[Inputs], list[Inputs]]:
    """Return the minimum and the maximum of each integer element, over ``outputs`` and several
    disturbed runs. Floating-point outputs are returned unchanged."""
    low, high = (list(map(list, outputs)) for _ in range(2))
    for seed in range(DRAWS):
        with keep_state(module), Disturbance(NOISE[scheme.recipe.activation_bits], seed):
            disturbed = run_eager(module, sets)
        for number, tensors in enumerate(disturbed):
            for index, tensor in enumerate(tensors):
                if not tensor.is_floating_point():
                    low[number][index] = torch.minimum(low[number][index], tensor)
                    high[number][index] = torch.maximum(high[number][index], tensor)
    return [tuple(one) for one in low], [tuple(one) for one in high]


class Concatenations(TorchDispatchMode):
    """Records the result of each concatenation, with its axis and the sizes of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, int, tuple[int, ...]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.cat.default:
            axis = (args[1] if len(args) > 1 else (kwargs or {}).get("dim", 0)) % made.dim()
            parts = tuple(part.shape[axis] for part in args[0] if part.numel())
            self.seen.append((made, axis, parts))
        return made


def find_joined(module: nn.Module, inputs: Inputs) -> list[tuple[int, tuple[int, ...]]]:
    """Return for each output the axis along which the model concatenates it, and the sizes of the
    parts. Transposes after the concatenation are allowed. (0, ()) if there is no concatenation."""
    with torch.no_grad(), Concatenations() as record:
        outputs = flatten_outputs(module(*(tensor.clone() for tensor in inputs)))
    return [_find_origin(output, record) for output in outputs]


def _find_origin(output: Tensor, record: Concatenations) -> tuple[int, tuple[int, ...]]:
    for made, axis, parts in record.seen:
        if made.data_ptr() == output.data_ptr() and made.numel() == output.numel():
            for place, size in enumerate(output.shape):
                same = size == made.shape[axis] and output.stride(place) == made.stride(axis)
                if same and len(parts) > 1:
                    return place, parts
    return 0, ()
