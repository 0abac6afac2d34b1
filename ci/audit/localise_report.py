"""Renders the results of a search as text and as JSON (docs/schemas/localise.schema.json)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ci.audit.localise import Localised
from ci.audit.localise_search import LEAST_OFF, Departure, Located, Mend, Operator, Row
from ci.cases.spec import CaseSpec
from ci.faults.match import KnownFault
from ci.report.text import count
from provisioning.errors import ExitCode

SHOWN = 8
LEAST_LOST_DB = 0.1


class LocalisedCase(Struct, frozen=True, kw_only=True):
    """A case in JSON. Numbers in dB are from the worst input set.

    ``program_rows`` compare the program with the model that was lowered, and ``model_rows`` compare
    that model with float32. ``part`` contains the operators of the smallest part that is still
    wrong, and ``part_outputs`` its outputs. ``programs`` is the number of programs that were tried.
    ``cause`` is the suspected cause, and ``reproducer`` the file that was written; each is empty if
    there is none. See also Located in ci/audit/localise_search.py.
    """

    model: str
    scheme: str
    soc: str
    wrong: bool
    programs: int
    outputs: tuple[Departure, ...]
    first: Operator | None
    program_rows: tuple[Row, ...]
    model_rows: tuple[Row, ...]
    part: tuple[Operator, ...]
    part_outputs: tuple[Departure, ...]
    cured_by: tuple[Operator, ...]
    readers: tuple[Operator, ...]
    mended_by: tuple[Mend, ...]
    sharing: tuple[Operator, ...]
    cause: str
    ended: str
    reproducer: str
    known_faults: tuple[KnownFault, ...]


class Localisation(Struct, frozen=True, kw_only=True):
    """The output of ``qnn-ci localise --json``."""

    cases: tuple[LocalisedCase, ...]
    schema_version: Literal[1] = 1


def data_of(cases: Sequence[Localised]) -> dict[str, Any]:
    """Return the data for the JSON output."""
    data: dict[str, Any] = msgspec.to_builtins(Localisation(cases=tuple(map(_describe, cases))))
    return data


def choose_exit(cases: Iterable[Localised]) -> ExitCode:
    """Return FAILED if an output of a program is wrong, or if a case has no program, otherwise
    OK."""
    failed = any(is_wrong(one.program) or not one.program.outputs for one in cases)
    return ExitCode.FAILED if failed else ExitCode.OK


def is_wrong(found: Located) -> bool:
    """Return whether an output of the program is wrong."""
    return any(one.wrong for one in found.outputs)


def _describe(case: Localised) -> LocalisedCase:
    found, spec = case.program, case.spec
    return LocalisedCase(
        model=spec.model,
        scheme=spec.scheme.value,
        soc=spec.soc,
        wrong=is_wrong(found),
        programs=case.programs,
        outputs=found.outputs,
        first=found.first,
        program_rows=found.rows,
        model_rows=tuple(case.losses),
        part=found.part,
        part_outputs=found.departures,
        cured_by=found.cured_by,
        readers=found.readers,
        mended_by=found.mended_by,
        sharing=found.sharing,
        cause=name_cause(found, spec) if found.part else "",
        ended=found.ended,
        reproducer=case.reproducer,
        known_faults=case.known_faults,
    )


def render_cases(cases: Sequence[Localised]) -> str:
    """Return the results as text for a terminal."""
    return "\n".join(line for one in cases for line in _render(one))


def _render(case: Localised) -> Iterator[str]:
    found, spec = case.program, case.spec
    yield f"{spec.model} {spec.scheme.value} {spec.soc}"
    for number, one in enumerate(found.outputs):
        told = "wrong" if one.wrong else "as predicted" if one.faithful else "near the prediction"
        yield f"  output {number}: {_pair(one)}, {told}"
    for fault in case.known_faults:
        yield f"  known fault: {fault}"
        yield f"    fix: {fault.fix}"
    if found.rows:
        yield "  SQNR lost by the program against the lowered model, in addition to rounding:"
        yield from _tabulate(row for row in found.rows if row.lost_db > LEAST_LOST_DB)
    if case.losses:
        yield "  SQNR lost by the quantized model against float32, most noise first:"
        yield from _tabulate(case.losses)
    yield from _conclude(found, spec)
    if case.reproducer:
        yield f"  reproducer: {case.reproducer}"
        if spec.is_file:
            scheme = "" if spec.scheme.quantized else f" --scheme {spec.scheme.value}"
            path = shlex.quote(case.reproducer)
            yield f"    red by itself: qnn-ci test-onnx --model {path}{scheme}"
    if found.ended:
        yield f"  the search ended early: {found.ended}" if found.outputs else f"  {found.ended}"
    yield f"  {count(case.programs, 'program')}"


def _conclude(found: Located, spec: CaseSpec) -> Iterator[str]:
    if found.first:
        yield f"  first wrong operator: {found.first}"
    elif is_wrong(found) and found.rows:
        yield "  all operators are right if their results are also returned: QNN's fusion is wrong"
    if found.part:
        yield f"  smallest part that is still wrong, {count(len(found.part), 'operator')}:"
        yield from (f"    {one.name}: {one}{_note(one)}" for one in found.part)
        for one in found.departures:
            yield f"    returns {one.operator}: {_pair(one)}{', wrong' if one.wrong else ''}"
    if found.cured_by:
        names = ", ".join(f"{one.name} ({one})" for one in found.cured_by)
        yield f"  the part is right if it also returns: {names}"
    for operator in found.readers:
        yield f"  the first operator that depends on them: {operator.name} ({operator})"
    for operator in found.sharing:
        yield f"  the quantizer uses the same range for the part and {operator.name} ({operator})"
    if found.part:
        yield f"  cause: {name_cause(found, spec)}"


def _note(one: Operator) -> str:
    clipped = f", its values exceed its range by {one.clipped:.2%}" if one.clipped else ""
    off = one.bias_off > LEAST_OFF
    return clipped + (f", the scale of its bias is {one.bias_off:.2%} off" if off else "")


def name_cause(found: Located, spec: CaseSpec) -> str:
    """Return why the smallest part is wrong, according to the change that makes it right."""
    if Mend.BIASES in found.mended_by:
        return (
            "the quantizer gives a bias that several layers share a single scale, but QNN expects"
            " the product of the scales of each layer's input and weights. With separate biases,"
            " the part is right"
        )
    if Mend.RANGES in found.mended_by:
        return (
            "calibration chose ranges that clip values in the quantized model, but QNN merges"
            " roundings and does not clip them. With wider ranges, the part is right"
        )
    model = "quantized model" if spec.scheme.quantized else "float32 model"
    lane = "ONNX Runtime" if spec.is_file else "ExecuTorch's passes"
    return f"{lane} or QNN make the program differ from the part's {model}"


def _pair(one: Departure) -> str:
    return f"{one.reached_db:.1f} dB, {one.predicted_db:.1f} dB predicted"


def _tabulate(rows: Iterable[Row]) -> Iterator[str]:
    shown = list(rows)
    for row in shown[:SHOWN]:
        name = f"the range of {row.operator}" if row.is_range else str(row.operator)
        yield (
            f"    {row.lost_db:6.1f} dB  {name}: {row.before_db:.1f} dB before it,"
            f" {row.behind_db:.1f} dB after it"
        )
    if len(shown) > SHOWN:
        yield f"    and {len(shown) - SHOWN} more (--json)"
    if not shown:
        yield "    nothing"
