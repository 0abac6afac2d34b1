"""Tasks in forks of this process, some side by side, each with a place for its temporary files."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from provisioning.console.process import end_with_parent

FAILS = "fails without a mutant:"
POLL_S = 0.005
RAISED = 35  # to mutmut neither a mutant that was killed nor one that survived


@dataclass(frozen=True)
class Task:
    """What a fork runs for its exit code."""

    name: str
    run: Callable[[], int]


@dataclass(frozen=True)
class Fork:
    """A task that runs. Its temporary files lie in ``folder``."""

    task: Task
    pid: int
    folder: Path

    def poll(self) -> int | None:
        """The exit code, -N where signal N ended it; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self.clean()
        return os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """Kill it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.clean()

    def clean(self) -> None:
        """End the processes that it left, and remove its files."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def run_tasks(tasks: Iterable[Task], jobs: int) -> Generator[tuple[str, int]]:
    """Run them in this order, ``jobs`` at a time: name and exit code of each as it ends.

    Those that run when the iterator is closed are killed.
    """
    waiting, running = iter(tasks), list[Fork]()
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        try:
            while True:
                for task in islice(waiting, jobs - len(running)):
                    running.append(start_fork(task, Path(place)))
                if not running:
                    return
                time.sleep(POLL_S)
                for fork in list(running):
                    code = fork.poll()
                    if code is not None:
                        running.remove(fork)
                        yield fork.task.name, code
        finally:
            for fork in running:
                fork.end()


def start_fork(task: Task, place: Path) -> Fork:
    """Run a task in a process group of its own. What it prints goes nowhere."""
    folder = Path(tempfile.mkdtemp(dir=place))
    sys.stdout.flush()
    parent, pid = os.getpid(), os.fork()
    if pid:
        return Fork(task, pid, folder)
    code = RAISED
    with suppress(BaseException):  # it must not go on as its parent does
        os.setpgid(0, 0)
        end_with_parent(parent)
        leave_parent(folder)
        code = task.run()
    os._exit(code)


def leave_parent(folder: Path) -> None:
    """Share neither the parent's output nor its temporary files."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
