"""The limits of a process, and what /proc says of one. This module imports no package: verbs that
supervise nothing, and checks of arguments before an environment is installed, do without psutil."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from provisioning.documents import read_window

PROC = Path("/proc")


@dataclass(frozen=True)
class Allowance:
    """The limits of a process and its descendants: seconds, bytes of memory, and the ``share`` of
    the memory that they may use even if the machine has almost no memory left. 0 is no limit.
    """

    timeout_s: float
    max_bytes: int = 0
    share_bytes: int = 0


def gib(size_bytes: float) -> str:
    """Return a size as text, in GiB."""
    return f"{size_bytes / (1 << 30):.3g} GiB"


def read_stat(name: int | str) -> list[str]:
    """Return the fields of the stat file of a process from its state on, see proc(5); [] if it has
    ended. ``name`` is its ID, or ``PID/task/THREAD`` for one of its threads.
    """
    # From the last parenthesis on: a process may have spaces and parentheses in its name.
    return read_window(PROC / f"{name}/stat").rpartition(")")[2].split()
