"""What a user reads, word for word: refusals, a signer's end, a verification."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.signing import interpreter
from ci.signing.device import SERIAL_FILE, parse_serial, read_device_serial
from ci.signing.inputs import explain_file
from ci.signing.masking import Masker
from ci.signing.plan import (
    SignPlan,
    SignRequest,
    find_hexagon_version,
    find_script,
    make_plan,
    resolve_signer,
)
from ci.signing.policy import read_signing_policy
from ci.signing.proof.verdict import Kind, Verdict, Verification
from ci.signing.proof.verify import verify_bytes
from ci.signing.render import render_report, render_reports
from ci.signing.roots import Roots
from ci.signing.selection import Selection, check_selection, list_wanted
from ci.signing.sign import require_good
from ci.signing.signer import Failure, Signer, SignerError, find_output, parse_signer, run_signer
from provisioning.console.progress import Progress
from provisioning.errors import QnnCiError, UnfitError, UsageError
from tests.stand_ins.dsp_toolchains import LIBRARY, make_inputs, make_library
from tests.stand_ins.elfsigner.mbn_writer import Key, sign_elf

POLICY = read_signing_policy()
SH = shutil.which("sh") or ""


def refused(kind: type[QnnCiError], work: Callable[[], object]) -> tuple[str, str, str]:
    with pytest.raises(kind) as caught:
        work()
    return caught.value.what, caught.value.why, caught.value.fix


# Serials


@pytest.mark.parametrize(
    ("text", "serial"),
    [
        ("1", "0x1"),
        ("10", "0xa"),
        (" 0X0badcafe\n", "0xbadcafe"),
        ("0xffffffff", "0xffffffff"),
        ("4294967295", "0xffffffff"),
    ],
)
def test_a_serial_is_hexadecimal_or_decimal(text: str, serial: str) -> None:
    assert parse_serial(text) == serial


@pytest.mark.parametrize("text", ["0", "-1", "0x100000000", "4294967296"])
def test_a_serial_fits_in_32_bits(text: str) -> None:
    assert refused(UsageError, lambda: parse_serial(text)) == (
        "the serial number does not fit in 32 bits",
        "the signer accepts nothing else",
        "",
    )


@pytest.mark.parametrize("text", ["", "beef", "0xbeeg", "1.0"])
def test_a_serial_is_a_number(text: str) -> None:
    assert refused(UsageError, lambda: parse_serial(text)) == (
        "the serial number is not a number",
        "",
        "0x and up to eight hexadecimal digits",
    )


@pytest.fixture
def adb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put an adb on PATH that runs some lines of shell."""

    def put(body: str) -> None:
        (tmp_path / "adb").write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "adb").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return put


@pytest.mark.parametrize("said", ["12", "* daemon started\n  0x0C  \n"])
def test_a_device_s_serial_is_the_line_that_is_a_number(
    adb: Callable[[str], None], said: str
) -> None:
    adb(f"printf '{said}'")
    assert read_device_serial() == "0xc"


def test_the_device_is_asked_by_its_name(adb: Callable[[str], None]) -> None:
    wanted = f"shell cat {SERIAL_FILE}"
    adb(f'case "$*" in "{wanted}") echo 1 ;; "-s one {wanted}") echo 2 ;; esac')
    assert (read_device_serial(), read_device_serial("one")) == ("0x1", "0x2")


def test_a_device_that_does_not_say_its_serial(
    adb: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    adb("echo 1 serial")
    assert refused(UnfitError, read_device_serial) == (
        "/sys/devices/soc0/serial_number of the device holds no number",
        "",
        "",
    )
    adb("echo no devices found >&2; exit 1")
    what, why, fix = refused(UnfitError, read_device_serial)
    assert what == "the device's serial number cannot be read"
    assert "no devices found" in why
    assert fix == "connect one device, or name it with --device; reading needs adb root on some"
    monkeypatch.setenv("PATH", "/none")
    assert refused(UnfitError, read_device_serial) == (
        "adb is not on PATH",
        "",
        "install platform-tools, or give the serial",
    )


# What is selected


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (
            Selection(direct_mode=True, htp_arch="v81"),
            (
                "nothing is selected to be signed",
                "",
                "give --lpai-arch v6, --op-package-dir DIR or files",
            ),
        ),
        (
            Selection(lpai_arch="v5"),
            ("LPAI architecture 'v5' is not supported", "ExecuTorch supports LPAI hardware v6", ""),
        ),
        (
            Selection(lpai_arch="v6", direct_mode=True),
            ("--direct-mode needs --lpai-arch and --htp-arch", "", ""),
        ),
        (
            Selection(files=(Path("a"),), direct_mode=True, htp_arch="v81"),
            ("--direct-mode needs --lpai-arch and --htp-arch", "", ""),
        ),
        (
            Selection(lpai_arch="v6", htp_arch="v80"),
            (
                "no Hexagon architecture 'v80'",
                "",
                "one of: v68, v69, v73, v75, v79, v81, v85, v89",
            ),
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(
    selection: Selection, expected: tuple[str, str, str]
) -> None:
    assert refused(UsageError, lambda: check_selection(selection, POLICY)) == expected


@pytest.mark.parametrize(
    "selection",
    [
        Selection(lpai_arch="v6"),
        Selection(files=(Path("a"),)),
        Selection(op_package=Path("a")),
        Selection(lpai_arch="v6", htp_arch="v81"),
        Selection(lpai_arch="v6", htp_arch="v81", direct_mode=True),
    ],
)
def test_what_can_be_meant_is_not(selection: Selection) -> None:
    check_selection(selection, POLICY)


def test_two_libraries_of_one_name_are_named(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a/x.so", "b/y.so", "c/x.so", "d/z.so", "e/y.so")]
    for path in files:
        make_library(path, 0x79)

    assert refused(UsageError, lambda: list_wanted(Selection(files=tuple(files)), POLICY, {})) == (
        "two libraries to sign have the same name: x.so, y.so",
        "; ".join(str(path) for path in files if path.name != "z.so"),
        "sign them into directories of their own",
    )
    assert [one.name for one in list_wanted(Selection(files=tuple(files[1:4])), POLICY, {})] == [
        "y.so",
        "x.so",
        "z.so",
    ]


def test_missing_libraries_are_named_by_what_would_hold_them(tmp_path: Path) -> None:
    roots = {"qnn_sdk": None, "hexagon_tools": tmp_path, "build": tmp_path}
    selection = Selection(
        lpai_arch="v6", htp_arch="v81", direct_mode=True, op_package=tmp_path / "op"
    )

    what, why, fix = refused(UnfitError, lambda: list_wanted(selection, POLICY, roots))
    assert what == "7 of the libraries to sign are missing"
    lines = why.split("\n       ")
    assert lines[0] == (
        "lib/lpai-v6/unsigned/libQnnLpai.so of the QNN SDK (--qnn-sdk or QNN_SDK_ROOT is not set)"
    )
    assert lines[2] == f"{tmp_path}/Tools/target/hexagon/lib/v81/G0/pic/libc++abi.so.1"
    assert lines[6] == f"{tmp_path}/op (no .so file of an op package)"
    assert fix == (
        "provision them (`qnn-ci fetch lpai`) or set the roots named above; build what is not "
        "built (`qnn-ci build direct`) and name it with --build-dir"
    )


def test_a_build_that_is_not_named_is_said(tmp_path: Path) -> None:
    roots = {"qnn_sdk": tmp_path, "hexagon_tools": tmp_path, "build": None}
    selection = Selection(lpai_arch="v6", htp_arch="v81", direct_mode=True)

    _, why, _ = refused(UnfitError, lambda: list_wanted(selection, POLICY, roots))
    assert why.endswith("{build}/backends/qualcomm/libqnn_executorch_backend.so")


def test_libraries_are_labelled_by_their_roots(tmp_path: Path) -> None:
    found = make_inputs(tmp_path)
    moved = found["build"] / "other/libqnn_executorch_skel.so"
    moved.parent.mkdir()
    (found["build"] / "backends/qualcomm/qnn_executorch/direct_mode" / moved.name).rename(moved)
    roots = {"qnn_sdk": found["qnn"], "hexagon_tools": found["tools"], "build": found["build"]}
    selection = Selection(
        lpai_arch="v6",
        htp_arch="v81",
        direct_mode=True,
        op_package=found["package"],
        files=(LIBRARY,),
    )

    wanted = list_wanted(selection, POLICY, roots)
    pic = "Tools/target/hexagon/lib/v81/G0/pic"
    assert [(one.label, one.hexagon) for one in wanted] == [
        ("{qnn_sdk}/lib/lpai-v6/unsigned/libQnnLpai.so", ""),
        ("{qnn_sdk}/lib/hexagon-v81/unsigned/libQnnSystem.so", "v81"),
        (f"{{hexagon_tools}}/{pic}/libc++abi.so.1", "v81"),
        (f"{{hexagon_tools}}/{pic}/libc++.so.1", "v81"),
        ("{build}/other/libqnn_executorch_skel.so", "v81"),
        ("{build}/backends/qualcomm/libqnn_executorch_backend.so", "v81"),
        (LIBRARY.as_posix(), ""),
        ("{op_package}/libs/hexagon-v79/libLpaiOpPackageIsland.so", "v79"),
        ("{op_package}/libs/hexagon-v79/libQnnExampleLpaiOpPackage.so", "v79"),
    ]
    assert wanted[4].path == moved


# The plan and its signer


def request(tmp_path: Path, **more: Any) -> SignRequest:
    values: dict[str, Any] = {
        "selection": Selection(files=(LIBRARY,)),
        "roots": Roots(),
        "target": tmp_path / "out",
    }
    return SignRequest(**{**values, **more})


def test_a_plan_of_everything(tmp_path: Path) -> None:
    found = make_inputs(tmp_path)
    roots = Roots(
        qnn_sdk=found["qnn"],
        hexagon_sdk=tmp_path / "6.0.0.2",
        hexagon_tools=found["tools"],
        build=found["build"],
    )
    selection = Selection(lpai_arch="v6", htp_arch="v81", direct_mode=True)

    asked = request(tmp_path, selection=selection, roots=roots)
    plan = make_plan(asked)
    assert (plan.request, plan.policy) == (asked, POLICY)
    assert [one.wanted.name for one in plan.inputs] == [
        "libQnnLpai.so",
        "libQnnSystem.so",
        "libc++abi.so.1",
        "libc++.so.1",
        "libqnn_executorch_skel.so",
        "libqnn_executorch_backend.so",
    ]
    assert [note.partition(":")[0] for note in plan.notes] == [
        "Hexagon SDK 6.0.0.2",
        *(
            f"{name} is Hexagon V81, libQnnLpai.so V79"
            for name in (
                "libQnnSystem.so",
                "libc++abi.so.1",
                "libc++.so.1",
                "libqnn_executorch_skel.so",
                "libqnn_executorch_backend.so",
            )
        ),
    ]


@pytest.mark.parametrize("timeout_s", [0, -1])
def test_a_limit_of_no_time_is_refused(tmp_path: Path, timeout_s: float) -> None:
    asked = request(tmp_path, timeout_s=timeout_s)
    assert (
        refused(UsageError, lambda: make_plan(asked))[0] == "--timeout is not more than 0 seconds"
    )
    make_plan(request(tmp_path, timeout_s=0.1))


def test_a_plan_is_refused_by_each_of_its_checks(tmp_path: Path) -> None:
    old, sdk = tmp_path / "old", tmp_path / "sdk"
    for root in (old, sdk):
        root.mkdir()
    (old / "sdk.yaml").write_text("version: 2.37.0\n")
    (tmp_path / "there").mkdir()

    def what(**more: Any) -> str:
        return refused(QnnCiError, lambda: make_plan(request(tmp_path, **more)))[0]  # type: ignore[arg-type]

    assert what(selection=Selection()) == "nothing is selected to be signed"
    assert (
        what(selection=Selection(direct_mode=True), serial="0x1")
        == "nothing is selected to be signed"
    )
    assert what(target=tmp_path / "there") == f"{tmp_path}/there exists and is kept"
    for root in ("qnn_sdk", "hexagon_sdk", "hexagon_tools"):
        said = what(target=sdk / "out", force=True, roots=Roots(**{root: sdk}))
        assert said == f"{sdk}/out lies in {sdk}, or holds it"
    said = what(selection=Selection(lpai_arch="v6"), roots=Roots(qnn_sdk=old))
    assert said == "QNN SDK 2.37.0 cannot be used for LPAI libraries"
    said = what(selection=Selection(op_package=tmp_path), roots=Roots(qnn_sdk=old))
    assert said == "QNN SDK 2.37.0 cannot be used for LPAI op packages"
    make_plan(request(tmp_path, target=tmp_path / "there", force=True, roots=Roots(build=tmp_path)))
    assert make_plan(request(tmp_path, selection=Selection(), serial="0x1")).inputs == ()


def test_libraries_that_cannot_be_signed_are_listed(
    tmp_path: Path, key: Key, library: bytes
) -> None:
    folder = tmp_path / "hexagon-v75" / "unsigned"
    make_library(folder / "a.so", 0x79)
    make_library(folder / "b.so", 0x75, "v2.48.40.260810104044")
    (folder / "c.so").write_bytes(sign_elf(library[:36] + b"\x75" + library[37:], key))
    (folder / "d.so").write_bytes(library[:18] + b"\x3e" + library[19:])
    (folder / "e.so").write_bytes(library[:18] + b"\x07" + library[19:])
    files = tuple(sorted(folder.iterdir()))

    what, why, fix = refused(
        UnfitError, lambda: make_plan(request(tmp_path, selection=Selection(files=files)))
    )
    assert what == "the libraries cannot be signed"
    assert sorted(line.removeprefix(f"{folder}/") for line in why.split("\n       ")) == [
        "a.so: is Hexagon v79, its place says v75",
        "a.so: is from QNN v2.49.40.260810104044, others are not",
        "b.so: is from QNN v2.48.40.260810104044, others are not",
        "c.so: is already signed",
        "c.so: is from QNN v2.49.40.260810104044, others are not",
        "d.so: is of machine x86-64, not Hexagon",
        "e.so: is of machine e_machine 7, not Hexagon",
    ]
    assert fix == (
        "use unsigned libraries from one QNN SDK, for the architecture of their directory"
    )


def test_an_sdk_of_its_libraries_version_is_judged_too(tmp_path: Path) -> None:
    """Without an sdk.yaml the libraries say it; an op package asks for a later one."""
    package = tmp_path / "package"
    make_library(package / "a.so", 0x79, "v2.48.40.260810104044")

    asked = request(tmp_path, selection=Selection(op_package=package))
    assert refused(UnfitError, lambda: make_plan(asked)) == (
        "QNN SDK 2.48.40 cannot be used for LPAI op packages",
        "they need QNN SDK 2.49 or later: earlier ones lack the LPAI backend that ExecuTorch calls",
        "provision a QNN SDK of at least 2.49 and point QNN_SDK_ROOT at it",
    )


def test_the_sdk_s_own_version_counts_before_its_libraries(tmp_path: Path) -> None:
    package, sdk = tmp_path / "package", tmp_path / "sdk"
    make_library(package / "a.so", 0x79, "v2.48.40.260810104044")
    sdk.mkdir()
    (sdk / "sdk.yaml").write_text("version: 2.50.0\n")

    make_plan(request(tmp_path, selection=Selection(op_package=package), roots=Roots(qnn_sdk=sdk)))


def planned(tmp_path: Path, **more: Any) -> SignPlan:
    return SignPlan(request(tmp_path, **more), POLICY, (), ())


def test_the_sdk_s_signer_runs_in_a_python_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / POLICY.signer
    script.parent.mkdir(parents=True)
    script.touch()
    plan = planned(tmp_path, roots=Roots(hexagon_sdk=tmp_path), timeout_s=7.0, signer_python="mine")
    asked: list[object] = []
    python = interpreter.Interpreter(Path("/p"), "3.9.1")

    def answer(*found: interpreter.Interpreter | None) -> None:
        asked.clear()
        monkeypatch.setattr(
            "ci.signing.plan.find_interpreter", lambda *a: asked.append(a) or found[0]
        )
        monkeypatch.setattr(
            "ci.signing.plan.make_interpreter", lambda *a: asked.append(a) or python
        )

    progress = Progress()
    answer(python)
    assert resolve_signer(plan, progress, may_make=False) == Signer(
        ("/p", str(script)), 7.0, python
    )
    assert asked == [(POLICY.python, "mine")]
    answer(None)
    assert resolve_signer(plan, progress) == Signer(("/p", str(script)), 7.0, python)
    assert asked == [(POLICY.python, "mine"), (POLICY.python, progress)]
    answer(None)
    said = refused(UnfitError, lambda: resolve_signer(plan, progress, may_make=False))
    assert said[0] == "no Python below 3.12 is found"
    assert len(asked) == 1


def test_another_signer_is_taken_as_it_is(tmp_path: Path) -> None:
    plan = planned(tmp_path, signer_command="sh -c 'a b'", timeout_s=7.0)
    assert resolve_signer(plan, Progress()) == Signer((SH, "-c", "a b"), 7.0)


def test_a_signer_that_is_not_there(tmp_path: Path) -> None:
    fix = "run `qnn-ci fetch lpai`, or name another signer with --signer"
    plan = planned(tmp_path, roots=Roots(hexagon_sdk=tmp_path))
    assert refused(UnfitError, lambda: find_script(plan)) == (
        f"the signer {tmp_path}/tools/elfsigner/elfsigner.py is not there",
        "",
        fix,
    )
    assert refused(UnfitError, lambda: find_script(planned(tmp_path))) == (
        "the signer tools/elfsigner/elfsigner.py is not there",
        "neither --hexagon-sdk nor HEXAGON_SDK_ROOT is set",
        fix,
    )


def test_the_hexagon_sdk_is_known_by_its_directory() -> None:
    assert find_hexagon_version(Roots(hexagon_sdk=Path("/x/6.4.0.2"))) == "6.4.0.2"
    assert find_hexagon_version(Roots(qnn_sdk=Path("/x/6.4.0.2"))) == ""


# A signer's command and its end


def test_places_in_a_command_are_filled() -> None:
    plain = Signer(("sign", "-v"), 1.0)
    placed = Signer(("sign", "--in={input}", "{output}/x", "{input}{input}"), 1.0)
    half = Signer(("sign", "{output}"), 1.0)
    source, output = Path("/a/in"), Path("/a/out")

    assert plain.argv(source, output) == ["sign", "-v", "-i", "/a/in", "-o", "/a/out"]
    assert placed.argv(source, output) == ["sign", "--in=/a/in", "/a/out/x", "/a/in/a/in"]
    assert half.argv(source, output) == ["sign", "/a/out"]
    assert plain.testsig_argv("0x1", output) == ["sign", "-v", "-t", "0x1", "-o", "/a/out"]
    assert half.testsig_argv("0x1", output) == ["sign", "{output}", "-t", "0x1", "-o", "/a/out"]
    assert refused(UsageError, lambda: placed.testsig_argv("0x1", output)) == (
        "--testsig needs a signer without {input}",
        "a test signature is made from a serial number and not from a file",
        "",
    )


def test_a_command_s_files_are_programs_and_the_rest_arguments(tmp_path: Path) -> None:
    script = tmp_path / "sign.py"
    script.write_text("")
    signer = Signer((SH, str(script), "--token", "x", "/no/file", "x" * 5000), 1.0)

    assert signer.list_arguments([SH, str(script), "--token", "x", "a"]) == (
        "--token",
        "***",
        "a",
    )
    sums = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    paths = [path for path, _ in signer.list_programs()]
    assert paths[0].endswith("/sh")
    assert signer.list_programs()[1:] == [(str(script), sums)]
    known = Signer(
        (sys.executable, str(script)), 1.0, interpreter.Interpreter(Path(sys.executable), "3")
    )
    assert known.list_programs() == [(str(script), sums)]
    assert Signer(("/none/at/all", str(script)), 1.0).list_programs() == [(str(script), sums)]


def test_a_command_that_cannot_be_run() -> None:
    assert refused(UsageError, lambda: parse_signer("sh 'a", 1.0)) == (
        '--signer "sh \'a" cannot be split',
        "No closing quotation",
        "",
    )
    assert refused(UsageError, lambda: parse_signer(" ", 1.0))[0] == "--signer is empty"
    assert refused(UnfitError, lambda: parse_signer("/no/signer -x", 1.0)) == (
        "the signer /no/signer is not found",
        "",
        "correct --signer or PATH",
    )


def ended(tmp_path: Path, body: str, timeout_s: float = 60.0) -> SignerError:
    words = ("/bin/sh", "-c", body)
    with pytest.raises(SignerError) as caught:
        run_signer(Signer(words, timeout_s), words, tmp_path, "lib.so", Masker(["secret"]))
    return caught.value


def test_a_signer_that_fails(tmp_path: Path) -> None:
    error = ended(tmp_path, "echo one; echo a secret; exit 3")
    assert (error.failure, error.what) == (Failure.EXITED, "the signer failed: lib.so")
    assert (error.why, error.fix) == ("it exited with 3 and said:\none\na ***", "")
    assert ended(tmp_path, "exit 3").why == "it exited with 3 and said:\nit printed nothing"


def test_a_signer_in_a_new_python(tmp_path: Path) -> None:
    error = ended(tmp_path, "echo first; echo \"No module named 'imp'\"; exit 1")
    assert (error.failure, error.why, error.fix) == (
        Failure.WRONG_PYTHON,
        "No module named 'imp'",
        "run it in Python 3.11 or earlier",
    )


def test_a_signer_that_does_not_end(tmp_path: Path) -> None:
    """What it said last tells a question from silence."""
    asks = ended(tmp_path, "echo one; printf 'Secret password:'; exec sleep 60", 0.5)
    hangs = ended(tmp_path, "echo a: b; echo at work.; exec sleep 60", 0.5)

    assert (asks.failure, asks.fix) == (
        Failure.PROMPT,
        "configure the signer so that it needs nothing but the agreement to its terms",
    )
    assert asks.why.startswith("after ")
    assert asks.why.endswith(" s it still waits at: *** password:")
    assert (hangs.failure, hangs.fix) == (
        Failure.HUNG,
        "see whether it reaches its server; --timeout sets the limit in seconds",
    )
    assert hangs.why.startswith("it was ended after ")
    assert hangs.why.endswith(" s; it last said: at work.")


def test_a_signer_that_cannot_be_started(tmp_path: Path) -> None:
    words = (str(tmp_path / "secret"),)
    with pytest.raises(SignerError) as caught:
        run_signer(Signer(words, 1.0), words, tmp_path, "lib.so", Masker(["secret"]))
    assert caught.value.failure is Failure.EXITED
    assert "***" in caught.value.why
    assert "secret" not in caught.value.why


def test_a_signer_s_output_is_masked(tmp_path: Path) -> None:
    words = ("/bin/sh", "-c", "pwd; read a; read b; echo $a$b secret; echo $PYTHONUNBUFFERED")
    said = run_signer(Signer(words, 60.0), words, tmp_path, "lib.so", Masker(["secret"]))
    assert said.splitlines() == [str(tmp_path), "yy ***", "1"]


def test_an_output_that_is_not_where_it_should_be(tmp_path: Path) -> None:
    """The signer's area holds ``in`` and ``out``; a serial is not said."""
    source, output = tmp_path / "in" / "testsig-0xbadcafe.so", tmp_path / "out"
    for folder in (source.parent, output):
        folder.mkdir()

    def said() -> tuple[Failure, str, str, str]:
        with pytest.raises(SignerError) as caught:
            find_output(tmp_path, output, source, b"", Masker())
        error = caught.value
        return error.failure, error.what, error.why, error.fix

    nothing = (
        Failure.NO_OUTPUT,
        "the signer wrote nothing: testsig-***.so",
        "it ended with 0 and left nothing in its output directory",
        "run the signer by hand on this library and read its log",
    )
    assert said() == nothing
    for name in ("b.log", "a.log"):
        (output / name).touch()
    assert said()[2] == "it ended with 0 and left a.log, b.log in its output directory"
    for name in ("z", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / source.name).touch()
    assert said() == (
        Failure.ELSEWHERE,
        "the signer wrote to another place: testsig-***.so",
        "it was told out/ and wrote y/testsig-***.so, z/testsig-***.so",
        "correct the command: {input} and {output} stand for the file and the directory",
    )
    (output / source.name).symlink_to(tmp_path / "z" / source.name)
    assert said()[0] is Failure.ELSEWHERE
    (output / source.name).unlink()
    (output / source.name).mkdir()
    assert said()[0] is Failure.ELSEWHERE
    (output / source.name).rmdir()
    (output / "testsig-0x0badcafe.so").touch()
    found = find_output(tmp_path, output, source, b"", Masker())
    assert found == output / "testsig-0x0badcafe.so"


def test_a_library_that_was_signed_in_place_is_named(tmp_path: Path) -> None:
    source = tmp_path / "lib.so"
    source.write_bytes(b"signed")
    (tmp_path / "out").mkdir()

    with pytest.raises(SignerError) as caught:
        find_output(tmp_path, tmp_path / "out", source, b"unsigned", Masker())
    assert caught.value.why == "it was told out/ and wrote lib.so"
    with pytest.raises(SignerError) as caught:
        find_output(tmp_path, tmp_path / "out", source, b"signed", Masker())
    assert caught.value.failure is Failure.NO_OUTPUT


# What is good enough


def test_a_signature_that_nothing_proves(tmp_path: Path) -> None:
    report = Verification(1, signed=True, notes=["one", "two"])
    require_good(report, "lib.so", accept=False)
    report.add(Kind.HASH, "wrong", "more")
    with pytest.raises(SignerError) as caught:
        require_good(report, "lib.so", accept=True)
    assert (caught.value.what, caught.value.why, caught.value.fix) == (
        "the signer's output has hashes that do not match: lib.so",
        "wrong; more",
        "",
    )
    with pytest.raises(SignerError) as caught:
        require_good(Verification(1), "lib.so", accept=True)
    assert (caught.value.what, caught.value.why, caught.value.fix) == (
        "the signer's output is not signed: lib.so",
        "it has no hash segment",
        "read the signer's log",
    )


def test_a_signature_of_no_published_scheme(key: Key, library: bytes) -> None:
    report = verify_bytes(memoryview(sign_elf(library, key)))
    report.notes = ["one", "two"]
    unknown = [
        type(one)(one.authority, one.chain, type(one.scheme).UNKNOWN, 1) for one in report.signers
    ]
    report.signers = unknown
    assert report.verdict is Verdict.UNRECOGNISED
    require_good(report, "lib.so", accept=True)
    with pytest.raises(SignerError) as caught:
        require_good(report, "lib.so", accept=False)
    assert (caught.value.failure, caught.value.what, caught.value.why, caught.value.fix) == (
        Failure.UNRECOGNISED,
        "the signature verifies by no published scheme: lib.so",
        "one; two",
        "--accept-unrecognised takes it, when the signer is known to sign so",
    )


def test_what_a_file_is_that_does_not_parse(tmp_path: Path) -> None:
    page = tmp_path / "a.so"
    page.write_text("<!DOCTYPE html><html>not found</html>")
    assert "HTML" in explain_file(page) or "html" in explain_file(page)
    assert explain_file(LIBRARY) == ""


# A verification in words


def test_a_verification_in_words(key: Key, library: bytes) -> None:
    report = verify_bytes(memoryview(sign_elf(library, key, 6, wrong_entry=3)))
    report.notes.append("a note")
    chain = report.signers[0].chain
    dates = [f"{one.not_before:%Y-%m-%d} to {one.not_after:%Y-%m-%d}" for one in chain]

    text = render_report(Path("/x/testsig-0xbadcafe.so"), report)
    lines = text.splitlines()
    assert lines[:3] == [
        "testsig-***.so: invalid",
        "  hexagon V69, MBN header 6, sha384, 9 segments hashed",
        "  OEM: signature of 256 bytes, RSA-PSS",
    ]
    assert [line.rpartition("2048 bits, ")[2] for line in lines[3:6]] == dates
    assert [line[:7] for line in lines[3:6]] == ["    0: ", "    1: ", "    2: "]
    assert lines[6].startswith("  wrong: the hash of segment 3")
    assert lines[7:] == ["  note: a note"]
    assert text.endswith("a note\n")


def test_several_verifications_in_words(key: Key, library: bytes) -> None:
    unsigned, signed = verify_bytes(memoryview(library)), Verification(1, signed=True)
    signed.header_version, signed.machine = 6, "AArch64"

    assert render_reports({Path("a/b.so"): unsigned}) == "b.so: unsigned\n"
    assert render_reports({Path("a.so"): unsigned, Path("b.so"): signed}) == (
        "a.so: unsigned\n"
        "b.so: proven\n"
        "  AArch64, MBN header 6, no hash table, 0 segments hashed\n"
        "not judged here, the device does: whether the device trusts the root certificate\n"
        "not judged here, the device does: whether the device accepts the signer's identities "
        "(software, hardware, OEM, model)\n"
    )
