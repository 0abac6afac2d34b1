"""Context models byte by byte, laid out as ci/onnx/contexts.py says."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.qnn_provider import raw

BUILD = "v2.49.40.260810104044"
GRAPH = "QNNExecutionProvider_QNNExecutionProvider_5242354554972576433_1_0"
COMPATIBILITY = "ep_compatibility_info.QNNExecutionProvider"


def make_blob(
    *, soc: str = "SM8750", arch: int = 79, build: str = BUILD, graph: str = GRAPH
) -> bytes:
    options = f"O=2;soc_type={soc};arch={arch};num_nsps=1;vtcm_size={8 << 20};02reserved_size=0;"
    head = b"\0" + graph.encode() + b"\0\0" + build.encode() + b"\0"
    body = head.ljust(512, b"\0") + options.encode() + bytes(range(256))
    opening = struct.pack(">4I", 2, 3, 0, 1) + struct.pack("<3Q", 928, 4096, len(body))
    return opening.ljust(4096, b"\0") + body


def make_node(cache: str | bytes, *, embed: int, **changes: str | int) -> bytes:
    attributes: dict[str, str | int | bytes] = {
        "main_context": 1,
        "ep_cache_context": cache,
        "embed_mode": embed,
        "source": "QNNExecutionProvider",
        "ep_sdk_version": BUILD,
        "partition_name": GRAPH,
        **changes,
    }
    return raw.node(
        "EPContext",
        ["x"],
        ["y"],
        domain="com.microsoft",
        attributes=[raw.attribute(name, value) for name, value in attributes.items()],
    )


def make_context(nodes: list[bytes], soc: str = "69") -> bytes:
    return raw.model(
        raw.relu_graph(nodes=nodes),
        opsets={"": 21, "com.microsoft": 1},
        metadata={COMPATIBILITY: f"v2:6:2.49.40:5.49.0:0:{soc}:0:0"} if soc else {},
    )


def write_context(
    folder: Path,
    blob: bytes | None = None,
    *,
    cache: str = "m_ctx_qnn.bin",
    soc: str = "69",
    **changes: str | int,
) -> Path:
    """A context model with its binary beside it; ``changes`` are attributes of its node."""
    (folder / "m_ctx_qnn.bin").write_bytes(make_blob() if blob is None else blob)
    path = folder / "m_ctx.onnx"
    path.write_bytes(make_context([make_node(cache, **{"embed": 0, **changes})], soc))  # type: ignore[arg-type]
    return path


def write_embedded(folder: Path, blob: bytes) -> Path:
    path = folder / "m_ctx.onnx"
    path.write_bytes(make_context([make_node(blob, embed=1)]))
    return path
