"""Wait for what another process or thread does, however long that takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
LOOK_S = 0.01


def pause(seconds: float) -> None:
    """Let a stand-in be slow. Only what pages through data may call this, never what a test waits
    for: tests/static lists the callers."""
    time.sleep(seconds)


def wait_until(find: Callable[[], T]) -> T:
    """Return the first result of ``find`` that is true. There is no limit of its own: pytest's ends
    a test that waits in vain."""
    while not (result := find()):
        time.sleep(LOOK_S)
    return result


def wait_for_text(path: Path) -> str:
    """Return the first whole line of a file that another process writes."""

    def find() -> str:
        text = path.read_text("utf-8") if path.is_file() else ""
        return text if text.endswith("\n") else ""

    return wait_until(find)


def is_running(pid: int) -> bool:
    """Return whether a process is there and has not ended as a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def wait_for_end(pid: int) -> None:
    """Wait until a process has ended, which need not be a child of this one."""
    wait_until(lambda: not is_running(pid))
