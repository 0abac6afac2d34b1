"""What is kept between runs, part by part: in the store's home, and the environments of nox."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioning.store.collect import Garbage, Kept, find_user, made_by_us, measure
from provisioning.store.store import Store

CHECKOUT = Path(__file__).resolve().parents[2]
HOME_PARTS = {
    "store": "verified toolchains",
    "downloads": "archives and wheels that toolchains were unpacked from",
    "lowered": "lowered programs",
    "builds": "build trees and what was built",
    "parity": "build files that parity has read",
    "doctor": "facts about libraries that were examined",
    "tools": "a Python for Qualcomm's signer",
    "bench": "inputs of benchmarks",
}
ENVIRONMENTS, ABOUT_ENVIRONMENTS = "environments", "Python environments of nox sessions (.nox)"


@dataclass(frozen=True)
class CachePart:
    """A directory whose content can be made again."""

    name: str
    path: Path
    about: str

    def entries(self) -> Iterator[Path]:
        """What lies in it; nothing where it is not a directory of ours."""
        if self.path.is_dir() and not self.path.is_symlink():
            yield from sorted(self.path.iterdir())

    def size_bytes(self) -> int:
        """Bytes of all files below it."""
        return sum(map(measure, self.entries()))


def list_parts(store: Store) -> list[CachePart]:
    """Every part, there or not; the environments only where this runs from a checkout."""
    parts = [CachePart(name, store.home / name, about) for name, about in HOME_PARTS.items()]
    if (CHECKOUT / "noxfile.py").is_file():
        parts.append(CachePart(ENVIRONMENTS, CHECKOUT / ".nox", ABOUT_ENVIRONMENTS))
    return parts


def find_removable(part: CachePart) -> tuple[list[Garbage], list[Kept]]:
    """What of a part may go, and what stays since a process uses it or it is not ours."""
    garbage: list[Garbage] = []
    kept: list[Kept] = []
    for path in part.entries():
        if why := _find_use(part, path):
            kept.append(Kept(path, why))
        else:
            garbage.append(Garbage(path, measure(path), part.about))
    return garbage, kept


def _find_use(part: CachePart, path: Path) -> str:
    if part.name == "store" and (not path.is_dir() or made_by_us(path) is None):
        return "it is not ours"
    if part.name == ENVIRONMENTS and _runs_this(path):
        return "this command runs from it"
    user = find_user(path)
    return f"process {user} uses it" if user else ""


def _runs_this(path: Path) -> bool:
    """Whether this Python is in it, or the nox that has started it."""
    return path.name.startswith("bootstrap") or Path(sys.prefix).is_relative_to(path)
