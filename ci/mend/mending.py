"""Judges the cases of a run, and searches for the recipes that make the red ones green. A rewritten
model is a case like any other: its model is a file that calls the user's factory and rewrites the
result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from msgspec import structs

from ci.cases.cache import hash_words
from ci.cases.facts import Diagnoser
from ci.cases.limited import run_limited
from ci.cases.pipeline import CaseRun, Setup
from ci.cases.session import run_cases
from ci.cases.spec import CaseSpec
from ci.facts.kinds import ON_CPU
from ci.mend.precision import FaultTrials, MixTrials
from ci.mend.search import (
    OF_FAULTS,
    OF_PRECISION,
    OF_SCHEME,
    Answer,
    Asks,
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
from ci.mend.trials import Attempt, Trials, choose_lane
from ci.models.lowering_options import QUANTIZING, Observer
from ci.models.schemes import LITERT, ONNX, Alternatives, Scheme, SchemeSet, find_alternatives
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
# How ranges may follow from calibration, by ExecuTorch and by ONNX Runtime. With an outlier
# in one of 12 samples, 8a8w has 13.6 dB from minimum to maximum, also by histogram, and 33.3 dB by
# moving average; u8 has 13.6 dB, and 19.0 dB by percentile.
OBSERVERS: tuple[tuple[Observer, ...], ...] = (
    ("histogram", "moving_average"),
    ("percentile", "moving_average"),
)

# Of a quantized .tflite file, which no quantizer writes anew
IN_FLOAT = Alternatives(finer=Scheme.FP16, around=(Scheme.FP16,))


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
        return self.case.judgement.status is not Status.FAILED

    def take_best(self) -> None:
        """Take over the best recipe of the search, and its verdict."""
        if self.search:
            self.recipe, self.case = self.search.best.recipe, self.search.best.case

    def adopt(self, source: Mended, scheme: str) -> None:
        """Take over the recipe and the verdict of another case, in another ``scheme`` or ""."""
        self.recipe = structs.replace(source.recipe, scheme=scheme)
        self.case = source.case
        if self.search:
            self.search.attempts[self.recipe.rewrites] = source.attempt

    @property
    def attempt(self) -> Attempt:
        """Return what the recipe does to the float32 model."""
        names = self.recipe.rewrites
        attempts = self.search.attempts if self.search else {}
        return attempts.get(names, Attempt(names=names))


# A search that waits for the answer to its question
Waiting: TypeAlias = tuple[Mended, Generator[Question, Answer, None], Question]


@dataclass
class Mending:
    """Mends cases until ``deadline``, a time of time.monotonic. ``lane`` has the schemes of the
    runtime that compiles the cases. ``approximate`` allows rewrites that change the function."""

    setup: Setup
    lane: SchemeSet
    progress: Progress
    deadline: float
    approximate: bool = False
    experiments: Diagnoser | None = None  # of the unchanged cases
    attempts: dict[tuple[str, Source, tuple[str, ...]], Attempt] = field(default_factory=dict)
    verdicts: dict[tuple[CaseSpec, Recipe], Case] = field(default_factory=dict)
    rounds: int = 0

    def run(self, specs: Sequence[CaseSpec]) -> list[Mended]:
        """Judge the cases, search recipes for the red ones, and choose the same recipe for all
        schemes of a model if that makes none of them red."""
        self.progress.step(f"  judge {count(len(specs), 'unchanged case')}")
        unchanged = self.judge(specs, experiments=self.experiments)
        cases = [Mended(spec, case) for spec, case in zip(specs, unchanged, strict=True)]
        red = [mended for mended in cases if mended.before.judgement.status is Status.FAILED]
        for mended in red:
            mended.search = self.start(mended, cases)
        self.search_all(red)
        for cases_of_model in group_models(cases):
            self.unify(cases_of_model)
            self.fall_back(cases_of_model)
            self.join_schemes(cases_of_model)
        return cases

    def start(self, mended: Mended, cases: Sequence[Mended] = ()) -> Search:
        """Return the search for a red case, one of ``cases``. A case whose entry has its own
        quantizing options keeps its schemes. A node on the CPU gets no other precision, and no
        scheme in which the model has nodes on the CPU, too."""
        spec, policy = mended.spec, self.setup.options.policy
        scheme = spec.scheme.base
        keeps_quantization = is_quantized_litert(spec)
        rows = read_rewrites(choose_lane(spec.reference))
        entry = policy.models.get(spec.model)
        on_cpu = is_on_cpu(mended.before)
        has_mixtures = bool(entry and entry.mixtures)
        precisions = list_precisions(spec, self.lane, on_cpu=on_cpu, has_mixtures=has_mixtures)
        hopeless = list_hopeless(spec, cases) if on_cpu else set[str]()
        return Search(
            mended.before,
            [row for row in rows if row.helps_in(Scheme.FP16 if keeps_quantization else scheme)],
            self.approximate,
            rewrites_last=keeps_quantization,
            faults=precisions.faults,
            mixes=precisions.mixes,
            observers=precisions.observers,
            schemes=[
                name
                for name in precisions.schemes
                if name in policy.schemes and name not in hopeless
            ],
            floor_db=self.find_floor(spec),
        )

    @property
    def left_s(self) -> float:
        """Return for how many seconds a job may run."""
        return max(min(self.deadline - time.monotonic(), self.setup.options.timeout_s), 1.0)

    def judge(
        self,
        specs: Sequence[CaseSpec],
        timeout_s: float | None = None,
        experiments: Diagnoser | None = None,
    ) -> list[Case]:
        """Return the verdicts on cases, which differ in model, scheme or SoC. With ``timeout_s``,
        each step of a case ends after this time, instead of that of the options. With
        ``experiments``, their cause is looked for."""
        self.rounds += 1
        timeout_s = timeout_s or self.setup.options.timeout_s
        options = replace(self.setup.options, timeout_s=timeout_s, experiments=experiments)
        setup = replace(self.setup, options=options, work=self.setup.work / f"round-{self.rounds}")
        runs = [CaseRun(spec, setup) for spec in specs]
        results = run_cases(runs, setup.pool, setup.options.jobs, self.progress)
        if len(results) < len(specs):
            raise KeyboardInterrupt  # run_cases returns what was judged until then
        return [result.case for result in results]

    def search_all(self, red: Sequence[Mended]) -> None:
        """Run the searches side by side: answer the questions of all of them, then take the
        next."""
        waiting: list[Waiting] = []
        for mended in red:
            if mended.search:
                waiting += continue_search(mended, mended.search.run(), None)
        while waiting:
            if time.monotonic() > self.deadline:
                for mended, *_ in waiting:
                    mended.ended = TIME_IS_UP
                break
            answers = self.answer([(mended, question) for mended, _, question in waiting])
            answered = zip(waiting, answers, strict=True)
            waiting = []
            for (mended, search, _), answer in answered:
                if answer is not None:
                    waiting += continue_search(mended, search, answer)
        for mended in red:
            mended.take_best()

    def answer(self, questions: Sequence[tuple[Mended, Question]]) -> list[Answer]:
        """Return the answers to questions. The answer is None if the model cannot be surveyed,
        which ends the search of its case."""
        surveys, recipes, mixes = [], [], []
        for mended, question in questions:
            if isinstance(question, Survey):
                surveys.append((mended.spec, question.recipes))
            elif isinstance(question, Judge):
                recipes.append((mended.spec, question.recipe))
                if recipes[-1] not in self.verdicts:
                    self.progress.step(f"  {mended.before.name}: try {question.recipe}")
            else:
                mixes.append((mended, question))
        failures = self.try_all(surveys)
        self.judge_recipes(recipes)
        mixtures = iter(self.run_jobs([partial(self.find_mixtures, *mix) for mix in mixes]))

        answers: list[Answer] = []
        for mended, question in questions:
            if isinstance(question, Mix):
                answers.append(next(mixtures))
            elif isinstance(question, Judge):
                answers.append(self.verdicts[mended.spec, question.recipe])
            elif failure := failures.get(mended.spec.reference):
                is_late = time.monotonic() > self.deadline
                mended.ended = TIME_IS_UP if is_late else f"no rewrite can be tried: {failure}"
                answers.append(None)
            else:
                keys = [self.name(mended.spec, names) for names in question.recipes]
                answers.append([self.attempts[key] for key in keys])
        return answers

    def run_jobs(self, tasks: Sequence[Callable[[], R]]) -> list[R]:
        """Return the results of tasks, each of which waits for a worker."""
        return run_tasks(tasks, self.setup.options.jobs, abort=self.setup.pool.close)

    def name(self, spec: CaseSpec, names: tuple[str, ...]) -> tuple[str, Source, tuple[str, ...]]:
        """Return the key of ``attempts`` for a model with rewrites, the same in all schemes."""
        return spec.reference, spec.source, names

    def try_all(
        self, surveys: Sequence[tuple[CaseSpec, Sequence[tuple[str, ...]]]]
    ) -> dict[str, str]:
        """Apply recipes to models, one job per model. Return why it failed, by model."""
        recipes_of: dict[tuple[str, Source], dict[tuple[str, ...], None]] = {}
        for spec, recipes in surveys:
            for recipe in recipes:
                if self.name(spec, recipe) not in self.attempts:
                    recipes_of.setdefault((spec.reference, spec.source), {})[recipe] = None
        self.setup.work.mkdir(parents=True, exist_ok=True)
        tasks = []
        for number, (model, new_recipes) in enumerate(recipes_of.items()):
            log = self.setup.work / f"survey-{self.rounds}-{number}.log"
            job = Trials(*model, tuple(new_recipes))
            tasks.append(partial(self.setup.pool.run, job, log, self.left_s, fresh=True))
        failures = {}
        for (reference, source), ended in zip(recipes_of, self.run_jobs(tasks), strict=True):
            if ended.failure:
                failures[reference] = ended.failure
            for attempt in ended.result or ():
                self.attempts[reference, source, attempt.names] = attempt
        return failures

    def find_mixtures(self, mended: Mended, question: Mix) -> Mixtures:
        """Return the parts of mixtures for a case, the cheapest first. There are none if the search
        for them fails."""
        best = mended.search.best.case if mended.search else mended.before
        spec, limit_s, scheme = mended.spec, self.left_s, mended.spec.scheme.base
        model = spec.reference, spec.source, question.rewrites, scheme
        alternatives = choose_alternatives(spec)
        path = None
        if spec.is_file:
            path = Path(self.prepare(spec, Recipe(rewrites=question.rewrites)).reference)
        job: FaultTrials | MixTrials
        if question.faulty:
            lines = tuple(
                f"{place.file}:{place.line}" for place in best.judgement.findings[0].places
            )
            job = FaultTrials(*model, spec.soc, alternatives.around, lines, path)
        else:
            target_db = self.find_target(spec, best.judgement.sqnr_db or 0.0)
            finer = alternatives.finer or scheme
            self.progress.step(f"  {best.name}: find operators for {finer.value}")
            search_s = max(self.left_s - FINISH_S, 0)
            job = MixTrials(*model, finer, spec.soc, target_db, search_s, question.observer, path)
        log = self.setup.work / f"mix-{self.rounds}-{spec.slug}.log"
        memory = self.setup.options.policy.memory_of(spec.model)
        ended = self.setup.pool.run(job, log, limit_s, fresh=True, max_bytes=memory)
        return () if ended.failure else tuple(ended.result)

    def find_floor(self, spec: CaseSpec) -> float:
        """Return the least SQNR in dB that the policy wants, or 0.

        Only the limit of the worst sample counts, which no policy of ours sets. Those over all
        samples are what each scheme may cost: with fp16's 30 or 40 dB as a floor, no model in fp16
        could have 16a8w instead, which needs 20 dB.
        """
        return self.setup.options.policy.limits_of(spec.model, spec.scheme).min_sqnr_db or 0.0

    def find_target(self, spec: CaseSpec, reached_db: float) -> float:
        """Return the SQNR in dB that a mixture should have: what the policy wants of the worst
        sample and of all together or, if that is reached, somewhat more."""
        limits = self.setup.options.policy.limits_of(spec.model, spec.scheme)
        target_db = max(limits.min_sqnr_db or 0.0, limits.min_sqnr_db_all or 0.0)
        return target_db if reached_db < target_db else reached_db + MORE_DB

    def judge_recipes(self, pairs: Sequence[tuple[CaseSpec, Recipe]]) -> list[Case]:
        """Return the verdicts on cases with recipes. None is judged twice."""
        new_pairs = [pair for pair in pairs if pair not in self.verdicts and pair[1] != Recipe()]
        if new_pairs:
            # With the remaining time as limit, --minutes also ends what is being compiled.
            cases = self.judge([self.prepare(*pair) for pair in new_pairs], self.left_s)
            self.verdicts |= dict(zip(new_pairs, cases, strict=True))
        return [self.verdicts[pair] for pair in pairs]

    def prepare(self, spec: CaseSpec, recipe: Recipe) -> CaseSpec:
        """Return a case with a recipe. Its model is a file in the scratch directory."""
        user_choices, reference = spec.source.choices, spec.source.reference
        parts = recipe.parts
        if recipe.rewrites or is_in_file(spec, recipe):
            directory = self.setup.work / "nets"
            directory.mkdir(parents=True, exist_ok=True)
            stem = f"{spec.slug}-{'-'.join(recipe.rewrites)}"
            if is_in_file(spec, recipe):
                stem = f"{spec.slug}-{hash_words(*recipe.rewrites, *map(str, parts))[:16]}"
                parts = ()
            if spec.is_file:
                path = directory / f"{stem}{Path(spec.reference).suffix}"
                write_rewritten(spec, recipe, path, self.setup.options.timeout_s)
                reference = str(path)
            else:
                path = directory / f"{stem}.py"
                factory = Factory(NET, find_reference(spec), recipe.rewrites)
                write_whole(path, make_source(directory, [factory]))
                reference = f"{path}:{NET}"
        choices = structs.replace(
            user_choices,
            parts=(*parts, *user_choices.parts),  # a node belongs to the first
            observer=recipe.observer or user_choices.observer,
        )
        source = structs.replace(spec.source, reference=reference, choices=choices)
        scheme = Scheme(recipe.scheme) if recipe.scheme else spec.scheme
        return replace(spec, source=source, scheme=scheme)

    def unify(self, cases_of_model: Sequence[Mended]) -> None:
        """Give all schemes of a model the same recipe, if none of the green cases becomes red or
        worse."""
        green = [mended for mended in cases_of_model if mended.is_green]
        recipes = list(dict.fromkeys(mended.recipe for mended in green))
        if len(recipes) < 2:
            return
        if any(recipe.parts or recipe.scheme or recipe.observer for recipe in recipes):
            return
        self.verdicts |= {(mended.spec, mended.recipe): mended.case for mended in green}
        for recipe in list_common(recipes):
            attempts = self.try_in_all(green, recipe)
            if not attempts or time.monotonic() > self.deadline:
                continue
            self.progress.step(f"  {green[0].before.model}: try {recipe} in all schemes")
            verdicts = self.judge_recipes([(mended.spec, recipe) for mended in green])
            if any(map(is_worse, verdicts, [mended.case for mended in green])):
                continue
            for mended, case, attempt in zip(green, verdicts, attempts, strict=True):
                mended.recipe, mended.case = recipe, case
                if mended.search:
                    mended.search.attempts[recipe.rewrites] = attempt
            return

    def try_in_all(self, cases: Sequence[Mended], recipe: Recipe) -> list[Attempt]:
        """Return what a recipe does to the float32 models of cases, or [] if it cannot be used for
        all of them."""
        self.try_all([(mended.spec, [recipe.rewrites]) for mended in cases])
        attempts = []
        for mended in cases:
            attempt = self.attempts.get(self.name(mended.spec, recipe.rewrites))
            if attempt is None or not attempt.applies or attempt.fault:
                return []
            attempts.append(attempt)
        return attempts

    def fall_back(self, cases_of_model: Sequence[Mended]) -> None:
        """Give a case for which nothing was found the cheapest other scheme in which the model is
        green."""
        for mended in cases_of_model:
            search = mended.search
            if search is None or mended.is_green or not search.is_about(OF_SCHEME):
                continue
            green_cases = {}  # of the same SoC, by scheme
            for peer in cases_of_model:
                if peer.spec.soc == mended.spec.soc and self.is_good(peer, mended):
                    green_cases[peer.spec.scheme.value] = peer
            scheme = next(filter(green_cases.__contains__, search.schemes), "")
            if scheme and not green_cases[scheme].recipe.scheme:
                mended.adopt(green_cases[scheme], scheme)

    def join_schemes(self, cases_of_model: Sequence[Mended]) -> None:
        """Give a case that fell back to another scheme what was found for the model's case in that
        scheme, or the other way round if that case is red or below the limit of the first."""
        for mended in cases_of_model:
            for peer in cases_of_model:
                is_target = name_scheme(peer) == mended.recipe.scheme and peer is not mended
                if not is_target or peer.spec.soc != mended.spec.soc:
                    continue
                if self.is_good(peer, mended):
                    mended.adopt(peer, mended.recipe.scheme)
                else:
                    peer.adopt(mended, peer.recipe.scheme)

    def is_good(self, peer: Mended, mended: Mended) -> bool:
        """Return whether a case, ``peer``, is green, also by the limit of the scheme of
        ``mended``, and at least as accurate as ``mended`` was: a program of 21.6 dB gets no scheme
        with 20.2 dB."""
        least_db = max(self.find_floor(mended.spec), mended.before.judgement.sqnr_db or 0.0)
        reached_db = (
            math.inf if peer.case.judgement.sqnr_db is None else peer.case.judgement.sqnr_db
        )
        return peer.is_green and reached_db >= least_db


@dataclass(frozen=True)
class Precisions:
    """What a search tries besides rewrites. The fields are those of Search."""

    faults: bool
    mixes: bool
    observers: Sequence[Observer]
    schemes: Sequence[str]

    def are_about(self, question: Asks) -> bool:
        """Return whether anything of it is tried for a case that is red for a question."""
        return (
            (self.faults and question in OF_FAULTS)
            or ((self.mixes or bool(self.observers)) and question in OF_PRECISION)
            or (bool(self.schemes) and question in OF_SCHEME)
        )


def list_precisions(
    spec: CaseSpec, lane: SchemeSet, *, on_cpu: bool, has_mixtures: bool = False
) -> Precisions:
    """Return what is tried besides rewrites for a case of a lane. If its entry has quantizing
    options or mixtures, no other scheme is tried; for a node on the CPU, no other precision is."""
    chosen_options = {name for name, _ in spec.source.choices.chosen()}
    is_plain = chosen_options.isdisjoint(QUANTIZING) and not has_mixtures
    quantization = spec.scheme.base.recipe
    # Other observers may help if the range decides, only with 8 bits.
    is_coarse = quantization.activation_bits == 8 and not quantization.training_steps
    has_parts = not quantization.block  # ExecuTorch mixes no blocks
    alternatives = choose_alternatives(spec)
    can_mix = is_plain and bool(alternatives.finer) and has_parts
    return Precisions(
        faults=is_plain and bool(alternatives.around) and not on_cpu,
        mixes=can_mix and not quantization.training_steps,
        observers=OBSERVERS[lane is ONNX] if is_plain and is_coarse else (),
        schemes=[
            scheme.value for scheme in alternatives.whole if is_plain and scheme in lane.schemes
        ],
    )


def continue_search(
    mended: Mended, search: Generator[Question, Answer, None], answer: Answer
) -> list[Waiting]:
    """Answer a search's question, and return it with its next one, or [] if it has ended."""
    question = advance(search, answer)
    return [(mended, search, question)] if question else []


def is_worse(case: Case, reference: Case) -> bool:
    """Return whether a verdict is red, or worse than the green one for ``reference``."""
    return case.judgement.status is Status.FAILED or is_better(reference, case)


def list_common(recipes: Sequence[Recipe]) -> list[Recipe]:
    """Return the recipes to try for all schemes of a model, whose cases have different ones: each
    of them with rewrites, the longest first, then the rewrites of all together."""
    rewriting = [recipe for recipe in recipes if recipe.rewrites]
    rewriting.sort(key=lambda recipe: -len(recipe.rewrites))
    union = tuple(dict.fromkeys(name for recipe in recipes for name in recipe.rewrites))
    return [*dict.fromkeys([*rewriting, Recipe(rewrites=union)])]


def list_hopeless(spec: CaseSpec, cases: Sequence[Mended]) -> set[str]:
    """Return the schemes in which the model of a case, with the same options and on the same SoC,
    has nodes on the CPU."""
    hopeless = set()
    for peer in cases:
        is_same = replace(peer.spec, scheme=spec.scheme) == spec
        if is_same and is_on_cpu(peer.before):
            hopeless.add(peer.spec.scheme.value)
    return hopeless


def is_on_cpu(case: Case) -> bool:
    """Return whether a case is red because nodes are on the CPU."""
    return any(finding.id == ON_CPU.id for finding in case.judgement.findings[:1])


def name_scheme(mended: Mended) -> str:
    """Return the scheme in which the policy judges a case."""
    return mended.recipe.scheme or mended.spec.scheme.value


def is_quantized_litert(spec: CaseSpec) -> bool:
    """Return whether the model of a case is a .tflite file that is quantized."""
    return spec.scheme is Scheme.ASIS and spec.reference.endswith(LITERT.suffix)


def is_in_file(spec: CaseSpec, recipe: Recipe) -> bool:
    """Return whether the file of a case gets other precisions itself. Otherwise, the policy has
    them. What is rewritten in a quantized file is computed in float."""
    return bool(recipe.parts or recipe.rewrites) and is_quantized_litert(spec)


def choose_alternatives(spec: CaseSpec) -> Alternatives:
    """Return the other schemes for parts of the model of a case, or for all of it."""
    return IN_FLOAT if is_quantized_litert(spec) else find_alternatives(spec.scheme.base)


def write_rewritten(spec: CaseSpec, recipe: Recipe, target: Path, timeout_s: float) -> None:
    """Write the rewritten model of a case with a file to ``target``, see OnnxFile.write, in a
    process that may take ``timeout_s`` seconds."""
    job = partial(_write_rewritten, spec, recipe, target)
    # A parser in C++ that does not end, takes all memory or aborts would do the same to the verb.
    run_limited(job, Path(spec.reference).name, timeout_s=timeout_s)


def _write_rewritten(spec: CaseSpec, recipe: Recipe, target: Path) -> None:
    if is_in_file(spec, recipe):
        from ci.mend.litert_mixtures import write_quantized

        write_quantized(spec, recipe.rewrites, recipe.parts, target)
        return
    path, rewrites = Path(spec.reference), recipe.rewrites
    if choose_lane(spec.reference) == "litert":
        from ci.mend.litert_files import open_file

        open_file(path).write(rewrites, target)
        return
    from ci.mend.onnx_files import OnnxFile  # torch models do not need its onnxruntime

    OnnxFile(path, spec.source.shapes).write(rewrites, target)


def group_models(cases: Sequence[Mended]) -> list[list[Mended]]:
    """Return the cases of each model that was mended."""
    groups: dict[tuple[str, Source], list[Mended]] = {}
    for mended in cases:
        groups.setdefault((mended.spec.model, mended.spec.source), []).append(mended)
    return [group for group in groups.values() if is_mended(group)]


def is_mended(cases: Sequence[Mended]) -> bool:
    """Return whether a recipe was chosen for one of the cases."""
    return any(mended.recipe != Recipe() for mended in cases)


def find_reference(spec: CaseSpec) -> str:
    """Return the ``/absolute/file.py:factory`` of a case's model, also for one of the suite."""
    return find_suite_model(spec.reference) if spec.is_ours else spec.reference
