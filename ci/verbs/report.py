"""``report PATH``: show a report.json again, rewrite the other files of the report, or merge
shards."""

from __future__ import annotations

import argparse
import html
import json
import re
from functools import partial
from pathlib import Path

from ci.report import publishing
from ci.report.annotation import make_annotations
from ci.report.document import WORD_JOINER, render_markdown, show_document
from ci.report.export import export_files
from ci.report.merge import merge_reports
from ci.report.overview import make_document
from ci.report.providers import Provider
from ci.report.schema import Report, make_json_schema
from ci.report.write import read_report, render_files, report_data
from ci.verbs.options import add_option, add_options, check_values, require_effect
from provisioning.console.caller import shown_path
from provisioning.console.command import DIR, FLAG, Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.console.streams import user_stdout
from provisioning.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = partial(add_option, parser, "")
    text = "a report.json or its directory; several are merged as the shards of one run"
    parser.add_argument("path", help=text, type=user_path, nargs="*")
    add("--to", "write report.json, junit.xml and index.html to this directory", type=user_path)
    text = "add the report to the run's page in the CI system; outside CI, print it as Markdown"
    add("--summary", text, **FLAG)
    add("--annotate", "print annotations for the CI system instead of the table", **FLAG)
    text = "show how each case changed over all reports below DIR, and write trend.html"
    add("--trend", text, **DIR)
    add_options(parser, "--base", "--sarif")
    force = "rename existing files that this command did not write, instead of refusing them"
    add("--force", force, **FLAG, needs="--to or --sarif or --trend")
    add("--schema", "print the schema of report.json", **FLAG)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Show a report, or rewrite its other files. The exit code is that of the report. Raises
    UsageError for a report that cannot be read, and StoreError if a file cannot be written."""
    check_values(args)
    if args.schema:
        require_effect(args, "--schema")
        schema = make_json_schema()
        return Outcome(json.dumps(schema, indent=1) + "\n", schema)
    if args.trend:
        require_effect(args, "--trend", "--to")
        if args.path:
            raise UsageError(
                "--trend takes no report",
                fix="leave out PATH: --trend names the directory with the reports",
            )
        return show_trend(args.trend, args.to or args.trend, progress, force=args.force)
    if not args.path:
        raise UsageError("no report is specified", fix="pass a report.json or its directory")
    if args.annotate and args.summary:
        raise UsageError(
            "--annotate cannot be used with --summary",
            why="each replaces the table",
            fix="run the command once with each",
        )
    reports = [read_report(path) for path in args.path]
    report = merge_reports(reports) if len(reports) > 1 else reports[0]
    report = publishing.compare_base(report, args.base)
    if args.to:
        export_files(render_files(report), args.to, progress, force=args.force)
        progress.step(f"written to {shown_path(args.to)}")
    if args.sarif and (aside := publishing.write_sarif(report, args.sarif, force=args.force)):
        progress.step(f"an existing file was renamed: it is now {shown_path(aside)}")
    if args.annotate:
        text = Provider().annotate(make_annotations(report))
    else:
        text = summarize_report(report) if args.summary else show_document(make_document(report))
    return Outcome(text, report_data(report), report.exit_code, exact=True)


def show_trend(folder: Path, place: Path, progress: Progress, *, force: bool) -> Outcome:
    """Write trend.html with the reports below ``folder`` to ``place``, and return the trend as text
    and as data. The exit code is 0 even if cases failed."""
    from ci.report.trend import (
        PAGE,
        describe_trend,
        follow_cases,
        read_reports,
        render_trend,
        trend_data,
    )

    reports = read_reports(folder, progress)
    rows = follow_cases(reports)
    export_files({PAGE: render_trend(reports, rows)}, place, progress, force=force)
    progress.step(f"written: {shown_path(place / PAGE)}")
    return Outcome(describe_trend(reports, rows), trend_data(reports, rows))


def summarize_report(report: Report) -> str:
    """Add a report to the run's page in the CI system, and return its table; outside CI, return it
    as Markdown, on a terminal without HTML tags and entities. Raises StoreError if the page cannot
    be written."""
    document = make_document(report)
    if publishing.append_summary(document):
        return show_document(document)
    text = render_markdown(document)
    if not user_stdout().isatty():
        return text
    bare = re.sub(r"</?(?:pre|details|summary)>", "", text)  # for a person
    return re.sub(r"\n{3,}", "\n\n", html.unescape(bare).replace(WORD_JOINER, ""))
