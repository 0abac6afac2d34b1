"""ONNX files byte by byte, wrong ones too: written without the onnx package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ci.onnx.files.wire import field

FLOAT, INT64, STRING, FLOAT16, DOUBLE = 1, 7, 8, 10, 11


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def message(*fields: tuple[int, int | str | bytes]) -> bytes:
    written = b""
    for number, value in fields:
        if isinstance(value, int):
            written += varint(number << 3) + varint(value)
        else:
            written += field(number, value.encode() if isinstance(value, str) else value)
    return written


def port(name: str, dims: Sequence[int | str | None] | None = (1, 3), kind: int = FLOAT) -> bytes:
    shape = b""
    for dim in dims or ():
        fields = [] if dim is None else [(1 if isinstance(dim, int) else 2, dim)]
        shape += field(1, message(*fields))
    inner = message((1, kind)) + (field(2, shape) if dims is not None else b"")
    return message((1, name), (2, field(1, inner)))


def node(
    op: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    name: str = "",
    domain: str = "",
    attributes: Iterable[bytes] = (),
) -> bytes:
    fields = [(1, one) for one in inputs] + [(2, one) for one in outputs] + [(3, name), (4, op)]
    return message(*fields, *((5, one) for one in attributes), (7, domain))


def attribute(name: str, value: int | str | bytes, number: int = 0) -> bytes:
    """``number`` is 5 for a tensor and 6 for a graph; else by the value's type."""
    number = number or (3 if isinstance(value, int) else 4)
    return message((1, name), (number, value))


def tensor(
    name: str,
    dims: Sequence[int],
    raw: bytes | None = None,
    *,
    kind: int = FLOAT,
    external: dict[str, str] | None = None,
) -> bytes:
    fields: list[tuple[int, int | str | bytes]] = [(1, dim) for dim in dims]
    fields += [(2, kind), (8, name)]
    if raw is not None:
        fields.append((9, raw))
    for key, value in (external or {}).items():
        fields.append((13, message((1, key), (2, value))))
    return message(*fields, *([(14, 1)] if external is not None else []))


def graph(
    nodes: Iterable[bytes],
    inputs: Iterable[bytes],
    outputs: Iterable[bytes],
    tensors: Iterable[bytes] = (),
) -> bytes:
    parts = ((1, nodes), (5, tensors), (11, inputs), (12, outputs))
    return message((2, "graph"), *((number, one) for number, ones in parts for one in ones))


def model(
    body: bytes,
    *,
    ir: int = 10,
    opsets: dict[str, int] | None = None,
    metadata: dict[str, str] | None = None,
) -> bytes:
    imports = {"": 21} if opsets is None else opsets
    return message(
        (1, ir),
        (2, "tests"),
        (7, body),
        *((8, message((1, domain), (2, version))) for domain, version in imports.items()),
        *((14, message((1, key), (2, value))) for key, value in (metadata or {}).items()),
    )


def relu_graph(**changes: Iterable[bytes]) -> bytes:
    """y = relu(x), with what is wrong about it."""
    parts = {
        "nodes": [node("Relu", ["x"], ["y"], name="n0")],
        "inputs": [port("x")],
        "outputs": [port("y")],
    }
    return graph(**{**parts, **changes})


def relu(**changes: Iterable[bytes]) -> bytes:
    return model(relu_graph(**changes))
