"""The contents of report.json as immutable objects, from which docs/schemas/report.schema.json is
generated.

A figure that is not finite or not known is None, which is null in JSON. An SQNR is also None if the
outputs are equal (then ``max_abs`` is 0) or if nothing was compared.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ci.facts.finding import Finding, Place, Question, Record, show_findings
from ci.facts.kinds import NO_NODE, ON_CPU
from provisioning.elf.programs import is_loadable
from provisioning.errors import ExitCode
from provisioning.manifest.targets import Backend
from provisioning.quoting import shell_words
from provisioning.versions import parse_version

SCHEMA_VERSION: Final = 7
ANY_MODEL = "*"
MARGIN_DB = 10.0  # margin for the prediction of noise, see ci.judging.noise
MADE_PROVES = "proves arithmetic, not accuracy"  # what a case with generated inputs proves
HTP = Backend.HTP.value
COMMIT_DIGITS = 10

# No ratio of float64 numbers is larger. Ranges also refuse the infinite numbers and NaN of TOML.
Decibels = Annotated[
    float, Meta(description="signal to quantization noise ratio, dB", ge=-13_000, le=13_000)
]
MOST_NUMBER = 1e308
Number = Annotated[float, Meta(ge=-MOST_NUMBER, le=MOST_NUMBER)]
# Below 0 dB the error exceeds the signal. float32 has 150 dB, and float64 320.
LeastDecibels = Annotated[
    float, Meta(description="limit of a signal to noise ratio, dB", ge=0, le=1000)
]
Cosine = Annotated[
    float, Meta(description="cosine similarity of the flattened outputs", ge=-1.001, le=1.001)
]
MOST = 1e9  # seconds, milliseconds; the arithmetic of larger ones overflows
Difference = Annotated[
    float, Meta(description="largest absolute difference of an element", ge=0, le=MOST_NUMBER)
]
Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(description="wall clock, seconds", ge=0, le=MOST)]
Milliseconds = Annotated[float, Meta(ge=0, le=MOST)]
Count = Annotated[int, Meta(ge=0, le=2**53)]  # the integers that JSON's readers agree on
Megahertz = Annotated[float, Meta(ge=1, le=1e6)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Status(str, Enum):
    """The result of a case. A crash, a hang or a missing output is also a failure."""

    PASSED = "passed"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"


RANKS = {Status.PASSED: 0, Status.UNSUPPORTED: 1, Status.FAILED: 2}


class ControlKind(str, Enum):
    """The kinds of wrong outputs that the gate gets instead of the real ones, and has to reject.
    For a language model, these are wrong generations."""

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
    SECOND_CHUNK_LOST = "second_chunk_lost"
    CHUNK_SHIFTED = "chunk_shifted"
    POSITIONS_RESTARTED = "positions_restarted"
    FIRST_MASK_REUSED = "first_mask_reused"


class Tool(Record, frozen=True, kw_only=True):
    """A part of the toolchain: a package, library or program that the run used."""

    name: str
    version: str
    sha256: Sha256 | None = None


class Host(Record, frozen=True, kw_only=True):
    """The machine of the run."""

    system: str
    machine: str
    processor: str
    cpus: Count
    memory_bytes: Count
    libc: str
    python: str


class AccuracyLimits(Record, frozen=True, kw_only=True):
    """The limits that can be set for all outputs or for a single output. None means no limit."""

    min_sqnr_db: LeastDecibels | None = None
    min_sqnr_db_quantized: LeastDecibels | None = None
    min_sqnr_db_all: LeastDecibels | None = None
    min_cosine: Share | None = None
    min_cosine_quantized: Share | None = None
    max_above_noise_db: LeastDecibels | None = None
    min_equal: Share | None = None
    min_equal_quantized: Share | None = None
    max_abs: Difference | None = None

    @property
    def stated_limits(self) -> dict[str, Any]:
        """Return the limits that are set, by name."""
        limits = {name: getattr(self, name) for name in AccuracyLimits.__struct_fields__}
        return {name: limit for name, limit in limits.items() if limit is not None}


class OutputThreshold(AccuracyLimits, frozen=True, kw_only=True):
    """The policy's limits for one output. If a limit is None, the limit for all outputs applies."""

    output: Count


class Sizes(Record, frozen=True, kw_only=True):
    """Sizes and memory traffic of a program, and the memory that lowering it takes. Each value is
    either a figure or the limit of a figure."""

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


class Budget(Sizes, frozen=True, kw_only=True):
    """Upper limits for the figures of Footprint, except ``segment_align``, which is a lower limit.
    ``operators`` maps a glob to the maximum number of nodes whose type matches it. ``p50_ms``,
    ``p90_ms``, ``load_ms`` and ``device_memory_bytes`` limit the figures of DeviceFigures.
    ``cycles`` and ``ms`` limit those of Estimate. None means no limit."""

    p50_ms: Milliseconds | None = None
    p90_ms: Milliseconds | None = None
    load_ms: Milliseconds | None = None
    device_memory_bytes: Count | None = None
    cycles: Count | None = None
    ms: Milliseconds | None = None
    operators: dict[str, Count] = msgspec.field(default_factory=dict)

    def merge(self, narrower: Budget) -> Budget:
        """Return a copy of this budget in which the limits of ``narrower``, a budget for fewer
        cases, take precedence."""
        limits = {}
        for name in Budget.__struct_fields__:
            limit = getattr(narrower, name)
            if limit is not None:
                limits[name] = limit
        # Limits of operators add up: a budget for one model need not repeat those for all models.
        limits["operators"] = {**self.operators, **narrower.operators}
        return msgspec.structs.replace(self, **limits)


NO_BUDGET = Budget()


class Threshold(AccuracyLimits, frozen=True, kw_only=True):
    """The policy's limits for ``scheme``. ``model`` is "*", or a model that has its own limits.

    None means no limit. ``reason`` is the policy's reason for the limits. With ``strict_noise``,
    an error above the predicted noise fails a case even if it is too small to matter.
    """

    scheme: str
    model: str = ANY_MODEL
    max_above_noise_db: LeastDecibels = MARGIN_DB
    strict_noise: bool = False
    max_metric_drop: Difference | None = None
    min_metric: Number | None = None
    full_delegation: bool = True
    reason: str = ""
    outputs: tuple[OutputThreshold, ...] = ()
    budget: Budget = NO_BUDGET

    def of_output(self, index: int) -> Threshold:
        """Return the limits of one output: its own limits override those for all outputs."""
        for output in self.outputs:
            if output.output == index:
                return msgspec.structs.replace(self, **output.stated_limits)
        return self


class FallbackOp(Record, frozen=True, kw_only=True):
    """A node that stays on the CPU, and why."""

    op: str
    reason: str


class OpCount(Record, frozen=True, kw_only=True):
    """The number of operators of one QNN type in a program."""

    op: str
    count: Count


class OperatorCount(Record, frozen=True, kw_only=True):
    """How many nodes of one type in the lowered model run on the NPU, and how many on the CPU."""

    op: str
    npu: Count = 0
    cpu: Count = 0


class TypeShare(Record, frozen=True, kw_only=True):
    """How many operators of a program have results of a type, such as ``16 bit`` or ``float``, and
    how many bytes of weights have it."""

    type: str
    operators: Count = 0
    weight_bytes: Count = 0


class GraphFigures(Record, frozen=True, kw_only=True):
    """A graph that QNN compiled: the size of its context binary and, if they are known, the size of
    its constants and the amount of VTCM that it was compiled for."""

    name: str
    context_bytes: Count
    constant_bytes: Count | None = None
    vtcm_mb: Count | None = None


class Footprint(Sizes, frozen=True, kw_only=True):
    """Sizes and memory traffic of a program, and the memory that lowering it took; None if not
    known.

    ``spill_bytes``, ``fill_bytes``, ``read_bytes`` and ``write_bytes`` are the traffic of an
    inference between VTCM and DDR, summed over the graphs. They are from the bandwidth summary that
    QNN prints when it prepares a graph.

    ``context_bytes`` is the size of the largest context binary, and ``vtcm_mb`` the largest amount
    of VTCM that a graph was compiled for. ``segment_align`` is the largest power of two, up to
    4096, that divides the start of every segment. ``lowering_memory_bytes`` is the peak resident
    memory of the process in which ExecuTorch or ONNX Runtime lowered the model.
    """

    graphs: tuple[GraphFigures, ...] = ()
    operators: tuple[OperatorCount, ...] = ()


class OperatorCost(Record, frozen=True, kw_only=True):
    """The simulated cost of a QNN operator: the ``cycles`` that the units of the NPU spend on it,
    several of which may be busy at a time. ``operator`` is its type, ``name`` its name in graph
    number ``graph``, and ``place`` its source line in the form ``net.py:12``. Each is empty if it
    is not known."""

    cycles: Count
    operator: str = ""
    name: str = ""
    place: str = ""
    graph: Count = 0


class Simulation(Record, frozen=True, kw_only=True):
    """What QNN's simulator predicts for one inference of a program that is compiled for ``soc``,
    summed over its graphs.

    ``lower_cycles`` and ``upper_cycles`` are the simulator's own range. ``read_bytes`` are inputs
    and weights, ``write_bytes`` outputs, and ``fill_bytes`` and ``spill_bytes`` intermediate values
    that do not fit in VTCM. ``missing_ops`` counts operators whose costs the simulator does not
    know. ``hmx_cycles``, ``hvx_cycles`` and ``dma_cycles`` are the busy times of the NPU's units.
    ``implausible_cycles`` are those of operators that are too slow for the bytes that they move.
    ``costs`` are the most expensive operators.
    """

    soc: str
    graphs: Count
    clock_mhz: Megahertz
    cycles: Count
    lower_cycles: Count
    upper_cycles: Count
    read_bytes: Count
    fill_bytes: Count
    spill_bytes: Count
    write_bytes: Count
    missing_ops: Count
    hmx_cycles: Count
    hvx_cycles: Count
    dma_cycles: Count
    implausible_cycles: Count = 0
    costs: tuple[OperatorCost, ...] = ()

    @property
    def ms(self) -> float:
        """The simulated time in milliseconds."""
        return self.cycles / self.clock_mhz / 1000


class MeasuredModel(Record, frozen=True, kw_only=True):
    """A public model whose time on a device is published."""

    model: str
    ms: Milliseconds


class PredictedTime(Record, frozen=True, kw_only=True):
    """The time of one inference that is predicted for ``device``. It is between ``low_ms`` and
    ``high_ms`` for 80 % of the models that were left out of the fit. ``below`` and ``above`` are
    the public models with the nearest simulated times. ``median_error`` is that of left-out models.
    ``outside`` says how far the program is outside of the range of the fitted models, if it is:
    the interval is then wider or, if ``is_bound`` is true, the time is only an upper bound.
    """

    device: str
    ms: Milliseconds
    low_ms: Milliseconds
    high_ms: Milliseconds
    median_error: float
    outside: str = ""
    is_bound: bool = False
    below: MeasuredModel | None = None
    above: MeasuredModel | None = None


class Estimate(Record, frozen=True, kw_only=True):
    """What is predicted for a program without a device: QNN's simulation, and times on devices with
    the program's SoC. ``unknown`` is the reason if there are no times."""

    simulation: Simulation | None = None
    times: tuple[PredictedTime, ...] = ()
    unknown: str = ""


class ChannelFigures(Record, frozen=True, kw_only=True):
    """The SQNR of one channel of an output. ``index`` is the channel's index along ``axis``."""

    axis: Count
    index: Count
    sqnr_db: Decibels | None


class Element(Record, frozen=True, kw_only=True):
    """An element of an output for ``input_set``. ``value`` is from the program, and ``expected`` is
    from the model that the program should compute. A value that is not finite is None."""

    input_set: Count
    index: tuple[Count, ...]
    value: float | None
    expected: float | None


class OutputFigures(Record, frozen=True, kw_only=True):
    """One output of a case.

    Three tuples have a value for each sample: ``sqnr_db`` is against the float32 model,
    ``sqnr_db_quantized`` against the quantized model, and ``equal`` is the share of equal elements,
    for outputs of integers and booleans.

    The other figures compare with the model that the program should compute. ``channels`` are those
    with the lowest SQNR. ``errors`` is a histogram with equal bins from ``-max_error`` to
    ``max_error``. ``worst`` is the element with the largest error, if any differs.
    """

    dtype: str
    shape: tuple[Count, ...]
    sqnr_db: tuple[Decibels | None, ...] = ()
    sqnr_db_quantized: tuple[Decibels | None, ...] = ()
    equal: tuple[Share, ...] = ()
    channels: tuple[ChannelFigures, ...] = ()
    errors: tuple[Count, ...] = ()
    max_error: Difference | None = None
    worst: Element | None = None


class LayerFigures(Record, frozen=True, kw_only=True):
    """A layer's result in a program that also returns its layers: ``label`` is the operator with
    its place, ``sqnr_db`` the SQNR against the model that the program should compute, and
    ``predicted_db`` what rounding leaves. ``is_first`` marks the first wrong layer, and ``in_part``
    those of the smallest part that is wrong by itself."""

    label: str
    sqnr_db: Decibels | None = None
    predicted_db: Decibels | None = None
    is_first: bool = False
    in_part: bool = False


class Clipped(Record, frozen=True, kw_only=True):
    """A tensor whose values for the judged inputs, from ``seen_low`` to ``seen_high``, leave the
    range from ``low`` to ``high`` for which it was calibrated, or do not fill it. These are None
    in report.json if they are infinite. ``name`` describes the tensor."""

    name: str
    is_input: bool
    low: float
    high: float
    seen_low: float | None
    seen_high: float | None

    def __str__(self) -> str:
        low = -math.inf if self.seen_low is None else self.seen_low
        high = math.inf if self.seen_high is None else self.seen_high
        return (
            f"{self.name} is calibrated for {self.low:.4g} to {self.high:.4g}, but has values from"
            f" {low:.4g} to {high:.4g} for the judged inputs"
        )


class NoiseNote(Record, frozen=True, kw_only=True):
    """An error of output ``output`` that rounding noise does not explain, but that does not matter.

    At ``place``, the error is ``above_db`` above the prediction, of which ``allowed_db`` would be
    accepted, and raises the error that the scheme causes by ``raised_db``. It does not matter
    because it is ``small``, because the program is ``nearer`` to the float32 model than the
    quantized model is, or because the user's ``metric`` has nearly the float32 model's value.
    ``sqnr_db`` compares with the model that the program should compute, and ``predicted_db`` is its
    prediction, both for the worst sample. ``sqnr_db_float`` and ``sqnr_db_scheme`` compare the
    program and the quantized model with the float32 model, over all samples. ``operator`` is the
    type of the first operator with such an error, and ``label`` its name and place in the model;
    both are empty if it is unknown.
    """

    output: Count
    place: str
    above_db: float
    allowed_db: float
    raised_db: float | None
    why: Literal["small", "nearer", "metric"]
    sqnr_db: Decibels | None
    predicted_db: Decibels | None
    sqnr_db_float: Decibels | None
    sqnr_db_scheme: Decibels | None = None
    operator: str = ""
    label: str = ""


class ProgramFile(Record, frozen=True, kw_only=True):
    """One of the files that a program consists of."""

    name: str
    sha256: Sha256


class Digests(Record, frozen=True, kw_only=True):
    """The SHA-256 of each source of a case, None if it is not known. ``weights`` are the float32
    model's parameters and buffers, or the constants of an ONNX file. ``inputs`` are those on which
    the case is judged, and ``float_outputs`` are the float32 model's outputs for them.
    ``calibration`` are the calibration samples, if the scheme quantizes."""

    weights: Sha256 | None = None
    inputs: Sha256 | None = None
    calibration: Sha256 | None = None
    float_outputs: Sha256 | None = None

    def differing(self, base: Digests) -> tuple[str, ...]:
        """Return the names of the digests that are known in both cases and differ."""
        was, now = msgspec.structs.asdict(base), msgspec.structs.asdict(self)
        in_both = (name for name in was if was[name] and now[name])
        return tuple(name for name in in_both if was[name] != now[name])


class Heat(Record, frozen=True, kw_only=True):
    """A device's temperature. ``status`` is Android's thermal status, from 0 (none) to 6
    (shutdown). ``hottest_c`` is the temperature of the hottest sensor in degrees Celsius, and
    ``zone`` its name. ``slowed`` are the parts of the device that are slowed down to cool it. A
    field that the device does not report is None or empty."""

    status: Annotated[int, Meta(ge=0)] | None = None
    hottest_c: float | None = None
    zone: str = ""
    slowed: tuple[str, ...] = ()

    @property
    def throttled(self) -> bool:
        """Whether programs run more slowly than on a cool device."""
        return bool(self.status or self.slowed)


class DeviceFigures(Record, frozen=True, kw_only=True):
    """Times and memory of a program on a device. Times are in milliseconds.

    The runner was started ``starts`` times, with ``runs`` timed runs in total. ``first_ms`` is the
    time of the first run after a start, and ``load_ms`` the time to load the program; both are
    medians of the starts. ``loads_ms`` lists the loading time of each start. ``p50_ms`` and
    ``p90_ms`` are the median and the 90th percentile of all timed runs.

    A ``spread`` is half the difference between the largest and the smallest value of the figure
    over the starts. With one start, it is half the interquartile range of the runs, and loading has
    no spread.

    ``peak_memory_bytes`` is the largest resident memory of the runner's process, without the DSP's
    memory. ``emulated`` is true if a host emulated the SoC. The times then say nothing about a
    device.
    """

    starts: Annotated[int, Meta(ge=1)]
    runs: Count
    first_ms: Milliseconds | None = None
    p50_ms: Milliseconds | None = None
    p50_spread_ms: Milliseconds | None = None
    p90_ms: Milliseconds | None = None
    p90_spread_ms: Milliseconds | None = None
    load_ms: Milliseconds | None = None
    load_spread_ms: Milliseconds | None = None
    loads_ms: tuple[float, ...] = ()
    peak_memory_bytes: Count | None = None
    before: Heat = Heat()
    after: Heat = Heat()
    throttled: bool = False
    emulated: bool = False


class CaseName(Record, frozen=True, order=True):
    """The name of a case in a run."""

    model: str
    scheme: str
    soc: str

    def __str__(self) -> str:
        return f"{self.model} {self.scheme} {self.soc}"

    @property
    def name(self) -> CaseName:
        """Return the name of the case without its other fields."""
        return CaseName(self.model, self.scheme, self.soc)

    def choose(self, command: str) -> str:
        """Return a run's ``command`` with options that select this case. In a run of an upstream
        suite, ``model`` is the name of a test, and the options select that test."""
        if " --suite " in command:
            return f"{command} {shell_words(('--filter', self.model))}"
        options = ("--model", self.model, "--scheme", self.scheme, "--soc", self.soc)
        return f"{command} {shell_words(options)}"


class AskedFacts(Record, frozen=True, kw_only=True):
    """What a case was asked to compute. ``choices`` are the lowering options of the model's entry
    in the policy. ``inputs`` is the number of samples, and ``made_inputs`` describes generated
    inputs, such as random inputs. ``digests`` identify the case's sources."""

    choices: str = ""
    inputs: Count = 0
    made_inputs: str = ""
    digests: Digests = Digests()


class ProgramFacts(Record, frozen=True, kw_only=True):
    """The program of a case and its lowering.

    ``lower_s`` of a ``cached`` program is the time of its original lowering. ``compiler`` is the
    build of QNN that compiled it. ``files`` are the program's files, starting with the one that a
    runtime opens. ``footprint`` contains figures of the program and its lowering. ``types`` are the
    types of its operators and weights, as far as they are known. ``clipped`` are the tensors that
    leave their calibrated ranges most. Two kinds of figures are present only on request:
    ``estimate`` predicts the time on a device, and ``qnn_ops`` are the operators passed to QNN.
    """

    cached: bool = False
    compiler: str = ""
    lower_s: Seconds | None = None
    pte_bytes: Count | None = None
    files: tuple[ProgramFile, ...] = ()
    delegated_nodes: Count | None = None
    fallback_nodes: Count | None = None
    partitions: Count | None = None
    fallback_ops: tuple[FallbackOp, ...] = ()
    qnn_ops: tuple[OpCount, ...] = ()
    types: tuple[TypeShare, ...] = ()
    clipped: tuple[Clipped, ...] = ()
    footprint: Footprint | None = None
    estimate: Estimate | None = None


class RunFacts(Record, frozen=True, kw_only=True):
    """The run of a program. ``runner`` is what computed the outputs, with ``options``. ``wall_s``
    is the time of the whole run, and ``ms`` that of an inference, if it is known. The
    ``accelerator_`` figures are present only on request. They are means over the inputs, from QNN's
    profile; on the emulator, they vary between runs, so they are not judged. ``lacks`` is the
    library or device without which the case could not run here. ``log_tail`` is the end of the log
    of a failure."""

    runner: str = ""
    options: str = ""
    wall_s: Seconds | None = None
    ms: Milliseconds | None = None
    accelerator_cycles: Count | None = None
    accelerator_us: Count | None = None
    lacks: str = ""
    log_tail: str = ""


class JudgementFacts(Record, frozen=True, kw_only=True):
    """What was judged of a case.

    Figures are the worst values over all samples and over the outputs that they apply to. Figures
    named ``_quantized`` compare with the quantized model, and so do ``gain`` and ``offset`` if
    there is one. All others compare with the float32 model. ``sqnr_db_scheme`` is the SQNR of the
    quantized model against the float32 model. ``predicted_sqnr_db`` is the SQNR that is predicted
    for the program from rounding, and ``above_noise_db`` is how far the error at
    ``above_noise_place`` exceeds that prediction.

    ``equal`` is the share of correct elements in outputs of integers or booleans, including those
    that the rule for ties accepts. ``equal_exact`` is the share of elements that equal the
    quantized model's, or the float32 model's if there is no quantized one. ``gain`` is the slope of
    an output over its reference (1 if it is correct), and ``offset`` the mean error in standard
    deviations. ``metric`` is the value of the user's metric, which is named ``metric_name``;
    ``metric_float`` and ``metric_quantized`` are its values for the float32 model and the quantized
    model. ``outputs`` contains details of each output, and ``layers``, in order, those of
    each layer of a program that is not faithful. ``findings`` say why the case failed or did
    not run; the most important one comes first. ``warnings`` do not fail the case, and neither do
    ``noise_notes``. With ``is_defect``, executorch-qnn-ci itself failed, so the case says nothing
    about the model. ``outcome`` is the result of an upstream test, such as ``both`` if it passed
    upstream's verdict and ours. ``recorded_`` figures are from an earlier run with this toolchain.
    """

    status: Status
    outcome: str = ""
    findings: tuple[Finding, ...] = ()
    warnings: tuple[str, ...] = ()
    noise_notes: tuple[NoiseNote, ...] = ()
    is_defect: bool = False
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
    outputs: tuple[OutputFigures, ...] = ()
    layers: tuple[LayerFigures, ...] = ()
    recorded_sqnr_db: Decibels | None = None
    recorded_sqnr_db_quantized: Decibels | None = None
    recorded_footprint: Footprint | None = None


class OnDeviceFacts(Record, frozen=True, kw_only=True):
    """A run on a device: its ``figures``. ``sqnr_db_emulator`` and ``equal_emulator`` (the share of
    elements with the same bits) compare the outputs with the emulator's."""

    figures: DeviceFigures | None = None
    sqnr_db_emulator: Decibels | None = None
    equal_emulator: Share | None = None


class Case(CaseName, frozen=True, kw_only=True):
    """One model, runtime, scheme and SoC: what was asked, and what is known of the program, of its
    run, of the judgement and of a run on a device. ``runtime`` is executorch, onnxruntime or
    litert; reports of earlier versions lack it."""

    runtime: str = ""
    asked: AskedFacts = AskedFacts()
    program: ProgramFacts = ProgramFacts()
    run: RunFacts = RunFacts()
    judgement: JudgementFacts
    device: OnDeviceFacts = OnDeviceFacts()

    @property
    def reason(self) -> str:
        """The text of the findings."""
        return show_findings(self.judgement.findings)

    @property
    def headline(self) -> str:
        """The headline of the first finding, or "" if there is none."""
        return self.judgement.findings[0].headline if self.judgement.findings else ""

    @property
    def question(self) -> Question | None:
        """The question that a failed case answers with no."""
        failed = self.judgement.status is Status.FAILED and self.judgement.findings
        return self.judgement.findings[0].question if failed else None

    @property
    def unlisted_ops(self) -> tuple[FallbackOp, ...]:
        """The operators on the CPU, unless a finding lists them already."""
        listed = any(finding.id in {ON_CPU.id, NO_NODE.id} for finding in self.judgement.findings)
        return () if listed else self.program.fallback_ops

    @property
    def places(self) -> tuple[Place, ...]:
        """The lines of the user's files that the findings are about."""
        return tuple(
            dict.fromkeys(place for finding in self.judgement.findings for place in finding.places)
        )


class Control(CaseName, frozen=True, kw_only=True):
    """Wrong outputs that the gate must reject. The run fails if ``rejected`` is false."""

    kind: ControlKind
    rejected: bool
    sqnr_db: Decibels | None = None
    soc: str = ""


class Phase(Record, frozen=True, kw_only=True):
    """A phase of the run and its wall-clock time. Phases may overlap."""

    name: str
    seconds: Seconds


class Summary(Record, frozen=True, kw_only=True):
    """The counts of a run. ``cached`` counts the cases that an earlier run lowered.
    ``controls_passed`` counts the wrong outputs that the gate accepted; more than 0 fails the run.
    """

    passed: Count
    failed: Count
    unsupported: Count
    controls: Count
    controls_passed: Count
    cached: Count
    wall_s: Seconds
    phases: tuple[Phase, ...] = ()


MOST_SHARDS = 10_000


class ShardMark(Record, frozen=True, kw_only=True):
    """The part of a run that a report covers: shard ``index`` of ``count``, counted from 1.
    ``positions`` are the positions of its cases in the whole run. ``whole`` is a digest of the
    names of all cases in order, and ``policy`` a digest of their options and limits."""

    index: Annotated[int, Meta(ge=1, le=MOST_SHARDS)]
    count: Annotated[int, Meta(ge=1, le=MOST_SHARDS)]
    positions: tuple[Count, ...]
    whole: Sha256
    policy: Sha256


class Source(Record, frozen=True, kw_only=True):
    """The commit of a run, its branch, and the number of its pull request or merge request. Each is
    empty if it is not known."""

    commit: str = ""
    branch: str = ""
    pull_request: str = ""

    def __str__(self) -> str:
        request = f"pull request {self.pull_request}" if self.pull_request else ""
        commit = f"commit {self.commit[:COMMIT_DIGITS]}" if self.commit else ""
        return ", ".join(filter(None, [request, self.branch, commit]))


class Change(Record, frozen=True, kw_only=True):
    """A case that differs from the base: its status before and now, the changes of its figures (now
    minus before), and the ``sources`` that differ, by their names in Digests. ``cycles`` is the
    relative change of the simulated cycles."""

    case: CaseName
    before: Status
    now: Status
    sqnr_db: float | None = None
    metric: float | None = None
    pte_bytes: int | None = None
    fallback_nodes: int | None = None
    cycles: float | None = None
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := {*self.sources} - {*Digests.__struct_fields__}:
            raise ValueError(f"a case has no source {min(unknown)!r}")

    @property
    def direction(self) -> int:
        """Return -1 if the case is worse, 1 if it is better, or 0 if only other facts differ. The
        status counts first, then nodes on the CPU, the metric, the SQNR and the cycles."""
        status = RANKS[self.before] - RANKS[self.now]
        nodes, cycles = -(self.fallback_nodes or 0), -(self.cycles or 0.0)
        first = status or nodes or self.metric or self.sqnr_db or cycles
        return (first > 0) - (first < 0)


class ToolChange(Record, frozen=True, kw_only=True):
    """A part of the toolchain whose version differs from the base's. A version is empty if the run
    did not use the part."""

    name: str
    before: str
    now: str


class Comparison(Record, frozen=True, kw_only=True):
    """The differences from a base. ``changed`` are the cases that differ, worst first. ``missing``
    cases are only in the base, and ``new`` cases only in this report. ``same`` counts the cases
    that do not differ."""

    source: Source
    started: str
    changed: tuple[Change, ...]
    same: Count
    missing: tuple[CaseName, ...]
    new: tuple[CaseName, ...]
    tools: tuple[ToolChange, ...]

    @property
    def skipped(self) -> tuple[CaseName, ...]:
        """Return the cases that are unsupported now but were supported in the base."""
        unsupported = Status.UNSUPPORTED
        return tuple(
            change.case
            for change in self.changed
            if change.now is unsupported and change.before is not unsupported
        )


class Report(Record, frozen=True, kw_only=True):
    """A run of a session.

    ``started`` is in UTC and ISO 8601; SOURCE_DATE_EPOCH overrides it. ``command`` is the start of
    the command that repeats a case; the case's model, scheme and SoC are appended to it.
    ``backend`` is the QNN backend of the run. ``runtimes`` are the versions of QNN on devices, if
    the policy specifies where devices get QNN from.

    ``unsupported`` describes versions that the run combined although they are not known to work
    together; it is empty if there are none. ``remarks`` are further notes on the run. ``unjudged``
    counts the cases that an interrupted run did not judge. ``comparison`` contains the differences
    from the base. ``uncompared`` is the reason if they cannot be compared.
    """

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
    schema_version: Literal[7] = SCHEMA_VERSION

    def __post_init__(self) -> None:
        names = {case.name for case in self.cases}
        for change in self.comparison.changed if self.comparison else ():
            if change.case not in names:
                raise ValueError(f"the comparison is about {change.case}, which is not a case")

    def again(self, case: CaseName) -> str:
        """Return the command that repeats a case if it is run at the root of the repository. Empty
        if it is not known."""
        return case.choose(self.command) if self.command else ""

    @property
    def ok(self) -> bool:
        """Whether the run passed: at least one case passed, no case failed, lacked something or was
        left unjudged, and every control was rejected."""
        counts = self.summary
        bad = counts.failed or counts.controls_passed or self.lacking or self.unjudged
        return bool(counts.passed) and not bad

    @property
    def recounted(self) -> Report:
        """Return the report with a summary that is counted from its cases and controls."""
        counts = summarize(self.cases, self.controls, self.summary.wall_s, self.summary.phases)
        return msgspec.structs.replace(self, summary=counts)

    @property
    def lacking(self) -> tuple[str, ...]:
        """The libraries and devices that cases need but that this machine lacks, each
        listed once."""
        return tuple(dict.fromkeys(case.run.lacks for case in self.cases if case.run.lacks))

    @property
    def verdict(self) -> str:
        """The word of the verdict and, in parentheses, its note."""
        return (
            f"{self.verdict_word} ({self.verdict_note})" if self.verdict_note else self.verdict_word
        )

    @property
    def verdict_word(self) -> str:
        """``passed``, ``FAILED``, ``NOT RUN`` if this machine lacks a library or device, or ``CUT
        SHORT``."""
        if self.unjudged:
            return "CUT SHORT"
        bad = "NOT RUN" if self.exit_code is ExitCode.ENVIRONMENT else "FAILED"
        return "passed" if self.ok else bad

    @property
    def verdict_note(self) -> str:
        """How many cases were not judged, or that none passed. If inputs were generated, ``passed``
        states which, and what such a run proves; they are not the cause of a failure."""
        if self.unjudged:
            many = "1 case was" if self.unjudged == 1 else f"{self.unjudged} cases were"
            return f"{many} not judged"
        if not (self.summary.passed or self.summary.failed or self.lacking):
            return "no case passed, so the run proves nothing"
        inputs = sorted({case.asked.made_inputs for case in self.cases if case.asked.made_inputs})
        return f"{', '.join(inputs)}: {MADE_PROVES}" if inputs and self.ok else ""

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the run. An interruption takes precedence over defects of this project,
        these over failed cases, and failed cases over cases that could not run."""
        if self.unjudged:
            return ExitCode.INTERRUPTED
        if any(case.judgement.is_defect for case in self.cases):
            return ExitCode.DEFECT
        if self.lacking and not (self.summary.failed or self.summary.controls_passed):
            return ExitCode.ENVIRONMENT
        return ExitCode.OK if self.ok else ExitCode.FAILED

    @property
    def title(self) -> str:
        """The session, and the backend if it is not HTP."""
        return self.session if self.backend == HTP else f"{self.session} for {self.backend}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes: which unsupported versions were tried, which QNN compiled the programs, which
        devices have an older QNN that cannot load them, which operators have errors that noise does
        not explain and that do not matter, and the remarks."""
        tried = (f"warning: {self.unsupported}",) if self.unsupported else ()
        builds = sorted({case.program.compiler for case in self.cases if case.program.compiler})
        newest = max((parse_version(build) for build in builds), default=None)
        counts = Counter(
            note.operator for case in self.cases for note in case.judgement.noise_notes
        )
        named = ", ".join(
            f"{operator or 'not located'} {n}" for operator, n in counts.most_common()
        )
        spared = f"above the predicted noise, but too small to matter: {named}"
        remarks = (*([spared] if named else []), *self.remarks)
        if newest is None:
            return (*tried, *remarks)
        compiled = f"compiled by QNN {', '.join(builds)}"
        compilers = f"{compiled}: no QNN before {newest} can load the programs"
        # A context binary cannot be loaded by an older QNN than the one that compiled it.
        older = [item for item in self.runtimes if not is_loadable(str(newest), item.version)]
        if not older:
            return (*tried, compilers, *remarks)
        named = ", ".join(f"{runtime.name} {runtime.version}" for runtime in older)
        too_old = f"these versions of QNN are too old to load the programs: {named}"
        return (*tried, compilers, f"warning: {too_old}", *remarks)

    def threshold_for(self, case: Case) -> Threshold | None:
        """Return the limits by which the case was judged, or None if there are none."""
        return find_threshold(self.thresholds, case.model, case.scheme)


def find_threshold(rules: Iterable[Threshold], model: str, scheme: str) -> Threshold | None:
    """Return the limits for ``model`` and ``scheme``, otherwise those for all models with
    ``scheme``, otherwise None."""
    limits = {rule.model: rule for rule in rules if rule.scheme == scheme}
    return limits.get(model) or limits.get(ANY_MODEL)


def summarize(
    cases: Iterable[Case], controls: Iterable[Control], wall_s: float, phases: Iterable[Phase] = ()
) -> Summary:
    """Count ``cases`` and ``controls``. ``wall_s`` is the wall-clock time of the whole run in
    seconds."""
    cases, controls = tuple(cases), tuple(controls)
    statuses = Counter(case.judgement.status for case in cases)
    return Summary(
        passed=statuses[Status.PASSED],
        failed=statuses[Status.FAILED],
        unsupported=statuses[Status.UNSUPPORTED],
        controls=len(controls),
        controls_passed=sum(not control.rejected for control in controls),
        cached=sum(case.program.cached for case in cases),
        wall_s=wall_s,
        phases=tuple(phases),
    )


def make_json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of report.json."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"executorch-qnn-ci report.json, version {SCHEMA_VERSION}",
        **msgspec.json.schema(Report),
    }
    text = re.sub(rb"(?:\\n)+ *", b" ", msgspec.json.encode(schema))  # 3.13 dedents docstrings
    plain: dict[str, Any] = msgspec.json.decode(text)
    return plain
