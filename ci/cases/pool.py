"""Processes that already hold torch and ExecuTorch, each job with a time limit.

A fork server imports torch once, so that a worker starts in milliseconds. A worker does jobs of one
kind, one at a time; one that crashes, hangs or grows is replaced. Lowerings fork once more for each
(see ci.cases.forked). Runs share a process, in which QNN's libraries are loaded once; whoever
doubts a run asks for a process that has run nothing yet.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from msgspec import Struct

from ci.cases.worker_main import serve
from ci.executorch.memory import TUNABLES
from ci.models.numerics import VARIABLES
from provisioning.console.caller import DIRECTORY_VARIABLE
from provisioning.console.command import user_path
from provisioning.console.process import GRACE_S, TAIL_LINES, describe_exit
from provisioning.errors import QnnCiError, StoreError, UnfitError

PRELOAD = ["ci.cases.fork_server"]
EXPORTING = "ci.executorch.engine"  # where it is asked for by name, torch.export is made ready
RUNNING = ("ci.executorch.runtime",)
EXECUTORCH = (*RUNNING, EXPORTING)
ROOT = Path(__file__).resolve().parents[2]
# For the fork server: the process that started it, and what to import for all of its forks.
STARTER, IMPORTS = "QNN_CI_STARTER", "QNN_CI_IMPORTS"
ABORTED = "the run was ended"
MAX_WORKER_BYTES = 2 << 30


@dataclass(frozen=True)
class Ended:
    """How a job ended: ``failure`` is empty when ``result`` is there.

    ``used`` says that its process had done other jobs before.
    """

    result: Any
    failure: str
    log_tail: str
    wall_s: float
    used: bool = False


@contextmanager
def process_set(environment: Mapping[str, str], directory: Path) -> Iterator[None]:
    """Have ``environment`` and ``directory`` for a while: what starts meanwhile inherits both.

    The dynamic linker reads LD_LIBRARY_PATH when a program starts, hence before Python runs.
    multiprocessing starts Python with -c, which imports from the working directory first.
    """
    before, here = dict(os.environ), Path.cwd()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)


def list_python_path(given: str) -> str:
    """PYTHONPATH for a process that starts elsewhere: what was given, in whole paths, and this
    project where it is not installed."""
    paths = [os.path.abspath(path) for path in given.split(os.pathsep) if path]  # noqa: PTH100
    if ROOT.name not in {"site-packages", "dist-packages"}:
        paths.append(str(ROOT))
    return os.pathsep.join(dict.fromkeys(paths))


class Worker:
    """A forked process that does one job at a time."""

    def __init__(self, context: Any) -> None:
        self.used = False
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other,), daemon=True)
        self.process.start()
        other.close()

    def call(self, kind: str, job: Struct, log: Path, timeout_s: float) -> tuple[Any, str]:
        """The job's result, or why there is none; then this worker is of no more use."""
        try:
            self.connection.send((kind, job, str(log)))
            if not self.connection.poll(timeout_s):
                return None, f"did not end within {timeout_s:g} s"
            return self.connection.recv(), ""
        except (EOFError, OSError):
            self.process.join(GRACE_S)
            code = self.process.exitcode
            how = "closed its pipe" if code is None else describe_exit(code)
            return None, f"its process {how} without a result"

    def size_bytes(self) -> int:
        """Resident memory."""
        with suppress(OSError, IndexError):
            pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]
            return int(pages) * os.sysconf("SC_PAGE_SIZE")
        return 0

    def close(self) -> None:
        """Let the process end, or end it."""
        self.connection.close()
        self.process.join(GRACE_S)
        self.end()

    def end(self) -> None:
        """End the process and its group at once, whatever it is doing."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.exitcode is not None:
                return
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            self.process.join(GRACE_S)


def find_fork_server() -> int | None:
    """The id of this process's fork server: there is one at most, and no public way to it."""
    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


def start_fork_server() -> None:
    """Raises RuntimeError where one runs: what it forks has the variables that it started with."""
    before = find_fork_server()
    forkserver.ensure_running()
    if find_fork_server() == before:
        raise RuntimeError("another fork server of this process has not been ended")


def end_fork_server() -> None:
    """End it at once, and with it what it has forked."""
    if pid := find_fork_server():
        os.kill(pid, signal.SIGKILL)
        forkserver._forkserver._stop()  # type: ignore[attr-defined]


class Pool:
    """Workers for jobs in ``environment``; safe to use from several threads.

    Making one starts the imports, of ``imports``. They end with the thread that makes it,
    or with ``close``.
    The processes stand in ``directory``, which holds nothing that Python could import.
    """

    def __init__(
        self, environment: Mapping[str, str], directory: Path, imports: Sequence[str] = EXECUTORCH
    ) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOAD)
        own = {
            STARTER: str(os.getpid()),
            IMPORTS: " ".join(imports),
            "PYTHONUTF8": "1",  # ExecuTorch reads files of its own in the locale's encoding
            DIRECTORY_VARIABLE: str(user_path(".").resolve()),
            "PYTHONPATH": list_python_path(environment.get("PYTHONPATH", "")),
            "GLIBC_TUNABLES": ":".join(filter(None, [environment.get("GLIBC_TUNABLES"), TUNABLES])),
            **VARIABLES,
        }
        with process_set({**environment, **own}, directory):
            start_fork_server()
        self.idle: dict[tuple[str, int], Worker] = {}  # of a kind, of a thread
        self.aborted = threading.Event()

    def close(self) -> None:
        """End every process of the pool; their jobs end with a failure, and so do later ones.

        The workers end with the fork server, and lowerings with their workers.
        """
        self.aborted.set()
        end_fork_server()

    def run(
        self,
        kind: str,
        job: Struct,
        log: Path,
        timeout_s: float,
        *,
        fresh: bool = False,
    ) -> Ended:
        """Do one job, at most ``timeout_s`` seconds; ``fresh`` asks for a process of its own.

        Raises StoreError where the job found no room.
        """
        if self.aborted.is_set():
            return Ended(None, ABORTED, "", 0.0)
        try:
            worker = self._take(kind, fresh=fresh)
        except UnfitError:
            if self.aborted.is_set():  # meanwhile: the first start of a worker takes seconds
                return Ended(None, ABORTED, "", 0.0)
            raise
        started = time.monotonic()
        used, worker.used = worker.used, True
        reusable = False
        try:
            result, failure = worker.call(kind, job, log, timeout_s)
            reusable = not fresh and not failure and worker.size_bytes() < MAX_WORKER_BYTES
        finally:
            wall_s = time.monotonic() - started
            if reusable:
                self.idle[kind, threading.get_ident()] = worker
            else:
                worker.close()
        if isinstance(result, StoreError):
            raise result
        if isinstance(result, QnnCiError):
            result, failure = None, str(result)
        return Ended(result, failure, read_tail(log), wall_s, used)

    def _take(self, kind: str, *, fresh: bool) -> Worker:
        known = None if fresh else self.idle.pop((kind, threading.get_ident()), None)
        if known:
            return known
        try:
            return Worker(self.context)
        except (EOFError, ConnectionError) as error:
            raise UnfitError(
                "the process that holds what models are lowered with cannot be started",
                why="it ended while it imported them; what it said stands above",
                fix="see whether memory, CPU time or files are limited (ulimit -a), and whether "
                f"`{sys.executable} -c 'import torch'` works",
            ) from error


def read_tail(log: Path) -> str:
    """The last lines of a log."""
    with suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(line[:400] for line in lines[-TAIL_LINES:])
    return ""
