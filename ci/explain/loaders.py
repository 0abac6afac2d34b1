"""Read the lines in which loaders and linkers refuse a library: what failed, whose library it is,
and which symbol or version is missing. Also those in which tools do not reach a server, a package
or a device.

Two tables, manifests/policies/loaders.toml and tools.toml, have the forms of all of them, so that a
rule says what a failure means, not how a system or a tool spells it."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from provisioning.manifest.reader import read_policy

VALUES = ("library", "symbol", "by", "version", "have", "want", "reason")
STEM = "stem"  # the name of a library without lib, its kind and version, as it follows -l
# What a line names that is not of a loader's form.
NOTHING = dict.fromkeys((*VALUES, "file", "named", STEM), "")
_PATH = r"(?P<library>[^\s:'\"()\[\]]{1,250}):"  # @L@ in a pattern
# Loaders spell the same value in several places of a line, each of which needs its own name.
_SAME = {
    "library": (
        *("path", "name", "skipped", "gnu", "plain", "lld", "apple", "new_apple", "msvc"),
        *("java", "flutter", "python", "dotnet", "unity"),
    ),
    "symbol": ("hidden", "local", "old", "lookup", "wrapped", "entry"),
    "version": ("needed",),
    "have": ("machine", "bits", "type", "lld_type"),
}
_SEPARATOR = re.compile(r"[/\\!]")
_STEM = re.compile(r"(?:-l:?)?(?:lib)?(?P<stem>[^/]{1,100}?)(?:\.(?:so|a|dylib|lib|dll)[.\d]*)?")


class Failure(Enum):
    """What failed when a library was loaded, or when a program was linked with it (``link-``), when
    a file was transferred (``download-``), when versions of packages were chosen (``versions-``),
    or when a device was opened over ssh or adb (``access-``)."""

    MISSING = "missing"
    MACHINE = "machine"
    DAMAGED = "damaged"
    VERSION = "version"
    SYMBOL = "symbol"
    DENIED = "denied"
    NAMESPACE = "namespace"
    PAGE_SIZE = "page-size"
    MEMORY = "memory"
    START = "start"
    FORM = "form"
    LINK_MISSING = "link-missing"
    LINK_MACHINE = "link-machine"
    LINK_DAMAGED = "link-damaged"
    LINK_VERSION = "link-version"
    LINK_SYMBOL = "link-symbol"
    LINK_RANGE = "link-range"
    LINK_INDIRECT = "link-indirect"
    LINK_SKIPPED = "link-skipped"
    DOWNLOAD_HOST = "download-host"
    DOWNLOAD_REFUSED = "download-refused"
    DOWNLOAD_UNREACHABLE = "download-unreachable"
    DOWNLOAD_BROKEN = "download-broken"
    DOWNLOAD_TLS = "download-tls"
    DOWNLOAD_CERTIFICATE = "download-certificate"
    DOWNLOAD_CERTIFICATE_TIME = "download-certificate-time"
    DOWNLOAD_CERTIFICATE_NAME = "download-certificate-name"
    DOWNLOAD_PROXY = "download-proxy"
    DOWNLOAD_PROXY_CREDENTIALS = "download-proxy-credentials"
    DOWNLOAD_CREDENTIALS = "download-credentials"
    DOWNLOAD_MISSING = "download-missing"
    DOWNLOAD_BUSY = "download-busy"
    DOWNLOAD_SERVER = "download-server"
    DOWNLOAD_HASH = "download-hash"
    VERSIONS_CONFLICT = "versions-conflict"
    VERSIONS_MISSING = "versions-missing"
    VERSIONS_PYTHON = "versions-python"
    ACCESS_HOST_KEY = "access-host-key"
    ACCESS_KEY = "access-key"
    ACCESS_ALGORITHM = "access-algorithm"
    ACCESS_CLOSED = "access-closed"
    ACCESS_SFTP = "access-sftp"
    ACCESS_USB = "access-usb"
    ACCESS_AUTHENTICATION = "access-authentication"


class LoaderForm(Struct, frozen=True, forbid_unknown_fields=True):
    """A form of lines of loaders, linkers or other tools, see manifests/policies/loaders.toml and
    tools.toml."""

    of: str
    fails: Failure
    text: tuple[str, ...]
    pattern: str
    matches: str


class Refusal(Struct, frozen=True):
    """What a line of a loader, linker or other tool reports. ``whose`` is the row of the table's
    libraries, or empty; ``loader`` is that of the form. ``values`` has what the line names, for the
    braces of a rule: VALUES, ``file``, the name of the library, STEM, and ``named``, all of it in
    words."""

    fails: Failure
    loader: str
    whose: str
    values: Mapping[str, str]


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of manifests/policies/loaders.toml or tools.toml, which has no libraries."""

    form: tuple[LoaderForm, ...]
    libraries: dict[str, str] = {}


@functools.cache
def read_loaders() -> _Table:
    """Return the libraries of manifests/policies/loaders.toml, and its forms before those of
    tools.toml. Raises ManifestError if a file is invalid."""
    loaders, tools = (read_policy(name, _Table) for name in ("loaders", "tools"))
    return _Table((*loaders.form, *tools.form), loaders.libraries)


@functools.cache
def _compile() -> tuple[tuple[LoaderForm, re.Pattern[str], tuple[str, ...]], ...]:
    return tuple(
        (form, re.compile(form.pattern.replace("@L@", _PATH)), tuple(map(str.lower, form.text)))
        for form in read_loaders().form
    )


@functools.cache
def _compile_libraries() -> Mapping[str, re.Pattern[str]]:
    libraries = read_loaders().libraries
    return {whose: re.compile(rf"(?:{name})\Z") for whose, name in libraries.items()}


@functools.cache
def list_texts(fails: tuple[Failure, ...]) -> tuple[str, ...]:
    """Return strings, one of which each line with one of these failures contains."""
    return tuple(text for form in read_loaders().form if form.fails in fails for text in form.text)


# Each of many rules asks about the same line.
@functools.lru_cache(maxsize=1024)
def find_refusal(line: str) -> Refusal | None:
    """Return what a line of a loader, linker or other tool says, or None if it is no such line."""
    low = line.lower()
    for form, pattern, texts in _compile():
        if not any(text in low for text in texts) or not (match := pattern.search(line)):
            continue
        groups = {name: text for name, text in match.groupdict().items() if text}
        values = {}
        for name in VALUES:
            spelled = (groups.get(same) for same in (name, *_SAME.get(name, ())))
            values[name] = next(filter(None, spelled), "")
        values["library"] = values["library"].strip("\"'")
        values["reason"] = values["reason"].rstrip(" ,;:")
        name = _SEPARATOR.split(values["library"])[-1]
        rows = _compile_libraries().items()
        whose = next((whose for whose, pattern in rows if pattern.match(name)), "")
        stem = _STEM.fullmatch(name)
        values = {**values, "file": name, STEM: stem["stem"] if stem else ""}
        return Refusal(form.fails, form.of, whose, {**values, "named": _describe(values)})
    return None


def _describe(values: Mapping[str, str]) -> str:
    """Return what a line names, in words."""
    kind = f"{values['have']} instead of {values['want']}".removesuffix(" instead of ")
    parts = (
        values["symbol"],
        values["version"],
        values["file"],
        values["reason"],
        f"for {kind}" if kind and not kind.startswith(("R_", " ")) else kind.strip(),
        f"needed by {values['by']}" if values["by"] else "",
    )
    return ", ".join(filter(None, parts))
