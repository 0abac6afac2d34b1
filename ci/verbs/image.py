"""``image build|shell|list|lock``: build and use the images in docker/."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from docker.client import DockerClient

from ci.images.build import Built, build_image, find_built, write_locks
from ci.images.definition import find_checkout, plan_image, read_images, recall_base, remember_base
from ci.images.engine import connect_engine
from ci.images.shell import ShellRequest, run_shell
from provisioning.console.command import FLAG, Outcome, nonempty_word
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, FailedError, UsageError

DEFAULT = "emulator"


@dataclass(frozen=True)
class ImageRequest:
    """The options of an action. ``words`` are names of images and, for ``shell``, a command."""

    words: tuple[str, ...]
    check: bool
    write: bool
    read_only_store: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (text, run) in ACTIONS.items():
        # Sessions such as docker_build contain the action.
        prog = parser.prog if parser.prog.endswith(" --") else f"{parser.prog} {name}"
        action_parser = actions.add_parser(
            name, prog=prog, help=text, description=text, allow_abbrev=False
        )
        absent = {"words": [], "check": False, "write": False, "read_only_store": False}
        action_parser.set_defaults(run=run, **absent)
        add = action_parser.add_argument
        add("--json", **FLAG, help="print the result as JSON")
        add("--base", type=nonempty_word, help="a base listed in images.toml, or a local image")
        if name in {"build", "lock"}:
            add("words", nargs="*", metavar="IMAGE", help=f"default: {DEFAULT}")
        if name == "build":
            text = "build twice from scratch first, and fail if the builds differ"
            add("--check", **FLAG, help=text)
        if name == "shell":
            add("--read-only-store", **FLAG, help="mount the store read-only")
            words = "[IMAGE] [COMMAND ...]"
            text = f"default: an interactive shell in {DEFAULT}"
            add("words", nargs=argparse.REMAINDER, metavar=words, help=text)
        if name == "lock":
            add("--write", **FLAG, help="write the lock files")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run an action on images, with a connection to the container engine. Raises UsageError for an
    unknown image or base, and FailedError if two clean builds differ."""
    request = ImageRequest(
        words=tuple(args.words),
        check=args.check,
        write=args.write,
        read_only_store=args.read_only_store,
    )
    with connect_engine() as client:
        base = choose_base(client, args.base or "", progress)
        outcome: Outcome = args.run(client, request, base, progress)
        return outcome


def choose_base(client: DockerClient, requested: str, progress: Progress) -> str:
    """Return the base passed with --base. Without --base, return the base that the user last chose
    for this checkout. If there is none, or if it can no longer be used, return an empty string for
    the default base."""
    recalled = recall_base(find_checkout())
    if requested or not recalled:
        return requested
    try:
        plan_image(client, DEFAULT, recalled)
    except UsageError as error:
        progress.step(f"note: the base of the last build is not used: {error.what}")
        return ""
    progress.step(f"base {recalled}, as in this checkout's last build; to change it, pass --base")
    return recalled


def build(client: DockerClient, name: str, base: str, progress: Progress) -> Built:
    """Build an image, and remember its base if the user chose one."""
    built = build_image(client, name, progress, base=base)
    if base:
        remember_base(find_checkout(), base)
    return built


def _build(client: DockerClient, request: ImageRequest, base: str, progress: Progress) -> Outcome:
    rows = []
    names = list(dict.fromkeys(request.words)) or [DEFAULT]
    for name in names:
        if request.check:
            build_clean = partial(build_image, client, name, progress, base=base, fresh=True)
            first, second = build_clean(), build_clean()
            if first.image_id != second.image_id:
                raise FailedError(
                    f"two clean builds of {name} are different",
                    why=f"their ids are {first.image_id} and {second.image_id}",
                    fix="compare the files of both, for example with diffoci",
                )
        built = build(client, name, base, progress)
        plan = plan_image(client, name, base)
        rows.append(_row(name, built, plan.image.budget_mb))
    over = [row for row in rows if row["size_mb"] > row["budget_mb"]]
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


def _shell(client: DockerClient, request: ImageRequest, base: str, progress: Progress) -> Outcome:
    images = read_images().images
    named = request.words[:1] if request.words and request.words[0] in images else ()
    name = named[0] if named else DEFAULT
    plan = plan_image(client, name, base)
    built = build(client, name, base, progress)
    command = request.words[len(named) :]
    shell = ShellRequest(plan, built, command, request.read_only_store)
    return Outcome(exit_code=run_shell(client, shell))


def _list(client: DockerClient, _request: ImageRequest, base: str, _progress: Progress) -> Outcome:
    rows = []
    for name, image in read_images().images.items():
        existing = find_built(client, plan_image(client, name, base))
        rows.append(_row(name, existing or Built("", "", 0, fresh=False), image.budget_mb))
    return Outcome(_table(rows), {"images": rows})


def _lock(client: DockerClient, request: ImageRequest, base: str, progress: Progress) -> Outcome:
    diffs = {
        name: write_locks(client, name, progress, base=base, write=request.write)
        for name in request.words or [DEFAULT]
    }
    text = "".join(diffs.values()) or "the locks are up to date\n"
    return Outcome(text, {"diffs": diffs, "written": request.write})


ACTIONS: Mapping[str, tuple[str, Callable[..., Outcome]]] = {
    "build": ("build images", _build),
    "shell": ("run a command, or an interactive shell, in an image", _shell),
    "list": ("list the images, their tags and sizes", _list),
    "lock": ("pin the packages of an image", _lock),
}
