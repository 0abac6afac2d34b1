"""Lists the operator calls in a model's graph, so that they can be compared with the patterns of
known faults. Importing this module does not import torch."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import Any, Final

from msgspec import Struct, structs

from ci.facts.finding import NOWHERE, Origin
from ci.models.short_rows import find_short_row

# The result of these operators equals their input, so a pattern ignores them.
PASSES_ON: Final = frozenset(
    {"alias", "clone", "contiguous", "detach", "dropout", "lift_fresh_copy"}
)
CASTS: Final = frozenset({"to", "type_as"})
KEEPS_NUMBERS: Final = PASSES_ON | CASTS
RESHAPES: Final = frozenset({"reshape", "squeeze", "unsqueeze", "view"})
MOVES: Final = frozenset({"expand", "permute", "reshape", "slice", "squeeze", "to", "transpose"})
MOVES_OR_PASSES_ON: Final = PASSES_ON | MOVES | {"unsqueeze", "view", "select", "repeat"}
MOST_ELEMENTS, LARGEST, TINY = 1 << 24, 1e38, 1e-3
ATTENTION = "scaled_dot_product_attention"
PADS: Final = frozenset({"pad", "constant_pad_nd", "Pad"})
JOINED_CONVOLUTIONS: Final = frozenset({"conv", "conv2d", "convolution", "Conv"})
OPERANDS: Final = frozenset({"other", "self"})  # names of arguments that may be numbers


Numbers = Mapping[str, tuple[float, ...]]
Measures = Iterator[tuple[str, tuple[float, ...]]]  # names and numbers


class Operand(Struct, frozen=True):
    """An operand of an operator."""

    shape: tuple[int, ...]
    constant: bool = False  # whether it depends on no input of the model
    # The largest absolute element of a constant, or the factor or fill value that an earlier
    # operator applied; 0 if it is unknown.
    magnitude: float = 0.0
    uniform: bool = False  # whether it is a constant tensor whose elements are all equal
    stored: bool = False  # whether it is a constant that is not computed from other constants
    least: float = 0.0  # the smallest element of a constant; 0 if it is unknown


class Step(Struct, frozen=True):
    """An operator call in a model's graph."""

    name: str  # of the node
    operator: str  # torch's name without the overload
    operands: tuple[Operand, ...]
    sources: tuple[str, ...]  # per operand: the step that produces it, or an empty string
    shape: tuple[int, ...]  # of the first result
    # The result of measure_step: the numeric arguments, including defaults, under torch's names,
    # and numbers derived from them.
    numbers: dict[str, tuple[float, ...]] = {}
    origin: Origin = NOWHERE


def measure_step(operands: Sequence[Operand], numbers: Numbers) -> dict[str, tuple[float, ...]]:
    """Return a step's numbers, together with these:

    - ``kernel``: the longest side of a convolution's kernel
    - ``beyond``: by how much a convolution's largest padding exceeds its dilated kernel minus one,
      or 0
    - ``length``: the size of the first operand's last axis
    - ``rows``: the product of the first operand's other sizes
    - ``eights``: an eighth of the size of the first operand's second last axis, if that is a whole
      number
    - ``height`` and ``width``: the last two sizes of a first operand with four axes
    - ``stride``: the kernel size, for a pooling operator that specifies no stride
    - ``unreached``: how many rows at the end of a transposed convolution's result no kernel
      reaches, along its worst axis, or 0
    - ``group_outputs``: the output channels of each group of a transposed convolution
    - ``depthwise``: 1 if a convolution has a group for each of several input channels
    - ``surplus``: the output padding of a depthwise transposed convolution minus its padding, plus
      1, or 0 if it has no output padding
    - ``factor``: the magnitude of a constant operand with one element
    - ``second``: the value of a constant second operand with one element, or 0 if it is negative
    - ``uniform``: 1 if an operand is a constant with several elements, all equal
    - ``varied``: the index of an operand that is a constant with elements that are not all equal
    - ``overhang``: by how much the last window of a pooling operator with ``ceil_mode`` exceeds
      the padded input, along its worst axis, or 0
    - ``tiled``: 1 if a pooling operator's stride is its kernel, and its padding is counted or adds
      no window
    - ``counted``: 1 if QNN 2.49.40 computes a pool with this stride and counted padding wrongly in
      float16, see docs/findings/faults.md
    - ``lowest``: the value below which the result of a clamp does not fall, or 0 if it is negative
    - ``floor``: the value below which the result of a clamp does not fall, or the largest magnitude
      of a constant operand, as for a sum or a maximum; only if it is below TINY
    - ``mask``: the largest magnitude that an attention's mask adds to the scores, see _measure_mask
    - ``uniform_last``: for a concatenation of two tensors whose second one is a constant with equal
      elements other than 0, the number of axes before and behind the axis that is concatenated
    - ``factors``: the number of elements of a stored constant with one axis, if an operand that is
      not constant has as many along its last axis
    - ``spread``: the same number if the last axis of each operand that is not constant has size 1
    - ``uneven``: 1 if a factor by which an operator enlarges an image is no whole number
    - ``integers``: the bits of the integers that a cast makes floats, see _measure_cast
    - ``signed``: 1 if the weights or the biases of a batch norm have a negative element
    - ``recalled``: 1 if an earlier call of a layer reads the same bias
    - ``misplaced``: 1 if QNN's RMS norm misplaces rows of the first operand, see _is_misplaced
    - ``short``: the length of the row that a convolution reads, if QNN computes it wrongly in
      float16, see find_short
    - ``along``: the size of the first operand's axis ``dim``
    - ``behind``: the number of axes of the first operand behind the axis ``dim``
    """
    found = dict(numbers)
    if "groups" in found and len(operands) > 1:
        found |= dict(_measure_convolution(operands, found))
    elif "kernel_size" in found and not found.get("stride"):
        found["stride"] = found["kernel_size"]
    if operands and "ceil_mode" in found:
        found |= dict(_measure_pool(operands[0].shape, found))
    fixed = max((operand.magnitude for operand in operands if operand.constant), default=0.0)
    floor = next(iter(found.get("min", ())), fixed)
    found |= {"lowest": (max(found["min"][0], 0.0),)} if found.get("min") else {}
    if 0 < floor < TINY:
        found["floor"] = (floor,)
    made = found.get("output_size", ())
    sizes = zip(made, operands[0].shape[-len(made) :] if made else (), strict=False)
    factors = found.get("scale_factors") or [after / before for after, before in sizes if before]
    if any(factor % 1 for factor in factors):
        found["uneven"] = (1.0,)
    found |= {**dict(_measure_norm(operands)), **dict(_measure_constants(operands))}
    found |= dict(_measure_axis(operands, found))
    if operands and operands[0].shape:
        *rows, length = operands[0].shape
        found |= {"rows": (float(math.prod(rows)),), "length": (float(length),)}
        if rows and not rows[-1] % 8:
            found["eights"] = (rows[-1] / 8,)
    if operands and len(operands[0].shape) == 4:
        height, width = operands[0].shape[2:]
        found |= {"height": (float(height),), "width": (float(width),)}
    return found


def _measure_axis(operands: Sequence[Operand], numbers: Numbers) -> Measures:
    given = numbers.get("dim", ())
    shape = operands[0].shape if operands else ()
    if len(given) == 1 and -len(shape) <= given[0] < len(shape):
        axis = int(given[0]) % len(shape)
        yield "along", (float(shape[axis]),)
        yield "behind", (float(len(shape) - 1 - axis),)
    if given and len(operands) == 2 and operands[1].uniform and operands[1].magnitude:
        rank = len(operands[1].shape)
        yield "uniform_last", (given[0] % rank, rank - 1 - given[0] % rank)


def _measure_convolution(operands: Sequence[Operand], numbers: Numbers) -> Measures:
    kernel = max(operands[1].shape[2:], default=0)
    reach = (kernel - 1) * max(numbers.get("dilation", (1.0,)), default=1.0) + 1
    beyond = max(numbers.get("padding", (0.0,)), default=0.0) - reach + 1
    yield "kernel", (float(kernel),)
    yield "beyond", (max(beyond, 0.0),)
    if short := find_short(operands, numbers):
        yield "short", (float(short),)
    if "output_padding" in numbers:
        yield "unreached", (_find_unreached(operands[1].shape[2:], numbers),)
        yield "group_outputs", tuple(map(float, operands[1].shape[1:2]))
    channels = operands[0].shape[1] if len(operands[0].shape) > 2 else 1
    if channels > 1 and max(numbers["groups"], default=1) == channels:
        yield "depthwise", (1.0,)
        added = numbers.get("output_padding", ())
        padded = zip(added, _repeat(numbers, "padding", 0.0), strict=False)
        yield "surplus", (max((1 + more - given for more, given in padded if more), default=0.0),)


def find_short(operands: Sequence[Operand], numbers: Numbers, apart: int = 0) -> int:
    """Return the result of find_short_row for the operands and arguments of a convolution."""
    if "output_padding" in numbers:
        return 0
    stride, dilation = (_last(numbers, name, 1) for name in ("stride", "dilation"))
    padding = _last(numbers, "padding", 0)
    return find_short_row(
        operands[0].shape,
        operands[1].shape,
        padding=padding,
        stride=stride,
        dilation=dilation,
        apart=apart,
    )


def _last(numbers: Numbers, name: str, default: int) -> int:
    """Return an argument's number for the last axis."""
    return int((numbers.get(name) or (default,))[-1])


def note_padding(steps: Sequence[Step]) -> list[Step]:
    """Return steps in which a convolution behind a zero padding has, as ``joined``, the number
    ``short`` of both together, not of itself alone. QNN joins the two, except through ExecuTorch if
    there is a single axis."""
    pads = {step.name: step for step in steps if step.operator in PADS}
    noted = []
    for step in steps:
        before = pads.get(step.sources[0]) if step.sources else None
        is_joined = before and before.numbers.get("value") == (0.0,)
        if before and is_joined and step.operator in JOINED_CONVOLUTIONS:
            begin, end, *others = before.numbers.get("pad", (0.0, 1.0))
            if begin == end and not any(others):
                short = find_short(step.operands, step.numbers, int(begin))
                numbers = {name: one for name, one in step.numbers.items() if name != "short"}
                numbers |= {"joined": (float(short),)} if short else {}
                step = structs.replace(step, numbers=numbers)
        noted.append(step)
    return noted


def _measure_constants(operands: Sequence[Operand]) -> Measures:
    for place, one in enumerate(operands):
        if one.constant and math.prod(one.shape) == 1:
            yield "factor", (one.magnitude,)
            if place == 1:
                yield "second", (max(one.least, 0.0),)
        elif one.uniform:
            yield "uniform", (1.0,)
        elif one.constant:
            yield "varied", (float(place),)


def _measure_norm(operands: Sequence[Operand]) -> Measures:
    lengths = {operand.shape[-1] for operand in operands if operand.shape and not operand.constant}
    stored = [one.shape[0] for one in operands if one.stored and len(one.shape) == 1]
    if stored and stored[0] in lengths:
        yield "factors", (float(stored[0]),)
    elif stored and lengths == {1}:
        yield "spread", (float(stored[0]),)
    is_batch_norm = len(operands) == 5
    if is_batch_norm and any(one.constant and one.least < 0 for one in operands[1:3]):
        yield "signed", (1.0,)
    if operands and _is_misplaced(operands[0].shape):
        yield "misplaced", (1.0,)


def _is_misplaced(shape: Sequence[int]) -> bool:
    """Return whether an RMS norm over the last axis of a tensor with this shape is wrong in fp16
    and 8 bits, with QNN 2.49.40. The limits are measured, see docs/findings/faults.md."""
    if len(shape) not in {3, 4} or shape[-1] == 1:
        return False
    height, width, length = shape[-3:]
    if 9 <= height <= 12:
        return True
    tall = height > 12 and width <= 8
    flat = 2 <= height <= 7 and width % 8 == 0 and 16 <= width <= 64
    return length <= 32 and (tall or flat)


def _repeat(numbers: Numbers, name: str, default: float) -> Iterator[float]:
    """Yield an argument's number per axis. A single number applies to all axes."""
    given = numbers.get(name) or (default,)
    yield from given
    while True:
        yield given[-1]


def _find_unreached(kernel: Sequence[int], numbers: Numbers) -> float:
    names = (("stride", 1.0), ("padding", 0.0), ("output_padding", 0.0), ("dilation", 1.0))
    given = [_repeat(numbers, name, usual) for name, usual in names]
    rows = [0.0]
    for size, stride, padding, output_padding, dilation in zip(kernel, *given, strict=False):
        reach = (size - 1) * dilation + 1
        rows.append(output_padding - padding - (math.ceil(reach / stride) * stride - reach))
    return max(rows)


def _measure_pool(shape: Sequence[int], numbers: Numbers) -> Measures:
    if any(numbers["ceil_mode"]):
        yield "overhang", (_find_overhang(shape, numbers),)
    if "count_include_pad" not in numbers or not any(numbers.get("padding", ())):
        return
    kernel, stride, padding = (
        max(numbers.get(name, ()), default=0.0) for name in ("kernel_size", "stride", "padding")
    )
    is_counted = any(numbers["count_include_pad"])
    if kernel and kernel == stride:
        same = all(size // kernel == (size + 2 * padding) // kernel for size in shape[2:])
        yield "tiled", (float(is_counted or same),)
    if is_counted and (stride in {4, 8} or (stride == 1 and kernel not in {3, 5})):
        yield "counted", (1.0,)


def _find_overhang(shape: Sequence[int], numbers: Numbers) -> float:
    kernel = numbers.get("kernel_size", ())
    given = [_repeat(numbers, name, usual) for name, usual in (("stride", 1.0), ("padding", 0.0))]
    sizes = shape[-len(kernel) :] if len(kernel) > 1 else shape[2:]
    rows = [0.0]
    every = zip(sizes, _repeat(numbers, "kernel_size", 1.0), *given, strict=False)
    for size, window, stride, padding in every:
        moves = math.ceil((size + 2 * padding - window) / stride)
        moves -= moves * stride >= size + padding  # torch omits a window of padding only
        rows.append(moves * stride + window - size - 2 * padding)
    return max(rows)


class TraceError(Exception):
    """torch.export cannot trace a model."""


def describe_steps(module: Any, inputs: Any) -> tuple[Step, ...]:
    """Return the steps of a torch module. The result is empty if the module cannot be exported.
    Lowering the module reports the reason later."""
    import torch

    from ci.models.eager import keep_state

    with torch.no_grad(), keep_state(module):
        try:
            program = torch.export.export(module, inputs, strict=False)
        except Exception:  # noqa: BLE001 - such as a shape that depends on the data
            return ()
        return tuple(_Reader(program).read())


class _Reader:
    """Reads an exported program.

    ``held`` maps node names to the parameters, buffers and constants that the program does not
    change. ``values`` holds the tensors of nodes that depend on no input, and ``factors`` the
    factors that ``_note_factor`` recorded.
    """

    def __init__(self, program: Any) -> None:
        self.graph = program.graph
        signature = program.graph_signature
        held = {**program.state_dict, **program.constants}
        names = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        changed = set(_list_changed(self.graph))
        self.held = {
            name: held[target]
            for name, target in names.items()
            if target in held and name not in changed
        }
        self.values: dict[Any, Any] = {}
        self.factors: dict[Any, float] = {}
        self.biases: set[str] = set()  # those that a layer has read

    def read(self) -> Iterator[Step]:
        from ci.models.user_code import find_origin

        for node in self.graph.nodes:
            if node.op == "placeholder" and node.name in self.held:
                self.values[node] = self.held[node.name]
            if node.op != "call_function" or self._is_constant(node):
                continue
            name = _name_operator(node)
            self._note_factor(node, name)
            if name in PASSES_ON:
                continue
            sources, operands = [], []
            for one in self._list_operands(node):
                operands.append(self._describe(one))
                own = _look_through(one)
                is_step = getattr(own, "op", "") == "call_function" and own not in self.values
                sources.append(own.name if is_step else "")
            numbers = measure_step(operands, dict(_list_numbers(node)))
            if self._is_recalled(node):
                numbers["recalled"] = (1.0,)
            if name == ATTENTION:
                numbers["mask"] = (self._measure_mask(node),)
            elif name in CASTS:
                numbers |= dict(_measure_cast(node))
            elif name == "pad" and "constant" in (*node.args, "constant")[2:3]:
                numbers.setdefault("value", (0.0,))
            given, shape, origin = tuple(operands), _find_shape(node), find_origin(node)
            yield Step(node.name, name, given, tuple(sources), shape, numbers, origin)

    def _is_recalled(self, node: Any) -> bool:
        """Return whether an earlier call of a layer reads the bias of this one."""
        given = {argument.name: value for argument, value in _list_arguments(node)}
        bias = _look_through(given.get("bias"))
        if "weight" not in given or getattr(bias, "name", "") not in self.held:
            return False
        is_first = bias.name not in self.biases
        self.biases.add(bias.name)
        return not is_first

    def _list_operands(self, node: Any) -> Iterator[Any]:
        """Yield the tensors that a node reads, and its numeric operands, such as a factor or an
        exponent."""
        schema = getattr(node.target, "_schema", None)
        names = [argument.name for argument in schema.arguments] if schema else []
        taken = {"other", "self", "value"} if _name_operator(node) == "masked_fill" else OPERANDS
        for place, given in enumerate(node.args):
            is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
            if hasattr(given, "op") or (is_number and place < len(names) and names[place] in taken):
                yield given
            elif isinstance(given, (list, tuple)):
                yield from (one for one in given if hasattr(one, "op"))

    def _describe(self, given: Any) -> Operand:
        if isinstance(given, (int, float)):
            return Operand((), True, min(abs(float(given)), LARGEST), least=float(given))
        own = _look_through(given)
        if own in self.values:
            value = self.values[own]
            while _name_operator(own) in KEEPS_NUMBERS:
                own = own.args[0]
            magnitude, uniform, least = _measure(value)
            stored = own.name in self.held
            return Operand(_find_shape(given), True, magnitude, uniform, stored, least)
        return Operand(_find_shape(given), magnitude=self.factors.get(own, 0.0))

    def _is_constant(self, node: Any) -> bool:
        """Return whether a node is a constant: it depends on no input, draws no random numbers, has
        at most MOST_ELEMENTS elements, and can be evaluated. If so, store its value."""
        import torch
        from torch.fx.node import map_arg

        from ci.models.eager import list_tensors

        if any(one not in self.values for one in node.all_input_nodes):
            return False
        tags = getattr(node.target, "tags", ())
        small = all(
            tensor.numel() <= MOST_ELEMENTS for tensor in list_tensors(node.meta.get("val"))
        )
        if torch.Tag.nondeterministic_seeded in tags or not small:
            return False
        try:
            args, kwargs = (
                map_arg(one, lambda own: self.values[own]) for one in (node.args, node.kwargs)
            )
            self.values[node] = node.target(*args, **kwargs)
        except Exception:  # noqa: BLE001 - then it becomes an ordinary step
            return False
        return True

    def _measure_mask(self, node: Any) -> float:
        """Return the largest magnitude that an attention adds to its scores, or 0 if it is unknown.
        A boolean or causal mask adds minus infinity, unless it is a constant that blocks
        nothing."""
        import torch

        given = {argument.name: value for argument, value in _list_arguments(node)}
        mask = given.get("attn_mask")
        if mask is not None and mask.meta["val"].dtype == torch.bool:
            known = self.values.get(_look_through(mask))
            return LARGEST if known is None or not bool(known.all()) else 0.0
        if given.get("is_causal"):
            return LARGEST
        return self._describe(mask).magnitude if mask is not None else 0.0

    def _note_factor(self, node: Any, name: str) -> None:
        """Record the constant factor of a multiplication or the value of a fill. A node that only
        moves elements has the factor of the node before it."""
        before = [arg for arg in node.args if hasattr(arg, "op")]
        if name in MOVES_OR_PASSES_ON and before:
            self.factors[node] = self.factors.get(before[0], 0.0)
        elif name == "mul":
            known = map(self._describe, self._list_operands(node))
            single = [one for one in known if one.constant and set(one.shape) <= {1}]
            self.factors[node] = max((one.magnitude for one in single), default=0.0)
        elif name == "masked_fill":
            given = node.args[2] if len(node.args) > 2 else 0.0
            self.factors[node] = self._describe(given).magnitude
        elif name == "where":
            filled = map(self._describe, node.args[1:])
            self.factors[node] = max(
                (operand.magnitude for operand in filled if operand.constant), default=0.0
            )


def _measure_cast(node: Any) -> Measures:
    """Yield the bits of the integers that a cast makes floats, if QNN 2.49.40 takes them: 8 for
    uint8, and 32 for others. An input of 64 bits is left out if only casts, and reshapes that
    change leading ones, are between it and the cast: QNN then joins it with ExecuTorch's own cast
    to 32 bits, and computes it rightly."""
    import torch

    source = node.args[0]
    made, given = node.meta["val"].dtype, source.meta["val"].dtype
    if made.is_floating_point and given == torch.uint8:
        yield "integers", (8.0,)
    elif made.is_floating_point and given in {torch.int32, torch.int64}:
        while source.op == "call_function" and (
            _name_operator(source) in KEEPS_NUMBERS
            or (_name_operator(source) in RESHAPES and _strip(source) == _strip(source.args[0]))
        ):
            source = source.args[0]
        if source.op == "call_function" or source.meta["val"].dtype == torch.int32:
            yield "integers", (32.0,)


def _strip(node: Any) -> tuple[int, ...]:
    """Return the shape of a node's result without leading ones."""
    return tuple(dropwhile(lambda size: size == 1, _find_shape(node)))


def _look_through(given: Any) -> Any:
    while getattr(given, "op", "") == "call_function" and _name_operator(given) in PASSES_ON:
        given = given.args[0]
    return given


def _name_operator(node: Any) -> str:
    name = getattr(node.target, "__name__", str(node.target))
    return str(name).partition(".")[0].rstrip("_")


def _list_arguments(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each argument in the schema of a node's operator, with its value, or None if it is
    omitted."""
    schema = getattr(node.target, "_schema", None)
    for place, one in enumerate(schema.arguments if schema else ()):
        yield one, node.args[place] if place < len(node.args) else node.kwargs.get(one.name)


def _list_numbers(node: Any) -> Measures:
    """Yield (name, numbers) for each argument of a node that is a number or a list of numbers. An
    omitted argument has its default."""
    for one, value in _list_arguments(node):
        value = one.default_value if value is None else value
        values = value if isinstance(value, (list, tuple)) else (value,)
        if all(isinstance(number, (bool, int, float)) for number in values):
            yield one.name, tuple(map(float, values))
        elif one.name == "padding" and value in {"same", "valid"}:
            yield one.name, _measure_padding(node, same=value == "same")


def _measure_padding(node: Any, *, same: bool) -> tuple[float, ...]:
    """Return the padding of a convolution per axis, as torch computes it from "same" or "valid". It
    is 0 along an axis whose ends differ: torch pads these by another operator."""
    arguments = {one.name: value for one, value in _list_arguments(node)}
    kernel = _find_shape(arguments["weight"])[2:]
    dilation = _repeat({"dilation": tuple(arguments.get("dilation") or (1.0,))}, "dilation", 1.0)
    totals = [(size - 1) * step * same for size, step in zip(kernel, dilation, strict=False)]
    return tuple(0.0 if total % 2 else total / 2 for total in totals)


def _list_changed(graph: Any) -> Iterator[str]:
    """Yield the names of the nodes into which an operator writes, directly or through a view."""
    for node in graph.nodes:
        for one, changed in _list_arguments(node):
            if one.alias_info and one.alias_info.is_write:
                while _is_view(changed):
                    changed = changed.args[0]
                yield getattr(changed, "name", "")


def _is_view(node: Any) -> bool:
    """Return whether the first result of a node may share memory with an operand."""
    target = getattr(node, "target", None)
    if target is operator.getitem:  # a part, such as one of chunk's
        return True
    schema = getattr(target, "_schema", None)
    return bool(schema and schema.returns and schema.returns[0].alias_info and node.args)


def _find_shape(node: Any) -> tuple[int, ...]:
    from ci.models.eager import list_tensors  # it imports torch

    tensors = list_tensors(node.meta.get("val"))
    sizes = tensors[0].shape if tensors else ()
    return tuple(size if isinstance(size, int) else 0 for size in sizes)


def _measure(value: Any) -> tuple[float, bool, float]:
    """Return the magnitude of a constant, whether it is uniform, and its least element, as the
    fields of an Operand. A number is not a tensor."""
    if not hasattr(value, "numel") or not value.numel():
        return 0.0, False, 0.0
    uniform = value.ndim > 0 and bool((value == value.flatten()[0]).all())
    if value.is_complex():
        return 0.0, uniform, 0.0
    least, most = float(value.min()), float(value.max())  # bool has no abs()
    largest = max(abs(least), abs(most))
    return 0.0 if math.isnan(largest) else min(largest, LARGEST), uniform, least
