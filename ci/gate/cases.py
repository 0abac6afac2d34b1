"""Choose the suite's cases that a change needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ci.cases.spec import DEFAULT_SOC
from ci.gate.changes import Difference
from ci.gate.rules import CaseRule
from ci.parity.policy import matches
from ci.report.schema import CaseName

MODELS = "ci/models/suite/{}.py"
POLICY, SOCS = "manifests/policies/emulator.toml", "manifests/socs.toml"
BASELINES = "manifests/baselines/*.toml"


def list_cases(suite: Mapping[str, Iterable[str]]) -> tuple[CaseName, ...]:
    """Return the cases of a suite, in its order. ``suite`` maps each model to its schemes."""
    return tuple(
        CaseName(model, scheme, DEFAULT_SOC)
        for model, schemes in suite.items()
        for scheme in schemes
    )


def choose_cases(path: str, difference: Difference, rule: CaseRule) -> tuple[CaseName, ...] | None:
    """Return the cases to run because the file ``path`` has changed:

    - for a file in ``CHOOSERS``, the cases of its changed rows;
    - for the module of a model, the cases of each model whose module imports it;
    - for any other file on which the session of the cases depends, all cases.

    Return None if no case depends on the file. The result is empty if the suite no longer has the
    cases that depend on it.
    """
    suite = list_cases(difference.head.suite)
    keys = difference.keys.get(path)
    for pattern, choose in CHOOSERS.items():
        if keys is not None and matches(path, (pattern,)):
            found = (case for key in keys for case in choose(key, suite, rule.probe))
            return tuple(dict.fromkeys(found))
    models = [model for tree in difference.trees for model in tree.models]
    if path in map(MODELS.format, models):
        reached = {
            model
            for tree in difference.trees
            for model, reach in tree.models.items()
            if path in reach
        }
        return tuple(case for case in suite if case.model in reached)
    planned = [
        one.sessions[rule.session] for one in difference.trees if rule.session in one.sessions
    ]
    if any(
        one.explain(path) or any(one.explain_key(path, key) for key in keys or ())
        for one in planned
    ):
        return suite
    return None


# Tables whose rows are named after a part of a case, and the functions that return this part.
NAMES: Mapping[str, Callable[[CaseName], str]] = {
    "suite": lambda case: case.model,
    "schemes": lambda case: case.scheme,
    "cases": str,
}
Suite = tuple[CaseName, ...]
Chooser = Callable[[str, Suite, str], Iterable[CaseName]]


def _by_name(key: str, suite: Suite, _probe: str) -> Iterable[CaseName]:
    """Return the cases that a changed key concerns. For ``suite.mlp``, these are the cases of the
    model mlp. A key that is not a row of a table in ``NAMES`` concerns all cases."""
    table, _, name = key.partition(".")
    find = NAMES.get(table) if name else None
    return [case for case in suite if find(case) == name] if find else suite


def _by_soc(key: str, suite: Suite, probe: str) -> Iterator[CaseName]:
    soc = key.partition(".")[0]
    for case in suite:
        if soc in {DEFAULT_SOC, "?"}:
            yield case
        elif case.model == probe:
            yield CaseName(case.model, case.scheme, soc)


# Files with keys that determine which cases depend on them.
CHOOSERS: Mapping[str, Chooser] = {
    POLICY: _by_name,
    BASELINES: _by_name,
    SOCS: _by_soc,
}
