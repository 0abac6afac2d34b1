"""The procedure of a diagnosis, answered by tables: no model, no program, no emulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from msgspec import structs

from ci.diagnosis.diagnosis import MOST_OF_PART, MOST_PARTS, Diagnosis, Suspicion, advance, diagnose
from ci.diagnosis.experiments import (
    TIME_IS_UP,
    UNCHANGED,
    Answer,
    Change,
    ExamineCured,
    Experiment,
    FindSmallest,
    KeepPart,
    ListOperators,
    ListRemedies,
    Operator,
    RemedyChoice,
    Result,
    RunPart,
    Second,
    Smallest,
)
from ci.diagnosis.wording import MORE_TIME, advise_on_diagnosis, answer_once, describe_proof
from ci.facts.finding import NO_ADVICE, Advice, Cause, Certainty, Proof, list_facts
from ci.facts.kinds import NOISE
from ci.facts.known_fault import KnownFault

WRONG = Result(reached_db=18.6, predicted_db=70.0)
RIGHT = Result(reached_db=68.9, predicted_db=70.0, is_right=True)
LITTLE = Result(reached_db=25.0, predicted_db=70.0)
BETTER = Result(reached_db=46.0, predicted_db=70.0)
BEST = Result(reached_db=50.0, predicted_db=70.0)
# The gate may take a program for faithful without any gain.
GREEN = Result(reached_db=18.7, predicted_db=20.0, is_right=True)
HANGS = Result(failure="it did not end within 9 s")
NO_NODE = "refused: QNN accepts no node"
REFUSED = Result(failure=NO_NODE)
DIES = Result(failure="the process died: SIGSEGV")
LATE = Result(failure=TIME_IS_UP)
LEFT_OPEN = "open: experiments found no remedy"
TOO_LATE = f"{TIME_IS_UP}: {MORE_TIME}"
# A chain of 20 operators, each of a line of its own
CHAIN = [
    Operator(f"op{number}", "add", (f"op{number - 1}",) if number else (), line=f"net.py:{number}")
    for number in range(20)
]
PART = "the part (add [net.py:8], add [net.py:9])"
KEPT = "reproducer: qnn/part.py"
NONE_APPLIES = "no known rewrite applies to it"
LARGE = Suspicion(WRONG, first=("op9", "add", "net.py:9"), faults=("fault-b",), count=20)
SMALL = Suspicion(
    WRONG, first=("op9", "add", "net.py:9"), faults=("fault-b",), count=4, divides=False
)


def choose(name: str, *cures: str, at: int = 9) -> RemedyChoice:
    """A rewrite at a line of the chain."""
    return RemedyChoice(
        name, f"title of {name}", f"reason of {name}", cures, False, (f"net.py:{at}",)
    )


# Of a part of two operators for which nothing else was found
FORMS = ["2 doubled", "2 add defined"]
OTHER_FORMS = "with two samples as one input (18.6 dB), with add as its definition (18.6 dB)"
RETURNING = "if it returns the results inside of it (18.6 dB)"
A, B, C = choose("a"), choose("b", "fault-b"), choose("c")


@dataclass
class Laboratory:
    """Answers from tables: ``whole_results`` has the results of the whole model by remedies, and
    ``parts`` those of each part, by its number of operators and remedies. ``smallest`` is what a
    search finds, ``of_part`` are the remedies of a part, and ``second`` is what is wrong with the
    cured model."""

    remedies: list[RemedyChoice] | Result | None
    whole_results: Mapping[str, Result] = field(default_factory=dict)
    parts: Mapping[str, Result] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=lambda: CHAIN)
    smallest: Smallest | None = None
    of_part: list[RemedyChoice] | None = None
    second: Second | None = None
    experiments: list[str] = field(default_factory=list)

    def run(self, suspicion: Suspicion) -> Diagnosis:
        steps, answer = diagnose(suspicion), None
        while True:
            experiment, diagnosis = advance(steps, answer)
            if experiment is None:
                assert diagnosis is not None
                return diagnosis
            answer = self.answer(experiment)

    def answer(self, experiment: Experiment) -> Answer:
        if isinstance(experiment, ListRemedies):
            return self.of_part if experiment.part else self.remedies
        if isinstance(experiment, ListOperators):
            return self.operators
        if isinstance(experiment, KeepPart):
            return "qnn/part.py"
        if isinstance(experiment, FindSmallest):
            self.experiments.append(f"search in {len(experiment.part)}")
            return self.smallest
        if isinstance(experiment, ExamineCured):
            self.experiments.append(f"examine with {' '.join(experiment.remedies)}")
            return self.second
        assert isinstance(experiment, RunPart)
        change = "all" if experiment.returns_all else " ".join(experiment.remedies)
        change = f"{experiment.operator} {experiment.scheme}".strip() or change
        change = f"{experiment.decomposed} defined" if experiment.decomposed else change
        change = "doubled" if experiment.doubled else change
        change = "shrunk" if experiment.shrunk else change
        key = f"{len(experiment.part)} {change}".strip() if experiment.part else change
        self.experiments.append(key)
        return (self.parts if experiment.part else self.whole_results).get(key, WRONG)


@pytest.mark.parametrize(
    ("answers", "experiments", "cure", "word"),
    [
        # Known faults come first, and the first remedy that makes the model right is the cause.
        ({"b": RIGHT, "a": RIGHT}, ["b"], ["b"], "proven"),
        # One that does not help is not named.
        ({"b": WRONG, "a": RIGHT}, ["b", "a"], ["a"], "proven"),
        # Green without a gain proves nothing.
        ({"b": GREEN}, ["b", "a", "c"], [], ""),
        # Of two that help, the one that alone suffices; if none does, both together.
        ({"b": BETTER, "a": RIGHT}, ["b", "a"], ["a"], "proven"),
        ({"b": BETTER, "c": BEST, "c b": RIGHT}, ["b", "a", "c", "c b"], ["c", "b"], "proven"),
        ({"b": BETTER, "c": BEST, "c b": BEST}, ["b", "a", "c", "c b"], ["c"], "in part, proven"),
        # One that helps may need another one, which gains nothing alone.
        ({"b": BETTER}, ["b", "a", "c", "b a", "b c"], ["b"], "in part, proven"),
        ({"b": LITTLE, "b a": RIGHT}, ["b", "a", "c", "b a"], ["b", "a"], "proven"),
        ({"b": BETTER, "a": DIES, "b c": RIGHT}, ["b", "a", "c", "b c"], ["b", "c"], "proven"),
        # What explains less than half of the error is not its cause.
        ({"b": LITTLE}, ["b", "a", "c", "b a", "b c"], [], ""),
        # Experiments that hang, are refused or die show nothing, and the next one is made.
        ({"b": HANGS, "a": REFUSED, "c": RIGHT}, ["b", "a", "c"], ["c"], "proven"),
        ({"b": DIES, "a": DIES, "c": DIES}, ["b", "a", "c"], [], ""),
        # After the time is up, none is made.
        ({"b": LATE, "a": RIGHT}, ["b"], [], ""),
        ({"b": BETTER, "a": LATE}, ["b", "a"], ["b"], "in part, proven"),
    ],
)
def test_the_cause_is_what_makes_the_model_right(
    answers: Mapping[str, Result], experiments: list[str], cure: list[str], word: str
) -> None:
    laboratory = Laboratory([A, B, C], answers)
    diagnosis = laboratory.run(SMALL)
    assert laboratory.experiments == experiments
    assert [remedy.name for remedy in diagnosis.cure] == cure
    assert describe_proof(diagnosis).partition(":")[0] == word
    assert (diagnosis.ended == TIME_IS_UP) is (LATE in answers.values())


@pytest.mark.parametrize(
    ("answers", "excluded"),
    [
        ({"b": RIGHT}, False),
        ({"b": WRONG, "a": RIGHT}, True),
        ({"b": WRONG}, True),
        ({"b": BETTER}, False),
        ({"b": HANGS}, False),  # nothing is known
        ({"b": LATE}, False),
    ],
)
def test_a_known_fault_whose_remedy_gains_nothing_is_not_the_cause(
    answers: Mapping[str, Result], excluded: bool
) -> None:
    assert Laboratory([A, B], answers).run(SMALL).excludes("fault-b") is excluded


STOPPED = Suspicion(Result(failure="refused: error 1002"), faults=("fault-b",), divides=False)


@pytest.mark.parametrize(
    ("answers", "cure", "is_excluded"),
    [
        ({"b": RIGHT}, ["b"], False),
        ({"b": Result(failure="refused: error 1002", is_refused=True), "a": RIGHT}, ["a"], True),
        ({"b": Result(failure="refused: error 1002", is_refused=True), "a": DIES}, [], True),
        ({"b": HANGS, "a": DIES}, [], False),  # nothing is known
    ],
)
def test_the_cause_of_a_refusal_is_what_the_compiler_takes_without(
    answers: Mapping[str, Result], cure: list[str], is_excluded: bool
) -> None:
    diagnosis = Laboratory([A, B], answers).run(STOPPED)
    assert [remedy.name for remedy in diagnosis.cure] == cure
    assert diagnosis.excludes("fault-b") is is_excluded
    if cure:
        proof = f"proven: the model has no outputs, and 68.9 dB with {cure[0]}"
        assert describe_proof(diagnosis) == proof


def test_a_known_fault_without_a_remedy_stays_until_another_cause_is_shown() -> None:
    assert not Laboratory([A], {}).run(SMALL).excludes("fault-b")
    assert Laboratory([A], {"a": RIGHT}).run(SMALL).excludes("fault-b")


@pytest.mark.parametrize(
    ("parts", "experiments", "size"),
    [
        # The smallest part that is wrong by itself, and its remedies.
        ({"2": WRONG, "2 b": RIGHT}, ["2", "2 b"], 2),
        # A part that is right alone, refused, or hardly wrong: a larger one.
        ({"2": RIGHT, "3": WRONG, "3 b": RIGHT}, ["2", "3", "3 b"], 3),
        ({"2": REFUSED, "3": WRONG, "3 b": RIGHT}, ["2", "3", "3 b"], 3),
        ({"2": Result(reached_db=60.0, predicted_db=70.0), "3 b": RIGHT}, ["2", "3", "3 b"], 3),
    ],
)
def test_remedies_are_tried_on_the_smallest_part_that_is_wrong_by_itself(
    parts: Mapping[str, Result], experiments: list[str], size: int
) -> None:
    laboratory = Laboratory([choose("far", at=1), A, B], {"b": RIGHT}, parts)
    diagnosis = laboratory.run(LARGE)
    assert laboratory.experiments == [*experiments, "b"]  # at last on the whole model
    assert len(diagnosis.part) == size
    assert [remedy.name for remedy in diagnosis.cure] == ["b"]


def test_remedies_that_change_nothing_in_a_part_are_none_of_its_programs() -> None:
    others = [choose(f"other{number}") for number in range(MOST_OF_PART)]
    unchanged = {f"2 {remedy.name}": Result(failure=UNCHANGED) for remedy in others}
    laboratory = Laboratory([*others, A], {"a": RIGHT}, {**unchanged, "2 a": RIGHT})
    assert laboratory.run(LARGE).cure == (A,)
    # Those that are compiled have a limit.
    laboratory = Laboratory([*others, A], {"a": RIGHT}, {"2 a": RIGHT})
    assert laboratory.run(LARGE).cure == ()
    assert "2 a" not in laboratory.experiments


def test_what_is_wrong_only_as_a_whole_is_tried_on_the_whole_model() -> None:
    right_parts = {str(size): RIGHT for size in range(2, 20)}
    laboratory = Laboratory([A, B, C, choose("d")], {"c": RIGHT}, right_parts)
    diagnosis = laboratory.run(LARGE)
    *parts, first, second, third = laboratory.experiments
    assert [first, second, third] == ["b", "a", "c"]
    assert 1 <= len(parts) <= MOST_PARTS
    assert not diagnosis.part
    assert diagnosis.cure == (C,)
    assert len(Laboratory([A, B, C, choose("d")], {}, right_parts).run(LARGE).tried) == 3


def test_operators_that_are_right_if_their_results_are_returned_are_computed_together() -> None:
    diagnosis = Laboratory([A], {}, {"2 all": RIGHT}).run(LARGE)
    assert diagnosis.is_fused
    (cause,) = advise_on_diagnosis(diagnosis).causes
    assert cause.text == (
        "QNN computes these operators together, and each of them alone is right (proven: the part"
        " (add [net.py:8], add [net.py:9]) has 18.6 dB, and 68.9 dB if it returns the results"
        " inside of it)"
    )


MIXED = [*CHAIN[:9], structs.replace(CHAIN[9], kind="mul"), *CHAIN[10:]]
OF_MIXED = "the part (add [net.py:8], mul [net.py:9]) has 18.6 dB, and 68.9 dB"
UNEXAMINED = ["2", "2 a", "2 all", "2 16a8w"]
ALL_FORMS = ["2 doubled", "2 add defined", "2 mul defined"]
TOO_COARSE = "less accurately than the bits of the scheme allow"


@pytest.mark.parametrize(
    ("parts", "experiments", "text"),
    [
        # Of operators that need more bits, the one that does.
        (
            {"2 16a8w": RIGHT, "2 mul 16a8w": RIGHT},
            [*ALL_FORMS, "2 add 16a8w", "2 mul 16a8w"],
            f"QNN computes mul {TOO_COARSE} (proven: {OF_MIXED} with mul in 16a8w)",
        ),
        # One is not enough, the time is up, or it is refused: all of them.
        (
            {"2 16a8w": RIGHT, "2 add 16a8w": LITTLE},
            [*ALL_FORMS, "2 add 16a8w", "2 mul 16a8w"],
            f"QNN computes these operators {TOO_COARSE} (proven: {OF_MIXED} in 16a8w)",
        ),
        (
            {"2 16a8w": RIGHT, "2 add 16a8w": LATE},
            [*ALL_FORMS, "2 add 16a8w"],
            f"QNN computes these operators {TOO_COARSE} (proven: {OF_MIXED} in 16a8w)",
        ),
        # More bits help whatever is wrong: what another form shows is the cause.
        (
            {"2 16a8w": RIGHT, "2 mul defined": RIGHT},
            ALL_FORMS,
            (
                "QNN computes mul wrongly as one operator (proven:"
                f" {OF_MIXED} with mul as its definition)"
            ),
        ),
        (
            {"2 16a8w": RIGHT, "2 doubled": LATE, "2 add 16a8w": LATE},
            ["2 doubled", "2 add 16a8w"],
            f"QNN computes these operators {TOO_COARSE} (proven: {OF_MIXED} in 16a8w)",
        ),
        # More bits do not help, but floats do.
        (
            {"2 fp16": RIGHT, "2 add fp16": REFUSED, "2 mul fp16": GREEN},
            [*ALL_FORMS, "2 fp16", "2 add fp16", "2 mul fp16"],
            f"QNN computes these operators {TOO_COARSE} (proven: {OF_MIXED} in fp16)",
        ),
        # Another size, or an operator's definition.
        (
            {"2 16a8w": DIES, "2 doubled": RIGHT},
            ["2 doubled"],
            (
                "QNN computes these operators wrongly in this size (proven:"
                f" {OF_MIXED} with two samples as one input)"
            ),
        ),
        (
            {"2 doubled": HANGS, "2 mul defined": RIGHT},
            ALL_FORMS,
            (
                "QNN computes mul wrongly as one operator (proven:"
                f" {OF_MIXED} with mul as its definition)"
            ),
        ),
        # Green without a gain proves nothing.
        (
            {"2 fp16": GREEN, "2 doubled": GREEN, "2 add defined": GREEN},
            [*ALL_FORMS, "2 fp16"],
            (
                "no experiment shows the cause: the part (add [net.py:8], mul [net.py:9]) has 18.6"
                f" dB; tried: a (18.6 dB); also run {RETURNING}, in 16a8w (18.6 dB), with two"
                " samples as one input (18.7 dB), with add as its definition (18.7 dB), with mul as"
                f" its definition (18.6 dB), in fp16 (18.7 dB); {KEPT}"
            ),
        ),
        (
            {"2 doubled": LATE},
            ["2 doubled"],
            (
                "no experiment shows the cause: the part (add [net.py:8], mul [net.py:9]) has 18.6"
                f" dB; tried: a (18.6 dB); also run {RETURNING}, in 16a8w (18.6 dB); {TOO_LATE};"
                f" {KEPT}"
            ),
        ),
    ],
)
def test_a_part_without_a_remedy_is_examined_in_other_types_sizes_and_forms(
    parts: Mapping[str, Result], experiments: list[str], text: str
) -> None:
    laboratory = Laboratory([A], {}, parts, MIXED)
    suspicion = replace(LARGE, first=("op9", "mul", "net.py:9"), finer="16a8w", wider="fp16")
    (cause,) = advise_on_diagnosis(laboratory.run(suspicion)).causes
    assert laboratory.experiments == [*UNEXAMINED, *experiments]
    assert cause.text == text


def test_a_part_in_float16_is_examined_with_smaller_numbers() -> None:
    laboratory = Laboratory([], {}, {"2 shrunk": RIGHT}, MIXED)
    suspicion = replace(LARGE, first=("op9", "mul", "net.py:9"), in_float16=True)
    advice = advise_on_diagnosis(laboratory.run(suspicion))
    assert laboratory.experiments == ["2", "2 all", "2 shrunk"]
    (cause,) = advice.causes
    assert cause.text == (
        "QNN computes these operators wrongly with numbers as large as these: float16 holds"
        f" numbers up to 65504 (proven: {OF_MIXED} with the numbers that it reads divided by 64)"
    )
    assert [remedy.text for remedy in advice.remedies] == [
        "scale what they read, as by a constant factor that a norm behind them removes again"
    ]


@pytest.mark.parametrize("first", [("op3", "add", "net.py:3"), ("", "", "")])
def test_of_a_small_model_that_nothing_cures_the_smallest_wrong_part_is_found(
    first: tuple[str, str, str],
) -> None:
    """It is searched from the last operator on if every layer is right, as if they are returned."""
    laboratory = Laboratory([A], {}, {"2": RIGHT, "3": WRONG, "3 all": RIGHT}, CHAIN[:4])
    diagnosis = laboratory.run(Suspicion(WRONG, first=first, count=4))
    assert laboratory.experiments == ["a", "2", "3", "3 all"]
    assert diagnosis.is_fused
    assert [operator.name for operator in diagnosis.part] == ["op1", "op2", "op3"]


@pytest.mark.parametrize(
    ("parts", "experiments", "cure"),
    [
        ({"2 c": RIGHT}, ["2", "2 b", "2 c", "c"], ["c"]),
        ({"2 b": RIGHT}, ["2", "2 b", "b"], ["b"]),
        ({}, ["2", "2 b", "2 c", "2 all", *FORMS], []),
        ({"2 c": LATE}, ["2", "2 b", "2 c"], []),
    ],
)
def test_what_only_the_part_can_be_rewritten_with_is_tried_on_it(
    parts: Mapping[str, Result], experiments: list[str], cure: list[str]
) -> None:
    laboratory = Laboratory([B], {}, parts, of_part=[B, C])
    diagnosis = laboratory.run(LARGE)
    assert laboratory.experiments == experiments
    assert [remedy.name for remedy in diagnosis.cure] == cure
    assert [trial.remedies[0].name for trial in diagnosis.tried] == ["b", "c"][
        : len(diagnosis.tried)
    ]


def test_a_part_that_is_right_with_more_bits_is_inexact_in_the_scheme() -> None:
    laboratory = Laboratory([A], {}, {"2 16a8w": RIGHT})
    diagnosis = laboratory.run(replace(LARGE, finer="16a8w"))
    assert laboratory.experiments == ["2", "2 a", "2 all", "2 16a8w", *FORMS]
    ((cause,), (remedy,)) = (
        advise_on_diagnosis(diagnosis).causes,
        advise_on_diagnosis(diagnosis).remedies,
    )
    assert cause.text == (
        "QNN computes these operators less accurately than the bits of the scheme allow (proven:"
        " the part (add [net.py:8], add [net.py:9]) has 18.6 dB, and 68.9 dB in 16a8w)"
    )
    assert cause.certainty is Certainty.PROVEN
    assert remedy.text.startswith("give them the bits of 16a8w")


@pytest.mark.parametrize(
    ("parts", "experiments"),
    [
        ({"2 all": LATE}, ["2", "2 a", "2 all"]),
        ({"2 16a8w": LATE}, ["2", "2 a", "2 all", "2 16a8w"]),
    ],
)
def test_an_unknown_cause_says_that_the_time_was_up_before_the_last_experiments(
    parts: Mapping[str, Result], experiments: list[str]
) -> None:
    laboratory = Laboratory([A], {}, parts)
    (cause,) = advise_on_diagnosis(laboratory.run(replace(LARGE, finer="16a8w"))).causes
    assert laboratory.experiments == experiments
    returning = f" also run {RETURNING};" if "2 16a8w" in experiments else ""
    assert cause.text == (
        "no experiment shows the cause: the part (add [net.py:8], add [net.py:9]) has 18.6 dB;"
        f" tried: a (18.6 dB);{returning} {TOO_LATE}; reproducer: qnn/part.py"
    )


def test_an_unknown_cause_says_what_was_tried_and_where_the_part_is() -> None:
    diagnosis = Laboratory([A, B], {}, {"2 a": DIES}).run(LARGE)
    assert not diagnosis.is_proven
    advice = advise_on_diagnosis(diagnosis)
    (cause,) = advice.causes
    assert cause.certainty is Certainty.UNKNOWN
    assert cause.text == (
        "no experiment shows the cause: the part (add [net.py:8], add [net.py:9]) has 18.6 dB;"
        f" tried: b (18.6 dB), a (the process died: SIGSEGV); also run {RETURNING}, {OTHER_FORMS};"
        " reproducer: qnn/part.py"
    )


GUESS = Cause(text="known fault f (not tried)", certainty=Certainty.LIKELY, name="f")
UNDECIDED = Cause(text="no experiment shows the cause", certainty=Certainty.UNKNOWN)
MEASURED = Cause(text="measured", certainty=Certainty.MEASURED)
MESSAGE = Cause(text="a message", certainty=Certainty.KNOWN, name="QNN1302")


@pytest.mark.parametrize(
    ("answers", "causes", "texts"),
    [
        # A likely cause and an unknown one are two answers to one question.
        (
            {"b": LATE},
            (MEASURED, GUESS, UNDECIDED),
            [
                "why: measured",
                f"likely: {GUESS.text}",
                f"{LEFT_OPEN}: the model has 18.6 dB; not tried: b, a; {TOO_LATE}; {KEPT}",
            ],
        ),
        (
            {},
            (GUESS, UNDECIDED),
            [
                f"likely: {GUESS.text}",
                f"{LEFT_OPEN}: the model has 18.6 dB; tried: b (18.6 dB), a (18.6 dB); {KEPT}",
            ],
        ),
        # A message that is known says what stopped, and experiments showed nothing of why.
        (
            {"b": REFUSED},
            (MESSAGE, UNDECIDED),
            [
                f"why: {MESSAGE.text}",
                f"{LEFT_OPEN}: the model has 18.6 dB; tried: b ({NO_NODE}), a (18.6 dB); {KEPT}",
            ],
        ),
        ({"b": RIGHT}, (MESSAGE, UNDECIDED), [f"why: {MESSAGE.text}"]),
        (None, (MESSAGE, UNDECIDED), [f"why: {MESSAGE.text}"]),
        ({"b": LATE}, (UNDECIDED,), [f"unknown: {UNDECIDED.text}"]),
        ({"b": RIGHT}, (GUESS,), [f"likely: {GUESS.text}"]),
    ],
)
def test_next_to_a_cause_is_what_experiments_left_open_and_none_is_unknown(
    answers: Mapping[str, Result] | None, causes: tuple[Cause, ...], texts: list[str]
) -> None:
    diagnosis = None if answers is None else Laboratory([A, B], answers).run(SMALL)
    finding = NOISE.find("wrong").explained(Advice(causes=causes))
    finding = structs.replace(finding, causes=answer_once(finding.causes, diagnosis))
    assert [f"{word}: {text}" for word, text in list_facts(finding)] == texts
    # What was tried has messages of other models, which no pattern should match.
    assert "18.6" not in finding.words


def test_a_proven_cause_has_both_figures_and_its_remedy() -> None:
    advice = advise_on_diagnosis(Laboratory([A], {"a": RIGHT}).run(SMALL))
    ((cause,), (remedy,)) = advice.causes, advice.remedies
    assert cause.text == "reason of a (proven: the model has 18.6 dB, and 68.9 dB with a)"
    assert cause.certainty is Certainty.PROVEN
    assert (remedy.text, remedy.proof) == ("write title of a (a)", Proof.TRIED)


@pytest.mark.parametrize(
    ("remedies", "reason"),
    [(None, TOO_LATE), ([], NONE_APPLIES), (Result(failure="it has states"), "it has states")],
)
def test_the_cause_of_a_model_without_remedies_is_unknown(
    remedies: list[RemedyChoice] | Result | None, reason: str
) -> None:
    laboratory = Laboratory(remedies)
    diagnosis = laboratory.run(SMALL)
    assert not laboratory.experiments
    assert not diagnosis.is_proven
    (cause,) = advise_on_diagnosis(diagnosis).causes
    assert cause.certainty is Certainty.UNKNOWN
    assert cause.text == f"no experiment shows the cause: the model has 18.6 dB; {reason}; {KEPT}"


ENDLESS = Suspicion(
    Result(failure="lowering: did not end within 300 s", is_refused=True),
    faults=("fault-b",),
    count=4,
    exceeded=True,
)
BELOW_LIMIT = Suspicion(Result(reached_db=12.0), count=4, divides=False)  # of the policy


@pytest.mark.parametrize(
    ("suspicion", "remedies", "whole_results", "parts", "text"),
    [
        # A limit of time or memory: of the whole model, and of its parts.
        (ENDLESS, None, {}, {}, f"the model has no outputs; {TOO_LATE}; {KEPT}"),
        (
            ENDLESS,
            [A, B],
            {"b": HANGS, "a": LATE},
            {},
            (
                f"the model has no outputs; tried: b ({HANGS.failure}); not tried: a; {TOO_LATE};"
                f" {KEPT}"
            ),
        ),
        (
            ENDLESS,
            [B],
            {"b": HANGS},
            {"2": HANGS, "3": ENDLESS.whole_result, "3 b": HANGS},
            (
                "the part (add [net.py:17], add [net.py:18], add [net.py:19]) has no outputs;"
                f" tried on the whole model: b ({HANGS.failure}); also run {OTHER_FORMS}; {KEPT}"
            ),
        ),
        (
            replace(ENDLESS, count=20),
            [B],
            {"b": LATE},
            {},
            f"the model has no outputs; not tried: b; {TOO_LATE}",
        ),
        # Accuracy below a limit of the policy.
        (BELOW_LIMIT, [], {}, {}, f"the model has 12.0 dB; {NONE_APPLIES}; {KEPT}"),
        (
            BELOW_LIMIT,
            [A, B],
            {"a": Result(reached_db=12.1), "b": LATE},
            {},
            f"the model has 12.0 dB; tried: a (12.1 dB); not tried: b; {TOO_LATE}; {KEPT}",
        ),
        (
            replace(BELOW_LIMIT, count=20),
            [A],
            {"a": Result(reached_db=12.1)},
            {},
            "the model has 12.0 dB; tried: a (12.1 dB)",  # and is its own reproducer
        ),
    ],
)
def test_a_case_that_exceeds_a_limit_says_what_was_tried_and_where_its_reproducer_is(
    suspicion: Suspicion,
    remedies: list[RemedyChoice] | None,
    whole_results: Mapping[str, Result],
    parts: Mapping[str, Result],
    text: str,
) -> None:
    diagnosis = Laboratory(remedies, whole_results, parts).run(suspicion)
    (cause,) = advise_on_diagnosis(diagnosis).causes
    assert cause.certainty is Certainty.UNKNOWN
    assert cause.text == f"no experiment shows the cause: {text}"


def find(name: str, *lines: int) -> KnownFault:
    """A known fault at lines of the chain: the line of the first call, and the nodes of others."""
    nodes = tuple(f"op{line}" for line in lines)
    return KnownFault(
        fault=name,
        title=name,
        seen="",
        fix="",
        calls="",
        nodes=nodes,
        operators=(),
        file="net.py",
        line=lines[0],
    )


WIDE = RemedyChoice("wide", "", "", ("fault-b", "fault-w"), places=("net.py:1", "op5", "net.py:9"))
ELSEWHERE = RemedyChoice("elsewhere", "", "", ("fault-b",), places=("other", "names"))


@pytest.mark.parametrize(
    ("suspicion", "remedies", "answers", "faults", "shown"),
    [
        # A fault is shown where the cure changed the model, and nowhere else.
        (SMALL, [B], {"b": RIGHT}, [find("fault-b", 9), find("fault-a", 9)], ["fault-b 9"]),
        (SMALL, [B], {"b": RIGHT}, [find("fault-b", 9), find("fault-b", 4)], ["fault-b 9"]),
        (SMALL, [B], {"b": RIGHT}, [find("fault-b", 4)], ["fault-b 4"]),  # other names, perhaps
        (SMALL, [ELSEWHERE], {"elsewhere": RIGHT}, [find("fault-b", 9)], ["fault-b 9"]),
        # The cure changed more than the fault's places: it is the cause if nothing contradicts.
        (
            SMALL,
            [WIDE],
            {"wide": RIGHT},
            [find("fault-b", 9), find("fault-w", 1), find("fault-b", 5)],
            ["fault-b 9", "fault-w 1", "fault-b 5"],
        ),
        (SMALL, [A, WIDE], {"wide": RIGHT}, [find("fault-b", 9)], ["fault-b 9"]),
        # Another remedy of the fault changed the same places in vain, so it cured something else.
        (SMALL, [B, WIDE], {"wide": RIGHT}, [find("fault-b", 9)], []),
        # Both are needed.
        (
            SMALL,
            [B, WIDE],
            {"wide": BETTER, "wide b": RIGHT},
            [find("fault-b", 9)],
            ["fault-b 9"],
        ),
        (
            SMALL,
            [B, WIDE],
            {"wide": RIGHT},
            [find("fault-b", 9), find("fault-w", 1)],
            ["fault-w 1"],
        ),
        (SMALL, [B, WIDE], {"wide": RIGHT}, [find("fault-b", 1, 5)], ["fault-b 1"]),
        (SMALL, [B, WIDE], {"b": DIES, "wide": RIGHT}, [find("fault-b", 9)], ["fault-b 9"]),
        # In a part, it changed the places of the part alone, but cures the same fault elsewhere.
        (LARGE, [WIDE], {"2 wide": RIGHT}, [find("fault-b", 9), find("fault-w", 1)], ["fault-b 9"]),
        (
            LARGE,
            [WIDE],
            {"2 wide": RIGHT},
            [find("fault-b", 9), find("fault-b", 1)],
            ["fault-b 9", "fault-b 1"],
        ),
    ],
)
def test_a_cure_shows_a_known_fault_where_it_changed_what_was_wrong(
    suspicion: Suspicion,
    remedies: list[RemedyChoice],
    answers: Mapping[str, Result],
    faults: list[KnownFault],
    shown: list[str],
) -> None:
    diagnosis = Laboratory(remedies, answers, answers).run(suspicion)
    assert [f"{fault.fault} {fault.line}" for fault in diagnosis.choose_shown(faults)] == shown


def test_named_faults_state_their_cause_and_remedy_themselves() -> None:
    diagnosis_of_both = Laboratory([A, B], {"b": BETTER, "a": BEST, "a b": RIGHT}).run(SMALL)
    (cause,) = advise_on_diagnosis(diagnosis_of_both, ["fault-b"]).causes
    assert cause.text.startswith("reason of a (proven: the model has 18.6 dB, and 68.9 dB with a")
    assert advise_on_diagnosis(Laboratory([B], {"b": RIGHT}).run(SMALL), ["fault-b"]) == NO_ADVICE


@pytest.mark.parametrize(
    "first",
    [("", "", ""), ("op77", "mul", "net.py:77"), ("op9", "mul", "net.py:3")],
)
def test_without_a_place_the_whole_model_is_tried(first: tuple[str, str, str]) -> None:
    laboratory = Laboratory([B], {"b": RIGHT})
    diagnosis = laboratory.run(Suspicion(WRONG, first=first, count=20))
    assert laboratory.experiments == ["b"]
    assert diagnosis.is_proven


ELSE = "so something else is wrong, too"
WHOLE_RIGHT = "the whole model has 18.6 dB, and 68.9 dB with it"


@pytest.mark.parametrize(
    ("on_whole", "text", "promised"),
    [
        (RIGHT, f"; {WHOLE_RIGHT})", ("a",)),
        # Another fault is left: mend is not promised.
        (LITTLE, "; the whole model has 18.6 dB, and 25.0 dB with it)", ("a",)),
        (DIES, f"; the whole model has no outputs with it: {DIES.failure})", ()),
        (LATE, ")", ("a",)),  # not known
    ],
)
def test_the_cure_of_a_part_is_tried_on_the_whole_model(
    on_whole: Result, text: str, promised: tuple[str, ...]
) -> None:
    diagnosis = Laboratory([A], {"a": on_whole}, {"2 a": RIGHT}).run(LARGE)
    ((cause,), (remedy,)) = (
        advise_on_diagnosis(diagnosis).causes,
        advise_on_diagnosis(diagnosis).remedies,
    )
    assert cause.certainty is Certainty.PROVEN
    assert cause.text == f"reason of a (proven: {PART} has 18.6 dB, and 68.9 dB with a{text}"
    assert remedy.rewrites == promised
    assert remedy.proof is (Proof.TRIED if promised else Proof.SUGGESTED)


def test_a_part_whose_cure_does_not_help_the_whole_model_is_not_its_cause() -> None:
    """Its error is none of the model, which computes it together with what reads it."""
    cured = choose("a", "fault-b")
    diagnosis = Laboratory([cured], {"a": WRONG}, {"2 a": RIGHT}).run(LARGE)
    assert not diagnosis.is_proven
    assert diagnosis.excludes("fault-b")
    (cause,) = advise_on_diagnosis(diagnosis).causes
    assert cause.certainty is Certainty.UNKNOWN
    assert cause.text == (
        f"no experiment shows the cause: {PART} has 18.6 dB, and 68.9 dB with a; the whole model"
        " has 18.6 dB, and 18.6 dB with it; tried: a (68.9 dB)"
    )


def test_the_first_reason_of_a_refusal_is_a_cause_though_there_are_others() -> None:
    laboratory = Laboratory([A, B, C, D], {**VAIN, "d": ALIKE}, {"2": ALIKE, "2 d": RIGHT})
    advice = advise_on_diagnosis(laboratory.run(REFUSAL))
    (cause,) = advice.causes
    assert cause.certainty is Certainty.PROVEN
    assert cause.text == (
        f"reason of d (proven: {PART} has no outputs, and 68.9 dB with d; the whole model has no"
        f" outputs, and no outputs with it, {ELSE})"
    )


SEARCHED = replace(LARGE, searches=True)
ONE = (CHAIN[9],)
OTHERS = Change("wider ranges", "ranges clip", RIGHT)


@pytest.mark.parametrize(
    ("smallest", "parts", "experiments", "proof"),
    [
        # The cure of the part is tried on the smallest one, and shown with its figures.
        (
            Smallest(ONE, WRONG),
            {"2 b": RIGHT, "1 b": RIGHT},
            ["2", "2 b", "search in 2", "1", "1 b", "b"],
            f"proven: the part (add [net.py:9]) has 18.6 dB, and 68.9 dB with b; {WHOLE_RIGHT}",
        ),
        # It does not cure the smallest one, or that is right by itself: the part stays.
        (
            Smallest(ONE, WRONG),
            {"2 b": RIGHT},
            ["2", "2 b", "search in 2", "1", "1 b", "b"],
            f"proven: {PART} has 18.6 dB, and 68.9 dB with b; {WHOLE_RIGHT}",
        ),
        (
            Smallest(ONE, WRONG),
            {"2 b": RIGHT, "1": RIGHT},
            ["2", "2 b", "search in 2", "1", "b"],
            f"proven: {PART} has 18.6 dB, and 68.9 dB with b; {WHOLE_RIGHT}",
        ),
        # Nothing cured the part, but the smallest one is cured.
        (
            Smallest(ONE, WRONG),
            {"1 a": RIGHT},
            ["2", "2 b", "2 a", "2 all", "search in 2", "1", "1 b", "1 a", "a"],
            f"proven: the part (add [net.py:9]) has 18.6 dB, and 68.9 dB with a; {WHOLE_RIGHT}",
        ),
        # Neither is; the search changed its quantizers, or returned the results inside of it.
        (
            Smallest(ONE, LITTLE, RIGHT, OTHERS),
            {},
            ["2", "2 b", "2 a", "2 all", "search in 2", "1", "1 b", "1 a"],
            "proven: the part (add [net.py:9]) has 25.0 dB, and 68.9 dB with wider ranges",
        ),
        (
            Smallest(ONE, LITTLE, RIGHT),
            {"1": DIES},
            ["2", "2 b", "2 a", "2 all", "search in 2", "1"],
            (
                "proven: the part (add [net.py:9]) has 25.0 dB, and 68.9 dB if it returns the"
                " results inside of it"
            ),
        ),
        # The operators of the smallest part have no counterpart in the float model.
        (
            Smallest((), LITTLE),
            {},
            ["2", "2 b", "2 a", "2 all", "search in 2", *FORMS],
            "",
        ),
        (None, {}, ["2", "2 b", "2 a", "2 all", "search in 2", *FORMS], ""),
        # The time was up before.
        (Smallest(ONE, WRONG), {"2 b": LATE}, ["2", "2 b"], ""),
    ],
)
def test_a_search_repeats_the_experiments_on_the_smallest_part(
    smallest: Smallest | None, parts: Mapping[str, Result], experiments: list[str], proof: str
) -> None:
    laboratory = Laboratory([A, B], {"a": RIGHT, "b": RIGHT}, parts, smallest=smallest)
    diagnosis = laboratory.run(SEARCHED)
    assert laboratory.experiments == experiments
    assert describe_proof(diagnosis) == proof


def test_a_remedy_that_was_tried_on_two_parts_is_listed_once() -> None:
    laboratory = Laboratory([A, B], {}, {"1 a": LITTLE}, smallest=Smallest(ONE, WRONG))
    diagnosis = laboratory.run(SEARCHED)
    first = ["2", "2 b", "2 a", "2 all", "search in 2"]
    last = ["1 doubled", "1 add defined"]
    assert laboratory.experiments == [*first, "1", "1 b", "1 a", "1 a b", *last]
    tried = [
        ([remedy.name for remedy in trial.remedies], trial.result) for trial in diagnosis.tried
    ]
    assert tried == [(["b"], WRONG), (["a"], LITTLE), (["a", "b"], WRONG)]


def test_a_change_of_the_quantizers_that_makes_a_part_right_is_a_proven_cause() -> None:
    laboratory = Laboratory([], {}, smallest=Smallest(ONE, LITTLE, None, OTHERS))
    advice = advise_on_diagnosis(laboratory.run(SEARCHED))
    (cause,) = advice.causes
    assert cause.text == (
        "ranges clip (proven: the part (add [net.py:9]) has 25.0 dB, and 68.9 dB with wider ranges)"
    )
    assert cause.certainty is Certainty.PROVEN
    assert not advice.remedies


ON_CPU = Result(cpu_nodes=2)
FEWER = Result(cpu_nodes=1)
TAKEN = Result(reached_db=65.3, is_right=True)
SPOILT = Result(reached_db=3.1, is_right=True, is_wrong=True)
FEWER_SPOILT = Result(reached_db=3.1, cpu_nodes=1, is_wrong=True)
CPU = Suspicion(ON_CPU, first=("", "", "net.py:9"), faults=("fault-b",), count=20)
TWO = "the part (add [net.py:8], add [net.py:9]) has 2 nodes on the CPU"
THREE = "the part (add [net.py:8], add [net.py:9], add [net.py:10]) has 2 nodes on the CPU"
TAKEN_WHOLE = "the whole model has 2 nodes on the CPU, and none with it"
NO_BITS = "QNN does not take these operators with the bits of the scheme"
NO_CHANGE = "no change that is known lets QNN take all operators"
AS_WRITTEN = "QNN does not take these operators as they are written"


@pytest.mark.parametrize(
    ("parts", "experiments", "text"),
    [
        (
            {"2": ON_CPU, "2 b": TAKEN},
            ["2", "2 b", "b"],
            f"reason of b (proven: {TWO}, and none with b; {TAKEN_WHOLE})",
        ),
        # QNN takes the part by itself: a larger one. One node less is a part of the cause.
        (
            {"2": TAKEN, "3": ON_CPU, "3 b": FEWER, "3 a": ON_CPU, "3 b a": FEWER},
            ["2", "3", "3 b", "3 a", "3 b a", "b"],
            (
                f"reason of b (in part, proven: {THREE}, and 1 node on the CPU with b;"
                f" {TAKEN_WHOLE})"
            ),
        ),
        # Another type.
        (
            {"2": ON_CPU, "2 b": ON_CPU, "2 a": ON_CPU, "2 16a8w": TAKEN, "b": ON_CPU, "a": DIES},
            ["2", "2 b", "2 a", "b", "a", "2 16a8w"],
            f"{NO_BITS} (proven: {TWO}, and none in 16a8w)",
        ),
        # Outputs of a program prove nothing if as many nodes stay on the CPU.
        (
            {"2": ON_CPU, "2 b": ON_CPU, "2 a": REFUSED, "2 16a8w": ON_CPU, "b": ON_CPU, "a": DIES},
            ["2", "2 b", "2 a", "b", "a", "2 16a8w", *FORMS],
            (
                f"{NO_CHANGE}: {TWO}; tried on the whole model: b (2 nodes on the CPU), a (the"
                " process died: SIGSEGV);"
                f" also run in 16a8w (2 nodes on the CPU), {OTHER_FORMS}; {KEPT}"
            ),
        ),
        # What changes nothing in the part, or fails on it, is tried on the whole model.
        (
            {"2": ON_CPU, "2 b": ON_CPU, "2 a": DIES, "b": ON_CPU},
            ["2", "2 b", "2 a", "b", "a"],
            f"{AS_WRITTEN} (proven: the model has 2 nodes on the CPU, and none with a)",
        ),
        # One that is known for wrong numbers gives no reason.
        (
            {"2": ON_CPU, "2 b": ON_CPU, "2 a": TAKEN},
            ["2", "2 b", "2 a", "a"],
            f"{AS_WRITTEN} (proven: {TWO}, and none with a; {TAKEN_WHOLE})",
        ),
        # It replaces the operators in the part, and not in the model.
        (
            {"2": ON_CPU, "2 b": ON_CPU, "2 a": DIES, "2 c": TAKEN},
            ["2", "2 b", "2 a", "2 c", "c"],
            (
                f"{NO_CHANGE}: {TWO}, and 65.3 dB with c; the whole model has 2 nodes on the CPU,"
                " and 2 nodes on the CPU with it; tried: b (2 nodes on the CPU), a (the process"
                " died: SIGSEGV), c (65.3 dB)"
            ),
        ),
        # With it, the outputs are wrong: of the part, or of the model.
        (
            {"2": ON_CPU, "2 b": SPOILT, "2 a": TAKEN},
            ["2", "2 b", "2 a", "a"],
            f"{AS_WRITTEN} (proven: {TWO}, and none with a; {TAKEN_WHOLE})",
        ),
        (
            {"2": ON_CPU, "2 b": SPOILT, "2 a": ON_CPU, "2 16a8w": SPOILT, "b": SPOILT, "a": DIES},
            ["2", "2 b", "2 a", "b", "a", "2 16a8w", *FORMS, "examine with b"],
            (
                f"{NO_CHANGE}: {TWO}; tried on the whole model: b (none, but wrong outputs), a (the"
                " process died: SIGSEGV);"
                f" also run in 16a8w (none, but wrong outputs), {OTHER_FORMS}; {KEPT}"
            ),
        ),
        # Those of the part are, and those of the model are accurate enough.
        (
            {"2": ON_CPU, "2 b": SPOILT, "2 a": FEWER_SPOILT},
            ["2", "2 b", "2 a", "b"],
            "reason of b (proven: the model has 2 nodes on the CPU, and none with b)",
        ),
        (
            {"2": ON_CPU, "2 b": ON_CPU, "2 a": DIES, "2 d": TAKEN},
            ["2", "2 b", "2 a", "2 d", "d"],
            (
                f"{NO_CHANGE}: {TWO}, and 65.3 dB with d; the whole model has 2 nodes on the CPU,"
                " and none, but wrong outputs with it; tried: b (2 nodes on the CPU), a (the"
                " process died: SIGSEGV), d (65.3 dB)"
            ),
        ),
        # Outputs that were wrong before may stay so. What a change costs is shown.
        (
            {"2": structs.replace(SPOILT, cpu_nodes=2, is_right=False), "2 b": SPOILT},
            ["2", "2 b", "b"],
            (
                f"reason of b (proven: {TWO} and wrong outputs, and none, but wrong outputs with"
                f" b; {TAKEN_WHOLE})"
            ),
        ),
        (
            {"2": structs.replace(ON_CPU, reached_db=80.0), "2 b": TAKEN},
            ["2", "2 b", "b"],
            (
                f"reason of b (proven: {TWO}, and none (65.3 dB instead of 80.0) with b;"
                f" {TAKEN_WHOLE})"
            ),
        ),
    ],
)
def test_the_cause_of_nodes_on_the_cpu_is_the_change_with_which_qnn_takes_them(
    parts: Mapping[str, Result], experiments: list[str], text: str
) -> None:
    known = structs.replace(B, is_for_finding=True)
    remedies = [A, known, *(other for other in (C, D) if f"2 {other.name}" in parts)]
    of_whole = {name: result for name, result in parts.items() if name.isalpha()}
    whole_results = {"b": TAKEN, "a": TAKEN, "c": ON_CPU, "d": SPOILT, **of_whole}
    laboratory = Laboratory(remedies, whole_results, parts)
    (cause,) = advise_on_diagnosis(laboratory.run(replace(CPU, finer="16a8w"))).causes
    assert laboratory.experiments == experiments
    assert cause.text == text


@pytest.mark.parametrize(
    ("parts", "experiments", "cure"),
    [
        # Where the first wrong layer shows nothing, the one with most of the error may.
        ({"3": WRONG, "3 b": RIGHT}, ["2", "2 a", "2 all", "3", "3 b", "b"], ["b"]),
        ({"3": WRONG}, ["2", "2 a", "2 all", "3", "3 b", "3 all", *FORMS], []),
        ({"3": WRONG, "3 b": LATE}, ["2", "2 a", "2 all", "3", "3 b"], []),
        # It does not matter where the first one shows the cause.
        ({"2 a": RIGHT}, ["2", "2 a", "a"], ["a"]),
    ],
)
def test_the_layer_with_most_of_the_error_is_tried_after_the_first_wrong_one(
    parts: Mapping[str, Result], experiments: list[str], cure: list[str]
) -> None:
    operators = [*CHAIN[:15], replace_inputs(CHAIN[15], "op14", "op3"), *CHAIN[16:]]
    near, far = choose("a", at=9), choose("b", at=15)
    laboratory = Laboratory([near, far], {"a": RIGHT, "b": RIGHT}, {"2": WRONG, **parts}, operators)
    diagnosis = laboratory.run(replace(LARGE, worst=("op15", "add", "net.py:15")))
    assert laboratory.experiments == experiments
    assert [remedy.name for remedy in diagnosis.cure] == cure
    assert (diagnosis.ended == TIME_IS_UP) is (LATE in parts.values())


def test_what_makes_outputs_wrong_that_qnn_computes_alone_is_said_of_nodes_on_the_cpu() -> None:
    second = Second("not faithful: wrong from matmul", "QNN rounds")
    laboratory = Laboratory([B], {"b": SPOILT}, {"2": ON_CPU, "2 b": SPOILT}, second=second)
    (cause,) = advise_on_diagnosis(laboratory.run(CPU)).causes
    assert laboratory.experiments[-1] == "examine with b"
    assert cause.certainty is Certainty.UNKNOWN
    assert cause.text == (
        f"{NO_CHANGE}: {TWO}; tried on the whole model: b (none, but wrong outputs); also run"
        f" {OTHER_FORMS}; with b, the model is not faithful: wrong from matmul: QNN rounds; {KEPT}"
    )


def replace_inputs(operator: Operator, *inputs: str) -> Operator:
    return structs.replace(operator, inputs=inputs)


ALIKE = Result(failure="refused: error 1002", is_refused=True)
AMISS = Result(reached_db=-12.3, is_right=True, is_wrong=True)
D = choose("d")
REFUSAL = Suspicion(ALIKE, first=("", "", "net.py:9"), faults=("fault-b",), count=20)
VAIN = {"b": ALIKE, "a": ALIKE, "c": ALIKE}
IN_VAIN = ", ".join(f"{name} ({ALIKE.failure})" for name in VAIN)


@pytest.mark.parametrize(
    ("whole_results", "parts", "experiments", "text"),
    [
        # What the compiler takes as a whole needs no part.
        (
            {"b": RIGHT},
            {},
            ["b"],
            "reason of b (proven: the model has no outputs, and 68.9 dB with b)",
        ),
        # That its outputs are rejected then is another cause, which was hidden until it ran.
        (
            {"b": AMISS},
            {},
            ["b", "examine with b"],
            f"reason of b (proven: the model has no outputs, and -12.3 dB with b, {ELSE})",
        ),
        (
            {**VAIN, "d": AMISS},
            {"2": ALIKE, "2 d": RIGHT},
            ["b", "a", "c", "2", "2 d", "d", "examine with d"],
            (
                f"reason of d (proven: {PART} has no outputs, and 68.9 dB with d; the whole model"
                f" has no outputs, and -12.3 dB with it, {ELSE})"
            ),
        ),
        # More remedies are tried on the smallest part that is refused for the same reason.
        (
            {**VAIN, "d": RIGHT},
            {"2": ALIKE, "2 d": RIGHT},
            ["b", "a", "c", "2", "2 d", "d"],
            (
                f"reason of d (proven: {PART} has no outputs, and 68.9 dB with d; the whole model"
                " has no outputs, and 68.9 dB with it)"
            ),
        ),
        (
            VAIN,
            {"2": ALIKE, "2 d": ALIKE, "2 16a8w": RIGHT},
            ["b", "a", "c", "2", "2 d", "2 16a8w"],
            f"{NO_BITS} (proven: {PART} has no outputs, and 68.9 dB in 16a8w)",
        ),
        (
            VAIN,
            {"2": ALIKE, "2 d": DIES, "2 16a8w": ALIKE},
            ["b", "a", "c", "2", "2 d", "2 16a8w", *FORMS],
            (
                f"no experiment shows the cause: {PART} has no outputs; tried: d (the process died:"
                f" SIGSEGV); tried on the whole model: {IN_VAIN}; also run in 16a8w"
                f" ({ALIKE.failure}), {OTHER_FORMS}; {KEPT}"
            ),
        ),
    ],
)
def test_of_a_model_that_is_refused_the_smallest_refused_part_is_found(
    whole_results: Mapping[str, Result],
    parts: Mapping[str, Result],
    experiments: list[str],
    text: str,
) -> None:
    laboratory = Laboratory([A, B, C, D], whole_results, parts)
    (cause,) = advise_on_diagnosis(laboratory.run(replace(REFUSAL, finer="16a8w"))).causes
    assert laboratory.experiments == experiments
    assert cause.text == text


@pytest.mark.parametrize(
    ("suspicion", "whole_results", "parts", "shown"),
    [
        (REFUSAL, {"b": AMISS}, {}, "the model has no outputs, and -12.3 dB with b"),
        # A part is right, and the whole model has gained and is still wrong.
        (
            LARGE,
            {"b": BETTER},
            {"2 b": RIGHT},
            (
                f"{PART} has 18.6 dB, and 68.9 dB with b; the whole model has 18.6 dB, and 46.0 dB"
                " with it"
            ),
        ),
    ],
)
def test_what_is_wrong_with_the_cured_model_is_the_second_cause(
    suspicion: Suspicion,
    whole_results: Mapping[str, Result],
    parts: Mapping[str, Result],
    shown: str,
) -> None:
    second = Second("not faithful: wrong from div", "QNN divides", "write mul (e)", ("e",))
    laboratory = Laboratory([A, B, C, D], whole_results, parts, second=second)
    diagnosis = laboratory.run(suspicion)
    assert laboratory.experiments[-1] == "examine with b"
    advice = advise_on_diagnosis(diagnosis)
    assert [cause.text for cause in advice.causes] == [
        f"reason of b (proven: {shown}, {ELSE}: not faithful: wrong from div; QNN divides)"
    ]
    (remedy,) = advice.remedies
    assert remedy.text == "write title of b (b); then write mul (e)"
    assert remedy.rewrites == ("b", "e")


@pytest.mark.parametrize(
    ("again", "experiments", "text"),
    [
        (ALIKE, ["", "b"], "reason of b (proven: the model has no outputs, and 68.9 dB with b)"),
        # With a remedy, it might have ended otherwise, too.
        (
            RIGHT,
            [""],
            (
                "no experiment shows the cause: the model has no outputs; a second time, its"
                " process did not die like this: chance may have ended it"
            ),
        ),
        (
            LATE,
            [""],
            f"no experiment shows the cause: the model has no outputs; {TOO_LATE}",
        ),
    ],
)
def test_a_model_that_killed_its_process_must_do_so_again_before_anything_is_changed(
    again: Result, experiments: list[str], text: str
) -> None:
    laboratory = Laboratory([A, B, C], {"": again, "b": RIGHT})
    diagnosis = laboratory.run(replace(REFUSAL, repeats=True))
    assert laboratory.experiments == experiments
    (cause,) = advise_on_diagnosis(diagnosis).causes
    assert cause.text == text


def test_a_part_that_is_refused_for_another_reason_is_none_of_a_refused_model() -> None:
    right_parts = {str(size): REFUSED if size % 2 else RIGHT for size in range(2, 20)}
    laboratory = Laboratory([A], {"a": ALIKE}, right_parts)
    diagnosis = laboratory.run(REFUSAL)
    assert len(laboratory.experiments) == 1 + MOST_PARTS
    assert not diagnosis.part
