"""Plan changes to the project's pins in manifests and locks, show them as a diff, and write
them.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from provisioning.artifacts.consent import require_acceptance
from provisioning.artifacts.lockfile import Lock, project_lock_path, read_lock
from provisioning.artifacts.sources import ArtifactRequest, FillJob, load_source, substitute
from provisioning.artifacts.trust import make_lock, trust_first_use
from provisioning.console.progress import Progress
from provisioning.console.user_folder import edit_file
from provisioning.documents import read_bytes, read_text
from provisioning.errors import IntegrityError, ManifestError, UsageError, mask_credentials
from provisioning.fetch.download import FILE_MODE
from provisioning.files import explain_writes, hash_file, write_whole
from provisioning.manifest.reader import (
    Toolchain,
    find_package_versions,
    manifests_root,
    parse_toml,
)
from provisioning.manifest.releases import FileRelease, Release, WheelRelease
from provisioning.store.home import explain_errors
from provisioning.store.store import Store
from provisioning.store.tree import encode_record

LOCKS = "locks"
PINS_FIX = "change pins in a writable checkout"
HEAD = re.compile(r"^\[\[releases\]\]\s*(?:#.*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Change:
    """A change to a file below manifests/: the text of ``path`` changes from ``before`` to
    ``after``. If ``after`` is empty, the file is removed. ``old`` is its earlier path if it is
    renamed, else None or the same path.
    """

    path: Path
    before: str
    after: str
    old: Path | None = None

    def diff(self) -> str:
        """The change as a unified diff."""
        old, new = (
            path.relative_to(manifests_root().parent) for path in (self.old or self.path, self.path)
        )
        if old != new and self.before == self.after:
            return f"rename {old} to {new}\n"
        sides = (self.before.splitlines(), self.after.splitlines())
        lines = difflib.unified_diff(*sides, f"a/{old}", f"b/{new}", lineterm="")
        return mask_credentials("".join(line + "\n" for line in lines))

    def write(self) -> None:
        """Write, rename or remove the file. Raises UsageError if it was changed since it was read
        or if a rename would replace another file, and StoreError if it cannot be written."""
        source = self.old or self.path
        with explain_writes(self.path.parent, PINS_FIX):
            # Generated: no text of a user is in them.
            if source.is_relative_to(manifests_root() / LOCKS):
                write_whole(self.path, self.after)
                if source != self.path:
                    source.unlink(missing_ok=True)
                return
            if self.after and source == self.path:
                edit_file(self.path, self.before.encode(), self.after.encode(), PINS_FIX)
                return
            refuse_change(source, self.before)
            if self.after:
                if os.path.lexists(self.path):  # as after a command that was killed
                    refuse_change(self.path, self.after)
                write_whole(self.path, self.after)
            source.unlink(missing_ok=True)


def refuse_change(path: Path, text: str) -> None:
    """Raise UsageError unless the content of a file is still ``text``."""
    if read_bytes(path) != text.encode():
        why = "its content is not the one that this command expects"
        raise UsageError(f"{path} was not changed", why=why, fix="run the command again")


def plan_lock(request: ArtifactRequest, store: Store, progress: Progress) -> list[Change]:
    """Return the changes that bring a release's lock up to date. Raises UsageError if the release
    cannot be locked.
    """
    if not request.release.can_lock:
        raise UsageError(
            f"{request.name} cannot be locked",
            why=f"its source is {request.release.source}, and only single files can be locked",
        )
    return list(_change_lock(request, _learn(request, store, progress), request.release.version))


def take_archive(request: ArtifactRequest, file: Path, store: Store) -> None:
    """Copy a local archive to the path where its download would be stored.

    Raises UsageError if the file is missing or the artifact is not a single file, IntegrityError if
    the file does not match the pin, and StoreError.
    """
    if not request.download:
        raise UsageError(f"{request.name} is not downloaded as a single file", fix="omit --from")
    if not file.is_file():
        raise UsageError(f"{file} is not a file")
    pin = request.pinned(store).release.origin.sha256
    with explain_errors(store.home):
        sha256 = hash_file(file)
        # Before the copy, so that a wrong file never is in downloads/.
        if pin and sha256 != pin:
            raise IntegrityError(
                f"{file} is not the pinned {request.label}",
                why=f"its SHA-256 is {sha256}, the pin is {pin}",
                fix="find out which of the two hashes is right before you trust either",
            )
        store.downloads.mkdir(parents=True, exist_ok=True)
        fresh = store.downloads / f".{request.download}.{os.getpid()}"
        try:
            shutil.copyfile(file, fresh)
            fresh.chmod(FILE_MODE)
            fresh.replace(store.downloads / request.download)
            store.note_download(request.download)
        finally:
            fresh.unlink(missing_ok=True)


def _learn(request: ArtifactRequest, store: Store, progress: Progress) -> Lock:
    with store.lock((request.name, request.download), progress):
        with trust_first_use(request.pinned(store), store, progress) as (pinned, staged):
            if staged and pinned.lock:
                return pinned.lock
        return make_lock(pinned, store, progress)


def _change_lock(request: ArtifactRequest, lock: Lock, version: str) -> Iterator[Change]:
    """Yield the change that replaces the project's lock of ``version`` with ``lock``, unless only
    the date differs.
    """
    path = project_lock_path(request.name, version)
    old = read_lock(path)
    # Otherwise, each run on another day would change the lock.
    if old is None or msgspec.structs.replace(old, recorded=lock.recorded) != lock:
        before = encode_record(old).decode() if old else ""
        target = project_lock_path(request.name, lock.version)
        yield Change(target, before, encode_record(lock).decode(), path)


def plan_baselines(name: str, old: str, new: str, *, carry: bool) -> Iterator[Change]:
    """Yield a change for each file in manifests/baselines/ that was recorded with version ``old``
    of an artifact. If ``carry`` is true, the file is renamed, so that results with version ``new``
    are compared with it. Otherwise, it is removed.
    """
    part = re.compile(rf"(?:^|(?<=-)){re.escape(f'{name}-{old}')}(?=-|\.toml$)")
    for path in sorted((manifests_root() / "baselines").glob("*.toml")):
        if part.search(path.name):
            text = read_text(path)
            target = path.with_name(part.sub(f"{name}-{new}", path.name))
            yield Change(target, text, text, path) if carry else Change(path, text, "")


def plan_update(
    request: ArtifactRequest,
    version: str,
    store: Store,
    progress: Progress,
    *,
    carry: bool = True,
) -> list[Change]:
    """Return the changes that pin another version of an artifact in its manifest and its lock.
    Returns [] if that version is already pinned.

    ``version`` is in the form that the source uses, such as a git tag, or the version of QNN in a
    known wheel; '' means the newest. A version that the manifest already contains becomes the
    default. If ``carry`` is true, recorded
    baselines are kept for the new version; otherwise, they are removed. Raises UsageError,
    UnfitError, DownloadError, IntegrityError, ManifestError, StoreError.
    """
    old, source = request.release, load_source(request.release.source)
    path = manifests_root() / "toolchains" / f"{request.name}.toml"
    before = read_text(path)
    contained = {release.version for release in request.toolchain.releases}
    if (named := version.removeprefix("v")) in contained:
        return _choose(before, request, named, carry=carry)
    require_acceptance(request, store, progress)
    if isinstance(old, WheelRelease):
        packaged = find_package_versions(old.package).get(version.removeprefix("v"), "")
        if packaged:
            progress.step(f"{request.name}@{version} is in {old.package} {packaged}")
            version = packaged
    with explain_errors(store.home):
        store.downloads.mkdir(parents=True, exist_ok=True)
        # On the disk of the store, so that a wheel is renamed into it; gc recognizes a leftover by
        # this prefix.
        with tempfile.TemporaryDirectory(prefix=".update-", dir=store.downloads) as directory:
            job = FillJob(request, Path(directory), store, progress)
            try:
                new = source.find_release(job, version)
            except ValueError as error:  # msgspec's errors are of this kind
                problem = f"{version!r} cannot be a version of {request.name}"
                raise UsageError(problem, why=str(error), fix="correct the version") from error
    if new == old:
        return []
    if new.version in contained - {old.version}:  # such as the newest one
        return _choose(before, request, new.version, carry=carry)
    after, new = rewrite_release(before, request, new)
    locks: list[Change] = []
    if old.can_lock:
        updated = replace(request, release=new, lock=None)
        lock = _learn(updated, store, progress)
        locks += _change_lock(updated, lock, old.version)
        # A manifest without a hash, such as of a first use, gets none: the lock has it.
        if isinstance(new, FileRelease) and old.pin:
            new = msgspec.structs.replace(new, sha256=lock.sha256, size_bytes=lock.size_bytes)
            after, _ = rewrite_release(before, request, new)
    figures = plan_baselines(request.name, old.version, new.version, carry=carry)
    return [Change(path, before, after), *locks, *figures]


def _choose(before: str, request: ArtifactRequest, version: str, *, carry: bool) -> list[Change]:
    """Return the changes that make a version that the manifest contains the default."""
    old = request.release.version
    if version == old:
        return []
    path = manifests_root() / "toolchains" / f"{request.name}.toml"
    after = rewrite_default(before, request, version)
    return [Change(path, before, after), *plan_baselines(request.name, old, version, carry=carry)]


def list_by_hand(plan: Collection[Change], name: str, old: str) -> list[str]:
    """Return the lines that contain the version ``old`` of ``name``, as ``file:line: text``. The
    user has to decide whether to change them.

    Manifests, pyproject.toml, workflows, the README and docs are searched, except files that
    ``plan`` changes. Requirements of other packages, such as ``other==1.2``, are ignored.
    """
    root = manifests_root().parent
    changed = {change.path for change in plan} | {change.old for change in plan}
    places = (
        "pyproject.toml",
        "manifests/*.toml",
        "manifests/policies/*.toml",
        "manifests/toolchains/*.toml",
        ".github/workflows/*.yml",
        "docs/*/*.md",
        "README.md",
    )
    old_version = re.compile(rf"(?<![\d.]){re.escape(old)}(?![\d]|\.\d)")
    constraint = rf"[<>=~]={re.escape(old)}(?![\d.])"
    # Another package may have the same version number by chance.
    other_requirement = re.compile(rf"(?<![\w.-])(?!{re.escape(name)}[<>=~])[\w.-]+{constraint}")
    lines = []
    for place in places:
        for path in sorted(set(root.glob(place)) - changed):
            for number, line in enumerate(read_text(path).splitlines(), 1):
                if old_version.search(other_requirement.sub("", line)):
                    lines.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    return lines


def rewrite_release(text: str, request: ArtifactRequest, new: Release) -> tuple[str, Release]:
    """Return a manifest's text with ``new`` instead of the request's release, and the release that
    is parsed from that text. Comments are kept. The version is also replaced in the small files
    that the release adds to the tree (``write``).

    Raises ManifestError if the text cannot be rewritten.
    """
    old, name = request.release, request.name
    starts = [match.start() for match in HEAD.finditer(text)]
    ends = [*starts[1:], len(text)]
    index = [release.version for release in request.toolchain.releases].index(old.version)
    # The text is edited and not generated, so that comments stay.
    if len(starts) != len(request.toolchain.releases):
        raise _cannot_rewrite(name, "its releases are not [[releases]] tables")
    replacements = _changed_words(old, new)
    block = substitute(text[starts[index] : ends[index]], replacements)
    head = text[: starts[0]]
    if request.toolchain.default == old.version:
        head = rewrite_default(head, request, new.version)
    after = head + text[starts[0] : starts[index]] + block + text[ends[index] :]
    parsed = parse_toml(after, Toolchain).releases[index]
    # The proof that replacing texts was enough, whatever else the table contains.
    if msgspec.structs.replace(parsed, write=new.write) != new:
        raise _cannot_rewrite(
            name, f"replacing values in its [[releases]] table for {old.version} is not enough"
        )
    return after, parsed


def rewrite_default(text: str, request: ArtifactRequest, version: str) -> str:
    """Return a manifest's text with another default version. Raises ManifestError."""
    old = f'default = "{request.toolchain.default}"'
    if text.count(old) != 1:
        raise _cannot_rewrite(request.name, f"{old} does not occur exactly once")
    return text.replace(old, f'default = "{version}"')


def _changed_words(old: Release, new: Release) -> dict[str, str]:
    """Map each value of ``old`` to its replacement in ``new``, if they differ."""
    replacements: dict[str, str] = {}
    for name in old.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, Mapping):
            replacements.update({before[key]: after[key] for key in before if key in after})
        elif before:
            replacements[str(before)] = str(after)
    return {before: after for before, after in replacements.items() if before != after}


def _cannot_rewrite(name: str, why: str) -> ManifestError:
    return ManifestError(
        f"manifests/toolchains/{name}.toml cannot be rewritten",
        why=why,
        fix=f"change the manifest by hand, then run `qnn-ci lock {name} --write`",
    )
