"""What report.json holds: frozen values, from which docs/schemas/report.schema.json is made.

A figure that is not finite or could not be had is None, null in JSON: an SQNR is null when
the outputs are equal (``max_abs`` is 0 then) and when nothing was compared.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from provisioning.elf.programs import is_loadable
from provisioning.errors import ExitCode
from provisioning.manifest.targets import Backend
from provisioning.versions import parse_version

SCHEMA_VERSION: Final = 5
ANY_MODEL = "*"
# Limits of schema versions up to 4: nothing is judged by them any more.
DROPPED = ("min_sqnr_db_channel", "max_gain_error", "max_offset", "max_nearer_db")
MARGIN_DB = 10.0  # how far the prediction of noise may be off, see ci.judging.noise
MADE_PROVES = "proves arithmetic, not accuracy"  # what a case on inputs that were made does
HTP = Backend.HTP.value
COMMIT_DIGITS = 10

Decibels = Annotated[float, Meta(description="signal to quantization noise ratio, dB")]
Cosine = Annotated[
    float, Meta(description="cosine similarity of the flattened outputs", ge=-1.001, le=1.001)
]
Difference = Annotated[float, Meta(description="largest absolute difference of an element", ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(description="wall clock, seconds", ge=0)]
Milliseconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Status(str, Enum):
    """How a case ended; a crash, a hang or a missing output is a failure too."""

    PASSED = "passed"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"


RANKS = {Status.PASSED: 0, Status.UNSUPPORTED: 1, Status.FAILED: 2}


class ControlKind(str, Enum):
    """What the gate is fed instead of the outputs, and has to reject; of a language model, instead
    of a generation."""

    ZEROS = "zeros"
    NOISE = "noise"
    PERMUTED = "permuted"
    OTHER_INPUT = "other_input"
    WEAKEST_CHANNEL = "weakest_channel"
    GAIN = "gain"
    PLUS_ONE = "plus_one"
    GARBAGE_TAIL = "garbage_tail"
    TOKEN_ZERO = "token_zero"  # noqa: S105 - no password
    TOP_TWO = "top_two"
    PREVIOUS_LOGITS = "previous_logits"
    ENDLESS = "endless"
    CACHES_SHIFTED = "caches_shifted"
    MASK_INVERTED = "mask_inverted"
    MASK_INFINITE = "mask_infinite"
    POSITION_OFF = "position_off"
    OTHER_PROMPT = "other_prompt"
    PREFILL_IGNORED = "prefill_ignored"


class Question(str, Enum):
    """What a case answers, each with a verdict: whether the program computes its quantized model
    (in float16 its float32 model), whether that model is near enough to the float32 one, whether
    the result is good for the user's task, and whether the program is within its budget."""

    FAITHFUL = "faithful"
    QUANTIZED = "quantized"
    TASK = "task"
    BUDGET = "budget"


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value of the report, made plain: numbers of numpy become Python's, NaN and inf None."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            plain = _plain(value)
            if plain is not value:
                msgspec.structs.force_setattr(self, name, plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    number = value.item() if hasattr(value, "item") else value
    return None if isinstance(number, float) and not math.isfinite(number) else number


class Tool(Record, frozen=True, kw_only=True):
    """A part of the toolchain: a package, a library or a program that took part."""

    name: str
    version: str
    sha256: Sha256 | None = None


class Host(Record, frozen=True, kw_only=True):
    """The machine that ran it."""

    system: str
    machine: str
    processor: str
    cpus: Count
    memory_bytes: Count
    libc: str
    python: str


class OutputThreshold(Record, frozen=True, kw_only=True):
    """What the policy asks of one output; what is None is as for all."""

    output: Count
    min_sqnr_db: Decibels | None = None
    min_sqnr_db_quantized: Decibels | None = None
    min_sqnr_db_all: Decibels | None = None
    min_cosine: Cosine | None = None
    min_cosine_quantized: Cosine | None = None
    max_above_noise_db: Decibels | None = None
    min_equal: Share | None = None
    min_equal_quantized: Share | None = None
    max_abs: Difference | None = None


class Budget(Record, frozen=True, kw_only=True):
    """The most that a program and its lowering may take, by the fields of Footprint, and the least
    ``segment_align``; ``operators`` are how many nodes of a type a model may have, by a glob of
    names. ``p50_ms``, ``p90_ms``, ``load_ms`` and ``device_memory_bytes`` limit what DeviceFigures
    has. What is None is not limited."""

    program_bytes: Count | None = None
    context_bytes: Count | None = None
    spill_bytes: Count | None = None
    fill_bytes: Count | None = None
    read_bytes: Count | None = None
    write_bytes: Count | None = None
    vtcm_mb: Count | None = None
    partitions: Count | None = None
    segment_align: Count | None = None
    lowering_memory_bytes: Count | None = None
    p50_ms: Milliseconds | None = None
    p90_ms: Milliseconds | None = None
    load_ms: Milliseconds | None = None
    device_memory_bytes: Count | None = None
    operators: dict[str, Count] = msgspec.field(default_factory=dict)

    def merge(self, own: Budget) -> Budget:
        """Return the budget with the limits of ``own`` over it."""
        names = (name for name in Budget.__struct_fields__ if name != "operators")
        given = {name: value for name in names if (value := getattr(own, name)) is not None}
        operators = {**self.operators, **own.operators}
        return msgspec.structs.replace(self, **given, operators=operators)


NO_BUDGET = Budget()


class Threshold(Record, frozen=True, kw_only=True):
    """What the policy asks of ``scheme``; ``model`` is "*" or the model with its own rule.

    A limit that is None is not asked for.
    """

    scheme: str
    model: str = ANY_MODEL
    min_sqnr_db: Decibels | None = None
    min_sqnr_db_quantized: Decibels | None = None
    min_sqnr_db_all: Decibels | None = None
    min_cosine: Cosine | None = None
    min_cosine_quantized: Cosine | None = None
    max_above_noise_db: Decibels = MARGIN_DB
    min_equal: Share | None = None
    min_equal_quantized: Share | None = None
    max_abs: Difference | None = None
    max_metric_drop: Difference | None = None
    min_metric: float | None = None
    full_delegation: bool = True
    reason: str = ""
    outputs: tuple[OutputThreshold, ...] = ()
    budget: Budget = NO_BUDGET
    # DROPPED
    min_sqnr_db_channel: Decibels | None = None
    max_gain_error: float | None = None
    max_offset: float | None = None
    max_nearer_db: Decibels | None = None

    def of_output(self, index: int) -> Threshold:
        """Return the limits of an output, its own instead of those of all."""
        for one in self.outputs:
            if one.output == index:
                own = {name: getattr(one, name) for name in one.__struct_fields__[1:]}
                given = {name: value for name, value in own.items() if value is not None}
                return msgspec.structs.replace(self, **given)
        return self


class FallbackOp(Record, frozen=True, kw_only=True):
    """A node left to the CPU, and why."""

    op: str
    reason: str


class OpCount(Record, frozen=True, kw_only=True):
    """How many operators of a type of QNN's a graph has."""

    op: str
    count: Count


class OperatorCount(Record, frozen=True, kw_only=True):
    """How many nodes of a type of the lowered model are on the NPU, and how many on the CPU."""

    op: str
    npu: Count = 0
    cpu: Count = 0


class GraphFigures(Record, frozen=True, kw_only=True):
    """A graph that QNN compiled: the bytes of the context binary that it is in, those of its
    constants, and the VTCM that it was compiled with, where the context says them."""

    name: str
    context_bytes: Count
    constant_bytes: Count | None = None
    vtcm_mb: Count | None = None


class Footprint(Record, frozen=True, kw_only=True):
    """What a program and its lowering take; None is not known.

    ``spill_bytes``, ``fill_bytes``, ``read_bytes`` and ``write_bytes`` are what an inference moves
    between VTCM and DDR by the bandwidth summary that QNN prints when it prepares a graph, summed
    over the graphs. ``context_bytes`` is the largest context binary of a graph, ``vtcm_mb`` the
    most that one was compiled with. ``segment_align`` is the largest power of two, up to 4096,
    that the start of each segment is a multiple of. ``lowering_memory_bytes`` is the peak resident
    memory of the process while ExecuTorch or ONNX Runtime lowered the model."""

    program_bytes: Count | None = None
    context_bytes: Count | None = None
    spill_bytes: Count | None = None
    fill_bytes: Count | None = None
    read_bytes: Count | None = None
    write_bytes: Count | None = None
    vtcm_mb: Count | None = None
    partitions: Count | None = None
    segment_align: Count | None = None
    lowering_memory_bytes: Count | None = None
    graphs: tuple[GraphFigures, ...] = ()
    operators: tuple[OperatorCount, ...] = ()


class Place(Record, frozen=True, kw_only=True):
    """A line of a file of the user's, relative to its repository."""

    file: str
    line: Annotated[int, Meta(ge=1)]


class ChannelFigures(Record, frozen=True, kw_only=True):
    """How right a channel is: part ``index`` along ``axis`` of an output's shape."""

    axis: Count
    index: Count
    sqnr_db: Decibels | None


class Element(Record, frozen=True, kw_only=True):
    """An element of an output, in ``input_set``: what the program gives for it, and what the model
    gives that the program was asked to compute; None if it is not finite."""

    input_set: Count
    index: tuple[Count, ...]
    value: float | None
    expected: float | None


class OutputFigures(Record, frozen=True, kw_only=True):
    """One output of a case. ``sqnr_db`` against the float32 model, ``sqnr_db_quantized`` against
    the quantized one and, in outputs of integers and booleans, the share of ``equal`` elements
    have a figure per input set. The rest is against the model that the program was asked to
    compute: the ``channels`` that are least right, ``errors``, which counts the elements in bins of
    one width from ``-max_error`` to ``max_error``, and the ``worst`` element, if one differs."""

    dtype: str
    shape: tuple[Count, ...]
    sqnr_db: tuple[Decibels | None, ...] = ()
    sqnr_db_quantized: tuple[Decibels | None, ...] = ()
    equal: tuple[Share, ...] = ()
    channels: tuple[ChannelFigures, ...] = ()
    errors: tuple[Count, ...] = ()
    max_error: Difference | None = None
    worst: Element | None = None


class ProgramFile(Record, frozen=True, kw_only=True):
    """A file of a program, by its name."""

    name: str
    sha256: Sha256


class Digests(Record, frozen=True, kw_only=True):
    """SHA-256 of what a case was made from, None where that is not known: the float32 model's
    ``weights`` (parameters and buffers, or constants of an ONNX file), the ``inputs`` that it is
    judged on, the ``calibration`` sets of a scheme that quantizes, and ``float_outputs``, what the
    float32 model gives for the inputs."""

    weights: Sha256 | None = None
    inputs: Sha256 | None = None
    calibration: Sha256 | None = None
    float_outputs: Sha256 | None = None

    def differing(self, base: Digests) -> tuple[str, ...]:
        """Return the names of what is known of both and not the same."""
        pairs = {
            name: (getattr(base, name), getattr(self, name)) for name in self.__struct_fields__
        }
        return tuple(name for name, (was, now) in pairs.items() if was and now and was != now)


class Heat(Record, frozen=True, kw_only=True):
    """How hot a device is: Android's thermal ``status`` (0 none to 6 shutdown), the ``hottest_c``
    of its sensors, degrees Celsius, in ``zone``, and what is ``slowed`` down by cooling. What the
    device does not report is None or empty."""

    status: Annotated[int, Meta(ge=0)] | None = None
    hottest_c: float | None = None
    zone: str = ""
    slowed: tuple[str, ...] = ()

    @property
    def throttled(self) -> bool:
        """Whether programs run more slowly than they would on a cool device."""
        return bool(self.status or self.slowed)


class DeviceFigures(Record, frozen=True, kw_only=True):
    """What a program took on a device, over ``starts`` of its runner and ``runs`` timed runs:
    milliseconds of the first run of a start (the median of the starts), of a run at the median and
    at the 90th percentile, and of loading. A figure's ``spread`` is half the range of the starts'
    own figures, or of the quartiles of the runs of a single start. ``peak_memory_bytes`` is the
    largest resident memory of the runner's process, without memory of the DSP. ``emulated`` is
    whether a host's processor computed it: then the times say nothing about a device."""

    starts: Annotated[int, Meta(ge=1)]
    runs: Count
    first_ms: float | None = None
    p50_ms: float | None = None
    p50_spread_ms: float | None = None
    p90_ms: float | None = None
    p90_spread_ms: float | None = None
    load_ms: float | None = None
    load_spread_ms: float | None = None
    loads_ms: tuple[float, ...] = ()
    peak_memory_bytes: Count | None = None
    before: Heat = Heat()
    after: Heat = Heat()
    throttled: bool = False
    emulated: bool = False


class CaseName(Record, frozen=True, kw_only=True):
    """Which case of a run."""

    model: str
    scheme: str
    soc: str

    def __str__(self) -> str:
        return f"{self.model} {self.scheme} {self.soc}"


class Case(Record, frozen=True, kw_only=True):
    """One model, scheme and SoC. Figures named ``_quantized`` are against the quantized
    model, ``gain`` and ``offset`` against it if there is one, the others against the float32
    model; each is the worst of the outputs that it applies to and of ``inputs``, the number of
    input sets. ``sqnr_db_scheme`` is the quantized model's against the float32 one,
    ``predicted_sqnr_db`` what rounding is predicted to leave of the program's, ``above_noise_db``
    how far the error of ``above_noise_place`` lies above that prediction. ``question`` is the
    first one that a failed case answers with no; ``warnings`` do not fail it. ``equal`` is the
    share of elements that are right in outputs of integers or booleans, ``equal_exact`` the share
    of those that hold the value of its reference, without the rule for ties, ``gain`` less 1 the
    slope of an output over its reference, ``offset`` the mean error in standard deviations.
    ``metric`` is the user's own, called ``metric_name``, ``metric_float`` what the float32 model
    has of it, ``metric_quantized`` the quantized one. ``recorded_`` figures are those of an earlier
    run with this toolchain.
    ``lower_s`` of a cached case is what lowering it took when it was lowered. ``places`` are the
    lines of the user's files that a failure is from. ``compiler`` is the build of QNN that the
    program names. ``choices`` are those of the model's entry. ``qnn_ops`` are the operators that
    QNN was given, ``accelerator_`` figures means of the inputs by QNN's profile: on the emulator
    they vary from run to run, and nothing is judged by them. Both are there only where they were
    asked for. ``lacks`` is the missing library or device that kept a case from running here.
    ``made_inputs`` is what a case's inputs are that were not given, such as random inputs;
    ``digests`` tell what it was made from apart, ``outputs`` show each output more closely.
    ``program`` are the files of its program, first the one that a runtime opens. ``footprint`` is
    what program and lowering take, ``recorded_footprint`` what was recorded of it. Of a run on a
    device, ``device`` are its figures there, ``sqnr_db_emulator`` and ``equal_emulator`` (the share
    of elements with the same bits) how near its outputs are to the emulator's. ``outcome`` is what
    came of a test of upstream's, by its verdict and ours."""

    model: str
    scheme: str
    soc: str
    status: Status
    outcome: str = ""
    sqnr_db: Decibels | None = None
    sqnr_db_quantized: Decibels | None = None
    cosine: Cosine | None = None
    cosine_quantized: Cosine | None = None
    max_abs: Difference | None = None
    sqnr_db_scheme: Decibels | None = None
    predicted_sqnr_db: Decibels | None = None
    above_noise_db: float | None = None
    above_noise_place: str = ""
    gain: float | None = None
    offset: float | None = None
    equal: Share | None = None
    equal_quantized: Share | None = None
    equal_exact: Share | None = None
    metric: float | None = None
    metric_float: float | None = None
    metric_quantized: float | None = None
    metric_name: str = ""
    question: Question | None = None
    warnings: tuple[str, ...] = ()
    sqnr_db_channel: Decibels | None = None
    channel: str = ""
    recorded_sqnr_db: Decibels | None = None
    recorded_sqnr_db_quantized: Decibels | None = None
    delegated_nodes: Count | None = None
    fallback_nodes: Count | None = None
    partitions: Count | None = None
    lower_s: Seconds | None = None
    run_s: Seconds | None = None
    run_ms: float | None = None
    run_options: str = ""
    pte_bytes: Count | None = None
    compiler: str = ""
    choices: str = ""
    cached: bool = False
    reason: str = ""
    places: tuple[Place, ...] = ()
    fallback_ops: tuple[FallbackOp, ...] = ()
    log_tail: str = ""
    runner: str = ""
    inputs: Count = 0
    made_inputs: str = ""
    qnn_ops: tuple[OpCount, ...] = ()
    accelerator_cycles: Count | None = None
    accelerator_us: Count | None = None
    lacks: str = ""
    digests: Digests = Digests()
    outputs: tuple[OutputFigures, ...] = ()
    program: tuple[ProgramFile, ...] = ()
    device: DeviceFigures | None = None
    sqnr_db_emulator: Decibels | None = None
    equal_emulator: Share | None = None
    footprint: Footprint | None = None
    recorded_footprint: Footprint | None = None

    @property
    def name(self) -> CaseName:
        """Return which case it is."""
        return CaseName(model=self.model, scheme=self.scheme, soc=self.soc)


class Control(Record, frozen=True, kw_only=True):
    """One thing that the gate must reject; ``rejected`` false fails the run."""

    model: str
    scheme: str
    kind: ControlKind
    rejected: bool
    sqnr_db: Decibels | None = None
    soc: str = ""


class Phase(Record, frozen=True, kw_only=True):
    """A part of the run and its wall clock; phases may overlap where both cores work."""

    name: str
    seconds: Seconds


class Summary(Record, frozen=True, kw_only=True):
    """The counts: ``cached`` of cases lowered earlier, ``controls_passed`` of wrong outputs let
    through (anything but 0 fails the run)."""

    passed: Count
    failed: Count
    unsupported: Count
    controls: Count
    controls_passed: Count
    cached: Count
    wall_s: Seconds
    phases: tuple[Phase, ...] = ()


class ShardMark(Record, frozen=True, kw_only=True):
    """Which part of a run a report is: shard ``index`` of ``count``, from 1. ``positions`` are the
    places of its cases in the whole run, ``whole`` a digest of all its cases in their order,
    ``policy`` one of what they are judged by."""

    index: Annotated[int, Meta(ge=1)]
    count: Annotated[int, Meta(ge=1)]
    positions: tuple[Count, ...]
    whole: Sha256
    policy: Sha256


class Source(Record, frozen=True, kw_only=True):
    """The commit that a run was made of, its branch, and the number of the pull or merge request;
    each empty if it is not known."""

    commit: str = ""
    branch: str = ""
    pull_request: str = ""

    def __str__(self) -> str:
        request = f"pull request {self.pull_request}" if self.pull_request else ""
        commit = f"commit {self.commit[:COMMIT_DIGITS]}" if self.commit else ""
        return ", ".join(filter(None, [request, self.branch, commit]))


class Change(Record, frozen=True, kw_only=True):
    """A case that is not as in the base: its status there and now, what its figures are now less
    what they were, and the ``sources`` that differ, which are fields of its digests."""

    case: CaseName
    before: Status
    now: Status
    sqnr_db: float | None = None
    metric: float | None = None
    pte_bytes: int | None = None
    fallback_nodes: int | None = None
    sources: tuple[str, ...] = ()

    @property
    def direction(self) -> int:
        """Return -1 for a case that is worse, 1 for a better one: by status, then by what is left
        to the CPU, the metric and the SQNR. 0 if only other things differ."""
        status = RANKS[self.before] - RANKS[self.now]
        figures = (status, -(self.fallback_nodes or 0), self.metric or 0.0, self.sqnr_db or 0.0)
        first = next(filter(None, figures), 0)
        return (first > 0) - (first < 0)


class ToolChange(Record, frozen=True, kw_only=True):
    """A part of the toolchain whose version is not the base's; empty if it took no part."""

    name: str
    before: str
    now: str


class Comparison(Record, frozen=True, kw_only=True):
    """What differs from a base: ``changed`` with the worst first; ``missing`` cases are in the base
    alone, ``new`` ones not in it; ``same`` counts the cases that do not differ."""

    source: Source
    started: str
    changed: tuple[Change, ...]
    same: Count
    missing: tuple[CaseName, ...]
    new: tuple[CaseName, ...]
    tools: tuple[ToolChange, ...]

    @property
    def skipped(self) -> tuple[CaseName, ...]:
        """Return the cases that are unsupported now and were not."""
        found = (one for one in self.changed if one.now is Status.UNSUPPORTED is not one.before)
        return tuple(one.case for one in found)

    def moved(self, direction: int) -> tuple[Change, ...]:
        """Return the changes of a direction, without those that are skipped now."""
        skipped = self.skipped
        found = (one for one in self.changed if one.direction == direction)
        return tuple(one for one in found if one.case not in skipped)


class Report(Record, frozen=True, kw_only=True):
    """A run of a session. ``started`` is UTC, ISO 8601, from SOURCE_DATE_EPOCH when that is set.
    ``command`` begins what repeats a case: its model, scheme and SoC go after it. ``runtimes`` are
    the QNN versions that devices get, as far as the policy names them, ``backend`` is the one of
    QNN that it was lowered for. ``unsupported`` says that these versions are not known to work
    together, and were tried; ``remarks`` are further notes on the whole run, ``unjudged`` counts
    the cases that a run which was interrupted did not judge. ``comparison`` is with the base that
    the run was given, ``uncompared`` says why there is none."""

    session: str
    started: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    host: Host
    toolchain: tuple[Tool, ...]
    thresholds: tuple[Threshold, ...]
    cases: tuple[Case, ...]
    controls: tuple[Control, ...]
    summary: Summary
    command: str = ""
    runtimes: tuple[Tool, ...] = ()
    shard: ShardMark | None = None
    backend: str = HTP
    unsupported: str = ""
    remarks: tuple[str, ...] = ()
    unjudged: Count = 0
    source: Source = Source()
    comparison: Comparison | None = None
    uncompared: str = ""
    schema_version: Literal[3, 4, 5] = SCHEMA_VERSION  # 3 is without unsupported and remarks

    @property
    def ok(self) -> bool:
        """Whether something passed, no case and no control failed, and nothing was lacking."""
        counts = self.summary
        bad = counts.failed or counts.controls_passed or self.lacking or self.unjudged
        return bool(counts.passed) and not bad

    @property
    def recounted(self) -> Report:
        """Return the report with a summary that is counted from its cases and controls."""
        told = self.summary
        counts = summarize(self.cases, self.controls, told.wall_s, told.phases)
        return msgspec.structs.replace(self, summary=counts)

    @property
    def lacking(self) -> tuple[str, ...]:
        """What is missing here that cases need, each once."""
        return tuple(dict.fromkeys(case.lacks for case in self.cases if case.lacks))

    @property
    def verdict(self) -> str:
        """``passed``, ``FAILED``, or ``NOT RUN`` on a machine that lacks what it needs; and which
        inputs were made, if any were."""
        bad = "NOT RUN" if self.exit_code is ExitCode.ENVIRONMENT else "FAILED"
        word = "passed" if self.ok else bad
        if self.unjudged:
            many = "1 case was" if self.unjudged == 1 else f"{self.unjudged} cases were"
            return f"CUT SHORT ({many} not judged)"
        made = sorted({case.made_inputs for case in self.cases if case.made_inputs})
        return f"{word} ({', '.join(made)}: {MADE_PROVES})" if made else word

    @property
    def exit_code(self) -> ExitCode:
        """The code of a run: what failed counts more than what this machine could not run."""
        if self.unjudged:
            return ExitCode.INTERRUPTED
        if self.lacking and not (self.summary.failed or self.summary.controls_passed):
            return ExitCode.ENVIRONMENT
        return ExitCode.OK if self.ok else ExitCode.FAILED

    @property
    def title(self) -> str:
        """The session, and the backend where it is not HTP."""
        return self.session if self.backend == HTP else f"{self.session} for {self.backend}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Whether unsupported versions were tried, with which QNN the programs were compiled, and
        which devices' QNN is older: a runtime must be at least the compiler's version."""
        tried = (f"warning: {self.unsupported}",) if self.unsupported else ()
        builds = sorted({case.compiler for case in self.cases if case.compiler})
        newest = max((parse_version(build) for build in builds), default=None)
        if newest is None:
            return (*tried, *self.remarks)
        told = f"compiled by QNN {', '.join(builds)}: {newest} is the oldest that loads it"
        older = [
            f"{one.name} {one.version}"
            for one in self.runtimes
            if not is_loadable(str(newest), one.version)
        ]
        warning = f"warning: older QNN does not load these programs: {', '.join(older)}"
        return (*tried, told, *([warning] if older else []), *self.remarks)

    @property
    def lowering_s(self) -> float:
        """Seconds of lowering in this run, summed over its workers."""
        return sum(case.lower_s or 0.0 for case in self.cases if not case.cached)

    @property
    def running_s(self) -> float:
        """Seconds of running programs, summed over the workers."""
        return sum(case.run_s or 0.0 for case in self.cases)

    def threshold_for(self, case: Case) -> Threshold | None:
        """The rule that the case was judged by."""
        return find_threshold(self.thresholds, case.model, case.scheme)


def find_threshold(rules: Iterable[Threshold], model: str, scheme: str) -> Threshold | None:
    """The rule of a model, else that of its scheme."""
    found = {rule.model: rule for rule in rules if rule.scheme == scheme}
    return found.get(model) or found.get(ANY_MODEL)


def summarize(
    cases: Iterable[Case], controls: Iterable[Control], wall_s: float, phases: Iterable[Phase] = ()
) -> Summary:
    """Count ``cases`` and ``controls``; ``wall_s`` is the whole run's wall clock in seconds."""
    cases, controls = tuple(cases), tuple(controls)
    statuses = Counter(case.status for case in cases)
    return Summary(
        passed=statuses[Status.PASSED],
        failed=statuses[Status.FAILED],
        unsupported=statuses[Status.UNSUPPORTED],
        controls=len(controls),
        controls_passed=sum(not control.rejected for control in controls),
        cached=sum(case.cached for case in cases),
        wall_s=wall_s,
        phases=tuple(phases),
    )


def make_json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of report.json."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"executorch-qnn-ci report.json, version {SCHEMA_VERSION}",
        **msgspec.json.schema(Report),
    }
    text = re.sub(rb"(?:\\n)+ *", b" ", msgspec.json.encode(schema))  # 3.13 dedents docstrings
    plain: dict[str, Any] = msgspec.json.decode(text)
    return plain
