"""Renders the results of a search as text and as JSON (docs/schemas/localise.schema.json)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ci.audit.localise import Localised
from ci.audit.localise_search import LEAST_OFF, Departure, Operator, Row
from ci.models.schemes import ONNX, Scheme
from ci.report.text import count
from provisioning.errors import ExitCode

SHOWN = 8
LEAST_LOST_DB = 0.1


class Localisation(Struct, frozen=True, kw_only=True):
    """The output of ``qnn-ci localise --json``."""

    cases: tuple[Localised, ...]
    schema_version: Literal[1] = 1


def data_of(cases: Sequence[Localised]) -> dict[str, Any]:
    """Return the data for the JSON output."""
    data: dict[str, Any] = msgspec.to_builtins(Localisation(cases=tuple(cases)))
    return data


def choose_exit(cases: Iterable[Localised]) -> ExitCode:
    """Return FAILED if an output of a program is wrong, or if a case has no program, otherwise
    OK."""
    failed = any(one.wrong or not one.outputs for one in cases)
    return ExitCode.FAILED if failed else ExitCode.OK


def render_cases(cases: Sequence[Localised]) -> str:
    """Return the results as text for a terminal."""
    return "\n".join(line for one in cases for line in _render(one))


def _render(case: Localised) -> Iterator[str]:
    yield f"{case.model} {case.scheme} {case.soc}"
    for number, one in enumerate(case.outputs):
        told = "wrong" if one.wrong else "as predicted" if one.faithful else "near the prediction"
        yield f"  output {number}: {_pair(one)}, {told}"
    for fault in case.known_faults:
        yield f"  known fault: {fault}"
        yield f"    fix: {fault.fix}"
    if case.program_rows:
        yield "  SQNR lost by the program against the lowered model, in addition to rounding:"
        yield from _tabulate(row for row in case.program_rows if row.lost_db > LEAST_LOST_DB)
    if case.model_rows:
        yield "  SQNR lost by the quantized model against float32, most noise first:"
        yield from _tabulate(case.model_rows)
    yield from _conclude(case)
    if case.reproducer:
        yield f"  reproducer: {case.reproducer}"
        if case.reproducer.endswith(ONNX.suffix):
            scheme = f" --scheme {case.scheme}" if case.scheme == Scheme.FP16.value else ""
            path = shlex.quote(case.reproducer)
            yield f"    red by itself: qnn-ci test-onnx --model {path}{scheme}"
    if case.ended:
        yield f"  the search ended early: {case.ended}" if case.outputs else f"  {case.ended}"
    yield f"  {count(case.programs, 'program')}"


def _conclude(case: Localised) -> Iterator[str]:
    if case.first:
        yield f"  first wrong operator: {case.first}"
    elif case.wrong and case.program_rows:
        yield "  all operators are right if their results are also returned: QNN's fusion is wrong"
    if case.part:
        yield f"  smallest part that is still wrong, {count(len(case.part), 'operator')}:"
        yield from (f"    {one.name}: {one}{_note(one)}" for one in case.part)
        for one in case.part_outputs:
            yield f"    returns {one.operator}: {_pair(one)}{', wrong' if one.wrong else ''}"
    if case.cured_by:
        names = ", ".join(f"{one.name} ({one})" for one in case.cured_by)
        yield f"  the part is right if it also returns: {names}"
    for operator in case.readers:
        yield f"  the first operator that depends on them: {operator.name} ({operator})"
    for operator in case.sharing:
        yield f"  the quantizer uses the same range for the part and {operator.name} ({operator})"
    if case.cause:
        yield f"  cause: {case.cause}"


def _note(one: Operator) -> str:
    clipped = f", its values exceed its range by {one.clipped:.2%}" if one.clipped else ""
    off = one.bias_off > LEAST_OFF
    return clipped + (f", the scale of its bias is {one.bias_off:.2%} off" if off else "")


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
