"""Sign the libraries one after another, verify and record them, and publish all of them at once by
renaming their directory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeAlias

from ci.signing.masking import Masker, list_secrets
from ci.signing.plan import SignPlan, refuse_existing
from ci.signing.record import (
    LOG_NAME,
    SCHEMA_VERSION,
    SignedLibrary,
    SigningRecord,
    digest_of,
    write_record,
)
from ci.signing.selection import find_sdk_version, read_directory_version
from ci.signing.signer import Failure, Signer, SignerError, find_output, run_signer
from ci.signing.verdict import Kind, Verdict, Verification
from ci.signing.verify import verify_bytes
from provisioning.console.caller import read_clock
from provisioning.console.progress import Progress
from provisioning.console.user_folder import owned_directory
from provisioning.documents import CONTENT_BYTES, read_bytes
from provisioning.files import explain_writes, remove_tree

SCRATCH = ".scratch"
# The most specific kind of fault first.
FAILURES = {
    Kind.TRUNCATED: Failure.TRUNCATED,
    Kind.DATE: Failure.EXPIRED,
    Kind.DIFFERENT: Failure.ALTERED,
    Kind.HASH: Failure.WRONG_HASH,
}
# Verdicts without a fault that a signer's output must not have: the failure, why, and the fix.
REFUSED = {
    Verdict.UNSIGNED: (
        Failure.UNCHANGED,
        "the output has no hash segment",
        "run the signer by hand on this library and read its log",
    ),
    Verdict.ENCRYPTED: (
        Failure.ENCRYPTED,
        "its loadable content cannot be compared with the input",
        "configure the signer not to encrypt its output",
    ),
}


@dataclass(frozen=True)
class Signed:
    """The result of a run. The keys of ``reports`` are file names, with serial numbers masked."""

    record: SigningRecord
    reports: dict[str, Verification]


@dataclass(frozen=True)
class SignJob:
    """One file for the signer to make: a signed copy of ``data`` or, without any input, the test
    signature for ``serial``.
    """

    name: str
    label: str
    data: bytes = b""
    serial: str = ""


# A file after it was signed and verified.
VerifiedLibrary: TypeAlias = tuple[SignedLibrary, Verification]


@dataclass
class Run:
    """A run in progress. Signed files are in ``ready``; the signer works in the sub-directory
    SCRATCH of ``ready``.
    """

    plan: SignPlan
    signer: Signer
    ready: Path
    mask: Masker
    log: list[str] = field(default_factory=list)

    def make_all(self, jobs: Sequence[SignJob], progress: Progress) -> list[VerifiedLibrary]:
        """Run ``jobs`` in order, and verify each file. Raises SignerError."""
        libraries = []
        for index, job in enumerate(jobs, 1):
            progress.step(f"signing {self.mask(job.name)} ({index} of {len(jobs)})")
            libraries.append(self._prove(job, self._sign(job)))
        return libraries

    def _sign(self, job: SignJob) -> Path:
        """Run the signer in a separate directory, move its output to ``ready``, and return the new
        path.
        """
        # A directory for each file, so that a log or leftover of one run is not taken for the
        # output of the next.
        area, name = self.ready / SCRATCH / str(len(self.log)), self.mask(job.name)
        source, output = area / "in" / job.name, area / "out"
        for folder in (source.parent, output):
            folder.mkdir(parents=True)
        if not job.serial:
            source.write_bytes(job.data)
        argv = self.signer.argv(source, output, job.serial)
        output_text = run_signer(self.signer, argv, area, name, self.mask)
        self.log.append(f"# {name}\n{output_text.replace(str(area), '.')}")
        written = find_output(area, output, source, job.data, self.mask)
        return written.rename(self.ready / written.name)

    def _prove(self, job: SignJob, path: Path) -> VerifiedLibrary:
        data, name = read_bytes(path, CONTENT_BYTES), self.mask(job.name)
        original = None if job.serial else memoryview(job.data)
        report = verify_bytes(
            memoryview(data),
            original,
            serial=int(job.serial or "0", 16),
            # A signer that uses an expired certificate is wrongly set up. For older images, that is
            # only a note.
            at=datetime.now(timezone.utc),
        )
        require_good(report, name, accept=self.plan.request.accept_unrecognised)
        path.chmod(0o644)
        # The record shows the command without this machine's paths.
        argv = self.signer.argv(Path("IN") / job.name, Path("OUT"), job.serial)
        library = SignedLibrary(
            name=name,
            source=job.label,
            input=digest_of(job.data),
            output=digest_of(data),
            arguments=tuple(map(self.mask, self.signer.list_arguments(argv))),
            verdict=report.verdict.value,
            mbn_header_version=report.header_version,
            hash_algorithm=report.algorithm,
            certificates=tuple(
                certificate.fingerprint for signer in report.signers for certificate in signer.chain
            ),
        )
        return library, report


def sign(plan: SignPlan, signer: Signer, progress: Progress) -> Signed:
    """Sign and verify everything in ``plan``, record it, and publish the result as the target.

    Raises SignerError, StoreError or UsageError; the target is then unchanged.
    """
    request, roots = plan.request, plan.request.roots
    # Before the signer runs: an invalid SOURCE_DATE_EPOCH must not be found out after it.
    created, created_from = read_clock()
    mask = Masker(list_secrets(serial=request.serial))
    jobs = []
    for entry in plan.inputs:
        library = entry.requested
        jobs.append(SignJob(library.name, library.label, entry.data))
    if serial := request.serial:
        jobs.append(SignJob(f"testsig-{serial}.so", "the signer's own", serial=serial))
        # A signer that takes no serial number is refused before it has signed the others.
        signer.argv(Path(), Path(), serial)
    # All or nothing: a directory with files of two runs would have the record of one.
    with stage(request.target, force=request.force) as ready:
        run = Run(plan, signer, ready, mask)
        verified = run.make_all(jobs, progress)
        (ready / LOG_NAME).write_text("".join(run.log), encoding="utf-8")
        record = SigningRecord(
            schema_version=SCHEMA_VERSION,
            created=created.isoformat(),
            created_from=created_from,
            tool=f"executorch-qnn-ci, Python {'.'.join(map(str, sys.version_info[:3]))}",
            signer=signer.list_programs(),
            python=signer.python.version if signer.python else "",
            qnn_sdk=find_sdk_version(roots.qnn_sdk, plan.inputs),
            hexagon_sdk=read_directory_version(roots.hexagon_sdk),
            libraries=tuple(library for library, _ in verified),
        )
        write_record(ready, record)
    return Signed(record, {library.name: report for library, report in verified})


@contextmanager
def stage(target: Path, *, force: bool) -> Iterator[Path]:
    """Yield a directory that is empty except for a sub-directory SCRATCH. If the block succeeds,
    the directory replaces ``target``, without SCRATCH.

    Raises StoreError if nothing can be written there, and UsageError if another run created the
    target in the meantime and ``force`` is false.
    """
    target = target.absolute()  # the signer runs in its own directory
    with explain_writes(target), owned_directory(target, force=force) as ready:
        (ready / SCRATCH).mkdir()
        yield ready
        remove_tree(ready / SCRATCH)
        if not force:
            refuse_existing(target)


def require_good(report: Verification, name: str, *, accept: bool) -> None:
    """Raise SignerError unless ``report`` proves that the library ``name`` is signed.

    If there are several faults, the exception states the most specific kind. If ``accept`` is true,
    a signature with a key for which no scheme is published is accepted.
    """
    if report.faults:
        # One fault causes others: in a truncated file, no hash matches either.
        kinds = {fault.kind for fault in report.faults}
        first = next((kind for kind in FAILURES if kind in kinds), None)
        failure = FAILURES[first] if first else Failure.INVALID
        raise SignerError(failure, name, why="; ".join(report.errors))
    if report.verdict is Verdict.UNRECOGNISED and not accept:
        fix = "if the signer is known to use such keys, pass --accept-unrecognised"
        raise SignerError(Failure.UNRECOGNISED, name, why="; ".join(report.notes), fix=fix)
    if report.verdict in REFUSED:
        failure, why, fix = REFUSED[report.verdict]
        raise SignerError(failure, name, why=why, fix=fix)
