"""Finds where a case loses accuracy. The search lowers parts of the model, which is quantized only
once. Each part is cached, run and judged like any other program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import Struct, structs

from ci.analysis.steps import Step
from ci.audit.localise_graph import Division
from ci.audit.localise_reproducer import write_reproducer
from ci.audit.localise_search import (
    MOST_SETS,
    Cut,
    Departure,
    Laboratory,
    Located,
    Mend,
    Operator,
    Row,
    Search,
    Trial,
)
from ci.cases.cache import as_compiled, hash_words
from ci.cases.engine import Compiled, Staging
from ci.cases.outputs import read_inputs, read_references, stack_outputs
from ci.cases.pipeline import CaseRun, Setup
from ci.cases.pool import Ended, Job
from ci.cases.spec import CaseSpec
from ci.diagnosis import experiments
from ci.diagnosis.diagnosis import Diagnosis
from ci.diagnosis.experiments import Change, Result, Smallest
from ci.diagnosis.wording import advise_on_diagnosis
from ci.executorch.engine import ExecutorchEngine
from ci.facts.finding import Advice, Cause, Finding, Question, Remedy
from ci.facts.known_fault import KnownFault
from ci.faults.match import match_faults
from ci.judging.figures import decibels
from ci.judging.gate import OutputJudgement, References, judge
from ci.litert.engine import LitertEngine
from ci.models.rounding import find_version
from ci.models.schemes import EXECUTORCH, LITERT, ONNX, Scheme
from ci.models.tensors import TensorInfo, limit_db
from ci.models.user_models import NO_SOURCE
from ci.onnx.engine import OnnxEngine
from provisioning.console.progress import Progress
from provisioning.console.user_folder import UserFolder, lock_folder
from provisioning.errors import FailedError
from provisioning.files import digest_sources
from provisioning.manifest.targets import Backend


@dataclass(frozen=True)
class PartEngine:
    """Compiles the part ``cut`` of a case's model."""

    parts: Parts
    cut: Cut

    def preload(self, spec: CaseSpec) -> None:
        """Load the model and quantize it in the worker, whose parts share its graphs."""
        self.parts.hold(spec)

    def key(self, spec: CaseSpec) -> str:
        """Return the SHA-256 of the model's key, of the code that cuts parts, and of the part."""
        this_file = Path(__file__)
        # An edit of the code that cuts parts makes another key.
        names = [f"localise_{part}.py" for part in ("graph", "torch", "onnx", "litert")]
        code = digest_sources(this_file, *(this_file.with_name(name) for name in names))
        return hash_words(self.parts.engine.key(spec), code, msgspec.json.encode(self.cut).decode())

    def read_data(self, spec: CaseSpec) -> int:
        """Return the number of samples, as the engine of the whole model does."""
        return self.parts.engine.read_data(spec)

    def warm_up(self, spec: CaseSpec) -> None:
        """Load code that ``compile`` needs, before the worker forks."""
        self.parts.engine.warm_up(spec)

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        """Write the part's program and references to ``staging``, and return the program's
        description. An exception means that the part is refused."""
        return self.parts.compile(spec, self.cut, staging)

    def explain(self, error: Exception, log: Path) -> Finding:
        """Return why a part was refused, as the engine of the whole model does."""
        return self.parts.engine.explain(error, log)


@cache
def hold(spec: CaseSpec, backend: Backend) -> Division:
    """Return the division of a case's model, with at most MOST_SETS of its samples. It is made once
    per process."""
    from ci.audit.localise_torch import divide_module
    from ci.executorch.quantize import quantize_model
    from ci.models.model import load_digested

    model, _ = load_digested(spec.reference, spec.source)
    module = quantize_model(model, spec.scheme.base, spec.soc, spec.source.choices, backend)
    # Rounded up, so that at most MOST_SETS samples are left, spread over all of them.
    stride = -(-len(model.evaluation) // MOST_SETS)
    return divide_module(module, model.module, model.evaluation[::stride])


class Description(Struct, frozen=True):
    """A description of a model. ``operators`` are in the graph's order. ``outputs`` are the names
    of the operators whose results are the model's outputs. ``losses`` lists the SQNR that
    quantization loses at operators and ranges, most noise first. ``steps`` describes the float32
    graph, and ``aliases`` are the operators of steps with other names. ``qnn`` is the version of
    QNN."""

    operators: Sequence[Operator]
    outputs: Sequence[str]
    losses: Sequence[Row]
    steps: tuple[Step, ...] = ()
    qnn: str = ""
    aliases: dict[str, str] = {}


@dataclass(frozen=True)
class TorchParts:
    """Divides PyTorch models, which ExecuTorch lowers. All methods run in a worker process, which
    keeps the model in memory for the next parts, and is leased for this case only."""

    runtime: ClassVar[str] = EXECUTORCH.runtime
    engine: ExecutorchEngine

    def hold(self, spec: CaseSpec) -> Division:
        """Load a case's model and quantize it, once per process. The process is warmed up first."""
        self.engine.warm_up(spec)
        return hold(spec, self.engine.backend)

    def read_steps(self, spec: CaseSpec) -> tuple[tuple[Step, ...], str]:
        """Return the steps of the float32 model, and QNN's version."""
        from ci.executorch.graph_reader import measure_module
        from ci.executorch.toolchain import find_qnn_version
        from ci.models.model import load_digested

        model, _ = load_digested(spec.reference, spec.source)
        return measure_module(model.module, model.evaluation), find_qnn_version()

    def compile(self, spec: CaseSpec, cut: Cut, staging: Staging) -> Compiled:
        """Compile a part of a case's model, as an engine does."""
        from ci.audit.localise_torch import write_module
        from ci.executorch.lower import Lowering
        from ci.models.eager import run_eager
        from ci.models.model import load_digested

        model, _ = load_digested(spec.reference, spec.source)
        module, sets = write_module(self.hold(spec), cut)
        outputs = tuple(run_eager(module, sets))
        part = replace(model, module=module, evaluation=tuple(sets), reference=outputs)
        return Lowering(part, spec, staging, self.engine.backend).write_program(module)

    def write(self, spec: CaseSpec, cut: Cut, file: Path) -> str:
        """Write what a reproducer needs next to ``file``, or the whole reproducer. Return the
        Python code of the part's ``forward`` method, or "" if no more has to be written."""
        from ci.audit.localise_torch import write_code

        return write_code(self.hold(spec), cut, file.with_suffix(".pt"))


@dataclass(frozen=True)
class OnnxParts:
    """Divides models that ONNX Runtime compiles, with the methods of TorchParts. The whole
    models are written to ``work``, a directory of the case."""

    runtime: ClassVar[str] = ONNX.runtime
    engine: OnnxEngine
    work: Path

    def hold(self, spec: CaseSpec) -> Division:
        """Load a case's model and quantize it, as TorchParts.hold does."""
        from ci.audit.localise_onnx import divide_file

        self.engine.warm_up(spec)
        return divide_file(spec, self.work)

    def read_steps(self, spec: CaseSpec) -> tuple[tuple[Step, ...], str]:
        """Return the steps of the float model, and QNN's version."""
        from ci.audit.localise_onnx import FLOAT, MEASURED
        from ci.onnx.compile import load_source, measure_file, write_float

        source = load_source(spec)
        plain = write_float(source, self.work / FLOAT, spec.source.shapes)
        qnn = find_version(Path(self.engine.options(spec)["backend_path"]))
        return measure_file(plain, self.work / MEASURED, source.evaluation), qnn

    def compile(self, spec: CaseSpec, cut: Cut, staging: Staging) -> Compiled:
        """Compile the part ``cut`` with the quantizers of the whole model."""
        from ci.audit.localise_onnx import write_file
        from ci.onnx.compile import compile_source

        source = write_file(self.hold(spec), cut, staging.directory.with_name("part.onnx"))
        # The part has the quantizers of the whole model. Calibrated again, it would have other
        # ranges.
        scheme = Scheme.ASIS if spec.scheme.quantized else spec.scheme
        part, options = replace(spec, scheme=scheme, source=NO_SOURCE), self.engine.options(spec)
        return compile_source(source, part, staging, options, embed=True, saver="")

    def write(self, spec: CaseSpec, cut: Cut, file: Path) -> str:
        """Write the part to ``file``, and its inputs to an .npz file next to it. Return "", because
        no code belongs to it."""
        import numpy as np

        from ci.audit.localise_onnx import write_file

        file.parent.mkdir(parents=True, exist_ok=True)
        source = write_file(self.hold(spec), cut, file)
        arrays = map(np.stack, zip(*source.evaluation, strict=True))
        np.savez(file.with_suffix(".npz"), *arrays)
        return ""


@dataclass(frozen=True)
class LitertParts:
    """Divides models that LiteRT's plugin compiles, with the methods of TorchParts."""

    runtime: ClassVar[str] = LITERT.runtime
    engine: LitertEngine

    def hold(self, spec: CaseSpec) -> Division:
        """Load a case's model, as TorchParts.hold does."""
        from ci.audit.localise_litert import divide_litert

        return divide_litert(spec)

    def read_steps(self, spec: CaseSpec) -> tuple[tuple[Step, ...], str]:
        """Return the steps of the model, and QNN's version."""
        from ci.audit.localise_litert import read_litert_steps

        return read_litert_steps(spec), find_version(self.engine.library)

    def compile(self, spec: CaseSpec, cut: Cut, staging: Staging) -> Compiled:
        """Compile the part ``cut``."""
        from ci.audit.localise_litert import write_litert

        source = write_litert(self.hold(spec), cut, "part.tflite")
        return self.engine.compile_source(source, spec, staging, is_part=True)

    def write(self, spec: CaseSpec, cut: Cut, file: Path) -> str:
        """Write the part to ``file``, and its inputs to an .npz file next to it, as
        OnnxParts.write does. Its outputs are in the order in which they are computed, because
        others are refused."""
        import numpy as np

        from ci.audit.localise_litert import write_litert

        division = self.hold(spec)
        outputs = tuple(name for name in division.operators if name in cut.outputs)
        source = write_litert(division, structs.replace(cut, outputs=outputs), file.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source.data)
        arrays = map(np.stack, zip(*source.evaluation, strict=True))
        np.savez(file.with_suffix(".npz"), *arrays)
        return ""


Parts = TorchParts | OnnxParts | LitertParts


def choose_parts(engine: Any, work: Path) -> Parts:
    """Return what divides the models that an engine compiles. Files are written to ``work``."""
    if isinstance(engine, OnnxEngine):
        return OnnxParts(engine, work)
    return LitertParts(engine) if isinstance(engine, LitertEngine) else TorchParts(engine)


def describe(parts: Parts, spec: CaseSpec) -> Description:
    """Return the description of a case's model, in a worker process."""
    division = parts.hold(spec)
    steps, qnn = parts.read_steps(spec)
    return Description(
        operators=division.describe(),
        outputs=division.outputs,
        losses=division.rank_losses(),
        steps=steps,
        qnn=qnn,
        aliases=dict(division.aliases),
    )


LIMIT_DB = 120.0  # SQNR is clipped to this, and to its negative, because JSON has no infinity


class Localised(Located, frozen=True, kw_only=True):
    """The results of one case, also in JSON. Numbers in dB are from the worst sample.

    ``program_rows`` compare the program with the model that was lowered, and ``model_rows`` compare
    that model with float32. ``programs`` is the number of programs that the search tried.
    ``causes`` and ``remedies`` are those of the verdict, and ``cause`` is the text of the first
    cause. ``refusal`` is why the case has no program although that model has its outputs: the
    export to the file changed it. ``reproducer`` is the file that was written, or empty.
    ``known_faults`` are those whose pattern the graph contains. See also Located in
    ci/audit/localise_search.py.
    """

    model: str
    runtime: str = EXECUTORCH.runtime
    scheme: str
    soc: str
    wrong: bool
    programs: int
    model_rows: tuple[Row, ...] = ()
    cause: str = ""
    causes: tuple[Cause, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    refusal: str = ""
    reproducer: str = ""
    known_faults: tuple[KnownFault, ...] = ()

    def explained(self, advice: Advice | Finding) -> Localised:
        """Return the results with the causes and remedies of a verdict."""
        cause = advice.causes[0].text if advice.causes else ""
        return structs.replace(self, cause=cause, causes=advice.causes, remedies=advice.remedies)


FRAMES = (" ", "Traceback (most recent call last)", "The above exception was", "During handling")


def skip_frames(log: str) -> str:
    """Return a log without the frames of Python's tracebacks, which end with the error."""
    return "\n".join(line for line in log.splitlines() if not line.startswith(FRAMES))


@dataclass
class Localiser:
    """Finds where one case loses accuracy. ``count`` is the number of parts that were tried."""

    spec: CaseSpec
    setup: Setup
    parts: Parts
    progress: Progress
    count: int = field(default=0, init=False)

    def run(
        self,
        limit: int,
        reproducer: Path | None,
        suspected: Sequence[experiments.Operator] = (),
    ) -> Localised:
        """Search with at most ``limit`` programs, first in the part of the ``suspected`` operators
        of the float model. If there is a wrong part and ``reproducer`` is not None, write the
        smallest wrong part to that file. Raises FailedError if the model cannot be loaded, exported
        or quantized, or if the part's tensors cannot be written."""
        described = self.call(
            partial(describe, self.parts, self.spec), self.setup.work / "model.log"
        )
        if described.failure:
            name, failure = Path(self.spec.model).name, described.failure
            # The model is named once: some failures start with it.
            text = failure if failure.startswith(name) else f"{name}: {failure}"
            error = described.error
            why = error.why if error else skip_frames(described.log_tail)
            raise FailedError(text, why=why, fix=error.fix if error else "")
        model: Description = described.result
        laboratory = Laboratory(self.try_cut, limit, self.progress.step)
        operators = {operator.name: operator for operator in model.operators}
        scheme = self.spec.scheme.base.value
        faults = match_faults(model.steps, scheme, model.qnn, is_file=self.spec.is_file)
        for fault in faults:
            self.progress.step(f"  known fault: {fault}")
        suspected_names = [
            operator.name for operator in match_operators(suspected, model.operators)
        ]
        suspects = [
            *filter(None, [suspected_names]),
            *filter(None, (find_suspect(operators, fault, model.aliases) for fault in faults)),
        ]
        search = Search(operators, tuple(model.outputs), laboratory, suspects)
        located = search.run()
        written = ""
        if reproducer and search.smallest:
            written = self.write(reproducer, located, search.smallest)
        return Localised(
            **structs.asdict(located),
            model=self.spec.model,
            runtime=self.parts.runtime,
            scheme=self.spec.scheme.value,
            soc=self.spec.soc,
            wrong=located.is_wrong,
            programs=len(laboratory.tried),
            model_rows=tuple(model.losses),
            reproducer=written,
            known_faults=faults,
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
        work, engine = self.setup.work / f"part-{self.count}", PartEngine(self.parts, cut)
        run = CaseRun(self.spec, replace(self.setup, work=work, engine=engine))
        run.directory.mkdir(parents=True)
        job = run.setup.make_job(self.spec, run.directory / "lower.log")
        compile_result = as_compiled(self.call(job, job.log))
        if not compile_result.artifact:
            return Trial(
                refused=compile_result.refused.headline if compile_result.refused else "refused"
            )
        compiled, place = compile_result.artifact.compiled, Path(compile_result.directory)
        if not compiled.delegation.partitions:
            return Trial(refused="QNN accepts no node")
        if any(0 in output.shape for output in compiled.outputs):
            return Trial(refused="a result has no elements")
        references = read_references(place, compiled)
        program = run.copy_program(self.spec, place, compiled, run.directory)
        sets = read_inputs(place, compiled)
        # Limits of single outputs are for those of the model, not for those of the part.
        limits = structs.replace(run.facts.limits, outputs=())
        trial = Trial(refused="not run")
        for fresh in (False, True):  # a part is wrong only if it also fails in a fresh process
            ran = run.execute(program, sets, fresh=fresh)
            if ran.failure:
                trial = Trial(refused=ran.failure)
            else:
                try:
                    outputs = stack_outputs(ran.outputs, compiled)
                except ValueError as error:
                    # Outputs of another shape refuse the part, and do not end the search.
                    return Trial(refused=str(error))
                judged = judge(references, outputs, compiled.outputs, limits).outputs
                rows = zip(cut.outputs, judged, compiled.outputs, strict=True)
                trial = Trial(
                    tuple(
                        measure_departure(name, output, references, index, info)
                        for index, (name, output, info) in enumerate(rows)
                    )
                )
            if not ran.used or not (trial.refused or trial.worst):
                break
        return trial

    def write(self, file: Path, located: Located, cut: Cut) -> str:
        """Write the part to ``file``, with its tensors next to it, and return the path. Raises
        FailedError if the part cannot be written."""
        folder = reproducer_folder(file)
        with lock_folder(folder.path, self.progress), folder.stage() as scratch:
            job = partial(self.parts.write, self.spec, cut, scratch / file.name)
            source = self.call(job, self.setup.work / "source.log")
            if source.failure:
                why = skip_frames(source.log_tail)
                raise FailedError(f"no reproducer was written: {source.failure}", why=why)
            if source.result:
                write_reproducer(scratch / file.name, source.result, self.spec, located)
            folder.publish(scratch)
        return str(file)


def reproducer_folder(file: Path) -> UserFolder:
    """Return the folder of a reproducer."""
    return UserFolder(file.parent, "move it away, or pass another path to --reproducer")


NO_ALIASES: Mapping[str, str] = MappingProxyType({})
CHANGES = {
    Mend.BIASES: "separate biases",
    Mend.RANGES: "wider ranges",
}
REASONS = {
    Mend.BIASES: "the quantizer gives a bias that several layers share a single scale, but QNN"
    " expects the product of the scales of each layer's input and weights",
    Mend.RANGES: "calibration chose ranges that clip values in the quantized model, but QNN merges"
    " roundings and does not clip them",
}
AnyOperator = TypeVar("AnyOperator", Operator, experiments.Operator)


def match_operators(
    operators: Sequence[Operator] | Sequence[experiments.Operator],
    available: Sequence[AnyOperator],
) -> list[AnyOperator]:
    """Return the operators of another graph of the same model, such as its float form, that are the
    wanted ones; none if one of them has no counterpart there."""
    matches = []
    for operator in operators:
        key = operator.kind, operator.node, operator.line
        alike = [
            candidate
            for candidate in available
            if (candidate.kind, candidate.node, candidate.line) == key
        ]
        named = [candidate for candidate in alike if candidate.name == operator.name]
        if not named and len(alike) != 1:
            return []
        matches.append((named or alike)[0])
    return matches


def describe_smallest(
    located: Located, operators: Sequence[experiments.Operator]
) -> Smallest | None:
    """Return what a search shows of the smallest wrong part, whose operators are named as in
    ``operators`` of the float model; None if there is no such part."""
    if not located.part:
        return None
    worst = max(located.part_outputs, key=lambda output: output.excess_db, default=None)
    result = Result(failure=located.ended, is_refused=True)
    if worst:
        result = Result(worst.reached_db, worst.predicted_db)
    change, returning = None, None
    if located.changed:
        mend = located.mended_by[0]
        change = Change(CHANGES[mend], REASONS[mend], read_right(located.changed))
    if located.returned:
        returning = read_right(located.returned)
    return Smallest(tuple(match_operators(located.part, operators)), result, returning, change)


def read_right(outputs: Sequence[Departure]) -> Result:
    """Return the result of a part whose outputs are right."""
    worst = max(outputs, key=lambda output: output.excess_db)
    return Result(worst.reached_db, worst.predicted_db, is_right=True)


def advise_on_part(located: Located) -> Advice:
    """Return the cause that a search alone shows, without experiments on the float model."""
    smallest = describe_smallest(located, ())
    if smallest is None:
        return advise_on_diagnosis(Diagnosis(Result(failure=located.ended)))
    part = tuple(
        experiments.Operator(operator.name, operator.kind, line=operator.line)
        for operator in located.part
    )
    if smallest.change:
        after = smallest.change.result
        return advise_on_diagnosis(
            Diagnosis(smallest.result, part, after=after, change=smallest.change)
        )
    after = smallest.returning or Result()
    is_fused = smallest.returning is not None
    return advise_on_diagnosis(Diagnosis(smallest.result, part, after=after, is_fused=is_fused))


def find_suspect(
    operators: Mapping[str, Operator], fault: KnownFault, aliases: Mapping[str, str] = NO_ALIASES
) -> list[str]:
    """Return the names of the operators at which a known fault was found: in a file, those of its
    nodes, of which some have ``aliases``; otherwise, a chain of operators of the fault's kinds that
    starts at the fault's line. Empty if there is no such chain."""
    names = [aliases.get(name, name) for name in fault.nodes]
    if all(name in operators and operators[name].node for name in names):
        return [*dict.fromkeys(names)]
    for first in operators.values():
        is_place = fault.module == first.module if fault.module else fault.place == first.line
        is_first = is_place and first.kind == fault.operators[0]
        chain = [first] if is_first else []
        for kind in fault.operators[1:] if chain else ():
            last = chain[-1].name
            chain += [
                operator
                for operator in operators.values()
                if operator.kind == kind and last in operator.inputs
            ][:1]
        if len(chain) == len(fault.operators):
            return [operator.name for operator in chain]
    return []


def measure_departure(
    name: str, judged: OutputJudgement, references: References, index: int, info: TensorInfo
) -> Departure:
    """Return the SQNR of an output against the model's output, and the predicted SQNR. Outputs
    without an SQNR, such as indices and booleans, get 0 dB for both."""
    faithful = not judged.fails(Question.FAITHFUL)
    figures = judged.nearest
    if figures is None:
        return Departure(name, 0.0, 0.0, faithful)
    prediction = references.predict(index, info)
    # The gate accepts every error below the floor, so nothing better than the floor is expected.
    floor_db = decibels(prediction.rms**2, prediction.floor)
    predicted_db = min(prediction.sqnr_db, floor_db)
    reached_db = limit_db(figures.sqnr_db, LIMIT_DB)
    return Departure(name, reached_db, limit_db(predicted_db, LIMIT_DB), faithful)
