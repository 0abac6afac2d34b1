"""Edits the graph of an exported program: finds nodes, inserts operators, replaces nodes."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
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
    pairs = (name.split(".") for name in names.split())
    return {getattr(getattr(aten, name), *(more or ["default"])) for name, *more in pairs}


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

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self.graph = module.graph
        self.changes: list[Change] = []
        self._anchor: Node | None = None
        self._values: dict[Node, Any] = {}
        for node in module.graph.find_nodes(
            op="call_function", target=aten._assert_tensor_metadata.default
        ):
            self.graph.erase_node(node)  # torch.export adds them before each change of a dtype
        _write_out_of_place(module.graph)
        self._scatter_assignments()
        self.written = find_written(module.graph.nodes)

    def _scatter_assignments(self) -> None:
        """Write an assignment to a part of a computed tensor, such as ``y[:, 8:] = z``, as the
        operator that makes a tensor with another part, if no view of the tensor is read later."""
        for node in self.graph.find_nodes(op="call_function", target=aten.copy_.default):
            parts: list[Node] = []
            base, reader = node.args[0], node
            while base.target in SCATTERS and [*base.users] == [reader]:
                parts.append(base)
                base, reader = base.args[0], base
            views = [user for user in base.users if is_view(user) and user not in parts]
            is_read_later = any(one < node < user for one in views for user in one.users)
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

    def find(self, *targets: Any) -> Iterator[Node]:
        """Yield the nodes that call one of the operators and have a fixed shape, in order. Nodes
        are omitted if an operator writes into them or their inputs. New nodes are inserted before
        the yielded one."""
        wanted = {*targets}
        for node in [*self.graph.nodes]:
            called = {node.target, getattr(node.target, "overloadpacket", None)}
            involved = {node, *node.all_input_nodes}
            is_wanted = node.op == "call_function" and node.users and list_tensors(node)
            if not is_wanted or wanted.isdisjoint(called) or self.written & involved:
                continue
            if all(map(is_fixed, involved)):
                with self.at(node):
                    yield node

    @contextmanager
    def at(self, node: Node) -> Iterator[None]:
        """Insert new nodes before ``node``."""
        before, self._anchor = self._anchor, node
        try:
            with self.graph.inserting_before(node):
                yield
        finally:
            self._anchor = before

    def __getattr__(self, name: str) -> Callable[..., Node]:
        target = getattr(getattr(aten, name), OVERLOADS.get(name, "default"))
        return functools.partial(self.call, target)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Insert a call of an operator, and return its node. Tensors become constants."""
        args = tree_map(lambda one: self.constant(one) if isinstance(one, Tensor) else one, args)
        node = self.graph.call_function(target, args, kwargs)
        values = tree_map(value_of, args)
        mode = next((one.fake_mode for one in tree_leaves(values) if is_fake(one)), None)
        with mode or torch.no_grad(), torch.no_grad():
            node.meta["val"] = target(*values, **tree_map(value_of, kwargs))
        return self._mark(node)

    def call_again(self, node: Node, *operands: Any, **changed: Any) -> Node:
        """Insert a call like ``node`` with its first operands and some of its arguments changed."""
        known = [one.name for one in node.target._schema.arguments]
        args = [*operands, *node.args[len(operands) :]]
        while len(args) <= max(map(known.index, changed), default=-1):
            args.append(argument(node, known[len(args)]))
        for name, value in changed.items():
            args[known.index(name)] = value
        rest = {name: one for name, one in node.kwargs.items() if name not in known[: len(args)]}
        return self.call(node.target, *args, **rest)

    def constant(self, value: Tensor) -> Node:
        """Store a tensor in the module, and return a node that reads it."""
        taken = {name for name, _ in self.module.named_buffers()}
        name = next(f"mended_{i}" for i in range(len(taken) + 1) if f"mended_{i}" not in taken)
        self.module.register_buffer(name, value.detach().clone().contiguous())
        node = self.graph.get_attr(name)
        values = (one for other in self.graph.nodes for one in tree_leaves(other.meta.get("val")))
        mode = next(one.fake_mode for one in values if is_fake(one))
        node.meta["val"] = mode.from_tensor(getattr(self.module, name), static_shapes=True)
        return self._mark(node)

    def value(self, given: Any) -> Tensor | None:
        """Return the tensor that a node reads from the module or computes from constants, or None
        if it depends on the input, or if the model changes it."""
        if not isinstance(given, Node) or given in self.written:
            return None
        if given.op == "get_attr":
            found = functools.reduce(getattr, str(given.target).split("."), self.module)
            return found.detach() if isinstance(found, Tensor) else None
        if given not in self._values:
            self._values[given] = self._compute(given)
        found = self._values[given]
        return found if isinstance(found, Tensor) else None

    def _compute(self, node: Node) -> Any:
        """Return what an operator computes if all its inputs are constants, else None."""
        target = node.target
        pure = target is operator.getitem or (
            isinstance(target, torch._ops.OpOverload)
            and torch.Tag.nondeterministic_seeded not in target.tags
            and not target._schema.is_mutable
        )
        fakes = list_tensors(node)
        if node.op != "call_function" or not pure or not fakes or not is_fixed(node):
            return None
        if sum(fake.numel() for fake in fakes) > MOST_ELEMENTS:
            return None
        inputs = {}
        for one in node.all_input_nodes:
            computed = self.value(one)
            inputs[one] = self._values.get(one) if computed is None else computed
            if inputs[one] is None:
                return None
        args, kwargs = (map_arg(part, inputs.__getitem__) for part in (node.args, node.kwargs))
        with torch.no_grad():
            return target(*args, **kwargs)

    def source(self, given: Any) -> Any:
        """Return the node whose value reaches ``given`` through operators that compute nothing."""
        while isinstance(given, Node) and is_idle(given) and given.args[0] not in self.written:
            given = given.args[0]
        return given

    def user(self, node: Node) -> Node | None:
        """Return the only node that uses a node's value, behind operators that compute nothing, or
        None if there are more, or if an operator writes into the value."""
        while len(node.users) == 1 and node not in self.written:
            (user,) = node.users
            if not is_idle(user):
                return user
            node = user
        return None

    def is_used_once(self, node: Node) -> bool:
        """Return whether one node uses this one, and no operator writes into it."""
        return len(node.users) == 1 and node not in self.written

    def replace(self, node: Node, new: Node, after: str) -> None:
        """Let the users of ``node`` use ``new``. ``after`` is what the user could write instead.

        Raises ValueError if shape or type would change.
        """
        old, made = value_of(node), value_of(new)
        if old.shape != made.shape or old.dtype != made.dtype:
            raise ValueError(f"{node}: {made.shape} {made.dtype} for {old.shape} {old.dtype}")
        node.replace_all_uses_with(new)
        self.note(node, after)

    def note(self, node: Node, after: str) -> None:
        """Record a change at ``node``, with the user's source line, or the operator's name."""
        frames = FRAME.findall(node.meta.get("stack_trace") or "")
        lines = [line.strip() for file, line in frames if not is_installed(file)]
        before = lines[-1] if lines else f"{node.target}"
        self.changes.append(Change((node.name,), find_place(node), before, after))

    def _mark(self, node: Node) -> Node:
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
        def rewrite(module: GraphModule) -> tuple[Change, ...]:
            editor = Editor(module)
            for given in ((node,) for node in editor.find(*targets)) if targets else ((),):
                edit(editor, *given)
            return editor.finish()

        REWRITES[name] = rewrite
        return rewrite

    return register


def value_of(given: Any) -> Any:
    """Return the fake tensor of a node, or anything else as it is."""
    return given.meta["val"] if isinstance(given, Node) else given


def is_fake(value: Any) -> bool:
    """Return whether a value is a fake tensor."""
    return hasattr(value, "fake_mode")


def list_tensors(node: Node) -> list[Tensor]:
    """Return the fake tensors that a node has as its value."""
    return [one for one in tree_leaves(node.meta.get("val")) if isinstance(one, Tensor)]


def is_fixed(node: Node) -> bool:
    """Return whether the shapes of a node's tensors do not depend on the input."""
    return all(isinstance(size, int) for tensor in list_tensors(node) for size in tensor.shape)


def shape_of(node: Node) -> tuple[int, ...]:
    """Return the shape of a node's tensor."""
    return tuple(node.meta["val"].shape)


def argument(node: Node, name: str) -> Any:
    """Return an argument of a call, or its default. Return None if the operator has no argument
    with this name."""
    for place, one in enumerate(node.target._schema.arguments):
        if one.name == name:
            default = node.kwargs.get(name, one.default_value)
            return node.args[place] if place < len(node.args) else default
    return None


def is_idle(node: Node) -> bool:
    """Return whether a node's value is that of its first input."""
    if node.target in IDLE:
        return True
    if node.target in DROPOUTS:
        return node.args[2] is False or node.args[1] == 0
    return node.target in CASTS and bool(value_of(node.args[0]).dtype == value_of(node).dtype)


def normal_axes(axes: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Return axes as sorted numbers from 0 on."""
    given = [axes] if isinstance(axes, int) else axes
    return tuple(sorted(axis % rank for axis in given))


def _write_out_of_place(graph: Graph) -> None:
    """Replace operators that write into their first operand, such as ``relu_``, by those that do
    not, where the operand is computed and no view shares its memory."""
    for node in [*graph.nodes]:
        name = getattr(getattr(node.target, "_schema", None), "name", "").removeprefix("aten::")
        other = getattr(aten, name.removesuffix("_"), None) if name.endswith("_") else None
        changed = node.args[0] if node.args else None
        if other is None or not isinstance(changed, Node) or changed.op != "call_function":
            continue
        involved = (changed, *(user for user in changed.users if user is not node))
        if any(map(is_view, involved)) or node.target._overloadname not in other.overloads():
            continue
        node.target = getattr(other, node.target._overloadname)
        later = {user for user in changed.users if node < user}
        changed.replace_all_uses_with(node, later.__contains__)
