"""What the console tells a user, word by word: of every exception, and of what it refuses."""

from __future__ import annotations

import errno
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning import documents
from provisioning.console import clock, command, git, process
from provisioning.console.caller import Caller
from provisioning.console.clock import read_clock
from provisioning.console.command import Verb
from provisioning.console.installation import CHECKOUT
from provisioning.console.interrupts import CLEANUP_S, Interrupt
from provisioning.console.terminal import count_columns, write_output
from provisioning.errors import (
    ExitCode,
    MissingToolError,
    QnnCiError,
    StoreError,
    ToolError,
    UsageError,
)
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOT = Path(__file__).with_name("snapshots") / "messages.txt"
VERBS = {"verify": Verb("provisioning.verbs.verify", "look again"), "gc": Verb("x", "remove")}
EXCEPTIONS = (
    RuntimeError("Symlink loop from 'x'"),
    RuntimeError("other"),
    MemoryError(),
    OSError(errno.ENOENT, "No usable directory"),
    OSError(errno.ENAMETOOLONG, "File name too long", "/there"),
    OSError(errno.ENOSPC, "No space left", "/there"),
    OSError(errno.ENOSPC, "No space left anywhere"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENFILE, "Too many open files", "/there"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    OSError(errno.EPERM, "Operation not permitted"),
    OSError(errno.EBADF, "Bad file descriptor", "/there"),
    ModuleNotFoundError("no", name="torch"),
    ModuleNotFoundError("no", name="onnx"),
    ImportError("it does not load", name="torch.lib"),
    ImportError("it does not load"),
    ModuleNotFoundError("no", name="ci.gone"),
)


def raise_wide() -> None:
    raise OverflowError("timestamp out of range")


def write_to_full_disk() -> None:
    with pytest.MonkeyPatch.context() as patch, open("/dev/full", "w") as full:  # noqa: PTH123
        patch.setattr(sys, "stdout", full)
        write_output("text")


def refuse(place: Path) -> dict[str, Callable[[], object]]:
    (place / "file").write_bytes(b"12345")
    (place / "file").chmod(0o755)
    caller = Caller("qnn-ci")
    run, parser = process.run_process, command.make_parser(caller, VERBS, "verify")
    return {
        "epoch": lambda: clock.read_clock({"SOURCE_DATE_EPOCH": "yesterday"}),
        "option": lambda: parser.parse_args(["--jso"]),
        "empty option": lambda: command.user_path(""),
        "unknown home": lambda: command.user_path("~no-such-user-at-all/x"),
        "no verb": lambda: command._run_verb(caller, VERBS, "", []),
        "near verb": lambda: command._run_verb(caller, VERBS, "", ["verifi"]),
        "far verb": lambda: command._run_verb(caller, VERBS, "", ["zzzz"]),
        "exit": lambda: run(["sh", "-c", "exit 3"], fix="do this"),
        "lines": lambda: run(["sh", "-c", "echo a; echo b; exit 3"]),
        "signal": lambda: run(["sh", "-c", "kill -9 $$"]),
        "time": lambda: run(["sleep", "60"], timeout_s=0.01),
        "no program": lambda: run(["no-such-program"]),
        "no program, with a fix": lambda: run(["no-such-program"], fix="do this"),
        "no directory": lambda: run(["true"], cwd=place / "gone"),
        "bytes exit": lambda: process.run_bytes(["sh", "-c", "exit 3"]),
        "bytes stderr": lambda: process.run_bytes(["sh", "-c", "echo a >&2; exit 3"]),
        "bytes time": lambda: process.run_bytes(["sleep", "60"], timeout_s=0.01),
        "bytes no program": lambda: process.run_bytes(["no-such-program"]),
        "submodules": lambda: git.parse_submodules("[submodule"),
        "directory": lambda: documents.read_user_file(place, "the file"),
        "device": lambda: documents.read_user_file(Path("/dev/null"), "the file"),
        "gone": lambda: documents.read_user_file(place / "gone", "the file"),
        "large": lambda: documents.read_user_file(place / "file", "the file", 4),
        "full": write_to_full_disk,
    }


def show(error: QnnCiError) -> str:
    return f"{type(error).__name__} {error.exit_code:d} {error}"


def test_every_message_says_what_why_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.tempfile, "tempdir", str(tmp_path))
    shown = {
        f"{error!r} {getattr(error, 'name', None) or ''}".strip(): show(
            command.explain_exception(error)
        )
        for error in EXCEPTIONS
    }
    for name, call in refuse(tmp_path).items():
        with pytest.raises(QnnCiError) as caught:
            call()
        shown[name] = show(caught.value)
    text = "".join(f"{name}\n  {message}\n" for name, message in shown.items())
    for left in tmp_path.glob("qnn-ci-error-*"):
        assert left.suffix == ".txt"
        text = text.replace(left.name, "qnn-ci-error-X.txt")
    text = (
        text.replace(str(tmp_path), "TMP")
        .replace(sys.executable, "PYTHON")
        .replace("PYTHON -m pip", "pip")  # if its pip is not the first one on PATH
        .replace(str(CHECKOUT), "CHECKOUT")
    )
    text = re.sub(r"\d+ (?=MiB are free)", "N ", text)
    text = re.sub(r"(?<=did not end within )\d+ s", "N s", text)
    text = re.sub(r"(?<=fatal: ).*config.*", "what git says", text)
    text = re.sub(r"(?<=why: ).*determine home directory.*", "what Python says", text)
    check_snapshot(SNAPSHOT, text)


def test_a_traceback_is_kept_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.tempfile, "tempdir", str(tmp_path))
    try:
        raise_wide()
    except OverflowError as error:
        kept = Path(command.keep_traceback(error))
    assert "in raise_wide\n" in kept.read_text("utf-8")
    monkeypatch.setattr(command.tempfile, "tempdir", str(tmp_path / "gone"))
    assert "TMPDIR" in command.keep_traceback(ValueError())


def test_the_day_is_that_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert clock.read_date() == "1970-01-02"


def test_help_shows_where_options_go() -> None:
    sessions = {"verify": "validate", "gc": ""}
    parser = command.make_parser(Caller("qnn-ci", sessions, ("verify",), "./nox"), VERBS, "verify")
    assert parser.prog == "./nox -s validate --"
    assert "print only the result, as JSON" in parser.format_help()


def test_a_first_signal_interrupts_soon_after_the_machine_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("provisioning.console.interrupts.time.monotonic", lambda: CLEANUP_S / 2)
    with pytest.raises(KeyboardInterrupt):
        Interrupt()()


def test_a_stream_without_a_terminal_has_no_width() -> None:
    class Gone(io.StringIO):
        def isatty(self) -> bool:
            raise OSError(errno.EIO, "Input/output error")

    closed = io.StringIO()
    closed.close()
    assert count_columns(Gone()) is None
    assert count_columns(closed) is None
    assert count_columns(io.StringIO()) is None


def test_a_program_gets_the_variables_and_the_directory_that_it_is_given(tmp_path: Path) -> None:
    lines: list[str] = []
    done = process.run_process(
        ["/bin/sh", "-c", "pwd; echo $QNN_CI_X; echo err >&2; printf '\\377'; cat"],
        env={"QNN_CI_X": "y"},
        cwd=tmp_path,
        on_line=lines.append,
    )
    assert lines == [str(tmp_path), "y", "err", "\N{REPLACEMENT CHARACTER}"]
    assert done.argv[0] == "/bin/sh"
    assert process.run_bytes(["/bin/sh", "-c", "echo $QNN_CI_X$HOME"], env={"QNN_CI_X": "y"}) == (
        b"y\n"
    )


def test_what_ends_an_interrupted_program_cannot_be_changed_by_another_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes = [ExitCode.INTERRUPTED, ExitCode.FAILED, ExitCode.OK]
    ignored: list[bool] = []

    def write(text: str) -> None:
        if not codes:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "catch_signals", lambda: None)
    monkeypatch.setattr(command, "ignore_signals", lambda: ignored.append(True))

    def run(program: str, verbs: object, argv: object, *rest: object) -> tuple[int, str]:
        assert (program, verbs, argv) == ("p", VERBS, [])
        return codes.pop(0), ""

    monkeypatch.setattr(command, "run_command", run)
    monkeypatch.setattr(command, "write_output", write)
    assert command.run_program("p", VERBS, []) == ExitCode.INTERRUPTED
    assert ignored == [True]
    assert command.run_program("p", VERBS, []) == ExitCode.FAILED
    assert ignored == [True]
    assert command.run_program("p", VERBS, []) == ExitCode.INTERRUPTED


def test_output_that_cannot_be_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(text: str) -> None:
        assert text == "a table"
        raise StoreError("stdout cannot be written")

    monkeypatch.setattr(command, "catch_signals", lambda: None)
    monkeypatch.setattr(command, "run_command", lambda *_: (0, "a table"))
    monkeypatch.setattr(command, "write_output", fail)
    assert command.run_program("p", VERBS, []) == StoreError.exit_code
    assert capsys.readouterr().err == "p: stdout cannot be written\n"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exited with 0"),
        (3, "exited with 3"),
        (-11, "was killed by SIGSEGV"),
        (-99, "was killed by signal 99"),
    ],
)
def test_the_end_of_a_program_in_words(code: int, text: str) -> None:
    assert process.describe_exit(code) == text


def test_a_missing_git_is_not_blamed_on_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise MissingToolError("git is not installed")

    monkeypatch.setattr(git, "ask_git", fail)
    with pytest.raises(MissingToolError):
        git.parse_submodules("[submodule")
    assert git.parse_submodules(" \n") == ()


def test_what_ends_well_after_its_time_has_failed() -> None:
    words = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done"]
    with pytest.raises(ToolError, match="did not end within"):
        process.run_process(words, timeout_s=0.4)


def test_the_last_line_of_what_failed_is_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_CAUSE_FILE", str(tmp_path / "cause"))
    outcome = command.Outcome("one\ntwo\n\n", exit_code=1)
    monkeypatch.setattr(command, "_run_verb", lambda *_: outcome)
    assert command.run_command("p", VERBS, ["verify"]) == (1, "one\ntwo\n\n")
    assert (tmp_path / "cause").read_text("utf-8") == "two"


def test_a_line_keeps_its_spaces_and_a_path_its_line_breaks(tmp_path: Path) -> None:
    lines: list[str] = []
    process.run_process(["printf", "a  \\n b\\t\\n"], on_line=lines.append)
    assert lines == ["a  ", " b\t"]
    assert git.parse_submodules('[submodule "a"]\n\tpath = "x\\ny"\n') == ("x\ny",)
    (tmp_path / "objects").mkdir()
    assert not git.is_git_directory(tmp_path)
    (tmp_path / "HEAD").touch()
    assert git.is_git_directory(tmp_path)
    (tmp_path / "objects").rmdir()
    assert not git.is_git_directory(tmp_path)


def test_the_clock_is_that_of_utc() -> None:
    moment, _ = clock.read_clock({})
    assert str(moment.tzinfo) == "UTC"


@pytest.mark.parametrize("environ", [{}, {"SOURCE_DATE_EPOCH": ""}])
def test_the_clock_tells_the_time(environ: dict[str, str]) -> None:
    moment, source = read_clock(environ)
    assert (source, moment.microsecond) == ("clock", 0)
    assert moment.year > 2024


@pytest.mark.parametrize("text", ["x", "1.5", "1" * 15, "9" * 30])
def test_what_is_no_time_is_a_mistake_of_the_user(text: str) -> None:
    with pytest.raises(UsageError, match=f"SOURCE_DATE_EPOCH is '{text}'"):
        read_clock({"SOURCE_DATE_EPOCH": text})


def test_source_date_epoch_stands_in_for_the_clock() -> None:
    moment, source = read_clock({"SOURCE_DATE_EPOCH": "0"})
    assert (moment.isoformat(), source) == ("1970-01-01T00:00:00+00:00", "SOURCE_DATE_EPOCH")
