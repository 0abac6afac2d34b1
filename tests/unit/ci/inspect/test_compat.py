"""The verdict on each axis, what a runtime is, and what `compat` prints."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from ci.__main__ import main
from ci.inspect.compat import Runtime, judge_compat
from ci.inspect.files import read_runtime
from provisioning.doctor.survey.context_binaries import ContextBinary
from provisioning.doctor.survey.programs import Method, Program
from provisioning.errors import ExitCode, QnnCiError, UsageError
from provisioning.manifest.reader import list_toolchains, read_toolchain
from provisioning.store.store import Key, Store
from provisioning.store.tree import Tree, TreeEntry
from tests.stand_ins.lowered import make_binary, make_program
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")
SCHEMA = Path(__file__).parents[4] / "docs" / "schemas" / "compat.schema.json"
FIRST = ContextBinary(
    0, 1, qnn="2.49.40", binary_info=3, soc="SM8650", soc_id=57, hexagon=75, vtcm_mb=8
)
OTHER = replace(FIRST, soc="SM8750", soc_id=69, hexagon=79)
SAME = Runtime("device", "2.49.40")
PARTS = replace(SAME, stubs=(75,), skels=(73,))
CALLS = (Method("one", (), (), (), {"b": 1, "a": 2}), Method("two", (), (), (), {"c": 1}))


def program(*contexts: ContextBinary, **fields: object) -> Program:
    return Program("model.pte", "program", 1, contexts=contexts, **fields)  # type: ignore[arg-type]


def of(**changes: object) -> Program:
    """A program with one context that has other values."""
    return program(replace(FIRST, **changes))  # type: ignore[arg-type]


def on(qnn: str = "2.49.40", **fields: object) -> Runtime:
    return Runtime("device", qnn, **fields)  # type: ignore[arg-type]


NO_SOC = {"soc": "", "soc_id": 0}
CASES: dict[str, tuple[Program, Runtime | None, str]] = {
    "the same version": (of(), SAME, ""),
    "the same version, stubs and skels, its SoC": (of(), PARTS, "SM8650"),
    "the file is damaged": (replace(of(), damage="is cut short"), SAME, ""),
    "no context": (program(), PARTS, "SM8650"),
    "needs a .ptd": (program(FIRST, external=("w",)), SAME, ""),
    "unknown compiler": (of(qnn=""), SAME, ""),
    "unknown runtime": (of(), on(""), ""),
    "the newest of two contexts is newer": (program(FIRST, replace(FIRST, qnn="2.51.0")), SAME, ""),
    "versions are numbers": (program(replace(FIRST, qnn="2.9.0"), FIRST), on("2.48.0"), ""),
    "a short version that may be the same": (of(), on("2.49"), ""),
    "unknown binary info": (of(binary_info=0), SAME, ""),
    "new binary info": (program(FIRST, replace(FIRST, binary_info=9)), SAME, ""),
    "the oldest runtime with it": (of(qnn="2.20.0"), on("2.29.0"), ""),
    "no runtime, its SoC": (of(), None, "SM8650"),
    "no runtime, another SoC": (of(), None, "SM8750"),
    "contexts for two SoCs": (program(FIRST, OTHER), None, "SM8650"),
    "a package for two SoCs": (program(FIRST, OTHER, is_package=True), SAME, "SM8750"),
    "a package without the SoC": (program(FIRST, OTHER, is_package=True), SAME, "SM8550"),
    "another SoC of the same Hexagon": (of(soc="SM8475", soc_id=42, hexagon=69), None, "SM8450"),
    "no SoC in it": (of(**NO_SOC), None, "SM8650"),
    "no SoC in one of two": (program(FIRST, replace(FIRST, soc_id=0)), None, "SM8650"),
    "no SoC, an older Hexagon": (of(**NO_SOC, hexagon=68), None, "SM8750"),
    "no SoC, a newer Hexagon": (of(**NO_SOC, hexagon=79), None, "SM8650"),
    "more VTCM in the second context": (program(FIRST, replace(FIRST, vtcm_mb=9)), None, "SM8650"),
    "less VTCM": (of(vtcm_mb=4), None, "SM8650"),
    "stubs and skels": (of(), PARTS, ""),
    "no stub for the second context": (program(FIRST, OTHER), PARTS, ""),
    "headers like the libraries": (of(), on("2.49.40", adaptor="2.37"), ""),
    "newer headers": (of(), on("2.49.40", adaptor="2.50"), ""),
    **{
        f"old headers, QNN {qnn}": (of(qnn=""), on(qnn, adaptor="2.37"), "")
        for qnn in ("2.37.0", "2.47.0", "2.48.40", "2.50.40", "2.51.0")
    },
    "unknown headers": (of(), on("2.51.0", adaptor="unknown"), ""),
    "kernels": (program(FIRST, methods=CALLS), on(kernels=("c", "b", "a")), ""),
    "a kernel is missing": (program(FIRST, methods=CALLS), on(kernels=("c", "a")), ""),
    "no ExecuTorch": (program(FIRST, methods=CALLS), SAME, ""),
    "operators without a runtime": (program(FIRST, methods=CALLS), None, "SM8650"),
}


def test_each_axis_of_compat_has_a_verdict_and_reason() -> None:
    """The first case shows all rows; the others show the rows that differ from it."""
    shown, usual = "", {}
    for name, (inspected, runtime, soc) in CASES.items():
        answer = judge_compat(inspected, runtime, soc)
        assert (answer.file, answer.runtime, answer.soc) == (
            *(inspected.file, runtime.name if runtime else "", soc),
        )
        rows = {
            row.axis: f"{row.axis.value}: {row.verdict.value}: {row.why}" for row in answer.rows
        }
        decided = ", ".join(axis.value for axis in answer.decided_by)
        shown += f"{name}: {answer.verdict.value} ({decided})\n"
        shown += "".join(f"  {row}\n" for axis, row in rows.items() if usual.get(axis) != row)
        usual = usual or rows
    check_snapshot(SNAPSHOTS / "compat.txt", shown)


# -- runtimes -------------------------------------------------------------------------------------

KERNELS = ["aten::erf", "aten::erf.out", "aten::bmm.out"]
ELF = (Path(__file__).parents[3] / "artifacts/elf/libaarch64.so").read_bytes()
QNN = ELF + b"\0v2.49.40.260810104044\0" + struct.pack("<4I", 2, 38, 0, 5)
BACKEND = ELF + b"\x48\xb8\5\0\0\0\x25\0\0\0\x31\xd2\xc3" + b"\0aten::erf.out\0"
USUAL = {
    **dict.fromkeys(("libQnnHtp.so", "libQnnHtpV75Stub.so", "libQnnHtpV79Stub.so"), QNN),
    "libqnn_executorch_backend.so": BACKEND,
}
OLD = QNN.replace(b"v2.49.40.", b"v2.47.00.")
WHOLE = Runtime("libs", "2.49.40", (75, 79), (), "2.37", ("aten::erf.out",))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, WHOLE),
        ({"second/libQnnHtp.so": OLD}, replace(WHOLE, qnn="2.47.00")),
        ({"libQnnHtpV75Stub.so": OLD}, WHOLE),  # the backend has the version of a runtime
        ({"libQnnHtpV75Stub.so": OLD, "libQnnHtp.so": None}, replace(WHOLE, qnn="2.47.00")),
        ({"libQnnHtp.so": QNN.replace(b"v2.49.40.", b"no.build.")}, replace(WHOLE, qnn="")),
        ({"libqnn_executorch_backend.so": None}, replace(WHOLE, adaptor="", kernels=None)),
        ({"libqnn_executorch_backend.so": ELF}, replace(WHOLE, adaptor="unknown", kernels=())),
        # A longer name is another kernel, and an empty file has none.
        ({"libqnn_executorch_backend.so": BACKEND + b"aten::bmm.out_more\0", "a.so": b""}, WHOLE),
        ({"libkernels.so": ELF + b"\0aten::bmm.out\0"}, replace(
            WHOLE, kernels=("aten::bmm.out", "aten::erf.out")
        )),
    ],
)  # fmt: skip
def test_compat_takes_a_directory_or_archive_as_runtime(
    tmp_path: Path, files: dict[str, bytes | None], expected: Runtime
) -> None:
    root = tmp_path / "libs"
    for name, data in {**USUAL, **files}.items():
        if data is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
    assert read_runtime(str(root), KERNELS) == expected
    if not files:
        with zipfile.ZipFile(tmp_path / "app.apk", "w") as archive:
            for path in root.iterdir():
                archive.write(path, f"lib/arm64-v8a/{path.name}")
        assert read_runtime(str(tmp_path / "app.apk"), KERNELS) == replace(expected, name="app.apk")


def test_compat_takes_a_version_or_artifact_as_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    default = read_toolchain("qnn-runtime").default
    runtime = Runtime("qnn-runtime 2.49.40", "2.49.40")
    assert read_runtime("2.49.40") == Runtime("QNN 2.49.40", "2.49.40")
    assert read_runtime("qnn-runtime@2.49.40") == runtime
    assert read_runtime("qnn-runtime") == Runtime(f"qnn-runtime {default}", default)
    store = Store()
    for artifact, version in (("qnn-sdk", "2.49.40"), ("qnn-runtime", "2.48.40")):
        publish(store, artifact, version)
    assert read_runtime("qnn-runtime@2.49.40") == runtime
    publish(store, "qnn-runtime", "2.49.40")
    stored = read_runtime("qnn-runtime@2.49.40", KERNELS)
    assert stored == replace(WHOLE, name=runtime.name)
    for word in list_toolchains():
        if not word.startswith("qnn-"):
            with pytest.raises(UsageError, match=f"{word} is not a runtime of QNN"):
                read_runtime(word)
    (tmp_path / "app.apk").write_bytes(b"no archive")
    for word in ("no-such-thing", "qnn-runtime@9.9", str(tmp_path / "app.apk")):
        with pytest.raises(QnnCiError):
            read_runtime(word)


def publish(store: Store, artifact: str, version: str) -> None:
    key = Key(artifact, version, "")
    with store.stage(key) as staged:
        for name, data in USUAL.items():
            (staged / artifact / name).write_bytes(data)
        store.publish(key, staged, Tree(artifact, version, "", (), (TreeEntry("a"),)))


# -- the verb -------------------------------------------------------------------------------------


def test_compat_prints_a_row_for_each_axis_and_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong option is reported before a file is read."""
    model = str(tmp_path / "model.pte")
    Path(model).write_bytes(make_program())
    context, notes = tmp_path / "context.bin", tmp_path / "notes.bin"
    context.write_bytes(make_binary(version=4))
    notes.write_bytes(b"notes")
    gone, libs, shown = str(tmp_path / "gone.pte"), tmp_path / "libs", ""
    libs.mkdir()
    for name, data in USUAL.items():
        (libs / name).write_bytes(data)
    for words in (
        [model, "--runtime", "2.49.40", "--soc", "sm8650"],
        [model, "--runtime", str(libs)],
        [model, "--soc", "SM8750"],
        [model, "--runtime", "2.48"],
        [model, "--runtime", "nowhere"],
        [str(context), "--runtime", "2.49.40"],
        [str(notes), "--soc", "SM8650"],
        *(
            [gone, *options]
            for options in (
                [],
                ["--soc", "sm1"],
                ["--soc", "sm1", "--runtime", "2.49"],
                ["--soc", "SM8750", "--soc", "Galaxy S24"],
            )
        ),
    ):
        code = main(["inspect", "--load", *words])
        text = capsys.readouterr()
        shown += f"$ inspect --load {' '.join(words)}\n{text.out}{text.err}exit code {code:d}\n"
        if code != ExitCode.USAGE:
            assert main(["inspect", "--load", *words, "--json"]) == code
            data = json.loads(capsys.readouterr().out)
            jsonschema.validate(data, json.loads(SCHEMA.read_text()))
            assert f": {data['verdict']}" in text.out
    shown = re.sub(r"use one of: .*", "use one of: SOCS", shown.replace(str(tmp_path), "TMP"))
    check_snapshot(SNAPSHOTS / "compat_verb.txt", shown)


def test_damaged_onnx_file_fails_and_needs_the_onnx_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cut.onnx").write_bytes(b"no model")
    code = main(["inspect", "--load", str(tmp_path / "cut.onnx"), "--soc", "SM8650"])
    if importlib.util.find_spec("onnx"):
        assert code == ExitCode.FAILED
    else:
        assert code == ExitCode.ENVIRONMENT
        assert "[onnx]" in capsys.readouterr().err
