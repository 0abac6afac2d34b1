"""Shows whether a program will load and, if not, why."""

from __future__ import annotations

from dataclasses import dataclass, replace

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


MAIN, AUXILIARY = "tf_lite_prefill_decode", "tf_lite_aux"


@dataclass(frozen=True)
class BundleAnswer:
    """The answer for a .litertlm file: one per model that is compiled for the NPU. ``lacking`` are
    the parts without which LiteRT-LM does not run the file on the NPU."""

    file: str
    runtime: str
    soc: str
    verdict: Verdict
    models: tuple[Answer, ...]
    lacking: tuple[str, ...] = ()
    schema_version: int = 1


def judge_bundle(inspected: Inspected, runtime_name: str, soc: str) -> Outcome:
    """Judge the models of a .litertlm file as judge_program does, and whether parts are missing.
    The answer is "cannot tell" if no model is compiled for the NPU. Raises FailedError for a
    damaged file, and UsageError if there is neither a runtime nor an SoC."""
    if not runtime_name and not soc:
        raise UsageError(
            "neither a runtime nor an SoC is specified", fix="add --runtime, --soc or both"
        )
    if inspected.damage or inspected.bundle is None:
        raise FailedError(f"{inspected.file} cannot be loaded", why=f"it {inspected.damage}")
    runtime = read_runtime(runtime_name) if runtime_name else None
    sections = inspected.bundle.sections
    kinds = [str(section.items.get("model_type", "")).lower() for section in sections]
    answers = []
    for kind, section in zip(kinds, sections, strict=True):
        if section.model and section.model.contexts:
            answer = judge_compat(section.model, runtime, soc)
            answers.append(replace(answer, file=kind or section.content))
    # LiteRT-LM reads masks, positions and cache updates from it: "TF_LITE_AUX not found".
    lacking = [kind for kind in (MAIN, AUXILIARY) if answers and kind not in kinds]
    verdicts = [answer.verdict for answer in answers] or [Verdict.UNKNOWN]
    verdict = next(kind for kind in (Verdict.NO, Verdict.UNKNOWN, Verdict.YES) if kind in verdicts)
    if lacking:
        verdict = Verdict.NO
    judged = BundleAnswer(
        inspected.file, runtime_name, soc, verdict, tuple(answers), tuple(lacking)
    )
    return Outcome(_render_bundle(judged), msgspec.to_builtins(judged), CODES[verdict])


def _render_bundle(judged: BundleAnswer) -> str:
    lines = [_render(answer) for answer in judged.models]
    lines += [f"  it has no {part}, which LiteRT-LM needs on the NPU\n" for part in judged.lacking]
    if not judged.models:
        lines.append(
            "  no model in it is compiled for the NPU: LiteRT-LM compiles it on the phone, or runs"
            " it on the GPU or the CPU\n"
        )
    where = " on ".join(filter(None, (judged.runtime, judged.soc)))
    return f"{''.join(lines)}{judged.file} for {where}: {judged.verdict.value}\n"


def _render(answer: Answer) -> str:
    where = " on ".join(filter(None, (answer.runtime, answer.soc)))
    by = ", ".join(axis.value for axis in answer.decided_by)
    head = f"{answer.file} for {where}: {answer.verdict.value}"
    rows = (
        f"  {row.axis.value:13}{row.verdict.value:13}{show_row(row.why)}\n" for row in answer.rows
    )
    ends = "" if answer.verdict is Verdict.YES else f" ({by})"
    return f"{''.join(rows)}{head}{ends}\n"
