"""Show progress on stderr: bars on a terminal, plain lines in CI, or nothing.

A bar shows the elapsed time, even if nothing else happens.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from provisioning.console.caller import is_ci, translate_commands
from provisioning.console.terminal import clean_message, count_columns, fit_lines, write_through

BAR_WIDTH = 24
LEAST_COLUMNS = 100  # for a graphic bar
TERMINAL_INTERVAL_S = 0.1
REFRESH_S = 1.0
# A log gets one line per interval, so that a long download does not fill it.
PLAIN_INTERVAL_S = 10.0
# To the start of the line, and erase it (ECMA-48, EL).
CLEAR = "\r\x1b[2K"


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

    def advance(self, amount: float, note: str = "") -> None:
        """Add ``amount`` to the count. If it is time to redraw the bar, do so, with ``note`` after
        it.
        """
        self.done += amount
        self._counted += amount
        self._note = note
        self.show(TERMINAL_INTERVAL_S if self.progress.live else PLAIN_INTERVAL_S)

    @contextmanager
    def busy(self, name: str | Callable[[], str]) -> Iterator[None]:
        """Show ``name``, or what it returns, as current work during the block; any thread may call
        this."""
        self._busy.append(name)
        try:
            yield
        finally:
            self._busy.remove(name)

    def show(self, interval_s: float) -> None:
        """Write the line again if ``interval_s`` seconds have passed since it was last written."""
        now = time.monotonic()
        if now - self._shown < interval_s:
            return
        self._shown = now
        busy = map(_describe_task, self._busy.copy())  # other threads change the list
        note = self._note or ", ".join(busy)
        text, live = clean_message(self.describe(now, note)), self.progress.live
        if live and self.columns and len(text) >= self.columns:
            text = text[: self.columns - 4] + "..."  # text in the last column would wrap
        self.progress.write(text if live else f"{text}\n")

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


class Progress:
    """Reports the progress of a verb on ``stream``; if ``stream`` is None, nothing is printed."""

    def __init__(self, stream: TextIO | None = None, *, live: bool = False) -> None:
        self.stream = stream
        self.live = live
        self.lock = threading.Lock()

    @classmethod
    def to_stderr(cls) -> Progress:
        """Return a Progress for stderr: with live bars on a terminal outside CI, else with plain
        lines.
        """
        return cls(sys.stderr, live=sys.stderr.isatty() and not is_ci())

    def step(self, message: str) -> None:
        """Print one message on its own line."""
        if self.stream:
            line = f"{clean_message(translate_commands(message))}\n"
            self.write(fit_lines(line, count_columns(self.stream)))

    def write(self, text: str) -> None:
        """Write ``text`` unchanged, on a terminal over the line of a bar."""
        if self.stream:
            with self.lock:
                write_through(self.stream, f"{CLEAR}{text}" if self.live else text)

    @contextmanager
    def bar(self, label: str, total: float = 0, unit: str = "B") -> Iterator[Bar]:
        """Show a bar during the block, and update it even if nothing advances."""
        columns = count_columns(self.stream) if self.stream else None
        bar = Bar(label, total, unit, self, columns)
        ended = threading.Event()
        interval_s = REFRESH_S if self.live else PLAIN_INTERVAL_S

        def refresh() -> None:
            while not ended.wait(interval_s / 2):
                bar.show(interval_s)

        if self.stream:
            # A daemon: it must not keep a process alive that exits in the middle of a block.
            threading.Thread(target=refresh, daemon=True).start()
        try:
            yield bar
        finally:
            ended.set()
            if self.live:
                self.write("")

    @contextmanager
    def waiting(self, reason: str) -> Iterator[None]:
        """Show during the block what the program is waiting for, and for how long."""
        with self.bar(f"{reason}:", unit=""):
            yield
