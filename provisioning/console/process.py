"""Run processes without a shell, and run tasks in threads. No other module uses subprocess.

Each process has its own process group, which ends with this process, and may have limits. An
interrupt ends the processes of all tasks.
"""

from __future__ import annotations

import codecs
import ctypes
import fcntl
import io
import math
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from subprocess import DEVNULL, PIPE, STDOUT
from typing import TYPE_CHECKING, Any, TypeVar

from provisioning.console.allowance import Allowance, gib
from provisioning.console.interrupts import interrupts_held
from provisioning.documents import open_regular, read_bytes, read_text
from provisioning.errors import MissingToolError, ToolError

if TYPE_CHECKING:
    from provisioning.console.usage import Watch

GRACE_S = 2.0
GROUP_POLL_S = 0.02
# In exec, a process may wait for a processor.
LOOKS, LOOK_S = 400, 0.005
PIPE_POLL_S = 0.1
PIPE_REST_S = 1.0
# A line of a linker may have thousands of characters.
TAIL_LINES, TAIL_CHARS = 40, 2000
MAX_LINE = 1 << 16  # characters; a longer line counts as several
READ_BYTES = 1 << 16
KEPT = 16 << 20  # of an output, in bytes; the middle of a longer one is left out
MAX_LOG = 1 << 30
MAX_STDOUT = 256 << 20  # of a program whose output is needed as a whole

# Like -m with -P, which Python 3.10 lacks; "" in sys.path is the working directory.
_RUN_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy;"
    " runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
_LIMIT_FILES = (
    "import resource; kind = resource.RLIMIT_FSIZE; hard = resource.getrlimit(kind)[1];"
    " resource.setrlimit(kind, (min({0}, hard) if hard >= 0 else {0}, hard)); "
)
_running: set[subprocess.Popen[bytes]] = set()
_is_ending = threading.Event()


@dataclass(frozen=True)
class Completed:
    """A finished process. ``returncode`` is -N if signal N ended it. ``exceeded`` says which limit
    it exceeded; it was then ended. run_streams sets ``stdout`` and ``stderr``; ``output`` is then
    the text of its stderr.
    """

    argv: tuple[str, ...]
    returncode: int
    output: str
    wall_s: float
    exceeded: str = ""
    stdout: bytes = b""
    stderr: bytes = b""

    @property
    def tail(self) -> str:
        """The last lines of the output, each cut after TAIL_CHARS characters."""
        return "\n".join(line[:TAIL_CHARS] for line in self.output.splitlines()[-TAIL_LINES:])

    @property
    def is_good(self) -> bool:
        """Whether the process exited with 0 within its limits."""
        return self.returncode == 0 and not self.exceeded

    def describe(self) -> str:
        """Return how it ended: ``exited with 3``, ``was killed by SIGSEGV``, ``did not end within 5
        s``.
        """
        return self.exceeded or describe_exit(self.returncode)

    def require(self, fix: str = "") -> None:
        """Raise ToolError if the process failed or exceeded a limit."""
        if not self.is_good:
            raise ToolError(
                f"{Path(self.argv[0]).name} {self.describe()}: {' '.join(self.argv)}",
                why=self.tail.strip() or "it printed nothing",
                fix=fix,
            )


def describe_exit(code: int) -> str:
    """Return text such as ``exited with 3``, ``was killed by SIGSEGV`` or, for an unknown signal,
    ``was killed by signal 99``.
    """
    if code >= 0:
        return f"exited with {code}"
    names = {int(signal_number): signal_number.name for signal_number in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"


def module_command(
    module: str, python: str | os.PathLike[str] = sys.executable, *, most_bytes: int = 0
) -> list[str]:
    """Return the start of a command that runs ``module`` with ``python``. A module in the working
    directory is not used. The module cannot write a file of more than ``most_bytes``, unless that
    is 0.
    """
    # pip does not limit what an index sends, so the kernel does.
    limit = _LIMIT_FILES.format(most_bytes) if most_bytes else ""
    return [os.fspath(python), "-c", f"{limit}{_RUN_MODULE}", module]


def fill_script(path: Path, **values: object) -> str:
    """Return a shell script without its comments, and with assignments of ``values`` to the
    variables that it uses. Raises OSError.
    """
    text = re.sub(r"(?m)^#.*\n", "", read_text(path))
    return "".join(f"{key}={quote(str(value))}\n" for key, value in values.items()) + text


def run_process(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = None,
    silence_s: float = math.inf,
    allowance: Allowance | None = None,
    input_text: str = "",
    log: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    check: bool = True,
    merged: bool = True,
    fix: str = "",
) -> Completed:
    """Run ``argv`` to its end; ``on_line`` is called with each line of stdout and stderr, which are
    merged. If ``merged`` is false, stderr is discarded.

    ``env`` replaces the whole environment. ``log`` receives all output up to MAX_LOG bytes, and
    ``output`` of the result is its beginning and end, up to KEPT bytes. ``fix`` is the fix in
    errors.

    The whole process group is ended after ``timeout_s`` seconds, after ``silence_s`` seconds
    without output, if a limit in ``allowance`` is exceeded, on an interrupt, on an exception in
    ``on_line``, and if this process is killed. The group is also ended if one of its processes
    still holds the output pipe after ``argv`` has ended. Processes in other groups are left
    running.

    Raises MissingToolError if the program cannot be started. If ``check`` is true, raises ToolError
    if the program exits with a code other than 0 or exceeds a limit.
    """
    limits = _Limits(timeout_s, silence_s, allowance)
    output, written = Excerpt(KEPT), 0
    # The log is written while the process runs, so that an interrupted run leaves what was printed.
    with log.open("wb") if log else nullcontext() as sink:

        def note(line: str) -> None:
            nonlocal written
            # Lines were decoded to be shown, so all that reads the log finds valid UTF-8 in it.
            raw = line.encode("utf-8", "replace")
            output.add(raw)
            # A process that prints without end must not fill the disk.
            if sink and written < MAX_LOG:
                sink.write(raw)
                sink.flush()
                written += len(raw)
            if on_line:
                on_line(line.removesuffix("\n"))

        lines = _Lines(note)
        stderr = STDOUT if merged else DEVNULL
        popen_options = {"env": env, "cwd": cwd, "stderr": stderr}
        ended = _run(argv, popen_options, limits, input_text.encode(), lines.add, fix=fix)
        lines.add(b"", final=True)
    completed = replace(ended, output=output.text())
    if check:
        completed.require(fix)
    return completed


def run_streams(
    argv: Sequence[str | os.PathLike[str]],
    *,
    data: bytes | Path = b"",
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    allowance: Allowance | None = None,
    most_bytes: int = MAX_STDOUT,
    most_messages: int = 0,
) -> Completed:
    """Run ``argv`` to its end with ``data``, which may be the path of a file, as its stdin. Its
    stdout and stderr are returned separately and unchanged. If it prints more than ``most_bytes``
    to stdout or exceeds a limit in ``allowance``, it is ended. Of a stderr of more than
    ``most_messages`` bytes (by default KEPT), the middle is left out. Raises MissingToolError if
    the program cannot be started.
    """
    limits = _Limits(timeout_s, allowance=allowance)
    stdout, stderr = bytearray(), Excerpt(most_messages or KEPT)

    def collect(part: bytes) -> None:
        # Never more than the limit in memory: a part arrives before the limits are checked again.
        stdout.extend(part[: most_bytes - len(stdout)])
        if len(part) and len(stdout) == most_bytes:
            limits.exceeded = f"printed more than {gib(most_bytes)}"

    ended = _run(argv, {"env": env, "stderr": PIPE}, limits, data, collect, stderr.add)
    return replace(ended, output=stderr.text(), stdout=bytes(stdout), stderr=stderr.join())


class Excerpt:
    """The beginning and the end of a stream, together at most ``most`` bytes."""

    def __init__(self, most: int) -> None:
        self.half, self.dropped = most // 2, 0
        self.head, self.tail = bytearray(), bytearray()

    def add(self, part: bytes) -> None:
        """Add the next bytes of the stream."""
        room = self.half - len(self.head)
        self.head += part[:room]
        self.tail += part[room:]
        if (excess := len(self.tail) - self.half) > 0:
            del self.tail[:excess]
            self.dropped += excess

    def join(self) -> bytes:
        """Return the kept bytes, with a line that says how many are left out between them."""
        left_out = f"\n[{self.dropped} bytes are left out]\n" if self.dropped else ""
        return b"".join([self.head, left_out.encode(), self.tail])

    def text(self) -> str:
        """Return the kept bytes as text."""
        return self.join().decode("utf-8", "replace")


class _Lines:
    """Splits a stream into lines with their ends. A line of more than MAX_LINE characters is
    several.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note, self.left = note, ""
        # Incremental, because a read may end in the middle of a character or between CR and LF.
        plain = codecs.getincrementaldecoder("utf-8")("replace")
        self.decoder = io.IncrementalNewlineDecoder(plain, translate=True)

    def add(self, data: bytes, *, final: bool = False) -> None:
        *lines, self.left = (self.left + self.decoder.decode(data, final)).split("\n")
        for line in (f"{line}\n" for line in lines):
            # A runner may print without any newline; its output has to be bounded in memory
            # nevertheless.
            for start in range(0, len(line), MAX_LINE):
                self.note(line[start : start + MAX_LINE])
        while len(self.left) > (0 if final else MAX_LINE):
            self.note(self.left[:MAX_LINE])
            self.left = self.left[MAX_LINE:]


@dataclass
class _Limits:
    """The limits of a process, and the one that it exceeded."""

    timeout_s: float | None = None
    silence_s: float = math.inf
    allowance: Allowance | None = None
    exceeded: str = ""

    def start(self, pid: int) -> None:
        self.began = self.spoke = time.monotonic()
        self.watch: Watch | None = None
        if self.allowance:
            # Not above: it needs psutil, which most verbs do without.
            from provisioning.console.usage import Watch

            self.watch = Watch(pid, self.allowance)

    def check(self) -> str:
        """Return how the process exceeded a limit, or "" if it did not."""
        now = time.monotonic()
        if self.timeout_s is not None and now - self.began > self.timeout_s:
            self.exceeded = self.exceeded or f"did not end within {self.timeout_s:.0f} s"
        if now - self.spoke > self.silence_s:
            self.exceeded = self.exceeded or f"printed nothing for {self.silence_s:.0f} s"
        if self.watch and self.watch.is_due(PIPE_POLL_S):
            self.exceeded = self.exceeded or self.watch.check()
        return self.exceeded


def _run(
    argv: Sequence[str | os.PathLike[str]],
    popen_options: Mapping[str, Any],
    limits: _Limits,
    data: bytes | Path,
    *readers: Callable[[bytes], None],
    fix: str = "",
) -> Completed:
    """Run a process to its end, and pass its stdout, and its stderr if that is a pipe, to
    ``readers``. Its stdin is ``data``; ``popen_options`` are more arguments of Popen.
    """
    started, words = time.monotonic(), [os.fspath(word) for word in argv]
    process: subprocess.Popen[bytes] | None = None
    with _open_input(data) as stdin:
        try:
            start_guardian()
            with interrupts_held():
                process = _start(words, {**popen_options, "stdin": stdin}, fix)
                _running.add(process)
            # After the start: a time limit does not include the wait for the guardian.
            limits.start(process.pid)
            pipes = [pipe.fileno() for pipe in (process.stdout, process.stderr) if pipe]
            if _read(process, dict(zip(pipes, readers, strict=True)), limits):
                end_group(process)
        except BaseException:
            if process is not None:
                end_group(process)
            raise
        finally:
            if process is not None:
                _running.discard(process)
                guard(str(process.pid), is_over=True)
                for stream in filter(None, (process.stdout, process.stderr)):
                    stream.close()
    wall_s = time.monotonic() - started
    return Completed(tuple(words), process.returncode, "", wall_s, limits.exceeded)


def _open_input(data: bytes | Path) -> Any:
    if isinstance(data, Path):
        return open_regular(data)
    if not data:
        return nullcontext(DEVNULL)
    # A file instead of a pipe: a process that prints before it reads all of its input cannot block
    # both sides.
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(data)
    file.seek(0)
    return file


def _start(
    words: Sequence[str], popen_options: Mapping[str, Any], fix: str
) -> subprocess.Popen[bytes]:
    """Start a process whose stdout is a pipe, and have it killed if this process is killed.

    Its process group is not known before it has started. Until the guardian knows the group, it
    knows the pipe, which the process holds from its first moment on.
    """
    reading, writing = os.pipe()
    pipe = f"pipe:[{os.fstat(writing).st_ino}]"  # its name in /proc
    guard(pipe)
    try:
        process = subprocess.Popen(words, stdout=writing, start_new_session=True, **popen_options)
    except OSError as error:
        advice, cwd = (
            fix or f"install {Path(words[0]).name}, or put it on PATH",
            popen_options.get("cwd"),
        )
        # Popen reports a missing working directory as ENOENT, as it does a missing program.
        if cwd and not cwd.is_dir():
            advice = f"check why {cwd} is not a directory"
        why = error.strerror or ""
        raise MissingToolError(f"cannot start {words[0]}", why=why, fix=advice) from error
    else:
        guard(str(process.pid))
        process.stdout, reading = os.fdopen(reading, "rb"), -1
        return process
    finally:
        guard(pipe, is_over=True)
        os.close(writing)
        if reading >= 0:
            os.close(reading)


def _read(
    process: subprocess.Popen[bytes],
    readers: dict[int, Callable[[bytes], None]],
    limits: _Limits,
) -> bool:
    """Read from the pipes until the process ends. Return whether it must be ended, because it
    exceeded a limit, or whether another process still holds a pipe.
    """
    waiting, ends_at, left_bytes = select.poll(), math.inf, 0
    for descriptor in readers:
        waiting.register(descriptor, select.POLLIN)
    while not limits.check():
        # The process closed its output and goes on: nothing to wait for in poll, which would return
        # at once.
        if not readers:
            time.sleep(GROUP_POLL_S)
        ready = waiting.poll(PIPE_POLL_S * 1000 if readers else 0)
        # An orphan may hold the pipe for hours after the process has ended, so the end of the pipe
        # is not awaited: PIPE_REST_S is for what others write meanwhile.
        if ends_at == math.inf and process.poll() is not None:
            ends_at = time.monotonic() + PIPE_REST_S
            left_bytes = sum(map(_count_bytes, readers))
            continue  # read what it wrote before it ended, however long that takes
        is_late = left_bytes <= 0 and time.monotonic() >= ends_at
        if ends_at < math.inf and (is_late or not ready):
            return bool(readers)
        for descriptor, _ in ready:
            if data := os.read(descriptor, READ_BYTES):
                limits.spoke = time.monotonic()
                left_bytes -= len(data)
                readers[descriptor](data)
            else:
                waiting.unregister(descriptor)
                del readers[descriptor]
    return True


def _count_bytes(pipe: int) -> int:
    """Return how many bytes are in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


GUARDIAN = Path(__file__).with_name("guardian.sh")
_guardian: list[subprocess.Popen[bytes]] = []
_guarding = threading.Lock()


def start_guardian() -> None:
    """Start the shell that kills what guard names if this process is killed.

    PR_SET_PDEATHSIG would end only the first process of a group: git's helper for https, for
    example, would go on waiting for its server.
    """
    with _guarding:
        if not _guardian:
            words = ["/bin/sh", str(GUARDIAN)]
            nowhere: dict[str, Any] = {"stdout": DEVNULL, "stderr": DEVNULL, "cwd": "/"}
            _guardian.append(
                subprocess.Popen(words, stdin=PIPE, start_new_session=True, bufsize=0, **nowhere)
            )


def guard(name: str, *, is_over: bool = False) -> None:
    """Have a process group, or the processes that hold a pipe such as ``pipe:[4242]``, killed if
    this process is killed, until ``is_over``.
    """
    with suppress(OSError):
        pipe = _guardian[0].stdin
        if pipe:  # one write, so that threads cannot mix their lines
            # Below PIPE_BUF (4096 bytes), a write to a pipe is not divided.
            pipe.write(f"{'-' if is_over else '+'} {name}\n".encode())


def end_running(futures: Iterable[Future[Any]]) -> None:
    """End the processes that threads run or start for ``futures``, until all futures are done.

    The threads do not notice an interrupt themselves, because it reaches only the main thread.
    """
    waited = list(futures)
    if threading.current_thread() is threading.main_thread():
        _is_ending.set()
    try:
        while True:
            for process in list(_running):
                end_group(process)
            if all(future.done() for future in waited):
                return
            time.sleep(GROUP_POLL_S)
    finally:
        if threading.current_thread() is threading.main_thread():
            _is_ending.clear()


def is_ending() -> bool:
    """Return whether the main thread is ending all tasks. A task that waits has to stop then."""
    return _is_ending.is_set()


def end_group(process: subprocess.Popen[bytes]) -> None:
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
        while time.monotonic() < deadline and _is_alive(process.pid):
            time.sleep(GROUP_POLL_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _is_alive(group: int) -> bool:
    """Return whether a member of a process group has not ended. Its first process may have ended
    before the others.

    The kernel counts a member that has ended until another process has waited for it. In a
    container without an init, no process waits for an orphan. Raises ProcessLookupError and
    PermissionError.
    """
    os.killpg(group, 0)  # signal 0 only asks; this is quicker than reading /proc
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, member_of = read_text(stat, "replace").rpartition(")")[2].split()[:3]
            if int(member_of) == group and state not in {"Z", "X"}:
                return True
    return False


def end_marked(mark: str) -> list[str]:
    """Kill every process that was started with the variable ``mark`` (NAME=VALUE) in its
    environment, and return the names of these processes.

    This includes processes in other groups or sessions, and orphans.
    """
    names: list[str] = []
    deadline = time.monotonic() + GRACE_S
    # Again and again, since a process may start another one between the look and the signal.
    while (left := _find_marked(mark)) and time.monotonic() < deadline:
        for pid, name in left.items():
            with suppress(ProcessLookupError, PermissionError):
                # No SIGTERM: the process has left the group of the case that started it, and may
                # ignore that.
                os.kill(pid, signal.SIGKILL)
                names.append(name)
        time.sleep(GROUP_POLL_S)
    return [*dict.fromkeys(names)]


def _find_marked(mark: str) -> dict[int, str]:
    """Return the names of the processes that were started with the variable ``mark``. The keys are
    process IDs.

    During exec, a process has no visible variables, so it is read again. Kernel threads and zombies
    are left out; they have no ``exe`` in /proc.
    """
    marked = {}
    looked_at = [*Path("/proc").glob("[0-9]*")]
    for _ in range(LOOKS):
        blank = []
        for process in looked_at:
            with suppress(OSError):  # it ended, or belongs to another user
                (process / "exe").readlink()
                variables = read_bytes(process / "environ")
                if not variables:
                    if not _has_no_variables(process):
                        blank.append(process)
                elif mark.encode() in variables.split(b"\0"):
                    name = read_text(process / "comm", "replace").strip()
                    marked[int(process.name)] = name
        if not (looked_at := blank):
            break
        time.sleep(LOOK_S)
    return marked


def _has_no_variables(process: Path) -> bool:
    """Return whether a process was started without variables. Its env_start and env_end, fields 50
    and 51 of /proc/PID/stat (proc_pid_stat(5)), are then equal. During exec, they are 0. Raises
    OSError.
    """
    start, end = read_text(process / "stat", "replace").rpartition(")")[2].split()[47:49]
    return start == end != "0"


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
    futures: list[Future[R]] = []
    with ThreadPoolExecutor(threads) as pool:
        try:
            futures.extend(map(pool.submit, tasks))
            pending = set(futures)
            while pending:
                done, pending = wait(pending, WAKE_S, FIRST_COMPLETED)
                # Report finished tasks even if another task failed at the same moment.
                for future in sorted(
                    done, key=lambda future_done: future_done.exception() is not None
                ):
                    result = future.result()
                    if on_done:
                        on_done(result)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            if abort:
                abort()
            end_running(futures)
            raise
    return [future.result() for future in futures]
