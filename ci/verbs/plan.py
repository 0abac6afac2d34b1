"""``plan``: from changed files to the sessions, cases and jobs that have to run, and why."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, cast

import msgspec

from ci.gate.assemble import WHOLE_EVENTS, count_due, make_plan
from ci.gate.reading import Repository, name_tree
from ci.gate.render import render_markdown, render_table
from ci.gate.rules import read_rules
from ci.gate.schema import Plan
from provisioning.console.command import Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.files import explain_writes, write_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--base", default="", metavar="REV", help="compare with it, or where it branched off")
    add("--head", default="", metavar="REV", help="plan for this revision, not the work tree")
    add("--event", default="", help="the event of GitHub that asks: some run everything")
    add("--everything", action="store_true", help="plan all, whatever changed")
    add("--source", type=user_path, default=".", help="a checkout or git directory")
    add("--rules", type=user_path, metavar="FILE", help="rules of your own, like gate.toml")
    add("--out", type=user_path, metavar="FILE", help="write plan.json there, too")
    add("--markdown", action="store_true", help="print Markdown for a job's summary")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    del progress
    plan = plan_changes(args, Repository(Path(args.source), read_rules(args.rules)))
    data = msgspec.json.encode(plan)
    if args.out:
        with explain_writes(args.out):
            write_whole(args.out, data + b"\n")
    text = render_markdown(plan) if args.markdown else render_table(plan)
    plain = cast("dict[str, Any]", msgspec.json.decode(data))
    return Outcome(text, plain, exact=args.markdown)


def plan_changes(args: argparse.Namespace, repository: Repository) -> Plan:
    """The plan that was asked for. Raises UsageError."""
    everything = "--everything" if args.everything else ""
    if everything or args.event in WHOLE_EVENTS:
        head = repository.resolve(args.head) if args.head else ""
        base = repository.resolve(args.head or "HEAD")
    else:
        repository.require_history()
        head = repository.resolve(args.head) if args.head else ""
        base = repository.find_base(args.base, args.head)
        everything = describe_due(repository, base, head) if args.event == "push" else ""
    return make_plan(
        repository.compare(base, head),
        repository.rules,
        base=base,
        head=name_tree(head),
        event=args.event,
        everything=everything,
    )


def describe_due(repository: Repository, base: str, head: str) -> str:
    """Why a push runs everything: one of its commits is the nth."""
    first, last = (repository.count_commits(one) for one in (base, head or "HEAD"))
    due = count_due(first, last, repository.rules.every_nth)
    return f"commit {due} of {repository.rules.branch} is due" if due else ""
