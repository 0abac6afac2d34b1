"""Models with operators that LiteRT's interpreter does not know, split at the partitions.

Nothing can compute the whole of such a model on the CPU. Each partition then is a signature of a
new model, which has the partition's operators from the source file. Its inputs are what the source
computes, as far as it can be computed, and otherwise random numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np

from ci.graphs.graph import Array
from ci.graphs.litert_file import (
    Entry,
    describe_free_axes,
    drop_unused,
    has_data,
    is_custom,
    list_entries,
    list_numbers,
    make_signature,
    name_operator,
    name_tensor,
    number_tensors,
    pack_model,
    read_dtype,
    read_levels,
    read_shape,
)
from ci.graphs.litert_part import find_operators
from ci.graphs.litert_session import open_interpreter, run_signature
from ci.litert.compiled import CompiledModel, PartitionStep
from ci.models.file_samples import RANDOM_IDS
from provisioning.errors import FailedError

# The interpreter's own message for an operator that it does not know.
UNKNOWN = "unresolved custom op"
# The same for operators of LiteRT itself: an older interpreter lacks some, and it runs those of
# StableHLO, which converters write for what LiteRT lacks, in some forms only.
LACKING = re.compile(
    r"Didn't find op for builtin opcode '(\w+)'"
    r"|Node number \d+ \((STABLEHLO_\w+)\) failed to prepare"
)
MAIN = 0
MOST_NAMED = 4


def list_unknown(content: bytes, model: Any) -> list[str]:
    """Return the names of the operators that the interpreter of this package does not know, or
    lacks in the form that the model needs. Raises FailedError if it refuses the model for another
    reason."""
    names = [
        name_operator(model, operator)
        for subgraph in model.subgraphs
        for operator in subgraph.operators or ()
        if is_custom(model, operator)
    ]
    try:
        open_interpreter(content)
    except (RuntimeError, ValueError) as error:
        if names and UNKNOWN in str(error):
            return list(dict.fromkeys(names))
        if lacking := LACKING.search(str(error)):
            return [*dict.fromkeys([*names, lacking[1] or lacking[2]])]
        if free := describe_free_axes(model):
            raise FailedError(
                f"LiteRT does not load the model with sizes that may change ({', '.join(free)})"
                " as 1",
                why=" ".join(str(error).split()),
                fix="write the file with fixed sizes for these inputs: LiteRT and its plugin take"
                " 1 for sizes that may change",
            ) from error
        if "zero_point" in str(error) and (shifted := list_shifted(model)):
            named = ", ".join(shifted[:MOST_NAMED])
            excess = f" and {len(shifted) - MOST_NAMED} more" if shifted[MOST_NAMED:] else ""
            raise FailedError(
                "there is no reference: LiteRT's own kernels take no int16 with a zero point",
                why=f"these have one: {named}{excess}; QNN may take them, but this project"
                f" compares with LiteRT on the CPU, which says: {' '.join(str(error).split())}",
                fix="quantize with int16 around zero, as LiteRT's 16x8 quantization does, or to"
                " int8, which may have zero points",
            ) from error
        raise FailedError(
            "LiteRT does not load the model",
            why=" ".join(str(error).split()),
            fix="write the file again, with the version of LiteRT that runs it on the phone",
        ) from error
    return []


def list_shifted(model: Any) -> list[str]:
    """Return the names of the int16 tensors that have a zero point other than 0."""
    names = []
    for subgraph in model.subgraphs:
        for number, tensor in enumerate(subgraph.tensors):
            zeros = tensor.quantization.zeroPoint if tensor.quantization else None
            if zeros is not None and any(zeros) and read_dtype(tensor) == "int16":
                names.append(name_tensor(subgraph, number))
    return names


def split_at_partitions(model: Any, compiled: CompiledModel) -> bytes:
    """Return a model with a signature for each partition of the first subgraph, which has the
    partition's operators from the source ``model``. Raises FailedError if the names of tensors do
    not show which these are."""
    source = model.subgraphs[MAIN]
    numbers = number_tensors(source)
    subgraphs: list[Any] = []
    signatures: list[Any] = []
    for step in list_main_partitions(compiled):
        compiled_main = compiled.model.subgraphs[MAIN]
        input_names = [name_tensor(compiled_main, tensor) for tensor in step.inputs]
        output_names = [name_tensor(compiled_main, tensor) for tensor in step.outputs]
        if missing := [name for name in (*input_names, *output_names) if name not in numbers]:
            raise FailedError(
                f"the operators of {step.name} are unknown",
                why=f"the source has no tensor {missing[0]}",
            )
        reads = [numbers[name] for name in input_names]
        results = [numbers[name] for name in output_names]
        reads = [number for number in reads if not has_data(model, source.tensors[number])]
        # A constant that an unknown operator reads is a result, too, with nothing to judge.
        results = [number for number in results if _is_computed(source, reads, number)]
        part = copy(source)
        places = find_operators(source, reads, results)
        part.operators = [source.operators[place] for place in places]
        part.name = step.name.encode()
        part.inputs, part.outputs = np.array(reads, np.int32), np.array(results, np.int32)
        drop_unused(part)
        signatures.append(make_signature(step.name, len(subgraphs), part))
        subgraphs.append(part)
    partitions = copy(model)
    partitions.subgraphs, partitions.signatureDefs = subgraphs, signatures
    partitions.metadata = partitions.metadataBuffer = None
    return pack_model(partitions)


def list_main_partitions(compiled: CompiledModel) -> Iterator[PartitionStep]:
    """Yield the partitions of the first subgraph."""
    for step in compiled.list_steps(MAIN):
        if isinstance(step, PartitionStep):
            yield step


def _is_computed(subgraph: Any, reads: Sequence[int], number: int) -> bool:
    """Return whether a tensor depends on one of ``reads``."""
    places = find_operators(subgraph, reads, [number])
    used = {tensor for place in places for tensor in list_numbers(subgraph.operators[place].inputs)}
    return not used.isdisjoint(reads)


class SplitInputs:
    """Computes the inputs of the partitions of a split model from samples of the source's."""

    def __init__(self, content: bytes, model: Any, names: Sequence[str]) -> None:
        self.model, self.names = model, names  # of the source's inputs
        self.entries = list_entries(model)
        self.interpreter = open_interpreter(content)
        self.random = np.random.default_rng(0)

    def make(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the inputs of all partitions, one after another, for a sample of the source's
        inputs."""
        values = dict(zip(self.names, inputs, strict=True))
        all_inputs: list[Array] = []
        for entry in self.entries:
            arrays = [
                values[name] if name in values else self._draw(entry, number)
                for name, number in zip(entry.input_names, entry.inputs, strict=True)
            ]
            all_inputs += arrays
            results = run_signature(self.interpreter, entry, arrays)
            values |= {name: np.asarray(results[name]) for name in entry.output_names}
        return tuple(all_inputs)

    def list_random(self) -> list[str]:
        """Return the names of the inputs that only unknown operators compute."""
        computed, random = {*self.names}, []
        for entry in self.entries:
            random += [name for name in entry.input_names if name not in computed]
            computed.update((*entry.input_names, *entry.output_names))
        return list(dict.fromkeys(random))

    def _draw(self, entry: Entry, number: int) -> Array:
        tensor = self.model.subgraphs[entry.subgraph].tensors[number]
        shape, dtype = read_shape(tensor), np.dtype(read_dtype(tensor))
        if dtype.kind == "f":
            return self.random.standard_normal(shape).astype(dtype)
        if dtype.kind == "b":
            return self.random.random(shape) > 0.5
        return draw_integers(self.random, tensor)


def draw_integers(random: np.random.Generator, tensor: Any) -> Array:
    """Return random integers for a tensor: of a quantized one any that its type has, and otherwise
    small ones, which may be indices."""
    shape, dtype = read_shape(tensor), np.dtype(read_dtype(tensor))
    if read_levels(tensor):
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max + 1, shape).astype(dtype)
    return random.integers(0, RANDOM_IDS, shape).astype(dtype)
