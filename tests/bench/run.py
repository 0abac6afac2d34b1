"""``bench NAME``: run a benchmark, print its ratios, write reports/bench/NAME.json."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from ci.report.claim import claim_reports
from provisioning.console.command import Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.files import write_whole

BENCHES: dict[str, str] = {
    "emulator": "tests.bench.emulator",
    "doctor": "tests.bench.doctor",
    "gate": "tests.bench.gate",
    "operators": "tests.bench.operators",
    "litert-operators": "tests.bench.litert_operators",
    "products": "tests.bench.products",
    "right": "tests.bench.right",
    "provisioning": "tests.bench.provisioning",
    "latency": "tests.bench.latency",
    "first": "tests.bench.first",
}


class BenchModule(Protocol):
    """What a benchmark's module offers: figures for the JSON file, and their table."""

    def run_bench(self, progress: Progress) -> Mapping[str, Any]: ...

    def render_bench(self, figures: Mapping[str, Any]) -> str: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=BENCHES, metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--reports", type=user_path, default=Path("reports"), help="where to write")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    claim_reports(args.reports / "bench")
    module = cast("BenchModule", importlib.import_module(BENCHES[args.name]))
    figures = module.run_bench(progress)
    target = args.reports / "bench" / f"{args.name}.json"
    write_whole(target, json.dumps(figures, indent=1) + "\n")
    return Outcome(module.render_bench(figures), figures)
