"""``cache info|clean|gc|key``: show the size of caches that are kept between runs, remove them or
what no profile needs, or print the key and the paths of a CI system's cache."""

from __future__ import annotations

import argparse

from provisioning.artifacts.cache_key import print_key
from provisioning.artifacts.garbage import collect_garbage
from provisioning.console.command import FLAG, Outcome
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.files import mib
from provisioning.manifest.reader import list_toolchains, manifests_root
from provisioning.manifest.targets import read_decoders
from provisioning.store.collect import CachePart, find_removable, list_parts, remove_garbage
from provisioning.store.home import explain_errors
from provisioning.store.store import Store

LOCKED = frozenset({"store", "downloads"})


# The options of each action.
OPTIONS = {
    "info": (),
    "clean": ("dry_run",),
    "gc": ("dry_run", "downloads"),
    "key": ("private", "github"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cache``."""
    text = (
        "info: show the parts' sizes; clean: remove parts; gc: remove leftovers, and trees that no"
        " profile needs and no process uses; key: print the key and the paths for a CI system's"
        " cache"
    )
    parser.add_argument("action", choices=tuple(OPTIONS), help=text)
    text = "of info and clean: a part that info prints, or all; of key: a profile or an artifact"
    parser.add_argument("names", nargs="*", metavar="NAME", help=text)
    text = "of clean and gc: only show what would be removed"
    parser.add_argument("--dry-run", **FLAG, help=text)
    text = "of gc: remove downloaded archives, too"
    parser.add_argument("--downloads", **FLAG, help=text)
    text = "of key: include artifacts that must not be redistributed, if only licensees can read"
    parser.add_argument("--private", **FLAG, help=f"{text} the cache")
    parser.add_argument("--github", **FLAG, help='of key: print lines for >> "$GITHUB_OUTPUT"')


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run the action. Raises UsageError for an option of another action, if no part is named to
    remove, or for an unknown one.
    """
    options = {name for names in OPTIONS.values() for name in names}
    for name in sorted(options - {*OPTIONS[args.action]}):
        if getattr(args, name):
            raise UsageError(f"--{name.replace('_', '-')} cannot be used with cache {args.action}")
    if args.action == "gc" and args.names:
        raise UsageError("cache gc takes no names", fix="use cache clean to remove parts")
    if args.action == "gc":
        return collect_garbage(progress, dry_run=args.dry_run, downloads=args.downloads)
    if args.action == "key":
        return print_key(args.names, progress, private=args.private, github=args.github)
    store = Store()
    parts = list_parts(store)
    chosen = choose_parts(parts, args.names)
    if args.action == "info":
        return describe_parts(store, chosen or parts)
    if not chosen:
        raise UsageError(
            "specify which parts of the cache to remove",
            fix="use all, or some of " + ", ".join(part.name for part in parts),
        )
    # The locks of all artifacts, so that nothing is removed that another process is about to
    # publish.
    is_locked = not (args.dry_run or LOCKED.isdisjoint(cache_part.name for cache_part in chosen))
    with store.lock(list_toolchains() if is_locked and store.home.is_dir() else (), progress):
        return clean_parts(store, chosen, dry_run=args.dry_run)


def choose_parts(parts: list[CachePart], names: list[str]) -> list[CachePart]:
    """Return the parts with these names; ``all`` stands for all parts. Raises UsageError for an
    unknown name.
    """
    parts_by_name = {part.name: part for part in parts}
    if unknown := [name for name in names if name not in {*parts_by_name, "all"}]:
        raise UsageError(
            f"the cache has no part {unknown[0]!r}", fix=f"use {', '.join(parts_by_name)}, or all"
        )
    return parts if "all" in names else [parts_by_name[name] for name in dict.fromkeys(names)]


def describe_parts(store: Store, parts: list[CachePart]) -> Outcome:
    """Return the size of each part, and the total."""
    rows = [(part, part.size_bytes()) for part in parts]
    total = sum(size for _, size in rows)
    lines = [f"{part.name:<13} {mib(size):>10}  {part.about}" for part, size in rows]
    lines += [f"{'total':<13} {mib(total):>10}", f"below {store.home}"]
    data = [
        {"name": part.name, "path": str(part.path), "size_bytes": size, "about": part.about}
        for part, size in rows
    ]
    text = "\n".join(lines) + "\n"
    return Outcome(text, {"home": str(store.home), "parts": data, "size_bytes": total})


def clean_parts(store: Store, parts: list[CachePart], *, dry_run: bool) -> Outcome:
    """Remove what find_removable finds in these parts, or only list it if ``dry_run`` is true."""
    with explain_errors(store.home):
        # The user's own manifests need not have decoders.
        has_decoders = (manifests_root() / "decoders.toml").is_file()
        decoders = [*read_decoders()] if has_decoders else []
        garbage, kept_paths = find_removable(store, parts, decoders)
        freed = 0 if dry_run else remove_garbage(store, garbage)
    size = sum(item.size_bytes for item in garbage)
    verb = "would remove" if dry_run else "removed"
    lines = [f"{item.path}  kept: {item.why}" for item in kept_paths]
    lines.append(f"{verb} {mib(size)} from {', '.join(part.name for part in parts)}")
    data = {
        "freed_bytes": freed,
        "removed": [{"path": str(item.path), "size_bytes": item.size_bytes} for item in garbage],
        "kept": [{"path": str(item.path), "why": item.why} for item in kept_paths],
        "dry_run": dry_run,
    }
    return Outcome("\n".join(lines) + "\n", data)
