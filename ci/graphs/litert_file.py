"""LiteRT models (.tflite) as the flatbuffer classes of ai_edge_litert have them: what their tensors
and operators are, and models that are cut from them.

The classes are generated from LiteRT's schema and check nothing, so a file must have been read by
provisioning.doctor.survey.litert before, which does.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated

from ci.graphs.graph import Array
from provisioning.errors import FailedError

schema: Any = schema_py_generated  # the name that LiteRT's own files have for it
FILE_ID = b"TFL3"
CUSTOM = schema.BuiltinOperator.CUSTOM
NONE = schema.ActivationFunctionType.NONE
# The numbers of schema.TensorType, by numpy's names. Numbers of 4 bits are unpacked to 8.
DTYPES = {
    "FLOAT32": "float32",
    "FLOAT16": "float16",
    "FLOAT64": "float64",
    "INT32": "int32",
    "UINT8": "uint8",
    "INT64": "int64",
    "BOOL": "bool",
    "INT16": "int16",
    "INT8": "int8",
    "UINT64": "uint64",
    "UINT32": "uint32",
    "UINT16": "uint16",
    "INT4": "int8",
}
ACTIVATIONS = {"RELU": "RELU", "RELU6": "RELU6", "RELU_N1_TO_1": "RELU_N1_TO_1", "TANH": "TANH"}
IF, WHILE, COMPOSITE = "IF", "WHILE", "STABLEHLO_COMPOSITE"
BEFORE_ACTIVATION = b"/before_activation"  # the end of a tensor's name, see split_activations
RUN_HERE = frozenset({IF, WHILE, COMPOSITE})  # their subgraphs are run by run_control
CONTROL = RUN_HERE | {"CALL", "CALL_ONCE"}
# The options that name subgraphs, see schema.fbs of LiteRT.
SUBGRAPHS = (
    *("thenSubgraphIndex", "elseSubgraphIndex", "condSubgraphIndex", "bodySubgraphIndex"),
    *("decompositionSubgraphIndex", "initSubgraphIndex", "updateComputationSubgraphIndex"),
    *("comparatorSubgraphIndex", "branchSubgraphIndices", "subgraph"),
)
MOST_LOOPS = 1 << 16
MOST_NESTED, MOST_INLINED = 32, 1 << 16  # composites in each other, operators of a subgraph


# In a model's metadata: the names of the inputs that are states, and with what they begin.
STATES, STARTS = b"executorch-qnn-ci states", b"executorch-qnn-ci starts"
NEXT = "/next"  # the end of the name of the output with the next value of a state


class StatePort(NamedTuple):
    """A value that is passed from one run to the next: the number of its input, that of the output
    that has its next value, and the bytes with which it begins."""

    read: int
    write: int
    start: bytes


@dataclass(frozen=True)
class Entry:
    """A subgraph that is run: that of a signature or, without one, the first. ``inputs`` and
    ``outputs`` are the numbers of its tensors, which the signature calls ``input_names`` and
    ``output_names``. ``states`` are further ones, see ci.graphs.litert_states."""

    key: str
    subgraph: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    states: tuple[StatePort, ...] = ()


def read_model(data: bytes) -> Any:
    """Return a file as a ModelT. What lies behind the flatbuffer is not copied."""
    return schema.ModelT.InitFromPackedBuf(data, 0)


def pack_model(model: Any) -> bytes:
    """Return a ModelT as a file."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), FILE_ID)
    return bytes(builder.Output())


@cache
def name_numbers(enum: str) -> dict[int, str]:
    """Return the names of an enum of the schema by their numbers."""
    members = vars(getattr(schema, enum)).items()
    return {number: name for name, number in members if isinstance(number, int)}


def name_operator(model: Any, operator: Any) -> str:
    """Return an operator's name, such as CONV_2D; of a custom operator, the name that it has."""
    code = model.operatorCodes[operator.opcodeIndex]
    # Old files have only the field of one byte, and newer ones both.
    number = max(code.builtinCode, code.deprecatedBuiltinCode)
    if number == CUSTOM:
        return (code.customCode or b"").decode("utf-8", "replace")
    return name_numbers("BuiltinOperator").get(number, f"operator {number}")


def is_custom(model: Any, operator: Any) -> bool:
    """Return whether an operator is none of LiteRT's own."""
    code = model.operatorCodes[operator.opcodeIndex]
    return max(code.builtinCode, code.deprecatedBuiltinCode) == CUSTOM


def list_entries(model: Any, signatures: Collection[str] = ()) -> list[Entry]:
    """Return what a model offers to be run: a subgraph for each of its signatures, or else the
    first. If ``signatures`` are passed, it is those of them that the model has."""
    entries = []
    for signature in model.signatureDefs or ():
        names = [
            {int(port.tensorIndex): port.name.decode("utf-8", "replace") for port in ports or ()}
            for ports in (signature.inputs, signature.outputs)
        ]
        key = (signature.signatureKey or b"").decode("utf-8", "replace")
        if not signatures or key in signatures:
            entries.append(_make_entry(model, key, int(signature.subgraphIndex), *names))
    if signatures:
        return entries
    return entries or [_make_entry(model, "", 0, {}, {})]


def _make_entry(
    model: Any, key: str, number: int, inputs: dict[int, str], outputs: dict[int, str]
) -> Entry:
    subgraph = model.subgraphs[number]
    states = list_states(model, subgraph)
    own_inputs = {state.read for state in states}
    own_outputs = {state.write for state in states}
    reads = tuple(n for n in list_numbers(subgraph.inputs) if n not in own_inputs)
    results = tuple(n for n in list_numbers(subgraph.outputs) if n not in own_outputs)
    return Entry(
        key,
        number,
        reads,
        results,
        _name_ports(subgraph, reads, inputs),
        _name_ports(subgraph, results, outputs),
        states,
    )


def list_states(model: Any, subgraph: Any) -> tuple[StatePort, ...]:
    """Return the states of a subgraph that the metadata of a model notes, none if its inputs and
    outputs do not fit what is noted."""
    notes = {entry.name: model.buffers[entry.buffer].data for entry in model.metadata or ()}
    names, starts = notes.get(STATES), notes.get(STARTS)
    if names is None or starts is None:
        return ()
    content = np.asarray(starts, np.uint8).tobytes()
    inputs = {name_tensor(subgraph, n): n for n in list_numbers(subgraph.inputs)}
    outputs = {name_tensor(subgraph, n): n for n in list_numbers(subgraph.outputs)}
    states, place = [], 0
    for name in np.asarray(names, np.uint8).tobytes().decode("utf-8", "replace").split("\n"):
        read, write = inputs.get(name), outputs.get(f"{name}{NEXT}")
        if read is None or write is None:
            return ()
        tensors = subgraph.tensors[read], subgraph.tensors[write]
        forms = [(read_shape(tensor), read_dtype(tensor)) for tensor in tensors]
        if forms[0] != forms[1] or not forms[0][1]:
            return ()
        size = int(np.prod(forms[0][0], dtype=np.int64)) * np.dtype(forms[0][1]).itemsize
        states.append(StatePort(read, write, content[place : place + size]))
        place += size
    return tuple(states) if place == len(content) else ()


class Carried:
    """The values that an entry passes from one run to the next, from its start on."""

    def __init__(self, entry: Entry, model: Any) -> None:
        subgraph = model.subgraphs[entry.subgraph]
        self.entry, tensors = entry, subgraph.tensors
        self.inputs, self.outputs = list_numbers(subgraph.inputs), list_numbers(subgraph.outputs)
        self.starts: list[Array] = []
        for state in entry.states:
            tensor = tensors[state.read]
            array = np.frombuffer(state.start, read_dtype(tensor)).reshape(read_shape(tensor))
            self.starts.append(array)
        self.values = self.starts

    def begin(self) -> None:
        """Let the states begin anew."""
        self.values = self.starts

    def keep(self, values: Sequence[Array]) -> None:
        """Keep the next values of the states."""
        self.values = [np.array(value) for value in values]

    def run(
        self, inputs: Sequence[Array], run: Callable[[Sequence[Array]], Sequence[Array]]
    ) -> list[Array]:
        """Return the outputs of the entry. ``run`` takes and returns those of its subgraph, with
        the states, in their order."""
        entry = self.entry
        values_read = dict(zip(entry.inputs, inputs, strict=True))
        values_read |= {s.read: value for s, value in zip(entry.states, self.values, strict=True)}
        results = run([values_read[number] for number in self.inputs])
        by_number = dict(zip(self.outputs, results, strict=True))
        self.keep([by_number[state.write] for state in entry.states])
        return [by_number[number] for number in entry.outputs]


def _name_ports(subgraph: Any, numbers: Sequence[int], names: Mapping[int, str]) -> tuple[str, ...]:
    """Return the names that a signature has for tensors, which may be empty. Those that it lacks
    are called as the tensors are; if several of these have the same name, their numbers are
    added."""
    lacking = Counter(name_tensor(subgraph, number) for number in {*numbers} if number not in names)
    ports = []
    for number in numbers:
        name = names.get(number)
        if name is None:
            name = name_tensor(subgraph, number)
            name = name if lacking[name] == 1 else f"{name} ({number})"
        ports.append(name)
    return tuple(ports)


def list_numbers(numbers: Any) -> tuple[int, ...]:
    """Return a vector of the flatbuffer, which may be missing, as integers."""
    return () if numbers is None else tuple(int(number) for number in numbers)


def name_tensor(subgraph: Any, number: int) -> str:
    """Return the name of a tensor, or its number if it has none."""
    name: bytes = subgraph.tensors[number].name or b""
    return name.decode("utf-8", "replace") or f"tensor {number}"


def name_all_tensors(data: bytes) -> bytes:
    """Return a file with a name for each tensor, or the same file if all have one. Names are
    optional, but a context binary binds its tensors by them."""
    model = read_model(data)
    unnamed = []
    for subgraph in model.subgraphs:
        taken = {tensor.name for tensor in subgraph.tensors}
        for number, tensor in enumerate(subgraph.tensors):
            if not tensor.name:
                unnamed.append(tensor)
                names = (f"tensor_{number}{'_' * length}".encode() for length in itertools.count())
                tensor.name = next(name for name in names if name not in taken)
    if not unnamed:
        return data
    model.metadata = model.metadataBuffer = None
    keep_buffers(model, data)
    return pack_model(model)


def number_tensors(subgraph: Any) -> dict[str, int]:
    """Return the numbers of tensors by their names; of equal names, the first one counts."""
    numbers: dict[str, int] = {}
    for number in range(len(subgraph.tensors)):
        numbers.setdefault(name_tensor(subgraph, number), number)
    return numbers


def read_shape(tensor: Any) -> tuple[int, ...]:
    """Return a tensor's shape; an axis whose length may change has the length 1."""
    return list_numbers(tensor.shape)


def read_dtype(tensor: Any) -> str:
    """Return numpy's name of a tensor's type, or "" if numpy has none."""
    return DTYPES.get(name_numbers("TensorType").get(tensor.type, ""), "")


@dataclass(frozen=True)
class Levels:
    """How the integers of a tensor stand for numbers: ``(integer - zero_points) * scales``. There
    is one of each, or one for each index along ``axis``."""

    scales: Array
    zero_points: Array
    axis: int

    def restore(self, integers: Array) -> Array:
        """Return the numbers that integers stand for, as float32."""
        scales, zero_points = self.scales, self.zero_points
        if scales.size > 1:
            shape = [1] * integers.ndim
            shape[self.axis] = -1
            scales, zero_points = scales.reshape(shape), zero_points.reshape(shape)
        real = (integers.astype(np.float64) - zero_points) * scales
        return real.astype(np.float32)


def read_levels(tensor: Any) -> Levels | None:
    """Return the scales of a quantized tensor, or None if it is not quantized."""
    quantization = tensor.quantization
    if quantization is None or quantization.scale is None or not len(quantization.scale):
        return None
    if not read_dtype(tensor).lstrip("u").startswith("int"):
        return None
    scales = np.asarray(quantization.scale, np.float64)
    zero_points = np.zeros_like(scales)
    if quantization.zeroPoint is not None and len(quantization.zeroPoint):
        zero_points = np.broadcast_to(np.asarray(quantization.zeroPoint, np.float64), scales.shape)
    return Levels(scales, zero_points, int(quantization.quantizedDimension))


def describe_free_axes(model: Any) -> list[str]:
    """Return the inputs with axes whose length may change, with -1 for each such axis: such as
    ``x [-1, 64]``."""
    free = []
    for entry in list_entries(model):
        for number, name in zip(entry.inputs, entry.input_names, strict=True):
            signature = list_numbers(model.subgraphs[entry.subgraph].tensors[number].shapeSignature)
            if -1 in signature:
                free.append(f"{name} {[*signature]}")
    return free


def restore_numbers(tensor: Any, array: Array) -> Array:
    """Return the numbers for which the values of a quantized tensor stand; other values as they
    are."""
    levels = read_levels(tensor)
    return levels.restore(array) if levels else array


def has_data(model: Any, tensor: Any) -> bool:
    """Return whether a tensor is a constant."""
    buffer = model.buffers[tensor.buffer]
    return bool(buffer.offset > 1 or (buffer.data is not None and len(buffer.data)))


def read_constant(model: Any, tensor: Any, data: bytes = b"") -> Array:
    """Return the values of a constant tensor. ``data`` is the file, in which values may be behind
    the flatbuffer. Raises ValueError if they do not fit the tensor's shape."""
    buffer, shape = model.buffers[tensor.buffer], read_shape(tensor)
    values = buffer.data
    if buffer.offset > 1:
        values = np.frombuffer(data, np.uint8, buffer.size, buffer.offset)
    values = np.asarray(values, np.uint8)
    if name_numbers("TensorType").get(tensor.type) == "INT4":
        pairs = np.stack([values << 4, values & 0xF0], -1).view(np.int8) >> 4
        return pairs.reshape(-1)[: int(np.prod(shape, dtype=np.int64))].reshape(shape)
    return np.ascontiguousarray(values).view(read_dtype(tensor)).reshape(shape)


def split_activations(model: Any) -> None:
    """Make an operator of each activation that another operator contains. The numbers stay the
    same: a quantized result is clamped in either case, with the same scale."""
    codes: dict[str, int] = {}
    names = name_numbers("ActivationFunctionType")
    for subgraph in model.subgraphs:
        operators = []
        for operator in subgraph.operators or ():
            options = operator.builtinOptions
            activation = names.get(getattr(options, "fusedActivationFunction", NONE), "")
            splits = activation in ACTIVATIONS and len(operator.outputs) == 1
            if not splits or "LSTM" in name_operator(model, operator):
                operators.append(operator)
                continue
            if activation not in codes:
                codes[activation] = len(model.operatorCodes)
                model.operatorCodes.append(make_code(ACTIVATIONS[activation]))
            result = subgraph.tensors[operator.outputs[0]]
            inner = copy(result)
            inner.name = (result.name or b"") + BEFORE_ACTIVATION
            after = schema.OperatorT()
            after.opcodeIndex = codes[activation]
            after.inputs = np.array([len(subgraph.tensors)], np.int32)
            after.outputs = operator.outputs
            subgraph.tensors.append(inner)
            before = copy(operator)
            before.builtinOptions = copy(options)
            before.builtinOptions.fusedActivationFunction = NONE
            before.outputs = after.inputs
            operators += [before, after]
        subgraph.operators = operators


def inline_composites(model: Any) -> None:
    """Replace each composite by the operators of its subgraph. A composite stays if it returns one
    of its inputs or constants, if it returns a tensor twice, and beyond MOST_NESTED and
    MOST_INLINED, because a composite may contain itself."""
    for subgraph in model.subgraphs:
        for _ in range(MOST_NESTED):
            before = [*(subgraph.operators or ())]
            subgraph.operators = []
            for operator in before:
                subgraph.operators += _list_inlined(model, subgraph, operator)
            if subgraph.operators == before or len(subgraph.operators) > MOST_INLINED:
                break


def _list_inlined(model: Any, subgraph: Any, operator: Any) -> list[Any]:
    """Return the operators that stand for an operator of a subgraph, which gets their tensors: the
    operator itself, unless it is a composite that can be replaced."""
    if name_operator(model, operator) != COMPOSITE:
        return [operator]
    (number,) = list_run(model, operator)
    inner = model.subgraphs[number]
    inputs, outputs = list_numbers(inner.inputs), list_numbers(inner.outputs)
    reads, results = list_numbers(operator.inputs), list_numbers(operator.outputs)
    computed = {number for call in inner.operators or () for number in list_numbers(call.outputs)}
    is_plain = computed.issuperset(outputs) and len({*outputs}) == len(outputs)
    fits = len(inputs) == len(reads) and len(outputs) == len(results)
    if not is_plain or not fits or inner is subgraph:
        return [operator]
    places = {-1: -1, **dict(zip(inputs, reads, strict=True))}
    places |= dict(zip(outputs, results, strict=True))
    for number, tensor in enumerate(inner.tensors):
        if number not in places:
            places[number] = len(subgraph.tensors)
            subgraph.tensors.append(copy(tensor))
    inlined = []
    for call in inner.operators:
        replaced = copy(call)
        replaced.inputs = _renumber(call.inputs, places)
        replaced.outputs = _renumber(call.outputs, places)
        replaced.intermediates = None
        inlined.append(replaced)
    return inlined


def list_bodies(model: Any, entries: Collection[Entry]) -> list[Entry]:
    """Return the subgraphs that the operators of entries run, see list_run, and those that these
    run."""
    bodies: dict[int, Entry] = {}
    waiting = [entry.subgraph for entry in entries]
    while waiting:
        for operator in model.subgraphs[waiting.pop()].operators or ():
            for number in list_run(model, operator):
                if number not in bodies:
                    name = (model.subgraphs[number].name or b"").decode("utf-8", "replace")
                    entry = _make_entry(model, f"{name or 'subgraph'} ({number})", number, {}, {})
                    bodies[number] = entry
                    waiting.append(number)
    return list(bodies.values())


def list_run(model: Any, operator: Any) -> list[int]:
    """Return the subgraphs that an operator runs, if it is one of RUN_HERE: for an IF the two
    branches, for a WHILE its condition and its body."""
    kind, options = name_operator(model, operator), operator.builtinOptions
    if kind == IF:
        return [int(options.thenSubgraphIndex), int(options.elseSubgraphIndex)]
    if kind == WHILE:
        return [int(options.condSubgraphIndex), int(options.bodySubgraphIndex)]
    if kind == COMPOSITE:
        return [int(operator.builtinOptions2.decompositionSubgraphIndex)]
    return []


def list_used(operator: Any) -> list[int]:
    """Return the numbers of all subgraphs that an operator names in its options: also that with
    which a STABLEHLO_SCATTER combines numbers, which only LiteRT runs."""
    numbers = []
    for options in (operator.builtinOptions, operator.builtinOptions2):
        for name in SUBGRAPHS:
            numbers += np.atleast_1d(getattr(options, name, ())).astype(int).tolist()
    return numbers


def run_control(
    model: Any,
    operator: Any,
    inputs: Sequence[Array],
    run: Callable[[int, Sequence[Array]], Sequence[Array]],
) -> Sequence[Array]:
    """Return the results of an operator that runs other subgraphs; ``run`` takes the number of one
    and its inputs. Raises FailedError if a loop does not end, and for an operator that is none of
    RUN_HERE."""
    kind = name_operator(model, operator)
    if kind == IF:
        then, otherwise = list_run(model, operator)
        return run(then if inputs[0].all() else otherwise, inputs[1:])
    if kind == WHILE:
        condition, body = list_run(model, operator)
        state = inputs
        for _ in range(MOST_LOOPS):
            if not run(condition, state)[0].all():
                return state
            state = run(body, state)
        raise FailedError(f"a WHILE did not end within {MOST_LOOPS} rounds")
    if kind == COMPOSITE:
        (decomposition,) = list_run(model, operator)
        return run(decomposition, inputs)
    raise FailedError(f"a model with {kind} cannot be run here")


def make_signature(key: str, number: int, subgraph: Any) -> Any:
    """Return a signature of a subgraph, which has this number. Its inputs and outputs have the
    names of their tensors."""
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = key.encode(), number
    signature.inputs, signature.outputs = [], []
    for ports, numbers in (
        (signature.inputs, list_numbers(subgraph.inputs)),
        (signature.outputs, list_numbers(subgraph.outputs)),
    ):
        for tensor in numbers:
            add_port(ports, name_tensor(subgraph, tensor), tensor)
    return signature


def add_port(ports: list[Any], name: str, tensor: int) -> None:
    """Append an input or an output, which is the tensor with this number, to those of a
    signature."""
    port = schema.TensorMapT()
    port.name, port.tensorIndex = name.encode(), tensor
    ports.append(port)


def make_code(name: str) -> Any:
    """Return the code of one of LiteRT's own operators."""
    code = schema.OperatorCodeT()
    code.builtinCode = getattr(schema.BuiltinOperator, name)
    code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
    return code


def cut_model(
    model: Any,
    subgraph: int,
    operators: Sequence[int],
    reads: Sequence[int],
    results: Sequence[int],
    *,
    as_float: bool = False,
) -> bytes:
    """Return a model of some operators of a subgraph, which reads the tensors ``reads`` and returns
    the tensors ``results``. ``as_float`` makes its quantized tensors float32, without their values
    if they are constants."""
    source = model.subgraphs[subgraph]
    part = copy(source)
    part.operators = [source.operators[number] for number in operators]
    part.inputs, part.outputs = np.array(reads, np.int32), np.array(results, np.int32)
    used = {*reads, *results, *list_tensors(part.operators)}
    part.tensors = [*source.tensors]
    if as_float:
        for number in used:
            tensor = part.tensors[number]
            if read_levels(tensor):
                tensor = copy(tensor)
                tensor.type, tensor.quantization = schema.TensorType.FLOAT32, None
                part.tensors[number] = tensor
    piece = copy(model)
    piece.signatureDefs = piece.metadata = piece.metadataBuffer = None
    if any(list_used(operator) for operator in part.operators):
        # It runs other subgraphs by their numbers, which stay. No operator runs the first one.
        piece.subgraphs = [part, *model.subgraphs[1:]]
        return pack_model(piece)
    drop_unused(part)
    part.tensors = [copy(tensor) for tensor in part.tensors]
    piece.subgraphs = [part]
    keep_buffers(piece)
    return pack_model(piece)


def keep_buffers(model: Any, data: bytes = b"") -> None:
    """Keep only the first buffer, which is the empty one, and those of tensors and of metadata,
    whose numbers change. What is behind the flatbuffer in the file ``data`` becomes part of it."""
    buffers, places = [model.buffers[0]], {0: 0}
    tensors = [tensor for subgraph in model.subgraphs for tensor in subgraph.tensors]
    for holder in (*tensors, *(model.metadata or ())):
        if holder.buffer not in places:
            places[holder.buffer] = len(buffers)
            buffer = copy(model.buffers[holder.buffer])
            if data and buffer.offset > 1:
                buffer.data = np.frombuffer(data, np.uint8, buffer.size, buffer.offset)
                buffer.offset = buffer.size = 0
            buffers.append(buffer)
        holder.buffer = places[holder.buffer]
    model.buffers, model.metadataBuffer = buffers, None


def drop_unused(subgraph: Any) -> None:
    """Remove the tensors that no operator and no port of a subgraph uses, because each would be
    packed and allocated. The operators are replaced, and not changed."""
    ports = (*list_numbers(subgraph.inputs), *list_numbers(subgraph.outputs))
    used = sorted({*ports, *list_tensors(subgraph.operators)})
    places = {number: place for place, number in enumerate(used)}
    subgraph.tensors = [subgraph.tensors[number] for number in used]
    subgraph.operators = [copy(operator) for operator in subgraph.operators]
    for operator in subgraph.operators:
        operator.inputs = _renumber(operator.inputs, places)
        operator.outputs = _renumber(operator.outputs, places)
        operator.intermediates = None
    subgraph.inputs = _renumber(subgraph.inputs, places)
    subgraph.outputs = _renumber(subgraph.outputs, places)


def _renumber(numbers: Any, places: dict[int, int]) -> Array:
    return np.array([places.get(number, -1) for number in list_numbers(numbers)], np.int32)


def list_tensors(operators: Collection[Any]) -> Iterator[int]:
    """Yield the numbers of the tensors that operators read and write."""
    for operator in operators:
        for number in (*list_numbers(operator.inputs), *list_numbers(operator.outputs)):
            if number >= 0:
                yield number
