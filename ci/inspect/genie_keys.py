"""The keys of a configuration of Genie: which exist, of which type, and what each needs from
others. The table is manifests/policies/genie.toml; nothing is read here but that.

It says the same as the schema that libGenie of QNN 2.51.0 checks (docs/findings/llm.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeGuard

from msgspec import Struct

from provisioning.manifest.reader import read_policy

DIALOG, ENGINE = "dialog", "engine"
ENCODING = "dialog.engine.model.positional-encoding"
NEAR = 0.85  # how alike a misspelt key is, as difflib measures it
HEXADECIMAL = re.compile(r"(0[xX])?[0-9a-fA-F]+")
PRESENT = "*"
LIST = "[]"
# The roles of the engines, by the type of a dialog that has two. The first one computes the answer.
ROLES: Mapping[str, tuple[str, str]] = {
    "spd": ("target", "draft"),
    "eaglet": ("target", "draft"),
    "kv-share": ("primary", "secondary"),
}
OF_DRAFTS = tuple({second for _, second in ROLES.values()})
MODELS_OF_BACKENDS = {"QnnHtp": "binary", "QnnGenAiTransformer": "library"}
NEEDED_SECTIONS = {"context", "tokenizer", "backend", "model", ENGINE}
TYPES: Mapping[str, tuple[type, ...]] = {
    "number": (int, float),
    "fraction": (int, float),
    "inner": (int, float),
    "above": (int, float),
    "unsigned": (int, float),
    "integer": (int,),
    "int32": (int,),
    "uint32": (int,),
    "natural": (int,),
    "positive": (int,),
    "string": (str,),
    "file": (str,),
    "boolean": (bool,),
    "object": (dict,),
    "list": (list,),
    "any": (object,),
}
LEAST, LARGEST = 5e-324, 3.4e38  # the number above 0, and about the largest float
BOUNDS: Mapping[str, tuple[float, float]] = {
    "fraction": (0, 1),
    "inner": (LEAST, 1 - 2**-53),
    "above": (LEAST, LARGEST),
    "unsigned": (0, LARGEST),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "natural": (0, (1 << 63) - 1),
    "positive": (1, (1 << 63) - 1),
}
NOT_EMPTY = ("eos-token", "cache-groups", "positional-encoding")
KIND_NAMES: Mapping[str, str] = {
    "fraction": "a number from 0 to 1",
    "inner": "a number between 0 and 1",
    "above": "a number above 0",
    "unsigned": "a number from 0",
    "file": "a path",
    "int32": "an integer of 32 bits",
    "uint32": "an integer of 32 bits from 0",
    "natural": "an integer from 0",
    "positive": "an integer above 0",
    "list": "a list",
}
PLURALS: Mapping[str, str] = {"int32": "integers of 32 bits"}


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a section of the configuration, each with the type of its value: one of TYPES,
    ``[]`` behind it for a list of such values, and ``|`` between alternatives. ``values`` are those
    that some keys may have, and ``ranges`` the smallest and largest numbers that make sense.
    ``of_type`` are the keys that belong to the ``type`` of the same name, each with whether that
    type needs it."""

    keys: dict[str, str]
    required: tuple[str, ...] = ()
    values: dict[str, tuple[str | int | bool, ...]] = {}
    ranges: dict[str, tuple[float, float]] = {}
    of_type: dict[str, bool] = {}


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """What keys of one section demand from each other. If all of ``when`` are as stated (``*``: the
    key is there), all of ``needs`` must be, none of ``excludes`` may be, and one of ``one_of`` must
    be there. A key with a dot is one of a section below."""

    section: str
    when: dict[str, str | bool | int] = {}
    unless: dict[str, str | bool | int] = {}
    needs: dict[str, str | bool] = {}
    excludes: dict[str, str | bool] = {}
    one_of: tuple[str, ...] = ()


class Relation(Struct, frozen=True, forbid_unknown_fields=True):
    """How two numbers of a section must be related: ``left`` is to be ``below``, ``equal to`` or
    ``a multiple of`` ``right``. ``measure`` is what counts of a list on the left: its ``sum`` or
    ``count``. ``why`` is what happens otherwise."""

    section: str
    left: str
    means: str
    right: str
    why: str
    measure: str = ""


class ModelNumber(Struct, frozen=True, forbid_unknown_fields=True):
    """A number of the configuration that config.json of the model has, too: at the first of
    ``places`` that is there."""

    key: str
    places: tuple[str, ...]


class GenieKeys(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of manifests/policies/genie.toml. ``explains`` maps the number of an error of QNN
    to the findings on a folder that cause it. ``names`` are the keys that name something, with
    what: a file, a tensor or its prefix, a graph, an adapter or a token. ``settings`` are the keys
    of the HTP's settings with their types, and ``setting_values`` the values that some may have.
    ``model_numbers`` are those that the model's config.json has, too, and ``scalings`` the names
    there of rotations that need rope-scaling. ``scaling_keys`` are the keys that each rope-type
    needs."""

    explains: dict[str, tuple[str, ...]]
    sections: dict[str, Section]
    rules: tuple[Rule, ...]
    names: dict[str, str]
    relations: tuple[Relation, ...]
    settings: dict[str, str]
    setting_values: dict[str, tuple[str, ...]]
    model_numbers: tuple[ModelNumber, ...]
    scalings: tuple[str, ...]
    scaling_keys: dict[str, tuple[str, ...]]


def read_keys() -> GenieKeys:
    """Return the table of the keys."""
    return read_policy("genie", GenieKeys)


def find_section(document: Any, keys: Sequence[str]) -> Mapping[str, Any]:
    """Return the object below ``keys``, empty if there is none. Of several engines, the first one
    counts, which computes the answer."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
        if key == ENGINE and isinstance(document, list) and document:
            document = document[0]
    return document if isinstance(document, dict) else {}


def list_objects(value: Any, keys: Sequence[str], name: str) -> Iterator[tuple[str, Any]]:
    """Yield what is below ``keys`` in ``value``, which is called ``name``, each with its name. Each
    part of a list counts."""
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from list_objects(each, keys, f"{name}[{number}]")
    elif not keys:
        yield name, value
    elif isinstance(value, dict) and keys[0] in value:
        yield from list_objects(value[keys[0]], keys[1:], f"{name}.{keys[0]}".lstrip("."))


def list_sections(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the sections of a configuration whose keys are known: the name in genie.toml, the one
    in the configuration, and the section."""
    for name in read_keys().sections:
        for place, section in list_objects(document, name.split("."), ""):
            if isinstance(section, dict):
                yield name, place, section


def list_keys(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of the known sections of a configuration."""
    for _, _, section in list_sections(document):
        yield from section


def is_number(value: object) -> TypeGuard[int]:
    """Return whether a value of JSON is an integer. Python's booleans are numbers, and JSON's are
    not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_of_kind(value: Any, kinds: str) -> bool:
    """Return whether a value of JSON has a type of genie.toml."""
    return any(_is_one(value, kind) for kind in kinds.split("|"))


def _is_one(value: Any, kind: str) -> bool:
    if kind.endswith(LIST):
        of_parts = kind.removesuffix(LIST)
        return isinstance(value, list) and all(_is_one(part, of_parts) for part in value)
    if isinstance(value, bool):
        return kind in {"boolean", "any"}
    if kind == "file" and isinstance(value, dict):
        return isinstance(value.get("path"), str)
    if kind in BOUNDS and isinstance(value, (int, float)):
        lowest, highest = BOUNDS[kind]
        return isinstance(value, TYPES[kind]) and lowest <= value <= highest
    return isinstance(value, TYPES[kind])


def name_kind(kinds: str) -> str:
    """Return a type of genie.toml as text."""
    names = []
    for kind in kinds.split("|"):
        name = kind.removesuffix(LIST)
        if kind.endswith(LIST):
            names.append(f"a list of {PLURALS.get(name, f'{name}s')}")
        else:
            usual = f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
            names.append(KIND_NAMES.get(kind, usual))
    return " or ".join(names)


def check_keys(
    document: Mapping[str, Any], library_keys: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield why libGenie refuses the keys of a configuration. ``library_keys``, which the shipped
    libGenie contains, may be newer ones."""
    genie_keys = read_keys()
    for name, section in genie_keys.sections.items():
        parent, _, key = name.rpartition(".")
        for place, values in list_objects(document, [*filter(None, parent.split("."))], ""):
            if isinstance(values, dict) and key not in values and key in NEEDED_SECTIONS:
                yield f"{place}.{key} is missing"
        for place, values in list_objects(document, name.split("."), ""):
            if isinstance(values, dict):
                yield from check_section(place, section, values, library_keys)
    for rule in genie_keys.rules:
        for place, values in list_objects(document, rule.section.split("."), ""):
            if isinstance(values, dict):
                yield from check_rule(place, rule, values)
    yield from check_engines(find_section(document, (DIALOG,)))
    yield from check_numbers(document)


def check_rotations(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what GenieDialog_create refuses in a description of the rotations, which
    GenieDialogConfig_createFromJson accepts, as asked of libGenie of QNN 2.51."""
    for place, encoding in list_objects(document, ENCODING.split("."), ""):
        if not isinstance(encoding, dict) or encoding.get("type") != "rope":
            continue
        if "rope-dim" not in encoding:
            yield f"{place}.rope-dim is missing"
        scaling = find_section(encoding, ("rope-scaling",))
        kind = str(scaling.get("rope-type"))
        needed = read_keys().scaling_keys.get(kind, ())
        if lacking := [key for key in needed if scaling and key not in scaling]:
            yield f"{place}.rope-scaling: {kind} needs {', '.join(lacking)}"
        for key in ("short-factor", "long-factor") if kind == "longrope" else ():
            factors, pairs = scaling.get(key), encoding.get("rope-dim")
            if isinstance(factors, list) and is_number(pairs) and len(factors) != pairs:
                subject = f"{place}.rope-scaling.{key}"
                yield f"{subject} has {len(factors)} factors, and rope-dim is {pairs}"


def check_backends(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a type of model that GenieDialog_create refuses for its backend, as asked of libGenie
    of QNN 2.51; GenieDialogConfig_createFromJson accepts it."""
    for place, engine in list_objects(document, (DIALOG, ENGINE), ""):
        backend, model = (find_section(engine, (key,)).get("type") for key in ("backend", "model"))
        needed = MODELS_OF_BACKENDS.get(str(backend), model)
        if isinstance(model, str) and model != needed:
            yield f"{place}.model.type is {model}, and the backend {backend} needs {needed}"


def check_section(
    name: str, section: Section, values: Mapping[str, Any], library_keys: frozenset[str]
) -> Iterator[str]:
    """Yield why libGenie refuses the keys of a section."""
    for key in section.required:
        if key not in values:
            yield f"{name}.{key} is missing"
    for key, value in values.items():
        shown = json.dumps(value)[:40]
        allowed = section.values.get(key)
        if key not in section.keys and key in library_keys:
            continue
        if key not in section.keys:
            near = get_close_matches(key, [*section.keys], 1, NEAR)
            hint = f", but {near[0]}" if near else ""
            yield f"{name}.{key} is a key that libGenie does not know{hint}"
        elif key == "version" and (value != 1 or not is_number(value)):
            yield f"{name}.version is {shown}, and libGenie knows 1"
        elif key in NOT_EMPTY and value == []:
            yield f"{name}.{key} is empty"
        elif not is_of_kind(value, section.keys[key]):
            yield f"{name}.{key} is {shown}, not {name_kind(section.keys[key])}"
        elif allowed and not any(value is each or value == each for each in allowed):
            yield f"{name}.{key} is {shown}, and libGenie knows {', '.join(map(str, allowed))}"
    yield from check_type(name, section, values)


def check_type(name: str, section: Section, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield why libGenie refuses the keys of a section that belong to one type of it."""
    chosen = values.get("type")
    if section.of_type.get(str(chosen)) and chosen not in values:
        yield f"{name}.type is {chosen}, and {name}.{chosen} is missing"
    for key in section.of_type:
        if key in values and key != chosen and isinstance(chosen, str):
            yield f"{name}.{key} is there, and {name}.type is {chosen}"


def check_rule(place: str, rule: Rule, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield what keys demand from each other, and a section does not have."""
    if not all(_has(values, key, value, anywhere=True) for key, value in rule.when.items()):
        return
    if any(_has(values, key, value, anywhere=True) for key, value in rule.unless.items()):
        return
    cause = " and ".join(_show(key, value) for key, value in rule.when.items())
    subject = f"{place}: {cause} needs" if cause else f"{place} needs"
    exceptions = " and ".join(_show(key, value) for key, value in rule.unless.items())
    conflict = f"needs {exceptions}" if exceptions else f"and {cause} exclude each other"
    for key, value in rule.needs.items():
        if not _has(values, key, value):
            yield f"{subject} {_show(key, value)}"
    for key, value in rule.excludes.items():
        if _has(values, key, value, anywhere=True):
            yield f"{place}: {_show(key, value)} {conflict}"
    heads = {key.rpartition(".")[0] for key in rule.one_of}
    names = [key.rpartition(".")[2] for key in rule.one_of]
    for head in heads:
        for below, section in list_objects(values, [*filter(None, head.split("."))], place):
            if isinstance(section, dict) and not {*names} & section.keys():
                yield f"{below} needs {' or '.join(names)}"


def _has(
    values: Mapping[str, Any], key: str, expected: str | bool | int, *, anywhere: bool = False
) -> bool:
    """Return whether a section has a key with a value: everywhere, if there are several places."""
    *heads, last = key.split(".")
    sections = [each for _, each in list_objects(values, heads, "") if isinstance(each, dict)]
    answers = [
        last in each and (expected == PRESENT or each[last] == expected) for each in sections
    ]
    return any(answers) if anywhere else all(answers)


def _show(key: str, value: str | bool | int) -> str:
    return key if value == PRESENT else f"{key} {json.dumps(value)}"


def check_engines(dialog: Mapping[str, Any]) -> Iterator[str]:
    """Yield why libGenie refuses the number of engines, or their roles."""
    engines, kind = dialog.get(ENGINE), dialog.get("type")
    roles = ROLES.get(kind, ()) if isinstance(kind, str) else ()
    has_several = isinstance(engines, list)
    if ENGINE in dialog and has_several != bool(roles) and isinstance(kind, str):
        shown = "a list of two engines" if has_several else "one engine"
        yield f"dialog.engine is {shown}, and dialog.type is {kind}"
    if isinstance(engines, dict) and "role" in engines:
        yield "dialog.engine.role is only for several engines"
    if isinstance(engines, list) and roles:
        actual = [each.get("role") for each in engines if isinstance(each, dict)]
        if sorted(map(str, actual)) != sorted(roles) or len(actual) != len(engines):
            shown = ", ".join(map(str, actual)) or "none"
            yield f"dialog.engine has the roles {shown}, and {kind} needs {' and '.join(roles)}"


def check_numbers(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield why libGenie refuses numbers that depend on others, and texts that are numbers."""
    for place, htp in list_objects(document, (DIALOG, ENGINE, "backend", "QnnHtp"), ""):
        mask = htp.get("cpu-mask") if isinstance(htp, dict) else None
        if mask and isinstance(mask, str) and not HEXADECIMAL.fullmatch(mask):
            shown = json.dumps(mask)[:40]
            yield f"{place}.cpu-mask is {shown}, not a hexadecimal number such as 0xe0"
    drafts = find_section(document, (DIALOG, "ssd-q1"))
    threshold, streams = drafts.get("p-threshold"), drafts.get("n-streams", 0)
    is_positive = isinstance(threshold, (int, float)) and threshold > 0
    if is_positive and is_number(streams) and streams <= 1:
        yield "dialog.ssd-q1.p-threshold needs n-streams above 1"
    branches, tokens = drafts.get("branches"), drafts.get("forecast-token-count")
    if isinstance(branches, list) and is_number(tokens) and len(branches) > tokens:
        yield (
            f"dialog.ssd-q1.branches has {len(branches)} numbers, and forecast-token-count is"
            f" {tokens}"
        )
