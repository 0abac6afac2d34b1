"""Context models and their binaries: whole, damaged, swapped, for other SoCs and of other QNNs."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
import onnx

from ci.__main__ import main
from ci.onnx.contexts import (
    COMPATIBILITY,
    Context,
    check_context,
    measure_constant,
    read_context,
    seal_context,
)
from provisioning.elf.programs import Target
from provisioning.errors import FailedError, QnnCiError, UnfitError, UsageError
from tests.qnn_provider.contexts import (
    BINARY,
    BUILD,
    GRAPH,
    make_blob,
    make_node,
    write_context,
    write_embedded,
    write_nodes,
)
from tests.stand_ins.users import unprivileged

NEWER = "v2.60.0.270101000000"
BLOB = make_blob()


def test_what_a_context_holds(tmp_path: Path) -> None:
    facts = {
        "model": "m_ctx.onnx",
        "binary": BINARY,
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
    assert check_context(write_context(tmp_path), "SM8750", "2.49.40").as_data() == facts
    inside = {**facts, "binary": None, "embedded": True}
    path = write_embedded(tmp_path, BLOB)
    assert check_context(path, "SM8750", "2.49.40").as_data() == inside


def test_each_field_of_a_context_has_a_key() -> None:
    context = Context(
        path=Path("in/m_ctx.onnx"),
        partitions=("one", "two"),
        source="QNN",
        sdk_version="2.48.40",
        qnn="2.49.40",
        socs=(69, 57),
        targets=(Target("SM8750", 79, 8), Target("SM8650", 75, 4)),
        file=Path("in/m_qnn.bin"),
        size_bytes=12,
        seal="5" * 64,
    )
    assert context.as_data() == {
        "model": "m_ctx.onnx",
        "binary": "m_qnn.bin",
        "size_bytes": 12,
        "embedded": False,
        "provider": "QNN",
        "qnn": "2.49.40",
        "claimed_qnn": "2.48.40",
        "soc_models": [69, 57],
        "targets": [
            {"soc": "SM8750", "hexagon": 79, "vtcm_mb": 8},
            {"soc": "SM8650", "hexagon": 75, "vtcm_mb": 4},
        ],
        "partitions": ["one", "two"],
        "sealed": True,
    }


@pytest.mark.parametrize("missing", ["main_context", "embed_mode"])
def test_a_missing_attribute_of_a_context_is_1(tmp_path: Path, missing: str) -> None:
    node = make_node(ep_cache_context=BLOB, embed_mode=1)
    kept = [one for one in node.attribute if one.name != missing]
    assert len(kept) < len(node.attribute)
    del node.attribute[:]
    node.attribute.extend(kept)
    context = read_context(write_nodes(tmp_path / "m_ctx.onnx", [node]))
    assert (context.file, context.size_bytes) == (None, len(BLOB))


def test_the_provider_of_a_context_may_be_called_qnn_and_its_version_lack_a_v(
    tmp_path: Path,
) -> None:
    assert read_context(write_context(tmp_path, source="QNN")).source == "QNN"
    path = write_context(tmp_path, ep_sdk_version=BUILD.removeprefix("v"))
    assert read_context(path).sdk_version == "2.49.40"


def test_a_context_may_lack_its_provider_and_version(tmp_path: Path) -> None:
    node = make_node(ep_cache_context=BLOB, embed_mode=1)
    kept = [one for one in node.attribute if one.name not in {"source", "ep_sdk_version"}]
    del node.attribute[:]
    node.attribute.extend(kept)
    context = check_context(write_nodes(tmp_path / "m_ctx.onnx", [node]), "SM8750", "2.49.40")
    assert (context.source, context.sdk_version, context.qnn) == ("", "", "2.49.40")
    with pytest.raises(UnfitError, match=r"with QNN 2\.49\.40, but the runtime is 2\.37"):
        check_context(context.path, "SM8750", "2.37.0")


# The binary, the node's attributes, and what the error has to name.
BROKEN: dict[str, tuple[bytes | None, dict[str, Any], str]] = {
    "empty": (b"", {}, f"{BINARY}, is empty"),
    "a byte": (b"\0", {}, "1 byte long"),
    "half": (BLOB[: len(BLOB) // 2], {}, f"{len(BLOB)}"),
    "a byte short": (BLOB[:-1], {}, f"long, but its header states {len(BLOB)}"),
    "a byte more": (BLOB + b"\0", {}, f"header states {len(BLOB)}"),
    "zeros": (bytes(len(BLOB)), {}, "header states 0"),
    "ones": (b"\xff" * len(BLOB), {}, "header"),
    "an archive cut short": (b"PK\x03\x04" + bytes(60), {}, "cut short"),
    "no version": (make_blob(build="v2"), {}, "does not contain a QNN version"),
    "a newer binary": (make_blob(build=NEWER), {}, "from QNN 2.60.0, but its EPContext node"),
    "a newer model": (None, {"ep_sdk_version": NEWER}, "EPContext node names 2.60.0"),
    "another graph": (make_blob(graph="graph_of_another"), {}, GRAPH),
    "a part of a name": (None, {"partition_name": GRAPH[:-2]}, GRAPH[:-2]),
    "missing": (None, {"ep_cache_context": "gone.bin"}, "gone.bin"),
    "below": (None, {"ep_cache_context": f"sub/{BINARY}"}, "missing"),
    "above": (None, {"ep_cache_context": f"../{BINARY}"}, "'..'"),
    "anywhere": (None, {"ep_cache_context": "/etc/hostname"}, "absolute path"),
    "through a link": (None, {"ep_cache_context": "link.bin"}, "symbolic link"),
    "no name": (None, {"ep_cache_context": ""}, "no ep_cache_context"),
    "mode 2": (None, {"embed_mode": 2}, "embed_mode is 2"),
    "a name for a binary": (None, {"embed_mode": 1}, f"{len(BINARY)} bytes"),
    "not main": (None, {"main_context": 0}, "0 EPContext nodes with main_context=1"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_context_fails(name: str, tmp_path: Path) -> None:
    blob, changes, fact = BROKEN[name]
    folder = tmp_path / "model"
    folder.mkdir()
    for outside in ("outside.bin", BINARY):
        (tmp_path / outside).write_bytes(BLOB)
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    path = write_context(folder, blob, **changes)
    with pytest.raises(FailedError) as caught:
        read_context(path)
    assert fact in caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize("place", [0, 1])
def test_every_graph_of_the_model_has_to_be_in_its_binary(tmp_path: Path, place: int) -> None:
    names = [GRAPH, GRAPH]
    path = write_embedded(tmp_path, BLOB)
    names[place] = "graph_of_another"
    nodes = [
        make_node(ep_cache_context=BLOB, embed_mode=1, partition_name=name, main_context=number)
        for number, name in enumerate(names)
    ]
    write_nodes(path, nodes)
    with pytest.raises(FailedError) as caught:
        read_context(path)
    assert "graph_of_another" in caught.value.why


@pytest.mark.parametrize("blob", [b"\0", BLOB[:-1], make_blob(graph="other")])
def test_a_broken_binary_in_the_model_fails(tmp_path: Path, blob: bytes) -> None:
    with pytest.raises(FailedError, match=r"m_ctx\.onnx cannot be loaded"):
        read_context(write_embedded(tmp_path, blob))


def test_an_archive_need_not_contain_a_qnn_version(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "graphs", "w") as archive:
        archive.writestr("graph", b"\0" + GRAPH.encode() + b"\0")
    blob = (tmp_path / "graphs").read_bytes()
    context = read_context(write_embedded(tmp_path, blob))
    assert (context.qnn, context.size_bytes, context.file) == ("", len(blob), None)
    assert check_context(write_embedded(tmp_path, blob, ep_sdk_version=""), "SM8750", "2.1.0")
    with pytest.raises(UnfitError, match=r"with QNN 2\.49\.40, but the runtime is 2\.48\.40"):
        check_context(write_embedded(tmp_path, blob), "SM8750", "2.48.40")
    with pytest.raises(FailedError) as caught:
        read_context(write_embedded(tmp_path, make_blob(build="none")))
    assert "does not contain a QNN version" in caught.value.why


def test_a_binary_that_cannot_be_read(tmp_path: Path) -> None:
    path = write_context(tmp_path)
    (tmp_path / BINARY).chmod(0)
    with unprivileged(tmp_path), pytest.raises(FailedError, match="cannot be loaded") as caught:
        read_context(path)
    assert "Permission denied" in caught.value.why


def test_a_binary_of_many_beginnings_is_read_once(tmp_path: Path) -> None:
    """Read anew from each beginning, it would take hours."""
    path = write_context(tmp_path, make_blob(graph="soc_type=a;arch=1;" * 100_000))
    with pytest.raises(FailedError):
        read_context(path)


def test_what_is_no_context_model_is_refused(tmp_path: Path) -> None:
    path = write_nodes(tmp_path / "m.onnx", [])
    with pytest.raises(UsageError, match="no EPContext node"):
        read_context(path)
    write_nodes(path, [make_node(source="OpenVINO")])
    with pytest.raises(UsageError, match="not a context model of QNN") as caught:
        read_context(path)
    assert "OpenVINO" in caught.value.why
    names = ["D", "B", "OpenVINO", "A", "C"]
    write_nodes(path, [make_node(source=name) for name in names])
    with pytest.raises(UsageError) as caught:
        read_context(path)
    assert ", ".join(sorted(names)) in caught.value.why
    write_nodes(path, [make_node(), make_node(source="OpenVINO", main_context=0)])
    with pytest.raises(UsageError, match="not a context model of QNN"):
        read_context(path)
    path.write_bytes(write_context(tmp_path).read_bytes()[:-9])
    with pytest.raises(UsageError, match="not an ONNX model"):
        read_context(path)


@pytest.mark.parametrize(
    ("soc", "blob", "listed", "made_for"),
    [
        ("SM8650", None, "69", "SM8750"),
        ("SM8650", None, "", "for SM8750, not for SM8650"),
        ("SM8750", None, "57,43", "57, 43"),
        ("SM8750", make_blob(soc="SM8550", arch=73), "69", "SM8550"),
        ("SM8750", make_blob(soc="QCS8550", arch=73), "69", "QCS8550"),
        ("SM8750", make_blob(soc="UNKNOWN_SDM", arch=68), "0", "does not name the SoC"),
        ("SM8750", make_blob(soc="SM8650", arch=75), "57,43", "SM8650"),
        ("SM8750", make_blob(soc="SM8650", arch=75), "57,69", "SM8650"),
    ],
)
def test_a_context_for_another_soc_does_not_fit(
    tmp_path: Path, soc: str, blob: bytes | None, listed: str, made_for: str
) -> None:
    path = write_context(tmp_path, blob, soc=listed)
    with pytest.raises(UnfitError, match=made_for) as caught:
        check_context(path, soc)
    assert "soc_model=" in caught.value.fix


def test_socs_are_read_from_metadata_of_the_known_version_only(tmp_path: Path) -> None:
    path = write_context(tmp_path, soc="")
    for value, socs in (
        ("v2:6:2.49.40:5.49.0:0:57,x,0,69:0:0", (57, 69)),
        ("v2:6:2.49.40:5.49.0:0:57", (57,)),
        ("v2:6:2.49.40:5.49.0:0", ()),
        ("v3:6:2.49.40:5.49.0:0:57:0:0", ()),
    ):
        model = onnx.load(path)
        del model.metadata_props[:]
        model.metadata_props.add(key=COMPATIBILITY, value=value)
        onnx.save(model, path)
        assert read_context(path).socs == socs


def test_socs_are_known_by_either_source(tmp_path: Path) -> None:
    check_context(write_context(tmp_path, soc=""), "SM8750")
    check_context(write_context(tmp_path, make_blob(soc="QCS6490", arch=68), soc="93"), "QCM6490")
    check_context(write_context(tmp_path, soc="57,69"), "SM8750")


@pytest.mark.parametrize("listed", ["57,69", "69,57", ""])
def test_a_binary_for_several_socs_fits_each_of_them(tmp_path: Path, listed: str) -> None:
    names = ["SM8850", "SM8650", "SM8450"]
    others = (f"soc_type={name};arch=75;num_nsps=1;vtcm_size={8 << 20};" for name in names)
    path = write_context(tmp_path, make_blob(graph="\0".join([GRAPH, *others])), soc=listed)
    for soc in ("SM8650", "SM8750"):
        targets = check_context(path, soc).targets
        assert [one.soc for one in targets] == sorted([*names, "SM8750"])
    told = "for SM8450 and SM8650 and SM8750 and SM8850, not for SM8550"
    with pytest.raises(UnfitError, match=told):
        check_context(path, "SM8550")


@pytest.mark.parametrize(
    ("build", "runtime", "fits"),
    [
        (BUILD, "2.49.40", True),
        (BUILD, "2.50.0", True),
        (BUILD, "2.49.39", False),
        (BUILD, "2.9.0", False),
        (BUILD, "", True),
        (NEWER, "2.49.40", False),
    ],
)
def test_a_runtime_loads_what_is_not_newer(
    tmp_path: Path, build: str, runtime: str, fits: bool
) -> None:
    path = write_context(tmp_path, make_blob(build=build), ep_sdk_version=build)
    if fits:
        check_context(path, "SM8750", runtime)
        return
    with pytest.raises(UnfitError, match=f"QNN {build[1:5]}.*, but the runtime is {runtime}"):
        check_context(path, "SM8750", runtime)


def test_two_graphs_share_a_binary(tmp_path: Path) -> None:
    path = write_context(tmp_path, make_blob(graph="first\0second"))
    nodes = [
        make_node(partition_name="first"),
        make_node(ep_cache_context="", partition_name="second", main_context=0),
    ]
    write_nodes(path, nodes)
    assert read_context(path).partitions == ("first", "second")
    write_nodes(path, [nodes[0], nodes[0]])
    with pytest.raises(FailedError) as caught:
        read_context(path)
    assert "2 EPContext nodes" in caught.value.why
    (tmp_path / BINARY).unlink()
    write_nodes(path, nodes)
    with pytest.raises(FailedError) as caught:
        read_context(path)
    assert "ep.stop_share_ep_contexts=1" in caught.value.fix


@pytest.mark.parametrize("claimed", ["2.49.40", ""])
@pytest.mark.parametrize("embedded", [True, False])
def test_a_sealed_binary_that_was_changed_is_found(
    tmp_path: Path, embedded: bool, claimed: str
) -> None:
    write = partial(write_embedded if embedded else write_context, ep_sdk_version=claimed)
    changed = BLOB[:-5] + bytes([BLOB[-5] ^ 1]) + BLOB[-4:]
    assert not read_context(write(tmp_path, changed)).seal  # nothing says so without a seal
    path = write(tmp_path, BLOB)
    before = path.read_bytes()
    digest = seal_context(path)
    assert digest == hashlib.sha256(BLOB).hexdigest() == read_context(path).seal
    written = path.read_bytes()
    assert written.startswith(before), "what the provider wrote stays as it is"
    assert (seal_context(path), path.read_bytes()) == (digest, written)
    file = path if embedded else tmp_path / BINARY
    file.write_bytes(file.read_bytes().replace(BLOB, changed))
    with pytest.raises(FailedError) as caught:
        read_context(path)
    assert "SHA-256" in caught.value.why


def test_without_the_onnx_package_the_verb_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_context(tmp_path)
    for name in [one for one in sys.modules if one.startswith(("ci.onnx.", "onnx"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["inspect", str(path)]) == 3
    said = capsys.readouterr().err
    assert "'onnx'" in said
    assert "[onnx]" in said


def test_the_size_of_a_constant_is_that_of_its_values_wherever_they_are() -> None:
    make = onnx.helper.make_tensor
    beside = onnx.TensorProto(data_type=onnx.TensorProto.FLOAT16, dims=[5])
    for tensor, size in (
        (make("a", onnx.TensorProto.INT4, [3], b"\x21\x03", raw=True), 2),
        (make("b", onnx.TensorProto.FLOAT, [2, 3], [1.0] * 6), 24),
        (make("c", onnx.TensorProto.STRING, [2], [b"ab", b"c"]), 3),
        (beside, 10),
    ):
        assert measure_constant(tensor) == size


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
