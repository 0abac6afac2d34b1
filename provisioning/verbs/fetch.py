"""``fetch``: put artifacts, or all artifacts of profiles, into the store. With --to, fill a mirror
directory for another machine.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

from provisioning.artifacts.environment import parse_selection
from provisioning.artifacts.lockfile import machine_lock_path
from provisioning.artifacts.provision import Provisioned, provision_artifacts
from provisioning.artifacts.sources import ArtifactRequest, FillJob, Options, load_source
from provisioning.console.command import FLAG, Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.documents import read_text
from provisioning.files import explain_writes, hash_file, write_whole
from provisioning.store.store import Key, Store

# In the format of sha256sum, so that the other machine can check the mirror with sha256sum -c.
SUMS_FILE = "SHA256SUMS"
SUM = re.compile(r"(?m)^([0-9a-f]{64})  (.+)$")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``fetch``."""
    text = "profiles, or ARTIFACT[@VERSION][:COMPONENT,...] (default: emulator)"
    parser.add_argument("names", nargs="*", help=text)
    text = "hash the files that are already in the store, and repair those that differ"
    parser.add_argument("--verify", **FLAG, help=text)
    text = "put the files that another machine needs into this mirror directory"
    parser.add_argument("--to", type=user_path, help=text)
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all verbs that may fetch share."""
    parser.add_argument("--offline", **FLAG, help="use only the store and its downloads")
    text = "fetch even without a published hash, and record the hash"
    parser.add_argument("--trust-first-use", **FLAG, help=text)
    parser.add_argument("--accept-licence", **FLAG, help="accept the licences of the artifacts")


def read_options(args: argparse.Namespace) -> Options:
    """Return the values of the options that add_options added."""
    return Options(args.offline, args.trust_first_use, args.accept_licence)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Fetch the artifacts that are missing and return the roots of all; with --to, fill a mirror
    instead and return its files.
    """
    store = Store()
    requests = parse_selection(args.names, read_options(args))
    if args.to:
        written = [str(path) for path in fill_mirror(requests, args.to, store, progress)]
        hint = f"on the other machine, set QNN_CI_MIRROR={quote(str(args.to.absolute()))}\n"
        return Outcome("".join(path + "\n" for path in written) + hint, {"mirror": written})
    artifacts = provision_artifacts(requests, store, progress, verify=args.verify)
    text = "".join(f"{item.name} {item.version}  {item.root}\n" for item in artifacts)
    return Outcome(text, {"artifacts": [describe(item) for item in artifacts]})


def describe(item: Provisioned) -> dict[str, Any]:
    """Return a provisioned artifact for --json."""
    return {**asdict(item), "root": str(item.root)}


def fill_mirror(
    requests: Sequence[ArtifactRequest], directory: Path, store: Store, progress: Progress
) -> list[Path]:
    """Write the files and bare git repositories that ``requests`` need to ``directory``, add a
    SHA256SUMS file, and return their paths.

    On the other machine, set QNN_CI_MIRROR to the directory, or to a URL that serves it. Raises the
    errors of provision_pinned, and StoreError if ``directory`` cannot be written.
    """
    with explain_writes(directory):
        directory.mkdir(parents=True, exist_ok=True)
        written = [
            path for request in requests for path in _mirror(request, directory, store, progress)
        ]
        _write_sums(directory, [path for path in written if path.is_file()])
    return written


def _mirror(
    request: ArtifactRequest, directory: Path, store: Store, progress: Progress
) -> list[Path]:
    request = request.pinned(store)
    with store.lock((request.name, request.download), progress):
        from provisioning.artifacts.trust import trust_first_use  # slow to import

        # Its hash is recorded first, since the lock goes into the mirror, too.
        with trust_first_use(request, store, progress) as (pinned, _):
            pass
        key = Key(request.name, request.release.version, "mirror")
        with store.stage(key) as staged, explain_writes(directory):
            job = FillJob(pinned, staged / request.name, store, progress)
            written = load_source(request.release.source).mirror(job, directory)
    lock = machine_lock_path(store, request.name, request.release.version)
    if lock.is_file():
        shutil.copyfile(lock, directory / lock.name)
    return written


def _write_sums(directory: Path, files: Sequence[Path]) -> None:
    """Add ``files`` to SHA256SUMS, which is sorted by name."""
    path = directory / SUMS_FILE
    text = read_text(path, "replace") if path.is_file() else ""
    # Files of earlier calls stay listed: a mirror is filled in several calls.
    sums = {name: digest for digest, name in SUM.findall(text)}
    sums |= {file.name: hash_file(file) for file in files}
    if sums:
        write_whole(path, "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))
