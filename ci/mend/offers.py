"""Says which red cases mend may help, with the command."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import structs

from ci.cases.spec import CaseSpec
from ci.facts.finding import Finding, Question, advise
from ci.facts.kinds import NO_OUTPUTS, ON_CPU
from ci.mend.experiments import Experiments
from ci.mend.mending import list_precisions
from ci.mend.table import RewriteLane, read_rewrites
from ci.models.schemes import SchemeSet
from ci.report.schema import Case, CaseName, Report, Status

# Causes for which the model was not read, so that mend cannot rewrite it, either: an operator that
# no opset has that this project reads.
NOT_READ = frozenset({"QNN1736"})

# What is red because of its quantization: operators in float may cure it.
OF_OPERATORS = frozenset({Question.QUANTIZED, Question.TASK})


def suggest_mending(
    report: Report,
    lane: SchemeSet,
    command: str,
    *,
    on_device: bool = False,
    mendable: Collection[CaseName] | None = None,
    files: Collection[CaseName] = (),
    rows_of_kind: RewriteLane = "onnx",
    in_float: Collection[CaseName] = (),
    unchangeable: Mapping[CaseName, CaseSpec] | None = None,
) -> Report:
    """Return a report in which a failed case ends with the command that mends it, if a rewrite is
    known to cure its first finding. A model that fails by itself has none, and neither has a
    program without outputs ``on_device``, because rewrites are tried on the emulator. ``command``
    is the start of this command, and ``lane`` has the schemes of the runtime that compiled the
    cases. ``mendable`` are the cases that it can judge, None for all, and ``files`` those whose
    models are files, of the kind ``rows_of_kind``. Of the cases ``in_float``, it can compute
    operators in float, but not rewrite any. To the models of the ``unchangeable`` ones, experiments
    could apply no rewrite: only other precisions are left."""
    rows_of_functions, rows_of_files = read_rewrites("torch"), read_rewrites(rows_of_kind)

    def suggest(case: Case) -> Case:
        first, *later = case.judgement.findings or (None,)
        if (
            case.judgement.status is not Status.FAILED
            or not first
            or first.question is Question.USABLE
        ):
            return case
        if any(cause.name in NOT_READ for cause in first.causes):
            return case
        mixes = case.name in in_float
        if mendable is not None and case.name not in mendable and not mixes:
            return case
        if on_device and first.id == NO_OUTPUTS.id:
            return case
        is_file = case.name in files
        rows = rows_of_files if is_file else rows_of_functions
        is_known = any(row.helps_in(case.scheme) and row.cures_any([first]) for row in rows)
        if mixes:
            has_known_cause = any(cause.name for cause in first.causes)
            is_known = first.question in OF_OPERATORS or has_known_cause
        unchanged = (unchangeable or {}).get(case.name)
        if not is_known or (unchanged and not searches_precision(unchanged, lane, first)):
            return case
        mend_command = case.choose(" ".join([command, *lane.repeat_runtime(is_file=is_file)]))
        fix = f"`qnn-ci {mend_command}` tries known rewrites of the model, and proves the result"
        if mixes:
            fix = f"`qnn-ci {mend_command}` finds operators to compute in float"
        elif unchanged:
            fix = f"`qnn-ci {mend_command}` searches other precisions; no rewrite applies"
        return structs.replace(
            case,
            judgement=structs.replace(
                case.judgement, findings=(first.explained(advise(fix=fix)), *later)
            ),
        )

    return structs.replace(report, cases=tuple(map(suggest, report.cases)))


def searches_precision(spec: CaseSpec, lane: SchemeSet, finding: Finding) -> bool:
    """Return whether mend searches other precisions for a case that is red for a finding. They are
    no remedy for a node on the CPU, which QNN's backend refuses for its kind or attributes."""
    if finding.id == ON_CPU.id:
        return False
    precisions = list_precisions(spec, lane, on_cpu=False)
    return precisions.are_about(finding.question)


def list_unchangeable(options: Mapping[str, Any]) -> dict[CaseName, CaseSpec]:
    """Return the cases to whose models the experiments of a run could apply no rewrite. ``options``
    are those of its plan."""
    experiments = options.get("experiments")
    if not isinstance(experiments, Experiments):
        return {}
    return {
        spec.name: spec
        for spec, is_changeable in experiments.changeable.items()
        if not is_changeable
    }
