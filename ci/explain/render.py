"""Render an explanation as text, as annotations, or as advice in one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ci.explain.explain import MOST_UNKNOWN, Explanation, Operator, find_known
from ci.explain.rules import Rule, read_rules
from ci.facts.finding import REMEDY_WORDS
from ci.facts.kinds import Kind
from ci.report.annotation import Annotation, Level, one_line
from ci.report.filled import fill_text

LINE_CHARS = 200
SHOWN_OPERATORS = 5


def render(explanation: Explanation) -> str:
    """Return an explanation as text: the number of causes, each cause with its consequences, other
    matched lines, and the error lines that no rule matches."""
    return fill_text(
        "explain/templates/explanation.txt.j2",
        one=explanation,
        most=MOST_UNKNOWN,
        words=REMEDY_WORDS,
        cut=_cut,
        list_operators=_list_operators,
    )


def render_entry(entry: Rule | Kind) -> str:
    """Return what is known about a finding of a case, or the findings of a rule: meaning, remedies,
    an example, sources."""
    name = "explain/templates/entry.txt.j2"
    if isinstance(entry, Kind):
        return fill_text(name, rule=None, kind=entry)
    fill = partial(entry.fill, values=entry.find(entry.matches) or {})
    return fill_text(name, rule=entry, fill=fill)


def advise(text: str) -> str:
    """Return one line with the fix and the cause of a failure whose output is ``text``, or "" if no
    rule matches.

    The rules are not meant to match this project's errors, because those already name a fix.
    """
    finding = find_known(text, read_rules())
    return f"{finding.fix} ({finding.cause})" if finding else ""


def annotate(explanations: Sequence[Explanation]) -> Iterator[Annotation]:
    """Yield an annotation for each cause."""
    for explanation in explanations:
        for cause in explanation.causes:
            word = REMEDY_WORDS[cause.remedies[0].proof]
            yield Annotation(
                Level.ERROR,
                f"{cause.cause}. {word.capitalize()}: {cause.fix}. "
                f"Seen in {explanation.file}, line {cause.line}: {_cut(cause.text)}",
                f"explain: {cause.label}",
            )


def _list_operators(operators: Sequence[Operator]) -> str:
    """Return operators with their lines, or "" if there are none."""
    named = []
    for operator in operators[:SHOWN_OPERATORS]:
        # Such a line only says that work on the operator began: the last one before the error.
        note = ", the last one before" if operator.is_last else ""
        named.append(f"{_cut(operator.name)} (line {operator.line}{note})")
    if unnamed_count := len(operators) - len(named):
        named.append(f"{unnamed_count} {'other' if unnamed_count == 1 else 'others'}")
    return ", ".join(named)


def _cut(text: str) -> str:
    line = one_line(text.expandtabs(1))
    return line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}..."
