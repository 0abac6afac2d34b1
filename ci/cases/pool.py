"""Processes that have already imported torch and the engine's packages, for jobs with a time limit.

A fork server imports torch once, so that a worker starts in milliseconds. A worker does one kind of
job, one at a time; if it crashes, hangs or grows, it is replaced. Compilations fork once more for
each case (see ci.cases.forked). Runs share a process that loads QNN's libraries once; a lease can
ask for a process that has run nothing yet.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import current_process, forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ci.cases.forked import answer_job
from ci.models.numerics import VARIABLES
from provisioning.artifacts.environment import locate_profile
from provisioning.console.caller import DIRECTORY_VARIABLE
from provisioning.console.command import user_path
from provisioning.console.process import GRACE_S, TAIL_LINES, describe_exit, end_with_parent
from provisioning.console.progress import Progress
from provisioning.errors import QnnCiError, StoreError, UnfitError
from provisioning.files import scratch_directory

PRELOAD = ["ci.cases.fork_server"]
ROOT = Path(__file__).resolve().parents[2]
# For the fork server: the process that started it, and the modules to import for all its forks.
STARTER, IMPORTS = "QNN_CI_STARTER", "QNN_CI_IMPORTS"
ABORTED, LATE = "the run was ended", "did not end in time"
MAX_WORKER_BYTES = 2 << 30
# Freed blocks of up to 1 KiB would stay in a thread's cache, where nothing overwrites them.
TUNABLES = "glibc.malloc.tcache_count=0"
SOCKET, MAX_SOCKET_PATH = "listener-12345678", 108  # unix(7)

Job = Callable[[], Any]  # sent to a worker and called there


@dataclass(frozen=True)
class Ended:
    """How a job ended: ``failure`` is empty if there is a ``result``.

    ``used`` is whether its process had done other jobs before, ``raised`` whether the job raised
    the failure itself; otherwise its process died or was late.
    """

    result: Any
    failure: str
    log_tail: str
    used: bool = False
    raised: bool = False


def serve(connection: Connection) -> None:
    """Do jobs in a worker until the pipe closes: (job, log) in, result or QnnCiError out."""
    end_with_parent(os.getppid())
    os.setpgid(0, 0)
    while True:
        try:
            job, log = connection.recv()
        except EOFError:
            return
        connection.send(answer_job(lambda: run_job(job, log)))  # noqa: B023 - called at once


def run_job(job: Job, log: str) -> Any:
    """Do one job; append everything that it prints, including QNN's C++ output, to ``log``."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    try:
        return job()
    finally:
        ctypes.CDLL(None).fflush(None)  # what C code printed belongs to this log


@contextmanager
def process_set(environment: Mapping[str, str], directory: Path) -> Iterator[None]:
    """Set this process's environment and working directory while the block runs, for its children.

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
    """Return PYTHONPATH for a process in another directory: the ``given`` paths made absolute, and
    this project unless it is installed."""
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

    def call(self, job: Job, log: Path, timeout_s: float) -> tuple[Any, str]:
        """Return the job's result and "", or None and the reason; then the worker is unusable."""
        try:
            self.connection.send((job, str(log)))
            if not self.connection.poll(timeout_s):
                return None, LATE
            return self.connection.recv(), ""
        except (EOFError, OSError):
            self.process.join(GRACE_S)
            code = self.process.exitcode
            how = "closed its pipe" if code is None else describe_exit(code)
            return None, f"its process {how} without a result"

    def size_bytes(self) -> int:
        """Return the resident memory in bytes."""
        with suppress(OSError, IndexError):
            pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]
            return int(pages) * os.sysconf("SC_PAGE_SIZE")
        return 0

    def close(self) -> None:
        """Let the process end, or kill it if it does not."""
        self.connection.close()
        self.process.join(GRACE_S)
        self.end()

    def end(self) -> None:
        """Kill the process and its group at once."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.exitcode is not None:
                return
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            self.process.join(GRACE_S)


def find_fork_server() -> int | None:
    """Return the id of this process's only fork server, or None; no public API gives it."""
    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


def end_fork_server() -> None:
    """Kill the fork server at once, and with it its forks."""
    if pid := find_fork_server():
        os.kill(pid, signal.SIGKILL)
        forkserver._forkserver._stop()  # type: ignore[attr-defined]


class Lease:
    """A worker for several related jobs, with one log and one time limit for all.

    If it has no worker, because the pool was closed, every job fails.
    """

    def __init__(self, worker: Worker | None, log: Path, timeout_s: float) -> None:
        self.worker, self.log, self.timeout_s = worker, log, timeout_s
        self.used, self.reusable = bool(worker and worker.used), True
        self.deadline = time.monotonic() + timeout_s
        if worker:
            worker.used = True

    def call(self, job: Job) -> Ended:
        """Do one job in the remaining time. Raises StoreError if the disk is full."""
        if not self.worker or not self.reusable:
            return Ended(None, ABORTED, read_tail(self.log), self.used)
        self.reusable = False
        left_s = max(self.deadline - time.monotonic(), 0.0)
        result, failure = self.worker.call(job, self.log, left_s)
        self.reusable = not failure
        if isinstance(result, StoreError):
            raise result
        raised = isinstance(result, QnnCiError)
        if raised:
            result, failure = None, str(result)
        if failure == LATE:
            failure = f"did not end within {self.timeout_s:g} s"
        return Ended(result, failure, read_tail(self.log), self.used, raised)


class Pool:
    """Workers for jobs in ``environment``; safe to use from several threads.

    The constructor starts the fork server, which imports ``imports``. It ends with the thread that
    made the pool, or with ``close``. Raises RuntimeError if this process has a fork server already,
    because its forks would have that server's variables. The processes run in ``directory``, which
    must contain nothing that Python could import.
    """

    def __init__(
        self, environment: Mapping[str, str], directory: Path, imports: Sequence[str]
    ) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOAD)
        own = {
            STARTER: str(os.getpid()),
            IMPORTS: " ".join(imports),
            "PYTHONUTF8": "1",  # ExecuTorch reads its own files in the locale's encoding
            DIRECTORY_VARIABLE: str(user_path(".").resolve()),
            "PYTHONPATH": list_python_path(environment.get("PYTHONPATH", "")),
            "GLIBC_TUNABLES": ":".join(filter(None, [environment.get("GLIBC_TUNABLES"), TUNABLES])),
            **VARIABLES,
        }
        before = find_fork_server()
        with process_set({**environment, **own}, directory):
            forkserver.ensure_running()
        if find_fork_server() == before:
            raise RuntimeError("another fork server of this process has not been ended")
        self.idle: dict[tuple[object, int], Worker] = {}  # by kind and thread
        self.aborted = threading.Event()

    def close(self) -> None:
        """End every process of the pool; their jobs and later ones fail.

        The workers end with the fork server, and compilations with their workers.
        """
        self.aborted.set()
        end_fork_server()

    def run(self, job: Job, log: Path, timeout_s: float, *, fresh: bool = False) -> Ended:
        """Do one job within ``timeout_s`` seconds; ``fresh`` asks for a new process.

        Raises StoreError if the disk is full.
        """
        with self.lease(type(job), log, timeout_s, fresh=fresh) as lease:
            return lease.call(job)

    @contextmanager
    def lease(
        self, kind: object, log: Path, timeout_s: float, *, fresh: bool = False
    ) -> Iterator[Lease]:
        """Lease a worker for jobs of one kind, all within ``timeout_s`` seconds; ``log`` starts
        empty. Raises UnfitError if no process can be started."""
        log.unlink(missing_ok=True)
        worker = self._take(kind, fresh=fresh)
        lease = Lease(worker, log, timeout_s)
        try:
            yield lease
        finally:
            if worker and lease.reusable and not fresh and worker.size_bytes() < MAX_WORKER_BYTES:
                self.idle[kind, threading.get_ident()] = worker
            elif worker:
                worker.close()

    def _take(self, kind: object, *, fresh: bool) -> Worker | None:
        if self.aborted.is_set():
            return None
        known = None if fresh else self.idle.pop((kind, threading.get_ident()), None)
        if known:
            return known
        try:
            return Worker(self.context)
        except (EOFError, ConnectionError) as error:
            if self.aborted.is_set():  # may have changed: the first start of a worker takes seconds
                return None
            raise UnfitError(
                "the process that imports the packages for lowering cannot be started",
                why="it ended during the imports; its output is above",
                fix="check whether memory, CPU time or files are limited (ulimit -a), and whether "
                f"`{sys.executable} -c 'import torch'` works",
            ) from error


# Lines that QNN also writes when a run succeeds.
CHATTER = (
    *("[INFO] [Qnn ExecuTorch]", "# LIBNATIVE", "Starting stage: ", "Completed stage: ", "[#"),
    *("[cpuinfo_", "====== DDR", "spill_bytes=", "fill_bytes=", "write_total_", "read_total_"),
    "left to the CPU: ",  # the reason repeats it
    *("frame #", "<omitting python frames>"),  # torch's stack, after its message
)


def read_tail(log: Path) -> str:
    """Return the last lines of a log, without lines that QNN also writes when a run succeeds."""
    with suppress(OSError):
        text = log.read_text(encoding="utf-8", errors="replace")
        lines = [one for one in text.splitlines() if one.strip()]
        lines = [line for line in lines if not line.lstrip().startswith(CHATTER)]
        return "\n".join(line[:400] for line in lines[-TAIL_LINES:])
    return ""


class ScratchPool:
    """Holds at most one pool, started before the environment was checked; all of its temporary
    files are below ``scratch``."""

    def __init__(self, scratch: Path, imports: Sequence[str]) -> None:
        self.scratch, self.imports = scratch, imports
        self.pool: Pool | None = None
        self.variables: Mapping[str, str] = {}

    def guess(self, profile: str) -> None:
        """Start the imports early, which take seconds, with what seems to be provisioned."""
        with suppress(QnnCiError):
            self.open(locate_profile(profile, Progress()).apply(os.environ))

    def open(self, variables: Mapping[str, str]) -> Pool:
        """Return the pool with the environment ``variables``; close one with another."""
        if self.pool is None or variables != self.variables:
            self.close()
            self.variables = variables
            empty = self.scratch / "cwd"
            empty.mkdir(exist_ok=True)
            self.pool = Pool({**variables, "TMPDIR": str(self.scratch)}, empty, self.imports)
        return self.pool

    def close(self) -> None:
        """End the pool's processes."""
        if self.pool:
            self.pool.close()


@contextmanager
def open_scratch_pool(imports: Sequence[str]) -> Iterator[ScratchPool]:
    """Open a pool in a scratch directory, which is removed at the end. Raises OSError if the disk
    is full."""
    with (
        scratch_directory(Path(tempfile.gettempdir()), "qnn-ci") as scratch,
        sockets_below(scratch),
    ):
        held = ScratchPool(scratch, imports)
        try:
            yield held
        finally:
            held.close()


@contextmanager
def sockets_below(directory: Path) -> Iterator[None]:
    """Let multiprocessing make its sockets in ``directory``, so that they are removed together with
    it even after a kill. Without effect if its path is too long for a socket."""
    config: dict[str, str | None] = current_process()._config  # type: ignore[attr-defined]
    before = config.get("tempdir")
    if len(str(directory / SOCKET)) < MAX_SOCKET_PATH:
        config["tempdir"] = str(directory)
    try:
        yield
    finally:
        config["tempdir"] = before
