"""One case from model to verdict: lower, run, compare, and feed the gate its controls."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ci.emulator.advice import advise_on_figures
from ci.emulator.compare import (
    Array,
    Judgement,
    find_degenerate,
    is_rejected,
    judge,
    make_controls,
)
from ci.emulator.job import RunJob
from ci.emulator.policy import EmulatorPolicy
from ci.emulator.pool import Ended, Pool
from ci.emulator.runner import Runner
from ci.lowering.artifact import FLOAT, INPUTS, PROGRAM, QUANTIZED, Lowered, TensorInfo
from ci.lowering.cases import CaseSpec
from ci.lowering.job import LowerJob, LowerResult
from ci.lowering.suite import SUITE
from ci.report.schema import Case, Control, FallbackOp, Status, Threshold

SHOWN_OPS = 4


@dataclass(frozen=True)
class Bench:
    """What all cases of a run share. ``work`` is a scratch directory."""

    pool: Pool
    runner: Runner
    policy: EmulatorPolicy
    cache: Path
    toolchain: tuple[str, ...]
    work: Path
    timeout_s: float
    use_cache: bool = True
    keep: Path | None = None


@dataclass(frozen=True)
class CaseResult:
    """A case's row, its controls, and a remark for the terminal."""

    case: Case
    controls: tuple[Control, ...] = ()
    remark: str = ""


class CaseRun:
    """One case, step by step; every step may end it with a reason."""

    def __init__(self, spec: CaseSpec, bench: Bench) -> None:
        self.spec, self.bench = spec, bench
        self.directory = bench.work / spec.slug
        self.limits = bench.policy.limits_of(spec.model, spec.scheme)
        self.figures: dict[str, object] = {}

    def run(self) -> CaseResult:
        """Lower, run, judge. Never raises for what the model, QNN or the runner does."""
        shutil.rmtree(self.directory, ignore_errors=True)
        (self.directory / "outputs").mkdir(parents=True)
        result = self._lower_and_run()
        if self.bench.keep:
            keep_artifacts(self.directory, self.bench.keep / self.spec.slug)
        return result

    def _lower_and_run(self) -> CaseResult:
        ended = self.lower()
        if ended.failure:
            return self.end(Status.FAILED, f"lowering: {ended.failure}", ended.log_tail)
        result: LowerResult = ended.result
        if result.refused or not result.directory or not result.lowered:
            return self.refuse(result.refused, ended.log_tail)
        artifact = Path(result.directory)
        self.note_lowered(result.lowered, cached=result.cached)
        link_artifact(artifact, self.directory)
        remark = "a damaged cache entry was lowered again" if result.repaired else ""
        if not result.lowered.delegation.partitions:
            reasons = "; ".join(one.reason for one in result.lowered.delegation.fallback_ops)
            return self.refuse(f"QNN took no node: {reasons}", ended.log_tail)
        run = self.execute(artifact, result.lowered)
        self.figures["run_s"] = round(run.wall_s, 3)
        if run.failure:
            faults = [f"run: {run.failure}", *self.delegation_faults(result.lowered)]
            return self.end(Status.FAILED, "; ".join(faults), run.log_tail)
        return self.judge_outputs(artifact, result.lowered, run, remark)

    def lower(self) -> Ended:
        """Lower in a fork; the log is beside the outputs."""
        log = self.directory / "lower.log"
        job = LowerJob(
            model=self.spec.model,
            scheme=self.spec.scheme,
            soc=self.spec.soc,
            cache=str(self.bench.cache),
            toolchain=self.bench.toolchain,
            log=str(log),
            use_cache=self.bench.use_cache,
            warm=self.spec.model in SUITE,
        )
        # A user's model brings modules of its own into the process: no other job gets that one.
        return self.bench.pool.run(
            "lower",
            job,
            LowerResult,
            log,
            self.bench.timeout_s,
            fresh=not job.warm,
        )

    def execute(self, artifact: Path, lowered: Lowered) -> Ended:
        """Run the program on all input sets."""
        rows = [
            " ".join(
                str(artifact / INPUTS / f"{number}_{index}.raw")
                for index in range(len(lowered.inputs))
            )
            for number in range(lowered.sets)
        ]
        input_list = self.directory / "input_list.txt"
        input_list.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
        job = RunJob(str(artifact / PROGRAM), str(input_list), str(self.directory / "outputs"))
        return self.bench.runner.execute(job, self.directory / "run.log", self.bench.timeout_s)

    def judge_outputs(
        self, artifact: Path, lowered: Lowered, run: Ended, remark: str
    ) -> CaseResult:
        """Compare with both references, feed the controls, check delegation."""
        try:
            outputs = read_outputs(self.directory / "outputs", "output_{}_{}.raw", lowered)
        except (OSError, ValueError) as error:
            return self.end(Status.FAILED, f"run: {error}", run.log_tail)
        reference = read_outputs(artifact / FLOAT, "{}_{}.raw", lowered)
        quantized = None
        if (artifact / QUANTIZED).is_dir():
            quantized = read_outputs(artifact / QUANTIZED, "{}_{}.raw", lowered)
        degenerate = find_degenerate(reference, self.bench.policy.reference)
        if degenerate:
            return self.end(Status.FAILED, f"the reference proves nothing: {degenerate}")
        judgement = judge(reference, quantized, outputs, self.limits)
        self.note_figures(judgement)
        controls = self.feed_controls(reference, quantized)
        reasons = [*judgement.reasons, *self.delegation_faults(lowered)]
        passing = [control.kind.value for control in controls if not control.rejected]
        if passing:
            reasons.append(f"the gate accepts {', '.join(passing)}: this case proves nothing")
        if not reasons:
            return self.end(Status.PASSED, controls=controls, remark=remark)
        advice = advise_on_figures(judgement, self.limits, lowered)
        told = "\n".join(["; ".join(reasons), *advice])
        return self.end(Status.FAILED, told, run.log_tail, controls, remark)

    def feed_controls(
        self, reference: list[list[Array]], quantized: list[list[Array]] | None
    ) -> tuple[Control, ...]:
        """The four wrong outputs, made of the best that the gate could get: its reference."""
        right = quantized if quantized is not None else reference
        controls = []
        for kind, wrong in make_controls(right).items():
            rejected, sqnr_db = is_rejected(reference, quantized, wrong, self.limits)
            controls.append(
                Control(
                    model=self.spec.model,
                    scheme=self.spec.scheme.value,
                    soc=self.spec.soc,
                    kind=kind,
                    rejected=rejected,
                    sqnr_db=round(sqnr_db, 2),
                )
            )
        return tuple(controls)

    def delegation_faults(self, lowered: Lowered) -> list[str]:
        """What stays on the CPU although the policy says full delegation."""
        left = lowered.delegation.fallback_ops
        if not self.limits.full_delegation or not left:
            return []
        every = [*dict.fromkeys(f"{one.op}: {one.reason}" for one in left)]
        more = [f"and {len(every) - SHOWN_OPS} more"] if len(every) > SHOWN_OPS else []
        named = "; ".join([*every[:SHOWN_OPS], *more])
        many = "1 node falls" if len(left) == 1 else f"{len(left)} nodes fall"
        return [f"{many} back to the CPU ({named})"]

    def note_lowered(self, lowered: Lowered, *, cached: bool) -> None:
        delegation = lowered.delegation
        self.figures |= {
            "delegated_nodes": delegation.delegated_nodes,
            "fallback_nodes": delegation.fallback_nodes,
            "partitions": delegation.partitions,
            "fallback_ops": tuple(
                FallbackOp(op=one.op, reason=one.reason) for one in delegation.fallback_ops
            ),
            "lower_s": lowered.lower_s,
            "pte_bytes": lowered.pte_bytes,
            "cached": cached,
            "inputs": lowered.sets,
        }

    def note_figures(self, judgement: Judgement) -> None:
        against = {"": judgement.float_figures, "_quantized": judgement.quantized_figures}
        for suffix, figures in against.items():
            if figures:
                self.figures |= {
                    f"sqnr_db{suffix}": figures.sqnr_db,
                    f"cosine{suffix}": figures.cosine,
                    f"max_abs{suffix}": figures.max_abs,
                }

    def refuse(self, reason: str, log_tail: str) -> CaseResult:
        """A refusal that the policy knows is ``unsupported``; any other fails the case."""
        spec = self.spec
        known = self.bench.policy.expects_refusal(spec.model, spec.scheme, spec.soc, reason)
        if known:
            return self.end(Status.UNSUPPORTED, f"{reason} [{known}]", log_tail)
        return self.end(Status.FAILED, f"refused: {reason}", log_tail)

    def end(
        self,
        status: Status,
        reason: str = "",
        log_tail: str = "",
        controls: tuple[Control, ...] = (),
        remark: str = "",
    ) -> CaseResult:
        advice = self.bench.policy.advise(reason) if status is Status.FAILED else ""
        case = Case(
            model=self.spec.model,
            scheme=self.spec.scheme.value,
            soc=self.spec.soc,
            status=status,
            reason=f"{reason}\n  fix: {advice}" if advice else reason,
            log_tail=log_tail,
            runner=self.bench.runner.name,
            **self.figures,  # type: ignore[arg-type]
        )
        return CaseResult(case, controls, remark)


def read_outputs(directory: Path, pattern: str, lowered: Lowered) -> list[list[Array]]:
    """All outputs as float64. Raises OSError or ValueError for one missing or of another size."""
    return [
        [
            read_tensor(directory / pattern.format(number, index), info)
            for index, info in enumerate(lowered.outputs)
        ]
        for number in range(lowered.sets)
    ]


def read_tensor(path: Path, info: TensorInfo) -> Array:
    """A raw file as float64. Raises ValueError when its size is not that of ``info``."""
    if not path.is_file():
        raise ValueError(f"{path.name} was not written")
    array = np.fromfile(path, dtype=np.dtype(info.dtype))
    if array.size != int(np.prod(info.shape)):
        wanted = int(np.prod(info.shape)) * np.dtype(info.dtype).itemsize
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, {wanted} are wanted")
    return array.reshape(info.shape).astype(np.float64)


def link_artifact(artifact: Path, directory: Path) -> None:
    """A link to the artifact beside the case's outputs."""
    (directory / "artifact").symlink_to(artifact)


def keep_artifacts(directory: Path, target: Path) -> None:
    """Copy a case's program, inputs, references, outputs and logs to ``target``."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory, target, symlinks=False)


def describe_limits(policy: EmulatorPolicy, specs: list[CaseSpec]) -> tuple[Threshold, ...]:
    """The limits that a run used, each once."""
    limits = [policy.limits_of(spec.model, spec.scheme) for spec in specs]
    return tuple({(one.scheme, one.model): one for one in limits}.values())
