"""Searches for the operators at which a program starts to differ from its model.

A part of the model is tried by lowering and running it. For each output, the result contains the
SQNR against the part's eager model and the SQNR that is predicted from rounding alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from msgspec import Struct, structs

from ci.report.text import count

T = TypeVar("T")
# A smaller part is still wrong if it is below its prediction by at least LEAST_DB, and by at least
# this share of the dB by which the part to shrink was below its own.
KEPT_SHARE, LEAST_DB = 0.5, 6.0
LEAST_OFF = 1e-4  # a smaller relative difference of a bias's scale is ignored
JOINS = ("cat", "stack", "Concat")
MOST_REFUSED = 3  # in a row; then no more programs with additional outputs are tried
MOST_SETS = 4  # only a few samples are used, because many programs run them
MOST_BYTES = 64 << 20  # additional outputs of one program, per sample


# Why a program is refused: a limit of time or memory, and no operator that QNN takes, which is true
# of all parts.
EXCEEDED = re.compile(r"did not end within|printed nothing for|its limit|its share")
OF_ALL = re.compile(r"takes no operator|accepts no node")


def name_refusal(refused: str) -> str:
    """Return a reason without the names and the numbers in it, which differ from part to part."""
    return re.sub(r"'[^']*'|\d+", "", refused)


class Mend(str, Enum):
    """A change that is tried on a wrong quantized part to find out why it is wrong: ranges that
    cover all values, or a separate bias for each layer, with the scale that QNN expects."""

    RANGES = "ranges"
    BIASES = "biases"


class Operator(Struct, frozen=True, kw_only=True):
    """A node that computes an activation, with its source line and module and, in an .onnx file,
    the node's name.

    ``inputs`` are the operators whose results it reads. ``computes`` is false if it only moves
    elements. ``size_bytes`` is the size of its result. ``range`` is the lowest and the highest
    value that its quantized result can have, and ``clipped`` is how far values exceed that range,
    as a share. ``bias_off`` is the relative difference between the scale of its bias and the
    product of the scales of its input and its weights.
    """

    name: str
    kind: str
    line: str = ""
    module: str = ""
    node: str = ""
    inputs: tuple[str, ...] = ()
    computes: bool = True
    size_bytes: int = 0
    range: tuple[float, float] | None = None
    clipped: float = 0.0
    bias_off: float = 0.0

    def __str__(self) -> str:
        line = f" [{self.line}]" if self.line else ""
        name = f" {self.node!r}" if self.node else ""
        module = f" of {self.module}" if self.module else ""
        if self.module and not self.line:
            module = f" [module {self.module}]"  # as findings have it: "of 2" says nothing
        return f"{self.kind}{name}{line}{module}"


class Cut(Struct, frozen=True):
    """A part of a graph. ``operators`` are the names of its operators, and ``outputs`` the names of
    those whose results it returns. Its inputs are all other values that its operators read.
    ``mended`` lists the changes that are made to it."""

    operators: tuple[str, ...]
    outputs: tuple[str, ...]
    mended: tuple[Mend, ...] = ()


class Departure(Struct, frozen=True):
    """An output of a program: its SQNR in dB against the eager model in the worst sample, and
    the SQNR that is predicted from rounding errors alone. ``faithful`` is false if the gate rejects
    the output as not faithful to the model."""

    operator: str
    reached_db: float
    predicted_db: float
    faithful: bool

    @property
    def excess_db(self) -> float:
        """Return by how many dB the SQNR is below the prediction."""
        return self.predicted_db - self.reached_db

    @property
    def wrong(self) -> bool:
        """Return whether the output is not faithful, and at least LEAST_DB below the prediction."""
        return not self.faithful and self.excess_db >= LEAST_DB


class Trial(Struct, frozen=True):
    """The outputs of a part's program, in the order of the cut's ``outputs``. ``refused`` is why
    there is no program, or why it does not run; it is empty if it runs."""

    outputs: tuple[Departure, ...] = ()
    refused: str = ""

    @property
    def worst(self) -> Departure | None:
        """Return the wrong output that is the farthest below its prediction, or None."""
        return max(
            (output for output in self.outputs if output.wrong),
            key=lambda departure: departure.excess_db,
            default=None,
        )


class Row(Struct, frozen=True):
    """The SQNR in dB before and after an operator, and the loss. If ``is_range`` is true, the loss
    is not from the operator, but from quantizing its result."""

    operator: Operator
    before_db: float
    behind_db: float
    lost_db: float
    is_range: bool = False

    @property
    def added(self) -> float:
        """Return the power of the noise that an operator or a range adds, relative to the signal's
        power."""
        return float(10 ** (-self.behind_db / 10) - 10 ** (-self.before_db / 10))


class Spent(Exception):  # noqa: N818 - no error: the search ends with what it has
    """Raised when the limit of lowered programs is reached."""


@dataclass
class Laboratory:
    """Tries parts of a model, each only once, and at most ``limit`` in total."""

    try_cut: Callable[[Cut], Trial]
    limit: int
    note: Callable[[str], None] = lambda _: None
    tried: dict[Cut, Trial] = field(default_factory=dict)

    def measure(self, cut: Cut, description: str) -> Trial:
        """Try a part, or return its earlier result. ``description`` is for messages. Raises
        Spent if the limit is reached."""
        # The search asks for some parts again. Only new ones are lowered, and count against
        # --limit.
        if cut not in self.tried:
            if len(self.tried) >= self.limit:
                raise Spent(f"the limit of {count(self.limit, 'program')} (--limit) is reached")
            trial = self.tried[cut] = self.try_cut(cut)
            worst = trial.worst
            result = trial.refused[:90] if trial.refused else "right"
            if worst:
                result = f"wrong: {worst.reached_db:.1f} dB, {worst.predicted_db:.1f} dB predicted"
            size = f"{count(len(cut.operators), 'operator')}, {count(len(cut.outputs), 'output')}"
            self.note(f"  [{len(self.tried)}/{self.limit}] {description} ({size}): {result}")
        return self.tried[cut]


class Located(Struct, frozen=True, kw_only=True):
    """The results of a search, with numbers in dB from the worst sample.

    ``outputs`` are the outputs of the program, and ``program_rows`` the losses of its operators
    against the model that was lowered. ``not_compared`` results were returned by no program.
    ``first`` is the first wrong operator. ``ended`` is why the search stopped early.

    ``part`` contains the operators of the smallest part that is still wrong, and ``part_outputs``
    its outputs; if the program has no ``outputs``, the smallest part that is refused.
    ``mended_by`` is the change that makes the part right, and ``changed`` its outputs then. The
    part is also right if it returns the results of the operators ``cured_by``, and ``returned`` are
    its outputs then. ``readers`` contains the first operator that depends on
    all of them. ``sharing`` are operators outside the part that join several results and share a
    range with it.
    """

    outputs: tuple[Departure, ...] = ()
    first: Operator | None = None
    program_rows: tuple[Row, ...] = ()
    not_compared: int = 0
    part: tuple[Operator, ...] = ()
    part_outputs: tuple[Departure, ...] = ()
    cured_by: tuple[Operator, ...] = ()
    readers: tuple[Operator, ...] = ()
    mended_by: tuple[Mend, ...] = ()
    changed: tuple[Departure, ...] = ()
    returned: tuple[Departure, ...] = ()
    sharing: tuple[Operator, ...] = ()
    ended: str = ""

    @property
    def is_wrong(self) -> bool:
        """Return whether an output of the program is wrong."""
        return any(output.wrong for output in self.outputs)


@dataclass
class Search:
    """The search in one model. ``operators`` are in the graph's order. ``suspects`` are groups of
    operators that are tried first. ``proven`` are the results of those that are wrong by
    themselves. ``refused`` counts refusals in a row of additional outputs. After the search,
    ``exposed`` are the outputs of a program that returns all results, and ``smallest`` is the
    smallest part that is still wrong."""

    operators: dict[str, Operator]
    outputs: tuple[str, ...]
    laboratory: Laboratory
    suspects: Sequence[Sequence[str]] = ()
    located: Located = field(default_factory=Located, init=False)
    exposed: tuple[Departure, ...] = field(default=(), init=False)
    smallest: Cut | None = field(default=None, init=False)
    wanted_db: float = field(default=0.0, init=False)
    refused: int = field(default=0, init=False)
    proven: tuple[Departure, ...] = field(default=(), init=False)

    def run(self) -> Located:
        """Return everything that is found before the limit of programs is reached. The suspects are
        tried before the whole model, which may take minutes. If the whole model yields no program,
        the result contains the reason, and the smallest part that yields none for that reason."""
        whole_model, located = Cut(tuple(self.operators), self.outputs), Located()
        try:
            # Known faults are small parts: within seconds, the user knows whether they are wrong by
            # themselves.
            suspect = self.find_suspect()
            trial = self.laboratory.measure(whole_model, "the whole model")
            if trial.refused:
                return self.shrink_refusal(whole_model, trial.refused)
            located = Located(outputs=trial.outputs)
            compared = self.choose_exposed(whole_model)
            self.exposed = tuple(self.expose(whole_model, compared))
            departures = [*self.proven, *self.exposed]
            first = self.find_first(departures)
            located = structs.replace(
                located,
                first=first,
                program_rows=tuple(rank_departures(self.operators, departures)),
                not_compared=len({*compared} - {departure.operator for departure in self.exposed}),
            )
            if trial.worst is None and first is None:
                return located
            return self.shrink(located, suspect or self.choose_start(whole_model, trial, first))
        except Spent as spent:
            return structs.replace(located, ended=str(spent))

    def shrink_refusal(self, whole_model: Cut, reason: str) -> Located:
        """Return the smallest part that is refused, or that crashes, for the same ``reason`` as the
        whole model; no part if no smaller one is."""
        self.located = Located(ended=f"the model has no program that runs: {reason}")
        if EXCEEDED.search(reason):
            return self.end_early("its parts are not tried, because each may take as long")
        if OF_ALL.search(reason):
            return self.located

        def is_refused(operators: Sequence[str]) -> bool:
            cut = self.close(operators, whole_model.outputs)
            refused = self.laboratory.measure(cut, "a refused part").refused
            if name_refusal(refused) != name_refusal(reason):
                return False
            self.smallest = cut
            part = tuple(self.operators[name] for name in cut.operators)
            self.located = structs.replace(self.located, part=part)
            return True

        try:
            suspect = next(filter(is_refused, self.suspects), None)
            minimize(suspect or whole_model.operators, is_refused)
        except Spent as spent:
            return self.end_early(str(spent))
        return self.located if self.smallest else self.end_early("no smaller part is refused so")

    def end_early(self, why: str) -> Located:
        """Return what was found, and why not more was."""
        return structs.replace(self.located, ended=f"{self.located.ended}; {why}")

    def find_suspect(self) -> Cut | None:
        """Return the first part of suspects that is wrong by itself, or None."""
        for part in (self.close(names, ()) for names in self.suspects):
            trial = self.laboratory.measure(part, "a suspected part")
            if trial.worst:
                self.proven = trial.outputs
                return part
        return None

    def choose_exposed(self, cut: Cut) -> list[str]:
        """Return the operators of a part that compute and whose results it does not already
        return."""
        return [
            name
            for name in cut.operators
            if self.operators[name].computes and name not in cut.outputs
        ]

    def expose(self, cut: Cut, names: Sequence[str]) -> list[Departure]:
        """Return how far a part's outputs and the results of these operators are from the model. If
        these results are too large for one program, or if QNN refuses that program, try two halves.
        After MOST_REFUSED refusals in a row, leave out the rest. Each program runs the whole model,
        so after a refusal, nothing behind a wrong result is tried, and nothing at all if a suspect
        is proven."""
        is_refused = False
        size = sum(self.operators[name].size_bytes for name in names)
        if size <= MOST_BYTES and self.refused < MOST_REFUSED:
            exposing = Cut(cut.operators, (*cut.outputs, *names))
            trial = self.laboratory.measure(exposing, "all results exposed")
            is_refused = bool(trial.refused)
            self.refused = self.refused + 1 if is_refused else 0
            if not is_refused:
                return list(trial.outputs)
        if len(names) < 2 or (is_refused and self.proven):
            return []
        half = len(names) // 2
        halves = self.expose(cut, names[:half])
        first = self.find_first(halves) if is_refused else None
        order = [*self.operators]
        if first is None or order.index(first.name) >= order.index(names[half]):
            halves += self.expose(cut, names[half:])
        return list({half.operator: half for half in halves}.values())

    def find_first(self, exposed: Iterable[Departure]) -> Operator | None:
        """Return the first operator in the graph's order whose result is wrong; None if there is
        none. If an operator occurs twice, its last result counts."""
        is_wrong = {departure.operator: departure.wrong for departure in exposed}
        return next(
            (operator for name, operator in self.operators.items() if is_wrong.get(name)), None
        )

    def choose_start(self, whole_model: Cut, trial: Trial, first: Operator | None) -> Cut:
        """Return the part to shrink: everything that leads to the first wrong operator or, if that
        is right by itself, the whole model. If the model is wrong only when it returns all results,
        the part returns them, too."""
        if first:
            cone = Cut(self.order(self.find_cone([first.name])), (first.name,))
            if self.laboratory.measure(cone, f"up to {first}").worst:
                return cone
        if trial.worst is None:  # wrong only if all results are returned
            return Cut(
                whole_model.operators, (*whole_model.outputs, *self.choose_exposed(whole_model))
            )
        return whole_model

    def find_cone(self, names: Iterable[str], allowed: Collection[str] | None = None) -> set[str]:
        """Return ``names`` and all operators that lead to them. If ``allowed`` is given, leave out
        operators that are not in it."""
        cone, left = set[str](), list(names)
        while left:
            name = left.pop()
            if name not in cone and (allowed is None or name in allowed):
                cone.add(name)
                left += self.operators[name].inputs
        return cone

    def order(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the names in the order of the operators."""
        return tuple(name for name in self.operators if name in names)

    def shrink(self, located: Located, start: Cut) -> Located:
        """Return ``located`` with the smallest part of ``start`` that is still wrong, and with the
        changes that make that part right. If ``start`` is right, return ``located`` unchanged."""
        self.located = located
        try:
            worst = self.laboratory.measure(start, "the part to shrink").worst
            if worst is None:
                return located
            # A part that keeps less has another fault: of 40 dB that two operators lose together,
            # one alone may lose 15.
            self.wanted_db = KEPT_SHARE * worst.excess_db
            self.is_wrong(start, "the part to shrink")
            minimize(
                start.outputs,
                lambda outputs: self.is_wrong(self.trim(start.operators, outputs), "fewer outputs"),
            )
            smallest, operators = self.smallest or start, tuple[str, ...]()

            def holds(left: Sequence[str]) -> bool:
                # If other operators read the result of a removed one, it becomes an input.
                return self.is_wrong(self.close(left, smallest.outputs), "fewer operators")

            while operators != smallest.operators:
                operators = smallest.operators
                minimize(operators, holds)
                smallest = self.smallest or start
            self.located = structs.replace(self.located, sharing=self.find_sharing())
            self.mend(smallest)
            return self.cure(smallest)
        except Spent as spent:
            return structs.replace(self.located, ended=str(spent))

    def is_wrong(self, cut: Cut, description: str) -> bool:
        """Try a part, and return whether it is wrong by at least ``self.wanted_db``. If it is,
        record it as the smallest part."""
        trial = self.laboratory.measure(cut, description)
        wrong = bool(trial.worst and trial.worst.excess_db >= self.wanted_db)
        if wrong:
            self.smallest = cut
            self.located = structs.replace(
                self.located,
                part=tuple(self.operators[name] for name in cut.operators),
                part_outputs=trial.outputs,
            )
        return wrong

    def trim(self, operators: Collection[str], outputs: Sequence[str]) -> Cut:
        """Return the part that returns ``outputs``, with those ``operators`` that lead to
        them."""
        return Cut(self.order(self.find_cone(outputs, operators)), tuple(outputs))

    def close(self, operators: Collection[str], outputs: Sequence[str]) -> Cut:
        """Return the part with the ``operators``. Its outputs are the operators that are
        in ``outputs`` or whose results are not read by another kept operator."""
        read = {source for name in operators for source in self.operators[name].inputs}
        last = [name for name in operators if name in outputs or name not in read]
        return Cut(self.order(operators), self.order(last))

    def find_sharing(self) -> tuple[Operator, ...]:
        """Return operators outside the smallest part that join several results and have the same
        range as one of its operators, because the quantizer gave both the same range."""
        part_names = {operator.name for operator in self.located.part}
        ranges = {operator.range for operator in self.located.part if operator.range}
        return tuple(
            operator
            for name, operator in self.operators.items()
            if name not in part_names and operator.range in ranges and operator.kind in JOINS
        )

    def mend(self, cut: Cut) -> None:
        """Record the first change that makes the smallest wrong part right, if there is one."""
        part = self.located.part
        possible = {
            Mend.BIASES: any(operator.bias_off > LEAST_OFF for operator in part),
            Mend.RANGES: any(operator.clipped > 0 for operator in part),
        }
        for mend in [mend_kind for mend_kind, is_possible in possible.items() if is_possible]:
            mended = Cut(cut.operators, cut.outputs, (mend,))
            trial = self.laboratory.measure(mended, f"other {mend.value}")
            if not trial.refused and trial.worst is None:
                self.located = structs.replace(
                    self.located, mended_by=(mend,), changed=trial.outputs
                )
                return

    def cure(self, cut: Cut) -> Located:
        """Return the results of the search. ``cured_by`` is a minimal set of operators: if the
        smallest part also returns their results, it is right. It is empty if the part stays wrong
        even when it returns all results."""
        located = self.located

        def cures(names: Sequence[str]) -> bool:
            exposing = Cut(cut.operators, (*cut.outputs, *names))
            trial = self.laboratory.measure(exposing, "exposing more")
            part_outputs = trial.outputs[: len(cut.outputs)]
            if trial.refused or any(departure.wrong for departure in part_outputs):
                return False
            returned[:] = part_outputs
            return True

        returned: list[Departure] = []
        names = [name for name in cut.operators if name not in cut.outputs]
        if not cures(names):
            return located
        fewest = minimize(names, cures)
        readers = [
            self.operators[name]
            for name in cut.operators
            if set(fewest) <= self.find_cone([name]) - {name}
        ]
        return structs.replace(
            located,
            cured_by=tuple(self.operators[name] for name in fewest),
            readers=tuple(readers[:1]),
            returned=tuple(returned),
        )


def rank_departures(operators: dict[str, Operator], exposed: Iterable[Departure]) -> list[Row]:
    """Return how many dB each operator loses beyond what its inputs lost and what is predicted,
    worst first."""
    departures = {departure.operator: departure for departure in exposed}
    reached: dict[str, float] = {}  # by how much an operator's result is worse than predicted
    rows = []
    for name, operator in operators.items():
        before = max((reached[source] for source in operator.inputs), default=0.0)
        exposed_result = departures.get(name)
        reached[name] = max(exposed_result.excess_db, 0.0) if exposed_result else before
        if exposed_result:
            wanted_db = exposed_result.predicted_db - before
            rows.append(
                Row(
                    operator,
                    wanted_db,
                    exposed_result.reached_db,
                    exposed_result.excess_db - before,
                )
            )
    return sorted(rows, key=lambda row: -row.lost_db)


def minimize(items: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return a minimal subset of ``items`` for which ``holds`` is true: no item can be removed
    (delta debugging, Zeller and Hildebrandt 2002)."""
    left, size = list(items), max(1, len(items) // 2)
    while True:
        start, removed = 0, False
        while start < len(left):
            shorter = left[:start] + left[start + size :]
            if shorter and holds(shorter):
                left, removed = shorter, True
            else:
                start += size
        if not removed and size == 1:
            return left
        # Halved after each round, also after one that removed something: a search then lowers about
        # a seventh fewer programs.
        size = max(1, size // 2)
