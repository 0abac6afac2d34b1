"""Context models and their binaries, laid out as ci/onnx/contexts.py says."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnx import helper

from ci.onnx.contexts import Context, open_context
from tests.qnn_provider.models import build_model, tensor

BUILD = "v2.49.40.260810104044"
GRAPH = "QNNExecutionProvider_QNNExecutionProvider_5242354554972576433_1_0"
COMPATIBILITY = "ep_compatibility_info.QNNExecutionProvider"
BINARY = "m_ctx_qnn.bin"


def read_context(path: Path) -> Context:
    return open_context(path)[1]


def make_blob(
    *, soc: str = "SM8750", arch: int = 79, build: str = BUILD, graph: str = GRAPH
) -> bytes:
    options = f"O=2;soc_type={soc};arch={arch};num_nsps=1;vtcm_size={8 << 20};02reserved_size=0;"
    head = b"\0" + graph.encode() + b"\0\0" + build.encode() + b"\0"
    body = head.ljust(512, b"\0") + options.encode() + bytes(range(256))
    opening = struct.pack(">4I", 2, 3, 0, 1) + struct.pack("<3Q", 928, 4096, len(body))
    return opening.ljust(4096, b"\0") + body


def make_node(**changes: str | bytes | int) -> Any:
    attributes = {
        "main_context": 1,
        "ep_cache_context": BINARY,
        "embed_mode": 0,
        "source": "QNNExecutionProvider",
        "ep_sdk_version": BUILD,
        "partition_name": GRAPH,
        **changes,
    }
    return helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **attributes)


def write_nodes(path: Path, nodes: Sequence[Any], soc: str = "69") -> Path:
    """A context model of these nodes, for the SoC of that number by its metadata."""
    model = build_model(nodes, [tensor("x", (1, 3))], [tensor("y", (1, 3))])
    if soc:
        model.metadata_props.add(key=COMPATIBILITY, value=f"v2:6:2.49.40:5.49.0:0:{soc}:0:0")
    path.write_bytes(model.SerializeToString())
    return path


def write_context(
    folder: Path, blob: bytes | None = None, *, soc: str = "69", **changes: str | int
) -> Path:
    """A context model with its binary next to it; ``changes`` are attributes of its node."""
    (folder / BINARY).write_bytes(make_blob() if blob is None else blob)
    return write_nodes(folder / "m_ctx.onnx", [make_node(**changes)], soc)


def write_embedded(folder: Path, blob: bytes, **changes: str | int) -> Path:
    node = make_node(ep_cache_context=blob, embed_mode=1, **changes)
    return write_nodes(folder / "m_ctx.onnx", [node])
