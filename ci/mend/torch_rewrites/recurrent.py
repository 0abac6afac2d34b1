"""Recurrent layers as linear layers and activations, step by step.

The layers of the hidden state have no bias: ExecuTorch scales the bias of a layer that is called
more than once for the input of its first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from ci.mend.torch_rewrites.editing import Editor, aten, rewrites, shape_of

RNNS = {aten.rnn_tanh.input: aten.tanh.default, aten.rnn_relu.input: aten.relu.default}
CELLS = {
    getattr(aten, f"{kind}_cell").default: getattr(aten, kind).input
    for kind in ("gru", "lstm", "rnn_tanh", "rnn_relu")
}
AFTER = "a loop over time with linear layers, torch.sigmoid and torch.tanh"
State = tuple[Any, ...]  # nodes [batch, size], or None for zeros: hidden and, in an LSTM, cell


# ExecuTorch's quantizer has no rule for recurrent layers: nn.GRU and nn.LSTM have no program in
# 8a8w and 16a8w.
@rewrites("unroll-recurrent")
def unroll_recurrent(edit: Editor) -> None:
    """Write GRU, LSTM and RNN layers and cells as linear layers, sigmoid and tanh."""
    for node in edit.find(*RNNS, aten.gru.input, aten.lstm.input):
        steps, ends, axis = _unroll(edit, node)
        if steps:
            last_states = [_stack(edit, states, 0) for states in zip(*ends, strict=True)]
            _replace_parts(edit, node, [_stack(edit, steps, axis), *last_states])
    for node in edit.find(*CELLS):
        operand, start, *arguments = node.args
        weights = [weight for weight in arguments if weight is not None]
        if any(edit.value(weight) is None for weight in weights):
            continue
        state = tuple(start) if isinstance(start, list | tuple) else (start,)
        layer = _Layer(edit, CELLS[node.target], *weights)
        state = layer.step(layer.read(operand), state)
        if node.target is aten.lstm_cell.default:
            _replace_parts(edit, node, state)
        else:
            edit.replace(node, state[0], AFTER)


def _replace_parts(edit: Editor, node: fx.Node, parts: Sequence[Any]) -> None:
    """Replace the results of a node, which is removed: torch regards layers with a dropout as
    random, so that they are not removed as unused."""
    for user in [*node.users]:
        edit.replace(user, parts[user.args[1]], AFTER)
        edit.graph.erase_node(user)
    edit.graph.erase_node(node)


def _unroll(edit: Editor, node: fx.Node) -> tuple[list[fx.Node], list[State], int]:
    """Return the hidden states of the last layer, the last state of each layer, and the axis of
    time. Return no states for a layer without a batch, in training, with weights that are computed,
    or with a projection of the hidden state."""
    operand, start, weights, has_biases, layers, dropout, train, both_ways, batch_first = node.args
    start_states = start if node.target is aten.lstm.input else [start]
    ways = 2 if both_ways else 1
    weights_per_layer = len(weights) // (layers * ways)
    is_known = all(edit.value(weight) is not None for weight in weights)
    is_plain = len(shape_of(operand)) == 3 and weights_per_layer == (4 if has_biases else 2)
    if not is_known or not is_plain or (train and dropout):
        return [], [], 0
    time = 1 if batch_first else 0
    steps: list[fx.Node] = []  # of the layer before
    ends: list[State] = []
    for first in range(0, layers * ways, ways):
        outputs_by_way = []
        for number in range(first, first + ways):
            is_backward = number > first
            start_weight = number * weights_per_layer
            layer_weights = weights[start_weight : start_weight + weights_per_layer]
            layer = _Layer(edit, node.target, *layer_weights)
            parts = [*map(layer.read, steps)]
            if not steps:  # the input's layer runs once, for all steps
                all_steps, count = layer.read(operand), shape_of(operand)[time]
                parts = [edit.select(all_steps, time, step) for step in range(count)]
            state: State = tuple(_start(edit, states, number) for states in start_states)
            outputs = []
            for part in reversed(parts) if is_backward else parts:
                state = layer.step(part, state)
                outputs.append(state[0])
            outputs_by_way.append(outputs[::-1] if is_backward else outputs)
            ends.append(state)
        steps = outputs_by_way[0]
        if both_ways:
            steps = [edit.cat([*pair], -1) for pair in zip(*outputs_by_way, strict=True)]
    return steps, ends, time


@dataclass
class _Layer:
    """One layer in one direction. ``kind`` is the operator, and ``late`` the bias of a GRU's new
    state that its reset gate multiplies."""

    edit: Editor
    kind: Any
    into: fx.Node
    hidden: fx.Node
    bias: fx.Node | None = None
    late: fx.Node | None = None

    def __post_init__(self) -> None:
        self.size = shape_of(self.hidden)[1]
        if self.bias is None or self.late is None:
            return
        biases: Any = map(self.edit.value, (self.bias, self.late))  # which are stored
        input_bias, hidden_bias = biases
        gates = hidden_bias.clone()
        self.late = None
        if self.kind is aten.gru.input:
            self.late = self.edit.constant(hidden_bias[2 * self.size :])
            gates[2 * self.size :] = 0
        self.bias = self.edit.constant(input_bias + gates)

    def read(self, features: fx.Node) -> fx.Node:
        """Return what the input's layer makes of a step [batch, features] or of all of them."""
        return self.edit.linear(features, self.into, self.bias)

    def step(self, part: fx.Node, state: State) -> State:
        """Return the state after a step. ``part`` is what the input's layer makes of the step."""
        edit = self.edit
        past = state[0] and edit.linear(state[0], self.hidden)
        if self.kind in RNNS:
            return (edit.call(RNNS[self.kind], self._add(part, past)),)
        if self.kind is aten.gru.input:
            return (self._step_gru(part, past, state[0]),)
        gates = self._add(part, past)  # input, forget, new cell, output
        enter, keep, leave = (edit.sigmoid(self._take(gates, gate)) for gate in (0, 1, 3))
        new = edit.mul(enter, edit.tanh(self._take(gates, 2)))
        cell = self._add(new, state[1] and edit.mul(keep, state[1]))
        return edit.mul(leave, edit.tanh(cell)), cell

    def _step_gru(self, part: fx.Node, past: Any, hidden: Any) -> Any:
        """Return the hidden state of a GRU after a step. ``past`` is what the hidden state's layer
        makes of the state before, ``hidden``."""
        edit = self.edit
        sums = self._add(self._take(part, 0, 2), past and self._take(past, 0, 2))
        gates = edit.sigmoid(sums)
        reset, update = self._take(gates, 0), self._take(gates, 1)
        recurrent = self._add(past and self._take(past, 2), self.late)
        recurrent = recurrent and edit.mul(reset, recurrent)
        new = edit.tanh(self._add(self._take(part, 2), recurrent))
        kept_state = hidden and edit.mul(update, hidden)
        return self._add(edit.mul(edit.rsub(update, 1.0), new), kept_state)

    def _take(self, features: fx.Node, gate: int, count: int = 1) -> fx.Node:
        """Return the features of ``count`` gates, from ``gate`` on."""
        bounds = gate * self.size, (gate + count) * self.size
        return self.edit.slice(features, -1, *bounds)

    def _add(self, first: Any, second: Any) -> Any:
        """Return a sum, of which either part may be None."""
        if first is None or second is None:
            return first or second
        return self.edit.add(first, second)


def _start(edit: Editor, states: fx.Node, number: int) -> fx.Node | None:
    """Return the initial state of a layer, or None for zeros."""
    stored = edit.value(states)
    has_state = stored is None or stored.any()
    return edit.select(states, 0, number) if has_state else None


def _stack(edit: Editor, nodes: Sequence[fx.Node], axis: int) -> fx.Node:
    """Join nodes along a new axis."""
    return edit.cat([edit.unsqueeze(node, axis) for node in nodes], axis)
