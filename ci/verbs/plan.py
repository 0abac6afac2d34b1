"""``plan``: list the sessions and jobs that the changed files need, and why."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from ci.gate.plan import PLANNED_EVENTS, make_plan
from ci.gate.reading import Repository
from ci.gate.render import make_plan_document
from ci.gate.rules import list_outdated, read_rules
from ci.gate.schema import WORK_TREE, Plan
from ci.models.source_lines import find_repository
from ci.parity.trees import find_git_dir
from ci.report.document import render_markdown, show_document
from ci.report.export import describe_fix, is_plan
from provisioning.console.command import FILE, FLAG, Outcome, group_options, user_path
from provisioning.console.progress import Progress
from provisioning.console.user_folder import require_output, write_output
from provisioning.errors import UsageError
from provisioning.manifest.reader import manifests_root
from provisioning.quoting import shell_word

GATE = "manifests/policies/gate.toml"
OF_EXECUTORCH = "backends/qualcomm"
NOT_RECORDED = (
    "warning: plan no longer records what sessions open, and --record will be removed: list the"
    " files that a session uses in [[rule]] of the rules"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = group_options(parser)
    add("--base REV", "compare with the merge base of REV and the planned revision", default="")
    add("--head REV", "plan for this revision instead of the work tree", default="")
    text = (
        "the GitHub event that started the workflow; unless it is push or pull_request, all"
        " sessions run"
    )
    add("--event", text, default="")
    add("--everything", "plan all sessions, whatever changed", **FLAG)
    text = "a checkout, a directory in it, or a git directory"
    add("--source", text, type=user_path, default=".")
    add("--rules", "your own rules, in the format of gate.toml", **FILE)
    add("--out", "also write the plan to FILE, in the format of plan.json", **FILE)
    add("--record SESSION", "no longer has an effect", nargs="*")
    add("--markdown", "print Markdown for a job's summary", **FLAG)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Plan the sessions of a change. Raises UsageError if the repository, a revision or the rules
    cannot be used."""
    if args.record is not None:
        progress.step(NOT_RECORDED)
        return Outcome()
    source = Path(args.source)
    if find_git_dir(source) is None:  # a directory within a checkout
        source = find_repository(source / ".git") or source
    repository = Repository(source, read_rules(args.rules))
    for warning in list_outdated(repository.rules):
        progress.step(f"warning: {warning}")
    if not (args.rules or repository.is_bare or (source / GATE).is_file()):
        fix = "for another repository, pass --rules"
        if (source / OF_EXECUTORCH).is_dir():
            rules = shell_word(str(manifests_root() / "policies" / "gate-executorch.toml"))
            fix = f"pass --rules {rules} for ExecuTorch"
        progress.step(
            f"warning: {source} has no {GATE}, so these are the sessions of executorch-qnn-ci"
            f" itself; {fix}"
        )
    if args.out:
        require_output(args.out, is_plan, describe_fix("--out"))
    plan = plan_changes(
        repository, args.base, args.head, args.event, "--everything" if args.everything else ""
    )
    if args.out:
        write_output(args.out, msgspec.json.encode(plan) + b"\n", is_plan, describe_fix("--out"))
    document = make_plan_document(plan)
    text = render_markdown(document) if args.markdown else show_document(document)
    return Outcome(text, msgspec.to_builtins(plan), exact=True)


def plan_changes(
    repository: Repository, base_name: str, head_name: str, event: str, everything: str
) -> Plan:
    """Return the plan of the changes between two revisions. ``everything`` is the reason why all
    sessions run, or empty. Raises UsageError if a revision cannot be compared."""
    head_name = head_name or ("HEAD" if repository.is_bare else "")
    head = repository.resolve(head_name) if head_name else ""
    if everything or event not in PLANNED_EVENTS:
        # Everything runs, so there is nothing to compare.
        base = repository.resolve(head_name or "HEAD")
    else:
        repository.require_history(base_name, head_name)
        base, everything = find_base(repository, base_name, head_name, event)
    return make_plan(
        repository.compare(base, head),
        repository.rules,
        base=base,
        head=head or WORK_TREE,
        event=event,
        everything=everything,
    )


def find_base(repository: Repository, name: str, head: str, event: str) -> tuple[str, str]:
    """Return the commit to compare with, by the ``name`` of its revision, and the reason why a push
    has to run everything, or an empty string.

    Everything runs if there is no branch to compare with, and for a push that cannot be compared
    with its base, as after a forced push. Raises UsageError if the base of another event cannot be
    compared.
    """
    if not name and not repository.find_branch():
        why = f"there is no branch {repository.rules.branch} to compare with; pass --base"
        return repository.resolve(head or "HEAD"), why
    try:
        base = repository.find_base(name, head)
    except UsageError:
        # After a forced push, the commit before it may be gone.
        if event != "push":
            raise
        why = f"the branch's previous commit {name[:12]} cannot be compared"
        return repository.resolve(head or "HEAD"), why
    return base, ""
