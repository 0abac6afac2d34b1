"""Writes the policy with which test_emulator or test_onnx judges mended models."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from keyword import iskeyword
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import structs, to_builtins

from ci.cases.spec import CaseSpec
from ci.mend.mending import Mended, find_reference, name_scheme
from ci.mend.search import Recipe
from ci.mend.source import Factory, make_relative
from ci.models.schemes import EXECUTORCH, ONNX
from ci.models.suite import DEFAULT_SOC
from provisioning.console.caller import shown_path
from provisioning.console.user_folder import require_no_link
from provisioning.documents import decoding, read_bytes
from provisioning.errors import UsageError
from provisioning.quoting import toml_key, toml_string

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCE, POLICY = "mended_net.py", "qnn.toml"
MOST_CHARS = 100  # of the name of a file
ROWS = ("override", "unsupported")  # tables with a row per case
# Keys of a model's entry that are paths, relative to the policy.
PATHS = (
    "path", "calibration", "inputs", "float_model", "annotation", "recipe", "function", "labels",
)  # fmt: skip
HEAD = "# Written by `qnn-ci mend`. Judge it with {command}.\n"
BOM = "\ufeff"
STRINGS = {
    quote: re.compile(pattern, re.DOTALL)
    for quote, pattern in {
        '"""': r'"""(?:[^\\]|\\.)*?"""',
        "'''": r"'''.*?'''",
        '"': r'"(?:[^"\\\n]|\\.)*"',
        "'": r"'[^'\n]*'",
    }.items()
}  # of TOML, those of several lines first


def name_entry(model: str) -> str:
    """Return a name for a model in a policy, such as ``net`` for ``nets/net.py:factory`` or
    ``net/model.onnx``."""
    file, _, function = model.rpartition(":")
    word = function if function != "factory" else Path(file).stem
    if word.endswith(ONNX.suffix) and Path(word).stem == "model":  # the folder is the name
        word = Path(word).parent.name or word
    return re.sub(r"[^A-Za-z0-9]+", "_", Path(word).stem).strip("_")[:40] or "net"


def name_onnx(entry: str) -> str:
    """Return the name of an entry's rewritten .onnx file. If the entry has characters that a file's
    name cannot have, the name ends with a hash."""
    word = re.sub(r"[^\w.-]+", "_", entry)[:MOST_CHARS]
    digest = hashlib.sha256(entry.encode()).hexdigest()[:8]
    return f"{word if word == entry else f'{word}-{digest}'}{ONNX.suffix}"


def name_function(entry: str) -> str:
    """Return the name of the function in mended_net.py for an entry of the policy."""
    word = re.sub(r"\W", "_", entry)
    return f"net_{word}" if word[:1].isdigit() or iskeyword(word) else word


@dataclass(frozen=True)
class Earlier:
    """What earlier runs wrote: the tables of the policy, and the ``/absolute/file.py:factory`` or
    file of each entry's model."""

    tables: Mapping[str, Any] = field(default_factory=dict)
    references: Mapping[str, str] = field(default_factory=dict)

    def list_others(self, references: Collection[str]) -> dict[str, str]:
        """Return the references of entries about other models than ``references`` whose files still
        exist, by name."""
        return {
            name: reference
            for name, reference in self.references.items()
            if reference not in references
            and name in self.tables.get("models", {})
            and Path(split_reference(reference)[0]).exists()
        }


def resolve_reference(spec: CaseSpec) -> str:
    """Return the reference of a case's model, with the directory resolved."""
    parent, name = os.path.split(find_reference(spec))
    return os.path.join(os.path.realpath(parent), name)  # noqa: PTH118


def split_reference(reference: str) -> tuple[str, str]:
    """Return the file and ``:factory``, or "", of a model's reference."""
    file, colon, function = reference.rpartition(":")
    return (file, f":{function}") if colon and file.endswith(".py") else (reference, "")


def plan_entries(
    found: Sequence[Mended],
    own: Collection[str] = (),
    earlier: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, list[Mended]]:
    """Return the entries of the policy: the cases of each model with the same rewrites and parts,
    by the entry's name. If a model has several, the names of the later ones end with their schemes.
    ``own`` are the models of the user's policy, whose names stay. ``earlier`` are the references of
    earlier runs by name: a name is used again for the same model only."""
    entries: dict[str, list[Mended]] = {}
    keys: dict[tuple[str, Recipe], str] = {}
    for mended in found:
        key = (mended.spec.model, structs.replace(mended.recipe, scheme=""))
        if key not in keys:
            is_own = mended.spec.model in own
            name = mended.spec.model if is_own else name_entry(mended.spec.model)
            reference = resolve_reference(mended.spec)
            ours = {entry for entry, model in earlier.items() if model == reference}
            theirs = {*own, *earlier} - ours
            taken = {*entries, *theirs} - ({name} if is_own and name not in entries else set())
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
        return self.source.with_name(name_onnx(entry))

    @property
    def references(self) -> dict[str, str]:
        """The references of the models, by entry."""
        return {name: resolve_reference(first.spec) for name, (first, *_) in self.entries.items()}

    def make_policy(self, policy: Path | None, earlier: Earlier | None = None) -> dict[str, Any]:
        """Return a policy for the directory of mended_net.py that contains the entries, and
        everything but the models of the user's ``policy``. Entries of ``earlier`` runs about other
        models stay."""
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
        made |= repeat_rows(made, given_names)
        earlier = earlier or Earlier()
        others = earlier.list_others([*self.references.values()])
        for name in others:
            models[name] = earlier.tables["models"][name]
        for key in ROWS:
            rows = made.get(key, [])
            extra = [row for row in earlier.tables.get(key, []) if row.get("model") in others]
            if extra := [row for row in extra if row not in rows]:
                made[key] = [*rows, *extra]
        return made

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
            "path": f"{make_relative(file, directory)}{colon}{function}",
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
        """Return the text of the user's policy with the recipes. Comments, line endings and
        everything about other cases stay.

        Raises UsageError if the file cannot be edited, see check_editable.
        """
        text, wanted = read_policy_text(policy), read_tables(policy)
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
            added[key] = rows[len(wanted.get(key, [])) :]
        if any(added.values()):
            text = append_tables(text, added)
        models |= added["models"]
        if not _is_equal(text, wanted | copies):
            raise refuse_edit(policy, [first.spec.model for first, *_ in self.entries.values()])
        return text

    def _apply_entry(
        self, name: str, models: dict[str, Any], added: dict[str, Any], directory: Path
    ) -> Iterator[tuple[tuple[str, ...], str, Any]]:
        """Yield the table, the key and the value of each change of a policy's ``models``, which are
        changed, too. A new entry is put into ``added``."""
        cases = self.entries[name]
        model = cases[0].spec.model
        if model not in models and name in models:  # an earlier run added it
            model = name
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
    for key in ROWS:
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


def check_editable(policy: Path, socs: Mapping[str, Sequence[str]]) -> None:
    """Raise UsageError if a policy cannot be edited: it is a link, an entry is not a table such as
    [models.net] with a line per key, or not all SoCs of an entry are judged. ``socs`` are the
    judged SoCs by model."""
    require_no_link(policy)
    text, tables = read_policy_text(policy), read_tables(policy)
    models = tables.setdefault("models", {})
    for model, judged in socs.items():
        if model in models and models[model].get("socs", [DEFAULT_SOC]) != [*judged]:
            raise UsageError(
                f"--apply: not all SoCs of models.{model} are judged", fix="leave out --soc"
            )
    for model in filter(models.__contains__, socs):
        entry, changed = models[model], text
        lowering = {**entry.get("lowering", {}), "parts": [{"node": "n"}]}
        models[model] = {**entry, "path": "p", "schemes": ["s"], "lowering": lowering}
        for header, key in (((), "path"), ((), "schemes"), (("lowering",), "parts")):
            table = models[model]["lowering"] if header else models[model]
            changed = set_key(changed, ("models", model, *header), key, _write_value(table[key]))
        if not _is_equal(changed, tables):
            raise refuse_edit(policy, [model])
        models[model] = entry
    added = {"models": {"qnn-ci-added": {"path": "p"}}}
    models |= added["models"]
    if not _is_equal(append_tables(text, added), tables):
        raise refuse_edit(policy, [])


def refuse_edit(policy: Path, models: Sequence[str]) -> UsageError:
    """Return the error for a policy that cannot be edited."""
    named = ", ".join(f"models.{model}" for model in models) or "`models`"
    return UsageError(
        f"{shown_path(policy)} cannot be edited",
        why=f"{named} is not written as a table such as [models.net] with a line per key",
        fix="write it so, or leave out --apply, which writes the entries to a new policy",
    )


def _is_equal(text: str, tables: Mapping[str, Any]) -> bool:
    with suppress(ValueError), decoding():
        return tomllib.loads(text.removeprefix(BOM)) == tables
    return False


def find_newline(text: str) -> str:
    """Return the line ending of a text."""
    return "\r\n" if "\r\n" in text else "\n"


def append_tables(text: str, tables: Mapping[str, Any]) -> str:
    """Return the text of a TOML file with tables appended, in the line ending of the file."""
    newline = find_newline(text)
    rows = write_toml(tables).replace("\n", newline)
    return f"{text.rstrip(newline)}{newline}{newline}{rows}"


def set_key(text: str, header: Sequence[str], key: str, value: str) -> str:
    """Return the text of a TOML file with a key in the table ``header`` set. The table is appended
    if it is missing. Comments and line endings stay."""
    newline = find_newline(text)
    dots = r"[ \t]*\.[ \t]*".join(rf"[\"']?{re.escape(one)}[\"']?" for one in header)
    found = re.search(rf"(?m)^{BOM}?[ \t]*\[[ \t]*{dots}[ \t]*\][ \t]*(?:#[^\r\n]*)?(?=\r?$)", text)
    row = f"{key} = {value}"
    if not found:
        name = ".".join(map(toml_key, header))
        return f"{text.rstrip(newline)}{newline}{newline}[{name}]{newline}{row}{newline}"
    after = re.search(
        r"(?m)^[ \t]*\[[^\]\r\n]+\]{1,2}[ \t]*(?:#[^\r\n]*)?\r?$", text[found.end() :]
    )
    end = found.end() + after.start() if after else len(text)
    table = text[found.end() : end]
    before = re.search(rf"(?m)^[ \t]*([\"']?){re.escape(key)}\1[ \t]*=[ \t]*", table)
    if before:
        table = f"{table[: before.start()]}{row}{table[find_value_end(table, before.end()) :]}"
    else:
        table = f"{newline}{row}{table}"
    return text[: found.end()] + table + text[end:]


def find_value_end(text: str, start: int) -> int:
    """Return where the value of a TOML file ends that begins at ``start``."""
    depth, at = 0, start
    while at < len(text):
        quote = next((quote for quote in STRINGS if text.startswith(quote, at)), "")
        if quote:
            string = STRINGS[quote].match(text, at)
            at = string.end() if string else len(text)
            continue
        if depth == 0 and text[at] in "#\r\n":
            break
        if text[at] == "#":
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
        depth += (text[at : at + 1] in tuple("[{")) - (text[at : at + 1] in tuple("]}"))
        at += 1
    return start + len(text[start:at].rstrip())


def read_policy_text(path: Path) -> str:
    """Return the text of a policy with its line endings and its byte order mark."""
    with decoding():
        return read_bytes(path).decode("utf-8")


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
            moved = make_relative(str((base / named).absolute()), directory)
            return f"{moved}:{function}" if named == file else moved
    return value


def write_toml(tables: Mapping[str, Any]) -> str:
    """Return tables as TOML."""
    return "\n".join(_write_table(tables, ())).lstrip("\n") + "\n"


def _write_table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    rows = {key: value for key, value in plain.items() if not path and _is_rows(value)}
    if path and (plain or not table):
        yield f"\n[{'.'.join(map(toml_key, path))}]"
    yield from (_write_line(key, value) for key, value in plain.items() if key not in rows)
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _write_table(value, (*path, key))
    for key, value in rows.items():
        for row in value:
            yield f"\n[[{toml_key(key)}]]"
            yield from itertools.starmap(_write_line, row.items())


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _write_line(key: str, value: Any) -> str:
    return f"{toml_key(key)} = {_write_value(value)}"


def _write_value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(itertools.starmap(_write_line, value.items()))} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_write_value, value))}]"
    if isinstance(value, str):
        return toml_string(value)
    return repr(value) if isinstance(value, float) else json.dumps(value)
