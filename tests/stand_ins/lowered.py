"""Programs and context binaries laid out as QNN and ExecuTorch do, with nothing compiled."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple


class Port(NamedTuple):
    """An input or output with QNN's type; with ``scale`` its zero point is 128."""

    shape: Sequence[int]
    dtype: int = 0x0232
    scale: float | None = None


Ports = Mapping[str, Sequence[int] | Port]  # inputs or outputs by name, with their shapes

BUILD = "v2.49.40.260810104044"
GPU, HTP = 4, 6  # QNN's numbers of backends
OPTIONS = "min_arch={hexagon};soc_type={soc};arch={hexagon};unroll=1;vtcm_size={vtcm};"


class Number(NamedTuple):
    """A number in a table or vector, by struct's letter."""

    form: str
    value: Any


class Struct(NamedTuple):
    """Three u32 in a table."""

    values: tuple[int, int, int]


class Vector(NamedTuple):
    """A vector of numbers, of bytes, or of tables."""

    items: Sequence[Any] | bytes
    form: str = ""


Fields = Mapping[
    int, Any
]  # of a table: Number, Struct, Vector, str, bytes, or the fields of another


def make_flatbuffer(root: Fields, identifier: bytes = b"") -> bytes:
    """The bytes of a flatbuffer whose root has these fields."""
    data = bytearray(4 + len(identifier))
    data[4:] = identifier
    _point(data, 0, _put_table(data, root))
    return bytes(data)


def _put_table(data: bytearray, fields: Fields) -> int:
    offsets, size = {}, 4
    for number, value in fields.items():
        width = _width(value)
        size += -size % min(width, 8)
        offsets[number] = size
        size += width
    count = max(fields, default=-1) + 1
    data += bytes(-len(data) % 4)
    vtable = len(data)
    rows = [offsets.get(number, 0) for number in range(count)]
    data += struct.pack(f"<{2 + count}H", 4 + 2 * count, size, *rows)
    data += bytes(-len(data) % 8)
    table = len(data)
    data += struct.pack("<i", table - vtable) + bytes(size - 4)
    for number, value in fields.items():
        place = table + offsets[number]
        if isinstance(value, Number):
            struct.pack_into(f"<{value.form}", data, place, value.value)
        elif isinstance(value, Struct):
            struct.pack_into("<3I", data, place, *value.values)
        else:
            _point(data, place, _put(data, value))
    return table


def _width(value: Any) -> int:
    if isinstance(value, Number):
        return struct.calcsize(value.form)
    return 12 if isinstance(value, Struct) else 4


def _put(data: bytearray, value: Any) -> int:
    if isinstance(value, Mapping):
        return _put_table(data, value)
    items = value.encode() if isinstance(value, str) else value
    form = items.form if isinstance(items, Vector) else ""
    items = items.items if isinstance(items, Vector) else items
    data += bytes(-len(data) % 4)
    place = len(data)
    data += struct.pack("<I", len(items))
    if isinstance(items, bytes):
        data += items + b"\0"
    elif form:
        data += struct.pack(f"<{len(items)}{form}", *items)
    else:
        data += bytes(4 * len(items))
        for number, item in enumerate(items):
            _point(data, place + 4 + 4 * number, _put(data, item))
    return place


def _point(data: bytearray, place: int, target: int) -> None:
    struct.pack_into("<I", data, place, target - place)


def make_tensor(name: str, dtype: int, shape: Sequence[int], scale: float | None = None) -> Fields:
    """An input or output of a graph; with ``scale`` its zero point is 128."""
    fields: dict[int, Any] = {3: Number("I", dtype), 7: Vector(shape, "I"), 9: name}
    if scale is None:
        return fields | {4: Number("I", 0x7FFFFFFF), 15: {}}
    return fields | {4: Number("I", 1), 15: {0: Number("f", scale), 1: Number("i", -128)}}


def make_port(name: str, port: Sequence[int] | Port) -> Fields:
    """An input or output of a graph."""
    known_port = port if isinstance(port, Port) else Port(port)
    return make_tensor(name, known_port.dtype, known_port.shape, known_port.scale)


def make_binary(
    *,
    build: str = BUILD,
    soc: tuple[str, int, int] = ("SM8650", 57, 75),
    vtcm_mb: int = 8,
    spill_bytes: int = 0,
    shared_bytes: int = 0,
    graphs: Sequence[str] = ("forward",),
    results: Sequence[str] = ("y",),
    version: int = 3,
    ports: Mapping[str, tuple[Ports, Ports]] = MappingProxyType({}),
    backend: int = HTP,
) -> bytes:
    """A context binary, each graph of which returns ``results``; ``version`` is that of its
    description. ``ports`` are the inputs and outputs of graphs, by name, with their shapes, and
    ``backend`` is QNN's number of the backend that compiled it."""
    minor = int(build.split(".")[1])

    def graph(name: str) -> Fields:
        inputs = [make_tensor("x", 0x0408, (1, 3), 0.5)]
        outputs = [make_tensor(result, 0x0232, (1, 4)) for result in results]
        if name in ports:
            inputs, outputs = (
                [make_port(name, port) for name, port in side.items()] for side in ports[name]
            )
        fields = {0: name, 1: Number("I", len(inputs)), 2: Vector(inputs)}
        fields[3] = Number("I", len(outputs))
        packed = struct.pack(
            "<IIQI68xQ8xQ", 1, 0, spill_bytes, vtcm_mb << 20, 24 << 10, shared_bytes
        )
        described = {0: {**fields, 4: Vector(outputs)}}
        return {0: Number("I", 3), 1: Number("B", 3), 2: {0: described, 2: Vector(packed)}}

    info = {
        0: Number("I", backend),
        1: build,
        2: Struct((2, minor - 11, 0)),
        3: Struct((5, minor, 0)),
        5: Struct((4, 0, 4)),
        10: Vector([graph(name) for name in graphs]),
        15: Vector(struct.pack("<III", 1, soc[2], 1)),
        16: Number("I", soc[1]),
    }
    table = make_flatbuffer({0: {0: Number("I", version), 1: Number("B", 3), 2: info}})
    text = OPTIONS.format(soc=soc[0], hexagon=soc[2], vtcm=vtcm_mb << 20).encode()
    begin = (40 + len(table) + 63) // 64 * 64
    head = struct.pack(">IIII", 2, 3, 0, 1) + struct.pack("<QQQ", len(table), begin, len(text))
    return (head + table).ljust(begin, b"\0") + text


def make_program(
    binary: bytes = b"", *, soc: tuple[int, int, int] = (57, 75, 8), align: int = 128
) -> bytes:
    """A program with a method, a constant of it, and an operator on the CPU. Its delegate's data,
    with ExecuTorch's header, is a segment at a multiple of ``align``."""
    binary = binary or make_binary()
    data = struct.pack("<IQQ", 0x5678ABCD, 1, len(binary)).ljust(256, b"\0") + binary
    soc_model, hexagon, vtcm_mb = soc
    options = make_flatbuffer(
        {0: {0: Number("i", soc_model), 1: {0: Number("i", hexagon), 1: Number("I", vtcm_mb)}}}
    )
    port = {0: Number("B", 5), 1: {0: Number("b", 6), 2: Vector([1, 3], "i")}}
    stored = {0: Number("b", 1), 2: Vector([2, 3], "i"), 5: Number("I", 1)}
    weight = {0: Number("B", 5), 1: stored}
    state = {0: Number("B", 5), 1: {**stored, 0: Number("b", 6), 6: {}}}  # a buffer that it writes
    forward = {
        0: "forward",
        2: Vector([port, port, weight, state]),
        3: Vector([0], "i"),
        4: Vector([1], "i"),
        5: Vector(
            [
                {
                    2: Vector(
                        [
                            {0: Number("B", 2), 1: {0: Number("i", 0)}},
                            {0: Number("B", 1), 1: {0: Number("i", 0)}},
                        ]
                    )
                }
            ]
        ),
        6: Vector([{0: "aten::erf", 1: "out"}]),
        7: Vector(
            [
                {
                    0: "QnnBackend",
                    1: {0: Number("b", 1), 1: Number("I", 0)},
                    2: Vector([{0: "qnn_compile_spec", 1: Vector(options)}]),
                }
            ]
        ),
    }
    constant = {0: Number("B", 2), 1: {0: Number("q", 512)}}
    length = {0: "get_max_seq_len", 2: Vector([constant]), 4: Vector([0], "i")}
    segment = {0: Number("Q", 0), 1: Number("Q", len(data))}
    table = make_flatbuffer(
        {1: Vector([forward, length]), 4: Vector([segment])}, b"ET12" + bytes(32)
    )
    base = (len(table) + align - 1) // align * align
    head = struct.pack("<4sIQQQ", b"eh00", 32, len(table), base, len(data))
    return (table[:8] + head + table[40:]).ljust(base, b"\0") + data
