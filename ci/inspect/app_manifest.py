"""Read AndroidManifest.xml, compiled (in an APK) or as text (in sources and an AAR).

developer.android.com/guide/topics/manifest describes the elements that are read: `manifest`,
`uses-sdk`, `application` (its attribute `extractNativeLibs`) and `uses-native-library`. In a
compiled manifest, an attribute's name may be empty. Then its resource id identifies it, as in
Android itself.
"""

from __future__ import annotations

import io
import logging
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_BYTES = 2 << 20  # the largest known manifest of an app from a store is 0.5 MB long
READS = 8  # how often the reader may read each byte; a valid manifest takes three
COMPILED = b"\x03\x00\x08\x00"
ANDROID = "http://schemas.android.com/apk/res/android"
# frameworks/base/core/res/res/values/public.xml of AOSP
RESOURCES = {
    0x01010003: "name",
    0x0101020C: "minSdkVersion",
    0x01010270: "targetSdkVersion",
    0x0101028E: "required",
    0x010104EA: "extractNativeLibs",
}
STRING, BOOLEAN = 3, 18
NUMBERS = {16, 17}
OWN_VALUES = ("package", "split", "min_sdk", "target_sdk", "extracts")
Attributes = Mapping[str, str]


@dataclass(frozen=True)
class AppManifest:
    """The values of a manifest. ``min_sdk``, ``target_sdk`` and ``extracts`` are None if they are
    missing or refer to a resource.

    ``extracts`` is the value of extractNativeLibs. The keys of ``native_libraries`` are the
    libraries in uses-native-library elements; a value is true if the library is required. ``split``
    is the name of a split APK, or empty for a base APK. ``fault`` is the reason why the manifest
    could not be read, or empty.
    """

    package: str = ""
    split: str = ""
    min_sdk: int | None = None
    target_sdk: int | None = None
    extracts: bool | None = None
    native_libraries: Mapping[str, bool] = field(default_factory=dict)
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


def merge_manifests(manifests: Iterable[AppManifest], own: int = 1) -> AppManifest | None:
    """Return the merged manifest of an app, or None if ``manifests`` is empty. An earlier manifest
    goes before a later one. The first ``own`` manifests are the app's own. The others only add
    native libraries, and a fault if no earlier one has any."""
    known = [*manifests]
    if not known:
        return None
    return AppManifest(
        native_libraries={
            name: needed for one in known[::-1] for name, needed in one.native_libraries.items()
        },
        fault=_find_first(known, "fault"),
        **{name: _find_first(known[:own], name) for name in OWN_VALUES},
    )


def _find_first(manifests: Sequence[AppManifest], name: str) -> Any:
    """Return the value ``name`` of the first manifest that sets it, otherwise the value that stands
    for a missing one."""
    values = [getattr(one, name) for one in manifests]
    return next((one for one in values if one not in {None, ""}), values[0])


class _Refused(Exception):  # noqa: N818 - it is caught in this module
    """The manifest cannot be read. The message is the reason."""


def _gather(elements: Iterable[tuple[str, Attributes]]) -> AppManifest:
    found: dict[str, Attributes] = {}
    libraries: dict[str, bool] = {}
    for tag, attributes in elements:
        found.setdefault(tag, attributes)
        if tag == "uses-native-library" and (name := attributes.get("name")):
            libraries[name] = attributes.get("required") != "false"
    if "manifest" not in found:
        raise _Refused("it has no manifest element")
    own, application, sdk = (found.get(tag, {}) for tag in ("manifest", "application", "uses-sdk"))
    extracts = {"true": True, "false": False}.get(application.get("extractNativeLibs", ""))
    return AppManifest(
        own.get("package", ""),
        own.get("split", ""),
        _number(sdk.get("minSdkVersion", "")),
        _number(sdk.get("targetSdkVersion", "")),
        extracts,
        libraries,
    )


def _number(text: str) -> int | None:
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
    silent = logging.NullHandler()
    root.addHandler(silent)
    try:
        from apkInspector import axml

        found = axml.ManifestStruct.parse(_Metered(data))
        strings, resources = found.string_pool.string_list, found.resource_map.resids
        return [
            (
                strings[element.attrext[1]],
                dict(_pair(one, strings, resources) for one in element.attributes),
            )
            for element in found.elements
            if isinstance(element, axml.XmlStartElement)
        ]
    except (_Refused, MemoryError):
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error) as e:
        raise _Refused(f"its compiled XML is damaged ({type(e).__name__})") from e
    finally:
        root.removeHandler(silent)


def _pair(one: object, strings: list[str], resources: list[int]) -> tuple[str, str]:
    """Return the name and the value of an attribute. A value that is not a string, a Boolean or a
    number, such as a reference to a resource, is returned as ""."""
    index, kind, value = (
        getattr(one, name) for name in ("name_index", "typed_value_datatype", "typed_value_data")
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
        own = {name.removeprefix(f"{ANDROID} "): value for name, value in attributes.items()}
        elements.append((tag, own))

    def refuse(*_: object) -> None:
        raise _Refused("it has a document type, which no Android manifest needs")

    parser = expat.ParserCreate(namespace_separator=" ")
    handlers: dict[str, Callable[..., None]] = {
        "StartElementHandler": start,
        "StartDoctypeDeclHandler": refuse,
    }
    for name, handler in handlers.items():
        setattr(parser, name, handler)
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise _Refused(f"it is not XML: {error}") from error
    return elements
