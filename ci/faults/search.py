"""Searches for faults: generates graphs from blocks and at random, confirms suspects with other
seeds, shrinks them, and groups them by operators."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from statistics import fmean
from typing import Any

from msgspec import structs

from ci.faults.blocks import Cell, read_blocks, visit_blocks
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

BATCH = {"onnx": 48, "executorch": 16}  # the number of graphs of a round, per job
BLOCKS, RANDOM, BOTH = "blocks", "random", "both"
REPEATS = tuple(range(101, 111))
MOST_WHY = 60
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
    graphs from blocks, random graphs, or both in turns. With ``uses_known``, suspects with a known
    fault are only counted; they are neither confirmed nor shrunk. Each of ``rewrites`` is tried on
    a finding."""

    trial: Trial
    frontend: Frontend
    scheme: str
    soc: str
    seed: int
    jobs: int
    progress: Progress
    qnn: str = ""
    uses_known: bool = False
    rewrites: Sequence[str] = ()
    source: str = BOTH
    ends: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    examined: Counter[str] = field(default_factory=Counter)  # suspects, per feature
    known: Counter[str] = field(default_factory=Counter)
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
            together = [n for n in items if n not in alone]
            pairs = ((together, 0), (alone, 1))
            trying = [self.try_items([items[n] for n in own], size, until) for own, size in pairs]
            ahead = self.make_items(max(items) + 1, most_graphs)
            ended = zip([*together, *alone], chain(*trying), strict=True)
            results = {n: one for n, one in ended if one.end != UNTRIED}
            self.trying_s += time.monotonic() - start
            self.cpu_s += sum(result.cpu_s for result in results.values())
            for n, one in results.items():
                self.ends[one.end] += 1
                self.reasons[one.why[:MOST_WHY]] += one.end == UNJUDGED
                if n in self.cells:
                    self.tried.setdefault(self.cells[n], Counter())[one.end] += 1
                    self.stopped[self.cells[n].block] += one.stops
            waiting += [(n, one) for n, one in results.items() if one.is_suspect]
            self.show_progress(self.ends.total(), len(waiting))
            waiting, items = self.examine(waiting), ahead
        left, graphs = self.examine(waiting, all_of_them=True), self.ends.total()
        self.findings.sort(key=lambda one: (bool(one.known), one.end != WRONG, one.sqnr_db or 0.0))
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
            unjudged=dict((+self.reasons).most_common(12)),
            known=dict(self.known),
            cells=self.list_cells(),
            unconfirmed=self.unconfirmed,
            unexamined=len(left),
            unexamined_ends=dict(Counter(one.end for _, one in left)),
            findings=tuple(self.findings),
        )

    def show_progress(self, graphs: int, suspects: int) -> None:
        """Print how far the search is, at most every SHOW_S seconds."""
        now = time.monotonic()
        if now - self.shown >= SHOW_S:
            self.shown = now
            left = f", {max(self.deadline - now, 0):.0f} s left" if self.deadline < math.inf else ""
            self.progress.step(
                f"{self.scheme}, {now - self.started:.0f} s: {graphs} graphs tried, "
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
        return {
            name: {size: dict(self.tried.get(Cell(name, size), ())) for size in sizes}
            for name, (_, sizes) in read_blocks(self.frontend).items()
        }

    def try_items(self, items: Sequence[Item], bundle: int, until: float) -> Iterator[Result]:
        """Try graphs in parallel, with one worker per job, and return an iterator over the results.
        All workers start at once. A worker compiles ``bundle`` graphs together, or
        ci.faults.trial.BUNDLE if it is 0. Graphs without a result at the time ``until`` are
        UNTRIED."""
        size = min(bundle or BUNDLE, -(-len(items) // self.jobs)) or 1
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        tried = self.threads.map(lambda part: list(self.trial.run(part, bundle, until)), parts)
        return chain.from_iterable(tried)

    def confirm(self, items: Sequence[Item], bundle: int) -> list[Result]:
        """Try graphs of a suspect, ``bundle`` at a time, and return the results. Raises LateError
        if a graph has no result CONFIRM_S after the deadline of the search."""
        results = list(self.try_items(items, bundle, self.deadline + CONFIRM_S))
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
        graphs = {number: parse_graph(one.text) for number, one in waiting}
        features = {number: list_features(graph) for number, graph in graphs.items()}
        queue, left = list(waiting), []
        while queue:
            queue.sort(
                key=lambda row: (
                    ORDER.index(row[1].end),
                    min(self.examined[feature] for feature in features[row[0]]),
                    len(graphs[row[0]].nodes),
                )
            )
            number, one = queue.pop(0)
            if self.count_explained(graphs[number], one.end):
                continue
            start, costly = time.monotonic(), one.end in COSTLY
            share = (start - self.started) * (COSTLY_SHARE if costly else SHARE)
            taken_s = self.examining_s[costly]
            expected_s = fmean(taken_s) if taken_s else COSTLY_S * costly
            has_time = all_of_them or sum(taken_s) + expected_s <= share
            if start > self.deadline + CONFIRM_S * (all_of_them and not costly) or not has_time:
                left.append((number, one))
                continue
            known = len(self.findings)
            until = self.deadline - find_reserve([*queue, *left])
            try:
                self.locate(number, one, graphs[number], until)
            except LateError:
                left.append((number, one))
            found = [list_features(parse_graph(finding.graph)) for finding in self.findings[known:]]
            self.examined.update(*(found or [features[number]]))
            taken_s.append(time.monotonic() - start)
        return left

    def count_explained(self, graph: Graph, end: str) -> bool:
        """Count a suspect that needs no examination, because its graph has a known fault, or
        because it has the result and the operators of a finding. Return whether it was counted."""
        if self.uses_known and (known := self.find_known(graph)):
            self.known[known] += 1
            return True
        for index, one in enumerate(self.findings):
            if end == one.end and has_chain(graph, parse_graph(one.graph)):
                self.findings[index] = structs.replace(one, suspects=one.suspects + 1)
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

        bundle = int(suspect.stops or end == REFUSED)  # such graphs are tried alone
        shrink_until = min(until, start + (COSTLY_S if end in COSTLY else SHRINK_S))
        few = 2 * self.jobs
        fails = partial(self.fails, end, seeds=seeds[:1], bundle=bundle)
        small = shrink(graph, fails, few, few if bundle else CHUNK, shrink_until)
        if small != graph and not self.fails(end, [small], bundle=1)[0]:
            small = graph  # the small graph fails only together with others
        has_time = (now := time.monotonic()) < (shrink_until if end in COSTLY else until)
        varied = fit_variations(small, self.frontend) if has_time else []
        items = [Item(str(one), seed) for _, one in varied for seed in SEEDS]
        tried = {(result.text, result.seed): result.end for result in self.confirm(items, bundle)}
        reached = [(text, {tried[str(one), seed] for seed in SEEDS}) for text, one in varied]
        fit = [one for one in REPEATS if not find_unfit(small, one)]
        repeats = fit if has_time else fit[:2]
        again = self.confirm([Item(str(small), repeat) for repeat in repeats], bundle)
        failing = [result for result in again if result.end == end]
        if not failing or len(failing) < (len(repeats) + 1) // 2:
            self.unconfirmed += 1
            return
        worst = min(failing, key=lambda one: one.sqnr_db)
        rewrites = self.rewrites if has_time else ()
        rewritten = [Item(str(small), worst.seed, name) for name in rewrites]
        mended = zip(rewrites, self.try_items(rewritten, 1, self.deadline), strict=True)
        finding = make_finding(
            small,
            end,
            again,
            frontend=self.frontend,
            scheme=self.scheme,
            soc=self.soc,
            right=tuple(text for text, own in reached if own == {RIGHT}),
            also_wrong=tuple(text for text, own in reached if own & {*SUSPECT}),
            known=self.find_known(small),
            mended_by=tuple(name for name, one in mended if one.end == RIGHT),
            seed=self.seed,
            number=number,
            block=" ".join(self.cells.get(number, ())),
            seconds=round(time.monotonic() - self.started),
            shrunk=now < shrink_until,
        )
        self.findings.append(finding)
        self.progress.step(f"{self.scheme}, {finding.seconds:.0f} s: {describe_finding(finding)}")

    def fails(
        self, end: str, graphs: Sequence[Graph], seeds: Sequence[int] = SEEDS, bundle: int = 0
    ) -> list[bool]:
        """Return for each graph whether its result is ``end`` with any of ``seeds``. Raises
        LateError as ``confirm`` does."""
        items = [Item(str(graph), seed) for graph in graphs for seed in seeds]
        failed = [result.end == end for result in self.confirm(items, bundle)]
        return [any(failed[n : n + len(seeds)]) for n in range(0, len(failed), len(seeds))]

    def find_known(self, graph: Graph) -> str:
        """Return the name of the first known fault in a graph; empty if it has none."""
        steps = describe(graph, find_shapes(graph), self.frontend)
        known = match_faults(steps, self.scheme, self.qnn)
        return known[0].fault if known else ""


def find_reserve(waiting: Sequence[tuple[int, Result]]) -> float:
    """Return the time in seconds that it takes to confirm the suspects that are not COSTLY, at most
    CONFIRM_S."""
    return min(REPORT_S * sum(one.end not in COSTLY for _, one in waiting), CONFIRM_S)


def make_finding(graph: Graph, end: str, results: Sequence[Result], **fields: Any) -> Finding:
    """Return a finding: a graph, and its results with several seeds, of which some are ``end``.
    ``fields`` are further fields of the finding."""
    failing = [result for result in results if result.end == end]
    worst = min(failing, key=lambda one: one.sqnr_db)
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
