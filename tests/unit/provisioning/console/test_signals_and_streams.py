"""What the console does at its edges: signals, streams, versions, users' commands and files."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from provisioning.console import command, interrupts, process, terminal
from provisioning.console.caller import Caller
from provisioning.console.command import Verb, describe_verbs
from provisioning.console.git import ask_git, list_submodules, run_git
from provisioning.console.interrupts import Interrupt, interrupts_held
from provisioning.console.terminal import fit_lines
from provisioning.documents import read_user_file
from provisioning.errors import (
    StoreError,
    ToolError,
    UsageError,
)

ROOT = Path(__file__).parents[4]
VERBS = {"verify": Verb("provisioning.verbs.verify", "look again"), "gc": Verb("x", "remove")}


# -- commands ------------------------------------------------------------------------------------


def test_the_verbs_are_listed_in_columns() -> None:
    text = describe_verbs(Caller("qnn-ci"), VERBS)
    assert text.startswith("usage: qnn-ci VERB [--json] [-q] [-v] ...\n       qnn-ci help VERB\n")
    assert text.endswith("verbs:\n  verify  look again\n  gc      remove\n")
    assert describe_verbs(Caller("qnn-ci"), {}).endswith("verbs:\n\n")


def test_the_version_is_that_of_the_distribution_or_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str) -> str:
        assert name == "executorch-qnn-ci"
        return "7.8"

    def miss(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", find)
    assert command.read_version() == "7.8"
    assert command.run_command("qnn-ci", VERBS, ["--version"]) == (0, "executorch-qnn-ci 7.8\n")
    monkeypatch.setattr(metadata, "version", miss)
    (stated,) = re.findall(r'(?m)^version = "(.+)"$', (ROOT / "pyproject.toml").read_text())
    assert command.read_version() == stated
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    monkeypatch.setattr(command, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    assert command.read_version() != ""


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_a_result(word: str) -> None:
    code, text = command.run_command("qnn-ci", VERBS, [word])
    assert (code, "verify  look again" in text) == (0, True)


def test_a_users_command_may_be_started_anywhere(
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
    whole = [str(program), str(tmp_path / "data"), "--flag", "", "gone", "bin"]
    assert command.user_command(words) == whole
    assert command.user_command(["bin/tool"]) == [str(program)]
    assert command.user_command(["no-such-tool", "data"])[0] == "no-such-tool"
    link = tmp_path / "bin" / "link"
    link.symlink_to(program)
    assert command.user_command(["link"]) == [str(link)]


def test_what_may_be_read_and_not_written_is_a_refused_write(tmp_path: Path) -> None:
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


def test_what_may_not_be_read_either_is_no_refused_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    allowed: set[tuple[Path, int]] = set()
    monkeypatch.setattr(os, "access", lambda path, mode: (Path(path), mode) in allowed)

    def refused(name: str) -> bool:
        error = OSError(errno.EACCES, "refused", os.fsencode(tmp_path / name))
        return command.is_refused_write(error)

    assert not refused("file")
    assert not refused("new")
    allowed.add((tmp_path, os.X_OK))
    assert not refused("file")
    assert refused("new")
    allowed.add((tmp_path / "file", os.R_OK))
    assert refused("file")


def test_help_goes_to_the_output_or_into_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    parser = command.make_parser(Caller("qnn-ci"), VERBS, "verify")
    parser.print_help()
    assert capsys.readouterr().out == parser.format_help()
    file = io.StringIO()
    parser.print_help(file)
    assert (file.getvalue(), capsys.readouterr().out) == (parser.format_help(), "")


# -- git and users' files ------------------------------------------------------------------------


def test_submodules_of_a_checkout_are_those_of_its_file(tmp_path: Path) -> None:
    assert list_submodules(tmp_path) == ()
    text = '[submodule "a"]\n\tpath = third-party/a\n\turl = https://a\n'
    (tmp_path / ".gitmodules").write_bytes(text.encode() + b"# \xff\n")
    assert list_submodules(tmp_path) == ("third-party/a",)
    (tmp_path / ".gitmodules").unlink()
    (tmp_path / ".gitmodules").mkdir()
    assert list_submodules(tmp_path) == ()


def test_a_users_file_is_read_whole_or_refused_by_its_kind(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_user_file(file, "the file", 5) == b"12345"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError) as caught:
        read_user_file(tmp_path / "pipe", "the file")
    assert caught.value.why == "it is a pipe"
    with socket.socket(socket.AF_UNIX) as one, pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)  # a socket's path is short
        one.bind("socket")
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
def test_every_signal_that_ends_a_program_is_one_interrupt() -> None:
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
    assert {signal.getsignal(one) for one in interrupts.ENDING_SIGNALS} == {signal.SIG_IGN}


@pytest.mark.usefixtures("handlers")
def test_another_thread_changes_no_handler() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for change in (interrupts.catch_signals, interrupts.ignore_signals):
        thread = threading.Thread(target=change)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("handlers")
def test_an_interrupt_waits_for_the_end_of_a_block_that_holds_it() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)
    interrupts.catch_signals()
    # Else it would end pytest.
    assert all(isinstance(signal.getsignal(number), Interrupt) for number in numbers)
    seen = []

    def interrupt() -> None:
        with interrupts_held():
            os.kill(os.getpid(), signal.SIGTERM)
            seen.append("held")

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert seen == ["held"]
    handler = signal.getsignal(signal.SIGTERM)
    assert isinstance(handler, Interrupt)
    assert (handler.held, handler.pending) == (False, False)
    with interrupts_held():
        assert handler.held
    assert not handler.held
    held: list[bool] = []

    def hold() -> None:
        with interrupts_held():
            held.append(handler.held)

    thread = threading.Thread(target=hold)  # signals reach the main thread alone
    thread.start()
    thread.join()
    assert held == [False]


def test_nothing_came_before_the_first_signal() -> None:
    interrupt = Interrupt()
    assert (interrupt.held, interrupt.pending) == (False, False)
    interrupt.release()


def test_a_later_signal_interrupts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now[0])
    interrupt = Interrupt()
    interrupt.last = 100.0 - interrupts.CLEANUP_S
    for passed, raises in ((0.0, True), (7.9, False), (8.0, True)):
        now[0] = interrupt.last + passed if passed else now[0]
        if raises:
            with pytest.raises(KeyboardInterrupt):
                interrupt()
        else:
            interrupt()


# -- processes -----------------------------------------------------------------------------------


def test_a_process_that_asks_for_bytes_gets_them_or_why_not(tmp_path: Path) -> None:
    assert process.run_bytes(["cat"], data=b"\xff\0") == b"\xff\0"
    (tmp_path / "given").write_bytes(b"\xfe\n")
    assert process.run_streams(["cat"], data=tmp_path / "given").stdout == b"\xfe\n"
    assert process.run_streams(["cat"], data=b"\xfd").stdout == b"\xfd"
    with pytest.raises(ToolError) as caught:
        process.run_bytes(["sh", "-c", "printf 'a\\377b' >&2; exit 1"])
    assert caught.value.why == "a\N{REPLACEMENT CHARACTER}b"
    with pytest.raises(ToolError, match="cannot start no-such-program"):
        process.run_bytes(["no-such-program", "--version"])


def test_no_more_tasks_run_at_a_time_than_allowed() -> None:
    running, most = [], []

    def task() -> int:
        running.append(1)
        most.append(len(running))
        threading.Event().wait(0.02)
        running.pop()
        return len(most)

    done: list[int] = []
    assert process.run_tasks([task] * 4, 1, on_done=done.append) == [1, 2, 3, 4]
    assert (max(most), sorted(done)) == (1, [1, 2, 3, 4])


def test_a_group_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    code = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    with subprocess.Popen(
        ["sh", "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as one:
        assert one.stdout
        assert one.stdout.readline() == b"up\n"
        process.end_group(one)
        assert one.wait() == -signal.SIGKILL
    process.end_group(one)  # which has ended


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


def test_git_asks_nothing_speaks_english_and_fetches_no_large_files(
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
    rows = ask_git(place, "env", variables={"EXTRA": "1"}).decode().splitlines()
    wanted = {"GIT_TERMINAL_PROMPT=0", "GIT_LFS_SKIP_SMUDGE=1", "LC_ALL=C", "EXTRA=1"}
    assert wanted | {f"GIT_CEILING_DIRECTORIES={tmp_path.resolve()}"} <= {*rows}
    assert not [row for row in rows if row.startswith("GIT_DIR=")]
    assert run_git(place, "env").output.count("GIT_TERMINAL_PROMPT=0") == 1
    assert "EXTRA=1\n" in run_git(place, "env", variables={"EXTRA": "1"}).output
    assert run_git(place, "fail", check=False).returncode == 3
    for call in (run_git, ask_git):
        with pytest.raises(ToolError, match="exited with 3"):
            call(place, "fail")


# -- streams -------------------------------------------------------------------------------------


def test_lines_are_whole_whatever_ends_them() -> None:
    assert terminal.clean("a\r\nb\rc\n") == "a\nb\nc\n"
    assert terminal.clean_output("::error::x\r  ::add-mask::y") == ": :error::x\n  : :add-mask::y"


class Broken(io.StringIO):
    """A stream that takes nothing; ``error`` says why."""

    def __init__(self, descriptor: int, error: OSError) -> None:
        super().__init__()
        self.descriptor, self.error = descriptor, error

    def write(self, text: str) -> int:
        raise self.error

    def fileno(self) -> int:
        return self.descriptor


@pytest.mark.parametrize("is_stdout", [True, False])
def test_what_is_left_in_a_stream_that_takes_nothing_goes_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stdout: bool
) -> None:
    file = tmp_path / "file"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
    stream = Broken(descriptor, BrokenPipeError())
    if is_stdout:
        monkeypatch.setattr(sys, "stdout", stream)
        terminal.write_output("text")
        stream.error = OSError(errno.ENOSPC, "No space left on device")
        with pytest.raises(StoreError) as caught:
            terminal.write_output("text")
        assert "No space left" in caught.value.why
    else:
        terminal.write_through(stream, "text")
    os.write(descriptor, b"the interpreter's own flush")
    os.close(descriptor)
    assert file.read_bytes() == b""


def test_a_message_to_a_closed_stream_goes_nowhere(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as stream:
        pass
    terminal.write_through(stream, "text")
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("error", [OSError(), ValueError()])
def test_a_stream_without_a_descriptor_is_silent_already(error: Exception) -> None:
    class Gone(io.StringIO):
        def fileno(self) -> int:
            raise error

    before = len(list(Path("/proc/self/fd").iterdir()))
    terminal.silence(Gone())
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(("asked", "columns"), [("", 33), ("50", 50), ("x", 33), ("0", 0)])
def test_the_width_of_a_terminal_is_what_is_asked_for_or_its_own(
    monkeypatch: pytest.MonkeyPatch, asked: str, columns: int
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def fileno(self) -> int:
            return 77

    sizes = {77: os.terminal_size((33, 9))}
    monkeypatch.setattr(os, "get_terminal_size", sizes.__getitem__)
    monkeypatch.setenv("COLUMNS", asked)
    assert terminal.count_columns(Terminal()) == columns
    sizes[77] = os.terminal_size((0, 0))
    monkeypatch.delenv("COLUMNS")
    assert terminal.count_columns(Terminal()) is None


def test_streams_that_the_caller_closed_are_the_null_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    terminal.open_missing_streams()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        with getattr(sys, name) as stream:
            assert (stream.name, stream.mode, stream.encoding) == (os.devnull, mode, "utf-8")


def test_a_process_of_a_caller_without_streams_has_streams() -> None:
    code = '''
import os, subprocess, sys
from provisioning.console.terminal import open_missing_streams
open_missing_streams()
child = """
import os, sys
os.write(1, b"x")
os.write(2, b"x")
sys.exit(None in (sys.stdin, sys.stdout, sys.stderr))
"""
os._exit(subprocess.run([sys.executable, "-c", child]).returncode)
'''
    command = 'exec "$@" <&- >&- 2>&-'
    ended = subprocess.run(["sh", "-c", command, "sh", sys.executable, "-c", code], check=False)
    assert ended.returncode == 0


def test_a_path_in_any_bytes_is_written_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="utf-8"))
    terminal.write_output("caf\udce9")
    assert raw.getvalue() == b"caf\xe9"
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    terminal.write_output("\N{GREEK SMALL LETTER ALPHA}")
    assert raw.getvalue() == rb"\u03b1"


def test_a_stream_that_names_no_encoding_takes_utf_8() -> None:
    stream: Any = object()
    assert terminal._encodable("caf\udce9 \N{GREEK SMALL LETTER ALPHA}", stream) == (
        "caf\udce9 \N{GREEK SMALL LETTER ALPHA}"
    )
    assert terminal._encodable("\ud800", stream) == "\\ud800"


def test_every_line_of_a_narrow_terminal_is_broken_by_itself() -> None:
    text = f"one\n  {'two ' * 15}\n\nlast"
    lines = fit_lines(text, 40).splitlines()
    assert [lines[0], *lines[-2:]] == ["one", "", "last"]
    assert max(map(len, lines)) <= 40
    assert all(line.startswith("      two") for line in lines[2:-2])
    assert fit_lines(text, None) == text
    assert fit_lines("a\tb", 40) == "a\tb"
