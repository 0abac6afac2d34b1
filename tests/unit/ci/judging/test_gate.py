"""The gate accepts what is right and rejects everything else, each limit by itself."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from ci.facts.finding import Certainty, Question
from ci.judging.figures import Array, measure, measure_pooled, share_equal
from ci.judging.gate import Expected, Judgement, OutputJudgement, References, judge
from ci.judging.noise import Excess
from ci.judging.verdict import APART, CALIBRATE, CaseFigures, judge_outputs, summarize_figures
from ci.models.tensors import OutputPart, Range, TensorInfo
from ci.report.schema import OutputThreshold, Threshold
from tests.stand_ins.lanes import make_references, predict

OPEN = Threshold(scheme="8a8w")
SHAPE = (4, 1, 8, 25)  # samples, batch, channels, places


def draw(seed: int, shape: tuple[int, ...] = SHAPE) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def expect(values: Array, low: Array | None = None, high: Array | None = None) -> Expected:
    return Expected(values, values if low is None else low, values if high is None else high)


def say(judgement: Judgement) -> list[str]:
    return [reason.text for reason in judgement.findings]


def judge_one(
    limits: Threshold,
    output: Array,
    eager: Expected,
    quantized: Expected | None = None,
    parts: tuple[OutputPart, ...] = (),
) -> Judgement:
    """Judged with so much noise predicted that only the limits count."""
    info = TensorInfo(str(output.dtype), output.shape[1:], parts)
    noise = predict(eager.values, 1e3 * draw(50, (8, *output.shape)))
    references = References([eager], None if quantized is None else [quantized], [noise])
    return judge(references, [output], [info], limits)


NEAR = draw(1)
FAR = NEAR + 0.05 * draw(2)
OUTPUT = NEAR + 0.02 * draw(3)
IDS = np.arange(200).reshape(4, 50) % 10
OFF = np.where(np.arange(200).reshape(4, 50) == 7, IDS + 1, IDS)
PARTS = (OutputPart((Range(1, 0, 3),)), OutputPart((Range(1, 3, 8),)))


# Per limit: the value that the outputs meet exactly, and the direction that is stricter.
EXACT: dict[str, tuple[float, float]] = {
    "min_sqnr_db": (measure(NEAR, FAR).sqnr_db, 1),
    "min_sqnr_db_all": (measure_pooled(NEAR, FAR), 1),
    "min_cosine": (measure(NEAR, FAR).cosine, 1),
    "max_abs": (measure(NEAR, OUTPUT).max_abs, -1),
    "min_sqnr_db_quantized": (measure(FAR, OUTPUT).sqnr_db, 1),
    "min_cosine_quantized": (measure(FAR, OUTPUT).cosine, 1),
}


@pytest.mark.parametrize("name", EXACT)
def test_each_limit_is_met_by_its_exact_value_and_not_by_the_next_float(name: str) -> None:
    value, stricter = EXACT[name]
    for limit, accepted in ((value, True), (math.nextafter(value, stricter * math.inf), False)):
        limits = msgspec.structs.replace(OPEN, **{name: limit})
        judgement = judge_one(limits, OUTPUT, expect(NEAR), expect(FAR))
        assert judgement.accepted == accepted, say(judgement)
        assert len(judgement.findings) == (not accepted)


@pytest.mark.parametrize(
    ("name", "limit", "question", "figures"),
    [
        ("min_sqnr_db", 90, Question.QUANTIZED, "24.7 dB"),
        ("min_sqnr_db_all", 90, Question.QUANTIZED, "25.8 dB"),
        ("min_cosine", 1, Question.QUANTIZED, "0.99829"),
        ("max_abs", 0.01, Question.QUANTIZED, "0.0666"),
        ("max_abs", 0, Question.QUANTIZED, "0.0666"),
        ("min_sqnr_db_quantized", 90, Question.FAITHFUL, "23.7 dB"),
        ("min_cosine_quantized", 1, Question.FAITHFUL, "0.99789"),
    ],
)
def test_a_reason_names_the_question_the_figure_and_the_limit(
    name: str, limit: float, question: Question, figures: str
) -> None:
    limits = msgspec.structs.replace(OPEN, **{name: limit})
    (reason,) = judge_one(limits, OUTPUT, expect(NEAR), expect(FAR)).findings
    assert reason.question is question
    assert figures in reason.text
    assert f"{limit:g}" in reason.text


def test_without_a_quantized_model_the_program_is_compared_with_float32() -> None:
    limits = msgspec.structs.replace(OPEN, min_sqnr_db_all=40.0)
    (reason,) = judge_one(limits, OUTPUT, expect(NEAR)).findings
    assert (reason.question, "33.8 dB" in reason.text) == (Question.QUANTIZED, True)


def test_a_program_far_from_the_quantized_model_is_not_faithful() -> None:
    info = TensorInfo("float32", SHAPE[1:])
    references = make_references(NEAR, FAR, noise=0.01)
    assert judge(references, [FAR + 0.01 * draw(4)], [info], OPEN).accepted
    wrong = FAR + 0.01 * draw(4)
    wrong[:, :, 2] = 0
    judgement = judge(references, [wrong], [info], OPEN)
    assert {reason.question for reason in judgement.findings} == {Question.FAITHFUL}
    assert "axis 1, channel 2 of 8" in say(judgement)[0]
    wide = msgspec.structs.replace(OPEN, max_above_noise_db=60.0)
    assert judge(references, [wrong], [info], wide).accepted


@pytest.mark.parametrize(
    ("noise", "scheme", "question"),
    [
        (0.9, 3.0, Question.QUANTIZED),
        (0.5, 3.0, Question.FAITHFUL),  # rounding leaves enough to judge the program
        (0.9, 0.05, Question.FAITHFUL),  # the quantized model is good
    ],
)
def test_a_scheme_too_noisy_to_judge_the_program_fails_as_poorly_quantized(
    noise: float, scheme: float, question: Question
) -> None:
    eager, quantized = draw(1), draw(1) + scheme * draw(2)
    references = References(
        [expect(eager)],
        [expect(quantized)],
        [predict(quantized, noise * np.std(quantized) * draw(50, (8, *SHAPE)))],
    )
    limits = Threshold(scheme="8a8w", min_sqnr_db_all=15.0, max_above_noise_db=10.0)
    info = TensorInfo("float64", SHAPE[1:])
    judgement = judge(references, [quantized + 20 * np.std(quantized) * draw(3)], [info], limits)
    assert judgement.findings[0].question is question


def test_without_a_noise_prediction_only_outputs_equal_to_the_reference_pass() -> None:
    info = TensorInfo("float32", SHAPE[1:])
    references = make_references(NEAR, FAR)
    assert judge(references, [FAR], [info], OPEN).accepted
    assert not judge(references, [OUTPUT], [info], OPEN).accepted


@pytest.mark.parametrize(
    ("wrong", "accepted"),
    [
        (lambda right: right, True),
        (lambda right: right + 0.25, True),
        (lambda right: right * 1.01, False),
        (lambda right: np.where(np.arange(200) == 7, right + 0.1, right), False),
        (lambda right: np.where(np.arange(200) == 7, 32.25, right), False),
        (lambda right: np.where(np.arange(200) == 7, 32.0, right), True),  # QNN's 256 of 255
        (lambda right: np.where(np.arange(200) == 7, 31.75, right), True),
        (lambda right: np.where(np.arange(200) == 7, -32.25, right), False),
        (lambda right: np.where(np.arange(200) == 7, -32.0, right), True),
    ],
)
def test_a_quantized_output_may_only_hold_multiples_of_its_step_in_range(
    wrong: Any, accepted: bool
) -> None:
    right = np.round(draw(9, (4, 200)) * 4) / 4
    info = TensorInfo("float32", (200,), step=0.25, lowest=-128, highest=127)
    references = References([expect(right)], None, [predict(right, 9 * draw(5, (8, 4, 200)))])
    judgement = judge(references, [np.float32(wrong(right))], [info], OPEN)
    assert judgement.accepted == accepted, say(judgement)


FLOAT16_SHARE = float(np.float16(0.19722012)) / 0.19722012  # 1.00023


@pytest.mark.parametrize(
    ("highest", "share", "accepted"),
    [
        (127, 1.0, True),
        (127, FLOAT16_SHARE, True),  # QNN rounded the scale of the last product to float16
        (127, 2 - FLOAT16_SHARE, False),
        (127, 1 + 4 * (FLOAT16_SHARE - 1), False),
        (32767, FLOAT16_SHARE, False),  # no program with 16 bits was seen to
    ],
)
def test_the_scale_of_an_8_bit_output_may_be_rounded_to_float16(
    highest: int, share: float, accepted: bool
) -> None:
    levels = np.random.default_rng(11).integers(100, 120, (4, 200))
    right = np.float32(levels * 0.19722012)
    info = TensorInfo("float32", (200,), step=0.19722012, lowest=-highest - 1, highest=highest)
    references = References([expect(right)], None, [predict(right, 9 * draw(5, (8, 4, 200)))])
    judgement = judge(references, [np.float32(right * share)], [info], OPEN)
    assert judgement.accepted == accepted, say(judgement)


def test_an_output_with_a_step_and_no_range_may_hold_any_value() -> None:
    right = np.round(draw(9, (4, 200)) * 4) / 4
    references = References([expect(right)], None, [predict(right, 9 * draw(5, (8, 4, 200)))])
    for highest, accepted in ((0, True), (64, False)):
        info = TensorInfo("float32", (200,), step=0.25, lowest=-highest, highest=highest)
        between = [np.float32(right + 0.1)]
        assert judge(references, between, [info], OPEN).accepted is accepted


def test_a_grid_of_1_in_65536_is_accepted_as_one_of_1_in_65535() -> None:
    levels = np.random.default_rng(3).integers(0, 65536, (4, 200))
    info = TensorInfo("float32", (200,), step=1 / 65535, lowest=0, highest=65535)
    right = levels / 65535
    references = References([expect(right)], None, [predict(right, draw(5, (8, 4, 200)))])
    assert judge(references, [np.float32(levels / 65536)], [info], OPEN).accepted
    assert not judge(references, [np.float32((levels // 4 + 0.4) / 65536)], [info], OPEN).accepted


def test_an_output_may_have_limits_of_its_own() -> None:
    output_limits = (OutputThreshold(output=1, min_sqnr_db_all=90.0),)
    limits = msgspec.structs.replace(OPEN, min_sqnr_db_all=20.0, outputs=output_limits)
    infos = [TensorInfo("float64", SHAPE[1:])] * 2
    references = References([expect(NEAR)] * 2, [expect(FAR)] * 2)
    (reason,) = judge(references, [FAR, FAR], infos, limits).findings
    assert (reason.subject, reason.headline[:31]) == ("output 1", "not quantized well: output 1: t")


def test_an_index_within_its_bounds_counts_as_equal_but_not_as_exactly_equal() -> None:
    values = np.array([[0, 0, 0, 0]])
    references = References([expect(values, values, values + 1)], None)
    info = TensorInfo("int64", (4,))
    judgement = judge(references, [np.array([[0, 0, 1, 2]])], [info], OPEN)
    (output,) = judgement.outputs
    assert (output.equal, output.equal_quantized, output.equal_exact) == (0.75, None, 0.5)


@pytest.mark.parametrize("against", ["float32", "quantized"])
def test_a_missed_share_of_equal_ids_names_the_float32_or_quantized_model(against: str) -> None:
    name = {"float32": "min_equal", "quantized": "min_equal_quantized"}[against]
    limits = msgspec.structs.replace(OPEN, **{name: 1.0})
    (reason,) = judge_one(limits, OFF, expect(IDS), expect(IDS)).findings
    assert f"those of the {against} model" in reason.text
    faithful = against == "quantized"
    assert reason.question is (Question.FAITHFUL if faithful else Question.QUANTIZED)


@pytest.mark.parametrize("against", ["min_equal", "min_equal_quantized"])
def test_a_limit_on_the_share_of_equal_ids_is_met_by_its_exact_value(against: str) -> None:
    share = share_equal(IDS, IDS, IDS, OFF)
    assert 0.99 < share < 1
    shifted = expect(OFF)
    pair = (expect(IDS), shifted) if against == "min_equal" else (shifted, expect(IDS))
    for limit, accepted in ((share, True), (math.nextafter(share, 2), False)):
        limits = msgspec.structs.replace(OPEN, **{against: limit})
        assert judge_one(limits, OFF, *pair).accepted == accepted


@pytest.mark.parametrize("quantized", [True, False])
def test_a_part_of_a_concatenation_has_to_be_as_near_to_float32_as_a_tensor(
    quantized: bool,
) -> None:
    loud = np.concatenate([draw(4, (4, 1, 3, 25)) * 100, draw(5, (4, 1, 5, 25)) * 0.5], axis=2)
    wrong = loud.copy()
    wrong[:, :, 3:] = 0
    limits = msgspec.structs.replace(OPEN, scheme="16a8w", min_sqnr_db_all=30.0)
    quantized_output = expect(wrong) if quantized else None
    (reason,) = judge_one(limits, wrong, expect(loud), quantized_output, parts=PARTS).findings
    assert (reason.question, "part 3:8" in reason.text) == (Question.QUANTIZED, True)
    assert judge_one(limits, loud, expect(loud), expect(loud), parts=PARTS).accepted


@pytest.mark.parametrize(
    ("step", "share", "cause"),
    [
        (2.0, 1.0, "the output has steps of 2 for all of its parts, and the largest number of"),
        # The steps alone lose too much of the part, which has lost more.
        (1.0, 0.0, "the output has steps of 1 for all of its parts"),
        # The part has lost more than these steps, or steps that other numbers do not have.
        (0.25, 0.0, ""),
        (0.0, 0.0, ""),
    ],
)
def test_a_part_that_is_smaller_than_a_step_of_its_output_is_lost_by_it(
    step: float, share: float, cause: str
) -> None:
    loud = np.concatenate([draw(4, (4, 1, 3, 25)) * 8, draw(5, (4, 1, 5, 25)) * 0.5], axis=2)
    quantized = np.round(loud / step) * step if step else loud.copy()
    quantized[:, :, 3:] *= share
    limits = msgspec.structs.replace(OPEN, scheme="8a8w", min_sqnr_db_all=15.0)
    judged = judge_one(limits, quantized, expect(loud), expect(quantized), parts=PARTS)
    (reason,) = judged.findings
    assert "part 3:8" in reason.text
    assert [named.certainty for named in reason.causes] == [Certainty.PROVEN] * bool(cause)
    assert all(named.text.startswith(cause) for named in reason.causes)
    assert all(("(in part, proven" in named.text) is (not share) for named in reason.causes)


def test_sqnr_max_abs_and_cosine_of_a_known_error() -> None:
    figures = measure(np.array([[3.0, 4.0]]), np.array([[3.0, 4.5]]))
    assert figures.sqnr_db == pytest.approx(10 * math.log10(25 / 0.25))
    assert figures.max_abs == 0.5
    assert figures.cosine == pytest.approx(27 / (5 * math.hypot(3, 4.5)))


def test_equal_outputs_are_infinitely_good_and_nan_infinitely_bad() -> None:
    reference = np.array([[1.0, -2.0]])
    assert measure(reference, reference.copy()).sqnr_db == math.inf
    assert measure(reference, np.array([[np.nan, 1.0]])).sqnr_db == -math.inf
    (reason,) = judge_one(OPEN, np.array([[np.nan, 1.0]]), expect(reference)).findings
    assert (reason.question, "NaN" in reason.text) == (Question.FAITHFUL, True)


@pytest.mark.parametrize("place", [(2, 0), (0, 1), (3, 1)])
def test_one_wrong_input_set_of_one_output_fails_and_is_named(
    place: tuple[int, int],
) -> None:
    right = [draw(14), draw(15)]
    outputs = [values.copy() for values in right]
    outputs[place[1]][place[0]] = 0
    infos = [TensorInfo("float64", SHAPE[1:])] * 2
    noise = [predict(values, 0.01 * draw(50, (8, *SHAPE))) for values in right]
    references = References([expect(values) for values in right], None, noise)
    assert judge(references, right, infos, OPEN).accepted
    (reason,) = say(judge(references, outputs, infos, OPEN))
    assert reason.startswith(f"not faithful: output {place[1]}: ")
    assert f"sample {place[0]} of 4" in reason


def test_a_mask_is_judged_by_the_few_bits_that_are_set_too() -> None:
    mask = np.zeros((4, 1000), np.uint8)
    mask[:, :2] = 1
    limits = msgspec.structs.replace(OPEN, min_equal=0.99)
    assert judge_one(limits, mask, expect(mask)).accepted
    assert (mask == 0).mean() > 0.99
    assert not judge_one(limits, np.zeros_like(mask), expect(mask)).accepted


def test_ids_that_are_all_off_by_one_are_rejected_and_a_tie_is_not() -> None:
    ids = np.random.default_rng(16).integers(20, 900, (4, 16))
    limits = msgspec.structs.replace(OPEN, min_equal=0.995)
    assert measure(ids, ids + 1).sqnr_db > 50
    assert not judge_one(limits, ids + 1, expect(ids)).accepted
    flipped = ids.copy()
    flipped[1, 3] += 5
    assert not judge_one(limits, flipped, expect(ids)).accepted
    assert judge_one(limits, flipped, expect(ids, high=flipped)).accepted
    flipped[1, 3] += 1
    assert not judge_one(limits, flipped, expect(ids, high=flipped - 1)).accepted


def test_the_share_of_equal_elements_is_measured_against_each_model_separately() -> None:
    """Of ten elements, all equal those of the quantized model, nine the exact ones, and eight those
    of the float model, where one element may have two values."""
    quantized = np.arange(10).reshape(1, 10)
    eager = np.where(quantized >= 7, quantized + 20, quantized)
    output = np.where(quantized == 5, 6, quantized)
    low, high = np.where(quantized == 5, 5, quantized), np.where(quantized == 5, 6, quantized)
    limits = msgspec.structs.replace(OPEN, min_equal=0.7)
    (output_verdict,) = judge_one(
        limits, output, expect(eager, high=np.maximum(eager, high)), expect(quantized, low, high)
    ).outputs
    shares = [output_verdict.equal, output_verdict.equal_quantized, output_verdict.equal_exact]
    assert shares == pytest.approx([6 / 9, 1.0, 8 / 9])
    assert [finding.question for finding in output_verdict.findings] == [Question.QUANTIZED]


def test_each_wrong_output_is_described_and_only_wrong_ones() -> None:
    right = [draw(seed, (4, 1, 8, 25)) for seed in (1, 2, 3)]
    infos = [TensorInfo("float64", SHAPE[1:])] * 3
    references = References([expect(values) for values in right])
    outputs = [0 * right[0], right[1], 2 * right[2]]
    verdict = judge_outputs(references, outputs, infos, infos, OPEN)
    assert [line.partition(";")[0] for line in verdict.advice.seen] == [
        "output 0: all zero",
        "output 2: 2 times the right values",
    ]
    assert [finding.subject for finding in verdict.findings] == ["output 0", "output 2"]
    (only,) = judge_outputs(
        References([expect(right[0])]), outputs[:1], infos[:1], infos[:1], OPEN
    ).advice.seen
    assert only.startswith("all zero")


def test_the_place_of_a_failed_case_is_where_a_limit_is_exceeded_most() -> None:
    """Each output has its own margin: 18 dB above the prediction may be allowed."""
    outputs = (
        OutputJudgement(excesses=(Excess("row 1 of 2", 18.0, -12.0),)),
        OutputJudgement(excesses=(Excess("channel 3 of 16", 15.0, 5.0), Excess("gain", 40.0, 1.0))),
        OutputJudgement(equal=1.0),
    )
    figures = summarize_figures(Judgement(outputs))
    place = "output 1, channel 3 of 16"
    assert (figures.above_noise_db, figures.above_noise_place) == (15.0, place)
    assert summarize_figures(Judgement(outputs[2:])) == CaseFigures(equal=1.0)


@pytest.mark.parametrize(("parts", "tried"), [((), CALIBRATE), (PARTS, APART)])
def test_a_scheme_that_is_poor_for_an_output_or_part_is_advised_on(
    parts: tuple[OutputPart, ...], tried: str
) -> None:
    rights, coarse = [draw(1), draw(2)], [draw(1), draw(2) + 0.5 * draw(3)]
    references = References(
        [expect(right) for right in rights], [expect(values) for values in coarse]
    )
    infos = [TensorInfo("float64", SHAPE[1:], output_parts) for output_parts in ((), parts)]
    verdict = judge_outputs(
        references, coarse, [], infos, msgspec.structs.replace(OPEN, min_sqnr_db_all=20.0)
    )
    assert {(finding.question, finding.subject) for finding in verdict.findings} == {
        (Question.QUANTIZED, "output 1")
    }
    assert verdict.advice.remedies[0].text.startswith(tried)
