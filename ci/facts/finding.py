"""Findings: what is wrong with a case, as data. Reports and terminals make text from them.

A finding has an id (ci.facts.kinds) that never changes its meaning, so that a policy, a code
scanning service or a reader can refer to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from provisioning.errors import FailedError, QnnCiError

PLAIN = frozenset({bool, int, tuple, type(None)})  # most values of a report


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value of a report. numpy's numbers are converted to Python's, NaN and infinity become
    None, and characters that UTF-8 cannot encode are replaced."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) in PLAIN:
                continue
            plain = _plain(value)
            if plain is not value:
                # A Struct that is frozen can only be changed in this way.
                msgspec.structs.force_setattr(self, name, plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    number = value.item() if hasattr(value, "item") else value
    # JSON has neither NaN nor infinity.
    return None if isinstance(number, float) and not math.isfinite(number) else number


LEAST_SHARED = 10  # characters of a cut headline with which its evidence starts
HEADLINE_CHARS = 100
PLACE_MARK = re.compile(r" \[[^\[\]]+:\d+\]$")  # the end of a headline that has the user's line
SHOWN = 8  # findings of a case that are shown whole


class Question(str, Enum):
    """The questions that a finding answers with no. ``faithful``: does the program compute its
    quantized model (for scheme fp16, its float32 model)? ``quantized``: is that model close enough
    to the float32 model? ``task``: is the result good enough for the user's task? ``budget``: is
    the program within its budget? ``usable``: can the model, its data and its policy be used?
    ``lowered``: is there a program? ``run``: did it return outputs? ``environment``: does this
    machine have what the case needs? ``proof``: does the case prove anything, and is it what the
    policy and earlier runs say? ``ours``: did this project work?"""

    FAITHFUL = "faithful"
    QUANTIZED = "quantized"
    TASK = "task"
    BUDGET = "budget"
    USABLE = "usable"
    LOWERED = "lowered"
    RUN = "run"
    ENVIRONMENT = "environment"
    PROOF = "proof"
    OURS = "ours"


# Of a program that returns no outputs.
STOPPING = frozenset({Question.LOWERED, Question.RUN})

# The first words of a headline.
LEADS = {
    Question.FAITHFUL: "not faithful: ",
    Question.QUANTIZED: "not quantized well: ",
    Question.TASK: "not good for the task: ",
    Question.BUDGET: "over its budget: ",
    Question.LOWERED: "refused: ",
    Question.RUN: "run: ",
}


# Those of a program in a float scheme that is too far from its model: nothing was quantized.
FLOAT_LEAD = "not accurate enough: "


class Certainty(str, Enum):
    """How well a cause is known: ``proven`` by an experiment of this run whose figures the text
    has, a ``known`` message that matched, a thing ``measured`` in this run, ``likely`` but not
    tried by an experiment, or a ``guess`` from a line of a log. ``unknown`` says what was tried in
    vain, if anything was; next to a likely or a known cause, what experiments left open."""

    PROVEN = "proven"
    KNOWN = "known"
    MEASURED = "measured"
    LIKELY = "likely"
    GUESS = "guess"
    UNKNOWN = "unknown"


# A cause that is certain makes these superfluous. What experiments left open stays next to one that
# is known: a message that matched says what stopped, which may be the consequence of a cause.
GUESSED = frozenset({Certainty.LIKELY, Certainty.GUESS})
UNCERTAIN = GUESSED | {Certainty.UNKNOWN}


class Proof(str, Enum):
    """What shows that a remedy works: it was ``tried`` in this run, it is ``proven`` (with this
    version of QNN, or because it follows from the cause), or it is only ``suggested``."""

    TRIED = "tried"
    PROVEN = "proven"
    SUGGESTED = "suggested"


class Place(Record, frozen=True, kw_only=True):
    """A line of a user's file. The path is relative to the root of the file's repository."""

    file: str
    line: Annotated[int, Meta(ge=1)]


class Origin(Record, frozen=True, kw_only=True):
    """Where an operator of a model comes from: a line of a Python file or, if that is unknown, a
    module of the model, such as ``body.4``. Everything is empty if both are unknown."""

    file: str = ""
    line: Annotated[int, Meta(ge=0)] = 0
    module: str = ""

    @property
    def places(self) -> tuple[Place, ...]:
        """Return the line, or nothing if it is unknown."""
        return (Place(file=self.file, line=self.line),) if self.line else ()

    @property
    def mark(self) -> str:
        """Return the origin as it is appended to a text, such as `` [nets/net.py:12]``."""
        return f" [{self}]" if self != NOWHERE else ""

    def __str__(self) -> str:
        if self.line:
            return f"{self.file}:{self.line}"
        return f"module {self.module}" if self.module else ""


NOWHERE = Origin()


class Figure(Record, frozen=True, kw_only=True):
    """A figure of a finding, such as ``above_noise`` in dB. ``allowed`` is its limit, and
    ``predicted`` its prediction; both are None if there is none."""

    name: str
    value: float | None
    unit: str = ""
    allowed: float | None = None
    predicted: float | None = None


class Cause(Record, frozen=True, kw_only=True):
    """Why something is wrong. ``name`` is that of a known fault, or the id of a rule for messages,
    such as QNN1302; it is empty for other causes."""

    text: str
    certainty: Certainty
    name: str = ""


class Remedy(Record, frozen=True, kw_only=True):
    """What to do next. ``rewrites`` are the names of the rewrites of mend that it consists of, in
    their order; empty if it is something else."""

    text: str
    proof: Proof
    rewrites: tuple[str, ...] = ()


@dataclass(frozen=True)
class Advice:
    """What explains a finding. ``title`` is a known cause in a few words, or empty. ``seen``
    describes patterns in the outputs, and ``where`` the place in the model, whose lines are
    ``places``."""

    seen: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    where: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    title: str = ""

    def __add__(self, further: Advice) -> Advice:
        return Advice(
            self.seen + further.seen,
            self.causes + further.causes,
            self.where + further.where,
            self.places + further.places,
            self.remedies + further.remedies,
            self.title or further.title,
        )


NO_ADVICE = Advice()


def advise(
    why: str = "",
    fix: str = "",
    *,
    name: str = "",
    certainty: Certainty = Certainty.MEASURED,
    proof: Proof = Proof.SUGGESTED,
    rewrites: tuple[str, ...] = (),
) -> Advice:
    """Return advice with one cause and one remedy, which is ``rewrites`` of mend, or something
    else. Either is left out if it is empty."""
    return Advice(
        causes=(Cause(text=why, certainty=certainty, name=name),) if why else (),
        remedies=(Remedy(text=fix, proof=proof, rewrites=rewrites),) if fix else (),
    )


class Finding(Record, frozen=True, kw_only=True):
    """One thing that is wrong.

    ``headline`` says it in one line. ``subject`` is what it is about, such as ``output 1``.
    ``details`` are sentences that complete the headline. ``evidence`` is the message of a tool, or
    the whole text of a headline that had to be cut.
    """

    id: str
    question: Question
    headline: Annotated[str, Meta(max_length=HEADLINE_CHARS)]
    subject: str = ""
    figures: tuple[Figure, ...] = ()
    details: tuple[str, ...] = ()
    evidence: str = ""
    seen: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    where: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    remedies: tuple[Remedy, ...] = ()

    def explained(self, advice: Advice) -> Finding:
        """Return the finding with further advice, the best known cause and the best proven remedy
        first. If a cause is proven or known, those that are not certain are left out, except for
        what experiments left open next to a known one."""
        causes = _join(self.causes, advice.causes)
        certainties = {cause.certainty for cause in causes}
        left_out = UNCERTAIN if Certainty.PROVEN in certainties else GUESSED
        if certainties & {Certainty.PROVEN, Certainty.KNOWN}:
            causes = tuple(cause for cause in causes if cause.certainty not in left_out)
        remedies = _join(self.remedies, advice.remedies)
        return msgspec.structs.replace(
            self,
            seen=_join(self.seen, advice.seen),
            causes=tuple(sorted(causes, key=lambda cause: [*Certainty].index(cause.certainty))),
            where=_join(self.where, advice.where),
            places=_join(self.places, advice.places),
            remedies=tuple(sorted(remedies, key=lambda remedy: [*Proof].index(remedy.proof))),
        )

    def renamed(self, *culprits: str) -> Finding:
        """Return the finding with the first of ``culprits`` in its headline that is short enough.
        The former headline becomes a detail, unless it was cut, so that the evidence starts with
        it."""
        lead = self.lead
        headlines = (*(f"{lead}{culprit}" for culprit in culprits), culprits[-1])
        return msgspec.structs.replace(
            self,
            headline=shorten(
                min(headlines, key=lambda headline: len(headline) > HEADLINE_CHARS), HEADLINE_CHARS
            ),
            details=(*([] if self.is_cut else [self.headline]), *self.details),
        )

    @property
    def lead(self) -> str:
        """The first words of the headline, which say what the finding is about."""
        is_float = self.headline.startswith(FLOAT_LEAD)
        return FLOAT_LEAD if is_float else LEADS.get(self.question, "")

    @property
    def is_cut(self) -> bool:
        """Whether the headline is the start of the evidence, which is too long for it."""
        first = next(iter(self.evidence.splitlines()), "")
        return shorten(f"{self.lead}{first}", HEADLINE_CHARS) == self.headline

    @property
    def whole_headline(self) -> str:
        """The headline as it was before it was cut, if the evidence starts with its last words."""
        shown = self.headline.removesuffix("...")
        first = next(iter(self.evidence.splitlines()), "")
        if shown == self.headline:
            return self.headline
        # What precedes them depends on the kind of the finding and its subject.
        for start in range(len(shown) - LEAST_SHARED):
            if first.startswith(shown[start:]):
                return f"{shown[:start]}{first}"
        return self.headline

    @property
    def kin(self) -> tuple[object, ...]:
        """What the finding has in common with those that have the same cause. Figures differ, so
        the places in the model stand for a headline with figures."""
        headline, places = ("", self.places) if self.figures else (self.headline, ())
        causes = self.causes
        if any(cause.certainty is Certainty.KNOWN for cause in causes):  # next to what is left open
            causes = tuple(cause for cause in causes if cause.certainty is not Certainty.UNKNOWN)
        return self.id, self.subject, headline, places, causes, self.remedies

    @property
    def words(self) -> str:
        """What the finding says, without marks and remedies, for patterns. What was tried in vain
        has messages of other models."""
        named = (cause for cause in self.causes if cause.certainty is not Certainty.UNKNOWN)
        causes = (cause.text for cause in named)
        lines = (self.headline, *self.details, self.evidence, *self.seen, *causes, *self.where)
        return "\n".join(filter(None, lines))

    @property
    def text(self) -> str:
        """Everything that the finding says, a line each."""
        return "\n".join(show_finding(self))


def _join(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys((*first, *second)))


class PlacedError(FailedError):
    """A failure at ``places`` of the user's code, if they are known."""

    places: tuple[Place, ...] = ()


class RefusedError(FailedError):
    """A failure whose fix is only a suggestion, such as where a compiler's messages are."""


def describe_error(error: QnnCiError) -> Advice:
    """Return the reason and the next step that an error of this project states."""
    proof = Proof.SUGGESTED if isinstance(error, RefusedError) else Proof.PROVEN
    advice = advise(error.why, error.fix, proof=proof)
    return replace(advice, places=error.places if isinstance(error, PlacedError) else ())


def shorten(text: str, most: int) -> str:
    """Return the first line of a text, with the next one if it ends with a colon. If it is longer
    than ``most``, it is cut after a word and ends with three dots."""
    first, _, following = text.strip().partition("\n")
    line = " ".join((text if first.rstrip().endswith(":") and following else first).split())
    if len(line) <= most:
        return line
    cut = line[: most - 3]
    return f"{cut.rpartition(' ')[0] or cut}..."


# Two tables: members of both enumerations have the same value, and are equal by it.
CAUSE_WORDS = {
    Certainty.PROVEN: "why",
    Certainty.KNOWN: "why",
    Certainty.MEASURED: "why",
    Certainty.LIKELY: "likely",
    Certainty.GUESS: "possibly",
    Certainty.UNKNOWN: "unknown",
}
REMEDY_WORDS = {
    Proof.TRIED: "fix",
    Proof.PROVEN: "fix",
    Proof.SUGGESTED: "try",
}


OPEN = "open"  # what experiments left open about a cause, which is no second answer
ANSWERS = frozenset({Certainty.LIKELY, Certainty.KNOWN})  # next to which none is unknown


def name_cause(cause: Cause, causes: Sequence[Cause]) -> str:
    """Return the word before a cause, one of the ``causes`` of a finding."""
    is_answered = any(other.certainty in ANSWERS for other in causes)
    if cause.certainty is Certainty.UNKNOWN and is_answered:
        return OPEN
    return CAUSE_WORDS[cause.certainty]


def list_facts(finding: Finding) -> Iterator[tuple[str, str]]:
    """Yield what a finding says besides its headline: each time a word, such as ``why``, and a
    line. The word is empty for details and evidence. The words ``fix`` and ``why`` are kept for
    what is known; what no experiment decided is ``likely``, a guess from a log ``possibly``, and a
    remedy that nothing proves ``try``."""
    lines = (*finding.details, *(line for line in finding.evidence.splitlines() if line.strip()))
    yield from (("", line) for line in lines)
    yield from (("seen", line) for line in finding.seen)
    for cause in finding.causes:
        if text := show_cause(finding, cause):
            yield name_cause(cause, finding.causes), text
    yield from (("where", line) for line in finding.where)
    yield from ((REMEDY_WORDS[remedy.proof], remedy.text) for remedy in finding.remedies)


def show_cause(finding: Finding, cause: Cause) -> str:
    """Return the text of a cause without what the headline says: the name and the place of a known
    fault, or the whole or the first words of a certain cause. "" if nothing is left."""
    _, is_named, label = finding.headline.partition("known fault ")
    named = f"known fault: {label} "
    if is_named and cause.text.startswith(named):
        return f"this known fault {cause.text.removeprefix(named)}"
    title = PLACE_MARK.sub("", finding.headline.removeprefix(finding.lead))
    if cause.certainty in UNCERTAIN or not f"{cause.text}: ".startswith(f"{title}: "):
        return cause.text
    return cause.text.removeprefix(title).removeprefix(": ")


def list_lines(finding: Finding) -> tuple[str, list[tuple[str, str]]]:
    """Return the headline, and what the finding says besides it. A headline that had to be cut is
    whole here, and none of the lines repeats it."""
    facts = [*list_facts(finding)]
    start = finding.headline.removesuffix("...").rstrip()
    subject = f"{finding.subject}: " if finding.subject else ""
    for word, line in facts:
        for lead in () if word else ("", finding.lead, f"{finding.lead}{subject}"):
            whole = f"{lead}{line}"
            # A headline that ends with a colon has the next line, too.
            if line and (whole.startswith(start) or (line[-1] == ":" and start.startswith(whole))):
                facts.remove((word, line))
                return whole, facts
    return finding.headline, facts


def show_finding(finding: Finding) -> Iterator[str]:
    """Yield the lines of a finding. All lines except the headline are indented."""
    headline, facts = list_lines(finding)
    yield f"{headline} [{finding.id}]"
    for word, line in facts:
        yield f"  {word}: {line}" if word else f"  {line}"


def show_brief(finding: Finding) -> str:
    """Return a finding in one line: its headline, its causes and the best remedy."""
    parts = [f"{finding.headline} [{finding.id}]"]
    parts += [
        f"{name_cause(cause, finding.causes)}: {text}"
        for cause in finding.causes
        if (text := show_cause(finding, cause))
    ]
    parts += [f"{REMEDY_WORDS[remedy.proof]}: {remedy.text}" for remedy in finding.remedies[:1]]
    return "; ".join(parts)


def show_findings(findings: Sequence[Finding]) -> str:
    """Return the text of a case's findings. Of more than SHOWN, only the headlines follow."""
    lines = [line for finding in findings[:SHOWN] for line in show_finding(finding)]
    lines += [f"{finding.headline} [{finding.id}]" for finding in findings[SHOWN:]]
    return "\n".join(lines)
