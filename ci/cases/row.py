"""Makes the report row of a case from what is known about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from ci.cases.cache import Artifact
from ci.cases.engine import FLOAT, INPUTS, Compiled
from ci.cases.facts import Evidence
from ci.cases.spec import CaseSpec
from ci.facts.finding import Finding
from ci.report.schema import (
    AskedFacts,
    Case,
    Digests,
    FallbackOp,
    JudgementFacts,
    OnDeviceFacts,
    ProgramFacts,
    ProgramFile,
    RunFacts,
    Status,
)


def make_case(
    spec: CaseSpec,
    evidence: Evidence,
    *,
    status: Status,
    findings: Sequence[Finding],
    runner: str,
    log_tail: str = "",
    metric_name: str = "",
) -> Case:
    """Return the report row of a case, with every known figure."""
    return Case(
        model=spec.model,
        scheme=spec.scheme.value,
        soc=spec.soc,
        asked=describe_asked(spec, evidence.artifact),
        program=describe_program(evidence),
        run=describe_run(spec, evidence, runner, log_tail),
        judgement=describe_judgement(evidence, status, findings, metric_name),
        device=describe_device(evidence),
    )


def describe_asked(spec: CaseSpec, artifact: Artifact | None) -> AskedFacts:
    """Return what was asked of a case. Its inputs are known if there is a program."""
    if artifact is None:
        return AskedFacts(choices=describe_choices(spec, None))
    compiled = artifact.compiled
    return AskedFacts(
        choices=describe_choices(spec, compiled),
        inputs=compiled.sets,
        made_inputs=compiled.made_inputs,
        digests=Digests(
            weights=compiled.weights or None,
            inputs=artifact.digest_sets(INPUTS),
            calibration=compiled.calibration or None,
            float_outputs=artifact.digest_sets(FLOAT),
        ),
    )


def describe_program(evidence: Evidence) -> ProgramFacts:
    """Return what is known of the program and its lowering."""
    facts = ProgramFacts(
        cached=evidence.cached,
        compiler=evidence.compiler,
        qnn_ops=evidence.qnn_ops,
        estimate=evidence.estimate,
    )
    artifact = evidence.artifact
    if artifact is None:
        return facts
    compiled, delegation = artifact.compiled, artifact.compiled.delegation
    return structs.replace(
        facts,
        lower_s=artifact.lower_s,
        pte_bytes=compiled.size_bytes,
        files=list_program(artifact),
        delegated_nodes=delegation.delegated_nodes,
        fallback_nodes=delegation.fallback_nodes,
        partitions=delegation.partitions,
        fallback_ops=tuple(
            FallbackOp(op=node.label, reason=node.text) for node in delegation.fallback_ops
        ),
        types=compiled.types,
        clipped=compiled.clipped,
        footprint=compiled.footprint,
    )


def describe_run(spec: CaseSpec, evidence: Evidence, runner: str, log_tail: str) -> RunFacts:
    """Return what is known of the program's run."""
    facts = RunFacts(
        runner=runner, options=str(spec.source.run), lacks=evidence.lacks, log_tail=log_tail
    )
    run = evidence.run
    if run is None:
        return facts
    return structs.replace(
        facts,
        wall_s=round(run.wall_s, 3),
        ms=round(run.notes.run_ms, 4) if run.notes.run_ms else None,
        **run.notes.accelerator,
    )


def describe_judgement(
    evidence: Evidence, status: Status, findings: Sequence[Finding], metric_name: str
) -> JudgementFacts:
    """Return what was judged of a case, with every figure."""
    facts: dict[str, Any] = vars(evidence.figures)
    if metric := evidence.metric:
        facts = {**facts, "metric": metric.value, "metric_float": metric.float32}
        facts["metric_quantized"] = metric.quantized
    if evidence.baseline:
        recorded = structs.asdict(evidence.baseline)
        facts = facts | {f"recorded_{key}": figure for key, figure in recorded.items()}
    return JudgementFacts(
        status=status,
        findings=tuple(findings),
        warnings=evidence.warnings,
        noise_notes=evidence.notes,
        is_defect=evidence.is_defect,
        metric_name=metric_name,
        outputs=evidence.outputs,
        layers=evidence.layers,
        **facts,
    )


def describe_device(evidence: Evidence) -> OnDeviceFacts:
    """Return what is known of a run on a device."""
    nearness = evidence.nearness
    return OnDeviceFacts(
        figures=evidence.run.notes.device if evidence.run else None,
        sqnr_db_emulator=nearness.sqnr_db if nearness else None,
        equal_emulator=nearness.equal if nearness else None,
    )


def list_program(artifact: Artifact) -> tuple[ProgramFile, ...]:
    """Return the files of a program with their SHA-256. The file that a runner opens comes
    first."""
    first = artifact.compiled.program
    folder = f"{first.rpartition('/')[0]}/"
    names = [name for name in artifact.files if name.startswith(folder)]
    files = [name for name in dict.fromkeys([first, *sorted(names)]) if name in artifact.files]
    return tuple(ProgramFile(name=Path(file).name, sha256=artifact.files[file]) for file in files)


def describe_choices(spec: CaseSpec, compiled: Compiled | None) -> str:
    """Return the lowering options in the model's policy entry. If the program shares weights, its
    size with and without sharing follows, in bytes."""
    choices = str(spec.source.choices)
    if not compiled or not compiled.unshared_bytes:
        return choices
    return (
        f"{choices} ({compiled.size_bytes} bytes, {compiled.unshared_bytes} without shared weights)"
    )
