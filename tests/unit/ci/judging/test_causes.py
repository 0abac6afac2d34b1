"""Which known faults are causes of a failure, and which causes lie in the numbers of a model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from ci.analysis.steps import Step
from ci.facts.finding import Advice, Certainty, Origin, Question
from ci.facts.known_fault import KnownFault
from ci.judging.causes import (
    FLOAT16_BITS,
    UNKNOWN,
    Departure,
    advise_on_decisions,
    advise_on_fusions,
    advise_on_numbers,
    advise_on_range,
    advise_on_reciprocals,
    advise_on_rounding,
    advise_on_softmax,
    is_likely,
    order_faults,
    spans_more_than,
)
from ci.models.tensors import (
    Coarse,
    Decision,
    Layer,
    Loss,
    LostDecisions,
    LostFusions,
    Place,
    make_reading,
)
from ci.report.schema import Clipped

STEPS = [Step(name, name, (), (), ()) for name in ("conv", "relu", "cumsum", "tanh")]


def known(*nodes: str, **facts: Any) -> KnownFault:
    return KnownFault(
        fault="f", title="t", seen="s", fix="x", calls="", nodes=nodes, operators=nodes, **facts
    )


def depart(wrong: str, *right: str, sqnr_db: float = 5.0) -> Departure:
    layers = tuple(Layer(name, name, node=name) for name in right)
    return Departure(Layer(wrong, wrong, node=wrong), layers, "", sqnr_db)


def is_named(
    fault: KnownFault,
    departure: Departure = UNKNOWN,
    question: Question = Question.FAITHFUL,
    sqnr_db: float = 5.0,
    predicted_db: float | None = None,
) -> bool:
    return is_likely(fault, question, STEPS, departure, sqnr_db, predicted_db=predicted_db)


def test_a_known_fault_is_likely_only_where_the_loss_starts() -> None:
    assert is_named(known("cumsum"))  # the place is unknown
    assert is_named(known("cumsum"), depart("cumsum", "conv", "relu"))
    assert is_named(known("relu", "cumsum"), depart("cumsum", "conv"))
    assert not is_named(known("conv"), depart("cumsum", "conv", "relu"))
    assert not is_named(known("tanh"), depart("cumsum", "conv"))


def test_suspects_are_ordered_by_their_place_and_then_by_their_size() -> None:
    first_small, first = known("cumsum", least_db=41.0), known("cumsum", least_db=2.0)
    behind_small, behind = known("tanh", least_db=31.5), known("tanh", least_db=-25.0)
    right = known("conv")
    faults = [right, behind_small, behind, first_small, first]
    departure = depart("cumsum", "conv", "relu")
    ordered = order_faults(faults, Question.FAITHFUL, STEPS, departure, 5.0, is_float16=True)
    assert ordered == [first, first_small, behind, behind_small, right]


def test_activations_that_are_fused_are_a_cause_with_their_figures() -> None:
    places = tuple(Place("tanh", Origin(file="net.py", line=line)) for line in (3, 3, 4, 5, 6))
    loss = Loss("", 60.0, 60.0, 60.0, fused=LostFusions(places, 38.5, 60.0))
    (advice,) = advise_on_fusions(loss)
    assert "tanh [net.py:3], tanh [net.py:4], tanh [net.py:5] and 1 more" in advice.causes[0].text
    assert "38.5 dB" in advice.causes[0].text
    assert advise_on_fusions(Loss("", 60.0, 60.0, 60.0)) == advise_on_fusions(None) == ()


def test_a_known_fault_of_a_line_in_a_loop_is_likely_at_each_of_its_calls() -> None:
    looped = known("tanh", repeated=(("conv",), ("cumsum",)))
    assert is_named(looped, depart("conv"))
    assert is_named(looped, depart("cumsum", "conv", "relu"))
    assert not is_named(looped, depart("relu", "conv"))


def test_a_fault_of_a_shared_layer_is_likely_at_each_call_of_its_line() -> None:
    origin = Origin(file="net.py", line=9)
    steps = [Step(name, "conv", (), (), (), {}, origin) for name in ("conv", "conv_1")]
    for line, is_cause in ((9, True), (10, False)):
        layer = Layer("conv", "conv", Origin(file="net.py", line=line), "conv")
        departure = Departure(layer, (), "", 5.0)
        named = is_likely(known("conv_1"), Question.FAITHFUL, steps, departure, 5.0)
        assert named is is_cause


def test_a_known_fault_is_not_likely_if_it_was_never_seen_with_such_an_error() -> None:
    assert is_named(known("tanh", least_db=41.0), sqnr_db=41.0)
    assert not is_named(known("tanh", least_db=41.0), sqnr_db=40.0)
    assert is_named(known("tanh", least_db=-97.0), sqnr_db=-90.0)
    assert not is_named(known("tanh", least_db=6.0), depart("tanh"), sqnr_db=30.0)
    # Of the float program, both questions have the same error; that of a scheme has another one.
    for is_scheme in (True, False):
        fault = known("tanh", least_db=41.0, is_scheme=is_scheme)
        assert is_named(fault, question=Question.QUANTIZED, sqnr_db=41.0)
        assert is_named(fault, question=Question.QUANTIZED, sqnr_db=-101.0) is is_scheme
    for sqnr_db in (math.nan, -math.inf, -719.0):  # no sizes: not finite, or not written
        assert is_named(known("tanh", least_db=2.0), depart("tanh", sqnr_db=sqnr_db))
        assert is_named(known("tanh", least_db=2.0), sqnr_db=sqnr_db)


@pytest.mark.parametrize(
    ("facts", "question", "float16", "is_possible"),
    [
        ({}, Question.QUANTIZED, False, False),
        ({}, Question.QUANTIZED, True, True),
        ({"is_scheme": True}, Question.QUANTIZED, False, True),
        ({"is_scheme": True}, Question.FAITHFUL, False, False),
        ({}, Question.BUDGET, False, False),
        ({"only_stops": True}, Question.RUN, False, True),
        ({"only_stops": True}, Question.USABLE, False, False),  # no compiler has seen it
        ({"only_stops": True}, Question.FAITHFUL, False, False),
    ],
)
def test_a_known_fault_is_suspected_only_for_its_own_question(
    facts: dict[str, bool], question: Question, float16: bool, is_possible: bool
) -> None:
    fault = known("conv", **facts)
    suspects = order_faults([fault], question, STEPS, UNKNOWN, 5.0, is_float16=float16)
    assert suspects == [fault] * is_possible


@pytest.mark.parametrize(
    ("predicted_db", "is_scheme", "is_cause"),
    [(33.0, False, False), (33.0, True, True), (60.0, False, True), (None, False, True)],
)
def test_a_float16_program_that_is_as_accurate_as_rounding_allows_needs_no_known_fault(
    predicted_db: float | None, is_scheme: bool, is_cause: bool
) -> None:
    fault = known("tanh", is_scheme=is_scheme)
    assert is_named(fault, UNKNOWN, Question.QUANTIZED, 36.0, predicted_db) is is_cause


def tell(operator: str, numbers: Any, bits: int, behind_db: float = 10.0) -> str:
    reading = make_reading(operator, operator, numbers, behind_db, Origin(file="net.py", line=9))
    loss = Loss("x", 60.0, 10.0, 60.0, readings=tuple(filter(None, [reading])))
    advices = advise_on_numbers(loss, bits)
    return "".join(cause.text for advice in advices for cause in advice.causes)


SCORES = np.linspace(-5, 5, 20)
MASKED = np.append(SCORES, [-1e9] * 10)


def test_a_mask_is_known_by_the_numbers_that_a_softmax_reads() -> None:
    cause = tell("softmax", MASKED, 16)
    assert "-1e+09 reach softmax [net.py:9]" in cause
    assert "is 1.53e+04" in cause
    assert "a mask" in tell("softmax", np.append(SCORES, -300.0), 8)
    assert tell("softmax", np.append(SCORES, -300.0), 16) == ""
    assert tell("softmax", np.linspace(-400, 0, 99), 8) == ""  # scores of a large range
    assert tell("softmax", MASKED, FLOAT16_BITS) == ""
    assert tell("softmax", MASKED, 16, behind_db=45.0) == ""  # nothing is lost here
    assert tell("softmax", np.append(SCORES, -np.inf), 8) == ""


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        ("softmax", "use -100 in the mask instead"),
        ("exp", "multiply by a mask of ones and zeros"),
    ],
)
def test_a_mask_that_no_softmax_reads_is_multiplied(operator: str, words: str) -> None:
    reading = make_reading(operator, operator, MASKED, 10.0, Origin(file="net.py", line=9))
    assert reading
    (advice,) = advise_on_numbers(Loss("x", 60.0, 10.0, 60.0, readings=(reading,)), 16)
    assert [remedy.text.startswith(words) for remedy in advice.remedies] == [True]


@pytest.mark.parametrize(
    ("kept_db", "output_db", "certainty", "words"),
    [
        (44.4, 21.7, Certainty.PROVEN, "have 21.7 dB, and 44.4 dB if these numbers are exact"),
        (24.6, 21.7, None, ""),  # less than half of the noise
        (None, 21.7, Certainty.LIKELY, "(not tried)"),
        (44.4, None, Certainty.LIKELY, "(not tried)"),
    ],
)
def test_numbers_are_the_cause_if_the_outputs_are_better_without_their_rounding(
    kept_db: float | None, output_db: float | None, certainty: Certainty | None, words: str
) -> None:
    reading = make_reading("softmax", "softmax", MASKED, 10.0, Origin(file="net.py", line=9))
    assert reading
    readings = (structs.replace(reading, kept_db=kept_db),)
    loss = Loss("x", 60.0, 10.0, 60.0, readings=readings, output_db=output_db)
    causes = [cause for advice in advise_on_numbers(loss, 16) for cause in advice.causes]
    assert [cause.certainty for cause in causes] == [certainty] * bool(certainty)
    assert all(words in cause.text for cause in causes)


def test_a_logarithm_of_numbers_far_below_a_step_is_known_by_what_it_reads() -> None:
    cause = tell("log", np.geomspace(1e-10, 87.7, 20), 8)
    assert "numbers from 1e-10 to 87.7 reach log [net.py:9]" in cause
    assert "a step of 8 bits is 0.34" in cause
    assert "logarithm" in tell("log", np.geomspace(1e-10, 87.7, 20), 16)
    assert "logarithm" in tell("log", np.geomspace(0.04, 87.7, 20), 8)  # less than half a step
    assert tell("log", np.geomspace(0.2, 87.7, 20), 8) == ""
    assert tell("log", np.linspace(0.5, 9, 20), 8) == ""
    assert tell("log", np.geomspace(1e-10, 87.7, 20), FLOAT16_BITS) == ""
    assert tell("log", np.geomspace(1e-10, 87.7, 20), 8, behind_db=45.0) == ""
    # A quotient such as that of an inverse sigmoid: 16 bits do not help.
    reading = make_reading("log", "log", np.geomspace(1e-5, 4.49e4, 20), 5.0)
    loss = Loss("x", 60.0, 10.0, 60.0, readings=tuple(filter(None, [reading])))
    assert spans_more_than(loss, 16)
    reading = make_reading("log", "log", np.geomspace(0.04, 87.7, 20), 5.0)
    loss = Loss("x", 60.0, 10.0, 60.0, readings=tuple(filter(None, [reading])))
    assert not spans_more_than(loss, 16)


def test_a_comparison_for_equality_is_a_cause_where_the_accuracy_is_lost() -> None:
    origin = Origin(file="net.py", line=9)
    for name, behind_db, is_cause in (
        ("eq", 5.0, True),
        ("Equal 'same'", 5.0, True),
        ("eq", 35.0, False),
        ("mul", 5.0, False),
    ):
        all_advice = advise_on_numbers(Loss(name, 60.0, behind_db, 60.0, origin), 8)
        texts = [cause.text for advice in all_advice for cause in advice.causes]
        assert [f"{name} [net.py:9] tests" in text for text in texts] == [True] * is_cause


def test_decisions_on_rounded_numbers_are_a_cause_and_equality_is_named_once() -> None:
    origin = Origin(file="net.py", line=9)
    decisions = tuple(Decision(name, share, origin) for name, share in (("eq", 0.2), ("gt", 1e-3)))
    lost = Loss("eq", 60.0, 5.0, 60.0, origin, decided=LostDecisions(decisions, 5.0, 41.0))
    (advice,) = advise_on_decisions(lost)
    text = advice.causes[0].text
    assert "eq [net.py:9] (20 % of" in text
    assert "gt [net.py:9] (less than 1 %" in text
    assert "(proven: with its decisions, the outputs have 41.0 dB instead of 5.0)" in text
    assert advice.causes[0].certainty is Certainty.PROVEN
    assert advice.places == origin.places
    assert advise_on_numbers(lost, 8) == ()
    assert advise_on_decisions(None) == advise_on_decisions(Loss("x", 9.0, 5.0, 60.0)) == ()


@pytest.mark.parametrize(
    ("weights_db", "output_db", "finer_db", "words"),
    [
        (8.0, 31.0, 33.0, "the outputs have 7.0 dB, and 8.0 dB without that rounding)"),
        (8.0, 7.2, 31.0, ""),
        (40.0, 7.2, 31.0, "the rounding of mul, sin (proven: on the CPU, the outputs have 7.2 dB,"),
        # Both lose everything, as of large angles in 8 bits: neither is the cause alone.
        (8.0, 7.2, 9.0, ""),
        (40.0, 7.2, None, ""),
        (8.0, None, None, ""),
    ],
)
def test_whose_rounding_loses_the_accuracy_was_tried(
    weights_db: float, output_db: float | None, finer_db: float | None, words: str
) -> None:
    loss = Loss(
        "sin", 60.0, 7.0, weights_db, nodes=("mul", "sin"), output_db=output_db, finer_db=finer_db
    )
    causes = [cause for advice in advise_on_rounding(loss, 7.0) for cause in advice.causes]
    assert [cause.certainty for cause in causes] == [Certainty.PROVEN] * bool(words)
    assert all(words in cause.text for cause in causes)
    assert advise_on_rounding(structs.replace(loss, is_float16=True), 7.0) == ()
    assert advise_on_rounding(None, 7.0) == ()


def test_the_rounding_of_numbers_that_are_smaller_than_a_step_is_described() -> None:
    coarse = Coarse("mul", 9.23, 1378.0, 0.99, Origin(file="net.py", line=3))
    loss = Loss(
        "sin", 60.0, 7.0, 40.0, nodes=("mul",), output_db=7.2, finer_db=31.0, coarse=(coarse,)
    )
    (advice,) = advise_on_rounding(loss, 7.0)
    assert (
        "the rounding of mul: mul [net.py:3] has numbers up to 1.38e+03, so a step is 9.2, and 99 %"
        " of its numbers become zero (proven: on the CPU,"
    ) in advice.causes[0].text
    assert advice.remedies


@pytest.mark.parametrize(
    ("fitted_db", "finer_db", "starts"),
    [
        (24.0, 31.0, ["the calibrated ranges: input 'x' is", "the rounding of mul"]),
        (30.0, 31.0, ["the calibrated ranges: input 'x' is"]),
        (9.0, 31.0, ["the rounding of mul"]),
        (12.0, 8.0, ["the calibrated ranges: input 'x' is"]),
        (9.0, 9.0, []),
        (None, 31.0, ["the rounding of mul"]),
    ],
)
def test_ranges_are_a_cause_if_others_are_better(
    fitted_db: float | None, finer_db: float, starts: list[str]
) -> None:
    misfits = tuple(
        Clipped(name=name, is_input=name != "sin", low=-16, high=16, seen_low=-1, seen_high=1)
        for name in ("input 'x'", "sin")
    )
    loss = Loss(
        *("sin", 60.0, 7.0, 40.0),
        nodes=("mul",),
        output_db=7.2,
        finer_db=finer_db,
        fitted_db=fitted_db,
        misfits=misfits,
    )
    causes = [cause for advice in advise_on_rounding(loss, 7.0) for cause in advice.causes]
    assert [cause.certainty for cause in causes] == [Certainty.PROVEN] * len(starts)
    for cause, start in zip(causes, starts, strict=True):
        assert cause.text.startswith(start)
        assert "sin is calibrated" not in cause.text  # it follows from the input
    nowhere = structs.replace(loss, misfits=())
    assert not any("ranges" in advice.causes[0].text for advice in advise_on_rounding(nowhere, 7.0))


@pytest.mark.parametrize(
    ("weights_db", "output_db", "whole_db", "is_named"),
    [
        (4.2, 6.4, 2.2, True),
        (4.2, 7.3, 2.2, False),
        (9.0, 4.0, 2.2, False),
        (4.2, 6.4, None, False),
    ],
)
def test_weights_and_activations_that_each_lose_the_accuracy_are_named_together(
    weights_db: float, output_db: float, whole_db: float | None, is_named: bool
) -> None:
    loss = Loss("mul", 6.2, 2.1, weights_db, output_db=output_db, whole_db=whole_db)
    texts = [advice.causes[0].text for advice in advise_on_rounding(loss, 0.8)]
    assert [text.startswith("the weights and the rounding") for text in texts] == [True] * is_named


def test_large_angles_are_known_by_the_numbers_that_sin_and_cos_read() -> None:
    assert "up to 2100 reach sin [net.py:9], where a step of float16 is 2" in tell(
        "sin", np.arange(2101.0), FLOAT16_BITS
    )
    assert "where a step of 8 bits is 0.2" in tell("cos", np.linspace(0, 51, 9), 8)
    assert tell("sin", np.linspace(0, 150, 9), FLOAT16_BITS) == ""
    assert tell("sin", np.linspace(0, 2100, 9), 16) == ""
    assert tell("sin", np.linspace(0, 2100, 9), 0) == ""


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((3.5, 285367.0), "overflow: numbers up to 2.85e+05 come from pow [net.py:9]"),
        ((1e-12, 5.5e-8), "underflow: pow [net.py:9] computes with numbers that are too small"),
    ],
)
def test_numbers_that_float16_cannot_hold_are_a_cause_where_the_program_is_not_right(
    numbers: tuple[float, float], words: str
) -> None:
    origin = Origin(file="net.py", line=9)
    beyond = make_reading("pow", "pow", numbers, 4.8, origin)
    loss = Loss("pow", 60.0, 4.8, 60.0, is_float16=True, beyond=beyond)
    (advice,) = advise_on_range(loss, UNKNOWN)
    assert words in advice.causes[0].text
    assert advice.places == origin.places
    wrong, right = Layer("mul", "mul", origin), Layer("pow", "pow", origin)
    assert advise_on_range(loss, Departure(wrong, (), "", 5.0)) == (advice,)
    assert advise_on_range(loss, Departure(wrong, (right,), "", 5.0)) == ()
    assert advise_on_range(loss, Departure(right, (right,), "", 5.0)) == (advice,)
    # QNN returned 104733 right, and the product that read it was wrong.
    returned = structs.replace(loss, beyond=structs.replace(beyond, low=0.0, high=104733.0))
    assert len(advise_on_range(returned, Departure(wrong, (right,), "", 5.0))) == 1
    assert advise_on_range(returned, Departure(wrong, (right, Layer("add", "add")), "", 5.0)) == ()
    assert advise_on_range(Loss("pow", 60.0, 4.8, 60.0), UNKNOWN) == ()
    assert advice.causes[0].certainty is Certainty.LIKELY
    # It is proven by the outputs without the range, unless the program is worse than it explains.
    measured = structs.replace(loss, output_db=5.2, wide_db=61.0)
    for sqnr_db, certainty in ((4.0, Certainty.PROVEN), (-9.0, Certainty.LIKELY)):
        (advice,) = advise_on_range(measured, UNKNOWN, sqnr_db)
        assert advice.causes[0].certainty is certainty
        assert ("61.0 dB" in advice.causes[0].text) is (certainty is Certainty.PROVEN)


@pytest.mark.parametrize(
    ("operator", "largest", "fix"),
    [
        ("exp", 285367.0, "move a factor behind it into it (exp(x) * c as exp(x + log(c)))"),
        ("exp", 5.5e-8, "scale the values before this operator"),
        ("pow", 285367.0, "scale the values before this operator"),
    ],
)
def test_an_exp_that_overflows_may_take_a_factor_that_is_behind_it(
    operator: str, largest: float, fix: str
) -> None:
    beyond = make_reading(operator, operator, (1e-12, largest), 4.8)
    (advice,) = advise_on_range(Loss(operator, 60.0, 4.8, 60.0, beyond=beyond), UNKNOWN)
    assert advice.remedies[0].text.startswith(fix)


def test_a_reciprocal_of_numbers_below_one_is_a_cause_unless_it_was_right() -> None:
    origin = Origin(file="net.py", line=7)

    def advise(largest: float, *right: Layer, operator: str = "reciprocal") -> tuple[Advice, ...]:
        reading = make_reading(operator, "Reciprocal r", (0.2, largest), 50.0, origin)
        assert reading
        loss = Loss("r", 60.0, 50.0, 60.0, readings=(reading,))
        departure = Departure(Layer("Mul", "Mul"), right, "", 5.0) if right else UNKNOWN
        return advise_on_reciprocals(loss, departure)

    (advice,) = advise(0.6)
    assert "up to 0.6 reach Reciprocal r [net.py:7]" in advice.causes[0].text
    assert advice.places == origin.places
    assert advise(1.05) == ()
    assert advise(0.6, operator="log") == ()
    assert advise(0.6, Layer("Sqrt", "Sqrt", origin))
    assert advise(0.6, Layer("Reciprocal", "Reciprocal r", origin)) == ()
    assert advise_on_reciprocals(None, UNKNOWN) == ()


@pytest.mark.parametrize(
    ("departure", "gain", "bits", "is_cause"),
    [
        (depart("softmax", "mul"), 1.0076, 8, True),
        (depart("matmul", "mul"), 1.019, 8, True),
        (depart("tanh", "mul", "matmul"), 1.019, 8, False),  # the softmax was right
        (depart("matmul"), 1.019, 8, False),  # no layer is known to be right
        (depart("softmax", "mul"), 1.003, 8, False),
        (depart("softmax", "mul"), 0.98, 8, False),
        (depart("softmax", "mul"), 1.0076, 16, False),
        (UNKNOWN, 1.0076, 8, False),
    ],
)
def test_a_softmax_is_the_cause_of_a_gain_if_the_loss_starts_there(
    departure: Departure, gain: float, bits: int, is_cause: bool
) -> None:
    names = ("mul", "softmax", "matmul", "tanh")
    for front_end, is_known in (("executorch", is_cause), ("onnx", False)):
        steps = [Step(name, name, (), (), (), front_end=front_end) for name in names]
        assert bool(advise_on_softmax(steps, departure, gain, bits)) is is_known
