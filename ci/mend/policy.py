"""Writes the policy with which test_emulator judges mended models."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from ci.mend.mending import Mended, find_reference
from ci.mend.search import Recipe
from ci.mend.source import Factory
from provisioning.documents import decoding, read_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCE, POLICY = "mended_net.py", "qnn.toml"
# Keys of a model's entry that are paths, relative to the policy.
PATHS = (
    "path",
    "calibration",
    "inputs",
    "float_model",
    "annotation",
    "recipe",
    "function",
    "labels",
)
HEAD = "# Written by `qnn-ci mend`. Judge it with `qnn-ci test-emulator --policy {name}`.\n"


def name_entry(model: str) -> str:
    """Return a name for a model in a policy, such as ``net`` for ``nets/net.py:factory``."""
    file, _, function = model.rpartition(":")
    word = function if function != "factory" else Path(file).stem
    return re.sub(r"[^A-Za-z0-9]+", "_", Path(word).stem).strip("_")[:40] or "net"


def name_function(entry: str) -> str:
    """Return the name of the function in mended_net.py for an entry of the policy."""
    word = re.sub(r"\W", "_", entry)
    return f"net_{word}" if word[:1].isdigit() or iskeyword(word) else word


def plan_entries(found: Sequence[Mended]) -> dict[str, list[Mended]]:
    """Return the entries of the policy: the cases of each model with the same recipe, by the
    entry's name. If a model has several recipes, the names of the later ones end with their
    schemes."""
    entries: dict[str, list[Mended]] = {}
    keys: dict[tuple[str, Recipe], str] = {}
    for one in found:
        key = (one.spec.model, one.recipe)
        if key not in keys:
            name = name_entry(one.spec.model)
            is_first = all(model != one.spec.model for model, _ in keys)
            keys[key] = (
                name if is_first and name not in entries else f"{name}_{one.spec.scheme.value}"
            )
        entries.setdefault(keys[key], []).append(one)
    return entries


def list_factories(entries: Mapping[str, Sequence[Mended]]) -> list[Factory]:
    """Return the functions of mended_net.py."""
    return [
        Factory(name_function(name), find_reference(one.spec), one.recipe.rewrites)
        for name, (one, *_) in entries.items()
        if one.recipe.rewrites
    ]


def make_policy(
    entries: Mapping[str, Sequence[Mended]], policy: Path | None, directory: Path
) -> dict[str, Any]:
    """Return a policy for ``directory`` that contains the entries, and everything but the models of
    the user's ``policy``."""
    given = read_tables(policy) if policy else {}
    own = given.pop("models", {})
    given.pop("suite", None)
    base = policy.parent if policy else directory
    made = rebase(given, base, directory) if policy else {"extends": "default"}
    made["models"] = models = {}
    for name, cases in entries.items():
        first = cases[0]
        entry = rebase(own.get(first.spec.model, {}), base, directory)
        reference = find_reference(first.spec)
        file, _, factory = reference.rpartition(":")
        entry["path"] = f"{os.path.relpath(file, directory)}:{factory}"
        if first.recipe.rewrites:
            entry["path"] = f"{SOURCE}:{name_function(name)}"
        entry["schemes"] = list(dict.fromkeys(one.spec.scheme.value for one in cases))
        entry["socs"] = list(dict.fromkeys(one.spec.soc for one in cases))
        if first.recipe.parts:
            lowering = entry.setdefault("lowering", {})
            parts = [to_builtins(one) for one in first.recipe.parts]
            plain = [{key: value for key, value in one.items() if value} for one in parts]
            lowering["parts"] = [*lowering.get("parts", []), *plain]
        models[name] = entry
    return made


def read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a policy that has been read before."""
    with decoding():
        tables: dict[str, Any] = tomllib.loads(read_bytes(path).decode("utf-8-sig"))
    return tables


def rebase(value: Any, base: Path, directory: Path, key: str = "") -> Any:
    """Return a value of a policy in ``base`` for one in ``directory``."""
    if isinstance(value, dict):
        return {name: rebase(one, base, directory, name) for name, one in value.items()}
    if isinstance(value, str) and value and key in PATHS:
        file, _, function = value.rpartition(":")
        named = file if file.endswith(".py") else value
        if (base / named).exists():
            moved = os.path.relpath(base / named, directory)
            return f"{moved}:{function}" if named == file else moved
    return value


def write_toml(tables: Mapping[str, Any]) -> str:
    """Return tables as TOML."""
    return "\n".join(_write_table(tables, ())).lstrip("\n") + "\n"


def _write_table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    rows = {key: value for key, value in plain.items() if not path and _is_rows(value)}
    if path and (plain or not table):
        yield f"\n[{'.'.join(map(_write_key, path))}]"
    yield from (
        f"{_write_key(key)} = {_write_value(value)}"
        for key, value in plain.items()
        if key not in rows
    )
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _write_table(value, (*path, key))
    for key, value in rows.items():
        for row in value:
            yield f"\n[[{_write_key(key)}]]"
            yield from (f"{_write_key(name)} = {_write_value(one)}" for name, one in row.items())


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _write_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _write_value(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{_write_key(key)} = {_write_value(one)}" for key, one in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_write_value, value))}]"
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, float) else repr(value)
