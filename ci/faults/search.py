"""Searches for faults: generates graphs from blocks and at random, confirms suspects with other
seeds, shrinks them, and groups them by operators."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from statistics import fmean
from typing import Any

from msgspec import structs

from ci.diagnosis.diagnosis import Diagnosis
from ci.diagnosis.experiments import RemedyChoice
from ci.diagnosis.wording import advise_on_diagnosis
from ci.faults.blocks import Cell, read_blocks, visit_blocks
from ci.faults.causes import diagnose_graph
from ci.faults.generate import find_unfit, generate
from ci.faults.graph import Graph, parse_graph
from ci.faults.known import CRASHED, REFUSED, RIGHT, WRONG, Frontend, describe
from ci.faults.match import match_faults
from ci.faults.render import describe_finding
from ci.faults.results import LATE, SUSPECT, UNJUDGED, UNTRIED, Finding, Item, Result, Searched
from ci.faults.shrink import (
    CHUNK,
    SEEDS,
    fit_variations,
    has_chain,
    list_features,
    list_relations,
    shrink,
)
from ci.faults.torch_graphs import find_shapes
from ci.faults.trial import BUNDLE, Trial
from ci.models.numerics import fix_numerics
from ci.report.text import count
from provisioning.console.progress import Progress

BATCH = {"onnx": 48, "executorch": 16, "litert": 16}  # the number of graphs of a round, per job
BLOCKS, RANDOM, BOTH = "blocks", "random", "both"
REPEATS = tuple(range(101, 111))
MOST_WHY = 60
# Wrong results come first, because they raise no error.
ORDER = (WRONG, CRASHED, LATE, REFUSED)
SHRINK_S = 120.0  # in which a suspect is confirmed and shrunk
COSTLY = {LATE, REFUSED}  # a suspect that takes long gets COSTLY_S instead
SHARE, COSTLY_SHARE = 0.5, 0.1  # of the time, in which suspects are examined
COSTLY_S = 30.0  # also what the first one is expected to take; others take the mean so far
CONFIRM_S = 60.0  # extra time for suspects that are being confirmed when the search ends
REPORT_S = 5.0  # the time in which a suspect is confirmed but not shrunk
RISK = 8  # a graph that stops the others of its bundle costs about as much as this many of them
SHOW_S = 30.0


class LateError(Exception):
    """Raised if a suspect could not be confirmed in time."""


@dataclass
class Search:
    """A search in one front end and scheme, with ``jobs`` trials in parallel. ``source`` selects
    graphs from blocks, random graphs, or both in turns. With ``uses_known``, suspects whose cause
    is a known fault are only counted; they are neither confirmed nor shrunk. A known fault is the
    cause if one of the ``remedies`` that cure it makes the graph right, or if none can be tried.
    All ``remedies`` are tried on a finding."""

    trial: Trial
    frontend: Frontend
    scheme: str
    soc: str
    seed: int
    jobs: int
    progress: Progress
    qnn: str = ""
    uses_known: bool = False
    remedies: Sequence[RemedyChoice] = ()
    source: str = BOTH
    ends: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    examined: Counter[str] = field(default_factory=Counter)  # suspects, per feature
    known_suspects: Counter[str] = field(default_factory=Counter)  # per known fault
    other_causes: set[int] = field(default_factory=set)  # suspects whose known fault is innocent
    # Known faults that were proven, with the result and the block of the graph
    proven: set[tuple[str, str, Cell]] = field(default_factory=set)
    cells: dict[int, Cell] = field(default_factory=dict)  # per number of a graph from a block
    tried: dict[Cell, Counter[str]] = field(default_factory=dict)
    stopped: Counter[str] = field(default_factory=Counter)  # graphs that stop others, per block
    unconfirmed: int = 0
    trying_s: float = 0.0
    # Whether suspects are COSTLY, with how long each took to examine.
    examining_s: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    cpu_s: float = 0.0
    started: float = 0.0
    shown: float = 0.0
    deadline: float = math.inf

    def __post_init__(self) -> None:
        fix_numerics()  # one thread: starting several takes 20 ms, computing a graph only 0.1 ms
        self.threads = ThreadPoolExecutor(self.jobs)  # each worker belongs to a thread
        self.blocks = visit_blocks(self.seed, self.frontend)

    def run(self, deadline: float, most_graphs: int = 0) -> Searched:
        """Search until ``deadline`` (a time of time.monotonic), or until ``most_graphs`` graphs
        were tried if that is not 0. Return the results."""
        self.started = self.shown = time.monotonic()
        self.deadline = deadline
        waiting: list[tuple[int, Result]] = []
        items = self.make_items(0, most_graphs)
        while items and (start := time.monotonic()) < (until := deadline - find_reserve(waiting)):
            alone = list(filter(self.is_risky, items))
            together = [number for number in items if number not in alone]
            trying = chain(
                self.try_items([items[number] for number in together], 0, until),
                self.try_items([items[number] for number in alone], 1, until),
            )
            next_items = self.make_items(max(items) + 1, most_graphs)  # while the workers are busy
            numbered = zip([*together, *alone], trying, strict=True)
            results = {number: result for number, result in numbered if result.end != UNTRIED}
            self.trying_s += time.monotonic() - start
            self.cpu_s += sum(result.cpu_s for result in results.values())
            for number, result in results.items():
                self.count_result(number, result)
                if result.is_suspect:
                    waiting.append((number, result))
            self.show_progress(self.ends.total(), len(waiting))
            waiting, items = self.examine(waiting), next_items
        left, graphs = self.examine(waiting, all_of_them=True), self.ends.total()
        self.findings.sort(
            key=lambda finding: (
                bool(finding.known),
                finding.end != WRONG,
                finding.sqnr_db or 0.0,
            )
        )
        return Searched(
            frontend=self.frontend,
            scheme=self.scheme,
            soc=self.soc,
            seed=self.seed,
            graphs=graphs,
            seconds=round(self.trying_s, 1),
            per_minute=round(60 * graphs / self.trying_s) if self.trying_s else 0,
            cpu_s=round(self.cpu_s / max(graphs, 1), 4),
            ends=dict(self.ends),
            # count_result counts 0 for graphs that were judged: + leaves such counts out.
            unjudged=dict((+self.reasons).most_common(12)),
            known=dict(self.known_suspects),
            cells=self.list_cells(),
            unconfirmed=self.unconfirmed,
            unexamined=len(left),
            unexamined_ends=dict(Counter(result.end for _, result in left)),
            findings=tuple(self.findings),
        )

    def count_result(self, number: int, result: Result) -> None:
        """Count the result of the graph with this number."""
        self.ends[result.end] += 1
        self.reasons[result.why[:MOST_WHY]] += result.end == UNJUDGED
        if number in self.cells:
            cell = self.cells[number]
            self.tried.setdefault(cell, Counter())[result.end] += 1
            self.stopped[cell.block] += result.stops

    def show_progress(self, graphs: int, suspects: int) -> None:
        """Print how far the search is, at most every SHOW_S seconds."""
        now = time.monotonic()
        if now - self.shown >= SHOW_S:
            self.shown = now
            left = f", {max(self.deadline - now, 0):.0f} s left" if self.deadline < math.inf else ""
            self.progress.step(
                f"{self.scheme}, {now - self.started:.0f} s: {count(graphs, 'graph')} tried, "
                f"{count(len(self.findings), 'finding')}, "
                f"{count(suspects, 'suspect')} left to examine{left}"
            )

    def make_items(self, first: int, most_graphs: int) -> dict[int, Item]:
        """Return the generated graphs of a round, numbered from ``first``. The result is empty once
        ``most_graphs`` graphs were generated."""
        last = min(first + self.jobs * BATCH[self.frontend], most_graphs or sys.maxsize)
        return {number: Item(str(self.make_graph(number)), 0) for number in range(first, last)}

    def is_risky(self, number: int) -> bool:
        """Return whether so many graphs of a graph's block stopped the graphs that were compiled
        with them that it takes less time to try it alone."""
        block = self.cells[number].block if number in self.cells else ""
        tried = sum(sum(ends.values()) for cell, ends in self.tried.items() if cell.block == block)
        return self.stopped[block] * RISK > tried

    def make_graph(self, number: int) -> Graph:
        """Return the graph with this number, the next one. If ``source`` is BOTH, even numbers are
        blocks."""
        if self.source == BLOCKS or (self.source == BOTH and number % 2 == 0):
            self.cells[number], graph = next(self.blocks)
            return graph
        return generate(self.seed, number, self.frontend)

    def list_cells(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return how often the graphs of each block and size class had each result."""
        if self.source == RANDOM:
            return {}
        cells: dict[str, dict[str, dict[str, int]]] = {}
        for name, (_, sizes) in read_blocks(self.frontend).items():
            cells[name] = {size: dict(self.tried.get(Cell(name, size), ())) for size in sizes}
        return cells

    def try_items(self, items: Sequence[Item], bundle_size: int, until: float) -> Iterator[Result]:
        """Try graphs in parallel, with one worker per job, and return an iterator over the results.
        All workers start at once. A worker compiles ``bundle_size`` graphs together, or
        ci.faults.trial.BUNDLE if it is 0. Graphs without a result at the time ``until`` are
        UNTRIED."""
        # Small enough that each worker gets a part.
        size = min(bundle_size or BUNDLE, -(-len(items) // self.jobs)) or 1
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        # A list, because a generator would run only when this thread reads it.
        tried = self.threads.map(lambda part: list(self.trial.run(part, bundle_size, until)), parts)
        return chain.from_iterable(tried)

    def confirm(self, items: Sequence[Item], bundle_size: int) -> list[Result]:
        """Try graphs of a suspect, ``bundle_size`` at a time, and return the results. Raises
        LateError if a graph has no result CONFIRM_S after the deadline of the search."""
        results = list(self.try_items(items, bundle_size, self.deadline + CONFIRM_S))
        if any(result.end == UNTRIED for result in results):
            raise LateError
        return results

    def examine(
        self, waiting: Sequence[tuple[int, Result]], *, all_of_them: bool = False
    ) -> list[tuple[int, Result]]:
        """Confirm and shrink suspects: wrong results first, then those with an operator, attribute
        or kind of constant that was not examined yet, then small graphs. Return those for which
        there is no time.

        Unless ``all_of_them`` is true, that is the case if they would take more than SHARE of it
        with one of average length. COSTLY ones have a separate share. At the end of the search,
        those that are not COSTLY are still confirmed, but not shrunk."""
        graphs = {number: parse_graph(suspect.text) for number, suspect in waiting}
        if self.uses_known:
            waiting = self.leave_out_known(waiting, graphs)
        features = {number: list_features(graph) for number, graph in graphs.items()}

        def rank(entry: tuple[int, Result]) -> tuple[int, int, int]:
            number, suspect = entry
            times_examined = min(self.examined[feature] for feature in features[number])
            return ORDER.index(suspect.end), times_examined, len(graphs[number].nodes)

        queue, left = list(waiting), []
        while queue:
            queue.sort(key=rank)  # again each time, because each examined suspect changes ranks
            number, suspect = queue.pop(0)
            if self.count_found(graphs[number], suspect.end):
                continue
            start, costly = time.monotonic(), suspect.end in COSTLY
            share_s = (start - self.started) * (COSTLY_SHARE if costly else SHARE)
            taken_s = self.examining_s[costly]
            expected_s = fmean(taken_s) if taken_s else COSTLY_S * costly
            has_time = all_of_them or sum(taken_s) + expected_s <= share_s
            latest_start = self.deadline + CONFIRM_S * (all_of_them and not costly)
            if start > latest_start or not has_time:
                left.append((number, suspect))
                continue
            findings_before = len(self.findings)
            until = self.deadline - find_reserve([*queue, *left])
            try:
                self.locate(number, suspect, graphs[number], until)
            except LateError:
                left.append((number, suspect))
            new_findings = self.findings[findings_before:]
            for finding in new_findings:
                self.examined.update(list_features(parse_graph(finding.graph)))
            if not new_findings:
                self.examined.update(features[number])
            taken_s.append(time.monotonic() - start)
        return left

    def leave_out_known(
        self, waiting: Sequence[tuple[int, Result]], graphs: Mapping[int, Graph]
    ) -> list[tuple[int, Result]]:
        """Count the suspects that a known fault causes, and return the others. A fault of which the
        graph has only the pattern is innocent if its remedies do not make the graph right."""
        left, decided = list[tuple[int, Result]](), list[tuple[int, Result, str]]()
        items: dict[Item, None] = {}
        for number, suspect in waiting:
            is_other = number in self.other_causes
            fault = "" if is_other else self.find_known(graphs[number], suspect.faults)
            cures = [remedy.name for remedy in self.remedies if fault in remedy.cures]
            cell = self.cells.get(number)
            if not fault:
                left.append((number, suspect))
            elif not cures or (cell and (fault, suspect.end, cell) in self.proven):
                self.known_suspects[fault] += 1
            else:
                decided.append((number, suspect, fault))
                items |= dict.fromkeys(Item(suspect.text, suspect.seed, name) for name in cures)
        results = dict(zip(items, self.try_items([*items], 1, self.deadline), strict=True))
        for number, suspect, fault in decided:
            by_name = {
                item.rewrite: result
                for item, result in results.items()
                if (item.text, item.seed) == (suspect.text, suspect.seed)
            }
            diagnosis = self.diagnose(graphs[number], suspect, [fault], by_name)
            if diagnosis.excludes(fault):
                self.other_causes.add(number)
                left.append((number, suspect))
                continue
            self.known_suspects[fault] += 1
            if diagnosis.is_proven and number in self.cells:
                self.proven.add((fault, suspect.end, self.cells[number]))
        return left

    def diagnose(
        self, graph: Graph, red: Result, faults: Sequence[str], results: Mapping[str, Result]
    ) -> Diagnosis:
        """Return what the results of a red graph with remedies show, which ``results`` have by the
        names of remedies."""

        def run(names: str) -> Result:
            if names in results:
                return results[names]
            return next(self.try_items([Item(red.text, red.seed, names)], 1, self.deadline))

        remedies = [remedy for remedy in self.remedies if is_tried(results.get(remedy.name))]
        return diagnose_graph(red, len(graph.nodes), faults, remedies, run)

    def count_found(self, graph: Graph, end: str) -> bool:
        """Count a suspect that needs no examination, because it has the result and the operators of
        a finding. Return whether it was counted."""
        for index, finding in enumerate(self.findings):
            if end == finding.end and has_chain(graph, parse_graph(finding.graph)):
                self.findings[index] = structs.replace(finding, suspects=finding.suspects + 1)
                return True
        return False

    def locate(self, number: int, suspect: Result, graph: Graph, until: float) -> None:
        """Confirm a suspect alone and with other seeds, shrink it until the time ``until`` at the
        latest, and add it to the findings. After that, or if it is COSTLY and was not shrunk in
        time, it is confirmed with two further seeds, without variations and rewrites.

        If the suspect does not fail again, or if the shrunk graph fails in fewer than half of the
        repeats, it only counts as unconfirmed. Raises LateError if there is not enough time.
        """
        start = time.monotonic()
        alone = self.confirm([Item(str(graph), seed) for seed in SEEDS], 1)
        ends = [result.end for result in alone if result.is_suspect]
        if not ends:
            self.unconfirmed += 1
            return
        end = suspect.end if suspect.end in ends else min(ends, key=ORDER.index)
        seeds = [result.seed for result in alone if result.end == end]

        bundle_size = int(suspect.stops or end == REFUSED)  # 1: such graphs are tried alone
        shrink_until = min(until, start + (COSTLY_S if end in COSTLY else SHRINK_S))
        few = 2 * self.jobs
        # One seed makes shrinking fast. The result is confirmed with REPEATS.
        fails = partial(self.fails, end, seeds=seeds[:1], bundle_size=bundle_size)
        small = shrink(graph, fails, few, few if bundle_size else CHUNK, shrink_until)
        if small != graph and not self.fails(end, [small], bundle_size=1)[0]:
            small = graph  # the small graph fails only together with others
        has_time = (now := time.monotonic()) < (shrink_until if end in COSTLY else until)
        right, also_wrong = self.try_variations(small, bundle_size) if has_time else ((), ())
        fit_seeds = [seed for seed in REPEATS if not find_unfit(small, seed)]
        repeats = fit_seeds if has_time else fit_seeds[:2]
        repeated = self.confirm([Item(str(small), seed) for seed in repeats], bundle_size)
        failing = [result for result in repeated if result.end == end]
        if not failing or len(failing) < (len(repeats) + 1) // 2:
            self.unconfirmed += 1
            return
        worst = min(failing, key=lambda result: result.sqnr_db)
        results = self.try_remedies(worst) if has_time else {}
        known_fault = self.find_known(small, worst.faults)
        diagnosis = self.diagnose(small, worst, [known_fault] if known_fault else [], results)
        finding = make_finding(
            small,
            end,
            repeated,
            frontend=self.frontend,
            scheme=self.scheme,
            soc=self.soc,
            right=right,
            also_wrong=also_wrong,
            known=name_cause(diagnosis, known_fault),
            cause=describe_cause(diagnosis),
            mended_by=tuple(name for name, result in results.items() if result.end == RIGHT),
            seed=self.seed,
            number=number,
            block=" ".join(self.cells.get(number, ())),
            seconds=round(time.monotonic() - self.started),
            shrunk=now < shrink_until,
        )
        self.findings.append(finding)
        self.progress.step(f"{self.scheme}, {finding.seconds:.0f} s: {describe_finding(finding)}")

    def try_variations(
        self, graph: Graph, bundle_size: int
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Try the variations of a graph with SEEDS, ``bundle_size`` at a time, and return the
        descriptions of those that are always right, and of those that are suspect with at least
        one seed. Raises LateError as ``confirm`` does."""
        variations = fit_variations(graph, self.frontend)  # with a description of each
        items = [Item(str(variation), seed) for _, variation in variations for seed in SEEDS]
        results = self.confirm(items, bundle_size)
        ends = {(result.text, result.seed): result.end for result in results}
        right, also_wrong = [], []  # descriptions
        for description, variation in variations:
            variation_ends = {ends[str(variation), seed] for seed in SEEDS}
            if variation_ends == {RIGHT}:
                right.append(description)
            elif not variation_ends.isdisjoint(SUSPECT):
                also_wrong.append(description)
        return tuple(right), tuple(also_wrong)

    def try_remedies(self, red: Result) -> dict[str, Result]:
        """Return the results of a red graph with each remedy, by its name."""
        names = [remedy.name for remedy in self.remedies]
        items = [Item(red.text, red.seed, name) for name in names]
        results = zip(names, self.try_items(items, 1, self.deadline), strict=True)
        return dict(results)

    def fails(
        self, end: str, graphs: Sequence[Graph], seeds: Sequence[int] = SEEDS, bundle_size: int = 0
    ) -> list[bool]:
        """Return for each graph whether its result is ``end`` with any of ``seeds``. Raises
        LateError as ``confirm`` does."""
        items = [Item(str(graph), seed) for graph in graphs for seed in seeds]
        failed = [result.end == end for result in self.confirm(items, bundle_size)]
        return [any(failed[n : n + len(seeds)]) for n in range(0, len(failed), len(seeds))]

    def find_known(self, graph: Graph, faults: Sequence[str] = ()) -> str:
        """Return the name of the first known fault in a graph, or of ``faults``, which were found
        in the file that was compiled; empty if there is none."""
        if faults:
            return faults[0]
        steps = describe(graph, find_shapes(graph), self.frontend)
        matches = match_faults(steps, self.scheme, self.qnn)
        return matches[0].fault if matches else ""


def is_tried(result: Result | None) -> bool:
    """Return whether a remedy changed a graph, which was then run."""
    return result is not None and result.end not in {UNJUDGED, UNTRIED}


def name_cause(diagnosis: Diagnosis, fault: str) -> str:
    """Return the name of the known cause of a red graph that has the pattern of a known ``fault``:
    the fault, unless experiments exclude it. It is empty if the cause is new. A rewrite that makes
    the graph right without the pattern of its fault shows a cause that no row describes yet."""
    cures = {name for remedy in diagnosis.cure for name in remedy.cures}
    return fault if fault in cures or not diagnosis.excludes(fault) else ""


def describe_cause(diagnosis: Diagnosis) -> str:
    """Return the cause that experiments show, or that they show none, with what was tried."""
    return "; ".join(cause.text for cause in advise_on_diagnosis(diagnosis).causes)


def find_reserve(waiting: Sequence[tuple[int, Result]]) -> float:
    """Return the time in seconds that it takes to confirm the suspects that are not COSTLY, at most
    CONFIRM_S."""
    cheap = sum(suspect.end not in COSTLY for _, suspect in waiting)
    return min(REPORT_S * cheap, CONFIRM_S)


def make_finding(graph: Graph, end: str, results: Sequence[Result], **fields: Any) -> Finding:
    """Return a finding: a graph, and its results with several seeds, of which some are ``end``.
    ``fields`` are further fields of the finding."""
    failing = [result for result in results if result.end == end]
    worst = min(failing, key=lambda result: result.sqnr_db)
    has_db = end == WRONG
    return Finding(
        graph=str(graph),
        end=end,
        sqnr_db=round(worst.sqnr_db, 1) if has_db else None,
        predicted_db=round(worst.predicted_db, 1) if has_db else None,
        place=worst.place,
        why=worst.why,
        operators=graph.operators,
        relations=list_relations(graph),
        failed=len(failing),
        repeats=len(results),
        **fields,
    )
