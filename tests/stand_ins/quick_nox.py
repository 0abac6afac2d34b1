"""``./nox`` in the tests of workflows: verbs run for real, sessions end as a test says. A plan is
made once a change, a report once for all runs that come to the same.

QUICK_NOX names a JSON file: a session, or a session and one
of its words -> {"code", "cases", "writes"}; what is not in it passes. Without "cases" a session
writes no report; "writes" are files and their text. A verb that is named there does not run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec

import ci.__main__
from ci.cases.policy import read_emulator_policy
from ci.cases.spec import CaseSpec, select_cases
from ci.models.schemes import ONNX, Scheme
from ci.report.schema import Status
from ci.report.write import write_report as write
from ci.verbs.lanes.emulator import list_planned, take_shard
from tests.stand_ins.reports import make_judged

VERBS = {
    "audit": ["audit"],
    "fuzz": ["fuzz"],
    "plan": ["plan"],
    "provision": ["fetch"],
    "qnn_ci": [],
    "sign_skel": ["sign"],
    "stage": ["stage"],
    "deploy": ["deploy"],
    "validate": ["doctor"],
}
PASSING = {"code": 0, "cases": 2}
LANES = {"test_emulator": "emulator", "test_onnx": "onnx"}
MLP = CaseSpec("mlp", Scheme.FP16, "SM8650")


def main() -> int:
    words = sys.argv[1:]
    session = words[words.index("-s") + 1]
    arguments = words[words.index("--") + 1 :] if "--" in words else []
    with Path(os.environ["QUICK_NOX"]).with_suffix(".log").open("a") as log:
        log.write(f"{session} {' '.join(arguments)}".rstrip() + "\n")
    with Path(os.environ["QUICK_NOX"]).with_suffix(".manifests").open("a") as log:
        log.write(os.environ.get("QNN_CI_MANIFESTS", "") + "\n")
    if session == "plan":
        return run_plan(arguments)
    outcomes = json.loads(Path(os.environ["QUICK_NOX"]).read_text())
    shard = arguments[arguments.index("--shard") + 1] if "--shard" in arguments else ""
    named_outcomes = [outcomes.get(f"{session} {argument}") for argument in arguments]
    outcome = next(filter(None, [*named_outcomes, outcomes.get(session)]), None)
    if session in VERBS and outcome is None:
        return ci.__main__.main([*VERBS[session], *arguments])
    outcome = outcome or PASSING
    for name, text in outcome.get("writes", {}).items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    reports = arguments[arguments.index("--reports") + 1] if "--reports" in arguments else "reports"
    folder = Path(reports) / session
    if "cases" in outcome:
        folder.mkdir(parents=True, exist_ok=True)
        if session.startswith("test_"):
            give_report(folder, session, shard, outcome)
        else:
            rows = '<testcase name="one"/>' * outcome["cases"]
            (folder / "junit.xml").write_text(f"<testsuites>{rows}</testsuites>")
    sys.stdout.write(f"{session} ends with {outcome['code']}\n")
    return outcome["code"]


def find_kept(kind: str, *words: object) -> Path:
    """Where what was made of the same words is kept."""
    name = hashlib.sha256(repr(words).encode()).hexdigest()
    return Path(os.environ["QUICK_NOX"]).with_name(f"{kind}-{name}")


def give_report(folder: Path, session: str, shard: str, outcome: dict[str, Any]) -> None:
    """Write a report once for all equal shards of one plan."""
    plan = Path("plan.json").read_bytes() if shard else b""
    folder_of_report = find_kept("report", plan, session, shard, outcome)
    if not folder_of_report.is_dir():
        write_report(folder_of_report, session, shard, outcome)
    shutil.copytree(folder_of_report, folder, dirs_exist_ok=True)


def run_plan(words: list[str]) -> int:
    """Plan a change once, and give the same again."""
    record = find_kept("plan", os.environ["GITHUB_EVENT_NAME"], *words)
    if not record.is_dir():
        with redirect_stdout(StringIO()) as output:
            code = ci.__main__.main(["plan", *words])
        if code:
            return code
        record.mkdir()
        shutil.copy("plan.json", record)
        (record / "said").write_text(output.getvalue())
    shutil.copy(record / "plan.json", "plan.json")
    sys.stdout.write((record / "said").read_text())
    return 0


def write_report(folder: Path, session: str, shard: str, outcome: dict[str, Any]) -> None:
    """The report of a shard of plan.json, of the other lane's whole suite, or of one case."""
    mark, specs, limits = None, [MLP], ()
    if shard or session == "test_onnx":
        policy = read_emulator_policy(None, LANES[session])
        if shard:
            specs, mark = take_shard(list_planned(Path("plan.json")), shard, policy, "python")
        else:
            specs = select_cases(policy.suite, ["SM8650"], lane=ONNX)
        limits = policy.describe_limits(specs)
    failed = Status.FAILED if outcome["code"] else Status.PASSED
    report = make_judged(session, specs if outcome["cases"] else [], limits, failed)
    write(msgspec.structs.replace(report, shard=mark), folder)
