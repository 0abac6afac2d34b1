"""Rules of this project that no linter of workflows knows: a document -> what breaks them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import nox

from tests.workflows.document import Document
from tests.workflows.expressions import EXPRESSION

Rule = Callable[[Document], Iterator[str]]
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
ACTIONS = {
    row["uses"]: row["using"]
    for row in nox.project.load_toml(Path(__file__).with_name("actions.toml"))["action"]
}
RUNTIMES = frozenset({"node24", "composite", "docker"})  # those that GitHub's runners have
LONGEST_MINUTES = 120
UNTRUSTED_TRIGGERS = frozenset({"pull_request_target", "workflow_run", "issue_comment"})
SCANNING = ("/code-scanning.yml", "/pr.yml")  # called workflows that hand in findings
# What only a protected environment may do; a workflow that others call has none of its own.
IDENTITY = frozenset({"id-token", "attestations", "packages"})


def list_uses(document: Document) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every ``uses``, of steps and of jobs, with what names it."""
    for _, step, _ in document.steps():
        if "uses" in step:
            yield step["uses"], step
    for job in document.jobs.values():
        if "uses" in job:
            yield job["uses"], job


def see_expression_in_shell(document: Document) -> Iterator[str]:
    for block in document.run_blocks():
        for match in EXPRESSION.finditer(block.text):
            yield f"{block.place}: {match[0]} stands in shell; pass it through env"


def see_shell_that_goes_on(document: Document) -> Iterator[str]:
    for block in document.run_blocks():
        if block.shell != "bash":
            yield f"{block.place}: without `shell: bash` a failure in a pipe is not one"


def see_unpinned_action(document: Document) -> Iterator[str]:
    text = document.path.read_text(encoding="utf-8")
    for name in dict.fromkeys(name for name, _ in list_uses(document)):
        if name.startswith(("./", "$/")):  # of a checkout, and of this commit of this repository
            continue
        notes = re.findall(rf"uses: {re.escape(name)}(.*)\n", text)
        if not PINNED.fullmatch(name):
            yield f"{name} is not pinned by a commit"
        elif not all(re.fullmatch(r" # v\d+(\.\d+)+", note) for note in notes):
            yield f"{name} has no version in a comment"


def see_action_of_a_runtime_that_is_gone(document: Document) -> Iterator[str]:
    for name in dict.fromkeys(filter(PINNED.fullmatch, (name for name, _ in list_uses(document)))):
        if name not in ACTIONS:
            yield f"{name} is not in tests/workflows/actions.toml; read `using` in its action.yml"
        elif ACTIONS[name] not in RUNTIMES:
            yield f"{name} runs on {ACTIONS[name]}, which GitHub's runners no longer have"


def see_kept_credentials(document: Document) -> Iterator[str]:
    for name, step in list_uses(document):
        keeps_token = step.get("with", {}).get("persist-credentials") is not False
        if name.startswith("actions/checkout@") and keeps_token:
            yield "a checkout keeps the token: persist-credentials: false"


def see_wide_permissions(document: Document) -> Iterator[str]:
    if document.is_action:
        return
    if document.data.get("permissions") != {}:
        yield "permissions: {} is missing at the top"
    for name, job in document.jobs.items():
        if not isinstance(job.get("permissions"), dict):
            yield f"{name}: no permissions of its own"


def see_endless_job(document: Document) -> Iterator[str]:
    for name, job in document.jobs.items():
        minutes = job.get("timeout-minutes", 0)
        is_bounded = isinstance(minutes, str) or 0 < minutes <= LONGEST_MINUTES
        if "uses" not in job and not is_bounded:
            yield f"{name}: timeout-minutes is missing, or over {LONGEST_MINUTES}"


def see_no_concurrency(document: Document) -> Iterator[str]:
    if not document.is_action and "group" not in document.data.get("concurrency", {}):
        yield "concurrency is missing"


def see_pushes_that_cancel_each_other(document: Document) -> Iterator[str]:
    """Of a group only one run may wait: GitHub cancels the one that waited before, so that what a
    push changed would be in no comparison with the commit before the next one."""
    group = str(document.data.get("concurrency", {}).get("group", ""))
    compares = "github.event.before" in str(document.data.get("jobs"))
    if compares and not (
        document.is_action or "github.event_name == 'push' && github.sha" in group
    ):
        yield "concurrency: each push needs a group, since its jobs compare with event.before"


def see_untrusted_trigger(document: Document) -> Iterator[str]:
    for name in sorted(UNTRUSTED_TRIGGERS & document.triggers.keys()):
        yield f"{name} runs with this repository's rights for what others wrote"


def see_secret_outside_environment(document: Document) -> Iterator[str]:
    for name, job in document.jobs.items():
        text = str({key: value for key, value in job.items() if key != "secrets"})
        if re.search(r"\bsecrets\b", text) and "environment" not in job:
            yield f"{name}: a secret outside of a protected environment"


def see_identity_outside_environment(document: Document) -> Iterator[str]:
    if set(document.triggers) == {"workflow_call"}:
        return
    for name, job in document.jobs.items():
        wide = {key for key, value in (job.get("permissions") or {}).items() if value == "write"}
        if wide & IDENTITY and "environment" not in job:
            yield f"{name}: {', '.join(sorted(wide & IDENTITY))} outside of a protected environment"


def see_write_on_pull_request(document: Document) -> Iterator[str]:
    if "pull_request" not in document.triggers:
        return
    for name, job in document.jobs.items():
        writes = [k for k, value in (job.get("permissions") or {}).items() if value == "write"]
        if writes and "if" not in job:
            yield f"{name}: a pull request's job may write {', '.join(writes)}"


def see_scanning_that_private_repositories_refuse(document: Document) -> Iterator[str]:
    """upload-sarif asks for the run, which in a private repository needs actions: read."""
    for name, job in document.jobs.items():
        used = [str(used_by.get("uses", "")) for used_by in (job, *job.get("steps", []))]
        scans = any("upload-sarif@" in action or action.endswith(SCANNING) for action in used)
        if scans and (job.get("permissions") or {}).get("actions") != "read":
            yield f"{name}: code scanning needs actions: read"


def see_silent_failure(document: Document) -> Iterator[str]:
    for place, step, _ in document.steps():
        if step.get("continue-on-error"):
            yield f"{place}: continue-on-error hides a failure"
    for name, job in document.jobs.items():
        if job.get("continue-on-error"):
            yield f"{name}: continue-on-error hides a failure"
    for block in document.run_blocks():
        if re.search(r"(?m)^\s*exit 0\b|\|\| true\b|^\s*set \+e\b", block.text):
            yield f"{block.place}: a failure is thrown away"


def see_cache_of_branch(document: Document) -> Iterator[str]:
    for name, step in list_uses(document):
        if name.startswith("actions/cache"):
            key = str(step.get("with", {}).get("key", ""))
            if re.search(r"github\.(ref|ref_name|head_ref|base_ref)\b", key):
                yield f"{name}: a cache is named by what it holds, not by a branch"


def see_gate_that_needs_less(document: Document) -> Iterator[str]:
    """A required check waits for every job but those after it, and runs whatever they came to."""
    for name, job in document.jobs.items():
        if not name.endswith("-gate"):
            continue
        after = {
            job_name
            for job_name, later_job in document.jobs.items()
            if name in _list(later_job.get("needs"))
        }
        if missing := document.jobs.keys() - {name, *after, *_list(job.get("needs"))}:
            yield f"{name} does not wait for {', '.join(sorted(missing))}"
        if job.get("if") != "always()":
            yield f"{name} does not run always()"


def _list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def see_ignore_without_reason(document: Document) -> Iterator[str]:
    for line in document.path.read_text(encoding="utf-8").splitlines():
        if re.search(r"(zizmor: ignore\[[\w,-]+\]|shellcheck disable=\S+)\s*$", line):
            yield f"an ignore without a reason: {line.strip()}"


def see_night_without_reports(document: Document) -> Iterator[str]:
    """What a job of the night wrote explains why it was red, and its machine is gone by then."""
    if document.path.name not in ("nightly.yml", "weekly.yml"):
        return
    for name, job in document.jobs.items():
        steps = job.get("steps", ())
        if not any(re.search(r"\./nox -s|\.ci/night", step.get("run", "")) for step in steps):
            continue
        last = steps[-1]  # after everything that writes
        is_upload = last.get("uses", "").startswith("actions/upload-artifact@")
        if not (is_upload and last.get("if") == "always()"):
            yield f"{name}: the last step does not upload its reports always()"


RULES: tuple[Rule, ...] = (
    see_expression_in_shell,
    see_shell_that_goes_on,
    see_unpinned_action,
    see_action_of_a_runtime_that_is_gone,
    see_kept_credentials,
    see_wide_permissions,
    see_endless_job,
    see_no_concurrency,
    see_scanning_that_private_repositories_refuse,
    see_pushes_that_cancel_each_other,
    see_untrusted_trigger,
    see_secret_outside_environment,
    see_identity_outside_environment,
    see_write_on_pull_request,
    see_silent_failure,
    see_cache_of_branch,
    see_gate_that_needs_less,
    see_ignore_without_reason,
    see_night_without_reports,
)


def judge_document(document: Document) -> list[str]:
    """Every rule that a document breaks, as ``FILE: what``."""
    name = "/".join(document.path.parts[-3:])
    return [f"{name}: {fault}" for rule in RULES for fault in rule(document)]
