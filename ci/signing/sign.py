"""Sign one by one, verify from the bytes, record, publish by one rename."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ci.signing.inputs import find_sdk_version
from ci.signing.masking import Masker, list_secrets
from ci.signing.plan import SignPlan, find_hexagon_version
from ci.signing.proof.verdict import Kind, Verdict, Verification
from ci.signing.publish import Staging, stage
from ci.signing.record import (
    LOG_NAME,
    SCHEMA_VERSION,
    Program,
    SignedLibrary,
    SigningRecord,
    digest_of,
    write_record,
)
from ci.signing.signer import Failure, Signer, SignerError, find_output, run_signer
from provisioning.console.clock import read_clock
from provisioning.console.progress import Progress

FAILURES = {
    Kind.TRUNCATED: Failure.TRUNCATED,
    Kind.DATE: Failure.EXPIRED,
    Kind.DIFFERENT: Failure.ALTERED,
    Kind.HASH: Failure.WRONG_HASH,
}


@dataclass(frozen=True)
class Signed:
    """What a run did; the keys of ``reports`` are masked names."""

    record: SigningRecord
    reports: dict[str, Verification]


@dataclass(frozen=True)
class SignJob:
    """One file to be made: from ``data``, or from nothing with ``serial`` for a test signature."""

    name: str
    label: str
    data: bytes = b""
    serial: str = ""


@dataclass(frozen=True)
class Made:
    """One file that was signed and verified."""

    library: SignedLibrary
    report: Verification


@dataclass
class Run:
    """A run while it signs."""

    plan: SignPlan
    signer: Signer
    staging: Staging
    mask: Masker
    log: list[str] = field(default_factory=list)

    def make_all(self, jobs: Sequence[SignJob], progress: Progress) -> list[Made]:
        """Sign in order; each is verified while the signer is at the next one.

        Raises SignerError.
        """
        pending: list[Future[Made]] = []
        with ThreadPoolExecutor(1) as verifier:
            for index, job in enumerate(jobs):
                progress.step(f"signing {self.mask(job.name)} ({index + 1} of {len(jobs)})")
                pending.append(verifier.submit(self._prove, job, self._sign(job)))
                if index:
                    pending[index - 1].result()
            return [one.result() for one in pending]

    def _sign(self, job: SignJob) -> Path:
        """Run the signer in an area of its own; its output, moved to the staging area."""
        area, name = self.staging.scratch / str(len(self.log)), self.mask(job.name)
        source, output = area / "in" / job.name, area / "out"
        for folder in (source.parent, output):
            folder.mkdir(parents=True)
        if not job.serial:
            source.write_bytes(job.data)
        said = run_signer(self.signer, self._argv(job, source, output), area, name, self.mask)
        self.log.append(f"# {name}\n{said.replace(str(area), '.')}")
        written = find_output(area, output, source, job.data, self.mask)
        return written.rename(self.staging.ready / written.name)

    def _argv(self, job: SignJob, source: Path, output: Path) -> list[str]:
        if job.serial:
            return self.signer.testsig_argv(job.serial, output)
        return self.signer.argv(source, output)

    def _prove(self, job: SignJob, path: Path) -> Made:
        # Their 50 ms overlap with the signer.
        from ci.signing.proof.certificates import utc_now
        from ci.signing.proof.verify import verify_bytes

        data, name = path.read_bytes(), self.mask(job.name)
        original = None if job.serial else memoryview(job.data)
        number = int(job.serial or "0", 16)
        report = verify_bytes(memoryview(data), original, serial=number, at=utc_now())
        require_good(report, name, accept=self.plan.request.accept_unrecognised)
        path.chmod(0o644)
        return Made(self._describe(job, data, report), report)

    def _describe(self, job: SignJob, data: bytes, report: Verification) -> SignedLibrary:
        argv = self._argv(job, Path("IN") / job.name, Path("OUT"))
        return SignedLibrary(
            name=self.mask(job.name),
            source=job.label,
            input=digest_of(job.data),
            output=digest_of(data),
            arguments=tuple(map(self.mask, self.signer.list_arguments(argv))),
            verdict=report.verdict.value,
            mbn_header_version=report.header_version,
            hash_algorithm=report.algorithm,
            certificates=tuple(
                one.fingerprint for signer in report.signers for one in signer.chain
            ),
        )


def sign(plan: SignPlan, signer: Signer, progress: Progress) -> Signed:
    """Sign, verify, record and publish. Raises SignerError and leaves the target as it was."""
    request = plan.request
    created, created_from = read_clock()
    mask = Masker(list_secrets(serial=request.serial))
    with stage(request.target, force=request.force) as staging:
        run = Run(plan, signer, staging, mask)
        made = run.make_all(list_jobs(plan), progress)
        (staging.ready / LOG_NAME).write_text("".join(run.log), encoding="utf-8")
        record = make_record(run, made, created.isoformat(), created_from)
        write_record(staging.ready, record)
    return Signed(record, {one.library.name: one.report for one in made})


def list_jobs(plan: SignPlan) -> list[SignJob]:
    """The libraries in the order of the policy, then the test signature."""
    jobs = [SignJob(one.wanted.name, one.wanted.label, one.data) for one in plan.inputs]
    if serial := plan.request.serial:
        jobs.append(SignJob(f"testsig-{serial}.so", "the signer's own", serial=serial))
    return jobs


def require_good(report: Verification, name: str, *, accept: bool) -> None:
    """Raise SignerError, by the most telling of the faults.

    ``accept`` takes a signature of a kind for which no scheme is published.
    """
    if report.faults:
        kinds = {fault.kind for fault in report.faults}
        first = next((kind for kind in FAILURES if kind in kinds), None)
        failure = FAILURES[first] if first else Failure.INVALID
        raise SignerError(failure, name, why="; ".join(report.errors))
    if report.verdict is Verdict.UNSIGNED:
        raise SignerError(
            Failure.UNCHANGED, name, why="it has no hash segment", fix="read the signer's log"
        )
    if report.verdict is Verdict.UNRECOGNISED and not accept:
        raise SignerError(
            Failure.UNRECOGNISED,
            name,
            why="; ".join(report.notes),
            fix="--accept-unrecognised takes it, when the signer is known to sign so",
        )


def make_record(run: Run, made: Sequence[Made], created: str, created_from: str) -> SigningRecord:
    """The record of a run that has signed everything."""
    plan, signer = run.plan, run.signer
    ours = ".".join(map(str, sys.version_info[:3]))
    return SigningRecord(
        schema_version=SCHEMA_VERSION,
        created=created,
        created_from=created_from,
        tool=f"executorch-qnn-ci, Python {ours}",
        signer=tuple(Program(path, digest) for path, digest in signer.list_programs()),
        python=signer.python.version if signer.python else "",
        qnn_sdk=find_sdk_version(plan.request.roots.qnn_sdk, plan.inputs),
        hexagon_sdk=find_hexagon_version(plan.request.roots),
        libraries=tuple(one.library for one in made),
    )
