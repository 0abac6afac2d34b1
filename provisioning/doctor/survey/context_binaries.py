"""Read QNN context binaries: the compiler's version, the target, and each graph with its inputs and
outputs.

The format is not published. In binaries of QNN 2.29, 2.31, 2.37 and 2.47 to 2.51, a flatbuffer
starts at byte 40, after the header that provisioning/elf/programs.py describes; the u64 at byte 16
is its size. The meaning of its fields was found by comparing binaries with their sources.
QnnSystemContext_BinaryInfo_t of libQnnSystem has the same parts.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from provisioning.elf.programs import (
    ARCHIVE,
    BINARY,
    CONTEXT,
    MAGIC,
    NO_SOC,
    Table,
    Tables,
    Target,
    View,
    find_context_damage,
    find_targets,
)
from provisioning.elf.qnn_build import search_whole
from provisioning.manifest.targets import name_socs

INFO_AT, SIZE_AT = 40, 16
KNOWN_INFO = 3  # the supported versions of QnnSystemContext_BinaryInfo_t and of the graphs in it
UNDEFINED = 0x7FFFFFFF
MIN_ARCH = re.compile(rb"min_arch=(\d{1,3})")
# Offsets in HTP's data about a graph: its spill-fill buffer (u64, first in
# QnnHtpSystemContext_GraphBlobInfoV1_t; 8 MB for six convolutions of 64 x 256 x 256, 0 for those of
# 16 x 16 x 16), its VTCM (u32) and the size of its constants (u64). The latter depends on the bits
# per weight: an mlp with 16, 8 and 4 bits has 44, 28 and 20 KiB of constants.
# At SHARED_AT is the size of the weights that graphs of a context share (u64): 60 KiB for two
# graphs of a decoder with shared weights, 0 for the same two in separate contexts.
SPILL_AT, VTCM_AT, CONSTANTS_AT, SHARED_AT = 8, 16, 88, 104
SCALE_OFFSET = 0
# Scales of two files that were compiled from the same encodings may differ in their last digits.
SCALE_TOLERANCE = 0.01
# Kinds of Qnn_DataType_t (QnnTypes.h), with their sizes in bits. The first byte of a number is
# the kind, in this order, and the second is the size as it is written: 0x0316 is sfixed16.
KINDS = {
    "int": (8, 16, 32, 64),
    "uint": (8, 16, 32, 64),
    "float": (16, 32, 64),
    "sfixed": (4, 8, 16, 32),
    "ufixed": (4, 8, 16, 32),
    "bool": (8,),
}
DTYPES = {
    int(f"{number}{bits:02}", 16): f"{kind}{bits}"
    for number, (kind, sizes) in enumerate(KINDS.items())
    for bits in sizes
}
# Names of backends. The keys are their ids in QNN's headers.
BACKENDS = {3: "CPU", 4: "GPU", 5: "DSP", 6: "HTP", 12: "LPAI"}


@dataclass(frozen=True)
class TensorSpec:
    """An input or output. QNN's fixed-point types (``ufixed8``) have a scale and a zero point:
    value = scale * (number - zero_point)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float | None = None
    zero_point: int | None = None

    def is_encoded_as(self, other: TensorSpec) -> bool:
        """Return whether the numbers of two tensors mean the same values."""
        if (self.dtype, self.zero_point) != (other.dtype, other.zero_point):
            return False
        return math.isclose(self.scale or 0, other.scale or 0, rel_tol=SCALE_TOLERANCE)

    @property
    def encoding(self) -> str:
        """Return the type of the tensor, with its scale and zero point if it has them."""
        if not self.scale:
            return self.dtype
        return f"{self.dtype} with the scale {self.scale:.4g} and zero point {self.zero_point}"


@dataclass(frozen=True)
class Graph:
    """A graph of a context; ``vtcm_mb`` is the VTCM that it was compiled for, ``constant_bytes``
    the size of its weights, biases and tables, ``spill_bytes`` the size of the buffer for what does
    not fit in VTCM, ``shared_bytes`` the size of the weights that it shares with other graphs. None
    if unknown.
    """

    name: str
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    vtcm_mb: int | None = None
    constant_bytes: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True)
class ContextBinary:
    """A context binary at byte ``offset`` of its file.

    ``build`` is QNN's full version, ``qnn`` its numbers (2.49.40), ``core_api`` and ``backend_api``
    are the versions of QNN's API and of the backend's; ``format`` is the version of the backend's
    data. ``binary_info`` is the version of the description of its graphs. ``soc_id`` is QNN's
    number of the SoC, ``min_arch`` the oldest Hexagon version in the compiler's options.
    ``targets`` are the distinct targets of its graphs. Unknown values are empty or 0. ``unread`` is
    the reason why its graphs cannot be listed, ``damage`` the reason why it cannot be loaded.
    """

    offset: int
    size_bytes: int
    build: str = ""
    qnn: str = ""
    backend: str = ""
    binary_info: int = 0
    core_api: str = ""
    backend_api: str = ""
    format: str = ""
    soc: str = ""
    soc_id: int = 0
    hexagon: int = 0
    vtcm_mb: int = 0
    min_arch: int = 0
    targets: tuple[Target, ...] = ()
    graphs: tuple[Graph, ...] = ()
    unread: str = ""
    damage: str = ""


def list_context_binaries(part: View, offset: int = 0) -> tuple[ContextBinary, ...]:
    """Return the context binary in ``part``. If ``part`` is a package (a zip archive with an
    uncompressed context binary per SoC), return all of them. A context binary that cannot be loaded
    has ``damage``.
    """
    if bytes(part[: len(ARCHIVE)]) != ARCHIVE or find_context_damage(part):
        return (parse_context_binary(part, offset),)
    return tuple(scan_context_binaries(part, offset)) or (parse_context_binary(part, offset),)


def scan_context_binaries(blob: View, offset: int = 0) -> Iterator[ContextBinary]:
    """Yield complete context binaries anywhere in a program or a package."""
    view = memoryview(blob)
    for start in (match.start() for match in BINARY.finditer(blob)):
        if start + CONTEXT.size <= len(view):
            end = start + sum(CONTEXT.unpack_from(view, start))
            # The magic number also occurs in other data, whose sizes then do not fit into the file.
            if start + INFO_AT < end <= len(view):
                yield parse_context_binary(view[start:end], offset + start)


def parse_context_binary(part: View, offset: int = 0) -> ContextBinary:
    """Return the context binary in ``part``, which starts at byte ``offset`` of its file.

    For other data, returns a context binary with ``damage``.
    """
    build = search_whole(part, 0, len(part))
    targets = find_targets(part)
    known_targets = tuple(target for target in targets if target.soc != NO_SOC)
    fields: dict[str, Any] = {
        "build": build.text if build else "",
        "qnn": (build.version if build else None) or "",
        "targets": targets,
        "damage": find_context_damage(part),
        "soc": known_targets[0].soc if len(known_targets) == 1 else "",
        "hexagon": targets[0].hexagon if len({target.hexagon for target in targets}) == 1 else 0,
        "vtcm_mb": max((target.vtcm_mb for target in targets), default=0),
        "min_arch": min((int(match[1]) for match in MIN_ARCH.finditer(part)), default=0),
    }
    if part[: len(MAGIC)] == MAGIC:
        try:
            end = INFO_AT + struct.unpack_from("<Q", part, SIZE_AT)[0]
            fields |= _parse_info(Tables(part, INFO_AT, end))
        except (struct.error, OverflowError) as error:
            # Not damage: QNN may load what this project cannot read.
            fields["unread"] = f"its description cannot be read: {error}"
    elif part[: len(ARCHIVE)] == ARCHIVE:
        fields["unread"] = "it is a DLC without a context binary, so the device compiles it"
    else:
        fields["unread"] = "it has an unknown format"
    return ContextBinary(offset, len(part), **fields)


def _parse_info(tables: Tables) -> dict[str, object]:
    """Return the fields of ContextBinary that the flatbuffer contains. Raises struct.error."""
    outer = tables.root().table(0)
    info = outer.table(2) if outer else None
    if not outer or not info:
        return {"unread": "it has no description"}
    version = outer.number(0) or outer.number(1, "B")
    # The format is not published, so that fields of another version could mean anything.
    if version != KNOWN_INFO:
        return {"binary_info": version, "unread": f"its description has version {version}"}
    soc_id = info.number(16)
    device = info.bytes(15)  # for HTP: a version, then the Hexagon version
    graphs = tuple(_parse_graph(table) for table in info.list_tables(10))
    vtcm = max((graph.vtcm_mb or 0 for graph in graphs), default=0)
    fields: dict[str, object] = {
        "binary_info": version,
        "backend": BACKENDS.get(info.number(0), f"backend {info.number(0)}"),
        "core_api": _dotted(info.numbers(2, 3)),
        "backend_api": _dotted(info.numbers(3, 3)),
        "format": _dotted(info.numbers(5, 3)),
        "soc_id": soc_id,
        "soc": name_socs().get(soc_id, ""),
        "hexagon": int.from_bytes(device[4:8], "little"),
        "vtcm_mb": vtcm,
        "graphs": graphs,
    }
    return {key: value for key, value in fields.items() if value}


def _parse_graph(item: Table) -> Graph:
    outer = item.table(2)
    container = outer.table(0) if outer else None
    graph = container.table(0) if container else None
    if item.number(0) != KNOWN_INFO or not outer or not graph:
        return Graph("?")
    packed = outer.bytes(2)
    whole_size = len(packed) >= CONSTANTS_AT + 8
    vtcm = struct.unpack_from("<I", packed, VTCM_AT)[0] >> 20 if len(packed) >= 20 else None
    constants = struct.unpack_from("<Q", packed, CONSTANTS_AT)[0] if whole_size else None
    spilled = struct.unpack_from("<Q", packed, SPILL_AT)[0] if whole_size else None
    has_shared = len(packed) >= SHARED_AT + 8
    shared = struct.unpack_from("<Q", packed, SHARED_AT)[0] if has_shared else None
    inputs, outputs = (tuple(map(_parse_tensor, graph.list_tables(number))) for number in (2, 4))
    return Graph(graph.text(0), inputs, outputs, vtcm, constants, spilled, shared)


def _parse_tensor(item: Table) -> TensorSpec:
    number = item.number(3)
    dtype = DTYPES.get(number, f"0x{number:04x}")
    name, shape = item.text(9), item.list(7)
    grid = item.table(15)
    if item.number(4) == UNDEFINED or item.number(5) != SCALE_OFFSET or not grid:
        return TensorSpec(name, dtype, shape)
    scale = grid.number(0, "f")
    return TensorSpec(
        name, dtype, shape, scale if math.isfinite(scale) else None, -grid.number(1, "i")
    )


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
