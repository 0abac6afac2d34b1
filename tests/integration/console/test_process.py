"""Processes that are run to their end, and tasks in threads."""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ci.cases.pool import PR_SET_CHILD_SUBREAPER
from provisioning.console import process, usage
from provisioning.console.interrupts import ENDING_SIGNALS, catch_signals
from provisioning.console.process import (
    Completed,
    end_marked,
    end_running,
    module_command,
    run_process,
    run_streams,
    run_tasks,
)
from provisioning.console.usage import end_descendants, has_ended, list_descendants
from tests.stand_ins.clocks import stop_clock
from tests.stand_ins.waits import is_running, wait_for_end, wait_until


def test_output_is_returned_logged_and_passed_on(tmp_path: Path) -> None:
    lines: list[str] = []
    log = tmp_path / "log"
    log.write_text("of an earlier process\n")
    ended = run_process(
        [sys.executable, "-c", "print('a'); print('b')"], log=log, on_line=lines.append
    )
    assert (ended.returncode, ended.output, lines) == (0, "a\nb\n", ["a", "b"])
    assert log.read_text() == "a\nb\n"


def test_an_interrupt_ends_the_whole_group() -> None:
    started: list[int] = []

    def interrupt(line: str) -> None:
        started.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_process(["sh", "-c", "sleep 600 & echo $!; wait"], on_line=interrupt)
    wait_for_end(started[0])


def test_a_hanging_process_is_ended_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stop_clock(monkeypatch)
    monkeypatch.setattr(process, "GRACE_S", 0)
    ended = run_process(
        ["sh", "-c", "sleep 600 & echo $!; wait"],
        timeout_s=500,
        on_line=lambda _: clock.forward(501),
        check=False,
    )
    assert ended.describe() == "did not end within 500 s"
    wait_for_end(int(ended.output))


def test_a_child_gets_time_to_end_even_if_its_parent_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, mark = stop_clock(monkeypatch, look_s=0.02), tmp_path / "mark"
    monkeypatch.setattr(process, "GRACE_S", 60)
    wait = "while kill -0 $PPID 2>/dev/null; do :; done"  # until its parent has gone
    # It starts no process, which could miss the signal while it is started, and be waited for.
    child = f"trap '{wait}; echo end >{mark}; exit' TERM; echo up; while :; do :; done"
    code = f"import subprocess, time; subprocess.Popen(['sh', '-c', {child!r}]); time.sleep(600)"
    ended = run_process(
        [sys.executable, "-c", code],
        timeout_s=500,
        on_line=lambda _: clock.forward(501),
        check=False,
    )
    assert ended.exceeded
    assert mark.read_text() == "end\n"


def test_a_child_that_nobody_waits_for_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container without an init, an orphan that has ended stays in its group forever."""
    clock = stop_clock(monkeypatch, look_s=0.02)
    begun_s = clock.read()
    monkeypatch.setattr(process, "GRACE_S", 100)
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans become children of this process
    try:
        ended = run_process(
            ["sh", "-c", "sleep 600 & echo $!; wait"],
            timeout_s=500,
            on_line=lambda _: clock.forward(501),
            check=False,
        )
        orphan = int(ended.output)
        assert os.waitpid(orphan, 0) == (orphan, signal.SIGTERM)
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)
    assert clock.read() - begun_s < 501 + 100


CHATTER = "while echo chatter; do :; done"


@pytest.mark.parametrize("child", ["exec sleep 600", CHATTER])
@pytest.mark.parametrize("start", ["", "setsid "])
def test_a_child_that_holds_the_output_is_not_waited_for(
    tmp_path: Path, child: str, start: str
) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    code = f"{start}sh -c 'echo $$ >{pipe}; {child}' & read pid <{pipe}; echo pid $pid"
    ended = run_process(["sh", "-c", code])
    words = ended.output.split()
    pid = int(words[words.index("pid") + 1])
    # In a group of its own it may be meant to live, as a server is; what writes dies of SIGPIPE.
    if start and child == CHATTER:
        wait_for_end(pid)
    assert is_running(pid) == bool(start and child != CHATTER)
    if is_running(pid):
        os.kill(pid, signal.SIGKILL)


def test_a_process_that_replaces_itself_is_found_when_it_has_its_variables_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """During exec, the kernel shows no variables. tests/stress has a real one."""
    mark, value = f"TEST_END_MARKED={secrets.token_hex()}".split("=")
    looks = 0

    def show_late(path: Path) -> bytes:
        nonlocal looks
        if path.parent.name != str(child.pid):
            return path.read_bytes()
        looks += 1
        return path.read_bytes() if looks > 30 else b""

    with subprocess.Popen(["sleep", "600"], env={mark: value}) as child:
        try:
            wait_until(Path(f"/proc/{child.pid}/environ").read_bytes)
            monkeypatch.setattr(process, "read_bytes", show_late)
            assert end_marked(f"{mark}={value}") == ["sleep"]
        finally:
            child.kill()


def test_a_descendant_that_starts_while_the_others_are_listed_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden = []  # from the first list

    def list_others(pid: int) -> list[psutil.Process]:
        without = hidden.pop() if hidden else 0
        return [process for process in list_descendants(pid) if process.pid != without]

    monkeypatch.setattr(usage, "list_descendants", list_others)
    # A subreaper, whose child ends and leaves it an orphan. Popen waits for a child that has ended
    # when nothing refers to it any more.
    code = "import ctypes, subprocess, time; ctypes.CDLL(None).prctl(36, 1); "
    code += "child = subprocess.Popen(['sh', '-c', 'setsid sleep 600 & echo $$ $!']); "
    code += "time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout
            child, orphan = (int(word) for word in parent.stdout.readline().split())
            wait_until(lambda: has_ended(child))
            hidden.append(orphan)
            end_descendants(parent.pid)
            assert has_ended(orphan)
        finally:
            parent.kill()


@pytest.mark.parametrize("lists_children", [False, True])
def test_the_usage_of_a_process_is_that_of_its_descendants_too(
    monkeypatch: pytest.MonkeyPatch, lists_children: bool
) -> None:
    monkeypatch.setattr(usage, "LISTS_CHILDREN", usage.LISTS_CHILDREN and lists_children)
    # A child of another thread than the main one, which uses 32 MiB and half a second.
    used = "import time; data = b'x' * (32 << 20); exec('while time.process_time() < 0.5: pass'); "
    child = f"import subprocess; {used} "
    child += "subprocess.Popen(['sleep', '600']); print('used', flush=True); time.sleep(600)"
    code = "import subprocess, sys, threading, time; start = lambda: subprocess.run("
    code += f"[sys.executable, '-c', {child!r}]); "
    code += "threading.Thread(target=start).start(); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout
            assert parent.stdout.readline() == b"used\n"
            measured = usage.read_usage(parent.pid)
            pids = [process.pid for process in list_descendants(parent.pid)]
            assert len(pids) == 3
            assert [*measured.pids] == pids
            assert measured.resident_bytes > 32 << 20
            # Linux rounds user and system time down to its ticks, each for itself.
            assert measured.cpu_s > 0.5 - 2 / os.sysconf("SC_CLK_TCK")
        finally:
            end_descendants(parent.pid)
            parent.kill()
    assert usage.read_usage(parent.pid) == usage.Usage()


def test_all_output_before_the_end_of_a_process_is_returned() -> None:
    code = "import os; [os.write(1, b'%07d\\n' % n) for n in range(100_000)]"
    ended = run_process([sys.executable, "-c", code])
    assert ended.output.splitlines() == [f"{n:07}" for n in range(100_000)]


def test_processes_of_all_threads_including_later_ones_are_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "GRACE_S", 600)  # SIGTERM ends all of them
    is_started = threading.Event()

    def start_first() -> Completed:
        return run_process(SLEEP, on_line=lambda _: is_started.set(), check=False)

    def start_later() -> Completed:
        wait_until(process.is_ending)
        return run_process(SLEEP, check=False)

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(start_first), pool.submit(start_later)]
        is_started.wait()
        end_running(futures)
        assert all(future.done() for future in futures)
    assert [future.result().returncode for future in futures] == [-15, -15]


def test_a_module_is_run_whatever_the_working_directory_holds(tmp_path: Path) -> None:
    for name in ("pip.py", "runpy.py", "logging/__init__.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise SystemExit('the wrong one')\n")
    shadowed = run_process([sys.executable, "-m", "pip", "-V"], cwd=tmp_path, check=False)
    assert "the wrong one" in shadowed.output
    ended = run_process([*module_command("pip"), "-V"], cwd=tmp_path)
    assert ended.output.startswith("pip ")


@pytest.mark.parametrize("most_bytes", [0, 100_000, 1_000_000, 1 << 40])
def test_the_files_of_a_module_have_a_limit(tmp_path: Path, most_bytes: int) -> None:
    (tmp_path / "writer.py").write_text(
        "import sys\nwith open(sys.argv[1], 'wb') as file:\n    file.write(bytes(200_000))\n"
    )
    command = module_command("writer", most_bytes=most_bytes)
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = run_process([*command, tmp_path / "out"], env=variables, check=False)
    assert ended.returncode == (1 if most_bytes == 100_000 else 0), ended.output
    assert (tmp_path / "out").stat().st_size == (most_bytes if ended.returncode else 200_000)


def test_a_child_process_has_no_access_to_our_standard_input() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"typed")
    os.close(writing)
    own_input = os.dup(0)
    os.dup2(reading, 0)
    try:
        ended = run_process([sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"])
    finally:
        os.dup2(own_input, 0)
        os.close(own_input)
        os.close(reading)
    assert ended.output == "''\n"


# Longer than a test may take: nothing here waits for what it ends.
SLEEP = ["sh", "-c", "echo up; exec sleep 3600"]


def test_a_signal_that_another_thread_received_is_acted_on() -> None:
    def interrupt_this_thread() -> Completed:
        number, thread = signal.SIGINT, threading.get_ident()
        return run_process(
            SLEEP, on_line=lambda _: signal.pthread_kill(thread, number), check=False
        )

    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    catch_signals()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_tasks([interrupt_this_thread], 1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_an_exception_in_one_task_ends_the_processes_of_the_others() -> None:
    is_started, aborted = threading.Event(), threading.Event()

    def fail() -> Completed:
        is_started.wait()
        raise OSError("no room")

    def wait() -> Completed:
        return run_process(SLEEP, on_line=lambda _: is_started.set(), check=False)

    with pytest.raises(OSError, match="no room"):
        run_tasks([wait, fail], 2, abort=aborted.set)
    assert aborted.is_set()


FLOOD = "import os\nwhile True: os.write({}, b'x' * 65536)"


@pytest.mark.parametrize("number", [1, 2])
def test_memory_is_bounded_however_much_a_program_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The beginning and the end are kept, and the text states how much is left out."""
    for name, most in {"KEPT": 1 << 20, "MAX_LOG": 1 << 18}.items():
        monkeypatch.setattr(process, name, most)
    code = f"import os; os.write({number}, b'first\\n' + b'x' * 4_000_000 + b'\\nlast\\n')"
    ended = run_process([sys.executable, "-c", code], log=tmp_path / "log")
    assert re.fullmatch(r"first\nx+\n\[\d+ bytes are left out\]\nx*\nlast\n", ended.output)
    assert len(ended.output) < 1 << 21
    assert (tmp_path / "log").stat().st_size < 1 << 19
    limit_s = 600 if number == 1 else 1  # the limit of bytes is for standard output
    flood = [sys.executable, "-c", FLOOD.format(number)]
    streams = run_streams(flood, timeout_s=limit_s, most_bytes=999)
    assert (len(streams.stdout), len(streams.stderr) < 1 << 21) == (
        999 * (2 - number),
        True,
    )
    message = "printed more than 9.3e-07 GiB" if number == 1 else "did not end within 1 s"
    assert streams.describe() == message


def test_a_program_without_output_for_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = stop_clock(monkeypatch)
    monkeypatch.setattr(process, "GRACE_S", 0)
    ended = run_process(
        ["sh", "-c", "echo a; sleep 600"],
        silence_s=90,
        on_line=lambda _: clock.forward(91),
        check=False,
    )
    assert (ended.output, ended.describe()) == ("a\n", "printed nothing for 90 s")

    def note(line: str) -> None:
        clock.forward(80)
        (tmp_path / line).touch()

    slow = f"for n in 1 2 3; do echo $n; until [ -e {tmp_path}/$n ]; do :; done; done"
    assert run_process(["sh", "-c", slow], silence_s=90, on_line=note).is_good


def test_a_process_group_ends_when_the_parent_is_killed() -> None:
    mark = f"# {secrets.token_hex()}"
    command = ["sh", "-c", f"sleep 600 & echo up; sleep 600 {mark}; wait {mark}"]
    code = f"""
import os, signal
from provisioning.console.process import run_process
run_process({command!r}, on_line=lambda _: os.kill(os.getpid(), signal.SIGKILL))
"""
    with subprocess.Popen([sys.executable, "-c", code]) as killed:
        assert killed.wait() == -signal.SIGKILL
    wait_until(lambda: not find_command(mark))


def test_a_process_ends_that_was_started_as_its_parent_was_killed() -> None:
    """The kill comes before the parent can name the process group to its guardian."""
    mark = f"# {secrets.token_hex()}"
    code = f"""
import os, signal, subprocess
from provisioning.console import process
start = subprocess.Popen
def start_and_die(words, **more):
    started = start(words, **more)
    if words[0] == "sh":
        os.kill(os.getpid(), signal.SIGKILL)
    return started
subprocess.Popen = start_and_die
process.run_process(["sh", "-c", {f"sleep 600 & sleep 600 {mark}"!r}])
"""
    with subprocess.Popen([sys.executable, "-c", code]) as killed:
        assert killed.wait() == -signal.SIGKILL
    wait_until(lambda: not find_command(mark))


def find_command(mark: str) -> list[str]:
    commands = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            text = file.read_bytes().decode("utf-8", "replace")
            commands += [text] * (mark in text and "run_process" not in text)
    return commands
