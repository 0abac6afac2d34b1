"""An explanation as text, as annotations, and as the few lines that end a failed run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ci.explain.explain import Explanation, Finding
from ci.report.annotation import Annotation, Level, one_line

LINE_CHARS = 200
OWN = frozenset({"own-error", "doctor-unfit"})


def render(explanation: Explanation) -> str:
    """Return an explanation for a person, the first cause first."""
    one = explanation
    many = "no known cause" if not one.causes else _count(len(one.causes), "cause")
    parts = [f"{one.file}: {many} in {_count(one.lines, 'line')}\n"]
    parts += [_render_cause(number, cause, one) for number, cause in enumerate(one.causes, 1)]
    for label, found in (("fails nothing by itself", one.notes), ("harmless", one.harmless)):
        parts += [f"  {label}: line {each.line}, {each.rule}: {each.cause}\n" for each in found]
    if one.unknown:
        parts.append(f"  {_count(one.unknown_count, 'more error line')} that no rule knows:\n")
        parts += [f"    line {each.line}: {_cut(each.text)}\n" for each in one.unknown]
    return "".join(parts)


def _render_cause(number: int, cause: Finding, one: Explanation) -> str:
    seen = "" if cause.seen else " (read, not seen by this project)"
    versions = f"    holds   {cause.versions}\n" if cause.versions else ""
    return (
        f"\n{number}. line {cause.line}: {_cut(cause.text)}\n"
        f"    cause   {cause.cause} [{cause.rule}]\n"
        f"    fix     {cause.fix}\n"
        f"{versions}"
        f"    source  {', '.join(cause.source)}{seen}\n"
    ) + "".join(
        f"    follows line {each.line}: {_cut(each.text)} [{each.rule}]\n"
        for each in one.consequences
        if each.consequence_of == cause.rule
    )


def render_briefly(explanation: Explanation) -> str:
    """Return the first cause and its fix, for the end of a failed run; empty if the log has none
    besides errors of this project, which have their fix already."""
    causes = [cause for cause in explanation.causes if cause.rule not in OWN]
    if not causes:
        return ""
    first = causes[0]
    return f"  cause: {first.cause} [{first.rule}, line {first.line}]\n  fix: {first.fix}\n"


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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
