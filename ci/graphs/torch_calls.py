"""Reads the calls of a graph of torch.fx as nodes. A file with rewritten models that needs nothing
of this project contains this module, so it imports little."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from ci.graphs.graph import EXECUTORCH, Array, Graph, Node, Shape
from ci.models.user_code import find_origin

OPERANDS = frozenset({"other", "self"})  # names of arguments that may be numbers
WITH_VALUE = frozenset({"constant_pad_nd", "masked_fill", "pad"})  # may have a number as ``value``
# The overloads that have two operands, by torch's name of the operator that always has two.
BINARY = {"max.other": "maximum", "min.other": "minimum"}
NORMALIZED = frozenset({"layer_norm", "native_layer_norm", "rms_norm"})


def read_calls(part: fx.GraphModule, written: Collection[fx.Node]) -> Graph:
    """Return the graph of a module that torch.export or a quantizer made, with the names of its
    nodes. What the graph writes into, such as a cache, is no constant: ``written`` are these
    nodes."""
    states = frozenset(node.name for node in written if node.op == "get_attr")
    nodes: list[Node] = []
    shapes: dict[str, Shape] = {}
    dtypes: dict[str, str] = {}
    constants: dict[str, Callable[[], Array]] = {}
    outputs: list[str] = []
    for node in part.graph.nodes:
        names = list_results(node)
        note_types(node, names, shapes, dtypes)
        if node.op == "get_attr":
            # The target may be in a submodule, such as "body.weight".
            value = functools.reduce(getattr, str(node.target).split("."), part)
            if node not in written and isinstance(value, Tensor):
                constants[node.name] = functools.partial(tensor_to_array, value)
        elif node.op == "call_function" and node.target is not operator.getitem:
            nodes.append(read_call(node, names, shapes, constants))
        elif node.op == "output":
            leaves = tree_leaves(node.args[0])
            outputs += [name_result(leaf) for leaf in leaves if isinstance(leaf, fx.Node)]
    names_written = frozenset(name for node in written for name in list_results(node))
    return Graph(
        nodes,
        outputs,
        shapes,
        constants,
        dtypes,
        written=names_written,
        front_end=EXECUTORCH,
        states=states,
    )


def name_operator(node: Any) -> str:
    """Return the operator of a call without its overload, such as ``linear``, or "" if ``node`` is
    not a call."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return ""
    full = str(getattr(node.target, "__name__", node.target))
    return BINARY.get(full, full.partition(".")[0].rstrip("_"))


def list_values(node: fx.Node) -> list[Any]:
    """Return the fake tensors of a node's results."""
    value = node.meta.get("val")
    return [*value] if isinstance(value, (list, tuple)) else [value]


def note_types(
    node: fx.Node, names: Sequence[str], shapes: dict[str, Shape], dtypes: dict[str, str]
) -> None:
    """Add the shapes and dtypes of a node's results, which have these ``names``."""
    for name, value in zip(names, list_values(node), strict=True):
        if isinstance(value, Tensor):
            dtypes[name] = str(value.dtype).removeprefix("torch.")
            # A shape with an unknown size is no shape.
            if all(isinstance(size, int) for size in value.shape):
                shapes[name] = tuple(value.shape)


def list_results(node: fx.Node) -> tuple[str, ...]:
    """Return the names of the values that a node computes."""
    if isinstance(node.meta.get("val"), (list, tuple)):
        return tuple(f"{node.name}.{number}" for number in range(len(list_values(node))))
    return (name_result(node),)


def name_result(node: fx.Node) -> str:
    """Return the name of a value. One of several results has the name of its node and its
    number."""
    if node.op == "call_function" and node.target is operator.getitem:
        source: Any = node.args[0]
        return f"{source.name}.{node.args[1]}"
    return str(node.name)


class Read(NamedTuple):
    """What a node reads: the value of another node, or a number."""

    name: str
    source: Any
    is_operand: bool = True


def list_reads(node: fx.Node) -> list[Read]:
    """Return the tensors that a node reads, and the numbers that it operates on, such as a factor
    or an exponent."""
    taken = OPERANDS | {"value"} if name_operator(node) in WITH_VALUE else OPERANDS
    is_padding = name_operator(node) != "masked_fill"
    reads: list[Read] = []
    for argument, value in _list_arguments(node):
        leaves = value if isinstance(value, (list, tuple)) else [value]
        reads += [Read(name_result(leaf), leaf) for leaf in leaves if isinstance(leaf, fx.Node)]
        if argument.name in taken and isinstance(value, (int, float)):
            is_operand = not (argument.name == "value" and is_padding)
            if is_operand and isinstance(value, bool):
                continue
            reads.append(Read(f"{node.name}.{argument.name}", value, is_operand))
    listed = {read.source for read in reads if isinstance(read.source, fx.Node)}
    nodes = [inner for inner in tree_leaves([node.args, node.kwargs]) if isinstance(inner, fx.Node)]
    has_schema = hasattr(node.target, "_schema")
    reads += [
        Read(name_result(inner), inner, not has_schema) for inner in nodes if inner not in listed
    ]
    return reads


def fill_reads(node: fx.Node, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call with ``values`` instead of what it reads, in the order of
    ``list_reads``."""
    reads, pending = {read.name for read in list_reads(node)}, iter(values)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for place, (argument, value) in enumerate(_list_arguments(node)):
        filled = value
        if isinstance(value, (list, tuple)):
            filled = [next(pending) if isinstance(leaf, fx.Node) else leaf for leaf in value]
        elif isinstance(value, fx.Node) or f"{node.name}.{argument.name}" in reads:
            filled = next(pending)
        if place < len(node.args):
            args.append(filled)
        elif argument.name in node.kwargs:
            kwargs[argument.name] = filled
    return args, kwargs


def read_call(
    node: fx.Node,
    names: tuple[str, ...],
    shapes: dict[str, Shape],
    constants: dict[str, Callable[[], Array]],
) -> Node:
    """Return the Node of a call with the results ``names``. Numbers among its operands become
    ``constants``, with their ``shapes``."""
    reads = list_reads(node)
    for read in reads:
        if isinstance(read.source, (int, float)):
            constants[read.name] = functools.partial(np.asarray, read.source)
            shapes[read.name] = ()
    return _read_node(node, reads, names)


def _read_node(node: fx.Node, reads: Sequence[Read], results: tuple[str, ...]) -> Node:
    name = name_operator(node)
    if name == "einsum" and len(reads) == 1:
        # Without a sum, an einsum of one operand only moves elements.
        before, after = node.meta["val"].shape, reads[0].source.meta["val"].shape
        name = "einsum_permutation" if sorted(before) == sorted(after) else name
    origin = find_origin(node)
    fills = [place for place, read in enumerate(reads) if read.name == f"{node.name}.value"]
    return Node(
        name,
        tuple(read.name for read in reads),
        results,
        tuple(_list_axes(node, name)) or None,
        f"{name}{origin.mark}",
        functools.partial(_compute, node, reads),
        name=node.name,
        numbers=dict(_list_numbers(node)),
        operands=sum(read.is_operand for read in reads),
        fill=fills[0] if fills else None,
        place=origin,
        is_random=torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()),
        texts={
            argument.name: value
            for argument, value in _list_arguments(node)
            if isinstance(value, str)
        },
    )


def _list_axes(node: fx.Node, name: str) -> Iterator[int]:
    """Yield the axes over which an operator works."""
    arguments = {argument.name: value for argument, value in _list_arguments(node)}
    if name in NORMALIZED:
        shape: Any = arguments.get("normalized_shape") or ()
        yield from range(-len(shape), 0)
    elif name == "instance_norm":
        # A quantizer records no value of what it inserts, but the result has the same rank.
        yield from range(2, node.meta["val"].ndim)
    else:
        dim: Any = arguments.get("dim")
        yield from dim if isinstance(dim, (list, tuple)) else () if dim is None else (dim,)


def _list_arguments(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """Yield each argument in the schema of a node's operator, with its value, or None if it is
    omitted."""
    schema = getattr(node.target, "_schema", None)
    for place, argument in enumerate(schema.arguments if schema else ()):
        value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
        yield argument, value


def _list_numbers(node: fx.Node) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield (name, numbers) for each argument of a node that is a number or a list of numbers. An
    omitted argument has its default."""
    arguments = {argument.name: value for argument, value in _list_arguments(node)}
    for argument, value in _list_arguments(node):
        number: Any = argument.default_value if value is None else value
        numbers = number if isinstance(number, (list, tuple)) else (number,)
        if all(isinstance(item, (bool, int, float)) for item in numbers):
            yield argument.name, tuple(map(float, numbers))
        elif argument.name == "padding" and number in {"same", "valid"}:
            yield argument.name, _measure_padding(arguments, is_same=number == "same")
    is_constant = arguments.get("mode") in {None, "constant"}
    if name_operator(node) == "pad" and arguments.get("value") is None and is_constant:
        yield "value", (0.0,)
    elif name_operator(node) == "square":
        yield "exponent", (2.0,)


def _measure_padding(arguments: Mapping[str, Any], *, is_same: bool) -> tuple[float, ...]:
    """Return the padding of a convolution per axis, as torch computes it from "same" or "valid". It
    is 0 along an axis whose ends differ: torch pads these by another operator."""
    kernel = arguments["weight"].meta["val"].shape[2:]
    dilation = arguments.get("dilation") or (1,)
    steps = [*dilation, *dilation[-1:] * len(kernel)]
    totals = [(size - 1) * step * is_same for size, step in zip(kernel, steps, strict=False)]
    return tuple(0.0 if total % 2 else total / 2 for total in totals)


def _compute(node: fx.Node, reads: Sequence[Read], operands: Sequence[Array | None]) -> list[Array]:
    values = {
        read.source: operand
        for read, operand in zip(reads, operands, strict=True)
        if isinstance(read.source, fx.Node)
    }
    numbers = {
        read.name.rpartition(".")[2]: operand
        for read, operand in zip(reads, operands, strict=True)
        if not isinstance(read.source, fx.Node) and operand is not None
    }

    def find_tensor(source: fx.Node) -> Any:
        value = values[source]
        # torch.from_numpy refuses arrays with negative strides. Unlike ascontiguousarray, asarray
        # gives a number no axis.
        return None if value is None else torch.from_numpy(np.asarray(value, order="C"))

    args, kwargs = [*map_arg(node.args, find_tensor)], dict(map_arg(node.kwargs, find_tensor))
    for place, (argument, _) in enumerate(_list_arguments(node)):
        if argument.name in numbers:
            number = numbers[argument.name].item()
            if place < len(args):
                args[place] = number
            else:
                kwargs[argument.name] = number
    target: Any = node.target
    with torch.no_grad():
        result = target(*args, **kwargs)
    results = result if isinstance(result, (list, tuple)) else [result]
    return [tensor_to_array(tensor) for tensor in results]


def tensor_to_array(value: Any) -> Array:
    """Return the elements of a tensor. Those of bfloat16, which numpy lacks, are widened."""
    tensor = value.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.asarray(tensor.cpu())
