"""References that no program could be judged by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ci.cases.engine import find_degenerate
from ci.models.user_models import ReferencePolicy

POLICY = ReferencePolicy(min_rms=0.05, min_spread=0.05)


def draw(seed: int, scale: float = 1.0) -> list[list[Any]]:
    random = np.random.default_rng(seed)
    return [[random.standard_normal((2, 8)) * scale] for _ in range(4)]


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (draw(8, scale=1e-4), "output 0 is near zero"),
        ([[np.full((2, 2), 3.0)] for _ in range(4)], "output 0 "),
        ([[np.full((2, 2), np.inf)] for _ in range(4)], "output 0 of the float32 model is not fin"),
        ([[np.array([1.0, np.nan])] for _ in range(4)], "output 0 of the float32 model is not fin"),
        ([draw(1)[0]] * 4, "output 0 is the same for every input"),
        ([[np.array([1, 2])] for _ in range(4)], "output 0 is the same for every input"),
        ([[np.array([True, True])] for _ in range(4)], "output 0 "),
    ],
)
def test_a_reference_that_proves_nothing_is_refused(reference: list[list[Any]], words: str) -> None:
    assert find_degenerate(reference, POLICY).startswith(words)


@pytest.mark.parametrize(
    "constant", [np.array([True, True]), np.array([3, 4]), np.array(5, dtype=np.int64)]
)
def test_a_mask_that_never_varies_is_fine_beside_an_output_that_does(constant: Any) -> None:
    assert find_degenerate(draw(9), POLICY) == ""
    assert find_degenerate([[one, constant] for (one,) in draw(9)], POLICY) == ""
    assert find_degenerate([[constant, one] for (one,) in draw(9)], POLICY) == ""


def test_ids_alone_that_vary_prove_something() -> None:
    reference = [[np.array([number, 7]), np.array([True])] for number in range(4)]
    assert find_degenerate(reference, POLICY) == ""


def test_a_floating_output_that_no_input_changes_proves_nothing_whatever_is_beside_it() -> None:
    fixed = draw(5)[0][0]
    outputs = [[one, fixed] for (one,) in draw(6)]
    assert find_degenerate(outputs, POLICY).startswith("output 1 is the same for every input")


def test_a_spread_is_a_share_of_the_magnitude() -> None:
    reference = [[one * 1.0 + 100] for (one,) in draw(3)]
    assert find_degenerate(reference, POLICY).startswith(
        "output 0 hardly varies (its spread is 0.0"
    )


def test_one_input_alone_is_not_the_same_for_every_input() -> None:
    assert find_degenerate(draw(4)[:1], POLICY) == ""
