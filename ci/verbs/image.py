"""``image build|shell|list|digest|lock|prune``: the images of docker/ and the dev shell."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ci.images.build import Built, build_image, find_built, plan_image
from ci.images.definition import read_images
from ci.images.digest import compare_builds, describe_comparison, describe_digest
from ci.images.engine import connect_engine
from ci.images.lock import write_locks
from ci.images.prune import find_stale, remove_stale
from ci.images.push import push_image
from ci.images.shell import ShellRequest, run_shell
from ci.images.toolchains import bake_toolchains
from provisioning.console.command import Outcome, nonempty_word
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode

if TYPE_CHECKING:
    from docker.client import DockerClient

DEFAULT = "emulator"
HELP = {
    "build": "build images",
    "shell": "run a command, or an interactive shell, in an image",
    "list": "the images, their tags and sizes",
    "digest": "an image's digests; --check builds it twice and compares",
    "lock": "pin the packages of an image",
    "prune": "remove images of other inputs, and what shells left",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in HELP.items():
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        action.add_argument("--json", action="store_true", help="print the result as JSON")
        action.add_argument(
            "--base",
            type=nonempty_word,
            help="a base of images.toml, or an image you have",
        )
        OPTIONS[name](action)


def _build_options(parser: argparse.ArgumentParser) -> None:
    _add_names(parser)
    parser.add_argument("--push", type=nonempty_word, metavar="REF", help="push it as REF")
    parser.add_argument("--no-cache", action="store_true", help="build every step again")
    _add_toolchains(parser)


def _shell_options(parser: argparse.ArgumentParser) -> None:
    _add_toolchains(parser)
    parser.add_argument(
        "--read-only-store", action="store_true", help="nothing in the store can change"
    )
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="[IMAGE] [COMMAND ...]",
        help=f"default: an interactive shell in {DEFAULT}",
    )


def _digest_options(parser: argparse.ArgumentParser) -> None:
    _add_names(parser)
    parser.add_argument("--check", action="store_true", help="build twice from clean and compare")


def _lock_options(parser: argparse.ArgumentParser) -> None:
    _add_names(parser)
    parser.add_argument("--write", action="store_true", help="write the lock files")


def _prune_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="show what would be removed")


def _no_options(_parser: argparse.ArgumentParser) -> None:
    """``list`` has none of its own."""


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="IMAGE", help=f"default: {DEFAULT}")


def _add_toolchains(parser: argparse.ArgumentParser) -> None:
    text = "with the profile's artifacts inside; such an image is never pushed"
    parser.add_argument("--with-toolchains", action="store_true", help=text)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    args.base = args.base or ""
    with connect_engine() as client:
        return ACTIONS[args.action](client, args, progress)


def _build(client: DockerClient, args: argparse.Namespace, progress: Progress) -> Outcome:
    rows = []
    for name in args.words or [DEFAULT]:
        built = build_image(client, name, progress, base=args.base, fresh=args.no_cache)
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
        "size_mb": round(built.size_bytes / 1e6),
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
    built = build_image(client, name, progress, base=args.base)
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
    names = read_images().images
    current = {plan_image(client, name, args.base).reference() for name in names}
    stale = find_stale(client, current)
    gone = stale if args.dry_run else remove_stale(client, stale)
    word = "would go" if args.dry_run else "removed"
    lines = [f"{word}: {one.kind} {one.name} {one.size_bytes / 1e6:.0f} MB" for one in gone]
    data = {"dry_run": args.dry_run, "stale": [asdict(one) for one in gone]}
    return Outcome("\n".join(lines or ["nothing is stale"]) + "\n", data)


Action = Callable[["DockerClient", argparse.Namespace, Progress], Outcome]
ACTIONS: dict[str, Action] = {
    "build": _build,
    "shell": _shell,
    "list": _list,
    "digest": _digest,
    "lock": _lock,
    "prune": _prune,
}
OPTIONS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "build": _build_options,
    "shell": _shell_options,
    "list": _no_options,
    "digest": _digest_options,
    "lock": _lock_options,
    "prune": _prune_options,
}
