"""Compare versions with the ``packaging`` library, after converting vendor version strings."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from packaging.version import InvalidVersion, Version

NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)")
# QNN 2.37.0.250724 and v2.37.0.250724175447_124859 are one release, and so are 2.23.0.240624 and
# v2.23.0.24.06.24: after the third number comes the build date.
BUILT = re.compile(r"v?(\d+\.\d+\.\d+)\.(?:\d{6}(?:\d{6})?(?:_\d+)?|\d\d\.\d\d\.\d\d)")

DIRECTORY = re.compile(r"(\d+\.\d+(?:\.\d+)*)")
# Our store keeps an artifact in hexagon-sdk-6.5.0.0-0123456789ab/hexagon-sdk.
STORED = re.compile(r"[a-z][a-z0-9-]*-(\d+\.\d+(?:\.\d+)*)-[0-9a-f]{12}")


def find_place_version(place: str) -> str:
    """Return the version in the name of the directory ``place`` or, if it is in the store, in the
    name of its parent directory; '' if there is none.
    """
    path = PurePosixPath(place)
    version = DIRECTORY.fullmatch(path.name) or STORED.fullmatch(path.parent.name)
    return version[1] if version else ""


def is_version(word: str) -> bool:
    """Return whether ``word`` is a numeric version such as 2.43.0.260128, not a name or path."""
    return bool(DIRECTORY.fullmatch(word))


def parse_version(text: str) -> Version:
    """Parse ``text`` as a version, without QNN's build date. If ``text`` is not a valid version,
    return the numbers at its start, or 0 if it does not start with a number.
    """
    if built := BUILT.fullmatch(text):
        return Version(built[1])
    try:
        return Version(text)
    # Versions of vendors, such as r26c, need not follow PEP 440.
    except InvalidVersion:
        numbers = NUMBERS.match(text)
        return Version(numbers[1] if numbers else "0")


def is_older(version: str, than: str) -> bool:
    """Return whether ``version`` is older than ``than``; 13 and 13.0 are equal."""
    return parse_version(version) < parse_version(than)


def is_same(left: str, right: str) -> bool:
    """Return whether both versions are the same release. Build dates, local versions, and suffixes
    for pre-, post- and development releases are ignored.
    """
    versions = [parse_version(text).base_version for text in (left, right)]
    return Version(versions[0]) == Version(versions[1])
