"""Text from models, logs and tools, made safe to show; and figures, made short to read."""

from __future__ import annotations

import re

from ci.report.schema import Report, Summary

# Control characters (tab and newline are handled by the callers), the bidirectional overrides
# that reorder what a reader sees, and what XML 1.0 cannot hold.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
# GitHub and Azure runners obey these wherever they stand in a line of a log.
_RUNNER_COMMAND = re.compile(r"##(?=\[|vso\[)")


def clean(text: str) -> str:
    """``text`` without terminal sequences and unsafe characters; lines and tabs stay."""
    return _UNSAFE.sub("", _ANSI.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def clean_log_line(text: str) -> str:
    """One line that no CI runner takes for a command; it still must not start the output line."""
    return _RUNNER_COMMAND.sub("# #", " ".join(clean(text).split()))


def clean_name(text: str) -> str:
    """A name that may start a line of a log: no command of a CI runner either."""
    return clean_log_line(text).replace("::", ": :")


def show_decibels(value: float | None, max_abs: float | None = None) -> str:
    """``41.2``; ``exact`` when there was no difference at all; ``-`` when nothing was compared."""
    if value is None:
        return "exact" if max_abs == 0 else "-"
    return f"{round(value, 1) + 0.0:.1f}"


def show_seconds(value: float | None) -> str:
    """Three significant digits or tenths, by size: ``0.005``, ``1.84``, ``12.3``, ``340``."""
    if value is None:
        return "-"
    return f"{value:.{3 if value < 0.1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def show_bytes(value: int | None) -> str:
    """Three significant digits: ``812 B``, ``94.2 KiB``, ``128 KiB``, ``3.10 MiB``."""
    if value is None:
        return "-"
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.{0 if unit == 'B' or size >= 100 else 1 if size >= 10 else 2}f} {unit}"


def show_share(delegated: int | None, fallback: int | None) -> str:
    """``41/43``: delegated of all nodes."""
    if delegated is None or fallback is None:
        return "-"
    return f"{delegated}/{delegated + fallback}"


def show_counts(summary: Summary) -> str:
    """``38 passed, 1 failed, 1 unsupported, 12 cached``."""
    return (
        f"{summary.passed} passed, {summary.failed} failed, "
        f"{summary.unsupported} unsupported, {summary.cached} cached"
    )


def show_work(report: Report) -> str:
    """``lowering 81.0, running 9.5 summed over workers``, in seconds."""
    return f"lowering {report.lowering_s:.1f}, running {report.running_s:.1f} summed over workers"
