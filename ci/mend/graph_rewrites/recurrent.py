"""Recurrent layers as linear layers and activations, step by step.

The layers of the hidden state have no bias: ExecuTorch scales the bias of a layer that is called
more than once for the input of its first call.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ci.graphs.edit import GraphEditor
from ci.graphs.graph import EXECUTORCH, Array, Node
from ci.mend.graph_rewrites.definition import defines
from ci.mend.graph_rewrites.products import reshape_to

MOST_STEPS = 64  # of a layer of an .onnx file that is unrolled
LAYERS = ("gru", "lstm", "rnn", "rnn_tanh", "rnn_relu")
CELLS = ("gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell")
STATES = {"gru": 1, "lstm": 2, "rnn": 1}  # hidden and, in an LSTM, cell
UNROLLED = "a loop over time with linear layers, sigmoid and tanh"
# The gates in the order of the rows of the weights
GATES = {"gru": ("reset", "update", "new"), "lstm": ("enter", "keep", "new", "leave")}
ONNX_GATES = {"gru": ("update", "reset", "new"), "lstm": ("enter", "leave", "keep", "new")}
# The activations that ONNX's layers may state, per direction. The last one is the only one of RNN.
ACTIVATIONS = {
    "rnn": ("Tanh", "Relu"),
    "gru": ("Sigmoid Tanh",),
    "lstm": ("Sigmoid Tanh Tanh",),
}
WAYS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}  # is it backward?
State = tuple[str, ...]  # values [batch, size], in ONNX [1, batch, size], or "" for zeros


class _Weights(NamedTuple):
    """What a layer multiplies and adds in one direction: values of [gates * size, features] and
    [gates * size, size], and the arrays of both biases, or None."""

    into: str
    hidden: str
    biases: tuple[Array, Array] | None


class _Call(NamedTuple):
    """A recurrent layer or cell. ``kind`` is "gru", "lstm" or "rnn", and ``activation`` that of the
    last. ``directions`` says of each direction of a layer whether it is backward. ``weights`` and
    the initial ``states`` are those of each direction of the first layer, then of the next one.
    ``time`` is the axis of time. A GRU that ``resets_product`` multiplies its reset gate by the
    product with the hidden state instead of by the state."""

    kind: str
    activation: str
    weights: Sequence[_Weights]
    states: State
    directions: tuple[bool, ...] = (False,)
    time: int = 0
    resets_product: bool = True


# ExecuTorch's quantizer has no rule for recurrent layers: nn.GRU and nn.LSTM have no program in
# 8a8w and 16a8w. QNN's provider takes LSTM and GRU, but no RNN, and onnxruntime quantizes none of
# them.
@defines("unroll-recurrent", *LAYERS, *CELLS)
def unroll_recurrent(edit: GraphEditor, node: Node) -> None:
    """Write GRU, LSTM and RNN layers and cells as linear layers, sigmoid and tanh."""
    is_torch = edit.graph.front_end == EXECUTORCH
    call = _read_torch(edit, node) if is_torch else _read_onnx(edit, node)
    if call is None:
        return
    kind = call.kind.upper()
    if node.operator in CELLS:
        layer = _Layer(edit, call, call.weights[0])
        state = layer.step(layer.read(node.reads[0]), call.states)
        edit.replace(node, state[: len(node.results)], UNROLLED, f"a cell of {kind}")
        return
    steps, ends = _unroll(edit, node.reads[0], call)
    ways = 1 if is_torch else len(call.directions)
    results = [_stack(edit, steps, call.time)]
    results += [_stack(edit, states, 0) for states in zip(*ends, strict=True)]
    shaped = [
        reshape_to(edit, value, edit.shape(result)) if result else ""
        for value, result in zip(results, node.results, strict=False)
    ]
    edit.replace(node, shaped, UNROLLED, f"{kind} of {len(steps) // ways} steps")


def _read_torch(edit: GraphEditor, node: Node) -> _Call | None:
    """Return a call of torch's operators, or None for a layer without a batch or with sequences of
    several lengths, in training, with weights that are computed, or with a projection of the hidden
    state."""
    kind, _, activation = node.operator.removesuffix("_cell").partition("_")
    count = 1 + STATES[kind]
    states, names = node.reads[1:count], node.reads[count:]
    arrays = [edit.value(name) for name in names]
    if any(array is None for array in arrays):
        return None
    if node.operator in CELLS:
        return _Call(kind, activation, [_pair(names, arrays)], states)
    if "batch_first" not in node.numbers or len(edit.shape(node.reads[0])) != 3:
        return None
    argument = functools.partial(edit.argument, node)
    directions = WAYS["bidirectional" if argument("bidirectional") else "forward"]
    size = 4 if argument("has_biases") else 2
    is_plain = len(names) == int(argument("num_layers")) * len(directions) * size
    if not is_plain or (argument("train") and argument("dropout")):
        return None
    weights = [
        _pair(names[start : start + size], arrays[start : start + size])
        for start in range(0, len(names), size)
    ]
    time = 1 if argument("batch_first") else 0
    return _Call(kind, activation, weights, states, directions, time)


def _pair(names: Sequence[str], arrays: Sequence[Array | None]) -> _Weights:
    into, hidden = names[:2]
    input_bias, hidden_bias = arrays[2:] or (None, None)
    if input_bias is None or hidden_bias is None:
        return _Weights(into, hidden, None)
    return _Weights(into, hidden, (input_bias, hidden_bias))


def _read_onnx(edit: GraphEditor, node: Node) -> _Call | None:
    """Return a layer of an .onnx file, or None for one with sequences of several lengths, other
    activations than usual, peepholes, more than MOST_STEPS or weights that are computed."""
    kind, texts = node.operator, node.texts
    names = [*node.reads[1:], *[""] * 8][:7]
    bias_name, lengths, *states, peepholes = names[2:]
    directions = WAYS[texts.get("direction", "forward")]
    usual = ACTIVATIONS.get(kind, ("",))
    stated = texts.get("activations", " ".join(usual[:1] * len(directions)))
    activation = next(
        (names for names in usual if stated == " ".join([names] * len(directions))), ""
    )
    arrays = [edit.value(name) if name else None for name in names[:3]]
    steps = edit.shape(node.reads[0])[0]
    is_plain = activation and not (lengths or peepholes or edit.argument(node, "layout"))
    if not is_plain or not 0 < steps <= MOST_STEPS or edit.argument(node, "clip"):
        return None
    into, hidden, biases = arrays
    if into is None or hidden is None or (bias_name and biases is None):
        return None
    weights, dtype, rows = [], edit.dtypes[node.reads[0]], into.shape[1]
    for number in range(len(directions)):
        names = [edit.hold(array[number], dtype) for array in (into, hidden)]
        if biases is None:
            weights.append(_Weights(names[0], names[1], None))
        else:
            pair = biases[number, :rows], biases[number, rows:]
            weights.append(_Weights(names[0], names[1], pair))
    resets_product = bool(edit.argument(node, "linear_before_reset"))
    return _Call(
        kind, activation.lower(), weights, tuple(states[: STATES[kind]]), directions,
        resets_product=resets_product,
    )  # fmt: skip


def _unroll(edit: GraphEditor, operand: str, call: _Call) -> tuple[list[str], list[State]]:
    """Return the hidden states of the last layer, one per step, and the last state of each
    direction of each layer."""
    ways = len(call.directions)
    steps: list[str] = []  # of the layer before
    ends: list[State] = []
    for first in range(0, len(call.weights), ways):
        outputs_by_way = []
        for number, is_backward in enumerate(call.directions, first):
            layer = _Layer(edit, call, call.weights[number])
            parts = [*map(layer.read, steps)]
            if not steps:  # the input's layer runs once, for all steps
                all_steps, count = layer.read(operand), edit.shape(operand)[call.time]
                parts = [_pick_place(edit, all_steps, call.time, step) for step in range(count)]
            state = tuple(_start(edit, states, number) for states in call.states)
            outputs = []
            for part in reversed(parts) if is_backward else parts:
                state = layer.step(part, state)
                outputs.append(state[0])
            outputs_by_way.append(outputs[::-1] if is_backward else outputs)
            ends.append(state)
        steps = outputs_by_way[0]
        if ways > 1:
            pairs = zip(*outputs_by_way, strict=True)
            steps = [state for pair in pairs for state in _join_ways(edit, pair)]
    return steps, ends


def _pick_place(edit: GraphEditor, value: str, axis: int, place: int) -> str:
    """Return what a value has at one place of an axis: in PyTorch without the axis."""
    if edit.graph.front_end == EXECUTORCH:
        return edit.select(value, dim=axis, index=place)
    # Without the axis, onnxruntime joins the product of rank 2 of a step and the sum with what the
    # input contributes to a Gemm, whose bias is then computed.
    return edit.index_select(value, np.array([place]), dim=axis)


def _join_ways(edit: GraphEditor, states: Sequence[str]) -> list[str]:
    """Join the states of both directions as features, as torch has them. ONNX has them as an axis
    behind that of time, along which all states are joined at the end."""
    is_torch = edit.graph.front_end == EXECUTORCH
    return [edit.cat([*states], dim=-1)] if is_torch else [*states]


def _start(edit: GraphEditor, states: str, number: int) -> str:
    """Return the initial state of a direction, or "" for zeros."""
    stored = edit.value(states) if states else np.zeros(1)
    has_state = stored is None or stored.any()
    return _pick_place(edit, states, 0, number) if has_state else ""


def _stack(edit: GraphEditor, values: Sequence[str], axis: int) -> str:
    """Join values along the axis that _pick_place removes in PyTorch."""
    rows = [*values]
    if edit.graph.front_end == EXECUTORCH:
        rows = [edit.unsqueeze(value, dim=axis) for value in values]
    return edit.cat(rows, dim=axis) if len(rows) > 1 else rows[0]


@dataclass
class _Layer:
    """One layer in one direction."""

    edit: GraphEditor
    call: _Call
    weights: _Weights

    def __post_init__(self) -> None:
        edit, (into, hidden, biases) = self.edit, self.weights
        self.dtype, self.size = edit.dtypes[into], edit.shape(hidden)[1]
        self.is_torch = edit.graph.front_end == EXECUTORCH
        gates = GATES if self.is_torch else ONNX_GATES
        self.places = {gate: place for place, gate in enumerate(gates.get(self.call.kind, ()))}
        self.bias = self.late = ""  # late: the bias of a GRU's new state that its gate multiplies
        if biases:
            input_bias, hidden_bias = biases[0], biases[1].copy()
            if self.call.kind == "gru" and self.call.resets_product:
                self.late = edit.hold(hidden_bias[2 * self.size :], self.dtype)
                hidden_bias[2 * self.size :] = 0
            self.bias = edit.hold(input_bias + hidden_bias, self.dtype)
        self.into, self.hidden = self._hold(into), self._hold(hidden)

    def _hold(self, weights: str, first: int = 0, count: int | None = None) -> str:
        """Return the weights of ``count`` gates, from ``first`` on, as a product takes them.
        onnxruntime's quantizer has its rules for products, and ExecuTorch's for layers."""
        if self.is_torch and count is None:
            return weights
        array = self.edit.value(weights)
        if array is None:
            raise ValueError(f"{weights} is computed")
        end = None if count is None else (first + count) * self.size
        part = array[first * self.size : end]
        return self.edit.hold(part if self.is_torch else part.T, self.dtype)

    def _multiply(self, features: str, weights: str, bias: str = "") -> str:
        if self.is_torch:
            return self.edit.linear(features, weights, *([bias] if bias else []))
        return self._add(self.edit.matmul(features, weights), bias)

    def read(self, features: str) -> str:
        """Return what the input's layer makes of a step or of all of them."""
        return self._multiply(features, self.into, self.bias)

    def step(self, part: str, state: State) -> State:
        """Return the state after a step. ``part`` is what the input's layer makes of the step."""
        edit, hidden = self.edit, state[0]
        if self.call.kind == "gru":
            return (self._step_gru(part, hidden),)
        gates = self._add(part, hidden and self._multiply(hidden, self.hidden))
        if self.call.kind == "rnn":
            return (edit.call(self.call.activation, gates),)
        enter, keep, leave = (
            edit.sigmoid(self._take(gates, self.places[gate]))
            for gate in ("enter", "keep", "leave")
        )
        new = edit.mul(enter, edit.tanh(self._take(gates, self.places["new"])))
        cell = self._add(new, state[1] and edit.mul(keep, state[1]))
        return edit.mul(leave, edit.tanh(cell)), cell

    def _step_gru(self, part: str, hidden: str) -> str:
        """Return the hidden state of a GRU after a step. ``hidden`` is the state before."""
        edit = self.edit
        past, past_of_new = self._multiply_gates(hidden) if hidden else ("", "")
        gates = edit.sigmoid(self._add(self._take(part, 0, 2), past))
        reset, update = (self._take(gates, self.places[gate]) for gate in ("reset", "update"))
        if self.call.resets_product:
            recurrent = self._add(past_of_new, self.late)
            recurrent = recurrent and edit.mul(reset, recurrent)
        else:
            recurrent = hidden and self._multiply(edit.mul(reset, hidden), self.of_new)
        new = edit.tanh(self._add(self._take(part, 2), recurrent))
        kept_state = hidden and edit.mul(update, hidden)
        return self._add(edit.mul(edit.sub(1.0, update), new), kept_state)

    def _multiply_gates(self, hidden: str) -> tuple[str, str]:
        """Return what the hidden state contributes to the gates of a GRU and to the new state."""
        if self.is_torch:
            product = self._multiply(hidden, self.hidden)
            return self._take(product, 0, 2), self._take(product, 2)
        # onnxruntime gives a product a single range: nn.GRU has 33.5 instead of 34.2 dB in u8 with
        # one product.
        return self._multiply(hidden, self.of_gates), self._multiply(hidden, self.of_new)

    @functools.cached_property
    def of_gates(self) -> str:
        """The weights of a GRU's gates."""
        return self._hold(self.weights.hidden, 0, 2)

    @functools.cached_property
    def of_new(self) -> str:
        """The weights of a GRU's new state."""
        return self._hold(self.weights.hidden, 2, 1)

    def _take(self, features: str, gate: int, count: int = 1) -> str:
        """Return the features of ``count`` gates, from ``gate`` on."""
        start, end = gate * self.size, (gate + count) * self.size
        shape = self.edit.shape(features)
        if (start, end) == (0, shape[-1]):
            return features
        return self.edit.slice(features, dim=len(shape) - 1, start=start, end=end)

    def _add(self, first: str, second: str) -> str:
        """Return a sum, of which either part may be "" for zeros."""
        return self.edit.add(first, second) if first and second else first or second
