"""Publish a run to the reviewers of a change: reports, a summary, annotations, and a file for code
scanning.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from ci.facts.kinds import read_kinds
from ci.report.annotation import (
    OWN_TOOL,
    Annotation,
    make_annotations,
    render_annotations,
    render_log,
)
from ci.report.comparison import compare_reports, list_remarks
from ci.report.document import LIMIT_BYTES, Document, render_markdown
from ci.report.export import export_log
from ci.report.overview import make_document
from ci.report.providers import Provider
from ci.report.schema import Report
from ci.report.write import read_report, write_report
from provisioning.console.caller import shown_path
from provisioning.console.command import read_version
from provisioning.console.progress import Progress
from provisioning.console.streams import user_stderr
from provisioning.console.terminal import write_through
from provisioning.errors import UsageError

VARIABLE = "GITHUB_STEP_SUMMARY"
ROOT = "The root of the model's repository."


def compare_base(report: Report, path: Path | None) -> Report:
    """Return the report with its differences from the base, a report in the file ``path``. If the
    two cannot be compared, the result contains the reason instead.

    Verdicts do not depend on the base. A remark is added for each kind of source, such as weights,
    that differs from the base.
    """
    if path is None:
        return report
    try:
        base = read_report(path)
    except UsageError as error:
        return replace(report, uncompared=f"{error.what}: {error.why}")
    if base.backend != report.backend:
        reason = f"the base ran on backend {base.backend}, this run on {report.backend}"
        return replace(report, uncompared=reason)
    comparison = compare_reports(base, report)
    remarks = dict.fromkeys([*report.remarks, *list_remarks(comparison)])
    return replace(report, comparison=comparison, uncompared="", remarks=tuple(remarks))


def publish_run(
    report: Report,
    directory: Path,
    progress: Progress,
    *,
    base: Path | None = None,
    sarif: Path | None = None,
) -> Report:
    """Write the report into ``directory`` and, as SARIF, into the file ``sarif``. Show it on the
    run's page in the CI system and, on GitHub, print annotations.

    Return the report with its differences from the base. Raises StoreError if a file cannot be
    written.
    """
    report = compare_base(report, base)
    write_report(report, directory)
    progress.step(f"report: {shown_path(directory / 'index.html')}")
    if sarif:
        write_sarif(report, sarif)
    if report.uncompared:
        progress.step(f"note: not compared with the base: {report.uncompared}")
    show_in_ci(make_document(report), make_annotations(report))
    return report


def show_in_ci(document: Document, annotations: Sequence[Annotation]) -> None:
    """Show a document on the run's page in the CI system and, on GitHub, print ``annotations``."""
    append_summary(document)
    provider = Provider()
    if provider.is_github:
        write_through(user_stderr(), provider.annotate(annotations))


def append_summary(document: Document, environ: Mapping[str, str] = os.environ) -> bool:
    """Append a document to the run's page in the CI system. Return whether the CI system has such a
    page.

    Raises StoreError if the page cannot be written.
    """
    # The limit is for the whole step: other programs may have written to its summary.
    used = 0
    with suppress(OSError):
        used = Path(environ.get(VARIABLE) or os.devnull).stat().st_size
    text = render_markdown(document, LIMIT_BYTES - used)
    return Provider(environ).add_summary(text)


def write_sarif(report: Report, path: Path, *, force: bool = False) -> Path | None:
    """Write the failures as SARIF to ``path``, and return and raise what export_log does."""
    annotations = make_annotations(report)
    rules = {kind.id: kind.meaning for kind in read_kinds()}
    for annotation in annotations:  # a report of another version may have other kinds
        rules.setdefault(annotation.finding, "A finding of another version of this project.")
    results = render_annotations([*rules], annotations)
    return export_log(render_log(OWN_TOOL, read_version(), ROOT, rules, results), path, force=force)
