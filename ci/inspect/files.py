"""Read any file that may be a program or a part of a runtime, and describe its contents. Describe a
QNN runtime: one in a directory, an APK or an artifact, or one of which only the version is
known."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ci.cases.limited import run_limited
from ci.inspect.apps import MANIFEST, find_texts
from ci.inspect.compat import Runtime
from ci.inspect.litert_libraries import find_releases
from provisioning.archives.layout import Limits, check_members
from provisioning.archives.zipfiles import FileSource, extract_members, read_directory
from provisioning.artifacts.environment import stored_trees
from provisioning.console.command import user_path
from provisioning.doctor.facts import FileFacts
from provisioning.doctor.survey.context_binaries import TensorSpec, list_context_binaries
from provisioning.doctor.survey.litert import (
    Bundle,
    is_bundle,
    is_model,
    parse_bundle,
    parse_model,
)
from provisioning.doctor.survey.programs import (
    Method,
    Partition,
    Program,
    describe_other,
    map_file,
    parse_program,
    wrap_contexts,
)
from provisioning.doctor.survey.tree import LIBRARY, read_file, survey_tree
from provisioning.documents import open_regular
from provisioning.elf.facts import EM_QDSP6
from provisioning.elf.qnn_build import find_headers_version
from provisioning.errors import FailedError, QnnCiError, UsageError
from provisioning.manifest.reader import list_toolchains, read_toolchain
from provisioning.store.home import store_home
from provisioning.store.store import Store
from provisioning.versions import is_version, parse_version

ELF, ARCHIVE = b"\x7fELF", b"PK\x03\x04"
PROGRAMS = (".pte", ".bpte", ".ptd", ".onnx", ".bin", ".tflite", ".litertlm")
# An app without libraries has these; in a set of APKs, each file is one.
APP_FILES = {MANIFEST, "base/manifest/AndroidManifest.xml", "base.apk", "classes.jar"}
MAX_UNPACKED = 4 << 30
BLOCK_BYTES = 1 << 20  # of a file that is searched from its end
KEPT_PROGRAMS = "`qnn-ci test-emulator --keep-artifacts kept` writes kept/CASE/artifact/program.pte"
DTYPES = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64"}
DTYPES |= {9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16"}


@dataclass(frozen=True)
class Library:
    """A library: the processor and system that it is for, and its QNN build. ``hexagon`` is the
    Hexagon version, or 0 for another processor. ``build`` is QNN's whole build id, and ``qnn`` the
    version in it. ``api_level`` is the Android API level. ``align`` is the smallest alignment of
    the LOAD segments. ``litert`` are the versions of LiteRT that contain a library of LiteRT, none
    if they are unknown, and None for any other library."""

    machine: str
    hexagon: int = 0
    build: str = ""
    qnn: str = ""
    soname: str = ""
    needed: tuple[str, ...] = ()
    api_level: int = 0
    align: int = 0
    litert: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Inspected:
    """A file and its contents. ``kind`` is ``program``, ``bundle``, ``data`` (a .ptd), ``context``,
    ``onnx``, ``litert`` (a .tflite), ``litertlm`` (a ``bundle`` of models), ``library``,
    ``package`` (an archive such as an APK, with ``entries``) or ``unknown``. If the file cannot be
    used, ``damage`` is the reason, such as ``is empty``."""

    file: str
    kind: str
    size_bytes: int
    damage: str = ""
    program: Program | None = None
    library: Library | None = None
    entries: tuple[Inspected, ...] = ()
    bundle: Bundle | None = None

    @property
    def programs(self) -> tuple[Program, ...]:
        """The program that the file is, or the models of a bundle of LiteRT-LM."""
        sections = self.bundle.sections if self.bundle else ()
        models = (self.program, *(section.model for section in sections))
        return tuple(model for model in models if model)

    @property
    def why_no_program(self) -> str:
        """Why a file that is no program is none."""
        return f"it {self.damage}" if self.damage else f"its kind is {self.kind}"


@dataclass(frozen=True)
class Inspection:
    """The JSON that `inspect` prints."""

    files: tuple[Inspected, ...]
    schema_version: int = 1


def inspect_file(path: Path, name: str = "") -> Inspected:
    """Describe the contents of the file at ``path``. ``name`` replaces the file's name in the
    result. Raises UsageError if the file cannot be read, and UnfitError for an ONNX model if the
    onnx package is missing."""
    try:
        view, name = map_file(path), name or path.name
    except UsageError as error:
        fix = f"pass a file that can be read; {KEPT_PROGRAMS}"
        raise UsageError(error.what, why=error.why, fix=fix) from error
    if program := parse_program(view, name):
        return Inspected(name, program.kind, program.size_bytes, program.damage, program)
    if is_model(view):
        program = parse_model(view, name)
        return Inspected(name, program.kind, program.size_bytes, program.damage, program)
    head, size = bytes(view[:64]), len(view)
    if is_bundle(view):
        bundle = parse_bundle(view)
        damage = bundle.damage
        if any(section.model and section.model.damage for section in bundle.sections):
            damage = describe_zero_tail(path, 0) or damage
        return Inspected(name, "litertlm", size, damage, bundle=bundle)
    if head.startswith(ELF):
        return _inspect_library(path, name)
    if head.startswith(ARCHIVE):
        return _inspect_package(path, name, size)
    # By the name, because a protobuf has no magic number. In a separate process, since onnx's
    # parser is C++ and may crash.
    if path.suffix == ".onnx":
        return run_limited(partial(_inspect_onnx, path, name, size), name)
    return Inspected(name, "unknown", size, describe_other(view))


def describe_zero_tail(path: Path, least_bytes: int = BLOCK_BYTES) -> str:
    """Return why a file is incomplete, "" if it is not known to be: at least an eighth of it, and
    ``least_bytes``, at its end are zeros, as in a download that reserved the whole size before."""
    with open_regular(path) as file:
        size = end = file.seek(0, os.SEEK_END)
        content = b""
        while end and not content:
            start = max(0, end - BLOCK_BYTES)
            file.seek(start)
            content = file.read(end - start).rstrip(b"\0")
            end = start + len(content)
    if size - end < max(least_bytes, size // 8, 1):
        return ""
    return f"contains only zeros from byte {end} of {size} on: its download or copy is incomplete"


def _inspect_library(path: Path, name: str) -> Inspected:
    facts = read_file(name, path)
    if facts.elf is None:
        why = f"{facts.defect.value if facts.defect else 'unreadable'} ({facts.defect_why})"
        return Inspected(name, "library", facts.size_bytes, f"cannot be read as ELF: it is {why}")
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
        find_releases(path),
    )
    return Inspected(name, "library", facts.size_bytes, library=library)


def _inspect_package(path: Path, name: str, size: int) -> Inspected:
    """Inspect an APK, an AAR or any other zip archive: its libraries and programs."""
    try:
        with TemporaryDirectory() as scratch:
            files = unpack_files(path, Path(scratch))
            inspections = [inspect_file(file, inner) for inner, file in files]
        with closing(FileSource(path)) as source:
            names = {member.name for member in read_directory(source)}
    # A damaged archive is a result of `inspect`, not an error of the command.
    except QnnCiError as error:
        return Inspected(name, "package", size, f"cannot be unpacked: {error.why}")
    # Most .bin files of an app do not belong to QNN.
    entries = tuple(
        inspected
        for inspected in inspections
        if inspected.kind != "unknown" or not inspected.file.endswith(".bin")
    )
    bad = [entry.file for entry in entries if entry.damage]
    damage = f"contains files that cannot be used: {', '.join(bad[:4])}" if bad else ""
    if not entries and not names & APP_FILES:
        damage = "is an archive without a library, a program or an app"
    return Inspected(name, "package", size, damage, entries=entries)


def unpack_files(path: Path, scratch: Path) -> list[tuple[str, Path]]:
    """Unpack the libraries and programs of an archive into ``scratch``, and return their names with
    their paths. Raises IntegrityError if the archive is damaged, or if these files are larger than
    MAX_UNPACKED bytes in total."""
    with closing(FileSource(path)) as source:
        members = [
            member
            for member in read_directory(source)
            if member.kind == "file"
            and (LIBRARY.search(member.name) or member.name.endswith(PROGRAMS))
        ]
        # Before anything is written, since an APK comes from anywhere.
        check_members(path.name, members, Limits(MAX_UNPACKED))
        extract_members(source, scratch, [(member.name, member) for member in members])
    return [(member.name, scratch / member.name) for member in members]


def _inspect_onnx(path: Path, name: str, size: int) -> Inspected:
    """Inspect an ONNX Runtime context model."""
    from ci.onnx.contexts import measure_constant, open_context

    try:
        model, context, blob = open_context(path)
    except FailedError as error:
        return Inspected(name, "onnx", size, f"cannot be loaded: {error.why}")
    except UsageError as error:
        damage = error.what.removeprefix(f"{path.name} ")
        damage = f"{damage}: {error.why}" if error.why else damage
        return Inspected(name, "onnx", size, f"{damage} ({error.fix})" if error.fix else damage)
    embedded = wrap_contexts(name, "onnx", size, list_context_binaries(memoryview(blob)))
    nodes = [node for node in model.graph.node if node.op_type != "EPContext"]
    operators = Counter(f"{node.domain}::{node.op_type}".removeprefix("::") for node in nodes)
    constants = Counter[str]()
    for initializer in model.graph.initializer:
        constants[DTYPES.get(initializer.data_type, f"type {initializer.data_type}")] += (
            measure_constant(initializer)
        )
    method = Method(
        model.graph.name,
        tuple(map(_describe_port, model.graph.input)),
        tuple(map(_describe_port, model.graph.output)),
        tuple(Partition(context.source, 0) for _ in context.partitions),
        dict(sorted(operators.items())),
    )
    program = replace(embedded, methods=(method,), constant_bytes=dict(constants))
    return Inspected(name, "onnx", size, program.damage, program)


def _describe_port(port: Any) -> TensorSpec:
    tensor_type = port.type.tensor_type
    shape = tuple(int(dim.dim_value) for dim in tensor_type.shape.dim)
    return TensorSpec(
        port.name, DTYPES.get(tensor_type.elem_type, f"type {tensor_type.elem_type}"), shape
    )


BACKEND = "libQnnHtp.so"
# Libraries that may contain ExecuTorch's backend, its kernels or both.
EXECUTORCH = re.compile(r"PyQnnManagerAdaptor.*\.so|lib(qnn_executorch_backend|executorch\w*)\.so")


def read_runtime(word: str, operators: Iterable[str] = ()) -> Runtime:
    """Return the runtime that ``word`` specifies: a directory, an APK or AAR, ARTIFACT@VERSION, or
    a version. The runtime's libraries are searched for kernels for the CPU operators ``operators``.

    Raises UsageError for any other word, and IntegrityError for a damaged archive. If an artifact
    is not in the store, only its version is known.
    """
    name, _, version = word.partition("@")
    # Before the paths, since 2.49.40 is usually no file.
    if is_version(word):
        return Runtime(f"QNN {word}", word)
    if name in list_toolchains():
        release = read_toolchain(name).release(version)
        if not name.startswith("qnn-"):
            raise UsageError(f"{name} is not a runtime of QNN", fix="pass qnn-runtime or qnn-sdk")
        for published, tree in stored_trees(Store(store_home())):
            if (tree.artifact, tree.version) == (name, release.version):
                return _survey(published.root, f"{name} {release.version}", operators)
        return Runtime(f"{name} {release.version}", release.version)
    path = user_path(word)
    if path.is_dir():
        return _survey(path, path.name, operators)
    if not path.is_file():
        raise UsageError(
            f"no runtime {word!r}",
            why="it is not a directory, file, version or artifact",
            fix="pass a directory with libQnnHtp.so, an APK, qnn-runtime@2.49.40 or 2.49.40",
        )
    with TemporaryDirectory() as scratch:
        unpack_files(path, Path(scratch))
        return _survey(Path(scratch), path.name, operators)


def _survey(root: Path, name: str, operators: Iterable[str]) -> Runtime:
    return describe_runtime(survey_tree(root).files, name, operators)


def describe_runtime(files: Sequence[FileFacts], name: str, operators: Iterable[str]) -> Runtime:
    """Return a description of the runtime with the libraries ``files``. They are searched for
    kernels for the CPU operators ``operators``."""
    backends = [file for file in files if file.name == BACKEND]
    builds = [
        backend.build.version
        for backend in backends or files
        if backend.build and backend.build.version
    ]
    linked = [file for file in files if EXECUTORCH.fullmatch(file.name)]
    headers = sorted(filter(None, (find_headers_version(file.path) for file in linked)))
    # With the NUL at its end, so that aten::add does not match aten::addmm. Kernels register
    # themselves by name, so the name is in the library.
    texts = {b"%b\0" % name.encode(): name for name in operators}
    kernels = {texts[text] for file in files if linked for text in find_texts(file.path, texts)}
    return Runtime(
        name,
        # The oldest, since that one decides what can be loaded.
        min(builds, key=parse_version, default=""),
        _list_versions(files, "Stub"),
        _list_versions(files, "Skel"),
        headers[0] if headers else "unknown" if linked else "",
        tuple(sorted(kernels)) if linked else None,
    )


def _list_versions(files: Iterable[FileFacts], part: str) -> tuple[int, ...]:
    """Return the Hexagon versions of the HTP stubs or HTP skels in ``files``. ``part`` is ``Stub``
    or ``Skel``."""
    names = [file.qnn_name for file in files]
    versions = {name.hexagon for name in names if (name.backend, name.part) == ("Htp", part)}
    return tuple(sorted(int(version) for version in versions if version.isdecimal()))
