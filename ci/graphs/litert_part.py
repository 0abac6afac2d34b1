"""Writes a part of a LiteRT model as a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from ci.graphs.graph import Bias
from ci.graphs.litert_file import (
    SUBGRAPHS,
    Entry,
    drop_unused,
    keep_buffers,
    list_numbers,
    list_used,
    make_signature,
    pack_model,
    schema,
)

BIAS = 2  # the place of a layer's bias among its inputs


def find_operators(subgraph: Any, reads: Collection[int], results: Sequence[int]) -> list[int]:
    """Return the places of the operators that compute ``results`` from ``reads``."""
    makers = {
        number: place
        for place, operator in enumerate(subgraph.operators)
        for number in list_numbers(operator.outputs)
    }
    pending, places = [number for number in results if number not in reads], set[int]()
    while pending:
        number = pending.pop()
        place = makers.get(number)
        if place is None or place in places:
            continue
        places.add(place)
        pending += [
            read
            for read in list_numbers(subgraph.operators[place].inputs)
            if read >= 0 and read not in reads
        ]
    return sorted(places)


def cut_entry(
    model: Any,
    data: bytes,
    entry: Entry,
    names: Mapping[int, str],
    *,
    reads: Sequence[int],
    results: Sequence[int],
    biases: Mapping[int, Bias],
) -> bytes:
    """Return the part of a model's entry that computes the tensors ``results`` from the tensors
    ``reads``, as a file. ``data`` is the file of the ``model``, in which constants may be behind
    the flatbuffer. Constants and scales stay, and so does the entry's signature; the part's tensors
    have these ``names``. ``biases`` are those that layers get, by the layers' results."""
    source = model.subgraphs[entry.subgraph]
    part = copy(source)
    places = find_operators(source, reads, results)
    part.operators = [source.operators[place] for place in places]
    part.inputs, part.outputs = np.array(reads, np.int32), np.array(results, np.int32)
    part.tensors = []
    for number, tensor in enumerate(source.tensors):
        part.tensors.append(copy(tensor))
        part.tensors[-1].name = names[number].encode()
    buffers = [*model.buffers]
    for operator in part.operators:
        result = int(operator.outputs[0]) if len(operator.outputs) else -1
        if result in biases:
            place = int(operator.inputs[BIAS])
            part.tensors[place] = _replace_bias(part.tensors[place], biases[result], buffers)
    drop_unused(part)
    piece = copy(model)
    piece.subgraphs = [part, *move_bodies(model, part)]
    piece.signatureDefs = [make_signature(entry.key, 0, part)] if entry.key else None
    piece.metadata = piece.metadataBuffer = None
    piece.buffers = buffers
    keep_buffers(piece, data)
    return pack_model(piece)


def _replace_bias(tensor: Any, bias: Bias, buffers: list[Any]) -> Any:
    """Return the tensor of another bias, whose integers become a new buffer."""
    rescaled = copy(tensor)
    rescaled.quantization = copy(tensor.quantization)
    rescaled.quantization.scale = np.asarray(bias.scale, np.float32).reshape(-1)
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(bias.integers.tobytes(), np.uint8)
    rescaled.buffer = len(buffers)
    buffers.append(buffer)
    return rescaled


def move_bodies(model: Any, part: Any) -> list[Any]:
    """Return the subgraphs that the operators of a part run, and those that these run. The
    operators then name them by their places behind the part."""
    bodies: list[Any] = []
    moved: dict[int, int] = {}
    waiting = [part]
    while waiting:
        subgraph = waiting.pop()
        for operator in subgraph.operators:
            if not list_used(operator):
                continue
            for number in list_used(operator):
                if number not in moved:
                    body = copy(model.subgraphs[number])
                    drop_unused(body)  # which copies the operators, so that they can be changed
                    body.tensors = [copy(tensor) for tensor in body.tensors]
                    bodies.append(body)
                    moved[number] = len(bodies)
                    waiting.append(body)
            _renumber_options(operator, moved)
    return bodies


def _renumber_options(operator: Any, moved: Mapping[int, int]) -> None:
    for field in ("builtinOptions", "builtinOptions2"):
        options = copy(getattr(operator, field))
        for name in SUBGRAPHS:
            if hasattr(options, name):
                numbers = getattr(options, name)
                is_list = np.ndim(numbers) > 0
                setattr(
                    options,
                    name,
                    np.array([moved[int(number)] for number in numbers], np.int32)
                    if is_list
                    else moved[int(numbers)],
                )
        setattr(operator, field, options)
