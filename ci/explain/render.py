"""Render an explanation as text, as annotations, or as advice in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ci.explain.explain import MOST_UNKNOWN, Explanation, Finding, find_known
from ci.explain.rules import Rule, read_rules
from ci.facts.finding import WORDS, Proof
from ci.facts.kinds import Kind
from ci.report.annotation import Annotation, Level, one_line
from ci.report.text import count

LINE_CHARS = 200


def render(explanation: Explanation) -> str:
    """Return an explanation as text: the number of causes, each cause with its consequences, other
    matched lines, and the error lines that no rule matches."""
    one = explanation
    many = "no known cause" if not one.causes else count(len(one.causes), "cause")
    parts = [f"{one.file}: {many} in {count(one.lines, 'line')}\n"]
    parts += [
        f"\n{number}. {_render(cause, (*one.consequences, *one.notes))}"
        for number, cause in enumerate(one.causes, 1)
    ]
    notes = [each for each in one.notes if not each.consequence_of]
    if notes:
        parts.append("\nnot a failure by itself:\n")
        parts += [f"   {_render(note, one.notes, 'means')}" for note in notes]
    parts += [
        f"  harmless: line {each.line}: {each.cause} [{each.id} {each.rule}]\n"
        for each in one.harmless
    ]
    if one.unknown:
        many = "many other error lines"
        if one.unknown_count < MOST_UNKNOWN:
            many = count(one.unknown_count, "other error line")
        parts.append(f"  {many} that no rule matches:\n")
        parts += [f"    line {each.line}: {_cut(each.text)}\n" for each in one.unknown]
    return "".join(parts)


def _render(found: Finding, others: Sequence[Finding], label: str = "cause") -> str:
    """Return a finding, with those of ``others`` that are its consequences."""
    seen = "" if found.seen else " (this project has not seen such a line itself)"
    rows = [
        (label, f"{found.claim} [{found.id} {found.rule}]"),
        ("", found.detail),
        *((WORDS[remedy.proof], remedy.text) for remedy in found.remedies),
        ("for", found.versions),
        ("source", f"{', '.join(found.source)}{seen}"),
        *(
            ("effect", f"line {each.line}: {_cut(each.text)} [{each.id} {each.rule}]")
            for each in others
            if each.consequence_of == found.rule
        ),
    ]
    return _list_rows(f"line {found.line}: {_cut(found.text)}", rows)


def _list_rows(title: str, rows: Iterable[tuple[str, str]]) -> str:
    return f"{title}\n" + "".join(f"    {name:7} {text}\n" for name, text in rows if text)


def render_entry(entry: Rule | Kind) -> str:
    """Return what is known about a finding of a case, or the findings of a rule: meaning, remedies,
    an example, sources."""
    if isinstance(entry, Kind):
        rows = [("states", entry.meaning), ("helps", entry.help), ("example", entry.example)]
        return _list_rows(entry.id, rows)
    rule = entry
    values = rule.find(rule.matches) or {}
    other = WORDS[Proof.SUGGESTED]
    label = WORDS[Proof.PROVEN] if rule.proof else other
    rows = [
        ("cause", rule.headline),
        ("", rule.detail),
        (label, rule.remedy),
        *((other, f"({place.value}) {one.remedy}") for place, one in rule.places.items()),
        ("proof", rule.proof),
        ("for", rule.versions),
        ("example", rule.matches.strip()),
        ("source", ", ".join(rule.source)),
    ]
    filled = ((name, rule.fill(text, values)) for name, text in rows)
    return _list_rows(f"{rule.finding_id} {rule.id}", filled)


def advise(text: str) -> str:
    """Return one line with the fix and the cause of a failure whose output is ``text``, or "" if no
    rule matches.

    The rules are not meant to match this project's errors, because those already name a fix.
    """
    known = find_known(text, read_rules())
    return f"{known.fix} ({known.cause})" if known else ""


def annotate(explanations: Sequence[Explanation]) -> Iterator[Annotation]:
    """Yield an annotation for each cause."""
    for explanation in explanations:
        for cause in explanation.causes:
            yield Annotation(
                Level.ERROR,
                f"{cause.cause}. {WORDS[cause.remedies[0].proof].capitalize()}: {cause.fix}. "
                f"Seen in {explanation.file}, line {cause.line}: {_cut(cause.text)}",
                f"explain: {cause.id} {cause.rule}",
            )


def _cut(text: str) -> str:
    line = one_line(text.expandtabs(1))
    return line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}..."
