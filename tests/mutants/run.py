"""``mutants [PACKAGE ...]``: plant small faults in what decides verdicts, count those noticed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from provisioning.console.command import Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.files import write_whole
from tests.mutants.packages import PACKAGES, Sample


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("packages", nargs="*", help="some of: " + ", ".join(PACKAGES))
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs found")
    parser.add_argument("--jobs", type=int, default=0, help="mutants at a time (default: CPUs)")
    parser.add_argument(
        "--sample", type=int, default=0, metavar="N", help="judge N mutants a package, not all"
    )
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument("--reports", type=user_path, default=Path("reports"), help="where to write")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    # mutmut, which they need, is not installed where only the parser is tested.
    from tests.mutants.render import render_json, render_page, render_table
    from tests.mutants.verdicts import read_result
    from tests.mutants.workplace import ROOT, discard, place_of, plant_mutants

    if args.jobs < 0:
        raise UsageError(f"--jobs {args.jobs} is less than one", fix="leave it out for all CPUs")
    if args.sample < 0:
        raise UsageError(f"--sample {args.sample} is less than one", fix="leave it out for all")
    sample = Sample(args.sample, args.seed)
    wanted = [name.strip("/") for name in args.packages] or list(PACKAGES)
    for name in wanted:
        if name not in PACKAGES:
            raise UsageError(f"no package {name!r}", fix="one of: " + ", ".join(PACKAGES))
    results = []
    for name in wanted:
        if args.fresh:
            discard(place_of(name))
        plant_mutants(name, args.jobs or os.cpu_count() or 1, sample, progress)
        result = read_result(ROOT, name, place_of(name), sample)
        stem = args.reports / "mutants" / name.replace("/", ".")
        write_whole(stem.with_name(f"{stem.name}.json"), render_json(result))
        write_whole(stem.with_name(f"{stem.name}.md"), render_page(result))
        results.append(result)
    return Outcome(
        render_table(results, args.reports), {one.package: one.counts for one in results}
    )
