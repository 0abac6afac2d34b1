"""Provide artifacts: find, verify and repair existing ones, and fetch and publish missing ones. A
summary of all fetches is shown first, and several artifacts are fetched in parallel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from provisioning.artifacts.consent import require_acceptance, require_trust
from provisioning.artifacts.installations import find_installation, find_option, read_version
from provisioning.artifacts.sources import ArtifactRequest, FillJob, load_source
from provisioning.console.caller import is_ci
from provisioning.console.process import run_tasks
from provisioning.console.progress import Progress
from provisioning.errors import IntegrityError, UnfitError
from provisioning.files import free_bytes, mib
from provisioning.manifest.releases import FileRelease, Origin, ZigRelease
from provisioning.store.store import Published, Store
from provisioning.store.tree import GIT, Difference, Tree, TreeEntry, compare_tree, remove_others
from provisioning.versions import is_same

SHOWN_DIFFERENCES = 10
R = TypeVar("R")


@dataclass(frozen=True)
class Provisioned:
    """An artifact that is ready for use. ``origin`` states what its content was checked against.

    ``repaired`` lists the paths that were restored. ``fetched`` is true if the artifact was not
    usable before and was therefore published. ``adopted`` is true if it is an installation of
    the user, which is used in place.
    """

    name: str
    version: str
    root: Path
    origin: Origin = field(default_factory=Origin)
    repaired: tuple[str, ...] = ()
    fetched: bool = False
    adopted: bool = False


def provision_pinned(
    request: ArtifactRequest, store: Store, progress: Progress, *, verify: bool = False
) -> Provisioned:
    """Return the artifact of a pinned request from the store; fetch it if it is missing.

    If ``verify`` is true, every file of an existing artifact is hashed again, and restored if it
    differs. Raises DownloadError, IntegrityError, StoreError, ToolError, UnfitError.
    """
    key = request.key()
    if published := store.find(key):
        store.sweep(request.name)
        if verify:
            return verify_published(request, published, store, progress)
        return _describe(request, published)
    # It imports the readers of archives and ELF files: without them, a fetch that finds everything
    # takes 90 instead of 110 ms of CPU.
    from provisioning.artifacts.trust import trust_first_use  # slow to import, needed only now

    with store.lock((request.name, request.download), progress):
        if published := store.find(key):
            return _describe(request, published)
        with trust_first_use(request, store, progress) as (pinned, staged):
            if staged is None:
                return _fetch(pinned, store, progress)
            # A first use unpacks everything, because the lock lists every file; the request may be
            # for components.
            remove_others(staged / pinned.name, [entry.path for entry in pinned.locked])
            return _publish(pinned, staged, pinned.locked, store, progress)


def locate_artifact(
    request: ArtifactRequest, store: Store, progress: Progress
) -> Provisioned | None:
    """Return the artifact of ``request`` if it is installed or in the store, else None; fetch
    nothing.
    """
    if adopted := adopt_artifact(request, store, progress):
        return adopted
    store.say_who_writes(progress)
    request = request.pinned(store)
    published = store.find(request.key())
    return _describe(request, published) if published else None


def adopt_artifact(
    request: ArtifactRequest, store: Store, progress: Progress, *, verify: bool = False
) -> Provisioned | None:
    """Return the user's own installation if a variable points to one, else None.

    Also returns None if the user chose a different version, or if the variable points to a tree in
    the store that provisioning would choose anyway. If ``verify`` is true, the files of an
    installation with the requested version are compared with the lock. Raises UnfitError, and with
    ``verify`` also ManifestError and IntegrityError.
    """
    adoption = request.toolchain.adoption
    variable, directory = adoption.find_named(os.environ)
    root = Path(directory).expanduser().resolve()
    is_chosen = adoption.find_choice(os.environ)
    if not directory or (not is_chosen and _is_of_env(root, request, store)):
        return None
    chosen = adoption.find_version(os.environ)
    if chosen and not is_same(read_version(root, adoption), chosen):
        return None
    if not (installation := find_installation(request, os.environ)):
        return None
    (root, version), pinned = installation, request.release.version
    note = "" if version == pinned else f" (the pinned version is {pinned})"
    option = find_option(variable, directory)
    setting = f"{option} {root}" if option else f"{variable}={root}"
    progress.step(f"{request.name}: using {setting}, version {version}{note}")
    adopted = Provisioned(request.name, version, root, adopted=True)
    if verify:
        check_adopted(request.pinned(store), adopted)
    return adopted


def _is_of_env(root: Path, request: ArtifactRequest, store: Store) -> bool:
    """Return whether ``root``, the value of a variable, comes from `qnn-ci env`: it is in the
    store, and contains either the requested version or another artifact, such as the QNN runtime of
    profile emulator.
    """
    trees = store.trees.resolve()
    if not root.is_relative_to(trees):
        return False
    directory, artifact = (*root.relative_to(trees).parts, "", "")[:2]
    pinned = f"{request.name}-{request.release.version}-"
    return artifact != request.name or directory.startswith(pinned)


def check_adopted(request: ArtifactRequest, adopted: Provisioned) -> None:
    """Compare the hashes of an installation's files with the lock of its version, if there is one.

    Different modes and additional files are accepted. Raises UnfitError, which shows the first file
    that differs.
    """
    # The lock is of another version, so nothing is known of these files.
    if not adopted.version.startswith(request.release.version):
        return
    # The user may have unpacked it with other modes.
    locked_entries = [msgspec.structs.replace(entry, mode=-1) for entry in request.locked]
    paths = {entry.path for entry in locked_entries}
    differences = [
        item for item in compare_tree(adopted.root, locked_entries) if item.path in paths
    ]
    if differences:
        count_text = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise UnfitError(
            f"{adopted.root} does not match the lock of {request.label}",
            why=f"{differences[0]}{count_text}",
            fix="reinstall it, or unset the variable that points to it and fetch the artifact",
        )


def _describe(
    request: ArtifactRequest,
    published: Published,
    repaired: tuple[str, ...] = (),
    fetched: bool = False,
) -> Provisioned:
    release, root = request.release, published.root
    return Provisioned(request.name, release.version, root, release.origin, repaired, fetched)


def _fetch(request: ArtifactRequest, store: Store, progress: Progress) -> Provisioned:
    with store.stage(request.key()) as staged:
        source = load_source(request.release.source)
        entries = source.fill(FillJob(request, staged / request.name, store, progress))
        return _publish(request, staged, entries, store, progress)


def _publish(
    request: ArtifactRequest,
    staged: Path,
    entries: tuple[TreeEntry, ...],
    store: Store,
    progress: Progress,
) -> Provisioned:
    # Before the rename: what does not match the lock never gets its name.
    check_lock(request, entries)
    key = request.key()
    tree = Tree(key.artifact, key.version, request.release.pin, request.components, entries)
    published = store.publish(key, staged, tree)
    files = f"{len(tree.files)} file{'s' * (len(tree.files) != 1)}"
    progress.step(f"{request.label}: ready, {files}, {mib(tree.size_bytes)}")
    return _describe(request, published, fetched=True)


def check_lock(request: ArtifactRequest, entries: Sequence[TreeEntry]) -> None:
    """Compare the written files with the lock. Raises IntegrityError, which shows the first
    difference.
    """
    locked = {entry.path: entry for entry in request.locked}
    written = {entry.path: entry for entry in entries if locked}
    for path in sorted(locked.keys() | written.keys()):
        if written.get(path) != locked.get(path):
            raise IntegrityError(
                f"{path} in {request.label} does not match the lock",
                why=f"found {_show(written.get(path))}; the lock has {_show(locked.get(path))}",
                fix=f"run `qnn-ci lock {request.name}` to see every difference",
            )


def _show(entry: TreeEntry | None) -> str:
    if entry is None:
        return "nothing"
    if entry.link:
        return f"a link to {entry.link!r}"
    if entry.path.endswith("/"):
        return "an empty directory"
    plural = "s" * (entry.size != 1)
    return f"SHA-256 {entry.sha256}, {entry.size} byte{plural}, mode {entry.mode:o}"


def verify_published(
    request: ArtifactRequest, published: Published, store: Store, progress: Progress
) -> Provisioned:
    """Hash every file. If any differs, print the differences and publish the artifact again. Raises
    IntegrityError if it differs even after that.
    """
    first_differences = find_differences(request, published)
    if not first_differences:
        return _describe(request, published)
    with store.lock((request.name, request.download), progress):
        differences = find_differences(request, published)
        if not differences:  # repaired by another process or by store.lock
            return _describe(request, published, tuple(item.path for item in first_differences))
        for difference in differences[:SHOWN_DIFFERENCES]:
            progress.step(f"{request.label}: {difference}")
        if (unshown_count := len(differences) - SHOWN_DIFFERENCES) > 0:
            progress.step(f"{request.label}: {unshown_count} more like these")
        was_damaged = trusted_tree(request, published) is None
        _fetch(request, store, progress)
        if left := find_differences(request, published):
            raise IntegrityError(
                f"{request.label} cannot be repaired",
                why=str(left[0]),
                fix="find out which program writes into the store, then repair the artifact again",
            )
    repaired = tuple(item.path for item in differences)
    unshown_text = f" and {unshown_count} more" if unshown_count > 0 else ""
    progress.step(
        f"{request.label}: repaired {', '.join(repaired[:SHOWN_DIFFERENCES])}{unshown_text}"
    )
    return _describe(request, published, repaired, was_damaged)


def find_differences(
    request: ArtifactRequest, published: Published, *, quick: bool = False
) -> list[Difference]:
    """Return how a published directory differs from its lock or, without a lock, from its
    tree.json, and which parts of it other users can change. If ``quick`` is true, files are
    compared by size, mode and time, and not hashed.
    """
    tree = trusted_tree(request, published)
    if tree is None:
        return [Difference("tree.json", "is damaged or belongs to another artifact")]
    try:
        owners = published.owners
        content_differences = compare_tree(published.root, tree.files, quick=quick, owners=owners)
        return [*published.find_exposed(owners), *content_differences]
    except FileNotFoundError:  # another process removed it meanwhile
        return [Difference("./", "is missing")]


def trusted_tree(request: ArtifactRequest, published: Published) -> Tree | None:
    """Return the tree.json of a published directory, with the entries of the lock if there is one.

    Returns None if tree.json is missing, damaged, or belongs to another request.
    """
    tree = published.read_tree()
    if tree is None:
        return None
    release, components = request.release, request.toolchain.components
    source = release.pin or tree.source_sha256
    stated = (tree.artifact, tree.version, tree.source_sha256)
    patterns = [glob for name in tree.components for glob in components.get(name, ("/",))]
    fits = sorted(patterns) == sorted(request.patterns)
    if release.origin.commit:  # older trees do not list .git
        fits = fits and any(entry.path == f"{GIT}/config" for entry in tree.files)
    if not fits or stated != (request.name, release.version, source):
        return None
    return msgspec.structs.replace(tree, files=request.locked or tree.files)


AT_ONCE = 4


def provision_artifacts(
    requests: Sequence[ArtifactRequest], store: Store, progress: Progress, *, verify: bool = False
) -> list[Provisioned]:
    """Return every artifact of ``requests``, in their order: the user's own installation if a
    variable points to one, else the one in the store, fetched if it is missing.

    Before artifacts are fetched, show_outline lists them and asks for consent. Missing libraries
    that have to be compiled are provided first, since the other artifacts need them. If an artifact
    fails, the first failure is raised after the others have finished.

    If ``verify`` is true, existing files are hashed again. Files that differ are restored in the
    store; in an installation, they are an error.

    Raises UnfitError, DownloadError, IntegrityError, StoreError, ToolError, ManifestError.
    """
    store.say_who_writes(progress)
    provisioned: dict[int, Provisioned] = {}
    groups: dict[str, dict[int, ArtifactRequest]] = {}
    for number, request in enumerate(requests):
        if adopted := adopt_artifact(request, store, progress, verify=verify):
            provisioned[number] = adopted
        else:
            groups.setdefault(request.name, {})[number] = request.pinned(store)
    pinned_requests = (request for group in groups.values() for request in group.values())
    missing = [request for request in pinned_requests if store.find(request.key()) is None]
    if missing:
        show_outline(missing, store, progress)
        for request in missing:
            # libQnnSystem.so needs libatomic: without it, the other artifacts would be downloaded
            # in vain.
            if isinstance(request.release, ZigRelease):
                provision_pinned(request, store, progress)
    several = len({request.name for request in missing}) > 1
    # Several progress bars would share one line.
    shown = Progress(progress.stream) if several else progress

    def bring(group: Mapping[int, ArtifactRequest]) -> dict[int, Provisioned] | Exception:
        try:
            return {
                number: provision_pinned(request, store, shown, verify=verify)
                for number, request in group.items()
            }
        except Exception as error:  # noqa: BLE001 - raised once the others are finished
            return error

    tasks = [partial(bring, group) for group in groups.values()]
    for outcome in _run_at_once(tasks):
        if isinstance(outcome, Exception):
            raise outcome
        provisioned.update(outcome)
    return [provisioned[number] for number in range(len(requests))]


def _run_at_once(tasks: Sequence[Callable[[], R]]) -> list[R]:
    """Return the results of ``tasks``. An interrupt ends the transfers of all of them."""
    with ExitStack() as ending:

        def abort() -> None:
            # If a transfer is open, this is imported already; a fetch without one does not need it.
            from provisioning.fetch.client import end_transfers

            ending.enter_context(end_transfers())

        return run_tasks(tasks, AT_ONCE, abort=abort)


def show_outline(requests: Sequence[ArtifactRequest], store: Store, progress: Progress) -> None:
    """Print where each artifact comes from, its size, what it is checked against and its licence,
    and ask for missing consent.

    The outline is a header with the free disk space, then four lines per artifact. Does nothing for
    a single artifact with a licence that need not be accepted. Raises UnfitError or IntegrityError,
    which lists everything that the user has to agree to. If the error lists several items, its fix
    is one command that agrees to all of them.
    """
    if len(requests) == 1 and not requests[0].toolchain.licence.accept:
        return
    releases = [listed.release for listed in requests if isinstance(listed.release, FileRelease)]
    unpacked_bytes = sum(release.unpacked_bytes for release in releases)
    room = f"{mib(free_bytes(store.home))} are free in {store.home}"
    unpacked = f"at most {mib(unpacked_bytes)} unpacked; " if unpacked_bytes else ""
    progress.step(f"artifacts to fetch: {len(requests)}; {unpacked}{room}")
    for request in requests:
        release, licence = request.release, request.toolchain.licence
        host, size = urlsplit(release.place).hostname or release.place, "a git checkout"
        if isinstance(release, FileRelease):
            size = mib(release.size_bytes) if release.size_bytes else "an archive of unknown size"
        check = "no hash is published, so you have to trust the first download"
        if request.lock and request.lock.files:
            check = f"SHA-256 of each of its {len(request.lock.files)} locked files"
        elif release.pin:
            check = f"pinned, {release.pin[:16]}"
        progress.step(f"{request.label}: {size} from {host}")
        progress.step(f"  checked: {check}")
        progress.step(f"  licence: {licence.name}")
        progress.step(f"  to read: {licence.text}")
    _require_yes(requests, store, progress)


def _require_yes(requests: Sequence[ArtifactRequest], store: Store, progress: Progress) -> None:
    """Raise one error for everything that the user has not agreed to, with a command that agrees to
    all of it.
    """
    problems: list[UnfitError | IntegrityError] = []
    for request in requests:
        if request.toolchain.licence.accept:
            try:
                require_acceptance(request, store, progress)
            except UnfitError as error:
                problems.append(error)
        try:
            require_trust(request)
        except IntegrityError as error:
            problems.append(error)
    if len(problems) < 2:
        for problem in problems:
            raise problem
        return
    licences = [error for error in problems if isinstance(error, UnfitError)]
    first_uses = [error for error in problems if isinstance(error, IntegrityError)]
    words = [name_request(request) for request in requests]
    words += ["--accept-licence"] if licences else []
    # In CI, the option has no effect.
    words += ["--trust-first-use"] if first_uses and not is_ci() else []
    fix = f"read the list above, then run `qnn-ci fetch {' '.join(dict.fromkeys(words))}`"
    if first_uses and is_ci():
        fix = f"{fix}; {first_uses[0].fix}"
    kind = UnfitError if licences else IntegrityError
    raise kind(
        f"this fetch needs your consent to {len(problems)} items",
        why="; ".join(f"{error.what}" for error in problems),
        fix=fix,
    )


def name_request(request: ArtifactRequest) -> str:
    """Return the request as a command-line argument."""
    release, components = request.release.version, ",".join(request.components)
    version = "" if release == request.toolchain.default else f"@{release}"
    return f"{request.name}{version}{':' if components else ''}{components}"
