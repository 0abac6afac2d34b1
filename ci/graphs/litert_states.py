"""Models that keep values between their runs, written so that these are inputs and outputs.

LiteRT's plugin for Qualcomm refuses variables (VAR_HANDLE) and the tensors into which an LSTM or an
SVDF writes. An application that runs such a model on the NPU has to pass each value from one run to
the next. ``expose_states`` writes this form of a model, and notes in its metadata which output
belongs to which input and with what each begins. A run of the entry of such a file starts with
these values, and passes each on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ci.graphs.graph import Array
from ci.graphs.litert_file import (
    NEXT,
    STARTS,
    STATES,
    Entry,
    add_port,
    drop_unused,
    keep_buffers,
    list_entries,
    list_numbers,
    list_run,
    make_signature,
    name_numbers,
    name_operator,
    name_tensor,
    pack_model,
    read_dtype,
    read_model,
    read_shape,
    schema,
)
from ci.graphs.litert_part import move_bodies
from ci.graphs.litert_session import open_interpreter, run_interpreter
from ci.graphs.litert_writer import LitertWriter
from provisioning.errors import UsageError

HANDLE, READ, ASSIGN, START = "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"
OF_VARIABLES = frozenset({HANDLE, READ, ASSIGN, START})
LSTM, SVDF = "UNIDIRECTIONAL_SEQUENCE_LSTM", "SVDF"
FIX = "return the values as outputs, and pass them as inputs to the next run"
PREFIX = "state/"  # of the names of inputs that are states
MOST_STEPS = 256  # of an LSTM that is written out


def has_states(model: Any) -> bool:
    """Return whether a model keeps values between its runs."""
    for subgraph in model.subgraphs:
        if any(tensor.isVariable for tensor in subgraph.tensors):
            return True
        for operator in subgraph.operators or ():
            if name_operator(model, operator) in OF_VARIABLES:
                return True
    return False


class _State(NamedTuple):
    """A value that a model keeps: the tensors that have it at the start and at the end of a run,
    and with what it begins."""

    name: str
    first: int
    last: int
    start: Array


def expose_states(name: str, data: bytes) -> bytes:
    """Return a model whose states are inputs and outputs, after its own ones. Raises UsageError if
    the model, which is in the file ``name``, keeps values in a way that cannot be written so."""
    model = read_model(data)
    keep_buffers(model, data)
    entries = list_entries(model)
    if len(entries) > 1:
        raise UsageError(
            f"{name} keeps values between its runs, and has {len(entries)} signatures",
            why="signatures that share a value are not judged one after the other",
            fix="write a file for each signature",
        )
    (entry,) = entries
    return _Exposing(name, data, model, entry).expose()


@dataclass
class _Exposing:
    name: str
    data: bytes
    model: Any
    entry: Entry

    def __post_init__(self) -> None:
        self.subgraph = self.model.subgraphs[self.entry.subgraph]
        self.writer = LitertWriter(self.model, self.subgraph)
        self.states: list[_State] = []

    def expose(self) -> bytes:
        self._check_bodies()
        starts = self._read_starts()
        current = self._replace_variables(starts)
        subgraph = self.subgraph
        outputs = [current.get(number, number) for number in list_numbers(subgraph.outputs)]
        inputs = [*list_numbers(subgraph.inputs)]
        taken = {*outputs, *inputs, *(state.first for state in self.states)}
        finals = []
        for state in self.states:
            self._require_same_form(state)
            last = state.last
            if last in taken or self._is_constant(last):
                last = self._copy(last, f"{state.name}/next")
            taken.add(last)
            finals.append(state._replace(last=last))
        self.states = finals
        subgraph.operators = self.writer.operators
        subgraph.inputs = np.array([*inputs, *(state.first for state in finals)], np.int32)
        subgraph.outputs = np.array([*outputs, *(state.last for state in finals)], np.int32)
        for tensor in subgraph.tensors:
            tensor.isVariable = False
        self._name_ports()
        keys = [self.entry.key] if self.entry.key else []
        names = self.entry.input_names, self.entry.output_names
        drop_unused(subgraph)
        self.model.subgraphs = [subgraph, *move_bodies(self.model, subgraph)]
        self.model.signatureDefs = [self._make_signature(key, *names) for key in keys]
        add_states(self.model, {state.name: state.start for state in finals})
        keep_buffers(self.model)
        return pack_model(self.model)

    def _refuse(self, obstacle: str, why: str) -> UsageError:
        return UsageError(f"{self.name} {obstacle}", why=why, fix=FIX)

    def _check_bodies(self) -> None:
        """Raise UsageError if an operator inside of another one keeps values."""
        for operator in self.subgraph.operators or ():
            for number in list_run(self.model, operator):
                piece = copy(self.model)
                piece.subgraphs = [self.model.subgraphs[number]]
                if has_states(piece):
                    kind = name_operator(self.model, operator)
                    raise self._refuse(
                        f"keeps values between its runs inside of a {kind}",
                        "whether it changes them depends on the data",
                    )

    def _read_starts(self) -> dict[str, Array]:
        """Return the values with which the variables begin, by their names: those that a first run
        of LiteRT reads."""
        operators: list[int] = []
        reads: list[int] = []
        names: dict[int, str] = {}
        handles: dict[int, str] = {}
        written: set[str] = set()
        for place, operator in enumerate(self.subgraph.operators or ()):
            kind = name_operator(self.model, operator)
            if kind in {HANDLE, START}:
                operators.append(place)
            if kind == HANDLE:
                handles[int(operator.outputs[0])] = _name_variable(operator)
            elif kind == ASSIGN:
                written.add(handles.get(int(operator.inputs[0]), ""))
            elif kind == READ:
                variable = handles.get(int(operator.inputs[0]), "")
                if variable not in written and variable not in names.values():
                    names[int(operator.outputs[0])] = variable
                    operators.append(place)
                    reads.append(int(operator.outputs[0]))
        if not reads:
            return {}
        piece = copy(self.model)
        part = copy(self.subgraph)
        part.operators = [self.subgraph.operators[place] for place in operators]
        part.inputs, part.outputs = np.array([], np.int32), np.array(reads, np.int32)
        piece.subgraphs = [*self.model.subgraphs]
        piece.subgraphs[self.entry.subgraph] = part
        piece.subgraphs.insert(0, piece.subgraphs.pop(self.entry.subgraph))
        piece.signatureDefs = piece.metadata = None
        if self.entry.subgraph:
            raise self._refuse(
                "keeps values between its runs, and its signature is not its first subgraph",
                "its variables cannot be read here",
            )
        try:
            arrays = run_interpreter(open_interpreter(pack_model(piece)), [])
        except (RuntimeError, ValueError) as error:
            raise self._refuse(
                "reads a variable before it has a value",
                f"LiteRT reports: {' '.join(str(error).split())}",
            ) from error
        return {names[number]: array for number, array in zip(reads, arrays, strict=True)}

    def _replace_variables(self, starts: Mapping[str, Array]) -> dict[int, int]:
        """Write the operators without variables, and return the tensors that replace those that
        were read from variables."""
        handles: dict[int, str] = {}
        values: dict[str, int] = {}  # the tensor that has the value of each variable
        first: dict[str, int] = {}
        replaced: dict[int, int] = {}
        for operator in self.subgraph.operators or ():
            kind = name_operator(self.model, operator)
            inputs = [replaced.get(number, number) for number in list_numbers(operator.inputs)]
            if kind == HANDLE:
                handles[int(operator.outputs[0])] = _name_variable(operator)
            elif kind == READ:
                variable = self._find_variable(handles, inputs)
                if variable not in values:
                    start = starts[variable]
                    values[variable] = first[variable] = self.writer.add_tensor(
                        f"{PREFIX}{variable}", start.dtype.name, start.shape
                    )
                    result = self.subgraph.tensors[int(operator.outputs[0])]
                    state_tensor = self.subgraph.tensors[values[variable]]
                    state_tensor.quantization = result.quantization
                replaced[int(operator.outputs[0])] = values[variable]
            elif kind == ASSIGN:
                values[self._find_variable(handles, inputs)] = inputs[1]
            elif kind == START:
                continue
            else:
                self._write_operator(operator, kind, inputs)
        for variable, number in first.items():
            self.states.append(
                _State(f"{PREFIX}{variable}", number, values[variable], starts[variable])
            )
        return replaced

    def _find_variable(self, handles: Mapping[int, str], inputs: Sequence[int]) -> str:
        """Return the variable that an operator reads or writes."""
        if inputs[0] not in handles:
            raise self._refuse(
                "reads or writes a variable without a VAR_HANDLE in the same subgraph",
                "it is unknown which variable that is",
            )
        return handles[inputs[0]]

    def _require_same_form(self, state: _State) -> None:
        """Raise UsageError if a state changes its shape or type from one run to the next."""
        tensors = [self.subgraph.tensors[number] for number in (state.first, state.last)]
        before, after = ([*read_shape(tensor), read_dtype(tensor)] for tensor in tensors)
        if before != after:
            raise self._refuse(
                f"changes the shape or the type of {state.name.removeprefix(PREFIX)}",
                f"it is {before} at the start of a run and {after} at its end, and a program has"
                " fixed shapes",
            )

    def _write_operator(self, operator: Any, kind: str, inputs: Sequence[int]) -> None:
        tensors = self.subgraph.tensors
        if any(number >= 0 and tensors[number].isVariable for number in inputs):
            writers: Mapping[str, Callable[[Any, Sequence[int]], None]] = {
                LSTM: self._write_lstm,
                SVDF: self._write_svdf,
            }
            if kind not in writers:
                raise self._refuse(
                    f"keeps values between its runs ({kind})",
                    f"of such operators, {LSTM} and {SVDF} can be written without them",
                )
            writers[kind](operator, inputs)
            return
        changed = copy(operator)
        changed.inputs = np.array(inputs, np.int32)
        self.writer.operators.append(changed)

    def _write_svdf(self, operator: Any, inputs: Sequence[int]) -> None:
        """Write an SVDF: the state has the last results of each filter, the oldest first."""
        source, filters, times, bias, state = inputs
        self._require_float(operator, inputs, SVDF)
        batch, width = self._shape(source)
        count, memory = self._shape(times)
        units = count // int(operator.builtinOptions.rank)
        del width
        label = name_tensor(self.subgraph, int(operator.outputs[0]))
        first = self._add_state(state, label)
        flat = (batch, count, memory)
        old = self._reshape(first, flat, f"{label}/state")
        feature = self._linear(source, filters, -1, (batch, count), f"{label}/features")
        column = self._reshape(feature, (batch, count, 1), f"{label}/column")
        newest_columns = self._slice(old, (0, 0, 1), (batch, count, memory - 1), f"{label}/rest")
        joined = self._call(
            "CONCATENATION",
            [newest_columns, column],
            flat,
            f"{label}/joined",
            "ConcatenationOptions",
            axis=2,
        )
        self._finish_state(state, self._reshape(joined, self._shape(state), f"{label}/next"))
        product = self._call("MUL", [joined, times], flat, f"{label}/product", "MulOptions")
        grouped = self._reshape(product, (batch, units, count // units * memory), f"{label}/group")
        axes = self.writer.add_constant(f"{label}/axes", np.array([2], np.int32))
        total = self._call("SUM", [grouped, axes], (batch, units), f"{label}/sum", "ReducerOptions")
        if bias >= 0:
            total = self._call("ADD", [total, bias], (batch, units), f"{label}/add", "AddOptions")
        activation = int(operator.builtinOptions.fusedActivationFunction)
        self._end(operator, self._activate(total, activation, (batch, units), f"{label}/act"))

    def _write_lstm(self, operator: Any, inputs: Sequence[int]) -> None:
        """Write an LSTM step by step."""
        inputs = [*inputs, *[-1] * (24 - len(inputs))]
        options = operator.builtinOptions
        self._require_float(operator, inputs, LSTM)
        is_plain = all(inputs[place] < 0 for place in (9, 10, 11, 16, 17, 20, 21, 22, 23))
        if not is_plain or options.cellClip or options.projClip or inputs[1] < 0 or inputs[5] < 0:
            raise self._refuse(
                f"keeps values between its runs in an {LSTM} with more than weights and biases",
                "only one without peepholes, projection, norms, clipping and a coupled gate is"
                " written out",
            )
        source = inputs[0]
        shape = self._shape(source)
        is_major = bool(options.timeMajor)
        steps, batch = (shape[0], shape[1]) if is_major else (shape[1], shape[0])
        if steps > MOST_STEPS:
            raise self._refuse(
                f"has an {LSTM} of {steps} steps", f"more than {MOST_STEPS} are not written out"
            )
        label = name_tensor(self.subgraph, int(operator.outputs[0]))
        units = self._shape(inputs[2])[0]
        activation = int(options.fusedActivationFunction)
        hidden = self._add_state(inputs[18], label)
        cell = self._add_state(inputs[19], label)
        row, results = (batch, units), []
        for step in range(steps):
            text = f"{label}/{step}"
            starts = (step, 0, 0) if is_major else (0, step, 0)
            sizes = (1, batch, shape[2]) if is_major else (batch, 1, shape[2])
            part = source if steps == 1 else self._slice(source, starts, sizes, f"{text}/x")
            part = self._reshape(part, (batch, shape[2]), f"{text}/row")
            gates = []
            for gate in range(4):  # input, forget, cell, output
                name = f"{text}/gate_{gate}"
                of_input = self._linear(part, inputs[1 + gate], inputs[12 + gate], row, f"{name}/x")
                of_hidden = self._linear(hidden, inputs[5 + gate], -1, row, f"{name}/h")
                total = self._call("ADD", [of_input, of_hidden], row, f"{name}/sum", "AddOptions")
                if gate == 2:
                    gates.append(self._activate(total, activation, row, name))
                else:
                    gates.append(self._call("LOGISTIC", [total], row, name))
            entering = self._call(
                "MUL", [gates[0], gates[2]], row, f"{text}/entering", "MulOptions"
            )
            staying = self._call("MUL", [gates[1], cell], row, f"{text}/staying", "MulOptions")
            cell = self._call("ADD", [staying, entering], row, f"{text}/cell", "AddOptions")
            shown = self._activate(cell, activation, row, f"{text}/shown")
            hidden = self._call("MUL", [gates[3], shown], row, f"{text}/hidden", "MulOptions")
            single = (1, *row) if is_major else (batch, 1, units)
            results.append(self._reshape(hidden, single, f"{text}/result"))
        self._finish_state(inputs[18], hidden)
        self._finish_state(inputs[19], cell)
        if len(results) > 1:
            sizes = (steps, *row) if is_major else (batch, steps, units)
            axis = 0 if is_major else 1
            joined = self._call(
                "CONCATENATION", results, sizes, f"{label}/all", "ConcatenationOptions", axis=axis
            )
        else:
            (joined,) = results
        self._end(operator, joined)

    def _require_float(self, operator: Any, inputs: Sequence[int], kind: str) -> None:
        """Raise UsageError if an operator computes with anything but float32."""
        numbers = [number for number in (*inputs, *list_numbers(operator.outputs)) if number >= 0]
        dtypes = {read_dtype(self.subgraph.tensors[number]) for number in numbers}
        if dtypes != {"float32"}:
            raise self._refuse(
                f"keeps values between its runs in a quantized {kind}",
                "only one of float32 is written out",
            )

    def _shape(self, number: int) -> tuple[int, ...]:
        return read_shape(self.subgraph.tensors[number])

    def _is_constant(self, number: int) -> bool:
        tensor = self.subgraph.tensors[number]
        data = self.model.buffers[tensor.buffer].data
        return data is not None and len(data) > 0

    def _add_state(self, number: int, label: str) -> int:
        """Let a tensor into which an operator writes begin with zeros, and return its number."""
        tensor = self.subgraph.tensors[number]
        text = name_tensor(self.subgraph, number)
        taken = {state.name for state in self.states}
        name = f"{PREFIX}{text}"
        name = f"{PREFIX}{label}/{text}" if name in taken else name
        start = np.zeros(read_shape(tensor), np.float32)
        first = self.writer.add_tensor(name, "float32", start.shape)
        self.states.append(_State(name, first, number, start))
        return first

    def _finish_state(self, number: int, last: int) -> None:
        """Note which tensor has the value of a state at the end of a run."""
        self.states = [
            state._replace(last=last) if state.last == number else state for state in self.states
        ]

    def _call(
        self,
        kind: str,
        inputs: Sequence[int],
        shape: Sequence[int],
        name: str,
        options: str = "",
        **fields: Any,
    ) -> int:
        target = self.writer.add_tensor(name, "float32", tuple(shape))
        return self.writer.add_operator(kind, inputs, target, options, fields)

    def _linear(self, source: int, weights: int, bias: int, shape: Sequence[int], name: str) -> int:
        inputs = [source, weights, bias]
        return self._call(
            "FULLY_CONNECTED", inputs, shape, name, "FullyConnectedOptions", keepNumDims=True
        )

    def _reshape(self, source: int, shape: Sequence[int], name: str) -> int:
        if self._shape(source) == tuple(shape):
            return source
        sizes = self.writer.add_constant(f"{name}/shape", np.array(shape, np.int32))
        return self._call("RESHAPE", [source, sizes], shape, name, "ReshapeOptions")

    def _slice(self, source: int, starts: Sequence[int], sizes: Sequence[int], name: str) -> int:
        inputs = [source]
        for text, numbers in (("starts", starts), ("sizes", sizes)):
            inputs.append(self.writer.add_constant(f"{name}/{text}", np.array(numbers, np.int32)))
        return self._call("SLICE", inputs, sizes, name, "SliceOptions")

    def _activate(self, source: int, activation: int, shape: Sequence[int], name: str) -> int:
        """Write an activation of schema.ActivationFunctionType, which may be none."""
        kind = name_numbers("ActivationFunctionType").get(activation, "")
        if kind == "NONE":
            return source
        if kind not in {"RELU", "RELU6", "RELU_N1_TO_1", "TANH"}:
            raise self._refuse(f"has the activation {kind or activation}", "it is unknown here")
        return self._call(kind, [source], shape, name)

    def _end(self, operator: Any, number: int) -> None:
        """Let a tensor have the name of an operator's result, which it replaces."""
        result = int(operator.outputs[0])
        shape = read_shape(self.subgraph.tensors[result])
        sizes = self.writer.add_constant(
            f"{name_tensor(self.subgraph, result)}/shape", np.array(shape, np.int32)
        )
        self.writer.add_operator("RESHAPE", [number, sizes], result, "ReshapeOptions")

    def _copy(self, number: int, name: str) -> int:
        """Return another tensor with the same values."""
        tensor = self.subgraph.tensors[number]
        shape = read_shape(tensor)
        sizes = self.writer.add_constant(f"{name}/shape", np.array(shape, np.int32))
        target = self.writer.add_tensor(name, read_dtype(tensor), shape)
        return self.writer.add_operator("RESHAPE", [number, sizes], target, "ReshapeOptions")

    def _name_ports(self) -> None:
        """Name the outputs of states."""
        for state in self.states:
            self.subgraph.tensors[state.last].name = f"{state.name}{NEXT}".encode()

    def _make_signature(
        self, key: str, input_names: Sequence[str], output_names: Sequence[str]
    ) -> Any:
        """Return the signature with its names, followed by the states."""
        signature = make_signature(key, 0, self.subgraph)
        for kind, names in (("inputs", input_names), ("outputs", output_names)):
            ports: list[Any] = []
            numbers = list_numbers(getattr(self.subgraph, kind))
            suffix = NEXT if kind == "outputs" else ""
            all_names = (*names, *(f"{state.name}{suffix}" for state in self.states))
            for number, name in zip(numbers, all_names, strict=True):
                add_port(ports, name, number)
            setattr(signature, kind, ports)
        return signature


def _name_variable(operator: Any) -> str:
    options = operator.builtinOptions  # None if the file has none, as for a name that is empty
    names = [getattr(options, field, None) or b"" for field in ("container", "sharedName")]
    texts = [name.decode("utf-8", "replace") for name in names]
    return "/".join(filter(None, texts)) or "variable"


def add_states(model: Any, starts: Mapping[str, Array]) -> None:
    """Note in the metadata of a model with what its states begin, by the names of the inputs."""
    content = b"".join(np.ascontiguousarray(array).tobytes() for array in starts.values())
    for name, noted in ((STATES, "\n".join(starts).encode()), (STARTS, content)):
        entry, buffer = schema.MetadataT(), schema.BufferT()
        buffer.data = np.frombuffer(noted, np.uint8)
        entry.name, entry.buffer = name, len(model.buffers)
        model.buffers.append(buffer)
        model.metadata = [*(model.metadata or ()), entry]
