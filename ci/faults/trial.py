"""Tries graphs in workers. If a graph crashes its worker, hangs or needs too much memory, the other
graphs are still tried."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import msgspec

from ci.cases import pool
from ci.faults.known import CRASHED, REFUSED, Frontend
from ci.faults.results import LATE, UNJUDGED, UNTRIED, Edit, Item, Result
from ci.models.schemes import Scheme

MOST_TEXT = 300
# In bundles, a graph takes 0.02 s of CPU time through onnxruntime, and 0.55 s through ExecuTorch.
BUNDLE = 8  # the number of graphs that are compiled together
FIRST_S, EACH_S = 60.0, 10.0  # time limits for a process and for each graph of a bundle
# A generated graph can make ExecuTorch's lowering hang or take all memory: a worker grew to 19.8
# GB.
MOST_BYTES = 3 << 30  # a bundle needs less than 2 GiB
NUMBERS = count()


@dataclass(frozen=True)
class TrialJob:
    """A job that tries graphs as one program. If that program fails, each quarter of the graphs is
    tried as a program: a small program takes so long that halves would take longer. ``edit``
    applies the rewrites of items, which are tried one at a time."""

    items: Sequence[Item]
    frontend: Frontend
    scheme: Scheme
    soc: str
    options: Mapping[str, str]
    edit: Edit | None = None

    def __call__(self) -> list[Result]:
        """Return the results, in the order of the items, each with its share of the CPU time."""
        before = time.process_time()
        results = self.run_bundle(self.items)
        share = (time.process_time() - before) / len(results)
        return [msgspec.structs.replace(result, cpu_s=share) for result in results]

    def run_bundle(self, items: Sequence[Item]) -> list[Result]:
        """Return the results of graphs, which are compiled together if possible."""
        try:
            return self.run_together(items)
        except Exception as error:  # noqa: BLE001 - tools raise anything for a strange graph
            if len(items) > 1:
                size = max(len(items) // 4, 1)
                parts = (items[start : start + size] for start in range(0, len(items), size))
                return [result for part in parts for result in self.run_bundle(part)]
            cause = error.__cause__ or error
            text = " ".join(f"{type(cause).__name__}: {cause}".split())
            # An error before QNN receives the graph is not a fault of the compiler.
            return [stop(items[0], REFUSED if str(error) == "QNN" else UNJUDGED, text)]

    def run_together(self, items: Sequence[Item]) -> list[Result]:
        """Compile and run graphs as one program, and return their results. Raises the errors of
        ``run_items``, ``run_modules`` or ``run_converted``."""
        if self.frontend == "onnx":
            from ci.faults.onnx_graphs import run_items

            return run_items(items, self.scheme, self.options, self.edit)
        if self.frontend == "litert":
            from ci.faults.litert_runner import run_converted

            return run_converted(items, self.scheme, self.soc, self.options, self.edit)
        from ci.faults.executorch_runner import run_modules

        return run_modules(items, self.scheme, self.soc, self.edit)


@dataclass(frozen=True)
class Trial:
    """Tries graphs as ``job`` says, which has none itself. ``scratch`` is an empty directory for
    logs."""

    workers: pool.Pool
    job: TrialJob
    scratch: Path

    def run(
        self, items: Sequence[Item], bundle_size: int = 0, deadline: float = math.inf
    ) -> Iterator[Result]:
        """Yield the result of each graph, in order. ``bundle_size`` graphs are tried at a time, or
        BUNDLE if it is 0. Graphs without a result at ``deadline`` (a time of time.monotonic) are
        UNTRIED."""
        size = bundle_size or BUNDLE
        for start in range(0, len(items), size):
            yield from self.run_bundle(items[start : start + size], deadline)

    def run_bundle(self, items: Sequence[Item], deadline: float) -> list[Result]:
        """Return the results of graphs that are tried together. If their worker crashes, exceeds
        its time limit or grows too large, each graph is tried alone. A graph that causes this alone
        is CRASHED or LATE, or UNTRIED if the machine was too busy."""
        limit_s = min(FIRST_S + EACH_S * len(items), deadline - time.monotonic())
        if limit_s > 0:
            log = self.scratch / f"{next(NUMBERS)}.log"
            job = replace(self.job, items=items)
            ended = self.workers.run(job, log, limit_s, max_bytes=MOST_BYTES)
            log.unlink(missing_ok=True)
            if not ended.failure:
                return list(ended.result)
        if time.monotonic() >= deadline:
            return [Result(item.text, item.seed, UNTRIED) for item in items]
        if len(items) > 1:
            return [result for item in items for result in self.run_bundle([item], deadline)]
        if ended.starved:  # the machine was too busy, which is no fault of the graph
            return [stop(items[0], UNTRIED, ended.failure)]
        return [stop(items[0], LATE if pool.LATE in ended.failure else CRASHED, ended.failure)]


def stop(item: Item, end: str, why: str) -> Result:
    """Return the result of a graph that keeps those compiled with it from having one."""
    return Result(item.text, item.seed, end, why=why[:MOST_TEXT], stops=True)
