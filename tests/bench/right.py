"""How many right programs the gate rejects: graphs made by machine, in both front ends.

A program is right if its outputs are, compared with float32 alone: no row is more than 6 dB farther
from float32 than that of the quantized model, unless it has 46 dB (in float16: 40 dB). The graph
must have no known fault. For each lane, all right programs are counted, and those of graphs that
are right in both front ends. QNN_CI_MINUTES is for how long each pair of schemes is tried, 30 by
default. Each line of progress has the figures until then, so that a run that is ended early has a
result, too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from ci.facts.finding import Question
from ci.faults.generate import generate
from ci.faults.graph import parse_graph
from ci.faults.known import describe
from ci.faults.match import match_faults
from ci.faults.results import Item, Result, Runs
from ci.judging.figures import Array, measure_pooled
from ci.judging.gate import Expected, References, judge_output
from ci.judging.noise import Prediction
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo
from ci.report.schema import Threshold
from ci.verbs.sides import find_side
from provisioning.artifacts.environment import provision_profile
from provisioning.console.process import run_process
from provisioning.console.progress import Progress

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Lane:
    """A front end. ``size`` graphs are compiled at once. ``wheel`` has another version of QNN."""

    name: str
    frontend: str
    profile: str
    size: int
    wheel: str = ""


LANES = (
    Lane("executorch", "executorch", "emulator", 16),
    Lane("onnx", "onnx", "onnx", 8),
    Lane("onnx, QNN 2.51", "onnx", "onnx", 8, "onnxruntime-qnn==2.7.0"),
)
ROWS = (("fp16",) * 3, ("8a8w", "u8", "u8"), ("16a8w", "u16a8w", "u16a8w"))  # a scheme a lane
SEED, WORSE_DB, LEAST_DB, SILENCE_S = 69, 6.0, 40.0, 300.0
LIMITS = Threshold(scheme="graphs")
Row = dict[str, Any]


def judge_row(graph: str, runs: Runs, places: Sequence[int], is_float: bool) -> Row:
    """Return what is true of a graph and what the gate says."""
    right, rejected, strict, places_of = True, False, False, []
    floats = float_outputs(graph)
    for number, index in enumerate(places):
        best = np.stack([sample[index] for sample in runs.right]).astype(np.float64)
        outputs = np.stack([sample[index] for sample in runs.actual]).astype(np.float64)
        exact = floats[number].astype(np.float64)
        right &= is_right(exact, best, outputs, is_float)
        info = TensorInfo("float32", best.shape[1:], step=runs.steps[index])
        eager, best_expected = Expected(exact, exact, exact), Expected(best, best, best)
        noise = [Prediction(best, np.asarray(runs.noise[index]), info)]
        references = References([eager], None if is_float else [best_expected], noise)
        for limits in (LIMITS, structs.replace(LIMITS, strict_noise=True)):
            judgement = judge_output(references, 0, outputs, info, limits)
            fails = judgement.fails(Question.FAITHFUL) or judgement.fails(Question.QUANTIZED)
            strict |= fails and limits.strict_noise
            rejected |= fails and not limits.strict_noise
            if fails and not limits.strict_noise:
                worst = judgement.excesses[0]
                places_of.append([worst.place, round(worst.over_db, 1), round(worst.raised_db, 2)])
    return {"right": right, "rejected": rejected, "strict": strict, "places": places_of}


def float_outputs(text: str) -> list[Array]:
    """Return the outputs of the float32 graph, [sample, *shape] each."""
    from ci.faults.torch_graphs import compute

    graph = parse_graph(text)
    values = compute(graph, 0)
    outputs = []
    for name in graph.outputs:
        samples = [np.asarray(sample[name]) for sample in values]
        outputs.append(np.stack(samples))
    return outputs


def is_right(exact: Array, best: Array, outputs: Array, is_float: bool) -> bool:
    """Return whether no row of an output is much farther from float32 than that of its model."""
    for row in np.ndindex(exact.shape[:2]):
        reached = measure_pooled(exact[row], outputs[row])
        lowest = LEAST_DB if is_float else measure_pooled(exact[row], best[row]) - WORSE_DB
        if not reached >= min(lowest, LEAST_DB + WORSE_DB):
            return False
    return True


def run_graphs(frontend: str, size: int, scheme: Scheme, first: int) -> Iterator[Row]:
    """Lower and run graphs, a bundle at a time, and yield their rows. If a bundle fails, its halves
    are tried; a graph that fails alone is left out."""
    captured: list[Any] = []

    def capture(
        items: Sequence[Item], counts: Sequence[int], runs: Runs, left: Any, scheme: Any
    ) -> list[Result]:
        del scheme
        captured[:] = [items, counts, runs, left]
        return []

    if frontend == "onnx":
        from ci.faults import onnx_graphs as runner
        from ci.onnx.options import choose_options, find_library

        options = choose_options(scheme, "SM8650", {})
        library = find_library(Path(os.environ["QNN_SDK_ROOT"]), {})
        options = {**options, "backend_path": str(library)}
        run: Any = lambda items: runner.run_items(items, scheme, options)  # noqa: E731
    else:
        from ci.faults import executorch_runner as runner  # type: ignore[no-redef]

        runner.before_forks()  # type: ignore[attr-defined]
        run = lambda items: runner.run_modules(items, scheme, "SM8650")  # noqa: E731
    runner.judge_graphs = capture

    def run_bundle(items: Sequence[Item]) -> Iterator[tuple[Item, Row]]:
        captured.clear()
        try:
            run(items)
        except Exception as error:  # noqa: BLE001 - of a graph that QNN refuses
            half = len(items) // 2
            print(f"{len(items)} graphs: {type(error).__name__}", file=sys.stderr, flush=True)
            for part in (items[:half], items[half:]) if half else ():
                yield from run_bundle(part)
            return
        _, counts, runs, left = captured
        place = 0
        for n, (item, outputs) in enumerate(zip(items, counts, strict=True)):
            places, place = range(place, place + outputs), place + outputs
            if n not in left:
                yield item, judge_row(item.text, runs, places, scheme is Scheme.FP16)

    for start in count(first, size):
        items = [Item(str(generate(SEED, n)), 0) for n in range(start, start + size)]
        numbers = {item.text: start + n for n, item in enumerate(items)}
        print(f"AT {start + size}", flush=True)
        for item, row in run_bundle(items):
            graph = parse_graph(item.text)
            faults = match_faults(describe(graph), scheme.value, "2.49.40")
            operators = [node.operator for node in graph.nodes.values()]
            facts = {"number": numbers[item.text], "known": bool(faults), "operators": operators}
            yield {**facts, **row}


def measure(lane: Lane, scheme: str, minutes: float, progress: Progress) -> dict[int, Row]:
    """Return the rows of a lane, by number. A process that dies is started again behind the bundle
    that killed it."""
    environment = provision_profile(lane.profile, progress).apply(os.environ)
    if lane.wheel:
        side = find_side(lane.wheel, "test_onnx", progress)
        libraries = f"{side.sdk}/lib/x86_64-linux-clang:{environment['LD_LIBRARY_PATH']}"
        environment |= {"QNN_SDK_ROOT": side.sdk, "LD_LIBRARY_PATH": libraries}
        environment["PYTHONPATH"] = ":".join(map(str, side.packages))
    end, at = time.monotonic() + 60 * minutes, 0
    rows: dict[int, Row] = {}
    logs = ROOT / "reports" / "bench" / "right"
    logs.mkdir(parents=True, exist_ok=True)

    def note(line: str) -> None:
        nonlocal at
        kind, _, value = line.partition(" ")
        if kind == "AT":
            at = int(value)
            progress.step(f"bench right: {describe_rows(lane, scheme, rows.values())}")
        elif kind == "ROW":
            row = json.loads(value)
            rows[row["number"]] = row

    while (left_s := end - time.monotonic()) > 0:
        run_process(
            [
                sys.executable,
                "-m",
                "tests.bench.right",
                lane.frontend,
                str(lane.size),
                scheme,
                str(at),
            ],
            cwd=ROOT,
            env=environment,
            on_line=note,
            log=logs / f"{lane.name} {scheme} {at}.txt",
            timeout_s=left_s,
            silence_s=SILENCE_S,
            check=False,
            merged=False,
        )
    return rows


def describe_rows(lane: Lane, scheme: str, rows: Collection[Row]) -> str:
    """Return how many graphs of a lane are done, right and rejected."""
    right = [row for row in rows if is_good(row)]
    rejected = sum(bool(row["rejected"]) for row in right)
    return f"{lane.name} {scheme}, {len(rows)} graphs, {len(right)} right, {rejected} rejected"


def run_bench(progress: Progress) -> Mapping[str, Any]:
    """Measure each row of schemes, all lanes at a time."""
    minutes = float(os.environ.get("QNN_CI_MINUTES", "30"))
    figures = {}
    for schemes in ROWS:
        with ThreadPoolExecutor(len(schemes)) as pool:
            tasks = [
                pool.submit(measure, lane, scheme, minutes, progress)
                for lane, scheme in zip(LANES, schemes, strict=True)
            ]
            rows = [task.result() for task in tasks]
        right = []
        for graphs in rows:
            good = {number for number, row in graphs.items() if is_good(row)}
            right.append(good)
        times = Counter(n for graphs in right for n in graphs)
        for lane, scheme, lane_rows, good in zip(LANES, schemes, rows, right, strict=True):
            figures[f"{lane.name} {scheme} alone"] = summarize([lane_rows[n] for n in sorted(good)])
            shared = [lane_rows[n] for n in sorted(good) if times[n] > 1]
            figures[f"{lane.name} {scheme} shared"] = summarize(shared)
    return figures


def is_good(row: Row) -> bool:
    return bool(row["right"]) and not row["known"]


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the counts of a lane, and the rejected graphs."""
    rejected = [row for row in rows if row["rejected"]]
    operators = Counter(operator for row in rejected for operator in {*row["operators"]})
    totals = Counter(operator for row in rows for operator in {*row["operators"]})
    return {
        "right": len(rows),
        "rejected": len(rejected),
        "interval": find_interval(len(rejected), len(rows)),
        "strict": sum(row["strict"] for row in rows),
        "operators": {operator: [operators[operator], totals[operator]] for operator in operators},
        "graphs": [[row["number"], row["operators"], row["places"]] for row in rejected],
    }


def find_interval(number: int, total: int) -> list[float]:
    """Return the 95 % confidence interval of a share (Clopper and Pearson)."""
    low = find_share(number - 1, total, 0.975) if number else 0.0
    return [low, find_share(number, total, 0.025) if number < total else 1.0]


def find_share(most: int, total: int, chance: float) -> float:
    """Return the share of which at most ``most`` of ``total`` are found with this chance."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        term, reached = (1 - middle) ** total, 0.0  # of 0, 1, ... found
        for k in range(most + 1):
            reached += term
            term *= (total - k) / (k + 1) * middle / (1 - middle)
        low, high = (middle, high) if reached > chance else (low, middle)
    return low


def render_bench(figures: Mapping[str, Any]) -> str:
    """Return the table: a lane per row, then the rejected graphs."""
    rows = [f"{'':32s} right   rejected   95 % interval     with strict_noise"]
    for lane, counts in figures.items():
        low, high = counts["interval"]
        rows.append(
            f"{lane:32s} {counts['right']:5d} {counts['rejected']:10d}   {low:.2%} to"
            f" {high:.2%} {counts['strict']:10d}"
        )
    for lane, counts in figures.items():
        rows += [
            f"{lane} {number}: {' '.join(ops)} {where}" for number, ops, where in counts["graphs"]
        ]
    return "\n".join(rows)


def main() -> int:
    frontend, size, scheme, first = sys.argv[1:]
    for row in run_graphs(frontend, int(size), Scheme(scheme), int(first)):
        print(f"ROW {json.dumps(row)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
