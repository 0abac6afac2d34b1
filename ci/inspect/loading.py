"""Shows whether a program will load and, if not, why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ci.inspect.bundle_faults import (
    BundleFault,
    list_faults,
    list_header_faults,
    list_library_faults,
    list_missing_companions,
    list_missing_embedders,
    list_missing_libraries,
    list_uncompiled,
    list_warnings,
)
from ci.inspect.compat import Answer, Verdict, judge_compat
from ci.inspect.files import Inspected, describe_zero_tail, read_runtime
from ci.llm.bundle_file import PARTS, choose_models, name_model, read_bundle
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
            fix="add --qnn-runtime, --soc or both",
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


@dataclass(frozen=True)
class BundleAnswer:
    """The answer for a .litertlm file: one per model that is compiled for the NPU. ``lacking`` are
    the parts without which LiteRT-LM does not run the file on the NPU, and ``faults`` say what else
    does not fit in the file or the runtime. ``warnings`` do not keep the file from loading.
    ``open_question`` is why the parts were not compared with each other, or ""."""

    file: str
    runtime: str
    soc: str
    verdict: Verdict
    models: tuple[Answer, ...]
    lacking: tuple[str, ...] = ()
    faults: tuple[BundleFault, ...] = ()
    warnings: tuple[BundleFault, ...] = ()
    open_question: str = ""
    schema_version: int = 1


def judge_bundle(path: Path, inspected: Inspected, runtime_name: str, soc: str) -> Outcome:
    """Judge the models of a .litertlm file as judge_program does, whether parts are missing, and
    whether they fit each other. The answer is "cannot tell" if no model is compiled for the NPU.
    Raises FailedError for a damaged file, and UsageError if there is neither a runtime nor an SoC.
    """
    if not runtime_name and not soc:
        raise UsageError(
            "neither a runtime nor an SoC is specified", fix="add --qnn-runtime, --soc or both"
        )
    if inspected.damage or inspected.bundle is None:
        raise FailedError(f"{inspected.file} cannot be loaded", why=f"it {inspected.damage}")
    runtime = read_runtime(runtime_name) if runtime_name else None
    bundle = inspected.bundle
    compiled = [each for each in bundle.sections if each.model and each.model.contexts]
    answers = [
        replace(judge_compat(section.model, runtime, soc), file=name_model(section))
        for section in compiled
        if section.model
    ]
    if tail := describe_zero_tail(path):
        raise FailedError(f"{inspected.file} cannot be loaded", why=f"it {tail}")
    models = choose_models(bundle)
    lacking = [kind for kind in PARTS if kind not in models]
    faults = [*list_header_faults(bundle), *list_missing_embedders(bundle)]
    faults += list_uncompiled(bundle)
    parts = judge_parts(path) if answers and not lacking else PartsAnswer()
    faults += parts.faults
    if answers:
        contexts = [context for each in compiled if each.model for context in each.model.contexts]
        faults += list_library_faults(runtime_name, (context.hexagon for context in contexts))
        faults += list_missing_libraries(runtime_name)
    verdicts = [answer.verdict for answer in answers] or [Verdict.UNKNOWN]
    if parts.open_question:
        verdicts.append(Verdict.UNKNOWN)
    verdict = next(kind for kind in (Verdict.NO, Verdict.UNKNOWN, Verdict.YES) if kind in verdicts)
    if lacking or faults:
        verdict = Verdict.NO
    judged = BundleAnswer(
        inspected.file,
        runtime_name,
        soc,
        verdict,
        tuple(answers),
        tuple(lacking),
        tuple(faults),
        (*list_missing_companions(bundle), *parts.warnings),
        parts.open_question,
    )
    return Outcome(_render_bundle(judged), msgspec.to_builtins(judged), CODES[verdict])


@dataclass(frozen=True)
class PartsAnswer:
    """What is wrong with the parts of a bundle, and why they were not compared, or ""."""

    faults: tuple[BundleFault, ...] = ()
    warnings: tuple[BundleFault, ...] = ()
    open_question: str = ""


def judge_parts(path: Path) -> PartsAnswer:
    """Return whether the parts of a bundle fit each other."""
    try:
        file = read_bundle(path)
        return PartsAnswer(tuple(list_faults(file)), tuple(list_warnings(file)))
    except UsageError as error:  # a kind of bundle that this project does not read
        return PartsAnswer(open_question=f"{error.what}: {error.why or error.fix}")
    except FailedError as error:
        return PartsAnswer((BundleFault(error.what, error.why, error.fix),))


def _render_bundle(judged: BundleAnswer) -> str:
    lines = [_render(answer) for answer in judged.models]
    lines += [f"  it has no {part}, which LiteRT-LM needs on the NPU\n" for part in judged.lacking]
    lines += [_render_fault(fault) for fault in judged.faults]
    lines += [_render_fault(fault, "warning: ") for fault in judged.warnings]
    if judged.open_question:
        lines.append(f"  whether its parts fit is not judged: {judged.open_question}\n")
    if not judged.models and not judged.faults:
        elsewhere = "runs it on the GPU or the CPU"
        lines.append(
            "  no model in it is compiled for the NPU: LiteRT-LM"
            + (
                f" {elsewhere}\n"
                if judged.lacking
                else f" compiles it on the phone, or {elsewhere}\n"
            )
        )
    where = " on ".join(filter(None, (judged.runtime, judged.soc)))
    return f"{''.join(lines)}{judged.file} for {where}: {judged.verdict.value}\n"


def _render_fault(fault: BundleFault, kind: str = "") -> str:
    lines = [f"  {kind}{fault.what}\n"]
    lines += [f"    {text}\n" for text in (fault.why, fault.fix and f"fix: {fault.fix}") if text]
    return "".join(lines)


def _render(answer: Answer) -> str:
    where = " on ".join(filter(None, (answer.runtime, answer.soc)))
    by = ", ".join(axis.value for axis in answer.decided_by)
    head = f"{answer.file} for {where}: {answer.verdict.value}"
    rows = (
        f"  {row.axis.value:13}{row.verdict.value:13}{show_row(row.why)}\n" for row in answer.rows
    )
    ends = "" if answer.verdict is Verdict.YES else f" ({by})"
    return f"{''.join(rows)}{head}{ends}\n"
