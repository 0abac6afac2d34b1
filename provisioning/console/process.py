"""Run processes without a shell, and run tasks in threads. No other module uses subprocess.

A process may have a time limit, and run_process gives it its own process group. An interrupt ends
the processes of all tasks.
"""

from __future__ import annotations

import ctypes
import io
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from provisioning.console.interrupts import interrupts_held
from provisioning.errors import MissingToolError, ToolError

GRACE_S = 2.0
GROUP_POLL_S = 0.02
LOOKS, LOOK_S = 20, 0.005
PIPE_POLL_S = 0.1
PIPE_REST_S = 1.0
TAIL_LINES = 40
MAX_LINE = 1 << 16  # characters; a longer line counts as several

# Like -m with -P, which Python 3.10 lacks; "" in sys.path is the working directory.
_RUN_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy;"
    " runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
_LIMIT_FILES = (
    "import resource; kind = resource.RLIMIT_FSIZE; hard = resource.getrlimit(kind)[1];"
    " resource.setrlimit(kind, (min({0}, hard) if hard >= 0 else {0}, hard)); "
)
_running: set[subprocess.Popen[str]] = set()


@dataclass(frozen=True)
class Completed:
    """A finished process. ``returncode`` is -N if signal N ended it."""

    argv: tuple[str, ...]
    returncode: int
    output: str
    wall_s: float
    timed_out: bool = False

    @property
    def tail(self) -> str:
        return "\n".join(self.output.splitlines()[-TAIL_LINES:])

    def describe(self) -> str:
        if self.timed_out:
            return f"did not end within {self.wall_s:.0f} s"
        return describe_exit(self.returncode)


def describe_exit(code: int) -> str:
    """Return text such as ``was killed by SIGSEGV`` or ``exited with 3``."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"exited with {code}"


def signal_name(number: int) -> str:
    """Return a signal's name: ``SIGSEGV`` for 11, ``signal 99`` for an unknown number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def module_command(
    module: str, python: str | os.PathLike[str] = sys.executable, *, most_bytes: int = 0
) -> list[str]:
    """Return the start of a command that runs ``module`` with ``python``. A module in the working
    directory is not used. The module cannot write a file of more than ``most_bytes``, unless that
    is 0.
    """
    limit = _LIMIT_FILES.format(most_bytes) if most_bytes else ""
    return [os.fspath(python), "-c", f"{limit}{_RUN_MODULE}", module]


def run_process(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = None,
    input_text: str | None = None,
    log: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    check: bool = True,
    keep_lines: int | None = None,
    merged: bool = True,
    fix: str = "",
) -> Completed:
    """Run ``argv`` to its end; ``on_line`` is called with each line of stdout and stderr, which are
    merged. If ``merged`` is false, stderr is discarded.

    ``env`` replaces the whole environment. ``log`` receives all output; ``keep_lines`` limits the
    number of lines kept in memory, and ``fix`` is the fix in errors.

    On a time-out, an interrupt or an exception in ``on_line``, the whole process group is ended.
    The group is also ended if one of its processes still holds the output pipe after ``argv`` has
    ended. Processes in other groups are left running.

    Raises MissingToolError if the program cannot be started. If ``check`` is true, raises ToolError
    if the program exits with a code other than 0 or exceeds ``timeout_s``.
    """
    words = tuple(os.fspath(word) for word in argv)
    started = time.monotonic()
    lines: deque[str] = deque(maxlen=keep_lines)
    timed_out = threading.Event()
    process: subprocess.Popen[str] | None = None
    timer: threading.Timer | None = None
    try:
        with interrupts_held():
            process = _start(words, env, cwd, input_text is not None, fix, merged=merged)
            _running.add(process)
        timer = _arm(process, timeout_s, timed_out)
        if input_text is not None and process.stdin:
            with suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(input_text)
        _drain(process, lines, log, on_line)
        process.wait()
    except BaseException:
        if process is not None:
            end_group(process)
        raise
    finally:
        if timer:
            timer.cancel()
        if process is not None:
            _running.discard(process)
            if process.stdout:
                process.stdout.close()
    ended = Completed(
        words, process.returncode, "".join(lines), time.monotonic() - started, timed_out.is_set()
    )
    if check and (ended.returncode != 0 or ended.timed_out):
        raise ToolError(
            f"{Path(words[0]).name} {ended.describe()}: {' '.join(words)}",
            why=ended.tail.strip() or "it printed nothing",
            fix=fix,
        )
    return ended


@dataclass(frozen=True)
class Streams:
    """A program's stdout and stderr as bytes, and how it ended: ``returncode`` is its exit code, or
    -N if signal N ended it. ``timeout_s`` is set if it exceeded that time limit.
    """

    returncode: int
    stdout: bytes
    stderr: bytes
    timeout_s: float | None = None

    @property
    def timed_out(self) -> bool:
        return self.timeout_s is not None

    def describe(self) -> str:
        """Return how it ended: ``exited with 3``, ``was killed by SIGSEGV``, ``did not end within 5
        s``.
        """
        if self.timeout_s is not None:
            return f"did not end within {self.timeout_s:.0f} s"
        return describe_exit(self.returncode)


def run_streams(
    argv: Sequence[str | os.PathLike[str]],
    *,
    data: bytes | Path = b"",
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> Streams:
    """Run ``argv`` to its end with ``data``, which may be the path of a file, as its stdin. Its
    stdout and stderr are returned separately and unchanged. Raises MissingToolError if the program
    cannot be started.
    """
    words = tuple(os.fspath(word) for word in argv)
    environment = None if env is None else dict(env)
    with data.open("rb") if isinstance(data, Path) else nullcontext() as file:
        given: dict[str, Any] = {"stdin": file} if file else {"input": data}
        try:
            ended = subprocess.run(
                words, env=environment, capture_output=True, timeout=timeout_s, check=False, **given
            )
        except OSError as error:
            raise explain_start(words[0], None, error, "") from error
        except subprocess.TimeoutExpired as error:
            return Streams(-1, error.stdout or b"", error.stderr or b"", timeout_s)
    return Streams(ended.returncode, ended.stdout, ended.stderr)


def run_bytes(
    argv: Sequence[str | os.PathLike[str]],
    *,
    data: bytes | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> bytes:
    """Run ``argv`` to its end with ``data`` as its stdin, and return its stdout unchanged.

    For programs with binary output; stderr becomes the reason in an error. Raises MissingToolError
    if the program cannot be started, and ToolError if it exits with a code other than 0 or exceeds
    ``timeout_s``.
    """
    words = [os.fspath(word) for word in argv]
    ended = run_streams(words, data=data or b"", env=env, timeout_s=timeout_s)
    if ended.timed_out or ended.returncode != 0:
        raise ToolError(
            f"{Path(words[0]).name} {ended.describe()}: {' '.join(words)}",
            why=ended.stderr.decode("utf-8", "replace").strip() or "it printed nothing",
        )
    return ended.stdout


def _start(
    words: tuple[str, ...],
    env: Mapping[str, str] | None,
    cwd: Path | None,
    wants_input: bool,
    fix: str,
    *,
    merged: bool,
) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            words,
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=subprocess.PIPE if wants_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise explain_start(words[0], cwd, error, fix) from error


def explain_start(program: str, cwd: Path | None, error: OSError, fix: str) -> MissingToolError:
    """Return the error for a program that cannot be started."""
    advice = fix or f"install {Path(program).name}, or put it on PATH"
    if cwd and not cwd.is_dir():
        advice = f"check why {cwd} is not a directory"
    return MissingToolError(f"cannot start {program}", why=error.strerror or "", fix=advice)


def _arm(
    process: subprocess.Popen[str], timeout_s: float | None, timed_out: threading.Event
) -> threading.Timer | None:
    if timeout_s is None:
        return None

    def expire() -> None:
        timed_out.set()
        end_group(process)

    timer = threading.Timer(min(timeout_s, threading.TIMEOUT_MAX), expire)
    timer.daemon = True
    timer.start()
    return timer


class _Output(io.RawIOBase):
    """Reads the output of a process until the process ends, even if another process still holds the
    pipe; ``held`` is then true.
    """

    def __init__(self, process: subprocess.Popen[str], descriptor: int) -> None:
        super().__init__()
        self.process, self.descriptor = process, descriptor
        self.held = False
        self.ends_at = math.inf
        self.waiting = select.poll()
        self.waiting.register(descriptor, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            ready = self.waiting.poll(PIPE_POLL_S * 1000)
            if self.ends_at == math.inf and self.process.poll() is not None:
                self.ends_at = time.monotonic() + PIPE_REST_S
                continue  # read what it wrote before it ended
            if ready and time.monotonic() < self.ends_at:
                data = os.read(self.descriptor, len(buffer))
                buffer[: len(data)] = data
                return len(data)
            if self.ends_at < math.inf:
                self.held = True
                return 0


def _drain(
    process: subprocess.Popen[str],
    lines: deque[str],
    log: Path | None,
    on_line: Callable[[str], None] | None,
) -> None:
    if process.stdout is None:
        return
    output = _Output(process, process.stdout.fileno())
    text = io.TextIOWrapper(io.BufferedReader(output), encoding="utf-8", errors="replace")
    with log.open("w", encoding="utf-8") if log else nullcontext() as sink:
        for line in iter(partial(text.readline, MAX_LINE), ""):
            lines.append(line)
            if sink:
                sink.write(line)
            if on_line:
                on_line(line.rstrip("\n"))
    if output.held:
        end_group(process)


def end_running(futures: Iterable[Future[Any]]) -> None:
    """End the processes that threads run or start for ``futures``, until all futures are done.

    The threads do not notice an interrupt themselves, because it reaches only the main thread.
    """
    waited = list(futures)
    while True:
        for process in list(_running):
            end_group(process)
        if all(future.done() for future in waited):
            return
        time.sleep(GROUP_POLL_S)


def end_group(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM to the group of ``process``, and kill what is left of it after GRACE_S seconds.

    SIGTERM comes first, since ninja runs compilers in their own process groups, and ends them only
    if it can react to the signal.
    """
    deadline = time.monotonic() + GRACE_S
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(GROUP_POLL_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_marked(mark: str) -> list[str]:
    """Kill every process that was started with the variable ``mark`` (NAME=VALUE) in its
    environment, and return the names of these processes.

    This includes processes in other groups or sessions, and orphans.
    """
    names: list[str] = []
    deadline = time.monotonic() + GRACE_S
    while (left := _find_marked(mark)) and time.monotonic() < deadline:
        for pid, name in left.items():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                names.append(name)
        time.sleep(GROUP_POLL_S)
    return [*dict.fromkeys(names)]


def _find_marked(mark: str) -> dict[int, str]:
    """Return the names of the processes that were started with the variable ``mark``. The keys are
    process IDs.

    During exec, a process briefly has no visible variables, so processes without variables are read
    again. Kernel threads and zombies are left out; they have no ``exe`` in /proc.
    """
    found = {}
    looked_at = [*Path("/proc").glob("[0-9]*")]
    for _ in range(LOOKS):
        blank = []
        for process in looked_at:
            with suppress(OSError):  # it ended, or belongs to another user
                (process / "exe").readlink()
                variables = (process / "environ").read_bytes()
                if not variables:
                    blank.append(process)
                elif mark.encode() in variables.split(b"\0"):
                    name = (process / "comm").read_text("utf-8", "replace").strip()
                    found[int(process.name)] = name
        if not (looked_at := blank):
            break
        time.sleep(LOOK_S)
    return found


PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when the thread that started it ends.

    ``parent`` is the process ID of the parent; if that has already ended, this process exits.
    Forked processes do not inherit the setting.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before prctl was called
        os._exit(1)


# Only the main thread runs Python's signal handlers. A signal that reaches another thread, or that
# arrives just before the main thread sleeps, does not wake the main thread.
WAKE_S = 0.2
R = TypeVar("R")


def run_tasks(
    tasks: Iterable[Callable[[], R]],
    threads: int,
    *,
    on_done: Callable[[R], None] | None = None,
    abort: Callable[[], None] | None = None,
) -> list[R]:
    """Run tasks in threads and return their results in order; ``on_done`` is called with each
    result when it is ready.

    An interrupt, or an exception in a task or ``on_done``, ends the processes of all tasks, and is
    raised again. ``abort`` is then called, too, to end work that run_process did not start.
    """
    results: dict[int, R] = {}
    futures: dict[Future[R], int] = {}
    with ThreadPoolExecutor(threads) as pool:
        try:
            for number, task in enumerate(tasks):
                futures[pool.submit(task)] = number
            pending = set(futures)
            while pending:
                done, pending = wait(pending, WAKE_S, FIRST_COMPLETED)
                # Report finished tasks even if another task failed at the same moment.
                for future in sorted(done, key=lambda one: one.exception() is not None):
                    results[futures[future]] = future.result()
                    if on_done:
                        on_done(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            if abort:
                abort()
            end_running(futures)
            raise
    return [results[number] for number in sorted(results)]
