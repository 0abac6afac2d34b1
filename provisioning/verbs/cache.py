"""``cache info|clean``: show the size of caches that are kept between runs, or remove them."""

from __future__ import annotations

import argparse

from provisioning.console.command import FLAG, Outcome
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.files import mib
from provisioning.manifest.reader import list_toolchains
from provisioning.store.collect import CachePart, find_removable, list_parts, remove_garbage
from provisioning.store.store import Store, explain_errors

LOCKED = frozenset({"store", "downloads"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cache``."""
    text = "show the parts' sizes, or remove parts"
    parser.add_argument("action", choices=("info", "clean"), help=text)
    parser.add_argument("parts", nargs="*", metavar="PART", help="a part that info prints, or all")
    parser.add_argument("--dry-run", **FLAG, help="only show what would be removed")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Return the sizes of the chosen parts, or remove them. Raises UsageError if no part is named
    to remove, or for an unknown one.
    """
    store = Store()
    parts = list_parts(store)
    chosen = choose_parts(parts, args.parts)
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
        garbage, kept_paths = find_removable(store, parts)
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
