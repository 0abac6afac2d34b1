"""Read an Android app from an archive: an APK, a set of split APKs, or an AAR.

Only libraries, programs and the manifest are unpacked, into a scratch directory. All of them are
checked before the first byte is written.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from ci.inspect.app_manifest import AppManifest, merge_manifests
from ci.inspect.apps import (
    LFS,
    MANIFEST,
    PROGRAMS,
    AppUnit,
    Kind,
    PackedFile,
    gather,
    read_manifest,
)
from provisioning.archives.layout import Limits, Member, check_members
from provisioning.archives.zipfiles import (
    STORED,
    FileSource,
    extract_members,
    find_data_offset,
    read_directory,
)
from provisioning.documents import open_regular
from provisioning.errors import IntegrityError, UnfitError, UsageError

ZIP = b"PK"
MAX_UNPACKED = 4 << 30  # the limit for all archives of an app together
NATIVE = re.compile(r"(?:lib|jni)/([\w-]+)/([^/]+\.so)")
ASSET = re.compile(
    rf"(?:assets|res/raw)/(?:.*/)?([^/]+(?:\.so|{'|'.join(map(re.escape, PROGRAMS))}))"
)
# Names that point outside the directory also match, so that the archive is rejected.
WANTED = re.compile(rf"{NATIVE.pattern}|{ASSET.pattern}|{MANIFEST}|/.*|(?:.*/)?\.\./.*", re.DOTALL)


class _Contents(NamedTuple):
    """The contents of an archive that matter for QNN."""

    libraries: tuple[PackedFile, ...]
    assets: tuple[PackedFile, ...]
    manifest: AppManifest | None
    is_apk: bool = True


class ArchiveReader:
    """Reads the archives of one app, with one size limit for all of them together."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.left = MAX_UNPACKED

    def read_file(self, path: Path) -> AppUnit:
        with open_regular(path) as file:
            start = file.read(len(LFS))
        if start == LFS:
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
                    fix=f"run `bundletool build-apks --mode=universal --bundle={path.name} "
                    f"--output={path.stem}.apks`, and check the .apks",
                )
            inner = [one for one in members if one.name.endswith(".apk") and one.kind == "file"]
            if MANIFEST not in names and inner:
                return self.read_set(path.name, self._take(source, choose_splits(inner)))
            contents = self._read_members(source, members, path.name)
            if MANIFEST not in names and not contents.libraries:
                raise UsageError(
                    f"{path} is a ZIP archive, but not an Android app",
                    why=f"it has no {MANIFEST} and no libraries in lib/ABI or jni/ABI",
                    fix="pass an APK, an AAR, a set of APKs (.apks, .xapk), or a directory",
                )
        return self._combine(path.name, [contents])

    def _take(self, source: FileSource, members: Sequence[Member]) -> list[Path]:
        """Extract the members into a new directory in the scratch directory, and return their
        paths."""
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
                manifest = read_manifest(path)
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

    def read_set(self, name: str, paths: Sequence[Path]) -> AppUnit:
        """Return the app that several APKs form together."""
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
    whole = [one for one in members if one.name.rpartition("/")[2] == "universal.apk"]
    return (
        whole
        or [one for one in members if not one.name.startswith("standalones/")]
        or [*members][:1]
    )
