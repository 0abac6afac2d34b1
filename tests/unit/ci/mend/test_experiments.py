"""The time that experiments may take on a busy machine, and what the verdict on a part answers."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from ci.diagnosis.experiments import Result
from ci.facts.finding import Finding, Question
from ci.facts.kinds import NO_NODE, NO_OUTPUTS, NOISE, NOT_LOWERED, ON_CPU
from ci.mend.experiments import MOST_SLOW, find_slowness, is_same_refusal, read_result
from ci.report.schema import Case, JudgementFacts, ProgramFacts, Status


@pytest.mark.parametrize(
    ("load", "cores", "slowness"),
    [
        (0.0, 2, 1.0),
        (2.0, 2, 1.0),  # the run's own two jobs
        (5.0, 2, 2.5),
        (90.0, 2, MOST_SLOW),
        (20.0, 64, 1.0),
        (3.0, 0, 3.0),
    ],
)
def test_experiments_may_take_longer_where_cores_are_shared(
    load: float, cores: int, slowness: float
) -> None:
    assert find_slowness(load, cores) == slowness


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
        # What else is wrong with the part does not matter.
        (make_case(NOISE.find("wrong"), sqnr_db=9.0), Result(9.0, is_right=True)),
        (make_case(sqnr_db=60.0), Result(60.0, is_right=True)),
        # Without QNN there is no program: every node is on the CPU.
        (make_case(NO_NODE.find("QNN accepted no node"), nodes=3), Result(cpu_nodes=3)),
        (make_case(NO_NODE.find("QNN accepted no node")), Result(cpu_nodes=1)),
        # A program that dies shows nothing.
        (make_case(NO_OUTPUTS.find("SIGSEGV"), nodes=1), Result(failure="run: SIGSEGV")),
    ],
)
def test_a_part_is_judged_by_its_nodes_on_the_cpu(case: Case, result: Result) -> None:
    assert read_result(case, Question.BUDGET) == result


DIED, NOT_MADE = NO_OUTPUTS.find("error 0x1"), NOT_LOWERED.find("error 3110")


@pytest.mark.parametrize(
    ("case", "question", "result"),
    [
        (make_case(DIED), Question.RUN, Result(failure="run: error 0x1", is_refused=True)),
        (make_case(DIED), Question.LOWERED, Result(failure="run: error 0x1")),
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
        (make_case(NOISE.find("x"), sqnr_db=9.0), Question.RUN, Result(9.0, is_right=True)),
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
