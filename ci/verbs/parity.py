"""``parity``: report where the Buck files and the CMake files of a source tree differ."""

from __future__ import annotations

import argparse
import os
import posixpath
from datetime import datetime, timezone

from ci.parity.policy import ParityPolicy
from ci.parity.render import (
    describe_counts,
    make_annotations,
    make_document,
    render_document,
    render_sarif,
)
from ci.parity.run import ParityRequest, compare_source
from ci.report.document import show_document
from ci.report.export import check_export, export_log
from provisioning.console.command import (
    FILE,
    FLAG,
    MANY,
    Outcome,
    group_options,
    read_version,
    user_path,
)
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode
from provisioning.manifest.reader import read_policy
from provisioning.store.home import store_home


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = group_options(parser)
    text = "an ExecuTorch checkout or git directory (default: EXECUTORCH_ROOT, or '.')"
    add("--source", text, type=user_path, default=os.environ.get("EXECUTORCH_ROOT") or ".")
    add("--rev", "read this revision instead of the work tree")
    add("--scope FOLDER", "compare only this folder; repeatable", **MANY)
    add("--base REV", "show only differences that this revision does not have")
    add("--notes", "show notes about tests too", **FLAG)
    add("--sarif", "also write SARIF 2.1.0 to FILE", **FILE)
    add("--annotate", "print annotations for the CI system instead of the table", **FLAG)
    add("--no-cache", "ignore the cache, and read everything again", **FLAG)
    add("--policy", "your own policy file", **FILE)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Compare Buck with CMake. The exit code is 1 if a difference fails the policy, or if a file
    could not be read. Raises UsageError, and StoreError if a file cannot be written."""
    check_export(args.sarif, "--sarif")
    policy = read_policy("parity", ParityPolicy, args.policy)
    # Also ./FOLDER and FOLDER/, and . for the whole tree.
    scope = tuple(folder and posixpath.normpath(folder.strip("/")) for folder in args.scope)
    request = ParityRequest(
        source=args.source,
        revision=args.rev,
        scope=() if "." in scope else scope,
        base=args.base,
        today=datetime.now(timezone.utc).date(),
        cache=None if args.no_cache else store_home() / "parity",
    )
    progress.step(f"comparing Buck and CMake in {args.source}")
    report = compare_source(request, policy)
    if args.sarif:
        export_log(render_sarif(report, read_version()), args.sarif)
    if args.annotate:
        from ci.report.providers import Provider  # 0.2 s, for pull requests only

        annotations = Provider().annotate(make_annotations(report))
        text = f"{annotations}{describe_counts(report)}\n"
    else:
        text = show_document(make_document(report, notes=args.notes))
    code = ExitCode.FAILED if report.failing or report.unread else ExitCode.OK
    return Outcome(text, render_document(report), code, exact=True)
