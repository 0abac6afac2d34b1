"""Shows whether a program will load and, if not, why."""

from __future__ import annotations

import msgspec

from ci.inspect.compat import Answer, Verdict, judge_compat
from ci.inspect.files import Inspected, read_runtime
from ci.report.text import show_row
from provisioning.console.command import Outcome
from provisioning.errors import ExitCode, FailedError, UsageError

CODES = {
    Verdict.YES: ExitCode.OK,
    Verdict.NO: ExitCode.FAILED,
    Verdict.UNKNOWN: ExitCode.ENVIRONMENT,
}


def judge_program(inspected: Inspected, runtime_name: str, soc: str) -> Outcome:
    """Judge whether a program loads into a runtime, on an SoC, or both. The exit code is 1 if it
    does not, and 3 if that is unknown. Raises UsageError for a file that is no program or if there
    is neither a runtime nor an SoC, and FailedError for a damaged file."""
    if not runtime_name and not soc:
        raise UsageError(
            "neither a runtime nor an SoC is specified",
            fix="add --runtime, --soc or both",
        )
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
    runtime = read_runtime(runtime_name, operators) if runtime_name else None
    answer = judge_compat(inspected.program, runtime, soc)
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
