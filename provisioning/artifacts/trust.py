"""Trust the first download of an archive for which the vendor publishes no hash, after checking
that its content contradicts neither the manifest nor itself.

This module is imported only if an artifact is missing, because importing the readers of archives
and ELF files takes longer than a fetch that finds everything in the store.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from provisioning.archives.tarballs import is_tarball
from provisioning.artifacts.consent import require_acceptance, require_trust
from provisioning.artifacts.installations import read_version
from provisioning.artifacts.lockfile import Lock, machine_lock_path
from provisioning.artifacts.sources import ArtifactRequest, FillJob, load_source
from provisioning.console.caller import read_date
from provisioning.console.progress import Progress
from provisioning.elf.facts import EM_AARCH64, EM_QDSP6, EM_X86_64, ElfError, Genuine, name_machine
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.errors import IntegrityError
from provisioning.fetch.transfer import redact_url
from provisioning.files import hash_file
from provisioning.manifest.catalogs import prove_skel
from provisioning.manifest.releases import FileRelease, ZigRelease
from provisioning.store.store import Key, Store
from provisioning.store.tree import TreeEntry, encode_record

SKELS = "libQnnHtpV*Skel.so"
MACHINES = (
    (re.compile(r"(^|/)(lib|bin)/x86_64-linux"), EM_X86_64),
    (re.compile(r"(^|/)(lib|bin)/aarch64-"), EM_AARCH64),
    (re.compile(r"(^|/)lib/(hexagon|lpai)-v"), EM_QDSP6),
)


@contextmanager
def trust_first_use(
    request: ArtifactRequest, store: Store, progress: Progress
) -> Iterator[tuple[ArtifactRequest, Path | None]]:
    """Ask the user to accept the licence, then yield the pinned ``request`` and None.

    If the release is a single file without a known hash, instead fetch and unpack the whole
    artifact, and record its hash, which is trusted from now on. Then yield the request with that
    hash, and the directory with the unpacked artifact.

    The caller has to hold the artifact's lock. Raises UnfitError if the licence is not accepted,
    and IntegrityError if there is no hash and the user has not allowed trusting the first download,
    or if the archive contradicts its manifest.
    """
    require_acceptance(request, store, progress)
    if not request.release.pin:
        request = request.pinned(store)  # another process may have trusted it meanwhile
    if request.release.pin or not request.release.can_lock:
        yield request, None
        return
    require_trust(request)
    progress.step(f"{request.label}: no hash is pinned; trusting this first download")
    with _unpack_whole(request, store, progress) as (lock, staged):
        path = machine_lock_path(store, request.name, request.release.version)
        store.write_record(path, encode_record(lock))
        for line in lock.evidence:
            progress.step(f"  {line}")
        progress.step(f"{request.label}: trusted; its SHA-256 {lock.sha256} is recorded in {path}")
        yield request.locked_by(lock), staged


def make_lock(request: ArtifactRequest, store: Store, progress: Progress) -> Lock:
    """Fetch and unpack the whole artifact, and return its lock.

    Raises IntegrityError if the archive is damaged, or if its content contradicts the manifest or
    itself. A download without a known hash is removed in that case, so that it is fetched again.
    """
    with _unpack_whole(request, store, progress) as (lock, _):
        return lock


@contextmanager
def _unpack_whole(
    request: ArtifactRequest, store: Store, progress: Progress
) -> Iterator[tuple[Lock, Path]]:
    full_request = replace(request, components=(), lock=None)
    release = request.release_as(FileRelease)
    key = Key(request.name, release.version, {"lock": release.filename})
    download = store.downloads / release.filename
    with store.stage(key) as staged:
        root = staged / key.artifact
        try:
            entries = load_source(release.source).fill(FillJob(full_request, root, store, progress))
            counted = _count_files(release, entries)
            checked = (*check_version(request, root), *check_machines(root))
            evidence = (counted, *checked, *prove_skels(request, root))
        except IntegrityError:
            if not release.sha256:
                # Without a hash, obtain_file would take the wrong file for the right one next time.
                download.unlink(missing_ok=True)
            raise
        size_bytes = download.stat().st_size
        url, sha256 = redact_url(release.place), release.sha256 or hash_file(download)
        lock = Lock(
            request.name, release.version, url, size_bytes, sha256, read_date(), evidence, entries
        )
        yield lock, staged


def _count_files(release: FileRelease, entries: Sequence[TreeEntry]) -> str:
    count = sum(1 for entry in entries if entry.sha256)
    if isinstance(release, ZigRelease):
        return f"{count} files: the sources, and the files that the pinned compiler built from them"
    if is_tarball(release.filename):
        return (
            f"{count} files unpacked; the tarball is complete, but has no checksums of single files"
        )
    return f"{count} files unpacked, each matches its checksum in the archive"


def check_version(request: ArtifactRequest, root: Path) -> list[str]:
    """Compare the version file and the libraries' version strings with the manifest's version.

    Returns a line for the version file, and one for each QNN build that the libraries contain.
    Raises IntegrityError if a version differs.
    """
    version, evidence = request.release.version, []
    adoption = request.toolchain.adoption
    if (stated := read_version(root, adoption)) != "unknown":
        if not stated.startswith(version):
            why = f"{adoption.version_file} states version {stated}, not {version}"
            raise contradiction(request, why)
        evidence.append(f"{adoption.version_file} says {stated}")
    builds: Counter[str] = Counter()
    for path in sorted(root.rglob("lib*.so")):
        build = None if path.is_symlink() else find_qnn_build(path)
        if build and build.version and build.stamp:
            builds[f"{build.version}.{build.stamp}"] += 1
    for build_text, count in builds.items():
        # The build in a library has a longer version than the manifest: 2.37.0.250724 and a time.
        if not build_text.startswith(version):
            libraries_are = "1 library is" if count == 1 else f"{count} libraries are"
            raise contradiction(request, f"{libraries_are} from {build_text}, not {version}")
        evidence.append(f"{count} libraries say {build_text}")
    return evidence


def check_machines(root: Path) -> list[str]:
    """Check that each library in a directory named after a machine is for that machine.

    Returns lines with the numbers of checked libraries. Raises IntegrityError if a library is for
    another machine, is not an ELF file, or does not match its embedded checksum. HTP skels since
    QNN 2.40 contain such a checksum.
    """
    from provisioning.elf.reader import read_elf

    counts: dict[int, int] = {}
    checked = 0
    for path in sorted(root.rglob("*.so")):
        relative = path.relative_to(root).as_posix()
        expected_machine = next(
            (machine for where, machine in MACHINES if where.search(relative)), None
        )
        # A link is judged at its target.
        if expected_machine is None or path.is_symlink():
            continue
        try:
            elf = read_elf(path)
        except ElfError as error:
            why = "; ".join(filter(None, (error.what, error.why)))
            raise IntegrityError(f"{relative} is not a library", why=why, fix=error.fix) from error
        # By the directory's name and not by the lock: this is the first download, so there is no
        # lock yet.
        if elf.machine != expected_machine:
            names = [name_machine(number) for number in (elf.machine, expected_machine)]
            raise IntegrityError(
                f"{relative} is for the wrong machine",
                why=f"the library is for {names[0]}, but its directory is for {names[1]}",
                fix="do not use this archive",
            )
        if elf.checksum and elf.checksum.is_wrong:
            raise IntegrityError(
                f"{relative} is damaged",
                why=elf.checksum.describe(),
                fix="do not use this archive; download it from its vendor again",
            )
        counts[expected_machine] = counts.get(expected_machine, 0) + 1
        checked += elf.checksum is not None
    evidence = [
        f"{count} libraries are {name_machine(machine)}" for machine, count in counts.items()
    ]
    return (
        [*evidence, f"{checked} of them match the checksum embedded in them"]
        if checked
        else evidence
    )


def prove_skels(request: ArtifactRequest, root: Path) -> list[str]:
    """Return lines that state which skels (libraries for the Hexagon DSP) of a QNN SDK are proven
    genuine, and what remains unproven. Returns [] if the artifact has no skels.

    The proof is a catalog (a file signed by Microsoft, next to the skel) or the project's list of
    genuine skels. Raises IntegrityError if a skel differs from the listed one, if a catalog is
    forged, or if a library and a proven skel are from different builds.
    """
    skels = sorted(path for path in root.rglob(SKELS) if not path.is_symlink())
    if not skels:
        return []
    evidence, proven_build = [], None
    for path in skels:
        build = find_qnn_build(path)
        proof = prove_skel(path, build)
        if proof and proof.outcome is not Genuine.GENUINE:
            raise contradiction(request, f"{path.relative_to(root)} is {proof.describe()}")
        if proof:
            proven_build = build
            evidence.append(f"{path.name} is {proof.describe()}")
    # A build from bytes that nothing proves cannot prove the bytes of others.
    if not (proven_build and proven_build.version):
        return [*evidence, "nothing proves the QNN build: no library is verified"]
    same_build = without_build = 0
    for path in sorted(path for path in root.rglob("lib*.so") if not path.is_symlink()):
        build = find_qnn_build(path)
        if build is None:
            without_build += 1
        elif build.agrees_with(proven_build):
            same_build += 1
        else:
            relative = path.relative_to(root)
            raise contradiction(request, f"{relative} is from {build.text}, unlike the proven skel")
    return [
        *evidence,
        f"{same_build} libraries contain the same build ID as a proven skel, {proven_build.text}",
        f"unproven: all other files, and the build of {without_build} libraries without a build ID",
    ]


def contradiction(request: ArtifactRequest, why: str) -> IntegrityError:
    """Return the error for an archive with content that contradicts the manifest, the list of
    genuine skels, or other files in the archive.
    """
    return IntegrityError(
        f"{request.label} contradicts its manifest or itself, so it cannot be trusted",
        why=why,
        fix="download the archive from its vendor again, or correct the manifest",
    )
