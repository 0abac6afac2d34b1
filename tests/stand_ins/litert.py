"""LiteRT models and bundles of LiteRT-LM, laid out as LiteRT's tools do, with nothing compiled."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from provisioning.doctor.survey.litert_names import DTYPES
from provisioning.doctor.survey.programs import Method
from tests.stand_ins.lowered import Fields, Number, Vector, make_binary, make_flatbuffer

CONV_2D, DENSIFY, CUSTOM = 3, 124, 32
FLOAT32, FLOAT16, INT8 = 0, 1, 9
UNSIGNED, TEXT, MAP, FOUR_BYTES = 2, 5, 9, 2  # of flexbuffers


def make_flexbuffer(values: Mapping[str, int | str]) -> bytes:
    """A flexbuffer with a map of integers and texts, in elements of four bytes."""
    data = bytearray()
    key_places, text_places = {}, {}
    keys = sorted(values)  # readers search a key by halves
    for key in keys:
        key_places[key] = len(data)
        data += key.encode() + b"\0"
        if isinstance(text := values[key], str):
            data += struct.pack("<I", len(text))
            text_places[key] = len(data)
            data += text.encode() + b"\0"
    data += bytes(-len(data) % 4)
    data += struct.pack("<I", len(keys))
    keys_at = len(data)
    for key in keys:
        data += struct.pack("<I", len(data) - key_places[key])
    data += struct.pack("<III", len(data) - keys_at, 4, len(keys))
    values_at = len(data)
    types = bytearray()
    for key in keys:
        value = values[key]
        if isinstance(value, str):
            data += struct.pack("<I", len(data) - text_places[key])
            types.append(TEXT << 2 | FOUR_BYTES)
        else:
            data += struct.pack("<I", value)
            types.append(UNSIGNED << 2 | FOUR_BYTES)
    data += types
    data += bytes([len(data) - values_at, MAP << 2 | FOUR_BYTES, 1])
    return bytes(data)


def make_tensor(
    name: str,
    shape: Sequence[int],
    dtype: int = FLOAT32,
    buffer: int = 0,
    *,
    scale: float = 0,
    signature: Sequence[int] = (),
) -> Fields:
    """A tensor; ``scale`` quantizes it with a zero point of -3, and ``signature`` is the shape with
    -1 for an axis whose length may change."""
    fields: dict[int, Any] = {0: Vector(shape, "i"), 1: Number("b", dtype), 3: name}
    fields |= {2: Number("I", buffer)}
    if scale:
        fields[4] = {2: Vector([scale], "f"), 3: Vector([-3], "q")}
    if signature:
        fields[7] = Vector(signature, "i")
    return fields


def make_operator(
    code: int, reads: Sequence[int], writes: Sequence[int], options: bytes | None = None
) -> Fields:
    """A call of the operator with this number in CODES."""
    fields: dict[int, Any] = {0: Number("I", code), 1: Vector(reads, "i"), 2: Vector(writes, "i")}
    return fields if options is None else fields | {5: Vector(options)}


CODES = (
    {0: Number("b", CONV_2D), 3: Number("i", CONV_2D)},
    {0: Number("b", CUSTOM), 1: "TransformLandmarks", 3: Number("i", CUSTOM)},
    {0: Number("b", CUSTOM), 1: "DISPATCH_OP", 3: Number("i", CUSTOM)},
    {0: Number("b", DENSIFY), 3: Number("i", DENSIFY)},
    {0: Number("b", 127), 3: Number("i", 206)},  # beyond one byte: STABLEHLO_COMPOSITE
    {0: Number("b", 127), 3: Number("i", 999)},
)


def make_model(
    subgraphs: Sequence[Fields],
    buffers: Sequence[bytes] = (b"",),
    *,
    metadata: Mapping[str, bytes] | None = None,
    signatures: Sequence[Fields] = (),
) -> bytes:
    """A .tflite file whose operators are CODES. The buffers of its metadata follow ``buffers``."""
    texts = metadata or {}
    data = [{0: Vector(content)} if content else {} for content in (*buffers, *texts.values())]
    entries = [{0: name, 1: Number("I", number)} for number, name in enumerate(texts, len(buffers))]
    fields = {
        0: Number("I", 3),
        1: Vector(CODES),
        2: Vector(subgraphs),
        4: Vector(data),
        6: Vector(entries),
        7: Vector(signatures),
    }
    return make_flatbuffer(fields, b"TFL3")


def make_signature(
    key: str, inputs: Mapping[str, int], outputs: Mapping[str, int], subgraph: int = 0
) -> Fields:
    """A signature of a subgraph that names tensors."""
    ports = []
    for names in (inputs, outputs):
        rows = [{0: name, 1: Number("I", number)} for name, number in names.items()]
        ports.append(Vector(rows))
    return {0: ports[0], 1: ports[1], 2: key, 4: Number("I", subgraph)}


def make_plain() -> bytes:
    """A model that is not compiled: a convolution with weights of int8, and a custom operator."""
    tensors = [
        make_tensor("image", (1, 8, 8, 3), INT8, scale=0.5, signature=(-1, 8, 8, 3)),
        make_tensor("kernel", (4, 1, 1, 3), INT8, 1),
        make_tensor("conv", (1, 8, 8, 4)),
        make_tensor("points", (1, 2)),
    ]
    operators = [
        make_operator(0, (0, 1), (2,)),
        make_operator(0, (0, 1), (2,)),
        make_operator(1, (2,), (3,)),
        make_operator(4, (2,), (3,)),
        make_operator(5, (2,), (3,)),
    ]
    graph = {
        0: Vector(tensors),
        1: Vector([0], "i"),
        2: Vector([3], "i"),
        3: Vector(operators),
        4: "main",
    }
    signature = make_signature("serving_default", {"x": 0}, {"y": 3})
    texts = {"min_runtime_version": b"2.3.1\0\0", "TFLITE_METADATA": b"\x14\0\x01\x02"}
    return make_model([graph], (b"", bytes(12)), metadata=texts, signatures=[signature])


def make_compiled(
    *,
    stamp: bytes = b"Qualcomm\0SM8650",
    binary: bytes = b"",
    start: int | None = None,
    size: int | None = None,
    weights: bytes = b"",
    options: bytes | None = None,
) -> bytes:
    """A model of two partitions with the same bytecode, and an operator on the CPU between them.
    ``start`` and ``size`` replace the place of the bytecode; ``weights`` are those of a DENSIFY."""
    binary = binary or make_binary()

    def build(offset: int) -> bytes:
        places = {"bytecode_offset": offset if start is None else start}
        places["bytecode_size"] = len(binary) if size is None else size
        place = make_flexbuffer({**places, "name": "qnn_partition_0"})
        place = place if options is None else options
        tensors = [
            make_tensor("a", (1, 4)),
            make_tensor("b", (1, 4)),
            make_tensor("sparse", (4, 4), FLOAT16, 1 if weights else 0),
        ]
        operators = [
            make_operator(2, (0,), (1,), options=place),
            make_operator(3, (2,), (1,)),
            make_operator(2, (1,), (0,), options=place),
        ]
        graph = {
            0: Vector(tensors),
            1: Vector([0], "i"),
            2: Vector([1], "i"),
            3: Vector(operators),
        }
        stamped = {"LiteRtStamp": stamp.ljust(250, b"\0")} if stamp else {}
        return make_model([graph], (b"", weights), metadata=stamped)

    length = len(build(1 << 20))
    return build(length) + binary


def make_partitions(
    methods: Sequence[Method], binary: bytes, stamp: bytes = b"Qualcomm\0SM8650"
) -> bytes:
    """A model with these signatures, each of which is one partition for the NPU."""
    numbers = {name: number for number, (name, _) in DTYPES.items()}

    def build(offset: int) -> bytes:
        graphs, signatures = [], []
        for subgraph, method in enumerate(methods):
            ports = [*method.inputs, *method.outputs]
            tensors = [
                make_tensor(port.name, port.shape, numbers[port.dtype], scale=port.scale or 0)
                for port in ports
            ]
            count = len(method.inputs)
            reads, writes = range(count), range(count, len(ports))
            places = {"bytecode_offset": offset, "bytecode_size": len(binary)}
            options = make_flexbuffer({**places, "name": f"qnn_partition_{subgraph}"})
            graphs.append(
                {
                    0: Vector(tensors),
                    1: Vector(reads, "i"),
                    2: Vector(writes, "i"),
                    3: Vector([make_operator(2, reads, writes, options=options)]),
                }
            )
            names = [port.name for port in ports]
            inputs = dict(zip(names[:count], reads, strict=True))
            outputs = dict(zip(names[count:], writes, strict=True))
            signatures.append(make_signature(method.name, inputs, outputs, subgraph))
        stamped = {"LiteRtStamp": stamp.ljust(250, b"\0")}
        return make_model(graphs, metadata=stamped, signatures=signatures)

    return build(len(build(1 << 20))) + binary


def make_bundle(
    sections: Sequence[tuple[int, bytes, Mapping[str, Any]]], *, cut: int | None = None
) -> bytes:
    """A .litertlm file of sections with their types, contents and items. ``cut`` shortens it."""

    def list_items(items: Mapping[str, Any]) -> Vector:
        forms = {str: 9, int: 5, float: 7}
        pairs = []
        for key, value in items.items():
            number = {0: Number("f" if isinstance(value, float) else "I", value)}
            content = {0: value} if isinstance(value, str) else number
            pairs.append({0: key, 1: Number("B", forms[type(value)]), 2: content})
        return Vector(pairs)

    place, objects, contents = 16384, [], b""
    for kind, content, items in sections:
        begin = place + len(contents)
        span = {1: Number("Q", begin), 2: Number("Q", begin + len(content))}
        objects.append({0: list_items(items), **span, 3: Number("B", kind)})
        contents += content.ljust(-(-len(content) // 64) * 64, b"\0")
    system = {0: list_items({"Authors": "somebody"})}
    header = make_flatbuffer({0: system, 1: {0: Vector(objects)}})
    head = b"LITERTLM" + struct.pack("<3I", 1, 7, 0) + bytes(4)
    head += struct.pack("<Q", 32 + len(header)) + header
    return (head.ljust(place, b"\0") + contents)[:cut]
