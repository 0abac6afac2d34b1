"""`inspect` over files of each kind."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import jsonschema
import pytest

from ci.__main__ import main
from ci.inspect.files import Inspected, inspect_file
from provisioning.elf.reader import read_elf
from provisioning.errors import ExitCode, UsageError
from tests.build.apps import pack
from tests.stand_ins.android_apps import library
from tests.stand_ins.lowered import make_binary, make_program

SCHEMA = Path(__file__).parents[4] / "docs" / "schemas" / "inspect.schema.json"
LIB = "lib/arm64-v8a"
FILES = {
    "AndroidManifest.xml": b"\3\0",
    "assets/model.pte": make_program(),
    "assets/context.bin": make_binary(),
    "assets/words.bin": b"words of the app",
    "assets/folder.pte/": b"",
    f"{LIB}/libone.so": library("libone.so"),
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An APK with a program, a context binary, a library, and files that are none of these."""
    path = pack(tmp_path / "app.apk", FILES)
    link = zipfile.ZipInfo(f"{LIB}/liblink.so")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "libone.so")
    return path


def test_package_has_its_libraries_and_programs(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inspected = inspect_file(package)
    assert (inspected.kind, inspected.damage) == ("package", "")
    assert {entry.file: entry.kind for entry in inspected.entries} == {
        "assets/model.pte": "program",
        "assets/context.bin": "context",
        f"{LIB}/libone.so": "library",
    }
    for entry in inspected.entries[:2]:
        assert entry.program
        assert (entry.program.file, entry.program.contexts[0].qnn) == (entry.file, "2.49.40")
    assert main(["inspect", str(package), "--json"]) == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, json.loads(SCHEMA.read_text()))
    (file,) = data["files"]
    assert file["file"] == str(package)
    assert file["entries"][0]["program"]["methods"][0]["inputs"][0]["shape"] == [1, 3]


def test_damaged_files_of_a_package_are_named(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(package, "a") as archive:
        archive.writestr(f"{LIB}/libcut.so", b"\x7fELF")
        archive.writestr(f"{LIB}/libpointer.so", b"version https://git-lfs.github.com/spec/v1")
    inspected = inspect_file(package)
    bad = [entry for entry in inspected.entries if entry.damage]
    assert [(entry.file, entry.kind) for entry in bad] == [
        (f"{LIB}/libcut.so", "library"),
        (f"{LIB}/libpointer.so", "unknown"),
    ]
    assert inspected.damage == "contains files that cannot be used: " + ", ".join(
        entry.file for entry in bad
    )
    five = pack(tmp_path / "five.apk", {f"{number}.pte": b"no program" for number in range(5)})
    inspected = inspect_file(five)  # names four
    damage = "contains files that cannot be used: 0.pte, 1.pte, 2.pte, 3.pte"
    assert (inspected.damage, len(inspected.entries)) == (damage, 5)
    data = package.read_bytes()
    package.write_bytes(data[: len(data) // 2])
    assert "cannot be unpacked" in inspect_file(package).damage
    monkeypatch.setattr("ci.inspect.files.MAX_UNPACKED", 1000)
    inspected = inspect_file(pack(tmp_path / "bomb.apk", {f"{LIB}/libbomb.so": bytes(1001)}))
    assert inspected.entries == ()
    assert "more than 1000 bytes" in inspected.damage


TAR = "is a tar archive, such as the weights that QNN's converters write next to a .cpp"


@pytest.mark.parametrize(
    ("data", "damage"),
    [
        (b"", "is empty"),
        (b"a text of more", "is of an unknown kind: it starts with 61 20 74 65 78 74 20 6f"),
        (bytes(257) + b"ustar", TAR),
        (b"version https://git-lfs.github.com", "is a Git LFS pointer: run `git lfs pull`"),
    ],
)
def test_file_of_no_known_kind_is_described(tmp_path: Path, data: bytes, damage: str) -> None:
    (tmp_path / "m.pte").write_bytes(data)
    assert inspect_file(tmp_path / "m.pte") == Inspected("m.pte", "unknown", len(data), damage)
    (tmp_path / "folder").mkdir()
    for name in ("missing.pte", "folder"):
        with pytest.raises(UsageError, match=name) as caught:
            inspect_file(tmp_path / name)
        assert "--keep-artifacts" in caught.value.fix


def test_inspect_fails_if_a_file_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    intact, cut = str(tmp_path / "whole.pte"), str(tmp_path / "cut.pte")
    Path(intact).write_bytes(make_program())
    Path(cut).write_bytes(make_program()[:-1])
    for files, code in (
        ([intact], ExitCode.OK),
        ([intact, cut], ExitCode.FAILED),
        ([str(tmp_path / "missing.pte")], ExitCode.USAGE),
    ):
        assert main(["inspect", *files]) == code
        assert ("SM8650, V75, 8 MiB VTCM" in capsys.readouterr().out) == (code != ExitCode.USAGE)
    (tmp_path / "net.py").write_text("def net(): ...\n")
    assert main(["inspect", f"{tmp_path}/net.py:net", "--runtime", "litert"]) == ExitCode.USAGE
    assert "net.py:net is a PyTorch model, and inspect reads files" in capsys.readouterr().err


def test_library_for_a_phone_has_its_build_needs_and_api_level(tmp_path: Path) -> None:
    path = tmp_path / "libQnnSystem.so"
    path.write_bytes(library(path.name))
    library_facts = inspect_file(path).library
    assert library_facts
    assert (
        library_facts.machine,
        library_facts.hexagon,
        library_facts.api_level,
        library_facts.align,
    ) == ("aarch64", 0, 30, 16384)
    assert library_facts.build.startswith(f"v{library_facts.qnn}.")
    assert library_facts.qnn.count(".") == 2
    assert (library_facts.soname, library_facts.needed) == (path.name, read_elf(path).needed)
    renamed = inspect_file(path.rename(tmp_path / "libother.so")).library
    assert renamed == library_facts
    path.write_bytes(
        library(path.name).replace(library_facts.build.encode(), b" " * len(library_facts.build))
    )
    without_build = inspect_file(path).library
    assert without_build
    assert (without_build.build, without_build.qnn, without_build.machine) == ("", "", "aarch64")


# -- ONNX -----------------------------------------------------------------------------------------


def test_onnx_context_models_are_read(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="the onnx package is not installed")
    from tests.qnn_provider.contexts import GRAPH, write_context

    binary = make_binary(soc=("SM8750", 69, 79), graphs=(GRAPH,))
    path = write_context(tmp_path, binary)
    inspected = inspect_file(path, "models/m.onnx")
    assert inspected.program
    for part in (inspected, inspected.program):
        assert (part.file, part.kind, part.size_bytes, part.damage) == (
            *("models/m.onnx", "onnx", path.stat().st_size, ""),
        )
    (context,) = inspected.program.contexts
    assert (context.soc, [graph.name for graph in context.graphs]) == ("SM8750", [GRAPH])
    assert [tensor.shape for tensor in inspected.program.methods[0].inputs] == [(1, 3)]
    (tmp_path / "m_ctx_qnn.bin").unlink()
    assert "is missing" in inspect_file(tmp_path / "m_ctx.onnx").damage
    graph = onnx.helper.make_graph([], "net", [], [])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "net.onnx")
    plain = inspect_file(tmp_path / "net.onnx")
    assert (plain.kind, plain.program) == ("onnx", None)
    assert "no EPContext node" in plain.damage
    assert "compile it" in plain.damage
    (packed,) = inspect_file(pack(tmp_path / "app.apk", {"assets/m.onnx": b"no model"})).entries
    assert (packed.file, packed.kind, bool(packed.damage)) == ("assets/m.onnx", "onnx", True)


def test_inspect_seal_refuses_a_truncated_context(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx", reason="the onnx package is not installed")
    from tests.qnn_provider.contexts import GRAPH, read_context, write_context

    binary = make_binary(soc=("SM8750", 69, 79), graphs=(GRAPH,))
    models = {}
    for name, blob in (("cut", binary[:-1]), ("whole", binary)):
        (tmp_path / name).mkdir()
        models[name] = write_context(tmp_path / name, blob)
    before = models["cut"].read_bytes()
    assert main(["inspect", str(models["whole"])]) == ExitCode.OK
    assert not read_context(models["whole"]).seal
    capsys.readouterr()
    words = ["inspect", *map(str, models.values()), "--seal", "--json"]
    assert main(words) == ExitCode.FAILED
    files = json.loads(capsys.readouterr().out)["files"]
    assert [bool(file["damage"]) for file in files] == [True, False]
    assert models["cut"].read_bytes() == before
    assert read_context(models["whole"]).seal
    assert main(["inspect", str(models["whole"])]) == ExitCode.OK


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("readme.txt", "is an archive without a library, a program or an app"),
        ("AndroidManifest.xml", ""),
        ("base.apk", ""),
    ],
)
def test_an_archive_with_nothing_of_an_app_is_damaged(
    tmp_path: Path, name: str, damage: str
) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, "text")
    assert inspect_file(tmp_path / "a.zip").damage == damage
