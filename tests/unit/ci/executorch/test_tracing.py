"""A trace is of what was judged, or it proves nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ci.cases.engine import Compiled, Delegation, Program, RunNotes
from ci.cases.pool import Ended
from ci.cases.runners import PooledProgram
from ci.cases.spec import CaseSpec
from ci.executorch.engine import (
    DEBUG,
    DEBUG_BYTES,
    find_differences,
    make_runner,
    trace_run,
)
from ci.models.lowering_options import Choices, RunOptions
from ci.models.schemes import Scheme
from ci.models.user_models import Source

SETS = [[np.ones(3, np.float32)] for _ in range(4)]
JUDGED = [[np.zeros(2, np.float32)] for _ in range(4)]
COMPILED = Compiled(
    program="program.pte",
    binary="program.pte",
    size_bytes=9,
    sets=4,
    inputs=(),
    outputs=(),
    delegation=Delegation(3, 0, 2),
)


class TracingPool:
    """Gives ``outputs`` and figures where a traced run is asked for, or a failure."""

    def __init__(self, outputs: Any, failure: str = "") -> None:
        self.outputs, self.failure = outputs, failure
        self.jobs: list[Any] = []
        self.names: tuple[str, ...] = ("profile.csv",)

    def run(self, job: Any, log: Path, timeout_s: float, *, fresh: bool) -> Ended:
        assert (fresh, timeout_s) == (True, 9.0)
        assert log.name == "trace.log"  # next to that of the run, which it must not replace
        program, directory, sets, *debug_bytes = job.args
        assert program.directory == directory.parent
        self.jobs.append((len(sets), *debug_bytes))
        if self.failure != "was killed by SIGKILL":  # before it wrote anything
            (directory / DEBUG).write_bytes(bytes(9))
        if self.failure:
            return Ended(None, self.failure, "")
        result = (self.outputs[: len(sets)], {"accelerator_us": 5}, self.names)
        return Ended(result, "", "")


def trace(folder: Path, pool: TracingPool, *, dumped: bool = False) -> RunNotes:
    folder.mkdir(exist_ok=True)
    choices = Choices(profile_level="" if dumped else "detailed", dump_intermediate_outputs=dumped)
    spec = CaseSpec("net", Scheme.A8W8, "SM8650", Source(choices=choices))
    program = Program(spec, folder / "program.pte", COMPILED, folder, folder / "run.log")
    return trace_run(program, SETS, JUDGED, pool, 9.0)  # type: ignore[arg-type]


def add_one(tensors: list[Any]) -> list[Any]:
    return [tensor + 1 for tensor in tensors]


def test_a_trace_with_the_judged_outputs_gives_its_figures_and_files(tmp_path: Path) -> None:
    pool = TracingPool(JUDGED)
    files = (tmp_path / "trace" / "profile.csv",)
    assert trace(tmp_path, pool) == RunNotes((), "", files, {"accelerator_us": 5})
    assert pool.jobs == [(4,)]
    assert not (tmp_path / "trace" / DEBUG).exists()
    assert trace(tmp_path, pool).files == files  # once more, in a fresh process
    trace(tmp_path, pool, dumped=True)  # every tensor, of the first sample
    assert pool.jobs[-1] == (1, DEBUG_BYTES)
    pool.outputs = [add_one(tensors) for tensors in JUDGED]
    assert len(trace(tmp_path, pool).faults) == 4


def test_the_mean_time_of_a_run_is_noted_where_the_entry_asks_for_it(tmp_path: Path) -> None:
    for run, run_ms in ((RunOptions(iteration=4), 2.5), (RunOptions(), None)):
        spec = CaseSpec("net", Scheme.A8W8, "SM8650", Source(run=run))
        program = Program(spec, tmp_path / "program.pte", COMPILED, tmp_path, tmp_path / "run.log")
        runner = make_runner(None, 9.0)  # type: ignore[arg-type]
        opened = PooledProgram(runner, program, None)  # type: ignore[arg-type]
        assert runner.note(opened, 0.0025).run_ms == run_ms


@pytest.mark.parametrize("end", ["was killed by SIGABRT", "was killed by SIGKILL"])
def test_a_traced_run_that_is_killed_is_noted_as_a_fault(tmp_path: Path, end: str) -> None:
    assert trace(tmp_path, TracingPool(JUDGED, end)) == RunNotes((f"trace: {end}",))
    assert not (tmp_path / "trace" / DEBUG).exists()


def test_a_difference_is_named_by_its_output_and_set() -> None:
    traced = [[np.zeros(2), np.ones(2)], [np.zeros(2), np.zeros(2)]]
    judged = [[np.zeros(2), np.zeros(2)], [np.zeros(2), np.zeros(2)], [np.ones(2), np.ones(2)]]
    assert list(find_differences(traced, judged)) == [
        "trace: output 1 of set 0 differs from the run without a trace"
    ]
    nan = [[np.array([np.nan])]]
    assert not list(find_differences(nan, nan)), "the same bits"
    with pytest.raises(ValueError, match="zip"):  # not the program that was judged
        list(find_differences(traced, [outputs[:1] for outputs in judged]))


def test_the_python_runner_traces_only_what_asks_for_a_trace(tmp_path: Path) -> None:
    pool: Any = TracingPool(JUDGED)
    runner = make_runner(pool, 9.0, quantizes=True)
    plain = CaseSpec("net", Scheme.A8W8, "SM8650")
    program = Program(plain, tmp_path / "p", COMPILED, tmp_path, tmp_path / "run.log")
    assert (runner.name, runner.pool) == ("python", pool)
    opened: Any = SimpleNamespace(program=program, sets=SETS, outputs=JUDGED)
    assert runner.note(opened, None) == RunNotes()
    assert not pool.jobs
    asks = replace(plain, source=Source(choices=Choices(profile_level="detailed")))
    opened.program = replace(program, spec=asks)
    assert runner.note(opened, None).accelerator == {"accelerator_us": 5}
    timed = Source(choices=Choices(profile_level="detailed"), run=RunOptions(iteration=4))
    opened.program = replace(program, spec=replace(plain, source=timed))
    assert runner.note(opened, 0.0025).run_ms == 2.5
