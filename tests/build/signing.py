"""Texts of what a call of ci/signing results in, for tables and snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ci.signing.mbn import MalformedError
from ci.signing.verdict import Verification
from provisioning.errors import QnnCiError


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the kind of its error and its text."""
    try:
        return call()
    except (QnnCiError, MalformedError) as error:
        # What the library cryptography says depends on its version.
        subject, parsed, _ = str(error).partition("cannot be parsed: ")
        return f"{type(error).__name__} {subject}{parsed.strip(': ')}"


def show(table: Mapping[str, Any], hidden: Mapping[str, str] | None = None) -> str:
    """A heading for each row of a table with its lines below it; ``hidden`` are replaced texts."""
    text = ""
    for name, value in table.items():
        rows = [value] if isinstance(value, str) else value
        lines = [line for row in rows if row for line in str(row).splitlines()]
        text += "\n".join([name, *(f"  {line}" for line in lines)]) + "\n"
    for old, new in (hidden or {}).items():
        text = text.replace(old, new)
    return text


def findings(report: Verification) -> Iterable[str]:
    """The verdict of a verification, its faults with their kinds, and its notes."""
    yield report.verdict.value
    yield from (f"{fault.kind.value}: {fault.text}" for fault in report.faults)
    yield from (f"note: {note}" for note in report.notes)
