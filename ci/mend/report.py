"""Renders what mend found as text and as JSON (docs/schemas/mend.schema.json)."""

from __future__ import annotations

from collections import Counter
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

Result = Literal["green", "mended", "other scheme", "improved", "no remedy found"]


class JudgedRecipe(Struct, frozen=True, kw_only=True):
    """A recipe that was judged, and its figures: ``name`` in words, another ``observer``, other
    schemes for ``parts`` of the model, or ``scheme`` for all of it. ``simulated_ms`` is the time
    that QNN's simulator predicts for an SoC that it knows, with --estimate. ``kept`` is true if it
    was the best one so far."""

    name: str
    rewrites: tuple[str, ...]
    parts: tuple[Part, ...]
    observer: str
    scheme: str
    status: Status
    sqnr_db: float | None
    max_abs: float | None
    metric: float | None
    cpu_nodes: int | None
    size_bytes: int | None
    simulated_ms: float | None
    kept: bool


class MendedCase(Struct, frozen=True, kw_only=True):
    """A case in JSON. ``result`` is ``green`` if the case passed before, ``mended`` if it passes
    with ``rewrites``, ``observer`` and ``parts``, ``other scheme`` if only another scheme makes it
    green, ``improved`` if these make it better but not green, or ``no remedy found``. ``changes``
    are the places that the rewrites change. ``difference`` is the largest difference of the float32
    outputs, relative to the range of an output. ``obstacle`` is what still makes the case red, and
    ``ended`` why the search ended early. ``refused`` are the
    rewrites that could not be used, and why."""

    model: str
    scheme: str
    soc: str
    result: Result
    rewrites: tuple[str, ...]
    parts: tuple[Part, ...]
    observer: str
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


def data_of(cases: Sequence[MendedCase], policy: str) -> dict[str, Any]:
    """Return the data for the JSON output."""
    data: dict[str, Any] = msgspec.to_builtins(Mends(cases=tuple(cases), policy=policy))
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
        observer=one.recipe.observer,
        difference=attempt.difference,
        changes=attempt.changes,
        before=describe_step(Recipe(), one.before),
        after=describe_step(one.recipe, one.case),
        steps=tuple(
            describe_step(step.recipe, step.case, kept=step.kept)
            for step in (search.steps if search else ())
        ),
        obstacle=""
        if one.is_green
        else next(map(show_brief, one.case.findings), one.case.headline),
        ended=one.ended,
        refused=dict(search.refused) if search else {},
    )


def name_result(one: Mended) -> Result:
    if one.before.status is not Status.FAILED:
        return "green"
    if one.is_green:
        return "other scheme" if one.recipe.scheme else "mended"
    return "improved" if one.recipe != Recipe() else "no remedy found"


def describe_step(recipe: Recipe, case: Case, *, kept: bool = True) -> JudgedRecipe:
    simulation = case.estimate.simulation if case.estimate else None
    return JudgedRecipe(
        name=str(recipe),
        rewrites=recipe.rewrites,
        parts=recipe.parts,
        observer=recipe.observer,
        scheme=recipe.scheme,
        status=case.status,
        sqnr_db=case.sqnr_db,
        max_abs=case.max_abs,
        metric=case.metric,
        cpu_nodes=case.fallback_nodes,
        size_bytes=case.pte_bytes,
        simulated_ms=simulation.cycles / simulation.clock_mhz / 1000 if simulation else None,
        kept=kept,
    )


HEAD = ("case", "step", "verdict", "SQNR dB", "metric", "on CPU", "size", "ms")


def render_cases(cases: Sequence[MendedCase], width: int) -> str:
    """Return the results as text for a terminal: a row per step, then what was changed where, and
    what is left."""
    titles = name_cases(cases)
    rows = [row for pair in zip(titles, cases, strict=True) for row in _list_rows(*pair)]
    timed = any(row[-1] != "-" for row in rows)
    shown = [row if timed else row[:-1] for row in (HEAD, *rows)]
    lines = [line for pair in zip(titles, cases, strict=True) for line in _explain(*pair)]
    green = [one.result for one in cases].count("green")
    after = sum(one.after.status is not Status.FAILED for one in cases)
    lines.append(f"{green} of {len(cases)} cases green before, {after} after")
    return render_rows(shown[0], shown[1:], width) + "\n" + "\n".join(lines) + "\n"


def name_cases(cases: Sequence[MendedCase]) -> list[str]:
    """Return a short name for each case."""
    names = name_models(one.model for one in cases)
    return [f"{names[one.model]} {one.scheme} {one.soc}" for one in cases]


def _list_rows(title: str, one: MendedCase) -> Iterator[tuple[str, ...]]:
    for number, step in enumerate((one.before, *one.steps)):
        yield ("" if number else title, *show_figures(step))


def show_figures(step: JudgedRecipe) -> tuple[str, ...]:
    """Return a judged recipe as the cells of a row, without the case."""
    return (
        step.name if step.kept else f"{step.name} (undone)",
        {Status.PASSED: "green", Status.FAILED: "red"}.get(step.status, "-"),
        show_decibels(step.sqnr_db, step.max_abs),
        "-" if step.metric is None else f"{step.metric:.4g}",
        "-" if step.cpu_nodes is None else str(step.cpu_nodes),
        show_bytes(step.size_bytes),
        "-" if step.simulated_ms is None else f"{step.simulated_ms:.3g}",
    )


def _explain(title: str, one: MendedCase) -> Iterator[str]:
    if one.result == "green":
        return
    yield f"{title}: {one.result}"
    for line, times in Counter(map(_show_change, one.changes)).items():
        yield f"  {line}" + (f", {times} times" if times > 1 else "")
    if one.changes:
        differ = f"differ by at most {one.difference:.1g} of their range"
        yield f"  float32 outputs {differ if one.difference else 'are equal up to rounding'}"
    yield from (f"  {part.node or part.module}: {part.scheme.value}" for part in one.parts)
    if one.after.scheme:
        yield f"  the cheapest scheme that passes is {one.after.scheme}"
    if one.after.status is not Status.FAILED:
        return
    if one.obstacle:
        yield f"  still red: {one.obstacle}"
    if one.ended:
        yield f"  {one.ended}"
    for rewrite, why in one.refused.items():
        yield f"  not used: {rewrite}: {why}"


def _show_change(one: AppliedChange) -> str:
    where = f"{one.place.file}:{one.place.line}" if one.place else f"node {one.nodes[0]}"
    return f"{where}: {one.before} -> {one.after} ({one.rewrite})"
