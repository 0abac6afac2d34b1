"""A signer: its command, its Python, its end, and the file that it leaves."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.signing.masking import Masker
from ci.signing.plan import Roots, SignPlan, SignRequest, resolve_signer
from ci.signing.record import Program
from ci.signing.selection import Selection, SigningPolicy
from ci.signing.signer import (
    DROPPED,
    PYTHON_VARIABLE,
    Interpreter,
    Signer,
    find_interpreter,
    find_output,
    parse_signer,
    run_signer,
)
from provisioning.errors import UnfitError
from provisioning.manifest.reader import read_policy
from tests.build.signing import outcome, show
from tests.stand_ins.clocks import expire_when
from tests.stand_ins.snapshots import check_snapshot

SH = shutil.which("sh") or ""
SNAPSHOTS = Path(__file__).with_name("snapshots")
POLICY = read_policy("signing", SigningPolicy)
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


def test_the_signers_python_is_this_one_then_one_on_path_then_one_of_uv(
    put_program: Put, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_uv = put_program("kept", answer("3.8.20")).rename(tmp_path / "python3")
    put_program("uv", "echo error: none; exit 2")
    with pytest.raises(UnfitError) as caught:
        find_interpreter()
    # What its fix says to do is done: another Python is passed, and uv has installed one.
    assert "(`uv python install 3.11`), or pass a Python older than 3.12 with" in caught.value.fix
    assert find_interpreter(str(of_uv)) == Interpreter(of_uv, "3.8.20")
    put_program("uv", f'test "$*" = "python find <3.12" && echo warning && echo {of_uv}')
    assert find_interpreter() == Interpreter(of_uv, "3.8.20")
    put_program("python3.11", "exit 1")  # a shim that leads nowhere
    put_program("python3.9", answer("3.9.1"))
    on_path = put_program("python3.10", answer("3.10.13"))
    assert find_interpreter() == Interpreter(on_path, "3.10.13")
    this = put_program("this", answer("3.11.2"))
    monkeypatch.setattr(sys, "executable", str(this))
    assert find_interpreter() == Interpreter(this, "3.11.2")


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_named_python_for_the_signer_is_never_replaced_by_another(
    put_program: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool
) -> None:
    """Its path is relative to the caller's directory."""
    put_program("python3.11", answer("3.11.1"))
    named = put_program("named", answer("3.10.1")).rename(tmp_path / "named")
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv(PYTHON_VARIABLE, "./named" if by_variable else "./none")
    option = "" if by_variable else "./named"
    assert find_interpreter(option) == Interpreter(named, "3.10.1")
    for body in ("echo probe 3.9.1", "echo probed 3.9.1; exit 1", "exit 1"):
        named.write_text(f"#!/bin/sh\n{body}\n")
        with pytest.raises(UnfitError, match=r"\./named is not a usable Python below 3\.12"):
            find_interpreter(option)


# The command


def make_plan(**request: object) -> SignPlan:
    fields = {"roots": Roots(), "timeout_s": 7.0, **request}
    return SignPlan(SignRequest(Selection(), target=Path("out"), **fields), POLICY, (), ())  # type: ignore[arg-type]


def test_the_sdk_s_signer_runs_in_its_own_python_and_another_as_it_is(
    put_program: Put, tmp_path: Path
) -> None:
    script = tmp_path / POLICY.signer
    script.parent.mkdir(parents=True)
    script.touch()
    python = put_program("mine", answer("3.9.1"))
    plan = make_plan(roots=Roots(hexagon_sdk=tmp_path), signer_python="mine")
    expected = Signer((str(python), str(script)), 7.0, Interpreter(python, "3.9.1"))
    assert resolve_signer(plan) == expected
    plain_signer = Signer((str(python), "-c", "a b"), 7.0)
    assert resolve_signer(make_plan(signer_command=f"{python} -c 'a b'")) == plain_signer


def test_files_of_a_signer_command_are_recorded_as_programs(tmp_path: Path) -> None:
    script = tmp_path / "sign.py"
    script.write_text("")
    signer = Signer((SH, str(script), "--token", "x", "/no/file", "x" * 5000), 1.0)
    assert signer.list_arguments([SH, str(script), "--token", "x", "a"]) == ("--token", "***", "a")
    assert Signer(("sign", "-v"), 1.0).list_arguments(["sign", "-v", "x"]) == ("-v", "x")
    sums = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert [program.path for program in signer.list_programs()] == [SH, str(script)]
    assert signer.list_programs()[1:] == (Program(str(script), sums),)
    python = Interpreter(Path(sys.executable), "3")
    with_python = Signer((sys.executable, str(script)), 1.0, python)
    assert with_python.list_programs() == (Program(str(script), sums),)


# Its end


def run(tmp_path: Path, body: str, timeout_s: float = 60.0) -> str:
    words = ("/bin/sh", "-c", body)
    return run_signer(Signer(words, timeout_s), words, tmp_path, "lib.so", Masker(["secret"]))


def test_output_is_masked_and_questions_are_answered_without_another_python_s_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*DROPPED, "SIGNING_SERVER"):
        monkeypatch.setenv(name, "x")
    names = " ".join(f"${{{name}+{name}}}" for name in (*DROPPED, "SIGNING_SERVER"))
    output = run(tmp_path, f"pwd; read a; read b; echo $a$b secret; echo {names}; env | grep UNB")
    assert output.split() == [str(tmp_path), "yy", "***", "SIGNING_SERVER", "PYTHONUNBUFFERED=1"]


WAITS = "exec sleep 600"
ENDS = {
    "a failure": "echo one; echo a secret; exit 3",
    "a failure without output": "exit 3",
    "a Python without imp": "echo first; echo \"No module named 'imp'\"; exit 1",
    "a question for a password": f"echo one; printf 'Secret password:'; {WAITS}",
    "a question for a key": f"echo 'Which key? '; {WAITS}",
    "a question to overwrite": f"echo 'Overwrite [Y/N]'; {WAITS}",
    "an answered question": f"echo '[y/n] answered'; {WAITS}",
    "work": f"echo a: b; echo at work.; {WAITS}",
}


def test_the_end_of_a_signer_is_explained_and_masked(tmp_path: Path) -> None:
    def end(name: str, body: str) -> str:
        waits = tmp_path / name
        with pytest.MonkeyPatch.context() as patch:
            if body.endswith(WAITS):
                body = body.replace(WAITS, f": >'{waits}'; {WAITS}")
                expire_when(patch, waits.exists)
            text = str(outcome(lambda: run(tmp_path, body)))
        return re.sub(r"after \d+ s", "after N s", text)

    gone = (str(tmp_path / "secret"),)
    errors = {name: end(name, body) for name, body in ENDS.items()}
    errors["a signer that is gone"] = outcome(
        lambda: run_signer(Signer(gone, 1.0), gone, tmp_path, "lib.so", Masker(["secret"]))
    )
    assert "secret" not in str(errors)
    check_snapshot(SNAPSHOTS / "ends.txt", show(errors, {str(tmp_path): "TMP"}))


# What it leaves


SERIAL = "testsig-0xbadcafe.so"
# The signer's area holds ``in``, with its copy, and ``out``: the wanted name and more files.
LEFT: dict[str, tuple[str, dict[str, str]]] = {
    "nothing": ("lib.so", {}),
    "only logs": ("lib.so", {"out/b.log": "", "out/a.log": ""}),
    "another name": ("lib.so", {"out/libb.so": ""}),
    "a link": ("lib.so", {"out/lib.so": "-> in/lib.so"}),
    "a changed input": ("lib.so", {"in/lib.so": "signed"}),
    "another serial": (SERIAL, {"out/testsig-0xbadcaff.so": ""}),
    "two places": (SERIAL, {f"z/{SERIAL}": "", f"y/{SERIAL}": ""}),
    "a link elsewhere": (SERIAL, {f"z/{SERIAL}": "", f"out/{SERIAL}": f"-> z/{SERIAL}"}),
    "a directory": (SERIAL, {f"z/{SERIAL}": "", f"out/{SERIAL}/x": ""}),
    "a signed library": ("lib.so", {"out/lib.so": "signed"}),
    "a serial with a zero": (SERIAL, {"out/testsig-0x0badcafe.so": "", f"z/{SERIAL}": ""}),
    "a serial in capitals": (SERIAL, {"out/testsig-0xBADCAFE.so": ""}),
}


def find(folder: Path, name: str, files: dict[str, str]) -> str:
    for place in ("in", "out"):
        (folder / place).mkdir(parents=True)
    if name == "lib.so":
        (folder / "in/lib.so").write_text("unsigned")
    for place, text in files.items():
        path = folder / place
        path.parent.mkdir(exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(folder / text.removeprefix("-> "))
        else:
            path.write_text(text)
    source = folder / "in" / name
    result = outcome(lambda: find_output(folder, folder / "out", source, b"unsigned", Masker()))
    return str(result).replace(str(folder), "AREA")


def test_the_signers_output_file_is_in_its_directory_with_the_inputs_name(tmp_path: Path) -> None:
    results = {name: find(tmp_path / name, *left) for name, left in LEFT.items()}
    assert [name for name, text in results.items() if text.startswith("AREA/out/")] == [*LEFT][-3:]
    assert not [text for text in results.values() if "badcafe" in text and "AREA/out" not in text]
    check_snapshot(SNAPSHOTS / "outputs.txt", show(results))


def test_an_output_of_more_bytes_than_are_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci.signing.signer.CONTENT_BYTES", 8)
    assert find(tmp_path / "whole", "lib.so", {"out/lib.so": "8 bytes."}).startswith("AREA/out")
    error = find(tmp_path / "long", "lib.so", {"out/lib.so": "9 bytes. "})
    assert "it is longer than 8 bytes" in error


def test_commands_that_cannot_run_say_what_to_do(put_program: Put, tmp_path: Path) -> None:
    put_program("python3.11", "hello").chmod(0o644)
    half = Signer(("sign", "{output}"), 1.0)
    calls: dict[str, Callable[[], object]] = {
        "half a quote": lambda: parse_signer("sh 'a", 1.0),
        "no command": lambda: parse_signer(" ", 1.0),
        "a program that is missing": lambda: parse_signer("/no/signer -x", 1.0),
        "a test signature with {output}": lambda: half.argv(tmp_path, tmp_path, "0x1"),
        "no Hexagon SDK": lambda: resolve_signer(make_plan()),
        "a Hexagon SDK without a signer": lambda: resolve_signer(
            make_plan(roots=Roots(hexagon_sdk=tmp_path))
        ),
        "no Python": find_interpreter,
        "no Python of that name": lambda: find_interpreter("no-such-python"),
    }
    errors = {name: outcome(call) for name, call in calls.items()}
    check_snapshot(SNAPSHOTS / "signer.txt", show(errors, {str(tmp_path): "TMP"}))
