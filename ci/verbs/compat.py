"""``compat FILE --runtime ... --soc ...``: show whether a program will load and, if not, why."""

from __future__ import annotations

import argparse

import msgspec

from ci.inspect.compat import Answer, Verdict, judge_compat
from ci.inspect.files import inspect_file, read_runtime
from ci.report.text import show_row
from provisioning.console.command import FILE, Outcome, nonempty_word
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, FailedError, UsageError
from provisioning.manifest.targets import find_soc

CODES = {
    Verdict.YES: ExitCode.OK,
    Verdict.NO: ExitCode.FAILED,
    Verdict.UNKNOWN: ExitCode.ENVIRONMENT,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", **FILE, help="a .pte, a context binary or an ONNX context model")
    text = "a directory with QNN's libraries, an APK or AAR, ARTIFACT@VERSION, or a QNN version"
    parser.add_argument("--runtime", type=nonempty_word, metavar="RUNTIME", help=text)
    text = "the SoC to run on, such as SM8750"
    parser.add_argument("--soc", default="", type=str.upper, metavar="SOC", help=text)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Judge whether a program loads. The exit code is 1 if it does not, and 3 if that is unknown.
    Raises UsageError for a file that is no program, and FailedError for a damaged one."""
    if not args.runtime and not args.soc:
        raise UsageError(
            "neither a runtime nor an SoC is specified",
            fix="add --runtime, --soc or both",
        )
    if args.soc:
        find_soc(args.soc)
    progress.step(f"reading {args.file.name}")
    inspected = inspect_file(args.file)
    if inspected.program is None:
        if inspected.kind == "onnx":
            raise FailedError(f"{inspected.file} cannot be checked", why=f"it {inspected.damage}")
        raise UsageError(
            f"{inspected.file} is not a program",
            why=inspected.why_no_program,
            fix="pass a .pte, a compiled .tflite or a context binary",
        )
    operators = {
        operator for method in inspected.program.methods for operator in method.cpu_operators
    }
    runtime = read_runtime(args.runtime, operators) if args.runtime else None
    answer = judge_compat(inspected.program, runtime, args.soc)
    return Outcome(_render(answer), msgspec.to_builtins(answer), CODES[answer.verdict])


def _render(answer: Answer) -> str:
    where = " on ".join(filter(None, (answer.runtime, answer.soc)))
    by = ", ".join(axis.value for axis in answer.decided_by)
    head = f"{answer.file} for {where}: {answer.verdict.value}"
    rows = (
        f"  {row.axis.value:13}{row.verdict.value:13}{show_row(row.why)}\n" for row in answer.rows
    )
    ends = "" if answer.verdict is Verdict.YES else f" ({by})"
    return f"{''.join(rows)}{head}{ends}\n"
