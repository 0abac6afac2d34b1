"""Reads a torch module as a graph."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import HigherOrderOperator
from torch.utils._pytree import tree_leaves

from ci.graphs.graph import EXECUTORCH, Array, Graph, Node, Shape
from ci.graphs.operators import ELEMENTWISE, PASSES_ON, computes, is_quantizer
from ci.graphs.torch_calls import (
    list_results,
    name_operator,
    name_result,
    note_types,
    read_call,
    read_calls,
    tensor_to_array,
)
from ci.graphs.torch_state import find_written, is_view
from ci.models.eager import keep_state
from ci.models.exports import export_module
from ci.models.factory import Inputs


def read_module(module: nn.Module, inputs: Inputs, *, functional: bool = True) -> Graph:
    """Return the graph of a module. If it is ``functional``, writes into parts of tensors become
    operators such as ``slice_scatter``. Raises the errors of torch.export."""
    if not functional:
        return read_program(export_module(module, inputs, strict=False))
    try:
        program = export_module(module, inputs, strict=False)
    except Exception:  # noqa: BLE001 - ExecuTorch's quantizer exports in this way
        program = export_module(module, inputs, strict=True)
    if any(map(_writes_part, program.graph.nodes)):
        with torch.no_grad(), keep_state(module), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch 2.13 calls its own deprecated functions
            program = program.run_decompositions({})
    return read_program(program)


def read_program(program: Any) -> Graph:
    """Return the graph of an exported program. Its outputs are the tensors that the program
    returns; states that it changes are left out."""
    signature = program.graph_signature
    states = {**program.state_dict, **program.constants}
    changed = set(signature.buffers_to_mutate.values())
    # detach_ writes no element.
    writers = [node for node in program.graph.nodes if name_operator(node) not in PASSES_ON]
    # torch.export keeps operators that write in place since torch 2.6, and its signature names no
    # changed buffer. A cache that is read before it is written would count as a constant.
    written = frozenset(name for node in find_written(writers) for name in list_results(node))
    stored = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_lifted_tensor_constants,
        **signature.inputs_to_buffers,
    }
    constants: dict[str, Callable[[], Array]] = {
        name: functools.partial(tensor_to_array, states[target])
        for name, target in stored.items()
        if isinstance(states.get(target), Tensor) and target not in changed and name not in written
    }
    nodes: list[Node] = []
    shapes: dict[str, Shape] = {}
    dtypes: dict[str, str] = {}
    outputs: list[str] = []
    bodies: list[str] = []
    for node in program.graph.nodes:
        names = list_results(node)
        note_types(node, names, shapes, dtypes)
        if node.op == "call_function" and node.target is not operator.getitem:
            nodes.append(read_call(node, names, shapes, constants))
            if isinstance(node.target, HigherOrderOperator):
                bodies.append(nodes[-1].origin)
        elif node.op == "output":
            outputs += _list_outputs(node, {*signature.user_outputs})
    return Graph(nodes, outputs, shapes, constants, dtypes, written, EXECUTORCH, tuple(bodies))


def read_graph_module(part: fx.GraphModule) -> Graph:
    """Return the graph of a module that torch.export or a quantizer made, see ``read_calls``. It
    has no types: a run records what is floating-point."""
    # detach_ writes no element.
    writers = (node for node in part.graph.nodes if name_operator(node) not in PASSES_ON)
    return replace(read_calls(part, find_written(writers)), dtypes={})


def _list_outputs(end: fx.Node, returned: Collection[str]) -> Iterator[str]:
    """Yield the names of the tensors that a program returns, without its states."""
    for leaf in tree_leaves(end.args[0]):
        is_tensor = isinstance(leaf, fx.Node) and isinstance(leaf.meta.get("val"), Tensor)
        if is_tensor and leaf.name in returned:
            yield name_result(leaf)


def _writes_part(node: fx.Node) -> bool:
    """Return whether a node writes into a part of a tensor. The others, such as relu_, may change
    a whole tensor, which then has other values, but the same parts. The decomposition that replaces
    them takes seconds."""
    schema = getattr(node.target, "_schema", None)
    for place, argument in enumerate(schema.arguments if schema else ()):
        if argument.alias_info and argument.alias_info.is_write and place < len(node.args):
            source: Any = node.args[place]
            is_viewed = source.op == "call_function" and is_view(source)
            if is_viewed or name_operator(node) not in ELEMENTWISE:
                return True
    return False


def computes_node(node: Any) -> bool:
    """Return whether a node is a call that computes new elements, or rounds them."""
    name = name_operator(node)
    return bool(name) and (computes(name) or is_quantizer(name))
