"""A trace is of what was judged, or it proves nothing."""

from __future__ import annotations

from pathlib import Path

from ci.cases.artifact import INPUTS, Delegation, Lowered, TensorInfo
from ci.cases.pool import Ended
from ci.cases.run_job import DEBUG, DEBUG_BYTES, RunJob, TraceJob, TraceResult
from ci.executorch.tracing import Traced, trace_run

TENSOR = TensorInfo("float32", (1,))
LOWERED = Lowered(
    "key", "net", "8a8w", "SM8650", 4, (TENSOR,), (TENSOR,), Delegation(3, 0, 2), 1.0, 9, {}
)


class TracingPool:
    """Gives ``outputs`` where a run is asked for, and ends one kind of job with a failure."""

    def __init__(self, outputs: bytes, fails: str = "") -> None:
        self.outputs, self.fails = outputs, fails
        self.jobs: list[RunJob | TraceJob] = []

    def run(self, kind: str, job: object, log: Path, timeout_s: float, *, fresh: bool) -> Ended:
        assert fresh
        self.jobs.append(job)  # type: ignore[arg-type]
        if kind == self.fails:
            return Ended(None, "was killed by SIGABRT", "", 0.0)
        if isinstance(job, RunJob):
            (Path(job.outputs) / "output_0_0.raw").write_bytes(self.outputs)
            (Path(job.trace) / DEBUG).write_bytes(bytes(9))
            return Ended(None, "", "", 0.0)
        return Ended(TraceResult({"accelerator_us": 5}, ("profile.csv",)), "", "", 0.0)


def trace(tmp_path: Path, pool: TracingPool, *, dumped: bool = False) -> Traced:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    (outputs / "output_0_0.raw").write_bytes(b"judged")
    judged = RunJob(str(tmp_path / "artifact/program.pte"), "rows", str(outputs))
    return trace_run(judged, LOWERED, pool, 9.0, dumped=dumped)  # type: ignore[arg-type]


def test_a_trace_of_the_same_outputs_gives_its_figures_and_files(tmp_path: Path) -> None:
    pool = TracingPool(b"judged")
    assert trace(tmp_path, pool) == Traced(
        {"accelerator_us": 5}, (tmp_path / "trace" / "profile.csv",)
    )
    run, read = pool.jobs
    assert isinstance(run, RunJob)
    assert run.debug_bytes == 0
    rows = Path(run.input_list).read_text().splitlines()
    assert rows == [f"{tmp_path}/artifact/{INPUTS}/{number}_0.raw" for number in range(4)]
    assert read == TraceJob(str(tmp_path / "trace"), 4, 2)
    assert not (tmp_path / "trace" / DEBUG).exists()


def test_of_every_tensor_only_the_first_input_sets_are_kept(tmp_path: Path) -> None:
    pool = TracingPool(b"judged")
    trace(tmp_path, pool, dumped=True)
    run, read = pool.jobs
    assert isinstance(run, RunJob)
    assert run.debug_bytes == DEBUG_BYTES
    assert len(Path(run.input_list).read_text().splitlines()) == 1
    assert read == TraceJob(str(tmp_path / "trace"), 1, 2, debug=True)


def test_a_trace_of_other_outputs_fails_the_case(tmp_path: Path) -> None:
    traced = trace(tmp_path, TracingPool(b"others"))
    assert traced.faults == ("trace: output_0_0.raw is not what the run without a trace gave",)


def test_a_run_or_reading_that_ends_is_a_fault(tmp_path: Path) -> None:
    for kind in ("run", "trace"):
        (tmp_path / kind).mkdir()
        pool = TracingPool(b"judged", fails=kind)
        traced = trace(tmp_path / kind, pool)
        assert traced == Traced(faults=("trace: was killed by SIGABRT",))
        assert not (tmp_path / kind / "trace" / DEBUG).exists()
