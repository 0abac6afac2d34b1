"""The search for rewrites that make a case green. It asks for surveys and for verdicts, and does no
I/O itself, so that the cases of a run are judged at the same time and a test can answer."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, cast

from msgspec import Struct

from ci.facts import finding
from ci.facts.kinds import ELEMENTS
from ci.judging.verdict import OF_MODEL
from ci.mend.table import Rewrite
from ci.mend.trials import Attempt
from ci.models.lowering_options import Observer, Part
from ci.report.schema import Case, Status

LEAST_GAIN_DB = 1.0
CHANCE_DB = 3.0  # by which the worst of several parts differs by chance
SHOWN_PARTS = 3


class Recipe(Struct, frozen=True, kw_only=True):
    """What is done to a model: rewrites, in this order, then another ``observer`` and other schemes
    for parts of it, or ``scheme`` for all of it."""

    rewrites: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    scheme: str = ""
    observer: Observer = ""

    def __str__(self) -> str:
        parts = list(map(str, self.parts))
        observer = f"calibration by {self.observer}" if self.observer else ""
        if len(parts) > SHOWN_PARTS:
            schemes = " and ".join({part.scheme.value for part in self.parts})
            parts = [f"{len(parts)} nodes in {schemes}"]
        words = (*self.rewrites, observer, *parts, self.scheme)
        return ", ".join(filter(None, words)) or "unchanged"


@dataclass(frozen=True)
class Survey:
    """Asks what each of the recipes does to the model's float32 outputs. The answer is a list of
    Attempt, one per recipe."""

    recipes: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Judge:
    """Asks for the verdict on a recipe. The answer is a Case."""

    recipe: Recipe


@dataclass(frozen=True)
class Mix:
    """Asks for mixtures of the model with rewrites: of operators that QNN computes wrongly, with
    ``faulty``, or of those that add most noise with the ``observer``. The answer is Mixtures: the
    parts of each, the cheapest one first."""

    rewrites: tuple[str, ...]
    faulty: bool = False
    observer: Observer = ""


Question: TypeAlias = Survey | Judge | Mix
Mixtures: TypeAlias = tuple[tuple[Part, ...], ...]
# None starts a search.
Answer: TypeAlias = "list[Attempt] | Mixtures | Case | None"
# What precision may cure: a model that is quantized badly, or whose outputs prove nothing. Of the
# others, another scheme cures none that are about the model itself.
Asks = finding.Question
OF_PRECISION = (Asks.QUANTIZED, Asks.TASK, Asks.PROOF)
OF_FAULTS = (Asks.FAITHFUL, Asks.BUDGET, Asks.LOWERED)
OF_OUTPUTS = (Asks.FAITHFUL, Asks.QUANTIZED, Asks.TASK)
OF_SCHEME = (*OF_PRECISION, *OF_FAULTS, Asks.RUN)


@dataclass(frozen=True)
class Step:
    """A recipe that was judged. ``is_kept`` is true if it is the best one so far."""

    recipe: Recipe
    case: Case
    is_kept: bool


@dataclass
class Search:
    """The search for one case. ``first`` is the verdict on the unchanged model. ``rows`` are the
    rewrites for the case's lane and scheme. Unless ``approximate`` is true, rewrites that change
    the function are not tried. ``rewrites_last`` is true if rewrites are tried only if no mixture
    helps: those of a quantized file have what they change computed in float, as mixtures do with
    less. ``faults`` is true if operators that QNN computes wrongly may have
    another scheme, and ``mixes`` if others may have a finer one. ``observers`` are tried if the
    model is quantized badly.
    ``schemes`` are tried for the whole model at last, in this order; one of them passes only if its
    SQNR is at least ``floor_db``, the limit of the case's own scheme, and that of the unchanged
    model.

    ``steps`` are the recipes that were judged, ``attempts`` what they do to the float32 model, and
    ``best`` is the best recipe. ``refused`` lists rewrites that were not tried, and why.
    """

    first: Case
    rows: Sequence[Rewrite]
    approximate: bool = False
    rewrites_last: bool = False
    faults: bool = False
    mixes: bool = False
    observers: Sequence[Observer] = ()
    schemes: Sequence[str] = ()
    floor_db: float = 0.0
    steps: list[Step] = field(default_factory=list, init=False)
    attempts: dict[tuple[str, ...], Attempt] = field(default_factory=dict, init=False)
    refused: dict[str, str] = field(default_factory=dict, init=False)
    best: Step = field(init=False)

    def __post_init__(self) -> None:
        self.best = Step(Recipe(), self.first, is_kept=True)

    @property
    def is_green(self) -> bool:
        """Whether the best recipe passes."""
        return self.best.case.judgement.status is Status.PASSED

    def run(self) -> Generator[Question, Answer, None]:
        """Search, and leave the result in ``best``: rewrites, then another calibration, then a
        higher precision for parts of the model, then another scheme. What experiments showed to
        cure the case is tried first."""
        yield from self.apply_cure()
        if not self.rewrites_last:
            yield from self.rewrite()
        rewrites = self.best.recipe.rewrites
        for observer in self.observers:
            if self.is_about(OF_PRECISION):
                yield from self.judge(Recipe(rewrites=rewrites, observer=observer))
        yield from self.mix()
        if self.rewrites_last:
            yield from self.rewrite()
        for scheme in self.schemes:
            if self.is_about(OF_SCHEME):
                yield from self.judge(Recipe(rewrites=self.best.recipe.rewrites, scheme=scheme))

    def mix(self) -> Generator[Question, Answer, None]:
        """Try mixtures until one passes."""
        for mix in self.list_mixes():
            if self.is_about(OF_FAULTS if mix.faulty else OF_PRECISION):
                for parts in cast(Mixtures, (yield mix)):
                    recipe = Recipe(rewrites=mix.rewrites, parts=parts, observer=mix.observer)
                    yield from self.judge(recipe, must_pass=mix.faulty)
                    if self.is_green:
                        return

    def list_mixes(self) -> list[Mix]:
        """Return the mixtures to ask for: of operators that QNN computes wrongly, with the best
        rewrites and without any, then of those that add most noise."""
        best = self.best.recipe
        mixes = []
        if self.faults:
            mixes += [Mix(names, faulty=True) for names in dict.fromkeys((best.rewrites, ()))]
        if self.mixes:
            mixes.append(Mix(best.rewrites, observer=best.observer))
        return mixes

    def is_about(self, questions: Sequence[Asks]) -> bool:
        """Return whether the best case is red for a finding on one of the questions, and not
        because the float32 model or its metric is wrong."""
        first = next(iter(self.best.case.judgement.findings), None)
        if first is None or self.is_green:
            return False
        return first.question in questions and first.id not in OF_MODEL

    def apply_cure(self) -> Generator[Question, Answer, None]:
        """Try the rewrites that experiments showed to cure the first finding."""
        first = next(iter(self.first.judgement.findings), None)
        remedies = first.remedies if first else ()
        names = next((remedy.rewrites for remedy in remedies if remedy.rewrites), ())
        allowed = {row.name for row in self.rows if self.approximate or not row.approximate}
        if not names or not allowed.issuperset(names):
            return
        (attempt,) = yield from self.ask(Survey((names,)))
        if attempt.applies and not attempt.fault:
            yield from self.judge(Recipe(rewrites=names))

    def rewrite(self) -> Generator[Question, Answer, None]:
        """Try rewrites. They are added one by one, as long as each makes the verdict better. If
        none does, all are tried together, and those that are not needed are dropped again."""
        is_cured = self.is_green
        if is_cured:
            return
        applicable = yield from self.survey(self.best.recipe.rewrites)
        while applicable and not self.is_green:
            before = self.best
            for name in applicable:
                yield from self.judge(Recipe(rewrites=(*before.recipe.rewrites, name)))
                if self.best is not before:
                    break
            else:
                break
            if not self.is_green:
                applicable = yield from self.survey(self.best.recipe.rewrites)
        if not self.is_green and applicable:
            yield from self.combine(applicable)

    def survey(self, names: tuple[str, ...]) -> Generator[Question, Answer, list[str]]:
        """Return the rewrites that can follow ``names``, those that are known to cure the case's
        findings first. Note why others cannot."""
        rows = {row.name: row for row in self.rows if row.name not in names}
        recipes = tuple((*names, name) for name in rows)
        attempts = (yield from self.ask(Survey(recipes))) if recipes else []
        usable = []
        for attempt in attempts:
            name = attempt.names[-1]
            if not attempt.applies:
                continue
            if attempt.fault:
                self.refused[name] = attempt.fault
            elif rows[name].approximate and not self.approximate:
                self.refused[name] = "it changes the function; pass --allow-approximate to try it"
            else:
                usable.append(name)
        findings = self.best.case.judgement.findings
        return sorted(usable, key=lambda name: not rows[name].cures_any(findings))

    def ask(self, survey: Survey) -> Generator[Question, Answer, list[Attempt]]:
        """Ask for a survey, and keep its attempts."""
        attempts = cast("list[Attempt]", (yield survey))
        self.attempts |= {attempt.names: attempt for attempt in attempts}
        return attempts

    def judge(
        self, recipe: Recipe, *, must_pass: bool = False
    ) -> Generator[Question, Answer, Case]:
        """Ask for the verdict on a recipe, and keep it if it is better than the best one. With
        ``must_pass``, it is kept only if it passes, and so is another scheme for the whole model,
        which must reach the limit of the case's own scheme, too."""
        case = cast(Case, (yield Judge(recipe)))
        is_passed = case.judgement.status is Status.PASSED
        if recipe.scheme:
            # A model with 21.6 dB was once given a scheme in which it is green with 20.2 dB.
            least_db = max(self.floor_db, self.first.judgement.sqnr_db or 0.0)
            reached_db = case.judgement.sqnr_db
            is_kept = is_passed and (reached_db is None or reached_db >= least_db)
        else:
            is_kept = is_better(case, self.best.case) and (is_passed or not must_pass)
        self.steps.append(Step(recipe, case, is_kept))
        if is_kept:
            self.best = self.steps[-1]
        return case

    def combine(self, applicable: Sequence[str]) -> Generator[Question, Answer, None]:
        """Try all applicable rewrites together, and those that they make applicable. If that is
        green, drop one after the other, as long as the case stays green."""
        names = self.best.recipe.rewrites
        tried_length = len(names) + 1  # each single one has been tried
        while applicable:
            names_before = names
            for name in applicable:  # one may remove what another one changes
                (attempt,) = yield from self.ask(Survey(((*names, name),)))
                if attempt.applies and not attempt.fault:
                    names = (*names, name)
            applicable = (yield from self.survey(names)) if names != names_before else []
        if len(names) <= tried_length:
            return
        yield from self.judge(Recipe(rewrites=names))
        if not self.is_green:
            return
        for dropped in names:
            fewer = tuple(name for name in self.best.recipe.rewrites if name != dropped)
            (attempt,) = yield from self.ask(Survey((fewer,)))
            if attempt.applies and not attempt.fault:
                case = yield from self.judge(Recipe(rewrites=fewer))
                if is_better(case, self.first) and case.judgement.status is Status.PASSED:
                    self.best = self.steps[-1]  # as good with less, so it is never "better"


def is_better(case: Case, reference: Case) -> bool:
    """Return whether a verdict is better than another one: green, or with outputs, or with right
    outputs, or with fewer nodes on the CPU, or with a higher SQNR. With as many nodes on the CPU,
    one that is green or right must have gained some accuracy, too: a program of 42.7 dB once turned
    green with 42.7 dB."""
    grade, quality_db = rank(case)
    reference_grade, reference_db = rank(reference)
    if grade == reference_grade:
        return quality_db >= reference_db + LEAST_GAIN_DB
    runs_alike = (grade.has_outputs, grade.below_zero_on_cpu) == (
        reference_grade.has_outputs,
        reference_grade.below_zero_on_cpu,
    )
    if grade > reference_grade and runs_alike:
        return has_gained(case, reference)
    return grade > reference_grade


def has_gained(case: Case, reference: Case) -> bool:
    """Return whether outputs are more accurate than those of a reference: as a whole, or in the
    worst sample or channel, by the user's metric, or for a finding on single elements in the worst
    one. Without such figures, as of integers that are equal or not, the verdict decides."""
    first = next(iter(reference.judgement.findings), None)
    is_of_element = first is not None and first.id == ELEMENTS.id
    whole_figures, parts = list_accuracies(case, with_element=is_of_element)
    whole_figures_before, parts_before = list_accuracies(reference, with_element=is_of_element)
    gains = [
        (whole_figures[name] - whole_figures_before[name], LEAST_GAIN_DB)
        for name in whole_figures
        if name in whole_figures_before
    ]
    gains += [
        (parts[name] - parts_before[name], CHANCE_DB) for name in parts if name in parts_before
    ]
    return not gains or any(gain >= required_db for gain, required_db in gains)


def list_accuracies(case: Case, *, with_element: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Return how accurate the outputs of a case are as a whole, and in their worst parts, by the
    name of the figure: in dB, or in percent for shares and metrics."""
    judged = case.judgement
    whole_figures = {
        "sqnr": judged.sqnr_db,
        "sqnr against the quantized model": judged.sqnr_db_quantized,
        "equal": None if judged.equal is None else 100 * judged.equal,
        "metric": None if judged.metric is None else 100 * judged.metric,
    }
    parts: dict[str, float | None] = {}
    for number, output in enumerate(judged.outputs):
        samples = [db for db in (*output.sqnr_db, *output.sqnr_db_quantized) if db is not None]
        channels = [channel.sqnr_db for channel in output.channels if channel.sqnr_db is not None]
        parts[f"samples of {number}"] = min(samples, default=None)
        parts[f"channels of {number}"] = min(channels, default=None)
        if output.max_error and with_element:
            parts[f"element of {number}"] = -20 * math.log10(output.max_error)
    return drop_unknown(whole_figures), drop_unknown(parts)


def drop_unknown(figures: Mapping[str, float | None]) -> dict[str, float]:
    """Return the figures that are known."""
    return {name: figure for name, figure in figures.items() if figure is not None}


class Grade(NamedTuple):
    """What a verdict is worth, the most important first. ``is_right`` is whether no finding is
    about the outputs, as of a program that is red for its nodes on the CPU. ``below_zero_on_cpu``
    is the number of these nodes below zero, and 0 without outputs."""

    is_green: bool
    has_outputs: bool
    is_right: bool
    below_zero_on_cpu: int


def rank(case: Case) -> tuple[Grade, float]:
    """Return what a verdict is worth, and the SQNR in dB, or the percentage of equal elements if it
    is lower."""
    figures = (case.judgement.sqnr_db, case.judgement.equal and 100 * case.judgement.equal)
    worst = min((figure for figure in figures if figure is not None), default=None)
    has_outputs = worst is not None
    cpu_nodes = case.program.fallback_nodes or 0
    grade = Grade(
        case.judgement.status is Status.PASSED,
        has_outputs,
        has_outputs and not any(item.question in OF_OUTPUTS for item in case.judgement.findings),
        -cpu_nodes if has_outputs else 0,
    )
    return grade, worst or 0.0


def advance(search: Generator[Question, Answer, None], answer: Answer) -> Question | None:
    """Answer a search's question, and return the next one, or None if the search has ended."""
    try:
        return search.send(answer)
    except StopIteration:
        return None
