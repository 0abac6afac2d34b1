"""Read reports from files, and write reports. Each file is written atomically."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from ci.facts.kinds import EARLIER
from ci.report.claim import REPORTS_FIX
from ci.report.schema import SCHEMA_VERSION, Report
from provisioning.documents import DocumentError, decode_json, read_user_file
from provisioning.errors import UsageError
from provisioning.files import explain_writes, write_whole

T = TypeVar("T")
LIMIT_BYTES = 256 << 20
# Fields of the schema version before this one.
DROPPED_LIMITS = ("min_sqnr_db_channel", "max_gain_error", "max_offset", "max_nearer_db")
DROPPED_FIGURES = ("sqnr_db_channel", "channel")


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


def read_unchecked(path: Path) -> Report:
    """Return a report as ``read_report`` does, but with the summary that is in the file."""
    file = path / "report.json" if path.is_dir() else path
    fix = "docs/schemas/report.schema.json describes it"
    return read_json(file, Report, "report", fix, upgrade)


class _Earlier(msgspec.Struct):
    cases: list[dict[str, Any]] = []
    thresholds: list[dict[str, Any]] = []


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
    rows = decode_json(data, _Earlier)
    for limits in rows.thresholds:
        for name in DROPPED_LIMITS:
            limits.pop(name, None)
    for case in rows.cases:
        reason, question = str(case.pop("reason", "")), case.pop("question", None)
        places = case.pop("places", ())
        for name in DROPPED_FIGURES:
            case.pop(name, None)
        if reason:
            finding = msgspec.to_builtins(EARLIER.find(reason))
            optional = {"question": question} if question else {}
            case["findings"] = [{**finding, **optional, "places": places}]
    report |= {**msgspec.to_builtins(rows), "schema_version": SCHEMA_VERSION}
    return msgspec.json.encode(report)


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
