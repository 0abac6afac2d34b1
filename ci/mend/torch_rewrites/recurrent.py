"""Recurrent layers as linear layers and activations, step by step.

The layers of the hidden state have no bias: ExecuTorch scales the bias of a layer that is called
more than once for the input of its first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from ci.mend.torch_rewrites.editing import Editor, aten, rewrites, shape_of

RNNS = {aten.rnn_tanh.input: aten.tanh.default, aten.rnn_relu.input: aten.relu.default}
CELLS = {
    getattr(aten, f"{kind}_cell").default: getattr(aten, kind).input
    for kind in ("gru", "lstm", "rnn_tanh", "rnn_relu")
}
AFTER = "a loop over time with linear layers, torch.sigmoid and torch.tanh"
State = tuple[Any, ...]  # nodes [batch, size], or None for zeros: hidden and, in an LSTM, cell


@rewrites("unroll-recurrent")
def unroll_recurrent(edit: Editor) -> None:
    """Write GRU, LSTM and RNN layers and cells as linear layers, sigmoid and tanh."""
    for node in edit.find(*RNNS, aten.gru.input, aten.lstm.input):
        steps, ends, axis = _unroll(edit, node)
        if steps:
            made = [_stack(edit, one, 0) for one in zip(*ends, strict=True)]
            _replace_parts(edit, node, [_stack(edit, steps, axis), *made])
    for node in edit.find(*CELLS):
        operand, given, *weights = node.args
        weights = [weight for weight in weights if weight is not None]
        if any(edit.value(weight) is None for weight in weights):
            continue
        state = tuple(given) if isinstance(given, list | tuple) else (given,)
        layer = _Layer(edit, CELLS[node.target], *weights)
        state = layer.step(layer.read(operand), state)
        if node.target is aten.lstm_cell.default:
            _replace_parts(edit, node, state)
        else:
            edit.replace(node, state[0], AFTER)


def _replace_parts(edit: Editor, node: Node, parts: Sequence[Any]) -> None:
    """Replace the results of a node, which is removed: torch regards layers with a dropout as
    random, so that they are not removed as unused."""
    for user in [*node.users]:
        edit.replace(user, parts[user.args[1]], AFTER)
        edit.graph.erase_node(user)
    edit.graph.erase_node(node)


def _unroll(edit: Editor, node: Node) -> tuple[list[Node], list[State], int]:
    """Return the hidden states of the last layer, the last state of each layer, and the axis of
    time. Return no states for a layer without a batch, in training, with weights that are computed,
    or with a projection of the hidden state."""
    operand, given, weights, biased, layers, dropout, train, twice, batch_first = node.args
    states = given if node.target is aten.lstm.input else [given]
    ways = 2 if twice else 1
    each = len(weights) // (layers * ways)
    known = all(edit.value(weight) is not None for weight in weights)
    is_plain = len(shape_of(operand)) == 3 and each == (4 if biased else 2)
    if not known or not is_plain or (train and dropout):
        return [], [], 0
    time = 1 if batch_first else 0
    steps: list[Node] = []
    ends: list[State] = []
    for first in range(0, layers * ways, ways):
        found = []
        for number in range(first, first + ways):
            layer = _Layer(edit, node.target, *weights[number * each : (number + 1) * each])
            parts = [*map(layer.read, steps)]
            if not steps:
                whole, count = layer.read(operand), shape_of(operand)[time]
                parts = [edit.select(whole, time, step) for step in range(count)]
            state: State = tuple(_start(edit, one, number) for one in states)
            outputs = []
            for part in reversed(parts) if number > first else parts:
                state = layer.step(part, state)
                outputs.append(state[0])
            found.append(outputs[::-1] if number > first else outputs)
            ends.append(state)
        steps = found[0]
        if twice:
            both = zip(*found, strict=True)
            steps = [edit.cat([*pair], -1) for pair in both]
    return steps, ends, time


@dataclass
class _Layer:
    """One layer in one direction. ``kind`` is the operator, and ``late`` the bias of a GRU's new
    state that its reset gate multiplies."""

    edit: Editor
    kind: Any
    into: Node
    hidden: Node
    bias: Node | None = None
    late: Node | None = None

    def __post_init__(self) -> None:
        self.size = shape_of(self.hidden)[1]
        if self.bias is None or self.late is None:
            return
        biases: Any = map(self.edit.value, (self.bias, self.late))  # which are stored
        one, other = biases
        gates = other.clone()
        self.late = None
        if self.kind is aten.gru.input:
            self.late = self.edit.constant(other[2 * self.size :])
            gates[2 * self.size :] = 0
        self.bias = self.edit.constant(one + gates)

    def read(self, given: Node) -> Node:
        """Return what the input's layer makes of a step [batch, features] or of all of them."""
        return self.edit.linear(given, self.into, self.bias)

    def step(self, part: Node, state: State) -> State:
        """Return the state after a step. ``part`` is what the input's layer makes of the step."""
        edit = self.edit
        past = state[0] and edit.linear(state[0], self.hidden)
        if self.kind in RNNS:
            return (edit.call(RNNS[self.kind], self._add(part, past)),)
        if self.kind is aten.gru.input:
            whole = self._add(self._take(part, 0, 2), past and self._take(past, 0, 2))
            gates = edit.sigmoid(whole)
            reset, update = self._take(gates, 0), self._take(gates, 1)
            recurrent = self._add(past and self._take(past, 2), self.late)
            recurrent = recurrent and edit.mul(reset, recurrent)
            new = edit.tanh(self._add(self._take(part, 2), recurrent))
            kept = state[0] and edit.mul(update, state[0])
            return (self._add(edit.mul(edit.rsub(update, 1.0), new), kept),)
        whole = self._add(part, past)
        enter, keep, leave = (edit.sigmoid(self._take(whole, gate)) for gate in (0, 1, 3))
        new = edit.mul(enter, edit.tanh(self._take(whole, 2)))
        cell = self._add(new, state[1] and edit.mul(keep, state[1]))
        return edit.mul(leave, edit.tanh(cell)), cell

    def _take(self, given: Node, gate: int, count: int = 1) -> Node:
        bounds = gate * self.size, (gate + count) * self.size
        return self.edit.slice(given, -1, *bounds)

    def _add(self, one: Any, other: Any) -> Any:
        """Return a sum, of which either part may be None."""
        if one is None or other is None:
            return one or other
        return self.edit.add(one, other)


def _start(edit: Editor, states: Node, number: int) -> Node | None:
    """Return the initial state of a layer, or None for zeros."""
    stored = edit.value(states)
    has_state = stored is None or stored.any()
    return edit.select(states, 0, number) if has_state else None


def _stack(edit: Editor, nodes: Sequence[Node], axis: int) -> Node:
    return edit.cat([edit.unsqueeze(node, axis) for node in nodes], axis)
