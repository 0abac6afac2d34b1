"""Figures of cases, recorded once a toolchain: manifests/baselines/TOOLCHAIN.toml has those of the
suite, qnn-baselines/TOOLCHAIN.toml next to qnn.toml those of this policy's models.

The emulator's outputs are the same bits each time, so that figures move only with the toolchain,
the model or the lowering code. A limit for all models is far from most of them; this is near.
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

if TYPE_CHECKING:  # it brings numpy, which ci.gate does without
    from ci.judging.verdict import CaseFigures

# Float references differ in their last bits from host to host; a figure moves by less than this.
MAX_CHANGE_DB = 3.0
HEAD = (
    "# SQNR in dB against the float32 and the quantized model, and the footprint. Written by"
    " --record\n\n[cases]\n"
)


class Baseline(Struct, frozen=True, forbid_unknown_fields=True):
    """The recorded SQNR of a case in dB, against the float32 and the quantized model, and what of
    its footprint is the same each time."""

    sqnr_db: float
    sqnr_db_quantized: float | None = None
    footprint: Footprint | None = None


class Baselines(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of them, by "MODEL SCHEME SOC"."""

    cases: dict[str, Baseline]


def suite_folder() -> Path:
    """Where the suite's figures are."""
    return manifests_root() / "baselines"


def users_folder(policy: Path | None) -> Path | None:
    """Where the figures of a policy's models are: ``qnn-baselines`` next to ``qnn.toml``."""
    return policy.with_name(f"{policy.stem}-baselines") if policy else None


def name_figures(tools: Iterable[Tool], backend: str = Backend.HTP.value) -> str:
    """The file of a toolchain in a folder of figures: named after the lane, QNN and a backend other
    than HTP."""
    parts = sorted(f"{tool.name}-{tool.version}" for tool in tools if is_part(tool.name))
    parts += [backend] if backend != Backend.HTP.value else []
    return f"{'-'.join(parts).replace('/', '_')}.toml"


def is_part(name: str) -> bool:
    """Whether figures depend on an artifact or package to be distinguished by it."""
    return name in {"executorch", "onnxruntime"} or name.startswith("qnn-")


def read_baselines(
    tools: Iterable[Tool], backend: str = Backend.HTP.value, folder: Path | None = None
) -> Mapping[str, Baseline]:
    """What was recorded for the toolchain and backend in a folder, by default the suite's; nothing
    for another one. Raises ManifestError."""
    path = (folder or suite_folder()) / name_figures(tools, backend)
    return read_toml(path.name, Baselines, path.parent).cases if path.is_file() else {}


def name_case(model: str, scheme: str, soc: str) -> str:
    return f"{model} {scheme} {soc}"


def find_changes(figures: Case | CaseFigures, baseline: Baseline) -> Iterator[str]:
    """How a case's figures differ from what was recorded, in either direction."""
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
    """Write the figures of the cases that passed, next to those recorded before: the suite's and,
    into ``folder``, those of a policy's models.

    Returns the files. Raises StoreError when one cannot be written.
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
            with explain_writes(path, fix="record in a checkout that can be written"):
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
