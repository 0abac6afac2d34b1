"""The run beside the judged one that leaves a trace, in processes of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from ci.cases.artifact import Lowered
from ci.cases.outputs import write_input_list
from ci.cases.pool import Pool
from ci.cases.run_job import DEBUG, DEBUG_BYTES, RunJob, TraceJob, TraceResult

OUTPUTS = "outputs"


@dataclass(frozen=True)
class Traced:
    """``figures`` are fields of a report's case; ``faults`` say what the trace does not prove."""

    figures: Mapping[str, int] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    faults: tuple[str, ...] = ()


def trace_run(
    judged: RunJob, lowered: Lowered, pool: Pool, timeout_s: float, *, dumped: bool
) -> Traced:
    """Run what was ``judged`` once more, with a trace that lies beside its outputs.

    Of what is ``dumped``, every tensor, only that of the first input set is kept.
    """
    directory = Path(judged.outputs).with_name("trace")
    (directory / OUTPUTS).mkdir(parents=True)
    sets = 1 if dumped else lowered.sets
    rows = write_input_list(directory / "input_list.txt", Path(judged.model).parent, lowered, sets)
    job = structs.replace(
        judged,
        input_list=str(rows),
        outputs=str(directory / OUTPUTS),
        trace=str(directory),
        debug_bytes=DEBUG_BYTES if dumped else 0,
    )
    log = directory.with_name("trace.log")
    ended = pool.run("run", job, log, timeout_s, fresh=True)
    if not ended.failure:
        wanted = TraceJob(str(directory), sets, lowered.delegation.partitions, dumped)
        ended = pool.run("trace", wanted, log, timeout_s, fresh=True)
    (directory / DEBUG).unlink(missing_ok=True)  # as large as what it may hold
    if ended.failure:
        return Traced(faults=(f"trace: {ended.failure}",))
    result: TraceResult = ended.result
    faults = tuple(find_differences(directory / OUTPUTS, Path(judged.outputs)))
    return Traced(result.figures, tuple(directory / name for name in result.files), faults)


def find_differences(traced: Path, judged: Path) -> Iterator[str]:
    """What a run gave with its trace and not without: the emulator gives the same bits each time,
    so that a trace of other outputs is none of what was judged."""
    for path in sorted(traced.iterdir()):
        if path.read_bytes() != (judged / path.name).read_bytes():
            yield f"trace: {path.name} is not what the run without a trace gave"
