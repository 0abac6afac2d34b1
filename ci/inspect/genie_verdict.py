"""Shows whether a folder for Genie can be loaded, with what is in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import msgspec

from ci.inspect.app_verdicts import LEAST_WIDTH
from ci.inspect.genie import BinaryFile, GenieFolder
from ci.inspect.genie_checks import judge_genie
from ci.inspect.genie_graphs import measure_caches
from provisioning.console.command import Outcome
from provisioning.doctor.examine import Verdict
from provisioning.doctor.registry import Finding
from provisioning.doctor.verdict_text import WIDTH, render_verdict
from provisioning.errors import ExitCode
from provisioning.sizes import show_size

SCHEMA_VERSION = 1


def check_genie(folder: GenieFolder, *, strict: bool) -> Outcome:
    """Judge a folder. The exit code is 1 for errors and, if ``strict`` is true, for warnings."""
    verdict = Verdict(folder.name, tuple(judge_genie(folder)))
    failed = bool(verdict.errors or (strict and verdict.warnings))
    columns = max(LEAST_WIDTH, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))
    lines = [f"{folder.name} (a folder for Genie, {folder.config_file})", *describe(folder), ""]
    text = "\n".join([*lines, render_verdict(verdict, strict=strict, width=columns)])
    return Outcome(text, make_data(folder, verdict), ExitCode.FAILED if failed else ExitCode.OK)


def describe(folder: GenieFolder) -> Iterator[str]:
    """Yield a line for each context binary, the tokenizer and the libraries, and the memory that
    weights and caches need at least."""
    for binary in folder.binaries:
        yield f"  {binary.name}: {', '.join(filter(None, describe_binary(binary)))}"
    total = sum(binary.size_bytes for binary in folder.binaries)
    caches = measure_caches(folder)
    yield (
        f"  memory: at least {show_size(total + caches)}, of which caches"
        f" {show_size(caches)}; how much a phone gives a process is not known here"
    )
    if folder.tokenizer:
        yield f"  tokenizer: ids up to {folder.tokenizer.vocabulary - 1}"
    if folder.runtime:
        version = f"QNN {folder.runtime.qnn or 'unknown'}"
        name = folder.runtime.name  # only the version, if no directory was passed
        yield f"  libraries: {version if name == version else f'{name}, {version}'}"


def describe_binary(binary: BinaryFile) -> Iterator[str]:
    """Yield what a context binary is: size, compiler, SoC, and graphs."""
    yield show_size(binary.size_bytes)
    for context in binary.contexts:
        yield f"QNN {context.qnn or 'unknown'}"
        yield f"{context.soc or 'no SoC'} V{context.hexagon}" if context.hexagon else context.soc
        names = [graph.name for graph in context.graphs]
        yield f"{len(names)} graphs" if len(names) > 2 else " and ".join(names)


class JudgedBinary(msgspec.Struct, frozen=True, kw_only=True):
    """A context binary of a folder: the versions of QNN that compiled it, its SoCs, its graphs."""

    file: str
    bytes: int
    qnn: tuple[str, ...]
    socs: tuple[str, ...]
    graphs: tuple[str, ...]


class JudgedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON that inspect prints for a folder (docs/schemas/genie.schema.json). ``fit`` is
    whether nothing was found that keeps Genie from loading it."""

    folder: str
    config: str
    soc: str
    runtime: str
    fit: bool
    binaries: tuple[JudgedBinary, ...]
    findings: tuple[Finding, ...]
    schema_version: int = SCHEMA_VERSION


def make_data(folder: GenieFolder, verdict: Verdict) -> Any:
    """Return the JSON form."""
    binaries = [
        JudgedBinary(
            file=binary.name,
            bytes=binary.size_bytes,
            qnn=tuple(sorted({context.qnn for context in binary.contexts})),
            socs=tuple(sorted({context.soc for context in binary.contexts})),
            graphs=tuple(graph.name for graph in binary.graphs),
        )
        for binary in folder.binaries
    ]
    return msgspec.to_builtins(
        JudgedFolder(
            folder=folder.name,
            config=folder.config_file,
            soc=folder.soc,
            runtime=folder.runtime.name if folder.runtime else "",
            fit=verdict.fit,
            binaries=tuple(binaries),
            findings=verdict.findings,
        )
    )
