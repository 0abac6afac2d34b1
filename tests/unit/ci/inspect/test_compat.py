"""The verdict on each axis, and what `compat` prints of it."""

from __future__ import annotations

import importlib.util
import json
import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

from ci.__main__ import main
from ci.inspect import runtimes
from ci.inspect.compat import Answer, Axis, Runtime, Verdict, judge_compat
from ci.inspect.runtimes import read_runtime
from provisioning.doctor.facts import FileFacts
from provisioning.doctor.survey.context_binaries import ContextBinary
from provisioning.doctor.survey.programs import Method, Program, parse_program
from provisioning.elf.qnn_build import QnnBuild
from provisioning.errors import ExitCode, QnnCiError, UsageError
from provisioning.manifest.reader import list_toolchains, read_toolchain
from tests.stand_ins.lowered import make_binary, make_program

SCHEMA = Path(__file__).parents[4] / "docs" / "schemas" / "compat.schema.json"
VERSIONS = ("2.47.0", "2.48.40", "2.49.40", "2.50.40", "2.51.0")
CONTEXT = ContextBinary(
    0,
    1,
    qnn="2.49.40",
    binary_info=3,
    core_api="2.38.0",
    soc="SM8650",
    soc_id=57,
    hexagon=75,
    vtcm_mb=8,
)
PROGRAM = Program("model.pte", "program", 1, contexts=(CONTEXT,))
SAME = Runtime("device", "2.49.40")


def change(**changes: object) -> Program:
    """The program with another context."""
    return replace(PROGRAM, contexts=(replace(CONTEXT, **changes),))  # type: ignore[arg-type]


def find(answer: Answer, axis: Axis) -> Verdict:
    (row,) = [row for row in answer.rows if row.axis is axis]
    assert row.why
    return row.verdict


@pytest.mark.parametrize("compiler", VERSIONS)
@pytest.mark.parametrize("runtime", VERSIONS)
def test_a_runtime_loads_what_its_own_or_an_older_qnn_compiled(compiler: str, runtime: str) -> None:
    """As all of these pairs did on the emulator."""
    answer = judge_compat(change(qnn=compiler), Runtime("device", runtime))
    loads = VERSIONS.index(compiler) <= VERSIONS.index(runtime)
    assert answer.verdict is (Verdict.YES if loads else Verdict.NO)
    if not loads:
        assert answer.decided_by == (Axis.BUILD,)


def test_the_newest_context_of_a_program_decides() -> None:
    both = replace(PROGRAM, contexts=(CONTEXT, replace(CONTEXT, qnn="2.51.0")))
    assert judge_compat(both, SAME).decided_by == (Axis.BUILD,)
    assert judge_compat(both, Runtime("device", "2.51.0")).verdict is Verdict.YES


@pytest.mark.parametrize("order", [1, -1])
def test_the_context_that_needs_the_most_vtcm_decides(order: int) -> None:
    two = (replace(CONTEXT, vtcm_mb=4), replace(CONTEXT, vtcm_mb=9))[::order]
    answer = judge_compat(replace(PROGRAM, contexts=two), None, "SM8650")
    assert find(answer, Axis.VTCM) is Verdict.NO


@pytest.mark.parametrize(
    ("program", "runtime", "axis"),
    [
        (change(qnn=""), SAME, Axis.BUILD),
        (PROGRAM, Runtime("device"), Axis.BUILD),
        (change(binary_info=4), SAME, Axis.BINARY_INFO),
        (change(qnn="2.20.0"), Runtime("device", "2.28.0"), Axis.BINARY_INFO),
        (replace(PROGRAM, contexts=()), SAME, Axis.FILE),
    ],
)
def test_what_is_missing_is_no_yes(program: Program, runtime: Runtime, axis: Axis) -> None:
    answer = judge_compat(program, runtime)
    assert (answer.verdict, answer.decided_by) == (Verdict.UNKNOWN, (axis,))


OTHER = replace(CONTEXT, soc="SM8750", soc_id=69, hexagon=79)
CALLS = (Method("one", (), (), (), {"b": 1, "a": 2}), Method("two", (), (), (), {"c": 1}))


@pytest.mark.parametrize(
    ("program", "runtime", "soc", "axis", "verdict", "why"),
    [
        (change(binary_info=0), SAME, "", Axis.BINARY_INFO, "not judged", "is unknown"),
        (PROGRAM, Runtime("device"), "", Axis.BINARY_INFO, "not judged", "is unknown"),
        (replace(PROGRAM, contexts=()), SAME, "", Axis.BUILD, "not judged", "no context binary"),
        (
            replace(PROGRAM, contexts=(CONTEXT, replace(CONTEXT, qnn=""))),
            *(Runtime("device"), "", Axis.BUILD, "cannot tell", "the program does not state"),
        ),
        (
            replace(PROGRAM, contexts=(replace(CONTEXT, qnn="2.9.0"), CONTEXT)),
            *(Runtime("device", "2.48.0"), "", Axis.BUILD, "no", "use 2.49.40 or later"),
        ),
        (PROGRAM, Runtime("device", "2.4"), "", Axis.BUILD, "no", "use 2.49.40 or later"),
        (PROGRAM, Runtime("device", "2.49"), "", Axis.BUILD, "cannot tell", "all three parts"),
        (
            replace(PROGRAM, contexts=(OTHER, replace(CONTEXT, soc="", soc_id=93))),
            *(None, "SM8550", Axis.SOC, "no", "compiled for SM8750, SoC 93, not for SM8550"),
        ),
        (PROGRAM, None, "SM8650", Axis.HEXAGON, "yes", "compiled for V75, which SM8650 has"),
        (
            PROGRAM,
            replace(SAME, stubs=(75,)),
            *("", Axis.HEXAGON, "yes", "has a stub or skel for each Hexagon version"),
        ),
        (
            replace(PROGRAM, contexts=()),
            replace(SAME, stubs=(75,)),
            *("", Axis.HEXAGON, "not judged", "needs a context binary"),
        ),
        (PROGRAM, SAME, "", Axis.SOC, "not judged", "no SoC was given"),
        (replace(PROGRAM, contexts=()), None, "SM8650", Axis.VTCM, "not judged", "no context"),
        (
            replace(PROGRAM, methods=CALLS),
            replace(SAME, kernels=("c", "b", "a")),
            *("", Axis.OPERATORS, "yes", "contains kernels for a, b, c"),
        ),
        (
            replace(PROGRAM, methods=CALLS, kind="onnx"),
            replace(SAME, kernels=()),
            *("", Axis.OPERATORS, "not judged", "kernels for a, b, c were not looked for"),
        ),
    ],
)
def test_each_row_says_why(
    program: Program, runtime: Runtime | None, soc: str, axis: Axis, verdict: str, why: str
) -> None:
    answer = judge_compat(program, runtime, soc)
    assert [row.axis for row in answer.rows] == [*Axis]
    (row,) = (row for row in answer.rows if row.axis is axis)
    assert (row.verdict.value, why in row.why) == (verdict, True), row.why
    names = (program.file, runtime.name if runtime else "", soc)
    assert (answer.file, answer.runtime, answer.soc) == names


@pytest.mark.parametrize(
    ("program", "soc", "verdict", "axes"),
    [
        (PROGRAM, "SM8650", Verdict.YES, None),
        (PROGRAM, "SM8750", Verdict.NO, (Axis.HEXAGON, Axis.SOC)),
        (change(soc="SM8475", soc_id=42, hexagon=69), "SM8450", Verdict.UNKNOWN, (Axis.SOC,)),
        (change(soc_id=0, soc=""), "SM8650", Verdict.UNKNOWN, (Axis.SOC,)),
        (
            change(soc_id=0, soc="", hexagon=68),
            "SM8750",
            Verdict.UNKNOWN,
            (Axis.HEXAGON, Axis.SOC),
        ),
        (change(hexagon=0), "SM8650", Verdict.UNKNOWN, (Axis.HEXAGON,)),
        (change(vtcm_mb=9), "SM8650", Verdict.NO, (Axis.VTCM,)),
        (change(vtcm_mb=4), "SM8650", Verdict.YES, None),
        (change(vtcm_mb=0), "SM8650", Verdict.UNKNOWN, (Axis.VTCM,)),
    ],
)
def test_a_soc_runs_what_was_compiled_for_it(
    program: Program, soc: str, verdict: Verdict, axes: tuple[Axis, ...] | None
) -> None:
    answer = judge_compat(program, None, soc)
    assert answer.verdict is verdict
    assert axes is None or answer.decided_by == axes
    assert find(answer, Axis.BUILD) is Verdict.SKIPPED


def test_a_program_without_a_soc_is_for_no_other() -> None:
    answer = judge_compat(change(soc_id=0, soc="", hexagon=79), None, "SM8650")
    assert (answer.decided_by, find(answer, Axis.SOC)) == ((Axis.HEXAGON,), Verdict.UNKNOWN)


def test_a_package_has_one_context_per_soc() -> None:
    other = replace(CONTEXT, soc="SM8750", soc_id=69, hexagon=79)
    package = replace(PROGRAM, contexts=(CONTEXT, other), is_package=True)
    for soc, verdict in (("SM8650", Verdict.YES), ("SM8750", Verdict.YES), ("SM8550", Verdict.NO)):
        assert judge_compat(package, SAME, soc).verdict is verdict
    whole = replace(package, is_package=False)
    assert judge_compat(whole, SAME, "SM8750").verdict is Verdict.NO


@pytest.mark.parametrize(
    ("headers", "qnn", "verdict"),
    [
        ("2.37", "2.49.40", Verdict.YES),
        *(("2.37", qnn, Verdict.NO) for qnn in ("2.47.0", "2.48.40", "2.50.40", "2.51.0")),
        ("2.37", "2.37.0", Verdict.YES),
        ("2.38", "2.51.0", Verdict.YES),
        ("2.49", "2.51.0", Verdict.YES),
        ("2.50", "2.49.40", Verdict.NO),
        ("unknown", "2.51.0", Verdict.SKIPPED),
        ("", "2.51.0", Verdict.SKIPPED),
    ],
)
def test_an_adaptor_fits_the_libraries(headers: str, qnn: str, verdict: Verdict) -> None:
    answer = judge_compat(PROGRAM, Runtime("host", qnn, adaptor=headers))
    assert find(answer, Axis.ADAPTOR) is verdict


@pytest.mark.parametrize(
    ("headers", "qnn", "lacks"),
    [
        ("", "2.51.0", "the runtime does not contain"),
        ("unknown", "2.51.0", "backend does not state"),
        ("2.37", "", "the runtime does not state"),
    ],
)
def test_an_unjudged_adaptor_says_what_is_unknown(headers: str, qnn: str, lacks: str) -> None:
    answer = judge_compat(PROGRAM, Runtime("host", qnn, adaptor=headers))
    (why,) = (row.why for row in answer.rows if row.axis is Axis.ADAPTOR)
    assert lacks in why


def test_a_runtime_needs_the_stub_or_skel() -> None:
    for stubs, skels, verdict in (
        ((75, 79), (), Verdict.YES),
        ((), (75,), Verdict.YES),
        ((79,), (79,), Verdict.NO),
    ):
        runtime = replace(SAME, stubs=stubs, skels=skels)
        for soc in ("", "SM8650"):
            assert find(judge_compat(PROGRAM, runtime, soc), Axis.HEXAGON) is verdict
    assert find(judge_compat(PROGRAM, SAME), Axis.HEXAGON) is Verdict.SKIPPED


def test_operators_on_the_cpu_need_kernels() -> None:
    method = Method("forward", (), (), (), {"aten::erf.out": 2})
    program = replace(PROGRAM, methods=(method,))
    for kernels, verdict in (
        (None, Verdict.SKIPPED),
        ((), Verdict.NO),
        (("aten::erf.out",), Verdict.YES),
    ):
        answer = judge_compat(program, replace(SAME, kernels=kernels))
        assert find(answer, Axis.OPERATORS) is verdict
    for runtime in (None, SAME):  # without such an operator, nothing has to be known
        assert find(judge_compat(PROGRAM, runtime), Axis.OPERATORS) is Verdict.YES
        assert find(judge_compat(program, runtime), Axis.OPERATORS) is Verdict.SKIPPED


def test_a_damaged_file_loads_nowhere() -> None:
    answer = judge_compat(replace(PROGRAM, damage="is cut short"), SAME, "SM8650")
    assert (answer.verdict, answer.decided_by) == (Verdict.NO, (Axis.FILE,))


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    """A runtime's directory, with libraries whose names and bytes are read."""
    folder = tmp_path / "libs"
    folder.mkdir()
    core = struct.pack("<4I", 2, 38, 0, 5)
    elf = (Path(__file__).parents[3] / "artifacts" / "elf" / "libaarch64.so").read_bytes()
    whole = elf + b"\0v2.49.40.260810104044\0" + core
    for name in ("libQnnHtp.so", "libQnnHtpV75Stub.so", "libQnnHtpV79Stub.so"):
        (folder / name).write_bytes(whole)
    htp_api = b"\x48\xb8\5\0\0\0\x25\0\0\0\x31\xd2\xc3"
    (folder / "libqnn_executorch_backend.so").write_bytes(elf + htp_api + b"\0aten::erf.out\0")
    return folder


def test_a_directory_or_archive_is_a_runtime(libraries: Path) -> None:
    wanted = ["aten::erf.out", "aten::bmm.out"]
    found = read_runtime(str(libraries), wanted)
    assert (found.qnn, found.stubs, found.skels) == ("2.49.40", (75, 79), ())
    assert (found.adaptor, found.kernels) == ("2.37", ("aten::erf.out",))
    apk = libraries.with_name("app.apk")
    with zipfile.ZipFile(apk, "w") as archive:
        for path in libraries.iterdir():
            archive.write(path, f"lib/arm64-v8a/{path.name}")
    assert read_runtime(str(apk), wanted) == replace(found, name="app.apk")
    apk.write_bytes(b"no archive")
    with pytest.raises(QnnCiError):
        read_runtime(str(apk))


def test_the_oldest_library_counts(libraries: Path) -> None:
    other = libraries / "second"
    other.mkdir()
    data = (libraries / "libQnnHtp.so").read_bytes().replace(b"v2.49.40.", b"v2.47.00.")
    (other / "libQnnHtp.so").write_bytes(data)
    assert read_runtime(str(libraries)).qnn == "2.47.00"


def test_versions_are_compared_as_numbers() -> None:
    def of(name: str, version: str) -> FileFacts:
        return FileFacts(name, Path(name), 1, build=QnnBuild(version, None, version))

    files = [of("a/libQnnHtp.so", "2.49.40"), of("b/libQnnHtp.so", "2.9.0"), of("c.so", "2.1.0")]
    assert runtimes.describe_runtime(files, "app", ()).qnn == "2.9.0"


def test_the_backend_has_the_version_of_a_runtime(libraries: Path) -> None:
    stub = libraries / "libQnnHtpV75Stub.so"
    stub.write_bytes(stub.read_bytes().replace(b"v2.49.40.", b"v2.47.00."))
    assert read_runtime(str(libraries)).qnn == "2.49.40"
    (libraries / "libQnnHtp.so").unlink()
    assert read_runtime(str(libraries)).qnn == "2.47.00"  # without a backend, the oldest


def test_the_oldest_headers_of_several_libraries_count(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {
        "libqnn_executorch_backend.so": "2.49",
        "libexecutorch.so": "2.37",
        "libQnnHtp.so": "",
    }
    monkeypatch.setattr(runtimes, "find_headers_version", lambda path: headers[path.name])
    files = [FileFacts(name, Path(name), 1) for name in headers]
    assert runtimes.describe_runtime(files, "app", ()).adaptor == "2.37"
    assert runtimes.describe_runtime(files[2:], "app", ()).adaptor == ""
    headers.update(dict.fromkeys(headers, ""))
    assert runtimes.describe_runtime(files, "app", ()).adaptor == "unknown"


@pytest.mark.parametrize(
    ("name", "is_adaptor"),
    [
        ("libqnn_executorch_backend.so", True),
        ("libexecutorch.so", True),
        ("libexecutorch_jni.so", True),
        ("PyQnnManagerAdaptor.cpython-311-x86_64-linux-gnu.so", True),
        ("PyQnnManagerAdaptor.so", True),
        ("libqnn_executorch_backend.so.debug", False),
        ("libother.so", False),
    ],
)
def test_the_headers_are_those_of_a_library_of_executorch(
    monkeypatch: pytest.MonkeyPatch, name: str, is_adaptor: bool
) -> None:
    monkeypatch.setattr(runtimes, "find_headers_version", lambda _: "2.37")
    found = runtimes.describe_runtime([FileFacts(name, Path(name), 1)], "app", ())
    assert found.adaptor == ("2.37" if is_adaptor else "")


def test_a_stub_or_skel_without_a_decimal_version_is_for_none() -> None:
    names = [f"libQnnHtp{version}{part}.so" for part in ("Stub", "Skel") for version in ("", "V7a")]
    names += ["libQnnHtpV79Stub.so", "libQnnHtpV75Stub.so", "libQnnLpaiV68Stub.so"]
    found = runtimes.describe_runtime([FileFacts(one, Path(one), 1) for one in names], "app", ())
    assert (found.stubs, found.skels) == ((75, 79), ())


def test_an_artifact_in_the_store_is_read(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def store(artifact: str, version: str) -> Any:
        root, tree = libraries, SimpleNamespace(artifact=artifact, version=version)
        return SimpleNamespace(root=root), tree

    trees = [store("qnn-sdk", "2.49.40"), store("qnn-runtime", "2.48.40")]
    monkeypatch.setattr(runtimes, "stored_trees", lambda _: iter(trees))
    monkeypatch.setattr(runtimes, "Store", lambda _: None)
    none = Runtime("qnn-runtime 2.49.40", "2.49.40")
    assert read_runtime("qnn-runtime@2.49.40", ["aten::erf.out"]) == none
    trees.append(store("qnn-runtime", "2.49.40"))
    read = read_runtime("qnn-runtime@2.49.40", ["aten::erf.out"])
    assert read == replace(read_runtime(str(libraries), ["aten::erf.out"]), name=none.name)
    assert read.kernels == ("aten::erf.out",)


def test_a_kernel_of_a_longer_name_is_another(libraries: Path) -> None:
    """Nor is a part of a name in the next library."""
    wanted = ["aten::erf", "aten::erf.out", "aten::bmm.out"]
    backend = libraries / "libqnn_executorch_backend.so"
    backend.write_bytes(backend.read_bytes() + b"aten::bmm.out_more\0")
    assert read_runtime(str(libraries), wanted).kernels == ("aten::erf.out",)
    (libraries / "liba.so").touch()  # of which there is nothing to search
    (libraries / "libkernels.so").write_bytes((libraries / "libQnnHtp.so").read_bytes())
    with (libraries / "libkernels.so").open("ab") as file:
        file.write(b"\0aten::bmm.out\0")
    assert read_runtime(str(libraries), wanted).kernels == ("aten::bmm.out", "aten::erf.out")


def test_a_runtime_without_executorch_has_no_kernels_and_may_have_no_version(
    libraries: Path,
) -> None:
    for path in libraries.iterdir():
        if path.name not in {"libQnnHtp.so", "libQnnHtpV75Stub.so"}:
            path.unlink()
    assert read_runtime(str(libraries), ["aten::erf.out"]) == Runtime(
        libraries.name, "2.49.40", (75,), (), "", None
    )
    htp = libraries / "libQnnHtp.so"
    htp.write_bytes(htp.read_bytes().replace(b"v2.49.40.", b"no.build."))
    assert read_runtime(str(libraries)).qnn == ""
    (libraries / "libQnnSystem.so").write_bytes((libraries / "libQnnHtpV75Stub.so").read_bytes())
    htp.unlink()
    assert read_runtime(str(libraries)).qnn == "2.49.40"


def test_versions_and_artifacts_are_runtimes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "store_home", lambda: tmp_path / "store")
    assert read_runtime("2.49.40") == Runtime("QNN 2.49.40", "2.49.40")
    nothing_stored = Runtime("qnn-runtime 2.49.40", "2.49.40")
    assert read_runtime("qnn-runtime@2.49.40") == nothing_stored
    default = read_toolchain("qnn-runtime").default
    assert read_runtime("qnn-runtime") == Runtime(f"qnn-runtime {default}", default)
    others = [one for one in list_toolchains() if not one.startswith("qnn-")]
    assert len(others) > 2
    for word in others:
        with pytest.raises(UsageError, match=f"{word} is not a runtime of QNN"):
            read_runtime(word)
    for word in ("no-such-thing", "qnn-runtime@9.9"):
        with pytest.raises(QnnCiError):
            read_runtime(word)


def test_the_stand_ins_give_what_is_judged() -> None:
    program = parse_program(memoryview(make_program()), "model.pte")
    assert program
    assert judge_compat(program, SAME, "SM8650").verdict is Verdict.YES
    newer = make_program(make_binary(build="v2.51.0.260929181845"))
    program = parse_program(memoryview(newer), "model.pte")
    assert program
    assert judge_compat(program, SAME, "SM8650").decided_by == (Axis.BUILD,)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--runtime", "2.49.40", "--soc", "sm8650"], ExitCode.OK),
        (["--soc", "SM8750"], ExitCode.FAILED),
        (["--runtime", "2.48"], ExitCode.FAILED),
        ([], ExitCode.USAGE),
        (["--soc", "SM1"], ExitCode.USAGE),
        (["--runtime", "nowhere"], ExitCode.USAGE),
    ],
)
def test_exit_codes_and_json(
    tmp_path: Path, words: list[str], code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.pte"
    path.write_bytes(make_program())
    assert main(["compat", str(path), *words]) == code
    capsys.readouterr()
    assert main(["compat", str(path), *words, "--json"]) == code
    data = json.loads(capsys.readouterr().out)
    if code is not ExitCode.USAGE:
        jsonschema.validate(data, json.loads(SCHEMA.read_text()))
        assert (data["verdict"] == "yes") == (code is ExitCode.OK)
        assert data["decided_by"]


def test_an_soc_or_a_missing_choice_is_named_before_a_file_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "gone.pte")
    for words, told in (
        (["--soc", "sm1"], "SM1"),
        (["--soc", "sm1", "--runtime", "2.49"], "SM1"),
        ([], "neither a runtime nor an SoC"),
    ):
        assert main(["compat", path, *words]) == ExitCode.USAGE
        heard = capsys.readouterr().err
        assert told in heard
        assert "gone.pte" not in heard


def test_what_cannot_be_told_exits_with_3_and_names_what_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "context.bin"
    path.write_bytes(make_binary(version=4))
    assert main(["compat", str(path), "--runtime", "2.49.40"]) == ExitCode.ENVIRONMENT
    assert capsys.readouterr().out.endswith(f" ({Axis.BINARY_INFO.value})\n")
    (tmp_path / "notes.bin").write_bytes(b"notes")
    assert main(["compat", str(tmp_path / "notes.bin"), "--soc", "SM8650"]) == ExitCode.USAGE


def test_a_damaged_onnx_file_fails_and_needs_the_onnx_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cut.onnx").write_bytes(b"no model")
    code = main(["compat", str(tmp_path / "cut.onnx"), "--soc", "SM8650"])
    if importlib.util.find_spec("onnx"):
        assert code == ExitCode.FAILED
    else:
        assert code == ExitCode.ENVIRONMENT
        assert "[onnx]" in capsys.readouterr().err
