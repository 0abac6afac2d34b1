"""Runs modules for the proof of rewrites, see ci.mend.proof."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx import Interpreter
from torch.utils._pytree import tree_map_only

from ci.graphs.graph import Array, Graph, Node
from ci.graphs.torch_calls import name_result, read_calls, tensor_to_array
from ci.graphs.torch_state import find_written
from ci.mend.proof import Arrays
from ci.mend.rewrite import Change, export_module, rewrite_graph
from ci.models.eager import copy_inputs, flatten_outputs, keep_state, run_eager
from ci.models.factory import Inputs


class TorchSubject:
    """A module that rewrites are applied to, on the judged samples ``sets``."""

    def __init__(self, module: nn.Module, sets: Sequence[Inputs]) -> None:
        exported = copy_graph(export_module(module, sets[0]))
        self.dtypes = [tensor.dtype for tensor in sets[0]]
        self.sets = [tuple(map(tensor_to_array, tensors)) for tensors in sets]
        self.original = TorchForm(exported, module, self.dtypes)

    def rewrite(self, names: Sequence[str]) -> tuple[fx.GraphModule, list[tuple[Change, ...]]]:
        """Return the rewritten module, and what each rewrite changed."""
        return rewrite_graph(copy_graph(self.original.exported), names)

    def open(self, rewritten: fx.GraphModule) -> TorchForm:
        """Return a rewritten module as a Form."""
        return TorchForm(rewritten, rewritten, self.dtypes)

    def enlarge_batch(self, _rewritten: Any) -> None:
        """Return nothing: an exported program has fixed shapes."""


class TorchForm:
    """A module in one form. Its graph is ``exported``, and its inputs have these ``dtypes``."""

    def __init__(
        self, exported: fx.GraphModule, module: nn.Module, dtypes: Sequence[torch.dtype]
    ) -> None:
        self.exported, self.module, self.dtypes = exported, module, dtypes

    @cached_property
    def graph(self) -> Graph:
        """The graph of the module."""
        return read_calls(self.exported, find_written(self.exported.graph.nodes))

    def label(self, node: Node) -> str:
        """Return the name of a call."""
        return node.name

    def list_ports(self, kind: str) -> Any:
        """Return the structure of the inputs or outputs."""
        return getattr(self.exported, "_in_spec" if kind == "input" else "_out_spec")

    def run(self, inputs: Arrays, fixed: Mapping[str, Array]) -> list[Array]:
        """Return the outputs for one sample, followed by the buffers that the run changed."""
        tensors = self._make_tensors(inputs)
        if fixed:
            changing = _Changing(self.exported, fixed)
            with torch.no_grad(), keep_state(self.exported):
                outputs = flatten_outputs(changing.run(*copy_inputs(tensors)))
            return [*map(tensor_to_array, outputs)]
        before = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        with keep_state(self.module):
            (outputs,) = run_eager(self.module, [tensors])
            changed = []
            for name, buffer in sorted(self.module.named_buffers(), key=itemgetter(0)):
                if not torch.equal(before[name], buffer):
                    changed.append(buffer.clone())
        return [*map(tensor_to_array, (*outputs, *changed))]

    def run_exactly(self, inputs: Arrays, fixed: Mapping[str, Array]) -> list[Array] | None:
        """Return what ``run`` returns, computed in float64, or None for a module that changes its
        buffers, has graphs within its graph, or has an operator that does not take float64."""
        nodes = self.exported.graph.nodes
        written = find_written(nodes)
        for node in nodes:
            if node.op == "get_attr":
                attribute = attrgetter(str(node.target))(self.exported)
                if node in written or isinstance(attribute, nn.Module):
                    return None
        tensors = _widen(self._make_tensors(inputs))
        try:
            with torch.no_grad():
                outputs = _InFloat64(self.exported, fixed).run(*copy_inputs(tensors))
        except RuntimeError:
            return None
        return [*map(tensor_to_array, flatten_outputs(outputs))]

    def read_values(self, inputs: Arrays, names: Sequence[str]) -> dict[str, Array]:
        """Return values inside of the module for one sample."""
        reading = _Changing(self.exported, {}, names)
        with torch.no_grad(), keep_state(self.exported):
            reading.run(*copy_inputs(self._make_tensors(inputs)))
        return {name: reading.values[name] for name in names if name in reading.values}

    def _make_tensors(self, inputs: Arrays) -> tuple[Tensor, ...]:
        pairs = zip(inputs, self.dtypes, strict=True)
        return tuple(torch.tensor(array).to(dtype) for array, dtype in pairs)


class _Changing(Interpreter):
    """Runs a graph with the values in ``fixed`` instead of the computed ones, and reads others."""

    def __init__(
        self, exported: fx.GraphModule, fixed: Mapping[str, Array], names: Sequence[str] = ()
    ) -> None:
        super().__init__(exported)
        self.fixed, self.names = fixed, {*names}
        self.values: dict[str, Array] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        name = name_result(n)
        if n.op != "output" and name in self.fixed and isinstance(result, Tensor):
            return torch.tensor(self.fixed[name]).to(result.dtype)
        if n.op != "output" and name in self.names and isinstance(result, Tensor):
            self.values[name] = tensor_to_array(result.clone())
        return result


class _InFloat64(_Changing):
    """Runs a graph with float64 wherever it has float32."""

    def run_node(self, n: fx.Node) -> Any:
        if "_assert_tensor_metadata" in str(n.target):
            return None  # it requires float32
        return _widen(super().run_node(n))

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> Any:
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return tree_map_only(torch.dtype, _widen_dtype, (args, kwargs))


def _widen(values: Any) -> Any:
    """Return values in which each tensor of float32 is one of float64."""

    def widen(tensor: Tensor) -> Tensor:
        return tensor.to(_widen_dtype(tensor.dtype))

    return tree_map_only(Tensor, widen, values)


def _widen_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float32 else dtype


def copy_graph(graph: fx.GraphModule) -> fx.GraphModule:
    """Return a copy that shares no tensor, because a rewrite may write to parameters."""
    with warnings.catch_warnings():  # torch 2.13 warns about its own LeafSpec
        warnings.simplefilter("ignore", FutureWarning)
        return copy.deepcopy(graph)
