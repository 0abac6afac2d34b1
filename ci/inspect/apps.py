"""The contents of an Android app: its libraries per ABI, its programs and its manifest. Reads them
from an archive: an APK, a set of split APKs, or an AAR.

Only libraries, programs and the manifest are unpacked, into a scratch directory. All of them are
checked before the first byte is written.

AndroidManifest.xml is compiled in an APK, and text in an AAR. developer.android.com/guide/topics/
manifest describes the elements that are read: `manifest`, `uses-sdk`, `application` (its attribute
`extractNativeLibs`) and `uses-native-library`. In a compiled manifest, an attribute's name may be
empty. Then its resource id identifies it, as in Android itself.
"""

from __future__ import annotations

import io
import logging
import mmap
import re
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from shlex import quote

from ci.inspect.gradle import Gradle
from ci.inspect.litert_libraries import NAMES, find_releases
from ci.inspect.packs import DeviceGroups
from provisioning.archives.layout import Limits, Member, check_members
from provisioning.archives.zipfiles import (
    STORED,
    FileSource,
    extract_members,
    find_data_offset,
    read_directory,
)
from provisioning.doctor.facts import FileFacts, TreeFacts
from provisioning.doctor.survey.tree import LITERT
from provisioning.documents import POINTER, open_regular
from provisioning.errors import IntegrityError, UnfitError, UsageError

MAX_BYTES = 2 << 20  # the largest known manifest of an app from a store is 0.5 MB long
READS = 8  # how often the reader may read each byte; a valid manifest takes three
COMPILED = b"\x03\x00\x08\x00"
ANDROID = "http://schemas.android.com/apk/res/android"
MERGE_RULE = "http://schemas.android.com/tools node"  # of Gradle, only in sources
# frameworks/base/core/res/res/values/public.xml of AOSP
RESOURCES = {
    0x01010003: "name",
    0x0101020C: "minSdkVersion",
    0x01010270: "targetSdkVersion",
    0x0101028E: "required",
    0x010104EA: "extractNativeLibs",
}
STRING, BOOLEAN = 3, 18
# TYPE_INT_DEC and TYPE_INT_HEX of Android's Res_value; those above are its other types.
NUMBERS = {16, 17}
Attributes = Mapping[str, str]
END: Attributes = {"": "end"}  # instead of the attributes of an element that ends


@dataclass(frozen=True)
class AppManifest:
    """The values of a manifest. ``min_sdk``, ``target_sdk`` and ``extracts`` are None if they are
    missing or refer to a resource.

    ``extracts`` is the value of extractNativeLibs. The keys of ``native_libraries`` are the
    libraries in uses-native-library elements; a value is true if the library is required.
    ``removed`` are those that Gradle removes when it merges manifests (tools:node="remove").
    ``split`` is the name of a split APK, or empty for a base APK. ``fault`` is the reason why the
    manifest could not be read, or empty.
    """

    package: str = ""
    split: str = ""
    min_sdk: int | None = None
    target_sdk: int | None = None
    extracts: bool | None = None
    native_libraries: Mapping[str, bool] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    fault: str = ""


def parse_manifest(data: bytes) -> AppManifest:
    """Parse a manifest. If that fails, the result has a ``fault``."""
    if len(data) > MAX_BYTES:
        return AppManifest(fault=f"it is {len(data)} bytes long, but the limit is {MAX_BYTES}")
    try:
        is_compiled = data.startswith(COMPILED)
        return _gather(_read_compiled(data) if is_compiled else _read_text(data))
    except _Refused as error:
        return AppManifest(fault=str(error))


def merge_manifests(manifests: Sequence[AppManifest]) -> AppManifest | None:
    """Return the merged manifest of an app, or None if there is none. The first one is the app's
    own. The others only add native libraries, unless an earlier one removes them, and a fault if no
    earlier one has any."""
    if not manifests:
        return None
    libraries = dict[str, bool]()
    for manifest in reversed(manifests):
        libraries |= manifest.native_libraries
        for name in manifest.removed:
            libraries.pop(name, None)
    fault = next((manifest.fault for manifest in manifests if manifest.fault), "")
    return replace(manifests[0], native_libraries=libraries, fault=fault)


class _Refused(Exception):  # noqa: N818 - it is caught in this module
    """The manifest cannot be read. The message is the reason."""


def _gather(elements: Iterable[tuple[str, Attributes]]) -> AppManifest:
    """Return what the elements of a manifest state. Each one is a name with attributes; END follows
    behind what is inside of it."""
    first_of_tag: dict[str, Attributes] = {}
    libraries: dict[str, bool] = {}
    removed = set()
    parents: list[str] = []
    for tag, attributes in elements:
        if attributes is END:
            parents[-1:] = []
            continue
        parent = parents[-1] if parents else ""
        parents.append(tag)
        first_of_tag.setdefault(tag, attributes)
        # Anywhere else than in application, it declares nothing.
        is_declaration = (tag, parent) == ("uses-native-library", "application")
        if not is_declaration or not (name := attributes.get("name")):
            continue
        if attributes.get(MERGE_RULE) in {"remove", "removeAll"}:
            removed.add(name)
        else:
            # As in Android, a library is required unless the attribute says otherwise.
            libraries[name] = attributes.get("required") != "false"
    if "manifest" not in first_of_tag:
        raise _Refused("it has no manifest element")
    root, application, sdk = (
        first_of_tag.get(tag, {}) for tag in ("manifest", "application", "uses-sdk")
    )
    extracts = {"true": True, "false": False}.get(application.get("extractNativeLibs", ""))
    return AppManifest(
        root.get("package", ""),
        root.get("split", ""),
        _number(sdk.get("minSdkVersion", "")),
        _number(sdk.get("targetSdkVersion", "")),
        extracts,
        libraries,
        frozenset(removed),
    )


def _number(text: str) -> int | None:
    # A preview of Android has a letter instead of a number.
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else None


class _Metered(io.BytesIO):
    """Bytes that can be read a limited number of times, because a hostile manifest may refer to one
    long string a million times."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.left = READS * len(data) + 4096

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.left -= len(data) or 1
        if self.left < 0:
            raise _Refused("it refers to the same bytes over and over")
        return data


def _read_compiled(data: bytes) -> list[tuple[str, Attributes]]:
    """Parse compiled XML. Raises _Refused if it is damaged.

    apkInspector raises arbitrary exceptions for damaged XML. It would also make the root logger
    print debug messages if that had no handler.
    """
    root = logging.getLogger()
    # A handler is enough: without one, logging.debug would install one for stderr.
    silent = logging.NullHandler()
    root.addHandler(silent)
    try:
        # androguard uses apkInspector, too; it needs no other package, and is one wheel for every
        # Python. pyaxmlparser needs lxml and click, and had no release since March 2024.
        from apkInspector import axml

        document = axml.ManifestStruct.parse(_Metered(data))
        strings, resources = document.string_pool.string_list, document.resource_map.resids
        elements: list[tuple[str, Attributes]] = []
        for element in document.elements:
            if isinstance(element, axml.XmlStartElement):
                pairs = (_pair(attribute, strings, resources) for attribute in element.attributes)
                elements.append((strings[element.attrext[1]], dict(pairs)))
            elif isinstance(element, axml.XmlEndElement):
                elements.append(("", END))
        return elements
    except (_Refused, MemoryError):
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error) as e:
        raise _Refused(f"its compiled XML is damaged ({type(e).__name__})") from e
    finally:
        root.removeHandler(silent)


def _pair(attribute: object, strings: list[str], resources: list[int]) -> tuple[str, str]:
    """Return the name and the value of an attribute. A value that is not a string, a Boolean or a
    number, such as a reference to a resource, is returned as ""."""
    index, kind, value = (
        getattr(attribute, name)
        for name in ("name_index", "typed_value_datatype", "typed_value_data")
    )
    number = resources[index] if index < len(resources) else 0
    name = RESOURCES.get(number) or (strings[index] if not number else "")
    if kind == STRING:
        return name, strings[value]
    if kind == BOOLEAN:
        return name, "true" if value else "false"
    return name, str(value) if kind in NUMBERS else ""


def _read_text(data: bytes) -> list[tuple[str, Attributes]]:
    """Parse a manifest in text form. Raises _Refused if it is not XML, or has a document type,
    which could define entities."""
    from xml.parsers import expat

    elements: list[tuple[str, Attributes]] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        without_prefix = {
            name.removeprefix(f"{ANDROID} "): value for name, value in attributes.items()
        }
        elements.append((tag, without_prefix))

    def refuse(*_: object) -> None:
        raise _Refused("it has a document type, which no Android manifest needs")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda tag: elements.append((tag, END))
    # Entities that refer to each other could expand to gigabytes.
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise _Refused(f"it is not XML: {error}") from error
    return elements


QNN_ABI = "arm64-v8a"
# Removed ABIs, too, since old apps still have their directories.
ABIS = frozenset({QNN_ABI, "armeabi-v7a", "armeabi", "x86_64", "x86", "riscv64", "mips", "mips64"})
MANIFEST = "AndroidManifest.xml"
PROGRAMS = (".pte", ".bin", ".onnx", ".dlc", *LITERT)
# The id of ExecuTorch's QNN backend, the name of a member of QNN's DLC archives, and the operator
# of a compiled ONNX model.
QNN_BACKEND, DLC, EP_CONTEXT = MARKS = b"QnnBackend", b"dlc.metadata", b"EPContext"


class Kind(str, Enum):
    """The form of the app, or of the part of an app, that is checked."""

    APK = "APK"
    AAR = "AAR"
    DIRECTORY = "directory"
    FILES = "files to push"  # to one directory of a device, with adb
    SOURCES = "sources"  # a module with a Gradle build file


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
        """Whether the file is only a Git LFS pointer."""
        with suppress(OSError), open_regular(self.path) as file:
            return file.read(len(POINTER)) == POINTER
        return False

    def find_needs(self) -> tuple[str, ...]:
        """Return the libraries that a program needs besides libQnnHtp.so. An entry
        such as ``a.so|b.so`` means that one of the two is enough."""
        marks = find_texts(self.path, MARKS)
        if self.path.suffix == ".pte":
            backend = ("libqnn_executorch_backend.so",) if QNN_BACKEND in marks else ()
            return (*backend, *(("libQnnModelDlc.so",) if DLC in marks else ()))
        if self.path.suffix == ".onnx":
            return () if EP_CONTEXT in marks else ("libQnnHtpPrepare.so",)
        return ("libQnnModelDlc.so|libSNPE.so",) if self.path.suffix == ".dlc" else ()


@dataclass(frozen=True)
class AppUnit:
    """Files that are packaged together: an app, or a library."""

    name: str
    kind: Kind
    manifest: AppManifest | None
    libraries: tuple[PackedFile, ...] = ()  # one file per ABI and name
    # A group of files for each ABI and name that occurs in several places.
    duplicates: tuple[tuple[PackedFile, ...], ...] = ()
    assets: tuple[PackedFile, ...] = ()
    excluded: tuple[PackedFile, ...] = ()  # libraries in the sources that the build file leaves out
    pointers: tuple[str, ...] = ()  # files that are only Git LFS pointers
    gradle: Gradle | None = None  # the build file of sources
    # Of sources: the models in AI packs and asset packs are among the assets, and these are the
    # device groups to which Google Play delivers them.
    groups: DeviceGroups | None = None
    # Of an app without QNN in one of its flavours: the names of those with QNN.
    npu_flavours: tuple[str, ...] = ()
    socs: tuple[str, ...] = ()  # for which the app is judged
    # The facts of the assets and of the libraries for QNN's ABI.
    tree: TreeFacts = field(default_factory=lambda: TreeFacts(Path(), ()))

    @property
    def min_sdk(self) -> int | None:
        """The lowest API level that the manifest allows, None if it is unknown."""
        return self.manifest.min_sdk if self.manifest else None

    @property
    def abis(self) -> tuple[str, ...]:
        """The ABIs of the libraries, sorted."""
        return tuple(sorted({library.abi for library in self.libraries}))

    @property
    def qnn_libraries(self) -> list[PackedFile]:
        """The libraries for QNN's ABI."""
        return [library for library in self.libraries if library.abi == QNN_ABI]

    @cached_property
    def litert_libraries(self) -> tuple[tuple[PackedFile, tuple[str, ...]], ...]:
        """LiteRT's libraries for each ABI, the one that runs models first, each with the versions
        of LiteRT that contain it: none if its release is unknown."""
        files = [file for file in self.libraries if file.name in NAMES and not file.is_pointer]
        files.sort(key=lambda file: (file.abi, NAMES.index(file.name)))
        releases = ((file, find_releases(file.path)) for file in files)
        return tuple((file, versions) for file, versions in releases if versions is not None)

    @property
    def is_complete(self) -> bool:
        """Return whether all files that will be packaged were read."""
        return not self.pointers and self.kind not in {Kind.AAR, Kind.SOURCES}

    def show(self, text: str) -> str:
        """Return ``text`` with paths in the scratch directory replaced by the locations that users
        know."""
        root = str(self.tree.root)
        if root not in text:
            return text
        text = re.sub(rf"{re.escape(root)}/((?:lib/[^/]+|assets/\d+)/[^/]+)", self._show_file, text)
        place = f"{'jni' if self.kind is Kind.AAR else 'lib'}/{QNN_ABI} of {self.name}"
        if self.kind is Kind.FILES:
            place = self.name
        for path in (self.tree.root / "lib" / QNN_ABI, self.tree.root):
            text = text.replace(str(path), place)
        return text

    @cached_property
    def _shown_files(self) -> dict[str, str]:
        """The locations that users know, by path in ``tree``."""
        return {relative: file.shown for relative, file in self.placed()}

    def _show_file(self, match: re.Match[str]) -> str:
        """Return the location for a path in the scratch directory, which text may follow."""
        for length in range(len(match[1]), 0, -1):
            if shown := self._shown_files.get(match[1][:length]):
                return shown + match[1][length:]
        return match[0]

    def placed(self) -> Iterator[tuple[str, PackedFile]]:
        """Yield each file to check, with its path in ``tree``."""
        for library in self.qnn_libraries:
            yield f"lib/{library.abi}/{library.name}", library
        for index, asset in enumerate(self.assets):
            yield f"assets/{index}/{asset.name}", asset

    def list_compiled(self) -> Iterator[tuple[PackedFile, FileFacts]]:
        """Yield each LiteRT model that is compiled for Qualcomm's NPU, or bundle with such models,
        and its facts. Damaged ones are left out."""
        for program, facts in self.list_programs():
            if facts.path.suffix in LITERT:
                yield program, facts

    def list_programs(self) -> Iterator[tuple[PackedFile, FileFacts]]:
        """Yield each program that is compiled for Qualcomm's NPU, and its facts. Damaged ones are
        left out."""
        files = dict(self.placed())
        for facts in self.tree.lowered:
            if not facts.defect:
                yield files[facts.relative], facts


def find_texts(path: Path, texts: Iterable[bytes]) -> set[bytes]:
    """Return the texts that a file contains. A file that cannot be read contains none."""
    with (
        suppress(OSError, ValueError),  # an empty file cannot be mapped
        open_regular(path) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return {text for text in texts if data.find(text) >= 0}
    return set()


def read_manifest(path: Path) -> AppManifest:
    """Return what an app's manifest, text or compiled, states about libraries. Its ``fault`` is
    set if it cannot be read.
    """
    try:
        with open_regular(path) as file:
            return parse_manifest(file.read(MAX_BYTES + 1))
    except OSError as error:
        return AppManifest(fault=error.strerror or "it cannot be read")


ZIP = b"PK"
MAX_UNPACKED = 4 << 30  # the limit for all archives of an app together
NATIVE = re.compile(r"(?:lib|jni)/([\w-]+)/([^/]+\.so)")
ASSET = re.compile(
    rf"(?:assets|res/raw)/(?:.*/)?([^/]+(?:\.so|{'|'.join(map(re.escape, PROGRAMS))}))"
)
# Names that point outside the directory also match, so that the archive is rejected.
WANTED = re.compile(rf"{NATIVE.pattern}|{ASSET.pattern}|{MANIFEST}|/.*|(?:.*/)?\.\./.*", re.DOTALL)


class ArchiveReader:
    """Reads the archives of one app, with one size limit for all of them together."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.left = MAX_UNPACKED

    def read_file(self, path: Path) -> AppUnit:
        """Return the contents of an APK, an AAR or a set of APKs. Raises UnfitError for an
        LFS pointer, and UsageError for other files.
        """
        with open_regular(path) as file:
            start = file.read(len(POINTER))
        if start == POINTER:
            raise UnfitError(
                f"{path} is a Git LFS pointer",
                fix="run 'git lfs pull' in the checkout that contains it",
            )
        if not start.startswith(ZIP):
            raise UsageError(
                f"{path} is not an Android app",
                why="an APK or an AAR is a ZIP archive, but this is not one",
                fix="pass an APK, an AAR, a set of APKs (.apks, .xapk), or a directory",
            )
        with refused_as_app(path.name), closing(FileSource(path)) as source:
            members = read_directory(source)
            names = {member.name for member in members}
            if "BundleConfig.pb" in names or f"base/manifest/{MANIFEST}" in names:
                raise UsageError(
                    f"{path} is an app bundle (AAB)",
                    why="app stores generate the APKs from it, and decide how they are packaged",
                    fix=f"run `bundletool build-apks --mode=universal --bundle={quote(str(path))} "
                    f"--output={quote(str(path.with_suffix('.apks')))}`, and check the .apks",
                )
            inner_apks = [
                member
                for member in members
                if member.name.endswith(".apk") and member.kind == "file"
            ]
            # An APK may contain APKs among its assets, but has a manifest.
            if MANIFEST not in names and inner_apks:
                return self.read_set(path.name, self._take(source, choose_splits(inner_apks)))
            unit = self._read_members(source, members, path.name)
            # An unpacked and zipped part of an app may lack the manifest.
            if MANIFEST not in names and not unit.libraries:
                raise UsageError(
                    f"{path} is a ZIP archive, but not an Android app",
                    why=f"it has no {MANIFEST} and no libraries in lib/ABI or jni/ABI",
                    fix="pass an APK, an AAR, a set of APKs (.apks, .xapk), or a directory",
                )
        return self._combine(path.name, [unit])

    def _take(self, source: FileSource, members: Sequence[Member]) -> list[Path]:
        """Extract the members into a new directory in the scratch directory, and return their
        paths."""
        # At least 1, since 0 means no limit.
        check_members(source.name, members, Limits(max(self.left, 1), case_collisions=True))
        self.left -= sum(member.size for member in members)
        root = Path(tempfile.mkdtemp(dir=self.scratch))
        extract_members(source, root, [(member.name, member) for member in members])
        return [root / member.name for member in members]

    def _read_members(self, source: FileSource, members: Sequence[Member], shown: str) -> AppUnit:
        """Return the contents of an archive that matter for QNN."""
        relevant = [
            member for member in members if member.kind == "file" and WANTED.fullmatch(member.name)
        ]
        libraries: list[PackedFile] = []
        assets: list[PackedFile] = []
        manifest = None
        for member, path in zip(relevant, self._take(source, relevant), strict=True):
            if member.name == MANIFEST:
                manifest = read_manifest(path)
                continue
            native = NATIVE.fullmatch(member.name)
            # Android maps an uncompressed library from the APK, which needs an offset that is a
            # multiple of the page size.
            offset = find_data_offset(source, member) if member.method == STORED else None
            file = PackedFile(
                *(path.name, path, f"{shown}/{member.name}", member.size),
                *(native[1] if native else "", member.compressed, offset),
            )
            (libraries if native else assets).append(file)
        # By the content: an AAR may have been renamed to .zip.
        is_aar = any(member.name.startswith("jni/") or member.name == "R.txt" for member in members)
        kind = Kind.AAR if is_aar else Kind.APK
        return AppUnit(shown, kind, manifest, tuple(libraries), assets=tuple(assets))

    def read_set(self, name: str, paths: Sequence[Path]) -> AppUnit:
        """Return the app that several APKs form together."""
        parts = []
        for path in paths:
            with refused_as_app(path.name), closing(FileSource(path)) as source:
                parts.append(self._read_members(source, read_directory(source), path.name))
        return self._combine(name, parts)

    def _combine(self, name: str, parts: Sequence[AppUnit]) -> AppUnit:
        manifests = [part.manifest for part in parts if part.manifest]
        # The base APK's manifest first: it has no split name.
        manifest = merge_manifests(sorted(manifests, key=lambda manifest: bool(manifest.split)))
        files_by_library: dict[tuple[str, str], list[PackedFile]] = {}
        for file in (file for part in parts for file in part.libraries):
            files_by_library.setdefault((file.abi, file.name), []).append(file)
        return AppUnit(
            name,
            parts[0].kind,
            manifest,
            libraries=tuple(files[0] for _, files in sorted(files_by_library.items())),
            duplicates=tuple(tuple(files) for files in files_by_library.values() if len(files) > 1),
            assets=tuple(asset for part in parts for asset in part.assets),
        )


@contextmanager
def refused_as_app(name: str) -> Iterator[None]:
    """Replace an IntegrityError of the block with one that addresses the person who built the
    app."""
    try:
        yield
    except IntegrityError as error:
        raise IntegrityError(
            f"{name} is rejected", why=error.why, fix="build the app again, or copy it again"
        ) from error


def choose_splits(members: Sequence[Member]) -> list[Member]:
    """Return the APKs of a set that a device installs together: the universal APK if there is one,
    otherwise the splits.

    Bundletool's standalone APKs are left out, because they are for devices that do not support
    splits. If a set has only these, return the first."""
    universal = [member for member in members if member.name.rpartition("/")[2] == "universal.apk"]
    return (
        universal
        or [member for member in members if not member.name.startswith("standalones/")]
        or [*members][:1]
    )
