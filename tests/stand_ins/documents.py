"""Good documents of each schema of JSON, with all fields that they may have."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from msgspec import inspect

from ci.report.evidence import Statement
from ci.report.schema import Report

SAMPLES = {
    r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$": "2026-01-01T00:00:00Z",
    r"^[0-9a-f]{64}$": "0" * 64,
}
SCALARS: dict[type, Callable[[Any], Any]] = {
    inspect.StrType: lambda kind: SAMPLES.get(kind.pattern or "", "0"),
    inspect.IntType: lambda _: 1,
    inspect.FloatType: lambda _: 1,
    inspect.BoolType: lambda _: True,
    inspect.AnyType: lambda _: "any",
    inspect.NoneType: lambda _: None,
    inspect.LiteralType: lambda kind: kind.values[-1],
    inspect.EnumType: lambda kind: next(iter(kind.cls)).value,
    inspect.Metadata: lambda kind: make(kind.type),
}


def make(kind: Any) -> Any:
    """Return a value of a msgspec type, with all fields that it may have."""
    if make_scalar := SCALARS.get(type(kind)):
        return make_scalar(kind)
    match kind:
        case inspect.StructType(fields=fields, tag_field=tag, tag=name):
            values = {field.encode_name: make(field.type) for field in fields}
            return {**values, **({tag: name} if tag else {})}
        case inspect.UnionType(types=types):
            return make(next(type_ for type_ in types if not isinstance(type_, inspect.NoneType)))
        case inspect.DictType(key_type=key, value_type=value):
            return {make(key): make(value)}
        case inspect.TupleType(item_types=items):
            return [make(item) for item in items]
        case _:
            return [make(kind.item_type)]


def encode_sample(kind: Any) -> str:
    """Return a good document of a schema as JSON."""
    document = make(inspect.type_info(kind))
    if kind is Report:
        document["comparison"]["changed"][0]["sources"] = ["weights"]
        document["comparison"]["changed"][0]["case"] = {"model": "0", "scheme": "0", "soc": "0"}
    if kind is Statement:
        document["predicate"]["configuration"][0] |= {"name": "case", "annotations": {}}
    return json.dumps(document, indent=1)
