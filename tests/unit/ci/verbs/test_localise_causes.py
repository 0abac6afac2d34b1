"""Localise names the cause that the verdict names, and searches once. The verdicts and the search
are stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from ci.audit.localise import Localised
from ci.audit.localise_search import Departure, Mend, Operator
from ci.cases.spec import CaseSpec
from ci.diagnosis.experiments import Operator as FloatOperator
from ci.executorch.engine import ExecutorchEngine
from ci.facts.finding import Advice, Certainty, Finding, Question, advise
from ci.mend.experiments import Experiments
from ci.models.schemes import Scheme
from ci.report.schema import Case, JudgementFacts, NoiseNote, ProgramFacts, Status
from ci.verbs import localise
from ci.verbs.localise import CaseSearch, choose_exit, list_reasons, render_cases
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode
from tests.build.setups import make_setup

PROVEN = advise("it is fused (proven: 18.6 dB, and 68.9 with a)", "a", certainty=Certainty.PROVEN)
UNKNOWN = advise("no experiment shows the cause: tried: a", certainty=Certainty.UNKNOWN)
LIKELY = advise("numbers are large", certainty=Certainty.LIKELY)
WRONG = Departure("add", 20.0, 60.0, faithful=False)
LOCATED = Localised(
    model="net.py:net",
    scheme="fp16",
    soc="SM8650",
    wrong=True,
    programs=3,
    outputs=(WRONG,),
    part=(Operator(name="add", kind="add", line="net.py:1"),),
    part_outputs=(WRONG,),
)
MENDED = structs.replace(
    LOCATED,
    mended_by=(Mend.RANGES,),
    changed=(Departure("add", 59.0, 60.0, faithful=True),),
)
NOTE = NoiseNote(
    output=0,
    place="the whole output",
    above_db=9.0,
    allowed_db=3.0,
    raised_db=0.1,
    why="small",
    sqnr_db=50.0,
    predicted_db=60.0,
    sqnr_db_float=40.0,
    sqnr_db_scheme=40.0,
)


def fail(advice: Advice, question: Question = Question.FAITHFUL) -> JudgementFacts:
    """The verdict on a case with one finding."""
    finding = Finding(id="QNN2001", question=question, headline="wrong").explained(advice)
    return JudgementFacts(status=Status.FAILED, findings=(finding,))


PASSED = JudgementFacts(status=Status.PASSED)


@dataclass
class Localising:
    """Localises a case whose verdicts are these, the first one not strict. Where a verdict
    ``asks``, its experiments ask for the search in the operators of these names."""

    monkeypatch: pytest.MonkeyPatch
    path: Path
    localised: Localised
    asks: tuple[str, ...] | None = None
    experiments: Any = field(default_factory=lambda: Experiments("torch", 300.0, 300.0))
    program: ProgramFacts = field(default_factory=ProgramFacts)
    strict: list[bool] = field(default_factory=list)
    searched: list[list[str]] = field(default_factory=list)

    def run(self, *verdicts: JudgementFacts) -> Localised:
        turns = iter(verdicts)
        outer = self

        class Judged:
            def __init__(self, _: Any, setup: Any) -> None:
                self.options = setup.options
                outer.strict.append(setup.options.policy.strict_noise)

            def run(self) -> Any:
                judgement = next(turns)
                if outer.asks is not None and judgement.status is Status.FAILED:
                    operators = [FloatOperator(name, "add") for name in ("add", "mul")]
                    self.options.experiments.search(operators, outer.asks)
                program = outer.program
                case = Case("net", "fp16", "SM8650", program=program, judgement=judgement)
                return SimpleNamespace(case=case)

        class Searched:
            def __init__(self, _spec: Any, setup: Any, _parts: Any, _progress: Any) -> None:
                assert setup.options.policy.strict_noise

            def run(self, _limit: int, _file: Any, suspected: Any) -> Localised:
                outer.searched.append([operator.name for operator in suspected])
                return outer.localised

        self.monkeypatch.setattr(localise, "CaseRun", Judged)
        self.monkeypatch.setattr(localise, "Localiser", Searched)
        engine = ExecutorchEngine(())
        setup = make_setup(self.path, engine, None, None, experiments=self.experiments)
        spec = CaseSpec("net.py:net", Scheme.FP16, "SM8650")
        return CaseSearch(spec, setup, 60, None, Progress()).run()


Make = Callable[..., Localising]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    def create(localised: Localised = LOCATED, **fields: Any) -> Localising:
        return Localising(monkeypatch, tmp_path, localised, **fields)

    return create


def test_the_cause_is_that_of_the_verdict_whose_experiments_search_once(make: Make) -> None:
    localising = make(asks=("add",))
    localised = localising.run(fail(PROVEN))
    assert (localising.strict, localising.searched) == ([False], [["add"]])
    assert list_reasons(localised) == [
        ("why", "it is fused (proven: 18.6 dB, and 68.9 with a)"),
        ("try", "a"),
    ]
    assert localised.cause == localised.causes[0].text


def test_a_case_that_passes_with_a_note_is_judged_strictly(make: Make) -> None:
    noted = JudgementFacts(status=Status.PASSED, noise_notes=(NOTE,))
    localising = make(asks=())
    assert list_reasons(localising.run(noted, fail(UNKNOWN))) == [
        ("unknown", "no experiment shows the cause: tried: a")
    ]
    assert (localising.strict, localising.searched) == ([False, True], [[]])


def test_a_case_that_passes_is_searched_and_has_no_cause(make: Make) -> None:
    localising = make(Localised(model="net", scheme="fp16", soc="S", wrong=False, programs=2))
    localised = localising.run(PASSED)
    assert (localising.strict, localising.searched) == ([False], [[]])
    assert (localised.cause, list_reasons(localised)) == ("", [])


@pytest.mark.parametrize("has_program", [True, False])
def test_a_case_without_a_program_is_red_although_its_file_has_one(
    make: Make, has_program: bool
) -> None:
    right = Departure("add", 60.0, 60.0, faithful=True)
    located = Localised(
        model="net", scheme="fp16", soc="S", wrong=False, programs=2, outputs=(right,)
    )
    localising = make(located, program=ProgramFacts(pte_bytes=5 if has_program else None))
    localised = localising.run(fail(LIKELY))
    assert localised.refusal == ("" if has_program else "wrong")
    assert choose_exit([localised]) == (ExitCode.OK if has_program else ExitCode.FAILED)
    assert ("  red: wrong" in render_cases([localised])) is not has_program


@pytest.mark.parametrize(
    ("advice", "question", "word"),
    [
        # The time of the experiments was up: what the search shows is proven.
        (UNKNOWN, Question.FAITHFUL, "calibration chose ranges"),
        (LIKELY, Question.FAITHFUL, "calibration chose ranges"),
        # The verdict knows better, or is about something else.
        (PROVEN, Question.FAITHFUL, "it is fused"),
        (LIKELY, Question.QUANTIZED, "numbers are large"),
    ],
)
@pytest.mark.parametrize("has_experiments", [True, False])
def test_what_only_the_search_shows_is_the_cause_of_a_program_that_is_wrong(
    make: Make, advice: Advice, question: Question, word: str, has_experiments: bool
) -> None:
    localising = make(MENDED)
    if not has_experiments:  # as for LiteRT
        localising.experiments = None
    localised = localising.run(fail(advice, question))
    assert localising.searched == [[]]
    assert [cause.text.startswith(word) for cause in localised.causes] == [True]
