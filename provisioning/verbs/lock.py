"""``lock``: what an artifact is, file by file, as a pin of the project; a diff comes first."""

from __future__ import annotations

import argparse
import difflib

import msgspec

from provisioning.artifacts.licence import require_acceptance
from provisioning.artifacts.lockfile import Lock, encode_lock, project_lock_path, read_lock
from provisioning.artifacts.provision import with_lock
from provisioning.artifacts.selection import parse_selection
from provisioning.artifacts.sources import ArtifactRequest, load_source
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.errors import UsageError, mask_credentials
from provisioning.files import explain_writes, write_whole
from provisioning.store.store import Store
from provisioning.verbs.fetch import add_options, read_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", help="ARTIFACT[@VERSION]")
    parser.add_argument("--write", action="store_true", help="write what the diff shows")
    add_options(parser)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    store = Store()
    requests = parse_selection(args.names, read_options(args))
    for request in requests:
        if not load_source(request.release.source).can_lock:
            raise UsageError(
                f"{request.name} has no lock",
                why=f"its source is {request.release.source}: a commit is its pin",
            )
    diffs = [_lock(request, store, progress, write=args.write) for request in requests]
    changed = [request.label for request, diff in zip(requests, diffs, strict=True) if diff]
    hint = "" if args.write or not changed else "nothing was written; --write does\n"
    text = "".join(diffs) + (hint or ("" if changed else "nothing changed\n"))
    return Outcome(text, {"changed": changed, "written": args.write, "diff": "".join(diffs)})


def _lock(request: ArtifactRequest, store: Store, progress: Progress, *, write: bool) -> str:
    """The diff against the lock file; written when asked."""
    from provisioning.artifacts.trust import make_lock, require_pin

    path = project_lock_path(request.name, request.release.version)
    old = read_lock(path)
    with store.lock(request.name, progress, request.download):
        require_acceptance(request, store, progress)
        pinned = require_pin(with_lock(request, store), store, progress)
        lock = make_lock(pinned, store, progress)
    if old and _same(old, lock):
        return ""
    before = mask_credentials(encode_lock(old).decode()) if old else ""
    after = encode_lock(lock).decode()
    if write:
        with explain_writes(path.parent, "lock it in a checkout that can be written"):
            write_whole(path, after)
    names = (f"a/{path.name}", f"b/{path.name}")
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="")
    return "\n".join(lines) + "\n"


def _same(old: Lock, new: Lock) -> bool:
    """Whether nothing but the date differs."""
    return msgspec.structs.replace(old, recorded=new.recorded) == new
