"""docs/reference/policy.md has every key of a policy, with the types and defaults of the code.

``python -m tests.static.test_policy_page`` writes types, defaults and the table of limits into the
page. The meaning of a key is written on the page itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import NODEFAULT, Struct, inspect, to_builtins

from ci.cases.policy import LANES, EmulatorPolicy, Override, Unsupported, extend_default
from ci.explain.rules import Advice
from ci.models.lowering_options import Choices, MixtureEntry, Part, RunOptions
from ci.models.user_models import Limits, Metric, ModelBudget, ModelEntry, ReferencePolicy
from ci.report.schema import Threshold
from provisioning.manifest.reader import convert_toml, parse_toml, read_policy

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "policy.md"
# The tables of a policy, as the comments above the tables of the page name them.
TABLES: dict[str, type[Struct]] = {
    kind.__name__: kind
    for kind in (
        EmulatorPolicy, ModelEntry, Limits, ModelBudget, Metric, MixtureEntry, Choices, Part,
        RunOptions, ReferencePolicy, Unsupported, Override, Advice,
    )
}  # fmt: skip
NOT_WRITTEN = {"dropped"}  # the reader of policies sets it
UNITS = {"_db": "dB", "_db_all": "dB", "_db_quantized": "dB", "_ms": "ms", "_bytes": "bytes"}
UNITS |= {"_mb": "MB", "segment_align": "bytes"}
HEAD = re.compile(r"(<!-- keys of (\w+) -->\n\n\| key \|.*\n\|[-|]+\n)((?:\| .*\n)*)")
DEFAULTS = re.compile(r"(<!-- default limits -->\n\n)(?:\|.*\n)*")


def render_page(page: str) -> str:
    """``page`` with the keys, types and defaults of its tables as the code has them."""
    page = HEAD.sub(lambda match: match[1] + _render_rows(TABLES[match[2]], match[3]), page)
    return DEFAULTS.sub(lambda match: match[1] + "".join(_render_limits()), page)


def _render_rows(kind: type[Struct], rows: str) -> str:
    """The rows of a table, each with what ``rows`` has behind its default."""
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in rows.splitlines()]
    texts = {row[0].strip(" `"): "|".join(row[3:]) for row in cells}
    empty = "|".join([" "] * (len(cells[0]) - 3))
    return "".join(
        f"| `{field.name}` | {_name_type(field)} | {_name_default(kind, field)} |"
        f"{texts.get(field.name, empty)}|\n"
        for field in _list_fields(kind)
    )


def _list_fields(kind: type[Struct]) -> Iterator[inspect.Field]:
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return (field for field in described.fields if field.name not in NOT_WRITTEN)


def _name_type(field: inspect.Field) -> str:
    unit = next((unit for end, unit in UNITS.items() if field.name.endswith(end)), "")
    return f"{_describe(field.type)}{f', {unit}' if unit else ''}"


def _describe(kind: inspect.Type) -> str:
    """A type in TOML's terms."""
    match kind:
        case inspect.Metadata():
            return _describe(kind.type)
        case inspect.UnionType():  # a value or none
            return _describe(kind.types[0])
        case inspect.LiteralType():
            return ", ".join(f"`{value}`" for value in kind.values if value != "")
        case inspect.VarTupleType():
            return f"array of {_describe(kind.item_type)}s"
        case inspect.StructType() | inspect.DictType():
            return "table"
        case inspect.EnumType():
            return kind.cls.__name__.lower()
        case inspect.IntType() | inspect.FloatType():
            word = "integer" if isinstance(kind, inspect.IntType) else "number"
            return f"{word}, {kind.ge} to {kind.le:,.10g}" if _is_range(kind) else word
        case inspect.BoolType():
            return "boolean"
        case inspect.StrType():
            return "string"
        case _:
            raise AssertionError(kind)


def _is_range(kind: inspect.IntType | inspect.FloatType) -> bool:
    return kind.ge is not None and kind.le is not None and kind.le < 2**31 - 1


def _name_default(kind: type[Struct], field: inspect.Field) -> str:
    if defaults := _find_values(kind, field.name):
        (value,) = defaults
        return _spell(value)
    if field.required:
        return "required"
    value = None if field.default is NODEFAULT else field.default
    if kind is Limits and value is None and field.name in Threshold.__struct_fields__:
        value = getattr(Threshold(scheme=""), field.name)
    return "" if isinstance(value, Struct) or value in (None, "", ()) else _spell(value)


def _find_values(kind: type[Struct], name: str) -> set[Any]:
    """The values of [reference] and [budget] in the default policies, which have to agree."""
    table = {ReferencePolicy: "reference", ModelBudget: "budget"}.get(kind, "")
    tables = [read_policy(lane, dict[str, Any]).get(table, {}) for lane in LANES.values()]
    return {table_of_lane[name] for table_of_lane in tables if name in table_of_lane}


def _spell(value: object) -> str:
    """A value as TOML has it."""
    plain = to_builtins(list(value) if isinstance(value, tuple) else value)
    text = f"{plain:,}".replace(",", "_") if type(plain) is int else str(plain)
    return f"`{text.lower() if isinstance(plain, bool) else text.replace(chr(39), chr(34))}`"


def _render_limits() -> Iterator[str]:
    """The limits of the default policies. Schemes with the same limits share a row."""
    limits_by_place = {
        f"`{session}{f' --backend {backend}' if backend else ''}`": limits
        for session, lane in LANES.items()
        for backend, limits in _list_limits(read_policy(lane, dict[str, Any]))
    }
    names = sorted(
        {name for table in limits_by_place.values() for limits in table.values() for name in limits}
    )
    yield "| session | schemes | " + " | ".join(f"`{name}`" for name in names) + " |\n"
    yield "|---|---|" + "---|" * len(names) + "\n"
    for where, table in limits_by_place.items():
        alike: dict[tuple[Any, ...], list[str]] = {}
        for scheme, limits_of_scheme in table.items():
            alike.setdefault(tuple(limits_of_scheme.get(name, "") for name in names), []).append(
                scheme
            )
        for values, schemes in alike.items():
            cells = (where, ", ".join(f"`{scheme}`" for scheme in schemes), *map(str, values))
            yield f"| {' | '.join(cells)} |\n"


def _list_limits(policy: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "", policy["schemes"]
    yield from policy.get("backends", {}).items()


def test_the_page_has_the_keys_types_and_defaults_of_the_code() -> None:
    page = PAGE.read_text("utf-8")
    assert [name for _, name, _ in HEAD.findall(page)] == list(TABLES)
    assert render_page(page) == page, "run `python -m tests.static.test_policy_page`"


def test_every_key_has_a_meaning_on_the_page() -> None:
    for _, name, rows in HEAD.findall(PAGE.read_text("utf-8")):
        lacking = [line for line in rows.splitlines() if len(line.split("|")[4].strip()) < 3]
        assert lacking == [], name


def test_the_examples_of_the_page_are_policies() -> None:
    blocks = re.findall(r"(?s)```toml\n(.*?)```", PAGE.read_text("utf-8"))
    assert blocks
    for block in blocks:
        policy = {"extends": "default", **deepcopy(parse_toml(block, dict[str, Any]))}
        for entry in policy.get("models", {}).values():
            entry.setdefault("path", "mlp")
        convert_toml(extend_default(policy), EmulatorPolicy, block)


class Kind(Enum):
    ONE = "one"


class Shown(Struct):
    size_bytes: int
    share: float | None = None
    kinds: tuple[Kind, ...] = (Kind.ONE,)
    old: bool = True


def test_a_regenerated_policy_row_follows_the_code_and_keeps_its_meaning() -> None:
    rows = "| `old` | number | 1 | is kept \\| whole |\n| `gone` | string | | removed |\n"
    assert _render_rows(Shown, rows).splitlines() == [
        "| `size_bytes` | integer, bytes | required | |",
        "| `share` | number |  | |",
        '| `kinds` | array of kinds | `["one"]` | |',
        "| `old` | boolean | `true` | is kept \\| whole |",
    ]


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text("utf-8")), "utf-8")
