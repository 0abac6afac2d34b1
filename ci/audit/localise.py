"""Finds where a case loses accuracy. The search lowers parts of the model with an engine that
quantizes the model once. Each part is cached, run and judged like any other program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from ci.audit.localise_reproducer import write_reproducer
from ci.audit.localise_search import (
    Cut,
    Departure,
    Laboratory,
    Located,
    Operator,
    Row,
    Search,
    Trial,
)
from ci.cases.cache import CompileJob, as_compiled, hash_words
from ci.cases.engine import Compiled, Staging
from ci.cases.outputs import read_inputs, read_references, stack_outputs
from ci.cases.pipeline import CaseRun, RunSetup
from ci.cases.pool import Ended, Job
from ci.cases.spec import CaseSpec
from ci.executorch.engine import ExecutorchEngine
from ci.facts.finding import Finding, Question
from ci.faults.match import KnownFault, match_faults
from ci.judging.figures import decibels
from ci.judging.gate import OutputJudgement, References, judge
from ci.models.graph_steps import Step, describe_steps
from ci.models.tensors import TensorInfo
from provisioning.console.progress import Progress
from provisioning.errors import FailedError
from provisioning.files import digest_sources
from provisioning.manifest.targets import Backend

MOST_SETS = 4  # only a few input sets are used, because many programs run them


@dataclass(frozen=True)
class PartEngine:
    """Compiles the part ``cut`` of a case's model. The worker process keeps the model's graphs in
    memory for the next parts, and is leased for this case only."""

    engine: ExecutorchEngine
    cut: Cut

    @property
    def imports(self) -> tuple[str, ...]:
        return self.engine.imports

    def preload(self, spec: CaseSpec) -> None:
        self.engine.warm_up(spec)
        hold(spec, self.engine.backend)

    def key(self, spec: CaseSpec) -> str:
        own = Path(__file__)
        code = digest_sources(own, own.with_name("localise_cuts.py"))
        return hash_words(self.engine.key(spec), code, msgspec.json.encode(self.cut).decode())

    def read_data(self, spec: CaseSpec) -> int:
        return self.engine.read_data(spec)

    def warm_up(self, spec: CaseSpec) -> None:
        self.engine.warm_up(spec)

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        from ci.executorch.lower import Lowering
        from ci.models.eager import run_eager
        from ci.models.model import load_digested

        model, _ = load_digested(spec.reference, spec.source)
        module, sets = hold(spec, self.engine.backend).cut(self.cut)
        outputs = tuple(run_eager(module, sets))
        part = replace(model, module=module, evaluation=tuple(sets), reference=outputs)
        return Lowering(part, spec, staging, self.engine.backend).write_program(module)

    def explain(self, error: Exception, log: Path) -> Finding:
        return self.engine.explain(error, log)


@cache
def hold(spec: CaseSpec, backend: Backend) -> Any:
    """Return the graphs of a case's model, with at most MOST_SETS of its input sets. They are made
    once per process."""
    from ci.audit.localise_cuts import make_graphs
    from ci.executorch.quantize import quantize_model
    from ci.models.model import load_digested

    model, _ = load_digested(spec.reference, spec.source)
    module = model.module
    if spec.scheme.quantized:
        module = quantize_model(model, spec.scheme.base, spec.soc, spec.source.choices, backend)
    every = -(-len(model.evaluation) // MOST_SETS)
    return make_graphs(module, model.module, model.evaluation[::every])


class Description(Struct, frozen=True):
    """A description of a model. ``operators`` are in the graph's order. ``outputs`` are the names
    of the operators whose results are the model's outputs. ``losses`` lists the SQNR that
    quantization loses at operators and ranges, most noise first. ``steps`` describes the float32
    graph."""

    operators: Sequence[Operator]
    outputs: Sequence[str]
    losses: Sequence[Row]
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class DescribeJob:
    """A job that describes a model. Its worker process is leased for this case only."""

    engine: ExecutorchEngine
    spec: CaseSpec

    def __call__(self) -> Description:
        self.engine.warm_up(self.spec)
        from ci.models.model import load_digested

        graphs = hold(self.spec, self.engine.backend)
        model, _ = load_digested(self.spec.reference, self.spec.source)
        steps = describe_steps(model.module, model.evaluation[0])
        return Description(graphs.describe(), graphs.outputs, graphs.rank_losses(), steps)


@dataclass(frozen=True)
class SourceJob:
    """A job that writes the weights and inputs of a part to the file ``weights``, and returns the
    Python code of the part's ``forward`` method."""

    engine: ExecutorchEngine
    spec: CaseSpec
    cut: Cut
    weights: Path

    def __call__(self) -> str:
        from ci.audit.localise_reproducer import write_tensors

        return write_tensors(hold(self.spec, self.engine.backend), self.cut, self.weights)


LIMIT_DB = 120.0  # SQNR is clipped to this, and to its negative


class Localised(Struct, frozen=True, kw_only=True):
    """The results of one case. ``program`` compares the program with the model that was lowered,
    and ``losses`` compare that model with float32. ``known_faults`` are the known faults whose
    pattern the graph contains. ``programs`` is the number of programs that were tried.
    ``reproducer`` is the file that was written, or empty."""

    spec: CaseSpec
    program: Located
    losses: Sequence[Row]
    programs: int
    reproducer: str = ""
    known_faults: tuple[KnownFault, ...] = ()


@dataclass
class Localiser:
    """Finds where one case loses accuracy. ``qnn`` is the version of QNN. ``count`` is the number
    of parts that were tried."""

    spec: CaseSpec
    setup: RunSetup
    engine: ExecutorchEngine
    progress: Progress
    qnn: str = ""
    count: int = field(default=0, init=False)

    def run(self, limit: int, reproducer: Path | None) -> Localised:
        """Search with at most ``limit`` programs. If there is a wrong part and ``reproducer`` is
        not None, write the smallest wrong part to that file. Raises FailedError if the model cannot
        be loaded, exported or quantized, or if the part's tensors cannot be written."""
        described = self.call(DescribeJob(self.engine, self.spec), self.setup.work / "model.log")
        if described.failure:
            name, failure = Path(self.spec.model).name, described.failure
            what = failure if failure.startswith(name) else f"{name}: {failure}"
            raise FailedError(what, why=described.log_tail)
        model: Description = described.result
        laboratory = Laboratory(self.try_cut, limit, self.progress.step)
        operators = {one.name: one for one in model.operators}
        known = match_faults(model.steps, self.spec.scheme.base.value, self.qnn)
        for one in known:
            self.progress.step(f"  known fault: {one}")
        suspects = [names for one in known if (names := find_suspect(operators, one))]
        found = Search(operators, tuple(model.outputs), laboratory, suspects).run()
        written = ""
        if reproducer and found.smallest:
            written = self.write(reproducer, found, found.smallest)
        return Localised(
            spec=self.spec,
            program=found,
            losses=model.losses,
            programs=len(laboratory.tried),
            reproducer=written,
            known_faults=known,
        )

    def call(self, job: Job, log: Path) -> Ended:
        """Run a job in the worker that has loaded the model."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with self.setup.pool.lease(self.spec, log, self.setup.options.timeout_s) as lease:
            return lease.call(job)

    def try_cut(self, cut: Cut) -> Trial:
        """Lower, run and judge a part of the model. A part that fails in a process that was used
        before is run again in a fresh one, whose result counts."""
        self.count += 1
        work = self.setup.work / f"part-{self.count}"
        run = CaseRun(self.spec, replace(self.setup, work=work))
        run.directory.mkdir(parents=True)
        job = CompileJob(
            engine=PartEngine(self.engine, cut),
            spec=self.spec,
            cache=self.setup.cache,
            log=run.directory / "lower.log",
            use_cache=self.setup.options.use_cache,
        )
        ended = self.call(job, job.log)
        made = as_compiled(ended)
        if not made.artifact:
            return Trial(refused=made.refused.headline if made.refused else "refused")
        compiled, place = made.artifact.compiled, Path(made.directory)
        if not compiled.delegation.partitions:
            return Trial(refused="QNN accepts no node")
        references = read_references(place, compiled)
        program = run.copy_program(self.spec, place, compiled, run.directory)
        sets = read_inputs(place, compiled)
        limits = structs.replace(run.limits, outputs=())
        trial = Trial(refused="not run")
        for fresh in (False, True):  # a part is wrong only if it also fails in a fresh process
            ran = run.execute(program, sets, fresh=fresh)
            if ran.failure:
                trial = Trial(refused=ran.failure)
            else:
                try:
                    outputs = stack_outputs(ran.outputs, compiled)
                except ValueError as error:
                    return Trial(refused=str(error))
                judged = judge(references, outputs, compiled.outputs, limits).outputs
                rows = zip(cut.given, judged, compiled.outputs, strict=True)
                trial = Trial(
                    tuple(
                        measure_departure(name, one, references, index, info)
                        for index, (name, one, info) in enumerate(rows)
                    )
                )
            if not ran.used or not (trial.refused or trial.worst):
                break
        return trial

    def write(self, file: Path, found: Located, cut: Cut) -> str:
        """Write the part as a Python file, with its tensors next to it, and return the path of the
        Python file. Raises FailedError if the tensors cannot be written."""
        tensors = file.with_suffix(".pt")
        source = self.call(
            SourceJob(self.engine, self.spec, cut, tensors), self.setup.work / "source.log"
        )
        if source.failure:
            raise FailedError(f"no reproducer was written: {source.failure}", why=source.log_tail)
        write_reproducer(file, source.result, self.spec, found)
        return str(file)


def find_suspect(operators: Mapping[str, Operator], fault: KnownFault) -> list[str]:
    """Return the names of the operators at which a known fault was found: a chain of operators of
    the fault's kinds that starts at the fault's line. Empty if there is no such chain."""
    for first in operators.values():
        is_place = fault.module == first.module if fault.module else fault.place == first.line
        is_first = is_place and first.kind == fault.operators[0]
        chain = [first] if is_first else []
        for kind in fault.operators[1:] if chain else ():
            last = chain[-1].name
            chain += [one for one in operators.values() if one.kind == kind and last in one.inputs][
                :1
            ]
        if len(chain) == len(fault.operators):
            return [one.name for one in chain]
    return []


def measure_departure(
    name: str, judged: OutputJudgement, references: References, index: int, info: TensorInfo
) -> Departure:
    """Return the SQNR of an output against the model's output, and the predicted SQNR. Outputs
    without an SQNR, such as indices and booleans, get 0 dB for both."""
    faithful = not judged.fails(Question.FAITHFUL)
    figures = judged.quantized_figures or judged.float_figures
    if figures is None:
        return Departure(operator=name, reached_db=0.0, predicted_db=0.0, faithful=faithful)
    prediction = references.predict(index, info)
    floor_db = decibels(prediction.rms**2, prediction.floor)
    predicted_db = min(prediction.sqnr_db, floor_db)
    return Departure(
        operator=name,
        reached_db=clip(figures.sqnr_db),
        predicted_db=clip(predicted_db),
        faithful=faithful,
    )


def clip(figure: float) -> float:
    """Return an SQNR in dB, limited to the range from -LIMIT_DB to LIMIT_DB, because JSON has no
    infinity. NaN becomes the lowest value."""
    return -LIMIT_DB if math.isnan(figure) else max(-LIMIT_DB, min(LIMIT_DB, figure))
