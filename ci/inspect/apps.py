"""What an Android app packages: read from an APK, a set of split APKs, an AAR, an unpacked one, or
sources with build files of Gradle.

Archives are unpacked into a scratch directory, by the reader that fetches use: only libraries,
programs and the manifest, each judged before a byte is written.
"""

from __future__ import annotations

import mmap
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path, PurePath
from typing import NamedTuple

from ci.inspect.app_manifest import MAX_BYTES, AppManifest, merge_manifests, parse_manifest
from ci.inspect.gradle import BUILD_FILES, Gradle, read_gradle
from provisioning.archives.layout import Limits, Member, check_members
from provisioning.archives.zipfiles import (
    STORED,
    FileSource,
    extract_members,
    find_data_offset,
    read_directory,
)
from provisioning.console.git import ask_git
from provisioning.doctor.facts import TreeFacts
from provisioning.doctor.survey.tree import FactsCache, find_min_sdk, survey_tree
from provisioning.elf.facts import EM_AARCH64, EM_QDSP6, Defect
from provisioning.errors import IntegrityError, ToolError, UnfitError, UsageError

QNN_ABI = "arm64-v8a"
ABIS = frozenset({QNN_ABI, "armeabi-v7a", "armeabi", "x86_64", "x86", "riscv64", "mips", "mips64"})
MANIFEST = "AndroidManifest.xml"
PROGRAMS = (".pte", ".bin", ".onnx", ".dlc")
# The id of ExecuTorch's backend, a member of QNN's DLC archives, the node of a compiled ONNX model.
QNN_BACKEND, DLC, EP_CONTEXT = MARKS = b"QnnBackend", b"dlc.metadata", b"EPContext"
ZIP, LFS = b"PK", b"version https://git-lfs"
MAX_UNPACKED = 8 << 30  # bytes of all archives of an app together
MAX_DEPTH = 12
NOT_SOURCES = frozenset({"build", "node_modules", "Pods", "third_party", "third-party"})
NATIVE = re.compile(r"(?:lib|jni)/([\w-]+)/([^/]+\.so)")
ASSET = re.compile(
    rf"(?:assets|res/raw)/(?:.*/)?([^/]+(?:\.so|{'|'.join(map(re.escape, PROGRAMS))}))"
)
# Names that lead out are taken too, so that they are refused.
WANTED = re.compile(rf"{NATIVE.pattern}|{ASSET.pattern}|{MANIFEST}|/.*|(?:.*/)?\.\./.*", re.DOTALL)
OTHER_SETS = re.compile(r"main|(test|androidTest|benchmark).*")


class Kind(str, Enum):
    """The form in which an app, or a part of one, was given."""

    APK = "APK"
    AAR = "AAR"
    SOURCES = "sources"
    LIBRARY = "sources of a library"
    DIRECTORY = "directory"

    @property
    def is_source(self) -> bool:
        """Whether Gradle builds it, so that nothing is compressed or stripped yet."""
        return self in {Kind.SOURCES, Kind.LIBRARY}

    @property
    def is_copy(self) -> bool:
        """Whether files may be missing because not everything was fetched."""
        return self.is_source or self is Kind.DIRECTORY

    @property
    def is_part(self) -> bool:
        """Whether another app decides how it is packaged."""
        return self in {Kind.AAR, Kind.LIBRARY}


@dataclass(frozen=True)
class PackedFile:
    """A library of an ABI, or an asset (``abi`` is empty). ``shown`` is its place for a person;
    of an archive's member ``packed_bytes`` is what it takes there, and ``offset`` where its bytes
    start, None if they are compressed.
    """

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
        """The libraries that a program asks for besides libQnnHtp.so, one of each ``|`` list."""
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
            self.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return data.find(mark) >= 0
        return False


@dataclass(frozen=True)
class AppUnit:
    """What is packaged together: an app, or one flavour of it, or a library.

    ``libraries`` has one file per ABI and name, ``duplicates`` those of which several places have
    one. ``absent`` are files that git knows, or a build file names, and that are missing here;
    ``pointers`` files of which only an LFS pointer is here, ``damaged`` AARs, with the reason.
    ``tree`` has the facts of what is for QNN's ABI and of the assets.
    """

    name: str
    kind: Kind
    manifest: AppManifest | None
    libraries: tuple[PackedFile, ...] = ()
    duplicates: tuple[tuple[PackedFile, ...], ...] = ()
    assets: tuple[PackedFile, ...] = ()
    gradle: Gradle | None = None
    absent: tuple[str, ...] = ()
    pointers: tuple[str, ...] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)
    min_sdk: int | None = None
    tree: TreeFacts = field(default_factory=lambda: TreeFacts(Path(), ()))

    @property
    def abis(self) -> tuple[str, ...]:
        return tuple(sorted({one.abi for one in self.libraries}))

    @property
    def is_complete(self) -> bool:
        """Whether everything that is packaged was seen."""
        brings = self.gradle and self.gradle.maven
        return not (self.absent or self.pointers or self.damaged or brings or self.kind.is_part)

    def show(self, text: str) -> str:
        """``text`` with the places that a person knows, not those of the scratch directory."""
        for relative, one in self.placed():
            text = text.replace(str(self.tree.root / relative), one.shown)
        place = (
            "src/main/jniLibs" if self.kind.is_source else "jni" if self.kind is Kind.AAR else "lib"
        )
        for path in (self.tree.root / "lib" / QNN_ABI, self.tree.root):
            text = text.replace(str(path), f"{place}/{QNN_ABI} of {self.name}")
        return text

    def placed(self) -> Iterator[tuple[str, PackedFile]]:
        """Each file that is judged with its path in ``tree``."""
        for one in self.libraries:
            if one.abi == QNN_ABI:
                yield f"lib/{one.abi}/{one.name}", one
        for index, one in enumerate(self.assets):
            yield f"assets/{index}/{one.name}", one


def is_pointer(path: Path) -> bool:
    """Whether only a pointer of Git LFS is here."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(LFS)) == LFS
    return False


def read_app(path: Path, scratch: Path) -> list[AppUnit]:
    """The app at ``path``, by flavour. Raises UsageError for what is none, UnfitError for an LFS
    pointer, IntegrityError for a damaged or hostile archive, OSError."""
    reader, path = _Reader(scratch), path.absolute()
    if path.is_dir():
        units = list(reader.read_directory(path))
    elif path.is_file():
        units = [reader.read_file(path)]
    else:
        raise UsageError(
            f"{path} is neither a file nor a directory", fix="name an APK, an AAR or a directory"
        )
    return [reader.survey(unit) for unit in units]


class _Contents(NamedTuple):
    """What of an archive matters."""

    libraries: tuple[PackedFile, ...]
    assets: tuple[PackedFile, ...]
    manifest: AppManifest | None
    is_apk: bool = True


class _Reader:
    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.left = MAX_UNPACKED

    def survey(self, unit: AppUnit) -> AppUnit:
        """The unit with the facts of its files, which are laid out as a device has them."""
        root = Path(tempfile.mkdtemp(dir=self.scratch))
        for relative, one in unit.placed():
            link = root / relative
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(one.path.absolute())
        tree = survey_tree(root, FactsCache(root))
        files = [
            file
            for file in tree.files
            if file.relative.startswith("lib/")
            or (file.elf and file.elf.machine in {EM_AARCH64, EM_QDSP6})
            or file.defect is Defect.LFS_POINTER
        ]
        pointers = [one.shown for _, one in unit.placed() if one.is_pointer]
        return replace(
            unit,
            pointers=(*unit.pointers, *pointers),
            assets=tuple(one for one in unit.assets if one.shown not in pointers),
            tree=replace(tree, files=tuple(files), min_sdk=unit.min_sdk),
        )

    def read_file(self, path: Path) -> AppUnit:
        with path.open("rb") as file:
            start = file.read(len(LFS))
        if start == LFS:
            raise UnfitError(
                f"{path} is an LFS pointer", fix="run 'git lfs pull' in the checkout it came from"
            )
        if not start.startswith(ZIP):
            raise UsageError(
                f"{path} is no Android app",
                why="an APK or an AAR is a ZIP archive, and this is none",
                fix="name an APK, an AAR, a set of APKs (.apks, .xapk), or a directory",
            )
        with refused_as_app(path.name), closing(FileSource(path)) as source:
            members = read_directory(source)
            names = {member.name for member in members}
            if "BundleConfig.pb" in names or f"base/manifest/{MANIFEST}" in names:
                raise UsageError(
                    f"{path} is an app bundle (AAB)",
                    why="a store makes the APKs of it; how they are packed is decided then",
                    fix=f"run `bundletool build-apks --mode=universal --bundle={path.name} "
                    f"--output={path.stem}.apks`, and check the .apks",
                )
            inner = [one for one in members if one.name.endswith(".apk") and one.kind == "file"]
            if MANIFEST not in names and inner:
                return self._read_set(path.name, self._take(source, choose_splits(inner)))
            contents = self._read_members(source, members, path.name)
            if MANIFEST not in names and not contents.libraries:
                raise UsageError(
                    f"{path} is a ZIP archive, but no Android app",
                    why=f"it has neither {MANIFEST} nor libraries in lib/ABI or jni/ABI",
                    fix="name an APK, an AAR, a set of APKs (.apks, .xapk), or a directory",
                )
        return self._combine(path.name, [contents])

    def _take(self, source: FileSource, members: Sequence[Member]) -> list[Path]:
        """The members, written below a new directory of the scratch directory."""
        check_members(source.name, members, Limits(max(self.left, 1), case_collisions=True))
        self.left -= sum(member.size for member in members)
        root = Path(tempfile.mkdtemp(dir=self.scratch))
        extract_members(source, root, [(member.name, member) for member in members])
        return [root / member.name for member in members]

    def _read_members(self, source: FileSource, members: Sequence[Member], shown: str) -> _Contents:
        wanted = [one for one in members if one.kind == "file" and WANTED.fullmatch(one.name)]
        libraries: list[PackedFile] = []
        assets: list[PackedFile] = []
        manifest = None
        for member, path in zip(wanted, self._take(source, wanted), strict=True):
            if member.name == MANIFEST:
                manifest = _read_manifest(path)
                continue
            native = NATIVE.fullmatch(member.name)
            offset = find_data_offset(source, member) if member.method == STORED else None
            file = PackedFile(
                *(path.name, path, f"{shown}/{member.name}", member.size),
                *(native[1] if native else "", member.compressed, offset),
            )
            (libraries if native else assets).append(file)
        is_apk = not any(one.name.startswith("jni/") or one.name == "R.txt" for one in members)
        return _Contents(tuple(libraries), tuple(assets), manifest, is_apk)

    def _read_set(self, name: str, paths: Sequence[Path]) -> AppUnit:
        """An app in several APKs."""
        parts = []
        for path in paths:
            with refused_as_app(path.name), closing(FileSource(path)) as source:
                parts.append(self._read_members(source, read_directory(source), path.name))
        return self._combine(name, parts)

    def _combine(self, name: str, parts: Sequence[_Contents]) -> AppUnit:
        manifests = [one.manifest for one in parts if one.manifest]
        manifest = merge_manifests(sorted(manifests, key=lambda one: bool(one.split)))
        libraries, duplicates = gather(part.libraries for part in parts)
        return AppUnit(
            *(name, Kind.APK if parts[0].is_apk else Kind.AAR, manifest, libraries, duplicates),
            tuple(one for part in parts for one in part.assets),
            min_sdk=manifest.min_sdk if manifest else None,
        )

    def read_directory(self, root: Path) -> Iterator[AppUnit]:
        """Sources with build files, else directories named after ABIs, else APKs of one app."""
        places = list(_walk(root, 0))
        modules = [place for place in places if any((place / one).is_file() for one in BUILD_FILES)]
        parents = sorted({one.parent for one in places if one.name in ABIS})
        if modules:
            yield from self._read_sources(root, modules)
        elif parents:
            for parent in parents:
                yield self._read_plain(root, parent)
        elif apks := sorted(one for one in root.glob("*.apk") if one.is_file()):
            yield self._read_set(root.name, apks)
        elif (root / MANIFEST).is_file():
            manifest = _read_manifest(root / MANIFEST)
            yield AppUnit(root.name, Kind.DIRECTORY, manifest)
        else:
            raise UsageError(
                f"{root} holds no Android app",
                why="it has no build.gradle, no directory named after an ABI such as arm64-v8a, "
                f"no {MANIFEST} and no APK",
                fix="name the directory of the app; one with libraries as a device has them is for "
                "`qnn-ci doctor android --root staging=DIR`",
            )

    def _read_plain(self, root: Path, parent: Path) -> AppUnit:
        """An unpacked APK or AAR, or a directory with one directory for each ABI."""
        above = [
            one for one in (parent.parent, *parent.parent.parents, root) if one.is_relative_to(root)
        ]
        found = next((one / MANIFEST for one in above if (one / MANIFEST).is_file()), None)
        manifest = _read_manifest(found) if found else None
        libraries = _list_libraries(root, parent)
        assets = _list_assets(root, [parent.parent / "assets", parent.parent / "res" / "raw"])
        return AppUnit(
            _relative(root, parent) or root.name,
            Kind.DIRECTORY,
            manifest,
            tuple(libraries),
            assets=assets,
            absent=tuple(_list_absent(root, [parent])),
            min_sdk=manifest.min_sdk if manifest else None,
        )

    def _read_sources(self, root: Path, modules: Sequence[Path]) -> Iterator[AppUnit]:
        """Each app of the tree by flavour, and each library that no app depends on."""
        known = {place: gradle for place in modules if (gradle := read_gradle(place))}
        whole = {place: _with_projects(root, place, known) for place in known}
        apps = [place for place in known if known[place].is_app]
        used = {each for place in apps for each in whole[place]}
        used |= {each for place in known for each in whole[place][1:]}
        for place in [*apps, *(one for one in known if one not in used)]:
            sets = [
                one.name for one in sorted((place / "src").glob("*")) if (one / "jniLibs").is_dir()
            ]
            flavours = [one for one in sets if not OTHER_SETS.fullmatch(one)]
            units = [self._read_variant(root, whole[place], known, one) for one in flavours or [""]]
            if known[place].is_app or any(unit.libraries or unit.absent for unit in units):
                yield from units

    def _read_variant(
        self, root: Path, modules: Sequence[Path], known: dict[Path, Gradle], flavour: str
    ) -> AppUnit:
        own, gradle = modules[0], known[modules[0]]
        sets = [name for name in (flavour, "main") if name]
        origins: list[Iterable[PackedFile]] = []
        kept = [module / part for module in modules for part in ("src", "libs")]
        manifests, absent, pointers = [], set(_list_absent(root, kept)), set()
        damaged: dict[str, str] = {}
        for module in modules:
            found = [module / "src" / name / "jniLibs" for name in sets]
            found += [module / name for name in known[module].libraries]
            merged = {
                (one.abi, one.name): one
                for place in reversed(found)
                for one in _list_libraries(root, place)
            }
            origins.append(merged.values())
            texts = [module / "src" / name / MANIFEST for name in ("main", flavour)]
            manifests += [_read_manifest(one) for one in texts if one.is_file()]
            for archive, path in _list_archives(module, known[module]):
                if path is None and archive not in {PurePath(one).name for one in absent}:
                    absent.add(f"{_relative(root, module)}/{archive}".lstrip("/"))
                elif path and is_pointer(path):
                    pointers.add(_relative(root, path))
                elif path:
                    try:
                        unit = self.read_file(path)
                    except (IntegrityError, UsageError) as error:
                        damaged[_relative(root, path)] = error.why
                        continue
                    origins.append(
                        replace(one, shown=one.shown.replace(path.name, _relative(root, path), 1))
                        for one in unit.libraries
                    )
                    manifests += [unit.manifest] if unit.manifest else []
        folders = [
            one / "src" / name / part
            for one in modules
            for name in sets
            for part in ("assets", "res/raw")
        ]
        assets = _list_assets(root, folders)
        libraries, duplicates = gather(origins)
        manifest = merge_manifests(manifests)
        stated = manifest.min_sdk if manifest else None
        name = _relative(root, own) or root.name
        return AppUnit(
            f"{name} ({flavour})" if flavour else name,
            Kind.SOURCES if gradle.is_app else Kind.LIBRARY,
            manifest,
            libraries,
            duplicates,
            assets,
            gradle,
            tuple(sorted(absent)),
            tuple(sorted(pointers)),
            damaged,
            gradle.min_sdk or find_min_sdk(own) or stated,
        )


@contextmanager
def refused_as_app(name: str) -> Iterator[None]:
    """What is wrong with an archive, for the person who built it."""
    try:
        yield
    except IntegrityError as error:
        raise IntegrityError(
            f"{name} is refused", why=error.why, fix="build the app again, or copy it again"
        ) from error


def choose_splits(members: Sequence[Member]) -> list[Member]:
    """Of the APKs of a set those that a device gets together: the one for any device, else the
    splits. Bundletool's standalone APKs are for devices that take no splits."""
    whole = [one for one in members if one.name.rpartition("/")[2] == "universal.apk"]
    return (
        whole
        or [one for one in members if not one.name.startswith("standalones/")]
        or [*members][:1]
    )


def gather(
    origins: Iterable[Iterable[PackedFile]],
) -> tuple[tuple[PackedFile, ...], tuple[tuple[PackedFile, ...], ...]]:
    """The first file of each ABI and name, and all of those that several origins have."""
    found: dict[tuple[str, str], list[PackedFile]] = {}
    for origin in origins:
        for one in origin:
            found.setdefault((one.abi, one.name), []).append(one)
    several = [tuple(files) for files in found.values() if len(files) > 1]
    return tuple(files[0] for _, files in sorted(found.items())), tuple(several)


def _read_manifest(path: Path) -> AppManifest:
    try:
        with path.open("rb") as file:
            return parse_manifest(file.read(MAX_BYTES + 1))
    except OSError as error:
        return AppManifest(fault=error.strerror or "it cannot be read")


def _walk(place: Path, depth: int) -> Iterator[Path]:
    """The directory and those below it that are sources; a link is listed and not followed."""
    yield place
    if place.is_symlink() or depth > MAX_DEPTH or place.name in ABIS:
        return
    for path in sorted(place.iterdir()):
        if path.name not in NOT_SOURCES and not path.name.startswith(".") and path.is_dir():
            yield from _walk(path, depth + 1)


def _relative(root: Path, path: Path) -> str:
    """The path below ``root``, '' for itself; a whole path outside."""
    text = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    return "" if text == "." else text


def _list_libraries(root: Path, place: Path) -> Iterator[PackedFile]:
    """The libraries of ``place``/ABI."""
    for abi in sorted(ABIS):
        found = sorted((place / abi).iterdir()) if (place / abi).is_dir() else []
        for path in found:
            if path.suffix == ".so" and (path.is_symlink() or path.is_file()):
                yield _see(root, path, abi)


def _see(root: Path, path: Path, abi: str = "") -> PackedFile:
    size_bytes = path.stat().st_size if path.exists() else 0
    return PackedFile(path.name, path, _relative(root, path), size_bytes, abi)


def _list_assets(root: Path, folders: Sequence[Path]) -> tuple[PackedFile, ...]:
    """Programs and libraries below ``folders``."""
    wanted = {*PROGRAMS, ".so"}
    return tuple(
        _see(root, path)
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.suffix in wanted and path.is_file()
    )


def _list_archives(module: Path, gradle: Gradle) -> Iterator[tuple[str, Path | None]]:
    """The AARs in ``libs`` and those that the build file names; None for one that is missing."""
    found = {path.name: path for path in sorted((module / "libs").glob("*.aar"))}
    for archive in gradle.archives:
        name = archive.rpartition("/")[2]
        if "$" in archive or "*" in archive or name in found:
            continue
        places = (module / archive, *sorted(module.rglob(name)))
        if there := next((one for one in places if one.is_file()), None):
            found[name] = there
        else:
            yield archive, None
    yield from found.items()


def _with_projects(root: Path, module: Path, known: dict[Path, Gradle]) -> list[Path]:
    """The module and all that it depends on, by the directories that Gradle takes by default."""
    found, pending = [module], [module]
    while pending:
        for project in known[pending.pop()].projects:
            parts = project.split(":")
            above = [
                one.joinpath(*parts)
                for one in (module, *module.parents)
                if one.is_relative_to(root)
            ]
            place = next((one for one in above if one in known), None)
            if place and place not in found:
                found.append(place)
                pending.append(place)
    return found


def _list_absent(root: Path, places: Sequence[Path]) -> Iterator[str]:
    """Libraries, archives and programs below ``places`` that git's index has and the disk lacks."""
    top = next((one for one in (root, *root.absolute().parents) if (one / ".git").exists()), None)
    if top is None:
        return
    patterns = [f"*{suffix}" for suffix in (".so", ".aar", *PROGRAMS)]
    words = ("-c", "core.fsmonitor=false", "ls-files", "-z", "--deleted", "--", *patterns)
    with suppress(ToolError):
        for name in os.fsdecode(ask_git(top, *words)).split("\0"):
            path = top / name
            if name and any(path.is_relative_to(place) for place in places):
                yield _relative(root, path)
