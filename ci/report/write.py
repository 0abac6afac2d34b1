"""Read reports from files, and write reports. Each file is written atomically."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from ci.facts.finding import Record
from ci.report.claim import REPORTS_FIX
from ci.report.schema import (
    SCHEMA_VERSION,
    AskedFacts,
    CaseName,
    JudgementFacts,
    OnDeviceFacts,
    ProgramFacts,
    Report,
    RunFacts,
)
from provisioning.console.caller import shown_path
from provisioning.documents import DocumentError, decode_json, read_user_file
from provisioning.errors import UsageError
from provisioning.files import explain_writes, write_whole

T = TypeVar("T")
LIMIT_BYTES = 256 << 20
PARTS: Mapping[str, type[Record]] = {
    "asked": AskedFacts,
    "program": ProgramFacts,
    "run": RunFacts,
    "judgement": JudgementFacts,
    "device": OnDeviceFacts,
}
# Fields of parts that had other names in schema 6.
EARLIER_NAMES = {
    ("program", "files"): "program",
    ("run", "options"): "run_options",
    ("run", "wall_s"): "run_s",
    ("run", "ms"): "run_ms",
    ("device", "figures"): "device",
}
LATER_NAMES = frozenset({("judgement", "layers")})  # which schema 6 lacks
# The part and field of each field of schema 6.
PLACES = {
    EARLIER_NAMES.get((part, field), field): (part, field)
    for part, kind in PARTS.items()
    for field in kind.__struct_fields__
    if (part, field) not in LATER_NAMES
}


def write_report(report: Report, directory: Path) -> None:
    """Write index.html, junit.xml and report.json, in this order, into ``directory``, the one of a
    session.

    The directory is created if needed. A reader sees either the old or the new version of a file,
    never a part of it.

    Raises StoreError if a file cannot be written.
    """
    with explain_writes(directory, REPORTS_FIX):
        for name, data in render_files(report).items():
            write_whole(directory / name, data)


def render_files(report: Report) -> dict[str, bytes]:
    """Return the content of index.html, junit.xml and report.json."""
    from ci.report.html import render_html
    from ci.report.junit import render_junit

    return {
        "index.html": render_html(report).encode(),
        "junit.xml": render_junit(report),
        "report.json": encode_report(report),
    }


def read_report(path: Path) -> Report:
    """Return the report in the file ``path``, or in report.json of the directory ``path``.

    Older schema versions are accepted if they are still supported. The summary is counted from the
    cases and controls, not taken from the file.

    Raises UsageError if the file cannot be read or does not match the schema.
    """
    return read_unchecked(path).recounted


def find_report(path: Path) -> Path:
    """Return the file of a report that is ``path``, or report.json in the directory ``path``."""
    return path / "report.json" if path.is_dir() else path


def read_unchecked(path: Path) -> Report:
    """Return a report as ``read_report`` does, but with the summary that is in the file."""
    file = find_report(path)
    if path.is_dir() and not file.exists():
        folders = [report.parent for report in sorted(path.glob("*/report.json"))]
        if folders:
            shown = " or ".join(map(shown_path, folders))
            raise UsageError(f"there is no report in {shown_path(path)}", fix=f"pass {shown}")
    fix = "docs/schemas/report.schema.json describes it"
    return read_json(file, Report, "report", fix, upgrade)


class _Earlier(msgspec.Struct):
    cases: list[dict[str, Any]] = []


def upgrade(data: bytes) -> bytes:
    """Return a report of the schema version before this one as a report of this version. Other data
    is returned unchanged. Raises DocumentError for an older version."""
    report = decode_json(data, dict[str, Any])
    version = report.get("schema_version")
    if version != SCHEMA_VERSION - 1:
        if isinstance(version, int) and version < SCHEMA_VERSION:
            why = f"schema_version {version} is too old to be read; run the session again"
            raise DocumentError(why)
        return data
    cases = [nest_case(case) for case in decode_json(data, _Earlier).cases]
    return msgspec.json.encode({**report, "cases": cases, "schema_version": SCHEMA_VERSION})


def nest_case(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case of schema 6, which had the fields of all parts side by side, with its parts.
    Raises DocumentError for an unknown field."""
    case: dict[str, Any] = {part: {} for part in PARTS}
    for name, value in flat.items():
        if name in CaseName.__struct_fields__:
            case[name] = value
        elif name in PLACES:
            part, field = PLACES[name]
            case[part][field] = value
        else:
            raise DocumentError(f"a case of schema_version 6 has no field {name!r}")
    return case


def read_json(
    path: Path, kind: type[T], label: str, fix: str, prepare: Callable[[bytes], bytes] = bytes
) -> T:
    """Return the content of a user's JSON file as a value of type ``kind``.

    ``label`` describes the file in errors. ``prepare`` may change the content before it is decoded.
    Raises UsageError if the file cannot be read or decoded.
    """
    data = read_user_file(path, f"the {label}", LIMIT_BYTES)
    try:
        return decode_json(prepare(data), kind)
    except DocumentError as error:
        raise UsageError(
            f"{path} does not have the format of the {label}", why=str(error), fix=fix
        ) from error


def encode_report(report: Report) -> bytes:
    """Return the content of report.json: UTF-8 without NaN, indented by one space, with a newline
    at the end."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def report_data(report: Report) -> dict[str, Any]:
    """Return the contents of report.json as plain dicts and lists, for the ``data`` of an
    Outcome."""
    return cast("dict[str, Any]", msgspec.json.decode(encode_report(report)))
