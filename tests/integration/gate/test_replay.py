"""Plans of past commits: of this project, and with EXECUTORCH_ROOT of 200 of ExecuTorch's."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ci.gate.reading import Repository
from ci.gate.render import render_savings
from ci.gate.replay import Replayed, Savings, replay_step
from ci.gate.rules import read_rules
from ci.parity.policy import ParityPolicy
from ci.parity.trees import open_tree
from ci.parity.uses import find_imports
from provisioning.errors import QnnCiError
from provisioning.manifest.reader import read_policy

ROOT = Path(__file__).parents[3]
COMMITS, OWN_COMMITS = 200, 5
EXECUTORCH = os.environ.get("EXECUTORCH_ROOT", "")
QUALCOMM = re.compile("qualcomm|qnn", re.IGNORECASE)


def replay(repository: Repository, span: str) -> Savings:
    steps = repository.list_steps(span)
    rules = repository.rules
    return Savings(tuple(replay_step(step, rules, rules.recorded) for step in steps))


@pytest.mark.nightly
def test_the_last_commits_of_this_project_skip_nothing_that_changed() -> None:
    repository = Repository(ROOT, read_rules())
    try:
        repository.require_history()
        newest = repository.resolve("HEAD")
        oldest = repository.resolve(f"HEAD~{OWN_COMMITS}")
    except QnnCiError as error:
        pytest.skip(f"no history here: {error.what}")
    savings = replay(repository, f"{oldest}..{newest}")
    assert len(savings.steps) == OWN_COMMITS
    assert savings.missed == (), render_savings(savings)
    for step in savings.steps:
        assert {one.name for one in step.plan.sessions if one.run} >= {"lint"}


def list_imported(source: Path) -> set[str]:
    """What backends/qualcomm imports, by another reader than the plan's."""
    tree = open_tree(source, "main", read_policy("parity", ParityPolicy).layout)
    imports = find_imports(tree)
    found = {path for path in imports if path.startswith("backends/qualcomm/")}
    waiting = [*found]
    while waiting:
        for path in imports.get(waiting.pop(), ()):
            if path not in found:
                found.add(path)
                waiting.append(path)
    return found


def count_sessions(step: Replayed) -> int:
    return sum(one.run and not one.by_hand for one in step.plan.sessions)


def touches_qualcomm(step: Replayed, imported: set[str]) -> bool:
    paths = [change.path for change in step.plan.changes]
    return any(QUALCOMM.search(path) or path in imported for path in paths)


@pytest.mark.timeout(3600)
@pytest.mark.skipif(not EXECUTORCH, reason="EXECUTORCH_ROOT names no checkout")
def test_upstream_s_qnn_jobs_are_saved_and_no_change_of_qualcomm_s_is_skipped() -> None:
    source = Path(EXECUTORCH)
    rules = read_rules(ROOT / "manifests/policies/gate-executorch.toml")
    savings = replay(Repository(source, rules), f"main~{COMMITS}..main")
    assert len(savings.steps) == COMMITS
    assert savings.missed == ()
    imported = list_imported(source)
    touching = [step for step in savings.steps if touches_qualcomm(step, imported)]
    assert len(touching) > 20
    assert [step.commit for step in touching if not count_sessions(step)] == []
    ran, every = savings.sessions
    assert ran < 0.8 * every, render_savings(savings)
