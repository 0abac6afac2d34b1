"""Edits the graph of an exported program: finds nodes, inserts operators, replaces nodes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from ci.graphs.torch_edit import (
    TorchModule,
    argument,
    aten,
    list_operators,
    list_tensors,
    quote_source,
    shape_of,
    value_of,
)
from ci.graphs.torch_state import find_written
from ci.mend.rewrite import Change, TorchRewrite, find_place

__all__ = [
    "argument",
    "aten",
    "list_operators",
    "shape_of",
    "value_of",
]

MOST_ELEMENTS = 1 << 24  # of a constant that is computed
REWRITES: dict[str, TorchRewrite] = {}


# Operators that compute nothing in a model for inference.
IDLE = list_operators("contiguous clone alias detach detach_ lift_fresh_copy")
CASTS = list_operators("to.dtype to.dtype_layout _to_copy type_as")
DROPOUTS = list_operators("dropout feature_dropout alpha_dropout")


class Editor(TorchModule):
    """The graph of an exported program while a rewrite edits it.

    New nodes are inserted before the node of the innermost ``at``, and get its place in the user's
    source and its module. ``edit.mul(x, 0.5)`` inserts a call of the operator ``mul``.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.changes: list[Change] = []
        self._values: dict[fx.Node, Any] = {}  # what nodes compute from constants, None otherwise
        self.written = find_written(module.graph.nodes)  # nodes that an operator writes into

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
        before = quote_source(node) or f"{node.target}"
        self.changes.append(Change((node.name,), find_place(node), before, after))

    def finish(self) -> tuple[Change, ...]:
        """Remove what is no longer used, and return the changes."""
        self.clean_up()
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


def is_fixed(node: fx.Node) -> bool:
    """Return whether the shapes of a node's tensors do not depend on the input."""
    return all(isinstance(size, int) for tensor in list_tensors(node) for size in tensor.shape)


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
