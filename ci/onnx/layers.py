"""Finds the node at which a quantized ONNX model loses the most accuracy, and adds the results of
nodes to a model's outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from msgspec import structs
from onnx import TensorProto, helper, numpy_helper

from ci.graphs.onnx_file import QUANTIZED_INPUT, infer, name_result, read_constants
from ci.graphs.onnx_reader import computes_node
from ci.graphs.onnx_session import open_reference
from ci.judging.figures import measure_pooled
from ci.models.float16_range import LOST_DB, SPLIT, RangeLoss, find_spoiling
from ci.models.tensors import (
    BEST_DB,
    DECISIONS,
    MOST_BYTES,
    MOST_LAYERS,
    READERS,
    RECIPROCALS,
    Decision,
    Layer,
    Loss,
    LostDecisions,
    Reading,
    choose_nodes,
    find_lost_decisions,
    limit_db,
    make_reading,
)
from ci.onnx.source import Arrays
from provisioning.errors import FailedError

MOST_VALUES = 1 << 28  # elements held in memory at a time
# Of a model for which each rounding is tried alone: their number, and the elements of its results.
MOST_PROBES, MOST_PROBED = 96, 1 << 24
EXPOSED = "{}/layer"
INTEGERS = frozenset(
    {TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8, TensorProto.INT8, TensorProto.BOOL}
)
SPLIT_NAME = "float16/split"


def find_loss(
    model: Path, plain: Path, scratch: Path, inputs: Arrays, reference: Arrays
) -> Loss | None:
    """Return the node where a quantized model loses the most accuracy on one sample. Without such
    a node, the Loss of a model with a Reciprocal has no name.

    ``plain`` is the float32 model. ``reference`` contains the float32 model's outputs. Return None
    if no node loses accuracy, if the model rounds no values, or if its intermediate results have no
    known sizes or more than MOST_VALUES elements in total. ``scratch`` is overwritten with models
    that return all of these results.
    """
    graph = onnx.load(model).graph
    rounded = find_rounded(graph)
    names = {name: elements for name, elements in list_values(onnx.load(model)).items() if elements}
    if not rounded or not names or sum(names.values()) > MOST_VALUES:
        return None
    (quantized,) = compute_sets(onnx.load(model), scratch, [inputs], names)
    unrounded = skip_rounding(onnx.load(model), onnx.load(plain))
    (float32,) = compute_sets(unrounded, scratch, [inputs], names)
    makers = {name: node for node in graph.node for name in node.output}
    weights = min(
        (
            _compare(wanted, float32[one.name])
            for wanted, one in zip(reference, graph.output, strict=True)
            if one.name in float32
        ),
        default=BEST_DB,
    )
    found = [
        Loss(
            f"the range of {name_node(origin, makers)}"
            if origin
            else name_node(find_hidden(makers[name], makers, float32).output[0], makers),
            before,
            behind,
            weights,
        )
        for name, origin, before, behind in list_losses(graph, float32, quantized)
    ]
    readings = tuple(list_readings(makers, float32, quantized))
    greatest = max(found, key=lambda one: one.added, default=None)
    decided = find_decided(
        lambda: onnx.load(model),
        skip_rounding(onnx.load(model), onnx.load(plain)),
        scratch,
        inputs,
    )
    greatest = greatest and structs.replace(greatest, readings=readings, decided=decided)
    if not greatest and any(reading.operator in RECIPROCALS for reading in readings):
        # With 16 bits, the quantized model may lose nothing where QNN's program is wrong.
        return Loss("", BEST_DB, BEST_DB, weights, readings=readings)
    if not greatest or len(rounded) > MOST_PROBES or sum(names.values()) > MOST_PROBED:
        return greatest
    ends = {output.name: names[output.name] for output in graph.output if output.name in names}
    effects = measure_effects(model, plain, scratch, inputs, ends)
    return structs.replace(greatest, nodes=choose_nodes(effects))


def find_float16_loss(model: Path, scratch: Path, inputs: Arrays) -> Loss | None:
    """Return the node where a float32 model loses the most accuracy on one sample, if each result
    is rounded to float16. The conditions for None are those of find_loss."""
    graph = onnx.load(model).graph
    names = {name: elements for name, elements in list_values(onnx.load(model)).items() if elements}
    if not names or sum(names.values()) > MOST_VALUES:
        return None
    (float32,) = compute_sets(onnx.load(model), scratch, [inputs], names)
    halved = round_results(onnx.load(model), names, _write_half)
    (rounded,) = compute_sets(halved, scratch, [inputs], names)
    widened = round_results(onnx.load(model), names, _write_significand)
    (wide,) = compute_sets(widened, scratch, [inputs], names)
    makers = {name: node for node in graph.node for name in node.output}
    ports = (one.name for one in graph.input)
    known = dict(zip(ports, inputs, strict=False)) | float32
    reached_db = {name: _compare(float32[name], value) for name, value in rounded.items()}
    # A mask that float16 cannot hold, which is zero behind a softmax, is no loss.
    spoiling = find_spoiling(reached_db, *list_reads(graph))
    losses = [
        Loss(
            name_node(find_hidden(makers[name], makers, float32).output[0], makers),
            before,
            behind,
            BEST_DB,
            largest=find_largest(known, makers[name]),
            is_float16=True,
        )
        for name, _, before, behind in list_losses(graph, float32, rounded)
        if behind >= LOST_DB or name in spoiling
    ]
    greatest = max(losses, key=lambda one: one.added, default=None)
    readings = tuple(list_readings(makers, known, rounded))
    beyond = find_beyond(graph, float32, rounded, wide)
    decided = find_decided(
        lambda: round_results(onnx.load(model), names, _write_half),
        onnx.load(model),
        scratch,
        inputs,
    )
    facts = {"readings": readings, "beyond": beyond, "decided": decided}
    return greatest and structs.replace(greatest, **facts)


def find_decided(
    load_rounded: Callable[[], onnx.ModelProto],
    exact: onnx.ModelProto,
    scratch: Path,
    inputs: Arrays,
) -> LostDecisions | None:
    """Return the decisions of a rounded model that cost its outputs accuracy on a sample.
    ``load_rounded`` returns a new copy of this model, and ``exact`` is it without rounding.
    ``scratch`` is overwritten."""
    makers = {name: node for node in exact.graph.node for name in node.output}
    decided = list_decided(exact)
    floats = list_values(exact)
    outputs = [output.name for output in exact.graph.output if output.name in floats]
    if not decided or not outputs:
        return None
    (right,) = compute_sets(exact, scratch, [inputs], [*outputs, *decided])
    (rounded,) = compute_sets(load_rounded(), scratch, [inputs], [*outputs, *decided])
    decisions: dict[str, Decision] = {}
    for name in decided:
        changed = float(np.mean(right[name] != rounded[name])) if right[name].size else 0.0
        if changed:
            decisions[name] = Decision(name_node(name, makers), changed)

    def compare(values: Mapping[str, Any]) -> float:
        return min(_compare(right[name], values[name]) for name in outputs)

    def keep(names: Collection[str]) -> float:
        kept = keep_values(load_rounded(), {name: right[name] for name in names})
        (values,) = compute_sets(kept, scratch, [inputs], outputs)
        return compare(values)

    return find_lost_decisions(decisions, compare(rounded), keep)


def list_decided(model: onnx.ModelProto) -> list[str]:
    """Return the results of the decisions of a model, in execution order."""
    inferred = infer(model).graph
    known = (*inferred.input, *inferred.value_info, *inferred.output)
    types = {value.name: value.type.tensor_type.elem_type for value in known}
    names = []
    for node in model.graph.node:
        name = node.output[1 if node.op_type == "TopK" else 0]
        reads_floats = bool(node.input) and types.get(node.input[0]) == TensorProto.FLOAT
        is_cast = node.op_type == "Cast" and types.get(name) in INTEGERS
        if reads_floats and (is_cast or node.op_type in DECISIONS):
            names.append(name)
    return names


def keep_values(model: onnx.ModelProto, values: Mapping[str, Any]) -> onnx.ModelProto:
    """Make constants of values that nodes of a model compute, and return the model."""
    for node in model.graph.node:
        for place, name in enumerate(node.output):
            if name in values:
                node.output[place] = f"{name}/own"
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()
    )
    return model


def find_beyond(
    graph: Any, exact: Mapping[str, Any], rounded: Mapping[str, Any], wide: Mapping[str, Any]
) -> Reading | None:
    """Return the first result that float16 cannot hold, if that costs the outputs accuracy. The
    results are those of the float32 model, those rounded to float16, and those with as many
    significant bits and the range of float32."""
    makers = {name: node for node in graph.node for name in node.output}
    readers, ends = list_reads(graph)
    output_db, wide_db = (
        min(
            (_compare(exact[name], values[name]) for name in ends if name in exact), default=BEST_DB
        )
        for values in (rounded, wide)
    )
    reached_db = {name: _compare(wide[name], value) for name, value in rounded.items()}
    first = RangeLoss(reached_db, readers, ends, output_db, wide_db).find_first()
    if not first:
        return None
    operator, label = makers[first].op_type, name_node(first, makers)
    return make_reading(operator, label, exact[first], reached_db[first])


def list_reads(graph: Any) -> tuple[dict[str, list[str]], set[str]]:
    """Return the names of the values that are made from each value, and of the outputs."""
    readers: dict[str, list[str]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).extend(node.output)
    return readers, {one.name for one in graph.output}


def round_results(
    model: onnx.ModelProto, names: Collection[str], write: Callable[[str, str], list[Any]]
) -> onnx.ModelProto:
    """Round the results of a model's nodes that ``names`` lists, and return the model. Each keeps
    its name. ``write`` returns nodes that round a value, from the names before and after it."""
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        for place, name in enumerate(node.output):
            if name in names:
                node.output[place] = f"{name}/exact"
                nodes += write(node.output[place], name)
    if any(SPLIT_NAME in node.input for node in nodes):
        model.graph.initializer.append(numpy_helper.from_array(np.float32(SPLIT), SPLIT_NAME))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _write_half(exact: str, name: str) -> list[Any]:
    return [
        helper.make_node("Cast", [exact], [f"{name}/half"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", [f"{name}/half"], [name], to=TensorProto.FLOAT),
    ]


def _write_significand(exact: str, name: str) -> list[Any]:
    """Return nodes that round the significand to the bits of float16, and keep the exponent."""
    scaled, rest, split = f"{name}/scaled", f"{name}/rest", f"{name}/split"
    is_nan = f"{name}/is_nan"
    return [
        helper.make_node("Mul", [exact, SPLIT_NAME], [scaled]),
        helper.make_node("Sub", [scaled, exact], [rest]),
        helper.make_node("Sub", [scaled, rest], [split]),
        helper.make_node("IsNaN", [split], [is_nan]),  # of an infinite value
        helper.make_node("Where", [is_nan, exact, split], [name]),
    ]


def find_largest(values: Mapping[str, Any], node: Any) -> float:
    """Return the largest finite magnitude among the operands of a node, or 0 if there is none."""
    operands = [np.asarray(values[name]) for name in node.input if name in values]
    floats = [one for one in operands if one.dtype.kind == "f" and one.size]
    return max(
        (float(np.abs(np.nan_to_num(one, nan=0, posinf=0, neginf=0)).max()) for one in floats),
        default=0.0,
    )


def list_readings(
    makers: Mapping[str, Any], exact: Mapping[str, Any], rounded: Mapping[str, Any]
) -> Iterator[Reading]:
    """Yield what the operators READERS read. ``exact`` and ``rounded`` are the values
    of the graph without and with rounding, by name."""
    for name, value in rounded.items():
        node = makers[name]
        source = node.input[0] if node.input else ""
        if node.op_type in READERS and source in exact:
            behind_db, label = _compare(exact[name], value), name_node(name, makers)
            if reading := make_reading(node.op_type, label, exact[source], behind_db):
                yield reading


def list_losses(
    graph: Any, float32: Mapping[str, Any], quantized: Mapping[str, Any]
) -> Iterator[tuple[str, str, float, float]]:
    """Yield each value of a quantized graph that is less accurate than the values from which it is
    made: its name, the value before it was rounded (or "" if it is the result of another operator),
    and the SQNR in dB before and after it. ``float32`` and ``quantized`` are the values of the
    graph without and with rounding."""
    rounded = find_rounded(graph)
    reached = {name: _compare(float32[name], value) for name, value in quantized.items()}
    reached |= {one.name: BEST_DB for one in graph.input}
    makers = {name: node for node in graph.node for name in node.output}
    for name in quantized:
        node, origin = makers[name], rounded.get(name, "")
        if not origin:
            node = find_hidden(node, makers, reached)
        before = [reached[one] for one in ([origin] if origin else node.input) if one in reached]
        if before and (origin or computes_node(node)) and reached[name] < min(before):
            yield name, origin, min(before), reached[name]


def find_hidden(node: Any, makers: Mapping[str, Any], values: Collection[str]) -> Any:
    """Return the node whose result ``node`` only moves or converts, if that is no recorded value,
    as that of a comparison. Otherwise return ``node``."""
    source = node
    while source is not None and not computes_node(source) and len(source.input) == 1:
        if source.input[0] in values:
            return node
        source = makers.get(source.input[0])
    return node if source is None else source


def measure_effects(
    model: Path, plain: Path, scratch: Path, inputs: Arrays, outputs: Mapping[str, int]
) -> dict[tuple[str, ...], float]:
    """Return how much noise the rounding of each result causes in the outputs, relative to their
    power. The keys are the results of the nodes that compute and read the rounded one, because all
    of them need more bits. ``scratch`` is overwritten."""
    graph = onnx.load(model).graph
    readers: dict[str, list[str]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(name_result(node.output[0]))
    made = {name for node in graph.node for name in node.output}
    float_graph = onnx.load(plain).graph
    limiters = find_limiters(float_graph)
    selectable = {name for node in float_graph.node for name in node.output}
    exact = skip_rounding(onnx.load(model), onnx.load(plain))
    (wanted,) = compute_sets(exact, scratch, [inputs], outputs)
    effects: dict[tuple[str, ...], float] = {}
    for name, source in find_rounded(graph).items():
        probe = skip_rounding(onnx.load(model), onnx.load(plain), kept=name)
        (given,) = compute_sets(probe, scratch, [inputs], outputs)
        noise = sum(10 ** (-_compare(wanted[output], given[output]) / 10) for output in outputs)
        own = [name_result(source)] if source in made else []
        limiter = limiters.get(own[0]) if own else None
        own += [limiter.input[0]] if limiter else []  # the quantizer has merged these two
        # The model that a user knows has no results of quantizers.
        group = tuple(one for one in (*own, *readers.get(name, ())) if one in selectable)
        effects[group] = effects.get(group, 0.0) + noise
    return effects


def expose_layers(model: Path, target: Path) -> tuple[Layer, ...]:
    """Write a copy of the model to ``target`` that also returns the results of its inner nodes,
    after its own outputs. Return these nodes, in the same order.

    Nodes that only move elements are omitted. If there are more than MOST_LAYERS results, or if
    their size exceeds MOST_BYTES, only every nth node is included, but at least one. Raises
    FailedError if no result can be returned.
    """
    proto = onnx.load(model)
    graph = proto.graph
    makers = {name: node for node in graph.node for name in node.output}
    elements, rounded = list_values(proto), find_rounded(graph)
    given = {one.name for one in graph.output}
    given |= {rounded[name] for name in given if name in rounded}
    sources = {
        source: name
        for name, source in ((rounded or {name: name for name in elements}).items())
        if elements.get(name) and source in makers and computes_node(makers[source])
    }
    layers = [(source, name) for source, name in sources.items() if source not in given]
    size = sum(4 * elements[name] for _, name in layers)
    every = max(-(-len(layers) // MOST_LAYERS), -(-size // MOST_BYTES), 1)
    chosen = layers[every - 1 :: every] or layers[-1:]
    for source, name in chosen:
        output = name
        if source != name:  # QNN expects a separate dequantizer for each reader of a quantizer
            output = EXPOSED.format(name)
            graph.node.append(copy_node(makers[name], output))
        graph.output.append(helper.make_empty_tensor_value_info(output))
    if not chosen:
        raise FailedError(
            "the model has no inner results to return: each node is already an output, only moves"
            " elements, or has a result of unknown size"
        )
    onnx.save(infer(proto), target)
    return tuple(
        Layer(makers[source].op_type, name_node(source, makers), node=source)
        for source, _ in chosen
    )


def copy_node(node: Any, output: str) -> Any:
    """Return a copy of a node with a single output of this name."""
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    copied.name, copied.output[:] = output, [output]
    return copied


def name_node(name: str, makers: Mapping[str, Any]) -> str:
    """Return a label for the node that computes a value, such as ``Conv 'first'``. For an input, it
    is ``input 'x'``."""
    node = makers.get(name)
    return f"{node.op_type} {node.name or name!r}" if node is not None else f"input {name!r}"


def find_rounded(graph: Any) -> dict[str, str]:
    """Map the name of each rounded value to the name of the value before rounding. A rounded value
    is the output of a DequantizeLinear whose input comes from a QuantizeLinear; the value before
    rounding is the input of that QuantizeLinear."""
    quantizers = {node.output[0]: node for node in graph.node if node.op_type == "QuantizeLinear"}
    return {
        node.output[0]: quantizers[node.input[0]].input[0]
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in quantizers
    }


def find_limiters(graph: Any) -> dict[str, Any]:
    """Return the nodes of a graph that the quantizer may remove, by their results."""
    return {node.output[0]: node for node in graph.node if node.op_type in {"Relu", "Clip"}}


def skip_rounding(
    model: onnx.ModelProto, plain: onnx.ModelProto, kept: str = ""
) -> onnx.ModelProto:
    """Remove the rounding of activations from a model, except for the rounded value ``kept``, and
    return the model. Weights stay rounded.

    ONNX Runtime's quantizer removes a Relu or Clip directly before a quantizer, whose range has the
    same effect. These nodes are taken from ``plain``, the float32 model. The quantizer keeps the
    names of values, but adds a suffix to those of outputs."""
    rounded, known = find_rounded(model.graph), read_constants(plain.graph)
    made = {name: node for node in model.graph.node for name in node.output}
    removed = find_limiters(plain.graph)
    own = {initializer.name for initializer in model.graph.initializer}
    for node in model.graph.node:
        if node.output[0] in rounded and node.output[0] != kept:
            source = rounded[node.output[0]]
            limiter = removed.get(source.removesuffix(QUANTIZED_INPUT))
            if source not in made or limiter is None or made[source].op_type == limiter.op_type:
                limiter = helper.make_node("Identity", [source], [*node.output])
            bounds = [*limiter.input[1:]]
            used = helper.make_node(limiter.op_type, [source, *bounds], [*node.output])
            used.attribute.extend(limiter.attribute)
            node.CopyFrom(used)
            for name in {*filter(None, bounds)} - own:
                known[name].name = name
                model.graph.initializer.append(known[name])
                own.add(name)
    return model


def list_values(model: onnx.ModelProto) -> dict[str, int]:
    """Map the name of each node's float32 result to its number of elements. The number is 0 if the
    rank or a dimension is unknown."""
    inferred = infer(model).graph
    made = {name for node in model.graph.node for name in node.output}
    types = {
        one.name: one.type.tensor_type
        for one in (*inferred.value_info, *inferred.output)
        if one.type.tensor_type.elem_type == TensorProto.FLOAT and one.name in made
    }
    return {
        name: math.prod(size.dim_value for size in one.shape.dim) if one.HasField("shape") else 0
        for name, one in types.items()
    }


def compute_sets(
    model: onnx.ModelProto, scratch: Path, sets: Sequence[Arrays], names: Collection[str]
) -> list[dict[str, Any]]:
    """Compute the values that ``names`` lists for each sample, and return them by name.
    ``scratch`` is overwritten with a model that returns them."""
    known = {output.name for output in model.graph.output}
    model.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for name in names if name not in known
    )
    onnx.save(infer(model), scratch)
    session = open_reference(scratch)
    own = [one.name for one in session.get_inputs()]
    made = (session.run([*names], dict(zip(own, inputs, strict=True))) for inputs in sets)
    return [dict(zip(names, values, strict=True)) for values in made]


def _compare(wanted: Any, given: Any) -> float:
    """Return the SQNR in dB, limited to the range from -BEST_DB to BEST_DB."""
    with np.errstate(all="ignore"):
        reached = measure_pooled(np.asarray(wanted), given)
    return limit_db(reached)
