"""A verification in words, for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ci.signing.masking import Masker
from ci.signing.verdict import NOT_JUDGED, SignedBy, Verification


def render_report(path: Path, report: Verification) -> str:
    """Some lines: the verdict, the format, the chain, what is wrong."""
    return "\n".join([f"{Masker()(path.name)}: {report.verdict.value}", *_lines(report)]) + "\n"


def render_reports(reports: Mapping[Path, Verification]) -> str:
    """All of ``reports``, then what nobody but the device can judge."""
    text = "".join(render_report(path, one) for path, one in reports.items())
    if any(one.signed for one in reports.values()):
        text += "".join(f"not judged here, the device does: {what}\n" for what in NOT_JUDGED)
    return text


def _lines(report: Verification) -> Iterator[str]:
    if report.header_version:
        version = f" V{report.hexagon_version:X}" if report.hexagon_version else ""
        yield (
            f"  {report.machine}{version}, MBN header {report.header_version}, "
            f"{report.algorithm or 'no hash table'}, {report.hashed_segments} segments hashed"
        )
    for signer in report.signers:
        yield from _signer_lines(signer)
    yield from (f"  wrong: {error}" for error in report.errors)
    yield from (f"  note: {note}" for note in report.notes)


def _signer_lines(signer: SignedBy) -> Iterator[str]:
    size, scheme = signer.signature_bytes, signer.scheme.value
    yield f"  {signer.authority}: signature of {size} bytes, {scheme}"
    for index, certificate in enumerate(signer.chain):
        yield f"    {index}: {certificate.describe()}"
