"""A signer: its command, its Python, its end, and the file that it leaves."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.signing.masking import Masker
from ci.signing.plan import Roots, SignPlan, SignRequest, check_target, resolve_signer
from ci.signing.selection import Selection, read_signing_policy
from ci.signing.sign import require_good
from ci.signing.signer import (
    DROPPED,
    PYTHON_VARIABLE,
    Failure,
    Interpreter,
    Signer,
    SignerError,
    _explain_exit,
    find_interpreter,
    find_output,
    is_named,
    parse_signer,
    run_signer,
)
from ci.signing.verdict import Scheme, SignedBy, Verification
from provisioning.console.process import Completed
from provisioning.errors import QnnCiError, UnfitError, UsageError
from tests.stand_ins.snapshots import check_snapshot

SH = shutil.which("sh") or ""
POLICY = read_signing_policy()
Put = Callable[[str, str], Path]


@pytest.fixture
def put_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Put a program of some lines of shell on a PATH that holds no others, without this Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)

    def put(name: str, body: str) -> Path:
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
        return folder / name

    return put


def answer(version: str) -> str:
    """The answer of a Python that has imp, to the probe and to nothing else."""
    return f'test "$1 $2 $3" = "-W ignore -c" && echo probed {version} more'


# The Python of the SDK's signer


def test_this_python_comes_first_and_path_next(
    put_program: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_program("python3.11", "exit 1")  # a shim that leads nowhere
    put_program("python3.9", answer("3.9.1"))
    wanted = put_program("python3.10", answer("3.10.13"))
    assert find_interpreter() == Interpreter(wanted, "3.10.13")
    this = put_program("this", answer("3.11.2"))
    monkeypatch.setattr(sys, "executable", str(this))
    assert find_interpreter() == Interpreter(this, "3.11.2")


def test_uv_is_asked_where_path_has_none(put_program: Put, tmp_path: Path) -> None:
    own = put_program("kept", answer("3.8.20")).rename(tmp_path / "python3")
    put_program("uv", f'test "$*" = "python find <3.12" && echo warning && echo {own}')
    assert find_interpreter() == Interpreter(own, "3.8.20")
    put_program("uv", "echo error: none; exit 2")
    with pytest.raises(UnfitError):
        find_interpreter()


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_named_python_counts_alone(
    put_program: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool
) -> None:
    """Its path is relative to where the caller is; what is not fit is not replaced."""
    put_program("python3.11", answer("3.11.1"))
    named = put_program("named", answer("3.10.1")).rename(tmp_path / "named")
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv(PYTHON_VARIABLE, "./named" if by_variable else "./none")
    given = "" if by_variable else "./named"
    assert find_interpreter(given) == Interpreter(named, "3.10.1")
    for body in ("echo probe 3.9.1", "echo probed 3.9.1; exit 1", "exit 1"):
        named.write_text(f"#!/bin/sh\n{body}\n")
        with pytest.raises(UnfitError) as caught:
            find_interpreter(given)
        assert caught.value.what == "./named is not a usable Python below 3.12"


def test_without_a_python_the_fix_names_the_option(put_program: Put) -> None:
    for body in ("", "hello"):
        put_program("python3.11", body).chmod(0o644 if body else 0o755)
        with pytest.raises(UnfitError) as caught:
            find_interpreter()
        assert caught.value.what == "there is no usable Python below 3.12"
        assert caught.value.why.endswith("imports the module imp, which Python 3.12 removed")
        assert "--signer-python or QNN_CI_SIGNER_PYTHON" in caught.value.fix


# The command


def make_plan(**request: object) -> SignPlan:
    fields = {"roots": Roots(), "timeout_s": 7.0, **request}
    return SignPlan(SignRequest(Selection(), target=Path("out"), **fields), POLICY, (), ())  # type: ignore[arg-type]


def test_the_sdk_s_signer_runs_in_a_python_of_its_own(put_program: Put, tmp_path: Path) -> None:
    script = tmp_path / POLICY.signer
    script.parent.mkdir(parents=True)
    script.touch()
    python = put_program("mine", answer("3.9.1"))
    plan = make_plan(roots=Roots(hexagon_sdk=tmp_path), signer_python="mine")
    expected = Signer((str(python), str(script)), 7.0, Interpreter(python, "3.9.1"))
    assert resolve_signer(plan) == expected


def test_another_signer_is_taken_as_it_is() -> None:
    assert resolve_signer(make_plan(signer_command="sh -c 'a b'")) == Signer((SH, "-c", "a b"), 7.0)


def test_a_signer_that_is_missing_is_named(tmp_path: Path) -> None:
    for roots, why in (
        (Roots(hexagon_sdk=tmp_path), ""),
        (Roots(), "neither --hexagon-sdk nor HEXAGON_SDK_ROOT is set"),
    ):
        with pytest.raises(UnfitError) as caught:
            resolve_signer(make_plan(roots=roots))
        place = roots.hexagon_sdk or Path()
        assert str(place / "tools/elfsigner/elfsigner.py") in caught.value.what
        assert caught.value.why == why


@pytest.mark.parametrize(
    ("command", "kind", "part"),
    [
        ("sh 'a", UsageError, "cannot be parsed"),
        (" ", UsageError, "is empty"),
        ("/no/signer -x", UnfitError, "/no/signer"),
    ],
)
def test_a_command_that_cannot_be_run(command: str, kind: type[Exception], part: str) -> None:
    with pytest.raises(kind, match=part):
        parse_signer(command, 1.0)


def test_places_in_a_command_are_filled() -> None:
    plain = Signer(("sign", "-v"), 1.0)
    placed = Signer(("sign", "--in={input}", "{output}/x", "{input}{input}"), 1.0)
    half = Signer(("sign", "{output}"), 1.0)
    source, output = Path("/a/in"), Path("/a/out")

    assert plain.argv(source, output) == ["sign", "-v", "-i", "/a/in", "-o", "/a/out"]
    assert placed.argv(source, output) == ["sign", "--in=/a/in", "/a/out/x", "/a/in/a/in"]
    assert half.argv(source, output) == ["sign", "/a/out"]
    assert plain.testsig_argv("0x1", output) == ["sign", "-v", "-t", "0x1", "-o", "/a/out"]
    for one in (Signer(("sign", "{input}"), 1.0), half):
        with pytest.raises(UsageError):
            one.testsig_argv("0x1", output)


def test_files_of_a_command_are_programs_and_the_rest_arguments(tmp_path: Path) -> None:
    script = tmp_path / "sign.py"
    script.write_text("")
    signer = Signer((SH, str(script), "--token", "x", "/no/file", "x" * 5000), 1.0)

    assert signer.list_arguments([SH, str(script), "--token", "x", "a"]) == ("--token", "***", "a")
    assert Signer(("sign", "-v"), 1.0).list_arguments(["sign", "-v", "x"]) == ("-v", "x")
    sums = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert [path for path, _ in signer.list_programs()] == [SH, str(script)]
    assert signer.list_programs()[1:] == [(str(script), sums)]
    python = Interpreter(Path(sys.executable), "3")
    known = Signer((sys.executable, str(script)), 1.0, python)
    assert known.list_programs() == [(str(script), sums)]
    assert Signer(("/none/at/all", str(script)), 1.0).list_programs() == [(str(script), sums)]


# Its end


def run(tmp_path: Path, body: str, timeout_s: float = 60.0) -> str:
    words = ("/bin/sh", "-c", body)
    return run_signer(Signer(words, timeout_s), words, tmp_path, "lib.so", Masker(["secret"]))


def test_output_is_masked_and_questions_are_answered(tmp_path: Path) -> None:
    output = run(tmp_path, "pwd; read a; read b; echo $a$b secret; echo $PYTHONUNBUFFERED")
    assert output.splitlines() == [str(tmp_path), "yy ***", "1"]


@pytest.mark.parametrize(
    ("body", "failure", "last"),
    [
        (
            "echo one; echo a secret; exit 3",
            Failure.EXITED,
            "exited with 3 and printed:\none\na ***",
        ),
        ("exit 3", Failure.EXITED, "the signer exited with 3 and printed:\n(nothing)"),
        (
            "echo first; echo \"No module named 'imp'\"; exit 1",
            Failure.WRONG_PYTHON,
            "No module named 'imp'",
        ),
        (
            "echo one; printf 'Secret password:'; exec sleep 60",
            Failure.PROMPT,
            " s the signer was still waiting for an answer to: *** password:",
        ),
        ("echo a: b; echo at work.; exec sleep 60", Failure.HUNG, " s; its last output: at work."),
    ],
)
def test_how_a_signer_fails_is_told(tmp_path: Path, body: str, failure: Failure, last: str) -> None:
    with pytest.raises(SignerError) as caught:
        run(tmp_path, body, 0.5 if "sleep" in body else 60.0)
    assert caught.value.failure is failure
    assert caught.value.what == f"lib.so: {failure.value}"
    assert caught.value.why.endswith(last)


def test_a_signer_that_cannot_be_started_is_masked(tmp_path: Path) -> None:
    words = (str(tmp_path / "secret"),)
    with pytest.raises(SignerError) as caught:
        run_signer(Signer(words, 1.0), words, tmp_path, "lib.so", Masker(["secret"]))
    assert caught.value.failure is Failure.EXITED
    assert "***" in caught.value.why
    assert "secret" not in caught.value.why


def test_a_signer_gets_our_environment_without_another_python_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*DROPPED, "SIGNING_SERVER"):
        monkeypatch.setenv(name, "x")
    names = " ".join(f"${{{name}+{name}}}" for name in (*DROPPED, "SIGNING_SERVER"))
    assert run(tmp_path, f"echo {names}").split() == ["SIGNING_SERVER"]


# What it leaves


@pytest.mark.parametrize(
    ("name", "wanted", "same"),
    [
        ("lib.so", "lib.so", True),
        ("lib.so", "libb.so", False),
        ("testsig-0x00adcafe.so", "testsig-0xadcafe.so", True),
        ("testsig-0xADCAFE.so", "testsig-0xadcafe.so", True),
        ("testsig-0xadcaff.so", "testsig-0xadcafe.so", False),
        ("lib.so", "testsig-0xadcafe.so", False),
        ("testsig-0xadcafe.so", "lib.so", False),
    ],
)
def test_name_of_an_output(name: str, wanted: str, same: bool) -> None:
    assert is_named(name, wanted) is same


SERIAL = "testsig-0xbadcafe.so"
NOTHING = "the signer exited with status 0, but its output directory contains {}"
ELSEWHERE = "the signer wrote {} instead of a file in out/"


@pytest.mark.parametrize(
    ("name", "files", "failure", "why"),
    [
        ("lib.so", {}, Failure.NO_OUTPUT, NOTHING.format("nothing")),
        (
            "lib.so",
            {"out/b.log": "", "out/a.log": ""},
            Failure.NO_OUTPUT,
            NOTHING.format("a.log, b.log"),
        ),
        ("lib.so", {"out/lib.so": "-> in/lib.so"}, Failure.NO_OUTPUT, NOTHING.format("lib.so")),
        ("lib.so", {"in/lib.so": "signed"}, Failure.ELSEWHERE, ELSEWHERE.format("in/lib.so")),
        (
            SERIAL,
            {f"z/{SERIAL}": "", f"y/{SERIAL}": ""},
            Failure.ELSEWHERE,
            ELSEWHERE.format("y/testsig-***.so, z/testsig-***.so"),
        ),
        (
            SERIAL,
            {f"z/{SERIAL}": "", f"out/{SERIAL}": f"-> z/{SERIAL}"},
            Failure.ELSEWHERE,
            ELSEWHERE.format("z/testsig-***.so"),
        ),
        (
            SERIAL,
            {f"z/{SERIAL}": "", f"out/{SERIAL}/x": ""},
            Failure.ELSEWHERE,
            ELSEWHERE.format("z/testsig-***.so"),
        ),
        ("lib.so", {"out/lib.so": "signed"}, None, "out/lib.so"),
        (
            SERIAL,
            {"out/testsig-0x0badcafe.so": "", f"z/{SERIAL}": ""},
            None,
            "out/testsig-0x0badcafe.so",
        ),
    ],
)
def test_where_the_output_is(
    tmp_path: Path, name: str, files: dict[str, str], failure: Failure | None, why: str
) -> None:
    """The signer's area holds ``in``, with its copy, and ``out``; a serial is not shown."""
    for folder in ("in", "out"):
        (tmp_path / folder).mkdir()
    if name == "lib.so":
        (tmp_path / "in/lib.so").write_text("unsigned")
    for place, text in files.items():
        path = tmp_path / place
        path.parent.mkdir(exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(tmp_path / text.removeprefix("-> "))
        else:
            path.write_text(text)

    def find() -> Path:
        source = tmp_path / "in" / name
        return find_output(tmp_path, tmp_path / "out", source, b"unsigned", Masker())

    if failure is None:
        assert find() == tmp_path / why
        return
    with pytest.raises(SignerError) as caught:
        find()
    assert (caught.value.failure, caught.value.why) == (failure, why)
    assert "badcafe" not in str(caught.value)


def end(output: str, *, timed_out: bool = False) -> Completed:
    return Completed(("sign",), 1, output, 1.0, "did not end within 1 s" * timed_out)


def test_every_failure_of_a_signer_says_what_why_and_what_to_do(tmp_path: Path) -> None:
    def judge(*, accept: bool = True, **fields: bool) -> Callable[[], object]:
        report = Verification(1, **fields)  # type: ignore[arg-type]
        if not accept:
            report.notes.append("no scheme is published for its key")
            report.signers.append(SignedBy("OEM", (), Scheme.UNKNOWN, 384))
        return lambda: require_good(report, "lib.so", accept=accept)

    def explain(one: Completed) -> Callable[[], object]:
        return lambda: raise_error(_explain_exit(one, "lib.so", Masker([])))

    (tmp_path / "sdk/lib").mkdir(parents=True)
    (tmp_path / "found.so").touch()
    gone = (str(tmp_path / "gone"),)
    half = Signer(("sign", "{output}"), 1.0)
    calls: dict[str, Callable[[], object]] = {
        "a test signature": lambda: half.testsig_argv("0x1", tmp_path),
        "a signer that is gone": lambda: run_signer(
            Signer(gone, 1.0), gone, tmp_path, "lib.so", Masker([])
        ),
        "a question": explain(end("one\nPassword:", timed_out=True)),
        "nothing happens": explain(end("one\nat work.", timed_out=True)),
        "another Python": explain(end("one\nNo module named 'imp'")),
        "a failure": explain(end("one\ntwo")),
        "an unsigned output": judge(),
        "an encrypted output": judge(signed=True, encrypted=True),
        "an unknown key": judge(accept=False, signed=True),
        "no output": lambda: find_output(
            tmp_path, tmp_path / "out", tmp_path / "in/lib.so", b"", Masker([])
        ),
        "an output in the wrong place": lambda: find_output(
            tmp_path, tmp_path / "out", tmp_path / "in/found.so", b"", Masker([])
        ),
        "no Python of that name": lambda: find_interpreter("no-such-python"),
        "an output in the SDK": lambda: check_target(
            tmp_path / "sdk/lib", force=True, protected=iter([tmp_path / "sdk"])
        ),
    }
    shown = ""
    for name, call in calls.items():
        with pytest.raises(QnnCiError) as caught:
            call()
        shown += f"{name}\n  {type(caught.value).__name__} {caught.value}\n"
    shown = shown.replace(str(tmp_path), "TMP")
    check_snapshot(Path(__file__).with_name("snapshots") / "signer.txt", shown)


def raise_error(error: QnnCiError) -> None:
    raise error


@pytest.mark.parametrize(
    ("last", "failure"),
    [
        *((last, Failure.PROMPT) for last in ("Overwrite [Y/N]", "Sure [y/n] ", "Password:")),
        *((last, Failure.PROMPT) for last in ("Which key?", "Which key? ")),
        *((last, Failure.HUNG) for last in ("at work.", "[y/n] answered")),
    ],
)
def test_a_signer_that_waits_for_an_answer_is_told_from_one_that_works(
    last: str, failure: Failure
) -> None:
    error = _explain_exit(end(f"one\n{last}", timed_out=True), "lib.so", Masker([]))
    assert error.failure is failure
