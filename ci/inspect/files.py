"""Any file that may hold a program or a runtime -> what it holds."""

from __future__ import annotations

import shutil
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ci.inspect.binaries import TensorSpec, list_context_binaries
from ci.inspect.programs import (
    Method,
    Partition,
    Program,
    map_file,
    parse_program,
    wrap_contexts,
)
from provisioning.doctor.survey.tree import LIBRARY, read_file
from provisioning.elf.facts import EM_QDSP6
from provisioning.errors import QnnCiError

ELF, ARCHIVE, POINTER = b"\x7fELF", b"PK\x03\x04", b"version https://git-lfs"
PROGRAMS = (".pte", ".onnx", ".bin")
MAX_ENTRIES = 4096
MAX_ENTRY_BYTES = 1 << 30  # of a file that is taken out of an archive
DTYPES = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64"}
DTYPES |= {9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16"}


@dataclass(frozen=True)
class Library:
    """A library: what it is for, and which build of QNN it is from; ``hexagon`` is 0 for another
    processor, ``api_level`` that of Android. ``align`` is the smallest of its LOAD segments."""

    machine: str
    hexagon: int = 0
    build: str = ""
    qnn: str = ""
    soname: str = ""
    needed: tuple[str, ...] = ()
    api_level: int = 0
    align: int = 0


@dataclass(frozen=True)
class Inspected:
    """A file: a ``program``, ``context``, ``onnx`` model, ``library`` or ``package`` (APK or AAR),
    which has ``entries``; ``unknown`` for any other. ``damage`` is why it cannot be used."""

    file: str
    kind: str
    size_bytes: int
    damage: str = ""
    program: Program | None = None
    library: Library | None = None
    entries: tuple[Inspected, ...] = ()


@dataclass(frozen=True)
class Inspection:
    """What `inspect` prints as JSON."""

    files: tuple[Inspected, ...]
    schema_version: int = 1


def inspect_file(path: Path, name: str = "") -> Inspected:
    """What the file at ``path`` holds, under ``name``. Raises UsageError for one that cannot be
    read, UnfitError if the onnx package is missing for an ONNX model."""
    view, name = map_file(path), name or path.name
    if program := parse_program(view, name):
        return Inspected(name, program.kind, program.size_bytes, program.damage, program)
    head, size = bytes(view[:64]), len(view)
    if head.startswith(ELF):
        return _inspect_library(path, name)
    if head.startswith(ARCHIVE):
        return _inspect_package(path, name, size)
    if path.suffix == ".onnx":
        return _inspect_onnx(path, name, size)
    damage = f"is of no kind that is known here: it begins with {head[:8].hex(' ')}"
    if head.startswith(POINTER):
        damage = "is a pointer of Git LFS: run `git lfs pull`"
    return Inspected(name, "unknown", size, damage if size else "is empty")


def _inspect_library(path: Path, name: str) -> Inspected:
    facts = read_file((name, path))
    if facts.elf is None:
        why = f"{facts.defect.value if facts.defect else 'unreadable'}: {facts.defect_why}"
        return Inspected(name, "library", facts.size_bytes, f"cannot be read as ELF, it is {why}")
    elf, build = facts.elf, facts.build
    library = Library(
        elf.machine_name,
        int(f"{elf.hexagon_version:x}") if elf.machine == EM_QDSP6 else 0,
        build.text if build else "",
        (build.version if build else None) or "",
        elf.soname or "",
        elf.needed,
        elf.android.api_level if elf.android else 0,
        elf.load_align,
    )
    return Inspected(name, "library", facts.size_bytes, library=library)


def _inspect_package(path: Path, name: str, size: int) -> Inspected:
    """An APK, an AAR, or another zip archive: its libraries and programs."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = tuple(_inspect_entries(archive))
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        return Inspected(name, "package", size, f"cannot be read as a zip archive: {error}")
    bad = [one.file for one in entries if one.damage]
    damage = f"holds files that cannot be used: {', '.join(bad[:4])}" if bad else ""
    return Inspected(name, "package", size, damage, entries=entries)


def _inspect_entries(archive: zipfile.ZipFile) -> Iterator[Inspected]:
    found = [
        one
        for one in archive.infolist()
        if not one.is_dir() and (LIBRARY.search(one.filename) or one.filename.endswith(PROGRAMS))
    ]
    for entry in found[:MAX_ENTRIES]:
        with TemporaryDirectory() as scratch:
            path = Path(scratch, f"entry{Path(entry.filename).suffix}")
            inspected = _inspect_entry(archive, entry, path)
        if inspected.kind != "unknown" or not entry.filename.endswith(".bin"):
            yield inspected  # most .bin files of an app are its own


def _inspect_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> Inspected:
    """What is unpacked to ``path``."""
    name, size = entry.filename, entry.file_size
    if size > MAX_ENTRY_BYTES:
        return Inspected(name, "unknown", size, f"is too large: it unpacks to {size} bytes")
    try:
        with archive.open(entry) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        return Inspected(name, "unknown", size, f"cannot be unpacked: {error}")
    return inspect_file(path, name)


def _inspect_onnx(path: Path, name: str, size: int) -> Inspected:
    """A context model of ONNX Runtime."""
    from ci.onnx.contexts import open_context

    try:
        model, context, blob = open_context(path)
    except QnnCiError as error:
        return Inspected(
            name, "onnx", size, f"{error.what}: {error.why}" if error.why else error.what
        )
    found = wrap_contexts(name, "onnx", size, list_context_binaries(memoryview(blob)))
    number = {one: place for place, one in enumerate(context.partitions)}
    nodes = [one for one in model.graph.node if one.op_type != "EPContext"]
    constants = Counter[str]()
    for one in model.graph.initializer:
        constants[DTYPES.get(one.data_type, f"type {one.data_type}")] += len(one.raw_data)
    method = Method(
        model.graph.name,
        tuple(map(_describe_port, model.graph.input)),
        tuple(map(_describe_port, model.graph.output)),
        tuple(Partition(context.source, 0) for _ in number),
        dict(sorted(Counter(_name_operator(one) for one in nodes).items())),
    )
    program = replace(found, methods=(method,), constant_bytes=dict(constants))
    return Inspected(name, "onnx", size, program.damage, program)


def _name_operator(node: Any) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else str(node.op_type)


def _describe_port(port: Any) -> TensorSpec:
    held = port.type.tensor_type
    shape = tuple(int(one.dim_value) for one in held.shape.dim)
    return TensorSpec(port.name, DTYPES.get(held.elem_type, f"type {held.elem_type}"), shape)
