"""The contents of an Android app: its libraries per ABI, its programs and its manifest."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ci.inspect.app_manifest import MAX_BYTES, AppManifest, parse_manifest
from ci.inspect.gradle import Gradle
from provisioning.doctor.facts import TreeFacts
from provisioning.documents import open_regular

QNN_ABI = "arm64-v8a"
ABIS = frozenset({QNN_ABI, "armeabi-v7a", "armeabi", "x86_64", "x86", "riscv64", "mips", "mips64"})
MANIFEST = "AndroidManifest.xml"
PROGRAMS = (".pte", ".bin", ".onnx", ".dlc")
# The id of ExecuTorch's QNN backend, the name of a member of QNN's DLC archives, and the operator
# of a compiled ONNX model.
QNN_BACKEND, DLC, EP_CONTEXT = MARKS = b"QnnBackend", b"dlc.metadata", b"EPContext"
LFS = b"version https://git-lfs"


class Kind(str, Enum):
    """The form of the app, or of the part of an app, that is checked."""

    APK = "APK"
    AAR = "AAR"
    SOURCES = "sources"
    LIBRARY = "sources of a library"
    DIRECTORY = "directory"

    @property
    def is_source(self) -> bool:
        """Return whether the app is not built yet, so that nothing is compressed or stripped."""
        return self in {Kind.SOURCES, Kind.LIBRARY}

    @property
    def is_copy(self) -> bool:
        """Return whether files may be missing because only a part of a repository was fetched."""
        return self.is_source or self is Kind.DIRECTORY

    @property
    def is_part(self) -> bool:
        """Return whether this is a library, which another app will package."""
        return self in {Kind.AAR, Kind.LIBRARY}


@dataclass(frozen=True)
class PackedFile:
    """A library for an ABI, or an asset. The ``abi`` of an asset is empty. ``shown`` is its
    location as shown to users. For a member of an archive, ``packed_bytes`` is its size in the
    archive. If it is not compressed there, ``offset`` is the offset of its first byte."""

    name: str
    path: Path
    shown: str
    size_bytes: int
    abi: str = ""
    packed_bytes: int | None = None
    offset: int | None = None

    @property
    def is_pointer(self) -> bool:
        return is_pointer(self.path)

    def find_needs(self) -> tuple[str, ...]:
        """Return the libraries that a program needs besides libQnnHtp.so. An entry
        such as ``a.so|b.so`` means that one of the two is enough."""
        marks = {mark for mark in MARKS if self._holds(mark)}
        if self.path.suffix == ".pte":
            backend = ("libqnn_executorch_backend.so",) if QNN_BACKEND in marks else ()
            return (*backend, *(("libQnnModelDlc.so",) if DLC in marks else ()))
        if self.path.suffix == ".onnx":
            return () if EP_CONTEXT in marks else ("libQnnHtpPrepare.so",)
        return ("libQnnModelDlc.so|libSNPE.so",) if self.path.suffix == ".dlc" else ()

    def _holds(self, mark: bytes) -> bool:
        with (
            suppress(OSError, ValueError),  # an empty file cannot be mapped
            open_regular(self.path) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return data.find(mark) >= 0
        return False


@dataclass(frozen=True)
class AppUnit:
    """Files that are packaged together: an app, one flavour of an app, or a library."""

    name: str
    kind: Kind
    manifest: AppManifest | None
    libraries: tuple[PackedFile, ...] = ()  # one file per ABI and name
    # A group of files for each ABI and name that occurs in several places.
    duplicates: tuple[tuple[PackedFile, ...], ...] = ()
    assets: tuple[PackedFile, ...] = ()
    gradle: Gradle | None = None
    # Files that git's index or a build file lists but that are missing.
    absent: tuple[str, ...] = ()
    pointers: tuple[str, ...] = ()  # files that are only Git LFS pointers
    # Maps each AAR that cannot be read to the reason.
    damaged: Mapping[str, str] = field(default_factory=dict)
    min_sdk: int | None = None
    starter: str = ""  # a source file that sets LD_LIBRARY_PATH for a process
    # The facts of the assets and of the libraries for QNN's ABI.
    tree: TreeFacts = field(default_factory=lambda: TreeFacts(Path(), ()))

    @property
    def abis(self) -> tuple[str, ...]:
        return tuple(sorted({one.abi for one in self.libraries}))

    @property
    def is_complete(self) -> bool:
        """Return whether all files that will be packaged were read."""
        is_part = self.kind.is_part
        return not (self.absent or self.pointers or self.damaged or self.brought or is_part)

    @property
    def brought(self) -> tuple[str, ...]:
        """What Gradle adds to the sources: packages with QNN from a repository and, without a QNN
        library in the sources, what the plugins of a framework may bring."""
        if not self.gradle:
            return ()
        is_own = any(one.name.startswith("libQnn") for one in self.libraries)
        linker = "" if is_own else self.gradle.linker
        return (*self.gradle.maven, *([f"what plugins for {linker} bring"] if linker else []))

    def show(self, text: str) -> str:
        """Return ``text`` with paths in the scratch directory replaced by the locations that users
        know."""
        for relative, one in self.placed():
            text = text.replace(str(self.tree.root / relative), one.shown)
        place = (
            "src/main/jniLibs" if self.kind.is_source else "jni" if self.kind is Kind.AAR else "lib"
        )
        for path in (self.tree.root / "lib" / QNN_ABI, self.tree.root):
            text = text.replace(str(path), f"{place}/{QNN_ABI} of {self.name}")
        return text

    def placed(self) -> Iterator[tuple[str, PackedFile]]:
        """Yield each file to check, with its path in ``tree``."""
        for one in self.libraries:
            if one.abi == QNN_ABI:
                yield f"lib/{one.abi}/{one.name}", one
        for index, one in enumerate(self.assets):
            yield f"assets/{index}/{one.name}", one


def is_pointer(path: Path) -> bool:
    """Return whether the file is only a Git LFS pointer."""
    with suppress(OSError), open_regular(path) as file:
        return file.read(len(LFS)) == LFS
    return False


def gather(
    origins: Iterable[Iterable[PackedFile]],
) -> tuple[tuple[PackedFile, ...], tuple[tuple[PackedFile, ...], ...]]:
    """Return the first file for each ABI and name. Also return each group of several files that
    have the same ABI and name."""
    found: dict[tuple[str, str], list[PackedFile]] = {}
    for origin in origins:
        for one in origin:
            found.setdefault((one.abi, one.name), []).append(one)
    several = [tuple(files) for files in found.values() if len(files) > 1]
    return tuple(files[0] for _, files in sorted(found.items())), tuple(several)


def read_manifest(path: Path) -> AppManifest:
    try:
        with open_regular(path) as file:
            return parse_manifest(file.read(MAX_BYTES + 1))
    except OSError as error:
        return AppManifest(fault=error.strerror or "it cannot be read")
