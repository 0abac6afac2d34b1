"""What a diagnosis asks for, and what it is answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from msgspec import Struct

WHOLE: tuple[str, ...] = ()  # the operators of a part that is the whole model
TIME_IS_UP = "the time for experiments is up"
NO_PART = "the part cannot be cut out"
UNCHANGED = "it finds nothing to change"  # a remedy in a part
SHRINK = 64  # a power of 2, so that only the exponents change


class Operator(Struct, frozen=True):
    """An operator of the float model. ``name`` is that of its result, and ``inputs`` are the
    operators whose results it reads. ``node`` is its name in the file, and ``line`` its place in
    the user's code; each is empty if it is unknown. ``kind`` is what users call it."""

    name: str
    kind: str
    inputs: tuple[str, ...] = ()
    node: str = ""
    line: str = ""

    @property
    def places(self) -> frozenset[str]:
        """Return what a rewrite may name it by."""
        return frozenset({self.line, self.node, self.name} - {""})

    @property
    def label(self) -> str:
        """Return the operator with its place, such as ``add [net.py:3]``."""
        return f"{self.kind} [{self.line}]" if self.line else self.kind


class RemedyChoice(Struct, frozen=True):
    """A rewrite that applies to the model and keeps its function. ``reason`` is what it is known to
    cure, in words, ``cures`` the names of known faults that it cures, ``is_for_finding`` whether it
    is known to cure findings of this kind, and ``places`` what it changes: lines of the user's
    code, and names of nodes."""

    name: str
    title: str
    reason: str
    cures: tuple[str, ...] = ()
    is_for_finding: bool = False
    places: tuple[str, ...] = ()


class Result(Struct, frozen=True):
    """The answer to a run: the SQNR in dB that a part's program reaches against its model, and the
    one that rounding alone would leave. ``is_right`` is whether the gate takes it for faithful; of
    a model that is quantized badly, whether it passes. ``failure`` is why there are no outputs:
    the program was refused (``is_refused``), died, or did not end. ``is_fleeting`` is whether a
    limit, or something outside of the process, ended it, so that another run may answer otherwise.
    ``cpu_nodes`` is the number of nodes on the CPU, if these are what is wrong; ``is_wrong`` is
    whether the outputs are rejected then, too, and those of a model that is refused without a
    change."""

    reached_db: float | None = None
    predicted_db: float | None = None
    is_right: bool = False
    failure: str = ""
    is_refused: bool = False
    is_fleeting: bool = False
    cpu_nodes: int = 0
    is_wrong: bool = False


@dataclass(frozen=True)
class ListRemedies:
    """Asks which rewrites apply to the ``part`` of the model that these operators are, or to the
    whole model if the part is WHOLE. The answer is a list of RemedyChoice, a Result with the reason
    if the whole model cannot be rewritten, or None if the time is up."""

    part: tuple[str, ...] = WHOLE


@dataclass(frozen=True)
class ListOperators:
    """Asks for the operators of the float model, in order. The answer is a list of Operator; it is
    empty if the model cannot be divided."""


@dataclass(frozen=True)
class RunPart:
    """Asks for a program of the ``part`` of the model that these operators are, with ``remedies``
    applied; of the whole model if the part is WHOLE. With ``returns_all``, the program also returns
    the results inside of the part. ``scheme`` is another one than the case's, or empty; with an
    ``operator``, only operators of this kind have it. An operator ``decomposed`` is written with
    those of its definition, and with ``doubled``, two samples are one input. With ``shrunk``, the
    numbers that the part reads are divided by SHRINK. The answer is a Result; with the failure
    UNCHANGED, nothing was compiled."""

    part: tuple[str, ...]
    remedies: tuple[str, ...] = ()
    returns_all: bool = False
    scheme: str = ""
    operator: str = ""
    decomposed: str = ""
    doubled: bool = False
    shrunk: bool = False


class Change(Struct, frozen=True):
    """A change of the quantizers of a part that makes it right: what was changed, in words such as
    ``separate biases``, why that helps, and what the part then reaches."""

    title: str
    reason: str
    result: Result


class Smallest(Struct, frozen=True):
    """The answer to FindSmallest. ``part`` are the operators of the float model that the smallest
    part consists of, and ``result`` what its program reaches with the quantizers of the whole
    model. ``returning`` is its result if it returns the results inside of it, and ``change`` the
    change that makes it right; each is None if the part stays wrong."""

    part: tuple[Operator, ...]
    result: Result
    returning: Result | None = None
    change: Change | None = None


@dataclass(frozen=True)
class FindSmallest:
    """Asks for the smallest part that is wrong by itself, by a search of many programs, which
    starts with ``part``. The answer is a Smallest, or None if there is none."""

    part: tuple[str, ...]


class Second(Struct, frozen=True):
    """The answer to ExamineCured: what is wrong with the cured model, in a headline, its ``cause``
    and what to do, and the ``rewrites`` that this consists of. Each is empty if it is unknown."""

    headline: str
    cause: str = ""
    fix: str = ""
    rewrites: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExamineCured:
    """Asks for the cause of what is still wrong with the whole model with ``remedies`` applied, as
    for any red case. The answer is a Second, or None if nothing is, or the time is up."""

    remedies: tuple[str, ...]


@dataclass(frozen=True)
class KeepPart:
    """Asks to keep a part, or the whole model, as a reproducer. The answer is its path, or "" if it
    was not kept."""

    part: tuple[str, ...]


Experiment: TypeAlias = (
    ListRemedies | ListOperators | RunPart | FindSmallest | ExamineCured | KeepPart
)
# None starts
Answer: TypeAlias = "list[RemedyChoice] | list[Operator] | Result | Smallest | Second | str | None"
