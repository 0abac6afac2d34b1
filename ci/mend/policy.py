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

from ci.cases.policy import choose_tables
from ci.cases.spec import CaseSpec
from ci.mend.mending import Mended, find_reference, is_in_file, name_scheme
from ci.mend.search import Recipe
from ci.mend.source import Factory, make_relative
from ci.models.schemes import MODEL_FILES, SchemeSet
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
    if word.endswith(MODEL_FILES) and Path(word).stem == "model":  # the folder is the name
        word = Path(word).parent.name or word
    return re.sub(r"[^A-Za-z0-9]+", "_", Path(word).stem).strip("_")[:40] or "net"


def name_rewritten(entry: str, suffix: str) -> str:
    """Return the name of an entry's rewritten file of a model, with the suffix of such files. If
    the entry has characters that a file's name cannot have, the name ends with a hash."""
    word = re.sub(r"[^\w.-]+", "_", entry)[:MOST_CHARS]
    digest = hashlib.sha256(entry.encode()).hexdigest()[:8]
    return f"{word if word == entry else f'{word}-{digest}'}{suffix}"


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
    cases: Sequence[Mended],
    user_models: Collection[str] = (),
    earlier: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, list[Mended]]:
    """Return the entries of the policy: the cases of each model with the same rewrites and parts,
    by the entry's name. If a model has several, the names of the later ones end with their schemes.
    ``user_models`` are the models of the user's policy, whose names stay. ``earlier`` are the
    references of earlier runs by name: a name is used again for the same model only."""
    entries: dict[str, list[Mended]] = {}
    names: dict[tuple[str, Recipe], str] = {}
    for mended in cases:
        model = mended.spec.model
        key = (model, structs.replace(mended.recipe, scheme=""))
        if key not in names:
            name = model if model in user_models else name_entry(model)
            reference = resolve_reference(mended.spec)
            reusable = {entry for entry, used_for in earlier.items() if used_for == reference}
            taken = {*entries, *({*user_models, *earlier} - reusable)}
            if model in user_models and name not in entries:
                taken.discard(name)  # the model's own entry, which is replaced
            names[key] = choose_name(name, str(mended.spec.scheme), taken)
        entries.setdefault(names[key], []).append(mended)
    return entries


def choose_name(name: str, scheme: str, taken: Collection[str]) -> str:
    """Return a name that is not taken: the name itself, or with the scheme, or with a number,
    too."""
    if name in taken:
        name = f"{name}_{scheme}"
    numbered = (f"{name}_{number}" for number in range(2, len(taken) + 3))
    return next(candidate for candidate in (name, *numbered) if candidate not in taken)


def list_factories(
    entries: Mapping[str, Sequence[Mended]], earlier: Iterable[Factory] = ()
) -> dict[str, Factory]:
    """Return the functions of mended_net.py for the entries that have rewrites, by the entry's
    name. A name of ``earlier`` functions is used again only for the same model."""
    references = {factory.name: factory.reference for factory in earlier}
    factories = {}
    for entry, (mended, *_) in entries.items():
        if not mended.recipe.rewrites or mended.spec.is_file:
            continue
        reference = find_reference(mended.spec)
        name, number = name_function(entry), 1
        while references.setdefault(name, reference) != reference:
            number += 1
            name = f"{name_function(entry)}_{number}"
        references[name] = ""  # no further entry of this model gets the same name
        factories[entry] = Factory(name, reference, mended.recipe.rewrites)
    return factories


@dataclass(frozen=True)
class Written:
    """What is written: the entries of the policy with their cases, the functions of mended_net.py
    by entry, the path of that file, and the schemes of the lane that judged the cases."""

    entries: Mapping[str, Sequence[Mended]]
    factories: Mapping[str, Factory]
    source: Path
    lane: SchemeSet

    def name_file(self, entry: str) -> Path:
        """Return the path of an entry's rewritten file."""
        suffix = Path(self.entries[entry][0].spec.reference).suffix
        return self.source.with_name(name_rewritten(entry, suffix))

    @property
    def references(self) -> dict[str, str]:
        """The references of the models, by entry."""
        return {name: resolve_reference(first.spec) for name, (first, *_) in self.entries.items()}

    def make_policy(self, policy: Path | None, earlier: Earlier | None = None) -> dict[str, Any]:
        """Return a policy for the directory of mended_net.py that contains the entries, and
        everything but the models of the user's ``policy``. Entries of ``earlier`` runs about other
        models stay."""
        user_tables = choose_tables(read_tables(policy), self.lane.runtime) if policy else {}
        user_models = user_tables.pop("models", {})
        user_tables.pop("suite", None)
        directory = self.source.parent
        base = policy.parent if policy else directory
        tables = rebase(user_tables, base, directory) if policy else {"extends": "default"}
        models_of = {name: first.spec.model for name, (first, *_) in self.entries.items()}
        tables["models"] = models = {}
        for name, model in models_of.items():
            entry = rebase(user_models.get(model, {}), base, directory)
            models[name] = entry | self.change_entry(name, entry, directory)
        tables |= repeat_rows(tables, models_of)

        earlier = earlier or Earlier()
        other_entries = earlier.list_others([*self.references.values()])
        for name in other_entries:
            models[name] = earlier.tables["models"][name]
        for key in ROWS:
            rows = tables.get(key, [])
            earlier_rows = [
                row
                for row in earlier.tables.get(key, [])
                if row.get("model") in other_entries and row not in rows
            ]
            if earlier_rows:
                tables[key] = [*rows, *earlier_rows]
        return tables

    def change_entry(self, name: str, entry: Mapping[str, Any], directory: Path) -> dict[str, Any]:
        """Return the keys of a model's entry, in a policy in ``directory``, that its recipe
        determines."""
        cases, factory = self.entries[name], self.factories.get(name)
        recipe, spec = cases[0].recipe, cases[0].spec
        file, colon, function = find_reference(spec).rpartition(":")
        if factory:
            file, function = str(self.source), factory.name
        elif spec.is_file:  # a path without a function: rpartition put all of it into the last part
            is_changed = recipe.rewrites or is_in_file(spec, recipe)
            file = str(self.name_file(name)) if is_changed else function
            colon = function = ""
        keys: dict[str, Any] = {
            "path": f"{make_relative(file, directory)}{colon}{function}",
            "schemes": list(dict.fromkeys(map(name_scheme, cases))),
            "socs": list(dict.fromkeys(case.spec.soc for case in cases)),
        }
        if spec.source.shapes:
            keys["shapes"] = {port: [*shape] for port, shape in spec.source.shapes}
        if is_in_file(spec, recipe) or not (recipe.observer or recipe.parts):
            return keys
        lowering = dict(entry.get("lowering", {}))
        if recipe.observer:
            lowering["observer"] = recipe.observer
        if recipe.parts:
            parts = []
            for part in recipe.parts:
                fields = to_builtins(part)
                parts.append({key: value for key, value in fields.items() if value})
            # A node belongs to the first part that selects it, so an earlier one of the user's with
            # the same selectors would have no effect.
            selected = [name_selectors(part) for part in parts]
            earlier_parts = [
                part for part in lowering.get("parts", []) if name_selectors(part) not in selected
            ]
            lowering["parts"] = [*parts, *earlier_parts]
        return {**keys, "lowering": lowering}

    def apply(self, policy: Path) -> str:
        """Return the text of the user's policy with the recipes. Comments, line endings and
        everything about other cases stay.

        Raises UsageError if the file cannot be edited, see check_editable.
        """
        # ``text`` is edited key by key, ``tables`` is what it should be then: they are compared.
        text, tables = read_policy_text(policy), read_tables(policy)
        added: dict[str, Any] = {"models": {}}
        models = tables.setdefault("models", {})
        models_of_added: dict[str, str] = {}
        for name, cases in self.entries.items():
            if all(mended.recipe == Recipe() for mended in cases):
                continue
            added_before = set(added["models"])
            changes = self._apply_entry(name, models, added["models"], policy.parent)
            for header, key, value in changes:
                text = set_key(text, header, key, _write_value(value))
            new_names = {*added["models"]} - added_before
            models_of_added |= dict.fromkeys(new_names, cases[0].spec.model)
        copies = repeat_rows(tables, models_of_added)
        for key, rows in copies.items():
            added[key] = rows[len(tables.get(key, [])) :]
        if any(added.values()):
            text = append_tables(text, added)
        models |= added["models"]
        if not _is_equal(text, tables | copies):
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
        entry = models.get(model)
        changed = self.change_entry(name, entry or {}, directory)
        if entry is None:
            added[name] = changed
            return
        if entry.get("socs", [DEFAULT_SOC]) != changed.pop("socs"):
            raise UsageError(
                f"--apply: not all SoCs of models.{model} were judged", fix="leave out --soc"
            )
        schemes = entry.get("schemes", [scheme.value for scheme in self.lane.default])
        judged = {case.spec.scheme.value for case in cases}
        remaining_schemes = [scheme for scheme in schemes if scheme not in judged]
        if remaining_schemes:  # the entry stays for them, and a new one has the recipe
            added[f"{name}_mended" if name == model else name] = {**entry, **changed}
            changed = {"schemes": remaining_schemes}
        elif changed["schemes"] == schemes:
            del changed["schemes"]
        models[model] = {**entry, **changed}
        lowering = changed.pop("lowering", {})
        for key in ("observer", "parts"):
            if key in lowering:
                yield ("models", model, "lowering"), key, lowering[key]
        yield from ((("models", model), key, value) for key, value in changed.items())


def name_selectors(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a part of a mixture that select its nodes."""
    return {key: value for key, value in part.items() if key != "scheme"}


def repeat_rows(tables: Mapping[str, Any], models: Mapping[str, str]) -> dict[str, Any]:
    """Return the rows of [[override]] and [[unsupported]], followed by copies of those about a
    model for its further entries. ``models`` maps the names of entries to models."""
    repeated = {}
    for key in ROWS:
        rows = tables.get(key, [])
        copies = []
        for name, model in models.items():
            if name != model:
                copies += [{**row, "model": name} for row in rows if row.get("model") == model]
        if copies:
            repeated[key] = [*rows, *copies]
    return repeated


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
    """Return whether a text is TOML with these tables. An edit may have made it invalid."""
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
    row = f"{key} = {value}"
    dot = r"[ \t]*\.[ \t]*"
    dotted = dot.join(rf"[\"']?{re.escape(part)}[\"']?" for part in header)
    table_start = re.search(
        rf"(?m)^{BOM}?[ \t]*\[[ \t]*{dotted}[ \t]*\][ \t]*(?:#[^\r\n]*)?(?=\r?$)", text
    )
    if not table_start:
        name = ".".join(map(toml_key, header))
        return f"{text.rstrip(newline)}{newline}{newline}[{name}]{newline}{row}{newline}"
    start = table_start.end()
    next_table = re.search(r"(?m)^[ \t]*\[[^\]\r\n]+\]{1,2}[ \t]*(?:#[^\r\n]*)?\r?$", text[start:])
    end = start + next_table.start() if next_table else len(text)
    table = text[start:end]
    assignment = re.search(rf"(?m)^[ \t]*([\"']?){re.escape(key)}\1[ \t]*=[ \t]*", table)
    if assignment:
        value_end = find_value_end(table, assignment.end())
        table = f"{table[: assignment.start()]}{row}{table[value_end:]}"
    else:
        table = f"{newline}{row}{table}"
    return text[:start] + table + text[end:]


def find_value_end(text: str, start: int) -> int:
    """Return where the value of a TOML file ends that begins at ``start``."""
    depth, at = 0, start  # depth: open brackets and braces
    while at < len(text):
        quote = next((quote for quote in STRINGS if text.startswith(quote, at)), "")
        if quote:
            string = STRINGS[quote].match(text, at)
            at = string.end() if string else len(text)
            continue
        if depth == 0 and text[at] in "#\r\n":
            break
        if text[at] == "#":  # a comment between the lines of an array
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
        character = text[at : at + 1]  # "" behind the last line
        if character in ("[", "{"):
            depth += 1
        elif character in ("]", "}"):
            depth -= 1
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
    """Return a value of a policy in ``base`` for one in ``directory``: paths of files that exist,
    such as ``net.py:factory``, become relative to it."""
    if isinstance(value, dict):
        return {name: rebase(inner, base, directory, name) for name, inner in value.items()}
    if isinstance(value, str) and value and key in PATHS:
        file, _, function = value.rpartition(":")
        has_function = file.endswith(".py")
        path = file if has_function else value
        if (base / path).exists():
            moved = make_relative(str((base / path).absolute()), directory)
            return f"{moved}:{function}" if has_function else moved
    return value


def write_toml(tables: Mapping[str, Any]) -> str:
    """Return tables as TOML."""
    return "\n".join(_write_table(tables, ())).lstrip("\n") + "\n"


def _write_table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a table: its keys, the tables in it, then rows such as [[override]]. A
    key behind the header of an inner table would belong to that one."""
    keys = {key: value for key, value in table.items() if not isinstance(value, dict)}
    rows = {key: value for key, value in keys.items() if not path and _is_rows(value)}
    if path and (keys or not table):
        yield f"\n[{'.'.join(map(toml_key, path))}]"
    yield from (_write_line(key, value) for key, value in keys.items() if key not in rows)
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _write_table(value, (*path, key))
    for key, value in rows.items():
        for row in value:
            yield f"\n[[{toml_key(key)}]]"
            yield from itertools.starmap(_write_line, row.items())


def _is_rows(value: Any) -> bool:
    """Return whether a value is a list of tables, which becomes [[rows]]."""
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


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
