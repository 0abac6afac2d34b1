"""The gate accepts what is right and rejects everything else, each limit by itself."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from ci.judging.channels import find_step, worst_channel
from ci.judging.figures import (
    Array,
    Figures,
    fit_line,
    measure,
    measure_pooled,
    share_equal,
)
from ci.judging.gate import Expected, Judgement, References, judge
from ci.models.tensors import TensorInfo
from ci.report.schema import Threshold

OPEN = Threshold(scheme="8a8w")
SHAPE = (4, 1, 8, 25)  # input sets, batch, channels, places


def draw(seed: int, shape: tuple[int, ...] = SHAPE) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def expect(values: Array, low: Array | None = None, high: Array | None = None) -> Expected:
    return Expected(values, values if low is None else low, values if high is None else high)


def judge_one(
    limits: Threshold,
    output: Array,
    eager: Expected,
    quantized: Expected | None = None,
    joined: tuple[int, ...] = (),
) -> Judgement:
    info = TensorInfo(str(output.dtype), output.shape[1:], 1, joined)
    both = References([eager], None if quantized is None else [quantized])
    return judge(both, [output], [info], limits)


NEAR = draw(1)
FAR = NEAR + 0.05 * draw(2)
OUTPUT = NEAR + 0.02 * draw(3)
IDS = np.arange(200).reshape(4, 50) % 10
OFF = np.where(np.arange(200).reshape(4, 50) == 7, IDS + 1, IDS)
PARTS = (3, 5)


# Of each limit: its value where the outputs meet it exactly, and which way is stricter.
FIT = fit_line(FAR, OUTPUT)
EXACT: dict[str, tuple[float, float]] = {
    "min_sqnr_db": (measure(NEAR, OUTPUT).sqnr_db, 1),
    "min_cosine": (measure(NEAR, OUTPUT).cosine, 1),
    "max_abs": (measure(NEAR, OUTPUT).max_abs, -1),
    "min_sqnr_db_quantized": (measure(FAR, OUTPUT).sqnr_db, 1),
    "min_cosine_quantized": (measure(FAR, OUTPUT).cosine, 1),
    "max_nearer_db": (measure_pooled(NEAR, OUTPUT) - measure_pooled(NEAR, FAR), -1),
    "max_gain_error": (abs(FIT.gain) - FIT.gain_noise, -1),
    "max_offset": (abs(FIT.offset) - FIT.offset_noise, -1),
}


@pytest.mark.parametrize("name", EXACT)
def test_each_limit_by_itself_is_met_exactly_and_missed_by_a_hair(name: str) -> None:
    value, stricter = EXACT[name]
    for limit, accepted in ((value, True), (math.nextafter(value, stricter * math.inf), False)):
        limits = msgspec.structs.replace(OPEN, **{name: limit})
        judgement = judge_one(limits, OUTPUT, expect(NEAR), expect(FAR))
        assert judgement.accepted == accepted, judgement.reasons
        assert len(judgement.reasons) == (not accepted)


@pytest.mark.parametrize(
    ("name", "limit", "reason"),
    [
        ("min_sqnr_db", 90, "SQNR 33.1 dB against the float32 eager model, 90 dB wanted"),
        ("min_cosine", 1, "cosine 0.99975 against the float32 eager model, 1 wanted"),
        ("max_abs", 0.01, "an element is 0.0666 off, 0.01 allowed"),
        ("max_abs", 0, "an element is 0.0666 off, 0 allowed"),
        (
            "min_sqnr_db_quantized",
            90,
            "SQNR 23.7 dB against the quantized eager model, 90 dB wanted",
        ),
        ("min_cosine_quantized", 1, "cosine 0.99789 against the quantized eager model, 1 wanted"),
        ("max_gain_error", 0, "gain 0.9000 against the quantized eager model, 1 +- 0 wanted"),
        ("max_offset", 0, "offset of 0.2000 standard deviations against the quantized"),
        (
            "min_sqnr_db_channel",
            20,
            "SQNR 0.0 dB in channel 2 of 8 along axis 1 against the quantized",
        ),
    ],
)
def test_a_reason_names_the_figure_the_model_and_the_limit(
    name: str, limit: float, reason: str
) -> None:
    limits = Threshold(**{"scheme": "16a16w", name: limit})
    dead = FAR.copy()
    dead[:, :, 2] = 0
    shifted = FAR + 0.2 * FAR.std()
    outputs = {"max_gain_error": 0.9 * FAR, "max_offset": shifted, "min_sqnr_db_channel": dead}
    wrong = outputs.get(name, OUTPUT)
    (told,) = judge_one(limits, wrong, expect(NEAR), expect(FAR)).reasons
    assert told.startswith(reason)


@pytest.mark.parametrize("against", ["float32", "quantized"])
def test_a_share_names_the_model(against: str) -> None:
    name = {"float32": "min_equal", "quantized": "min_equal_quantized"}[against]
    limits = msgspec.structs.replace(OPEN, **{name: 1.0})
    (told,) = judge_one(limits, OFF, expect(IDS), expect(IDS)).reasons
    assert told.endswith(
        f"of the elements equal those of the {against} eager model, 100.00% wanted"
    )


def test_figures_are_kept_where_nothing_else_can_be_measured() -> None:
    silent = np.zeros(SHAPE)
    limits = msgspec.structs.replace(OPEN, max_abs=0.5)
    (one,) = judge_one(limits, silent + 1, expect(silent), expect(silent + 0.5)).outputs
    assert one.reasons == ("an element is 1 off, 0.5 allowed",)
    assert one.float_figures == measure(silent, silent + 1)
    assert one.quantized_figures == measure(silent + 0.5, silent + 1)
    (one,) = judge_one(limits, silent + 1, expect(silent), expect(silent)).outputs
    assert (one.reasons, one.fit) == (("an element is 1 off, 0.5 allowed",), None)
    assert one.float_figures == one.quantized_figures == measure(silent, silent + 1)
    (one,) = judge_one(OPEN, silent + np.nan, expect(NEAR)).outputs
    assert one.float_figures == Figures(-math.inf, -1.0, math.inf)
    assert measure(silent, NEAR).sqnr_db == -math.inf
    assert measure(silent, NEAR).cosine == 0.0


def test_the_limit_of_a_channel_is_met_exactly_and_missed_by_a_hair() -> None:
    output = FAR + 0.001 * draw(17)
    output[:, :, 3] += 0.2 * draw(18)[:, :, 3]
    found = worst_channel(FAR, output, 16, 10.0)
    assert found
    assert found.place == "channel 3 of 8 along axis 1"
    for limit, accepted in ((found.sqnr_db, True), (math.nextafter(found.sqnr_db, 99), False)):
        limits = Threshold(scheme="16a16w", min_sqnr_db_channel=limit)
        judgement = judge_one(limits, output, expect(NEAR), expect(FAR))
        assert judgement.accepted == accepted
        assert all(found.place in reason for reason in judgement.reasons)


@pytest.mark.parametrize("against", ["min_equal", "min_equal_quantized"])
def test_the_share_that_is_equal_is_met_exactly_and_missed_by_a_hair(against: str) -> None:
    share = share_equal(IDS, IDS, IDS, OFF)
    assert 0.99 < share < 1
    other = expect(OFF)
    pair = (expect(IDS), other) if against == "min_equal" else (other, expect(IDS))
    for limit, accepted in ((share, True), (math.nextafter(share, 2), False)):
        limits = msgspec.structs.replace(OPEN, **{against: limit})
        assert judge_one(limits, OFF, *pair).accepted == accepted


def test_every_limit_of_a_threshold_is_tested_here() -> None:
    own = {"min_sqnr_db_channel", "min_equal", "min_equal_quantized"}
    other = {"scheme", "model", "reason", "full_delegation"}
    other |= {"max_metric_drop", "min_metric"}  # test_metric.py
    assert set(EXACT) | own | other == set(Threshold.__struct_fields__)


@pytest.mark.parametrize("fails", ["float32", "quantized"])
def test_a_part_of_a_concatenation_is_asked_for_what_a_tensor_is(fails: str) -> None:
    loud = np.concatenate([draw(4, (4, 1, 3, 25)) * 100, draw(5, (4, 1, 5, 25)) * 0.5], axis=2)
    wrong = loud.copy()
    wrong[:, :, 3:] = 0
    assert measure(loud, wrong).sqnr_db > 40
    name = {"float32": "min_sqnr_db", "quantized": "min_sqnr_db_quantized"}[fails]
    limits = msgspec.structs.replace(OPEN, scheme="16a8w", **{name: 30.0})
    expected = expect(loud), expect(loud)
    assert judge_one(limits, wrong, *expected).accepted
    (reason,) = judge_one(limits, wrong, *expected, joined=PARTS).reasons
    assert f"in part 3:8 along axis 1 against the {fails} eager model" in reason
    assert judge_one(limits, loud, *expected, joined=PARTS).accepted


def test_a_part_may_be_off_by_the_step_of_the_whole_against_the_quantized_model_alone() -> None:
    whole = np.concatenate([draw(4, (4, 1, 3, 25)) * 100, draw(5, (4, 1, 5, 25)) * 0.5], axis=2)
    step = find_step(whole, 8)
    rounded = np.round(whole / step) * step
    limits = msgspec.structs.replace(OPEN, min_sqnr_db_quantized=20.0)
    one_off = rounded + step * (draw(6) > 1.3)
    assert judge_one(limits, one_off, expect(whole), expect(rounded), joined=PARTS).accepted
    limits = msgspec.structs.replace(OPEN, min_sqnr_db=20.0)
    assert not judge_one(limits, one_off, expect(whole), expect(rounded), joined=PARTS).accepted


@pytest.mark.parametrize("axis", [2, 3])
def test_a_zeroed_channel_that_the_tensor_hides_is_rejected_and_a_dead_one_is_not(
    axis: int,
) -> None:
    scale = np.array([100.0] * 4 + [0.5] * 8)
    loud = np.moveaxis(draw(7, (4, 1, 25, 12)) * scale, 3, axis)
    channel = (slice(None),) * axis
    noisy = loud + 0.001 * draw(8, loud.shape)
    limits = msgspec.structs.replace(OPEN, scheme="16a8w", min_sqnr_db_channel=35.0)
    assert judge_one(limits, noisy, expect(loud), expect(loud)).accepted
    noisy[(*channel, 9)] = 0
    (reason,) = judge_one(limits, noisy, expect(loud), expect(loud)).reasons
    assert f"channel 9 of 12 along axis {axis - 1}" in reason
    dead = loud.copy()
    dead[(*channel, 5)] = 1e-5
    output = dead + 0.001 * draw(9, dead.shape)
    assert judge_one(limits, output, expect(dead), expect(dead)).accepted


@pytest.mark.parametrize(
    ("values", "bits", "step"),
    [
        ([-4.0, 1.0], 8, 5 / 255),
        ([2.0, 10.0], 8, 10 / 255),
        ([-3.0, -1.0], 16, 3 / 65535),
        ([-4.0, 1.0], 11, 4 / 2048),
    ],
)
def test_the_step_of_a_tensor_is_that_of_its_range_with_zero(
    values: list[float], bits: int, step: float
) -> None:
    assert find_step(np.array(values), bits) == pytest.approx(step)


def test_a_part_that_has_to_be_zero_is_asked_to_be() -> None:
    right = np.concatenate([draw(4, (4, 1, 3, 25)), np.zeros((4, 1, 5, 25))], axis=2)
    wrong = right.copy()
    wrong[:, :, 3:] = 0.001
    limits = msgspec.structs.replace(OPEN, min_sqnr_db=20.0)
    assert judge_one(limits, right, expect(right), joined=PARTS).accepted
    assert judge_one(limits, wrong, expect(right)).accepted
    assert not judge_one(limits, wrong, expect(right), joined=PARTS).accepted


def test_figures_of_a_known_error() -> None:
    figures = measure(np.array([[3.0, 4.0]]), np.array([[3.0, 4.5]]))
    assert figures.sqnr_db == pytest.approx(10 * math.log10(25 / 0.25))
    assert figures.max_abs == 0.5
    assert figures.cosine == pytest.approx(27 / (5 * math.hypot(3, 4.5)))


def test_the_fit_of_a_known_line() -> None:
    wanted = draw(11)
    fit = fit_line(wanted, 1.25 * wanted + 0.5)
    slope = 1.25 + 0.5 * wanted.sum() / (wanted**2).sum()
    assert fit.gain == pytest.approx(slope - 1)
    mean = (0.25 * wanted + 0.5).mean()
    assert fit.offset == pytest.approx(mean / wanted.std())
    exact = fit_line(wanted, 2 * wanted)
    assert (exact.gain, exact.gain_noise) == (pytest.approx(1), pytest.approx(0, abs=1e-12))


def test_the_standard_errors_of_a_fit_are_those_of_its_noise() -> None:
    wanted = draw(12, (4, 5000))
    fit = fit_line(wanted, wanted + 0.1 * draw(13, wanted.shape))
    assert fit.gain_noise == pytest.approx(3 * 0.1 / math.sqrt(20000), rel=0.03)
    assert fit.offset_noise == pytest.approx(3 * 0.1 / math.sqrt(20000), rel=0.03)


def test_the_worst_input_set_counts_for_every_figure() -> None:
    wanted = draw(19, (3, 50))
    output = wanted + 0.01 * draw(20, wanted.shape)
    output[1] += draw(21, (50,))
    whole, worst = measure(wanted, output), measure(wanted[1:2], output[1:2])
    assert whole == worst
    assert worst.cosine < 0.9
    assert worst.max_abs > 1


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", ["max_gain_error", "max_offset"])
def test_a_gain_and_an_offset_are_limited_both_ways(name: str, sign: int) -> None:
    wanted = draw(24)
    output = wanted * (1 + sign * 0.1) if name == "max_gain_error" else wanted + sign * 0.1
    limits = msgspec.structs.replace(OPEN, **{name: 0.05})
    assert not judge_one(limits, output, expect(wanted)).accepted
    limits = msgspec.structs.replace(OPEN, **{name: 0.15})
    assert judge_one(limits, output, expect(wanted)).accepted


def test_noise_widens_what_a_small_output_may_be_off_by() -> None:
    few, many = draw(12, (4, 5)), draw(12, (4, 5000))
    limits = msgspec.structs.replace(OPEN, max_gain_error=0.007)
    for wanted, accepted in ((few, True), (many, False)):
        output = 1.02 * wanted + 0.1 * draw(23, wanted.shape)
        assert abs(fit_line(wanted, output).gain) > 0.007
        assert judge_one(limits, output, expect(wanted)).accepted == accepted


def test_equal_outputs_are_infinitely_good_and_nan_infinitely_bad() -> None:
    reference = np.array([[1.0, -2.0]])
    assert measure(reference, reference.copy()).sqnr_db == math.inf
    assert measure(reference, np.array([[np.nan, 1.0]])).sqnr_db == -math.inf
    assert judge_one(OPEN, np.array([[np.nan, 1.0]]), expect(reference)).reasons == (
        "an element is NaN or infinite",
    )


@pytest.mark.parametrize("place", [(2, 0), (0, 1), (3, 1)])
def test_one_bad_input_or_output_among_good_ones_is_enough_and_is_named(
    place: tuple[int, int],
) -> None:
    right = [draw(14), draw(15)]
    outputs = [one.copy() for one in right]
    outputs[place[1]][place[0]] = 0
    infos = [TensorInfo("float64", SHAPE[1:])] * 2
    limits = msgspec.structs.replace(OPEN, min_sqnr_db=20.0)
    references = References([expect(one) for one in right])
    assert judge(references, right, infos, limits).accepted
    (reason,) = judge(references, outputs, infos, limits).reasons
    assert reason == (
        f"output {place[1]}: SQNR 0.0 dB against the float32 eager model, 20 dB wanted"
    )


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


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_an_output_of_one_value_is_judged_by_that_value(dtype: Any) -> None:
    ones = np.ones((4, 3), dtype)
    limits = msgspec.structs.replace(OPEN, min_equal=1.0)
    assert judge_one(limits, ones, expect(ones)).accepted
    assert not judge_one(limits, ones * 2, expect(ones)).accepted
