"""Reads and writes baselines: the SQNR and footprint that were recorded for each case. There is one
file per toolchain and backend.

The suite's baselines are in manifests/baselines/TOOLCHAIN.toml. Baselines of a policy's models are
in qnn-baselines/TOOLCHAIN.toml next to qnn.toml. The emulator is deterministic, so the numbers
change only with the toolchain, the model or the lowering code. A baseline is therefore a tighter
limit than one SQNR limit for all models.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from ci.models.suite import OWN_MODELS
from ci.report.schema import Case, Decibels, Footprint, JudgementFacts, Report, Status, Tool
from provisioning.files import explain_writes, write_whole
from provisioning.manifest.reader import manifests_root, read_toml
from provisioning.manifest.targets import Backend

if TYPE_CHECKING:  # it imports numpy, which ci.gate does not need
    from ci.judging.verdict import CaseFigures

# Float references differ in their last bits between hosts. That changes the SQNR by less than this.
MAX_CHANGE_DB = 3.0
HEAD = (
    "# SQNR in dB against the float32 and the quantized model, and the footprint. Written by"
    " --record\n\n[cases]\n"
)


class Baseline(Struct, frozen=True, forbid_unknown_fields=True):
    """The recorded figures of a case: its SQNR in dB against the float32 and the quantized model,
    and its footprint without the parts that differ between hosts."""

    sqnr_db: Decibels
    sqnr_db_quantized: Decibels | None = None
    footprint: Footprint | None = None


class Baselines(Struct, frozen=True, forbid_unknown_fields=True):
    """A baselines file. The keys of ``cases`` are "MODEL SCHEME SOC"."""

    cases: dict[str, Baseline]


def suite_folder() -> Path:
    """Return the directory of the suite's baselines."""
    return manifests_root() / "baselines"


def users_folder(policy: Path | None) -> Path | None:
    """Return the baselines directory of a policy: ``qnn-baselines`` for ``qnn.toml``. Return None
    without a policy."""
    return policy.with_name(f"{policy.stem}-baselines") if policy else None


def name_figures(tools: Iterable[Tool], backend: str = Backend.HTP.value) -> str:
    """Return the name of a toolchain's baselines file. It consists of the names and versions of
    ExecuTorch or ONNX Runtime and of QNN, followed by the backend unless that is HTP."""
    engines = ("executorch", "onnxruntime")
    named = (tool for tool in tools if tool.name in engines or tool.name.startswith("qnn-"))
    parts = sorted(f"{tool.name}-{tool.version}" for tool in named)
    parts += [backend] if backend != Backend.HTP.value else []
    return f"{'-'.join(parts).replace('/', '_')}.toml"


def read_baselines(
    tools: Iterable[Tool],
    backend: str = Backend.HTP.value,
    folder: Path | None = None,
    without: Collection[str] = (),
) -> Mapping[str, Baseline]:
    """Return the baselines of a toolchain and backend from ``folder``, by default the suite's
    directory, except those of the models ``without``. The result is empty if there is no such
    file. Raises ManifestError if the file is invalid."""
    path = (folder or suite_folder()) / name_figures(tools, backend)
    recorded = read_toml(path.name, Baselines, path.parent).cases if path.is_file() else {}
    return {
        case: baseline
        for case, baseline in recorded.items()
        if case.partition(" ")[0] not in without
    }


def find_changes(figures: JudgementFacts | CaseFigures, baseline: Baseline) -> Iterator[str]:
    """Yield a message for each SQNR that is above or below its baseline by more than
    MAX_CHANGE_DB."""
    pairs = (
        (figures.sqnr_db, baseline.sqnr_db, "float32"),
        (figures.sqnr_db_quantized, baseline.sqnr_db_quantized, "quantized"),
    )
    for now, recorded, against in pairs:
        if recorded is not None and now is not None:
            change = now - recorded
            # Negated, so that a NaN is a change, too.
            if not abs(change) <= MAX_CHANGE_DB:
                yield (
                    f"SQNR {now:.1f} dB against the {against} model is {abs(change):.1f} dB"
                    f" {'above' if change > 0 else 'below'} the {recorded:.1f} dB recorded for"
                    " this toolchain"
                )


def record_baselines(
    report: Report, folder: Path | None = None, models_of_policy: Collection[str] = ()
) -> list[Path]:
    """Record the SQNR and footprint of each case that passed and has an SQNR. The baselines of
    other cases do not change. Cases of a policy's models are recorded in ``folder``, or not at all
    if it is None. ``models_of_policy`` are not the suite's, even if it has models of that name.

    Returns the written files. Raises StoreError if a file cannot be written.
    """
    written = []
    for place, is_suite in ((suite_folder(), True), (folder, False)):
        passed = {
            str(case): _round(case)
            for case in report.cases
            if case.judgement.status is Status.PASSED and case.judgement.sqnr_db is not None
            if (case.model in OWN_MODELS and case.model not in models_of_policy) is is_suite
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
    quantized = case.judgement.sqnr_db_quantized
    footprint = case.program.footprint and structs.replace(
        case.program.footprint, graphs=(), operators=(), lowering_memory_bytes=None
    )
    return Baseline(
        round(case.judgement.sqnr_db or 0.0, 1),
        None if quantized is None else round(quantized, 1),
        footprint,
    )


def _write(entry: tuple[str, Baseline]) -> str:
    name, baseline = entry
    figures = f"sqnr_db = {baseline.sqnr_db}"
    if baseline.sqnr_db_quantized is not None:
        figures += f", sqnr_db_quantized = {baseline.sqnr_db_quantized}"
    if baseline.footprint:
        figures_of_footprint = structs.asdict(baseline.footprint)
        entries = ", ".join(
            f"{key} = {figures_of_footprint[key]}"
            for key in figures_of_footprint
            if isinstance(figures_of_footprint[key], int)
        )
        figures += f", footprint = {{ {entries} }}"
    return f'"{name}" = {{ {figures} }}'
