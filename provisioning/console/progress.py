"""Show progress on stderr: bars on a terminal, plain lines in CI, or nothing.

A bar shows the elapsed time, even if nothing else happens. On a terminal, rich draws the bars that
are shown at the same time below the messages.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO, cast

from provisioning.console.caller import is_ci, translate_commands
from provisioning.console.streams import user_stderr
from provisioning.console.terminal import clean_message, count_columns, fit_lines, write_through

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

BAR_WIDTH = 24
LEAST_COLUMNS = 100  # for a graphic bar
REFRESHES_PER_S = 5
# A log gets one line per interval, so that a long download does not fill it.
PLAIN_INTERVAL_S = 10.0
SAME_INTERVALS = 6  # between lines of which only the time differs
# Values of TERM for terminals that cannot move their cursor.
PLAIN_TERMINALS = {"dumb", "unknown"}


@dataclass
class Bar:
    """The progress of a long task, counted in ``unit`` by ``advance`` up to ``total`` (0 if
    unknown).

    ``columns`` is the maximum width of a line, None for no limit.
    """

    label: str
    total: float
    unit: str
    progress: Progress
    columns: int | None = None
    done: float = 0
    _busy: list[str | Callable[[], str]] = field(default_factory=list)
    _note: str = ""
    _counted: float = 0
    _started: float = field(default_factory=time.monotonic)
    _shown: float = field(default_factory=time.monotonic)
    _shown_state: tuple[float, str] | None = None

    def advance(self, amount: float, note: str = "") -> None:
        """Add ``amount`` to the count, and show ``note`` after it. In a log, this writes a line if
        it is time for one.
        """
        self.done += amount
        self._counted += amount
        self._note = note
        self.log()

    @contextmanager
    def busy(self, name: str | Callable[[], str]) -> Iterator[None]:
        """Show ``name``, or what it returns, as current work during the block; any thread may call
        this."""
        self._busy.append(name)
        try:
            yield
        finally:
            self._busy.remove(name)

    def log(self) -> None:
        """Write a line into a log if PLAIN_INTERVAL_S passed since the last one, or SAME_INTERVALS
        of them if only the time differs."""
        now = time.monotonic()
        if self.progress.live or now - self._shown < PLAIN_INTERVAL_S:
            return
        state = (self.done, self.note())
        if state == self._shown_state and now - self._shown < SAME_INTERVALS * PLAIN_INTERVAL_S:
            return
        self._shown, self._shown_state = now, state
        self.progress.write(f"{self.line()}\n")

    def note(self) -> str:
        """Return what follows the count: what the last step was, or the current work."""
        busy = map(_describe_task, self._busy.copy())  # other threads change the list
        return self._note or ", ".join(busy)

    def line(self) -> str:
        """Return the line to show now, no wider than the terminal."""
        text = clean_message(self.describe(time.monotonic(), self.note()))
        if self.progress.live and self.columns and len(text) >= self.columns:
            text = text[: self.columns - 4] + "..."  # text in the last column would wrap
        return text

    def describe(self, now: float, note: str = "") -> str:
        """Return the line to show at time ``now`` (seconds of time.monotonic)."""
        passed_s = now - self._started
        words = [f"  {self.label}"]
        if self.total:
            share = min(self.done / self.total, 1.0)
            if self.columns is None or self.columns >= LEAST_COLUMNS:
                filled = round(share * BAR_WIDTH)
                words.append(f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}]")
            words.append(f"{share:4.0%}")
            words.append(f"{_amount(self.done, self.unit)} of {_amount(self.total, self.unit)},")
        elif self.done:
            words.append(f"{_amount(self.done, self.unit)},")
        # Of what this run transferred: a resumed download starts with `done` above 0.
        rate = self._counted / max(passed_s, 1e-9)
        if self.unit == "B":
            words.append(f"{_amount(rate, self.unit)}/s,")
        words.append(_duration(passed_s))
        if self.unit == "B" and self.total and rate:
            words[-1] += f", {_duration(max(0.0, self.total - self.done) / rate)} left"
        return " ".join(words) + (f"  {note}" if note else "")


def _describe_task(task: str | Callable[[], str]) -> str:
    return task if isinstance(task, str) else task()


def _amount(value: float, unit: str) -> str:
    if unit != "B":
        return f"{value:.0f} {unit}".rstrip()
    for prefix in ("", "Ki", "Mi"):
        if value < 1024:
            return f"{value:.0f} {prefix}B" if not prefix else f"{value:.1f} {prefix}B"
        value /= 1024
    return f"{value:.2f} GiB"


def _duration(seconds: float) -> str:
    minutes, seconds_left = divmod(int(seconds), 60)
    return f"{minutes} min {seconds_left} s" if minutes else f"{seconds_left} s"


class SafeStream:
    """A stream for rich, which draws in a thread: if the stream cannot be written, for
    example because its terminal was closed, nothing is drawn any more.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write ``text``, and return its length."""
        write_through(self.stream, text)
        return len(text)

    def flush(self) -> None:
        """Do nothing, because ``write`` flushes."""

    def isatty(self) -> bool:
        """Return True."""
        return True


class Progress:
    """Reports the progress of a verb on ``stream``; if ``stream`` is None, nothing is printed."""

    def __init__(self, stream: TextIO | None = None, *, live: bool = False) -> None:
        self.stream = stream
        self.live = live
        self.lock = threading.RLock()
        self.bars: list[Bar] = []  # those that are shown now
        self.display: Live | None = None

    @classmethod
    def to_stderr(cls) -> Progress:
        """Return a Progress for stderr: with live bars on a terminal outside CI, else with plain
        lines.
        """
        stream = user_stderr()
        can_draw = stream.isatty() and os.environ.get("TERM") not in PLAIN_TERMINALS
        return cls(stream, live=can_draw and not is_ci())

    def step(self, message: str) -> None:
        """Print one message on its own line."""
        if self.stream:
            line = f"{clean_message(translate_commands(message))}\n"
            self.write(fit_lines(line, count_columns(self.stream)))

    def write(self, text: str) -> None:
        """Write ``text`` unchanged, on a terminal above the bars."""
        if not self.stream:
            return
        with self.lock:
            if self.display:
                self.display.console.out(text, end="", highlight=False)
            else:
                write_through(self.stream, text)

    @contextmanager
    def bar(self, label: str, total: float = 0, unit: str = "B") -> Iterator[Bar]:
        """Show a bar during the block, and update it even if nothing advances."""
        columns = count_columns(self.stream) if self.stream else None
        bar = Bar(label, total, unit, self, columns)
        if not self.stream:
            yield bar
            return
        shown: AbstractContextManager[None]
        shown = self._draw(bar, self.stream) if self.live else _log_regularly(bar)
        with shown:
            yield bar

    @contextmanager
    def _draw(self, bar: Bar, stream: TextIO) -> Iterator[None]:
        """Draw a bar below the messages during the block."""
        with self.lock:
            self.bars.append(bar)
            if self.display is None:
                self.display = self._start_display(stream, bar.columns)
        try:
            yield
        finally:
            with self.lock:
                self.bars.remove(bar)
                ended = None if self.bars else self.display
                if ended:
                    self.display = None
            if ended:
                ended.stop()

    def _start_display(self, stream: TextIO, columns: int | None) -> Live:
        # Only where bars are drawn: importing rich takes 40 ms.
        from rich.console import Console
        from rich.live import Live

        console = Console(
            file=cast("TextIO", SafeStream(stream)),
            force_terminal=True,
            width=columns,
            color_system=None,
        )
        display = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        display.start()
        return display

    def _render(self) -> RenderableType:
        from rich.text import Text

        lines = "\n".join(bar.line() for bar in self.bars.copy())
        return Text(lines, no_wrap=True, overflow="crop")

    @contextmanager
    def waiting(self, reason: str) -> Iterator[None]:
        """Show during the block what the program is waiting for, and for how long."""
        with self.bar(f"{reason}:", unit=""):
            yield


class LinesInOrder:
    """Passes on the lines of ``count`` tasks that run at a time, those of each task together: those
    of the first unfinished one at once, those of later ones when all before them have ended."""

    def __init__(self, show: Callable[[str], None], count: int) -> None:
        self.show = show
        self.waiting: list[list[str]] = [[] for _ in range(count)]
        self.ended = [False] * count
        self.first = 0
        self.lock = threading.Lock()

    def add(self, task: int, line: str) -> None:
        """Show a line of a task, or keep it until its turn."""
        with self.lock:
            if task == self.first:
                self.show(line)
            else:
                self.waiting[task].append(line)

    def end(self, task: int) -> None:
        """Note that a task has ended, and show what waited for that."""
        with self.lock:
            self.ended[task] = True
            while self.first < len(self.ended) and self.ended[self.first]:
                self.first += 1
                for line in self.waiting[self.first] if self.first < len(self.ended) else ():
                    self.show(line)


@contextmanager
def _log_regularly(bar: Bar) -> Iterator[None]:
    """Write lines into a log during the block, even if nothing advances."""
    ended = threading.Event()

    def refresh() -> None:
        while not ended.wait(PLAIN_INTERVAL_S / 2):
            bar.log()

    # A daemon: it must not keep a process alive that exits in the middle of a block.
    threading.Thread(target=refresh, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
