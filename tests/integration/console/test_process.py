"""Processes that are run to their end, and tasks in threads."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

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
    (child,) = started
    state = Path(f"/proc/{child}/stat")
    while state.exists() and state.read_text().rpartition(") ")[2][0] != "Z":
        time.sleep(0.01)


def test_a_hanging_process_is_ended_with_its_children() -> None:
    ended = run_process(["sh", "-c", "sleep 600 & echo $!; wait"], timeout_s=0.5, check=False)
    assert ended.exceeded
    command = Path(f"/proc/{int(ended.output)}/cmdline")
    assert not command.exists() or not command.read_bytes()  # that of a zombie is empty


def test_a_child_gets_time_to_end_even_if_its_parent_ends_at_once(tmp_path: Path) -> None:
    mark = tmp_path / "said"
    child = f"trap 'sleep 0.3; echo end >{mark}; exit' TERM; while :; do sleep 0.05; done"
    code = f"import subprocess, time; subprocess.Popen(['sh', '-c', {child!r}]); time.sleep(60)"
    ended = run_process([sys.executable, "-c", code], timeout_s=1.5, check=False)
    assert ended.exceeded
    assert mark.read_text() == "end\n"


CHATTER = "while :; do echo chatter; sleep 0.01; done"


@pytest.mark.parametrize("child", ["sleep 600", CHATTER])
@pytest.mark.parametrize("start", ["", "setsid "])
def test_a_child_that_holds_the_output_is_not_waited_for(child: str, start: str) -> None:
    code = f"{start}sh -c '{child}' & echo $!; exec sleep 0.5"
    ended = run_process(["sh", "-c", code], timeout_s=20)
    pid = next(int(word) for word in ended.output.split() if word.isdigit())
    try:
        os.kill(pid, 0)
        left = True
    except ProcessLookupError:
        left = False
    # In a group of its own it may be meant to live, as a server is; what writes dies of SIGPIPE.
    assert left == bool(start) or (start and child == CHATTER)
    if left:
        os.kill(pid, signal.SIGKILL)


TRIES = 60 if os.environ.get("QNN_CI_NIGHTLY") else 15


def test_a_process_that_keeps_replacing_itself_is_ended() -> None:
    replace_itself = 'exec /bin/sh -c "$AGAIN"'
    for number in range(TRIES):
        mark = f"TEST_END_MARKED={os.getpid()}-{number}"
        name, value = mark.split("=")
        with subprocess.Popen(
            ["/bin/sh", "-c", replace_itself], env={name: value, "AGAIN": replace_itself}
        ) as child:
            time.sleep(0.005)
            try:
                assert end_marked(mark) == ["sh"]
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
            while not has_ended(child):
                time.sleep(0.01)
            hidden.append(orphan)
            end_descendants(parent.pid)
            assert has_ended(orphan)
        finally:
            parent.kill()


def test_all_output_before_the_end_of_a_process_is_returned() -> None:
    code = "import os; [os.write(1, b'%07d\\n' % n) for n in range(100_000)]"
    ended = run_process([sys.executable, "-c", code])
    assert ended.output.splitlines() == [f"{n:07}" for n in range(100_000)]


def test_processes_of_all_threads_including_later_ones_are_ended() -> None:
    def start(after_s: float) -> Completed:
        time.sleep(after_s)
        return run_process([sys.executable, "-c", "import time; time.sleep(60)"], check=False)

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(start, after_s) for after_s in (0.0, 0.4)]
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
SLEEP = [sys.executable, "-c", "import time; time.sleep(3600)"]


def test_a_signal_that_another_thread_received_is_acted_on() -> None:
    def interrupt_this_thread() -> Completed:
        threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        return run_process(SLEEP, check=False)

    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    catch_signals()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_tasks([interrupt_this_thread], 1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_an_exception_in_one_task_ends_the_processes_of_the_others() -> None:
    aborted = threading.Event()

    def fail() -> Completed:
        time.sleep(0.3)
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        run_tasks([lambda: run_process(SLEEP, check=False), fail], 2, abort=aborted.set)
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
    limit_s = 60 if number == 1 else 1  # the limit of bytes is for standard output
    flood = [sys.executable, "-c", FLOOD.format(number)]
    streams = run_streams(flood, timeout_s=limit_s, most_bytes=999)
    assert (len(streams.stdout), len(streams.stderr) < 1 << 21) == (
        999 * (2 - number),
        True,
    )
    message = "printed more than 9.3e-07 GiB" if number == 1 else "did not end within 1 s"
    assert streams.describe() == message


def test_a_program_without_output_for_too_long_is_ended() -> None:
    ended = run_process(["sh", "-c", "echo a; sleep 60"], silence_s=0.4, check=False)
    assert (ended.output, ended.describe()) == ("a\n", "printed nothing for 0 s")
    slow = "for n in 1 2 3 4 5 6; do echo $n; sleep 0.2; done"
    assert run_process(["sh", "-c", slow], silence_s=0.8).is_good


def test_child_processes_end_when_their_parent_is_killed() -> None:
    """The whole process group ends, at whatever instant the kill comes."""
    mark = f"# {secrets.token_hex()}"
    command = ["sh", "-c", f"sleep 600 & sleep 600 {mark}; wait {mark}"]
    code = f"from provisioning.console.process import run_process as r\nwhile 1: r({command!r})"
    for wait_s in (0.0, 0.3):
        with subprocess.Popen([sys.executable, "-c", code]) as killed:
            time.sleep(wait_s + 0.2)
            killed.kill()
        deadline = time.monotonic() + 20
        while find_command(mark):
            assert time.monotonic() < deadline, find_command(mark)
            time.sleep(0.02)


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
        assert killed.wait(20) == -signal.SIGKILL
    deadline = time.monotonic() + 20
    while find_command(mark):
        assert time.monotonic() < deadline, find_command(mark)
        time.sleep(0.02)


def find_command(mark: str) -> list[str]:
    commands = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            text = file.read_bytes().decode("utf-8", "replace")
            commands += [text] * (mark in text and "run_process" not in text)
    return commands
