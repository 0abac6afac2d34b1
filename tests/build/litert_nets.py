"""LiteRT models whose operators run other subgraphs of the file, and one that 8 bits make wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ci.graphs.litert_file import read_levels, schema
from ci.litert.suite import RELU, Net, quantize
from tests.stand_ins.litert import make_flexbuffer

SIZES = (4, 16)
SHARES = (1.0, 0.9, 0.8, 0.7)  # of the sample for the ranges: its values stay within them
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


def make_wide_channel(net: Net) -> None:
    """A layer, one of whose channels becomes 400 times as wide and narrow again, between which 8
    bits lose the others, and a second layer."""
    factors = np.ones(16, np.float32)
    factors[0] = 400
    x = net.add_tensor(SIZES, "x")
    layer = net.add_linear(x, SIZES, 16)
    wide = net.call("MUL", (layer, net.add_constant(factors)), SIZES, "MulOptions")
    narrow = net.call("MUL", (wide, net.add_constant(1 / factors)), SIZES, "MulOptions")
    net.end([x], [net.add_linear(narrow, SIZES, 8)])
    for number, name in ((layer, b"layer"), (wide, b"wide"), (narrow, b"narrow")):
        net.tensors[number].name = name


def write_quantized(folder: Path, make: Callable[[Net], None], bits: int = 8) -> tuple[Path, Path]:
    """Write net.tflite, which is quantized, with its samples in net.npz, and its float model as
    float.tflite, and return the paths of both models."""
    plain, quantized = Net(), Net()
    make(plain)
    make(quantized)
    paths = folder / "net.tflite", folder / "float.tflite"
    paths[1].write_bytes(plain.pack())
    shape = plain.tensors[0].shape.tolist()
    sample = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    paths[0].write_bytes(quantize(quantized, bits, [sample]))
    levels = read_levels(quantized.tensors[0])
    assert levels
    limits = np.iinfo(f"int{bits}")
    sets = []
    for share in SHARES:
        steps = np.round(share * sample / levels.scales[0]) + levels.zero_points[0]
        sets.append(np.clip(steps, limits.min, limits.max).astype(limits.dtype))
    np.savez(folder / "net.npz", x=np.stack(sets))
    return paths


def make_unreached() -> bytes:
    """A transposed convolution that leaves rows of its result empty, which QNN takes and then
    cannot prepare."""
    net, size = Net(), np.array([1, 9, 9, 8], np.int32)
    source = net.add_tensor((1, 4, 4, 8), "x")
    hidden = net.add_convolution(source, (1, 4, 4, 8), 8)
    reads = (net.add_constant(size), net.draw(8, 2, 2, 8), hidden)
    arguments = {"padding": 1, "strideW": 2, "strideH": 2}
    raised = net.call("TRANSPOSE_CONV", reads, (1, 9, 9, 8), "TransposeConvOptions", **arguments)
    net.end([source], [net.add_convolution(raised, (1, 9, 9, 8), 8)])
    return net.pack()
