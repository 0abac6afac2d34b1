"""Reads the rewrites, which are data in manifests/policies/rewrites.toml. Each row names a function
in ci.mend.graph_rewrites, ci.mend.torch_rewrites or ci.mend.onnx_rewrites."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs

from ci.facts.finding import Finding, Question, advise
from ci.facts.kinds import NO_OUTPUTS
from ci.models.schemes import Scheme, SchemeSet
from ci.report.schema import Case, CaseName, Report, Status
from provisioning.errors import ManifestError
from provisioning.manifest.reader import read_policy

POLICY = "rewrites"
RewriteLane = Literal["torch", "onnx", "litert"]


class Rewrite(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row. ``title`` says what the rewrite replaces by what. ``schemes`` are those in which it
    helps, or () for all. ``cures`` lists ids of findings, names of known faults, and regular
    expressions that match the message of a finding. An ``approximate`` rewrite changes the
    function. ``bound`` is the largest difference from the original outputs, relative to their
    range. ``proof`` states how it was measured that the rewrite helps, and ``reason`` why it
    does. ``needless`` is empty if the rewrite works in both lanes, and otherwise says what the
    other lane was seen to do instead, so that it needs none."""

    name: str
    title: str
    lanes: tuple[RewriteLane, ...]
    cures: tuple[str, ...]
    proof: str
    reason: str
    needless: str = ""
    schemes: tuple[Scheme, ...] = ()
    approximate: bool = False
    bound: float = 1e-5

    def helps_in(self, scheme: str) -> bool:
        """Return whether the rewrite is known to help in a scheme."""
        return not self.schemes or scheme in self.schemes

    def cures_any(self, findings: Sequence[Finding], faults: Sequence[str] = ()) -> bool:
        """Return whether the rewrite is known to cure one of a case's findings, or one of the
        known faults that its graph contains."""
        names = set(faults)
        for finding in findings:
            names.add(finding.id)
            names.update(cause.name for cause in finding.causes)
        for cure in self.cures:
            if cure in names or any(re.search(cure, finding.words) for finding in findings):
                return True
        return False


class Rewrites(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of manifests/policies/rewrites.toml."""

    rewrite: tuple[Rewrite, ...] = ()


def read_rewrites(lane: RewriteLane, path: Path | None = None) -> tuple[Rewrite, ...]:
    """Return the rewrites of a lane from the file ``path``, by default this project's. Raises
    ManifestError for a row that does not match the schema, an invalid pattern, or two rows with one
    name."""
    rows = read_policy(POLICY, Rewrites, path).rewrite
    names = [row.name for row in rows]
    for row in rows:
        try:
            for cure in row.cures:
                re.compile(cure)
        except re.error as error:
            problem = f"the rewrite {row.name!r} has an invalid pattern: {error}"
            raise ManifestError(problem) from None
        if names.count(row.name) > 1:
            raise ManifestError(f"there are two rewrites with the name {row.name!r}")
    return tuple(row for row in rows if lane in row.lanes)


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
) -> Report:
    """Return a report in which a failed case ends with the command that mends it, if a rewrite is
    known to cure its first finding. A model that fails by itself has none, and neither has a
    program without outputs ``on_device``, because rewrites are tried on the emulator. ``command``
    is the start of this command, and ``lane`` has the schemes of the runtime that compiled the
    cases. ``mendable`` are the cases that it can judge, None for all, and ``files`` those whose
    models are files, of the kind ``rows_of_kind``. Of the cases ``in_float``, it can compute
    operators in float, but not rewrite any."""
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
        if not is_known:
            return case
        mend_command = case.choose(" ".join([command, *lane.repeat_runtime(is_file=is_file)]))
        fix = f"`qnn-ci {mend_command}` tries known rewrites of the model, and proves the result"
        if mixes:
            fix = f"`qnn-ci {mend_command}` finds operators to compute in float"
        return structs.replace(
            case,
            judgement=structs.replace(
                case.judgement, findings=(first.explained(advise(fix=fix)), *later)
            ),
        )

    return structs.replace(report, cases=tuple(map(suggest, report.cases)))
