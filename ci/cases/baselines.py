"""Figures of the suite's cases, recorded once a toolchain: manifests/baselines/TOOLCHAIN.toml.

The emulator's outputs are the same bits each time, so that figures move only with the toolchain,
the suite or the lowering code. A limit for all models is far from most of them; this is near.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from ci.judging.verdict import CaseFigures
from ci.models.suite import SUITE
from ci.report.schema import Case, Report, Status, Tool
from provisioning.files import explain_writes, write_whole
from provisioning.manifest.reader import manifests_root, read_toml
from provisioning.manifest.targets import Backend

# Float references differ in their last bits from host to host; a figure moves by less than this.
MAX_CHANGE_DB = 3.0
HEAD = (
    "# Figures in dB of right outputs. Written by ./nox -s test_emulator -- --record\n\n[cases]\n"
)


class Baseline(Struct, frozen=True, forbid_unknown_fields=True):
    """The recorded SQNR of a case in dB, against the float32 and the quantized model."""

    sqnr_db: float
    sqnr_db_quantized: float | None = None


class Baselines(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of them, by "MODEL SCHEME SOC"."""

    cases: dict[str, Baseline]


def baselines_path(tools: Iterable[Tool], backend: str = Backend.HTP.value) -> Path:
    """The file of a toolchain, relative to manifests/: named after the lane, QNN and a backend
    other than HTP."""
    parts = sorted(f"{tool.name}-{tool.version}" for tool in tools if is_part(tool.name))
    parts += [backend] if backend != Backend.HTP.value else []
    return Path("baselines", f"{'-'.join(parts)}.toml")


def is_part(name: str) -> bool:
    """Whether figures depend on an artifact or package to be told apart by it."""
    return name in {"executorch", "onnxruntime"} or name.startswith("qnn-")


def read_baselines(
    tools: Iterable[Tool], backend: str = Backend.HTP.value
) -> Mapping[str, Baseline]:
    """What was recorded for the toolchain and backend; nothing for another one. Raises
    ManifestError."""
    path = baselines_path(tools, backend)
    if not (manifests_root() / path).is_file():
        return {}
    return read_toml(str(path), Baselines).cases


def name_case(model: str, scheme: str, soc: str) -> str:
    return f"{model} {scheme} {soc}"


def find_changes(figures: CaseFigures, baseline: Baseline) -> Iterator[str]:
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


def record_baselines(report: Report) -> Path:
    """Write the figures of the suite's cases that passed, beside those recorded before.

    Returns the file. Raises StoreError when it cannot be written.
    """
    known = dict(read_baselines(report.toolchain, report.backend))
    for case in report.cases:
        if case.status is Status.PASSED and case.model in SUITE and case.sqnr_db is not None:
            known[name_case(case.model, case.scheme, case.soc)] = _round(case)
    path = manifests_root() / baselines_path(report.toolchain, report.backend)
    with explain_writes(path, fix="record in a checkout that can be written"):
        write_whole(path, HEAD + "".join(f"{row}\n" for row in map(_write, sorted(known.items()))))
    return path


def _round(case: Case) -> Baseline:
    quantized = case.sqnr_db_quantized
    return Baseline(
        round(case.sqnr_db or 0.0, 1), None if quantized is None else round(quantized, 1)
    )


def _write(entry: tuple[str, Baseline]) -> str:
    name, baseline = entry
    figures = f"sqnr_db = {baseline.sqnr_db}"
    if baseline.sqnr_db_quantized is not None:
        figures += f", sqnr_db_quantized = {baseline.sqnr_db_quantized}"
    return f'"{name}" = {{ {figures} }}'
