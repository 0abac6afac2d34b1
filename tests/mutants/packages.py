"""What is mutated, by which tests it is judged, and which mutants change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

EQUIVALENTS = Path(__file__).with_name("equivalents.toml")

# The packages that decide verdicts. Of these tests mutmut runs those that reach the function.
PACKAGES: dict[str, tuple[str, ...]] = {
    "ci/judging": ("tests/unit/ci/emulator", "tests/unit/ci/cases"),
    "ci/parity/compare": ("tests/unit/ci/parity",),
    "ci/signing": ("tests/unit/ci/signing",),
    "provisioning/archives": ("tests/unit/provisioning/archives",),
    "provisioning/doctor/checks": ("tests/unit/provisioning/doctor",),
    "provisioning/fetch": ("tests/unit/provisioning/fetch",),
    "provisioning/store": ("tests/unit/provisioning/store",),
}


@dataclass(frozen=True)
class Equivalent:
    """A mutant that no test can notice: its file, function and changed lines, and why.

    Mutants are numbered anew when their function changes, so it is known by what it changes.
    """

    path: str
    function: str
    removed: str
    added: str
    reason: Annotated[str, msgspec.Meta(min_length=1)]

    def is_of(self, path: str, function: str, removed: str, added: str) -> bool:
        """Whether a mutant is this one."""
        here = (self.path, self.function, self.removed.strip(), self.added.strip())
        return here == (path, function, removed, added)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    equivalent: list[Equivalent] = []


def read_equivalents(file: Path = EQUIVALENTS) -> Sequence[Equivalent]:
    """The equivalent mutants of equivalents.toml. Raises msgspec.ValidationError."""
    return msgspec.toml.decode(file.read_bytes(), type=_File).equivalent
