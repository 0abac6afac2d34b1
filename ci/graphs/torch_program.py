"""Executes a torch module with changed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import getitem
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch._decomp import get_decompositions
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves

from ci.graphs.graph import Array, Graph, to_array
from ci.graphs.run import Recipe, Record, Shared, draw_uniform, share_axes
from ci.graphs.torch_calls import list_results, name_operator
from ci.graphs.torch_candidates import ORIGIN
from ci.graphs.torch_reader import read_graph_module
from ci.models.eager import Disturbance, keep_state, run_eager
from ci.models.exports import export_module
from ci.models.factory import Inputs
from ci.models.model import join_modules, split_inputs, split_module
from ci.models.user_code import TraceError

CELLS = ("gru", "lstm", "rnn_tanh", "rnn_relu")


class TorchProgram:
    """A module of which each method is a graph. ``module`` is the model, and ``parts`` has the
    graph of each method."""

    def __init__(self, module: nn.Module, parts: Mapping[str, nn.Module]) -> None:
        self.module, self.parts = join_modules(module, parts), parts

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        """Return the graph of each method that is a graph module, by the method's name."""
        return read_graphs(self.parts)

    @property
    def limited(self) -> frozenset[str]:
        """Return nothing, because ExecuTorch's quantizer removes no operator."""
        return frozenset()

    def run(self, sets: Sequence[Inputs]) -> list[tuple[Array, ...]]:
        """Return the outputs for each sample, without changes."""
        return TorchRun(self.module, self.module, TorchTools()).run(sets)

    def prepare(self, recipes: Mapping[str, Recipe], tools: TorchTools | None = None) -> TorchRun:
        """Prepare runs with a recipe for each method. The random numbers of the first are those of
        the seed 0, of the second those of the seed 1, and so on. Several programs may share
        ``tools``."""
        tools = tools or TorchTools()
        parts = {
            name: ChangedModule(self.parts[name], recipe, tools) for name, recipe in recipes.items()
        }
        return TorchRun(self.module, join_modules(self.module, {**self.parts, **parts}), tools)

    @cached_property
    def _names(self) -> dict[tuple[str, str], str]:
        """Return the name of each call when the model was exported, by its method and results."""
        names: dict[tuple[str, str], str] = {}
        for method, part in self.parts.items():
            for node in part.graph.nodes if isinstance(part, GraphModule) else ():
                if node.op == "call_function":
                    name = node.meta.get(ORIGIN, (node.name,))[0]
                    names |= {(method, result): name for result in list_results(node)}
        return names

    def name_operators(self, method: str, value: str) -> Sequence[str]:
        """Return the result of Program.name_operators."""
        name = self._names.get((method, value))
        return () if name is None else (name,)

    def shake_choices(self, share: float) -> TorchRun:
        """Prepare runs as Program.shake_choices describes."""
        return ShakenRun(self.module, self.module, TorchTools(), share)


def read_graphs(parts: Mapping[str, nn.Module]) -> dict[str, Graph]:
    """Return the graph of each method that is a graph module, by the method's name."""
    return {
        name: read_graph_module(part)
        for name, part in parts.items()
        if isinstance(part, GraphModule)
    }


class TorchRun:
    """Runs ``changed``, a module in which values of ``module`` are changed."""

    def __init__(self, module: nn.Module, changed: Any, tools: TorchTools) -> None:
        self.module, self.changed, self.tools = module, changed, tools
        self.seed = 0

    def run(self, sets: Sequence[Inputs]) -> list[tuple[Array, ...]]:
        """Return the outputs for each sample. Each call draws from the next seed."""
        self.tools.restart(self.seed)
        self.seed += 1
        with keep_state(self.module):
            outputs = run_eager(self.changed, sets)
        return [tuple(map(to_array, tensors)) for tensors in outputs]

    def record(self, sets: Sequence[Inputs]) -> list[dict[str, Record]]:
        """Return the records for each sample, by method. Each call draws from the next seed."""
        self.tools.restart(self.seed)
        self.seed += 1
        records = []
        with keep_state(self.module):
            for inputs in sets:
                run_eager(self.changed, [inputs])
                records.append(
                    {
                        name: part.take_record()
                        for name, part in split_module(self.changed).items()
                        if isinstance(part, ChangedModule)
                    }
                )
        return records


class ShakenRun(TorchRun):
    """Runs a module in which the operands of choices have errors of this ``share``."""

    def __init__(self, module: nn.Module, changed: Any, tools: TorchTools, share: float) -> None:
        super().__init__(module, changed, tools)
        self.share = share

    def run(self, sets: Sequence[Inputs]) -> list[tuple[Array, ...]]:
        """Return the outputs for each sample. Each call draws other errors."""
        with Disturbance(self.share, self.seed):
            return super().run(sets)


class TorchTools:
    """The Tools of tensors. Random numbers come from a seed."""

    def __init__(self) -> None:
        self.restart(0)

    def restart(self, seed: int) -> None:
        """Start the sequence of random numbers of a seed."""
        # It takes 3.5 ns for a number, and torch's generator 7.3.
        self.random = np.random.Generator(np.random.SFC64(seed))

    def draw(self, like: Tensor, size: float, shared: Shared | int = Shared.NONE) -> Any:
        """Return the result of Tools.draw. Axes along which elements share a number have size 1."""
        if not size:
            return 0.0
        shape = share_axes(tuple(like.shape), shared)
        return torch.from_numpy(draw_uniform(self.random, shape, size))

    def to_float(self, value: Tensor) -> Tensor:
        """Return a value as float32."""
        return value.float()

    def to_type(self, value: Tensor, like: Tensor) -> Tensor:
        """Return a value in the type of ``like``."""
        return value.to(like.dtype)

    def is_inexact(self, value: Tensor) -> Tensor:
        """Return whether float16 cannot represent each element."""
        return value != value.half()

    def mean(self, value: Tensor) -> float:
        """Return the mean of all elements."""
        return float(value.mean())

    def limit(self, value: float, lowest: float) -> float:
        """Return the larger one of two numbers."""
        return max(value, lowest)

    def round_to_half(self, value: Tensor) -> Tensor:
        """Return the elements, rounded to float16, in the type of the value."""
        return value.half().to(value.dtype)

    def find_extremes(self, value: Tensor) -> Tensor:
        """Return the smallest and the largest element, as a tensor of shape [2]."""
        return torch.stack([value.min(), value.max()])

    def is_number(self, value: Any) -> bool:
        """Return whether a value is a plain number, not a tensor."""
        return not isinstance(value, Tensor)

    def choose(self, condition: Tensor, if_true: Tensor, if_false: Tensor) -> Tensor:
        """Return the elements of ``if_true`` where ``condition`` is true, and else those of
        ``if_false``."""
        return torch.where(condition, if_true, if_false)


class ChangedModule(nn.Module):
    """Executes the nodes of a graph module one after another, as a recipe says."""

    def __init__(self, module: nn.Module, recipe: Recipe, tools: TorchTools) -> None:
        super().__init__()
        self.module = module
        self.interpreter = _Interpreter(module, recipe, tools)

    def forward(self, *inputs: Tensor) -> Any:
        """Return what the module returns, with the changes of the recipe."""
        return self.interpreter.run(*inputs)

    def take_record(self) -> Record:
        """Return what the last run recorded, and forget it."""
        record = Record(self.interpreter.outputs, self.interpreter.values)
        self.interpreter.outputs, self.interpreter.values = (), {}
        return record


class _Interpreter(Interpreter):
    def __init__(self, module: Any, recipe: Recipe, tools: TorchTools) -> None:
        super().__init__(module)
        self.tools, self.watch = tools, recipe.watch
        self.changes: dict[Node, list[tuple[int, Any]]] = {}
        self.watched: dict[Node, list[tuple[int, str]]] = {}
        self.unrounded: set[Node] = set()
        self.outputs: Sequence[Array] = ()
        self.values: dict[str, Array] = {}
        self.decisions: dict[Node, list[tuple[int, str]]] = {}
        self.fixed = recipe.fixed
        watched, unrounded = frozenset(recipe.watched), frozenset(recipe.unrounded)
        decisions = frozenset(recipe.decisions) | recipe.fixed.keys()
        for node in module.graph.nodes:
            results = list_results(node)
            changes_of_node = [
                (place, recipe.changes[name])
                for place, name in enumerate(results)
                if name in recipe.changes
            ]
            if changes_of_node:
                self.changes[node] = changes_of_node
            places = [(place, name) for place, name in enumerate(results) if name in watched]
            if places and node.op != "output":
                self.watched[node] = places
            decided = [(place, name) for place, name in enumerate(results) if name in decisions]
            if decided and node.op != "output":
                self.decisions[node] = decided
            if not unrounded.isdisjoint(results):
                self.unrounded.add(node)

    def run_node(self, n: Node) -> Any:
        first = n.args[0] if n.args else None
        value = self.env[first] if n in self.unrounded else super().run_node(n)
        if n.op == "output":
            leaves = (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
            self.outputs = tuple(map(to_array, (leaf.detach() for leaf in leaves)))
        if n in self.changes:
            operand = self.env.get(first) if isinstance(first, Node) else first
            value = self._change(n, value, operand)
        if n in self.decisions:
            value = self._decide(n, value)
        values = value if isinstance(value, (list, tuple)) else [value]
        for place, name in self.watched.get(n, ()):
            tensor = values[place]
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                self.values[name] = to_array(self.watch(tensor, self.tools).detach())
        return value

    def _decide(self, node: Node, value: Any) -> Any:
        """Record results, and return them with those that are fixed."""
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        for place, name in self.decisions[node]:
            if isinstance(values[place], Tensor):
                # A copy, because a later operator may write to the result.
                self.values[name] = to_array(values[place].detach()).copy()
                if name in self.fixed:
                    values[place] = torch.from_numpy(np.array(self.fixed[name]))
        return tuple(values) if isinstance(value, (list, tuple)) else values[0]

    def _change(self, node: Node, value: Any, operand: Any) -> Any:
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        for place, change in self.changes[node]:
            tensor = values[place]
            if isinstance(tensor, Tensor) and (tensor.is_floating_point() or not change.for_floats):
                # Random numbers are float32, and so would be the sum of one and a float16 value.
                values[place] = change.compute(tensor, operand, self.tools).to(tensor.dtype)
        return tuple(values) if isinstance(value, (list, tuple)) else values[0]


# The graphs of each float32 model: its noise and its loss in float16 are found in the same ones.
# They are freed with the model.
_traced: WeakKeyDictionary[nn.Module, dict[str, nn.Module]] = WeakKeyDictionary()


def read_torch(module: nn.Module, inputs: Inputs) -> TorchProgram:
    """Return the program of a module. If a method is not a graph, or contains recurrent cells, all
    of them are traced, once for each module. ``inputs`` are an example for all methods. Raises
    TraceError if torch.export cannot trace a method."""
    parts = split_module(module)
    if not all(map(is_plain, parts.values())):
        if module not in _traced:
            _traced[module] = trace_methods(module, inputs)
        parts = _traced[module]
    return TorchProgram(module, parts)


def is_plain(part: nn.Module) -> bool:
    """Return whether a method is a graph of torch's own operators, without recurrent cells."""
    nodes = part.graph.nodes if isinstance(part, GraphModule) else ()
    return bool(nodes) and all(map(_is_plain_node, nodes))


def _is_plain_node(node: Node) -> bool:
    if node.op != "call_function":
        return node.op in {"placeholder", "get_attr", "output"}
    is_own = isinstance(node.target, (OpOverload, HigherOrderOperator))
    return (is_own or node.target is getitem) and name_operator(node) not in CELLS


def trace_methods(module: nn.Module, inputs: Inputs) -> dict[str, nn.Module]:
    """Return a graph for each method. Recurrent cells are decomposed into simpler operators. Raises
    TraceError if torch.export cannot trace a method."""
    examples = split_inputs(module, inputs)
    cells = [getattr(torch.ops.aten, cell).input for cell in CELLS]
    graphs: dict[str, nn.Module] = {}
    with torch.no_grad():
        for name, part in split_module(module).items():
            try:
                program = export_module(part, examples[name], strict=True)
            except Exception as error:
                raise TraceError(f"torch.export cannot trace {name}") from error
            decomposed = program.run_decompositions(get_decompositions(cells))
            # Otherwise, torch inserts a call of a guard function into the graph.
            graphs[name] = decomposed.module(check_guards=False)
    return graphs
