"""Reads a log together with the bundle that it is about: error numbers, the version of QNN and the
SoC that the log names, and which findings on the bundle explain them. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from ci.inspect.compat import Runtime
from ci.inspect.files import inspect_file, read_runtime
from ci.inspect.genie import BinaryFile, GenieFolder, read_genie, require_config
from ci.inspect.genie_checks import judge_genie
from ci.inspect.genie_keys import read_keys
from provisioning.doctor.registry import Finding, Severity
from provisioning.manifest.targets import read_all_socs
from provisioning.versions import parse_version

SUFFIX = ".litertlm"
NUMBER = re.compile(
    rb"(?i)\b(?:err(?:or)?(?: code)?|status|returned|result)\b[ :=#\"]{1,4}"
    rb"(0x[0-9a-f]{3,4}|\d{4,5})\b"
)
# A build of QNN, as its libraries print it: v2.42.0.251225135753_193295.
BUILD = re.compile(rb"\bv?(2\.\d{1,3}\.\d{1,3})\.\d{6,14}")
SOC = re.compile(rb"\b(?:SM|SA|SC|SXR|QCM|QCS|QRB|SAR|SSG)\d{3,4}[A-Z]{0,2}\b")
CONTEXT = re.compile(rb"(?i)context[ -]index\s*[=:]?\s*(\d{1,3})\b")
DIALOG = re.compile(rb"(?i)create (?:the )?(?:genie )?dialog|Failed to create NPU|Failed to load")
LINE_BYTES, MOST_KEPT = 4096, 64  # of a line and of the lines with a number


class ErrorNumber(NamedTuple):
    """An error number, and the context that its line names by its place in ctx-bins; None if it
    names none."""

    number: int
    context: int | None = None

    def is_about(self, finding: Finding, parts: Sequence[str]) -> bool:
        """Return whether a finding may explain this error. ``parts`` are the names of the contexts'
        files. A finding on one part does not explain why another one was refused."""
        named = [part for part in parts if part in (finding.subject, *finding.what.split())]
        if self.context is None or self.context >= len(parts) or not named:
            return True
        return parts[self.context] in named


@dataclass
class LogFacts:
    """What a log says of a bundle: error numbers, each with its first line, the first line that
    says that a model could not be loaded (0 without one), and the versions of QNN and the SoCs that
    it names, each with its first line."""

    numbers: dict[ErrorNumber, int] = field(default_factory=dict)
    not_loaded: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    socs: dict[str, int] = field(default_factory=dict)
    lines: int = 0
    open_line: bytes = b""

    def read(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the parts of a log unchanged, and note what they say."""
        for part in parts:
            *lines, self.open_line = (self.open_line + part).split(b"\n")
            for line in lines:
                self._read_line(line[:LINE_BYTES])
            self.open_line = self.open_line[-LINE_BYTES:]
            yield part
        self._read_line(self.open_line)

    def _read_line(self, line: bytes) -> None:
        self.lines += 1
        named = CONTEXT.search(line)
        context = int(named[1]) if named else None
        for match in NUMBER.finditer(line):
            if len(self.numbers) < MOST_KEPT:
                error = ErrorNumber(int(match[1], 0), context)
                self.numbers.setdefault(error, self.lines)
        if not self.not_loaded and DIALOG.search(line):
            self.not_loaded = self.lines
        for pattern, names in ((BUILD, self.versions), (SOC, self.socs)):
            for match in pattern.finditer(line):
                if len(names) < MOST_KEPT:
                    names.setdefault(match[match.lastindex or 0].decode(), self.lines)

    def find_version(self) -> str:
        """Return the version of QNN that the log names, "" if it names none or several."""
        return next(iter(self.versions)) if len(self.versions) == 1 else ""

    def find_soc(self) -> str:
        """Return the SoC that the log names, "" if it names none or several that are known."""
        socs = [name for name in self.socs if name in read_all_socs()]
        return socs[0] if len(socs) == 1 else ""


class Explained(Struct, frozen=True):
    """A finding on a bundle: its id, what is wrong, its consequence and its remedy. ``lines`` are
    those of the log that it explains, each with what is there, such as ``err 5000``."""

    id: str
    severity: str
    what: str
    why: str
    fix: str
    lines: tuple[tuple[int, str], ...] = ()


class BundleExplanation(Struct, frozen=True):
    """What a bundle says about a log. ``soc`` and ``qnn`` are those that were compared, and where
    they come from. ``open_lines`` are the errors of the log that no finding explains."""

    bundle: str
    soc: str
    qnn: str
    findings: tuple[Explained, ...]
    open_lines: tuple[tuple[int, str], ...]

    @property
    def has_errors(self) -> bool:
        """Return whether something keeps the bundle from loading."""
        return any(finding.severity == Severity.ERROR.value for finding in self.findings)


def explain_bundle(
    path: Path, facts: LogFacts, soc: str = "", runtime_name: str = ""
) -> BundleExplanation:
    """Return which findings on a bundle explain a log: a folder for Genie, or a .litertlm file.
    ``soc`` and ``runtime_name``, as for inspect, precede what the log names. Raises UsageError if
    there is no bundle."""
    chosen_soc, version = soc or facts.find_soc(), "" if runtime_name else facts.find_version()
    folder = read_folder(path, chosen_soc, runtime_name or version)
    reasons = read_keys().explains
    parts = list_parts(folder)
    findings: list[Explained] = []
    explained_lines: set[tuple[int, str]] = set()
    for finding in sort_findings(judge_genie(folder)):
        lines: list[tuple[int, str]] = []
        for error, line in facts.numbers.items():
            is_reason = finding.id in reasons.get(str(error.number), ())
            if is_reason and error.is_about(finding, parts):
                lines.append((line, f"err {error.number}"))
        if facts.not_loaded and finding.severity is Severity.ERROR and not lines:
            lines.append((facts.not_loaded, "the model is not loaded"))
        explained_lines.update(lines)
        findings.append(
            Explained(
                finding.id,
                finding.severity.value,
                finding.what,
                finding.why,
                finding.fix,
                tuple(lines),
            )
        )
    error_lines = [
        (line, f"err {error.number}")
        for error, line in facts.numbers.items()
        if str(error.number) in reasons
    ]
    open_lines = [line for line in error_lines if line not in explained_lines]
    return BundleExplanation(
        path.name,
        _show_origin(chosen_soc, soc, facts.socs),
        _show_origin(folder.runtime.qnn if folder.runtime else "", runtime_name, facts.versions),
        tuple(findings),
        tuple(open_lines),
    )


def list_parts(folder: GenieFolder) -> list[str]:
    """Return the names of the contexts' files in the order of ctx-bins, also of missing ones: the
    runtime counts them in this order."""
    if names := folder.part_names:
        return [Path(str(name)).name for name in names]
    return [binary.name for binary in folder.binaries]


def read_folder(path: Path, soc: str, runtime_name: str) -> GenieFolder:
    """Return a folder for Genie, or a .litertlm file as a folder whose parts are its compiled
    models. Raises UsageError for anything else."""
    if path.suffix.lower() != SUFFIX:
        return read_genie(path, require_config(path), soc, runtime_name)
    inspected = inspect_file(path)
    sections = inspected.bundle.sections if inspected.bundle else ()
    binaries = [BinaryFile(path.name, inspected.size_bytes, None, inspected.damage)]
    if not inspected.damage:
        models = [section.model for section in sections if section.model]
        binaries = [
            BinaryFile(model.file, model.size_bytes, model) for model in models if model.contexts
        ]
    runtime: Runtime | None = read_runtime(runtime_name) if runtime_name else None
    return GenieFolder(path.name, path.name, {}, binaries=tuple(binaries), runtime=runtime, soc=soc)


def sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return errors before warnings and notes."""
    order = [*Severity]
    return sorted(findings, key=lambda finding: (order.index(finding.severity), finding.id))


def _show_origin(value: str, option: str, lines: dict[str, int]) -> str:
    """Return a value and where it comes from."""
    if not value:
        return ""
    line = next((line for name, line in lines.items() if _is_same(name, value)), 0)
    return value if option or not line else f"{value}, from line {line}"


def _is_same(name: str, value: str) -> bool:
    try:
        return name == value or parse_version(name) == parse_version(value)
    except ValueError:
        return False
