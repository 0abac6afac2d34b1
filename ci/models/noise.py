"""Predicts how much the outputs of a correct program may differ from the outputs of its model. To
do so, it runs the eager model with errors like the ones that QNN's arithmetic makes.

A program's rounding differs from the eager model's by a step here and there. The effect on an
output depends on the model. The eager model is therefore run several times with such errors
inserted at random. The spread of its outputs is the expected error of a correct program; this needs
neither a program nor recorded numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._decomp import get_decompositions
from torch.fx import GraphModule, Interpreter, Node

from ci.models.eager import keep_state, run_eager
from ci.models.factory import Inputs
from ci.models.model import join_modules, split_inputs, split_module
from ci.models.rounding import (
    ADD,
    FLOAT16,
    FLOAT16_MAX,
    LAYER,
    LEAST_TALL,
    MOVED,
    RELATIVE,
    TALL,
    UNIFORM,
    WEIGHT_GAIN,
    WEIGHT_STEPS,
    Term,
    Terms,
    count_runs,
    read_terms,
    take_term,
)
from ci.models.user_code import TraceError

FUSED_THROUGH = ("view", "_unsafe_view", "reshape", "cat", "clone", "alias")
CELLS = ("gru", "lstm", "rnn_tanh", "rnn_relu")
LAYERS = ("linear", "addmm", "mm", "bmm", "matmul", "conv")
# Operators that move or select elements but compute nothing.
MOVES = re.compile(
    "(_unsafe_)?view|reshape|permute|transpose|t|slice|select|cat|squeeze|unsqueeze|flatten|expand"
    "|relu_?|stack|clone|max_pool[123]d(_with_indices)?|hardtanh_?|clamp|split(_with_sizes)?|chunk"
    "|getitem|unbind|contiguous|dropout|index(_select)?|alias|detach|copy|_?to(_copy)?|repeat|pad"
    "|constant_pad_nd|pixel_shuffle|unfold|narrow|select_scatter|slice_scatter|dequantize_.*"
)


def predict_noise(
    module: nn.Module, sets: Sequence[Inputs], *, float16: bool, qnn: str = ""
) -> list[Tensor]:
    """Return one tensor per output: its errors in disturbed runs, [run, sample, *shape], or an
    empty tensor if the output is not floating-point.

    ``module`` is the quantized model, of which QNN computes in float16 what is not quantized, or,
    with ``float16``, the float32 model. ``qnn`` is the version of QNN. The model is run once
    without errors and up to RUNS times with random errors from fixed seeds. Its state is restored.
    """
    terms = read_terms(qnn)
    traces = float16 or _has_cells(module)
    traced = join_modules(module, trace_once(module, sets[0])) if traces else module
    with keep_state(traced):
        right = run_eager(traced, sets)
    made: list[list[Inputs]] = []
    for seed in range(count_runs(tensor.numel() for tensors in right for tensor in tensors)):
        dice = Dice(seed, terms, float16=float16)
        parts = {name: Disturbed(part, dice) for name, part in split_module(traced).items()}
        with keep_state(traced):
            made.append(run_eager(join_modules(traced, parts), sets))
    stacks = [torch.stack(one) for one in zip(*right, strict=True)]
    return [
        torch.stack([torch.stack([tensors[index] for tensors in one]) - exact for one in made])
        if exact.is_floating_point()
        else torch.empty(0)
        for index, exact in enumerate(stacks)
    ]


# The graphs of each float32 model: its noise and its loss in float16 are found in the same ones.
_traced: WeakKeyDictionary[nn.Module, dict[str, nn.Module]] = WeakKeyDictionary()


def trace_once(module: nn.Module, inputs: Inputs) -> dict[str, nn.Module]:
    """Return the result of trace_methods, which is the same object for the same model."""
    if module not in _traced:
        _traced[module] = trace_methods(module, inputs)
    return _traced[module]


def trace_methods(module: nn.Module, inputs: Inputs) -> dict[str, nn.Module]:
    """Return a graph for each method. Recurrent cells are decomposed into simpler operators. Raises
    TraceError for a model that torch.export cannot trace."""
    given = split_inputs(module, inputs)
    cells = [getattr(torch.ops.aten, name).input for name in CELLS]
    made: dict[str, nn.Module] = {}
    with torch.no_grad():
        for name, part in split_module(module).items():
            try:
                program = torch.export.export(part, given[name], strict=True)
            except Exception as error:
                raise TraceError(f"torch.export cannot trace {name}") from error
            decomposed = program.run_decompositions(get_decompositions(cells))
            made[name] = decomposed.module(check_guards=False)
    return made


def _has_cells(module: nn.Module) -> bool:
    """Return whether a quantized model contains recurrent cells, which stay whole and float."""
    graphs = (part.graph for part in split_module(module).values() if isinstance(part, GraphModule))
    return any(name_operator(node) in CELLS for graph in graphs for node in graph.nodes)


def find_float16(nodes: Iterable[Node]) -> frozenset[Node]:
    """Return the nodes of a quantized model that QNN computes in float16: those with results that
    are not quantized next, and the values from which they are computed. ``nodes`` are in execution
    order."""
    found: set[Node] = set()
    quantized: set[Node] = set()
    read: set[Node] = set()
    for node in reversed([*nodes]):
        name = name_operator(node)
        if name.startswith("quantize_"):
            quantized.update(node.all_input_nodes)
        elif computes(node):
            if node not in quantized:
                found.add(node)
                read.update(node.all_input_nodes)
        elif _is_given(node):
            found |= read & {node}
        else:
            for names in (quantized, read):
                if node in names:
                    names.update(node.all_input_nodes)
    return frozenset(found)


class Dice:
    """Draws the random errors of one run."""

    def __init__(self, seed: int, terms: Terms, *, float16: bool) -> None:
        self.terms, self.float16 = terms, float16
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, shape: Sequence[int]) -> Tensor:
        """Return uniformly distributed values from -1 to 1 in this shape."""
        return 2 * torch.rand(tuple(shape), generator=self.generator) - 1

    def disturb(self, node: Node, value: Any, operand: Any, *, float16: bool) -> Any:
        """Return ``value``, the result of a node, with the random error that a correct program may
        have there. If it may have none, ``value`` is returned unchanged. ``operand`` is the value
        of the node's first argument. If ``float16`` is true, the node is computed in float16."""
        if not isinstance(value, Tensor):
            return value
        if float16:
            moves = node.op == "call_function" and not computes(node)
            if (moves and not _is_given(node)) or is_state(node) or not value.is_floating_point():
                return value
            return self._round(node, value, operand)
        if name_operator(node) == "quantize_per_tensor" and computes(source := node.args[0]):
            return self._move(node, source, value)
        if node.op == "placeholder" and any(map(_is_narrow, node.users)):
            return value + value * (RELATIVE * self.draw(value.shape))
        return value

    def _round(self, node: Node, value: Tensor, operand: Any) -> Tensor:
        finite = value.clamp(-FLOAT16_MAX, FLOAT16_MAX)
        name, after, scale = name_term(node), _find_predecessor(node, value), 1.0
        if name == "silu" and after in {LAYER, ADD}:  # only its sigmoid is fused, then multiplied
            name, scale = "sigmoid", operand
        term = take_term(self.terms, name, FLOAT16, after)
        error = finite * (max(RELATIVE, UNIFORM * term.relative) * self.draw(value.shape))
        if _is_given(node):  # values that float16 can hold are exact
            error = error * (value != value.half())
        error = error + scale * (UNIFORM * term.steps * self.draw(value.shape))
        return value + error + self._share(term, finite)

    def _share(self, term: Term, value: Tensor) -> Tensor:
        """Return the errors of a term that several elements share: the bias, and the gain of each
        row. ``value`` is the result, in the unit of the bias."""
        rows = (*value.shape[:-1], 1) if value.dim() else ()
        bias = term.bias + UNIFORM * term.varies * self.draw((1,) * value.dim())
        return bias + value * (UNIFORM * term.row * self.draw(rows))

    def _move(self, node: Node, source: Any, value: Tensor) -> Tensor:
        zero, low, high = (int(str(number)) for number in node.args[2:5])
        signal = value.float() - zero
        numbers = 8 if _is_narrow(node) else 16
        term = take_term(self.terms, name_term(source), str(numbers))
        shared = self._share(term, signal)
        shared = shared + signal * (UNIFORM * term.relative * self.draw(value.shape))
        # Rounding at random moves elements by a step, too. An operator has its own error, or that
        # of every operator if that is larger.
        chance = float((shared - shared.floor()).mul(1 - (shared - shared.floor())).mean())
        known = float(shared.square().mean()) + chance
        power = max(MOVED[numbers] - known, term.steps**2 - chance, 0.0)
        size = UNIFORM * power**0.5 if power > 1 else 1.0
        rolled = self.draw(value.shape)
        steps = size * (rolled if power > 1 else torch.sign(rolled) * (rolled.abs() > 1 - power))
        bits = _weight_bits(source)
        if bits in {4, 16}:
            axis = value.dim() - 1 if name_operator(source) == "linear" else 1
            channel = [size if place == axis else 1 for place, size in enumerate(value.shape)]
            steps = steps + WEIGHT_STEPS * self.draw(channel if bits == 4 else value.shape)
            steps = steps + signal * (WEIGHT_GAIN * self.draw(channel))
        random = (shared + self.draw(value.shape) / 2).round()
        moved = value.to(torch.int32) + steps.round().to(torch.int32) + random.to(torch.int32)
        return moved.clamp(low, high).to(value.dtype)


class Disturbed(nn.Module):
    """Runs a graph module with random errors in the results of its nodes."""

    def __init__(self, module: nn.Module, dice: Dice) -> None:
        super().__init__()
        self.module, self.dice = module, dice
        self.float16 = frozenset[Node]()
        if isinstance(module, GraphModule) and not dice.float16:
            self.float16 = find_float16(module.graph.nodes)

    def forward(self, *inputs: Tensor) -> Any:
        return _Interpreter(self.module, self.dice, self.float16).run(*inputs)


class _Interpreter(Interpreter):
    def __init__(self, module: Any, dice: Dice, float16: frozenset[Node]) -> None:
        super().__init__(module)
        self.dice, self.float16 = dice, float16

    def run_node(self, n: Node) -> Any:
        value, first = super().run_node(n), n.args[0] if n.args else None
        operand = self.env.get(first) if isinstance(first, Node) else first
        float16 = self.dice.float16 or n in self.float16
        return self.dice.disturb(n, value, operand, float16=float16)


def name_operator(node: Any) -> str:
    """Return a node's operator, such as ``linear`` for aten.linear.default, or "" if the node is
    not a call."""
    called = isinstance(node, Node) and node.op == "call_function"
    return getattr(node.target, "__name__", "").partition(".")[0] if called else ""


def name_term(node: Any) -> str:
    """Return the operator of a node under the name that its term has in manifests/rounding."""
    return name_operator(node).strip("_")


def computes(node: Any) -> bool:
    return bool(name_operator(node)) and not MOVES.fullmatch(name_operator(node))


def _is_given(node: Node) -> bool:
    """Return whether a node is an input, a weight or a dequantized value, which is only rounded."""
    return node.op in {"placeholder", "get_attr"} or name_operator(node).startswith("dequantize_")


def _is_narrow(node: Node) -> bool:
    """Return whether a node quantizes to 8 bits or fewer. QNN rounds the inputs of such a node to
    float16 first."""
    if name_operator(node) != "quantize_per_tensor":
        return False
    low, high = (int(str(number)) for number in node.args[3:5])
    return high - low < 2**9


def is_state(node: Node) -> bool:
    """Return whether a node reads a buffer that the graph also writes. The operator that computes
    the new value already rounds it, and a disturbed copy would be written instead of the buffer."""
    writes = (user for user in node.users if name_operator(user) == "copy_")
    return node.op == "get_attr" and any(write.args[0] is node for write in writes)


def _is_layer(node: Any) -> bool:
    return name_operator(node) in LAYERS or "conv" in name_operator(node)


def _find_fused(node: Any) -> Any:
    """Return the layer that HTP fuses with the operator after ``node``, or None if there is none.

    Between the layer and ``node``, only views and concatenations are allowed. After a convolution,
    a constant factor is also allowed, because it is folded into the weights.
    """
    scaled = False
    while name_operator(node) in FUSED_THROUGH or _is_factor(node):
        scaled = scaled or _is_factor(node)
        node = node.args[0][0] if name_operator(node) == "cat" else node.args[0]
    fused = "conv" in name_operator(node) if scaled else _is_layer(node)
    return node if fused else None


def _find_predecessor(node: Node, value: Tensor) -> str:
    """Return what HTP fuses with an operator whose result is ``value``: LAYER, ADD, TALL or ""."""
    source: Any = node.args[0] if node.args else None
    if _find_fused(source):
        return LAYER
    while name_operator(source) in FUSED_THROUGH and name_operator(source) != "cat":
        source = source.args[0]
    if name_operator(source) != "add" or not all(isinstance(arg, Node) for arg in source.args[:2]):
        return ""
    if len(source.users) > 1:  # the sum is needed, as the cell state of an LSTM is
        return ""
    rows = value.numel() // value.shape[-1] if value.numel() else 0
    return ADD if rows < LEAST_TALL else TALL


def _is_factor(node: Any) -> bool:
    return name_operator(node) in {"mul", "div"} and not isinstance(node.args[1], Node)


def _weight_bits(source: Node) -> int:
    """Return 4 or 16 if a layer's weights have that many bits and a scale per channel or tensor,
    else 8.

    Block-quantized weights are treated as 8-bit weights, because their only error is the rounding
    of the scales, which is known.
    """
    node: Any = source.args[1] if _is_layer(source) and len(source.args) > 1 else None
    if name_operator(node) not in {"dequantize_per_channel", "dequantize_per_tensor"}:
        return 8
    if node.args[0].op != "get_attr":  # a matrix product of two activations
        return 8
    low, high = node.args[-3:-1]
    return 4 if high - low < 2**5 else 16 if high - low > 2**9 else 8
