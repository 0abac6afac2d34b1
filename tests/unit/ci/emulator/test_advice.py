"""What a failed case tells to do: whose fault outputs are, and what is known of a refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ci.cases.policy import read_emulator_policy
from ci.cases.spec import CaseSpec
from ci.judging.figures import Figures
from ci.judging.gate import Expected, OutputJudgement, References, judge
from ci.judging.sightings import find_sighting
from ci.judging.verdict import (
    APART,
    BIAS,
    CALIBRATE,
    UINT8,
    advise_on_figures,
    is_as_asked,
)
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo
from ci.report.schema import Threshold

LIMITS = Threshold(scheme="8a8w", min_sqnr_db=20.0, min_sqnr_db_quantized=20.0)
RANDOM = np.random.default_rng(3)
EAGER = RANDOM.standard_normal((4, 1, 3, 6, 6))
NOISE = RANDOM.standard_normal(EAGER.shape)


def expect(values: Any) -> Expected:
    return Expected(values, values, values)


def advise(
    output: Any,
    eager: Any = EAGER,
    quantized: Any = None,
    dtype: str = "float32",
    limits: Threshold = LIMITS,
) -> str:
    boundary = (TensorInfo(dtype, (1, 4)),)
    outputs = (TensorInfo(str(output.dtype), output.shape[1:]),)
    references = References([expect(eager)], None if quantized is None else [expect(quantized)])
    judgement = judge(references, [output], outputs, limits)
    return "\n".join(advise_on_figures(judgement, references, [output], boundary, limits))


def test_the_figures_tell_quantization_from_qnn() -> None:
    coarse = EAGER + 0.2 * NOISE
    told = advise(coarse, EAGER, coarse + 0.001 * NOISE)
    assert told.startswith("  why: quantization costs this")
    assert "dB against the quantized eager model)" in told
    other = EAGER + RANDOM.standard_normal(EAGER.shape)
    assert advise(other, EAGER, coarse).startswith("  why: QNN does not compute what was asked")
    assert advise(other) == ""
    many_bits = Threshold(scheme="16a16w", min_sqnr_db=40.0, min_sqnr_db_quantized=40.0)
    assert BIAS in advise(coarse, EAGER, coarse, limits=many_bits)
    assert advise(EAGER, EAGER, EAGER, "uint8") == ""
    assert advise(other, dtype="uint8") == f"  fix: {UINT8}"


@pytest.mark.parametrize(
    ("scheme", "joined", "fix"),
    [("8a8w", (), CALIBRATE), ("16a16w", (), BIAS), ("8a8w", (2, 1), APART)],
)
def test_the_fix_is_of_the_scheme_and_of_a_part(
    scheme: str, joined: tuple[int, ...], fix: str
) -> None:
    limits = Threshold(scheme=scheme, min_sqnr_db=20.0, min_sqnr_db_quantized=20.0)
    right = EAGER * ([[[1.0]], [[1.0]], [[0.01]]] if joined else 1.0)
    coarse = right + 0.2 * NOISE * ([[[0.0]], [[0.0]], [[0.01]]] if joined else 1.0)
    coarse += 0.5 * (coarse - right)
    info = (TensorInfo("float64", EAGER.shape[1:], joined=joined, joined_axis=1),)
    boundary = (TensorInfo("float32", (1, 4)),)
    references = References([expect(right)], [expect(coarse)])
    judgement = judge(references, [coarse], info, limits)
    *_, last = advise_on_figures(judgement, references, [coarse], boundary, limits)
    assert last == f"  fix: {fix}"


@pytest.mark.parametrize(
    ("least", "wanted", "agrees"),
    [(0.9, 0.9, True), (0.89, 0.9, False), (0.5, None, True), (0.0, 0.0, True)],
)
def test_ids_agree_from_the_share_that_is_wanted_on(
    least: float, wanted: float | None, agrees: bool
) -> None:
    limits = Threshold(scheme="8a8w", min_equal_quantized=wanted)
    assert is_as_asked(OutputJudgement(equal_quantized=least), limits) == agrees


@pytest.mark.parametrize(("sqnr_db", "agrees"), [(20.0, True), (19.9, False)])
def test_magnitudes_agree_from_the_sqnr_that_is_wanted_on(sqnr_db: float, agrees: bool) -> None:
    output = OutputJudgement(quantized_figures=Figures(sqnr_db, 1.0, 0.0))
    assert is_as_asked(output, LIMITS) == agrees
    assert not is_as_asked(output, Threshold(scheme="8a8w"))


def put(place: Any, value: Any, of: Any = EAGER) -> Any:
    wrong = of.copy()
    wrong[place] = value
    return wrong


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (np.zeros_like(EAGER), "all zero; likely the runner"),
        (EAGER * 1e-9, "as good as zero"),
        (np.full_like(EAGER, 0.5), "a constant, 0.5; likely the runner"),
        (put((1, 0, 0), np.nan), "8.3% of the elements are NaN or infinite"),
        (np.repeat(EAGER[:1], 4, axis=0), "the same for every input"),
        (np.roll(EAGER, 1, axis=0), "the outputs of another input; likely the runner"),
        (EAGER / 16, "0.0625 (1/16) of the right values; likely a scale"),
        (-EAGER, "the negative of the right values"),
        (EAGER * 1.2, "seen: 1.2 of the right values"),
        (EAGER * 2, "seen: 2 of the right values"),
        (EAGER + 0.7, "off by a constant 0.7; likely a zero point"),
        (EAGER.transpose(0, 1, 3, 4, 2).reshape(EAGER.shape), "with axis 1 moved to 3; likely a m"),
        (np.roll(EAGER, 1, axis=4), "one place on along axis 3"),
        (EAGER[..., ::-1], "in reverse along axis 3"),
        (RANDOM.permutation(EAGER.reshape(-1)).reshape(EAGER.shape), "a permutation of the right"),
        (put((slice(None), 0, 1), 0.0), "zero in channel 1 (1 of 3) along axis 1; likely QNN"),
        (
            put((slice(None), 0, 2, 5), NOISE[:, 0, 2, 5]),
            "wrong only from element 102 to 107 of 108",
        ),
        (put(2, NOISE[2]), "wrong for input set 2 alone"),
        (RANDOM.standard_normal(EAGER.shape), ""),
    ],
)
def test_what_wrong_outputs_look_like_is_told(wrong: Any, words: str) -> None:
    told = advise(wrong)
    assert words in told
    assert ("  seen: " in told) == bool(words)
    assert bool(words) == ("does not compute what was asked" not in advise(wrong, quantized=EAGER))


IDS = np.arange(48).reshape(4, 12) % 11


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (IDS + 1, "off by +1 nearly everywhere"),
        (IDS + (IDS << 32), "likely another integer type: int32 read as int64"),
        (np.zeros_like(IDS), "all zero"),
        (10 - IDS, ""),
    ],
)
def test_what_wrong_ids_look_like_is_told(wrong: Any, words: str) -> None:
    limits = Threshold(scheme="8a8w", min_equal=0.995)
    told = advise(wrong, IDS, limits=limits)
    assert words in told
    assert ("  seen: " in told) == bool(words)


def test_only_an_output_that_is_rejected_is_looked_at() -> None:
    mask = np.zeros((4, 12), np.uint8)
    infos = (TensorInfo("uint8", (12,)), TensorInfo("int64", (12,)))
    boundary = (TensorInfo("float32", (1, 4)),)
    references = References([expect(mask), expect(IDS)])
    limits = Threshold(scheme="fp16", min_equal=0.995)
    outputs = [mask, IDS + 1]
    judgement = judge(references, outputs, infos, limits)
    (told,) = advise_on_figures(judgement, references, outputs, boundary, limits)
    assert told.startswith("  seen: output 1: off by +1")


def test_outputs_out_of_order_are_told() -> None:
    other = RANDOM.standard_normal((4, 2, 54))
    assert "those of output 1" in find_sighting([EAGER, other], other.reshape(EAGER.shape), 0)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("lowering: did not end within 300 s", "--timeout-s"),
        ("refused: Unsupported: Data-dependent branching", "torch.where"),
        ("run: RuntimeError: Failed to load method forward, error: 0x:14", "no kernel"),
        ("the reference proves nothing: output 0 is near zero (RMS 0 < 0.001)", "trained weights"),
        ("the gate accepts other_input: this case proves nothing", "hardly depend"),
        ("SQNR 0.6 dB\n  seen: 0.0625 (1/16) of the right values; likely", "1 x 5"),
        ("values of 0 to 9 are right; likely another integer type: int32 read as int64", "int32)"),
        (
            "lowering: RuntimeError: Missing out variants: {'quantized_decomposed::add'}",
            "import executorch.kernels.quantized",
        ),
        ("RuntimeError: Missing out variants: {'mine::conv'}", "torch.ops.load_library"),
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
