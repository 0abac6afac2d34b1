"""Measures by gradients how much noise each rounding of a quantized graph causes in the outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves

from ci.graphs.torch_calls import name_operator
from ci.graphs.torch_candidates import ORIGIN
from ci.graphs.torch_state import is_state
from ci.models.eager import copy_inputs, keep_state
from ci.models.factory import Inputs

PROJECTIONS = 8
TINY = 1e-12
QUANTIZERS = {"quantize_per_tensor", "dequantize_per_tensor"}


def measure_effects(part: GraphModule, inputs: Inputs) -> dict[tuple[str, ...], float]:
    """Return the result of Program.measure_effects for a method.

    The noise is estimated to first order: the errors of a result, times the gradients of
    PROJECTIONS random projections of the outputs. The result is empty if the model has no
    gradients.
    """
    recorder = _Rounding(part)
    try:
        with torch.enable_grad(), keep_state(part):
            recorder.run(*copy_inputs(inputs))
            return recorder.project()
    except (RuntimeError, NotImplementedError):  # an operator without a derivative
        return {}


def _find_read(node: Node) -> Node | None:
    """Return the activation that ``node`` quantizes or dequantizes, or None for other nodes. A
    buffer is an activation if the graph also writes it."""
    source = node.args[0] if name_operator(node) in QUANTIZERS else None
    is_weight = isinstance(source, Node) and source.op == "get_attr" and not is_state(source)
    return source if isinstance(source, Node) and not is_weight else None


class _Rounding(Interpreter):
    """Runs a model without rounding activations, and records the error of each rounding."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.errors: list[tuple[Node, Tensor, Tensor]] = []  # node, added zeros, error
        self.outputs: Sequence[Tensor] = ()

    def run_node(self, n: Node) -> Any:
        if source := _find_read(n):
            value: Tensor = self.env[source]
            if name_operator(n) == "quantize_per_tensor":
                scale, zero, low, high = (float(str(number)) for number in n.args[1:5])
                rounded = (value.detach() / scale).round() + zero
                error = (rounded.clamp(low, high) - zero) * scale - value.detach()
                # The gradient of an output by these zeros is that by the value.
                shift = torch.zeros_like(value, requires_grad=True)
                self.errors.append((source, shift, error))
                value = value + shift
            return value
        result = super().run_node(n)
        if n.op == "output":
            leaves = (leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
            self.outputs = [leave for leave in leaves if leave.requires_grad]
        return result

    def project(self) -> dict[tuple[str, ...], float]:
        """Return the result of measure_effects."""
        effects: Counter[Any] = Counter()
        generator = torch.Generator().manual_seed(0)
        shifts = [shift for _, shift, _ in self.errors]
        for _ in range(PROJECTIONS if self.outputs and shifts else 0):
            total = torch.zeros(())
            for output in self.outputs:
                signs = torch.randint(0, 2, output.shape, generator=generator) * 2.0 - 1
                total = total + (output * signs).sum() / output.detach().norm().clamp(min=TINY)
            grads = torch.autograd.grad(total, shifts, retain_graph=True, allow_unused=True)
            for (node, _, error), grad in zip(self.errors, grads, strict=True):
                # A gradient may be infinite, such as that of the root of zero.
                effect = torch.zeros(()) if grad is None else (grad * error).nan_to_num(0, 0, 0)
                noise = float(effect.sum()) ** 2
                effects.update({_name_rounded(node): noise / PROJECTIONS})
        return dict(effects)


def _name_rounded(node: Node) -> tuple[str, ...]:
    """Return the name of the operator that computes a result, if it is no input, and the names of
    those that read it. All of them need more bits, or the result is rounded again."""
    nodes, readers = ([node] if node.op == "call_function" else []), [*node.users]
    while readers:
        reader = readers.pop(0)
        if name_operator(reader) in QUANTIZERS:
            readers += reader.users
        elif reader.op == "call_function":
            nodes.append(reader)
    return tuple(dict.fromkeys(reader.meta.get(ORIGIN, (reader.name,))[0] for reader in nodes))
