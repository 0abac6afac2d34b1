"""Which cases of the suite a change needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ci.cases.spec import DEFAULT_SOC
from ci.gate.facts import Difference, TreeFacts
from ci.gate.rules import CaseRule, fits
from ci.gate.schema import PlannedCase

MODELS = "ci/models/suite/{}.py"
POLICY, SOCS = "manifests/policies/emulator.toml", "manifests/socs.toml"
BASELINES = "manifests/baselines/*.toml"


def list_suite(tree: TreeFacts, soc: str = DEFAULT_SOC) -> tuple[PlannedCase, ...]:
    """The default cases of a tree, in the suite's order."""
    return tuple(
        PlannedCase(model, scheme, soc)
        for model, schemes in tree.suite.items()
        for scheme in schemes
    )


def choose_cases(
    path: str, difference: Difference, rule: CaseRule
) -> tuple[PlannedCase, ...] | None:
    """The cases that a changed file needs: of a model, of a row of a manifest, or all.

    None for a file that is nothing to any; no case for one of a model that is gone.
    """
    suite = list_suite(difference.head)
    keys = difference.keys.get(path)
    for pattern, choose in CHOOSERS.items():
        if keys is not None and fits(path, (pattern,)):
            found = (case for key in keys for case in choose(key, suite, rule.probe))
            return tuple(dict.fromkeys(found))
    if any(path in tree.sessions[rule.session].reach for tree in _planned(difference, rule)):
        return suite
    pins = (tree.sessions[rule.session].uses for tree in _planned(difference, rule))
    if any(_uses(path, keys or (), one) for one in pins):
        return suite
    models = {
        model for tree in difference.trees for model, reach in tree.models.items() if path in reach
    }
    return tuple(case for case in suite if case.model in models) if models else None


def _planned(difference: Difference, rule: CaseRule) -> Iterator[TreeFacts]:
    return (tree for tree in difference.trees if rule.session in tree.sessions)


def _uses(path: str, keys: Iterable[str], uses: Mapping[str, str]) -> bool:
    return path in uses or any(find_use(path, key, uses) for key in keys)


def find_use(path: str, key: str, uses: Mapping[str, str]) -> str:
    """Why a changed key of a file counts: one that is used, lies in one, or holds one."""
    name = f"{path}#{key}"
    for use, why in uses.items():
        if name == use or name.startswith(f"{use}.") or use.startswith(f"{name}."):
            return why
    return ""


Suite = tuple[PlannedCase, ...]
Chooser = Callable[[str, Suite, str], Iterable[PlannedCase]]


def _by_policy(key: str, suite: Suite, _probe: str) -> Iterator[PlannedCase]:
    table, _, name = key.partition(".")
    for case in suite:
        if table not in {"suite", "schemes"} or not name or name in {case.model, case.scheme}:
            yield case


def _by_baseline(key: str, suite: Suite, _probe: str) -> Iterator[PlannedCase]:
    table, _, name = key.partition(".")
    return (case for case in suite if table != "cases" or not name or name == str(case))


def _by_soc(key: str, suite: Suite, probe: str) -> Iterator[PlannedCase]:
    soc = key.partition(".")[0]
    for case in suite:
        if soc in {DEFAULT_SOC, "?"}:
            yield case
        elif case.model == probe:
            yield PlannedCase(case.model, case.scheme, soc)


# Files of which a key says which cases depend on it.
CHOOSERS: Mapping[str, Chooser] = {
    POLICY: _by_policy,
    BASELINES: _by_baseline,
    SOCS: _by_soc,
}
