"""``sign --verify FILE...``: verify signed Hexagon libraries from their bytes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from ci.signing.masking import Masker
from ci.signing.record import RECORD_NAME, check_record
from ci.signing.verdict import Verdict, Verification, render_reports
from ci.signing.verify import verify_file
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, UsageError

ACCEPTED = {
    "signed": {Verdict.PROVEN},
    "unsigned": {Verdict.UNSIGNED, Verdict.GENUINE},
    "genuine": {Verdict.GENUINE},
}


def parse_date(text: str) -> datetime:
    """Parse a date or time in ISO 8601 format. Without a time zone, it is in UTC."""
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date such as 2026-11-20") from error
    return date if date.tzinfo else date.replace(tzinfo=timezone.utc)


def verify_files(
    files: Sequence[Path],
    progress: Progress,
    *,
    original: Path | None,
    expect: str,
    accept_unrecognised: bool,
    at: datetime | None,
) -> Outcome:
    """Verify libraries, and the records next to them. ``original`` is the unsigned library, or a
    directory of them. The exit code is 1 if a library is not what ``expect`` states, or if a record
    does not match. Raises UsageError if there is no library."""
    accepted = ACCEPTED[expect]
    if accept_unrecognised and expect == "signed":
        accepted = accepted | {Verdict.UNRECOGNISED}
    signed = (file for file in files if (file / RECORD_NAME).is_file())
    records = {str(file): list(check_record(file)) for file in signed}
    reports: dict[Path, Verification] = {}
    # Names of files may contain a device's serial number.
    mask = Masker()
    for path in _expand(files):
        progress.step(f"verifying {mask(path.name)}")
        unsigned = original / path.name if original and original.is_dir() else original
        reports[path] = verify_file(path, unsigned, at=at)
    refused = [report for report in reports.values() if report.verdict not in accepted]
    lines = []
    for directory, messages in records.items():
        matches = "does not match" if messages else "matches"
        lines.append(f"the record of {directory} {matches} its files\n")
        lines += [f"  wrong: {message}\n" for message in messages]
    return Outcome(
        "".join([render_reports(reports), *lines]),
        {
            "expected": expect,
            "files": [
                {"path": mask(str(path)), **report.as_data()} for path, report in reports.items()
            ],
            "records": records,
        },
        ExitCode.FAILED if refused or any(records.values()) else ExitCode.OK,
    )


def _expand(paths: Sequence[Path]) -> list[Path]:
    """Return the files, and the libraries in the directories. Raises UsageError if there are
    none."""
    files = []
    for path in paths:
        files += sorted(path.glob("*.so*")) if path.is_dir() else [path]
    if not files:
        raise UsageError(
            "no library to verify",
            fix="pass files, such as *.mbn, by their names, or a directory with files named *.so",
        )
    return files
