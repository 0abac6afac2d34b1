"""A decoder's case from its program to its row: the program is an eager decoder, right or wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ci.cases.engine import Delegation, Fallback, Program, RunError, RunNotes
from ci.cases.facts import CaseFacts, CaseResult
from ci.cases.judged import CaseJudge
from ci.cases.policy import read_emulator_policy
from ci.cases.spec import CaseSpec
from ci.facts.finding import Question
from ci.facts.kinds import INCONCLUSIVE, ON_CPU, OVER_BUDGET, QUANTIZED_BADLY, RETYPED, TOKENS
from ci.judging.figures import Array
from ci.llm import case as llm_case
from ci.llm.case import LlmRun
from ci.llm.decoder import make_decoder
from ci.llm.generation import Step
from ci.llm.lowering import RUNS, ReferenceRuns, Subject
from ci.models.schemes import Scheme
from ci.models.tensors import Retyped
from ci.report.schema import ControlKind, Footprint, Status
from tests.build.setups import make_setup
from tests.stand_ins.lanes import WHOLE, EchoRunner, InlinePool
from tests.unit.ci.llm.decoders import CONTEXT, PREFILL, Tiny

POLICY = read_emulator_policy(lane="llm")
Judge = Callable[..., CaseResult]


@pytest.fixture
def right(tiny_model: Tiny) -> Step:
    return tiny_model.step(make_decoder(tiny_model.config, tiny_model.weights, CONTEXT))


@pytest.fixture
def judge(tiny_model: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """The row of a program that is a step, by the runs of the tiny decoder."""

    def run(
        step: Step,
        runs: ReferenceRuns | None = tiny_model.runs,
        scheme: Scheme = Scheme.FP16,
        delegation: Delegation = WHOLE,
        footprint: Footprint | None = None,
        retyped: Sequence[Retyped] = (),
        **text: Any,
    ) -> CaseResult:
        monkeypatch.setattr(llm_case, "program_step", lambda *_: step)
        if runs:
            monkeypatch.setattr(llm_case, "read_runs", lambda _: runs)
        runner: Any = EchoRunner(lambda sets: sets, RunNotes(run_ms=4.0))
        setup = make_setup(tmp_path, None, runner, InlinePool(), policy=POLICY)
        subject = Subject(Path(), (tiny_model.runs.prompt,), 40, CONTEXT, PREFILL, 1, 2, **text)
        run_of_case = LlmRun(
            CaseSpec("tiny", scheme, "SM8650"), setup, subject, tiny_model.tokenizer.decode
        )
        compiled: Any = SimpleNamespace(delegation=delegation, footprint=footprint, retyped=retyped)
        program = Program(run_of_case.spec, tmp_path, compiled, tmp_path, tmp_path / "run.log")
        monkeypatch.setattr(
            run_of_case, "_compile_and_run", lambda: run_of_case.run_and_judge(program, tmp_path)
        )
        result = run_of_case.run()
        assert {*runner.limits_s} <= {9.0}
        return result

    return run


def make_quantized(tiny_model: Tiny, noise: float) -> ReferenceRuns:
    """Runs of a model whose logits are this much off those of float32, relative to their RMS."""
    logits = tiny_model.runs.float32
    errors = np.random.default_rng(3).standard_normal(logits.shape).astype(np.float32)
    rms = np.sqrt(np.mean(logits**2))
    return replace(tiny_model.runs, float32=logits + np.float32(noise) * rms * errors)


def test_the_right_program_passes_with_its_figures_controls_and_text(
    judge: Judge, right: Step
) -> None:
    result = judge(right)
    case = result.case
    assert (case.judgement.status, case.reason) == (Status.PASSED, "")
    assert (case.judgement.equal, case.judgement.equal_quantized, case.judgement.metric) == (
        1,
        1,
        1,
    )
    assert case.judgement.metric_name == "top-1 agreement with float32"
    assert {control.kind for control in result.controls} == set(llm_case.MAKERS)
    assert all(control.rejected for control in result.controls)
    sqnrs = {control.kind: control.sqnr_db for control in result.controls}
    assert sqnrs[ControlKind.TOKEN_ZERO] is None  # its logits are right
    assert math.isfinite(sqnrs[ControlKind.PREVIOUS_LOGITS] or math.nan)
    assert "Ben has a blue boat." in result.noted
    assert "250.0 tokens/s on the emulator" in result.noted
    assert (case.run.ms, case.run.wall_s is None) == (4.0, False)
    assert case.judgement.warnings == ()


def test_wrong_keys_that_change_no_token_are_red(
    judge: Judge, right: Step, tiny_model: Tiny
) -> None:
    last = len(tiny_model.runs.model.run.fed) - 1

    def step(arrays: Sequence[Array]) -> Sequence[Array]:
        logits, *caches = right(arrays)
        caches[1] = caches[1] + (int(arrays[2][0, -1]) == last)  # no later step reads them
        return [logits, *caches]

    case = judge(step).case
    (finding,) = case.judgement.findings
    assert (finding.id, len(finding.where)) == (TOKENS.id, 3)
    assert finding.where[1].startswith(
        f"decode after prefill: first wrong in the keys of layer 1, at token {last}"
    )


def test_a_layer_with_fewer_bits_than_its_recipe_requests_is_red(judge: Judge, right: Step) -> None:
    lost = Retyped("output", "result", "u16", "u8")
    case = judge(right, retyped=[lost]).case
    assert (case.judgement.status, [finding.id for finding in case.judgement.findings]) == (
        Status.FAILED,
        [RETYPED.id],
    )


def test_the_token_at_which_the_text_departs_from_float32_is_noted(
    judge: Judge, right: Step, tiny_model: Tiny
) -> None:
    tokens = tiny_model.runs.model.run.tokens
    departing = judge(right, replace(tiny_model.runs, text=(*tokens[:3], 0, *tokens[4:])))
    assert "the text differs from float32's after 3 tokens" in departing.noted
    longer = judge(right, replace(tiny_model.runs, text=(*tokens, 0)))
    assert "differs from float32" not in longer.noted


EXPLAIN = (
    *((llm_case, name) for name in ("describe_speed", "compare_float", "count_same")),
    *((LlmRun, name) for name in ("describe", "note_agreement")),
    (CaseFacts, "find_faults"),
)
NEEDED = (
    *((llm_case, name) for name in ("read_runs", "judge_free", "judge_forced", "judge_control")),
    *((llm_case, name) for name in ("run_free", "run_decode", "measure_pooled")),
    *((LlmRun, name) for name in ("judge_text", "judge_quantized", "note_figures")),
    *((CaseJudge, name) for name in ("find_excesses", "delegation_faults")),
)


def throw(*arguments: Any, **named: Any) -> None:
    raise KeyError("ours")


@pytest.mark.parametrize(("place", "name"), EXPLAIN)
def test_an_explanation_that_throws_is_a_warning(
    place: Any, name: str, judge: Judge, right: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, throw)
    for step, status in ((right, Status.PASSED), (swap_best(right, 6), Status.FAILED)):
        case = judge(step).case
        assert (case.judgement.status, case.judgement.is_defect) == (status, False)
        assert [
            warning
            for warning in case.judgement.warnings
            if "could not be computed: KeyError" in warning
        ]


@pytest.mark.parametrize(("place", "name"), NEEDED)
def test_an_exception_in_llm_code_that_the_verdict_needs_is_our_defect(
    place: Any,
    name: str,
    judge: Judge,
    right: Step,
    tiny_model: Tiny,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, name, throw)
    case = judge(right, None if name == "read_runs" else tiny_model.runs).case
    assert (case.judgement.status, case.judgement.is_defect) == (Status.FAILED, True)
    assert case.reason.startswith("this is a bug in executorch-qnn-ci: KeyError")


def swap_best(step: Step, at: int) -> Step:
    """The logits of the two best tokens are exchanged in the call number ``at``."""
    calls = []

    def wrong(arrays: Sequence[Array]) -> list[Array]:
        logits, *caches = (np.array(array) for array in step(arrays))
        calls.append(logits.shape)
        if len(calls) == at:
            last = logits[0, -1]
            first, second = last.argsort()[-2:]
            last[[first, second]] = last[[second, first]]
        return [logits, *caches]

    return wrong


def test_a_wrong_token_fails_as_not_faithful_and_tries_no_control(
    judge: Judge, right: Step, tiny_model: Tiny
) -> None:
    result = judge(swap_best(right, 6))
    assert (result.case.judgement.status, result.case.question) == (
        Status.FAILED,
        Question.FAITHFUL,
    )
    assert "faithful: free: step" in result.case.reason
    assert result.controls == ()
    count = len(
        tiny_model.runs.model.run.tokens
    )  # figures are those of the forced run, which is right
    assert f"{count} of {count} tokens equal the model's" in result.noted


def test_a_fault_of_decode_alone_is_seen_though_the_text_is_right(
    judge: Judge, right: Step, tiny_model: Tiny
) -> None:
    calls = 1 + len(tiny_model.runs.model.run.tokens)  # prefill, then a token each
    result = judge(swap_best(right, calls + 4))
    assert result.case.judgement.status is Status.FAILED
    assert "decode alone: step" in result.case.reason
    assert "free:" not in result.case.reason


def test_a_wrong_program_of_a_poor_model_is_not_faithful(
    judge: Judge, right: Step, tiny_model: Tiny
) -> None:
    case = judge(swap_best(right, 6), make_quantized(tiny_model, 0.5), Scheme.A8W8).case
    assert case.question is Question.FAITHFUL
    assert {finding.id for finding in case.judgement.findings} == {TOKENS.id, QUANTIZED_BADLY.id}


@pytest.mark.parametrize(
    ("scheme", "noise", "status"),
    [
        (Scheme.A8W8, 0.2, Status.PASSED),  # 14 dB, 10 are asked for
        (Scheme.A8W8, 0.5, Status.FAILED),
        (Scheme.FP16, 0.5, Status.PASSED),  # it is no quantized model
    ],
)
def test_a_poor_quantized_model_fails_by_itself(
    judge: Judge, right: Step, tiny_model: Tiny, scheme: Scheme, noise: float, status: Status
) -> None:
    result = judge(right, make_quantized(tiny_model, noise), scheme)
    assert result.case.judgement.status is status, result.case.reason
    failed = status is Status.FAILED
    assert [finding.id for finding in result.case.judgement.findings] == [
        QUANTIZED_BADLY.id
    ] * failed
    assert ("SQNR of 7.0 dB" in result.case.headline) is failed


@pytest.mark.parametrize(
    ("scheme", "most", "model", "blamed"),
    [
        (Scheme.A8W8, None, 1.2, []),
        (Scheme.A8W8, 1.5, 1.2, []),
        (Scheme.A8W8, 1.2, 1.2, []),
        (Scheme.A8W8, 0.0, 1.0, []),  # its perplexity equals the limit
        (Scheme.A8W8, 1.01, 1.005, [TOKENS.id]),
        (Scheme.A8W8, 1.01, 1.01, [TOKENS.id]),
        (Scheme.A8W8, 1.01, 1.2, [QUANTIZED_BADLY.id]),
        (Scheme.FP16, 1.5, 1.0, []),
        (Scheme.FP16, 1.001, 1.0, [TOKENS.id]),
    ],
)
def test_the_perplexity_of_a_text_has_a_limit(
    judge: Judge,
    right: Step,
    tiny_model: Tiny,
    scheme: Scheme,
    most: float | None,
    model: float,
    blamed: list[str],
) -> None:
    """Only the program or the quantized model, whichever causes it, is named."""
    text = (tiny_model.runs.model.run.fed,)
    subject = Subject(Path(), (), 1, CONTEXT, PREFILL, 1, 2, text=text)
    most = most if most != 0.0 else subject.perplexity(tiny_model.interface, right)
    runs = replace(tiny_model.runs, perplexity=(model, 1.004))
    result = judge(right, runs, scheme, text=text, max_perplexity=most)
    assert [finding.id for finding in result.case.judgement.findings] == blamed
    assert (result.case.judgement.status is Status.FAILED) is bool(blamed)
    quantized = f"{model:.3f} with the quantized model, 1.004 with float32" in result.noted
    assert quantized is scheme.quantized
    assert "1.004 with float32" in result.noted


def test_everything_that_decides_about_a_decoder_is_in_its_digest(tmp_path: Path) -> None:
    subject = Subject(tmp_path, ((1, 5),), 40, CONTEXT, PREFILL, 1, 2)
    changed_subjects = [
        replace(subject, prompts=((1, 6),)),
        replace(subject, prompts=((1, 5), (1, 6))),
        replace(subject, tokens=41),
        replace(subject, context=2 * CONTEXT),
        replace(subject, prefill=2 * PREFILL),
        replace(subject, bos=3),
        replace(subject, eos=3),
        replace(subject, text=((1, 5),)),
    ]
    digests = [subject.digest(), *(changed.digest() for changed in changed_subjects)]
    for name in ("weights.bin", "config.json", "model.safetensors"):
        for content in ("a", "b"):
            (tmp_path / name).write_text(content)
            digests.append(subject.digest())
    assert len(set(digests)) == len(digests)
    (tmp_path / "notes.txt").write_text("decides nothing")
    assert subject.digest() == digests[-1]


def test_a_node_on_the_cpu_fails_a_right_program(judge: Judge, right: Step) -> None:
    left = Delegation(8, 1, 2, (Fallback("aten.sin", "refused"),))
    result = judge(right, delegation=left)
    assert [finding.id for finding in result.case.judgement.findings] == [ON_CPU.id]
    assert "aten.sin: refused" in result.case.reason


def test_a_program_over_its_budget_fails(judge: Judge, right: Step) -> None:
    most = POLICY.limits_of("tiny", Scheme.FP16).budget.context_bytes
    assert most == 2 << 30
    at_most, above = (
        judge(right, footprint=Footprint(context_bytes=size)) for size in (most, most + 1)
    )
    assert at_most.case.judgement.status is Status.PASSED
    assert (above.case.judgement.status, above.case.question) == (Status.FAILED, Question.BUDGET)
    (finding,) = above.case.judgement.findings
    assert "2,147,483,648 allowed" in finding.words
    assert finding.details == (
        "the size of the largest context binary is 1 bytes (0 %) above its limit",
    )
    assert "more shards" in finding.remedies[0].text
    wrong_and_large = judge(swap_best(right, 6), footprint=Footprint(context_bytes=most + 1)).case
    assert wrong_and_large.question is Question.FAITHFUL
    assert {finding.id for finding in wrong_and_large.judgement.findings} == {
        TOKENS.id,
        OVER_BUDGET.id,
    }


def let_pass(monkeypatch: pytest.MonkeyPatch, kind: ControlKind) -> None:
    monkeypatch.setitem(llm_case.MAKERS, kind, lambda control_run: iter([control_run.run]))


@pytest.mark.parametrize("kind", llm_case.MAKERS)
def test_a_verdict_that_accepts_a_control_proves_nothing(
    judge: Judge, right: Step, monkeypatch: pytest.MonkeyPatch, kind: ControlKind
) -> None:
    let_pass(monkeypatch, kind)
    result = judge(right)
    assert result.case.judgement.status is Status.FAILED
    (finding,) = result.case.judgement.findings
    assert (finding.id, kind.value in finding.headline) == (INCONCLUSIVE.id, True)
    assert [remedy.text for remedy in finding.remedies] == [llm_case.LOUDER]
    assert [control.kind for control in result.controls if not control.rejected] == [kind]


def test_a_run_with_too_much_noise_at_every_step_proves_nothing(
    judge: Judge, right: Step, tiny_model: Tiny
) -> None:
    loud = replace(tiny_model.runs.model, noise=tiny_model.runs.model.noise + 1e3)
    result = judge(right, replace(tiny_model.runs, model=loud))
    assert "0% of the steps have a margin" in result.case.judgement.warnings[0]
    assert [finding.id for finding in result.case.judgement.findings] == [INCONCLUSIVE.id]
    assert {control.kind for control in result.controls if not control.rejected} == {
        *llm_case.MAKERS
    }


def test_a_program_that_dies_while_it_runs_fails_with_the_end_of_its_log(judge: Judge) -> None:
    def die(_: Sequence[Array]) -> list[Array]:
        raise RunError("was killed by SIGSEGV", used=False)

    case = judge(die).case
    assert (case.judgement.status, case.headline) == (Status.FAILED, "run: was killed by SIGSEGV")
    assert (case.run.log_tail, case.run.ms, case.run.wall_s is None) == ("the log", None, False)


@pytest.mark.parametrize("data", [None, b"damaged"])
def test_missing_or_damaged_reference_runs_fail_the_case(
    judge: Judge, right: Step, tmp_path: Path, data: bytes | None
) -> None:
    if data:
        (tmp_path / RUNS).write_bytes(data)
    result = judge(right, None)
    assert result.case.judgement.status is Status.FAILED
    assert "the reference runs cannot be read" in result.case.reason
