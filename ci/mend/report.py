"""Renders what mend found as text and as JSON (docs/schemas/mend.schema.json)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ci.facts.finding import show_brief
from ci.mend.mending import Mended
from ci.mend.search import Recipe
from ci.mend.trials import AppliedChange
from ci.models.lowering_options import Part
from ci.report.schema import Case, Status
from ci.report.table import render_rows
from ci.report.text import name_models, show_bytes, show_decibels
from provisioning.errors import ExitCode

Result = Literal["green", "mended", "improved", "no remedy found"]


class JudgedRecipe(Struct, frozen=True, kw_only=True):
    """A recipe that was judged, and its figures. ``kept`` is true if it was the best one so far."""

    rewrites: tuple[str, ...]
    parts: tuple[Part, ...]
    status: Status
    sqnr_db: float | None
    metric: float | None
    cpu_nodes: int | None
    size_bytes: int | None
    kept: bool


class MendedCase(Struct, frozen=True, kw_only=True):
    """A case in JSON. ``result`` is ``green`` if the case passed before, ``mended`` if it passes
    with ``rewrites`` and ``parts``, ``improved`` if these make it better but not green, or ``no
    remedy found``. ``changes`` are the places that the rewrites change. ``difference`` is the
    largest difference of the float32 outputs, relative to the range of an output. ``obstacle`` is
    what still makes the case red, and ``ended`` why the search ended early. ``refused`` are the
    rewrites that could not be used, and why."""

    model: str
    scheme: str
    soc: str
    result: Result
    rewrites: tuple[str, ...]
    parts: tuple[Part, ...]
    difference: float
    changes: tuple[AppliedChange, ...]
    before: JudgedRecipe
    after: JudgedRecipe
    steps: tuple[JudgedRecipe, ...]
    obstacle: str
    ended: str
    refused: dict[str, str]


class Mends(Struct, frozen=True, kw_only=True):
    """The output of ``qnn-ci mend --json``. ``policy`` is the policy that was written, or ""."""

    cases: tuple[MendedCase, ...]
    policy: str
    schema_version: Literal[1] = 1


def data_of(found: Sequence[Mended], policy: str) -> dict[str, Any]:
    """Return the data for the JSON output."""
    data: dict[str, Any] = msgspec.to_builtins(
        Mends(cases=tuple(map(describe_case, found)), policy=policy)
    )
    return data


def choose_exit(found: Sequence[Mended]) -> ExitCode:
    """Return FAILED if a case is still red, otherwise OK."""
    return ExitCode.OK if all(one.is_green for one in found) else ExitCode.FAILED


def describe_case(one: Mended) -> MendedCase:
    attempt, search = one.attempt, one.search
    return MendedCase(
        model=one.spec.model,
        scheme=one.spec.scheme.value,
        soc=one.spec.soc,
        result=name_result(one),
        rewrites=one.recipe.rewrites,
        parts=one.recipe.parts,
        difference=attempt.difference,
        changes=attempt.changes,
        before=describe_step(Recipe(), one.before),
        after=describe_step(one.recipe, one.case),
        steps=tuple(
            describe_step(step.recipe, step.case, kept=step.kept)
            for step in (search.steps if search else ())
        ),
        obstacle="" if one.is_green else one.case.headline,
        ended=one.ended,
        refused=dict(search.refused) if search else {},
    )


def name_result(one: Mended) -> Result:
    if one.before.status is not Status.FAILED:
        return "green"
    if one.is_green:
        return "mended"
    return "improved" if one.recipe != Recipe() else "no remedy found"


def describe_step(recipe: Recipe, case: Case, *, kept: bool = True) -> JudgedRecipe:
    return JudgedRecipe(
        rewrites=recipe.rewrites,
        parts=recipe.parts,
        status=case.status,
        sqnr_db=case.sqnr_db,
        metric=case.metric,
        cpu_nodes=case.fallback_nodes,
        size_bytes=case.pte_bytes,
        kept=kept,
    )


HEAD = ("case", "step", "verdict", "SQNR dB", "metric", "on CPU", "size")


def render_cases(found: Sequence[Mended], width: int) -> str:
    """Return the results as text for a terminal: a row per step, then what was changed where, and
    what is left."""
    names = name_models(one.spec.model for one in found)
    rows = [row for one in found for row in _list_rows(one, names[one.spec.model])]
    lines = [line for one in found for line in _explain(one, names[one.spec.model])]
    green = sum(one.is_green for one in found)
    before = sum(one.before.status is not Status.FAILED for one in found)
    lines.append(f"{before} of {len(found)} cases green before, {green} after")
    return render_rows(HEAD, rows, width) + "\n" + "\n".join(lines) + "\n"


def _list_rows(one: Mended, name: str) -> Iterator[tuple[str, ...]]:
    title = f"{name} {one.spec.scheme.value} {one.spec.soc}"
    yield (title, "unchanged", *_list_figures(one.before))
    for step in one.search.steps if one.search else ():
        mark = "" if step.kept else " (undone)"
        yield ("", f"{step.recipe}{mark}", *_list_figures(step.case))


def _list_figures(case: Case) -> tuple[str, ...]:
    return (
        "green" if case.status is Status.PASSED else "red" if case.status is Status.FAILED else "-",
        show_decibels(case.sqnr_db, case.max_abs),
        "-" if case.metric is None else f"{case.metric:.4g}",
        "-" if case.fallback_nodes is None else str(case.fallback_nodes),
        show_bytes(case.pte_bytes),
    )


def _explain(one: Mended, name: str) -> Iterator[str]:
    result = name_result(one)
    if result == "green":
        return
    yield f"{name} {one.spec.scheme.value} {one.spec.soc}: {result}"
    attempt = one.attempt
    for change in attempt.changes:
        place = change.place
        where = f"{place.file}:{place.line}" if place else f"node {change.nodes[0]}"
        yield f"  {where}: {change.before} -> {change.after} ({change.rewrite})"
    if attempt.changes:
        yield f"  float32 outputs differ by at most {attempt.difference:.1g} of their range"
    yield from (f"  {part.node or part.module}: {part.scheme.value}" for part in one.recipe.parts)
    if one.is_green:
        return
    if one.case.findings:
        yield f"  still red: {show_brief(one.case.findings[0])}"
    if one.ended:
        yield f"  {one.ended}"
    for rewrite, why in (one.search.refused if one.search else {}).items():
        yield f"  not used: {rewrite}: {why}"
