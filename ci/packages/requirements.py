"""What each lock has to contain, for the verb ``update locks`` and for tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from ci.packages.locks import GROUPS, ROOT, Lock, read_pairs, read_toml

WITHOUT_TESTS = ("1.2.0",)  # it needs pytest before 9.0


def list_locks() -> list[Lock]:
    """Return the locks of all environments."""
    versions, default = read_pairs()
    locks = [Lock(group) for group in GROUPS]
    for version in versions:
        if version != default:
            locks.append(Lock("lowering", version))
            if version not in WITHOUT_TESTS:
                locks.append(Lock("test", version))
    return locks


def list_requirements(lock: Lock) -> tuple[str, ...]:
    """Return the requirements of a lock's group in pyproject.toml, with another ExecuTorch if that
    was chosen, and the torch that manifests/pairs.toml pairs with it."""
    rows = tuple(dict.fromkeys(list_group(lock.group)))
    if not lock.executorch:
        return rows
    chosen = {
        "executorch": f"executorch=={lock.executorch}",
        "torch": f"torch=={lock.torch}",
    }
    return tuple(chosen.get(row.partition("==")[0], row) for row in rows)


def list_group(name: str) -> Iterator[str]:
    """Yield the requirements of a dependency group and of the groups that it includes."""
    rows: list[str | Mapping[str, str]] = read_project()["dependency-groups"][name]
    for row in rows:
        if isinstance(row, str):
            yield row
        else:
            yield from list_group(row["include-group"])


@cache
def read_project() -> Any:
    """Return the content of pyproject.toml."""
    return read_toml(ROOT / "pyproject.toml")
