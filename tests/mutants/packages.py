"""What is mutated, by which tests it is judged, and which mutants change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec

EQUIVALENTS = Path(__file__).with_name("equivalents.toml")

# The packages that decide verdicts, and noxfile.py. A mutant is judged by those of the tests that
# reach its function.
PACKAGES: dict[str, tuple[str, ...]] = {
    "ci/cases": ("tests/unit/ci/cases", "tests/unit/ci/emulator", "tests/unit/ci/lowering"),
    "ci/executorch": ("tests/unit/ci/lowering", "tests/unit/ci/emulator"),
    "ci/gate": ("tests/unit/ci/gate",),
    "ci/images": ("tests/unit/ci/images",),
    "ci/judging": ("tests/unit/ci/emulator", "tests/unit/ci/cases"),
    "ci/models": ("tests/unit/ci/lowering", "tests/unit/ci/emulator", "tests/unit/ci/cases"),
    "ci/onnx": ("tests/unit/ci/onnx",),
    "ci/parity/compare": ("tests/unit/ci/parity",),
    "ci/report": ("tests/unit/ci/report",),
    "ci/signing": ("tests/unit/ci/signing",),
    "noxfile.py": ("tests/unit/test_noxfile.py",),
    "provisioning/archives": ("tests/unit/provisioning/archives",),
    "provisioning/artifacts": ("tests/unit/provisioning/artifacts",),
    "provisioning/console": ("tests/unit/provisioning/console",),
    "provisioning/doctor/checks": ("tests/unit/provisioning/doctor",),
    "provisioning/elf": ("tests/unit/provisioning/elf",),
    "provisioning/fetch": ("tests/unit/provisioning/fetch",),
    "provisioning/store": ("tests/unit/provisioning/store",),
}


def list_modules(place: Path, package: str) -> list[Path]:
    """The modules of a row of PACKAGES below ``place``."""
    found = place / package
    return [found] if found.suffix == ".py" else sorted(found.rglob("*.py"))


@dataclass(frozen=True)
class Sample:
    """Which mutants are judged: ``size`` drawn by ``seed``, all if it is 0."""

    size: int = 0
    seed: int = 0

    def draw(self, names: Iterable[str]) -> list[str]:
        """The drawn mutants, in no order: a run that is cut off has judged a sample too."""
        drawn = sorted(names, key=lambda name: sha256(f"{self.seed} {name}".encode()).digest())
        return drawn[: self.size or None]


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
