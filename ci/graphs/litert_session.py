"""Runs LiteRT models, and single operators of them, on LiteRT's CPU interpreter."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from ci.graphs.graph import Array
from ci.graphs.litert_file import (
    Carried,
    Entry,
    cut_model,
    has_data,
    list_numbers,
    restore_numbers,
)

# With XNNPACK, LiteRT's default delegate, an operator alone gives other bytes than in its model.
OWN_NAME = "self"
PLAIN = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
SLOW = OpResolverType.BUILTIN_REF
# The kernel of PLAIN for depthwise convolutions does not return if the output has more: it computes
# as many pixels at a time as fit into a buffer of this size, which are none (measured with
# ai-edge-litert 2.3.0: 4,832 channels take 0.1 ms, and 4,833 have no end).
MOST_CHANNELS = 4832


def open_interpreter(content: bytes, *, keeps_tensors: bool = False) -> Any:
    """Return an interpreter of a model, ready to run. Raises ValueError or RuntimeError, with
    LiteRT's reason, if it cannot run the model."""

    def open_with(kernels: OpResolverType) -> Any:
        interpreter = Interpreter(
            model_content=content,
            num_threads=1,  # the number of threads changes the order in which sums are computed
            experimental_op_resolver_type=kernels,
            experimental_preserve_all_tensors=keeps_tensors,
        )
        interpreter.allocate_tensors()
        return interpreter

    interpreter = open_with(PLAIN)
    return open_with(SLOW) if has_endless_kernel(interpreter) else interpreter


def has_endless_kernel(interpreter: Any) -> bool:
    """Return whether a depthwise convolution of a model has more than MOST_CHANNELS."""
    try:
        numbers = [
            number
            for operator in interpreter._get_ops_details()
            if operator["op_name"] == "DEPTHWISE_CONV_2D"
            for number in operator["outputs"]
        ]
        details = interpreter.get_tensor_details() if numbers else []
    except UnicodeDecodeError:
        return False  # a name that is no text: the model is refused for it
    shapes = {detail["index"]: detail["shape"] for detail in details}
    return any(shapes[number][-1] > MOST_CHANNELS for number in numbers)


def open_model_file(path: Path) -> Any:
    """Return an interpreter of the model in a file, which is mapped and not copied. XNNPACK runs
    what it can: a language model takes minutes a token without it. Raises ValueError or
    RuntimeError, with LiteRT's reason, if it cannot run the model."""
    try:
        interpreter = Interpreter(model_path=str(path), num_threads=1)
        interpreter.allocate_tensors()
    except (RuntimeError, ValueError):  # XNNPACK refuses some models that LiteRT's kernels run
        interpreter = Interpreter(
            model_path=str(path), num_threads=1, experimental_op_resolver_type=PLAIN
        )
        interpreter.allocate_tensors()
    return interpreter


def run_interpreter(interpreter: Any, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs for inputs in the order of the model."""
    for port, array in zip(interpreter.get_input_details(), inputs, strict=True):
        # ascontiguousarray gives a number without axes one, which LiteRT refuses.
        contiguous = np.ascontiguousarray(array).reshape(np.shape(array))
        interpreter.set_tensor(port["index"], contiguous)
    interpreter.invoke()
    return [
        np.asarray(interpreter.get_tensor(port["index"])).copy()
        for port in interpreter.get_output_details()
    ]


def run_signature(interpreter: Any, entry: Entry, inputs: Sequence[Array]) -> dict[str, Array]:
    """Return the outputs of a signature by their names."""
    runner = interpreter.get_signature_runner(entry.key)
    names = list(entry.input_names)
    if OWN_NAME in names:
        # The runner is called with keywords, and a method cannot have one with this name.
        free = next(
            name for count in itertools.count() if (name := f"{OWN_NAME}{count}") not in names
        )
        runner._inputs = {
            free if name == OWN_NAME else name: index for name, index in runner._inputs.items()
        }
        names[names.index(OWN_NAME)] = free
    results: dict[str, Array] = runner(**dict(zip(names, inputs, strict=True)))
    return results


class Reference:
    """A model on the CPU interpreter. Its inputs are those of all entries, one after another, and
    so are its outputs, in which quantized numbers are restored."""

    def __init__(self, content: bytes, model: Any, entries: Sequence[Entry]) -> None:
        self.model, self.entries = model, entries
        self.interpreter = open_interpreter(content)

    def run(self, sets: Sequence[Sequence[Array]]) -> list[tuple[Array, ...]]:
        """Return the outputs for each sample. States begin anew, and last from one sample to the
        next."""
        carried = [Carried(entry, self.model) for entry in self.entries]
        return [self._run_sample(inputs, carried) for inputs in sets]

    def _run_sample(self, inputs: Sequence[Array], carried: Sequence[Carried]) -> tuple[Array, ...]:
        outputs, place = [], 0
        for entry, states in zip(self.entries, carried, strict=True):
            own_inputs = inputs[place : place + len(entry.inputs)]
            place += len(entry.inputs)
            if entry.states:
                arrays = states.run(own_inputs, partial(run_interpreter, self.interpreter))
            elif entry.key:
                results = run_signature(self.interpreter, entry, own_inputs)
                arrays = [np.array(results[name]) for name in entry.output_names]
            else:
                arrays = run_interpreter(self.interpreter, own_inputs)
            tensors = self.model.subgraphs[entry.subgraph].tensors
            for number, array in zip(entry.outputs, arrays, strict=True):
                outputs.append(restore_numbers(tensors[number], array))
        return tuple(outputs)


class Pieces:
    """Executes single operators of a subgraph. An operator's interpreter is kept. ``inputs`` are
    the constants that are passed to it like inputs, because they change."""

    def __init__(self, model: Any, subgraph: int) -> None:
        self.model, self.subgraph = model, subgraph
        self.tensors = model.subgraphs[subgraph].tensors
        self.operators = model.subgraphs[subgraph].operators
        self.opened: dict[tuple[int, frozenset[int], bool], Any] = {}

    def list_reads(self, number: int, inputs: frozenset[int] = frozenset()) -> list[int]:
        """Return the tensors that an operator's interpreter reads, each once."""
        reads = list_numbers(self.operators[number].inputs)
        return [
            tensor
            for tensor in dict.fromkeys(reads)
            if tensor >= 0 and (tensor in inputs or not has_data(self.model, self.tensors[tensor]))
        ]

    def run(
        self,
        number: int,
        arrays: Sequence[Array],
        inputs: frozenset[int] = frozenset(),
        *,
        as_float: bool = False,
    ) -> list[Array]:
        """Return the results of an operator. ``arrays`` are in the order of ``list_reads``.
        ``as_float`` runs an operator that only moves elements on float32, although the model's are
        quantized."""
        key = (number, inputs, as_float)
        if key not in self.opened:
            self.opened[key] = self._open(number, inputs, as_float=as_float)
        return run_interpreter(self.opened[key], arrays)

    def _open(self, number: int, inputs: frozenset[int], *, as_float: bool) -> Any:
        reads = self.list_reads(number, inputs)
        buffers = {tensor: self.tensors[tensor].buffer for tensor in inputs}
        try:
            for tensor in inputs:
                self.tensors[tensor].buffer = 0  # the empty one, which makes it an input
            results = list_numbers(self.operators[number].outputs)
            content = cut_model(
                self.model, self.subgraph, [number], reads, results, as_float=as_float
            )
        finally:
            for tensor, buffer in buffers.items():
                self.tensors[tensor].buffer = buffer
        return open_interpreter(content)
