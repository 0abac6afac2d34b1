"""Releases: pinned versions of an artifact, with one struct per kind of source.

``source`` in a manifest's [[releases]] table is the kind of source. The module in
artifacts/sources/ for this kind has the same name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from provisioning.files import leads_out


def check_paths(*paths: str) -> None:
    """Raise ValueError for a path outside the artifact's tree."""
    for path in filter(leads_out, paths):
        raise ValueError(f"{path!r} is outside the artifact's tree")


def check_names(*names: str) -> None:
    """Raise ValueError for a name that is not a valid file name."""
    for name in names:
        # Names are printed, and are arguments of programs, which would take -x for an option.
        is_odd = not name.isprintable() or name.startswith("-")
        if name in {"", "."} or is_odd or "/" in name or leads_out(name):
            raise ValueError(f"{name!r} is not a valid file name")


def _digits(text: str, *counts: int) -> str:
    """Return the hash ``text`` in lower case; it may be ''. Raises ValueError unless the number of
    its hexadecimal digits is one of ``counts``.
    """
    if text and not (len(text) in counts and re.fullmatch(r"[0-9a-fA-F]+", text)):
        raise ValueError(f"{text!r} is not {' or '.join(map(str, counts))} hexadecimal digits")
    return text.lower()


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule of an archive's layout: members that match ``take`` are written to ``put``.

    ``take`` is a glob in which ``**`` also matches ``/``. A ``put`` that is empty or ends in ``/``
    keeps the path below the fixed part of ``take``; any other ``put`` is the whole new path.
    """

    take: str
    put: str = ""


@dataclass(frozen=True)
class Origin:
    """The pin that an artifact is checked against: a SHA-256, a commit, or neither."""

    sha256: str = ""
    commit: str = ""


class Release(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="source", kw_only=True
):
    """The fields that all releases have: a version, the layout of the tree, and links and small
    files to add to it.

    ``can_lock`` is true for a release that is a single file, which a lock can pin.
    """

    version: str
    layout: tuple[Rule, ...] = ()
    links: dict[str, str] = {}
    write: dict[str, str] = {}

    can_lock: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_names(self.version)
        check_paths(*(rule.put for rule in self.layout), *self.links, *self.write)

    @property
    def source(self) -> str:
        """The kind of source, such as ``archive``: the value of the key ``source``."""
        return str(self.__struct_config__.tag)

    @property
    def origin(self) -> Origin:
        """The pin; empty if there is none."""
        return Origin(getattr(self, "sha256", ""), getattr(self, "commit", ""))

    @property
    def place(self) -> str:
        """The URL or the name of the package that it is fetched from."""
        return str(getattr(self, "url", "") or getattr(self, "package", ""))

    @property
    def pin(self) -> str:
        """The pin as text: a SHA-256, a commit, or '' if there is none."""
        return self.origin.sha256 or self.origin.commit


class FileRelease(Release, frozen=True, kw_only=True):
    """A release that is one file to unpack. ``sha256`` is its pin, '' if its hash is unknown."""

    filename: str
    size_bytes: int = 0
    sha256: str = ""
    unpacked_bytes: int = 0
    case_collisions: bool = False

    can_lock = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.filename)
        if min(self.size_bytes, self.unpacked_bytes) < 0:
            raise ValueError("a size is negative")
        # In lower case, as hexdigest returns it, because vendors also publish hashes in capitals.
        msgspec.structs.force_setattr(self, "sha256", _digits(self.sha256, 64))


class ArchiveRelease(FileRelease, frozen=True, kw_only=True, tag="archive"):
    """A ZIP or tarball at a URL."""

    url: str
    mirrors: tuple[str, ...] = ()


class PackageRelease(FileRelease, frozen=True, kw_only=True):
    """A version of a package in a package index or a Maven repository."""

    package: str
    package_version: str

    def __post_init__(self) -> None:
        super().__post_init__()
        for word in (self.package, self.package_version):  # pip would take more for its options
            if not re.fullmatch(r"\w[\w.+!:-]*", word):
                raise ValueError(f"{word!r} is not the name or the version of a package")


class WheelRelease(PackageRelease, frozen=True, kw_only=True, tag="wheel"):
    """A wheel in a package index, for one Python version and one platform tag."""

    platform: str
    python: str


class ZigRelease(WheelRelease, frozen=True, kw_only=True, tag="zig"):
    """A library compiled from the sources in ``write`` with the C compiler of a wheel.

    ``output`` is the library's path in the tree; ``instead`` describes another way to install it.
    """

    output: str
    instead: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_paths(self.output)


class AarRelease(PackageRelease, frozen=True, kw_only=True, tag="aar"):
    """An Android archive (AAR) in a Maven repository; ``package`` is ``group:artifact``."""


class GitRelease(Release, frozen=True, kw_only=True, tag="git"):
    """A commit of a git repository. It is fetched by ``tag`` if there is one, and from a mirror by
    its hash.
    """

    url: str
    commit: str
    tag: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        # git would take it for an option.
        if self.url.startswith("-"):
            raise ValueError(f"{self.url!r} is not a URL")
        if not self.commit:
            raise ValueError("the commit is empty")
        msgspec.structs.force_setattr(self, "commit", _digits(self.commit, 40, 64))


AnyRelease = ArchiveRelease | WheelRelease | ZigRelease | AarRelease | GitRelease
