"""The result of a verification (a verdict, faults and notes), and its rendering as text or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.report.filled import fill_text
from ci.signing.masking import Masker
from provisioning.elf.facts import Genuine, Proof

if TYPE_CHECKING:
    from ci.signing.certificates import Certificate

NOT_JUDGED = (
    "whether the device trusts the root certificate",
    "whether the device accepts the signer's identities (software, hardware, OEM, model)",
)


class Scheme(str, Enum):
    """The scheme with which the leaf's key made a signature. UNKNOWN is for keys without a
    published scheme, and for wrong signatures.
    """

    PKCS1 = "RSA PKCS #1 v1.5"
    PSS = "RSA-PSS"
    ECDSA = "ECDSA"
    UNKNOWN = "not recognised"


class Verdict(str, Enum):
    """The conclusion about a file. GENUINE is for an unsigned file whose hash is in a catalog or in
    the list of genuine skels.
    """

    PROVEN = "proven"
    ENCRYPTED = "signed and encrypted"
    UNRECOGNISED = "signature not recognised"
    UNSIGNED = "unsigned"
    GENUINE = "genuine"
    INVALID = "invalid"


@dataclass(frozen=True)
class SignedBy:
    """The certificate chain of one authority, leaf first, and the scheme of its signature."""

    authority: str
    chain: tuple[Certificate, ...]
    scheme: Scheme
    signature_bytes: int


class Kind(str, Enum):
    """The kinds of faults."""

    TRUNCATED = "truncated"
    DATE = "certificate dates"
    DIFFERENT = "other than the input"
    HASH = "hash"
    LAYOUT = "layout"
    HEADER = "MBN header"
    SIGNATURE = "signature"
    CHAIN = "certificate chain"
    CATALOG = "catalog"


@dataclass(frozen=True)
class Fault:
    """A fault and its kind."""

    kind: Kind
    text: str


@dataclass
class Verification:
    """The findings about one file. ``uncovered`` are the ranges of the file that no hash covers,
    and ``signature_ranges`` are the ranges of its signatures.

    ``hexagon_version`` is 0 if the file is not for Hexagon. For an unsigned library, ``proof`` is
    what the catalogs next to it, or the list of genuine skels, prove about it. ``build`` is the QNN
    version that an unsigned library contains.
    """

    size: int
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    signed: bool = False
    encrypted: bool = False
    header_version: int = 0
    algorithm: str = ""
    machine: str = ""
    hexagon_version: int = 0
    hashed_segments: int = 0
    signers: list[SignedBy] = field(default_factory=list)
    uncovered: list[tuple[int, int]] = field(default_factory=list)
    signature_ranges: list[tuple[int, int]] = field(default_factory=list)
    proof: Proof | None = None
    build: str = ""

    def add(self, kind: Kind, *texts: str) -> None:
        """Add a fault of this kind for each of ``texts``."""
        self.faults += [Fault(kind, text) for text in texts]

    @property
    def errors(self) -> list[str]:
        """The texts of all faults."""
        return [fault.text for fault in self.faults]

    @property
    def verdict(self) -> Verdict:
        """PROVEN if the file is signed, not encrypted, has no fault, and each signature has a known
        scheme."""
        if self.faults:
            return Verdict.INVALID
        if not self.signed:
            is_genuine = self.proof and self.proof.outcome is Genuine.GENUINE
            return Verdict.GENUINE if is_genuine else Verdict.UNSIGNED
        # Its hashes are those of the plain bytes, so that the content stays unproven.
        if self.encrypted:
            return Verdict.ENCRYPTED
        if any(signer.scheme is Scheme.UNKNOWN for signer in self.signers):
            return Verdict.UNRECOGNISED
        return Verdict.PROVEN

    def as_data(self) -> dict[str, Any]:
        """Return the verification as data for JSON, with dates in ISO 8601."""
        return {
            "verdict": self.verdict.value,
            "errors": [{"kind": fault.kind.value, "what": fault.text} for fault in self.faults],
            "notes": self.notes,
            "size_bytes": self.size,
            "machine": self.machine,
            "hexagon_version": f"V{self.hexagon_version:X}" if self.hexagon_version else None,
            "encrypted": self.encrypted,
            "mbn_header_version": self.header_version,
            "hash_algorithm": self.algorithm,
            "hashed_segments": self.hashed_segments,
            "signers": [_describe_signer(signer) for signer in self.signers],
            "catalog": _describe_proof(self.proof, self.build) if self.proof else None,
            "uncovered_ranges": self.uncovered,
            "signature_ranges": self.signature_ranges,
            # Part of each report: a proven file is not yet one that a device accepts.
            "not_judged": list(NOT_JUDGED) if self.signed else [],
        }


def render_reports(reports: Mapping[Path, Verification]) -> str:
    """Return the text of all ``reports``: the verdict, the format, the signers, the faults and the
    notes, on separate lines. If any file is signed, the text ends with the questions that only the
    device can answer.
    """
    name = "signing/templates/reports.txt.j2"
    not_judged = NOT_JUDGED if any(report.signed for report in reports.values()) else ()
    # File names of test signatures contain the serial number of a device, which is a secret.
    return fill_text(name, reports=reports, mask=Masker(), not_judged=not_judged)


def _describe_proof(proof: Proof, build: str) -> dict[str, Any]:
    return {
        "outcome": proof.outcome.value,
        "file": proof.catalog,
        "why": proof.why,
        "signed": proof.signed.isoformat() if proof.signed else None,
        "qnn_build": build or None,
    }


def _describe_signer(signer: SignedBy) -> dict[str, Any]:
    certificates = []
    for certificate in signer.chain:
        dates = {
            "not_before": certificate.not_before.isoformat(),
            "not_after": certificate.not_after.isoformat(),
        }
        certificates.append(
            {
                "subject": certificate.subject,
                "issuer": certificate.issuer,
                **dates,
                "key": certificate.key,
                "key_bits": certificate.key_bits,
                "sha256": certificate.fingerprint,
            }
        )
    return {
        "authority": signer.authority,
        "scheme": signer.scheme.value,
        "signature_bytes": signer.signature_bytes,
        "certificates": certificates,
    }
