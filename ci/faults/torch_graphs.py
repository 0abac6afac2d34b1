"""Builds a graph as a torch module, and draws its inputs and constants as arrays."""

from __future__ import annotations

import operator
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ci.faults.graph import FIX, INFIX, Graph, Node, Shape, parse_graph
from ci.faults.results import Edit, Item
from provisioning.errors import UsageError

SETS, WINDOW = 2, 8
UNKNOWN = -1
EPSILON = 1e-5
Call = Callable[..., Any]
Size = int | tuple[int, ...]


def draw(graph: Graph, name: str, seed: int, number: int = 0) -> Any:
    """Return the float32 elements of an input for sample ``number``, or those of a constant. The
    same name, seed and number always yield the same elements."""
    declared = graph.tensors[name]
    if declared.value is not None:
        return np.full(declared.shape, declared.value, np.float32)
    # Not hash(), which differs between processes for a text.
    random = np.random.default_rng([seed, number, zlib.crc32(name.encode())])
    if declared.like == "positive":
        return np.asarray(random.uniform(0.5, 1.5, declared.shape), np.float32)
    if declared.like in {"causal", "window"}:
        # Not as low as the usual -1e4: with 8-bit activations, such a mask leaves nothing of the
        # scores.
        low: Any = np.full(declared.shape, -30, np.float32)
        return np.triu(low, 1) + (np.tril(low, -WINDOW) if declared.like == "window" else 0)
    if declared.like == "alibi":
        heads, rows, columns = (np.arange(size) for size in declared.shape[-3:])
        slopes = 2.0 ** (-8.0 * (heads + 1) / len(heads))
        biases = slopes[:, None, None] * np.minimum(columns - rows[:, None], 0)
        return np.asarray(np.broadcast_to(biases, declared.shape), np.float32)
    factor = 16.0 if declared.like == "large" else 1.0
    drawn: Any = np.clip(random.standard_normal(declared.shape), -3, 3) * factor
    if not declared.is_input and _is_weight(graph, name):
        # The results of a layer then have about the magnitude of its inputs.
        drawn = drawn / np.sqrt(np.prod(declared.shape[1:]))
    return np.asarray(drawn, np.float32)  # a number if the shape is ()


def _is_weight(graph: Graph, name: str) -> bool:
    layers = {"linear", "conv", "conv_transpose", "gru", "lstm"}
    return any(node.operator in layers and name in node.reads[1:] for node in graph.nodes.values())


def draw_sets(graph: Graph, seed: int) -> list[tuple[Any, ...]]:
    """Return SETS samples, each with one array per input."""
    samples = []
    for number in range(1, SETS + 1):
        arrays = [draw(graph, name, seed, number) for name in graph.inputs]
        samples.append(tuple(arrays))
    return samples


def draw_together(graphs: Sequence[Graph], seeds: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return SETS samples, each with the arrays for the inputs of all graphs."""
    samples_per_graph = map(draw_sets, graphs, seeds)
    return [tuple(chain(*arrays)) for arrays in zip(*samples_per_graph, strict=True)]


class Module(nn.Module):  # type: ignore[misc, unused-ignore]
    """A graph as a module. Its constants, drawn with ``seed``, are parameters called ``c_NAME``.
    They are not buffers, because torchao could then not fold a batch norm into the weights of a
    convolution. Numbers are Python's, as in ``x * 0.5``."""

    def __init__(self, graph: Graph, seed: int) -> None:
        super().__init__()
        self.graph = graph
        for name, tensor in graph.tensors.items():
            if not (tensor.is_input or tensor.is_number):
                value = torch.from_numpy(draw(graph, name, seed))
                self.register_parameter(f"c_{name}", nn.Parameter(value, requires_grad=False))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of the graph."""
        constants = {}
        for name, tensor in self.graph.tensors.items():
            if not tensor.is_input:
                constants[name] = getattr(self, f"c_{name}", tensor.value)
        values = evaluate(self.graph, constants, inputs)
        return tuple(values[name] for name in self.graph.outputs)


class Bundle(nn.Module):  # type: ignore[misc, unused-ignore]
    """Several graphs in one module, with separate inputs and outputs."""

    def __init__(self, modules: Sequence[Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of all graphs, in order."""
        outputs: list[Tensor] = []
        for part in self.parts:
            count = len(part.graph.inputs)  # type: ignore[union-attr, arg-type, unused-ignore]
            outputs += part(*inputs[:count])
            inputs = inputs[count:]
        return tuple(outputs)


def bundle_items(
    items: Sequence[Item], edit: Edit | None
) -> tuple[list[Graph], Any, list[tuple[Any, ...]]]:
    """Return the graphs of ``items``, the module that computes all of them, and SETS samples, each
    with the arrays for the inputs of all graphs. ``edit`` applies the rewrite of a single item."""
    graphs = [parse_graph(item.text) for item in items]
    seeds = [item.seed for item in items]
    module: Any = Bundle(list(map(Module, graphs, seeds))).eval()
    samples = draw_together(graphs, seeds)
    if edit and items[0].rewrite:
        sets = tuple(tuple(map(torch.from_numpy, arrays)) for arrays in samples)
        module = edit(items[0].rewrite, module, sets)
    return graphs, module, samples


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
    copies: dict[Any, Any] = {}
    for node in program.graph.nodes:
        constant = constants.get(node.name) if node.op == "placeholder" else None
        if constant:
            copies[node] = plain.create_node("get_attr", constant)
        else:
            copies[node] = plain.node_copy(node, copies.__getitem__)
    lines = plain.python_code("self").src.strip().splitlines()
    # torch.fx writes ``;  x = None`` behind the last use of a value.
    return "\n".join(line.partition(";  ")[0].rstrip() for line in lines)


def compute(graph: Graph, seed: int) -> list[dict[str, Tensor]]:
    """Return the values of all tensors and nodes, by name, for each sample. Raises torch's
    errors if shapes do not match, and TypeError if an attribute is missing."""
    names = filter(graph.is_constant, graph.tensors)
    constants = {name: torch.from_numpy(draw(graph, name, seed)) for name in names}
    sets = draw_sets(graph, seed)
    with torch.no_grad():
        return [evaluate(graph, constants, list(map(torch.from_numpy, arrays))) for arrays in sets]


def evaluate(
    graph: Graph, constants: Mapping[str, Any], inputs: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Return the values of all tensors and nodes, by name, for one sample."""
    values = {**constants, **dict(zip(graph.inputs, inputs, strict=True))}
    for name, node in graph.nodes.items():
        values[name] = apply(node, [values[read] for read in node.reads])
    return values


def find_shapes(graph: Graph) -> dict[str, Shape]:
    """Return the shape of each tensor and of each node's result. Raises UsageError if torch cannot
    compute a graph, because shapes do not match or attributes are missing or unknown. Nothing is
    computed: the tensors have no memory."""
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
    return {name: tuple(value.shape) for name, value in values.items()}


def apply(node: Node, operands: Sequence[Any]) -> Tensor:
    """Return an operator's result. Its operands are tensors or numbers. Raises TypeError for a
    missing or unknown attribute."""
    # Only Python's operators take a number, and with two numbers, their result would be none of
    # torch's.
    takes_numbers = node.operator in INFIX.values()
    if not takes_numbers or all(isinstance(operand, float) for operand in operands):
        operands = list(map(_make_tensor, operands))
    result: Tensor = CALLS[node.operator](*operands, **node.attributes)
    return result


def _make_tensor(operand: Any) -> Tensor:
    tensor: Tensor = torch.tensor(operand) if isinstance(operand, float) else operand
    return tensor


def _reduce(call: Call) -> Call:
    return lambda x, axes, keep: call(x, dim=list(axes), keepdim=bool(keep))


def _softmax(x: Tensor, axis: int) -> Tensor:
    x.size(axis)  # softmax itself does not check the axis of a tensor without memory
    return torch.softmax(x, dim=axis)


def _conv(x: Tensor, w: Tensor, *b: Tensor, pad: Size = 0, **options: int) -> Tensor:
    call = (functional.conv1d, functional.conv2d, functional.conv3d)[x.dim() - 3]
    result: Tensor = call(x, w, *b, padding=pad, **options)
    return result


def _conv_transpose(
    x: Tensor, w: Tensor, *b: Tensor, pad: int = 0, output_pad: int = 0, **options: int
) -> Tensor:
    call = functional.conv_transpose1d if x.dim() == 3 else functional.conv_transpose2d
    result: Tensor = call(x, w, *b, padding=pad, output_padding=output_pad, **options)
    return result


def _upsample(
    x: Tensor, scale: float = 0, size: Shape = (), align: int | None = None, mode: str = "nearest"
) -> Tensor:
    return functional.interpolate(
        x,
        size=list(size) or None,
        scale_factor=None if size else float(scale),
        mode=mode,
        align_corners=None if align is None else bool(align),
    )


def _attend(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor, causal: int = 0) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, *mask, is_causal=bool(causal))


def _pow(x: Tensor, *y: Tensor, base: float | None = None, exponent: float = 1) -> Tensor:
    if base is not None:
        return torch.pow(base, x)
    return torch.pow(x, *(y or (exponent,)))


def _recur(x: Tensor, *weights: Tensor, cell: str) -> Tensor:
    """Return all states of a GRU or LSTM, whose batch is the first axis of ``x``. Raises
    ValueError for shapes that do not fit, for which torch could end the process."""
    size = weights[1].shape[-1]
    rows = size * (3 if cell == "gru" else 4)
    fit = [(rows, x.shape[-1]), (rows, size), (rows,), (rows,)]
    if x.dim() != 3 or [tuple(weight.shape) for weight in weights] not in (fit[:2], fit):
        raise ValueError("the weights do not fit the cell")
    state = torch.zeros(1, x.shape[0], size, device=x.device)
    states: Any = state if cell == "gru" else (state, state)
    has_biases = len(weights) > 2
    # The others are num_layers, dropout, train, bidirectional and batch_first.
    results = getattr(torch, cell)(x, states, weights, has_biases, 1, 0.0, False, False, True)
    all_states: Tensor = results[0]
    return all_states


def _avg_pool(
    x: Tensor, *, kernel: int, stride: int, pad: int = 0, counts_pad: int = 1, ceil: int = 0
) -> Tensor:
    call = functional.avg_pool3d if x.dim() == 5 else functional.avg_pool2d
    result: Tensor = call(x, kernel, stride, pad, bool(ceil), count_include_pad=bool(counts_pad))
    return result


def _pad(x: Tensor, axis: int, before: int, after: int, value: float = 0.0) -> Tensor:
    # torch lists the last axis first.
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


OF_TORCH = (
    "relu", "sigmoid", "tanh", "abs", "neg", "sin", "cos", "exp", "log", "sqrt", "rsqrt",
    "reciprocal", "erf", "maximum", "minimum", "matmul",
)  # fmt: skip
OF_FUNCTIONAL = (
    "hardswish", "hardsigmoid", "elu", "silu", "softplus", "softsign", "mish", "selu", "celu",
    "linear",
)  # fmt: skip
CALLS: Mapping[str, Call] = {
    **{name: getattr(torch, name) for name in OF_TORCH},
    **{name: getattr(functional, name) for name in OF_FUNCTIONAL},
    **{name: getattr(operator, name) for name in ("add", "sub", "mul")},
    "div": operator.truediv,
    "gelu": lambda x, tanh=0: functional.gelu(x, approximate="tanh" if tanh else "none"),
    "leaky_relu": lambda x, slope=0.1: functional.leaky_relu(x, slope),
    "clip": lambda x, low, high: torch.clamp(x, min=low, max=high),
    "softmax": _softmax,
    "log_softmax": lambda x, axis: torch.log_softmax(x, dim=axis),
    "lp_norm": lambda x, axis: functional.normalize(x, dim=axis),
    "cumsum": lambda x, axis: torch.cumsum(x, dim=axis),
    "layer_norm": lambda x, *wb: functional.layer_norm(x, x.shape[-1:], *wb, eps=EPSILON),
    "rms_norm": lambda x, *w: functional.rms_norm(x, x.shape[-1:], *w, eps=EPSILON),
    "batch_norm": lambda x, g, b, m, v: functional.batch_norm(x, m, v, g, b, eps=EPSILON),
    "instance_norm": lambda x, *wb: functional.instance_norm(x, None, None, *wb, eps=EPSILON),
    "group_norm": lambda x, *wb, groups: functional.group_norm(x, groups, *wb, eps=EPSILON),
    "mean": _reduce(torch.mean),
    "sum": _reduce(torch.sum),
    "amax": _reduce(torch.amax),
    "amin": _reduce(torch.amin),
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "max_pool": lambda x, kernel, stride, pad=0, ceil=0: functional.max_pool2d(
        x, kernel_size=kernel, stride=stride, padding=pad, ceil_mode=bool(ceil)
    ),
    "avg_pool": _avg_pool,
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, order: x.permute(order),
    "slice": _slice,
    "pad": _pad,
    "expand": lambda x, shape: x.expand(shape),
    "concat": lambda *parts, axis: torch.cat(parts, axis),
    "upsample": _upsample,
    "upsample_linear": partial(_upsample, align=0, mode="bilinear"),
    "adaptive_pool": lambda x, size: functional.adaptive_avg_pool2d(x, list(size)),
    "pixel_shuffle": lambda x, scale: functional.pixel_shuffle(x, int(scale)),
    "gather": lambda x, axis, places: x.index_select(axis, torch.tensor(places, device=x.device)),
    "index_copy": lambda x, y, axis, places: x.index_copy(
        axis, torch.tensor(places, device=x.device), y
    ),
    "slice_scatter": lambda x, y, axis, start: torch.slice_scatter(
        x, y, axis, start, start + y.shape[axis]
    ),
    "grid_sample": lambda x, grid, align=0: functional.grid_sample(
        x, grid, align_corners=bool(align)
    ),
    "where": lambda c, a, b: torch.where(c > 0, a, b),
    "scaled_dot_product_attention": _attend,
    "gru": partial(_recur, cell="gru"),
    "lstm": partial(_recur, cell="lstm"),
    "prelu": _prelu,
    "pow": _pow,
}
