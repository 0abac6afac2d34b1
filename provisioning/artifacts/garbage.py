"""``cache gc``: remove leftovers from the store, such as builds without sources, and trees that no
profile needs and no process uses.
"""

from __future__ import annotations

import msgspec

from provisioning.artifacts.environment import parse_selection
from provisioning.artifacts.sources import Options
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.manifest.reader import list_toolchains, read_profiles, read_toolchain
from provisioning.manifest.releases import FileRelease
from provisioning.store.collect import find_garbage, remove_garbage
from provisioning.store.home import explain_errors
from provisioning.store.store import Store


def collect_garbage(progress: Progress, *, dry_run: bool, downloads: bool) -> Outcome:
    """Remove garbage, unless ``dry_run`` is true, and return what was removed and what is kept."""
    store = Store()
    toolchains = [read_toolchain(name) for name in list_toolchains()]
    releases = [release for toolchain in toolchains for release in toolchain.releases]
    filenames = {release.filename for release in releases if isinstance(release, FileRelease)}
    requests = [request.pinned(store) for request in parse_selection([*read_profiles()], Options())]
    needed_names = {request.key().directory for request in requests}
    # Locks are files in the store, and gc must not create a store to clean it.
    is_locked = not dry_run and store.home.is_dir()
    with (
        store.lock(list_toolchains() if is_locked else (), progress),
        explain_errors(store.home),
    ):
        garbage, kept_paths = find_garbage(store, needed_names, filenames, downloads=downloads)
        freed = 0 if dry_run else remove_garbage(store, garbage)
    data = {
        "freed_bytes": freed,
        "garbage": msgspec.to_builtins(garbage, enc_hook=str),
        "kept": msgspec.to_builtins(kept_paths, enc_hook=str),
        "dry_run": dry_run,
    }
    lines = [f"{item.path}  {item.size_bytes / (1 << 20):.1f} MiB  {item.why}" for item in garbage]
    lines += [f"{item.path}  kept: {item.why}" for item in kept_paths]
    total_mib = sum(item.size_bytes for item in garbage) / (1 << 20)
    lines.append(f"{'would free' if dry_run else 'freed'} {total_mib:.1f} MiB")
    return Outcome("\n".join(lines) + "\n", data)
