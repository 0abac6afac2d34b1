"""The report on disk: each file whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from ci.report.schema import SCHEMA_VERSION, Report
from provisioning.console.user_files import read_user_file
from provisioning.errors import UsageError
from provisioning.files import explain_writes, write_whole

T = TypeVar("T")
LIMIT_BYTES = 256 << 20
REPORTS_FIX = "name a directory that can be written, with --reports"


def write_report(report: Report, directory: Path) -> None:
    """Write index.html, junit.xml and report.json, in this order, into ``directory``.

    The directory is made; a reader sees each file as it was or as it is, never a part.

    Raises StoreError when one cannot be written.
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

    One of the schema before is returned as one of this schema. The summary's counts are those of
    the cases and controls, not the file's.

    Raises UsageError when it cannot be read or does not fit the schema.
    """
    return read_unchecked(path).recounted


def read_unchecked(path: Path) -> Report:
    """Return a report with the summary that the file has. Raises as read_report does."""
    file = path / "report.json" if path.is_dir() else path
    report = read_json(file, Report, "report", "docs/schemas/report.schema.json describes it")
    return msgspec.structs.replace(report, schema_version=SCHEMA_VERSION)


def read_json(path: Path, kind: type[T], what: str, fix: str) -> T:
    """Return a user's JSON file as a value of ``kind``, which errors call the ``what``.

    Raises UsageError when it cannot be read or decoded.
    """
    data = read_user_file(path, f"the {what}", LIMIT_BYTES)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        what = f"{path} does not have the format of the {what}"
        raise UsageError(what, why=str(error), fix=fix) from error


def encode_report(report: Report) -> bytes:
    """report.json: UTF-8, one space of indent, a newline at the end, no NaN."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def report_data(report: Report) -> dict[str, Any]:
    """What report.json holds, as plain dicts and lists: the Outcome.data of a verb."""
    return cast("dict[str, Any]", msgspec.json.decode(encode_report(report)))
