"""Builds a graph as a torch module, and draws its inputs and constants as arrays."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ci.faults.graph import FIX, Graph, Node
from provisioning.errors import UsageError

SETS = 2
UNKNOWN = -1
EPSILON = 1e-5
Call = Callable[..., Any]


def draw(graph: Graph, name: str, seed: int, number: int = 0) -> Any:
    """Return the float32 elements of an input for input set ``number``, or those of a constant. The
    same name, seed and number always yield the same elements."""
    declared = graph.tensors[name]
    if declared.value is not None:
        return np.full(declared.shape, declared.value, np.float32)
    random = np.random.default_rng([seed, number, zlib.crc32(name.encode())])
    if declared.like == "positive":
        return np.asarray(random.uniform(0.5, 1.5, declared.shape), np.float32)
    factor = 16.0 if declared.like == "large" else 1.0
    drawn: Any = np.clip(random.standard_normal(declared.shape), -3, 3) * factor
    if not declared.is_input and _is_weight(graph, name):
        drawn = drawn / np.sqrt(np.prod(declared.shape[1:]))
    return np.asarray(drawn, np.float32)  # a number if the shape is ()


def _is_weight(graph: Graph, name: str) -> bool:
    layers = {"linear", "conv", "conv_transpose"}
    return any(one.operator in layers and name in one.reads[1:] for one in graph.nodes.values())


def draw_sets(graph: Graph, seed: int) -> list[tuple[Any, ...]]:
    """Return SETS input sets, each with one array per input."""
    return [tuple(draw(graph, one, seed, n + 1) for one in graph.inputs) for n in range(SETS)]


class Module(nn.Module):  # type: ignore[misc, unused-ignore]
    """A graph as a module. Its constants, drawn with ``seed``, are parameters called ``c_NAME``.
    They are not buffers, because torchao could then not fold a batch norm into the weights of a
    convolution."""

    def __init__(self, graph: Graph, seed: int) -> None:
        super().__init__()
        self.graph = graph
        for name in graph.tensors:
            if graph.is_constant(name):
                value = torch.from_numpy(draw(graph, name, seed))
                self.register_parameter(f"c_{name}", nn.Parameter(value, requires_grad=False))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of the graph."""
        constants = {
            name: getattr(self, f"c_{name}")
            for name in self.graph.tensors
            if self.graph.is_constant(name)
        }
        values = evaluate(self.graph, constants, inputs)
        return tuple(values[name] for name in self.graph.outputs)


class Bundle(nn.Module):  # type: ignore[misc, unused-ignore]
    """Several graphs in one module, with separate inputs and outputs."""

    def __init__(self, modules: Sequence[Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of all graphs, in order."""
        made: list[Tensor] = []
        for part in self.parts:
            count = len(part.graph.inputs)  # type: ignore[union-attr, arg-type, unused-ignore]
            made += part(*inputs[:count])
            inputs = inputs[count:]
        return tuple(made)


def find_part(node: Any) -> int:
    """Return the number of the graph in a Bundle to which a node belongs, or UNKNOWN if the node's
    metadata does not contain the graph's module."""
    stack = node.meta.get("nn_module_stack") or {}
    parts = [name.split(".")[1] for name, _ in stack.values() if name.startswith("parts.")]
    return int(parts[0]) if parts else UNKNOWN


def write_forward(graph: Graph) -> str:
    """Return the ``forward`` method of a graph's module as Python code that needs only torch. The
    constants are parameters called ``c_NAME``."""
    inputs = tuple(map(torch.from_numpy, draw_sets(graph, 0)[0]))
    program = torch.export.export(Module(graph, 0).eval(), inputs, strict=False)
    constants = program.graph_signature.inputs_to_parameters
    plain = torch.fx.Graph()
    made: dict[Any, Any] = {}
    for node in program.graph.nodes:
        held = constants.get(node.name) if node.op == "placeholder" else None
        made[node] = (
            plain.create_node("get_attr", held) if held else plain.node_copy(node, made.__getitem__)
        )
    lines = plain.python_code("self").src.strip().splitlines()
    return "\n".join(line.partition(";  ")[0].rstrip() for line in lines)


def compute(graph: Graph, seed: int) -> list[dict[str, Tensor]]:
    """Return the values of all tensors and nodes, by name, for each input set. Raises torch's
    errors if shapes do not match, and TypeError if an attribute is missing."""
    constants = {
        name: torch.from_numpy(draw(graph, name, seed))
        for name in graph.tensors
        if graph.is_constant(name)
    }
    sets = draw_sets(graph, seed)
    with torch.no_grad():
        return [evaluate(graph, constants, list(map(torch.from_numpy, one))) for one in sets]


def evaluate(
    graph: Graph, constants: Mapping[str, Tensor], inputs: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Return the values of all tensors and nodes, by name, for one input set."""
    values = {**constants, **dict(zip(graph.inputs, inputs, strict=True))}
    for name, node in graph.nodes.items():
        values[name] = apply(node, [values[read] for read in node.reads])
    return values


def require_computable(graph: Graph) -> None:
    """Raise UsageError if torch cannot compute a graph, because shapes do not match or attributes
    are missing or unknown. Nothing is computed: the tensors have no memory."""
    values = {
        name: torch.empty(tensor.shape, device="meta") for name, tensor in graph.tensors.items()
    }
    name = ""
    try:
        for name, node in graph.nodes.items():
            values[name] = apply(node, [values[read] for read in node.reads])
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        why = re.sub(r"^[\w.<>]+\(\)", graph.nodes[name].operator, str(error))
        why = f"{name}: {why.partition(chr(10))[0]}"
        raise UsageError("torch cannot compute the graph", why=why, fix=FIX) from error


def apply(node: Node, given: Sequence[Tensor]) -> Tensor:
    """Return an operator's result. Raises TypeError for a missing or unknown attribute."""
    result: Tensor = CALLS[node.operator](*given, **node.attributes)
    return result


def _reduce(call: Call) -> Call:
    return lambda x, axes, keep: call(x, dim=list(axes), keepdim=bool(keep))


def _softmax(x: Tensor, axis: int) -> Tensor:
    x.size(axis)  # softmax itself does not check the axis of a tensor without memory
    return torch.softmax(x, dim=axis)


def _conv(
    x: Tensor, w: Tensor, b: Tensor | None = None, *, stride: int = 1, pad: int = 0, groups: int = 1
) -> Tensor:
    call = functional.conv1d if x.dim() == 3 else functional.conv2d
    made: Tensor = call(x, w, b, stride=stride, padding=pad, groups=groups)
    return made


def _conv_transpose(
    x: Tensor, w: Tensor, *, stride: int = 1, pad: int = 0, output_pad: int = 0, dilation: int = 1
) -> Tensor:
    call = functional.conv_transpose1d if x.dim() == 3 else functional.conv_transpose2d
    made: Tensor = call(
        x, w, stride=stride, padding=pad, output_padding=output_pad, dilation=dilation
    )
    return made


def _avg_pool(
    x: Tensor, *, kernel: int, stride: int, pad: int = 0, counts_pad: int = 1, ceil: int = 0
) -> Tensor:
    call = functional.avg_pool3d if x.dim() == 5 else functional.avg_pool2d
    made: Tensor = call(x, kernel, stride, pad, bool(ceil), count_include_pad=bool(counts_pad))
    return made


def _pad(x: Tensor, axis: int, before: int, after: int, value: float = 0.0) -> Tensor:
    widths = [0, 0] * (x.dim() - 1 - axis % x.dim()) + [before, after]
    return functional.pad(x, widths, value=value)


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    if slope.dim() == 1 and x.dim() > 2 and len(slope) == x.shape[1]:  # as nn.PReLU has them
        return functional.prelu(x, slope)
    return torch.where(x < 0, x * slope, x)


def _slice(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    if not 0 <= start < stop <= x.shape[axis]:
        raise ValueError("the slice is empty or exceeds the axis")
    return x.narrow(axis, start, stop - start)


CALLS: Mapping[str, Call] = {
    **{name: getattr(torch, name) for name in ("relu", "sigmoid", "tanh", "abs", "neg", "sin")},
    **{name: getattr(torch, name) for name in ("cos", "exp", "log", "sqrt", "reciprocal")},
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "maximum", "minimum")},
    "gelu": functional.gelu,
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "elu": functional.elu,
    "leaky_relu": lambda x, slope=0.1: functional.leaky_relu(x, slope),
    "clip": lambda x, low, high: torch.clamp(x, min=low, max=high),
    "softmax": _softmax,
    "log_softmax": lambda x, axis: torch.log_softmax(x, dim=axis),
    "lp_norm": lambda x, axis: functional.normalize(x, dim=axis),
    "cumsum": lambda x, axis: torch.cumsum(x, dim=axis),
    "layer_norm": lambda x, *wb: functional.layer_norm(x, x.shape[-1:], *wb, eps=EPSILON),
    "rms_norm": lambda x, *w: functional.rms_norm(x, x.shape[-1:], *w, eps=EPSILON),
    "batch_norm": lambda x, g, b, m, v: functional.batch_norm(x, m, v, g, b, eps=EPSILON),
    "instance_norm": lambda x: functional.instance_norm(x, eps=EPSILON),
    "mean": _reduce(torch.mean),
    "sum": _reduce(torch.sum),
    "amax": _reduce(torch.amax),
    "amin": _reduce(torch.amin),
    "linear": functional.linear,
    "matmul": torch.matmul,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "max_pool": lambda x, kernel, stride: functional.max_pool2d(
        x, kernel_size=kernel, stride=stride
    ),
    "avg_pool": _avg_pool,
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, order: x.permute(order),
    "slice": _slice,
    "pad": _pad,
    "expand": lambda x, shape: x.expand(shape),
    "concat": lambda *given, axis: torch.cat(given, axis),
    "upsample": lambda x, scale: functional.interpolate(x, scale_factor=float(scale)),
    "prelu": _prelu,
    "pow": lambda *given, base=None: torch.pow(*([base] if len(given) == 1 else []), *given),
}
