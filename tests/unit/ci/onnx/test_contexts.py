"""Context models and their binaries: whole, damaged, swapped, for other SoCs and of other QNNs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ci.__main__ import main
from ci.onnx.contexts import check_context, read_context, seal_context
from provisioning.errors import FailedError, QnnCiError, UnfitError, UsageError
from tests.qnn_provider import raw
from tests.qnn_provider.contexts import (
    BUILD,
    GRAPH,
    make_blob,
    make_context,
    make_node,
    write_context,
    write_embedded,
)

NEWER = "v2.60.0.270101000000"
BLOB = make_blob()


def test_what_a_context_holds(tmp_path: Path) -> None:
    context = check_context(write_context(tmp_path), "SM8750", "2.49.40")
    assert context.as_data() == {
        "model": "m_ctx.onnx",
        "binary": "m_ctx_qnn.bin",
        "size_bytes": len(BLOB),
        "embedded": False,
        "provider": "QNNExecutionProvider",
        "qnn": "2.49.40",
        "claimed_qnn": "2.49.40",
        "soc_models": [69],
        "targets": [{"soc": "SM8750", "hexagon": 79, "vtcm_mb": 8}],
        "partitions": [GRAPH],
        "sealed": False,
    }


def test_a_binary_in_the_model(tmp_path: Path) -> None:
    context = check_context(write_embedded(tmp_path, BLOB), "SM8750", "2.49.40")
    assert context.file is None
    assert context.targets[0].soc == "SM8750"


@pytest.mark.parametrize(
    ("blob", "changes", "says"),
    [
        (b"", {}, "m_ctx_qnn.bin, is empty"),
        (b"\0", {}, "has 1 bytes"),
        (BLOB[: len(BLOB) // 2], {}, "cut short"),
        (BLOB[:-1], {}, f"has {len(BLOB) - 1} bytes and its header tells {len(BLOB)}"),
        (BLOB + b"\0", {}, "its header tells"),
        (bytes(len(BLOB)), {}, "its header tells 0"),
        (b"\xff" * len(BLOB), {}, "no size that can be"),
        (b"PK\x03\x04" + bytes(60), {}, "cut short"),
        (make_blob(build="v2"), {}, "names no version of QNN"),
        (make_blob(build=NEWER), {}, "is of QNN 2.60.0, and the model says 2.49.40"),
        (None, {"ep_sdk_version": NEWER}, "is of QNN 2.49.40, and the model says 2.60.0"),
        (make_blob(graph="graph_of_another"), {}, "it is of another model"),
        (None, {"partition_name": GRAPH[:-2]}, "it is of another model"),
        (None, {"cache": "gone.bin"}, "'gone.bin', is not there"),
        (None, {"cache": "sub/m_ctx_qnn.bin"}, "is not there"),
        (None, {"cache": "../m_ctx_qnn.bin"}, "'..'"),
        (None, {"cache": "/etc/hostname"}, "absolute path"),
        (None, {"cache": "link.bin"}, "symbolic link"),
        (None, {"cache": ""}, "no ep_cache_context"),
        (None, {"embed": 2}, "its embed_mode is 2"),
        (None, {"embed": 1}, "has 13 bytes"),
        (None, {"main_context": 0}, "0 of its EPContext nodes are main ones"),
    ],
)
def test_a_broken_context_fails(
    tmp_path: Path, blob: bytes | None, changes: dict[str, str | int], says: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(BLOB)
    (tmp_path / "m_ctx_qnn.bin").write_bytes(BLOB)
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    path = write_context(folder, blob, **changes)  # type: ignore[arg-type]
    with pytest.raises(FailedError) as caught:
        read_context(path)
    assert says in caught.value.why
    assert caught.value.fix
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("blob", [b"\0", BLOB[:-1], make_blob(graph="other")])
def test_a_broken_binary_in_the_model_fails(tmp_path: Path, blob: bytes) -> None:
    with pytest.raises(FailedError, match=r"m_ctx\.onnx cannot be loaded"):
        read_context(write_embedded(tmp_path, blob))


def test_a_binary_that_cannot_be_read(tmp_path: Path) -> None:
    path = write_context(tmp_path)
    (tmp_path / "m_ctx_qnn.bin").chmod(0)
    if os.access(tmp_path / "m_ctx_qnn.bin", os.R_OK):
        pytest.skip("root reads everything")
    with pytest.raises(FailedError, match="cannot be loaded"):
        read_context(path)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (raw.relu(), "it has no EPContext node"),
        (make_context([make_node("a", embed=0, source="OpenVINO")]), "is not a context model of"),
        (make_context([make_node("a", embed=0)])[:-9], "is not an ONNX model"),
    ],
)
def test_what_is_no_context_model_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        read_context(path)
    assert says in caught.value.what


@pytest.mark.parametrize(
    ("soc", "blob", "listed", "says"),
    [
        ("SM8650", None, "69", "compiled for SM8750, not for SM8650"),
        ("SM8650", None, "", "compiled for SM8750, not for SM8650"),
        ("SM8750", make_blob(soc="SM8550", arch=73), "69", "compiled for SM8550, not for SM8750"),
        ("SM8750", make_blob(soc="UNKNOWN_SDM", arch=68), "0", "compiled for no SoC, not for"),
        ("SM8750", make_blob(soc="SM8650", arch=75), "57,43", "compiled for SM8650, not for"),
    ],
)
def test_a_context_for_another_soc_does_not_fit(
    tmp_path: Path, soc: str, blob: bytes | None, listed: str, says: str
) -> None:
    path = write_context(tmp_path, blob, soc=listed)
    with pytest.raises(UnfitError) as caught:
        check_context(path, soc)
    assert says in caught.value.what
    assert caught.value.exit_code == 3
    assert "soc_model=" in caught.value.fix


def test_socs_are_told_by_either_source(tmp_path: Path) -> None:
    check_context(write_context(tmp_path, soc=""), "SM8750")
    check_context(write_context(tmp_path, make_blob(soc="QCS6490", arch=68), soc="93"), "QCM6490")
    check_context(write_context(tmp_path, soc="57,69"), "SM8750")


@pytest.mark.parametrize(
    ("runtime", "fits"),
    [("2.49.40", True), ("2.50.0", True), ("2.49.39", False), ("2.9.0", False), ("", True)],
)
def test_a_runtime_loads_what_is_not_newer(tmp_path: Path, runtime: str, fits: bool) -> None:
    path = write_context(tmp_path)
    if fits:
        check_context(path, "SM8750", runtime)
        return
    with pytest.raises(UnfitError) as caught:
        check_context(path, "SM8750", runtime)
    assert f"compiled with QNN 2.49.40, the runtime is {runtime}" in caught.value.what


def test_a_newer_compiler_is_named_where_both_say_so(tmp_path: Path) -> None:
    path = write_context(tmp_path, make_blob(build=NEWER), ep_sdk_version=NEWER)
    with pytest.raises(UnfitError, match=r"QNN 2\.60\.0, the runtime is 2\.49\.40"):
        check_context(path, "SM8750", "2.49.40")


def test_two_graphs_share_a_binary(tmp_path: Path) -> None:
    blob = make_blob(graph="first\0second")
    nodes = [
        make_node("m_ctx_qnn.bin", embed=0, partition_name="first"),
        make_node("", embed=0, partition_name="second", main_context=0),
    ]
    path = write_context(tmp_path, blob)
    path.write_bytes(make_context(nodes))
    assert read_context(path).partitions == ("first", "second")
    path.write_bytes(make_context([nodes[0], nodes[0]]))
    with pytest.raises(FailedError) as caught:
        read_context(path)
    assert "2 of its EPContext nodes are main ones" in caught.value.why
    (tmp_path / "m_ctx_qnn.bin").unlink()
    path.write_bytes(make_context(nodes))
    with pytest.raises(FailedError) as caught:
        read_context(path)
    assert "ep.stop_share_ep_contexts=1" in caught.value.fix


@pytest.mark.parametrize("embedded", [True, False])
def test_a_sealed_binary_that_was_changed_is_found(tmp_path: Path, embedded: bool) -> None:
    write = write_embedded if embedded else write_context
    path = write(tmp_path, BLOB)
    changed = bytearray(BLOB)
    changed[-5] ^= 1
    write(tmp_path, bytes(changed))
    assert not read_context(path).sealed  # nothing tells it without a seal
    write(tmp_path, BLOB)
    digest = seal_context(path)
    written = path.read_bytes()
    assert seal_context(path) == digest
    assert path.read_bytes() == written
    assert read_context(path).sealed
    if embedded:
        data = path.read_bytes()
        at = data.index(BLOB) + len(BLOB) - 5
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    else:
        (tmp_path / "m_ctx_qnn.bin").write_bytes(changed)
    with pytest.raises(FailedError) as caught:
        read_context(path)
    assert "its SHA-256 is another" in caught.value.why


def test_the_verb_says_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_context(tmp_path)
    assert main(["context", str(path), "--soc", "sm8750", "--qnn", "2.49.40", "--seal"]) == 0
    shown = capsys.readouterr().out
    for words in ("QNN 2.49.40", "SM8750 (V79, 8 MB VTCM)", "m_ctx_qnn.bin", "fits SM8750", "yes,"):
        assert words in shown
    assert main(["context", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["targets"][0]["hexagon"] == 79
    assert main(["context", str(path), "--soc", "SM8550"]) == 3
    assert main(["context", str(path), "--qnn", "2.49"]) == 2
    (tmp_path / "m_ctx_qnn.bin").unlink()
    assert main(["context", str(path)]) == 1


def test_no_damage_gives_anything_but_an_error(tmp_path: Path) -> None:
    path = write_context(tmp_path)
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        try:
            check_context(path, "SM8750", "2.49.40")
        except QnnCiError:
            refused += 1
    assert refused > len(whole) // 9
    assert BUILD.encode() in whole
