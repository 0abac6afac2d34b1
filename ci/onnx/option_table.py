"""manifests/policies/onnx-options.toml as values: the options of the QNN execution provider."""

from __future__ import annotations

import functools
from enum import Enum

from msgspec import Struct

from provisioning.manifest.reader import read_policy
from provisioning.manifest.socs import Soc


class Kind(str, Enum):
    """What values an option takes."""

    SWITCH = "switch"
    CHOICE = "choice"
    NUMBER = "number"
    FILE = "file"
    DIRECTORY = "directory"
    TEXT = "text"


class Option(Struct, frozen=True, forbid_unknown_fields=True):
    """One key; the policy's head says what each field means."""

    name: str
    kind: Kind
    default: str
    doc: str
    wrong: str
    source: str
    values: tuple[str, ...] = ()
    several: bool = False
    least: int = 0
    most: int | None = None
    made: bool = False
    pattern: str = ".+"
    example: str = ""
    since: str = ""
    backends: tuple[str, ...] = ()
    where: str = ""
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """The values in words."""
        if self.kind is Kind.CHOICE:
            return ", ".join(self.values)
        if self.kind is Kind.NUMBER and self.most is not None:
            return f"{self.least} to {self.most}" if self.most > self.least else str(self.least)
        words = {
            Kind.SWITCH: "0, 1",
            Kind.NUMBER: f"a whole number from {self.least} on",
            Kind.FILE: "a file" + (" to write" if self.made else ""),
            Kind.DIRECTORY: "a directory",
            Kind.TEXT: self.example or "text",
        }
        return words[self.kind]


class OptionTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole policy. ``others`` are session entries that are none of QNN's."""

    checked: str
    newest: str
    others: tuple[str, ...]
    socs: dict[str, Soc]
    provider: tuple[Option, ...]
    session: tuple[Option, ...]
    run: tuple[Option, ...]


@functools.cache
def read_options() -> OptionTable:
    """The table. Raises ManifestError."""
    return read_policy("onnx-options", OptionTable)
