"""What the prediction of noise accepts, and which faults it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ci.judging.figures import WHOLE, Array
from ci.judging.noise import Prediction
from ci.models.tensors import OutputPart, Range
from ci.report.schema import MARGIN_DB
from tests.stand_ins.lanes import predict

SHAPES = {
    "logits": (8, 1, 50),
    "picture": (8, 1, 6, 10, 12),
    "sequence": (8, 2, 12, 16),
    "one number": (8, 1),
}


def draw(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def worst(prediction: Prediction, output: Array) -> Any:
    return prediction.find_excesses(output, MARGIN_DB)[0]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_run_with_the_predicted_noise_is_accepted(shape: tuple[int, ...]) -> None:
    """None of 800 seeded draws is rejected: normal noise, louder in some channels than in others,
    and rare steps."""
    right = draw(shape)
    for seed in range(100):
        random = np.random.default_rng(seed)
        color = np.exp(random.standard_normal(shape[1:]))
        steps = np.where(random.random((9, *shape)) < 0.1, random.choice([-1, 1], (9, *shape)), 0)
        for noise in (color * random.standard_normal((9, *shape)), steps + 1e-3 * color):
            prediction = predict(right, 0.01 * noise[:8])
            excess = worst(prediction, right + 0.01 * noise[8])
            assert excess.over_db < 0, (seed, excess)


def test_an_error_that_was_not_predicted_is_rejected_however_small() -> None:
    right = draw((4, 10))
    exact = predict(right, np.zeros((2, 4, 10)))
    assert worst(exact, right).over_db < 0
    assert worst(exact, right * (1 + 1e-5)).over_db < 0  # the last bits of a float32
    assert worst(exact, right + 0.01 * draw((4, 10), 1)).over_db > 20


FAULTS: dict[str, tuple[Callable[[Array], Array], str]] = {
    "a row": (lambda out: put(out, (slice(None), 1), 2.0), "row 1 of 2"),
    "a set": (lambda out: put(out, (3,), 2.0), "sample 3 of 8"),
    "a channel": (lambda out: put(out, (..., 5), 1.5), "axis 2, channel 5 of 16"),
    "an element": (lambda out: put(out, (2, 0, 3, 4), 100.0), "element 820 of 3072"),
}


def put(error: Array, place: Any, factor: float) -> Array:
    wrong = error.copy()
    wrong[place] *= factor * 4
    return wrong


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_row_channel_or_element_is_located_there(name: str) -> None:
    shape = SHAPES["sequence"]
    right, error = draw(shape), 0.01 * draw(shape, 1)
    prediction = predict(right, 0.01 * draw((8, *shape), 2))
    make, place = FAULTS[name]
    assert worst(prediction, right + error).over_db < 0
    excess = worst(prediction, right + make(error))
    assert (excess.place, excess.over_db > 0) == (place, True)


@pytest.mark.parametrize(
    ("wrong", "place"),
    [(lambda right: right * 1.02, "gain"), (lambda right: right + 0.02, "offset")],
)
def test_a_gain_and_an_offset_below_the_noise_are_seen(
    wrong: Callable[[Array], Array], place: str
) -> None:
    shape = (8, 40, 50)
    right, error = draw(shape), 0.03 * draw(shape, 1)
    prediction = predict(right, 0.03 * draw((8, *shape), 2))
    excess = worst(prediction, wrong(right) + error)
    assert (excess.place, excess.over_db > 0) == (place, True)


@pytest.mark.parametrize(("share", "accepted"), [(0.02, False), (0.2, True)])
def test_a_bias_below_coarse_noise_is_accepted_and_below_fine_noise_rejected(
    share: float, accepted: bool
) -> None:
    """The offset and the gain are a third of the noise."""
    right = draw((8, 40, 50))
    prediction = predict(right, share * draw((8, 8, 40, 50), 1))
    noise = share * draw((8, 40, 50), 2)
    for wrong in (right + noise + share / 3, right * (1 + share / 3) + noise):
        assert (worst(prediction, wrong).over_db < 0) is accepted


def test_the_limit_of_a_single_element_is_wider_for_coarse_noise() -> None:
    right, noise = draw((8, 40, 50)), draw((8, 8, 40, 50), 1)
    allowed = []
    for share in (0.02, 0.2):
        excesses = predict(right, share * noise).find_excesses(right + 1e-3, MARGIN_DB)
        allowed += [
            excess.above_db - excess.over_db
            for excess in excesses
            if excess.place.startswith("element")
        ]
    assert allowed[1] - allowed[0] == pytest.approx(6, abs=0.01)


PARTS = (OutputPart((Range(1, 0, 30),)), OutputPart((Range(1, 30, 50),)))


def test_a_part_of_a_concatenation_is_judged_by_its_own_noise() -> None:
    right = np.concatenate([100 * draw((4, 1, 30)), 0.5 * draw((4, 1, 20))], axis=2)
    scale = np.array([1.0] * 30 + [0.4] * 20)
    prediction = predict(right, scale * draw((8, 4, 1, 50), 2), parts=PARTS)
    wrong = right + scale * draw((4, 1, 50), 3) * np.array([1.0] * 30 + [8.0] * 20)
    assert any(
        excess.place == "part 30:50 along axis 1" and excess.over_db > 0
        for excess in prediction.find_excesses(wrong, 6.0)
    )


@pytest.mark.parametrize(("step", "allowed"), [(0.5, 0.1), (2.0, 0.4), (0.0, 2**-13)])
def test_error_below_a_fifth_of_a_quantization_step_is_allowed(step: float, allowed: float) -> None:
    """Without steps, an error below 1/8192 of the output is allowed."""
    right = np.ones((4, 10)) * np.resize([1, -1], 10)
    prediction = predict(right, np.zeros((2, 4, 10)), step=step)
    for error, over in ((0.99 * allowed, False), (1.01 * allowed, True)):
        output = right + error * np.resize([1, 1, -1, -1], (4, 10))
        excesses = {excess.place: excess for excess in prediction.find_excesses(output, 0.0)}
        assert (excesses[WHOLE].over_db > 0) is over


def test_an_input_set_near_zero_is_judged_by_its_predicted_noise() -> None:
    """Its SQNR against the reference is low although it is right."""
    right = draw((4, 1, 30)) * np.array([1, 1, 1, 1e-3])[:, None, None]
    prediction = predict(right, 0.01 * draw((8, 4, 1, 30), 2))
    assert worst(prediction, right + 0.01 * draw((4, 1, 30), 3)).over_db < 0
    assert prediction.sqnr_db < 0


def test_the_predicted_sqnr_is_of_the_worst_input_set() -> None:
    right = np.ones((3, 4))
    runs = np.stack([np.array([[0.1], [0.01], [0.001]]) * np.ones((3, 4))] * 2)
    assert predict(right, runs).sqnr_db == pytest.approx(20, abs=1e-4)
