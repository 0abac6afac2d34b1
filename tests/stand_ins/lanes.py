"""A third engine and a runner for tests of the pipeline: numpy alone, in this process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ci.analysis.steps import Step
from ci.cases import cache
from ci.cases.engine import (
    INPUTS,
    QUANTIZED,
    Compiled,
    Delegation,
    Program,
    RunError,
    RunNotes,
    Sets,
    Staging,
)
from ci.cases.forked import answer_job, run_forked
from ci.cases.pipeline import CaseResult, CaseRun
from ci.cases.policy import EmulatorPolicy, read_emulator_policy
from ci.cases.pool import Ended, Job
from ci.cases.spec import CaseSpec
from ci.facts.finding import Finding
from ci.facts.kinds import NOT_LOWERED
from ci.judging.gate import Expected, References
from ci.judging.noise import Prediction
from ci.models.schemes import Scheme
from ci.models.tensors import Layer, TensorInfo, describe_tensor
from ci.report.schema import Footprint
from ci.report.write import write_report
from provisioning.errors import FailedError, QnnCiError
from tests.build.setups import make_setup
from tests.stand_ins.reports import make_report

SPEC = CaseSpec("mlp", Scheme.A8W8, "SM8650")
WHOLE = Delegation(3, 0, 1)
Function = Callable[..., Sequence[Any]]


def predict(right: Any, runs: Any, **fields: Any) -> Prediction:
    """A prediction of these errors, [run, sample, *shape]."""
    info = TensorInfo("float32", right.shape[1:], **fields)
    return Prediction(np.asarray(right), np.asarray(runs, np.float32), info)


def expect(values: Any) -> Expected:
    """An output of which each element has one value."""
    return Expected(values, values, values)


def make_references(float32: Any, quantized: Any = None, noise: float | None = None) -> References:
    """References of one output, with normal noise of so many times its RMS predicted; without a
    number the program has to be exact."""
    best = float32 if quantized is None else quantized
    references = References([expect(float32)], None if quantized is None else [expect(quantized)])
    if noise is None:
        return references
    random = np.random.default_rng(77)
    runs = noise * np.sqrt(np.mean(best**2)) * random.standard_normal((8, *best.shape))
    return replace(references, noise=[predict(best, runs)])


@dataclass
class FloatEngine:
    """Its program is the float model: ``compute`` gives the outputs of a sample, ``quantized``
    those of the quantized model, if there is one. ``noise`` is how much is predicted of its first
    output, relative to it. ``raises`` is what a compilation raises; ``layers`` give what the
    model's layers do, and ``further_fields`` other fields of what it compiles."""

    compute: Function
    sets: Sequence[Sequence[Any]]
    quantized: Function | None = None
    delegation: Delegation = WHOLE
    raises: Exception | None = None
    layers: Mapping[str, Function] = field(default_factory=dict)
    bounds: dict[str, Any] = field(default_factory=dict)
    noise: float = 0.0
    footprint: Footprint | None = None
    steps: tuple[Step, ...] = ()
    compiled: int = 0
    imports: tuple[str, ...] = ()
    further_fields: dict[str, Any] = field(default_factory=dict)

    def preload(self, spec: CaseSpec) -> None:
        """Nothing is shared."""
        assert spec.reference

    def key(self, spec: CaseSpec) -> str:
        return f"{spec.model}-{spec.scheme.value}-{spec.soc}-{spec.layers}"

    def read_data(self, spec: CaseSpec) -> int:
        del spec
        return len(self.sets)

    def warm_up(self, spec: CaseSpec) -> None:
        """There is no compiler."""
        assert spec.reference

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        staging.note_steps(self.steps)
        if self.raises:
            raise self.raises
        layers = self.layers if spec.layers else {}
        outputs = []
        for inputs in self.sets:
            of_layers = [layer(*inputs)[0] for layer in layers.values()]
            outputs.append([*self.compute(*inputs), *of_layers])
        staging.write(INPUTS, self.sets)
        staging.write_float(outputs)
        if self.quantized:
            outputs = [self.quantized(*inputs) for inputs in self.sets]
            staging.write(QUANTIZED, outputs)
        if self.noise:
            first = np.stack([tensors[0] for tensors in outputs])
            draw = np.random.default_rng(9).standard_normal((8, *first.shape))
            staging.write_noise([self.noise * first.std() * draw])
        for name, array in self.bounds.items():
            (staging.directory / name).write_bytes(np.asarray(array).tobytes())
        (staging.directory / "program.txt").write_text("the float model")
        return Compiled(
            program="program.txt",
            binary="program.txt",
            size_bytes=15,
            sets=len(self.sets),
            inputs=tuple(map(describe_tensor, self.sets[0])),
            outputs=tuple(map(describe_tensor, outputs[0])),
            delegation=self.delegation,
            layers=tuple(Layer(layer.partition(" ")[0], layer) for layer in layers),
            footprint=self.footprint,
            steps=self.steps,
            **self.further_fields,
        )

    def explain(self, error: Exception, log: Path) -> Finding:
        return NOT_LOWERED.find(f"{type(error).__name__}: {error}")


@dataclass
class EchoRunner:
    """Gives what ``answer`` makes of the samples; counts how often it opened and ran."""

    answer: Callable[[Sets], Sets]
    notes: RunNotes = field(default_factory=RunNotes)
    used: bool = False
    calls: list[str] = field(default_factory=list)
    name: str = "echo"
    limits_s: list[float] = field(default_factory=list)

    @contextmanager
    def open(
        self, program: Program, timeout_s: float, *, fresh: bool = False
    ) -> Iterator[EchoRunner]:
        assert program.spec.reference
        self.limits_s.append(timeout_s)
        self.calls.append("fresh" if fresh else "open")
        program.log.write_text("the log")
        yield EchoRunner(self.answer, self.notes, self.used and not fresh, self.calls)

    def run(self, sets: Sets) -> Sets:
        self.calls.append("run")
        return self.answer(sets)

    def finish(self) -> RunNotes:
        return self.notes


def fail(_: Sets) -> Sets:
    """An answer that is none."""
    raise RunError("was killed by SIGSEGV", used=False)


def run_inline(function: Callable[[], Any], doing: str = "") -> Any:
    """Do what ci.cases.forked.run_forked does, without the fork: of a pytest that has imported
    torch, one takes as long as the rest of a case. tests/unit/ci/cases/test_forked.py has forks."""
    del doing
    answer = pickle.loads(pickle.dumps(answer_job(function)))
    if isinstance(answer, QnnCiError):
        raise answer
    return answer


class InlinePool:
    """Does jobs in this process, and in forks of it only with ``forks``."""

    forks = False

    def run(self, job: Job, log: Path, timeout_s: float, **options: Any) -> Ended:
        cache.run_forked = run_forked if self.forks else run_inline
        try:
            return Ended(job(), "", "")
        except QnnCiError as error:
            return Ended(None, error.what, "", error=error)
        except Exception as error:  # noqa: BLE001 - as a worker does
            return Ended(None, str(error), "", error=FailedError(str(error)))
        finally:
            cache.run_forked = run_forked


def run_case(
    work: Path,
    engine: Any,
    runner: Any,
    policy: EmulatorPolicy | None = None,
    spec: CaseSpec = SPEC,
    **setup: Any,
) -> CaseResult:
    """One case through the whole pipeline, from the engine to its row."""
    settings = {"pool": InlinePool(), **({"policy": policy} if policy else {}), **setup}
    return CaseRun(spec, make_setup(work, engine, runner, **settings)).run()


RANDOM = np.random.default_rng(5)
RIGHT = RANDOM.standard_normal((4, 3, 40)).astype(np.float32)
COARSE = RIGHT + 0.02 * RANDOM.standard_normal(RIGHT.shape).astype(np.float32)
LABELLER = FloatEngine(
    lambda number: [RIGHT[number[0]]],
    [[np.int64(number).reshape(1)] for number in range(4)],
    lambda number: [COARSE[number[0]]],
    noise=0.002,
)


def keep_case(work: Path) -> Path:
    """The directory that a run of one case, which passed, leaves for --keep-artifacts."""
    policy, folder = read_emulator_policy(), work / "kept"
    runner = EchoRunner(lambda _: [[output] for output in COARSE * np.float32(1.0005)])
    result = run_case(work, LABELLER, runner, keep=folder)
    limits = policy.describe_limits([SPEC])
    write_report(make_report([result.case], result.controls, thresholds=limits), folder)
    return folder
