"""A graph as a torch module, and its inputs and constants as arrays."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ci.faults.graph import Graph, Node

SETS = 2
UNKNOWN = -1
EPSILON = 1e-5
Call = Callable[..., Any]


def draw(graph: Graph, name: str, seed: int, number: int = 0) -> Any:
    """Return the elements of an input (of input set ``number``) or a constant, float32; the same
    for the same name, seed and number."""
    declared = graph.tensors[name]
    if declared.value is not None:
        return np.full(declared.shape, declared.value, np.float32)
    if declared.like == "ones":
        return np.ones(declared.shape, np.float32)
    random = np.random.default_rng([seed, number, zlib.crc32(name.encode())])
    if declared.like == "positive":
        return np.asarray(random.uniform(0.5, 1.5, declared.shape), np.float32)
    factor = 16.0 if declared.like == "large" else 1.0
    drawn: Any = np.clip(random.standard_normal(declared.shape), -3, 3) * factor
    if not declared.is_input and len(declared.shape) > 1 and _is_weight(graph, name):
        drawn = drawn / np.sqrt(np.prod(declared.shape[1:]))
    return np.asarray(drawn, np.float32)  # a number if the shape is ()


def _is_weight(graph: Graph, name: str) -> bool:
    layers = {"linear", "conv", "conv_transpose"}
    return any(one.operator in layers and name in one.reads[1:] for one in graph.nodes.values())


def draw_sets(graph: Graph, seed: int) -> list[tuple[Any, ...]]:
    """Return SETS input sets, each with an array per input."""
    return [tuple(draw(graph, one, seed, n + 1) for one in graph.inputs) for n in range(SETS)]


class Module(nn.Module):  # type: ignore[misc, unused-ignore]
    """A graph; its constants are parameters called ``c_NAME``, drawn with ``seed``. As buffers,
    torchao could not put a batch norm into a convolution's weights."""

    def __init__(self, graph: Graph, seed: int) -> None:
        super().__init__()
        self.graph = graph
        for name in graph.tensors:
            if graph.is_constant(name):
                value = torch.from_numpy(draw(graph, name, seed))
                self.register_parameter(f"c_{name}", nn.Parameter(value, requires_grad=False))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs."""
        constants = {
            name: getattr(self, f"c_{name}")
            for name in self.graph.tensors
            if self.graph.is_constant(name)
        }
        values = evaluate(self.graph, constants, inputs)
        return tuple(values[name] for name in self.graph.outputs)


class Bundle(nn.Module):  # type: ignore[misc, unused-ignore]
    """Graphs side by side, each with its own inputs and outputs, in one module."""

    def __init__(self, modules: Sequence[Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of all graphs, one after the other."""
        made: list[Tensor] = []
        for part in self.parts:
            count = len(part.graph.inputs)  # type: ignore[union-attr, arg-type, unused-ignore]
            made += part(*inputs[:count])
            inputs = inputs[count:]
        return tuple(made)


def find_part(node: Any) -> int:
    """Return which graph of a Bundle a node comes from; UNKNOWN if it does not name its module."""
    stack = node.meta.get("nn_module_stack") or {}
    parts = [name.split(".")[1] for name, _ in stack.values() if name.startswith("parts.")]
    return int(parts[0]) if parts else UNKNOWN


def write_forward(graph: Graph) -> str:
    """Return ``forward`` of a graph's module as Python that needs torch alone; constants are
    parameters called ``c_NAME``."""
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
    """Return the value of each tensor and node per input set. Raises what torch raises for shapes
    that do not fit, and KeyError for a missing attribute."""
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
    """Return the value of each tensor and node."""
    values = {**constants, **dict(zip(graph.inputs, inputs, strict=True))}
    for name, node in graph.nodes.items():
        values[name] = apply(node, [values[read] for read in node.reads])
    return values


def apply(node: Node, given: Sequence[Tensor]) -> Tensor:
    """Return what an operator makes of its operands."""
    result: Tensor = CALLS[node.operator](node, *given)
    return result


def _reduce(call: Call) -> Call:
    return lambda node, x: call(
        x, dim=list(node.integers("axes")), keepdim=bool(node.integer("keep"))
    )


def _norm(node: Node, x: Tensor, w: Tensor | None = None, b: Tensor | None = None) -> Tensor:
    del node
    return functional.layer_norm(x, x.shape[-1:], w, b, EPSILON)


def _conv(node: Node, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    stride, pad, groups = (node.integer(*one) for one in CONV)
    call = functional.conv1d if x.dim() == 3 else functional.conv2d
    made: Tensor = call(x, w, b, stride=stride, padding=pad, groups=groups)
    return made


CONV = (("stride", 1), ("pad", 0), ("groups", 1))


def _pad(node: Node, x: Tensor) -> Tensor:
    axis = node.integer("axis") % x.dim()
    widths = [0, 0] * (x.dim() - 1 - axis) + [node.integer("before"), node.integer("after")]
    return functional.pad(x, widths, value=node.number("value", 0.0))


def _slice(node: Node, x: Tensor) -> Tensor:
    axis, start, stop = (node.integer(name) for name in ("axis", "start", "stop"))
    if not 0 <= start < stop <= x.shape[axis]:
        raise ValueError("nothing is sliced")
    return x[(slice(None),) * (axis % x.dim()) + (slice(start, stop),)]


def _plain(call: Call) -> Call:
    return lambda _, *given: call(*given)


CALLS: Mapping[str, Call] = {
    "relu": _plain(functional.relu),
    "sigmoid": _plain(torch.sigmoid),
    "tanh": _plain(torch.tanh),
    "gelu": _plain(functional.gelu),
    "hardswish": _plain(functional.hardswish),
    "hardsigmoid": _plain(functional.hardsigmoid),
    "elu": _plain(functional.elu),
    "leaky_relu": lambda node, x: functional.leaky_relu(x, node.number("slope", 0.1)),
    "abs": _plain(torch.abs),
    "neg": _plain(torch.neg),
    "sin": _plain(torch.sin),
    "cos": _plain(torch.cos),
    "exp": _plain(torch.exp),
    "clip": lambda node, x: torch.clamp(x, node.number("low"), node.number("high")),
    "log": _plain(torch.log),
    "sqrt": _plain(torch.sqrt),
    "reciprocal": _plain(torch.reciprocal),
    "add": _plain(torch.add),
    "sub": _plain(torch.sub),
    "mul": _plain(torch.mul),
    "div": _plain(torch.div),
    "maximum": _plain(torch.maximum),
    "minimum": _plain(torch.minimum),
    "softmax": lambda node, x: torch.softmax(x, node.integer("axis")),
    "log_softmax": lambda node, x: torch.log_softmax(x, node.integer("axis")),
    "lp_norm": lambda node, x: functional.normalize(x, dim=node.integer("axis")),
    "layer_norm": _norm,
    "rms_norm": lambda _, x, *w: functional.rms_norm(x, x.shape[-1:], *w, eps=EPSILON),
    "batch_norm": lambda _, x, g, b, m, v: functional.batch_norm(x, m, v, g, b, eps=EPSILON),
    "instance_norm": lambda _, x: functional.instance_norm(x, eps=EPSILON),
    "mean": _reduce(torch.mean),
    "sum": _reduce(torch.sum),
    "amax": _reduce(torch.amax),
    "amin": _reduce(torch.amin),
    "linear": _plain(functional.linear),
    "matmul": _plain(torch.matmul),
    "conv": _conv,
    "conv_transpose": lambda node, x, w: functional.conv_transpose2d(
        x, w, stride=node.integer("stride", 1)
    ),
    "max_pool": lambda node, x: functional.max_pool2d(
        x, node.integer("kernel"), node.integer("stride")
    ),
    "avg_pool": lambda node, x: (functional.avg_pool3d if x.dim() == 5 else functional.avg_pool2d)(
        x,
        node.integer("kernel"),
        node.integer("stride"),
        node.integer("pad", 0),
        count_include_pad=bool(node.integer("counts_pad", 1)),
    ),
    "reshape": lambda node, x: x.reshape(node.integers("shape")),
    "transpose": lambda node, x: x.permute(node.integers("order")),
    "slice": _slice,
    "pad": _pad,
    "expand": lambda node, x: x.expand(node.integers("shape")),
    "concat": lambda node, *given: torch.cat(given, node.integer("axis")),
    "upsample": lambda node, x: functional.interpolate(
        x, scale_factor=float(node.integer("scale")), mode="nearest"
    ),
    "pow": lambda node, *given: torch.pow(
        *([node.number("base")] if len(given) == 1 else []), *given
    ),
    "cumsum": lambda node, x: torch.cumsum(x, node.integer("axis")),
    "prelu": lambda _, x, slope: torch.where(x < 0, x * slope, x),
}
