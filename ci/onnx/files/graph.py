"""What an ONNX file holds, as far as it is judged by. The numbers are those of onnx.proto."""

from __future__ import annotations

import itertools
import mmap
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from ci.onnx.files.wire import (
    Readers,
    Value,
    as_bytes,
    as_integer,
    as_integers,
    as_text,
    collect,
    last,
    walk,
)
from provisioning.errors import UsageError
from provisioning.files import mib

LIMIT_BYTES = 2 << 30  # protobuf's own limit for a message
DEEPEST = 16
MOST_NODES = 500_000
Dim = int | str | None
TYPED_DATA = frozenset({4, 5, 6, 7, 10, 11})  # the fields of TensorProto that hold elements

# How files begin that are often called .onnx.
OTHERS = (
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
    (b"PK\x03\x04", "a zip archive, as torch.save writes it"),
    (b"version https://git-lfs", "a pointer of Git LFS: run `git lfs pull`"),
    (b"\x7fELF", "an ELF file"),
    (b"<", "HTML or XML, likely the error page of a download"),
    (b"{", "JSON"),
)


@dataclass(frozen=True, slots=True)
class Tensor:
    """``kind`` is TensorProto.DataType; ``raw`` the bytes of raw_data, None without; ``typed``
    whether data is in another field; ``external`` names the file of the data, empty without.
    """

    name: str
    kind: int
    dims: tuple[int, ...]
    raw: int | None
    typed: bool
    external: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Attribute:
    """``number`` is i; ``data`` is s, not copied."""

    name: str
    number: int
    data: memoryview
    tensors: tuple[Tensor, ...]
    graphs: tuple[Graph, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """An operator. ``domain`` is "" for ONNX's own."""

    op_type: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]

    @property
    def label(self) -> str:
        """The operator and its name in an error."""
        return f"{self.op_type} {self.name!r}" if self.name else f"a {self.op_type}"


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output. ``kind`` is 0 for what is not a tensor; ``dims`` None without a shape;
    a dimension is a number, a name, or None."""

    name: str
    kind: int
    dims: tuple[Dim, ...] | None


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in the order of the file."""

    nodes: tuple[Node, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    tensors: tuple[Tensor, ...]

    def all_tensors(self) -> Iterator[Tensor]:
        """Those of its nodes' attributes and of the graphs inside too."""
        yield from self.tensors
        for node in self.nodes:
            for attribute in node.attributes.values():
                yield from attribute.tensors
                for graph in attribute.graphs:
                    yield from graph.all_tensors()


@dataclass(frozen=True, slots=True)
class Model:
    """A file. ``opsets`` by domain; ``functions`` are the domain and name of its own operators."""

    path: Path
    ir_version: int
    opsets: Mapping[str, int]
    metadata: Mapping[str, str]
    functions: frozenset[tuple[str, str]]
    graph: Graph


def read_graph(path: Path) -> Model:
    """Read an ONNX file; weights are skipped, whatever their size.

    Raises UsageError where it cannot be read or is not a whole ONNX model.
    """
    what = f"{path.name} is not an ONNX model"
    data = _map(path)
    for start, kind in OTHERS:
        if bytes(data[: len(start)]) == start:
            raise UsageError(what, why=f"it is {kind}", fix="give the .onnx file itself")
    try:
        return _read_model(path, data)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            what,
            why=f"it cannot be read as one to its end: {error}",
            fix="export or copy it again; a download or a copy may have been cut short",
        ) from error


def _map(path: Path) -> memoryview:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"cannot read {path}", why="it is not a regular file")
        if status.st_size > LIMIT_BYTES:
            why = f"it has {mib(status.st_size)}, a model in one file at most {mib(LIMIT_BYTES)}"
            fix = "save its weights as external data"
            raise UsageError(f"{path.name} is too large", why=why, fix=fix)
        if not status.st_size:
            raise UsageError(f"{path.name} is empty", fix="export or copy it again")
        with path.open("rb") as stream:
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise UsageError(f"cannot read {path}", why=error.strerror or str(error)) from error


def _read_model(path: Path, data: memoryview) -> Model:
    readers: Readers = {1: as_integer, 8: _read_opset, 14: _read_pair, 25: _read_function}
    found = collect(data, {**readers, 7: partial(_read_graph, depth=0)})
    graphs = found[7]
    if len(graphs) != 1:
        raise ValueError("it has no graph" if not graphs else f"it has {len(graphs)} graphs")
    opsets, metadata, functions = dict(found[8]), dict(found[14]), frozenset(found[25])
    return Model(path, last(found[1], 0), opsets, metadata, functions, graphs[0])


def _read_graph(value: Value, depth: int) -> Graph:
    if depth > DEEPEST:
        raise ValueError(f"graphs inside graphs, more than {DEEPEST} deep")
    numbers = itertools.count(1)

    def read_node(value: Value) -> Node:
        if next(numbers) > MOST_NODES:
            raise ValueError(f"more than {MOST_NODES} nodes")
        return _read_node(value, depth)

    readers: Readers = {5: _read_tensor, 15: _read_sparse, 11: _read_port, 12: _read_port}
    found = collect(value, {**readers, 1: read_node})
    tensors = (*found[5], *chain(*found[15]))
    return Graph(tuple(found[1]), tuple(found[11]), tuple(found[12]), tensors)


def _read_node(value: Value, depth: int) -> Node:
    readers: Readers = dict.fromkeys((1, 2, 3, 4, 7), as_text)
    found = collect(value, {**readers, 5: partial(_read_attribute, depth=depth)})
    return Node(
        op_type=last(found[4], ""),
        domain=_plain_domain(last(found[7], "")),
        name=last(found[3], ""),
        inputs=tuple(found[1]),
        outputs=tuple(found[2]),
        attributes={one.name: one for one in found[5]},
    )


def _read_attribute(value: Value, depth: int) -> Attribute:
    inner = partial(_read_graph, depth=depth + 1)
    readers: Readers = {1: as_text, 3: as_integer, 4: as_bytes, 6: inner, 11: inner}
    tensors: Readers = {5: _read_tensor, 10: _read_tensor, 22: _read_sparse, 23: _read_sparse}
    found = collect(value, {**readers, **tensors})
    return Attribute(
        name=last(found[1], ""),
        number=last(found[3], 0),
        data=last(found[4], memoryview(b"")),
        tensors=(*found[5], *found[10], *chain(*found[22], *found[23])),
        graphs=(*found[6], *found[11]),
    )


def _read_tensor(value: Value) -> Tensor:
    readers: Readers = {1: as_integers, 2: as_integer, 8: as_text, 9: as_bytes, 14: as_integer}
    found = collect(value, {**readers, 13: _read_pair})
    name, external = last(found[8], ""), dict(found[13])
    is_external = last(found[14], 0) == 1
    if is_external and not external:
        raise ValueError(f"tensor {name!r} has external data without a location")
    return Tensor(
        name=name,
        kind=last(found[2], 0),
        dims=tuple(chain(*found[1])),
        raw=len(found[9][-1]) if found[9] else None,
        typed=any(number in TYPED_DATA for number, _ in walk(as_bytes(value))),
        external=external if is_external else {},
    )


def _read_sparse(value: Value) -> list[Tensor]:
    found = collect(value, {1: _read_tensor, 2: _read_tensor})
    return [*found[1], *found[2]]


def _read_port(value: Value) -> Port:
    found = collect(value, {1: as_text, 2: partial(collect, readers={1: _read_tensor_type})})
    types = [one for held in found[2] for one in held[1]]
    return Port(last(found[1], ""), *last(types, (0, None)))


def _read_tensor_type(value: Value) -> tuple[int, tuple[Dim, ...] | None]:
    found = collect(value, {1: as_integer, 2: partial(collect, readers={1: _read_dim})})
    return last(found[1], 0), tuple(found[2][-1][1]) if found[2] else None


def _read_dim(value: Value) -> Dim:
    readers: Readers = {1: as_integer, 2: as_text}
    known = [readers[number](one) for number, one in walk(as_bytes(value)) if number in readers]
    return last(known, None)


def _read_opset(value: Value) -> tuple[str, int]:
    found = collect(value, {1: as_text, 2: as_integer})
    return _plain_domain(last(found[1], "")), last(found[2], 0)


def _plain_domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _read_pair(value: Value) -> tuple[str, str]:
    found = collect(value, {1: as_text, 2: as_text})
    return last(found[1], ""), last(found[2], "")


def _read_function(value: Value) -> tuple[str, str]:
    found = collect(value, {1: as_text, 10: as_text})
    return last(found[10], ""), last(found[1], "")
