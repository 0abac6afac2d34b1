"""``list``: list every artifact with its pin and its state in the store, and every profile."""

from __future__ import annotations

import argparse
from typing import Any

from provisioning.artifacts.environment import stored_trees
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.errors import ManifestError
from provisioning.files import mib
from provisioning.manifest.reader import Toolchain, list_toolchains, read_profiles, read_toolchain
from provisioning.manifest.releases import Release
from provisioning.store.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``list`` has no arguments."""
    del parser


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Return every release of every artifact, with its pin and its trees in the store, and every
    profile.
    """
    del args, progress
    store = Store()
    artifacts = [
        _describe(toolchain, release, store)
        for toolchain in map(read_toolchain, list_toolchains())
        for release in toolchain.releases
    ]
    profiles: dict[str, list[str]] = {}
    for name, profile in read_profiles().items():
        profiles[name] = [artifact.name for artifact in profile.artifacts]
    data = {"home": str(store.home), "artifacts": artifacts, "profiles": profiles}
    return Outcome(_render(artifacts, profiles), data)


def _describe(toolchain: Toolchain, release: Release, store: Store) -> dict[str, Any]:
    request, problem = ArtifactRequest(toolchain, release), ""
    try:
        request = request.pinned(store)
    # A damaged lock must not hide the other artifacts.
    except ManifestError as error:
        problem = str(error)
    trees = [
        {"path": str(published.root), "components": list(tree.components), "bytes": tree.size_bytes}
        for published, tree in stored_trees(store)
        if (tree.artifact, tree.version) == (toolchain.name, release.version)
    ]
    return {
        "name": toolchain.name,
        "version": release.version,
        "default": release.version == toolchain.default,
        "source": release.source,
        "pinned": request.release.pin,
        "problem": problem,
        "files_locked": bool(request.lock and request.lock.files),
        "licence": toolchain.licence.name,
        "components": list(toolchain.components),
        "stored": trees,
    }


def _render(artifacts: list[dict[str, Any]], profiles: dict[str, list[str]]) -> str:
    lines = [f"{'artifact':<20} {'version':<16} {'source':<8} {'pinned':<13} in the store"]
    for row in artifacts:
        pinned = "damaged lock" if row["problem"] else row["pinned"][:12] or "no hash"
        sizes = [mib(tree["bytes"]) for tree in row["stored"]]
        mark = " " if row["default"] else "*"
        lines.append(
            f"{row['name'] + mark:<20} {row['version']:<16} {row['source']:<8} {pinned:<13} "
            f"{', '.join(sizes) or '-'}"
        )
    lines += ["* not the default version", ""]
    lines += [row["problem"] for row in artifacts if row["problem"]]
    lines += [f"profile {name}: {', '.join(names)}" for name, names in profiles.items()]
    return "\n".join(lines) + "\n"
