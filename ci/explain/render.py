"""Render an explanation as text, as annotations, or as advice in one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ci.explain.explain import MOST_UNKNOWN, Explanation, Finding, find_known
from ci.explain.rules import read_rules
from ci.report.annotation import Annotation, Level, one_line
from ci.report.text import count

LINE_CHARS = 200


def render(explanation: Explanation) -> str:
    """Return an explanation as text: the number of causes, each cause with its consequences, other
    matched lines, and the error lines that no rule matches."""
    one = explanation
    many = "no known cause" if not one.causes else count(len(one.causes), "cause")
    parts = [f"{one.file}: {many} in {count(one.lines, 'line')}\n"]
    parts += [_render_cause(number, cause, one) for number, cause in enumerate(one.causes, 1)]
    for label, found in (("not a failure by itself", one.notes), ("harmless", one.harmless)):
        parts += [f"  {label}: line {each.line}, {each.rule}: {each.cause}\n" for each in found]
    if one.unknown:
        unknown = one.unknown_count
        many = (
            count(unknown, "other error line")
            if unknown < MOST_UNKNOWN
            else "many other error lines"
        )
        parts.append(f"  {many} that no rule matches:\n")
        parts += [f"    line {each.line}: {_cut(each.text)}\n" for each in one.unknown]
    return "".join(parts)


def _render_cause(number: int, cause: Finding, one: Explanation) -> str:
    seen = "" if cause.seen else " (this project has not seen such a line itself)"
    versions = f"    for     {cause.versions}\n" if cause.versions else ""
    return (
        f"\n{number}. line {cause.line}: {_cut(cause.text)}\n"
        f"    cause   {cause.cause} [{cause.rule}]\n"
        f"    fix     {cause.fix}\n"
        f"{versions}"
        f"    source  {', '.join(cause.source)}{seen}\n"
    ) + "".join(
        f"    effect  line {each.line}: {_cut(each.text)} [{each.rule}]\n"
        for each in one.consequences
        if each.consequence_of == cause.rule
    )


def advise(text: str) -> str:
    """Return one line with the fix and the cause of a failure whose output is ``text``, or "" if no
    rule matches.

    The rules are not meant to match this project's errors, because those already name a fix.
    """
    known = find_known(text, read_rules())
    return f"{known.fix} ({known.cause})" if known else ""


def annotate(explanations: Sequence[Explanation]) -> Iterator[Annotation]:
    """Yield an annotation for each cause."""
    for one in explanations:
        for cause in one.causes:
            yield Annotation(
                Level.ERROR,
                f"{cause.cause}. Fix: {cause.fix}. Seen in {one.file}, line {cause.line}: "
                f"{_cut(cause.text)}",
                f"explain: {cause.rule}",
            )


def _cut(text: str) -> str:
    line = one_line(text.expandtabs(1))
    return line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}..."
