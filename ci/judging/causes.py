"""Decides which known faults cause a failure, and finds causes in the numbers that operators read.
Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from ci.analysis.steps import Step
from ci.facts.finding import NO_ADVICE, STOPPING, Advice, Certainty, Question, advise
from ci.facts.known_fault import KnownFault
from ci.graphs.graph import EXECUTORCH
from ci.models.rounding import FLOAT16_MAX
from ci.models.tensors import (
    LOGARITHMS,
    PHASES,
    RECIPROCALS,
    SMALL,
    SOFTMAXES,
    Layer,
    Loss,
    Reading,
)

KEPT_DB = 30.0  # an operator whose result is at least as accurate is not the cause
SHOWN_DECISIONS = 3
SHOWN_OPERATORS = 8  # as many as a mixture has
EQUALITIES = frozenset({"eq", "ne", "Equal"})
SOFTMAX = "softmax"  # in the names of its operators
LEAST_GAIN = 1.004  # from here on, the gate rejects a program
STEP = 0.1  # of an angle in radians: above it, sin and cos have less than about 30 dB
LARGE_PHASE = 200.0  # from here on, float16 has steps of 0.125
FLOAT16_BITS = 11  # of a significand
FLOAT16_TINY = 2.0**-14  # below it, float16 has fewer bits
# A mask's numbers, below which the steps between scores are too coarse, per bits of an activation.
# Measured with one model: in 8 bits 25.3 dB with -50, 21.7 with -100, 13.7 with -300; in 16 bits
# 43.0 with -1000, 28.8 with -1e4.
MASKS = {8: -100.0, 16: -5000.0}
# -20 has 30.0 dB in 8 bits, -100 44.4 dB in 16 bits: docs/findings/faults.md.
SPARE = {8: "-20 or -30", 16: "-100"}  # with which a blocked element still has no weight
NOT_TRIED = ", which was not tried"
CALIBRATE = (
    "calibrate with inputs like the judged ones, and check the ranges that the observer found"
)
SIXTEEN_BITS = f"quantize the model with 16-bit activations{NOT_TRIED}"
# exp(x) * c is the same as exp(x + log c), whose results are as large as those of the product.
EXP = "exp"
MOVED_FACTOR = (
    "move a factor behind it into it (exp(x) * c as exp(x + log(c))), or limit what it reads"
)
MASK_BY_FACTORS = (
    "multiply by a mask of ones and zeros instead of adding one, both what exp reads and its result"
)
LARGEST_RETURNED = 131008.0  # of the numbers that QNN 2.49.40 returns in float16
UNWRITTEN_DB = -200.0  # below this, QNN left the memory of a result uninitialized


@dataclass(frozen=True)
class Departure:
    """Where a program starts to differ from its model: ``layer`` is the first wrong layer, and
    ``right`` are the layers before it. ``text`` says it. ``sqnr_db`` is the SQNR of the layer's
    result. If it is unknown, ``layer`` is None and ``right`` is empty. ``worst`` is the first layer
    with most of the error, or None if that is ``layer``."""

    layer: Layer | None = None
    right: tuple[Layer, ...] = ()
    text: str = ""
    sqnr_db: float | None = None
    worst: Layer | None = None


UNKNOWN = Departure()


def order_faults(
    faults: Sequence[KnownFault],
    question: Question,
    steps: Sequence[Step],
    departure: Departure,
    sqnr_db: float | None,
    *,
    is_float16: bool,
) -> list[KnownFault]:
    """Return the known faults of a graph that can cause a failure on a question, the likeliest
    first. This is the order in which experiments try them, and decides nothing.

    A fault of the quantized model explains only a model that is not quantized well, and every other
    one only a program that is not faithful; in float16, there is a single model, so both are
    possible. Those where the loss starts come first, then those behind it, and of these each time
    those that were seen with an error as large as this one. ``sqnr_db`` is that of the outputs."""

    def rank(fault: KnownFault) -> tuple[bool, bool, bool]:
        is_first = is_where(fault, steps, departure)
        is_near = is_first or is_behind(fault, steps, departure)
        return not is_first, not is_near, not _is_large_enough(fault, departure, sqnr_db)

    possible = [fault for fault in faults if _answers(fault, question, is_float16=is_float16)]
    return sorted(possible, key=rank) if question is Question.FAITHFUL else possible


def is_likely(
    fault: KnownFault,
    question: Question,
    steps: Sequence[Step],
    departure: Departure,
    sqnr_db: float | None,
    *,
    predicted_db: float | None = None,
) -> bool:
    """Return whether a known fault that no experiment tried may be named, as likely: if it is where
    the loss starts, and was seen with an error as large as this one. ``predicted_db`` is the SQNR
    that rounding leaves: a float16 program that reaches it needs no other cause.

    A program that rounds as predicted was once put down to softplus: 36.3 dB, and 35.5 without it.
    Softplus (41 dB) was also once named for outputs of -0.2 dB."""
    is_large = _is_large_enough(fault, departure, sqnr_db)
    if question is Question.FAITHFUL:
        return is_large and is_where(fault, steps, departure)
    if question is not Question.QUANTIZED or fault.is_scheme:
        return True
    # Softplus (41 dB) was named for -101 dB, whose first finding was an overflow.
    is_rounding = sqnr_db is not None and predicted_db is not None and sqnr_db >= predicted_db
    return is_large and not is_rounding


def _keep_size(sqnr_db: float | None) -> float | None:
    """Return an SQNR, or None if it is not that of numbers which QNN computed."""
    is_computed = sqnr_db is not None and UNWRITTEN_DB < sqnr_db < math.inf
    return sqnr_db if is_computed else None


def _is_large_enough(fault: KnownFault, departure: Departure, sqnr_db: float | None) -> bool:
    """Return whether a fault was seen with an error as large as that of the outputs, and as that
    where the loss starts. Numbers that are not finite, as of a softmax of a mask near the end of
    float32, have an SQNR of NaN or minus infinity, which is no size of an error; nor is that of a
    layer's result that QNN did not write, as of a sum (-719 dB) that it computes with a SiLU."""
    sizes = (_keep_size(sqnr_db), _keep_size(departure.sqnr_db))
    least_db = fault.least_db
    return least_db is None or all(size is None or size >= least_db for size in sizes)


def _answers(fault: KnownFault, question: Question, *, is_float16: bool) -> bool:
    if question in STOPPING:
        return True  # others are left out already
    accuracy = {Question.FAITHFUL, Question.QUANTIZED}
    if question not in accuracy or fault.only_stops:
        return False
    return is_float16 or fault.is_scheme is (question is Question.QUANTIZED)


def is_where(fault: KnownFault, steps: Sequence[Step], departure: Departure) -> bool:
    """Return whether a program may start to differ from its model because of a fault: one of its
    operators is the first wrong layer, or is between it and the layer before. If the place of the
    loss is unknown, every place is possible."""
    if departure.layer is None:
        return True
    places = {step.name: place for place, step in enumerate(steps)}
    layer = departure.layer
    named = {name for nodes in (fault.nodes, *fault.repeated) for name in nodes}
    if layer.origin.line and any(
        step.name in named and step.origin == layer.origin and step.operator == layer.operator
        for step in steps
    ):
        return True  # a call of the same line, such as the first one of a layer that is shared
    wrong = find_step(layer, steps)

    def find_places(nodes: Sequence[str]) -> list[int]:
        return [places[name] for name in nodes if name in places]

    chains = [find_places(nodes) for nodes in (fault.nodes, *fault.repeated)]
    if wrong is None or not all(chains):
        return True
    right = [find_step(layer, steps) for layer in departure.right]
    right_places = [place for place in right if place is not None and place < wrong]
    before = max(right_places, default=-1)
    return any(min(chain) <= wrong and (max(chain) > before or wrong in chain) for chain in chains)


def is_behind(fault: KnownFault, steps: Sequence[Step], departure: Departure) -> bool:
    """Return whether an operator of a fault is behind the first wrong layer, or may be, as for a
    layer of a function that the file contains."""
    wrong = find_step(departure.layer, steps) if departure.layer else None
    if wrong is None:
        return True
    places = {step.name: place for place, step in enumerate(steps)}
    nodes = [name for chain in (fault.nodes, *fault.repeated) for name in chain]
    return any(places.get(name, -1) > wrong for name in nodes)


def find_step(layer: Layer, steps: Sequence[Step]) -> int | None:
    """Return the place of a layer's operator among the steps of a model, or None if it is not
    there. A quantizer may have renamed it; then it is the only one of its line and operator."""
    named = [place for place, step in enumerate(steps) if layer.node and step.name == layer.node]
    if named:
        return named[0]
    alike = [
        place
        for place, step in enumerate(steps)
        if step.operator == layer.operator and step.origin == layer.origin and layer.origin.line
    ]
    return alike[0] if len(alike) == 1 else None


def advise_on_numbers(
    loss: Loss | None, bits: int, known_faults: Collection[str] = ()
) -> tuple[Advice, ...]:
    """Return the causes that lie in the numbers that operators read: masks on attention scores,
    large angles, logarithms of small numbers, and comparisons of nearly equal numbers.

    ``bits`` are those of an activation, FLOAT16_BITS for float16, and 0 if they are unknown.
    ``known_faults`` are the names of those that are causes already."""
    causes = [*_advise_on_masks(loss, bits)]
    # The known fault says the same of the mask.
    if any("mask-too-large" in name for name in known_faults):
        causes = []
    causes += [*_advise_on_phases(loss, bits), *_advise_on_logarithms(loss, bits)]
    return (*causes, *_advise_on_equality(loss))


MOST_OF_THIRD_DB = 5.0  # what has a third of the noise has so many dB more than the whole
LEAST_GAIN_DB = 3.0  # which an experiment must gain: chance moves an SQNR by less


def _suspect(cause: str, fix: str) -> Advice:
    """Return a cause that numbers make likely, and no experiment decided."""
    return advise(f"{cause} (not tried)", fix, certainty=Certainty.LIKELY)


def _conclude(cause: str, fix: str, reading: Reading, loss: Loss | None) -> Advice:
    """Return the cause that an operator reads rounded numbers. It is proven if the outputs have
    less than half of their noise without that rounding, and none if they do not; likely if that was
    not tried, or the weights alone lose as much."""
    kept_db, output_db = reading.kept_db, loss.output_db if loss else None
    if loss is None or kept_db is None or output_db is None:
        return _suspect(cause, fix)
    if loss.weights_db < output_db + LEAST_GAIN_DB:
        return _suspect(cause, fix)
    if kept_db < output_db + LEAST_GAIN_DB:
        return NO_ADVICE
    figures = f"on the CPU, the outputs have {output_db:.1f} dB, and {kept_db:.1f} dB"
    proof = f"proven: {figures} if these numbers are exact"
    return advise(f"{cause} ({proof})", fix, certainty=Certainty.PROVEN)


def advise_on_range(
    loss: Loss | None, departure: Departure, sqnr_db: float | None = None
) -> tuple[Advice, ...]:
    """Return the cause that float16 cannot hold the numbers of an operator, unless the program was
    seen to be right there. A result above float16's range may be right as an output and wrong for
    the operator that reads it, which is then the first wrong one. It is proven if the range alone
    leaves the outputs no more than the program's ``sqnr_db``."""
    beyond = loss.beyond if loss else None
    if beyond is None:
        return ()
    key = beyond.name, beyond.origin
    right = [(layer.name, layer.origin) for layer in departure.right]
    wrong = departure.layer and (departure.layer.name, departure.layer.origin)
    # QNN returned a product of 104733 as it is, and the matrix product that read it was wrong.
    is_returned = FLOAT16_MAX < beyond.largest <= LARGEST_RETURNED
    is_read_next = is_returned and wrong and right[-1:] == [key]
    if key in right and key != wrong and not is_read_next:  # a line may have two such operators
        return ()
    place = f"{beyond.name}{beyond.origin.mark}"
    if beyond.largest > FLOAT16_MAX:
        cause = (
            f"overflow: numbers up to {beyond.largest:.3g} come from {place}, and float16 holds"
            f" numbers up to {FLOAT16_MAX:g}"
        )
    else:
        cause = (
            f"underflow: {place} computes with numbers that are too small for float16, which has"
            f" all of its bits only from {FLOAT16_TINY:.2g} on; its results are at most"
            f" {beyond.largest:.3g}"
        )
    scaled = (
        "scale the values before this operator, as by a constant factor that a norm behind it"
        " removes again"
    )
    is_large_exp = beyond.operator == EXP and beyond.largest > FLOAT16_MAX
    fix = f"{MOVED_FACTOR if is_large_exp else scaled}; or {SIXTEEN_BITS}"
    advice = _suspect(cause, fix)
    output_db, wide_db = (loss.output_db, loss.wide_db) if loss else (None, None)
    is_measured = output_db is not None and wide_db is not None
    if is_measured and (sqnr_db is None or sqnr_db >= (output_db or 0.0) - LEAST_GAIN_DB):
        figures = f"on the CPU, the outputs have {output_db:.1f} dB in float16"
        proof = f"proven: {figures}, and {wide_db:.1f} dB with the range of float32"
        advice = advise(f"{cause} ({proof})", fix, certainty=Certainty.PROVEN)
    return (replace(advice, places=beyond.origin.places),)


def advise_on_decisions(loss: Loss | None) -> tuple[Advice, ...]:
    """Return the cause that decisions on rounded numbers are other ones, such as the index of the
    smallest distance. It was tried: with the decisions of float32, the outputs are better."""
    lost = loss.decided if loss else None
    if lost is None:
        return ()
    places = [
        f"{decision.name}{decision.origin.mark} ({_name_share(decision.share)})"
        for decision in lost.decisions[:SHOWN_DECISIONS]
    ]
    count = len(lost.decisions) - len(places)
    named = ", ".join(places) + (f" and {count} more" if count else "")
    advice = advise(
        f"decisions on rounded numbers: {named} differ from those of the float32"
        f" model (proven: with its decisions, the outputs have {lost.kept_db:.1f} dB instead of"
        f" {lost.reached_db:.1f})",
        "make the decisions outside of the model, or give what they read more bits; a decision"
        " between numbers that are nearly equal is still a different one",
        certainty=Certainty.PROVEN,
    )
    return (replace(advice, places=lost.decisions[0].origin.places),)


def advise_on_rounding(loss: Loss | None, sqnr_db: float | None) -> tuple[Advice, ...]:
    """Return the cause that the weights, the calibrated ranges, or the rounding of some operators
    loses the accuracy of a quantized model with ``sqnr_db`` against float32. It was tried: with
    only the weights quantized, the outputs are hardly better, while the rounding of activations
    alone costs less; with other ranges, or without the roundings of these operators, they have less
    than half of their noise. ``output_db`` is that of the activations alone: large angles in 8 bits
    are lost by both, and are no fault of the weights."""
    if loss is None or loss.is_float16:
        return ()
    output_db = loss.output_db
    is_of_weights = output_db is not None and output_db >= loss.weights_db + LEAST_GAIN_DB
    if sqnr_db is not None and is_of_weights and loss.weights_db < sqnr_db + LEAST_GAIN_DB:
        # A BatchNorm that torchao folds wrongly has the same figures: the weights are not rounded
        # badly, but the quantized model computes another function.
        figures = f"the outputs have {sqnr_db:.1f} dB, and {loss.weights_db:.1f} dB"
        cause = (
            "the weights, or how the quantizer rewrites the model, and not the rounding of"
            f" activations (proven: on the CPU, {figures} without that rounding)"
        )
        fix = "choose a scheme with more bits for the weights, or with a scale for each channel"
        return (advise(cause, fix, certainty=Certainty.PROVEN),)
    fitted_db = loss.fitted_db if is_misfit(loss) else output_db
    ranges = (_advise_on_misfits(loss),) if is_misfit(loss) else ()
    if fitted_db is None or loss.finer_db is None or loss.finer_db < fitted_db + LEAST_GAIN_DB:
        return ranges or _advise_on_both(loss)
    if output_db is None or loss.weights_db < output_db + LEAST_GAIN_DB:
        return ranges or _advise_on_both(loss)  # without it, as much would be lost
    names = ", ".join(loss.nodes[:SHOWN_OPERATORS])
    further = len(loss.nodes) - SHOWN_OPERATORS
    named = names + (f" and {further} more" if further > 0 else "")
    figures = f"the outputs have {output_db:.1f} dB, and {loss.finer_db:.1f} dB without it"
    cause = f"the rounding of {named}{_describe_coarse(loss)} (proven: on the CPU, {figures})"
    fix = "bring these numbers closer together: divide those channels that have the largest numbers"
    fix += " before they are rounded, and multiply the weights that read them"
    advice = advise(cause, fix if loss.coarse else "", certainty=Certainty.PROVEN)
    return (*ranges, advice)


def is_misfit(loss: Loss) -> bool:
    """Return whether a quantized model is better with the ranges of the judged inputs than with the
    calibrated ones, and at least one of these is that of other numbers."""
    if loss.output_db is None or loss.fitted_db is None or not loss.misfits:
        return False
    return loss.fitted_db >= loss.output_db + LEAST_GAIN_DB


def _advise_on_both(loss: Loss) -> tuple[Advice, ...]:
    """Return the cause that the quantized weights and the rounding of activations each lose the
    accuracy alone, if each has at least a third of the noise."""
    output_db, whole_db = loss.output_db, loss.whole_db
    if output_db is None or whole_db is None:
        return ()
    if max(loss.weights_db, output_db) >= whole_db + MOST_OF_THIRD_DB:
        return ()
    cause = (
        f"the weights and the rounding of activations, each alone (proven: on the CPU, the outputs"
        f" have {whole_db:.1f} dB, {loss.weights_db:.1f} dB with only the weights quantized, and"
        f" {output_db:.1f} dB with only the activations rounded)"
    )
    fix = "choose a scheme with a scale for each channel of the weights, or with more bits for both"
    return (advise(cause, fix, certainty=Certainty.PROVEN),)


def _advise_on_misfits(loss: Loss) -> Advice:
    """Return the cause that ranges were calibrated for other numbers than those of the judged
    inputs. Those of the model's inputs say it all: others follow from them."""
    inputs = [misfit for misfit in loss.misfits if misfit.is_input]
    named = "; ".join(map(str, inputs or loss.misfits))
    figures = f"the outputs have {loss.output_db:.1f} dB, and {loss.fitted_db:.1f} dB"
    cause = (
        f"the calibrated ranges: {named} (proven: on the CPU, {figures} with the ranges that the"
        " judged inputs need)"
    )
    return advise(cause, CALIBRATE, certainty=Certainty.PROVEN)


def _describe_coarse(loss: Loss) -> str:
    """Return which of the rounded values have steps that are too large for most of their numbers,
    and why: a few large numbers."""
    texts = [
        f"{value.name}{value.origin.mark} has numbers up to {value.largest:.3g}, so a step is"
        f" {value.step:.2g}, and {100 * value.share:.0f} % of its numbers become zero"
        for value in loss.coarse[:SHOWN_DECISIONS]
    ]
    return f": {'; '.join(texts)}" if texts else ""


def advise_on_fusions(loss: Loss | None) -> tuple[Advice, ...]:
    """Return the cause that HTP computes activations less accurately together with the layer or the
    sum before them. It was tried: without their errors, the outputs are better.

    Measured with QNN 2.49.40 behind a convolution: sigmoid 47.3 dB, tanh 42.1 dB; behind a slice or
    a split between both, 66.8 and 68.1 dB; behind a transposition, as without it."""
    lost = loss.fused if loss else None
    if lost is None:
        return ()
    marks = [*dict.fromkeys(f"{place.name}{place.origin.mark}" for place in lost.activations)]
    count = len(marks) - SHOWN_DECISIONS
    named = ", ".join(marks[:SHOWN_DECISIONS]) + (f" and {count} more" if count > 0 else "")
    advice = _suspect(
        f"fused activations: in float16, HTP computes {named} together with the layer or the sum"
        f" before them, and approximates them. This leaves about {lost.reached_db:.1f} dB, and"
        f" rounding alone {lost.apart_db:.1f}",
        "keep them apart with slices between the layer and the activation: split the layer's result"
        f" into two parts, and join them behind it; or {SIXTEEN_BITS}",
    )
    return (replace(advice, places=lost.activations[0].origin.places),)


def _name_share(share: float) -> str:
    return (
        f"{100 * share:.0f} % of its elements" if share >= 0.01 else "less than 1 % of its elements"
    )


def advise_on_reciprocals(loss: Loss | None, departure: Departure) -> tuple[Advice, ...]:
    """Return the cause that a quantized program cannot hold the reciprocals of small numbers,
    unless the program was seen to be right there.

    Measured with QNN 2.49.40 in u8 and u16a8w: if all numbers of a Reciprocal are below 1, no
    result is above 1. With a largest number of 0.6, 7.7 dB are left; with 1.05, nothing is lost."""
    clipped = find_clipped_reciprocals(loss, departure)
    if not clipped:
        return ()
    lowest = min(clipped, key=lambda reading: reading.largest)
    advice = _suspect(
        f"reciprocals above 1: only numbers up to {lowest.largest:.3g} reach {_list(clipped)}, and"
        " a quantized Reciprocal of QNN whose numbers are all below 1 returns at most 1",
        "divide a tensor of ones by the numbers, as 1 / x is a Reciprocal in PyTorch, too; in an"
        " RMS norm, write x / sqrt(v) instead of x * (1 / sqrt(v)). `qnn-ci mend` does both in an"
        " .onnx file",
    )
    return (replace(advice, places=lowest.origin.places),)


def advise_on_softmax(
    steps: Sequence[Step], departure: Departure, gain: float | None, bits: int
) -> tuple[Advice, ...]:
    """Return the cause that a softmax makes the outputs too large: in 8 bits, through ExecuTorch,
    if the loss starts at a softmax or directly behind it, and the outputs have a ``gain``.

    Measured with QNN 2.49.40 in 8a8w: of scores with a standard deviation of 0.3, 17 have a gain of
    1.012, and 64 of 1.037 (28.6 dB instead of 40.5); of 17 with one of 1, it is 1.002."""
    layer = departure.layer
    is_8_bits = bits == 8 and any(step.front_end == EXECUTORCH for step in steps)
    if layer is None or gain is None or gain < LEAST_GAIN or not is_8_bits:
        return ()
    if SOFTMAX not in layer.operator:
        wrong = find_step(layer, steps)
        places = [find_step(right, steps) for right in departure.right]
        before = max((place for place in places if place is not None), default=None)
        if wrong is None or before is None or before >= wrong:
            return ()
        if not any(SOFTMAX in step.operator for step in steps[before + 1 : wrong]):
            return ()
    advice = _suspect(
        f"a softmax of scores that differ little: through ExecuTorch, QNN's softmax in 8 bits then"
        f" returns too large numbers, and the outputs have {gain:.4g} times the right values",
        "choose a scheme with 16-bit activations, for the softmax at least",
    )
    return (replace(advice, places=layer.origin.places),)


def find_clipped_reciprocals(loss: Loss | None, departure: Departure) -> list[Reading]:
    """Return what the reciprocals of a quantized program read whose results it cannot hold, see
    advise_on_reciprocals."""
    right = {(layer.name, layer.origin) for layer in departure.right}
    return [
        reading
        for reading in (loss.readings if loss else ())
        if reading.operator in RECIPROCALS
        and reading.largest < 1
        and (reading.name, reading.origin) not in right
    ]


def _advise_on_masks(loss: Loss | None, bits: int) -> Iterator[Advice]:
    masks = [
        reading
        for reading in (loss.readings if loss else ())
        if reading.operator in SOFTMAXES
        and bits in MASKS
        and reading.low <= MASKS[bits]
        and reading.least_kept > reading.low / 4
        and reading.behind_db < KEPT_DB
    ]
    if masks:
        lowest = min(masks, key=lambda reading: reading.low)
        step = (lowest.high - lowest.low) / 2**bits
        fix = f"use {SPARE[bits]} in the mask instead"
        fix += ": a blocked element then still has no weight after the softmax"
        # Differences of running sums, as of a state space model, are large where they are blocked.
        if lowest.operator == EXP:
            fix = MASK_BY_FACTORS
        yield _conclude(
            f"a mask: numbers down to {lowest.low:.3g} reach {_list(masks)}, so one of the"
            f" {2**bits} steps of {bits} bits is {step:.3g}, and the differences between the other"
            " numbers are lost",
            fix,
            lowest,
            loss,
        )


def _advise_on_phases(loss: Loss | None, bits: int) -> Iterator[Advice]:
    phases = [
        reading
        for reading in (loss.readings if loss else ())
        if reading.operator in PHASES and reading.behind_db < KEPT_DB and _is_large(reading, bits)
    ]
    if phases:
        largest = max(phases, key=lambda reading: reading.largest)
        kind = "float16" if bits == FLOAT16_BITS else f"{bits} bits"
        yield _conclude(
            f"large angles: numbers up to {largest.largest:.4g} reach {_list(phases)}, where a step"
            f" of {kind} is {_find_step_size(largest, bits):.2g}, so most of the angle is lost",
            "compute sin and cos outside of the model, and pass them as inputs or store a table of"
            " them as a constant; or reduce the angle modulo 2 * pi in float32 before it enters the"
            " model",
            largest,
            loss,
        )


def spans_more_than(loss: Loss, bits: int) -> bool:
    """Return whether numbers reach a logarithm at which accuracy is lost, the smallest of which are
    zero in a uniform range of ``bits``: finer types of no more bits do not help."""
    return bool([*_advise_on_logarithms(loss, bits)])


def _advise_on_logarithms(loss: Loss | None, bits: int) -> Iterator[Advice]:
    small = [
        reading
        for reading in (loss.readings if loss else ())
        if reading.operator in LOGARITHMS
        # Zero before the logarithm: seen in whisper's front end.
        and bits not in {0, FLOAT16_BITS}  # of float16, advise_on_range knows more
        and reading.behind_db < KEPT_DB
        and 0 < SMALL * reading.low < _find_step_size(reading, bits)
    ]
    if small:
        widest = max(small, key=lambda reading: reading.high / reading.low)
        yield _conclude(
            f"a logarithm of small numbers: numbers from {widest.low:.3g} to {widest.high:.3g}"
            f" reach {_list(small)}, where a step of {bits} bits is"
            f" {_find_step_size(widest, bits):.2g}, so all smaller numbers are one, or zero",
            "if these are sums of exponentials, subtract the largest exponent of each sum before"
            " exp, of a running sum that of each step, and add it behind the logarithm; if it"
            " inverts a sigmoid, as log(x / (1 - x)), keep the logits of before the sigmoid"
            " instead; or subtract logarithms, log(x) - log(1 - x); or compute it outside of the"
            " model, and pass it as an input; or use a larger floor; or lower the model in fp16",
            widest,
            loss,
        )


def _advise_on_equality(loss: Loss | None) -> Iterator[Advice]:
    if loss is None or loss.decided:  # named there
        return
    if loss.name.partition(" ")[0] in EQUALITIES and loss.behind_db < KEPT_DB:
        yield _suspect(
            f"a comparison: {loss.name}{loss.origin.mark} tests rounded numbers for equality, and"
            " other numbers are equal after rounding than before it",
            "compare with a tolerance, such as x >= largest - 0.01, or outside of the model",
        )


def _is_large(reading: Reading, bits: int) -> bool:
    if bits == FLOAT16_BITS:
        return reading.largest > LARGE_PHASE
    return bits > 0 and _find_step_size(reading, bits) > STEP


def _find_step_size(reading: Reading, bits: int) -> float:
    if bits == FLOAT16_BITS:
        return float(2.0 ** (math.floor(math.log2(reading.largest)) - FLOAT16_BITS + 1))
    return (reading.high - reading.low) / 2**bits


def _list(readings: Sequence[Reading]) -> str:
    """Return the operators with their places, each once, such as ``sin [net.py:19]``."""
    return " and ".join(
        dict.fromkeys(f"{reading.name}{reading.origin.mark}" for reading in readings)
    )


def join(advices: Sequence[Advice]) -> Advice:
    """Return all advice as one."""
    return sum(advices, NO_ADVICE)
