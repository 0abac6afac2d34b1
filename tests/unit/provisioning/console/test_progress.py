"""Progress lines: no wider than the terminal, and never silent for long."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from io import StringIO
from typing import NamedTuple, TextIO

import pytest

from provisioning.console import progress as module
from provisioning.console.caller import CI_VARIABLES
from provisioning.console.progress import LEAST_COLUMNS, Bar, Progress
from provisioning.console.terminal import count_columns, fit_lines
from tests.stand_ins.waits import wait_until


class Screen(StringIO):
    """A terminal of 80 columns."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setenv("COLUMNS", "80")
    return Screen()


class Terminal(NamedTuple):
    """A pseudo-terminal of 132 columns: ``stream`` is written to, ``master`` shows it."""

    stream: TextIO
    master: int

    def read(self) -> str:
        """Return what was written since the last call."""
        text = ""
        while select.select([self.master], [], [], 0)[0]:
            text += os.read(self.master, 1 << 16).decode()
        return text


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.delenv("COLUMNS", raising=False)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 132, 0, 0))
    with os.fdopen(slave, "w") as stream:
        yield Terminal(stream, master)
    os.close(master)


def show(text: str) -> list[str]:
    """Return the lines that a terminal shows after ``text``. It knows the codes that rich uses:
    start of the line, next line, ECMA-48's EL (erase the line) and CUU (up)."""
    lines, at = [""], 0
    for part in re.findall(r"\x1b\[[0-?]*[@-~]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            at += 1
            lines += [""] * (at == len(lines))
        elif part == "\x1b[2K":
            lines[at] = ""
        elif part == "\x1b[1A":
            at -= 1
        elif not part.startswith(("\x1b", "\r")):
            lines[at] = part
    return [line.rstrip() for line in lines if line.strip()]


def lines_of(screen: StringIO) -> list[str]:
    text = re.sub(r"\x1b\[[0-?]*[@-~]", "", screen.getvalue())
    return [line for part in text.split("\n") for line in part.split("\r") if line]


@pytest.mark.parametrize(
    ("unit", "total", "done", "resumed", "columns", "line"),
    [
        ("", 0, 0, 0, None, "  x 10 s"),
        ("B", 0, 2048, 0, None, "  x 2.0 KiB, 205 B/s, 10 s"),
        ("B", 2048, 1024, 512, 20, "  x  75% 1.5 KiB of 2.0 KiB, 102 B/s, 10 s, 5 s left"),
        ("", 4, 1, 0, LEAST_COLUMNS - 1, "  x  25% 1 of 4, 10 s"),
        ("", 4, 1, 0, LEAST_COLUMNS, "  x [######..................]  25% 1 of 4, 10 s"),
        ("B", 2048, 4096, 0, 20, "  x 100% 4.0 KiB of 2.0 KiB, 410 B/s, 10 s, 0 s left"),
    ],
)
def test_a_progress_bar_shows_the_known_figures(
    unit: str, total: int, done: int, resumed: int, columns: int | None, line: str
) -> None:
    bar = Bar("x", total, unit, Progress(live=True), columns)
    bar.done = resumed
    bar.advance(done)
    bar._started = 1000.0  # a sum with the machine's own clock may be rounded to 9.99 s
    assert bar.describe(1010.0) == line


def test_bars_that_are_shown_at_the_same_time_are_drawn_below_the_messages(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFRESHES_PER_S", 50)
    progress, text = Progress(terminal.stream, live=True), ""

    def shows(*lines: str) -> bool:
        """Return whether the terminal shows these lines now, whatever time has passed."""
        nonlocal text
        text += terminal.read()
        return [re.sub(r"\b\d+ s\b", "N s", line) for line in show(text)] == [*lines]

    bars = ["  cases [........................]   0% 0 of 3, N s  mlp fp16, lstm 8a8w"]
    bars += ["  another run is provisioning: N s"]
    with (
        progress.bar("cases", 3, "") as bar,
        bar.busy("mlp fp16"),
        bar.busy(lambda: "lstm 8a8w"),
        progress.waiting("another run is provisioning"),
    ):
        wait_until(lambda: shows(*bars))
        progress.step("  mlp passed")
        wait_until(lambda: shows("  mlp passed", *bars))
    assert shows("  mlp passed")


def test_a_terminal_that_was_closed_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFRESHES_PER_S", 50)
    master, slave = pty.openpty()
    write, writes = module.write_through, list[str]()
    monkeypatch.setattr(
        module, "write_through", lambda stream, text: (writes.append(text), write(stream, text))
    )
    with os.fdopen(slave, "w") as stream:
        progress = Progress(stream, live=True)
        with progress.bar("cases", 3, "") as bar:
            wait_until(lambda: writes)
            os.close(master)
            before = len(writes)
            wait_until(lambda: len(writes) > before + 1)
            progress.step("  mlp passed")
            bar.advance(1)
        assert bar.done == 1


@pytest.mark.parametrize(
    ("ci", "kind", "live"),
    [("", "xterm", True), ("", None, True), ("", "dumb", False), ("true", "xterm", False)],
)
def test_bars_are_live_on_a_terminal_outside_ci(
    screen: Screen, monkeypatch: pytest.MonkeyPatch, ci: str, kind: str | None, live: bool
) -> None:
    for name in (*CI_VARIABLES, "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CI", ci)
    if kind:
        monkeypatch.setenv("TERM", kind)
    monkeypatch.setattr(sys, "stderr", screen)
    assert (Progress.to_stderr().stream, Progress.to_stderr().live) == (screen, live)
    monkeypatch.setattr(sys, "stderr", StringIO())
    assert not Progress.to_stderr().live


def test_a_long_wait_prints_progress_lines_into_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLAIN_INTERVAL_S", 0.02)
    pipe = StringIO()
    with Progress(pipe).waiting("lowering"):
        wait_until(lambda: re.search(r"(?m)^  lowering: \d+ s$", pipe.getvalue()))
    assert "\x1b" not in pipe.getvalue()


def test_a_log_repeats_a_line_of_which_only_the_time_differs_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = 1000.0
    clock = [start]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    pipe = StringIO()
    with Progress(pipe).bar("cases", 2, unit="") as bar, bar.busy("mlp: lower"):
        bar._started = bar._shown = start
        for second in range(0, 131, 5):
            clock[0] = start + second
            bar.log()
        bar.advance(1, "lstm: run")
        clock[0] += 10
        bar.log()
    lines = [line.split("]")[-1].strip() for line in pipe.getvalue().splitlines()]
    assert lines == [
        "0% 0 of 2, 10 s  mlp: lower",
        "0% 0 of 2, 1 min 10 s  mlp: lower",
        "0% 0 of 2, 2 min 10 s  mlp: lower",
        "50% 1 of 2, 2 min 20 s  lstm: run",
    ]


def test_steps_are_wrapped_between_words(screen: Screen) -> None:
    Progress(screen, live=True).step("  [1/2] net.py:bad " + "a reason that goes on " * 6)
    lines = lines_of(screen)
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80
    assert all(line.startswith("      ") for line in lines[1:])
    assert "net.py:bad" in lines[0]


def test_a_long_path_is_never_wrapped() -> None:
    path = "/a/path/" + "x" * 100
    assert path in fit_lines(f"report: {path}", 80).split()
    assert fit_lines(path, None) == path


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_command_is_not_broken_over_lines(columns: int) -> None:
    command = "`./nox -s test_emulator -- --model mlp --scheme 8a8w --soc SM8650`"
    text = f"fix: first run something with a long name, and then run {command} again, if you can"
    lines = fit_lines(text, columns).splitlines()
    assert [line for line in lines if command in line]
    assert all(len(line) <= columns for line in lines if command not in line)
    assert " ".join(" ".join(lines).split()) == text


def test_the_width_of_a_real_terminal_is_read(terminal: Terminal) -> None:
    assert count_columns(terminal.stream) == 132


def test_the_thread_of_a_bar_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the line of a finished bar would be written among later lines."""
    monkeypatch.setattr(module, "PLAIN_INTERVAL_S", 0.02)
    before = {*threading.enumerate()}
    with Progress(StringIO()).bar("a"):
        (thread,) = {*threading.enumerate()} - before
    thread.join()
