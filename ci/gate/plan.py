"""Changes to a plan: which sessions and cases have to run, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ci.gate.cases import CHOOSERS, choose_cases, find_use, list_suite
from ci.gate.facts import Difference
from ci.gate.rules import ALL, GateRules, Rule, SessionRule, fits
from ci.gate.schema import PlannedCase, PlannedSession

NOTHING = "nothing that it uses changed"
NO_CHANGE = "nothing changed"


@dataclass
class Needs:
    """What the changes seen so far need. ``sessions`` has each session's files with the reasons;
    ``everything`` is why all is needed."""

    sessions: dict[str, dict[str, str]] = field(default_factory=dict)
    cases: set[PlannedCase] = field(default_factory=set)
    everything: str = ""

    def note(self, session: str, path: str, why: str) -> None:
        self.sessions.setdefault(session, {}).setdefault(path, why)


def find_needs(difference: Difference, rules: GateRules) -> Needs:
    """What each change needs, put together: more changes never need less."""
    needs = Needs()
    for path in sorted({change.path for change in difference.changes}):
        explained = note_change(path, difference, rules, needs)
        if not explained and not needs.everything:
            needs.everything = f"no rule and no dependency explains {path}"
    return needs


def note_change(path: str, difference: Difference, rules: GateRules, needs: Needs) -> bool:
    """Note what one changed path needs; whether anything explains all of it."""
    fitting = [rule for rule in rules.rule if fits(path, rule.files)]
    for rule in fitting:
        note_rule(rule, path, difference, rules, needs)
    for name, session in rules.sessions.items():
        if session.always:
            needs.note(name, path, "it looks at every file")
    keys = difference.keys.get(path, frozenset())
    explained = {key for key in keys if note_key(path, key, difference, rules, needs)}
    if any(rule.alone for rule in fitting):
        return True
    found = [*note_uses(path, difference, rules, needs)]
    if is_split(path, difference, rules):
        return explained == keys
    return bool(fitting or found or explained)


def note_rule(
    rule: Rule, path: str, difference: Difference, rules: GateRules, needs: Needs
) -> None:
    """Note the sessions of a rule that fits, with all cases; ``*`` is everything."""
    for name in rule.sessions:
        if name == ALL:
            needs.everything = needs.everything or f"{path}: {rule.reason}"
            continue
        needs.note(name, path, rule.reason)
        if name == rules.planned:
            needs.cases.update(list_suite(difference.head))


def note_uses(path: str, difference: Difference, rules: GateRules, needs: Needs) -> Iterator[str]:
    """Note the sessions that reach or use a file, and their cases; their names."""
    for tree in difference.trees:
        for name, inputs in tree.sessions.items():
            if not inputs.known and not session_rule(rules, name).always:
                needs.note(name, path, "nothing is known of what it uses")
            elif path in inputs.uses and name != rules.planned:
                needs.note(name, path, inputs.uses[path])
                yield name
            elif path in inputs.reach and name != rules.planned:
                way = inputs.reach.explain(path)
                needs.note(name, path, f"read by {way}" if way else "it runs this")
                yield name
    if rules.cases and rules.planned in difference.head.sessions:
        cases = choose_cases(path, difference, rules.cases)
        needs.cases.update(cases or ())
        if cases:
            needs.note(rules.planned, path, describe_cases(cases, difference))
        if cases is not None:
            yield rules.planned


def note_key(path: str, key: str, difference: Difference, rules: GateRules, needs: Needs) -> bool:
    """Note what a changed part of a file needs; whether anything explains it."""
    found = False
    for rule in (one for one in rules.rule if fits(f"{path}#{key}", one.files)):
        note_rule(rule, path, difference, rules, needs)
        found = True
    for tree in difference.trees:
        for name, inputs in tree.sessions.items():
            why = find_use(path, key, inputs.uses)
            if why and name != rules.planned:
                needs.note(name, path, why)
            found = found or bool(why)
    return found


def is_split(path: str, difference: Difference, rules: GateRules) -> bool:
    """Whether the keys of a file count each by itself: rules or sessions name some."""
    if path not in difference.keys or fits(path, (*CHOOSERS,)):
        return False
    named = {one for rule in rules.rule for one in rule.files if "#" in one}
    used = {one for tree in difference.trees for row in tree.sessions.values() for one in row.uses}
    return any(one.partition("#")[0] == path for one in named | used if "#" in one)


def session_rule(rules: GateRules, name: str) -> SessionRule:
    """How CI runs a session; one that the rules do not name runs as any other."""
    return rules.sessions.get(name, SessionRule())


def describe_cases(cases: tuple[PlannedCase, ...], difference: Difference) -> str:
    if set(cases) >= set(list_suite(difference.head)):
        return "every case depends on it"
    models = ", ".join(dict.fromkeys(case.model for case in cases))
    return f"{len(cases)} cases of {models} depend on it"


def list_sessions(
    needs: Needs, difference: Difference, rules: GateRules
) -> tuple[PlannedSession, ...]:
    """Every session of the head, run or not."""
    return tuple(
        plan_session(name, needs, rules, bool(difference.changes))
        for name in difference.head.sessions
    )


def plan_session(name: str, needs: Needs, rules: GateRules, changed: bool) -> PlannedSession:
    """One session with its reason."""
    files = needs.sessions.get(name, {})
    reason = next(iter(files.values()), NOTHING if changed else NO_CHANGE)
    return PlannedSession(
        name=name,
        run=bool(files or needs.everything),
        reason=needs.everything or reason,
        files=tuple(files),
        by_hand=session_rule(rules, name).by_hand,
    )


def list_cases(needs: Needs, difference: Difference, rules: GateRules) -> tuple[PlannedCase, ...]:
    """The cases to run: the suite's in its order, then those of other SoCs."""
    if rules.planned not in difference.head.sessions:
        return ()
    suite = list_suite(difference.head)
    chosen = {*needs.cases, *(suite if needs.everything else ())}
    return (*(case for case in suite if case in chosen), *sorted(chosen - set(suite)))
