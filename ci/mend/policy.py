"""Writes the policy with which test_emulator or test_onnx judges mended models."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path
from typing import Any

from msgspec import structs, to_builtins

from ci.mend.mending import Mended, find_reference, name_scheme
from ci.mend.search import Recipe
from ci.mend.source import Factory
from ci.models.schemes import EXECUTORCH, ONNX
from ci.models.suite import DEFAULT_SOC
from provisioning.console.caller import shown_path
from provisioning.documents import decoding, read_bytes
from provisioning.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCE, POLICY = "mended_net.py", "qnn.toml"
# Keys of a model's entry that are paths, relative to the policy.
PATHS = (
    "path", "calibration", "inputs", "float_model", "annotation", "recipe", "function", "labels",
)  # fmt: skip
HEAD = "# Written by `qnn-ci mend`. Judge it with `qnn-ci {verb} --policy {name}`.\n"


def name_entry(model: str) -> str:
    """Return a name for a model in a policy, such as ``net`` for ``nets/net.py:factory`` or
    ``net/model.onnx``."""
    file, _, function = model.rpartition(":")
    word = function if function != "factory" else Path(file).stem
    if word.endswith(ONNX.suffix) and Path(word).stem == "model":  # the folder is the name
        word = Path(word).parent.name or word
    return re.sub(r"[^A-Za-z0-9]+", "_", Path(word).stem).strip("_")[:40] or "net"


def name_function(entry: str) -> str:
    """Return the name of the function in mended_net.py for an entry of the policy."""
    word = re.sub(r"\W", "_", entry)
    return f"net_{word}" if word[:1].isdigit() or iskeyword(word) else word


def plan_entries(found: Sequence[Mended], own: Collection[str] = ()) -> dict[str, list[Mended]]:
    """Return the entries of the policy: the cases of each model with the same rewrites and parts,
    by the entry's name. If a model has several, the names of the later ones end with their schemes.
    ``own`` are the models of the user's policy, whose names stay."""
    entries: dict[str, list[Mended]] = {}
    keys: dict[tuple[str, Recipe], str] = {}
    for mended in found:
        key = (mended.spec.model, structs.replace(mended.recipe, scheme=""))
        if key not in keys:
            is_own = mended.spec.model in own
            name = mended.spec.model if is_own else name_entry(mended.spec.model)
            taken = {*entries, *own} - ({name} if is_own and name not in entries else set())
            if name in taken:
                name = f"{name}_{mended.spec.scheme}"
            more = (f"{name}_{number}" for number in range(2, len(taken) + 3))
            keys[key] = next(each for each in (name, *more) if each not in taken)
        entries.setdefault(keys[key], []).append(mended)
    return entries


def list_factories(
    entries: Mapping[str, Sequence[Mended]], known: Iterable[Factory] = ()
) -> dict[str, Factory]:
    """Return the functions of mended_net.py for the entries that have rewrites, by the entry's
    name. A name of ``known`` functions is used again only for the same model."""
    references = {factory.name: factory.reference for factory in known}
    made = {}
    for entry, (one, *_) in entries.items():
        if one.recipe.rewrites and not one.spec.is_file:
            reference = find_reference(one.spec)
            name, number = name_function(entry), 1
            while references.setdefault(name, reference) != reference:
                number += 1
                name = f"{name_function(entry)}_{number}"
            references[name] = ""  # taken
            made[entry] = Factory(name, reference, one.recipe.rewrites)
    return made


@dataclass(frozen=True)
class Written:
    """What is written: the entries of the policy with their cases, the functions of mended_net.py
    by entry, and the path of that file."""

    entries: Mapping[str, Sequence[Mended]]
    factories: Mapping[str, Factory]
    source: Path

    def name_file(self, entry: str) -> Path:
        """Return the path of an entry's rewritten .onnx file."""
        return self.source.with_name(f"{entry}{ONNX.suffix}")

    def make_policy(self, policy: Path | None) -> dict[str, Any]:
        """Return a policy for the directory of mended_net.py that contains the entries, and
        everything but the models of the user's ``policy``."""
        given = read_tables(policy) if policy else {}
        own = given.pop("models", {})
        given.pop("suite", None)
        directory = self.source.parent
        base = policy.parent if policy else directory
        made = rebase(given, base, directory) if policy else {"extends": "default"}
        given_names = {name: first.spec.model for name, (first, *_) in self.entries.items()}
        made["models"] = models = {}
        for name, model in given_names.items():
            entry = rebase(own.get(model, {}), base, directory)
            models[name] = entry | self.change_entry(name, entry, directory)
        return made | repeat_rows(made, given_names)

    def change_entry(self, name: str, entry: Mapping[str, Any], directory: Path) -> dict[str, Any]:
        """Return the keys of a model's entry, in a policy in ``directory``, that its recipe
        determines."""
        cases, factory = self.entries[name], self.factories.get(name)
        recipe, spec = cases[0].recipe, cases[0].spec
        file, colon, function = find_reference(spec).rpartition(":")
        if factory:
            file, function = str(self.source), factory.name
        elif spec.is_file:
            file = str(self.name_file(name)) if recipe.rewrites else function
            colon = function = ""
        changed: dict[str, Any] = {
            "path": f"{os.path.relpath(file, directory)}{colon}{function}",
            "schemes": list(dict.fromkeys(map(name_scheme, cases))),
            "socs": list(dict.fromkeys(case.spec.soc for case in cases)),
        }
        if spec.source.shapes:
            changed["shapes"] = {key: [*shape] for key, shape in spec.source.shapes}
        lowering = dict(entry.get("lowering", {}))
        if recipe.observer:
            lowering["observer"] = recipe.observer
        if recipe.parts:
            parts = [to_builtins(part) for part in recipe.parts]
            plain = [{key: value for key, value in part.items() if value} for part in parts]
            lowering["parts"] = [*plain, *lowering.get("parts", [])]  # a node belongs to the first
        return {**changed, "lowering": lowering} if recipe.observer or recipe.parts else changed

    def apply(self, policy: Path) -> str:
        """Return the text of the user's policy with the recipes. Comments and everything about
        other cases stay.

        Raises UsageError if the file cannot be edited: not all SoCs of a model were judged, or an
        entry is not a table such as [models.net].
        """
        text, wanted = read_bytes(policy).decode("utf-8-sig"), read_tables(policy)
        added: dict[str, Any] = {"models": {}}
        models, copied = wanted.setdefault("models", {}), dict[str, str]()
        for name, (first, *others) in self.entries.items():
            if any(mended.recipe != Recipe() for mended in (first, *others)):
                known = set(added["models"])
                changed = self._apply_entry(name, models, added["models"], policy.parent)
                for header, key, value in changed:
                    text = set_key(text, header, key, _write_value(value))
                copied |= dict.fromkeys({*added["models"]} - known, first.spec.model)
        copies = repeat_rows(wanted, copied)
        for key, rows in copies.items():
            added[key] = rows[len(wanted[key]) :]
        more = write_toml(added) if any(added.values()) else ""
        text = "\n".join(filter(None, (text.rstrip("\n") + "\n", more)))
        models |= added["models"]
        if not _is_equal(text, wanted | copies):
            raise UsageError(
                f"{shown_path(policy)} cannot be edited",
                why="the entry of a mended model is not a table such as [models.net]",
                fix="without --apply, the entries are written to a new policy",
            )
        return text

    def _apply_entry(
        self, name: str, models: dict[str, Any], added: dict[str, Any], directory: Path
    ) -> Iterator[tuple[tuple[str, ...], str, Any]]:
        """Yield the table, the key and the value of each change of a policy's ``models``, which are
        changed, too. A new entry is put into ``added``."""
        cases = self.entries[name]
        model = cases[0].spec.model
        own = models.get(model)
        changed = self.change_entry(name, own or {}, directory)
        if own is None:
            added[name] = changed
            return
        if own.get("socs", [DEFAULT_SOC]) != changed.pop("socs"):
            raise UsageError(
                f"--apply: not all SoCs of models.{model} were judged", fix="leave out --soc"
            )
        lane = ONNX if cases[0].spec.is_file else EXECUTORCH
        before = own.get("schemes", [scheme.value for scheme in lane.default])
        judged = {case.spec.scheme.value for case in cases}
        if left := [one for one in before if one not in judged]:
            added[f"{name}_mended" if name == model else name] = {**own, **changed}
            changed = {"schemes": left}
        elif changed["schemes"] == before:
            del changed["schemes"]
        models[model] = {**own, **changed}
        lowering = changed.pop("lowering", {})
        for key in ("observer", "parts"):
            if key in lowering:
                yield ("models", model, "lowering"), key, lowering[key]
        yield from ((("models", model), key, value) for key, value in changed.items())


def repeat_rows(tables: Mapping[str, Any], models: Mapping[str, str]) -> dict[str, Any]:
    """Return the rows of [[override]] and [[unsupported]], followed by copies of those about a
    model for its further entries. ``models`` maps the names of entries to models."""
    made = {}
    for key in ("override", "unsupported"):
        rows = tables.get(key, [])
        more = [
            {**row, "model": name}
            for name, model in models.items()
            for row in rows
            if row.get("model") == model != name
        ]
        if more:
            made[key] = [*rows, *more]
    return made


def _is_equal(text: str, tables: Mapping[str, Any]) -> bool:
    with suppress(ValueError), decoding():
        return tomllib.loads(text) == tables
    return False


def set_key(text: str, header: Sequence[str], key: str, value: str) -> str:
    """Return the text of a TOML file with a key in the table ``header`` set. The table is appended
    if it is missing."""
    dots = r"[ \t]*\.[ \t]*".join(rf"[\"']?{re.escape(one)}[\"']?" for one in header)
    found = re.search(rf"(?m)^[ \t]*\[[ \t]*{dots}[ \t]*\][ \t]*(?:#.*)?$", text)
    row = f"{key} = {value}"
    if not found:
        return "{}\n\n[{}]\n{}\n".format(text.rstrip("\n"), ".".join(map(_write_key, header)), row)
    after = re.search(r"(?m)^[ \t]*\[[^\]\n]+\]{1,2}[ \t]*(?:#.*)?$", text[found.end() :])
    end = found.end() + after.start() if after else len(text)
    table = text[found.end() : end]
    given = rf"(?m)^[ \t]*{re.escape(key)}[ \t]*=[ \t]*(?:\[[^\]]*\]|\"[^\"\n]*\"|'[^'\n]*')"
    changed, count = re.subn(given, lambda _: row, table, count=1)
    changed = changed if count else f"\n{row}{table}"
    return text[: found.end()] + changed + text[end:]


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
    yield from (_write_line(key, value) for key, value in plain.items() if key not in rows)
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _write_table(value, (*path, key))
    for key, value in rows.items():
        for row in value:
            yield f"\n[[{_write_key(key)}]]"
            yield from itertools.starmap(_write_line, row.items())


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _write_line(key: str, value: Any) -> str:
    return f"{_write_key(key)} = {_write_value(value)}"


def _write_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _write_value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(itertools.starmap(_write_line, value.items()))} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_write_value, value))}]"
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, float) else repr(value)
