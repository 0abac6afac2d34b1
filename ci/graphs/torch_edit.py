"""Writes calls into the graph of an exported program: the Lane of PyTorch for ci.graphs.edit. A
file with rewritten models that needs nothing of this project contains this module."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from ci.graphs.edit import Form, GraphEditor, Insert
from ci.graphs.graph import Node
from ci.graphs.torch_calls import fill_reads, list_reads, name_result, read_calls
from ci.graphs.torch_state import find_written, is_view
from ci.models.source_lines import is_installed

aten = torch.ops.aten
FRAME = re.compile(r'File "([^"]+)", line \d+, in .+\n +(\S.*)')
INHERITED = ("stack_trace", "nn_module_stack", "source_fn_stack")
# The overloads of operators that are not called "default"
OVERLOADS = {
    **dict.fromkeys(("add", "sub", "mul", "div", "slice"), "Tensor"),
    **dict.fromkeys(("transpose", "select", "softmax", "log_softmax"), "int"),
    **dict.fromkeys(("mean", "squeeze"), "dim"),
    "sum": "dim_IntList",
    "pow": "Tensor_Scalar",
    "where": "self",
    "rsub": "Scalar",
    "to": "dtype",
    "upsample_bilinear2d": "vec",
}


def list_operators(names: str) -> set[Any]:
    """Return operators, such as ``relu squeeze.dim``. The default overload needs no name."""
    operators = set()
    for word in names.split():
        name, _, overload = word.partition(".")
        operators.add(getattr(getattr(aten, name), overload or "default"))
    return operators


# Views of a part of a tensor, each with the operator that makes a tensor with another such part
SCATTERS = {
    aten.slice.Tensor: aten.slice_scatter.default,
    aten.select.int: aten.select_scatter.default,
}


class TorchModule:
    """The graph of an exported program, into which calls are inserted.

    New nodes are inserted before the node of the innermost ``at``, and get its place in the user's
    source and its module. ``edit.mul(x, 0.5)`` inserts a call of the operator ``mul``.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.graph = module.graph
        self._anchor: fx.Node | None = None  # new nodes are inserted before it
        for node in module.graph.find_nodes(
            op="call_function", target=aten._assert_tensor_metadata.default
        ):
            self.graph.erase_node(node)  # torch.export adds them before each change of a dtype
        _write_out_of_place(module.graph)
        self._scatter_assignments()

    def _scatter_assignments(self) -> None:
        """Write an assignment to a part of a computed tensor, such as ``y[:, 8:] = z``, as the
        operator that makes a tensor with another part, if no view of the tensor is read later."""
        for node in self.graph.find_nodes(op="call_function", target=aten.copy_.default):
            parts: list[fx.Node] = []  # from the inside: the last one is a part of the whole tensor
            base, reader = node.args[0], node
            while base.target in SCATTERS and [*base.users] == [reader]:
                parts.append(base)
                base, reader = base.args[0], base
            views = [user for user in base.users if is_view(user) and user not in parts]
            is_read_later = any(view < node < user for view in views for user in view.users)
            is_computed = base.op == "call_function" and not is_view(base)
            is_same = value_of(node.args[1]).dtype == value_of(base).dtype
            if not parts or not is_computed or is_read_later or not is_same:
                continue
            later = {user for user in base.users if node < user}
            with self.at(node):
                written = value = self.expand(node.args[1], [*shape_of(parts[0])])
                for part in parts:
                    scatter, operand, places = SCATTERS[part.target], part.args[0], part.args[1:]
                    value = self.call(scatter, operand, value, *places, **part.kwargs)
            base.replace_all_uses_with(value, later.__contains__)
            node.replace_all_uses_with(written)
            self.graph.erase_node(node)

    @contextmanager
    def at(self, node: fx.Node) -> Iterator[None]:
        """Insert new nodes before ``node``."""
        outer_anchor, self._anchor = self._anchor, node
        try:
            with self.graph.inserting_before(node):
                yield
        finally:
            self._anchor = outer_anchor

    def __getattr__(self, name: str) -> Callable[..., fx.Node]:
        target = getattr(getattr(aten, name), OVERLOADS.get(name, "default"))
        return functools.partial(self.call, target)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Insert a call of an operator, and return its node. Tensors become constants."""
        args = tree_map(self._store, args)
        node = self.graph.call_function(target, args, kwargs)
        values = tree_map(value_of, args)
        mode = next((value.fake_mode for value in tree_leaves(values) if is_fake(value)), None)
        with mode or torch.no_grad(), torch.no_grad():
            node.meta["val"] = target(*values, **tree_map(value_of, kwargs))
        return self._mark(node)

    def _store(self, arg: Any) -> Any:
        """Return a node that reads a tensor, and any other argument as it is."""
        return self.constant(arg) if isinstance(arg, Tensor) else arg

    def call_again(self, node: fx.Node, *operands: Any, **changed: Any) -> fx.Node:
        """Insert a call like ``node`` with its first operands and some of its arguments changed."""
        names = [parameter.name for parameter in node.target._schema.arguments]
        args = [*operands, *node.args[len(operands) :]]
        # Changed arguments become positional, with everything before them.
        while len(args) <= max(map(names.index, changed), default=-1):
            args.append(argument(node, names[len(args)]))
        for name, value in changed.items():
            args[names.index(name)] = value
        positional = names[: len(args)]
        kwargs = {name: value for name, value in node.kwargs.items() if name not in positional}
        return self.call(node.target, *args, **kwargs)

    def constant(self, value: Tensor) -> fx.Node:
        """Store a tensor in the module, and return a node that reads it."""
        taken = {name for name, _ in self.module.named_buffers()}
        names = (f"mended_{number}" for number in range(len(taken) + 1))
        name = next(name for name in names if name not in taken)
        self.module.register_buffer(name, value.detach().clone().contiguous())
        node = self.graph.get_attr(name)
        # Fake tensors of two modes cannot be mixed.
        values = (
            value
            for typed_node in self.graph.nodes
            for value in tree_leaves(typed_node.meta.get("val"))
        )
        mode = next(value.fake_mode for value in values if is_fake(value))
        node.meta["val"] = mode.from_tensor(getattr(self.module, name), static_shapes=True)
        return self._mark(node)

    def _mark(self, node: fx.Node) -> fx.Node:
        """Give a new node the place in the source and the module of the node that it is for."""
        if self._anchor is not None:
            node.meta |= {
                key: self._anchor.meta[key] for key in INHERITED if key in self._anchor.meta
            }
        return node

    def clean_up(self) -> None:
        """Remove what is no longer used."""
        self.graph.eliminate_dead_code()
        self.graph.lint()
        self.module.recompile()


class TorchLane:
    """The Lane of PyTorch."""

    def __init__(self, module: TorchModule) -> None:
        self.module = module
        self.graph = read_calls(module.module, find_written(module.graph.nodes))
        self.calls = {call.name: call for call in module.graph.nodes}
        # What torch.fx has as the value of each name: a node, or a number.
        self.sources: dict[str, Any] = {name_result(call): call for call in module.graph.nodes}
        for name, load in self.graph.constants.items():
            if name not in self.sources:
                self.sources[name] = load().item()
        self.fakes: dict[str, Any] = {}  # of new values
        self.count = 0

    def name_result(self, operator: str, before: str) -> str:
        """Return a new name. torch.fx chooses another one when the call is written."""
        self.count += 1
        return f"{before}/{operator}_{self.count}"

    def infer(self, insert: Insert, edit: GraphEditor) -> Form | None:
        """Return what the result of a call looks like."""
        fakes = (value_of(source) for source in self.sources.values())
        mode = next(fake.fake_mode for fake in fakes if is_fake(fake))
        with mode, torch.no_grad():
            operands = []
            for name in insert.node.reads:
                if name in edit.arrays:
                    dtype = getattr(torch, edit.dtypes[name])
                    operands.append(torch.empty(edit.shapes[name], dtype=dtype))
                elif name in edit.numbers:
                    operands.append(edit.numbers[name])
                else:
                    operands.append(self.fakes.get(name, value_of(self.sources.get(name))))
            target, args, kwargs = self._arrange(insert, operands)
            result = target(*tree_map(value_of, args), **tree_map(value_of, kwargs))
        self.fakes[insert.node.results[0]] = result
        return Form(tuple(result.shape), str(result.dtype).removeprefix("torch."))

    def _arrange(self, insert: Insert, operands: Sequence[Any]) -> tuple[Any, list[Any], Any]:
        """Return the operator of a call, and its arguments with these operands."""
        if insert.repeats:
            call, filled = self.calls[insert.repeats], []
            for read, operand in zip(list_reads(call), operands, strict=True):
                # A number instead of a tensor, which some overloads require.
                is_tensor = isinstance(read.source, fx.Node) and isinstance(operand, (int, float))
                dtype = value_of(read.source).dtype if is_tensor else None
                filled.append(torch.tensor(operand, dtype=dtype) if is_tensor else operand)
            args, kwargs = fill_reads(call, filled)
            target = call.target
            if target._overloadname == "padding" and "padding" in insert.arguments:
                target = target.overloadpacket.default  # whose padding is numbers, and no text
            return target, *change_arguments(target, args, kwargs, insert.arguments)
        name = insert.node.operator
        if name == "sub" and operands and isinstance(operands[0], (int, float)):
            name, operands = "rsub", operands[::-1]  # which alone takes the number first
        target = getattr(getattr(aten, name), OVERLOADS.get(name, "default"))
        return target, *arrange_arguments(target, operands, insert.arguments)

    def label(self, node: Node) -> str:
        """Return the name of a call."""
        return node.name

    def quote(self, node: Node) -> str:
        """Return the line of the user's source that makes a call, or "" if it is unknown."""
        return quote_source(self.calls[node.name])

    def write(self, edit: GraphEditor) -> None:
        """Write the edited graph into the module."""
        sources = self._write_inserts(edit)
        for node in edit.nodes.values():
            call = self.calls[node.name]
            for read, name in zip(list_reads(call), node.reads, strict=True):
                if read.name != name:
                    call.replace_input_with(read.source, sources[name])
        (end,) = self.module.graph.find_nodes(op="output")
        leaves = [leaf for leaf in tree_leaves(end.args[0]) if isinstance(leaf, fx.Node)]
        for leaf, old, new in zip(leaves, self.graph.outputs, edit.outputs, strict=True):
            if old != new:
                end.replace_input_with(leaf, sources[new])
        # torch regards some calls as random, so that they are not removed as unused.
        for node in reversed(self.graph.nodes):
            if node.name not in edit.nodes:
                call = self.calls[node.name]
                for item in [*call.users]:
                    self.module.graph.erase_node(item)
                self.module.graph.erase_node(call)

    def _write_inserts(self, edit: GraphEditor) -> dict[str, Any]:
        """Write the new calls, and return what torch.fx has as the value of each name."""
        sources = dict(self.sources)
        for insert in edit.inserts.values():
            with self.module.at(self.calls[insert.before]):
                operands = []
                for name in insert.node.reads:
                    self._write_constant(name, edit, sources)
                    operands.append(edit.numbers.get(name, sources.get(name)))
                target, args, kwargs = self._arrange(insert, operands)
                sources[insert.node.results[0]] = self.module.call(target, *args, **kwargs)
        makers = self.graph.list_makers()
        for old, new in edit.redirected.items():
            if old in makers:
                with self.module.at(self.calls[makers[old].name]):
                    self._write_constant(new, edit, sources)
        return sources

    def _write_constant(self, name: str, edit: GraphEditor, sources: dict[str, Any]) -> None:
        """Store the array of a new constant, if the name is that of one which is not stored yet."""
        if name in edit.arrays and name not in sources:
            array = np.array(edit.arrays[name])  # a copy, which torch may write into
            tensor = torch.from_numpy(array).to(getattr(torch, edit.dtypes[name]))
            sources[name] = self.module.constant(tensor)


def arrange_arguments(
    target: Any, operands: Sequence[Any], arguments: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call: ``operands`` in the order of the tensors and numbers that the
    operator takes, and ``arguments`` by name."""
    pending = [*operands]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    count = 0  # of the arguments without the last ones, which have defaults
    for parameter in target._schema.arguments:
        kind = str(parameter.type)
        value, is_default = parameter.default_value, False
        if parameter.name in arguments:
            value = arguments[parameter.name]
            value = getattr(torch, value) if parameter.name == "dtype" else value
        elif kind == "List[Tensor]":
            value, pending = pending, []
        elif pending and kind in {"Tensor", "Optional[Tensor]", "number", "Optional[number]"}:
            value = pending.pop(0)
            # Only arithmetic takes numbers, and not as the first operand, such as 1 in 1 - x.
            is_taken = bool(args) and target._overloadname in {"Tensor", "self"}
            if kind == "Tensor" and not is_taken and isinstance(value, (int, float)):
                value = torch.tensor(value)
        else:
            is_default = True
        if parameter.kwarg_only:
            kwargs |= {} if is_default else {parameter.name: value}
            continue
        args.append(value)
        count = count if is_default else len(args)
    return args[:count], kwargs


def change_arguments(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], changed: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call with those in ``changed`` replaced. They become positional,
    with everything before them."""
    parameters = target._schema.arguments
    names = [parameter.name for parameter in parameters]
    new_args, new_kwargs = [*args], dict(kwargs)
    for name, value in changed.items():
        place = names.index(name)
        missing = parameters[len(new_args) : place + 1]
        new_args += [new_kwargs.pop(gap.name, gap.default_value) for gap in missing]
        new_args[place] = value
    return new_args, new_kwargs


def value_of(operand: Any) -> Any:
    """Return the fake tensor of a node, or anything else as it is."""
    return operand.meta["val"] if isinstance(operand, fx.Node) else operand


def is_fake(value: Any) -> bool:
    """Return whether a value is a fake tensor."""
    return hasattr(value, "fake_mode")


def list_tensors(node: fx.Node) -> list[Tensor]:
    """Return the fake tensors that a node has as its value."""
    return [value for value in tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a node's tensor."""
    return tuple(node.meta["val"].shape)


def argument(node: fx.Node, name: str) -> Any:
    """Return an argument of a call, or its default. Return None if the operator has no argument
    with this name."""
    for place, parameter in enumerate(node.target._schema.arguments):
        if parameter.name == name:
            default = node.kwargs.get(name, parameter.default_value)
            return node.args[place] if place < len(node.args) else default
    return None


def quote_source(node: fx.Node) -> str:
    """Return the line of the user's source that makes a node, or "" if it is unknown."""
    frames = FRAME.findall(node.meta.get("stack_trace") or "")
    lines = [line.strip() for file, line in frames if not is_installed(file)]
    return str(lines[-1]) if lines else ""


def _write_out_of_place(graph: fx.Graph) -> None:
    """Replace operators that write into their first operand, such as ``relu_``, by those that do
    not, where the operand is computed and no view shares its memory."""
    for node in [*graph.nodes]:
        name = getattr(getattr(node.target, "_schema", None), "name", "").removeprefix("aten::")
        pure = getattr(aten, name.removesuffix("_"), None) if name.endswith("_") else None
        changed = node.args[0] if node.args else None
        if pure is None or not isinstance(changed, fx.Node) or changed.op != "call_function":
            continue
        involved = (changed, *(user for user in changed.users if user is not node))
        if any(map(is_view, involved)) or node.target._overloadname not in pure.overloads():
            continue
        node.target = getattr(pure, node.target._overloadname)
        later = {user for user in changed.users if node < user}
        changed.replace_all_uses_with(node, later.__contains__)
