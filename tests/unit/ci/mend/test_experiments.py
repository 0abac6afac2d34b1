"""The time that experiments may take on a busy machine, and what the verdict on a part answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from ci.cases.pool import ABORTED
from ci.cases.spec import CaseSpec
from ci.diagnosis.diagnosis import Suspicion
from ci.diagnosis.experiments import UNCHANGED, WHOLE, Experiment, KeepPart, Result, RunPart
from ci.facts.finding import Finding, Question
from ci.facts.kinds import (
    DIED,
    INVALID,
    NO_NODE,
    NO_OUTPUTS,
    NOISE,
    NOT_LOWERED,
    ON_CPU,
    QUANTIZED_BADLY,
)
from ci.faults.known import Frontend
from ci.mend.experiments import (
    MOST_SLOW,
    Budget,
    Experiments,
    Laboratory,
    is_lasting,
    is_refused_alike,
    is_same_refusal,
    read_result,
)
from ci.mend.table import UNKNOWN_REASON, RewriteLane, read_rewrites
from ci.mend.trials import Attempt, Trials
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from ci.report.schema import Case, JudgementFacts, ProgramFacts, Status
from provisioning.errors import FailedError
from tests.build.setups import make_setup

NOW_S = 100.0


def make_budget(work_s: float = 40.0) -> Budget:
    """The time for a case on an idle machine."""
    return Budget(work_s, lambda: 0.0)


@pytest.mark.parametrize(
    ("passed_s", "waited_s", "left_s"),
    [
        (10.0, 0.0, 30.0),
        (10.0, 4.0, 34.0),
        (100.0, 90.0, 30.0),
        (130.0, 125.0, 30.0),  # the limit by the clock
        (170.0, 165.0, -10.0),
        (50.0, 0.0, -10.0),
    ],
)
def test_what_jobs_wait_for_a_processor_is_no_time_of_experiments(
    monkeypatch: pytest.MonkeyPatch, passed_s: float, waited_s: float, left_s: float
) -> None:
    clock = SimpleNamespace(now_s=NOW_S, waited_s=7.0)
    fake_time = SimpleNamespace(monotonic=lambda: clock.now_s)
    monkeypatch.setattr("ci.mend.experiments.time", fake_time)
    budget = Budget(40.0, lambda: clock.waited_s, MOST_SLOW)
    clock.now_s += passed_s
    clock.waited_s += waited_s
    assert budget.left_s == pytest.approx(left_s)
    with budget.paused():
        clock.now_s += 20.0
        clock.waited_s += 5.0
    assert budget.left_s == pytest.approx(left_s)
    budget.extend_to(32.0)
    assert budget.left_s == pytest.approx(max(left_s, 32.0))


def make_case(*findings: Finding, nodes: int = 0, **figures: Any) -> Case:
    """The row of a part, with so many nodes on the CPU."""
    status = Status.FAILED if findings else Status.PASSED
    judgement = JudgementFacts(status=status, findings=findings, **figures)
    case = Case("part", "fp16", "SM8650", judgement=judgement)
    return structs.replace(case, program=ProgramFacts(fallback_nodes=nodes))


@pytest.mark.parametrize(
    ("case", "result"),
    [
        (
            make_case(ON_CPU.find("1 node falls back"), nodes=1, sqnr_db=60.0),
            Result(60.0, cpu_nodes=1),
        ),
        # Outputs may be wrong then, of which a part has no limits.
        (make_case(NOISE.find("wrong"), sqnr_db=9.0), Result(9.0, is_right=True, is_wrong=True)),
        (make_case(QUANTIZED_BADLY.find("9 dB"), sqnr_db=9.0), Result(9.0, is_right=True)),
        (make_case(sqnr_db=60.0), Result(60.0, is_right=True)),
        # Without QNN there is no program: every node is on the CPU.
        (make_case(NO_NODE.find("QNN accepted no node"), nodes=3), Result(cpu_nodes=3)),
        (make_case(NO_NODE.find("QNN accepted no node")), Result(cpu_nodes=1)),
        # Neither a program that dies nor a part whose outputs hardly vary shows anything.
        (
            make_case(INVALID.find("output 0 hardly varies")),
            Result(failure="output 0 hardly varies"),
        ),
        (make_case(NO_OUTPUTS.find("SIGSEGV"), nodes=1), Result(failure="run: SIGSEGV")),
    ],
)
def test_a_part_is_judged_by_its_nodes_on_the_cpu(case: Case, result: Result) -> None:
    assert read_result(case, Question.BUDGET) == result
    is_wrong = any(
        finding.id in {NOISE.id, QUANTIZED_BADLY.id} for finding in case.judgement.findings
    )
    assert read_result(case, Question.BUDGET, is_whole=True).is_wrong is is_wrong


@pytest.mark.parametrize(
    ("lane", "front_end", "word"),
    [
        ("torch", None, "through ExecuTorch"),
        ("onnx", None, "quantized, the mean and the variance"),
        ("torch", "litert", UNKNOWN_REASON),
    ],
)
def test_a_rewrite_says_why_it_helps_in_the_lane_that_it_is_for(
    lane: RewriteLane, front_end: Frontend | None, word: str
) -> None:
    rows = read_rewrites(lane, front_end=front_end)
    (row,) = [row for row in rows if row.name == "group-by-instance"]
    assert word in row.reason


NOT_RUN, NOT_MADE = NO_OUTPUTS.find("error 0x1"), NOT_LOWERED.find("error 3110")


@pytest.mark.parametrize(
    ("case", "question", "result"),
    [
        (make_case(NOT_RUN), Question.RUN, Result(failure="run: error 0x1", is_refused=True)),
        (make_case(NOT_RUN), Question.LOWERED, Result(failure="run: error 0x1")),
        (
            make_case(NOT_MADE),
            Question.FAITHFUL,
            Result(failure="refused: error 3110", is_refused=True),
        ),
        (
            make_case(NOT_LOWERED.find("net.py:net raised ValueError: x finds nothing to change")),
            Question.RUN,
            Result(failure="it finds nothing to change"),
        ),
        # It runs: how near it is to the model is another question.
        (
            make_case(NOISE.find("x"), sqnr_db=9.0),
            Question.RUN,
            Result(9.0, is_right=True, is_wrong=True),
        ),
    ],
)
def test_a_part_without_outputs_is_refused_as_the_model_is(
    case: Case, question: Question, result: Result
) -> None:
    assert read_result(case, question) == result


@pytest.mark.parametrize(
    ("message", "is_same"),
    [
        ("RuntimeError: node 'conv_3' of rank 6 is not supported", True),
        ("RuntimeError: node 'conv_3' of rank 6 is not delegated", False),
    ],
)
def test_a_part_is_refused_for_the_reason_of_the_model_but_for_names_and_numbers(
    message: str, is_same: bool
) -> None:
    finding = NOT_LOWERED.find("RuntimeError: node 'conv_17' of rank 5 is not supported")
    part = NOT_LOWERED.find(message)
    assert is_same_refusal(finding, make_case(part)) is is_same
    # A rule gave it another headline, below which the message is.
    renamed = part.renamed("QNN does not take rank 6")
    assert is_same_refusal(finding, make_case(renamed)) is is_same


@pytest.mark.parametrize(
    ("message", "is_same"),
    [
        ("lowering: did not end within 7 s: it used 6.9 s of CPU time", True),
        ("lowering: the process needs more than 4.0 GiB of memory, its limit", True),
        ("lowering: the process needs 9.0 GiB of memory, its share is 6.0 GiB, and", True),
        ("lowering: the process was killed by SIGSEGV without a result", False),
    ],
)
def test_a_part_of_a_model_that_exceeded_a_limit_may_exceed_another_one(
    message: str, is_same: bool
) -> None:
    finding = DIED.find("lowering: did not end within 600 s: it used 598.1 s of CPU time")
    case = make_case(DIED.find(message))
    assert is_refused_alike(finding, case, is_changed=False) is is_same
    # With a rewrite that did not help, it dies; one that exceeds a limit might help in more time.
    assert is_refused_alike(finding, case, is_changed=True) is not is_same


WRONG = NOISE.find("above the noise")
BY_COMPILER = NOT_LOWERED.find("error 3110")


@pytest.mark.parametrize(
    ("finding", "stop", "is_changed", "is_refused", "is_fleeting"),
    [
        # What the compiler refuses, or what kills it, is so in every run.
        (BY_COMPILER, BY_COMPILER, True, True, False),
        (WRONG, DIED.find("lowering: the process was killed by SIGSEGV"), True, True, False),
        # The kernel, if memory runs out, or a user killed the worker; or the run was stopped.
        (WRONG, DIED.find("lowering: the process was killed by SIGKILL"), True, False, True),
        (WRONG, DIED.find("lowering: the process was killed by SIGTERM"), True, False, True),
        (WRONG, DIED.find("lowering: the process closed its pipe"), True, False, True),
        (WRONG, DIED.find(f"lowering: {ABORTED}"), True, False, True),
        # A rule has renamed the message.
        (
            WRONG,
            DIED.find("out of memory", evidence="the process was killed by SIGKILL"),
            True,
            False,
            True,
        ),
        # A part of a model that exceeded a limit is refused like it, within the time that was left.
        (
            DIED.find("lowering: did not end within 300 s"),
            DIED.find("lowering: did not end within 7 s"),
            False,
            True,
            True,
        ),
    ],
)
def test_an_experiment_whose_worker_is_killed_answers_nothing_and_is_made_again(
    finding: Finding,
    stop: Finding,
    is_changed: bool,
    is_refused: bool,
    is_fleeting: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = SimpleNamespace(run=lambda: SimpleNamespace(case=make_case(stop)))
    monkeypatch.setattr("ci.mend.experiments.CaseRun", lambda *_: stopped)
    run = stand_in(Scheme.FP16, tmp_path)
    run.setup = make_setup(tmp_path, engine=None, runner=None, pool=None)
    laboratory = Laboratory(run, Experiments("torch", 40.0, 40.0), finding, make_budget())
    result = laboratory.judge(laboratory.spec, is_changed=is_changed)
    expected = Result(failure=stop.headline, is_refused=is_refused, is_fleeting=is_fleeting)
    assert result == expected
    assert is_lasting(result) is not is_fleeting


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_rewritten_model_has_the_limits_that_the_policy_has_for_it_and_a_part_has_not(
    is_whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []

    def start(spec: CaseSpec, _: Any) -> Any:
        names.append(spec.model)
        return SimpleNamespace(run=lambda: SimpleNamespace(case=make_case(WRONG)))

    monkeypatch.setattr("ci.mend.experiments.CaseRun", start)
    run = stand_in(Scheme.FP16, tmp_path)
    run.setup = make_setup(tmp_path, engine=None, runner=None, pool=None)
    laboratory = Laboratory(run, Experiments("torch", 40.0, 40.0), WRONG, make_budget())
    changed = replace(laboratory.spec, model="another name")
    laboratory.judge(changed, is_changed=True, is_whole=is_whole)
    assert names == [laboratory.spec.model if is_whole else "another name"]


@pytest.fixture
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still."""
    monkeypatch.setattr("ci.mend.experiments.time", SimpleNamespace(monotonic=lambda: NOW_S))


def stand_in(scheme: Scheme, folder: Path) -> Any:
    """The run of a case, as far as its experiments need it."""
    return SimpleNamespace(
        spec=CaseSpec("net.py:factory", scheme, "SM8650", Source("net.py:factory")),
        directory=folder,
        facts=SimpleNamespace(evidence=SimpleNamespace(artifact=None, refused_key="")),
        setup=SimpleNamespace(options=SimpleNamespace(timeout_s=600.0)),
    )


@pytest.mark.usefixtures("_clock")
@pytest.mark.parametrize(("exceeded", "most_s"), [(False, 40.0), (True, 10.0)])
def test_an_experiment_with_a_model_that_exceeded_a_limit_leaves_time_for_others(
    exceeded: bool, most_s: float, tmp_path: Path
) -> None:
    limits_s = []

    class Unable(Laboratory):
        def answer(self, experiment: Experiment) -> None:
            if not isinstance(experiment, KeepPart):
                limits_s.append(self.most_s)

    finding = DIED.find("lowering: did not end within 600 s")
    laboratory = Unable(
        stand_in(Scheme.FP16, tmp_path), Experiments("torch", 40.0, 40.0), finding, make_budget()
    )
    laboratory.run_all(Suspicion(Result(failure=finding.headline), exceeded=exceeded))
    assert limits_s == [most_s]


@pytest.mark.usefixtures("_clock")
def test_cases_of_one_model_share_what_rewrites_do_to_it(tmp_path: Path) -> None:
    jobs: list[list[str]] = []

    class Counting(Laboratory):
        def call(self, job: Any) -> Any:
            if not isinstance(job, Trials):
                return self.spec.reference  # the model is a file of its own already
            names = [name for (name,) in job.recipes]
            jobs.append(names)
            return [Attempt(names=(name,), applies=name == names[0]) for name in names]

    shared, finding = Experiments("torch", 40.0, 40.0), NOISE.find("above the noise")

    def list_rows(scheme: Scheme) -> list[str]:
        rows = [row for row in read_rewrites("torch") if row.helps_in(scheme.base)]
        return [row.name for row in rows if not row.approximate]

    for scheme in (Scheme.A8W8, Scheme.A8W8, Scheme.FP16):
        laboratory = Counting(stand_in(scheme, tmp_path), shared, finding, make_budget())
        assert laboratory.list_remedies(()) is not None
    in_8_bits = list_rows(Scheme.A8W8)
    in_float = [name for name in list_rows(Scheme.FP16) if name not in in_8_bits]
    assert jobs == [in_8_bits, in_float]

    late = Counting(stand_in(Scheme.A8W4, tmp_path), shared, finding, make_budget(0.0))
    with shared.know(late.spec).guard:  # as another case holds it
        assert late.list_remedies(()) is None


FACTORY = """
import torch

def make_net():
    sets = [(torch.full((1, 4), float(number)),) for number in range(6)]
    return torch.nn.ReLU(), sets[0], sets[1:]
"""


def test_the_model_that_is_changed_has_the_samples_of_the_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    from ci.onnx.compile import load_source

    def write(source: Any, path: Path) -> Path:
        text = '<ir_version: 10, opset_import: ["": 21]> m (float[1,4] x) => (float[1,4] y)'
        onnx.save(onnx.parser.parse_model(f"{text} {{ y = Relu(x) }}"), path)
        return path

    class AtOnce(Laboratory):
        def call(self, job: Any) -> Any:
            return job()

    monkeypatch.setattr("ci.onnx.compile.write_float", write)
    file = tmp_path / "net.py"
    file.write_text(FACTORY)
    reference = f"{file}:make_net"
    run = stand_in(Scheme.U8, tmp_path)
    run.spec = replace(run.spec, model=reference, source=Source(reference))
    laboratory = AtOnce(run, Experiments("onnx", 40.0, 40.0), WRONG, make_budget())

    subject = laboratory.open_subject()
    assert subject is not None
    assert subject.is_file
    original, written = load_source(run.spec), load_source(subject)
    np.testing.assert_array_equal(written.evaluation, original.evaluation)
    np.testing.assert_array_equal(written.calibration, original.calibration)
    assert len(original.calibration) > len(original.evaluation)  # a sample is in both


def test_why_nothing_can_be_changed_is_one_line(tmp_path: Path) -> None:
    error = FailedError("ConversionError: \x1b[96mnot supported\x1b[0m: prod\nNext steps:\n- ...")
    ended = SimpleNamespace(failure="refused", error=error, result=None)
    run = stand_in(Scheme.U8, tmp_path)
    run.setup.pool = SimpleNamespace(run=lambda *_, **__: ended)
    run.facts.memory_bytes = 0
    laboratory = Laboratory(run, Experiments("onnx", 40.0, 40.0), WRONG, make_budget())
    expected = Result(failure="ConversionError: not supported: prod")
    assert laboratory.list_remedies(WHOLE) == expected


@pytest.mark.parametrize(
    ("scheme", "finding", "is_first"),
    [
        (Scheme.FP16, NOISE.find("above the noise"), True),
        (Scheme.FP16, QUANTIZED_BADLY.find("not accurate enough"), True),
        # The quantized model is another one than its program.
        (Scheme.A16W8, QUANTIZED_BADLY.find("not quantized well"), False),
    ],
)
def test_what_cures_wrong_numbers_is_tried_first_on_an_inaccurate_model_in_float16(
    scheme: Scheme, finding: Finding, is_first: bool, tmp_path: Path
) -> None:
    class Applying(Laboratory):
        def call(self, job: Any) -> Any:
            if not isinstance(job, Trials):
                return self.spec.reference
            return [Attempt(names=names) for names in job.recipes]

    run = stand_in(scheme, tmp_path)
    laboratory = Applying(run, Experiments("torch", 40.0, 40.0), finding, make_budget())
    choices = laboratory.list_remedies(WHOLE)
    assert isinstance(choices, list)
    (choice,) = (choice for choice in choices if choice.name == "sum-single-column")
    assert choice.is_for_finding is is_first


@pytest.mark.parametrize("lane", ["torch", "onnx"])
def test_only_the_title_for_onnx_files_has_the_limit_of_steps_that_these_have(
    lane: RewriteLane,
) -> None:
    (row,) = [row for row in read_rewrites(lane) if row.name == "unroll-recurrent"]
    assert ".onnx" not in row.title
    assert ("64 steps" in row.title) is (lane == "onnx")


@pytest.mark.usefixtures("_clock")
def test_a_remedy_that_changes_nothing_in_a_part_needs_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[str] = []

    class Applying(Laboratory):
        def call(self, job: Any) -> Any:
            if not isinstance(job, Trials):
                return "part.py:make_part"
            return [Attempt(names=names, applies=names == NEAR) for names in job.recipes]

        def judge(self, spec: CaseSpec, **_: Any) -> Result:
            programs.append(spec.model)
            return RIGHT

    monkeypatch.setattr("ci.mend.experiments.make_source", lambda *_: "")
    shared = Experiments("torch", 40.0, 40.0)
    laboratory = Applying(stand_in(Scheme.A8W8, tmp_path), shared, WRONG, make_budget())
    far = laboratory.answer(RunPart(("add",), FAR))
    assert far == Result(failure=UNCHANGED)
    assert is_lasting(far)
    assert not programs
    assert laboratory.answer(RunPart(("add",), NEAR)) == RIGHT
    assert len(programs) == 1


NEAR, FAR, RIGHT = ("expand-constant",), ("scale-batch-norm",), Result(60.0, is_right=True)
