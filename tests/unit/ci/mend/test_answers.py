"""Answers of experiments in the store: what is read again, and what is not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.diagnosis.experiments import (
    TIME_IS_UP,
    Answer,
    Experiment,
    KeepPart,
    ListOperators,
    ListRemedies,
    Operator,
    RemedyChoice,
    Result,
    RunPart,
)
from ci.facts.finding import Finding
from ci.facts.kinds import DIED, NO_OUTPUTS, NOISE, NOT_LOWERED
from ci.mend.answers import Answers
from ci.mend.experiments import is_lasting, open_answers
from ci.models.schemes import Scheme

REMEDY = RemedyChoice("scale", "a norm as a product", "norms are wrong", ("norm",), places=("n:3",))


@pytest.mark.parametrize(
    ("experiment", "answer"),
    [
        (ListRemedies(), [REMEDY]),
        (ListOperators(), [Operator("add", "add", ("x",), line="net.py:3")]),
        (RunPart(("add",), ("scale",)), Result(18.6, 70.0)),
        (RunPart((), scheme="16a8w"), Result(failure="refused: QNN accepts no node")),
    ],
)
def test_an_answer_is_read_again_for_the_same_program_and_experiment(
    experiment: Experiment, answer: Answer, tmp_path: Path
) -> None:
    answers = Answers(("program", "fp16"), tmp_path / "answers")
    assert answers.read(experiment) is None
    answers.write(experiment, answer)
    assert answers.read(experiment) == answer
    assert Answers(("other program", "fp16"), tmp_path / "answers").read(experiment) is None
    for other_request in (
        RunPart(("add",), ("scale", "widen")),
        RunPart(("add",), returns_all=True),
    ):
        assert answers.read(other_request) is None


def test_a_damaged_answer_is_asked_again(tmp_path: Path) -> None:
    answers, experiment = Answers(("program",), tmp_path), RunPart(("add",))
    answers.write(experiment, Result(18.6, 70.0))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert answers.read(experiment) is None
    answers.write(experiment, Result(18.6, 70.0))
    assert answers.read(experiment) == Result(18.6, 70.0)


def test_where_a_reproducer_was_kept_is_not_kept_as_an_answer(tmp_path: Path) -> None:
    answers = Answers(("program",), tmp_path)
    answers.write(KeepPart(("add",)), "qnn/part.py")
    assert not [*tmp_path.iterdir()]


def test_a_store_that_cannot_be_written_costs_only_the_answer(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answers = Answers(("program",), tmp_path / "file" / "answers")
    answers.write(RunPart(("add",)), Result(18.6, 70.0))
    assert answers.read(RunPart(("add",))) is None


@pytest.mark.parametrize(
    ("answer", "is_kept"),
    [
        (Result(18.6, 70.0), True),
        (Result(failure="refused: QNN accepts no node", is_refused=True), True),
        (Result(failure=TIME_IS_UP), False),
        (Result(failure="lowering: did not end within 9 s"), False),
        (Result(failure="run: the process died: SIGKILL"), False),
        (Result(failure="killed by SIGKILL", is_refused=True, is_fleeting=True), False),
        ([REMEDY], True),
        ([], False),  # as of a job that did not end
        (None, False),
    ],
)
def test_what_a_limit_of_time_may_have_ended_is_tried_again(answer: Answer, is_kept: bool) -> None:
    assert is_lasting(answer) is is_kept


@pytest.mark.parametrize(
    ("artifact", "refused_key", "use_cache", "key"),
    [
        (SimpleNamespace(key="made"), "", True, "made"),
        (None, "refused", True, "refused"),
        (None, "refused", False, ""),
        (None, "", True, ""),  # its process was killed before it was identified, see cache.KEY
    ],
)
def test_the_answers_about_a_refused_program_are_kept_too(
    artifact: Any, refused_key: str, use_cache: bool, key: str
) -> None:
    run = stand_in(artifact, refused_key, use_cache=use_cache)
    answers = open_answers(run, "torch", NOT_LOWERED.find("error 3110"))
    assert (answers.words[0] if answers else "") == key


def stand_in(artifact: Any, refused_key: str, *, use_cache: bool = True) -> Any:
    """The run of a case, as far as its answers need it."""
    return SimpleNamespace(
        facts=SimpleNamespace(
            evidence=SimpleNamespace(artifact=artifact, refused_key=refused_key),
            runner="python",
            limits=None,
        ),
        options=SimpleNamespace(use_cache=use_cache),
        spec=SimpleNamespace(soc="SM8650", scheme=Scheme.FP16),
        setup=SimpleNamespace(parts=()),
    )


LATE = "lowering: did not end within"


@pytest.mark.parametrize(
    ("finding", "other", "is_same"),
    [
        # What a process used when it was ended differs from run to run.
        (
            DIED.find(f"{LATE} 300 s: it used 298.1 s of CPU time"),
            DIED.find(f"{LATE} 300 s: it used 299.7 s of CPU time", evidence="pid 4711"),
            True,
        ),
        (
            NOT_LOWERED.find("node 'conv_3' of rank 6"),
            NOT_LOWERED.find("node 'conv_3' is not delegated"),
            False,
        ),
        (DIED.find(f"{LATE} 300 s"), NO_OUTPUTS.find("did not end within 300 s"), False),
        (NOISE.find("47.8 dB above the noise"), NOISE.find("47.9 dB above the noise"), True),
        # A rewrite is known to cure the one, and is tried early.
        (NOISE.find("wrong"), NOISE.find("linear-of-one-number"), False),
    ],
)
def test_answers_are_those_of_a_finding_whoever_ended_its_process_and_when(
    finding: Finding, other: Finding, is_same: bool
) -> None:
    run = stand_in(None, "refused")
    first, second = (open_answers(run, "torch", each) for each in (finding, other))
    assert (first == second) is is_same
