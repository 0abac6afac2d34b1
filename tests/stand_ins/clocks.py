"""A clock that stands still until a test sets it forward: limits end when the test says."""

from __future__ import annotations

from collections.abc import Callable

import pytest


class Clock:
    """The time that time.monotonic returns, in seconds. Each look at it takes ``look_s``, so that a
    loop that waits ends at some time."""

    def __init__(self, look_s: float) -> None:
        self.now_s, self.look_s = 1000.0, look_s

    def read(self) -> float:
        """Return the time."""
        self.now_s += self.look_s
        return self.now_s

    def forward(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds


def stop_clock(patch: pytest.MonkeyPatch, look_s: float = 0.0) -> Clock:
    """Let time.monotonic read a Clock until the end of the patch."""
    clock = Clock(look_s)
    patch.setattr("time.monotonic", clock.read)
    return clock


def expire_when(patch: pytest.MonkeyPatch, has_happened: Callable[[], object]) -> None:
    """Let time.monotonic stand still until something has happened, and pass all limits then. What
    has happened before is still noticed, as the third look is the first one with the new time."""
    looks = 0

    def read() -> float:
        nonlocal looks
        looks += bool(looks or has_happened())
        return 1e6 if looks > 2 else 0.0

    patch.setattr("time.monotonic", read)
