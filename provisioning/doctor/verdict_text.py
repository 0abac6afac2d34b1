"""Render a verdict for the terminal: the first thing to fix, then a summary of the rest."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from provisioning.console.caller import translate_commands
from provisioning.console.terminal import join_commands, split_commands
from provisioning.doctor.examine import Verdict
from provisioning.doctor.registry import Finding, Severity
from provisioning.sizes import show_size

MAX_LINES = 24
WIDTH = 100
# The most lines of a text. A fix may be longer, because commands in it are copied.
MAX_TEXT, MAX_FIX = 3, 6


def render_verdict(
    verdict: Verdict, *, strict: bool = False, width: int = WIDTH, unknown: bool = False
) -> str:
    """Return the verdict as text, wrapped to ``width`` columns. It has at most MAX_LINES lines,
    unless the errors alone take more. ``unknown`` is whether no fault means "cannot tell"."""
    counts = Counter(finding.severity for finding in verdict.findings)
    faults = [*verdict.errors, *verdict.warnings]
    notes = [finding for finding in verdict.findings if finding.severity is Severity.NOTE]
    unfit = bool(verdict.errors) or (strict and bool(faults))
    state = "not fit" if unfit else "cannot tell" if unknown else "fit"
    lines = [_headline(verdict.profile, counts, state)]
    ordered = faults + notes
    if faults:
        lines += ["", "Fix this first:", *_whole(ordered[0], width)]
        # One fault in full and the others briefly: many faults often have one cause, which comes
        # first.
        lines += _rest(ordered[1:], MAX_LINES - len(lines), width)
    else:
        lines += [f"  {line}" for line in _facts(verdict)]
        lines += _rest(notes, MAX_LINES - len(lines), width, "Worth knowing:")
    return "\n".join(lines) + "\n"


def _headline(profile: str, counts: Counter[Severity], state: str) -> str:
    parts = []
    for severity in Severity:
        count = counts[severity]
        if count:
            parts.append(f"{count} {severity.value}{'s' * (count > 1)}")
    return f"{profile}: {state}" + (f", {', '.join(parts)}" * bool(parts))


def _whole(finding: Finding, width: int) -> Iterator[str]:
    rows = (
        (finding.id, finding.what),
        ("seen", finding.where),
        ("why", finding.why),
        ("fix", finding.fix),
    )
    for label, text in rows:
        wrapped = _wrap(text, width - 10, MAX_FIX if label == "fix" else MAX_TEXT)
        for index, line in enumerate(wrapped or [""]):
            yield f"  {label if index == 0 else '':<7} {line}"


def _rest(findings: Sequence[Finding], room: int, width: int, heading: str = "Then:") -> list[str]:
    """Return the heading, an entry per id, and the number of ids that do not fit in ``room``. All
    errors are listed: nothing works before each of them is mended."""
    if not findings:
        return []
    groups = [list(group) for _, group in groupby(findings, attrgetter("id"))]
    lines, shown = ["", heading], 0
    for group in groups:
        block = list(_short(group, width))
        if group[0].severity is not Severity.ERROR and len(lines) + len(block) > room - 1:
            break
        lines += block
        shown += 1
    if left := groups[shown:]:
        lines.append(f"  and {_count_kinds(left)}; --json lists everything")
    return lines


def _count_kinds(groups: Sequence[list[Finding]]) -> str:
    """Return how many kinds of warnings and of notes there are, such as "1 more kind of note"."""
    numbers = Counter(group[0].severity for group in groups)
    return " and ".join(
        f"{number} more kind{'s' if number > 1 else ''} of {severity.value}"
        for severity, number in numbers.items()
    )


def _short(group: list[Finding], width: int) -> Iterator[str]:
    first = group[0]
    count_text = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
    mark = "" if first.severity is Severity.ERROR else f" {first.severity.value}:"
    problem_lines = _wrap(f"{first.id}{mark} {first.what}{count_text}", width - 9, MAX_TEXT)
    fix_lines = _wrap(f"fix: {first.fix}", width - 9, MAX_FIX)
    for index, line in enumerate([*problem_lines, *fix_lines]):
        yield f"{'  ' if index == 0 else ' ' * 9}{line}"


def _wrap(text: str, width: int, max_lines: int) -> list[str]:
    """Return ``text`` in at most ``max_lines`` lines. Commands and paths stay whole, so that they
    can be copied; a line with a long one is longer than ``width``.
    """
    text_with_whole_commands = join_commands(translate_commands(text))
    lines = textwrap.wrap(
        text_with_whole_commands,
        width,
        # Paths and options contain hyphens, and are copied from the output.
        break_on_hyphens=False,
        break_long_words=False,
        max_lines=max_lines,
    )
    return [split_commands(line) for line in lines]


def _facts(verdict: Verdict) -> Iterator[str]:
    facts = verdict.facts
    if sdk := facts.get("sdk"):
        yield f"QNN {sdk['version']} in {sdk['root']}"
    for tree in facts.get("trees", {}).values():
        build = f", QNN build {tree['builds'][0]}" if len(tree["builds"]) == 1 else ""
        yield f"{tree['files']} libraries and programs, {show_size(tree['bytes'])}{build}"
    if host := facts.get("host"):
        yield f"{host['system']} {host['machine']}, glibc {host['glibc']}, {host['cores']} cores"
    if python := facts.get("python"):
        version = ".".join(map(str, python["version"]))
        packages = [f"{name} {text}" for name, text in python["distributions"].items() if text]
        yield ", ".join([f"Python {version}", *packages])
    for device in facts.get("devices", ()):
        yield f"device {device['serial']}: {device['soc']}, Android {device['android']}"
