"""Documents: tables, cards and plots as data, and their forms as text, Markdown and HTML. What is
not a report of cases is shown as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import rich.table
from rich.text import Text

from ci.report.github import LIMIT_BYTES, MARKS, SizeBudget, escape_markdown
from ci.report.html import render_page
from ci.report.table import open_console, trim_lines
from ci.report.text import clean_log_line, clean_name, make_markdown_table
from provisioning.console.caller import shown_path
from provisioning.console.progress import Progress
from provisioning.files import write_whole

PAGE = "index.html"
DIFF = ("-", "+")  # labels of lines that were there before, and that are there now


@dataclass(frozen=True)
class Row:
    """A row of a table. ``tone`` is the status that determines the row's colour, empty for none."""

    cells: tuple[str, ...]
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """A table. ``verdict`` is the index of the column with the verdict, -1 if there is none, and
    ``numbers`` are the indexes of the columns with numbers. ``most`` is the number of rows that a
    terminal shows, 0 for all.
    """

    title: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    verdict: int = -1
    numbers: frozenset[int] = frozenset()
    most: int = 0


@dataclass(frozen=True)
class Point:
    """A point of a plot. ``x`` and ``y`` are its position, ``tone`` a CSS class. A point that is
    ``chosen`` has a ring."""

    x: float
    y: float
    tone: str
    label: str
    chosen: bool


@dataclass(frozen=True)
class Plot:
    """Points on two axes of PLOT_WIDTH and PLOT_HEIGHT units. ``front`` are the positions that a
    line connects. ``ends`` are the labels at the ends of the axes: left, right, bottom, top."""

    points: tuple[Point, ...]
    front: tuple[tuple[float, float], ...]
    ends: tuple[str, str, str, str]
    caption: str = ""


PLOT_WIDTH, PLOT_HEIGHT = 600, 200


@dataclass(frozen=True)
class Card:
    """Something that was found. ``kind`` is its first word, such as ``failed``. Each of ``lines``
    is a word, such as ``why``, and a text. The word is empty if the text needs none, or one of
    DIFF. Only HTML shows ``plot``."""

    kind: str
    title: str
    lines: tuple[tuple[str, str], ...] = ()
    plot: Plot | None = None


@dataclass(frozen=True)
class Document:
    """What is shown: the result in one line, further ``notes``, tables, and cards."""

    title: str
    result: str
    tables: tuple[Table, ...]
    cards: tuple[Card, ...] = ()
    notes: tuple[str, ...] = ()


def render_text(document: Document, width: int) -> str:
    """Return tables in ``width`` columns, cards, and the result in the last line."""
    parts = [_draw_table(one, width) for one in document.tables if one.rows]
    parts += ["".join(f"{line}\n" for line in _list_lines(one)) for one in document.cards]
    return "\n".join([*parts, f"{clean_log_line(document.result)}\n"])


def _draw_table(table: Table, width: int) -> str:
    """Return a table as text. Cells that do not fit are wrapped."""
    console = open_console(colour=False, width=width)
    grid = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, name in enumerate(table.head):
        right = place in table.numbers
        grid.add_column(name, overflow="fold", justify="right" if right else "left")
    rows = table.rows[: table.most or None]
    for row in rows:
        grid.add_row(*(Text(clean_name(cell)) for cell in row.cells))
    left = len(table.rows) - len(rows)
    more = f"and {left} more: use --json to show them all\n" if left else ""
    with console.capture() as capture:
        console.print(grid)
    return trim_lines(capture.get()) + more


def _list_lines(card: Card) -> Iterator[str]:
    yield f"{card.kind}  {clean_log_line(card.title)}"
    yield from (f"  {clean_log_line(_label(*one))}" for one in card.lines)


def _label(word: str, line: str) -> str:
    mark = word if word in DIFF else f"{word}:"
    return f"{mark} {line}" if word else line


def render_markdown(document: Document, limit_bytes: int = LIMIT_BYTES) -> str:
    """Return a document as Markdown. If it is longer than ``limit_bytes``, parts at its end are
    left out."""
    parts = [f"## {escape_markdown(f'{document.title}: {document.result}')}\n\n"]
    for table in (one for one in document.tables if one.rows):
        rows = [[*_mark_cells(table, row)] for row in table.rows]
        parts.append(f"### {table.title}\n\n{make_markdown_table(table.head, rows)}\n\n")
    for kind, cards in _group_cards(document.cards):
        parts.append(f"### {kind}\n\n")
        for one in cards:
            items = "".join(f"- {escape_markdown(_label(*line))}\n" for line in one.lines)
            parts.append(f"**{escape_markdown(one.title)}**\n\n{items}\n")
    left_out = "The size of a summary is limited. The rest is in the report.\n"
    budget = SizeBudget(limit_bytes - len(left_out))
    kept = budget.take(parts)
    return "".join([*kept, left_out if budget.is_full else ""])


def _mark_cells(table: Table, row: Row) -> Iterator[str]:
    """Yield the cells of a row in Markdown, with a mark for its tone before the verdict."""
    for place, cell in enumerate(row.cells):
        mark = f"{MARKS[row.tone]} " if place == table.verdict and row.tone in MARKS else ""
        yield mark + escape_markdown(cell)


def write_page(document: Document, directory: Path, progress: Progress) -> None:
    """Write a document as index.html into ``directory``. Raises StoreError if that fails."""
    write_whole(directory / PAGE, render_html(document).encode())
    progress.step(f"report: {shown_path(directory / PAGE)}")


def render_html(document: Document) -> str:
    """Return a document as an HTML page. The page's filter acts on the first table."""
    return render_page(
        "document.html.j2", document=document, groups=_group_cards(document.cards), diff=DIFF
    )


def _group_cards(cards: Sequence[Card]) -> list[tuple[str, list[Card]]]:
    """Return neighbouring cards of one kind together, under its heading."""
    groups = groupby(cards, lambda one: one.kind)
    return [(f"{kind[:1].upper()}{kind[1:]}", [*group]) for kind, group in groups]
