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

from ci.graphs.graph import Array, Graph
from ci.graphs.run import Changes, Shared
from ci.graphs.torch_reader import list_results, name_operator, read_graph_module
from ci.models.eager import keep_state, run_eager
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
        return {
            name: read_graph_module(part)
            for name, part in self.parts.items()
            if isinstance(part, GraphModule)
        }

    def run(self, sets: Sequence[Inputs]) -> list[tuple[Array, ...]]:
        return TorchRun(self.module, self.module, TorchTools()).run(sets)

    def change(self, changes: Mapping[str, Changes], tools: TorchTools | None = None) -> TorchRun:
        """Prepare runs with changed values. The random numbers of the first are those of the seed
        0, of the second those of the seed 1, and so on. Several programs may share ``tools``."""
        tools = tools or TorchTools()
        parts = {
            name: ChangedModule(self.parts[name], changes_of_part, tools)
            for name, changes_of_part in changes.items()
        }
        return TorchRun(self.module, join_modules(self.module, {**self.parts, **parts}), tools)


class TorchRun:
    """Runs ``changed``, a module in which values of ``module`` are changed."""

    def __init__(self, module: nn.Module, changed: Any, tools: TorchTools) -> None:
        self.module, self.changed, self.tools = module, changed, tools
        self.seed = 0

    def run(self, sets: Sequence[Inputs]) -> list[tuple[Array, ...]]:
        self.tools.restart(self.seed)
        self.seed += 1
        with keep_state(self.module):
            outputs = run_eager(self.changed, sets)
        return [tuple(map(np.asarray, tensors)) for tensors in outputs]


class TorchTools:
    """The Tools of tensors. Random numbers come from a seed."""

    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.restart(0)

    def restart(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def draw(self, like: Tensor, size: float, shared: Shared | int = Shared.NONE) -> Tensor:
        shape = tuple(like.shape)
        if isinstance(shared, int):
            own_axis = shared % max(len(shape), 1)
            shape = tuple(length if axis == own_axis else 1 for axis, length in enumerate(shape))
        elif shared is Shared.ROW:
            shape = (*shape[:-1], 1) if shape else ()
        elif shared is Shared.ALL:
            shape = (1,) * len(shape)
        return size * (2 * torch.rand(shape, generator=self.generator) - 1)

    def to_float(self, value: Tensor) -> Tensor:
        return value.float()

    def to_type(self, value: Tensor, like: Tensor) -> Tensor:
        return value.to(like.dtype)

    def is_inexact(self, value: Tensor) -> Tensor:
        return value != value.half()

    def mean(self, value: Tensor) -> float:
        return float(value.mean())

    def limit(self, value: float, lowest: float) -> float:
        return max(value, lowest)

    def is_number(self, value: Any) -> bool:
        return not isinstance(value, Tensor)

    def choose(self, condition: Tensor, if_true: Tensor, if_false: Tensor) -> Tensor:
        return torch.where(condition, if_true, if_false)


class ChangedModule(nn.Module):
    """Executes the nodes of a graph module one after another, and changes values."""

    def __init__(self, module: nn.Module, changes: Changes, tools: TorchTools) -> None:
        super().__init__()
        self.module = module
        self.interpreter = _Interpreter(module, changes, tools)

    def forward(self, *inputs: Tensor) -> Any:
        return self.interpreter.run(*inputs)


class _Interpreter(Interpreter):
    def __init__(self, module: Any, changes: Changes, tools: TorchTools) -> None:
        super().__init__(module)
        self.tools = tools
        self.changes: dict[Node, list[tuple[int, Any]]] = {}
        for node in module.graph.nodes:
            changes_of_node = [
                (place, changes[name])
                for place, name in enumerate(list_results(node))
                if name in changes
            ]
            if changes_of_node:
                self.changes[node] = changes_of_node

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n not in self.changes:
            return value
        first = n.args[0] if n.args else None
        operand = self.env.get(first) if isinstance(first, Node) else first
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        for place, change in self.changes[n]:
            tensor = values[place]
            if isinstance(tensor, Tensor) and (tensor.is_floating_point() or not change.for_floats):
                values[place] = change.compute(tensor, operand, self.tools)
        return tuple(values) if isinstance(value, (list, tuple)) else values[0]


# The graphs of each float32 model: its noise and its loss in float16 are found in the same ones.
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
                program = torch.export.export(part, examples[name], strict=True)
            except Exception as error:
                raise TraceError(f"torch.export cannot trace {name}") from error
            decomposed = program.run_decompositions(get_decompositions(cells))
            graphs[name] = decomposed.module(check_guards=False)
    return graphs
