"""Write the documents of a bundle: an SBOM, evidence for its programs, and the record of its signed
libraries."""

from __future__ import annotations

import importlib.util
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.report.evidence import SUFFIX, find_faults, parse_statement
from ci.signing.record import LOG_NAME, RECORD_NAME, STATEMENT_NAME, check_record
from provisioning.console.clock import read_clock
from provisioning.documents import read_bytes
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.errors import UnfitError, UsageError
from provisioning.files import hash_file

SBOM, EVIDENCE, SIGNING = "sbom.cdx.json", "evidence", "signing"
PACKAGE = "cyclonedx"
# The namespace of serial numbers, chosen once.
NAMESPACE = uuid.UUID("4f4d1c3e-6a51-5f0e-9a5c-0d3c5a3f7c11")


@dataclass(frozen=True)
class Part:
    """A file of a bundle, as an SBOM lists it. ``needs`` lists the names of the libraries that it
    links to."""

    name: str
    sha256: str
    version: str = ""
    needs: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The file's component type in CycloneDX."""
        if self.name.endswith(".pte"):
            return "machine-learning-model"
        return "library" if ".so" in self.name else "application"


def has_sbom_library() -> bool:
    """Return whether the library that writes an SBOM is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def write_sbom(target: Path, name: str, digest: str, parts: Sequence[Part]) -> None:
    """Write a CycloneDX 1.6 document that lists a bundle's files and their dependencies, but not
    their licences. The document's serial number is computed from ``digest``.

    Needs cyclonedx-python-lib. Raises UsageError if SOURCE_DATE_EPOCH is not a valid time.
    """
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    bom = Bom(serial_number=uuid.uuid5(NAMESPACE, digest))
    bom.metadata.timestamp = read_clock()[0]
    root = Component(name=name, version=digest, type=ComponentType.APPLICATION, bom_ref=name)
    bom.metadata.component = root
    made = {
        part.name: Component(
            name=part.name,
            version=part.version or None,
            type=ComponentType(part.kind),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=part.sha256)],
            bom_ref=part.name,
        )
        for part in parts
    }
    for part in parts:
        bom.components.add(made[part.name])
        needed = [made[one] for one in part.needs if one in made and one != part.name]
        bom.register_dependency(made[part.name], needed)
    bom.register_dependency(root, made.values())
    target.write_text(JsonV1Dot6(bom).output_as_string(indent=1) + "\n", encoding="utf-8")


def find_evidence(programs: Iterable[Path], folder: Path) -> dict[Path, Path]:
    """Return the path of each program's statement in ``folder``. Programs without a statement are
    left out. Raises UnfitError if a statement does not match its program or does not record a pass,
    and UsageError if no program has a statement."""
    found: dict[Path, Path] = {}
    for program in programs:
        sha256 = hash_file(program)
        path = folder / f"{sha256}{SUFFIX}"
        if not path.is_file():
            continue
        build = find_qnn_build(program)
        try:
            statement = parse_statement(read_bytes(path))
            faults = list(find_faults(statement, sha256, build.text if build else "", None))
        except ValueError as error:
            faults = [str(error)]
        if faults:
            raise UnfitError(
                f"{path.name} does not prove that {program.name} passed",
                why="; ".join(faults),
                fix=f"`qnn-ci verify-evidence {program} --evidence {path}` shows every fault",
            )
        found[program] = path
    if not found:
        raise UsageError(
            f"--evidence {folder} contains no statement about any program in this bundle",
            fix="pass reports/test_emulator/evidence of a run that judged one of the programs",
        )
    return found


def copy_evidence(statements: Mapping[Path, Path], target: Path) -> None:
    """Copy statements to ``target``."""
    target.mkdir()
    for path in statements.values():
        shutil.copyfile(path, target / path.name)


def list_signed(folder: Path) -> dict[str, Path]:
    """Return the signed libraries that `sign` wrote to ``folder``, keyed by file name. Raises
    UnfitError if a file in the folder does not match its record."""
    if faults := check_record(folder):
        raise UnfitError(
            f"{folder} is not the output of `qnn-ci sign`",
            why="; ".join(faults),
            fix="sign the libraries again",
        )
    ours = {RECORD_NAME, STATEMENT_NAME, LOG_NAME}
    return {path.name: path for path in folder.iterdir() if path.name not in ours}


def copy_record(folder: Path, target: Path) -> None:
    """Copy the record of signed libraries to ``target``."""
    target.mkdir()
    for name in (RECORD_NAME, STATEMENT_NAME):
        shutil.copyfile(folder / name, target / name)
