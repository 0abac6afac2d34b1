"""What the console does at its edges: signals, streams, versions, users' commands and files."""

from __future__ import annotations

import errno
import io
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from provisioning.console import command, interrupts, process, terminal
from provisioning.console.git import ask_git, run_git
from provisioning.console.interrupts import Interrupt, interrupts_held
from provisioning.documents import read_user_file
from provisioning.errors import ToolError, UsageError
from tests.stand_ins.users import unprivileged

# -- commands ------------------------------------------------------------------------------------


def test_relative_paths_in_a_users_command_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "tool"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "data").touch()
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    words = ["tool", "data", "--flag", "", "gone", "bin"]
    expected_words = [str(program), str(tmp_path / "data"), "--flag", "", "gone", "bin"]
    assert command.user_command(words) == expected_words
    assert command.user_command(["bin/tool"]) == [str(program)]
    assert command.user_command(["no-such-tool", "data"])[0] == "no-such-tool"
    link = tmp_path / "bin" / "link"
    link.symlink_to(program)
    assert command.user_command(["link"]) == [str(link)]


def test_a_full_read_only_or_forbidden_place_is_a_refused_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    def refused(number: int, name: str | None = None) -> bool:
        return command.is_refused_write(OSError(number, "refused", name))

    assert refused(errno.ENOSPC)
    assert refused(errno.EROFS)
    assert refused(errno.EACCES, str(tmp_path / "file"))
    assert refused(errno.EACCES, str(tmp_path / "new"))
    assert refused(errno.EPERM, str(tmp_path / "file"))  # an immutable file
    assert not refused(errno.EACCES)
    assert not refused(errno.EMFILE, str(tmp_path / "file"))
    (tmp_path / "closed").mkdir(mode=0)
    out_of_reach = f"{tmp_path}/closed/file"
    with unprivileged(tmp_path):
        error = command.explain_exception(PermissionError(errno.EACCES, "no", out_of_reach))
    assert error.what.startswith(out_of_reach)


# -- git and users' files ------------------------------------------------------------------------


def test_a_users_file_is_read_whole_or_refused_by_its_kind(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_user_file(file, "the file", 5) == b"12345"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError) as caught:
        read_user_file(tmp_path / "pipe", "the file")
    assert caught.value.why == "it is a pipe"
    with socket.socket(socket.AF_UNIX) as listener, pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)  # a socket's path is short
        listener.bind("socket")
        with pytest.raises(UsageError) as caught:
            read_user_file(tmp_path / "socket", "the file")
    assert caught.value.why == "it is a socket"
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(UsageError) as caught:
        read_user_file(tmp_path / "zero", "the file")
    assert caught.value.why == "it is a device"


# -- signals -------------------------------------------------------------------------------------


@pytest.fixture
def handlers() -> Any:
    """Signals have after a test the handlers that they had before."""
    before = {number: signal.getsignal(number) for number in interrupts.ENDING_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_every_ending_signal_raises_one_keyboard_interrupt() -> None:
    for number in interrupts.ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Python's own
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupts.catch_signals()
    handler = signal.getsignal(signal.SIGTERM)
    assert isinstance(handler, Interrupt)
    assert signal.getsignal(signal.SIGINT) is handler
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)  # the second one, while the first is worked on
    interrupts.ignore_signals()
    assert {signal.getsignal(number) for number in interrupts.ENDING_SIGNALS} == {signal.SIG_IGN}


@pytest.mark.usefixtures("handlers")
def test_an_interrupt_in_a_finalizer_comes_after_it() -> None:
    interrupts.catch_signals()
    events = []

    class Pipe:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            events.append("closed")

    def close() -> None:
        Pipe()
        time.sleep(600)

    with pytest.raises(KeyboardInterrupt):
        close()
    assert events == ["closed"]


@pytest.mark.usefixtures("handlers")
def test_an_interrupt_is_held_until_the_end_of_a_protected_block() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)
    interrupts.catch_signals()
    # Else it would end pytest.
    assert all(isinstance(signal.getsignal(number), Interrupt) for number in numbers)
    events = []

    def interrupt() -> None:
        with interrupts_held():
            os.kill(os.getpid(), signal.SIGTERM)
            events.append("held")

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert events == ["held"]
    handler = signal.getsignal(signal.SIGTERM)
    assert isinstance(handler, Interrupt)
    assert (handler.held, handler.pending) == (False, False)
    with interrupts_held():
        assert handler.held
    assert not handler.held


# -- processes -----------------------------------------------------------------------------------


def test_a_process_is_run_with_binary_input_and_output(tmp_path: Path) -> None:
    assert process.run_streams(["cat"], data=b"\xff\0").stdout == b"\xff\0"
    (tmp_path / "given").write_bytes(b"\xfe\n")
    assert process.run_streams(["cat"], data=tmp_path / "given").stdout == b"\xfe\n"
    assert process.run_streams(["cat"], data=b"\xfd").stdout == b"\xfd"
    with pytest.raises(ToolError) as caught:
        process.run_streams(["sh", "-c", "printf 'a\\377b' >&2; exit 1"]).require()
    assert caught.value.why == "a\N{REPLACEMENT CHARACTER}b"
    with pytest.raises(ToolError, match="cannot start no-such-program"):
        process.run_streams(["no-such-program", "--version"])


def test_a_group_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    code = "trap '' TERM; echo up; exec sleep 600"
    with subprocess.Popen(
        ["sh", "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == b"up\n"
        process.end_group(child)
        assert child.wait() == -signal.SIGKILL
    process.end_group(child)  # which has ended


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("is_parent", [True, False])
def test_a_child_ends_with_its_parent_or_at_once_without_one(is_parent: bool) -> None:
    """It holds the end of a pipe for as long as it lives."""
    reading, writing = os.pipe()
    middle = os.fork()
    if not middle:
        parent = os.getpid()
        if not os.fork():
            process.end_with_parent(parent if is_parent else parent + 1)
            os.write(writing, b"up")
            signal.pause()
            os._exit(0)
        os.close(writing)
        signal.pause()
        os._exit(0)
    os.close(writing)
    try:
        assert os.read(reading, 2) == (b"up" if is_parent else b"")
    finally:
        os.kill(middle, signal.SIGKILL)
        os.waitpid(middle, 0)
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_git_runs_without_prompts_in_english_and_skips_lfs_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nif [ "$3" = fail ]; then exit 3; fi\nenv\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("EXTRA", "stale")
    place = tmp_path / "place"
    place.mkdir()
    rows = ask_git(place, "env").decode().splitlines()
    settings = {"GIT_TERMINAL_PROMPT=0", "GIT_LFS_SKIP_SMUDGE=1", "LC_ALL=C"}
    assert settings | {f"GIT_CEILING_DIRECTORIES={tmp_path.resolve()}"} <= {*rows}
    assert not [row for row in rows if row.startswith("GIT_DIR=")]
    assert run_git(place, "env").output.count("GIT_TERMINAL_PROMPT=0") == 1
    assert "EXTRA=1\n" in run_git(place, "env", variables={"EXTRA": "1"}).output
    assert run_git(place, "fail", check=False).returncode == 3
    for call in (run_git, ask_git):
        with pytest.raises(ToolError, match="exited with 3"):
            call(place, "fail")


# -- streams -------------------------------------------------------------------------------------


def test_a_path_of_any_bytes_is_printed_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="utf-8"))
    terminal.write_output("caf\udce9")
    assert raw.getvalue() == b"caf\xe9"
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    terminal.write_output("\N{GREEK SMALL LETTER ALPHA}")
    assert raw.getvalue() == rb"\u03b1"
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    terminal.write_output(
        "\N{BOX DRAWINGS LIGHT HORIZONTAL}\N{FULL BLOCK}[\N{LOWER ONE EIGHTH BLOCK}]"
    )
    assert raw.getvalue() == b"-8[1]"
