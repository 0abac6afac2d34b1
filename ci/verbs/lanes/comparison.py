"""Compare the cases that ran in both lanes: accuracy, size, delegation and time, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ci.models.schemes import Scheme
from ci.report.schema import Case, Report
from ci.report.text import show_bytes, show_decibels, show_seconds, show_share

# ONNX Runtime's schemes -> ExecuTorch's with the same bits, whose weights have a scale per channel.
TWINS = {
    Scheme.FP16: Scheme.FP16,
    Scheme.U8: Scheme.A8W8,
    Scheme.U8_CHANNEL: Scheme.A8W8,
    Scheme.U16A8W: Scheme.A16W8,
    Scheme.U16A8W_CHANNEL: Scheme.A16W8,
    Scheme.U16A16W: Scheme.A16W16,
    Scheme.U16A4W: Scheme.A16W4,
}
FIGURES: dict[str, Callable[[Case], str]] = {
    "status": lambda case: case.status.value,
    "SQNR dB": lambda case: show_decibels(case.sqnr_db, case.max_abs),
    "size": lambda case: show_bytes(case.pte_bytes),
    "delegated": lambda case: show_share(case.delegated_nodes, case.fallback_nodes),
    "compile s": lambda case: show_seconds(case.lower_s),
}
HEAD = ("model", "SoC", "schemes", *FIGURES)


def find_pairs(executorch: Report, onnx: Report) -> Iterator[tuple[Case, Case]]:
    """Yield pairs of cases with the same model, SoC and number of bits, in the order of
    ``onnx``."""
    known = {(case.model, case.scheme, case.soc): case for case in executorch.cases}
    for case in onnx.cases:
        scheme = TWINS.get(Scheme(case.scheme))
        twin = scheme and known.get((case.model, scheme.value, case.soc))
        if twin:
            yield twin, case


def compare_lanes(executorch: Report, onnx: Report) -> str:
    """Return a Markdown table with cells such as ``ExecuTorch / ONNX Runtime``. Return a sentence
    if no case is in both reports."""
    rows = [
        (
            onnx_case.model,
            onnx_case.soc,
            f"{twin.scheme} / {onnx_case.scheme}",
            *(f"{show(twin)} / {show(onnx_case)}" for show in FIGURES.values()),
        )
        for twin, onnx_case in find_pairs(executorch, onnx)
    ]
    if not rows:
        return "No case is in both reports.\n"
    widths = [max(len(row[column]) for row in [HEAD, *rows]) for column in range(len(HEAD))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [HEAD, tuple("-" * width for width in widths), *rows]
    ]
    return "ExecuTorch / ONNX Runtime\n\n" + "\n".join(lines) + "\n"
