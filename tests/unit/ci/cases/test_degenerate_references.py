"""References that no program could be judged by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.cases.engine import Staging, find_degenerate
from ci.models.user_models import ReferencePolicy
from provisioning.errors import FailedError

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
        ([draw(1)[0]] * 2, "output 0 is the same for every input"),
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
    """Wherever the mask beside them stands; but masks alone prove nothing."""
    mask = np.array([True])
    ids = [np.array([number, 7]) for number in range(4)]
    assert find_degenerate([[one, mask] for one in ids], POLICY) == ""
    assert find_degenerate([[mask, one] for one in ids], POLICY) == ""
    assert find_degenerate([[mask, ids[0]]] * 4, POLICY) == "output 0 is constant"


def test_a_floating_output_that_no_input_changes_proves_nothing_whatever_is_beside_it() -> None:
    fixed = draw(5)[0][0]
    outputs = [[one, fixed] for (one,) in draw(6)]
    assert find_degenerate(outputs, POLICY).startswith("output 1 is the same for every input")


def test_a_spread_is_a_share_of_the_magnitude() -> None:
    reference = [[one * 1.0 + 100] for (one,) in draw(3)]
    assert find_degenerate(reference, POLICY).startswith(
        "output 0 hardly varies (its spread is 0.0"
    )


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("index", [0, 1])
def test_each_output_of_each_set_has_to_be_finite(number: int, index: int) -> None:
    reference = [[one, 2 * one] for (one,) in draw(4)]
    assert find_degenerate(reference, POLICY) == ""
    reference[number][index] = np.where(np.arange(8) == 3, np.nan, reference[number][index])
    told = f"output {index} of the float32 model is not finite"
    assert find_degenerate(reference, POLICY) == told


@pytest.mark.parametrize(
    ("made", "why"),
    [("", ""), ("random inputs", "the reference was computed from random inputs; use real inputs")],
)
def test_a_useless_reference_names_the_inputs_that_were_generated(
    tmp_path: Path, made: str, why: str
) -> None:
    staging = Staging(tmp_path, tmp_path / "log", tmp_path, reference=POLICY)
    with pytest.raises(FailedError) as caught:
        staging.write_float(draw(8, scale=1e-4), made)
    assert caught.value.what.startswith("the reference proves nothing: output 0 is near zero")
    assert (caught.value.why, caught.value.fix) == (why, "")
    staging.write_float(draw(8), made)
