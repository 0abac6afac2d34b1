"""Read reports from files, and write reports. Each file is written atomically."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from ci.report.schema import SCHEMA_VERSION, Report
from provisioning.documents import DocumentError, decode_json, read_user_file
from provisioning.errors import UsageError
from provisioning.files import explain_writes, write_whole

T = TypeVar("T")
LIMIT_BYTES = 256 << 20
REPORTS_FIX = "pass a writable directory with --reports"


def write_report(report: Report, directory: Path) -> None:
    """Write index.html, junit.xml and report.json, in this order, into ``directory``.

    The directory is created if needed. A reader sees either the old or the new version of a file,
    never a part of it.

    Raises StoreError if a file cannot be written.
    """
    from ci.report.html import render_html
    from ci.report.junit import render_junit

    files = {
        "index.html": render_html(report).encode(),
        "junit.xml": render_junit(report),
        "report.json": encode_report(report),
    }
    with explain_writes(directory, REPORTS_FIX):
        for name, data in files.items():
            write_whole(directory / name, data)


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
    report = read_json(file, Report, "report", "docs/schemas/report.schema.json describes it")
    return msgspec.structs.replace(report, schema_version=SCHEMA_VERSION)


def read_json(path: Path, kind: type[T], what: str, fix: str) -> T:
    """Return the content of a user's JSON file as a value of type ``kind``.

    ``what`` describes the file in errors. Raises UsageError if the file cannot be read or decoded.
    """
    data = read_user_file(path, f"the {what}", LIMIT_BYTES)
    try:
        return decode_json(data, kind)
    except DocumentError as error:
        what = f"{path} does not have the format of the {what}"
        raise UsageError(what, why=str(error), fix=fix) from error


def encode_report(report: Report) -> bytes:
    """Return the content of report.json: UTF-8 without NaN, indented by one space, with a newline
    at the end."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def report_data(report: Report) -> dict[str, Any]:
    """Return the contents of report.json as plain dicts and lists, for the ``data`` of an
    Outcome.
    """
    return cast("dict[str, Any]", msgspec.json.decode(encode_report(report)))
