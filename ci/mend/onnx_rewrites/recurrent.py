"""Recurrent layers as products and activations, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ci.mend.onnx_rewrites.graph import SLICE_OPSET, Array, Graph, read, rewrites

MOST_STEPS = 64  # of a layer that is unrolled
# How many gates each kind of layer has, and its activations
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
ACTIVATIONS = {
    "RNN": (["Tanh"], ["Relu"]),
    "GRU": (["Sigmoid", "Tanh"],),
    "LSTM": (["Sigmoid", "Tanh", "Tanh"],),
}
BACKWARD = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
State = tuple[str, ...]  # values [batch, size], or "" for zeros: hidden and, in an LSTM, cell


# QNN's provider takes LSTM and GRU, but no RNN, and onnxruntime quantizes none of them.
@rewrites("unroll-recurrent", *GATES)
def unroll_recurrent(graph: Graph, node: Any) -> None:
    """Compute a short RNN, GRU or LSTM step by step with products, sigmoid and tanh."""
    kind, operand = node.op_type, node.input[0]
    names = [*node.input[1:], *[""] * 8][:7]
    bias_name, lengths, *start_names, peepholes = names[2:]
    directions = BACKWARD[read(node, "direction", "forward")]
    activations = _read_activations(node, len(directions))
    steps = graph.shapes.get(operand, (0, 0, 0))[0]
    is_plain = activations and not (lengths or peepholes or read(node, "layout", 0))
    weights, recurrent = graph.constant(names[0]), graph.constant(names[1])
    bias = graph.constant(bias_name) if bias_name else np.zeros((len(directions), 1))
    if weights is None or recurrent is None or bias is None or not graph.is_float(operand):
        return
    if not is_plain or not 0 < steps <= MOST_STEPS or read(node, "clip", 0):
        return
    size = recurrent.shape[-1]
    if not bias_name:
        bias = np.zeros((len(directions), 2 * GATES[kind] * size), np.float32)
    states_per_step: list[list[str]] = [[] for _ in range(steps)]  # one per direction
    last_states = []
    for number, is_backward in enumerate(directions):
        layer = _Direction(
            graph, kind, activations, weights[number], recurrent[number], bias[number],
            late_reset=bool(read(node, "linear_before_reset", 0)),
        )  # fmt: skip
        start = _read_start(graph, start_names[: 2 if kind == "LSTM" else 1], number)
        for step, state in layer.run(operand, steps, start, is_backward=is_backward):
            states_per_step[step].append(state[0])
            last = state
        last_states.append(last)
    batch = graph.shape(operand)[1]
    rows = [graph.reshape(state, [1, 1, batch, size]) for row in states_per_step for state in row]
    joined = graph.add("Concat", *rows, axis=0) if len(rows) > 1 else rows[0]
    results = [graph.reshape(joined, [steps, len(directions), batch, size])]
    for states in zip(*last_states, strict=True):
        parts = [graph.reshape(state, [1, batch, size]) for state in states]
        results.append(graph.add("Concat", *parts, axis=0) if len(parts) > 1 else parts[0])
    graph.replace([node], results, f"{kind} of {steps} steps", "products and activations per step")


def _read_activations(node: Any, directions: int) -> list[str]:
    """Return the activations of a layer, or [] if they are not the same in all directions or
    others than those that this module computes."""
    stated = read(node, "activations", None)
    if stated is None:
        return ACTIVATIONS[node.op_type][0]
    names = [name.decode() if isinstance(name, bytes) else name for name in stated]
    for activations in ACTIVATIONS[node.op_type]:
        if names == activations * directions:
            return activations
    return []


def _read_start(graph: Graph, names: Sequence[str], number: int) -> State:
    """Return the initial state of a direction. A constant of zeros is left out."""
    state = []
    for name in names:
        stored = graph.constant(name) if name else None
        is_zero = not name or (stored is not None and not stored.any())
        state.append("" if is_zero else graph.add("Gather", name, np.array(number), axis=0))
    return tuple(state)


@dataclass
class _Direction:
    """A direction of a recurrent layer. ``weights`` are [gates * size, features], ``recurrent``
    [gates * size, size], and ``bias`` those of both, one after the other."""

    graph: Graph
    kind: str
    activations: Sequence[str]
    weights: Array
    recurrent: Array
    bias: Array
    late_reset: bool
    constants: dict[str, str] = field(default_factory=dict)  # that all steps share, by key
    late: Array = field(init=False)  # a GRU's bias inside of the product with the reset gate

    @property
    def size(self) -> int:
        return int(self.recurrent.shape[-1])

    def run(
        self, operand: str, steps: int, state: State, *, is_backward: bool
    ) -> Iterator[tuple[int, State]]:
        """Yield each step with the state after it, in the direction of the layer."""
        input_bias, state_bias = np.split(self.bias, 2)
        state_bias = state_bias.copy()
        late_bias = np.zeros_like(state_bias)
        if self.kind == "GRU" and self.late_reset:
            late_bias[2 * self.size :] = state_bias[2 * self.size :]
            state_bias[2 * self.size :] = 0
        self.late = late_bias[2 * self.size :]
        product = self.graph.add("MatMul", operand, np.ascontiguousarray(self.weights.T))
        projected = self.graph.add("Add", product, input_bias + state_bias)
        for step in reversed(range(steps)) if is_backward else range(steps):
            part = self.graph.add("Gather", projected, np.array(step), axis=0)
            state = self.step(part, state)
            yield step, state

    def step(self, part: str, state: State) -> State:
        """Return the state after a step. ``part`` is what the input contributes to the gates."""
        graph, hidden = self.graph, state[0]
        if self.kind == "GRU":
            return (self.step_gru(part, hidden),)
        gates = self.add(part, self.multiply(hidden, 0, GATES[self.kind]))
        if self.kind == "RNN":
            return (graph.add(self.activations[0], gates),)
        enter, leave, keep = (graph.add("Sigmoid", self.take(gates, gate)) for gate in (0, 1, 2))
        new = graph.add("Mul", enter, graph.add("Tanh", self.take(gates, 3)))
        carried = graph.add("Mul", keep, state[1]) if state[1] else ""
        cell = self.add(new, carried)
        return graph.add("Mul", leave, graph.add("Tanh", cell)), cell

    def step_gru(self, part: str, hidden: str) -> str:
        """Return the hidden state of a GRU after a step."""
        graph = self.graph
        past = self.multiply(hidden, 0, 2)
        gates = graph.add("Sigmoid", self.add(self.take(part, 0, 2), past))
        update, reset = self.take(gates, 0), self.take(gates, 1)
        if self.late_reset:
            past = self.multiply(hidden, 2, 1)
            late = self.hold("late bias", self.late) if self.late.any() else ""
            past = graph.add("Add", past, late) if past and late else past or late
            scaled = graph.add("Mul", reset, past) if past else ""
        else:
            scaled = graph.add("Mul", reset, hidden) if hidden else ""
            scaled = self.multiply(scaled, 2, 1)
        new = graph.add("Tanh", self.add(self.take(part, 2), scaled))
        fresh = graph.add("Mul", graph.add("Sub", 1.0, update), new)
        return self.add(fresh, graph.add("Mul", update, hidden) if hidden else "")

    def hold(self, key: str, array: Array) -> str:
        """Add a constant at its first use, and return its name."""
        if key not in self.constants:
            self.constants[key] = self.graph.hold(array)
        return self.constants[key]

    def multiply(self, hidden: str, gate: int, count: int) -> str:
        """Return the product of a state and the recurrent weights of ``count`` gates, from ``gate``
        on, or "" for a state of zeros."""
        if not hidden:
            return ""
        weights = self.recurrent[gate * self.size : (gate + count) * self.size]
        return self.graph.add("MatMul", hidden, self.hold(f"weights {gate}", weights.T))

    def take(self, gates: str, gate: int, count: int = 1) -> str:
        """Return the features of ``count`` gates, from ``gate`` on."""
        start, end = gate * self.size, (gate + count) * self.size
        if self.graph.opset < SLICE_OPSET:
            return self.graph.slice(gates, 2, end, start)
        bounds = [self.hold(f"place {place}", np.array([place])) for place in (start, end)]
        return self.graph.add("Slice", gates, *bounds, self.hold("axis", np.array([2])))

    def add(self, first: str, second: str) -> str:
        """Return a sum, whose second part may be "" for zeros."""
        return self.graph.add("Add", first, second) if second else first
