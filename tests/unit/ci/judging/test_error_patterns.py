"""What wrong outputs look like, to the word, and right at the limits of what is believed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ci.judging import error_patterns


def find_pattern(right: list[Any], wrong: Any, index: int) -> str:
    return str(error_patterns.find_pattern(right, wrong, index) or "")


RANDOM = np.random.default_rng(11)
EAGER = RANDOM.standard_normal((4, 3, 6, 6))
NOISE = RANDOM.standard_normal(EAGER.shape)
RUNNER = "the runner or its files (not QNN)"
LAYOUT = "the memory layout: a permute is missing in QNN or the runner"
SCALE = "the right values; possibly a wrong scale in QNN"
INTEGERS = "values from 0 to 42949672970 instead"
# Eight elements a sample, far from zero, and what is wrong in each by more than its size.
FAR = -(10.0 + RANDOM.random((4, 8)))
OFF = 20.0 + 10 * RANDOM.random((4, 8))


def put(place: Any, value: Any, of: Any) -> Any:
    wrong = of.copy()
    wrong[place] = value
    return wrong


def between(first: int, last: int) -> Any:
    """Wrong from one element to another, and elsewhere off by less than counts as wrong."""
    wrong = FAR + 0.1
    wrong[:, first : last + 1] += OFF[:, first : last + 1]
    return wrong


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        (EAGER, put((1, 0), np.nan, EAGER), "8.3% of the elements are NaN or infinite"),
        (EAGER, np.zeros_like(EAGER), f"all zero; possibly {RUNNER}"),
        (
            EAGER,
            EAGER * 1e-9,
            "nearly zero everywhere; possibly memory that the program never wrote",
        ),
        (EAGER * 1e9, EAGER * 1e9 * 1e-5, f"1e-05 times {SCALE}"),
        (np.array([[1.0, 2.0]]), np.array([[1e-6, 2e-6]]), f"1e-06 times {SCALE}"),
        (
            EAGER * 1e9,
            np.clip(EAGER * 1e9, -65504, 65504),
            "at most 65504 where up to 3.62e+09 is right; possibly float16",
        ),
        (
            EAGER * 1e30,
            EAGER,
            "at most 3.62357 where up to 3.62e+30 is right; possibly float16",
        ),
        (EAGER * 1e9, np.clip(EAGER * 1e9, -1e5, 1e5), ""),  # no limit of float16
        (EAGER, np.full_like(EAGER, 0.5), f"a constant, 0.5; possibly {RUNNER}"),
        (np.ones((1, 1)), np.full((1, 1), 2.0), f"a constant, 2; possibly {RUNNER}"),
        (
            EAGER[:2],
            np.repeat(NOISE[:1], 2, axis=0),
            f"the same for every input; possibly {RUNNER}, which ran one sample",
        ),
        (np.repeat(EAGER[:1], 4, axis=0), np.repeat(NOISE[:1], 4, axis=0), ""),
        (EAGER, np.roll(EAGER, 1, 0), f"the outputs of another input; possibly {RUNNER}"),
        (EAGER, EAGER / 16, f"0.0625 (1/16) of {SCALE}"),
        (EAGER, EAGER * 1.2, f"1.2 times {SCALE}"),
        (EAGER, EAGER + 0.7, "off by a constant 0.7; possibly a wrong zero point"),
        (EAGER, EAGER * 0.995, f"0.995 times {SCALE}"),
        (EAGER, EAGER / -2, f"-0.5 (1/2) of {SCALE}"),
        (EAGER, -EAGER, f"the negative of {SCALE}"),
        (EAGER, np.roll(EAGER, -1, 3), "the right values, shifted by one along axis 2; possibly"),
        (EAGER, np.roll(EAGER, 1, 1), "the right values, shifted by one along axis 0; possibly"),
        (
            EAGER,
            EAGER.transpose(0, 2, 3, 1).reshape(EAGER.shape),
            f"the right values with axis 0 moved to 2; possibly {LAYOUT}",
        ),
        (EAGER, EAGER[..., ::-1], "the right values in reverse order along axis 2; possibly"),
        (EAGER, EAGER[::-1], f"a permutation of the right values; possibly {LAYOUT}"),
        (EAGER, EAGER[::-1] + 0.02 * NOISE, "a permutation of the right values; possibly"),
        (EAGER, EAGER[::-1] + 0.1 * NOISE, ""),  # sorted, as near as other samples may be
        (EAGER, EAGER + 0.01 * NOISE, ""),  # nearly right in place, and nearer when sorted
        (EAGER, NOISE, ""),
    ],
)
def test_every_kind_of_wrong_output_is_described(right: Any, wrong: Any, words: str) -> None:
    description = find_pattern([right], wrong, 0)
    assert description.startswith(words)
    assert bool(description) == bool(words)


@pytest.mark.parametrize(
    ("first", "last", "tells"),
    [(0, 3, True), (4, 7, True), (3, 4, True), (3, 3, False), (0, 4, False), (3, 7, False)],
)
def test_wrong_elements_in_a_row_are_described_if_they_are_at_most_half(
    first: int, last: int, tells: bool
) -> None:
    words = f"wrong only in elements {first} to {last} of 8"
    assert find_pattern([FAR], between(first, last), 0) == (words if tells else "")


def test_dead_channels_are_named_from_the_first_to_the_last() -> None:
    right = RANDOM.standard_normal((4, 1, 5, 9))
    right[:, :, 0] = 0
    wrong = put((slice(None), 0, slice(1, 4)), 0.0, right)
    description = "zero in channels 1 to 3 (3 of 5) along axis 1"
    assert find_pattern([right], wrong, 0).startswith(description)
    wrong = put((slice(None), 0, slice(1, 3)), 0.0, right)
    assert find_pattern([right], wrong, 0).startswith("zero in channels 1 to 2 (2 of 5)")
    wrong = put((slice(None), 0, 1), 0.0, right)
    assert find_pattern([right], wrong, 0).startswith("zero in channel 1 (1 of 5) along axis 1")
    drawn = put((slice(None), 0, slice(1, 5)), RANDOM.standard_normal((4, 4, 9)), right)
    assert find_pattern([right], drawn, 0) == ""


def test_an_output_is_described_as_another_outputs_only_with_equal_size() -> None:
    small = RANDOM.standard_normal((4, 7))
    assert find_pattern([EAGER, small], NOISE, 0) == ""
    assert find_pattern(
        [EAGER, NOISE], NOISE, 0
    ) == f"the values of output 1; possibly {RUNNER}, which mixed up" + (" the outputs")


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        (range(10), [1, 2, 3, 4, 5, 6, 7, 8, 9, 9], ""),
        (
            range(10),
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
            "off by +1 nearly everywhere; possibly a num",
        ),
        (range(100), [*range(1, 94), *range(93, 100)], "off by +1 nearly everywhere; possibly"),
        ([0, 1, 5, 4], [1, 0, 10, 5], ""),
        ([0, 1, 5, 4], [0, 0, 0, 0], f"all zero; possibly {RUNNER}"),
        (range(11), np.arange(11) * (1 + (1 << 32)), INTEGERS),
        (
            [0, 1, 5, 4],
            [1, 0, 11, 5],
            "values from 0 to 11 instead of 0 to 5; possibly a wrong",
        ),
    ],
)
def test_the_pattern_of_wrong_ids_is_described(right: Any, wrong: Any, words: str) -> None:
    description = find_pattern([np.array([*right])], np.array(wrong), 0)
    assert description.startswith(words)
    assert bool(description) == bool(words)
