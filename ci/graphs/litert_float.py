"""Writes a quantized LiteRT model some of whose operators compute in float32: each between a
DEQUANTIZE and a QUANTIZE, or directly behind another one. What computes them comes from the float
model, see ci.graphs.litert_pairs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from ci.graphs.litert_edit import drop_unread
from ci.graphs.litert_file import (
    keep_buffers,
    list_numbers,
    name_operator,
    name_tensor,
    pack_model,
    read_levels,
    read_model,
    read_shape,
)
from ci.graphs.litert_pairs import Counterpart, Side
from ci.graphs.litert_writer import LitertWriter


def mix_floats(quantized: Side, plain: Side, counterparts: Sequence[Counterpart]) -> bytes:
    """Return the file of the ``quantized`` model in which these operators are those of the float
    model. Inputs, outputs, signatures and metadata stay."""
    return _Mixing(quantized, plain).write(counterparts)


class _Mixing:
    def __init__(self, quantized: Side, plain: Side) -> None:
        self.model, self.plain_model = read_model(quantized.data), read_model(plain.data)
        keep_buffers(self.model, quantized.data)
        keep_buffers(self.plain_model, plain.data)
        self.subgraph = self.model.subgraphs[quantized.entry.subgraph]
        self.plain = self.plain_model.subgraphs[plain.entry.subgraph]
        self.writer = LitertWriter(self.model, self.subgraph)
        self.names = {tensor.name or b"" for tensor in self.subgraph.tensors}
        self.codes: dict[int, int] = {}
        self.copied: dict[int, int] = {}  # constants of the float model
        self.floats: dict[int, int] = {}  # the numbers for which a quantized tensor stands
        self.sources: dict[int, int] = {}  # what a QUANTIZE reads, by its result
        for operator in self.subgraph.operators:
            if name_operator(self.model, operator) == "QUANTIZE":
                self.sources[int(operator.outputs[0])] = int(operator.inputs[0])

    def write(self, counterparts: Sequence[Counterpart]) -> bytes:
        chosen = {counterpart.place: counterpart for counterpart in counterparts}
        computed = {number for each in counterparts for number, _ in each.results}
        before = [*self.subgraph.operators]
        # What the model itself restores is computed directly: no rounding is in between.
        restored: dict[int, int] = {}
        left_out = set()
        for place, operator in enumerate(before):
            source = int(operator.inputs[0]) if len(operator.inputs) else -1
            is_restoring = name_operator(self.model, operator) == "DEQUANTIZE"
            if is_restoring and source in computed.difference(restored):
                restored[source] = int(operator.outputs[0])
                left_out.add(place)
        for place, operator in enumerate(before):
            if place in chosen:
                self._write_counterpart(chosen[place], restored)
            elif place not in left_out:
                self.writer.operators.append(operator)
        self._drop_unread_operators()
        return pack_model(drop_unread(self.model, self.subgraph))

    def _write_counterpart(self, counterpart: Counterpart, restored: dict[int, int]) -> None:
        tensors = {
            plain_number: self._find_float(number)
            for plain_number, number in counterpart.reads.items()
        }
        results = {plain_number: number for number, plain_number in counterpart.results}
        for place in counterpart.operators:
            operator = copy(self.plain.operators[place])
            operator.opcodeIndex = self._find_code(int(operator.opcodeIndex))
            for number in list_numbers(operator.outputs):
                target = restored.get(results.get(number, -1), -1)
                tensors[number] = target if target >= 0 else self._copy(number)
            operator.inputs = np.array(
                [
                    -1 if n < 0 else tensors[n] if n in tensors else self._copy_constant(n)
                    for n in list_numbers(operator.inputs)
                ],
                np.int32,
            )
            operator.outputs = np.array(
                [tensors[number] for number in list_numbers(operator.outputs)], np.int32
            )
            self.writer.operators.append(operator)
        for number, plain_number in counterpart.results:
            self.floats[number] = tensors[plain_number]
            self.writer.add_operator("QUANTIZE", [self.floats[number]], number, "QuantizeOptions")

    def _find_float(self, number: int) -> int:
        """Return the tensor with the numbers for which a tensor stands."""
        tensor = self.subgraph.tensors[number]
        if read_levels(tensor) is None:
            return number
        if number not in self.floats:
            source = self.sources.get(number)
            if source is not None:
                self.floats[number] = self._find_float(source)
                return self.floats[number]
            name = self._choose_name(name_tensor(self.subgraph, number))
            target = self.writer.add_tensor(name, "float32", read_shape(tensor))
            self.writer.add_operator("DEQUANTIZE", [number], target, "DequantizeOptions")
            self.floats[number] = target
        return self.floats[number]

    def _find_code(self, index: int) -> int:
        if index not in self.codes:
            self.codes[index] = len(self.model.operatorCodes)
            self.model.operatorCodes.append(self.plain_model.operatorCodes[index])
        return self.codes[index]

    def _copy(self, number: int) -> int:
        """Return a new tensor like one of the float model."""
        tensor = copy(self.plain.tensors[number])
        tensor.name = self._choose_name(name_tensor(self.plain, number)).encode()
        tensor.buffer = 0
        self.subgraph.tensors.append(tensor)
        return len(self.subgraph.tensors) - 1

    def _copy_constant(self, number: int) -> int:
        if number not in self.copied:
            self.copied[number] = copied = self._copy(number)
            buffer = self.plain_model.buffers[self.plain.tensors[number].buffer]
            self.subgraph.tensors[copied].buffer = len(self.model.buffers)
            self.model.buffers.append(buffer)
        return self.copied[number]

    def _choose_name(self, name: str) -> str:
        """Return a name that no tensor has yet."""
        candidates = (f"{name}/float{'_' * length}" for length in itertools.count())
        chosen = next(each for each in candidates if each.encode() not in self.names)
        self.names.add(chosen.encode())
        return chosen

    def _drop_unread_operators(self) -> None:
        """Leave out the operators whose results nothing reads any more."""
        read = {*list_numbers(self.subgraph.outputs)}
        remaining: list[Any] = []
        for operator in reversed(self.writer.operators):
            if not read.isdisjoint(list_numbers(operator.outputs)):
                remaining.append(operator)
                read.update(list_numbers(operator.inputs))
        self.subgraph.operators = remaining[::-1]
