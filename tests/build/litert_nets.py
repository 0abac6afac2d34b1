"""LiteRT models whose operators run other subgraphs of the file."""

from __future__ import annotations

import numpy as np

from ci.graphs.litert_file import schema
from ci.litert.suite import RELU, Net
from tests.stand_ins.litert import make_flexbuffer

SIZES = (4, 16)
BOOL = schema.TensorType.BOOL


def call_other(net: Net, kind: str, reads: list[int], results: list[int], **numbers: int) -> None:
    """Add an IF or a WHILE, which runs other subgraphs; their numbers are ``numbers``."""
    options = f"{kind.title()}Options"
    net.call(kind, reads, SIZES, options, **numbers)
    net.operators[-1].outputs = np.array(results, np.int32)


def compare(net: Net, kind: str, reads: tuple[int, int], options: str) -> int:
    """Add a comparison of two single numbers, and return its result."""
    result = net.call(kind, reads, (), options)
    net.tensors[result].type = BOOL
    return result


def make_if(*, nested: bool = False, is_second: bool = False) -> bytes:
    """A model whose first branch has two linear layers, and the second a layer and a TANH. With
    ``nested``, the first branch only contains another IF, of the same branches. With
    ``is_second``, another signature precedes it."""
    net = Net()
    if is_second:
        source_of_first = net.add_tensor(SIZES, "source_of_first")
        net.end([source_of_first], [net.add_linear(source_of_first, SIZES, 8)], "first")
    source = net.add_tensor(SIZES, "x")
    hidden = net.add_linear(source, SIZES, 16)
    axes = net.add_constant(np.array([0, 1], np.int32))
    mean = net.call("MEAN", (source, axes), (), "ReducerOptions", keepDims=False)
    zero = net.add_constant(np.array(0, np.float32))
    is_positive = compare(net, "GREATER", (mean, zero), "GreaterOptions")
    chosen = net.add_tensor(SIZES, "chosen")
    then, otherwise = (place + is_second for place in (3 if nested else 1, 2))
    call_other(
        net,
        "IF",
        [is_positive, hidden],
        [chosen],
        thenSubgraphIndex=then,
        elseSubgraphIndex=otherwise,
    )
    net.end([source], [net.add_linear(chosen, SIZES, 8)])
    first = net.add_tensor(SIZES, "first")
    wide = net.add_linear(first, SIZES, 32, RELU)
    net.end([first], [net.add_linear(wide, (4, 32), 16)], called="then")
    second = net.add_tensor(SIZES, "second")
    net.end(
        [second], [net.call("TANH", (net.add_linear(second, SIZES, 16),), SIZES)], called="else"
    )
    if nested:
        third = net.add_tensor(SIZES, "third")
        total = net.call("SUM", (third, axes), (), "ReducerOptions", keepDims=False)
        is_positive = compare(net, "GREATER", (total, zero), "GreaterOptions")
        inner = net.add_tensor(SIZES, "inner")
        call_other(
            net, "IF", [is_positive, third], [inner], thenSubgraphIndex=1, elseSubgraphIndex=2
        )
        net.end([third], [inner], called="nested")
    return net.pack()


def make_while(rounds: int = 3) -> bytes:
    """A model with a loop that runs a layer and a TANH ``rounds`` times."""
    net = Net()
    source = net.add_tensor(SIZES, "x")
    hidden = net.add_linear(source, SIZES, 16)
    start = net.add_constant(np.array(0, np.int32))
    end, looped = net.add_tensor((), "end", "int32"), net.add_tensor(SIZES, "looped")
    call_other(
        net, "WHILE", [start, hidden], [end, looped], condSubgraphIndex=1, bodySubgraphIndex=2
    )
    net.end([source], [net.add_linear(looped, SIZES, 8)])
    number, value = net.add_tensor((), "number", "int32"), net.add_tensor(SIZES, "value")
    limit = net.add_constant(np.array(rounds, np.int32))
    goes_on = compare(net, "LESS", (number, limit), "LessOptions")
    net.end([number, value], [goes_on], called="condition")
    counter, state = net.add_tensor((), "counter", "int32"), net.add_tensor(SIZES, "state")
    step = net.add_constant(np.array(1, np.int32))
    following = net.call("ADD", (counter, step), (), "AddOptions")
    net.tensors[following].type = schema.TensorType.INT32
    layer = net.call("TANH", (net.add_linear(state, SIZES, 16),), SIZES)
    net.end([counter, state], [following, layer], called="body")
    return net.pack()


def call_composite(net: Net, source: int, number: int) -> int:
    """Add an operator that a converter keeps together, next to what it consists of: the subgraph
    with this number."""
    result = net.call("STABLEHLO_COMPOSITE", (source,), SIZES)
    options = schema.StableHLOCompositeOptionsT()
    options.name, options.decompositionSubgraphIndex = b"odml.layer", number
    options.compositeAttributes = np.frombuffer(make_flexbuffer({"version": 1}), np.uint8)
    net.operators[-1].builtinOptions2 = options
    net.operators[-1].builtinOptions2Type = schema.BuiltinOptions2.StableHLOCompositeOptions
    return result


def make_composite(inside: str = "layer") -> bytes:
    """A model with a composite between two linear layers. ``inside`` says what it consists of: a
    ``layer`` and a TANH, these in a composite of their own (``nested``), its ``input`` alone, or
    ``itself``."""
    net = Net()
    source = net.add_tensor(SIZES, "x")
    together = call_composite(net, net.add_linear(source, SIZES, 16), 1)
    net.end([source], [net.add_linear(together, SIZES, 8)])
    if inside in {"nested", "itself"}:
        outer = net.add_tensor(SIZES, "outer")
        net.end([outer], [call_composite(net, outer, 2 if inside == "nested" else 1)], called="net")
    inner = net.add_tensor(SIZES, "inner")
    layer = net.call("TANH", (net.add_linear(inner, SIZES, 16),), SIZES)
    net.end([inner], [inner if inside == "input" else layer], called="layer")
    return net.pack()
