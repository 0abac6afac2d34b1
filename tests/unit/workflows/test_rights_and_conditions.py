"""When workflows run, in what order, with which rights and inputs: nothing of it changes unseen.

The steps' shell is left out, which the integration tests run, and so are names and versions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stand_ins.snapshots import check_snapshot
from tests.workflows.document import GITHUB, list_actions, list_workflows, read_document

SNAPSHOTS = Path(__file__).parent / "snapshots"
PROSE = {"name", "description", "run"}


def keep_structure(value: Any) -> Any:
    """Leave out prose, shell, and the versions of actions."""
    if isinstance(value, list):
        return [keep_structure(item) for item in value]
    if not isinstance(value, dict):
        return value
    structural = {
        key: item for key, item in value.items() if key not in PROSE or isinstance(item, dict)
    }
    if "uses" in structural:
        structural["uses"] = structural["uses"].partition("@")[0]
    structure = {
        "on" if key is True else key: keep_structure(item) for key, item in structural.items()
    }
    return {**structure, "with": value["with"]} if "with" in value else structure


@pytest.mark.parametrize(
    "path",
    [*list_workflows(), *list_actions(), GITHUB / "dependabot.yml"],
    ids=lambda path: path.parent.name if path.stem == "action" else path.stem,
)
def test_triggers_and_permissions_of_each_workflow_read_as_their_snapshot(path: Path) -> None:
    name = path.parent.name if path.stem == "action" else path.stem
    text = yaml.safe_dump(keep_structure(read_document(path).data), sort_keys=False, width=100)
    check_snapshot(SNAPSHOTS / f"{name}.txt", text)


def list_writers() -> list[tuple[str, dict[str, Any]]]:
    """Jobs that may write, in workflows that run for pull requests, here or in a caller."""
    writers = []
    for path in list_workflows():
        data = read_document(path).data
        if {"pull_request", "workflow_call"} & {*data[True]}:
            writers += [
                (f"{path.stem} {name}", job)
                for name, job in data["jobs"].items()
                if "write" in (job.get("permissions") or {}).values()
                and "github.event_name == '"
                not in job.get("if", "")  # of others than pull requests
            ]
    return writers


def test_a_job_that_may_write_runs_no_code_of_a_pull_request() -> None:
    assert list_writers()
    for name, job in list_writers():
        steps = job.get("steps", [])
        checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
        runs = any("run" in step or step.get("uses", "").startswith("./") for step in steps)
        refs = [checkout["with"].get("ref", "") for checkout in checkouts]
        assert not (runs and checkouts) or all("base.sha" in ref for ref in refs), name
