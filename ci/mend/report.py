"""What mend found as JSON (docs/schemas/mend.schema.json) and as a document: quality against cost
of everything that was tried, and each change at its source line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from msgspec import Struct, structs

from ci.cases.session import check_remedies
from ci.facts.finding import show_brief
from ci.mend.mending import Mended
from ci.mend.search import Recipe
from ci.mend.trials import AppliedChange
from ci.models.lowering_options import Part
from ci.report.document import PLOT_HEIGHT, PLOT_WIDTH, Card, Document, Plot, Point, Row, Table
from ci.report.schema import Case, Status
from ci.report.text import count, name_models, show_bytes, show_decibels
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


def choose_exit(cases: Sequence[Mended]) -> ExitCode:
    """Return FAILED if a case is still red, otherwise OK."""
    return ExitCode.OK if all(mended.is_green for mended in cases) else ExitCode.FAILED


def describe_case(mended: Mended) -> MendedCase:
    """Return what was found for a case, as JSON has it."""
    attempt, search = mended.attempt, mended.search
    steps = search.steps if search else ()
    obstacle = mended.case.headline
    for finding in mended.case.judgement.findings[:1]:
        tried = [step.case for step in steps]
        obstacle = show_brief(check_remedies(finding, mended.case.scheme, tried))
    return MendedCase(
        model=mended.spec.model,
        scheme=mended.spec.scheme.value,
        soc=mended.spec.soc,
        result=name_result(mended),
        rewrites=mended.recipe.rewrites,
        parts=mended.recipe.parts,
        observer=mended.recipe.observer,
        difference=attempt.difference,
        changes=attempt.changes,
        before=describe_step(Recipe(), mended.before),
        after=describe_step(mended.recipe, mended.case),
        steps=tuple(describe_step(step.recipe, step.case, is_kept=step.is_kept) for step in steps),
        obstacle="" if mended.is_green else obstacle,
        ended=mended.ended,
        refused=dict(search.refused) if search else {},
    )


def name_result(mended: Mended) -> Result:
    """Return the result of a case, see MendedCase."""
    if mended.before.judgement.status is not Status.FAILED:
        return "green"
    if mended.is_green:
        return "other scheme" if mended.recipe.scheme else "mended"
    return "improved" if mended.recipe != Recipe() else "no remedy found"


def describe_step(recipe: Recipe, case: Case, *, is_kept: bool = True) -> JudgedRecipe:
    """Return a judged recipe with the figures of its verdict."""
    simulation = case.program.estimate.simulation if case.program.estimate else None
    return JudgedRecipe(
        **structs.asdict(recipe),
        name=str(recipe),
        status=case.judgement.status,
        sqnr_db=case.judgement.sqnr_db,
        max_abs=case.judgement.max_abs,
        metric=case.judgement.metric,
        cpu_nodes=case.program.fallback_nodes,
        size_bytes=case.program.pte_bytes,
        simulated_ms=simulation.ms if simulation else None,
        kept=is_kept,
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
    rows, cards = [], []
    for case in cases:
        title = f"{names[case.model]} {case.scheme} {case.soc}"
        steps = (case.before, *case.steps)
        rows += [Row((title, *_show_figures(step)), step.status.value) for step in steps]
        if case.result != "green":
            plot = make_plot(case) if case.steps else None
            cards.append(Card(case.result, title, tuple(_explain(case)), plot))

    has_times = any(row.cells[-1] != "-" for row in rows)
    head = HEAD if has_times else HEAD[:-1]
    shown_rows = tuple(replace(row, cells=row.cells[: len(head)]) for row in rows)
    caption = "Each recipe that was judged. A step that did not help was undone"
    table = Table("Steps", caption, head, shown_rows, 2, frozenset(range(3, len(head))))
    green = [case.result for case in cases].count("green")
    after = sum(case.after.status is not Status.FAILED for case in cases)
    result = f"{green} of {count(len(cases), 'case')} green before, {after} after"
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


def _explain(case: MendedCase) -> Iterator[tuple[str, str]]:
    """Yield the lines of a case's card: a label, or "", and a text."""
    places_of: dict[tuple[str, str, str], list[str]] = {}  # of equal changes
    for change in case.changes:
        place = change.place
        shown_place = f"{place.file}:{place.line}" if place else f"node {change.nodes[0]}"
        key = change.rewrite, change.before, change.after
        places_of.setdefault(key, []).append(shown_place)
    for (rewrite, before, after), shown_places in places_of.items():
        # A line in a loop, or of a layer that is called again, is changed several times.
        places = [*dict.fromkeys(shown_places)]
        hidden = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        times = f", {len(shown_places)} times" if len(shown_places) > 1 else ""
        yield f"{', '.join(places[:SHOWN])}{hidden}", f"{rewrite}{times}"
        yield from (("-", before), ("+", after))
    if case.changes:
        differ = f"differ by at most {case.difference:.1g} of their range"
        yield "", f"float32 outputs {differ if case.difference else 'are equal up to rounding'}"
    for part in case.parts:
        yield " ".join(part.selectors.values()), part.scheme.value
    if case.after.scheme:
        failed = [step.scheme for step in case.steps if step.scheme and not step.kept]
        other_schemes = [name for name in dict.fromkeys(failed) if name != case.after.scheme]
        tried = f"{', '.join(other_schemes)} failed; " if other_schemes else ""
        yield "", f"{tried}{case.after.scheme} passes, the first of the schemes that were tried"
    if case.after.status is not Status.FAILED:
        return
    if case.obstacle:
        yield "still red", case.obstacle
    if case.ended:
        yield "", case.ended
    for rewrite, why in case.refused.items():
        yield "not used", f"{rewrite}: {why}"


def make_plot(case: MendedCase) -> Plot:
    """Return quality against cost of the recipes of a case. Recipes without outputs are left out.
    The line connects those that are better than each cheaper one. The cost is the simulated time if
    it is known for all, otherwise the program's size."""
    steps = [
        step for step in (case.before, *case.steps) if step.sqnr_db is not None and step.size_bytes
    ]
    timed = all(step.simulated_ms is not None for step in steps)
    costs = [_find_cost(step, timed=timed) for step in steps]
    sqnrs = [step.sqnr_db or 0.0 for step in steps]
    points, front, best_sqnr = [], [], float("-inf")
    # The cheapest first; steps of the same cost and SQNR stay in the order of the search.
    for cost, sqnr, number in sorted(zip(costs, sqnrs, range(len(steps)), strict=True)):
        step = steps[number]
        from_top = PLOT_HEIGHT - _place(sqnr, sqnrs, PLOT_HEIGHT)
        position = (_place(cost, costs, PLOT_WIDTH), round(from_top, 1))
        tone = "passed" if step.status is Status.PASSED else "failed"
        label = f"{step.name}: {sqnr:.1f} dB, {_show_cost(cost, timed=timed)}"
        points.append(Point(*position, tone, label, chosen=step.name == case.after.name))
        if sqnr > best_sqnr:
            best_sqnr = sqnr
            front.append(position)
    left = _show_cost(min(costs, default=0), timed=timed)
    right = _show_cost(max(costs, default=0), timed=timed)
    bottom = f"{min(sqnrs, default=0):.1f} dB"
    top = f"{max(sqnrs, default=0):.1f} dB"
    return Plot(tuple(points), tuple(front), (left, right, bottom, top), AXES)


def _find_cost(step: JudgedRecipe, *, timed: bool) -> float:
    """Return the simulated time in ms if it is known for all recipes, otherwise the size."""
    return float((step.simulated_ms if timed else step.size_bytes) or 0)


def _show_cost(cost: float, *, timed: bool) -> str:
    """Return a cost with its unit."""
    return f"{cost:.3g} ms" if timed else show_bytes(int(cost))


def _place(value: float, values: Sequence[float], length: float) -> float:
    """Return where a value is on an axis of this ``length``, in the middle if all are equal."""
    low, high = min(values), max(values)
    share = (value - low) / (high - low) if high > low else 0.5
    return round(length * share, 1)
