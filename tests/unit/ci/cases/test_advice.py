"""What a failed case tells to do: whose fault outputs are, and what is known of a refusal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from ci.analysis.steps import Step
from ci.cases.engine import FROZEN, Compiled, Delegation, Fallback, Garbled
from ci.cases.facts import CaseFacts, Options, Run
from ci.cases.judged import CaseJudge
from ci.cases.lowering_findings import find_floats
from ci.cases.pipeline import CaseRun
from ci.cases.policy import read_emulator_policy
from ci.cases.reasons import UNTRIED, mark_part
from ci.cases.spec import CaseSpec
from ci.diagnosis.diagnosis import Diagnosis, Suspicion, Tried
from ci.diagnosis.experiments import TIME_IS_UP, Operator, RemedyChoice, Result
from ci.diagnosis.wording import MORE_TIME
from ci.facts.finding import (
    NO_ADVICE,
    REMEDY_WORDS,
    Advice,
    Cause,
    Certainty,
    Figure,
    Finding,
    Origin,
    Proof,
    Question,
    Remedy,
    name_cause,
)
from ci.facts.kinds import (
    DIED,
    METRIC_ERROR,
    NO_OUTPUTS,
    NOT_LOWERED,
    ON_CPU,
    PART,
    QUANTIZED_BADLY,
)
from ci.facts.kinds import NOISE as NOISE_KIND
from ci.facts.known_fault import KnownFault
from ci.judging.causes import UNKNOWN, Departure
from ci.judging.error_patterns import RUNNER
from ci.judging.gate import judge
from ci.judging.verdict import (
    APART,
    BATCH,
    CALIBRATE,
    FLOAT16,
    OTHER_FORM,
    UINT8,
    CaseFigures,
    advise_on_figures,
    find_patterns,
)
from ci.models.schemes import Scheme
from ci.models.tensors import Layer, Loss, LostFusions, OutputPart, Place, Range, TensorInfo
from ci.report.schema import LayerFigures, Status, Threshold, TypeShare
from tests.build.setups import make_options
from tests.stand_ins.lanes import make_references
from tests.stand_ins.reports import say

LIMITS = Threshold(scheme="8a8w", min_sqnr_db_all=20.0)
RANDOM = np.random.default_rng(3)
EAGER = RANDOM.standard_normal((4, 1, 3, 6, 6))
NOISE = RANDOM.standard_normal(EAGER.shape)


def advise(
    output: Any,
    eager: Any = EAGER,
    quantized: Any = None,
    dtype: str = "float32",
    limits: Threshold = LIMITS,
    parts: tuple[OutputPart, ...] = (),
) -> str:
    boundary = (TensorInfo(dtype, (1, 4)),)
    infos = (TensorInfo(str(output.dtype), output.shape[1:], parts),)
    floating = output.dtype.kind == "f"
    references = make_references(eager, quantized, 0.005 if floating else None)
    judgement = judge(references, [output], infos, limits)
    patterns = find_patterns(judgement, references, [output])
    advice = advise_on_figures(judgement, references, patterns, boundary, limits)
    return "\n".join(
        [
            *(f"seen: {note}" for note in advice.seen),
            *(
                f"likely {cause.text}"
                for cause in advice.causes
                if cause.certainty is Certainty.LIKELY
            ),
            *(f"{REMEDY_WORDS[remedy.proof]}: {remedy.text}" for remedy in advice.remedies),
        ]
    )


def test_advice_distinguishes_a_poor_scheme_from_a_wrong_program() -> None:
    coarse = EAGER + 0.2 * NOISE
    scheme = advise(coarse + 0.001 * NOISE, EAGER, coarse)
    assert CALIBRATE in scheme
    unrelated = EAGER + RANDOM.standard_normal(EAGER.shape)
    assert OTHER_FORM in advise(unrelated, EAGER, coarse)
    assert CALIBRATE not in advise(unrelated, EAGER, coarse)
    assert OTHER_FORM in advise(unrelated)
    assert advise(EAGER, EAGER, EAGER, "uint8") == ""
    assert UINT8 in advise(unrelated, dtype="uint8")


def test_a_program_in_float16_may_be_faithful_and_yet_far_from_float32() -> None:
    noisy = EAGER + 0.005 * NOISE
    assert FLOAT16 in advise(noisy, limits=Threshold(scheme="fp16", min_sqnr_db_all=60.0))


def test_advice_for_a_concatenated_output_is_to_return_its_parts_separately() -> None:
    right = EAGER * [[[1.0]], [[1.0]], [[0.01]]]
    coarse = right + 0.003 * NOISE
    assert CALIBRATE not in advise(coarse, right, coarse)
    assert APART in advise(
        coarse, right, coarse, parts=(OutputPart((Range(1, 0, 2),)), OutputPart((Range(1, 2, 3),)))
    )


@pytest.mark.parametrize("seed", range(3))
def test_errors_in_single_batch_rows_lead_to_the_advice_to_use_batch_1(seed: int) -> None:
    random = np.random.default_rng(seed)
    right = random.standard_normal((4, 3, 50))

    def is_told(*place: Any) -> bool:
        wrong = right.copy()
        wrong[place] += 0.5 * random.standard_normal(wrong[place].shape)
        return BATCH in advise(wrong, right)

    everything = slice(None)
    assert is_told(everything, slice(1, 3))
    assert is_told(everything, 2)
    assert not is_told(everything)
    assert not is_told(everything, everything, 7)  # a channel
    assert not is_told(2)  # a sample


LOST_SCALE = "KeyError: 'scale' [executorch/backends/qualcomm/_passes/annotate_quant_attrs.py]"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("lowering: did not end within 300 s", "--timeout-s"),
        ("refused: Unsupported: Data-dependent branching", "torch.where"),
        ("SQNR 0.6 dB\n  seen: 0.0625 (1/16) of the right values; possibly", "1 x 5"),
        ("RuntimeError: Missing out variants: {'mine::conv'}", "torch.ops.load_library"),
        ("<- KeyError: 'scale' [x/_passes/annotate_quant_attrs.py])", "query is not its key"),
        (
            f"refused: aten.t.default is not quantized: no rule\n{LOST_SCALE}",
            "query is not its key",
        ),
        ("'NoneType' and 'Tensor' [torch/nn/utils/fusion.py]", "affine=False"),
        ("refused: something new", ""),
        ("SQNR 3.0 dB against the float32 model, 40 dB wanted", ""),
    ],
)
def test_a_known_failure_reason_has_a_remedy(reason: str, words: str) -> None:
    advice = read_emulator_policy().advise(say(reason))
    assert words in " ".join(cause.text for cause in (*advice.causes, *advice.remedies))
    assert bool(words) == bool(advice.remedies)


@pytest.mark.parametrize(
    ("finding", "helps"),
    [
        (NOT_LOWERED.find("RuntimeError: Node was not decomposed or delegated"), True),
        (NO_OUTPUTS.find("RuntimeError: Failed to load method forward, error: 0x:1"), True),
        (NOISE_KIND.find("output 0: 3 dB"), False),
    ],
)
def test_the_log_of_a_failed_case_adds_its_remedy_to_the_reason(
    finding: Finding, helps: bool, tmp_path: Path
) -> None:
    policy = read_emulator_policy()
    options = make_options(policy=policy)
    judge_case = make_judge(CaseSpec("mlp", Scheme.FP16, "SM8650"), options, tmp_path)
    log = "[ERROR] [Qnn ExecuTorch]:  <E> The SocModel doesn't support FP16\n"
    assert (
        "quantize the model" in judge_case.end(Status.FAILED, [finding], log).case.reason
    ) == helps
    assert "quantize" not in judge_case.end(Status.PASSED, log_tail=log).case.reason


def make_judge(spec: CaseSpec, options: Options, directory: Path, probes: Any = None) -> CaseJudge:
    """Return a judge for a case, of which ``probes`` show what only a run does."""
    return CaseJudge(CaseFacts(spec, options, directory, "x"), probes)


def judge_norm(directory: Path, *, is_scheme: bool, **values: Any) -> CaseJudge:
    """Return a judge for a case whose model has the known fault "norm". Its options are ``values``,
    except for what the probe ``probes`` shows."""
    fault = KnownFault(
        fault="norm", title="", seen="", fix="", calls="", nodes=(), operators=(), file="net.py",
        line=3, is_scheme=is_scheme, schemes=values.pop("schemes", ()),
    )  # fmt: skip
    probes = values.pop("probes", None)
    values = {"policy": read_emulator_policy(), "find_faults": lambda *_, **__: (fault,), **values}
    spec = CaseSpec("mlp", values.pop("scheme", Scheme.A8W8), "SM8650")
    return make_judge(spec, make_options(**values), directory, probes)


def measure(cured_db: float | None) -> Any:
    """Probes by which the quantized model with a remedy has so many decibels."""
    return SimpleNamespace(measure_remedy=lambda *_, **__: cured_db)


@pytest.mark.parametrize(
    ("is_scheme", "cured_db", "predicted_db", "figures"),
    [
        (True, 40.1, 38.0, ("19.5 dB", "40.1 dB", "measured")),
        (True, 25.0, 38.0, ()),
        (True, None, 60.0, ()),
        (False, None, 50.0, ("38.0 dB", "50.0 dB", "predicted")),
        (False, None, 41.0, ()),
    ],
)
def test_a_passed_case_warns_of_what_a_known_fault_costs(
    is_scheme: bool,
    cured_db: float | None,
    predicted_db: float,
    figures: tuple[str, ...],
    tmp_path: Path,
) -> None:
    judge_case = judge_norm(tmp_path, is_scheme=is_scheme, probes=measure(cured_db))
    judge_case.facts.evidence.figures = CaseFigures(
        sqnr_db=19.4, sqnr_db_quantized=38.0, predicted_sqnr_db=predicted_db, sqnr_db_scheme=19.5
    )
    warnings = [*judge_case.costs.warn_of_faults()]
    assert len(warnings) == bool(figures)
    assert all(
        figure in warning for warning in warnings for figure in ("norm [net.py:3]", *figures)
    )


@pytest.mark.parametrize(
    ("cured_db", "error", "lost"),
    [
        (40.1, 2.0, "in channel 1 along axis 0"),
        (40.1, 0.5, ""),  # the channel is bad, but not lost
        (25.0, 2.0, ""),  # without the fault, the model is hardly better
        (None, 2.0, ""),
    ],
)
def test_a_channel_that_a_known_fault_drowns_fails_the_case(
    cured_db: float | None, error: float, lost: str, tmp_path: Path
) -> None:
    judge_case = judge_norm(tmp_path, is_scheme=True, probes=measure(cured_db))
    judge_case.facts.evidence.figures = CaseFigures(sqnr_db=19.4, sqnr_db_scheme=19.5)
    classes = np.array([1.0, 0.1, -0.7]) * RANDOM.uniform(0.9, 1.1, (8, 3))
    output = classes + np.array([0.0, 0.1 * error, 0.0])
    findings = [*judge_case.costs.find_drowned(make_references(classes), [output])]
    assert [finding.id for finding in findings] == [PART.id] * bool(lost)
    assert all(lost in finding.headline for finding in findings)


WRONG_MODEL = Result(reached_db=18.6, predicted_db=70.0)
RIGHT_MODEL = Result(reached_db=68.9, predicted_db=70.0, is_right=True)
CURES_NORM = RemedyChoice("scale", "a norm as a product", "norms are wrong", ("norm",))
CURES_OTHERS = RemedyChoice("widen", "a wider kernel", "kernels are wrong", ())


@pytest.mark.parametrize(
    ("cure", "tried", "named", "words"),
    [
        ((CURES_NORM,), (), ["norm"], "(proven: the model has 18.6 dB, and 68.9 dB with scale)"),
        # Another change makes the model right, or the fault's own remedy gains nothing.
        ((CURES_OTHERS,), (), [], ""),
        ((), (Tried((CURES_NORM,), WRONG_MODEL),), [], ""),
        # Nothing was found out of the fault.
        ((), (Tried((CURES_OTHERS,), WRONG_MODEL),), ["norm"], "(not tried)"),
        ((), (Tried((CURES_NORM,), Result(failure="refused")),), ["norm"], "(not tried)"),
    ],
)
def test_experiments_decide_which_known_fault_is_the_cause(
    cure: tuple[RemedyChoice, ...],
    tried: tuple[Tried, ...],
    named: list[str],
    words: str,
    tmp_path: Path,
) -> None:
    judge_case = judge_norm(tmp_path, is_scheme=False)
    judge_case.reasons.diagnosis = Diagnosis(WRONG_MODEL, (), cure, RIGHT_MODEL, tried=tried)
    judge_case.reasons.diagnosed = Question.FAITHFUL
    unknown = Cause(text="no experiment shows the cause", certainty=Certainty.UNKNOWN)
    found = NOISE_KIND.find("x", advice=Advice(causes=(unknown,) * (not cure)))
    (finding,) = judge_case.end(Status.FAILED, [found]).case.judgement.findings
    # Next to one that is likely, no cause is unknown.
    words_of_causes = [name_cause(cause, finding.causes) for cause in finding.causes]
    open_word = ["open"] if named else ["unknown"]
    assert words_of_causes == ["why" if cure else "likely"] * len(named) + open_word * (not cure)
    causes = [cause for cause in finding.causes if cause.certainty is not Certainty.UNKNOWN]
    assert [cause.name for cause in causes] == named
    assert all(words in cause.text for cause in causes)
    certainty = Certainty.PROVEN if cure else Certainty.LIKELY
    assert all(cause.certainty is certainty for cause in causes)


MORE_BITS = "QNN computes these operators less accurately than the bits of the scheme allow"


@pytest.mark.parametrize(
    ("schemes", "tried", "certainty"),
    [
        # That more bits help agrees with a fault of this scheme, which says more.
        (("8a8w",), (), Certainty.LIKELY),
        # The fault has been tried in vain, or is one in float16, too.
        (("8a8w",), (Tried((CURES_NORM,), WRONG_MODEL),), Certainty.PROVEN),
        (("8a8w", "fp16"), (), Certainty.PROVEN),
    ],
)
def test_a_known_fault_says_more_than_that_more_bits_help(
    schemes: tuple[str, ...],
    tried: tuple[Tried, ...],
    certainty: Certainty,
    tmp_path: Path,
) -> None:
    shown = Diagnosis(WRONG_MODEL, after=RIGHT_MODEL, finer="fp16", tried=tried)
    probes: Any = SimpleNamespace(diagnose=lambda *_: shown, locate=lambda: UNKNOWN)
    judge_case = judge_norm(tmp_path, is_scheme=False, schemes=schemes, probes=probes)
    verdict: Any = SimpleNamespace(advice=NO_ADVICE, explained_advice=NO_ADVICE)
    compiled = Compiled(program="p", binary="p", size_bytes=1, delegation=Delegation(1, 0, 1))
    found = judge_case.reasons.explain(NOISE_KIND.find("x"), verdict, compiled, is_traceable=True)
    (finding,) = judge_case.end(Status.FAILED, [found]).case.judgement.findings
    (cause,) = finding.causes
    assert (cause.certainty, cause.text.startswith(MORE_BITS)) == (certainty, not cause.name)
    assert "the model has 18.6 dB, and 68.9 dB in fp16" in cause.text


@pytest.mark.parametrize(
    ("scheme", "cure", "tried", "named"),
    [
        (Scheme.FP16, (), (Tried((CURES_OTHERS,), WRONG_MODEL),), True),  # nothing was found out
        # In float16, there is a single model, and what was tried was tried for both questions.
        (Scheme.FP16, (), (Tried((CURES_NORM,), WRONG_MODEL),), False),
        (Scheme.FP16, (CURES_OTHERS,), (), False),
        # The quantized model is another one than its program.
        (Scheme.A8W8, (), (Tried((CURES_NORM,), WRONG_MODEL),), True),
    ],
)
def test_what_experiments_excluded_is_no_cause_of_the_finding_behind(
    scheme: Scheme,
    cure: tuple[RemedyChoice, ...],
    tried: tuple[Tried, ...],
    named: bool,
    tmp_path: Path,
) -> None:
    judge_case = judge_norm(tmp_path, is_scheme=scheme is Scheme.A8W8, scheme=scheme)
    judge_case.reasons.diagnosis = Diagnosis(WRONG_MODEL, (), cure, RIGHT_MODEL, tried=tried)
    judge_case.reasons.diagnosed = Question.FAITHFUL
    causes = judge_case.reasons.choose_causes(QUANTIZED_BADLY.find("17 dB"))
    assert [fault.fault for fault in causes] == ["norm"] * named


@pytest.mark.parametrize(
    ("headline", "has_rule"),
    [
        ("score.py:top1 raised RuntimeError: {}", False),  # of the arrays that the metric reads
        ("score.py:top1 died: {}", True),  # of the process in which it runs
    ],
)
def test_rules_for_messages_explain_no_exception_of_a_metric(
    headline: str, has_rule: bool, tmp_path: Path
) -> None:
    message = "mat1 and mat2 shapes cannot be multiplied (8x24 and 32x16)"
    reasons = judge_norm(tmp_path, is_scheme=False).reasons
    advice = reasons.advise_by_rules(METRIC_ERROR.find(headline.format(message)), "")
    assert bool(advice.causes) == has_rule


@pytest.mark.parametrize(
    ("cure", "tried", "certainty"),
    [
        ((CURES_NORM,), (), Certainty.PROVEN),
        ((), (), Certainty.KNOWN),  # its pattern, and that the model is refused
        (
            (),
            (Tried((CURES_NORM,), Result(failure="refused", is_refused=True)),),
            Certainty.UNKNOWN,
        ),
    ],
)
def test_experiments_decide_which_known_fault_is_the_cause_of_a_refusal(
    cure: tuple[RemedyChoice, ...],
    tried: tuple[Tried, ...],
    certainty: Certainty,
    tmp_path: Path,
) -> None:
    refused = Result(failure="refused: error 1002")
    diagnosis = Diagnosis(refused, (), cure, RIGHT_MODEL, tried=tried)
    probes = SimpleNamespace(diagnose=lambda *_: diagnosis)
    judge_case = judge_norm(tmp_path, is_scheme=False, probes=probes)
    (finding,) = judge_case.refuse(NOT_LOWERED.find("x"), "").case.judgement.findings
    assert [cause.certainty for cause in finding.causes] == [certainty]
    assert [remedy.rewrites for remedy in finding.remedies if remedy.rewrites] == (
        [("scale",)] if cure else []
    )


@pytest.mark.parametrize("is_for_finding", [False, True])
def test_a_message_names_no_cause_of_a_refusal_if_something_else_is_proven(
    is_for_finding: bool, tmp_path: Path
) -> None:
    cure = RemedyChoice("fold", "folds", "computes a weight", is_for_finding=is_for_finding)
    diagnosis = Diagnosis(Result(failure="refused"), (), (cure,), RIGHT_MODEL)
    probes = SimpleNamespace(diagnose=lambda *_: diagnosis)
    judge_case = judge_norm(tmp_path, is_scheme=False, probes=probes)
    refused = NOT_LOWERED.find(
        "RuntimeError: QNN graph I/O does not match the delegated program signature"
    )
    (finding,) = judge_case.refuse(refused, "").case.judgement.findings
    rules = [cause.text for cause in finding.causes if "in place" in cause.text]
    assert bool(rules) is ("in place" in finding.headline) is is_for_finding
    assert any("computes a weight (proven: " in cause.text for cause in finding.causes)
    if not is_for_finding:
        assert finding.headline == "refused: it is lowered with fold"


@pytest.mark.parametrize(
    ("after", "shown"),
    [(RIGHT_MODEL, ["tried", "may help"]), (WRONG_MODEL, ["tried", "known", "may help"])],
)
def test_what_makes_the_model_right_stands_for_other_remedies_of_nodes_on_the_cpu(
    after: Result, shown: list[str], tmp_path: Path
) -> None:
    judge_case = judge_norm(tmp_path, is_scheme=False)
    cure = RemedyChoice("fold", "folds", "computes a weight")
    judge_case.reasons.diagnosis = Diagnosis(Result(cpu_nodes=1), (), (cure,), after)
    judge_case.reasons.diagnosed = ON_CPU.question
    remedies = (
        Remedy(text="tried", proof=Proof.TRIED, rewrites=("fold",)),
        Remedy(text="known", proof=Proof.PROVEN),
        Remedy(text="may help", proof=Proof.SUGGESTED),
    )
    found = ON_CPU.find("1 node", advice=Advice(remedies=remedies))
    ended = judge_case.end(Status.FAILED, [found])
    (finding,) = ended.case.judgement.findings
    assert [remedy.text for remedy in finding.remedies if remedy.text in shown] == shown
    assert ("known" in {remedy.text for remedy in finding.remedies}) is (after is WRONG_MODEL)


@pytest.mark.parametrize("is_proven", [False, True])
def test_a_message_of_the_program_with_layers_adds_no_remedy_to_a_proven_cause(
    is_proven: bool, tmp_path: Path
) -> None:
    judge_case = judge_norm(tmp_path, is_scheme=False)
    if is_proven:
        judge_case.reasons.diagnosis = Diagnosis(WRONG_MODEL, (), (CURES_OTHERS,), RIGHT_MODEL)
        judge_case.reasons.diagnosed = Question.FAITHFUL
    where = "not located: refused: could not create op: q::Transpose.2D; Op creation failure"
    finding = NOISE_KIND.find("x", advice=Advice(where=(where,)))
    advice = judge_case.reasons.advise_by_rules(finding, "")
    assert bool(advice.remedies) is not is_proven


@pytest.mark.parametrize("only_certain", [False, True])
def test_without_experiments_a_cause_that_is_not_certain_can_be_left_out(
    only_certain: bool, tmp_path: Path
) -> None:
    judge_case = judge_norm(tmp_path, is_scheme=False, only_certain=only_certain)
    (finding,) = judge_case.end(Status.FAILED, [NOISE_KIND.find("x")]).case.judgement.findings
    assert bool(finding.causes) is not only_certain


@pytest.mark.parametrize(
    ("only_certain", "cure"), [(False, ()), (True, ()), (False, (CURES_OTHERS,))]
)
def test_what_helps_against_a_likely_cause_is_shown_only_with_it(
    only_certain: bool, cure: tuple[RemedyChoice, ...], tmp_path: Path
) -> None:
    judge_case = judge_norm(
        tmp_path, is_scheme=False, scheme=Scheme.FP16, only_certain=only_certain
    )
    if cure:
        judge_case.reasons.diagnosis = Diagnosis(WRONG_MODEL, (), cure, RIGHT_MODEL)
        judge_case.reasons.diagnosed = Question.QUANTIZED
    fused = LostFusions((Place("sigmoid", Origin(file="net.py", line=3)),), 38.5, 60.0)
    loss = Loss("", 60.0, 60.0, 60.0, fused=fused)
    verdict: Any = SimpleNamespace(advice=NO_ADVICE, explained_advice=NO_ADVICE)
    advice = judge_case.reasons.advise_on_accuracy(verdict, loss, Question.QUANTIZED, [])
    finding = QUANTIZED_BADLY.find("x", advice=advice)
    shown = ["fused activations" in finding.text, "apart with slices" in finding.text]
    assert shown == [not (only_certain or cure)] * 2


def test_a_known_fault_explains_a_poor_quantized_model_also_behind_another_finding(
    tmp_path: Path,
) -> None:
    """A mask of -1e9 in 16a8w: QNN's softmax is wrong, and the quantized model is as well."""
    judge_case = judge_norm(tmp_path, is_scheme=True)
    findings = [NOISE_KIND.find("softmax is wrong"), QUANTIZED_BADLY.find("17 dB")]
    case = judge_case.end(Status.FAILED, findings).case
    named = [[cause.name for cause in item.causes] for item in case.judgement.findings]
    assert [["norm" in names for names in named], case.judgement.warnings] == [[False, True], ()]
    # One of the program explains only the program.
    judge_case = judge_norm(tmp_path, is_scheme=False)
    case = judge_case.end(Status.FAILED, findings).case
    named = [[cause.name for cause in item.causes] for item in case.judgement.findings]
    assert ["norm" in names for names in named] == [True, False]


def test_the_runner_is_not_suspected_if_a_layer_is_wrong(tmp_path: Path) -> None:
    options = make_options(policy=read_emulator_policy())
    spec = CaseSpec("mlp", Scheme.FP16, "SM8650")
    cause = Cause(text=f"{RUNNER}, which mixed up the samples", certainty=Certainty.LIKELY)
    guess = Advice(causes=(cause,))
    verdict: Any = SimpleNamespace(advice=guess, explained_advice=NO_ADVICE)
    compiled = Compiled(program="p", binary="p", size_bytes=1, delegation=Delegation(1, 0, 1))
    layer = Layer("relu", "relu", Origin(file="net.py", line=3))
    unknown = (Cause(text=UNTRIED, certainty=Certainty.UNKNOWN),)
    for departure, causes in ((UNKNOWN, guess.causes), (Departure(layer), unknown)):
        probes = SimpleNamespace(
            locate=lambda departure=departure: departure, diagnose=lambda *_: UNTRIED
        )
        reasons = make_judge(spec, options, tmp_path, probes).reasons
        explained = reasons.explain(
            NOISE_KIND.find("too far"), verdict, compiled, is_traceable=True
        )
        assert explained.causes == causes


@pytest.mark.parametrize(
    ("part", "marked"),
    [
        ([Operator("norm_9", "norm", line="net.py:3")], "norm"),  # another graph's name
        ([Operator("add_1", "add")], "add_1"),
        ([Operator("add_1", "add", line="net.py:9")], "add_1"),  # a layer without a line
        ([Operator("linear_1", "linear", line="net.py:2")], "linear_1"),  # of a loop
        ([Operator("y", "linear", node="linear_2", line="net.py:2")], "linear_2"),
        ([Operator("other", "linear", line="net.py:2")], "linear_1 linear_2"),
        ([Operator("mul", "mul"), Operator("conv", "conv", line="net.py:1")], "conv"),
        # Of a long model, not each operator is a layer that is shown.
        ([Operator(f"linear_{n}", "linear", line="net.py:2") for n in (2, 9)], "linear_2"),
        ([], ""),
    ],
)
def test_the_layers_of_the_part_that_is_wrong_by_itself_are_marked(
    part: list[Operator], marked: str
) -> None:
    lines = {"conv": 1, "linear_1": 2, "linear_2": 2, "add_1": 0, "norm": 3}
    figures = [LayerFigures(label=label) for label in lines]
    places = [{node, *([f"net.py:{line}"] if line else [])} for node, line in lines.items()]
    layers = mark_part(figures, places, part)
    assert " ".join(layer.label for layer in layers if layer.in_part) == marked


def test_a_lost_part_does_not_name_the_layer_at_which_the_whole_output_loses(
    tmp_path: Path,
) -> None:
    options = make_options(policy=read_emulator_policy())
    judge_case = make_judge(CaseSpec("mlp", Scheme.A8W8, "SM8650"), options, tmp_path)
    verdict: Any = SimpleNamespace(advice=NO_ADVICE, explained_advice=NO_ADVICE)
    # Of the whole, the weights lose the most. A part of it that is small is lost by the steps of
    # its output: with the same weights, it was right in 16a8w.
    loss = Loss("stem", before_db=60.0, behind_db=30.0, weights_db=17.9, output_db=26.8)
    judge_case.facts.evidence.figures = CaseFigures(sqnr_db_scheme=17.6)
    compiled = Compiled(
        program="p", binary="p", size_bytes=1, delegation=Delegation(1, 0, 1), loss=loss
    )
    places, causes = {}, {}
    for kind in (QUANTIZED_BADLY, PART):
        finding = kind.find("SQNR 0.3 dB")
        explained = judge_case.reasons.explain(finding, verdict, compiled, is_traceable=True)
        places[kind.id] = any("stem" in line for line in explained.where)
        causes[kind.id] = any("the weights" in cause.text for cause in explained.causes)
    assert places == causes == {QUANTIZED_BADLY.id: True, PART.id: False}


def test_a_finding_whose_cause_the_outputs_show_needs_no_experiment(tmp_path: Path) -> None:
    spec = CaseSpec("mlp", Scheme.A8W8, "SM8650")
    judge_case = make_judge(spec, make_options(policy=read_emulator_policy()), tmp_path, object())
    apart = Advice(remedies=(Remedy(text=APART, proof=Proof.SUGGESTED),))
    verdict: Any = SimpleNamespace(advice=apart, explained_advice=NO_ADVICE)
    cause = Cause(text="the output has steps of 2", certainty=Certainty.PROVEN)
    finding = PART.find("SQNR 0.3 dB").explained(Advice(causes=(cause,)))
    compiled = Compiled(program="p", binary="p", size_bytes=1, delegation=Delegation(1, 0, 1))
    explained = judge_case.reasons.explain(finding, verdict, compiled, is_traceable=True)
    assert [cause.text for cause in explained.causes] == ["the output has steps of 2"]
    assert [remedy.text for remedy in explained.remedies] == [APART]


@pytest.mark.parametrize("scheme", ["16a8w", ""])
def test_no_mixture_is_suggested_whose_finer_scheme_has_a_known_fault(
    tmp_path: Path, scheme: str
) -> None:
    fault = KnownFault(
        fault="norm", title="", seen="", fix="", calls="", nodes=(), operators=(), file="", line=0
    )

    def find_faults(_: object, name: str, *__: Any, **___: Any) -> tuple[KnownFault, ...]:
        return (fault,) if name == scheme else ()

    options = make_options(policy=read_emulator_policy(), find_faults=find_faults)
    judge_case = make_judge(CaseSpec("mlp", Scheme.A8W8, "SM8650"), options, tmp_path)
    verdict: Any = SimpleNamespace(advice=NO_ADVICE, explained_advice=NO_ADVICE)
    loss = Loss("stem", before_db=60.0, behind_db=30.0, weights_db=50.0, nodes=("stem",))
    compiled = Compiled(
        program="p", binary="p", size_bytes=1, delegation=Delegation(1, 0, 1), loss=loss
    )
    finding = QUANTIZED_BADLY.find("SQNR 0.3 dB")
    explained = judge_case.reasons.explain(finding, verdict, compiled, is_traceable=True)
    suggests = any("mixtures.finer" in remedy.text for remedy in explained.remedies)
    assert suggests is (scheme != "16a8w")


def test_a_frozen_buffer_is_named_without_experiments(tmp_path: Path) -> None:
    options = make_options(policy=read_emulator_policy(), experiments=None)
    judge_case = make_judge(CaseSpec("net", Scheme.A8W8, "SM8650"), options, tmp_path)
    verdict: Any = SimpleNamespace(advice=NO_ADVICE, explained_advice=NO_ADVICE)
    compiled = Compiled(
        program="p", binary="p", size_bytes=1, delegation=Delegation(1, 0, 1), frozen=("count",)
    )
    finding = QUANTIZED_BADLY.find("the quantized model has -0.3 dB of SQNR")
    explained = judge_case.reasons.explain(finding, verdict, compiled, is_traceable=True)
    assert explained.headline == "not quantized well: quantization freezes the buffer count"
    assert "as an input" in explained.remedies[0].text
    # If the case passes, it is a warning.
    judge_case.end_passed(compiled, "")
    (warning,) = judge_case.facts.evidence.warnings
    assert "first values of the buffer count" in warning


def test_a_refusal_of_constants_is_put_down_to_a_frozen_buffer(tmp_path: Path) -> None:
    message = "No graph inputs present for graph [0]"
    options = make_options(policy=read_emulator_policy(), experiments=None)
    judge_case = make_judge(CaseSpec("net", Scheme.A8W8, "SM8650"), options, tmp_path)
    for buffers, headline in (
        ((), message),
        (("mean",), "quantization freezes the buffer mean"),
    ):
        (judge_case.facts.directory / FROZEN).write_text(json.dumps(buffers))
        (finding,) = judge_case.refuse(NOT_LOWERED.find(message), message).case.judgement.findings
        assert finding.headline == f"refused: {headline}"


def test_what_the_cpu_computes_is_no_known_fault(tmp_path: Path) -> None:
    step_names: list[list[str]] = []

    def find_faults(steps: Sequence[Step], *_: Any, **__: Any) -> tuple[KnownFault, ...]:
        step_names.append([step.name for step in steps])
        return ()

    options = make_options(policy=read_emulator_policy(lane="onnx"), find_faults=find_faults)
    judge_case = make_judge(CaseSpec("net.onnx", Scheme.ASIS, "SM8650"), options, tmp_path)
    steps = tuple(
        Step(f"{name}_out", "batch_norm", (), (), (1,), label=f"BatchNormalization '{name}'")
        for name in ("first", "second")
    )
    left = (
        Fallback("DequantizeLinear", "QNN Batchnorm unsupported datatype on HTP.", name="scale"),
        Fallback("BatchNormalization", "QNN Batchnorm unsupported datatype on HTP.", name="second"),
    )
    delegation = Delegation(1, 2, 1, left)
    compiled = Compiled(program="p", binary="p", size_bytes=1, delegation=delegation, steps=steps)
    artifact: Any = SimpleNamespace(compiled=compiled)
    judge_case.facts.evidence.artifact = artifact
    judge_case.facts.find_faults()
    judge_case.facts.find_faults(refused=True)
    assert step_names == [["first_out"], ["first_out", "second_out"]]
    # What computes is named before the quantizers around it.
    (finding,) = judge_case.delegation_faults(compiled)
    assert finding.evidence.splitlines()[0].startswith("BatchNormalization second")


def test_nodes_that_read_garbled_indices_are_not_left_to_the_cpu(tmp_path: Path) -> None:
    options = make_options(policy=read_emulator_policy())
    judge_case = make_judge(CaseSpec("mlp", Scheme.FP16, "SM8650"), options, tmp_path)
    reason = "Unsupported input/output datatypes requested; Failed to validate op with error 0xc26"
    reader = Fallback("aten.unsqueeze_copy.default", reason, origin=Origin(file="n.py", line=2))
    remedies = {}
    for garbled in ((), (Garbled("topk", "unsqueeze"),)):
        delegation = Delegation(1, 1, 1, (reader,), garbled=garbled)
        compiled = Compiled(program="p", binary="p", size_bytes=1, delegation=delegation)
        (finding,) = judge_case.delegation_faults(compiled)
        text = judge_case.end(Status.FAILED, [finding]).case.reason
        remedies[bool(garbled)] = ("let the CPU" in text, "cast the indices" in text)
    assert remedies == {False: (True, False), True: (False, True)}


@pytest.mark.parametrize(
    ("floats", "scheme", "words"),
    [(9, "u8", "90%"), (1, "u8", ""), (9, "8a8w", "90%"), (9, "fp16", "")],
)
def test_a_quantized_program_that_is_mostly_float_says_so(
    floats: int, scheme: str, words: str
) -> None:
    types = (TypeShare(type="float", operators=floats), TypeShare(type="8 bit", operators=1))
    delegation = Delegation(1, 0, 1)
    compiled = Compiled(program="p", binary="p", size_bytes=1, delegation=delegation, types=types)
    warnings = [*find_floats(compiled, CaseSpec("mlp", Scheme(scheme), "SM8650"))]
    assert [words in warning for warning in warnings] == [True] * bool(words)


@pytest.mark.parametrize(
    ("figure", "reason", "is_asked"),
    [
        (Figure(name="above_noise", value=47.8, unit="dB"), "", True),
        (Figure(name="sqnr_all", value=18.8, unit="dB"), "", True),
        (Figure(name="equal", value=0.0, allowed=0.995), "", False),
        (None, "", False),
        (Figure(name="above_noise", value=47.8, unit="dB"), "it is a .tflite file", False),
    ],
)
def test_experiments_are_made_only_for_what_is_measured_in_decibels_and_can_be_changed(
    figure: Figure | None, reason: str, is_asked: bool
) -> None:
    finding = NOISE_KIND.find("it is wrong", figures=[figure] if figure else [])
    diagnosed = []
    experiments = SimpleNamespace(
        diagnose=lambda *words: diagnosed.append(words), refuse=lambda _: reason
    )
    run: Any = SimpleNamespace(
        setup=SimpleNamespace(options=SimpleNamespace(experiments=experiments), device=""),
        spec=SimpleNamespace(source=SimpleNamespace(choices=SimpleNamespace(methods=()))),
    )
    shown = CaseRun.diagnose(run, finding, Suspicion(WRONG_MODEL))
    assert bool(diagnosed) is is_asked
    if not is_asked:
        assert shown == (f"{UNTRIED}: {reason}" if reason else UNTRIED)


@pytest.mark.parametrize(
    ("run", "is_asked"),
    [
        (Run(failure="execute failed with error 0x1", by_runtime=True), True),
        (Run(failure="was killed by SIGSEGV", died=True), True),
        (Run(failure="was killed by SIGSEGV", died=True, used=True), False),
        (Run(failure="did not end within 9 s", exceeded=True), True),
        (Run(failure="did not end within 9 s", exceeded=True, used=True), False),
        (Run(failure="the process closed its pipe"), False),
        (Run(failure="error 0x1", by_runtime=True, used=True), False),  # it is run again first
        (Run(failure="error 0x1", by_runtime=True, lacks="a phone"), False),
    ],
)
def test_experiments_are_made_with_a_program_that_does_not_run_or_dies(
    run: Run, is_asked: bool, tmp_path: Path
) -> None:
    questions: list[tuple[Question, bool, bool, bool]] = []

    def diagnose(finding: Finding, suspicion: Suspicion) -> Diagnosis:
        is_refused = suspicion.whole_result.is_refused
        questions.append((finding.question, is_refused, suspicion.repeats, suspicion.exceeded))
        return Diagnosis(suspicion.whole_result, (), (CURES_NORM,), RIGHT_MODEL)

    probes = SimpleNamespace(diagnose=diagnose)
    judge_case = judge_norm(tmp_path, is_scheme=False, probes=probes)
    compiled = Compiled(program="p", binary="p", size_bytes=1, delegation=Delegation(1, 0, 1))
    case = judge_case.end_failed(run, compiled, "").case
    assert questions == [(Question.RUN, True, run.died, run.exceeded)] * is_asked
    certainties = {cause.certainty for cause in case.judgement.findings[0].causes}
    assert (Certainty.PROVEN in certainties) is is_asked


LATE = "did not end within 9 s: it used 8.9 s of CPU time"
LARGE = "the process needs more than 4.0 GiB of memory, its limit"
VAIN = Diagnosis(
    Result(failure=LATE, is_refused=True),
    tried=(Tried((RemedyChoice("lower-rank", "a lower rank", "it is slow"),), Result(0, 9)),),
    ended=TIME_IS_UP,
    reproducer="qnn/part.py",
)
TRIED_IN_VAIN = (
    "unknown: no experiment shows the cause: the model has no outputs; tried: lower-rank (0.0 dB);"
    f" {TIME_IS_UP}: {MORE_TIME}; reproducer: qnn/part.py"
)
SLOW = "known: the model's code, the compiler or the emulator hangs or is slow"


@pytest.mark.parametrize("lane", ["emulator", "onnx", "litert"])
@pytest.mark.parametrize(
    ("stop", "shown", "causes"),
    [
        (DIED.find(f"lowering: {LATE}"), VAIN, [TRIED_IN_VAIN]),
        (DIED.find(f"lowering: {LARGE}"), VAIN, [TRIED_IN_VAIN]),
        (DIED.find(f"LiteRT's plugin for Qualcomm was ended: it {LATE}"), VAIN, [TRIED_IN_VAIN]),
        (Run(failure=LATE, exceeded=True), VAIN, [TRIED_IN_VAIN]),
        (Run(failure=LARGE, exceeded=True), VAIN, [TRIED_IN_VAIN]),
        # Without an experiment, only the limit is known.
        (Run(failure=LATE, exceeded=True), UNTRIED, [SLOW]),
        (
            DIED.find(f"lowering: {LATE}"),
            Diagnosis(VAIN.before, (), (CURES_NORM,), RIGHT_MODEL),
            ["proven: norms are wrong (proven: the model has no outputs, and 68.9 dB with scale)"],
        ),
    ],
)
def test_what_was_tried_is_shown_of_a_case_that_exceeds_a_limit_in_each_lane(
    lane: str, stop: Finding | Run, shown: Diagnosis | str, causes: list[str], tmp_path: Path
) -> None:
    options = make_options(policy=read_emulator_policy(lane=lane))
    probes = SimpleNamespace(diagnose=lambda *_: shown)
    judge_case = make_judge(
        CaseSpec("net.py:net", Scheme.FP16, "SM8650"), options, tmp_path, probes
    )
    if isinstance(stop, Run):
        compiled = Compiled(program="p", binary="p", size_bytes=1, delegation=Delegation(1, 0, 1))
        case = judge_case.end_failed(stop, compiled, "").case
    else:
        case = judge_case.refuse(stop, "", exceeded=True).case
    (finding,) = case.judgement.findings
    said = [f"{cause.certainty.value}: {cause.text}" for cause in finding.causes]
    assert [text.partition(": the emulator is")[0] for text in said] == causes
    assert any("--timeout-s" in remedy.text for remedy in finding.remedies) is (
        LARGE not in str(stop)
    )


@pytest.mark.parametrize(
    ("name", "scheme", "suspicion"),
    [
        ("", Scheme.FP16, Suspicion(Result(cpu_nodes=3), ("", "gt", "net.py:7"))),
        (
            "gt_1",
            Scheme.A8W8,
            Suspicion(Result(cpu_nodes=3), ("gt_1", "gt", "net.py:7"), finer="16a8w", wider="fp16"),
        ),
    ],
)
def test_experiments_begin_at_the_first_node_on_the_cpu_that_computes(
    name: str, scheme: Scheme, suspicion: Suspicion, tmp_path: Path
) -> None:
    suspicions: list[Suspicion] = []
    judge_case = judge_with_cpu_nodes(name, scheme, suspicions, tmp_path)
    compiled = judge_case.facts.evidence.artifact.compiled
    verdict: Any = SimpleNamespace(advice=NO_ADVICE, explained_advice=NO_ADVICE)
    (finding,) = judge_case.delegation_faults(compiled)
    judge_case.reasons.explain(finding, verdict, compiled, is_traceable=True)
    assert suspicions == [suspicion]


def judge_with_cpu_nodes(
    name: str, scheme: Scheme, suspicions: list[Suspicion], tmp_path: Path
) -> Any:
    """Return the judge of a case with three nodes on the CPU, the last of which has a name. What it
    asks experiments about is added to ``suspicions``."""
    probes = SimpleNamespace(diagnose=lambda _, suspicion: suspicions.append(suspicion) or UNTRIED)
    options = make_options(policy=read_emulator_policy())
    judge_case = make_judge(CaseSpec("net.py:net", scheme, "SM8650"), options, tmp_path, probes)
    nodes = (
        Fallback("aten.sin.default", "the CPU was asked for", asked=True),
        Fallback("QuantizeLinear", "it follows"),
        Fallback(
            "aten.gt.Scalar", "No node visitor", origin=Origin(file="net.py", line=7), name=name
        ),
    )
    delegation = Delegation(9, 3, 1, nodes)
    compiled = Compiled(program="p", binary="p", size_bytes=1, delegation=delegation)
    artifact: Any = SimpleNamespace(compiled=compiled)
    judge_case.facts.evidence.artifact = artifact
    return judge_case


@pytest.mark.parametrize(
    ("places", "line"),
    [((), "net.py:7"), (Origin(file="net.py", line=3).places, "net.py:3")],
)
def test_a_program_that_does_not_run_is_examined_at_its_first_node_on_the_cpu(
    places: tuple[Any, ...], line: str, tmp_path: Path
) -> None:
    judge_case = judge_with_cpu_nodes("gt_1", Scheme.A8W8, [], tmp_path)
    finding = structs.replace(NO_OUTPUTS.find("error 0x12"), places=places)
    assert judge_case.reasons.describe_suspicion(finding).first == ("", "", line)
