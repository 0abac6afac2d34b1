"""What the benchmark of a first run counts for which part, and how it shows that."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.bench import first


def test_a_part_within_another_counts_only_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: Iterator[int] = iter(range(100, 200))
    monkeypatch.setattr(first.time, "process_time", lambda: next(seconds))
    clock = first.Clock()
    owner = SimpleNamespace(export=lambda: "program")

    def lower() -> str:
        return owner.export() + owner.export()

    owner.lower = lower
    clock.watch(owner, "export", first.EXPORTS)
    clock.watch(owner, "lower", first.PASSES)
    assert owner.lower() == "programprogram"
    clock.note()
    assert clock.seconds == {first.OTHER: 2, first.PASSES: 3, first.EXPORTS: 2}


def test_the_ways_are_shown_side_by_side_and_the_parts_by_their_share() -> None:
    row = {"wall_s": 2.04, "cpu_s": 1.0}
    figures = {
        "uv": {"nox": row, "packages": row},
        "pip": {"nox": row, "packages": {"wall_s": 34.3, "cpu_s": 18.8}},
        "wheel": row,
        "lowering_cpu_s": {first.EXPORTS: 1.0, first.PASSES: 3.0},
        "load_average": 1.5,
        "cores": 2,
    }
    assert first.render_bench(figures).splitlines() == [
        "from empty caches                                   uv                   pip",
        "  nox                                  2.0 s (1.0 CPU)       2.0 s (1.0 CPU)",
        "  packages                             2.0 s (1.0 CPU)     34.3 s (18.8 CPU)",
        "  QNN wheel, fetched by us             2.0 s (1.0 CPU)",
        "6 programs, CPU time of one process: 4.0 s",
        "  ExecuTorch's passes                3.0 s    75%",
        "  torch.export                       1.0 s    25%",
        "load average 1.5, 2 cores",
    ]
