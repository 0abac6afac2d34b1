"""Judges the cases of a run, and searches for the recipes that make the red ones green. A rewritten
model is a case like any other: its model is a file that calls the user's factory and rewrites the
result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec import structs

from ci.cases.limited import run_limited
from ci.cases.pipeline import CaseRun, Setup
from ci.cases.session import run_cases
from ci.cases.spec import CaseSpec
from ci.facts.kinds import ON_CPU
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
from ci.models.schemes import ONNX, Scheme, find_alternatives
from ci.models.source_lines import find_suite_model
from ci.models.user_models import Source
from ci.report.schema import Case, Status
from ci.report.text import count
from provisioning.console.process import run_tasks
from provisioning.console.progress import Progress
from provisioning.files import write_whole

R = TypeVar("R")
NET = "net"  # the function in a candidate's file
TIME_IS_UP = "the time is up (--minutes)"
FINISH_S = 20.0  # for the last trial of a search for mixtures
MORE_DB = 3.0  # what a mixture must gain if the SQNR is high enough, but not for the task
# How ranges may follow from calibration, for PyTorch models and for .onnx files.
OBSERVERS: tuple[tuple[Observer, ...], ...] = (
    ("histogram", "moving_average"),
    ("percentile", "moving_average"),
)


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
    attempts: dict[tuple[str, Source, tuple[str, ...]], Attempt] = field(default_factory=dict)
    verdicts: dict[tuple[CaseSpec, Recipe], Case] = field(default_factory=dict)
    rounds: int = 0

    def run(self, specs: Sequence[CaseSpec]) -> list[Mended]:
        """Judge the cases, search recipes for the red ones, and choose the same recipe for all
        schemes of a model if that makes none of them red."""
        self.progress.step(f"  judge {count(len(specs), 'case')} as they are")
        found = [Mended(spec, case) for spec, case in zip(specs, self.judge(specs), strict=True)]
        red = [mended for mended in found if mended.before.status is Status.FAILED]
        for one in red:
            one.search = self.start(one, found)
        self.search_all(red)
        for alike in group_models(found):
            self.unify(alike)
            self.fall_back(alike)
            self.join_schemes(alike)
        return found

    def start(self, one: Mended, found: Sequence[Mended] = ()) -> Search:
        """Return the search for a red case, one of those that were ``found``. A case whose entry
        has its own quantizing options keeps its schemes. A node on the CPU gets no other precision,
        and no scheme in which the model has nodes on the CPU, too."""
        scheme, policy = one.spec.scheme.base, self.setup.options.policy
        table = read_rewrites("onnx" if one.spec.is_file else "torch")
        entry = policy.models.get(one.spec.model)
        chosen = {name for name, _ in one.spec.source.choices.chosen()}
        is_plain = chosen.isdisjoint(QUANTIZING) and not (entry and entry.mixtures)
        recipe = scheme.recipe
        # Other observers may help if the range decides, only with 8 bits.
        is_coarse = recipe.activation_bits == 8 and not recipe.training_steps
        # The precision of parts can be chosen with ExecuTorch, but not in blocks.
        has_parts = bool(recipe.dtype) and not recipe.block
        other = find_alternatives(scheme)
        whole = [one.value for one in other.whole if is_plain and one in policy.schemes]
        on_cpu = is_on_cpu(one.before)
        if on_cpu:
            same = [
                peer for peer in found if replace(peer.spec, scheme=one.spec.scheme) == one.spec
            ]
            hopeless = {peer.spec.scheme.value for peer in same if is_on_cpu(peer.before)}
            whole = [name for name in whole if name not in hopeless]
        return Search(
            one.before,
            [row for row in table if row.helps_in(scheme)],
            self.approximate,
            faults=is_plain and bool(other.around) and not on_cpu,
            mixes=is_plain and bool(other.finer) and has_parts and not recipe.training_steps,
            observers=OBSERVERS[one.spec.is_file] if is_plain and is_coarse else (),
            schemes=whole,
            floor_db=self.find_floor(one.spec),
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
        setup = replace(self.setup, options=options, work=self.setup.work / f"round-{self.rounds}")
        runs = [CaseRun(spec, setup) for spec in specs]
        results = run_cases(runs, setup.pool, setup.options.jobs, self.progress)
        if len(results) < len(specs):
            raise KeyboardInterrupt  # run_cases returns what was judged until then
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
        surveys = [(one.spec, each.recipes) for one, each in asked if isinstance(each, Survey)]
        judging = [(one, each.recipe) for one, each in asked if isinstance(each, Judge)]
        for one, recipe in judging:
            if (one.spec, recipe) not in self.verdicts:
                self.progress.step(f"  {one.before.name}: try {recipe}")
        failures = self.try_all(surveys)
        self.judge_recipes([(one.spec, recipe) for one, recipe in judging])
        mixing = [(one, each) for one, each in asked if isinstance(each, Mix)]
        mixed = iter(self.run_jobs([partial(self.find_mixtures, *pair) for pair in mixing]))
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

    def run_jobs(self, tasks: Sequence[Callable[[], R]]) -> list[R]:
        """Return the results of tasks, each of which waits for a worker."""
        return run_tasks(tasks, self.setup.options.jobs, abort=self.setup.pool.close)

    def name(self, spec: CaseSpec, names: tuple[str, ...]) -> tuple[str, Source, tuple[str, ...]]:
        return spec.reference, spec.source, names

    def try_all(
        self, wanted: Sequence[tuple[CaseSpec, Sequence[tuple[str, ...]]]]
    ) -> dict[str, str]:
        """Apply recipes to models, one job per model. Return why it failed, by model."""
        jobs: dict[tuple[str, Source], dict[tuple[str, ...], None]] = {}
        for spec, recipes in wanted:
            for recipe in recipes:
                if self.name(spec, recipe) not in self.attempts:
                    jobs.setdefault((spec.reference, spec.source), {})[recipe] = None
        self.setup.work.mkdir(parents=True, exist_ok=True)
        tasks = []
        for number, (key, own) in enumerate(jobs.items()):
            log = self.setup.work / f"survey-{self.rounds}-{number}.log"
            job = Trials(*key, tuple(own))
            tasks.append(partial(self.setup.pool.run, job, log, self.left_s, fresh=True))
        failures = {}
        for (reference, source), done in zip(jobs, self.run_jobs(tasks), strict=True):
            if done.failure:
                failures[reference] = done.failure
            for attempt in done.result or ():
                self.attempts[reference, source, attempt.names] = attempt
        return failures

    def find_mixtures(self, one: Mended, question: Mix) -> Mixtures:
        """Return the parts of mixtures for a case, the cheapest first. There are none if the search
        for them fails."""
        best = one.search.best.case if one.search else one.before
        spec, limit_s, scheme = one.spec, self.left_s, one.spec.scheme.base
        common = spec.reference, spec.source, question.rewrites, scheme
        other = find_alternatives(scheme)
        job: FaultTrials | MixTrials
        if question.faulty:
            path = Path(self.prepare(spec, Recipe(rewrites=question.rewrites)).reference)
            lines = tuple(f"{place.file}:{place.line}" for place in best.findings[0].places)
            job = FaultTrials(*common, other.around, lines, path if spec.is_file else None)
        else:
            target_db, reached_db = self.find_floor(spec), best.sqnr_db or 0.0
            if reached_db >= target_db:
                target_db = reached_db + MORE_DB
            finer = other.finer or scheme
            self.progress.step(f"  {best.name}: find operators for {finer.value}")
            numbers = spec.soc, target_db, max(self.left_s - FINISH_S, 0), question.observer
            job = MixTrials(*common, finer, *numbers)
        log = self.setup.work / f"mix-{self.rounds}-{one.spec.slug}.log"
        memory = self.setup.options.policy.memory_of(spec.model)
        ended = self.setup.pool.run(job, log, limit_s, fresh=True, max_bytes=memory)
        return () if ended.failure else tuple(ended.result)

    def find_floor(self, spec: CaseSpec) -> float:
        """Return the least SQNR in dB that the policy wants, or 0."""
        return self.setup.options.policy.limits_of(spec.model, spec.scheme).min_sqnr_db or 0.0

    def judge_recipes(self, pairs: Sequence[tuple[CaseSpec, Recipe]]) -> list[Case]:
        """Return the verdicts on cases with recipes. None is judged twice."""
        fresh = [pair for pair in pairs if pair not in self.verdicts and pair[1] != Recipe()]
        cases = self.judge([self.prepare(*pair) for pair in fresh], self.left_s) if fresh else []
        self.verdicts |= dict(zip(fresh, cases, strict=True))
        return [self.verdicts[pair] for pair in pairs]

    def prepare(self, spec: CaseSpec, recipe: Recipe) -> CaseSpec:
        """Return a case with a recipe. Its model is a file in the scratch directory."""
        given, reference = spec.source.choices, spec.source.reference
        parts, observer = (*recipe.parts, *given.parts), recipe.observer or given.observer
        if recipe.rewrites:
            directory = self.setup.work / "nets"
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / f"{spec.slug}-{'-'.join(recipe.rewrites)}{ONNX.suffix}"
            if spec.is_file:
                write_rewritten(spec, recipe, path, self.setup.options.timeout_s)
                reference = str(path)
            else:
                path = path.with_suffix(".py")
                factory = Factory(NET, find_reference(spec), recipe.rewrites)
                write_whole(path, make_source(directory, [factory]))
                reference = f"{path}:{NET}"
        scheme = Scheme(recipe.scheme) if recipe.scheme else spec.scheme
        choices = structs.replace(given, parts=parts, observer=observer)
        source = structs.replace(spec.source, reference=reference, choices=choices)
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
            self.try_all([(mended.spec, [recipe.rewrites]) for mended in green])
            names = [self.name(mended.spec, recipe.rewrites) for mended in green]
            attempts = [*map(self.attempts.get, names)]
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
                same = [other for other in alike if other.spec.soc == mended.spec.soc]
                good = {one.spec.scheme.value: one for one in same if self.is_good(one, mended)}
                scheme = next(filter(good.__contains__, mended.search.schemes), "")
                if scheme and not good[scheme].recipe.scheme:
                    mended.adopt(good[scheme], scheme)

    def join_schemes(self, alike: Sequence[Mended]) -> None:
        """Give a case that fell back to another scheme what was found for the model's case in that
        scheme, or the other way round if that case is red or below the limit of the first."""
        for mended in alike:
            for other in alike:
                is_same = name_scheme(other) == mended.recipe.scheme and other is not mended
                if is_same and other.spec.soc == mended.spec.soc:
                    pair = (other, mended) if self.is_good(other, mended) else (mended, other)
                    pair[1].adopt(pair[0], pair[1].recipe.scheme)

    def is_good(self, other: Mended, one: Mended) -> bool:
        """Return whether a case is green, also by the limit of the scheme of ``one``."""
        reached_db = math.inf if other.case.sqnr_db is None else other.case.sqnr_db
        return other.is_green and reached_db >= self.find_floor(one.spec)


def is_on_cpu(case: Case) -> bool:
    """Return whether a case is red because nodes are on the CPU."""
    return any(finding.id == ON_CPU.id for finding in case.findings[:1])


def name_scheme(one: Mended) -> str:
    """Return the scheme in which the policy judges a case."""
    return one.recipe.scheme or one.spec.scheme.value


def write_rewritten(spec: CaseSpec, recipe: Recipe, target: Path, timeout_s: float) -> None:
    """Write the rewritten model of a case with an .onnx file to ``target``, see OnnxFile.write, in
    a process that may take ``timeout_s`` seconds."""
    job = partial(_write_rewritten, spec.reference, spec.source.shapes, recipe.rewrites, target)
    run_limited(job, Path(spec.reference).name, timeout_s=timeout_s)


def _write_rewritten(reference: str, shapes: Any, rewrites: Sequence[str], target: Path) -> None:
    from ci.mend.onnx_files import OnnxFile  # torch models do not need its onnxruntime

    OnnxFile(Path(reference), shapes).write(rewrites, target)


def group_models(found: Sequence[Mended]) -> list[list[Mended]]:
    """Return the cases of each model that was mended."""
    groups: dict[tuple[str, Source], list[Mended]] = {}
    for mended in found:
        groups.setdefault((mended.spec.model, mended.spec.source), []).append(mended)
    return [group for group in groups.values() if any(each.recipe != Recipe() for each in group)]


def find_reference(spec: CaseSpec) -> str:
    """Return the ``/absolute/file.py:factory`` of a case's model, also for one of the suite."""
    return find_suite_model(spec.reference) if spec.is_ours else spec.reference
