"""Context models and their binaries: whole, damaged, swapped, for other SoCs and of other QNNs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx", reason="onnx is not installed")


from ci.onnx.contexts import check_context, seal_context
from provisioning.errors import FailedError, QnnCiError, UnfitError
from tests.qnn_provider.contexts import (
    BINARY,
    BUILD,
    GRAPH,
    make_blob,
    make_node,
    read_context,
    write_context,
    write_embedded,
    write_nodes,
)
from tests.stand_ins.snapshots import check_results

ROOT = Path(__file__).parents[4]
SNAPSHOTS = Path(__file__).with_name("snapshots")
NEWER = "v2.60.0.270101000000"
BLOB = make_blob()
SEVERAL = "\0".join(
    [
        GRAPH,
        *(
            f"soc_type={name};arch=75;num_nsps=1;vtcm_size={8 << 20};"
            for name in ("SM8850", "SM8650", "SM8450")
        ),
    ]
)
UNNAMED = make_blob(soc="UNKNOWN_SDM", arch=68)
OF_8650 = make_blob(soc="SM8650", arch=75)

# The binary, the SoC numbers of the model's metadata, attributes of its node; None removes one.
CONTEXTS: dict[str, tuple[bytes | None, str, dict[str, Any]]] = {
    "whole": (None, "69", {}),
    "embedded": (None, "69", {"ep_cache_context": BLOB, "embed_mode": 1}),
    "no main_context": (
        None,
        "69",
        {"ep_cache_context": BLOB, "embed_mode": 1, "main_context": None},
    ),
    "no embed_mode": (None, "69", {"ep_cache_context": BLOB, "embed_mode": None}),
    "provider QNN": (None, "69", {"source": "QNN"}),
    "version without v": (None, "69", {"ep_sdk_version": BUILD[1:]}),
    "no provider and version": (None, "69", {"source": None, "ep_sdk_version": None}),
    "newer": (make_blob(build=NEWER), "69", {"ep_sdk_version": NEWER}),
    "other SoC in the metadata": (None, "57,43", {}),
    "no SoC in the metadata": (None, "", {}),
    "other SoC in the binary": (make_blob(soc="SM8550", arch=73), "69", {}),
    "same SoC by another name": (make_blob(soc="QCS6490", arch=68), "93", {}),
    "unnamed SoC": (UNNAMED, "0", {}),
    "SM8650 in the binary": (OF_8650, "57,69", {}),
    "several SoCs": (make_blob(graph=SEVERAL), "57,69", {}),
    "several SoCs, in the binary alone": (make_blob(graph=SEVERAL), "", {}),
    # Broken ones.
    "empty": (b"", "69", {}),
    "a byte": (b"\0", "69", {}),
    "half": (BLOB[: len(BLOB) // 2], "69", {}),
    "a byte short": (BLOB[:-1], "69", {}),
    "a byte more": (BLOB + b"\0", "69", {}),
    "zeros": (bytes(len(BLOB)), "69", {}),
    "ones": (b"\xff" * len(BLOB), "69", {}),
    "an archive cut short": (b"PK\x03\x04" + bytes(60), "69", {}),
    "no version": (make_blob(build="v2"), "69", {}),
    "a newer binary": (make_blob(build=NEWER), "69", {}),
    "a newer model": (None, "69", {"ep_sdk_version": NEWER}),
    "another graph": (make_blob(graph="graph_of_another"), "69", {}),
    "a part of a name": (None, "69", {"partition_name": GRAPH[:-2]}),
    "missing": (None, "69", {"ep_cache_context": "gone.bin"}),
    "below": (None, "69", {"ep_cache_context": f"sub/{BINARY}"}),
    "above": (None, "69", {"ep_cache_context": f"../{BINARY}"}),
    "anywhere": (None, "69", {"ep_cache_context": "/etc/hostname"}),
    "through a link": (None, "69", {"ep_cache_context": "link.bin"}),
    "no name": (None, "69", {"ep_cache_context": ""}),
    "mode 2": (None, "69", {"embed_mode": 2}),
    "a name for a binary": (None, "69", {"embed_mode": 1}),
    "embedded, a byte short": (None, "69", {"ep_cache_context": BLOB[:-1], "embed_mode": 1}),
    "not main": (None, "69", {"main_context": 0}),
    "of OpenVINO": (None, "69", {"source": "OpenVINO"}),
}
ASKED = ("SM8750", "SM8650", "SM8550", "QCM6490")


def make_changed(**changes: Any) -> Any:
    node = make_node(**{name: value for name, value in changes.items() if value is not None})
    remaining = [
        attribute for attribute in node.attribute if changes.get(attribute.name, 0) is not None
    ]
    del node.attribute[:]
    node.attribute.extend(remaining)
    return node


def test_a_context_fits_or_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Each requested SoC is checked; a damaged context is refused for all of them."""
    calls: dict[str, Any] = {}
    for number, (name, (blob, socs, changes)) in enumerate(CONTEXTS.items()):
        folder = tmp_path / str(number) / "model"
        folder.mkdir(parents=True)
        for outside in ("outside.bin", BINARY):
            (folder.parent / outside).write_bytes(BLOB)
        (folder / "link.bin").symlink_to(folder.parent / "outside.bin")
        (folder / BINARY).write_bytes(BLOB if blob is None else blob)
        path = write_nodes(folder / "m_ctx.onnx", [make_changed(**changes)], socs)
        calls[name] = partial(describe, path)
        if number:
            continue
        calls |= {soc: partial(check_context, path, soc) for soc in ASKED[1:3]}
    check_results(SNAPSHOTS / "contexts.txt", calls, tmp_path)


def describe(path: Path) -> str:
    """What a context holds, and what it fits."""
    return "\n  ".join([str(read_context(path)), *map(partial(fit, path), ASKED)])


def fit(path: Path, soc: str) -> str:
    try:
        check_context(path, soc)
    except UnfitError as error:
        return error.what
    return f"fits {soc}"


def test_a_context_binary_with_many_possible_starts_is_scanned_once(tmp_path: Path) -> None:
    """Scanning it from each possible start would take hours."""
    path = write_context(tmp_path, make_blob(graph="soc_type=a;arch=1;" * 100_000))
    with pytest.raises(FailedError):
        read_context(path)


def test_what_is_no_context_model_of_qnn_is_refused(tmp_path: Path) -> None:
    rows = [[], [make_node(source=name) for name in ("D", "B", "OpenVINO", "A", "C")]]
    rows.append([make_node(), make_node(source="OpenVINO", main_context=0)])
    calls = {
        f"{number}": partial(read_context, write_nodes(tmp_path / f"{number}.onnx", nodes))
        for number, nodes in enumerate(rows)
    }
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(write_context(tmp_path).read_bytes()[:-9])
    calls["cut"] = partial(read_context, cut)
    check_results(SNAPSHOTS / "no contexts.txt", calls, tmp_path)


def test_two_context_nodes_may_share_one_binary(tmp_path: Path) -> None:
    path = write_context(tmp_path, make_blob(graph="first\0second"))
    nodes = [
        make_node(partition_name="first"),
        make_node(ep_cache_context="", partition_name="second", main_context=0),
    ]
    write_nodes(path, nodes)
    assert read_context(path).partitions == ("first", "second")
    write_nodes(path, [nodes[0], nodes[0]])
    with pytest.raises(FailedError, match="2 EPContext nodes"):
        read_context(path)
    (tmp_path / BINARY).unlink()
    with pytest.raises(FailedError, match=r"ep.stop_share_ep_contexts=1"):
        read_context(write_nodes(path, nodes))


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
    seal_context(path)
    assert read_context(path).seal == hashlib.sha256(BLOB).hexdigest()
    written = path.read_bytes()
    assert written.startswith(before), "what the provider wrote stays as it is"
    seal_context(path)
    assert path.read_bytes() == written
    file = path if embedded else tmp_path / BINARY
    file.write_bytes(file.read_bytes().replace(BLOB, changed))
    with pytest.raises(FailedError) as caught:
        read_context(path)
    assert "SHA-256" in caught.value.why


def test_inspect_names_the_missing_onnx_package(tmp_path: Path) -> None:
    path = write_context(tmp_path)
    # Python imports this file first. In this process, modules that are imported again are others
    # than those that the next tests have.
    (tmp_path / "sitecustomize.py").write_text('import sys\n\nsys.modules["onnx"] = None\n')
    ended = subprocess.run(
        [sys.executable, "-m", "ci", "inspect", path],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, "'onnx'" in ended.stderr, "[onnx]" in ended.stderr) == (3, True, True)


def test_a_damaged_context_model_raises_only_our_errors(tmp_path: Path) -> None:
    path = write_context(tmp_path)
    content = path.read_bytes()
    refused = 0
    for place in range(0, len(content), 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :])
        try:
            check_context(path, "SM8750")
        except QnnCiError:
            refused += 1
    assert refused > len(content) // 9
