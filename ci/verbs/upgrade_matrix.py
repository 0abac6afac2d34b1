"""``upgrade-report --matrix``: run the known faults through onnxruntime with several versions of
QNN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ci.faults.expected import Rerun, list_tried, make_matrix, render_matrix
from ci.faults.known import Fault, read_faults
from ci.report.claim import claim_reports
from ci.report.export import check_session
from ci.verbs.options import ONNX_TORCH
from ci.verbs.sides import check_word, find_side, rerun_faults
from ci.verbs.steps import require_packages
from provisioning.console.caller import shown_path
from provisioning.console.command import Outcome
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


@dataclass(frozen=True)
class MatrixRequest:
    """The versions of QNN, as ``wheels`` and ``sdks``, and the faults to run with each. Without a
    version, the faults run with SIDES; if ``shows_recorded``, nothing runs, and the recorded
    results are shown."""

    wheels: tuple[str, ...]
    sdks: tuple[str, ...]
    faults: tuple[Fault, ...]
    reports: Path
    shows_recorded: bool = False


def find_faults(names: Sequence[str]) -> tuple[Fault, ...]:
    """Return the known faults with these names, or all without a name. Raises UsageError."""
    known_faults = read_faults()
    if unknown_names := sorted({*names} - {fault.name for fault in known_faults}):
        raise UsageError(
            f"--fault {unknown_names[0]} is not a known fault",
            fix="pass a name from manifests/policies/faults.toml",
        )
    return tuple(fault for fault in known_faults if not names or fault.name in names)


def show_recorded(faults: Sequence[Fault]) -> Outcome:
    """Return the matrix of the recorded results."""
    tried = list(list_tried(faults, "onnx"))
    recorded = make_matrix(_sort_versions(tried), tried)
    return Outcome(render_matrix(recorded), msgspec.to_builtins(recorded))


def run_matrix(request: MatrixRequest, progress: Progress) -> Outcome:
    """Run the known faults with each QNN. The exit code is 1 if a result differs from the recorded
    one, or if a version cannot be run. Raises UsageError."""
    words = [*request.wheels, *request.sdks] or SIDES
    for word in words:
        check_word(word)
    directory = request.reports / "versions_matrix"
    require_packages(("torch", "onnx"), ONNX_TORCH)  # the wheels bring onnxruntime
    check_session(directory, ("matrix.json", "matrix.md"))
    claim_reports(directory)
    runs: list[Rerun] = []
    failures = []
    for word in words:
        try:
            side = find_side(word, "test_onnx", progress)
            _, side_runs = rerun_faults(side, request.faults, progress)
        # One version that cannot be fetched or run does not end the matrix.
        except QnnCiError as error:
            failures.append(f"{word}: {error.what}")
            continue
        runs += side_runs
    matrix = make_matrix(_sort_versions(runs), runs, failures)
    page = render_matrix(matrix)
    write_whole(directory / "matrix.json", msgspec.json.format(msgspec.json.encode(matrix)))
    write_whole(directory / "matrix.md", page.encode())
    progress.step(f"report: {shown_path(directory / 'matrix.md')}")
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
