"""Render the report as one self-contained HTML file: differences from a base, failures by cause,
charts, and every case with its details. Also render documents, and the trend over several reports.

Jinja escapes every value, and the page's content security policy blocks all scripts and styles
except its own.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ci.facts.kinds import read_kinds
from ci.report.bars import Figure
from ci.report.columns import (
    Column,
    columns_of,
    find_margin,
    list_charts,
    list_limits,
    name_report,
    show_limit,
)
from ci.report.document import Document, group_cards, list_findings
from ci.report.layers import LayerChart
from ci.report.overview import make_document
from ci.report.schema import Case, Control, ControlKind, Report, Status
from ci.report.text import (
    describe_note,
    keep_end,
    show_bytes,
    show_counts,
    show_decibels,
    show_seconds,
    show_work,
)
from provisioning.console.caller import shown_path, translate_commands
from provisioning.console.progress import Progress
from provisioning.console.terminal import clean
from provisioning.documents import read_text
from provisioning.files import write_whole

PAGE = "index.html"
TEMPLATES = Path(__file__).resolve().parent / "templates"
NAME_CHARS = 44
CODE, ID = re.compile(r"`([^`]*)`"), re.compile(r"\[(QNN\d+)\]$")
# Browsers break lines after a hyphen, also between the first two.
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9]*(?:-[a-z0-9]+)*)")
BREAKS = re.compile(r"(?=[.:])|(?<=[/_])")
MOST_BARS, WORST = 60, 20
# CSS classes of cells in the map, by the least margin in dB that each class requires.
ROOM = {6.0: "wide", 2.0: "fair"}


def render_html(report: Report) -> str:
    """Return index.html: the verdict, differences from the base, failures and their causes, charts,
    every case with its outputs, the toolchain and the controls."""
    cases = list(enumerate(report.cases))
    shown = choose_bars(report)
    overview = make_document(report)
    controls: dict[str, list[Control]] = defaultdict(list)
    for control in report.controls:
        controls[str(control)].append(control)
    figures = _draw_figures(report, [case for _, case in shown])
    heat = make_map(report) if len(shown) < len(cases) else {}
    return render_page(
        "index.html.j2",
        report=report,
        counts=show_counts(report.summary),
        cases=cases,
        groups=group_cards(overview.cards),
        tables=[table for table in overview.tables[:-1] if table.rows],
        columns=columns_of(report.cases, name_report(report)),
        limits=list_limits(report),
        show_limit=show_limit,
        describe_note=describe_note,
        list_findings=list_findings,
        has_any=has_any,
        chart_layers=LayerChart,
        rules=[report.threshold_for(case) for case in report.cases],
        again=report.again,
        controls=controls,
        kinds=sorted({control.kind for control in report.controls}, key=[*ControlKind].index),
        names=name_report(report),
        several_socs=len({case.soc for case in report.cases}) > 1,
        shown=shown,
        figures=figures,
        marks={mark for figure in figures for mark in figure.marks},
        heat=heat,
        tones={cell.tone for row in heat.values() for cell in row.values()},
        work=show_work(report),
        statuses=sorted({case.judgement.status for case in report.cases}, key=[*Status].index),
    )


def has_any(case: Case, columns: Sequence[Column]) -> bool:
    """Return whether a case has a value for any of the columns."""
    return any(column.is_had(case) for column in columns)


def write_page(document: Document, directory: Path, progress: Progress) -> None:
    """Write a document as index.html into ``directory``. Raises StoreError if that fails."""
    write_whole(directory / PAGE, render_document(document).encode())
    progress.step(f"report: {shown_path(directory / PAGE)}")


def render_document(document: Document) -> str:
    """Return a document as an HTML page. The page's filter acts on the first table, and on others
    with the same columns."""
    return render_page("document.html.j2", document=document, groups=group_cards(document.cards))


def render_page(name: str, **values: Any) -> str:
    """Render the template ``name`` with ``values``, and return the page.

    All pages share one style and one script, and have a content security policy that allows only
    these.
    """
    style, script = (read_text(TEMPLATES / part) for part in ("report.css", "report.js"))
    page = (
        _environment()
        .get_template(name)
        .render(
            **values,
            style=Markup(style),  # noqa: S704 - our file
            script=Markup(script),  # noqa: S704 - our file
            policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
            "base-uri 'none'; form-action 'none'",
        )
    )
    return re.sub(r">\n\s*<", "><", page)  # a browser makes a text node of each gap


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        # Markup is a subclass of str: this project made it, so it stays as it is.
        finalize=lambda value: clean(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ratio": show_decibels,
        "seconds": show_seconds,
        "bytes": show_bytes,
        "end": partial(keep_end, most=NAME_CHARS),
        "bins": place_bins,
        "mark": mark_line,
        "options": keep_options,
        "breakable": mark_breaks,
    }
    return environment


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def mark_line(line: str) -> Markup:
    """Return a line as HTML: text in backticks is code, and the id of a finding has its meaning as
    a tooltip."""
    text = CODE.sub(r"<code>\1</code>", str(keep_options(translate_commands(line))))
    meanings = {kind.id: kind.meaning for kind in read_kinds()}

    def explain(match: re.Match[str]) -> str:
        meaning = escape(meanings.get(match[1], ""))
        return f'<abbr title="{meaning}">{match[1]}</abbr>' if meaning else match[0]

    return Markup(ID.sub(explain, text))  # noqa: S704 - escaped above


def keep_options(text: str) -> Markup:
    """Return text as HTML in which no line ends inside of an option, such as --keep-artifacts."""
    # The environment cleans what is no Markup; this is.
    marked = OPTION.sub(r'<span class="option">\1</span>', str(escape(clean(text))))
    return Markup(marked)  # noqa: S704 - escaped above


def mark_breaks(text: str) -> Markup:
    """Return a name as HTML whose lines may end before a dot or a colon, and after a slash."""
    parts = BREAKS.split(str(text))
    return Markup("<wbr>").join(escape(clean(part)) for part in parts)


def place_bins(counts: Sequence[int]) -> Iterator[tuple[float, float, float]]:
    """Yield the start, height and width in percent of each bin of a histogram. Empty bins are left
    out.

    A height is the square root of the ratio of a count to the largest count, so that small counts
    are visible.
    """
    most, width = max(counts, default=0), 100 / max(len(counts), 1)
    for index, count in enumerate(counts):
        if count:
            yield round(index * width, 2), round(100 * (count / most) ** 0.5, 1), round(width, 2)


def _draw_figures(report: Report, cases: Sequence[Case]) -> list[Figure]:
    """Return each chart with a bar for each of ``cases``."""
    figures = []
    for chart, draw in list_charts([report]):
        bars = [draw(case, report.threshold_for(case)) for case in cases]
        figures.append(Figure(chart, tuple(bars)))
    return figures


def choose_bars(report: Report) -> list[tuple[int, Case]]:
    """Return the cases to draw as bars, with their indexes. If there are more than MOST_BARS, only
    the WORST ones are returned, which failed or are nearest to a limit."""
    cases = list(enumerate(report.cases))
    if len(cases) <= MOST_BARS:
        return cases

    def rank(pair: tuple[int, Case]) -> tuple[bool, bool, float]:
        status, margin = pair[1].judgement.status, find_margin(report, pair[1])
        left = margin[0] if margin else float("inf")
        return status is not Status.FAILED, status is Status.UNSUPPORTED, left

    return sorted(cases, key=rank)[:WORST]


@dataclass(frozen=True)
class Cell:
    """A case in the map of all cases: its index in the report, a CSS class for its margin to a
    limit, and a tooltip."""

    index: int
    case: Case
    tone: str
    hint: str


def make_map(report: Report) -> dict[str, dict[tuple[str, str], Cell]]:
    """Map each model to the cells of its cases. The inner keys are (scheme, SoC)."""
    rows: dict[str, dict[tuple[str, str], Cell]] = {}
    for index, case in enumerate(report.cases):
        margin = find_margin(report, case)
        if case.judgement.status is not Status.PASSED:
            tone = case.judgement.status.value
        elif margin:
            tone = next((name for room, name in ROOM.items() if margin[0] >= room), "near")
        else:
            tone = "free"
        near = f"margin {margin[0]:+.1f} dB ({margin[1]})" if margin else "no limit"
        cell = Cell(index, case, tone, f"{case.name}, {case.judgement.status.value}: {near}")
        rows.setdefault(case.model, {})[case.scheme, case.soc] = cell
    return rows
