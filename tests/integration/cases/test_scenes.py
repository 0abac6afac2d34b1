"""Cases from the engine to the row: what a case says for each thing that may be wrong with it. The
expected rows are in snapshots/scenes.txt."""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ci.analysis.steps import Operand, Step
from ci.cases.baselines import Baseline
from ci.cases.cache import Artifact
from ci.cases.engine import (
    Compiled,
    CompilerError,
    Delegation,
    Fallback,
    RunError,
    RunNotes,
    Staging,
)
from ci.cases.facts import Evidence, Run
from ci.cases.policy import EmulatorPolicy, Unsupported, read_emulator_policy
from ci.cases.pool import Ended, Job
from ci.cases.row import make_case
from ci.cases.spec import CaseSpec
from ci.explain.rules import Advice
from ci.facts.finding import Origin, Place
from ci.facts.kinds import METRIC_DROP
from ci.faults.match import match_faults
from ci.judging.figures import Nearness
from ci.judging.verdict import CaseFigures
from ci.models.lowering_options import Choices, RunOptions
from ci.models.schemes import Scheme
from ci.models.tensors import Loss
from ci.models.user_models import (
    Limits,
    MetricResult,
    ModelBudget,
    ModelEntry,
    OutputLimits,
    Source,
)
from ci.report.schema import Case, Control, DeviceFigures, Footprint, OpCount, OutputFigures, Status
from ci.report.write import PARTS
from provisioning.errors import FailedError, MissingToolError, UsageError
from tests.build.cases import (
    COARSE,
    COMPILED,
    IDS,
    LOGITS,
    MASK,
    METRIC,
    RIGHT,
    MeasuringPool,
    change_policy,
    give,
    make_engine,
)
from tests.build.setups import make_options
from tests.stand_ins.lanes import SPEC, FloatEngine, InlinePool, run_case
from tests.stand_ins.snapshots import check_snapshot

FIGURES = (
    *("sqnr_db", "sqnr_db_quantized", "sqnr_db_scheme", "predicted_sqnr_db", "above_noise_db"),
    *("cosine", "cosine_quantized", "max_abs", "gain", "offset", "equal", "equal_quantized"),
    *("equal_exact", "metric", "metric_float", "metric_quantized", "recorded_sqnr_db"),
)
OF_DEVICES = ("sqnr_db_emulator", "equal_emulator")


@dataclass
class Scene:
    """A case in which the runner gives ``turns``; ``settings`` go to run_case."""

    turns: tuple[Any, ...]
    engine: FloatEngine = field(default_factory=make_engine)
    fields: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    figures: bool = False

    def show(self, place: Path) -> str:
        runner = give(*self.turns, **self.fields)
        result = run_case(place, self.engine, runner, **self.settings)
        shown = show_case(result.case, result.controls)
        if not self.figures:
            shown = [line for line in shown if not line.startswith(("figures: ", "controls: "))]
        calls = f"calls: {' '.join(runner.calls)}" if runner.calls else ""
        remark = f"remark: {result.remark}" if result.remark else ""
        return "".join(f"  {line}\n" for line in filter(None, [*shown, remark, calls]))


def show_case(case: Case, controls: tuple[Control, ...] = ()) -> list[str]:
    """What a row says, line by line, without the places of this project."""
    figures = {name: getattr(case.judgement, name) for name in FIGURES}
    figures |= {name: getattr(case.device, name) for name in OF_DEVICES}
    shown_figures = [f"{name} {value:.4g}" for name, value in figures.items() if value is not None]
    first = case.judgement.status.value + (f", {case.question.value}" if case.question else "")
    accepted = [control.kind.value for control in controls if not control.rejected]
    control_kinds = [control.kind.value for control in controls]
    return [
        first
        + " by a defect of this project" * case.judgement.is_defect
        + " from the cache" * case.program.cached,
        *(f"lacks: {cause}" for cause in [case.run.lacks] if cause),
        *(line for finding in case.judgement.findings for line in finding.text.splitlines()),
        *(f"warning: {warning}" for warning in case.judgement.warnings),
        *(
            f"noted: {note.operator} {note.label}: {note.why}"
            for note in case.judgement.noise_notes
        ),
        *(f"on the CPU: {node.op}: {node.reason}" for node in case.unlisted_ops),
        *([f"figures: {', '.join(shown_figures)}"] if shown_figures else []),
        *([f"controls: {', '.join(control_kinds)}"] if control_kinds else []),
        *([f"accepted: {', '.join(accepted)}"] if accepted else []),
        *([f"log: {case.run.log_tail.splitlines()[0]}"] if case.run.log_tail else []),
    ]


def scene(*turns: Any, engine: Any = None, figures: bool = False, **settings: Any) -> Scene:
    fields = {name: settings.pop(name) for name in ("used", "notes") if name in settings}
    return Scene(turns, engine or make_engine(), fields, settings, figures)


# -- outputs ---------------------------------------------------------------------------------------


def replace_output(index: int, wrong: Any) -> list[Any]:
    return [wrong if number == index else output for number, output in enumerate(RIGHT)]


def move_ids(number: int) -> list[Any]:
    """The ids of one sample are one too large; the bounds of set 0 allow that."""
    ids = IDS.copy()
    ids[number] += 1
    return [COARSE, ids, MASK]


def cut(change: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    """Outputs of the right model, changed before they are given."""
    return lambda number: change([outputs[number[0]] for outputs in RIGHT])


ZEROS = [np.zeros_like(output) for output in RIGHT]
NEARLY = [COARSE * np.float32(1.001), IDS, MASK]
DEAD = RunError("was killed by SIGSEGV")


def list_outputs() -> Iterator[tuple[str, Scene]]:
    yield "right, with every figure", scene(NEARLY, figures=True)
    yield "equal to the quantized model", scene(RIGHT, figures=True)
    yield "ids within their bounds", scene(move_ids(0), figures=True)
    yield "ids outside of their bounds", scene(move_ids(1))
    yield "zeros", scene(replace_output(0, np.zeros_like(COARSE)))
    yield "every id is one too large", scene(replace_output(1, IDS + 1))
    yield "a mask is negated", scene(replace_output(2, ~MASK))
    for name, places in (("one set less", [*range(3)]), ("one set more", [*range(4), 0])):
        yield name, scene([outputs[places] for outputs in RIGHT])
    yield "one output less", scene(cut(lambda outputs: outputs[:2]))
    yield "one output more", scene(cut(lambda outputs: [*outputs, outputs[0]]))
    yield "a smaller output", scene(cut(lambda outputs: [*outputs[:2], outputs[2][:5]]))
    yield "an output of another rank", scene(cut(lambda outputs: [*outputs[:2], outputs[2][None]]))
    for recorded in (34.0, 60.0, 10.0):
        baselines = {"mlp 8a8w SM8650": Baseline(recorded), "mlp fp16 SM8650": Baseline(99.0)}
        yield f"recorded with {recorded} dB", scene(NEARLY, recorded=baselines)
    loose = msgspec.structs.replace(
        read_emulator_policy().schemes[Scheme.A8W8], min_equal=0.0, min_equal_quantized=0.0
    )
    yield "limits that accept controls", scene(RIGHT, policy=change_schemes(loose))
    high = {Scheme.A8W8: Limits(min_sqnr_db=90.0)}
    for model in ("mlp", "resnet"):
        policy = change_policy(models={model: ModelEntry(model, limits=high)})
        yield f"limits of {model}", scene(RIGHT, policy=policy)
    for output in (2, 3):  # the model has three
        outputs = {str(output): OutputLimits(min_equal=0.99)}
        usual = read_emulator_policy().schemes[Scheme.A8W8]
        scheme_limits = {Scheme.A8W8: msgspec.structs.replace(usual, outputs=outputs)}
        policy = change_policy(models={"mlp": ModelEntry("mlp", limits=scheme_limits)})
        yield f"limits of output {output}", scene(RIGHT, policy=policy)
    for notes in (RunNotes(("nobody ran it",), "made anew"), RunNotes(remark="made anew")):
        yield f"a runner's notes {notes.faults}", scene(RIGHT, notes=notes)


def change_schemes(limits: Limits) -> EmulatorPolicy:
    return change_policy(schemes={Scheme.A8W8: limits})


# -- runs ------------------------------------------------------------------------------------------


def list_runs() -> Iterator[tuple[str, Scene]]:
    wrong_ids = [COARSE, IDS + 1, MASK]
    anew = RunNotes(remark="made anew")
    yield "right in a used process", scene(RIGHT, used=True)
    yield "wrong in a used process alone", scene(ZEROS, RIGHT, used=True, notes=anew)
    yield "wrong in a fresh process, too", scene(ZEROS, wrong_ids, used=True)
    yield "dies in a fresh process", scene(ZEROS, DEAD, used=True, figures=True)
    yield "other outputs in each run", scene(ZEROS, wrong_ids)
    yield "wrong, and dies when it runs again", scene(ZEROS, DEAD)
    yield "dies", scene(DEAD)
    opening = RunError("was killed by SIGSEGV", used=True)
    yield "dies when it opens in a used process", scene(opening, RIGHT)
    lost = RunError("ssh:board cannot be reached: it reboots", lacks="ssh:board")
    yield "a device is lost", scene(lost)
    yield "nobody foresaw it", scene(LookupError("seven"))
    ours = MissingToolError("cannot start run.sh", why="Exec format error", fix="check #!")
    yield "an error of this project", scene(ours)
    refusals = (Unsupported(pattern="killed by SIGSEGV", reason="QNN dies of it"),)
    advice = (Advice(pattern="QNN dies", fix="wait for another QNN"),)  # only for a failure
    policy = change_policy(unsupported=refusals, advice=advice)
    yield "dies, as the policy knows", scene(DEAD, policy=policy)
    yield "dies as it knows, then passes", scene(DEAD, RIGHT, used=True, policy=policy, notes=anew)
    by_log = change_policy(unsupported=(Unsupported(pattern="the log", reason="its log tells"),))
    yield "dies, and the policy knows its log", scene(DEAD, policy=by_log)
    budget = change_policy(models={"mlp": ModelEntry("mlp", budget=ModelBudget(program_bytes=1))})
    left = Delegation(3, 1, 1, (Fallback("aten.erf", "no builder"),))
    engine = make_engine(delegation=left, footprint=Footprint(program_bytes=2))
    yield "dies with a node on the CPU", scene(DEAD, engine=engine, policy=budget)
    kernel = RunError("RuntimeError: Failed to load method forward, error: 0x:14")
    yield "lacks a kernel for it", scene(kernel, engine=engine, policy=budget)
    for gain in (1.0, 2.0):
        outputs = [COARSE * np.float32(gain), IDS, MASK]
        large = make_engine(footprint=Footprint(program_bytes=2))
        yield f"over its budget, gain {gain}", scene(outputs, engine=large, policy=budget)
    other_outputs = [LOGITS * 1.1, IDS, MASK]
    for name, emulator in (
        ("the same", give(RIGHT)),
        ("others", give(other_outputs)),
        ("none", give(DEAD)),
        ("more", give([*RIGHT, IDS])),
    ):
        yield f"the emulator gives {name}", scene(RIGHT, emulator=emulator, figures=True)
    yield "dies, so no emulator is asked", scene(DEAD, emulator=give(RIGHT), figures=True)
    for name, engine in (("whole", make_engine()), ("partly", make_engine(delegation=left))):
        yield f"cannot run here, {name}", scene(RIGHT, engine=engine, device="an Adreno")


# -- lowering --------------------------------------------------------------------------------------


class FaultyEngine(FloatEngine):
    """An engine that finds a fault of the user's while it makes the key."""

    def key(self, spec: CaseSpec) -> str:
        raise UsageError("net.py gives no tensor", fix="return one")


class DyingKey(FloatEngine):
    def key(self, spec: CaseSpec) -> str:
        os._exit(3)


class DyingCompiler(FloatEngine):
    parent_pid = os.getpid()

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        assert os.getpid() != self.parent_pid  # it does not take the worker with it
        os._exit(3)


class TellingPool(InlinePool):
    """Has the end of a log."""

    def run(self, job: Job, log: Path, timeout_s: float, **options: Any) -> Ended:
        return replace(super().run(job, log, timeout_s, **options), log_tail="the end of a log")


class ForkingPool(TellingPool):
    """Compiles in forks, as a worker does."""

    forks = True


def list_refusals() -> Iterator[tuple[str, Scene]]:
    telling, forking = {"pool": TellingPool()}, {"pool": ForkingPool()}
    usual = make_engine()
    plain = (usual.compute, usual.sets, usual.quantized)
    refusing = make_engine(raises=ValueError("no GRU"))
    yield "refused", scene(RIGHT, engine=refusing, **telling)
    known_cause = make_engine(raises=KeyError("torch.complex64"))
    yield "refused for a known cause", scene(RIGHT, engine=known_cause)
    fault = UsageError("net.py gives no tensor", fix="return one")
    yield "the model is wrong", scene(RIGHT, engine=make_engine(raises=fault))
    yield "the model is wrong for the key", scene(RIGHT, engine=FaultyEngine(*plain))
    yield "loading dies", scene(RIGHT, engine=DyingKey(*plain), **forking)
    yield "the compiler dies", scene(RIGHT, engine=DyingCompiler(*plain), **forking)
    full = OSError(errno.ENOSPC, "No space left on device")
    yield "no room", scene(RIGHT, engine=make_engine(raises=full))
    deep = RuntimeError("flatc failed")
    deep.__cause__ = OSError(errno.ENOSPC, "No space left on device", "/there")
    yield "no room for a tool", scene(RIGHT, engine=make_engine(raises=deep))
    left = (Fallback("aten.erf", "no builder"),)
    nothing = make_engine(delegation=Delegation(0, 1, 0, left))
    yield "QNN takes no node", scene(RIGHT, engine=nothing, **telling)
    yield "no operators", scene(RIGHT, engine=make_engine(delegation=Delegation(0, 0, 0)))
    policy = change_policy(unsupported=(Unsupported(pattern="GRU", reason="QNN has none"),))
    yield "refused, as the policy knows", scene(RIGHT, engine=refusing, policy=policy, **telling)
    refused_once = change_policy(
        unsupported=(Unsupported(pattern="no", reason="it was refused once"),)
    )
    rows: dict[str, dict[str, Any]] = {
        "every case": {},
        "this case": {"models": (SPEC.model,), "schemes": (SPEC.scheme.value,)},
        "some cases": {"strict": False},
        "another option": {"choices": ("saver",)},
        "an option": {"choices": ("*saver*",)},
        "no option": {"choices": ("",)},
    }
    for name, row in rows.items():
        policy = change_policy(unsupported=(replace_row(refused_once, row),))
        choices = Choices(saver=name in {"an option", "no option"})
        spec = replace(SPEC, source=msgspec.structs.replace(SPEC.source, choices=choices))
        settings: dict[str, Any] = {"policy": policy, "spec": spec}
        yield f"passes where {name} is expected to be refused", scene(RIGHT, **settings)
        refused = make_engine(raises=ValueError("no"))
        yield f"is refused where {name} is", scene(RIGHT, engine=refused, **settings)


def replace_row(policy: EmulatorPolicy, row: dict[str, Any]) -> Unsupported:
    return msgspec.structs.replace(policy.unsupported[0], **row)


# -- nodes on the CPU ------------------------------------------------------------------------------

RANK = "[4294967295] has incorrect Rank {}.; Failed to validate op"


def list_fallbacks() -> Iterator[tuple[str, Scene]]:
    def leave(*nodes: Fallback, **settings: Any) -> Scene:
        engine = make_engine(delegation=Delegation(3, len(nodes), 1, nodes))
        return scene(RIGHT, engine=engine, **settings)

    erf = Fallback("aten.erf", "no builder")
    yield "a node on the CPU", leave(erf)
    usual = read_emulator_policy().schemes[Scheme.A8W8]
    allowed = change_schemes(msgspec.structs.replace(usual, full_delegation=False))
    yield "a node on the CPU is allowed", leave(erf, policy=allowed)
    skipped = Fallback("skipped", "asked for", True)
    many = [Fallback(f"op{number}", "no builder") for number in (1, 2, 3, 4, 5, 5, 6)]
    yield "a node on the CPU as asked", leave(skipped)
    yield "two nodes alike", leave(erf, erf)
    yield "more operators than are shown", leave(*many, skipped)
    first, second = (Origin(file="zoo.py", line=line) for line in (40, 41))
    view, permute = ("aten.view_copy.default", "aten.permute_copy.out")
    yield (
        "one reason, two lines",
        leave(
            Fallback(view, RANK.format(6), origin=first),
            Fallback(permute, RANK.format(6), origin=second),
        ),
    )
    yield "an operator with advice", leave(Fallback("aten.pow.Tensor_Scalar", "refused"))
    yield "a node of ONNX", leave(Fallback("Reshape", RANK.format(6), name="r1"))
    yield "a module", leave(Fallback(view, RANK.format(6), origin=Origin(module="0.3")))
    yield (
        "two reasons",
        leave(
            Fallback("aten.mean.dim", RANK.format(6), origin=first),
            Fallback("aten.mean.dim", RANK.format(7), origin=Origin(file="net.py", line=2)),
        ),
    )


# -- the layer that is wrong -----------------------------------------------------------------------

RAMP = [[np.arange(6, dtype=np.float32).reshape(2, 3) + number] for number in range(1, 5)]
LAYERS = {
    "linear [net.py:1]": lambda x: [x * 2],
    "softmax [net.py:2]": lambda x: [x * 3],
    "mul [net.py:3]": lambda x: [x * 4],
}
OFF = np.sin(RAMP[0][0])
FLOAT16 = replace(SPEC, scheme=Scheme.FP16)


class RefusingLayers(FloatEngine):
    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        if spec.layers:
            raise ValueError("no layers")
        return super().compile(spec, staging)


class DyingLayers(FloatEngine):
    def warm_up(self, spec: CaseSpec) -> None:
        if spec.layers:
            raise LookupError("seven")


def behind(*gains: float, off: Any = OFF) -> Callable[[Any], list[Any]]:
    """The outputs of the model times 5 with an error, and those of its layers."""
    return lambda x: [x * 5 + off, *(x * gain for gain in gains)]


def list_layers() -> Iterator[tuple[str, Scene]]:
    def locate(
        *turns: Any, kind: Any = FloatEngine, layers: Any = LAYERS, **settings: Any
    ) -> Scene:
        engine = kind(lambda x: [x * 5], RAMP, layers=layers)
        return scene(*turns, engine=engine, **{"spec": FLOAT16, **settings})

    wrong = behind()
    yield "wrong between layers", locate(wrong, behind(2.0, 3.3, 4.0))
    yield "wrong from the first layer", locate(wrong, behind(2.2, 3.3, 4.4))
    yield "wrong behind the layers", locate(wrong, behind(2.0, 3.0, 4.0))
    yield "right with its layers", locate(wrong, wrong, behind(2.0, 3.0, 4.0, off=0))
    zeros = {"zeros": lambda x: [x * 0], "softmax": lambda x: [x * 3]}
    yield "a layer gives zeros", locate(wrong, behind(0.0, 3.3), layers=zeros)
    loose = Limits(outputs={"1": OutputLimits(max_above_noise_db=900.0)})
    policy = change_policy(models={"mlp": ModelEntry("mlp", limits={Scheme.FP16: loose})})
    yield "limits of output 1", locate(wrong, behind(2.2, 3.3, 4.4), policy=policy)
    yield "right", locate(behind(off=0))
    yield "layers die", locate(wrong, DEAD)
    yield "layers are refused", locate(wrong, kind=RefusingLayers)
    yield "layers throw", locate(wrong, kind=DyingLayers)
    yield "no layers", locate(wrong, layers={})
    methods = replace(FLOAT16, source=Source(choices=Choices(methods=("other",))))
    yield "several methods", locate(wrong, spec=methods)
    yield "right values in other places", locate(lambda x: [x[..., ::-1] * 5])
    yield "wrong in a used process", locate(wrong, behind(off=0), used=True)
    small = 0.02 * OFF

    def note(x: Any) -> list[Any]:
        return [x * 5 + small, x * 2, x * 3 + small, x * 4 + small]

    for strict in (False, True):
        policy = change_policy(strict_noise=strict)
        yield f"a small error, strict {strict}", locate(behind(off=small), note, policy=policy)


# -- what a user's metric, budget and quantization say ---------------------------------------------


# Where the quantized model loses accuracy.
LOSS = Loss("linear [net.py:2]", 40.0, 12.34, 30.06, nodes=("mul", "linear"))


def list_questions() -> Iterator[tuple[str, Scene]]:
    measured = change_policy(models={"mlp": ModelEntry("mlp", metric=METRIC)})
    dead = MeasuringPool(failure="the process was killed by SIGSEGV")
    for name, pool in (
        ("good", MeasuringPool(0.9, 0.9, 0.1, 0.9)),
        ("short", MeasuringPool(0.5, 0.9, 0.1, 0.9)),
        ("short, as the quantized model's", MeasuringPool(0.5, 0.9, 0.1, 0.5)),
        ("that dies", dead),
        ("that is late", MeasuringPool(failure="did not end within 9 s")),
    ):
        yield f"a metric {name}", scene(RIGHT, policy=measured, pool=pool)
    budget = ModelBudget(program_bytes=1)
    with_metric_and_budget = change_policy(
        models={"mlp": ModelEntry("mlp", metric=METRIC, budget=budget)}
    )
    large = make_engine(footprint=Footprint(program_bytes=2))
    for gain in (1.0, 2.0):
        outputs = [COARSE * np.float32(gain), IDS, MASK]
        settings: dict[str, Any] = {"engine": large, "policy": with_metric_and_budget, "pool": dead}
        yield f"a metric that dies, a budget, gain {gain}", scene(outputs, **settings)
    coarse = FloatEngine(
        lambda x: [x],
        RAMP,
        lambda x: [x + 2 * np.sin(9 * x)],
        noise=3.0,
        footprint=Footprint(program_bytes=100),
    )
    for metric, value in ((METRIC, 0.9), (METRIC, 0.5), (None, 0.9)):
        entry = ModelEntry("mlp", metric=metric, budget=ModelBudget(program_bytes=1000))
        yield (
            f"rounding hides everything, metric {value if metric else None}",
            scene(
                coarse.quantized,
                engine=coarse,
                policy=change_policy(models={"mlp": entry}),
                pool=MeasuringPool(value, 0.9, 0.1, 0.9),
            ),
        )
    usual = {name: getattr(make_engine(), name) for name in ("compute", "sets", "quantized")}
    usual |= {"bounds": make_engine().bounds, "noise": 0.002, "further_fields": {"loss": LOSS}}
    high = {Scheme.A8W8: Limits(min_sqnr_db=90.0)}
    spoiled = change_policy(models={"mlp": ModelEntry("mlp", limits=high)})
    for gain in (1.0, 2.0):
        outputs = [COARSE * np.float32(gain), IDS, MASK]
        losing = FloatEngine(**usual)
        yield (
            f"quantization spoils it, gain {gain}",
            scene(outputs, engine=losing, policy=spoiled),
        )
    limits = msgspec.structs.replace(change_policy().schemes[Scheme.A8W8], min_sqnr_db_all=32.0)
    near = change_policy(models={"mlp": ModelEntry("mlp", limits={Scheme.A8W8: limits})})
    hidden = FloatEngine(**{**usual, "noise": 3.0})
    yield "quantization hides everything", scene(RIGHT, engine=hidden)
    yield (
        "quantization nearly spoils it",
        scene(RIGHT, engine=replace(make_engine(), further_fields={"loss": LOSS}), policy=near),
    )
    limits = msgspec.structs.replace(limits, min_sqnr_db_all=34.0)
    near = change_policy(models={"mlp": ModelEntry("mlp", limits={Scheme.A8W8: limits})})
    yield (
        "quantization spoils one sample",
        scene(RIGHT, engine=replace(make_engine(), further_fields={"loss": LOSS}), policy=near),
    )
    losing = FloatEngine(**usual, footprint=Footprint(program_bytes=2))
    large_budget = change_policy(models={"mlp": ModelEntry("mlp", budget=budget)})
    yield "quantization loses, over its budget", scene(RIGHT, engine=losing, policy=large_budget)
    for scheme, gain in ((Scheme.ASIS, 1.0), (Scheme.ASIS, 1.01), (Scheme.U8, 1.0)):
        engine = FloatEngine(lambda x: [x], RAMP, lambda x, gain=gain: [x * gain], noise=0.01)
        policy, spec = read_emulator_policy(None, "onnx"), replace(SPEC, scheme=scheme)
        yield (
            f"a file is its own reference, {scheme.value}, {gain}",
            scene(lambda x: [x], engine=engine, policy=policy, spec=spec),
        )


# -- known faults in the graph ---------------------------------------------------------------------

SUM = (Operand((2, 8, 8)), Operand((2, 1, 8), magnitude=1e4))
MASKED = (
    Step("add", "add", SUM, ("", ""), (2, 8, 8), origin=Origin(file="nets/net.py", line=7)),
    Step("softmax", "softmax", (Operand((2, 8, 8)),), ("add",), (2, 8, 8)),
)


def number_step(step: Step, number: int) -> Step:
    """The same step in layer ``number`` of several."""
    sources = tuple(source and f"{source}_{number}" for source in step.sources)
    origin = Origin(module=f"layers.{number}")
    return msgspec.structs.replace(
        step, name=f"{step.name}_{number}", sources=sources, origin=origin
    )


SEVERAL = tuple(number_step(step, number) for number in range(6) for step in MASKED)
SLOPES = (Operand((1, 8, 4)), Operand((8, 1), constant=True))
SLOPED = (Step("prelu", "prelu", SLOPES, ("", ""), (1, 8, 4)),)


class LatePool(InlinePool):
    """The compiler starts, notes the graph and is late."""

    def run(self, job: Job, log: Path, timeout_s: float, **options: Any) -> Ended:
        super().run(job, log, timeout_s, **options)
        return Ended(None, "did not end within 9 s", "")


def list_known() -> Iterator[tuple[str, Scene]]:
    def known(*turns: Any, raises: Exception | None = None, **settings: Any) -> Scene:
        options = make_options(find_faults=match_faults, **settings.pop("case_options", {}))
        engine = make_engine(steps=settings.pop("steps", MASKED), raises=raises)
        return scene(*turns, engine=engine, options=options, **settings)

    yield "a known fault, and right", known(RIGHT)
    yield "a known fault, and wrong", known(ZEROS)
    refused = FailedError("QNN refuses it")
    yield "a known fault, and refused", known(RIGHT, raises=refused)
    yield "a known fault, and the compiler is late", known(RIGHT, pool=LatePool())
    rows = (Unsupported(pattern="QNN refuses it", reason="as it always did"),)
    case_options = {"policy": change_policy(unsupported=rows)}
    yield (
        "a known fault, refused as the policy knows",
        known(RIGHT, raises=refused, case_options=case_options),
    )
    spec = replace(SPEC, scheme=Scheme.FP16W8)
    yield "no known fault in another scheme", known(RIGHT, spec=spec)
    yield "a known fault in six layers, and right", known(RIGHT, steps=SEVERAL)
    yield "a known fault in six layers, and wrong", known(ZEROS, steps=SEVERAL)
    policy, spec = read_emulator_policy(None, "onnx"), replace(SPEC, scheme=Scheme.U16A8W)
    file = {"steps": SLOPED, "spec": spec, "case_options": {"policy": policy}}
    stopped = CompilerError("QNN refuses it", fix="change it")
    yield "a known fault that keeps QNN from compiling, and refused", known(raises=stopped, **file)
    yield "a known fault that keeps QNN from compiling, and unusable", known(raises=refused, **file)
    yield "a known fault that keeps QNN from compiling, and compiled", known(RIGHT, **file)


def test_every_case_text_of_the_scenes_reads_as_its_snapshot() -> None:
    lists = (list_outputs, list_runs, list_refusals, list_fallbacks, list_layers, list_questions)
    lists += (list_known,)
    scenes = [named_scene for list_scenes in lists for named_scene in list_scenes()]
    assert len(dict(scenes)) == len(scenes)
    with tempfile.TemporaryDirectory() as folder:  # a long path would be cut from a headline
        text = "".join(
            f"{name}\n{shown_scene.show(Path(folder) / str(number))}".replace(
                f"{folder}/{number}", "PLACE"
            )
            for number, (name, shown_scene) in enumerate(scenes)
        )
    text = re.sub(r"(suite/mlp\.py:)\d+|\d+ MiB are free", r"\1N", text)
    check_snapshot(Path(__file__).with_name("snapshots") / "scenes.txt", text)


def test_a_cache_that_is_damaged_or_cannot_be_written_is_named(tmp_path: Path) -> None:
    def run(*, use_cache: bool = True) -> tuple[str, str]:
        result = run_case(tmp_path, make_engine(), give(RIGHT), use_cache=use_cache)
        return result.case.reason, result.remark

    assert [run(use_cache=use_cache) for use_cache in (True, True, False)] == [("", "")] * 3
    next(tmp_path.glob("cache/*/*/program.txt")).write_text("another")
    assert run() == ("", "a damaged cache entry was replaced")
    (tmp_path / "cache").rename(tmp_path / "moved")
    (tmp_path / "cache").touch()
    reason, _ = run()
    assert str(tmp_path / "cache") in reason
    assert "\n  fix: " in reason


def test_each_fact_of_a_case_is_in_its_report_row() -> None:
    """Each fact has its own value, so that a mixed-up field shows."""
    ops = (Fallback("aten.erf", "no builder"), Fallback("aten.fft", "no kernel"))
    compiled = msgspec.structs.replace(
        COMPILED,
        program="a/folder/p.pte",
        size_bytes=14,
        sets=15,
        delegation=Delegation(11, 12, 13, ops),
        made_inputs="random inputs",
        unshared_bytes=16,
        footprint=Footprint(spill_bytes=61),
        weights="w" * 64,
        calibration="c" * 64,
    )
    files = {"a/folder/q.bin": "c" * 64, "a/folder/p.pte": "d" * 64, "a/log": "e" * 64}
    figures = {figure.name: 20.0 + place for place, figure in enumerate(fields(CaseFigures))}
    notes = RunNotes(
        accelerator={"accelerator_cycles": 41, "accelerator_us": 42},
        run_ms=43.00006,
        device=DeviceFigures(starts=58, runs=59),
    )
    evidence = Evidence(
        artifact=Artifact("key", "m", "s", "soc", compiled, 17.0, files),
        cached=True,
        compiler="v2.49",
        qnn_ops=(OpCount(op="Conv2d", count=18),),
        run=Run(notes=notes, wall_s=44.0006),
        figures=CaseFigures(**figures),  # type: ignore[arg-type]
        metric=MetricResult(51.0, 52.0, 53.0, 54.0),
        warnings=("a warning",),
        baseline=Baseline(55.0, 56.0, Footprint(spill_bytes=62)),
        lacks="an Adreno",
        outputs=(OutputFigures(dtype="float32", shape=(57,)),),
        nearness=Nearness(60.0, 0.61),
    )
    source = Source(choices=Choices(saver=True), run=RunOptions(warm_up=2))
    finding = METRIC_DROP.find("x", places=(Place(file="net.py", line=3),))
    row = make_case(
        replace(SPEC, source=source),
        evidence,
        status=Status.FAILED,
        findings=[finding],
        runner="echo",
        log_tail="the end",
        metric_name="top1",
    )
    shown = [f"name: {row}\n"]
    for part in PARTS:
        facts = msgspec.to_builtins(getattr(row, part)).items()
        shown += [f"{part}.{name}: {json.dumps(value)}\n" for name, value in facts]
    text = "".join(shown)
    check_snapshot(Path(__file__).with_name("snapshots") / "row.txt", text)
