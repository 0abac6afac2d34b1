"""Edits the graph of an exported program: finds nodes, inserts operators, replaces nodes."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map

from ci.graphs.torch_state import find_written, is_view
from ci.mend.rewrite import Change, TorchRewrite, find_place
from ci.models.source_lines import is_installed

aten = torch.ops.aten
FRAME = re.compile(r'File "([^"]+)", line \d+, in .+\n +(\S.*)')
MOST_ELEMENTS = 1 << 24  # of a constant that is computed
REWRITES: dict[str, TorchRewrite] = {}
KEPT = ("stack_trace", "nn_module_stack", "source_fn_stack")


def list_operators(names: str) -> set[Any]:
    """Return operators, such as ``relu squeeze.dim``. The default overload needs no name."""
    operators = set()
    for word in names.split():
        name, _, overload = word.partition(".")
        operators.add(getattr(getattr(aten, name), overload or "default"))
    return operators


# Operators that compute nothing in a model for inference.
IDLE = list_operators("contiguous clone alias detach detach_ lift_fresh_copy")
CASTS = list_operators("to.dtype to.dtype_layout _to_copy type_as")
DROPOUTS = list_operators("dropout feature_dropout alpha_dropout")
# The overloads of operators that are not called "default"
OVERLOADS = {
    **dict.fromkeys(("add", "sub", "mul", "div", "slice"), "Tensor"),
    **dict.fromkeys(("transpose", "select", "softmax"), "int"),
    **dict.fromkeys(("mean", "squeeze"), "dim"),
    "sum": "dim_IntList",
    "rsub": "Scalar",
    "to": "dtype",
}


# Views of a part of a tensor, each with the operator that makes a tensor with another such part
SCATTERS = {
    aten.slice.Tensor: aten.slice_scatter.default,
    aten.select.int: aten.select_scatter.default,
}


class Editor:
    """The graph of an exported program while a rewrite edits it.

    New nodes are inserted before the node of the innermost ``at``, and get its place in the user's
    source and its module. ``edit.mul(x, 0.5)`` inserts a call of the operator ``mul``.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.graph = module.graph
        self.changes: list[Change] = []
        self._anchor: fx.Node | None = None  # new nodes are inserted before it
        self._values: dict[fx.Node, Any] = {}  # what nodes compute from constants, None otherwise
        for node in module.graph.find_nodes(
            op="call_function", target=aten._assert_tensor_metadata.default
        ):
            self.graph.erase_node(node)  # torch.export adds them before each change of a dtype
        _write_out_of_place(module.graph)
        self._scatter_assignments()
        self.written = find_written(module.graph.nodes)  # nodes that an operator writes into

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

    def find(self, *targets: Any) -> Iterator[fx.Node]:
        """Yield the nodes that call one of the operators and have a fixed shape, in order. Nodes
        are omitted if an operator writes into them or their inputs. New nodes are inserted before
        the yielded one."""
        operators = {*targets}
        # A copy, because nodes are inserted and replaced between two yields.
        for node in [*self.graph.nodes]:
            if node.op != "call_function" or not node.users or not list_tensors(node):
                continue
            # A target without an overload, such as aten.conv2d, stands for all its overloads.
            if operators.isdisjoint({node.target, getattr(node.target, "overloadpacket", None)}):
                continue
            involved = {node, *node.all_input_nodes}
            if not self.written & involved and all(map(is_fixed, involved)):
                with self.at(node):
                    yield node

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

    def value(self, operand: Any) -> Tensor | None:
        """Return the tensor that a node reads from the module or computes from constants, or None
        if it depends on the input, or if the model changes it."""
        if not isinstance(operand, fx.Node) or operand in self.written:
            return None
        if operand.op == "get_attr":
            stored = functools.reduce(getattr, str(operand.target).split("."), self.module)
            return stored.detach() if isinstance(stored, Tensor) else None
        if operand not in self._values:
            self._values[operand] = self._compute(operand)
        computed = self._values[operand]
        return computed if isinstance(computed, Tensor) else None

    def _compute(self, node: fx.Node) -> Any:
        """Return what an operator computes if all its inputs are constants, else None."""
        target = node.target
        is_pure = target is operator.getitem or (
            isinstance(target, torch._ops.OpOverload)
            and torch.Tag.nondeterministic_seeded not in target.tags
            and not target._schema.is_mutable
        )
        fakes = list_tensors(node)
        if node.op != "call_function" or not is_pure or not fakes or not is_fixed(node):
            return None
        if sum(fake.numel() for fake in fakes) > MOST_ELEMENTS:
            return None
        inputs = {}
        for operand in node.all_input_nodes:
            computed = self.value(operand)
            # Several results are a tuple, which ``value`` does not return.
            inputs[operand] = self._values.get(operand) if computed is None else computed
            if inputs[operand] is None:
                return None
        args, kwargs = (map_arg(part, inputs.__getitem__) for part in (node.args, node.kwargs))
        with torch.no_grad():
            return target(*args, **kwargs)

    def source(self, operand: Any) -> Any:
        """Return the node whose value reaches ``operand`` through operators that compute
        nothing."""
        node = operand
        while isinstance(node, fx.Node) and is_idle(node) and node.args[0] not in self.written:
            node = node.args[0]
        return node

    def user(self, node: fx.Node) -> fx.Node | None:
        """Return the only node that uses a node's value, behind operators that compute nothing, or
        None if there are more, or if an operator writes into the value."""
        while len(node.users) == 1 and node not in self.written:
            (user,) = node.users
            if not is_idle(user):
                return user
            node = user
        return None

    def is_used_once(self, node: fx.Node) -> bool:
        """Return whether one node uses this one, and no operator writes into it."""
        return len(node.users) == 1 and node not in self.written

    def replace(self, node: fx.Node, new: fx.Node, after: str) -> None:
        """Let the users of ``node`` use ``new``. ``after`` is what the user could write instead.

        Raises ValueError if shape or type would change.
        """
        old_value, new_value = value_of(node), value_of(new)
        if old_value.shape != new_value.shape or old_value.dtype != new_value.dtype:
            forms = [f"{value.shape} {value.dtype}" for value in (new_value, old_value)]
            raise ValueError(f"{node}: {' for '.join(forms)}")
        node.replace_all_uses_with(new)
        self.note(node, after)

    def note(self, node: fx.Node, after: str) -> None:
        """Record a change at ``node``, with the user's source line, or the operator's name."""
        frames = FRAME.findall(node.meta.get("stack_trace") or "")
        lines = [line.strip() for file, line in frames if not is_installed(file)]
        before = lines[-1] if lines else f"{node.target}"
        self.changes.append(Change((node.name,), find_place(node), before, after))

    def _mark(self, node: fx.Node) -> fx.Node:
        """Give a new node the place in the source and the module of the node that it is for."""
        if self._anchor is not None:
            node.meta |= {key: self._anchor.meta[key] for key in KEPT if key in self._anchor.meta}
        return node

    def finish(self) -> tuple[Change, ...]:
        """Remove what is no longer used, and return the changes."""
        self.graph.eliminate_dead_code()
        self.graph.lint()
        self.module.recompile()
        return tuple(self.changes)


def rewrites(name: str, *targets: Any) -> Callable[[Callable[..., None]], TorchRewrite]:
    """Return a decorator that makes a function the rewrite ``name``. The function edits a graph at
    a node that calls one of the operators ``targets``, or the whole graph if there are none."""

    def register(edit: Callable[..., None]) -> TorchRewrite:
        @functools.wraps(edit)
        def rewrite(module: fx.GraphModule) -> tuple[Change, ...]:
            editor = Editor(module)
            if targets:
                for node in editor.find(*targets):
                    edit(editor, node)
            else:
                edit(editor)
            return editor.finish()

        REWRITES[name] = rewrite
        return rewrite

    return register


def value_of(operand: Any) -> Any:
    """Return the fake tensor of a node, or anything else as it is."""
    return operand.meta["val"] if isinstance(operand, fx.Node) else operand


def is_fake(value: Any) -> bool:
    """Return whether a value is a fake tensor."""
    return hasattr(value, "fake_mode")


def list_tensors(node: fx.Node) -> list[Tensor]:
    """Return the fake tensors that a node has as its value."""
    return [value for value in tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]


def is_fixed(node: fx.Node) -> bool:
    """Return whether the shapes of a node's tensors do not depend on the input."""
    return all(isinstance(size, int) for tensor in list_tensors(node) for size in tensor.shape)


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


def is_idle(node: fx.Node) -> bool:
    """Return whether a node's value is that of its first input."""
    if node.target in IDLE:
        return True
    if node.target in DROPOUTS:
        return node.args[2] is False or node.args[1] == 0
    return node.target in CASTS and bool(value_of(node.args[0]).dtype == value_of(node).dtype)


def normal_axes(axes: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Return axes as sorted numbers from 0 on."""
    all_axes = [axes] if isinstance(axes, int) else axes
    return tuple(sorted(axis % rank for axis in all_axes))


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
