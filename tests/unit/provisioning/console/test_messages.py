"""What the console tells a user, word by word: of every exception, and of what it refuses."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning import documents
from provisioning.console import command, git, process
from provisioning.console.caller import CHECKOUT, Caller, read_clock, read_date
from provisioning.console.command import Verb
from provisioning.console.terminal import write_output
from provisioning.errors import QnnCiError, ToolError
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
# The jobs for which `qnn-ci help JOB` lists verbs.
JOBS = (command.VerbGroup("devices", "apps and devices", {}),)


def write_to_full_disk() -> None:
    with pytest.MonkeyPatch.context() as patch, open("/dev/full", "w") as full:  # noqa: PTH123
        patch.setattr(sys, "stdout", full)
        write_output("text")


def refuse(place: Path) -> dict[str, Callable[[], object]]:
    (place / "file").write_bytes(b"12345")
    (place / "file").chmod(0o755)
    caller = Caller("qnn-ci")
    run, parser = process.run_process, command.make_parser(caller, VERBS, "verify")
    models = command.Parser(prog="qnn-ci judge")
    models.add_argument("--model")
    socs = command.Parser(prog="qnn-ci test-litert")
    socs.add_argument("--soc")
    return {
        "epoch": lambda: read_clock({"SOURCE_DATE_EPOCH": "yesterday"}),
        "option": lambda: parser.parse_args(["--jso"]),
        "option of another verb": lambda: socs.parse_args(["--sdk", "/opt/qairt"]),
        "similar option of another verb": lambda: socs.parse_args(["--source", "."]),
        "option without its name": lambda: models.parse_args(["net.py:make"]),
        "empty option": lambda: command.user_path(""),
        "unknown home": lambda: command.user_path("~no-such-user-at-all/x"),
        "no verb": lambda: command._run_verb(caller, VERBS, "", []),
        "near verb": lambda: command._run_verb(caller, VERBS, "", ["verifi"]),
        "far verb": lambda: command._run_verb(caller, VERBS, "", ["zzzz"]),
        "near job": lambda: command._run_verb(caller, VERBS, "", ["devics", "--help"], JOBS),
        "job without help": lambda: command._run_verb(caller, VERBS, "", ["devices"], JOBS),
        "exit": lambda: run(["sh", "-c", "exit 3"], fix="do this"),
        "lines": lambda: run(["sh", "-c", "echo a; echo b; exit 3"]),
        "signal": lambda: run(["sh", "-c", "kill -9 $$"]),
        "time": lambda: run(["sleep", "60"], timeout_s=0.01),
        "no program": lambda: run(["no-such-program"]),
        "no program, with a fix": lambda: run(["no-such-program"], fix="do this"),
        "no directory": lambda: run(["true"], cwd=place / "gone"),
        "bytes exit": lambda: process.run_streams(["sh", "-c", "exit 3"]).require(),
        "bytes stderr": lambda: process.run_streams(["sh", "-c", "echo a >&2; exit 3"]).require(),
        "bytes signal": lambda: process.run_streams(["sh", "-c", "kill -9 $$"]).require(),
        "bytes time": lambda: process.run_streams(["sleep", "60"], timeout_s=0.01).require(),
        "bytes no program": lambda: process.run_streams(["no-such-program"]).require(),
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
    # If a user may not search a directory of PATH, a missing program is "Permission denied".
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
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
    assert (
        process.run_streams(["/bin/sh", "-c", "echo $QNN_CI_X$HOME"], env={"QNN_CI_X": "y"}).stdout
        == b"y\n"
    )


def test_a_process_that_exits_with_0_after_its_time_limit_has_failed() -> None:
    words = ["sh", "-c", "trap 'exit 0' TERM; sleep 600 & wait"]
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


def test_source_date_epoch_replaces_the_current_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert read_date() == "1970-01-02"
    moment, source = read_clock({"SOURCE_DATE_EPOCH": "0"})
    assert (moment.isoformat(), source) == ("1970-01-01T00:00:00+00:00", "SOURCE_DATE_EPOCH")
