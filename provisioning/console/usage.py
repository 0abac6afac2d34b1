"""Limits for a process and its descendants: time, memory and number of processes.

A process that waits for a processor or a disk does not use up its time, so that other work on the
machine does not turn into failures. It may take at most BUSY times as long in wall-clock time.
"""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from provisioning.console.allowance import PROC, Allowance, gib, read_stat
from provisioning.documents import read_window

BUSY = 10
# So that a fork bomb is found before the machine has no process left.
MAX_PROCESSES = 1000
STARVED = 0.01  # a process that got less than this share of its time was not tried
# The variable with the number of runs of this project that share the memory; `test` sets it.
RUNS_AT_ONCE = "QNN_CI_RUNS_AT_ONCE"
RUN_COUNT = re.compile("[1-9][0-9]{0,3}")
RESERVE = 16  # one part in RESERVE of the memory is left to the rest of the machine
# The hierarchies of control groups, versions 2 and 1: limit, use, statistics and their key for
# files that the kernel can drop.
GROUPS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
GROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Usage:
    """What processes use now. ``cpu_s`` includes their children that ended. ``is_waiting`` is true
    if one of their threads waits for a processor or a disk, or uses it.
    """

    pids: tuple[int, ...] = ()
    resident_bytes: int = 0  # memory that processes share counts several times
    cpu_s: float = 0.0
    is_waiting: bool = False

    def measure_bytes(self) -> int:
        """Return the memory of the processes. Memory that they share counts once."""
        shares = []  # a process may have ended, and then has none
        for pid in self.pids:
            # PSS divides shared pages among the processes. It takes the kernel long, so it is only
            # read near a limit.
            with suppress(psutil.Error):
                shares.append(psutil.Process(pid).memory_full_info().pss)
        return min(sum(shares), self.resident_bytes) if shares else self.resident_bytes


def list_descendants(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants, [] if it has ended. Orphans are included if the process
    is a subreaper."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def read_usage(pid: int) -> Usage:
    """Return what a process and its descendants use."""
    # Not by psutil, which reads the parents of all processes of the machine to find descendants:
    # the waiting process used 3 % of the CPU time of the suite, and most of a busy machine's.
    pids, resident_bytes, ticks, is_waiting = list_pids(pid), 0, 0, False
    for member in pids:
        if fields := read_stat(member):  # [] if it has ended meanwhile
            ticks += sum(map(int, fields[USER_TICKS : CHILDREN_SYSTEM_TICKS + 1]))
            resident_bytes += int(fields[RESIDENT_PAGES]) * PAGE_BYTES
            # The state in this file is that of the main thread only.
            is_waiting = is_waiting or not WAITING.isdisjoint(_read_states(member))
    return Usage(tuple(pids), resident_bytes, ticks / TICKS_PER_S, is_waiting)


# In the list that read_stat returns, see proc(5).
USER_TICKS, CHILDREN_SYSTEM_TICKS, RESIDENT_PAGES = 11, 14, 21
WAITING = frozenset("RD")
PAGE_BYTES, TICKS_PER_S = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
LISTS_CHILDREN = PROC.joinpath("thread-self", "children").exists()  # by CONFIG_PROC_CHILDREN


def list_pids(pid: int) -> list[int]:
    """Return the IDs of a process and its descendants, [] if it has ended. For a moment, one may be
    missing while others end."""
    if not LISTS_CHILDREN:
        return [process.pid for process in list_descendants(pid)]
    pids = [pid] if PROC.joinpath(str(pid)).exists() else []
    for parent in pids:  # grows meanwhile
        for thread in _list_threads(parent):
            children = read_window(PROC / f"{parent}/task/{thread}/children").split()
            pids += [child for child in map(int, children) if child not in pids]
    return pids


def _list_threads(pid: int) -> list[str]:
    with suppress(OSError):
        return [thread.name for thread in PROC.joinpath(str(pid), "task").iterdir()]
    return []


def _read_states(pid: int) -> Iterator[str]:
    for thread in _list_threads(pid):
        yield from read_stat(f"{pid}/task/{thread}")[:1]


def measure_memory() -> tuple[int, int]:
    """Return the memory that is available now, and the memory of the machine or control group, in
    bytes; 0 if they are unknown.
    """
    free, total = 0, 0
    with suppress(OSError):  # without /proc/meminfo
        memory = psutil.virtual_memory()
        free, total = memory.available, memory.total
    for limit, used, statistics, key in GROUPS:  # psutil knows no control groups
        most, now = (read_window(GROUP_ROOT / name).strip() for name in (limit, used))
        if most.isdecimal() and now.isdecimal() and int(most) < total:
            # Cached files count as used memory of a control group, but the kernel drops them when
            # memory is needed.
            dropped = re.search(rf"(?m)^{key} (\d+)", read_window(GROUP_ROOT / statistics))
            left = int(most) - int(now) + (int(dropped[1]) if dropped else 0)
            free, total = min(free, left), int(most)
    return free, total


def share_memory(jobs: int = 0) -> tuple[int, int]:
    """Return ``max_bytes`` and ``share_bytes`` of an Allowance for each of ``jobs`` jobs that run
    at a time, by default one for each core, in each of the runs that RUNS_AT_ONCE counts. One job
    may use all memory that is available now, except a reserve, while the others need little.
    """
    free, total = measure_memory()
    most = max(free - total // RESERVE, 0)
    if not jobs:
        return most, most // len(os.sched_getaffinity(0))
    runs = os.environ.get(RUNS_AT_ONCE, "")
    return most, most // (jobs * (int(runs) if RUN_COUNT.fullmatch(runs) else 1))


@dataclass
class Watch:
    """Watches a process and its descendants. ``check`` must be called several times per second."""

    pid: int
    allowance: Allowance
    started: float = field(default_factory=time.monotonic)
    own_s: float = 0.0  # time that was not spent waiting for a processor or a disk
    usage: Usage = Usage()
    is_late: bool = False
    checked: float = 0.0

    def __post_init__(self) -> None:
        self.checked, self.usage = self.started, read_usage(self.pid)
        self.before_s = self.usage.cpu_s

    @property
    def cpu_s(self) -> float:
        """The CPU time since the watch began, in seconds."""
        return self.usage.cpu_s - self.before_s

    @property
    def is_starved(self) -> bool:
        """Whether the processes got hardly any CPU time although they wanted it."""
        limit_s = self.allowance.timeout_s * STARVED
        return self.is_late and self.cpu_s < limit_s and self.own_s < self.allowance.timeout_s

    @property
    def waited_s(self) -> float:
        """The time until the last check that was spent waiting for a processor or a disk."""
        return self.checked - self.started - self.own_s

    def is_due(self, every_s: float) -> bool:
        """Return whether the last check was at least ``every_s`` seconds ago."""
        return time.monotonic() >= self.checked + every_s

    def check(self, answer_bytes: int = 0) -> str:
        """Return which limit the processes exceeded, and by how much, or "" if none.
        ``answer_bytes`` is the size of what this process received from them, and counts, too.
        """
        now, usage, limit_s = time.monotonic(), read_usage(self.pid), self.allowance.timeout_s
        passed_s = now - self.checked
        # Times of a process that has ended may be missing for a moment, until its parent has waited
        # for it.
        used_s = max(usage.cpu_s - self.usage.cpu_s, 0.0)
        self.own_s += min(passed_s, used_s) if usage.is_waiting else passed_s
        self.checked, self.usage = now, usage
        if len(usage.pids) > MAX_PROCESSES:
            return f"the process started more than {MAX_PROCESSES} processes"
        if excess := self._find_memory(answer_bytes):
            return excess
        wall_s = now - self.started
        self.is_late = self.own_s >= limit_s or wall_s >= BUSY * limit_s
        if not self.is_late:
            return ""
        if self.own_s >= limit_s:
            return f"did not end within {limit_s:g} s: it used {self.cpu_s:.1f} s of CPU time"
        return (
            f"did not end within {BUSY * limit_s:g} s, {BUSY} times its limit: the machine was"
            f" busy, and it got only {self.cpu_s:.1f} s of CPU time"
        )

    def _find_memory(self, answer_bytes: int) -> str:
        most, share = self.allowance.max_bytes, self.allowance.share_bytes
        if self.usage.resident_bytes + answer_bytes <= min(most or math.inf, share or math.inf):
            return ""
        size_bytes = self.usage.measure_bytes() + answer_bytes
        if most and size_bytes > most:
            return f"the process needs more than {gib(most)} of memory, its limit"
        if share and size_bytes > share:
            free, total = measure_memory()
            # One job may exceed its share while the others need little.
            if free < total // RESERVE:
                return (
                    f"the process needs {gib(size_bytes)} of memory, its share is {gib(share)},"
                    f" and the machine has only {gib(free)} left"
                )
        return ""


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, even if its parent does not know yet."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def end_descendants(pid: int) -> None:
    """Kill the descendants of a process, and theirs, but not the process itself, and wait until
    they have ended. Processes that fork without end can only be killed as a group.
    """
    deadline, spared = time.monotonic() + 2.0, {os.getpgrp()}
    with suppress(ProcessLookupError):
        spared.add(os.getpgid(pid))
    # A process that starts while the others are listed is missing from the list, and is not waited
    # for even if it dies with its group. So they are listed again until no new one appears.
    listed_before: set[int] = set()
    while (left := list_descendants(pid)[1:]) and time.monotonic() < deadline:
        for descendant in left:
            with suppress(ProcessLookupError, PermissionError, psutil.Error):
                # Killing this group would also kill the caller or the process itself.
                if (group := os.getpgid(descendant.pid)) in spared:
                    descendant.kill()
                else:
                    os.killpg(group, signal.SIGKILL)
        listed = {descendant.pid for descendant in left}
        if listed <= listed_before and all(has_ended(number) for number in listed):
            return
        listed_before |= listed
