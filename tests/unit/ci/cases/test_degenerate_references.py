"""References that no program could be judged by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.cases.engine import Staging, find_degenerate, require_export
from ci.models.user_models import ReferencePolicy
from provisioning.errors import FailedError

POLICY = ReferencePolicy(min_rms=0.05, min_spread=0.05)


def draw(seed: int, scale: float = 1.0) -> list[list[Any]]:
    random = np.random.default_rng(seed)
    return [[random.standard_normal((2, 8)) * scale] for _ in range(4)]


MASK, IDS = np.array([True, True]), [np.array([number, 7]) for number in range(4)]
FIXED = draw(5)[0][0]


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (draw(8, scale=1e-4), "output 0 is near zero"),
        ([[np.full((2, 2), 3.0)] for _ in range(4)], "output 0 "),
        ([[np.full((2, 2), np.inf)] for _ in range(4)], "output 0 of the float32 model is not fin"),
        ([[np.array([1.0, np.nan])] for _ in range(4)], "output 0 of the float32 model is not fin"),
        *(([draw(1)[0]] * sets, "output 0 is the same for every input") for sets in (2, 4)),
        ([[np.array([1, 2])] for _ in range(4)], "output 0 is the same for every input"),
        ([[MASK]] * 4, "output 0 "),
        (draw(9), ""),
        # A constant output is accepted next to a varying one, unless it is of a float type.
        ([[varying, MASK] for (varying,) in draw(9)], ""),
        ([[varying, np.array([3, 4])] for (varying,) in draw(9)], ""),
        ([[MASK, varying] for (varying,) in draw(9)], ""),
        ([[ids, MASK] for ids in IDS], ""),
        ([[MASK, ids] for ids in IDS], ""),
        ([[MASK, IDS[0]]] * 4, "output 0 is constant"),
        ([[varying, FIXED] for (varying,) in draw(6)], "output 1 is the same for every input"),
        ([[varying + 100] for (varying,) in draw(3)], "output 0 hardly varies (its spread is 0.0"),
        (
            [[np.full((2, 2), 0.049999) * sign] for sign in (1, -1)],
            "output 0 is near zero (RMS 0.049999, but min_rms is 0.05)",
        ),
    ],
)
def test_reference_near_zero_or_constant_is_refused(reference: list[list[Any]], words: str) -> None:
    reason = find_degenerate(reference, POLICY)
    assert (reason.startswith(words), bool(reason)) == (True, bool(words))


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("index", [0, 1])
def test_each_output_of_each_set_has_to_be_finite(number: int, index: int) -> None:
    reference = [[output, 2 * output] for (output,) in draw(4)]
    assert find_degenerate(reference, POLICY) == ""
    reference[number][index] = np.where(np.arange(8) == 3, np.nan, reference[number][index])
    refusal = f"output {index} of the float32 model is not finite"
    assert find_degenerate(reference, POLICY) == refusal


@pytest.mark.parametrize(
    ("origin", "why"),
    [("", ""), ("random inputs", "the reference was computed from random inputs; use real inputs")],
)
def test_the_refusal_of_a_degenerate_reference_names_random_inputs_as_the_cause(
    tmp_path: Path, origin: str, why: str
) -> None:
    staging = Staging(tmp_path, tmp_path / "log", tmp_path, reference=POLICY)
    with pytest.raises(FailedError) as caught:
        staging.write_float(draw(8, scale=1e-4), origin)
    assert caught.value.what.startswith("the reference proves nothing: output 0 is near zero")
    assert (caught.value.why, caught.value.fix) == (why, "")
    staging.write_float(draw(8), origin)


def test_an_export_is_compared_with_torch_in_each_output_of_each_set() -> None:
    right = [[np.ones(4, np.float32) * (1 + n), np.ones(4, np.float32)] for n in range(3)]
    require_export("tool", right, right)
    require_export("tool", [], right)  # a model from a file was not exported
    for number, index, factor, sqnr in ((0, 0, 1.1, r"20\.0 dB .* 60 dB"), (2, 1, np.nan, "nan")):
        exported = [[*outputs] for outputs in right]
        exported[number][index] = right[number][index] * np.float32(factor)
        with pytest.raises(FailedError, match=f"^tool .* output {index} has an SQNR of {sqnr}"):
            require_export("tool", right, exported)
    with pytest.raises(FailedError, match="buffers count, cache") as caught:
        require_export("tool", right, right[::-1], ("count", "cache"))
    assert "as an input" in caught.value.fix
    infinite = [[np.ones(4, np.float32) * np.inf]]
    require_export("tool", infinite, infinite)  # the model itself is not finite
