"""Judges a run again from the outputs that it kept. This only reads files: it loads no model, runs
no program and calls none of the user's functions. Of the files that the run wrote, it trusts only
the references.

report.json                        the run's report
CASE/artifact/                     see ci.cases.cache
CASE/outputs/output_SET_INDEX.raw  the program's outputs, from this machine or another

Outputs of a device that is not connected to this machine are in another directory. The script of
ci.device.provenance writes that directory. It contains CASE/outputs as above, CASE/log.txt, and
CASE/code.txt with the exit code of the runner.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import structs

from ci.cases.cache import RECORD, Artifact, digest_record, hash_files
from ci.cases.engine import Compiled, Program
from ci.cases.facts import CaseFacts, CaseResult, Options, Run
from ci.cases.judged import CaseJudge
from ci.cases.outputs import OUTPUTS, read_inputs, read_outputs, read_references
from ci.cases.policy import EmulatorPolicy
from ci.cases.spec import CaseSpec
from ci.facts.finding import Finding
from ci.facts.kinds import CONTRADICTED, NO_NODE, NO_OUTPUTS
from ci.models.tensors import TensorInfo
from ci.report.schema import Case, CaseName, Report, Status, summarize
from provisioning.documents import read_json, read_text
from provisioning.errors import QnnCiError, UsageError, describe_exception
from provisioning.manifest.targets import find_any_soc

LIMIT_BYTES = 4 << 30  # per case
DTYPES = {"bool", *(f"float{bits}" for bits in (16, 32, 64))} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
# Exceptions that malicious files can cause when they are read and judged.
HARM = (OSError, ValueError, TypeError, ArithmeticError, LookupError, MemoryError, RecursionError)
FIGURES = ("sqnr_db", "sqnr_db_quantized", "cosine", "cosine_quantized", "equal", "max_abs")
MEASURED = ("wall_s", "ms", "accelerator_cycles", "accelerator_us")  # only by a run
KEPT_REMARK = "judged from kept outputs: no program was run"
LOG, CODE = "log.txt", "code.txt"
UNMEASURED = "the metric was not measured: it is code, and judging kept outputs runs no user code"


def judge_report(
    report: Report,
    directory: Path,
    options: Options,
    *,
    work: Path,
    pulled: Path | None = None,
    by: str = "",
) -> Report:
    """Judge the cases of a run again, and return the new report. The outputs are the kept ones in
    ``directory`` or, with ``pulled``, those of the device ``by`` for the same programs.

    Raises UsageError for an unknown scheme or SoC, and ManifestError for a case without limits in
    the policy.
    """
    policy = options.policy
    specs = [find_spec(case, policy) for case in report.cases]
    results = []
    for case, spec in zip(report.cases, specs, strict=True):
        judging = CaseJudge(CaseFacts(spec, options, work, by if pulled else case.run.runner))
        outputs_folder = pulled and pulled / spec.slug
        results.append(judge_case(case, judging, directory / spec.slug, outputs_folder))
    cases = tuple(result.case for result in results)
    controls = tuple(control for result in results for control in result.controls)
    counts = summarize(cases, controls, report.summary.wall_s, report.summary.phases)
    return structs.replace(
        report,
        cases=cases,
        controls=controls,
        summary=counts,
        thresholds=policy.describe_limits(specs),
        remarks=(f"judged from outputs of {by}" if pulled else KEPT_REMARK, *report.remarks),
    )


def find_spec(case: Case, policy: EmulatorPolicy) -> CaseSpec:
    """Return the case that a report row describes. Raises UsageError if its scheme or SoC is
    unknown."""
    try:
        scheme = policy.find_scheme(case.model, case.scheme)
        find_any_soc(case.soc)
    except (ValueError, UsageError) as error:
        raise UsageError(f"there is no case {case.name}") from error
    entry = policy.models.get(case.model)
    spec = CaseSpec(case.model, scheme, case.soc)
    return replace(spec, source=entry.make_source(scheme)) if entry else spec


def judge_case(case: Case, judging: CaseJudge, folder: Path, pulled: Path | None) -> CaseResult:
    """Judge a report row again. By default, the run's own outputs are judged, and a failed case
    stays failed. With ``pulled``, a device's outputs are judged. If the run did not keep its
    outputs (or the program, with ``pulled``), judge_unrun judges the row."""
    judging.facts.evidence.cached = case.program.cached
    # Measuring the metric would run the user's code, and kept outputs are judged from bytes alone.
    metric, judging.facts.metric = judging.facts.metric, None
    if not (folder / ("artifact" if pulled else OUTPUTS)).is_dir():
        return CaseResult(judge_unrun(case, judging))
    try:
        # The files may hold any bits, also those of huge numbers.
        with np.errstate(all="ignore"):
            result = judge_kept(folder, judging, pulled)
    except (*HARM, QnnCiError) as error:
        text = (
            f"the {'' if pulled else 'kept '}outputs cannot be judged: {describe_exception(error)}"
        )
        result = judging.end(Status.FAILED, [NO_OUTPUTS.find(text)])
    row = result.case
    if metric:
        row = structs.replace(
            row,
            judgement=structs.replace(
                row.judgement, warnings=(*row.judgement.warnings, UNMEASURED)
            ),
        )
    return replace(result, case=row if pulled else compare_rows(case, row))


def compare_rows(case: Case, row: Case) -> Case:
    """Return the new row, completed with the figures of the run's row that only the run could
    measure. The new row fails if the case had failed or was refused in the run, or if the two rows
    differ."""
    faults = list(find_contradictions(case, row))
    return structs.replace(
        row,
        judgement=structs.replace(
            row.judgement,
            status=Status.FAILED if faults else row.judgement.status,
            findings=(*row.judgement.findings, *faults),
        ),
        run=structs.replace(row.run, **{name: getattr(case.run, name) for name in MEASURED}),
        device=case.device,
    )


def read_pulled(pulled: Path, compiled: Compiled) -> Run:
    """Return a device's outputs as a Run. Its ``failure`` is set if the outputs are missing or
    damaged, or if the runner failed on the device."""
    if not pulled.is_dir():
        return Run(failure=f"the device's outputs are missing: there is no directory {pulled.name}")
    code = pulled / CODE
    # A device farm that stops the script while it writes leaves an empty file, which is no success.
    # Outputs that somebody copied by hand have no file.
    exit_code = read_text(code, "replace").strip() if code.is_file() else "0"
    if exit_code != "0":
        return Run(failure=f"the runner exited with code {exit_code[:9]} on the device")
    try:
        return Run(outputs=read_outputs(pulled / OUTPUTS, compiled, compiled.sets))
    except (OSError, ValueError) as error:
        return Run(failure=str(error))


def judge_unrun(case: Case, judging: CaseJudge) -> Case:
    """Judge a row without outputs. It fails if it passed in the run. It also fails if it is
    unsupported, no device was lost, and the policy does not expect its refusal. Any other row is
    unchanged."""
    if case.judgement.status is Status.PASSED:
        text = "the case passed in the run, but its outputs were not kept"
    elif is_refused(case) and not any(map(judging.find_refusal, case.judgement.findings)):
        text = "the policy does not expect the case to be unsupported"
    else:
        return case
    findings = (CONTRADICTED.find(text), *case.judgement.findings)
    return structs.replace(
        case, judgement=structs.replace(case.judgement, status=Status.FAILED, findings=findings)
    )


def is_refused(case: Case) -> bool:
    """Return whether a case is unsupported, although nothing was missing."""
    return case.judgement.status is Status.UNSUPPORTED and not case.run.lacks


def judge_kept(folder: Path, judging: CaseJudge, pulled: Path | None) -> CaseResult:
    """Judge the kept outputs of a case or, with ``pulled``, the outputs of a device. The device's
    outputs are also compared with the kept ones. If the outputs cannot be judged, raises a
    QnnCiError or one of the exceptions in HARM."""
    artifact = read_kept(folder, judging.facts.spec)
    compiled, place = artifact.compiled, folder / "artifact"
    judging.facts.note_program(place, artifact)
    if not compiled.delegation.partitions:
        return judging.refuse(NO_NODE.find("QNN accepted no node"), "")
    references, log = read_references(place, compiled), folder / "run.log"
    judging.facts.note_inputs(read_inputs(place, compiled))
    if pulled:
        run, log = read_pulled(pulled, compiled), pulled / LOG
        if (folder / OUTPUTS).is_dir() and not run.failure:
            emulated = read_outputs(folder / OUTPUTS, compiled, compiled.sets)
            judging.facts.compare_emulator(run.outputs, emulated, compiled)
    else:
        run = Run(outputs=read_outputs(folder / OUTPUTS, compiled, compiled.sets))
    program = Program(
        judging.facts.spec, place / compiled.program, compiled, judging.facts.directory, log
    )
    return judging.judge_run(program, references, run)


def read_kept(folder: Path, spec: CaseSpec) -> Artifact:
    """Return the record of a case's artifact, which a run kept in ``folder``. Raises OSError or
    ValueError unless all files are regular, match the record, belong to the case, and stay within
    LIMIT_BYTES."""
    paths = [folder, *folder.rglob("*")]
    odd = [path for path in paths if path.is_symlink() or not (path.is_dir() or path.is_file())]
    if odd:
        raise ValueError(f"{odd[0].name} is a symbolic link or a special file such as a pipe")
    if sum(path.stat().st_size for path in paths) > LIMIT_BYTES:
        raise ValueError(f"the case's files are larger than {LIMIT_BYTES >> 30} GiB in total")
    place = folder / "artifact"
    artifact = read_json(place / RECORD, Artifact)
    if artifact.digest != digest_record(artifact) or hash_files(place) != artifact.files:
        raise ValueError(f"{RECORD} does not match the files next to it")
    # For a user's model, the record has the path on the machine that ran the case.
    model = artifact.model if spec.is_ours else spec.model
    if CaseName(model, artifact.scheme, artifact.soc) != spec.name:
        name = f"{artifact.model} {artifact.scheme} {artifact.soc}"
        raise ValueError(f"the kept files belong to {name}")
    compiled = artifact.compiled
    if not {compiled.program, compiled.binary} <= artifact.files.keys():
        raise ValueError(
            f"{RECORD} names a program or context binary that is not among the artifact's files"
        )
    for info in (*compiled.inputs, *compiled.outputs):
        check_tensor(info)
    return artifact


def check_tensor(info: TensorInfo) -> None:
    """Raise ValueError if no program can have such a tensor as input or output."""
    good = info.dtype in DTYPES and min(info.shape, default=1) > 0 and info.step >= 0
    joins = all(part.fits(info.shape) for part in info.parts)
    if not (good and joins and math.prod(info.shape) < LIMIT_BYTES):
        raise ValueError(
            f"{RECORD} describes an impossible tensor: {info.dtype[:20]} {list(info.shape[:8])}"
        )


def find_contradictions(case: Case, judged: Case) -> Iterator[Finding]:
    """Yield why to reject the run's row: the case failed or was refused in the run, or a
    figure of a passed case does not match its kept outputs."""
    if case.judgement.status is Status.FAILED or is_refused(case):
        yield CONTRADICTED.find(f"the case's status in the run was {case.judgement.status.value}")
        yield from case.judgement.findings
    for name in FIGURES if case.judgement.status is Status.PASSED else ():
        reported, measured = getattr(case.judgement, name), getattr(judged.judgement, name)
        is_same = None not in {reported, measured} and math.isclose(
            reported, measured, rel_tol=1e-3, abs_tol=1e-3
        )
        if not is_same and reported is not measured:
            yield CONTRADICTED.find(
                f"{name} is {reported} in the report, {measured} for the kept outputs"
            )
