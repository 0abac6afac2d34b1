"""Documents: tables, cards and plots as data, and their forms as text, Markdown and HTML."""

from __future__ import annotations

import html
import math
import os
import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import groupby

import rich.table
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ci.facts.finding import SHOWN, Finding, list_lines
from ci.report.schema import Status
from ci.report.text import NAME_CHARS, clean_log_line, clean_name, count
from provisioning.console.caller import is_ci, translate_commands
from provisioning.console.streams import user_stdout
from provisioning.console.terminal import (
    LEAST_COLUMNS,
    clean_message,
    count_columns,
    join_commands,
    split_commands,
)

DIFF = ("-", "+")  # labels of lines that were there before, and that are there now
AGAIN = "again"  # label of a command that repeats something
LOG_LINES, LOG_CHARS = 40, 400
TERMINAL_LOG_LINES = 12
TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:[\d.,]+\s*")  # with which a line of a log begins
PLAIN_COLONS = re.compile(r"(?<!\w)::")
MOST_LINES = 20  # of a card on a terminal
LINE_CHARS = 2000
TEXT_WIDTH, GAP = 14, 2  # of columns with text, and between columns
ROWS = 200  # of a table in Markdown
# GitHub drops the whole summary of a step if it exceeds 1 MiB, including text of other programs.
LIMIT_BYTES = 1_000_000
LEFT_OUT = "The size of a summary is limited. The rest is in the report.\n"
MARKS: dict[str, str] = {
    Status.PASSED: ":white_check_mark:",
    Status.FAILED: ":x:",
    Status.UNSUPPORTED: ":heavy_minus_sign:",
    "infrastructure": ":construction:",  # of a job
}
STYLES: dict[str, str] = {
    Status.PASSED: "green",
    Status.FAILED: "bold red",
    Status.UNSUPPORTED: "yellow",
    "warning": "yellow",
    "note": "yellow",
}
# Letters, digits, spaces and ,;%'( stay, and what a person reads more easily in a terminal: _ - . /
# inside a word, except in www., signs of numbers, a period after a sentence, and a colon after a
# word that starts neither an emoji nor an address.
_MARKDOWN = re.compile(
    r"(?:(?<=[A-Za-z0-9])[_/-](?=[A-Za-z0-9])|(?<![wW]{3})(?<=[A-Za-z0-9])\.(?=[A-Za-z0-9])"
    r"|(?<![^ ])[+-](?=\d)|(?<=[A-Za-z])\.(?= |$)|(?<=[A-Za-z%])\)"
    r"|(?<=[A-Za-z0-9]):(?= |[A-Za-z0-9]+(?:[^:\w]|$)))"
    r"|([!-$&)*+\-./:<-@\[-`{-~])"
)
# GitHub finds people and issues in the rendered text, so escapes do not help.
_REFERENCE = re.compile(r"(?<=[@#])(?=\w)|(?<=\bGH)(?=-\d)")
WORD_JOINER = "\u2060"


@dataclass(frozen=True)
class Row:
    """A row of a table. ``tone`` is the status that determines the row's colour, empty for none.
    ``tones`` are those of single cells, if not only the verdict has a colour."""

    cells: tuple[str, ...]
    tone: str = ""
    tones: tuple[str, ...] = ()

    def find_tone(self, place: int, verdict: int) -> str:
        """Return the tone of the cell at ``place``. The verdict is in the column ``verdict``."""
        if self.tones:
            return self.tones[place]
        return self.tone if place == verdict else ""


@dataclass(frozen=True)
class Table:
    """A table. ``verdict`` is the index of the column with the verdict, -1 if there is none, and
    ``numbers`` are the indexes of the columns with numbers. ``most`` is the number of rows that a
    terminal shows, 0 for all.

    A terminal omits the columns ``wide`` and, if it is too narrow, also the columns ``spare``, in
    this order. It shows no table that is ``hidden`` from it.
    """

    title: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    verdict: int = -1
    numbers: frozenset[int] = frozenset()
    most: int = 0
    wide: frozenset[int] = frozenset()
    spare: tuple[int, ...] = ()
    hidden: bool = False


@dataclass(frozen=True)
class Point:
    """A point of a plot. ``x`` and ``y`` are its position, ``tone`` a CSS class. A point that is
    ``chosen`` has a ring. ``label`` is a tooltip, and ``name`` is written next to the point, at the
    height ``name_y``, to its left or right."""

    x: float
    y: float
    tone: str
    label: str
    chosen: bool
    name: str = ""
    name_y: float = 0.0
    is_left: bool = False

    @property
    def name_x(self) -> float:
        """Return where the name ends, if it is left of the point, or else where it starts."""
        return self.x - NAME_GAP if self.is_left else self.x + NAME_GAP

    @property
    def is_name_moved(self) -> bool:
        """Return whether the name is so far above or below that a line has to lead to it."""
        return bool(self.name) and abs(self.name_y - self.y) > NAME_GAP


@dataclass(frozen=True)
class Plot:
    """Points on two axes of PLOT_WIDTH and PLOT_HEIGHT units. ``front`` are the positions that a
    line connects. ``ends`` are the labels at the ends of the axes: left, right, bottom, top."""

    points: tuple[Point, ...]
    front: tuple[tuple[float, float], ...]
    ends: tuple[str, str, str, str]
    caption: str = ""


PLOT_WIDTH, PLOT_HEIGHT = 600, 200
NAME_GAP = 14.0  # between a point and its name: the ring of the chosen one has 10 with its line


@dataclass(frozen=True)
class Card:
    """Something that was found. ``kind`` is its first word, such as ``failed``. Each of ``lines``
    is a word, such as ``why``, and a text. The word is empty if the text needs none, or one of
    DIFF. ``log`` is the end of a log. Only HTML shows ``plot``, and links to the cases that the
    card is ``about``, each an index in the report and a name, instead of the title. HTML shows only
    the title of a card that ``is_folded``, until it is clicked."""

    kind: str
    title: str
    lines: tuple[tuple[str, str], ...] = ()
    plot: Plot | None = None
    log: str = ""
    about: tuple[tuple[int, str], ...] = ()
    is_folded: bool = False


@dataclass(frozen=True)
class Document:
    """What is shown: the result in one line, further ``notes``, and tables and cards in the order
    in which Markdown has them. A terminal and HTML show the tables first. ``tone`` is the status
    that determines the result's colour, empty for none."""

    title: str
    result: str
    parts: tuple[Table | Card, ...]
    notes: tuple[str, ...] = ()
    tone: str = ""

    @property
    def tables(self) -> list[Table]:
        """The tables among the parts, in order."""
        return [part for part in self.parts if isinstance(part, Table)]

    @property
    def cards(self) -> list[Card]:
        """The cards among the parts, in order."""
        return [part for part in self.parts if isinstance(part, Card)]


def list_findings(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """Return what findings say, as the lines of a card. Of more than SHOWN, only the headlines
    follow."""
    lines = []
    for finding in findings[:SHOWN]:
        headline, facts = list_lines(finding)
        lines += [("", f"{headline} [{finding.id}]"), *facts]
    lines += [("", f"{finding.headline} [{finding.id}]") for finding in findings[SHOWN:]]
    return lines


def show_document(document: Document) -> str:
    """Return a document as text for stdout: in its width and, if it shows them, with colours.

    Colours are not shown in CI, in a file, in a terminal without them, or if NO_COLOR is set.
    """
    may_colour = not is_ci() and not os.environ.get("NO_COLOR")
    stream = user_stdout()
    colour = may_colour and stream.isatty() and os.environ.get("TERM") != "dumb"
    width = max(LEAST_COLUMNS, count_columns(stream) or 120)
    return render_text(document, width, colour=colour)


def render_text(document: Document, width: int, *, colour: bool = False) -> str:
    """Return tables in ``width`` columns, cards, notes, and the result in the last line, with
    terminal sequences for colours if ``colour`` is set.

    Text from models or tools is escaped, or is printed after a mark, so that no CI runner
    interprets it as a command.
    """
    console = Console(
        file=StringIO(),
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        width=width,
        # Texts of models and tools are shown as they are: rich must not take them for markup or
        # emoji.
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        for table in document.tables:
            if table.rows and not table.hidden:
                _print_table(console, table)
        for card in document.cards:
            if card.lines or card.log or card.plot is None:
                _print_card(console, card)
        for note in document.notes:
            console.print(Text(clean_name(note), "yellow" if note.startswith("warning") else ""))
        console.print(Text(clean_name(document.result), STYLES.get(document.tone, "")))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _print_table(console: Console, table: Table) -> None:
    """Print a table with as many columns as fit, and the headings of those that are left out. Text
    is wrapped, numbers are not."""
    heads = list(table.head)
    for place in table.numbers:  # a column of numbers is narrow, so its heading has two lines
        heads[place] = "\n".join(heads[place].rsplit(" ", 1))
    candidates = [place for place in range(len(heads)) if place not in table.wide]
    rows = [[*map(clean_name, row.cells)] for row in table.rows[: table.most or None]]
    widths = {place: _measure_column(table, place, heads[place], rows) for place in candidates}
    shown = candidates
    numbers = [place for place in reversed(shown) if place in table.numbers]
    gap = GAP
    for spare in dict.fromkeys((*table.spare, *numbers)):
        width = sum(widths[place] for place in shown)
        if width + GAP * (len(shown) - 1) <= console.width:
            break
        if spare not in table.spare and width + len(shown) - 1 <= console.width:
            gap = 1  # rather than without one of the numbers that matter most
            break
        shown = [place for place in shown if place != spare]
    grid = rich.table.Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1) if gap == GAP else 0,
        collapse_padding=True,
        show_edge=False,
    )
    for place in shown:
        is_number = place in table.numbers
        grid.add_column(
            heads[place],
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
            min_width=widths[place],
        )
    for row, cells in zip(table.rows, rows, strict=False):
        styles = [STYLES.get(row.find_tone(place, table.verdict), "") for place in shown]
        grid.add_row(*(Text(cells[place], styles[at]) for at, place in enumerate(shown)))
    console.print(grid)
    if lost := [table.head[place] for place in candidates if place not in shown]:
        names = ", ".join(lost)
        console.print(Text(f"left out at {console.width} columns: {names}", "dim"))
    if len(rows) < len(table.rows):
        console.print(f"and {len(table.rows) - len(rows)} more: use --json to show them all")
    console.print()


def _measure_column(table: Table, place: int, head: str, rows: Iterable[Sequence[str]]) -> int:
    """Return the width of a column in characters: enough for its heading, and for each cell unless
    the cell is text that can be wrapped."""
    if place in table.numbers:
        longest: float = math.inf
    else:
        longest = TEXT_WIDTH if place else NAME_CHARS
    widths = [cell_len(line) for line in head.splitlines()]
    widths += [int(min(cell_len(cells[place]), longest)) for cells in rows]
    return max(widths)


def _print_card(console: Console, card: Card) -> None:
    """Print a card, and its lines after a mark. A command is not wrapped, so that it can be
    copied."""
    head = (card.kind, STYLES.get(card.kind, ""))
    # The name of a test, such as Suite::test, stays as it is. It is then not wrapped, since a CI
    # runner would take a line that begins with :: for a command.
    title = PLAIN_COLONS.sub(": :", clean_log_line(card.title))
    console.print(Text.assemble(head, f"  {title}"), soft_wrap="::" in title)
    log = drop_repeats(clean_message(card.log).splitlines())[-TERMINAL_LOG_LINES:]
    lines = [*card.lines, *(("", log_line) for log_line in log)]
    commands = [line for line in lines if line[0] == AGAIN]
    if (left_out := len(lines) - MOST_LINES) > 0:
        shown = [line for line in lines if line[0] != AGAIN][: MOST_LINES - len(commands)]
        lines = [*shown, ("", f"and {count(left_out, 'line')} in the report"), *commands]
    for word, line in lines:
        plain = clean_log_line(_label(word, line))
        joined = join_commands(plain)
        if word == AGAIN:
            pieces = [plain]
        elif joined == plain:
            pieces = [piece.plain for piece in Text(plain).wrap(console, console.width - 4)]
        else:  # rich would break a command that is longer than a line
            pieces = textwrap.wrap(
                joined, console.width - 4, break_long_words=False, break_on_hyphens=False
            )
        for piece in pieces:
            row = Text.assemble("  | ", split_commands(piece))
            console.print(row, soft_wrap=word == AGAIN or joined != plain)
    console.print()


def drop_repeats(lines: Iterable[str]) -> list[str]:
    """Return the lines of a log without those that differ from an earlier one only in their time: a
    tool prints the same message for each session. Lines without a time, as those of a traceback,
    stay."""
    messages: dict[object, str] = {}
    for place, line in enumerate(lines):
        time = TIME.match(line)
        messages.setdefault(line[time.end() :] if time else place, line)
    return [*messages.values()]


def _label(word: str, line: str) -> str:
    line = translate_commands(line)
    mark = word if word in DIFF else f"{word}:"
    return f"{mark} {line}" if word else line


def render_markdown(document: Document, limit_bytes: int = LIMIT_BYTES) -> str:
    """Return a document as Markdown. If it is longer than ``limit_bytes``, the parts that do not
    fit are left out. Tables have the first claim."""
    notes = "".join(f"- {escape_markdown(note)}\n" for note in document.notes)
    head = f"## {escape_markdown(document.title)}: {escape_markdown(document.result)}\n\n"
    blocks = [(False, f"{head}{notes}\n" if notes else head)]
    for kind, parts in groupby(document.parts, lambda part: getattr(part, "kind", "")):
        for number, part in enumerate(parts):
            is_card = isinstance(part, Card)
            text = _write_card(part) if isinstance(part, Card) else _write_table(part)
            title = f"### {_capitalize(kind)}\n\n" if is_card and not number else ""
            blocks.append((is_card, title + text))
    room = limit_bytes - len(LEFT_OUT)
    fitting = dict[int, str]()
    for place, (_, text) in sorted(enumerate(blocks), key=lambda numbered: numbered[1][0]):
        size = len(text.encode())
        if size <= room:
            room -= size
            fitting[place] = text
    text = "".join(fitting[place] for place in sorted(fitting))
    return text + (LEFT_OUT if len(fitting) < len(blocks) else "")


def _write_table(table: Table) -> str:
    """Return a table as Markdown. If it has more than ROWS rows, those that failed come first, and
    the rest is left out."""
    if not table.rows:
        return ""
    rows = table.rows
    if len(rows) > ROWS:
        rows = tuple(sorted(rows, key=lambda row: row.tone != Status.FAILED)[:ROWS])
    marked_rows = []
    for row in rows:
        cells = [_mark_cell(table, row, place) for place in range(len(table.head))]
        marked_rows.append(cells)
    text = make_markdown_table(table.head, marked_rows, table.numbers)
    left = len(table.rows) - len(rows)
    left_out = f"and {left} more in the report\n\n" if left else ""
    return f"### {escape_markdown(table.title)}\n\n{text}\n\n{left_out}"


def _mark_cell(table: Table, row: Row, place: int) -> str:
    """Return a cell in Markdown, with a mark for the row's tone before the verdict."""
    tone = row.find_tone(place, table.verdict)
    mark = f"{MARKS[tone]} " if tone in MARKS else ""
    return mark + escape_markdown(row.cells[place][:LINE_CHARS])


def make_markdown_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[int] = ()
) -> str:
    """Return a Markdown table. The columns ``numbers`` are aligned as numbers. The cells must be
    Markdown, see ``escape_markdown``."""
    rule = ["---"] * len(head)
    for place in numbers:
        rule[place] = "--:"
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def _write_card(card: Card) -> str:
    lines = [f"**{escape_markdown(card.title)}**\n\n"]
    for word, line in card.lines:
        if word == AGAIN:
            lines.append(f"\n<pre>{html.escape(clean_log_line(line))}</pre>\n")
        else:
            lines.append(f"- {escape_markdown(_label(word, line)[:LINE_CHARS])}\n")
    if log := clean_message(card.log).splitlines()[-LOG_LINES:]:
        shown = "".join(f"{html.escape(line[:LOG_CHARS])}\n" for line in log)
        lines.append(f"\n<details><summary>log</summary>\n\n<pre>\n{shown}</pre>\n\n</details>\n")
    return "".join([*lines, "\n"])


def escape_markdown(text: str) -> str:
    """Return ``text`` on one line, escaped so that it is shown without markup, links, mentions of
    people or cell borders."""
    line = _REFERENCE.sub(WORD_JOINER, clean_log_line(text))
    return _MARKDOWN.sub(lambda m: f"&#{ord(m[1])};" if m[1] else m[0], line)


def group_cards(cards: Sequence[Card]) -> list[tuple[str, list[Card]]]:
    """Return neighbouring cards of one kind together, under its heading."""
    groups = groupby(cards, lambda card: card.kind)
    return [(_capitalize(kind), [*group]) for kind, group in groups]


def _capitalize(kind: str) -> str:
    return f"{kind[:1].upper()}{kind[1:]}"
