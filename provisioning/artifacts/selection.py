"""Parse arguments into requests: PROFILE or ARTIFACT[@VERSION][:COMPONENT,...]."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from provisioning.artifacts.environment import profile_requests
from provisioning.artifacts.sources import ArtifactRequest, Options
from provisioning.errors import ManifestError, UsageError
from provisioning.manifest.reader import (
    list_toolchains,
    read_profile,
    read_profiles,
    read_toolchain,
    suggest_near,
)
from provisioning.store.store import Published, Store, find_published
from provisioning.store.tree import Tree


def parse_selection(words: Sequence[str], options: Options) -> list[ArtifactRequest]:
    """Return the requests for ``words``, by default for the profile emulator, without duplicates.
    Raises UsageError for an unknown name, version or component.
    """
    return unique_requests(
        request for word in words or ["emulator"] for request in _parse_word(word, options)
    )


def all_requests(options: Options) -> list[ArtifactRequest]:
    """Return the requests of all profiles, without duplicates."""
    profiles = read_profiles().values()
    return unique_requests(r for profile in profiles for r in profile_requests(profile, options))


def _parse_word(word: str, options: Options) -> list[ArtifactRequest]:
    profiles = read_profiles()
    if word.partition("+")[0] in profiles:
        return profile_requests(read_profile(word), options)
    head, _, components = word.partition(":")
    name, _, version = head.partition("@")
    if name not in (known := list_toolchains()):
        meant = suggest_near(name, [*profiles, *known])
        raise UsageError(
            f"there is no profile or artifact {name!r}",
            fix=f"{meant}use a profile ({', '.join(profiles)}) or an artifact ({', '.join(known)})",
        )
    toolchain = read_toolchain(name)
    wanted = tuple(filter(None, components.split(",")))
    for mark, what, is_empty in (("@", "version", not version), (":", "component", not wanted)):
        if mark in word and is_empty:
            raise UsageError(f"{word} names no {what}", fix=f"add one, or leave out the {mark}")
    return [ArtifactRequest(toolchain, toolchain.release(version), wanted, options)]


def unique_requests(requests: Iterable[ArtifactRequest]) -> list[ArtifactRequest]:
    """Return one of the requests for each directory that they need in the store."""
    return list({request.key().directory: request for request in requests}.values())


def stored_trees(store: Store) -> Iterator[tuple[Published, Tree]]:
    """Yield every published directory that has a valid tree.json, with the content of that file."""
    paths = sorted(store.trees.iterdir()) if store.trees.is_dir() else []
    return filter(None, map(find_published, paths))


def unreadable_trees(store: Store) -> list[Path]:
    """Return the directories that are named like published ones but have no valid tree.json."""
    readable = {published.path for published, _ in stored_trees(store)}
    found = store.trees.iterdir() if store.trees.is_dir() else ()
    is_ours = re.compile(r"[^.].*-[0-9a-f]{12}").fullmatch
    return sorted(path for path in found if is_ours(path.name) and path not in readable)


def stored_requests(store: Store) -> list[ArtifactRequest]:
    """Return a request for every published artifact that the manifests describe, those of profiles
    first. Artifacts with a damaged lock are left out.
    """
    candidates = all_requests(Options())
    for name in list_toolchains():
        toolchain = read_toolchain(name)
        stored = [tree for _, tree in stored_trees(store) if tree.artifact == name]
        known = {(), *(tree.components for tree in stored)}
        candidates += [
            ArtifactRequest(toolchain, release, components)
            for release in toolchain.releases
            for components in known
            if set(components) <= toolchain.components.keys()
        ]
    pinned = []
    for request in unique_requests(candidates):
        with suppress(ManifestError):  # its lock is damaged: see damaged_locks
            pinned.append(request.pinned(store))
    return [request for request in pinned if store.find(request.key())]
