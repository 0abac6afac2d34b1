"""What mend found as JSON (docs/schemas/mend.schema.json) and as a document: quality against cost
of everything that was tried, and each change at its source line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from msgspec import Struct, structs

from ci.facts.finding import show_brief
from ci.mend.mending import Mended
from ci.mend.search import Recipe
from ci.mend.trials import AppliedChange
from ci.models.lowering_options import Part
from ci.report.document import PLOT_HEIGHT, PLOT_WIDTH, Card, Document, Plot, Point, Row, Table
from ci.report.schema import Case, Status
from ci.report.text import name_models, show_bytes, show_decibels
from provisioning.errors import ExitCode

Result = Literal["green", "mended", "other scheme", "improved", "no remedy found"]


class JudgedRecipe(Recipe, frozen=True, kw_only=True):
    """A recipe that was judged, and its figures: ``name`` in words, another ``observer``, other
    schemes for ``parts`` of the model, or ``scheme`` for all of it. ``simulated_ms`` is the time
    that QNN's simulator predicts for an SoC that it knows, with --estimate. ``kept`` is true if it
    was the best one so far."""

    name: str
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


def choose_exit(found: Sequence[Mended]) -> ExitCode:
    """Return FAILED if a case is still red, otherwise OK."""
    return ExitCode.OK if all(mended.is_green for mended in found) else ExitCode.FAILED


def describe_case(one: Mended) -> MendedCase:
    attempt, search = one.attempt, one.search
    steps = search.steps if search else ()
    obstacle = next(map(show_brief, one.case.findings), one.case.headline)
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
        steps=tuple(describe_step(step.recipe, step.case, kept=step.kept) for step in steps),
        obstacle="" if one.is_green else obstacle,
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
        **structs.asdict(recipe),
        name=str(recipe),
        status=case.status,
        sqnr_db=case.sqnr_db,
        max_abs=case.max_abs,
        metric=case.metric,
        cpu_nodes=case.fallback_nodes,
        size_bytes=case.pte_bytes,
        simulated_ms=simulation.ms if simulation else None,
        kept=kept,
    )


SHOWN = 3  # places of one change
HEAD = ("case", "step", "verdict", "SQNR dB", "metric", "on CPU", "size", "ms")
AXES = (
    "Up: SQNR against float32. Right: cost. Green passes, red fails, the ring marks the chosen"
    " recipe, and the line connects those that are better than each cheaper one."
)


def make_document(cases: Sequence[MendedCase]) -> Document:
    """Return a table with a row per step, and cards: what was changed where, and what is left."""
    names = name_models(case.model for case in cases)
    titles = [f"{names[case.model]} {case.scheme} {case.soc}" for case in cases]
    rows = [
        Row((title, *_show_figures(step)), step.status.value)
        for title, one in zip(titles, cases, strict=True)
        for step in (one.before, *one.steps)
    ]
    head = HEAD if any(row.cells[-1] != "-" for row in rows) else HEAD[:-1]
    cut = tuple(replace(row, cells=row.cells[: len(head)]) for row in rows)
    caption = "Each recipe that was judged. A step that did not help was undone"
    table = Table("Steps", caption, head, cut, 2, frozenset(range(3, len(head))))
    cards = tuple(
        Card(one.result, title, tuple(_explain(one)), make_plot(one) if one.steps else None)
        for title, one in zip(titles, cases, strict=True)
        if one.result != "green"
    )
    green = [case.result for case in cases].count("green")
    after = sum(case.after.status is not Status.FAILED for case in cases)
    result = f"{green} of {len(cases)} cases green before, {after} after"
    return Document("mend", result, (table, *cards))


def _show_figures(step: JudgedRecipe) -> tuple[str, ...]:
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


def _explain(one: MendedCase) -> Iterator[tuple[str, str]]:
    alike: dict[tuple[str, str, str], list[str]] = {}
    for change in one.changes:
        place = change.place
        where = f"{place.file}:{place.line}" if place else f"node {change.nodes[0]}"
        alike.setdefault((change.rewrite, change.before, change.after), []).append(where)
    for (rewrite, before, after), every in alike.items():
        places = [*dict.fromkeys(every)]
        more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        times = f", {len(every)} times" if len(every) > 1 else ""
        yield f"{', '.join(places[:SHOWN])}{more}", f"{rewrite}{times}"
        yield from (("-", before), ("+", after))
    if one.changes:
        differ = f"differ by at most {one.difference:.1g} of their range"
        yield "", f"float32 outputs {differ if one.difference else 'are equal up to rounding'}"
    yield from ((part.node or part.module, part.scheme.value) for part in one.parts)
    if one.after.scheme:
        failed = [step.scheme for step in one.steps if step.scheme and not step.kept]
        others = [scheme for scheme in dict.fromkeys(failed) if scheme != one.after.scheme]
        tried = f"{', '.join(others)} failed; " if others else ""
        yield "", f"{tried}{one.after.scheme} passes, the first of the schemes that were tried"
    if one.after.status is not Status.FAILED:
        return
    if one.obstacle:
        yield "still red", one.obstacle
    if one.ended:
        yield "", one.ended
    for rewrite, why in one.refused.items():
        yield "not used", f"{rewrite}: {why}"


def make_plot(case: MendedCase) -> Plot:
    """Return quality against cost of the recipes of a case. Recipes without outputs are left out.
    The line connects those that are better than each cheaper one. The cost is the simulated time if
    it is known for all, otherwise the program's size."""
    steps = (case.before, *case.steps)
    ran = [one for one in steps if one.sqnr_db is not None and one.size_bytes]
    timed = all(one.simulated_ms is not None for one in ran)
    costs = [float((one.simulated_ms if timed else one.size_bytes) or 0) for one in ran]
    quality = [one.sqnr_db or 0.0 for one in ran]
    points, front, best = [], [], float("-inf")
    for cost, sqnr, number in sorted(zip(costs, quality, range(len(ran)), strict=True)):
        one = ran[number]
        place = PLOT_HEIGHT - _place(sqnr, quality, PLOT_HEIGHT)
        at = (_place(cost, costs, PLOT_WIDTH), round(place, 1))
        tone = "passed" if one.status is Status.PASSED else "failed"
        label = f"{one.name}: {sqnr:.1f} dB, {_show_cost(cost, timed=timed)}"
        points.append(Point(*at, tone, label, chosen=one.name == case.after.name))
        if sqnr > best:
            best = sqnr
            front.append(at)
    left, right = (_show_cost(pick(costs, default=0), timed=timed) for pick in (min, max))
    bottom, top = (f"{pick(quality, default=0):.1f} dB" for pick in (min, max))
    return Plot(tuple(points), tuple(front), (left, right, bottom, top), AXES)


def _show_cost(cost: float, *, timed: bool) -> str:
    return f"{cost:.3g} ms" if timed else show_bytes(int(cost))


def _place(value: float, values: Sequence[float], length: float) -> float:
    low, high = min(values), max(values)
    return round(length * ((value - low) / (high - low) if high > low else 0.5), 1)
