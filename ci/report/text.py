"""Make text from models, logs and tools safe to show, and format figures in few characters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ci.report.schema import CaseName, NoiseNote, Report, Summary
from provisioning.console.terminal import clean, defuse_commands
from provisioning.sizes import show_size

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
NAME_CHARS = 32  # of a model's shown name
ROW_CHARS = 1000  # names in programs may be of any length
Names = Mapping[str, str]  # the shown names of models


def clean_log_line(text: str) -> str:
    """Return ``text`` on one line. No CI runner interprets it as a command, unless it is at the
    start of an output line."""
    return defuse_commands(" ".join(clean(text).split()))


def clean_name(text: str) -> str:
    """Return ``text`` on one line that no CI runner interprets as a command, even at the start of
    an output line."""
    return clean_log_line(text).replace("::", ": :")


def show_row(text: str) -> str:
    """Return text from a program for the end of a row: on one line, so that it cannot pass for
    another row, and without its middle if it has more than ROW_CHARS characters."""
    return cut_middle(clean_log_line(text), ROW_CHARS)


def align_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return each row as a line, with its cells in columns of the same width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def name_some(names: Sequence[str], most: int) -> str:
    """Return text such as ``a, b and 3 more``: the first ``most`` names, and how many are left
    out."""
    remainder = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{remainder}"


def keep_end(text: str, most: int) -> str:
    """Return ``text``, or its end after an ellipsis if it has more than ``most`` characters. The
    end is kept because it is where paths differ."""
    return text if len(text) <= most else f"{ELLIPSIS}{text[1 - most :]}"


def name_models(paths: Iterable[str]) -> dict[str, str]:
    """Return the shown name of each model: the shortest end of its path that no other model has,
    such as ``resnet/model.onnx``. A name of more than NAME_CHARS characters loses its middle,
    unless two names would then be the same."""
    models = {*paths}
    counts = Counter(end for model in models for end in _list_ends(model))
    names = {}
    for model in models:
        unique = (end for end in _list_ends(model) if counts[end] == 1)
        names[model] = next(unique, model)
    cut = {model: cut_middle(name, NAME_CHARS) for model, name in names.items()}
    occurrences = Counter(cut.values())
    for model, name in names.items():
        if occurrences[cut[model]] > 1:
            cut[model] = name
    return cut


def name_case(case: CaseName, names: Names) -> str:
    """Return the shown name of a case, such as ``resnet/model.onnx u8 SM8650``."""
    return f"{names.get(case.model, case.model)} {case.scheme} {case.soc}"


def _list_ends(model: str) -> Iterator[str]:
    """Yield the last part of a path, its last two parts, and so on."""
    parts = model.split("/")
    return ("/".join(parts[place:]) for place in reversed(range(len(parts))))


def cut_middle(text: str, most: int) -> str:
    """Return ``text``, or its start and its end around an ellipsis if it has more than ``most``
    characters."""
    if len(text) <= most:
        return text
    start = (most - 1) // 3
    return f"{text[:start]}{ELLIPSIS}{text[start + 1 - most :]}"


def count(number: int, singular: str, many: str = "") -> str:
    """Return text such as ``1 case`` or ``2 cases``."""
    return f"{number} {singular if number == 1 else many or f'{singular}s'}"


def count_cases(number: int, jobs: int) -> str:
    """Return how many cases a run has, and how many of them at a time if there are several, such as
    ``3 cases, 2 at a time``."""
    cases = count(number, "case")
    return f"{cases}, {min(number, jobs)} at a time" if number > 1 else cases


def show_decibels(value: float | None, max_abs: float | None = None) -> str:
    """Return decibels as text such as ``41.2``. If ``value`` is None, return ``exact`` for equal
    outputs, or ``-`` if nothing was compared."""
    if value is None:
        return "exact" if max_abs == 0 else "-"
    # The sum makes 0.0 of -0.0.
    return f"{round(value, 1) + 0.0:.1f}"


def describe_note(note: NoiseNote) -> str:
    """Return a sentence on an error that noise does not explain, and why it does not matter."""
    start = f", from {note.label} on" if note.label else ""
    reached, predicted = show_decibels(note.sqnr_db), show_decibels(note.predicted_db)
    against = "float32" if note.sqnr_db_scheme is None else "quantized"
    sqnr_db, scheme = show_decibels(note.sqnr_db_float), show_decibels(note.sqnr_db_scheme)
    why = {
        "small": f"it raises the scheme's error there by {show_decibels(note.raised_db)} dB",
        "nearer": f"the program is nearer to float32 than the quantized model, {sqnr_db} dB against"
        f" {scheme}",
        "metric": "only single elements differ, and the metric is kept",
    }[note.why]
    return (
        f"the error of output {note.output} is {note.above_db:.1f} dB above the predicted noise in"
        f" {note.place} ({note.allowed_db:.1f} dB allowed){start}; SQNR {reached} dB against the"
        f" {against} model ({predicted} dB predicted); it does not matter: {why}"
    )


def show_seconds(value: float | None) -> str:
    """Return seconds with about three digits, such as ``0.005``, ``1.84``, ``12.3`` or ``340``."""
    if value is None:
        return "-"
    return f"{value:.{3 if value < 0.1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def show_bytes(value: int | None) -> str:
    """Return bytes as ``show_size`` does, or a dash."""
    return "-" if value is None else show_size(value)


def show_share(delegated: int | None, fallback: int | None) -> str:
    """Return text such as ``41/43``: the delegated nodes out of all nodes."""
    if delegated is None or fallback is None:
        return "-"
    return f"{delegated}/{delegated + fallback}"


def show_counts(summary: Summary) -> str:
    """Return text such as ``38 passed, 1 failed, 1 unsupported, 12 cached``."""
    counts = ("passed", "failed", "unsupported", "cached")
    return ", ".join(f"{getattr(summary, name)} {name}" for name in counts)


def show_work(report: Report) -> str:
    """Return text such as ``lowering 81.0, running 9.5, summed over workers``, in seconds. What an
    earlier run lowered is left out."""
    lowering = sum(case.program.lower_s or 0.0 for case in report.cases if not case.program.cached)
    running = sum(case.run.wall_s or 0.0 for case in report.cases)
    return f"lowering {lowering:.1f}, running {running:.1f}, summed over workers"
