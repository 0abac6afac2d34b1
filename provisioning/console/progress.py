"""Progress on stderr: bars on a terminal, plain lines in CI, silence where asked."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from provisioning.console.terminal import clean_message, write_through

BAR_WIDTH = 24
TERMINAL_INTERVAL_S = 0.1
PLAIN_INTERVAL_S = 10.0


@dataclass
class Bar:
    """One long piece of work: ``advance`` counts ``unit`` up to ``total`` (0 when not known)."""

    label: str
    total: float
    unit: str
    stream: TextIO | None
    live: bool
    done: float = 0
    _started: float = field(default_factory=time.monotonic)
    _shown: float = field(default_factory=time.monotonic)

    def advance(self, amount: float, note: str = "") -> None:
        """Count ``amount`` more, and show it when it is time to."""
        self.done += amount
        now = time.monotonic()
        if now - self._shown >= (TERMINAL_INTERVAL_S if self.live else PLAIN_INTERVAL_S):
            self._shown = now
            self._write(self.describe(now, note))

    def describe(self, now: float, note: str = "") -> str:
        """The line to show at time ``now`` (seconds of time.monotonic)."""
        rate = self.done / max(now - self._started, 1e-9)
        amount = f"{_amount(self.done, self.unit)}"
        if self.total:
            share = min(self.done / self.total, 1.0)
            filled = round(share * BAR_WIDTH)
            bar = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {share:4.0%} "
            amount = f"{bar}{amount} of {_amount(self.total, self.unit)}"
        speed = f" at {_amount(rate, self.unit)}/s" if self.unit == "B" else ""
        return f"  {self.label} {amount}{speed}{'  ' + note if note else ''}"

    def _write(self, line: str) -> None:
        if self.stream:
            text = clean_message(line)
            write_through(self.stream, f"\r\x1b[2K{text}" if self.live else f"{text}\n")

    def close(self) -> None:
        """Take the live line away."""
        if self.stream and self.live:
            write_through(self.stream, "\r\x1b[2K")


def _amount(value: float, unit: str) -> str:
    if unit != "B":
        return f"{value:.0f} {unit}".rstrip()
    for prefix in ("", "Ki", "Mi"):
        if value < 1024:
            return f"{value:.0f} {prefix}B" if not prefix else f"{value:.1f} {prefix}B"
        value /= 1024
    return f"{value:.2f} GiB"


class Progress:
    """Where a verb says what it is doing. ``stream`` None is silence."""

    def __init__(self, stream: TextIO | None = None, *, live: bool = False) -> None:
        self.stream = stream
        self.live = live

    @classmethod
    def to_stderr(cls) -> Progress:
        """Live bars when stderr is a terminal and CI is not set, else plain lines."""
        return cls(sys.stderr, live=sys.stderr.isatty() and not os.environ.get("CI"))

    def step(self, message: str) -> None:
        """Say one thing, on a line of its own."""
        if self.stream:
            text = clean_message(message)
            write_through(self.stream, f"\r\x1b[2K{text}\n" if self.live else f"{text}\n")

    @contextmanager
    def bar(self, label: str, total: float = 0, unit: str = "B") -> Iterator[Bar]:
        """A bar for as long as the block lasts."""
        bar = Bar(label, total, unit, self.stream, self.live)
        try:
            yield bar
        finally:
            bar.close()
