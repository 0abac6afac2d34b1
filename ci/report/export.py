"""Write files of a report to a place that the user names, and refuse to replace other files there.

A directory gets a record of its files, see provisioning.console.user_folder. A single file and
directories of earlier versions have none, so that our files are also recognised by their content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ci.report.annotation import OWN_TOOL
from ci.report.write import LIMIT_BYTES
from provisioning.console.progress import Progress
from provisioning.console.user_folder import (
    UserFolder,
    lock_folder,
    require_output,
    write_output,
)
from provisioning.documents import CONTENT_BYTES, DocumentError, decode_json, read_bytes

PAGE = b'Content-Security-Policy" content="default-src &#39;none&#39;; style-src &#39;sha256-'
SUITES, CONTROLS = b"<testsuites ", b'.controls"'
REPORT_FILES = ("index.html", "junit.xml", "report.json")
START_BYTES = 1 << 12


class _Head(Struct):
    schema_version: int
    session: str
    cases: list[Any]


class _Driver(Struct):
    name: str


class _Tool(Struct):
    driver: _Driver


class _Run(Struct):
    tool: _Tool


class _Log(Struct):
    runs: tuple[_Run]


class _Result(Struct):
    schema_version: int


class _Plan(Struct):
    schema_version: int
    base: str
    head: str
    jobs: list[Any]


class _Verdict(Struct):
    schema_version: int
    profile: str
    fit: bool
    findings: list[Any]


class _Origin(Struct):
    producer: str


class _Trace(Struct):
    otherData: _Origin  # noqa: N815 - a name of the format


class _Searched(Struct):
    scheme: str
    findings: list[Any]


def export_files(
    files: Mapping[str, bytes], directory: Path, progress: Progress, *, force: bool = False
) -> None:
    """Write files of a report into a directory. Raises UsageError if one of them would replace a
    file of the user's, unless ``force`` is true, and StoreError."""
    folder = UserFolder(directory, recognise=is_report_file)
    with lock_folder(directory, progress), folder.stage() as scratch:
        for name, data in files.items():
            (scratch / name).write_bytes(data)
        published = folder.publish(scratch, force=force)
    published.say_aside(progress)


def export_log(log: Mapping[str, Any], path: Path, *, force: bool = False) -> Path | None:
    """Write a SARIF log to a file or a pipe. Raises UsageError if it would replace another file,
    and StoreError. With ``force``, the other file is renamed, and its new path is returned."""
    data = json.dumps(log, indent=1).encode() + b"\n"
    return write_output(path, data, is_own_log, describe_fix("--sarif"), force=force)


def check_export(path: Path | None, option: str, *, force: bool = False) -> None:
    """Raise UsageError if the file that an option names is the user's."""
    if path:
        recognise = is_own_log if option == "--sarif" else is_report_file
        require_output(path, recognise, describe_fix(option), force=force)


def check_session(directory: Path, names: Sequence[str] = ()) -> None:
    """Raise UsageError if a report in the directory of a session would replace a file of the
    user's: one of REPORT_FILES or, if there are any, of the ``names`` of its result files."""
    for name in names or REPORT_FILES:
        recognise = is_result_file if names else is_report_file
        require_output(directory / name, recognise, describe_fix("--reports"))


def describe_fix(option: str) -> str:
    """Return what to do about a file that the option would replace."""
    return f"move the file away, or pass another path to {option}"


def is_report_file(path: Path) -> bool:
    """Return whether a file has the content of one that this project writes for a report."""
    try:
        data = read_bytes(path, LIMIT_BYTES)
        if path.suffix == ".json":
            decode_json(data, _Head)  # also of a version that cannot be read any more
            return True
    except (OSError, DocumentError):
        return False
    start = data[:START_BYTES]
    return PAGE in start or (SUITES in start and CONTROLS in data)


def is_result_file(path: Path) -> bool:
    """Return whether a file has the content of one that a session of this project writes."""
    if path.suffix == ".json":
        return any(has_form(path, form) for form in (_Result, list[_Searched]))
    if path.suffix == ".md":  # a page of the results in the JSON file next to it
        return any(is_result_file(sibling) for sibling in path.parent.glob("*.json"))
    return is_report_file(path)


def has_form(path: Path, form: Any) -> bool:
    """Return whether a file is JSON of this form, such as a Struct with some of its keys."""
    try:
        decode_json(read_bytes(path, LIMIT_BYTES), form)
    except (OSError, DocumentError):
        return False
    return True


def is_plan(path: Path) -> bool:
    """Return whether a file is a plan.json."""
    return has_form(path, _Plan)


def is_verdict(path: Path) -> bool:
    """Return whether a file is a doctor.json."""
    return has_form(path, _Verdict)


def is_own_trace(path: Path) -> bool:
    """Return whether a file is a trace that this project wrote."""
    try:
        trace = decode_json(read_bytes(path, CONTENT_BYTES), _Trace)
    except (OSError, DocumentError):
        return False
    return trace.otherData.producer == OWN_TOOL


def is_own_log(path: Path) -> bool:
    """Return whether a file is a SARIF log that this project wrote."""
    try:
        (run,) = decode_json(read_bytes(path, LIMIT_BYTES), _Log).runs
    except (OSError, DocumentError):
        return False
    return run.tool.driver.name.startswith(OWN_TOOL)
