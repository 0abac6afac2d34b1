"""``versions-matrix``: run the known faults through onnxruntime with several versions of QNN."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import msgspec

from ci.faults.expected import Rerun, list_tried, make_matrix, render_matrix
from ci.faults.known import read_faults
from ci.report.claim import claim_reports
from ci.report.export import check_session
from ci.verbs.options import ONNX_TORCH, add_option, add_options, require_effect
from ci.verbs.steps import require_packages
from ci.verbs.upgrade_report import check_word, find_side, rerun_faults
from provisioning.console.command import MANY, Outcome
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, QnnCiError, UsageError
from provisioning.files import write_whole
from provisioning.versions import parse_version

# The wheels with QNN 2.47.0, 2.48.40, 2.49.40, 2.50.40 and 2.51.0. The first wheel needs an older
# onnxruntime (docs/guides/upgrades.md).
SIDES = (
    "onnxruntime-qnn==2.3.0+onnxruntime==1.26.0",
    "onnxruntime-qnn==2.4.0",
    "onnxruntime-qnn==2.5.0",
    "onnxruntime-qnn==2.6.0",
    "onnxruntime-qnn==2.7.0",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = partial(add_option, parser, "")  # "": in no group of the help
    wheels_help = (
        "a wheel, such as onnxruntime-qnn==2.7.0; repeatable; default: all known wheels, or"
        " none with --sdk"
    )
    add("--with QNN", wheels_help, dest="sides", **MANY)  # args.with would be a syntax error
    add("--sdk", "an SDK's directory or version; repeatable", **MANY)
    add("--fault", "the name of a fault; repeatable", **MANY)
    # What the shared options do here: their help texts have a gap for it.
    gaps = {"--known": "print the results recorded in faults.toml", "--reports": "versions_matrix/"}
    add_options(parser, "--known", group="", gaps=gaps)
    add_options(parser, "--reports", gaps=gaps)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run the known faults with each QNN, or print the recorded results. The exit code is 1 if a
    result differs from the recorded one, or if a version cannot be run. Raises UsageError."""
    faults = [fault for fault in read_faults() if not args.fault or fault.name in args.fault]
    if wrong := sorted(set(args.fault) - {fault.name for fault in faults}):
        raise UsageError(
            f"--fault {wrong[0]} is not a known fault",
            fix="pass a name from manifests/policies/faults.toml",
        )
    if args.known:
        require_effect(args, "--known", "--fault")
        tried = list(list_tried(faults, "onnx"))
        recorded = make_matrix(_sort_versions(tried), tried)
        return Outcome(render_matrix(recorded), msgspec.to_builtins(recorded))
    words = [*(args.sides or (() if args.sdk else SIDES)), *args.sdk]
    for word in words:
        check_word(word)
    directory = args.reports / "versions_matrix"
    require_packages(("torch", "onnx"), ONNX_TORCH)  # the wheels bring onnxruntime
    check_session(directory, ("matrix.json", "matrix.md"))
    claim_reports(directory)
    runs: list[Rerun] = []
    failures = []
    for word in words:
        try:
            _, side_runs = rerun_faults(find_side(word, "test_onnx", progress), faults, progress)
        # One version that cannot be fetched or run does not end the matrix.
        except QnnCiError as error:
            failures.append(f"{word}: {error.what}")
            continue
        runs += side_runs
    matrix = make_matrix(_sort_versions(runs), runs, failures)
    page = render_matrix(matrix)
    write_whole(directory / "matrix.json", msgspec.json.format(msgspec.json.encode(matrix)))
    write_whole(directory / "matrix.md", page.encode())
    differing = [run for run in runs if run.problem]
    lines = (f"{run.fault} {run.scheme} {run.qnn}: {run.problem}\n" for run in differing)
    text = page + "".join(lines)
    code = ExitCode.FAILED if differing or failures else ExitCode.OK
    return Outcome(text, msgspec.to_builtins(matrix), code)


def _sort_versions(runs: Sequence[Rerun]) -> list[str]:
    """Return the versions of QNN in the results, oldest first."""
    # By version, whatever the command's order: it decides which result is the earlier one, and so
    # whether a change is a fix.
    return sorted({run.qnn for run in runs}, key=parse_version)
