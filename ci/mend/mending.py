"""Judges the cases of a run, and searches for the recipes that make the red ones green. A rewritten
model is a case like any other: its model is a file that calls the user's factory and rewrites the
result."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from msgspec import structs

from ci.cases.pipeline import CaseRun, Setup
from ci.cases.session import run_cases
from ci.cases.spec import CaseSpec
from ci.mend.precision import FaultTrials, MixTrials
from ci.mend.search import (
    OF_SCHEME,
    Answer,
    Judge,
    Mix,
    Mixtures,
    Question,
    Recipe,
    Search,
    Survey,
    advance,
    is_better,
)
from ci.mend.source import Factory, make_source
from ci.mend.table import read_rewrites
from ci.mend.trials import Attempt, Trials
from ci.models.lowering_options import QUANTIZING, Observer
from ci.models.schemes import FINER, ONNX, Scheme
from ci.models.source_lines import find_suite_model
from ci.models.user_models import Source
from ci.report.schema import Case, Status
from ci.report.text import count
from provisioning.console.process import run_tasks
from provisioning.console.progress import Progress
from provisioning.files import write_whole

NET = "net"  # the function in a candidate's file
TIME_IS_UP = "the time is up (--minutes)"
FINISH_S = 20.0  # for the last trial of a search for mixtures
MORE_DB = 3.0  # what a mixture must gain if the SQNR is high enough, but not for the task
# Schemes for operators that QNN computes wrongly.
AROUND = {
    Scheme.A8W8: (Scheme.A16W8,),
    Scheme.A16W8: (Scheme.A8W8, Scheme.A16W16),
    Scheme.A16W16: (Scheme.A8W8, Scheme.A16W8),
    Scheme.A16W4: (Scheme.A8W8, Scheme.A16W8),
    Scheme.U8: (Scheme.U16A8W,),
    Scheme.U8_CHANNEL: (Scheme.U16A8W_CHANNEL,),
    Scheme.U16A8W: (Scheme.U8,),
    Scheme.U16A8W_CHANNEL: (Scheme.U8_CHANNEL,),
}
# How ranges may follow from calibration, for PyTorch models and for .onnx files.
OBSERVERS: tuple[tuple[Observer, ...], ...] = (
    ("histogram", "moving_average"),
    ("percentile", "moving_average"),
)
# Schemes for a whole model, the cheapest first, if nothing else makes it green.
OTHERS = {
    Scheme.A8W4: (Scheme.A8W8, Scheme.A16W8, Scheme.FP16),
    Scheme.A8W8: (Scheme.A16W8, Scheme.FP16),
    Scheme.A16W4: (Scheme.A16W8, Scheme.FP16),
    Scheme.A16W8: (Scheme.FP16, Scheme.A16W16),
    Scheme.FP16: (Scheme.A16W8, Scheme.U16A8W, Scheme.A16W16, Scheme.U16A16W),
    Scheme.U8: (Scheme.U8_CHANNEL, Scheme.U16A8W, Scheme.FP16),
    Scheme.U8_CHANNEL: (Scheme.U16A8W_CHANNEL, Scheme.FP16),
    Scheme.U16A4W: (Scheme.U16A8W, Scheme.FP16),
    Scheme.U16A8W: (Scheme.U16A8W_CHANNEL, Scheme.FP16, Scheme.U16A16W),
    Scheme.U16A8W_CHANNEL: (Scheme.FP16, Scheme.U16A16W),
}


@dataclass
class Mended:
    """A case and what was found for it. ``recipe`` is what the user gets, and ``case`` its verdict.
    ``ended`` is why the search ended early, or ""."""

    spec: CaseSpec
    before: Case
    search: Search | None = None
    recipe: Recipe = field(default_factory=Recipe)
    case: Case = field(init=False)
    ended: str = ""

    def __post_init__(self) -> None:
        self.case = self.before

    @property
    def is_green(self) -> bool:
        """Whether the case passes, or is refused as the policy expects."""
        return self.case.status is not Status.FAILED

    def adopt(self, other: Mended, scheme: str) -> None:
        """Take over the recipe and the verdict of another case, in another ``scheme`` or ""."""
        self.recipe = structs.replace(other.recipe, scheme=scheme)
        self.case = other.case
        if self.search:
            self.search.attempts[self.recipe.rewrites] = other.attempt

    @property
    def attempt(self) -> Attempt:
        """Return what the recipe does to the float32 model."""
        names = self.recipe.rewrites
        known = self.search.attempts if self.search else {}
        return known.get(names, Attempt(names=names))


@dataclass
class Mending:
    """Mends cases until ``deadline``, a time of time.monotonic. ``approximate`` allows rewrites
    that change the function."""

    setup: Setup
    progress: Progress
    deadline: float
    approximate: bool = False
    attempts: dict[tuple[Source, str, tuple[str, ...]], Attempt] = field(default_factory=dict)
    verdicts: dict[tuple[CaseSpec, Recipe], Case] = field(default_factory=dict)
    rounds: int = 0

    def run(self, specs: Sequence[CaseSpec]) -> list[Mended]:
        """Judge the cases, search recipes for the red ones, and choose the same recipe for all
        schemes of a model if that makes none of them red."""
        self.progress.step(f"  judge {count(len(specs), 'case')} as they are")
        found = [Mended(spec, case) for spec, case in zip(specs, self.judge(specs), strict=True)]
        red = [mended for mended in found if mended.before.status is Status.FAILED]
        for one in red:
            one.search = self.start(one)
        self.search_all(red)
        for alike in group_models(found):
            self.unify(alike)
            self.fall_back(alike)
            self.join_schemes(alike)
        return found

    def start(self, one: Mended) -> Search:
        """Return the search for a red case. A case whose entry has its own quantizing options keeps
        its schemes."""
        scheme, policy = one.spec.scheme.base, self.setup.options.policy
        table = read_rewrites("onnx" if one.spec.is_file else "torch")
        rows = [row for row in table if row.helps_in(scheme)]
        limits = policy.limits_of(one.spec.model, one.spec.scheme)
        entry = policy.models.get(one.spec.model)
        chosen = {name for name, _ in one.spec.source.choices.chosen()}
        is_plain = chosen.isdisjoint(QUANTIZING) and not (entry and entry.mixtures)
        others = [other for other in OTHERS.get(scheme, ()) if other in policy.schemes]
        return Search(
            one.before,
            rows,
            self.approximate,
            faults=is_plain and scheme in AROUND,
            mixes=is_plain and can_mix(scheme),
            observers=OBSERVERS[one.spec.is_file] if is_plain and can_observe(scheme) else (),
            schemes=[other.value for other in others if is_plain],
            floor_db=limits.min_sqnr_db or 0.0,
        )

    @property
    def left_s(self) -> float:
        """Return for how many seconds a job may run."""
        return max(min(self.deadline - time.monotonic(), self.setup.options.timeout_s), 1.0)

    def judge(self, specs: Sequence[CaseSpec], timeout_s: float | None = None) -> list[Case]:
        """Return the verdicts on cases, which differ in model, scheme or SoC. With ``timeout_s``,
        each step of a case ends after this time, instead of that of the options."""
        self.rounds += 1
        options = replace(self.setup.options, timeout_s=timeout_s or self.setup.options.timeout_s)
        work = self.setup.work / f"round-{self.rounds}"
        setup = replace(self.setup, options=options, work=work)
        runs = [CaseRun(spec, setup) for spec in specs]
        results = run_cases(runs, setup.pool, setup.options.jobs, self.progress)
        return [result.case for result in results]

    def search_all(self, red: Sequence[Mended]) -> None:
        """Run the searches side by side: answer the questions of all of them, then take the
        next."""
        running = [(mended, mended.search.run()) for mended in red if mended.search]
        asked = [(one, search, advance(search, None)) for one, search in running]
        while waiting := [(one, search, each) for one, search, each in asked if each]:
            if time.monotonic() > self.deadline:
                for one, *_ in waiting:
                    one.ended = TIME_IS_UP
                break
            answers = self.answer([(one, question) for one, _, question in waiting])
            asked = [
                (one, search, None if answer is None else advance(search, answer))
                for (one, search, _), answer in zip(waiting, answers, strict=True)
            ]
        for one in red:
            if one.search:
                one.recipe, one.case = one.search.best.recipe, one.search.best.case

    def answer(self, asked: Sequence[tuple[Mended, Question]]) -> list[Answer]:
        """Return the answers to questions. The answer is None if the model cannot be surveyed,
        which ends the search of its case."""
        wanted: dict[CaseSpec, list[tuple[str, ...]]] = {}
        judging = []
        for one, question in asked:
            if isinstance(question, Survey):
                wanted.setdefault(one.spec, []).extend(question.recipes)
            elif isinstance(question, Judge):
                judging.append((one.spec, question.recipe))
                if judging[-1] not in self.verdicts:
                    self.progress.step(f"  {one.before.name}: try {question.recipe}")
        failures = self.try_all(wanted)
        self.judge_recipes(judging)
        mixing = [(one, question) for one, question in asked if isinstance(question, Mix)]
        tasks = [partial(self.find_mixtures, *pair) for pair in mixing]
        mixed = iter(run_tasks(tasks, self.setup.options.jobs, abort=self.setup.pool.close))
        answers: list[Answer] = []
        for one, question in asked:
            if isinstance(question, Mix):
                answers.append(next(mixed))
            elif isinstance(question, Judge):
                answers.append(self.verdicts[one.spec, question.recipe])
            elif failure := failures.get(one.spec.reference):
                is_late = time.monotonic() > self.deadline
                one.ended = TIME_IS_UP if is_late else f"no rewrite can be tried: {failure}"
                answers.append(None)
            else:
                keys = [self.name(one.spec, names) for names in question.recipes]
                answers.append([self.attempts[key] for key in keys])
        return answers

    def name(self, spec: CaseSpec, names: tuple[str, ...]) -> tuple[Source, str, tuple[str, ...]]:
        return spec.source, spec.model, names

    def try_all(self, wanted: Mapping[CaseSpec, Sequence[tuple[str, ...]]]) -> dict[str, str]:
        """Apply recipes to models, one job per model. Return why it failed, by model."""
        jobs: dict[tuple[str, Source], dict[tuple[str, ...], None]] = {}
        names: dict[tuple[str, Source], str] = {}
        for spec, recipes in wanted.items():
            for recipe in recipes:
                if self.name(spec, recipe) not in self.attempts:
                    jobs.setdefault((spec.reference, spec.source), {})[recipe] = None
            names[spec.reference, spec.source] = spec.model
        self.setup.work.mkdir(parents=True, exist_ok=True)
        tasks = [
            partial(
                self.setup.pool.run,
                Trials(*key, tuple(recipes)),
                self.setup.work / f"survey-{self.rounds}-{number}.log",
                self.left_s,
                fresh=True,
            )
            for number, (key, recipes) in enumerate(jobs.items())
        ]
        failures = {}
        ended = run_tasks(tasks, self.setup.options.jobs, abort=self.setup.pool.close)
        for (reference, source), done in zip(jobs, ended, strict=True):
            if done.failure:
                failures[reference] = done.failure
                continue
            for attempt in done.result:
                self.attempts[source, names[reference, source], attempt.names] = attempt
        return failures

    def find_mixtures(self, one: Mended, question: Mix) -> Mixtures:
        """Return the parts of mixtures for a case, the cheapest first. There are none if the search
        for them fails."""
        best = one.search.best.case if one.search else one.before
        limit_s = self.left_s
        job: FaultTrials | MixTrials
        if question.faulty:
            job = self.plan_faults(one.spec, question.rewrites, best)
        else:
            job = self.plan_mixes(one.spec, question.rewrites, best, question.observer)
        log = self.setup.work / f"mix-{self.rounds}-{one.spec.slug}.log"
        ended = self.setup.pool.run(job, log, limit_s, fresh=True)
        return Mixtures(() if ended.failure else tuple(ended.result))

    def plan_faults(self, spec: CaseSpec, rewrites: tuple[str, ...], best: Case) -> FaultTrials:
        """Return the search for operators that QNN computes wrongly."""
        path = Path(self.prepare(spec, Recipe(rewrites=rewrites)).reference)
        return FaultTrials(
            spec.reference,
            spec.source,
            rewrites,
            spec.scheme.base,
            AROUND[spec.scheme.base],
            tuple(f"{place.file}:{place.line}" for place in best.findings[0].places),
            path if spec.is_file else None,
        )

    def plan_mixes(
        self, spec: CaseSpec, rewrites: tuple[str, ...], best: Case, observer: Observer
    ) -> MixTrials:
        """Return the search for operators that add most noise."""
        scheme = spec.scheme.base
        limits = self.setup.options.policy.limits_of(spec.model, spec.scheme)
        target_db, reached_db = limits.min_sqnr_db or 0.0, best.sqnr_db or 0.0
        if reached_db >= target_db:
            target_db = reached_db + MORE_DB
        self.progress.step(f"  {best.name}: find operators for {FINER[scheme].value}")
        return MixTrials(
            spec.reference,
            spec.source,
            rewrites,
            scheme,
            FINER[scheme],
            spec.soc,
            target_db,
            max(self.left_s - FINISH_S, 0),
            observer,
        )

    def judge_recipes(self, pairs: Sequence[tuple[CaseSpec, Recipe]]) -> list[Case]:
        """Return the verdicts on cases with recipes. None is judged twice."""
        fresh = [pair for pair in pairs if pair not in self.verdicts and pair[1] != Recipe()]
        prepared = [self.prepare(*pair) for pair in fresh]
        cases = self.judge(prepared, self.left_s) if fresh else []
        self.verdicts |= dict(zip(fresh, cases, strict=True))
        return [self.verdicts[pair] for pair in pairs]

    def prepare(self, spec: CaseSpec, recipe: Recipe) -> CaseSpec:
        """Return a case with a recipe. Its model is a file in the scratch directory."""
        choices = spec.source.choices
        source = structs.replace(
            spec.source,
            choices=structs.replace(
                choices,
                parts=(*recipe.parts, *choices.parts),
                observer=recipe.observer or choices.observer,
            ),
        )
        scheme = Scheme(recipe.scheme) if recipe.scheme else spec.scheme
        if recipe.rewrites:
            directory = self.setup.work / "nets"
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / f"{spec.slug}-{'-'.join(recipe.rewrites)}{ONNX.suffix}"
            if spec.is_file:
                write_rewritten(spec, recipe, path)
                source = structs.replace(source, reference=str(path))
                return replace(spec, source=source, scheme=scheme)
            path = path.with_suffix(".py")
            factory = Factory(NET, find_reference(spec), recipe.rewrites)
            write_whole(path, make_source(directory, [factory]))
            source = structs.replace(source, reference=f"{path}:{NET}")
        return replace(spec, source=source, scheme=scheme)

    def unify(self, alike: Sequence[Mended]) -> None:
        """Give all schemes of a model the same recipe, if none of the green cases becomes red or
        worse."""
        green = [mended for mended in alike if mended.is_green]
        own = list(dict.fromkeys(mended.recipe for mended in green))
        if len(own) < 2 or any(recipe.parts or recipe.scheme or recipe.observer for recipe in own):
            return
        union = tuple(dict.fromkeys(name for recipe in own for name in recipe.rewrites))
        tried = sorted((one for one in own if one.rewrites), key=lambda one: -len(one.rewrites))
        for recipe in dict.fromkeys([*tried, Recipe(rewrites=union)]):
            self.try_all({mended.spec: [recipe.rewrites] for mended in green})
            attempts = [
                self.attempts.get(self.name(mended.spec, recipe.rewrites)) for mended in green
            ]
            usable = all(attempt and attempt.applies and not attempt.fault for attempt in attempts)
            if not usable or time.monotonic() > self.deadline:
                continue
            pairs = [(mended.spec, recipe) for mended in green]
            self.verdicts |= {(mended.spec, mended.recipe): mended.case for mended in green}
            self.progress.step(f"  {green[0].before.model}: try {recipe} in all schemes")
            cases = self.judge_recipes(pairs)
            judged = zip(green, cases, strict=True)
            if not any(
                case.status is Status.FAILED or is_better(one.case, case) for one, case in judged
            ):
                for one, case, attempt in zip(green, cases, attempts, strict=True):
                    one.recipe, one.case = recipe, case
                    if one.search and attempt:
                        one.search.attempts[recipe.rewrites] = attempt
                return

    def fall_back(self, alike: Sequence[Mended]) -> None:
        """Give a case for which nothing was found the cheapest other scheme in which the model is
        green."""
        for mended in alike:
            if mended.search and not mended.is_green and mended.search.is_about(OF_SCHEME):
                good = {
                    other.spec.scheme.value: other
                    for other in alike
                    if other.spec.soc == mended.spec.soc and self.is_good(other, mended)
                }
                scheme = next(filter(good.__contains__, mended.search.schemes), "")
                if scheme and not good[scheme].recipe.scheme:
                    mended.adopt(good[scheme], scheme)

    def join_schemes(self, alike: Sequence[Mended]) -> None:
        """Give a case that fell back to another scheme what was found for the model's case in that
        scheme, or the other way round if that case is red or below the limit of the first."""
        for mended in alike:
            for other in alike:
                is_same = (
                    other.spec.soc == mended.spec.soc and name_scheme(other) == mended.recipe.scheme
                )
                if other is not mended and is_same:
                    pair = (other, mended) if self.is_good(other, mended) else (mended, other)
                    pair[1].adopt(pair[0], pair[1].recipe.scheme)

    def is_good(self, other: Mended, one: Mended) -> bool:
        """Return whether a case is green, also by the limit of the scheme of ``one``."""
        limits = self.setup.options.policy.limits_of(one.spec.model, one.spec.scheme)
        reached_db = math.inf if other.case.sqnr_db is None else other.case.sqnr_db
        return other.is_green and reached_db >= (limits.min_sqnr_db or 0.0)


def name_scheme(one: Mended) -> str:
    """Return the scheme in which the policy judges a case."""
    return one.recipe.scheme or one.spec.scheme.value


def write_rewritten(spec: CaseSpec, recipe: Recipe, target: Path) -> None:
    """Write the rewritten model of a case with an .onnx file to ``target``, see OnnxFile.write."""
    from ci.mend.onnx_files import OnnxFile  # torch models do not need its onnxruntime

    OnnxFile(Path(spec.reference), spec.source.shapes).write(recipe.rewrites, target)


def can_observe(scheme: Scheme) -> bool:
    """Return whether other observers may help: the range decides only with 8 bits."""
    return scheme.recipe.activation_bits == 8 and not scheme.recipe.training_steps


def can_mix(scheme: Scheme) -> bool:
    """Return whether the precision of parts is searched for: for schemes of ExecuTorch that are
    neither trained nor in blocks."""
    recipe = scheme.recipe
    return scheme in FINER and bool(recipe.dtype) and not (recipe.training_steps or recipe.block)


def group_models(found: Sequence[Mended]) -> list[list[Mended]]:
    """Return the cases of each model that was mended."""
    groups: dict[tuple[str, Source], list[Mended]] = {}
    for mended in found:
        groups.setdefault((mended.spec.model, mended.spec.source), []).append(mended)
    return [group for group in groups.values() if any(each.recipe != Recipe() for each in group)]


def find_reference(spec: CaseSpec) -> str:
    """Return the ``/absolute/file.py:factory`` of a case's model, also for one of the suite."""
    return find_suite_model(spec.reference) if spec.is_ours else spec.reference
