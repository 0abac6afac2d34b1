"""What a run shows to reviewers of a change: a summary, annotations, a file for code scanning."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from msgspec.structs import replace

from ci.report.annotation import make_annotations
from ci.report.comparison import Comparison, compare_reports
from ci.report.github import append_summary
from ci.report.providers import describe_dropped, detect_provider
from ci.report.sarif import render_annotations, render_log
from ci.report.schema import Report
from ci.report.write import read_report
from provisioning.console.command import read_version, user_path
from provisioning.console.progress import Progress
from provisioning.console.terminal import write_through
from provisioning.errors import UsageError
from provisioning.files import write_json

RULE = "case-failed"
RULES = {RULE: "A model that QNN refuses, or computes otherwise than PyTorch does."}
ROOT = "The root of the repository that the model is in."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that the verbs with a report share."""
    add = parser.add_argument
    add("--base", type=user_path, metavar="FILE", help="a report.json of before, to compare with")
    add("--sarif", type=user_path, metavar="FILE", help="write failures there as SARIF 2.1.0")


def read_base(path: Path | None, report: Report) -> tuple[Comparison | None, str]:
    """Return what differs from a base, or why nothing can be compared: no verdict depends on it."""
    if path is None:
        return None, ""
    try:
        base = read_report(path)
    except UsageError as error:
        return None, f"{error.what}: {error.why}".rstrip(": ")
    if base.backend != report.backend:
        return None, f"the base is of backend {base.backend}, this run of {report.backend}"
    return compare_reports(base, report), ""


def add_remarks(report: Report, base: Comparison | None) -> Report:
    """Return the report with what its cases were made from that is not the base's."""
    remarks = dict.fromkeys([*report.remarks, *(base.remarks if base else ())])
    return replace(report, remarks=tuple(remarks))


def publish_run(
    report: Report,
    base: Comparison | None,
    note: str,
    args: argparse.Namespace,
    progress: Progress,
) -> None:
    """Show a run and what differs from its base, or the ``note`` why that is not known, on the page
    of the CI system, with annotations, and write what is asked for.

    Raises StoreError when a file that was asked for cannot be written.
    """
    if args.sarif:
        write_sarif(report, args.sarif)
    if note:
        progress.step(f"note: nothing to compare with: {note}")
    if warning := describe_dropped():
        progress.step(warning)
    append_summary(report, base=base, note=note)
    provider = detect_provider()
    if provider.is_github:
        write_through(sys.stderr, provider.annotate(make_annotations(report)))


def write_sarif(report: Report, path: Path) -> None:
    """Write the SARIF log of the failures. Raises StoreError when it cannot be written."""
    results = render_annotations(RULE, make_annotations(report))
    write_json(path, render_log("executorch-qnn-ci", read_version(), ROOT, RULES, results))
