"""What an ONNX file holds, as far as it is judged by. The numbers are those of onnx.proto."""

from __future__ import annotations

import mmap
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ci.onnx.files.wire import Value, as_bytes, as_integer, as_integers, as_text, walk
from provisioning.errors import UsageError
from provisioning.files import mib

LIMIT_BYTES = 2 << 30  # protobuf's own limit for a message
DEEPEST = 16
MOST_NODES = 500_000
Dim = int | str | None

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
    number: int = 0
    data: memoryview = field(default_factory=lambda: memoryview(b""))
    tensors: tuple[Tensor, ...] = ()
    graphs: tuple[Graph, ...] = ()


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
    """Nodes and tensors in the order of the file."""

    name: str
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
    producer: str
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
    ir_version, producer = 0, ""
    opsets: dict[str, int] = {}
    metadata: dict[str, str] = {}
    functions: set[tuple[str, str]] = set()
    graphs: list[Graph] = []
    for number, value in walk(data):
        if number == 1:
            ir_version = as_integer(value)
        elif number == 2:
            producer = as_text(value)
        elif number == 7:
            graphs.append(_read_graph(as_bytes(value), 0))
        elif number == 8:
            domain, version = _read_opset(as_bytes(value))
            opsets[domain] = version
        elif number == 14:
            metadata.update([_read_pair(as_bytes(value))])
        elif number == 25:
            functions.add(_read_function(as_bytes(value)))
    if len(graphs) != 1:
        raise ValueError("it has no graph" if not graphs else f"it has {len(graphs)} graphs")
    return Model(path, ir_version, producer, opsets, metadata, frozenset(functions), graphs[0])


def _read_graph(data: memoryview, depth: int) -> Graph:
    if depth > DEEPEST:
        raise ValueError(f"graphs inside graphs, more than {DEEPEST} deep")
    name = ""
    nodes: list[Node] = []
    tensors: list[Tensor] = []
    ports: dict[int, list[Port]] = {11: [], 12: []}
    for number, value in walk(data):
        if number == 1:
            nodes.append(_read_node(as_bytes(value), depth))
            if len(nodes) > MOST_NODES:
                raise ValueError(f"more than {MOST_NODES} nodes")
        elif number == 2:
            name = as_text(value)
        elif number == 5:
            tensors.append(_read_tensor(as_bytes(value)))
        elif number == 15:
            tensors += _read_sparse(as_bytes(value))
        elif number in ports:
            ports[number].append(_read_port(as_bytes(value)))
    return Graph(name, tuple(nodes), tuple(ports[11]), tuple(ports[12]), tuple(tensors))


def _read_node(data: memoryview, depth: int) -> Node:
    names: dict[int, list[str]] = {1: [], 2: [], 3: [""], 4: [""], 7: [""]}
    attributes: dict[str, Attribute] = {}
    for number, value in walk(data):
        if number in names:
            names[number].append(as_text(value))
        elif number == 5:
            attribute = _read_attribute(as_bytes(value), depth)
            attributes[attribute.name] = attribute
    domain = "" if names[7][-1] == "ai.onnx" else names[7][-1]
    return Node(names[4][-1], domain, names[3][-1], tuple(names[1]), tuple(names[2]), attributes)


def _read_attribute(data: memoryview, depth: int) -> Attribute:
    name, number_value, text = "", 0, memoryview(b"")
    tensors: list[Tensor] = []
    graphs: list[Graph] = []
    for number, value in walk(data):
        if number == 1:
            name = as_text(value)
        elif number == 3:
            number_value = as_integer(value)
        elif number == 4:
            text = as_bytes(value)
        elif number in (5, 10):
            tensors.append(_read_tensor(as_bytes(value)))
        elif number in (6, 11):
            graphs.append(_read_graph(as_bytes(value), depth + 1))
        elif number in (22, 23):
            tensors += _read_sparse(as_bytes(value))
    return Attribute(name, number_value, text, tuple(tensors), tuple(graphs))


def _read_tensor(data: memoryview) -> Tensor:
    name, kind, raw, typed = "", 0, None, False
    dims: list[int] = []
    external: dict[str, str] = {}
    is_external = False
    for number, value in walk(data):
        if number == 1:
            dims += as_integers(value)
        elif number == 2:
            kind = as_integer(value)
        elif number == 8:
            name = as_text(value)
        elif number == 9:
            raw = len(as_bytes(value))
        elif number == 13:
            external.update([_read_pair(as_bytes(value))])
        elif number == 14:
            is_external = as_integer(value) == 1
        elif number in (4, 5, 6, 7, 10, 11):
            typed = True
    if is_external and not external:
        raise ValueError(f"tensor {name!r} has external data without a location")
    return Tensor(name, kind, tuple(dims), raw, typed, external if is_external else {})


def _read_sparse(data: memoryview) -> Iterator[Tensor]:
    for number, value in walk(data):
        if number in (1, 2):
            yield _read_tensor(as_bytes(value))


def _read_port(data: memoryview) -> Port:
    name, kind = "", 0
    dims: tuple[Dim, ...] | None = None
    for number, value in walk(data):
        if number == 1:
            name = as_text(value)
        elif number == 2:
            for which, inner in walk(as_bytes(value)):
                if which == 1:
                    kind, dims = _read_tensor_type(as_bytes(inner))
    return Port(name, kind, dims)


def _read_tensor_type(data: memoryview) -> tuple[int, tuple[Dim, ...] | None]:
    kind = 0
    dims: tuple[Dim, ...] | None = None
    for number, value in walk(data):
        if number == 1:
            kind = as_integer(value)
        elif number == 2:
            dims = tuple(
                _read_dim(as_bytes(inner)) for which, inner in walk(as_bytes(value)) if which == 1
            )
    return kind, dims


def _read_dim(data: memoryview) -> Dim:
    readers: dict[int, Callable[[Value], int | str]] = {1: as_integer, 2: as_text}
    found: Dim = None
    for number, value in walk(data):
        if number in readers:
            found = readers[number](value)
    return found


def _read_opset(data: memoryview) -> tuple[str, int]:
    domain, version = "", 0
    for number, value in walk(data):
        if number == 1:
            domain = as_text(value)
        elif number == 2:
            version = as_integer(value)
    return "" if domain == "ai.onnx" else domain, version


def _read_pair(data: memoryview) -> tuple[str, str]:
    pair = {1: "", 2: ""}
    for number, value in walk(data):
        if number in pair:
            pair[number] = as_text(value)
    return pair[1], pair[2]


def _read_function(data: memoryview) -> tuple[str, str]:
    name, domain = "", ""
    for number, value in walk(data):
        if number == 1:
            name = as_text(value)
        elif number == 10:
            domain = as_text(value)
    return domain, name
