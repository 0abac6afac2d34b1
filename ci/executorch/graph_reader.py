"""Reads a torch module as the neutral graph of ci.analysis."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from ci.analysis.graph import Array, Graph, Node, Shape
from ci.analysis.parts import ELEMENTWISE, find_parts
from ci.models.eager import copy_inputs, keep_state
from ci.models.factory import Inputs
from ci.models.model import split_inputs, split_module
from ci.models.tensors import OutputPart
from ci.models.user_code import find_origin

# Numbers with which an operator fills elements, by its name, with the place of the argument.
FILLS: Mapping[str, int] = {"constant_pad_nd": 2, "pad": 3, "masked_fill": 2}
# The overloads that have two operands, by torch's name of the operator that always has two.
BINARY = {"max.other": "maximum", "min.other": "minimum"}
NORMALIZED = frozenset({"layer_norm", "native_layer_norm", "rms_norm"})


def find_module_parts(module: nn.Module, inputs: Inputs) -> list[tuple[OutputPart, ...]]:
    """Return the parts from which a module joins each of its outputs, for all methods, in order.
    Raises the errors of torch.export."""
    inputs_of = split_inputs(module, inputs)
    parts: list[tuple[OutputPart, ...]] = []
    for name, method in split_module(module).items():
        parts += find_parts(read_module(method, inputs_of[name]))
    return parts


def read_module(module: nn.Module, inputs: Inputs) -> Graph:
    """Return the graph of a module. Writes into tensors become operators such as
    ``slice_scatter``. Raises the errors of torch.export."""
    with torch.no_grad(), keep_state(module):
        try:
            program = torch.export.export(module, copy_inputs(inputs), strict=False)
        except Exception:  # noqa: BLE001 - ExecuTorch's quantizer exports in this way
            program = torch.export.export(module, copy_inputs(inputs), strict=True)
        if any(map(_writes_part, program.graph.nodes)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch 2.13 calls its own deprecated functions
                program = program.run_decompositions({})
    return read_program(program)


def read_program(program: Any) -> Graph:
    """Return the graph of an exported program. Its outputs are the tensors that the program
    returns; states that it changes are left out."""
    signature = program.graph_signature
    tensors = {**program.state_dict, **program.constants}
    fixed = {**signature.inputs_to_parameters, **signature.inputs_to_lifted_tensor_constants}
    changed = set(signature.buffers_to_mutate.values())
    fixed |= {
        name: target
        for name, target in signature.inputs_to_buffers.items()
        if target not in changed
    }
    constants: dict[str, Callable[[], Array]] = {
        name: functools.partial(_to_array, tensors[target])
        for name, target in fixed.items()
        if isinstance(tensors.get(target), Tensor)
    }
    nodes: list[Node] = []
    shapes: dict[str, Shape] = {}
    outputs: list[str] = []
    for node in program.graph.nodes:
        names = _list_results(node)
        for name, value in zip(names, _list_values(node), strict=True):
            if isinstance(value, Tensor) and all(isinstance(size, int) for size in value.shape):
                shapes[name] = tuple(value.shape)
        if node.op == "call_function" and node.target is not operator.getitem:
            nodes.append(_read_node(node, names))
        elif node.op == "output":
            outputs += _list_outputs(node, {*signature.user_outputs})
    return Graph(nodes, outputs, shapes, constants)


def _list_outputs(end: fx.Node, returned: Collection[str]) -> Iterator[str]:
    """Yield the names of the tensors that a program returns, without its states."""
    for leaf in tree_leaves(end.args[0]):
        is_tensor = isinstance(leaf, fx.Node) and isinstance(leaf.meta.get("val"), Tensor)
        if is_tensor and leaf.name in returned:
            yield _name_result(leaf)


def _writes_part(node: fx.Node) -> bool:
    """Return whether a node writes into a part of a tensor. The others, such as relu_, may change
    a whole tensor, which then has other values, but the same parts. The decomposition that replaces
    them takes seconds."""
    schema = getattr(node.target, "_schema", None)
    for place, argument in enumerate(schema.arguments if schema else ()):
        if argument.alias_info and argument.alias_info.is_write and place < len(node.args):
            source: Any = node.args[place]
            is_view = source.op == "call_function" and _is_view(source)
            if is_view or _name_operator(node) not in ELEMENTWISE:
                return True
    return False


def _is_view(node: fx.Node) -> bool:
    """Return whether the result of a node may share memory with its operand."""
    schema = getattr(node.target, "_schema", None)
    returned = [value for value in schema.returns if value.alias_info] if schema else []
    return node.target is operator.getitem or any(
        not value.alias_info.is_write for value in returned
    )


def _name_operator(node: fx.Node) -> str:
    full = str(getattr(node.target, "__name__", node.target))
    return BINARY.get(full, full.partition(".")[0].rstrip("_"))


def _list_values(node: fx.Node) -> list[Any]:
    value = node.meta.get("val")
    return [*value] if isinstance(value, (list, tuple)) else [value]


def _list_results(node: fx.Node) -> tuple[str, ...]:
    if isinstance(node.meta.get("val"), (list, tuple)):
        return tuple(f"{node.name}.{number}" for number in range(len(_list_values(node))))
    return (_name_result(node),)


def _name_result(node: fx.Node) -> str:
    """Return the name of a value. One of several results has the name of its node and its
    number."""
    if node.op == "call_function" and node.target is operator.getitem:
        source: Any = node.args[0]
        return f"{source.name}.{node.args[1]}"
    return node.name


def _read_node(node: fx.Node, results: tuple[str, ...]) -> Node:
    target: Any = node.target
    name = _name_operator(node)
    if target is torch.ops.aten.where.ScalarOther or target is torch.ops.aten.where.ScalarSelf:
        name = "where_of_numbers"
    sources = [leaf for leaf in tree_leaves([node.args, node.kwargs]) if isinstance(leaf, fx.Node)]
    if name == "einsum" and len(sources) == 1:
        value, source = node.meta["val"], sources[0].meta["val"]
        name = "einsum_permutation" if sorted(value.shape) == sorted(source.shape) else name
    compute = functools.partial(_compute, node, sources, name)
    axes = tuple(_list_axes(node, name)) or None
    origin = f"{name}{find_origin(node).mark}"
    return Node(name, tuple(map(_name_result, sources)), results, axes, origin, compute)


def _list_axes(node: fx.Node, name: str) -> Iterator[int]:
    """Yield the axes over which an operator works."""
    schema = getattr(node.target, "_schema", None)
    arguments: dict[str, Any] = {}
    for place, parameter in enumerate(schema.arguments if schema else ()):
        if place < len(node.args):
            arguments[parameter.name] = node.args[place]
        else:
            arguments[parameter.name] = node.kwargs.get(parameter.name)
    if name in NORMALIZED:
        shape: Any = arguments.get("normalized_shape") or ()
        yield from range(-len(shape), 0)
    elif name == "instance_norm":
        source: Any = node.args[0]
        yield from range(2, source.meta["val"].ndim)
    else:
        dim: Any = arguments.get("dim")
        yield from dim if isinstance(dim, (list, tuple)) else () if dim is None else (dim,)


def _compute(
    node: fx.Node, sources: Sequence[fx.Node], name: str, operands: Sequence[Array | None]
) -> list[Array]:
    values = dict(zip(sources, operands, strict=True))
    target: Any = node.target
    args: list[Any] = [*node.args]
    place = FILLS.get(name, len(args))
    if place < len(args) and isinstance(args[place], (int, float)):
        args[place] = 0

    def find_tensor(source: fx.Node) -> Any:
        value = values[source]
        return None if value is None else torch.from_numpy(np.ascontiguousarray(value))

    args, kwargs = map_arg((args, node.kwargs), find_tensor)
    with torch.no_grad():
        result = target(*args, **kwargs)
    results = result if isinstance(result, (list, tuple)) else [result]
    return [_to_array(tensor) for tensor in results]


def _to_array(value: Any) -> Array:
    tensor = value.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.asarray(tensor.cpu())
