"""The kinds of findings, each with an id and a question. Their texts are in
manifests/policies/findings.toml: what a kind means and what usually helps.

docs/reference/findings.md is made from both. An id is never used again for another meaning.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import Struct, structs

from ci.facts.finding import (
    HEADLINE_CHARS,
    LEADS,
    NO_ADVICE,
    Advice,
    Figure,
    Finding,
    Place,
    Question,
    describe_error,
    shorten,
)
from provisioning.errors import QnnCiError, describe_exception
from provisioning.manifest.reader import read_policy

_KINDS: dict[str, FindingId] = {}
# The question of the kinds whose ids start with these characters.
QUESTIONS = {
    "QNN2401": Question.USABLE,
    "QNN20": Question.FAITHFUL,
    "QNN21": Question.QUANTIZED,
    "QNN22": Question.TASK,
    "QNN23": Question.BUDGET,
    "QNN24": Question.LOWERED,
    "QNN25": Question.RUN,
    "QNN26": Question.ENVIRONMENT,
    "QNN27": Question.PROOF,
    "QNN29": Question.OURS,
}


class KindRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of manifests/policies/findings.toml: the texts of a kind of finding."""

    meaning: str
    help: str
    example: str


@dataclass(frozen=True)
class Kind:
    """A kind of finding. ``meaning`` says what it states, ``help`` what to do about it, and
    ``example`` is such a headline."""

    id: str
    question: Question
    meaning: str
    help: str
    example: str
    lead: str | None = None  # the first words of the headline, if not those of the question


@dataclass(frozen=True)
class FindingId:
    """The id of a kind of finding, without its texts."""

    id: str
    lead: str | None = None  # see Kind

    @property
    def question(self) -> Question:
        """The question that findings of this kind answer with no."""
        return next(question for start, question in QUESTIONS.items() if self.id.startswith(start))

    def find(
        self,
        text: str,
        *,
        subject: str = "",
        figures: Iterable[Figure] = (),
        details: Iterable[str] = (),
        evidence: str = "",
        advice: Advice = NO_ADVICE,
        places: Iterable[Place] = (),
    ) -> Finding:
        """Return a finding of this kind. The headline is ``text`` after the words of the question
        and the subject. If it is too long, it is cut, and the whole text becomes evidence."""
        lead = LEADS.get(self.question, "") if self.lead is None else self.lead
        sentence = f"{lead}{f'{subject}: ' if subject else ''}{text}"
        headline = shorten(sentence, HEADLINE_CHARS)
        cut_text = [text] if headline != sentence and text not in evidence else []
        return Finding(
            id=self.id,
            question=self.question,
            headline=headline,
            subject=subject,
            figures=tuple(figures),
            details=tuple(details),
            evidence="\n".join([*cut_text, *([evidence] if evidence else [])]),
            places=tuple(places),
        ).explained(advice)

    def from_error(self, error: QnnCiError) -> Finding:
        """Return a finding that states an error of this project, with its reason and its fix."""
        return self.find(error.what, advice=describe_error(error))


def _add_kind(name: str, lead: str | None = None) -> FindingId:
    """Return the kind with the id ``name``. Its question follows from its id."""
    if name in _KINDS:
        raise ValueError(f"{name} is used twice")
    return _KINDS.setdefault(name, FindingId(name, lead))


# The texts are loaded only when they are printed; judging needs only the ids.
@functools.cache
def read_kinds() -> tuple[Kind, ...]:
    """Return all kinds with their texts, in the order of their ids. Raises ManifestError."""
    rows = read_policy("findings", dict[str, KindRow])
    kinds = []
    for name, finding_id in sorted(_KINDS.items()):
        texts = structs.asdict(rows[name])
        kinds.append(Kind(name, finding_id.question, **texts, lead=finding_id.lead))
    return tuple(kinds)


NOISE = _add_kind("QNN2001")
ELEMENTS = _add_kind("QNN2002")
NOT_FINITE = _add_kind("QNN2003")
OFF_GRID = _add_kind("QNN2004")
UNEQUAL = _add_kind("QNN2005")
FAR = _add_kind("QNN2006")
TOKENS = _add_kind("QNN2007")
INDICES = _add_kind("QNN2008")
VARIED = _add_kind("QNN2009")
LOST = _add_kind("QNN2101")
CLIPPED = _add_kind("QNN2102")
QUANTIZED_BADLY = _add_kind("QNN2103")
PART = _add_kind("QNN2104")
FEW = _add_kind("QNN2105")
METRIC_LOST = _add_kind("QNN2106")
METRIC_DROP = _add_kind("QNN2201")
METRIC_MODEL = _add_kind("QNN2202")
METRIC_BLIND = _add_kind("QNN2203")
METRIC_ERROR = _add_kind("QNN2204", lead="not good for the task: metric: ")
OVER_BUDGET = _add_kind("QNN2301")
ON_CPU = _add_kind("QNN2302", lead="")
INVALID = _add_kind("QNN2401")
NOT_LOWERED = _add_kind("QNN2402")
NO_NODE = _add_kind("QNN2403")
DIED = _add_kind("QNN2404", lead="")
NO_OUTPUTS = _add_kind("QNN2501")
RUNNER = _add_kind("QNN2502")
LACKING = _add_kind("QNN2601")
INCONCLUSIVE = _add_kind("QNN2701")
CHANGED = _add_kind("QNN2702")
UNEXPECTED = _add_kind("QNN2703")
CONTRADICTED = _add_kind("QNN2704")
UNRECORDED = _add_kind("QNN2705")
RETYPED = _add_kind("QNN2707")
BUG = _add_kind("QNN2901")


def find_bug(error: BaseException, evidence: str = "") -> Finding:
    """Return the finding that this project failed with an unexpected exception."""
    sentence = f"this is a bug in executorch-qnn-ci: {describe_exception(error)}"
    return BUG.find(sentence, evidence=evidence)
