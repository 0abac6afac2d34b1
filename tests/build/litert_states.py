"""LiteRT models that keep values between their runs: in variables, or in the tensors of an LSTM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ci.graphs.litert_file import make_code, schema
from ci.litert.suite import Net

WIDTH, UNITS = 16, 24
STEPS, HEAD = 16, 8  # of the decoder
TANH = schema.ActivationFunctionType.TANH


def add_handle(net: Net, name: str) -> int:
    """Add the handle of a variable, and return the number of its tensor."""
    handle = net.call("VAR_HANDLE", (), (), "VarHandleOptions", container="", sharedName=name)
    net.tensors[handle].type = schema.TensorType.RESOURCE
    return handle


def read_variable(net: Net, handle: int, shape: Sequence[int]) -> int:
    return net.call("READ_VARIABLE", (handle,), shape, "ReadVariableOptions")


def assign_variable(net: Net, handle: int, value: int) -> None:
    add_call(net, "ASSIGN_VARIABLE", [handle, value], "AssignVariableOptions")


def add_call(net: Net, kind: str, reads: Sequence[int], options: str, **arguments: Any) -> None:
    """Add an operator without a result."""
    operator = schema.OperatorT()
    operator.opcodeIndex = len(net.codes)
    operator.inputs, operator.outputs = np.array(reads, np.int32), np.array([], np.int32)
    operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
    operator.builtinOptions = getattr(schema, f"{options}T")()
    for key, value in arguments.items():
        setattr(operator.builtinOptions, key, value)
    net.codes.append(make_code(kind))
    net.operators.append(operator)
    net.names.append(kind)


def add_start(net: Net, states: Sequence[tuple[str, Any]]) -> None:
    """Add the subgraph that gives variables their first values."""
    for name, value in states:
        assign_variable(net, add_handle(net, name), net.add_constant(np.asarray(value, np.float32)))
    net.end([], [], called="start")


def call_start(net: Net) -> None:
    """Add the operator that runs the second subgraph at the first run."""
    add_call(net, "CALL_ONCE", [], "CallOnceOptions", initSubgraphIndex=1)


def act(net: Net, kind: str, value: int, shape: Sequence[int]) -> int:
    return net.call(kind, (value,), shape)


def make_gru(start: float = 0.5, *, forgets: bool = False) -> bytes:
    """A GRU of one step whose hidden values are a variable, which begins with ``start``. With
    ``forgets``, the variable is never written again."""
    net, shape = Net(), (1, UNITS)
    call_start(net)
    source = net.add_tensor((1, WIDTH), "x")
    handle = add_handle(net, "hidden")
    hidden = read_variable(net, handle, shape)
    gates = []
    for _ in range(2):
        total = net.call(
            "ADD",
            (net.add_linear(source, (1, WIDTH), UNITS), net.add_linear(hidden, shape, UNITS)),
            shape,
            "AddOptions",
        )
        gates.append(act(net, "LOGISTIC", total, shape))
    reset, update = gates
    kept_state = net.call("MUL", (reset, net.add_linear(hidden, shape, UNITS)), shape, "MulOptions")
    inner = net.call(
        "ADD", (net.add_linear(source, (1, WIDTH), UNITS), kept_state), shape, "AddOptions"
    )
    candidate = act(net, "TANH", inner, shape)
    difference = net.call("SUB", (hidden, candidate), shape, "SubOptions")
    share = net.call("MUL", (update, difference), shape, "MulOptions")
    following = net.call("ADD", (candidate, share), shape, "AddOptions")
    if not forgets:
        assign_variable(net, handle, following)
    net.end([source], [net.add_linear(following, shape, 8)])
    add_start(net, [("hidden", np.full(shape, start))])
    return net.pack()


def make_lstm(*, steps: int = 1, coupled: bool = False) -> bytes:
    """An LSTM of LiteRT whose states are tensors that it writes into. A coupled one has no input
    gate."""
    net = Net()
    source = net.add_tensor((1, steps, WIDTH), "x")
    inputs = [source, *(net.draw(UNITS, WIDTH) for _ in range(4))]
    inputs += [net.draw(UNITS, UNITS) for _ in range(4)]
    if coupled:
        inputs[1] = inputs[5] = -1
    inputs += [-1] * 3
    inputs += [net.draw(UNITS, scale=0.1) for _ in range(4)]
    if coupled:
        inputs[12] = -1
    inputs += [-1, -1]
    for name in ("output_state", "cell_state"):
        inputs.append(net.add_tensor((1, UNITS), name))
        net.tensors[inputs[-1]].isVariable = True
    result = net.call(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        inputs,
        (1, steps, UNITS),
        "UnidirectionalSequenceLSTMOptions",
        fusedActivationFunction=TANH,
        timeMajor=False,
    )
    net.end([source], [net.add_linear(result, (1, steps, UNITS), 8)])
    return net.pack()


def make_decoder() -> bytes:
    """An attention of one token whose keys and values of all tokens before are variables. ``here``
    is 1 at the place of the token."""
    net, row, cache = Net(), (1, HEAD), (STEPS, HEAD)
    call_start(net)
    source = net.add_tensor(row, "x")
    position = net.add_tensor((STEPS, 1), "here")
    blocked = net.add_tensor((1, STEPS), "mask")
    handles = [add_handle(net, name) for name in ("keys", "values")]
    caches = []
    elsewhere = net.call("SUB", (net.add_number(1.0), position), (STEPS, 1), "SubOptions")
    for handle in handles:
        stored = read_variable(net, handle, cache)
        part = net.add_linear(source, row, HEAD)
        old = net.call("MUL", (stored, elsewhere), cache, "MulOptions")
        new = net.call("MUL", (part, position), cache, "MulOptions")
        updated = net.call("ADD", (old, new), cache, "AddOptions")
        assign_variable(net, handle, updated)
        caches.append(updated)
    keys, values = caches
    query = net.add_linear(source, row, HEAD)
    scores = net.call("BATCH_MATMUL", (query, keys), (1, STEPS), "BatchMatMulOptions", adjY=True)
    masked = net.call("ADD", (scores, blocked), (1, STEPS), "AddOptions")
    weights = net.call("SOFTMAX", (masked,), (1, STEPS), "SoftmaxOptions", beta=1.0)
    mixed = net.call("BATCH_MATMUL", (weights, values), row, "BatchMatMulOptions")
    net.end([source, position, blocked], [net.add_linear(mixed, row, HEAD)])
    add_start(net, [(name, np.zeros(cache)) for name in ("keys", "values")])
    return net.pack()


def draw_steps(name: str, count: int = STEPS) -> dict[str, Any]:
    """Return the inputs of successive runs of a model, with a first axis of this length."""
    random = np.random.default_rng(7)
    if name == "decoder":
        mask = np.arange(STEPS)[None] <= np.arange(count)[:, None]
        return {
            "x": random.standard_normal((count, 1, HEAD)).astype(np.float32),
            "here": np.eye(count, STEPS, dtype=np.float32)[:, :, None],
            "mask": np.where(mask, 0, -30).astype(np.float32)[:, None],
        }
    shape = (count, 1, 1, WIDTH) if name == "lstm" else (count, 1, WIDTH)
    return {"x": random.standard_normal(shape).astype(np.float32)}


def make_svdf(rank: int = 2, memory: int = 5) -> bytes:
    """An SVDF of LiteRT with a bias and a ReLU, whose state is a tensor that it writes into."""
    net = Net()
    source = net.add_tensor((1, WIDTH), "x")
    state = net.add_tensor((1, UNITS * memory), "state")
    net.tensors[state].isVariable = True
    filters = net.draw(UNITS, WIDTH), net.draw(UNITS, memory)
    bias = net.draw(UNITS // rank, scale=0.1)
    shape = (1, UNITS // rank)
    result = net.call(
        "SVDF",
        (source, *filters, bias, state),
        shape,
        "SVDFOptions",
        rank=rank,
        fusedActivationFunction=schema.ActivationFunctionType.RELU,
    )
    net.end([source], [net.add_linear(result, shape, 8)])
    return net.pack()
