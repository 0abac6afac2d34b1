"""Read the time to record in results, from the clock or from SOURCE_DATE_EPOCH."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timezone

from provisioning.errors import UsageError

EPOCH_VARIABLE = "SOURCE_DATE_EPOCH"


def read_clock(environ: Mapping[str, str] = os.environ) -> tuple[datetime, str]:
    """Return the time (UTC, whole seconds) and its source: ``clock`` or SOURCE_DATE_EPOCH.

    Raises UsageError if that variable is not a number of seconds since 1970.
    """
    text = environ.get(EPOCH_VARIABLE, "")
    if not text:
        return datetime.now(timezone.utc).replace(microsecond=0), "clock"
    try:
        return datetime.fromtimestamp(int(text), timezone.utc), EPOCH_VARIABLE
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"{EPOCH_VARIABLE} is {text!r}, which is not a valid time",
            why=str(error),
            fix="set it to seconds since 1970, or unset it",
        ) from error


def read_date() -> str:
    """Return the date that read_clock finds, such as 2026-11-21. Raises UsageError."""
    return read_clock()[0].date().isoformat()
