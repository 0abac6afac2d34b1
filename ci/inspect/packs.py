"""Read the AI packs and asset packs of an app's sources: models that Google Play delivers by device
group (developer.android.com/google/play/on-device-ai).

A directory ``NAME#group_GROUP`` of a pack is for the devices of a group, which the app's device
targeting configuration defines by their SoCs; ``NAME#group_other`` is for all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioning.documents import open_regular

PACK_PLUGINS = frozenset({"com.android.ai-pack", "com.android.asset-pack"})
TARGETING = re.compile(r"\bdeviceTargetingConfig\b[\s=(]*file\s*\(\s*[\"']([^\"'\n]{1,200})[\"']")
GROUP = re.compile(r"(?:^|/)([^/]+)#group_([^/]+)/")
OTHER = "other"
MAX_BYTES = 1 << 18


@dataclass(frozen=True)
class DeviceGroups:
    """An app's device targeting configuration: ``file`` as it is shown, and the models of the SoCs
    in each group. ``fault`` is why it could not be read."""

    file: str
    socs: dict[str, tuple[str, ...]]
    fault: str = ""


def read_groups(root: Path, module: Path, text: str) -> DeviceGroups | None:
    """Return the device groups that the build file ``text`` of a module names; None if it names no
    configuration. A file outside of ``root`` is not read."""
    match = TARGETING.search(text)
    if not match:
        return None
    path = module / match[1]
    shown = match[1]
    if not path.resolve().is_relative_to(root.resolve()):
        return DeviceGroups(shown, {}, "it is outside of the project")
    try:
        with open_regular(path) as file:
            return parse_groups(shown, file.read(MAX_BYTES + 1))
    except OSError as error:
        return DeviceGroups(shown, {}, error.strerror or "it cannot be read")


def parse_groups(shown: str, data: bytes) -> DeviceGroups:
    """Return the groups of a configuration."""
    from xml.parsers import expat

    if len(data) > MAX_BYTES:
        return DeviceGroups(shown, {}, "it is too large")
    groups: dict[str, list[str]] = {}
    current: list[str] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        kind = name.rpartition(" ")[2]
        if kind == "device-group":
            current[:] = [attributes.get("name", "")]
            groups.setdefault(current[0], [])
        elif kind == "system-on-chip" and current:
            groups[current[0]].append(attributes.get("model", "").upper())

    def refuse(*_: object) -> None:
        raise ValueError("it declares entities")  # they could expand to gigabytes

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = start
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        return DeviceGroups(shown, {}, str(error))
    return DeviceGroups(shown, {name: tuple(socs) for name, socs in groups.items()})


def list_groups(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the model and the group of each file in a directory for a device group."""
    for name in names:
        if match := GROUP.search(name):
            yield match[1], match[2]
