"""``image build|shell|list|digest|lock|prune``: build and use the images in docker/."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from docker.client import DockerClient

from ci.images.build import Built, bake_toolchains, build_image, find_built, push_image
from ci.images.definition import (
    find_checkout,
    plan_image,
    read_images,
    recall_base,
    remember_base,
)
from ci.images.digest import compare_builds, describe_comparison, describe_digest, write_locks
from ci.images.engine import connect_engine
from ci.images.prune import find_bases, find_stale, remove_stale
from ci.images.shell import ShellRequest, run_shell
from ci.report.text import count
from provisioning.console.command import Outcome, nonempty_word
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, UsageError

DEFAULT = "emulator"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, action in ACTIONS.items():
        own = actions.add_parser(
            name, help=action.help, description=action.help, allow_abbrev=False
        )
        for words, settings in (JSON, BASE, *action.options):
            own.add_argument(*words, **settings)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    with connect_engine() as client:
        args.base = choose_base(client, args.base or "", progress)
        return ACTIONS[args.action].run(client, args, progress)


def choose_base(client: DockerClient, given: str, progress: Progress) -> str:
    """Return the base passed with --base. Without --base, return the base that the user last chose
    for this checkout. If there is none, or if it can no longer be used, return an empty string for
    the default base."""
    known = recall_base(find_checkout())
    if given or not known:
        return given
    try:
        plan_image(client, DEFAULT, known)
    except UsageError as error:
        progress.step(f"note: the base of the last build is not used: {error.what}")
        return ""
    progress.step(f"base {known}, as in this checkout's last build; to change it, pass --base")
    return known


def build(client: DockerClient, name: str, args: argparse.Namespace, progress: Progress) -> Built:
    """Build an image, and remember its base if the user chose one."""
    built = build_image(client, name, progress, base=args.base)
    if args.base:
        remember_base(find_checkout(), args.base)
    return built


def _build(client: DockerClient, args: argparse.Namespace, progress: Progress) -> Outcome:
    rows = []
    names = list(dict.fromkeys(args.words)) or [DEFAULT]
    if len(names) > 1 and args.push and ":" in args.push.rpartition("/")[2]:
        told = f"{count(len(names), 'image')} cannot be pushed as {args.push}"
        raise UsageError(told, fix="push each of them as another TAG, or leave out the tag")
    for name in names:
        built = build(client, name, args, progress)
        plan = plan_image(client, name, args.base)
        if args.with_toolchains:
            built = bake_toolchains(client, plan, built, progress)
        row = _row(name, built, plan.image.budget_mb)
        if args.push:
            row["pushed"] = push_image(client, built, args.push, progress)
        rows.append(row)
    over = [row for row in rows if row["size_mb"] > row["budget_mb"] and not args.with_toolchains]
    code = ExitCode.FAILED if over else ExitCode.OK
    return Outcome(_table(rows), {"images": rows}, code)


def _row(name: str, built: Built, budget_mb: int) -> dict[str, Any]:
    return {
        "name": name,
        "reference": built.reference,
        "id": built.image_id,
        "size_mb": math.ceil(built.size_bytes / 1e6),
        "budget_mb": budget_mb,
        "built": built.fresh,
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"{'image':<9} {'reference':<46} {'size':>8}  budget"]
    for row in rows:
        over = "  over its budget" if row["size_mb"] > row["budget_mb"] else ""
        size = f"{row['size_mb']} MB" if row["reference"] else "-"
        lines.append(
            f"{row['name']:<9} {row['reference'] or 'not built':<46} {size:>8}  "
            f"{row['budget_mb']} MB{over}"
        )
    return "\n".join(lines) + "\n"


def _shell(client: DockerClient, args: argparse.Namespace, progress: Progress) -> Outcome:
    known = read_images().images
    named = args.words[:1] if args.words and args.words[0] in known else []
    name = named[0] if named else DEFAULT
    plan = plan_image(client, name, args.base)
    built = build(client, name, args, progress)
    if args.with_toolchains:
        built = bake_toolchains(client, plan, built, progress)
    words = tuple(args.words[len(named) :])
    request = ShellRequest(plan, built, words, args.read_only_store, args.with_toolchains)
    return Outcome(exit_code=run_shell(client, request))


def _list(client: DockerClient, args: argparse.Namespace, _progress: Progress) -> Outcome:
    rows = []
    for name, image in read_images().images.items():
        found = find_built(client, plan_image(client, name, args.base))
        rows.append(_row(name, found or Built("", "", 0, fresh=False), image.budget_mb))
    return Outcome(_table(rows), {"images": rows})


def _digest(client: DockerClient, args: argparse.Namespace, progress: Progress) -> Outcome:
    rows, lines = [], []
    for name in args.words or [DEFAULT]:
        if args.check:
            compared = compare_builds(client, name, progress, base=args.base)
            rows.append({"name": name, "equal": compared.equal, **asdict(compared)})
            lines += describe_comparison(compared)
        else:
            built = build_image(client, name, progress, base=args.base)
            rows.append({"name": name, **describe_digest(client, built)})
            lines += [built.reference, f"  id {built.image_id}"]
            lines += [f"  layer {layer}" for layer in rows[-1]["diff_ids"]]
    failed = any(row.get("equal") is False for row in rows)
    code = ExitCode.FAILED if failed else ExitCode.OK
    return Outcome("\n".join(lines) + "\n", {"images": rows}, code)


def _lock(client: DockerClient, args: argparse.Namespace, progress: Progress) -> Outcome:
    diffs = {
        name: write_locks(client, name, progress, base=args.base, write=args.write)
        for name in args.words or [DEFAULT]
    }
    text = "".join(diffs.values()) or "the locks are up to date\n"
    return Outcome(text, {"diffs": diffs, "written": args.write})


def _prune(client: DockerClient, args: argparse.Namespace, _progress: Progress) -> Outcome:
    names, bases = read_images().images, read_images().bases
    built_on = find_bases(client) - {one.image for one in bases.values()}
    current = set()
    for base in {args.base, *bases, *built_on}:
        with suppress(UsageError):  # the engine no longer has this base, so no image depends on it
            current |= {plan_image(client, name, base).reference() for name in names}
    stale = find_stale(client, current)
    gone = stale if args.dry_run else remove_stale(client, stale)
    word = "would be removed" if args.dry_run else "removed"
    lines = [f"{word}: {one.kind} {one.name} {one.size_bytes / 1e6:.0f} MB" for one in gone]
    data = {"dry_run": args.dry_run, "stale": [asdict(one) for one in gone]}
    return Outcome("\n".join(lines or ["nothing is stale"]) + "\n", data)


Argument = tuple[tuple[str, ...], dict[str, Any]]


def _argument(*words: str, **settings: Any) -> Argument:
    return words, settings


def _switch(name: str, text: str) -> Argument:
    return _argument(name, action="store_true", help=text)


JSON = _switch("--json", "print the result as JSON")
BASE = _argument(
    "--base", type=nonempty_word, help="a base listed in images.toml, or a local image"
)
NAMES = _argument("words", nargs="*", metavar="IMAGE", help=f"default: {DEFAULT}")
TOOLCHAINS = _switch(
    "--with-toolchains",
    "add the artifacts of the image's profile; an image that contains them is never pushed",
)


@dataclass(frozen=True)
class Action:
    """An action of ``image``: its help text, its function and its arguments."""

    help: str
    run: Callable[[DockerClient, argparse.Namespace, Progress], Outcome]
    options: tuple[Argument, ...] = ()


ACTIONS = {
    "build": Action(
        "build images",
        _build,
        (
            NAMES,
            _argument("--push", type=nonempty_word, metavar="REF", help="push the image as REF"),
            TOOLCHAINS,
        ),
    ),
    "shell": Action(
        "run a command, or an interactive shell, in an image",
        _shell,
        (
            TOOLCHAINS,
            _switch("--read-only-store", "mount the store read-only"),
            _argument(
                "words",
                nargs=argparse.REMAINDER,
                metavar="[IMAGE] [COMMAND ...]",
                help=f"default: an interactive shell in {DEFAULT}",
            ),
        ),
    ),
    "list": Action("list the images, their tags and sizes", _list),
    "digest": Action(
        "print an image's digests; --check builds it twice and compares",
        _digest,
        (NAMES, _switch("--check", "build twice without a cache and compare")),
    ),
    "lock": Action(
        "pin the packages of an image", _lock, (NAMES, _switch("--write", "write the lock files"))
    ),
    "prune": Action(
        "remove outdated images, and containers that shells left behind",
        _prune,
        (_switch("--dry-run", "show what would be removed"),),
    ),
}
