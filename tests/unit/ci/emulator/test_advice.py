"""What a failed case tells to do: whose fault outputs are, and what is known of a refusal."""

from __future__ import annotations

import pytest

from ci.emulator.judging.advice import BIAS, UINT8, advise_on_figures
from ci.emulator.judging.figures import Figures
from ci.emulator.judging.gate import Judgement
from ci.emulator.policy import read_emulator_policy
from ci.lowering.artifact import Delegation, Lowered, TensorInfo
from ci.lowering.cases import CaseSpec
from ci.lowering.schemes import Scheme
from ci.report.schema import Threshold

LIMITS = Threshold(scheme="8a8w", min_sqnr_db=20.0, min_sqnr_db_quantized=20.0)


def lower(dtype: str) -> Lowered:
    boundary = (TensorInfo(dtype, (1, 4)),)
    return Lowered("", "m", "8a8w", "S", 4, boundary, boundary, Delegation(1, 0, 1), 1.0, 1, {})


def advise(
    float_db: float,
    quantized_db: float | None,
    dtype: str = "float32",
    limits: Threshold = LIMITS,
) -> str:
    quantized = None if quantized_db is None else Figures(quantized_db, 0.9, 1.0)
    reasons = ("too far",) if float_db < 20 else ()
    judgement = Judgement(Figures(float_db, 0.9, 1.0), quantized, reasons)
    return "\n".join(advise_on_figures(judgement, limits, lower(dtype)))


def test_the_figures_tell_quantization_from_qnn() -> None:
    assert advise(18.4, 38.0).startswith("  why: quantization costs this")
    assert "38.0 dB" in advise(18.4, 38.0)
    assert advise(3.0, 2.0).startswith("  why: QNN does not compute what was asked")
    assert advise(3.0, None) == ""
    many_bits = Threshold(scheme="16a16w", min_sqnr_db=40.0, min_sqnr_db_quantized=40.0)
    assert BIAS in advise(0.0, 68.0, limits=many_bits)
    assert advise(30.0, 38.0, "uint8") == ""
    assert advise(3.0, None, "uint8") == f"  fix: {UINT8}"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("lowering: did not end within 300 s", "--timeout-s"),
        ("refused: Unsupported: Data-dependent branching", "torch.where"),
        ("run: RuntimeError: Failed to load method forward, error: 0x:14", "no kernel"),
        ("the reference proves nothing: output 0 is near zero (RMS 0 < 0.001)", "trained weights"),
        ("the gate accepts other_input: this case proves nothing", "hardly depend"),
        ("refused: something new", ""),
        ("SQNR 3.0 dB against the float32 eager model, 40 dB wanted", ""),
    ],
)
def test_what_is_known_of_a_reason(reason: str, words: str) -> None:
    advice = read_emulator_policy().advise(reason)
    assert words in advice
    assert bool(words) == bool(advice)


def test_two_files_whose_paths_read_alike_have_directories_of_their_own() -> None:
    slugs = {CaseSpec(f"{path}.py:make", Scheme.FP16, "S").slug for path in ("/a/b_c", "/a_b/c")}
    assert len(slugs) == 2
    assert len(CaseSpec(f"/{'deep/' * 100}net.py:make", Scheme.FP16, "S").slug) < 100
