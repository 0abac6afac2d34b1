"""What was localised, on a screen and as JSON (docs/schemas/localise.schema.json)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ci.audit.localise import Localised
from ci.audit.localise_search import Departure, Located, Row
from ci.report.text import count
from provisioning.errors import ExitCode

SCHEMA_VERSION, SHOWN = 1, 8
LEAST_LOST_DB = 0.1


def data_of(cases: Sequence[Localised]) -> dict[str, Any]:
    """Return the JSON of the verb."""
    return {"schema_version": SCHEMA_VERSION, "cases": [_describe(one) for one in cases]}


def choose_exit(cases: Iterable[Localised]) -> ExitCode:
    """A program that departs from its model fails, and so does a model that gives none."""
    failed = any(is_wrong(one.program) or not one.program.outputs for one in cases)
    return ExitCode.FAILED if failed else ExitCode.OK


def is_wrong(found: Located) -> bool:
    """Return whether an output of the program is wrong."""
    return any(one.wrong for one in found.outputs)


def _describe(case: Localised) -> dict[str, Any]:
    found, spec = case.program, case.spec
    plain = msgspec.to_builtins(found)
    return {
        "model": spec.model,
        "scheme": spec.scheme.value,
        "soc": spec.soc,
        "wrong": is_wrong(found),
        "programs": case.programs,
        "ended": found.ended,
        "outputs": plain["outputs"],
        "first": plain["first"],
        "program_rows": plain["rows"],
        "model_rows": msgspec.to_builtins(case.losses),
        "part": plain["part"],
        "part_outputs": plain["departures"],
        "cured_by": plain["cured_by"],
        "readers": plain["readers"],
        "reproducer": case.reproducer,
    }


def render_cases(cases: Sequence[Localised]) -> str:
    """Return the text of the verb."""
    return "\n".join(line for one in cases for line in _render(one))


def _render(case: Localised) -> Iterator[str]:
    found, spec = case.program, case.spec
    yield f"{spec.model} {spec.scheme.value} {spec.soc}"
    for number, one in enumerate(found.outputs):
        told = "wrong" if one.wrong else "as predicted" if one.faithful else "near the prediction"
        yield f"  output {number}: {_pair(one)}, {told}"
    if found.rows:
        yield "  the program against the model that was lowered, dB lost beyond rounding:"
        yield from _tabulate(row for row in found.rows if row.lost_db > LEAST_LOST_DB)
    if case.losses:
        yield "  the quantized model against float32, the most noise first:"
        yield from _tabulate(case.losses)
    yield from _conclude(found, quantized=spec.scheme.quantized)
    if case.reproducer:
        yield f"  reproducer: {case.reproducer}"
    if found.ended:
        yield f"  the search ended early: {found.ended}" if found.outputs else f"  {found.ended}"
    yield f"  {case.programs} programs"


def _conclude(found: Located, *, quantized: bool) -> Iterator[str]:
    if found.first:
        yield f"  first wrong operator: {found.first}"
    elif is_wrong(found) and found.rows:
        yield "  with every result exposed the program is right: QNN joins operators wrongly"
    if found.part:
        yield f"  smallest part that is still wrong, {count(len(found.part), 'operator')}:"
        yield from (f"    {one.name}: {one}" for one in found.part)
        for one in found.departures:
            yield f"    gives {one.operator}: {_pair(one)}{', wrong' if one.wrong else ''}"
    if found.cured_by:
        names = ", ".join(f"{one.name} ({one})" for one in found.cured_by)
        yield f"  right once it returns, too: {names}"
    for operator in found.readers:
        yield f"  which lead to: {operator.name} ({operator})"
    if found.part:
        model = "quantized model" if quantized else "float32 model"
        yield f"  at fault: ExecuTorch's passes or QNN, since the part's {model} is the reference"


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
