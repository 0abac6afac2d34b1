"""The tensors of a program: its inputs and outputs, the raw files that contain them, and the types
that were requested and that QNN compiled."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from ci.facts.finding import NOWHERE, Origin
from ci.report.schema import Clipped, TypeShare
from provisioning.documents import open_regular

FILE = "{}_{}.raw"  # <sample>_<index>
BEST_DB = 60.0  # above this SQNR, a layer is treated as equal to float32
MOST_LAYERS, MOST_BYTES = 48, 16 << 20  # the limits for the layers' outputs of one sample


class Range(Struct, frozen=True):
    """The indices from ``start`` to before ``stop`` along an axis. If there is a ``period``, only
    the first ``size`` of every ``period`` indices."""

    axis: int
    start: int
    stop: int
    period: int = 0
    size: int = 0

    def __str__(self) -> str:
        if self.period and self.size == 1:
            return f"{self.start}:{self.stop}:{self.period}"
        share = f" ({self.size} of every {self.period})" if self.period else ""
        return f"{self.start}:{self.stop}{share}"

    def fits(self, shape: Sequence[int]) -> bool:
        """Return whether a tensor of this shape has such indices."""
        return (
            0 <= self.axis < len(shape)
            and 0 <= self.start < self.stop <= shape[self.axis]
            and 0 <= self.size <= self.period
            and (self.size > 0) == (self.period > 0)
        )

    def list_indices(self) -> Iterator[int]:
        """Yield the indices."""
        period = self.period or self.stop - self.start
        size = self.size if self.period else period
        for start in range(self.start, self.stop, period):
            yield from range(start, min(start + size, self.stop))


class OutputPart(Struct, frozen=True):
    """A part of a tensor: the elements whose index is in one of the ``ranges`` along each axis that
    has any. ``origin`` is the operator that computes it, with its line, if the part was found in
    the graph."""

    ranges: tuple[Range, ...]
    origin: str = ""

    def __str__(self) -> str:
        """Return a name such as ``4:8 along axis 1``."""
        by_axis: dict[int, list[str]] = {}
        for part_range in self.ranges:
            by_axis.setdefault(part_range.axis, []).append(str(part_range))
        texts = [f"{', '.join(ranges)} along axis {axis}" for axis, ranges in by_axis.items()]
        return " and ".join(texts)

    def fits(self, shape: Sequence[int]) -> bool:
        """Return whether a tensor of this shape has such elements."""
        return bool(self.ranges) and all(part_range.fits(shape) for part_range in self.ranges)

    def list_indices(self, axis: int) -> tuple[int, ...]:
        """Return the indices of the part along an axis, or nothing if it has all of them."""
        indices: list[int] = []
        for part_range in self.ranges:
            if part_range.axis == axis:
                indices += part_range.list_indices()
        return tuple(indices)

    def take(self, array: Any, rank: int) -> Any:
        """Return the elements of the part from an array [..., *shape] of tensors with ``rank``
        axes."""
        for axis in range(rank):
            if indices := self.list_indices(axis):
                array = np.take(array, indices, array.ndim - rank + axis)
        return array

    def contains(self, part: OutputPart) -> bool:
        """Return whether all elements of another part are in this one."""
        for axis in {part_range.axis for part_range in self.ranges}:
            inner = part.list_indices(axis)  # empty if the other part has all indices
            if not inner or not {*inner} <= {*self.list_indices(axis)}:
                return False
        return True


class TensorInfo(Struct, frozen=True):
    """An input or output tensor of a program: the name of its numpy dtype, and its shape.

    If the model joins it from parts, these are in ``parts``; some may be inside of others. The
    values of a quantized output are the multiples of ``step`` from ``lowest`` times ``step`` to
    ``highest`` times ``step``. If ``step`` is 0 or the bounds are equal, any value is possible.
    """

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[OutputPart, ...] = ()
    step: float = 0.0
    lowest: int = 0
    highest: int = 0

    @property
    def size_bytes(self) -> int:
        """Return the size of the tensor's elements."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Layer(Struct, frozen=True):
    """An operator of a model: its type, its name, and where it comes from. ``node`` is its name in
    the exported graph, or that of its result in an .onnx file."""

    operator: str
    name: str
    origin: Origin = NOWHERE
    node: str = ""

    @property
    def label(self) -> str:
        """Return the name with the origin."""
        return f"{self.name}{self.origin.mark}"


# Operators that need small steps where their operand is large
PHASES = frozenset({"sin", "cos"})
SOFTMAXES = frozenset({"softmax", "_softmax", "log_softmax", "_log_softmax", "exp"})
# Operators that need small steps where their operand is near zero
LOGARITHMS = frozenset({"log", "log2", "log10"})
SMALL = 2.0  # times smaller than a step: these numbers become zero before a logarithm
RECIPROCALS = frozenset({"reciprocal"})  # of ONNX: ExecuTorch's are right
# Operators whose result jumps if their operand passes a limit. Casts count if they make integers of
# floats. RANKS return values and indices.
RANKS = frozenset({"topk", "top_k", "sort"})
CASTS = frozenset({"to", "_to_copy", "type_as", "cast"})
DECISIONS = RANKS | {
    *("argmax", "arg_max", "argmin", "arg_min", "argsort", "bucketize", "searchsorted"),
    *("eq", "ne", "gt", "ge", "lt", "le", "round", "floor", "ceil", "trunc", "sign"),
}
DECISION_DB = 3.0  # half of the noise
MOST_DECISIONS = 8  # that are tried alone
FUSION_DB = 6.0  # then most of the noise is that of fused activations
READERS = PHASES | SOFTMAXES | LOGARITHMS | RECIPROCALS


class Reading(Struct, frozen=True):
    """The numbers that an operator reads: the smallest and the largest of the float32 model, and
    ``least_kept``, the smallest that is above half of the smallest one. The latter is far above
    ``low`` if a mask is among the numbers. ``behind_db`` is the SQNR of the operator's result in
    the rounded model. ``name`` is the operator's label. ``kept_db`` is the least SQNR of an output
    if what all such operators read is not rounded, None if that was not tried."""

    operator: str
    name: str
    low: float
    high: float
    least_kept: float
    behind_db: float
    origin: Origin = NOWHERE
    kept_db: float | None = None

    @property
    def largest(self) -> float:
        """Return the largest magnitude."""
        return max(abs(self.low), abs(self.high))


def make_reading(
    operator: str, name: str, numbers: Any, behind_db: float, origin: Origin = NOWHERE
) -> Reading | None:
    """Return the Reading of an operator that reads an array of ``numbers``, or None if they are not
    finite."""
    values = np.asarray(numbers, np.float64)
    if not values.size or not np.isfinite(values).all():
        return None
    low = float(values.min())
    unmasked = values[values > low / 2] if low < 0 else values
    least_kept = float(unmasked.min()) if unmasked.size else low
    return Reading(operator, name, low, float(values.max()), least_kept, behind_db, origin)


class Decision(Struct, frozen=True):
    """An operator of DECISIONS, or a cast to integers, that reads rounded numbers. ``share`` is the
    share of the elements of its result that rounding changes."""

    name: str
    share: float
    origin: Origin = NOWHERE


class LostDecisions(Struct, frozen=True):
    """Decisions that cost a model accuracy because rounding changes them. ``reached_db`` is the
    least SQNR of an output, and ``kept_db`` that with the decisions of the float32 model."""

    decisions: tuple[Decision, ...]
    reached_db: float
    kept_db: float


class Place(Struct, frozen=True):
    """An operator in a message, and where it comes from."""

    name: str
    origin: Origin = NOWHERE


class LostFusions(Struct, frozen=True):
    """Activations that HTP computes together with the layer or the sum before them, and less
    accurately, if that costs a model accuracy in float16. ``reached_db`` is the least SQNR of an
    output, and ``apart_db`` that without these errors."""

    activations: tuple[Place, ...]
    reached_db: float
    apart_db: float


class Coarse(Struct, frozen=True):
    """A value of a quantized model with steps that are too large for most of its numbers: ``share``
    of those that are not zero become zero. ``largest`` is its largest magnitude, from which the
    ``step`` follows, and ``name`` the operator that computes it."""

    name: str
    step: float
    largest: float
    share: float
    origin: Origin = NOWHERE


class Loss(Struct, frozen=True):
    """Where a model loses the most accuracy by quantization or by float16. ``name`` is an operator,
    or the range of its output, or empty if nothing is lost, and ``origin`` where the operator comes
    from. ``before_db`` and ``behind_db`` are the SQNR before and after it; ``weights_db`` is the
    SQNR of the outputs if only the weights are quantized. All are in dB. ``nodes`` are the
    operators whose rounding causes most of the noise of the outputs, as parts of a mixture select
    them (by their tensors in an .onnx file). ``largest`` is the largest magnitude that the operator
    reads, 0 if it is unknown. ``readings`` are those of the operators READERS. ``is_float16`` is
    true if results were rounded to float16 instead of being quantized. ``beyond`` are the numbers
    of the first result that float16 cannot hold, if that costs the outputs accuracy. ``decided``
    are decisions that rounding changes, if that costs at least DECISION_DB, and ``fused`` are
    activations that lose accuracy behind a layer, if that costs at least FUSION_DB. ``output_db``
    is the least SQNR of an output in the rounded run, ``whole_db`` that against the float32 model,
    whose weights are not quantized either, ``wide_db`` that with the range of float32 and the
    precision of float16, ``finer_db`` that without the roundings of ``nodes``, and
    ``fitted_db`` that with the ranges of the judged inputs; each is None if it is unknown.
    ``misfits`` are values whose calibrated ranges are those of other numbers. ``coarse`` are the
    values of ``nodes`` whose steps are too large for most of their numbers. If the loss
    ``includes_weights``, that of the operator's own weights is part of it, and ``weights_db`` is
    unknown, and BEST_DB."""

    name: str
    before_db: float
    behind_db: float
    weights_db: float
    origin: Origin = NOWHERE
    nodes: tuple[str, ...] = ()
    largest: float = 0.0
    readings: tuple[Reading, ...] = ()
    is_float16: bool = False
    beyond: Reading | None = None
    decided: LostDecisions | None = None
    fused: LostFusions | None = None
    output_db: float | None = None
    whole_db: float | None = None
    wide_db: float | None = None
    finer_db: float | None = None
    fitted_db: float | None = None
    misfits: tuple[Clipped, ...] = ()
    coarse: tuple[Coarse, ...] = ()
    includes_weights: bool = False

    @property
    def added(self) -> float:
        """Return how much noise the operator, or the rounding of its output, adds. The noise's
        power is relative to the signal's."""
        return float(10 ** (-self.behind_db / 10) - 10 ** (-self.before_db / 10))


def find_lost_decisions(
    decisions: Mapping[str, Decision],
    reached_db: float,
    keep: Callable[[Collection[str]], float],
) -> LostDecisions | None:
    """Return the decisions that cost a model at least DECISION_DB because rounding changes them, or
    None if they cost less together.

    ``decisions`` are those that rounding changes, by the names of their results. ``reached_db`` is
    the SQNR of the rounded model, and ``keep`` returns it if some of them are those of the float32
    model. If one of them alone costs that much, those that cost less are left out.
    """
    kept_db = keep([*decisions]) if decisions else reached_db
    if kept_db < reached_db + DECISION_DB:
        return None
    costly = []
    for name in [*decisions][:MOST_DECISIONS]:
        others_db = keep([remaining for remaining in decisions if remaining != name])
        if others_db <= kept_db - DECISION_DB:
            costly.append(decisions[name])
    return LostDecisions(tuple(costly or decisions.values()), reached_db, kept_db)


def limit_db(db: float, most: float = BEST_DB) -> float:
    """Return an SQNR in dB, limited to the range from ``-most`` to ``most``. NaN becomes the lowest
    value."""
    return -most if math.isnan(db) else max(-most, min(most, db))


def describe_tensor(tensor: Any, parts: tuple[OutputPart, ...] = ()) -> TensorInfo:
    """Return the description of an array, or of a tensor that does not require gradients."""
    array = np.asarray(tensor)
    return TensorInfo(str(array.dtype), array.shape, parts)


def add_parts(
    infos: Sequence[TensorInfo], parts: Sequence[tuple[OutputPart, ...]]
) -> tuple[TensorInfo, ...]:
    """Return the descriptions of outputs with the parts of floating-point ones. ``parts`` has an
    entry for each of the first outputs. Parts that do not fit an output's shape are left out."""
    described = list(infos)
    for index, (info, output_parts) in enumerate(zip(infos, parts, strict=False)):
        if np.issubdtype(np.dtype(info.dtype), np.floating):
            fitting = tuple(part for part in output_parts if part.fits(info.shape))
            described[index] = structs.replace(info, parts=fitting)
    return tuple(described)


def write_sets(directory: Path, sets: Iterable[Iterable[Any]], pattern: str = FILE) -> None:
    """Write one row-major file per tensor and sample. Create ``directory`` if it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, tensors in enumerate(sets):
        for index, tensor in enumerate(tensors):
            (directory / pattern.format(number, index)).write_bytes(np.asarray(tensor).tobytes())


def digest_sets(sets: Iterable[Iterable[Any]]) -> str:
    """Return the SHA-256 of the tensors of all samples, including dtypes and shapes."""
    digest = hashlib.sha256()
    for tensors in sets:
        arrays = [np.asarray(tensor) for tensor in tensors]
        digest.update(f"{len(arrays)} tensors".encode())
        for array in arrays:
            digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def read_array(path: Path, dtype: str) -> Any:
    """Return the elements of a regular file, as an array of shape [elements]. Raises OSError."""
    with open_regular(path) as file:
        return np.fromfile(file, dtype)


def read_sets(directory: Path, tensors: Sequence[TensorInfo], sets: int) -> list[list[Any]]:
    """Return the arrays that write_sets wrote to ``directory``, one list per sample. ``tensors``
    describe the arrays of a set, and ``sets`` is the number of sets.

    Raises OSError if a file cannot be read, and ValueError if it has the wrong size.
    """
    samples = []
    for number in range(sets):
        arrays = []
        for index, info in enumerate(tensors):
            elements = read_array(directory / FILE.format(number, index), info.dtype)
            arrays.append(elements.reshape(info.shape))
        samples.append(arrays)
    return samples


FLOAT_BITS = 32  # stands for float16 and float32
RESULT, WEIGHTS = "result", "weights"


class Asked(Struct, frozen=True):
    """The least numbers of bits that were requested for the result and the weights of a node. 0 if
    nothing was requested. ``name`` is the node's name as the user knows it."""

    name: str
    result: int = 0
    weights: int = 0


class TypedTensor(Struct, frozen=True):
    """A tensor of a compiled graph. ``node`` is the node of the quantized model that computes it
    or whose weights it contains, or "" if it is unknown. ``weight_bytes`` is 0 for a result."""

    node: str
    bits: int
    weight_bytes: int = 0
    origin: Origin = NOWHERE

    @property
    def kind(self) -> str:
        """Return RESULT or WEIGHTS."""
        return WEIGHTS if self.weight_bytes else RESULT


class Retyped(Struct, frozen=True):
    """A tensor with fewer bits than requested. ``kind`` is RESULT or WEIGHTS."""

    node: str
    kind: str
    asked: str
    compiled: str
    origin: Origin = NOWHERE

    def __str__(self) -> str:
        return (
            f"the {self.kind} of {self.node}: {self.asked} requested, {self.compiled} compiled"
            f"{self.origin.mark}"
        )


def name_type(bits: int) -> str:
    """Return the name of a type, such as ``8 bit`` or ``float``."""
    return "float" if bits == FLOAT_BITS else f"{bits} bit"


def find_retyped(
    requests: Mapping[str, Asked], tensors: Iterable[TypedTensor]
) -> tuple[Retyped, ...]:
    """Return the nodes of which no tensor has as many bits as requested. The keys of ``requests``
    are the names in ``tensors``; nodes that have no tensor there are left out."""
    widest: dict[tuple[str, str], TypedTensor] = {}
    for tensor in tensors:
        previous = widest.get((tensor.node, tensor.kind))
        if previous is None or tensor.bits > previous.bits:
            widest[tensor.node, tensor.kind] = tensor

    retyped = []
    for (node, kind), tensor in widest.items():
        request = requests.get(node)
        requested_bits = getattr(request, kind) if request else 0
        if request and tensor.bits < requested_bits:
            types = name_type(requested_bits), name_type(tensor.bits)
            retyped.append(Retyped(request.name, kind, *types, tensor.origin))
    return tuple(dict.fromkeys(retyped))


def count_types(tensors: Iterable[TypedTensor]) -> tuple[TypeShare, ...]:
    """Return the number of results and the bytes of weights of each type, the fewest bits first."""
    operators, weights = Counter[int](), Counter[int]()
    for tensor in tensors:
        if tensor.kind == WEIGHTS:
            weights[tensor.bits] += tensor.weight_bytes
        else:
            operators[tensor.bits] += 1
    return tuple(
        TypeShare(type=name_type(bits), operators=operators[bits], weight_bytes=weights[bits])
        for bits in sorted({*operators, *weights})
    )
