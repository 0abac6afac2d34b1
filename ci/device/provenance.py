"""Write the documents of a bundle: an SBOM, evidence for its programs, the record of its signed
libraries, and instructions and a script for running it without this toolkit, for example in a
device farm."""

from __future__ import annotations

import importlib.util
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from ci.device.connection import SCRIPTS
from ci.report.evidence import SUFFIX, find_faults, parse_statement
from ci.report.filled import fill_text
from ci.signing.record import LOG_NAME, RECORD_NAME, STATEMENT_NAME, check_record
from provisioning.console.caller import read_clock
from provisioning.documents import DocumentError, read_bytes, read_json, read_text
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.errors import UnfitError, UsageError
from provisioning.files import hash_file
from provisioning.quoting import show_command

BY_HAND, RUN_CASES, CASES = "by-hand.md", "run-cases.sh", "cases"
PROGRAM, INPUT_LIST = "program.pte", "input_list.txt"
# Also defined in ci.cases.cache and ci.cases.engine, which import packages that staging does not
# need.
RECORD, INPUTS, FILE = "artifact.json", "inputs", "{}_{}.raw"


class KeptProgram(msgspec.Struct, frozen=True):
    """A program that a run kept: its file name, the number of its samples, and its input
    tensors."""

    program: str
    sets: int
    inputs: tuple[object, ...]


class KeptRecord(msgspec.Struct, frozen=True):
    """The part of a kept program's record that is needed to run it."""

    compiled: KeptProgram


def write_by_hand(bundle: Path, runner: str, kept_cases: Path | None, *, android: bool) -> None:
    """Write the instructions into a bundle for Android or for Linux. If ``kept_cases`` is a
    directory in which a run kept cases, also add their files and a script that runs them. Raises
    UsageError if that directory contains no case or a damaged record."""
    text = fill_text(
        f"device/scripts/{BY_HAND}.j2", runner=runner, kept=kept_cases, android=android
    )
    if kept_cases:
        for artifact in list_artifacts(kept_cases):
            copy_case(artifact, bundle / CASES / artifact.parent.name)
        script = read_text(SCRIPTS / RUN_CASES).replace("@runner@", runner)
        (bundle / RUN_CASES).write_text(script, encoding="utf-8")
        # write_text keeps no executable bit.
        (bundle / RUN_CASES).chmod(0o755)
    (bundle / BY_HAND).write_text(text, encoding="utf-8")


def list_artifacts(kept_cases: Path) -> list[Path]:
    """Return the directories of the programs that a run kept. Raises UsageError if there are
    none."""
    artifacts = sorted(path.parent for path in kept_cases.glob(f"*/artifact/{RECORD}"))
    if not artifacts:
        raise UsageError(
            f"{kept_cases} contains no case",
            fix="pass the directory that test_emulator wrote for --keep-artifacts",
        )
    return artifacts


def list_programs(kept_cases: Path | None) -> Iterator[Path]:
    """Yield the programs that a run kept in the directory ``kept_cases``. Yield nothing if it is
    None. Raises UsageError if the directory contains no case or a damaged record."""
    for artifact in list_artifacts(kept_cases) if kept_cases else ():
        yield artifact / read_kept(artifact).program


def read_kept(directory: Path) -> KeptProgram:
    """Return the part of a kept program's record that is needed to run it. Raises UsageError if the
    record is damaged."""
    try:
        return read_json(directory / RECORD, KeptRecord).compiled
    except DocumentError as error:
        raise UsageError(f"{directory / RECORD} is damaged", why=str(error)) from error


def copy_case(artifact: Path, target: Path) -> None:
    """Copy a program and its inputs to ``target``, and write the runner's list of inputs."""
    compiled = read_kept(artifact)
    target.mkdir(parents=True)
    shutil.copyfile(artifact / compiled.program, target / PROGRAM)
    rows = []
    for number in range(compiled.sets):
        names = [FILE.format(number, index) for index in range(len(compiled.inputs))]
        for name in names:
            shutil.copyfile(artifact / INPUTS / name, target / name)
        rows.append(" ".join(names))
    (target / INPUT_LIST).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


SBOM, EVIDENCE, SIGNING = "sbom.cdx.json", "evidence", "signing"
PACKAGE = "cyclonedx"
# The namespace of serial numbers, chosen once.
NAMESPACE = uuid.UUID("4f4d1c3e-6a51-5f0e-9a5c-0d3c5a3f7c11")


class BundleFile(msgspec.Struct, frozen=True):
    """A file of a bundle. ``qnn`` is the QNN build recorded in the file, or empty."""

    name: str
    sha256: str
    size_bytes: int
    qnn: str = ""


def has_sbom_library() -> bool:
    """Return whether the library that writes an SBOM is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def write_sbom(
    target: Path, name: str, digest: str, parts: Mapping[BundleFile, Sequence[str]]
) -> None:
    """Write a CycloneDX 1.6 document that lists a bundle's files, and for each the names of the
    libraries that it needs, but not their licences. The serial number of the document is computed
    from ``digest``.

    Needs cyclonedx-python-lib. Raises UsageError if SOURCE_DATE_EPOCH is not a valid time.
    """
    # A format with a schema and rules is left to its library, which only this function needs.
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    # Not a random number: equal bundles have equal documents.
    bom = Bom(serial_number=uuid.uuid5(NAMESPACE, digest))
    bom.metadata.timestamp = read_clock()[0]
    root = Component(name=name, version=digest, type=ComponentType.APPLICATION, bom_ref=name)
    bom.metadata.component = root
    components = {}
    for part in parts:
        kind = ComponentType.LIBRARY if ".so" in part.name else ComponentType.APPLICATION
        if part.name.endswith(".pte"):
            kind = ComponentType.MACHINE_LEARNING_MODEL
        components[part.name] = Component(
            name=part.name,
            version=part.qnn or None,
            type=kind,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=part.sha256)],
            bom_ref=part.name,
        )
    for part, needs in parts.items():
        bom.components.add(components[part.name])
        needed = [components[need] for need in needs if need in components and need != part.name]
        bom.register_dependency(components[part.name], needed)
    bom.register_dependency(root, components.values())
    target.write_text(JsonV1Dot6(bom).output_as_string(indent=1) + "\n", encoding="utf-8")


def find_evidence(programs: Iterable[Path], folder: Path) -> dict[Path, Path]:
    """Return the path of each program's statement in ``folder``. Programs without a statement are
    left out. Raises UnfitError if a statement does not match its program or does not record a pass,
    and UsageError if no program has a statement."""
    statements: dict[Path, Path] = {}
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
            command = show_command("verify-evidence", str(program), "--evidence", str(path))
            raise UnfitError(
                f"{path.name} does not prove that {program.name} passed",
                why="; ".join(faults),
                fix=f"{command} shows every fault",
            )
        statements[program] = path
    if not statements:
        raise UsageError(
            f"--evidence {folder} contains no statement about any program in this bundle",
            fix="pass reports/test_emulator/evidence of a run that judged one of the programs",
        )
    return statements


def copy_files(paths: Iterable[Path], target: Path) -> None:
    """Copy files to the directory ``target``, which is created for the first of them."""
    for path in paths:
        target.mkdir(exist_ok=True)
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
