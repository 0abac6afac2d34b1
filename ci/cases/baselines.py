"""Recorded figures of cases, one file per toolchain: manifests/baselines/TOOLCHAIN.toml for the
suite, qnn-baselines/TOOLCHAIN.toml next to qnn.toml for the models of that policy.

The emulator's outputs are the same bits each time, so figures change only with the toolchain, the
model or the lowering code. One limit for all models is loose for most; a recorded figure is tight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from ci.models.suite import SUITE
from ci.report.schema import Case, Footprint, Report, Status, Tool
from provisioning.files import explain_writes, write_whole
from provisioning.manifest.reader import manifests_root, read_toml
from provisioning.manifest.targets import Backend

if TYPE_CHECKING:  # it imports numpy, which ci.gate does not need
    from ci.judging.verdict import CaseFigures

# Float references differ in their last bits between hosts; figures change by less than this.
MAX_CHANGE_DB = 3.0
HEAD = (
    "# SQNR in dB against the float32 and the quantized model, and the footprint. Written by"
    " --record\n\n[cases]\n"
)


class Baseline(Struct, frozen=True, forbid_unknown_fields=True):
    """The recorded SQNR of a case in dB, against the float32 and the quantized model, and the
    reproducible figures of its footprint."""

    sqnr_db: float
    sqnr_db_quantized: float | None = None
    footprint: Footprint | None = None


class Baselines(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of baselines by "MODEL SCHEME SOC"."""

    cases: dict[str, Baseline]


def suite_folder() -> Path:
    """Return the folder of the suite's figures."""
    return manifests_root() / "baselines"


def users_folder(policy: Path | None) -> Path | None:
    """Return the folder of figures for a policy's models, ``qnn-baselines`` for ``qnn.toml``."""
    return policy.with_name(f"{policy.stem}-baselines") if policy else None


def name_figures(tools: Iterable[Tool], backend: str = Backend.HTP.value) -> str:
    """Return the name of a toolchain's file of figures: the lane's package, QNN, and the backend
    unless it is HTP."""
    parts = sorted(f"{tool.name}-{tool.version}" for tool in tools if is_part(tool.name))
    parts += [backend] if backend != Backend.HTP.value else []
    return f"{'-'.join(parts).replace('/', '_')}.toml"


def is_part(name: str) -> bool:
    """Return whether figures are recorded per version of this artifact or package."""
    return name in {"executorch", "onnxruntime"} or name.startswith("qnn-")


def read_baselines(
    tools: Iterable[Tool], backend: str = Backend.HTP.value, folder: Path | None = None
) -> Mapping[str, Baseline]:
    """Return the figures recorded for a toolchain and backend in a folder, by default the suite's;
    empty if there are none. Raises ManifestError."""
    path = (folder or suite_folder()) / name_figures(tools, backend)
    return read_toml(path.name, Baselines, path.parent).cases if path.is_file() else {}


def name_case(model: str, scheme: str, soc: str) -> str:
    return f"{model} {scheme} {soc}"


def find_changes(figures: Case | CaseFigures, baseline: Baseline) -> Iterator[str]:
    """Yield how a case's figures differ from the recorded ones, in either direction."""
    pairs = (
        (figures.sqnr_db, baseline.sqnr_db, "float32"),
        (figures.sqnr_db_quantized, baseline.sqnr_db_quantized, "quantized"),
    )
    for now, recorded, against in pairs:
        if recorded is not None and now is not None:
            change = now - recorded
            if not abs(change) <= MAX_CHANGE_DB:
                yield (
                    f"SQNR {now:.1f} dB against the {against} model, {abs(change):.1f} dB"
                    f" {'above' if change > 0 else 'below'} the {recorded:.1f} dB recorded for"
                    " this toolchain"
                )


def record_baselines(report: Report, folder: Path | None = None) -> list[Path]:
    """Record the figures of the cases that passed, keeping those of other cases; figures of a
    policy's models go into ``folder``.

    Returns the written files. Raises StoreError if one cannot be written.
    """
    written = []
    for place, is_suite in ((suite_folder(), True), (folder, False)):
        passed = {
            name_case(case.model, case.scheme, case.soc): _round(case)
            for case in report.cases
            if case.status is Status.PASSED and case.sqnr_db is not None
            if (case.model in SUITE) is is_suite
        }
        if place and passed:
            rows = {**read_baselines(report.toolchain, report.backend, place), **passed}
            path = place / name_figures(report.toolchain, report.backend)
            with explain_writes(path, fix="record in a writable checkout"):
                path.parent.mkdir(parents=True, exist_ok=True)
                text = "".join(f"{row}\n" for row in map(_write, sorted(rows.items())))
                write_whole(path, HEAD + text)
            written.append(path)
    return written


def _round(case: Case) -> Baseline:
    quantized = case.sqnr_db_quantized
    footprint = case.footprint and structs.replace(
        case.footprint, graphs=(), operators=(), lowering_memory_bytes=None
    )
    return Baseline(
        round(case.sqnr_db or 0.0, 1),
        None if quantized is None else round(quantized, 1),
        footprint,
    )


def _write(entry: tuple[str, Baseline]) -> str:
    name, baseline = entry
    figures = f"sqnr_db = {baseline.sqnr_db}"
    if baseline.sqnr_db_quantized is not None:
        figures += f", sqnr_db_quantized = {baseline.sqnr_db_quantized}"
    if baseline.footprint:
        own = structs.asdict(baseline.footprint)
        given = ", ".join(f"{key} = {own[key]}" for key in own if isinstance(own[key], int))
        figures += f", footprint = {{ {given} }}"
    return f'"{name}" = {{ {figures} }}'
