"""Finds the operator of a quantized .tflite file that loses the most accuracy, by its float
model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ci.analysis.layers import find_magnitude, measure_db
from ci.graphs.graph import Array
from ci.graphs.litert_file import list_numbers, restore_numbers
from ci.graphs.litert_pairs import Side, pair_values
from ci.graphs.litert_program import LitertProgram, name_method
from ci.graphs.litert_reader import LitertGraph
from ci.graphs.litert_session import open_interpreter, run_interpreter
from ci.litert.clipped import name_value
from ci.models.tensors import BEST_DB, Loss


class Compared(NamedTuple):
    """What the float model computes for a tensor, and the SQNR of the quantized model's values
    in dB."""

    exact: Array
    reached_db: float


def find_quantization_loss(
    quantized: Side, plain: Side, inputs: Sequence[Array], float_inputs: Sequence[Array]
) -> Loss | None:
    """Return where a quantized model loses the most accuracy on a sample: the operator whose result
    is further from that of the float model, ``plain``, than what it reads. ``inputs`` are those of
    the quantized model, and ``float_inputs`` the same of the float model. Return None if nothing is
    lost. Values that the float model does not have are left out."""
    if quantized.entry.subgraph or plain.entry.subgraph:
        return None  # an interpreter returns inner values of the first one only
    compared = compare_values(quantized, plain, inputs, float_inputs)
    program = LitertProgram(quantized.data, keeps_operators=True)
    parsed = program.parsed[name_method(quantized.entry)]
    losses = list_losses(quantized, parsed, compared)
    return max(losses, key=lambda loss: loss.added, default=None)


def compare_values(
    quantized: Side, plain: Side, inputs: Sequence[Array], float_inputs: Sequence[Array]
) -> dict[int, Compared]:
    """Return the comparison of each floating-point value that both models have, by the tensor's
    number in the quantized model."""
    values = pair_values(quantized, plain, (inputs, float_inputs))
    for number in quantized.passed_on:
        root = quantized.find_root(number)
        if root in values:
            values[number] = values[root]
    interpreters = []
    for side, arrays in ((quantized, inputs), (plain, float_inputs)):
        interpreter = open_interpreter(side.data, keeps_tensors=True)
        run_interpreter(interpreter, arrays)
        interpreters.append(interpreter)
    compared = {}
    for number, plain_number in values.items():
        exact = interpreters[1].get_tensor(plain_number)
        rounded = restore_numbers(quantized.tensors[number], interpreters[0].get_tensor(number))
        if exact.dtype.kind == "f" and exact.size and rounded.shape == exact.shape:
            compared[number] = Compared(exact, measure_db(exact, rounded))
    return compared


def list_losses(
    quantized: Side, parsed: LitertGraph, compared: Mapping[int, Compared]
) -> Iterator[Loss]:
    """Yield the loss of each operator whose result has a lower SQNR than what it reads."""
    makers = parsed.graph.list_makers()
    for operator in quantized.subgraph.operators or ():
        reads = [compared[n] for n in list_numbers(operator.inputs) if n in compared]
        results = [n for n in list_numbers(operator.outputs) if n in compared]
        if not reads or not results:
            continue
        worst = min(results, key=lambda number: compared[number].reached_db)
        before_db = min(read.reached_db for read in reads)
        behind_db = compared[worst].reached_db
        maker = makers.get(name_value(parsed, worst))
        if maker is not None and behind_db < before_db:
            yield Loss(
                maker.label,
                before_db,
                behind_db,
                BEST_DB,
                maker.place,
                largest=max(find_magnitude(read.exact) for read in reads),
                includes_weights=True,
            )
