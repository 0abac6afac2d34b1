"""The neutral form of a model's graph. A reader fills it from an exported torch program
(torch_reader), from an ONNX file (onnx_reader), or from the text of a small graph
(ci.faults.graph_reader). Importing this module imports neither torch nor onnx."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ci.facts.finding import NOWHERE, Origin

Array = NDArray[Any]
Shape = tuple[int, ...]
Numbers = Mapping[str, tuple[float, ...]]
EXECUTORCH, ONNXRUNTIME, LITERT = "executorch", "onnx", "litert"  # front ends


def to_array(value: Any) -> Array:
    """Return an array or a tensor of torch as numpy has it. bfloat16, which numpy lacks, becomes
    float32."""
    is_bfloat16 = str(getattr(value, "dtype", "")) == "torch.bfloat16"
    return np.asarray(value.float() if is_bfloat16 else value)


class Node(NamedTuple):
    """A call of an operator.

    - ``operator`` is torch's name without the overload, such as ``slice_scatter``.
    - ``reads`` and ``results`` are names of values. An omitted operand is an empty string. A number
      that a call operates on, such as 0.5 in ``x * 0.5``, is a constant value without axes.
    - ``axes`` are the axes over which a reduction or a normalization works, or None for all.
    - ``origin`` says where the call comes from, such as ``sigmoid [net.py:12]``.
    - ``compute`` executes the call. It gets an array per entry of ``reads``, with None for an
      omitted operand, and returns an array per entry of ``results``. It is None if the reader
      cannot execute the call.
    - ``name`` is that of the call in the exported program, or in the file.
    - ``numbers`` are the numeric arguments, with defaults, under torch's names.
    - ``operands`` says how many of the first ``reads`` are operands; None for all. The others are
      arguments, such as the shape that an ONNX reshape reads.
    - ``fill`` is the place in ``reads`` of the value with which the call fills elements, such as
      that of a padding; None if it reads none.
    - ``place`` is where the call comes from, as in ``origin``.
    - ``is_random`` is true if the call draws random numbers.
    - ``texts`` are the arguments that are texts, such as an equation, under torch's names.
      Several texts, such as activations, are separated by spaces.
    """

    operator: str
    reads: tuple[str, ...]
    results: tuple[str, ...]
    axes: tuple[int, ...] | None
    origin: str
    compute: Callable[[Sequence[Array | None]], Sequence[Array]] | None
    name: str = ""
    numbers: Numbers = MappingProxyType({})
    operands: int | None = None
    fill: int | None = None
    place: Origin = NOWHERE
    is_random: bool = False
    texts: Mapping[str, str] = MappingProxyType({})

    @property
    def label(self) -> str:
        """Return what a user calls the operator: torch's name, or the name in the file."""
        return self.origin.removesuffix(self.place.mark)


@dataclass(frozen=True)
class Graph:
    """A graph: its nodes in execution order, the names of its outputs, the known shapes of its
    values and their dtypes (numpy's names), and its constants. A constant is loaded by calling its
    entry. Names that are in neither ``nodes`` nor ``constants`` are inputs.

    ``written`` are the values into which a node writes, directly or through a view. ``front_end``
    compiles the model for QNN; what it does first decides about some faults. ``bodies`` are the
    origins of nodes with graphs inside, such as If, which are not part of this graph. ``states``
    are buffers that a node writes into, such as a cache."""

    nodes: Sequence[Node]
    outputs: Sequence[str]
    shapes: Mapping[str, Shape]
    constants: Mapping[str, Callable[[], Array]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    front_end: str = ""
    bodies: tuple[str, ...] = ()
    states: frozenset[str] = frozenset()

    def list_inputs(self) -> list[str]:
        """Return the names of the inputs that a node reads or that are outputs."""
        makers = self.list_makers()
        names = [name for node in self.nodes for name in node.reads]
        provided = {*makers, *self.constants, *self.states, ""}
        return [name for name in dict.fromkeys((*names, *self.outputs)) if name not in provided]

    def list_makers(self) -> dict[str, Node]:
        """Return the node that computes each value, by the value's name."""
        return {name: node for node in self.nodes for name in node.results if name}


class Bias(NamedTuple):
    """The integers of a layer's quantized bias, and their scale, which may be one per channel."""

    integers: Array
    scale: Array


class Constants:
    """Evaluates the values of a graph that depend on no input. Computed results are kept."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = graph.list_makers()
        self.values: dict[str, Array | None] = {}
        self.fixed: dict[str, bool] = {}

    def find(self, name: str) -> Array | None:
        """Return the array of a constant value, or None if it depends on an input or cannot be
        computed."""
        if name in self.graph.constants:  # not kept: together, weights may be large
            try:
                return np.asarray(self.graph.constants[name]())
            except Exception:  # noqa: BLE001 - then its value is unknown
                return None
        if name in self.values:
            return self.values[name]
        if not self.is_known(name):
            return None
        self.values[name] = None  # a cycle ends here
        try:
            if name in self.makers:
                self._compute(self.makers[name])
        except Exception:  # noqa: BLE001 - then its value is unknown
            return None
        return self.values[name]

    def is_known(self, name: str) -> bool:
        """Return whether a value depends on no input of the graph, draws no random numbers, and is
        not written into."""
        pending = [name]  # a loop, because a graph may be deeper than Python's stack
        while pending:
            node = self.makers.get(pending[-1])
            missing = [read for read in node.reads if read not in self.fixed] if node else []
            missing = [read for read in missing if read and read not in pending]
            if missing:
                pending += missing
                continue
            value = pending.pop()
            reads = [read for read in node.reads if read] if node else []
            self.fixed[value] = value in self.graph.constants or (
                node is not None
                and not node.is_random
                and value not in self.graph.written
                and all(self.fixed.get(read, False) for read in reads)
            )
        return self.fixed[name]

    def _compute(self, node: Node) -> None:
        operands = [self.find(read) if read else None for read in node.reads]
        if node.compute is None or any(
            read and operand is None for read, operand in zip(node.reads, operands, strict=True)
        ):
            return
        self.values |= dict(zip(node.results, node.compute(operands), strict=False))
