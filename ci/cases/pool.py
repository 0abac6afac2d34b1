"""Runs jobs with a time limit in processes that have already imported torch and the engine's
packages.

A fork server imports torch once, so that a worker starts in milliseconds. A worker runs jobs of one
kind, one at a time. It is replaced if it crashes, exceeds the time limit or grows too large. Each
compilation runs in a fork of its worker (see ci.cases.forked). Jobs that run programs share a
worker, so that QNN's libraries are loaded only once; ``Pool.lease`` can also start a new worker.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import re
import signal
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import current_process, forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from ci.cases.forked import OWN_DESCRIPTORS, DiedError, answer_job, flush_stdio
from ci.facts.finding import NO_ADVICE, Advice, Finding, Place, describe_error
from ci.facts.kinds import FindingId
from ci.models.numerics import VARIABLES
from provisioning.artifacts.environment import locate_profile
from provisioning.console.allowance import Allowance
from provisioning.console.caller import DIRECTORY_VARIABLE
from provisioning.console.command import user_path
from provisioning.console.process import (
    GRACE_S,
    TAIL_LINES,
    describe_exit,
    end_marked,
    end_with_parent,
)
from provisioning.console.progress import Progress
from provisioning.console.usage import Watch, end_descendants, has_ended, share_memory
from provisioning.documents import open_regular
from provisioning.errors import QnnCiError, StoreError, UnfitError
from provisioning.files import RUN_SCRATCH, confirm_write, remove_tree, scratch_directory

# multiprocessing has no public way to find or end its fork server.
FORK_SERVER: Any = vars(forkserver)["_forkserver"]
TRACKER: Any = vars(resource_tracker)["_resource_tracker"]
PRELOAD = ["ci.cases.fork_server"]
ROOT = Path(__file__).resolve().parents[2]
# The fork server's variables: the process that started it, and the modules to import.
STARTER, IMPORTS = "QNN_CI_STARTER", "QNN_CI_IMPORTS"
CALL = "call"  # the file that names the user's function that is running
ABORTED, LATE = "the run was stopped", "did not end within"
MAX_WORKER_BYTES = 2 << 30  # a worker that is larger after a job is replaced
MAX_TAIL_BYTES = 1 << 20  # of a log, which may be of any size
WATCH_S = 0.2  # seconds between checks of a worker's limits
READ_BYTES = 1 << 20
HEADER = struct.Struct("!Q")  # the size of an answer
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
FIRST_VICTIM = "900"  # if memory runs out, the kernel ends a worker, not the session
# glibc's thread cache would keep freed blocks of up to 1 KiB, and nothing would overwrite them.
TUNABLES = "glibc.malloc.tcache_count=0"
SOCKET, MAX_SOCKET_PATH = "listener-12345678", 108  # unix(7)

Job = Callable[[], Any]  # sent to a worker and called there


@dataclass(frozen=True)
class Ended:
    """The outcome of a job."""

    result: Any
    failure: str  # empty if the job returned ``result``
    log_tail: str
    # Whether the worker had run other jobs before its lease, or a job of another worker ended it.
    used: bool = False
    # What the job raised; None if its process died or was killed, or the pool was closed.
    error: QnnCiError | None = None
    starved: bool = False  # whether the machine was too busy to run the job
    places: tuple[Place, ...] = ()  # of the user's function that was running when the process ended
    died: bool = False  # whether the worker ended by itself, within its limits
    exceeded: bool = False  # whether a limit of time or memory ended it

    @property
    def advice(self) -> Advice:
        """What the error states besides ``failure``."""
        advice = describe_error(self.error) if self.error else NO_ADVICE
        return replace(advice, places=self.places) if self.places else advice

    def find(self, kind: FindingId) -> Finding:
        """Return the failure as a finding."""
        return kind.find(self.failure, advice=self.advice)


def serve(connection: Connection, parent: int) -> None:
    """Run jobs in a worker until the pipe is closed or the process ``parent`` ends. Each message
    from the pipe is a tuple (job, log). The answer is the job's result or a QnnCiError, pickled,
    after its size."""
    end_with_parent(parent)
    # Worker.end kills this group, and with it what a job left running.
    os.setpgid(0, 0)
    # Processes that a model's code leaves behind become this worker's children, see end_left.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_VICTIM, encoding="ascii")
    # A model's code could write to these descriptors. Data from one of them ends the fork server.
    for name, owner in (("_forkserver_alive_fd", FORK_SERVER), ("_fd", TRACKER)):
        if (descriptor := vars(owner)[name]) is not None:
            os.close(descriptor)
            setattr(owner, name, None)
    OWN_DESCRIPTORS.add(connection.fileno())
    # A model's code may start processes, for example a DataLoader's. Daemons may not, and the fork
    # server could not import the model.
    vars(current_process())["_config"]["daemon"] = False
    multiprocessing.set_start_method(None, force=True)
    while True:
        try:
            job, log = connection.recv()
        except EOFError:
            return
        data = pickle.dumps(answer_job(lambda: run_job(job, log)))  # noqa: B023 - called at once
        for part in (HEADER.pack(len(data)), data):
            view = memoryview(part)
            while view:
                view = view[os.write(connection.fileno(), view) :]


def run_job(job: Job, log: str) -> Any:
    """Run one job and return its result. Everything that it prints, including QNN's C++ output, is
    appended to ``log``. Its temporary files and the processes that it left running are removed."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    parent = tempfile.tempdir = os.environ.get("TMPDIR", tempfile.gettempdir())
    directory = Path(tempfile.mkdtemp(prefix="job-"))
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    from ci.models.user_code import calls_noted  # the verbs that only wait do without it

    try:
        with calls_noted(Path(log).with_name(CALL)):
            return job()
    finally:
        os.environ["TMPDIR"] = tempfile.tempdir = parent
        flush_stdio()  # write what the job printed to this log, not the next one
        end_left()
        with suppress(OSError):
            remove_tree(directory)


def end_left() -> None:
    """Kill the processes that a job left running, and wait for them."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass  # it had ended
        end_descendants(os.getpid())
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


@contextmanager
def process_set(environment: Mapping[str, str], directory: Path) -> Iterator[None]:
    """Set the environment variables and the working directory that processes inherit if they are
    started within the block.

    They cannot be set later: the dynamic linker reads LD_LIBRARY_PATH when a program starts, before
    any Python code runs. The working directory matters because multiprocessing starts Python with
    -c, and Python then searches this directory first for imports. It also passes on this process's
    filters of warnings (PYTHONWARNINGS), so these are hidden within the block.
    """
    before, folder, filters = dict(os.environ), Path.cwd(), sys.warnoptions
    sys.warnoptions = []
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    try:
        yield
    finally:
        sys.warnoptions = filters
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(before)


def list_python_path(variable: str) -> str:
    """Return PYTHONPATH for a process that starts in another directory. It consists of the paths in
    ``variable``, made absolute, and of this project's root directory, unless it is installed."""
    paths = [os.path.abspath(path) for path in variable.split(os.pathsep) if path]  # noqa: PTH100
    if ROOT.name not in {"site-packages", "dist-packages"}:
        paths.append(str(ROOT))
    return os.pathsep.join(dict.fromkeys(paths))


class Worker:
    """A forked process that runs one job at a time."""

    def __init__(self, context: Any) -> None:
        self.used = self.has_died = self.has_exceeded = False
        self.connection, worker_end = context.Pipe()
        is_served = context.get_start_method() == "forkserver"
        parent = find_fork_server() if is_served else os.getpid()
        self.process = context.Process(target=serve, args=(worker_end, parent), daemon=True)
        self.process.start()
        # While this process holds the other end, a worker that dies does not close the pipe.
        worker_end.close()

    def call(self, job: Job, log: Path, watch: Watch) -> tuple[Any, str]:
        """Run ``job`` and return its result and "". The result is a QnnCiError if the job raised an
        exception. Return None and the reason if there is no complete answer, or if the process
        exceeds a limit or dies. After that, the worker cannot be used again."""
        # The answer is read in parts, with the watch in between: a model's code can write to this
        # pipe, too, and then the announced size is wrong, or the answer never ends.
        data = bytearray()
        try:
            self.connection.send((job, str(log)))
            while len(data) < HEADER.size or len(data) < HEADER.size + HEADER.unpack_from(data)[0]:
                ready = self.connection.poll(WATCH_S)
                if (not ready or watch.is_due(WATCH_S)) and (exceeded := watch.check(len(data))):
                    self.has_exceeded = True
                    return None, exceeded
                if ready:
                    data += self._read()
        except (EOFError, OSError):
            self.process.join(GRACE_S)
            code = self.process.exitcode
            self.has_died = code is not None
            how = "closed its pipe" if code is None else describe_exit(code)
            return None, f"the process {how} without a result"
        try:
            return pickle.loads(memoryview(data)[HEADER.size :]), ""  # noqa: S301 - our own worker
        except Exception:  # noqa: BLE001 - a model's code wrote to the pipe
            return None, "the process wrote no valid result"

    def _read(self) -> bytes:
        if part := os.read(self.connection.fileno(), READ_BYTES):
            return part
        raise EOFError

    def size_bytes(self) -> int:
        """Return the resident memory of the process in bytes, or 0 if the process has exited."""
        with suppress(psutil.NoSuchProcess):
            return int(psutil.Process(self.process.pid).memory_info().rss)
        return 0

    def close(self) -> None:
        """Let the process exit, or kill it after a grace period."""
        self.connection.close()
        self.process.join(GRACE_S)
        self.end()

    def end(self) -> None:
        """End the process and its process group with SIGTERM or, after a grace period, with
        SIGKILL. Its descendants in other groups are killed first."""
        if self.process.exitcode is None and self.process.pid:
            end_descendants(self.process.pid)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.exitcode is not None:
                return
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            self.process.join(GRACE_S)


def find_fork_server() -> int | None:
    """Return the process id of this process's fork server, or None if there is none."""
    pid: int | None = FORK_SERVER._forkserver_pid
    return pid


def is_server(pid: int | None) -> bool:
    """Return whether a process is this process's fork server, and runs."""
    return pid is not None and pid == find_fork_server() and not has_ended(pid)


def end_fork_server() -> None:
    """Kill the fork server. Its forks exit too."""
    if pid := find_fork_server():
        os.kill(pid, signal.SIGKILL)
        FORK_SERVER._stop()


class Lease:
    """A worker for several related jobs. They share one log and the limits ``allowance``.

    ``worker`` is None if the pool is already closed; then every job fails. If the process dies or
    exceeds a limit during a job, all later jobs fail too.
    """

    def __init__(self, worker: Worker | None, log: Path, allowance: Allowance) -> None:
        self.worker, self.log = worker, log
        self.used, self.reusable = bool(worker and worker.used), True
        self.server = find_fork_server()
        if worker:
            worker.used = True
            self.watch = Watch(worker.process.pid or 0, allowance)

    def call(self, job: Job) -> Ended:
        """Run one job within the time that the lease has left. Raises StoreError if the disk is
        full."""
        if not self.worker or not self.reusable:
            return Ended(None, ABORTED, read_tail(self.log), self.used)
        self.reusable = False
        result, failure = self.worker.call(job, self.log, self.watch)
        self.reusable = not failure
        # A model's code may have changed what its own process can write, for example with ulimit.
        if isinstance(result, StoreError):
            result = confirm_write(result)
        error = result if isinstance(result, QnnCiError) else None
        if error:
            result, failure = None, error.what
        places: tuple[Place, ...] = ()
        if failure and (error is None or isinstance(error, DiedError)):
            failure, places = self._blame(failure)
        if failure and self.server and not is_server(self.server):
            self.used = True  # another job killed the fork server, which ended this worker
        tail = read_tail(self.log)
        return Ended(
            result,
            failure,
            tail,
            used=self.used,
            error=error,
            starved=self.watch.is_starved,
            places=places,
            died=self.worker.has_died,
            exceeded=self.worker.has_exceeded,
        )

    def measure_waiting(self) -> float:
        """Return for how many seconds the jobs waited for a processor or a disk."""
        return self.watch.waited_s if self.worker else 0.0

    def _blame(self, failure: str) -> tuple[str, tuple[Place, ...]]:
        """Return a failure of a process with the user's function that was running in it, and the
        line of that function."""
        from ci.models.source_lines import find_factory
        from ci.models.user_code import name_call, read_call

        if call := read_call(self.log.with_name(CALL)):
            return f"{name_call(call)} did not return: {failure}", (find_factory(call),)
        return failure, ()


class Pool:
    """A pool of workers that run with the environment variables ``environment``. It can be used
    from several threads.

    The constructor starts the fork server, which imports the modules in ``imports``. The fork
    server exits when the thread that made the pool exits, or on ``close``. The processes run in
    ``directory``, which must not contain anything that Python could import. Raises RuntimeError if
    this process already has a fork server, because workers would then inherit that server's
    variables.

    ``memory`` is the memory for each job without a limit, see share_memory.
    """

    def __init__(
        self, environment: Mapping[str, str], directory: Path, imports: Sequence[str]
    ) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOAD)
        self.directory, self.memory = directory, share_memory()
        variables = {
            STARTER: str(os.getpid()),
            IMPORTS: " ".join(imports),
            "PYTHONWARNINGS": "",  # "error" would make warnings of ExecuTorch's packages failures
            "PYTHONUTF8": "1",  # ExecuTorch reads its own files in the locale's encoding
            DIRECTORY_VARIABLE: str(user_path(".").resolve()),
            "PYTHONPATH": list_python_path(environment.get("PYTHONPATH", "")),
            "GLIBC_TUNABLES": ":".join(filter(None, [environment.get("GLIBC_TUNABLES"), TUNABLES])),
            **VARIABLES,
        }
        self.variables = {**environment, **variables}
        before = find_fork_server()
        with process_set(dict(os.environ), directory):
            resource_tracker.ensure_running()  # outlives the pool, so STARTER is not set
        self.start_server()
        # multiprocessing has one fork server per process. Workers of one that something else has
        # started would get its variables, not these.
        if find_fork_server() == before:
            raise RuntimeError("another fork server of this process is still running")
        # By thread, because a worker has already loaded the model whose cases the thread takes in a
        # row.
        self.idle: dict[tuple[object, int], Worker] = {}  # by kind and thread
        self.aborted, self.has_started = threading.Event(), False
        self.waited_s: dict[int, float] = {}  # by thread, see read_waited
        self.starting, self.again = threading.Lock(), threading.Lock()

    def read_waited(self) -> float:
        """Return for how many seconds the jobs of the calling thread waited for a processor or a
        disk until now."""
        return self.waited_s.get(threading.get_ident(), 0.0)

    def start_server(self) -> None:
        """Start the fork server, unless it is running. Until its preloaded module ignores Ctrl-C,
        the signal is blocked."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with process_set(self.variables, self.directory):
                forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        """Stop every process of the pool. Running and later jobs fail.

        Workers exit with the fork server, and compilations with their workers. Processes that a
        model's code started, even in another session, are killed.
        """
        self.aborted.set()
        end_fork_server()
        end_marked(f"{STARTER}={os.getpid()}")

    def run(
        self, job: Job, log: Path, timeout_s: float, *, fresh: bool = False, max_bytes: int = 0
    ) -> Ended:
        """Run one job within ``timeout_s`` seconds. With ``fresh``, it runs in a new process. A
        process that needs more than ``max_bytes`` of memory, if that is not 0, is killed. If the
        fork server was killed, which ends all workers, the job runs again.

        Raises StoreError if the disk is full, and UnfitError if no process can be started.
        """
        borrow = partial(self.lease, type(job), log, timeout_s, fresh=fresh, max_bytes=max_bytes)
        with borrow() as lease:
            ended = lease.call(job)
        if not (ended.failure and lease.used) or self.aborted.is_set() or is_server(lease.server):
            return ended
        # One at a time, because one of these jobs may have killed the fork server.
        with self.again, borrow() as lease:
            return lease.call(job)

    @contextmanager
    def lease(
        self, kind: object, log: Path, timeout_s: float, *, fresh: bool = False, max_bytes: int = 0
    ) -> Iterator[Lease]:
        """Lease a worker for jobs of one kind. Together they may take ``timeout_s`` seconds. With
        ``fresh``, the worker is a new process. A worker that exceeds its limits (see
        provisioning.console.usage) is killed; ``max_bytes`` replaces the pool's limit of memory. An
        existing ``log`` is deleted first. Raises UnfitError if no process can be started."""
        log.unlink(missing_ok=True)
        memory = (max_bytes, 0) if max_bytes else self.memory
        worker = self._take(kind, fresh=fresh)
        lease = Lease(worker, log, Allowance(timeout_s, *memory))
        try:
            yield lease
        finally:
            thread = threading.get_ident()
            self.waited_s[thread] = self.waited_s.get(thread, 0.0) + lease.measure_waiting()
            # Only a worker that answered is used again: after a failure, its job may still run.
            if worker and lease.reusable and not fresh and worker.size_bytes() < MAX_WORKER_BYTES:
                self.idle[kind, thread] = worker
            elif worker and lease.reusable:
                worker.close()
            elif worker:
                worker.end()  # it may still be computing and growing

    def _take(self, kind: object, *, fresh: bool) -> Worker | None:
        if self.aborted.is_set():
            return None
        idle_worker = None if fresh else self.idle.pop((kind, threading.get_ident()), None)
        if idle_worker and idle_worker.process.is_alive():
            return idle_worker
        try:
            with self.starting:  # a model's code, or the kernel, may have killed the fork server
                was_running = is_server(find_fork_server())
                if not was_running:
                    self.start_server()
            worker = Worker(self.context)
        except (EOFError, OSError) as error:
            if self.aborted.is_set():  # during the first start of a worker, which takes seconds
                return None
            if self.has_started and was_running:
                return self._take(kind, fresh=fresh)
            raise UnfitError(
                "the process that imports the packages for lowering cannot be started",
                why="it exited during the imports; its output is above",
                fix="check whether memory, CPU time or files are limited (ulimit -a), and whether "
                f"`{sys.executable} -c 'import torch'` works",
            ) from error
        self.has_started = True
        return worker


# Lines that start with one of CHATTER or contain one of CHATTING are also printed by good runs.
CHATTER = (
    *("[INFO] [Qnn ExecuTorch]", "# LIBNATIVE", "Starting stage: ", "Completed stage: ", "[#"),
    *("[cpuinfo_", "====== DDR", "spill_bytes=", "fill_bytes=", "write_total_", "read_total_"),
    *("frame #", "<omitting python frames>"),  # torch's stack, after its message
    "[operator_registry.cpp:",  # what a missing operator has for arguments, over many lines
    "DEBUG    torch.__trace:",
    *("[WARNING] [Qnn ExecuTorch]: Qnn API version", "return cls.__new__(cls, *args)"),
    "INFO     executorch.",  # as pytest shows a log
    *("[INFO ", "WARNING:root:Node of type", "No quant config is implemented for op, "),
)
CHATTING = (
    *(" | Forced Passed", " PassManager is deprecated", "`isinstance(treespec, LeafSpec)`"),
    *("requested for preservation by partitioner", "torchao/_C_", "is an Enum subclass and is now"),
    *("] [QNN] Using QNN SDK at ", "The backend_opinfo module couldn't be imported"),
    "File mapped weights feature is only available on Windows",
    "No QnnManager active for backend type",
    *("torchvision is not installed. Skipping torchvision::", "VerifyEachNodeIsAssignedToAnEp]"),
)


EMPTY_BAR = re.compile(r"\s*\[\s*\]\s+0%$")
# A frame of this project's code, with the lines that show it.
OWN_FRAME = re.compile(rf'^  File "{re.escape(str(ROOT / "ci"))}/.*\n(?:    .*\n)*', re.MULTILINE)
NO_FRAMES = re.compile(r"^Traceback \(most recent call last\):\n(?!  )", re.MULTILINE)


def read_tail(log: Path) -> str:
    """Return the last TAIL_LINES lines of a log, each truncated to 400 characters. Empty lines are
    omitted, and so are lines that successful runs print too, and this project's own frames in a
    traceback. The result is empty if the log cannot be read."""
    with suppress(OSError), open_regular(log) as stream:
        # A log is never read as a whole: a line without an end took gigabytes of memory.
        stream.seek(max(log.stat().st_size - MAX_TAIL_BYTES, 0))
        return clean_tail(stream.read(MAX_TAIL_BYTES).decode("utf-8", "replace"))
    return ""


def clean_tail(text: str) -> str:
    """Return the lines of a log that read_tail returns, from the log's ``text``."""
    text = NO_FRAMES.sub("", OWN_FRAME.sub("", text))
    lines = [line for line in text.splitlines() if line.strip() and not _is_chatter(line)]
    return "\n".join(line[:400] for line in lines[-TAIL_LINES:])


def _is_chatter(line: str) -> bool:
    """Return whether successful runs print such a line, too."""
    if EMPTY_BAR.match(line) or line.lstrip().startswith(CHATTER):
        return True
    return any(phrase in line for phrase in CHATTING)


class ScratchPool:
    """Holds at most one pool, which can be started before the environment has been checked. The
    pool's temporary files are in ``scratch``."""

    def __init__(self, scratch: Path, imports: Sequence[str]) -> None:
        self.scratch, self.imports = scratch, imports
        self.pool: Pool | None = None
        self.variables: Mapping[str, str] = {}

    def guess(self, profile: str) -> None:
        """Start a pool before the artifacts of ``profile`` are verified, because the imports take
        seconds. If any of the artifacts is missing, no pool is started."""
        with suppress(QnnCiError):
            self.open(locate_profile(profile, Progress()).apply(os.environ))

    def open(self, variables: Mapping[str, str]) -> Pool:
        """Return a pool with the environment ``variables``. An open pool with other variables is
        closed and replaced."""
        if self.pool is None or variables != self.variables:
            self.close()
            self.variables = variables
            empty = self.scratch / "cwd"
            empty.mkdir(exist_ok=True)
            self.pool = Pool({**variables, "TMPDIR": str(self.scratch)}, empty, self.imports)
        return self.pool

    def close(self) -> None:
        """Stop the processes of the pool, if one is open."""
        if self.pool:
            self.pool.close()
            self.pool = None


_begun: list[ScratchPool] = []  # by begin_imports, and not yet closed


@contextmanager
def begin_imports(profile: str, imports: Sequence[str]) -> Iterator[None]:
    """Start a pool for the block's first ``open_scratch_pool`` with the same imports, if all
    artifacts of ``profile`` are there. The imports of torch take seconds of one core; meanwhile,
    this process imports its own modules and reads the policy. Raises OSError if the disk is full.
    """
    with _make_scratch_pool(imports) as scratch:
        scratch.guess(profile)
        _begun.append(scratch)
        try:
            yield
        finally:
            _begun.clear()


@contextmanager
def open_scratch_pool(imports: Sequence[str]) -> Iterator[ScratchPool]:
    """Yield a ScratchPool: that of ``begin_imports`` if it has the same imports, otherwise a new
    one. After the block, the pool is closed. Raises OSError if the disk is full."""
    begun = _begun.pop() if _begun else None
    if begun and begun.imports == imports:
        try:
            yield begun
        finally:
            begun.close()
        return
    if begun:
        begun.close()  # a process has one fork server
    with _make_scratch_pool(imports) as scratch:
        yield scratch


@contextmanager
def _make_scratch_pool(imports: Sequence[str]) -> Iterator[ScratchPool]:
    """Yield a ScratchPool with a new scratch directory. After the block, the pool is closed and the
    directory is removed. Raises OSError if the disk is full.

    multiprocessing also creates its sockets in this directory, unless the path is too long. If this
    process is killed, the next call removes the directory.
    """
    config: dict[str, str | None] = vars(current_process())["_config"]
    before = config.get("tempdir")
    with scratch_directory(Path(tempfile.gettempdir()), RUN_SCRATCH) as scratch:
        if len(str(scratch / SOCKET)) < MAX_SOCKET_PATH:
            config["tempdir"] = str(scratch)
        pool = ScratchPool(scratch, imports)
        try:
            yield pool
        finally:
            pool.close()
            config["tempdir"] = before
