"""Writes calls into a LiteRT model: the Lane of LiteRT for ci.graphs.edit.

Rewrites know images as torch has them, with the channels first, and each convolution with its
padding. So the edited graph has a permutation before and after each operator on images, and a PAD
of zeros in front of a convolution is its padding. What no rewrite changes is written as it was."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import numpy as np

from ci.graphs.edit import Form, GraphEditor, Insert
from ci.graphs.graph import LITERT, Array, Graph, Node
from ci.graphs.litert_file import (
    BEFORE_ACTIVATION,
    Entry,
    has_data,
    keep_buffers,
    list_numbers,
    name_numbers,
    name_operator,
    name_tensor,
    pack_model,
    read_dtype,
    read_model,
    read_shape,
    schema,
    split_activations,
)
from ci.graphs.litert_reader import IMAGE_AXES, SAME, read_litert_graph, read_litert_spellings
from ci.graphs.litert_session import open_interpreter
from ci.graphs.litert_writer import (
    FIRST,
    LAST,
    Call,
    LitertWriter,
    Operand,
    can_write,
    fill_shapes,
)
from provisioning.errors import FailedError

RANK = 4  # of images
CONVOLVES = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D"})
POOLS = frozenset({"AVERAGE_POOL_2D", "MAX_POOL_2D"})
TRANSPOSED = "TRANSPOSE_CONV"
BIASED_READS = 4  # of a transposed convolution with a bias: it reads its result's shape, too
PERMUTE = "permute"
VIEWS = frozenset({"EXPAND_DIMS", "RESHAPE", "SQUEEZE"})
REDUCTIONS = frozenset({"amax", "amin", "mean", "prod", "sum"})
KEEPS_STATE = frozenset({"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"})


class LitertLane:
    """The Lane of LiteRT. ``data`` is the file of a float model, and ``entry`` the subgraph that is
    edited. ``written`` is the edited file."""

    def __init__(self, data: bytes, entry: Entry) -> None:
        self.data, self.entry = data, entry
        self.model = read_model(data)
        split_activations(self.model)
        self.subgraph = self.model.subgraphs[entry.subgraph]
        parsed = read_litert_graph(self.model, entry, data)
        self.numbers = {name: number for number, name in parsed.names.items()}
        self.operators = self._number_operators(parsed.names)
        presented = _Presented(self, parsed.graph)
        self.graph = presented.graph
        self.spans = presented.spans  # the operators of the file that each node stands for
        self.labels = presented.labels
        self.names = {*self.numbers, *self.graph.shapes}
        self.written = data

    def _number_operators(self, names: Mapping[int, str]) -> dict[str, int]:
        """Return the places of the operators by the name of their first result."""
        places = {}
        for place, operator in enumerate(self.subgraph.operators or ()):
            outputs = list_numbers(operator.outputs)
            if name_operator(self.model, operator) in KEEPS_STATE or not outputs:
                raise FailedError(
                    "a model that keeps values between its runs is not rewritten",
                    why="a rewrite could move a call before or behind the one that changes them",
                    fix="pass the values as inputs, and return them as outputs",
                )
            places[names[outputs[0]]] = place
        return places

    def name_result(self, operator: str, before: str) -> str:
        """Return a new name: that of the call before which it is inserted, and the operator."""
        name = f"{self.labels.get(before, before)}/{operator}"
        while name in self.names:
            name = f"{name}_b"
        self.names.add(name)
        return name

    def infer(self, insert: Insert, edit: GraphEditor) -> Form | None:
        """Return what the result of a call looks like. Raises ValueError if LiteRT has no operator
        for the call, or does not take its operands."""
        if insert.repeats and not can_write(insert.node.operator):
            original = self.repeat(insert)
        else:
            original = None
        model = _make_model()
        writer = LitertWriter(model, model.subgraphs[0])
        inputs = []
        call = self.make_call(insert, edit)
        for read in call.reads:
            if read is None or read.array is not None or read.name in writer.tensors:
                continue
            if read.shape is None:
                return None
            writer.tensors[read.name] = writer.add_tensor(read.name, read.dtype, read.shape)
            inputs.append(writer.tensors[read.name])
        if original is None:
            writer.write(call)
        else:
            self.write_repeated(writer, call, original)
        (read_back,) = [Operand(call.result, None, "float32", None)]
        number = writer.find(read_back)
        subgraph = model.subgraphs[0]
        subgraph.operators = writer.operators
        subgraph.inputs = np.array(inputs, np.int32)
        subgraph.outputs = np.array([number], np.int32)
        (detail,) = _allocate(model).get_output_details()
        return Form(tuple(map(int, detail["shape"])), np.dtype(detail["dtype"]).name)

    def make_call(self, insert: Insert, edit: GraphEditor) -> Call:
        node = insert.node
        reads = [describe(read, edit) if read else None for read in node.reads]
        return Call(node.operator, reads, node.results[0], insert.arguments, node.numbers)

    def repeat(self, insert: Insert) -> Any:
        """Return a copy of the operator whose arguments a call repeats."""
        places = self.spans.get(insert.repeats, ())
        if len(places) != 1 or insert.arguments:
            raise ValueError(f"no .tflite file is written with {insert.node.operator}")
        return copy(self.subgraph.operators[places[0]])

    def write_repeated(self, writer: LitertWriter, call: Call, original: Any) -> None:
        """Write an operator of the file again, with other operands."""
        kind = name_operator(self.model, original)
        order = _list_order(kind, len(call.reads))
        outputs = list_numbers(original.outputs)
        if len(outputs) != 1:
            raise ValueError(f"{kind} has several results")
        inputs = [*list_numbers(original.inputs)]
        for place, read in zip(order, call.reads, strict=True):
            inputs[place] = -1 if read is None else writer.find(read)
        target = writer.add_tensor(call.result, read_dtype(self.subgraph.tensors[outputs[0]]))
        writer.tensors[call.result] = target
        code = self.model.operatorCodes[original.opcodeIndex]
        if writer.model is not self.model:
            writer.model.operatorCodes.append(code)
            original.opcodeIndex = len(writer.model.operatorCodes) - 1
        original.inputs = np.array(inputs, np.int32)
        original.outputs = np.array([target], np.int32)
        writer.operators.append(original)

    def label(self, node: Node) -> str:
        """Return the name of a call in the file: that of its result."""
        return self.labels.get(node.name, node.name)

    def quote(self, _node: Node) -> str:
        """Return nothing: the source of a file is unknown."""
        return ""

    def write(self, edit: GraphEditor) -> None:
        """Write the edited graph to ``written``."""
        _Writing(self, edit).write()


def describe(name: str, edit: GraphEditor) -> Operand:
    """Return what is known about a value that a call reads."""
    return Operand(name, edit.shapes.get(name), edit.dtypes.get(name, "float32"), edit.value(name))


def _list_order(kind: str, count: int) -> Sequence[int]:
    """Return the places of LiteRT's inputs in the order in which a node reads them."""
    spelling = read_litert_spellings().get(kind)
    order = [place for place in spelling.order if place < count] if spelling else []
    return order or range(count)


def _make_model() -> Any:
    """Return a model with an empty subgraph."""
    model = schema.ModelT()
    model.version, model.operatorCodes, model.buffers = 3, [], [schema.BufferT()]
    subgraph = schema.SubGraphT()
    subgraph.tensors, subgraph.operators = [], []
    model.subgraphs = [subgraph]
    return model


def _allocate(model: Any) -> Any:
    """Return an interpreter of a model. Raises ValueError with LiteRT's reason if it cannot run
    it."""
    try:
        return open_interpreter(pack_model(model))
    except RuntimeError as error:
        raise ValueError(" ".join(str(error).split())) from error


class _Presented:
    """The graph of a file as rewrites know it: ``graph``. ``spans`` are the places of the operators
    that each node stands for, and ``labels`` the names of nodes that the file does not have."""

    def __init__(self, lane: LitertLane, graph: Graph) -> None:
        self.lane, self.original = lane, graph
        self.shapes, self.dtypes = dict(graph.shapes), dict(graph.dtypes)
        self.makers = graph.list_makers()
        self.reads: dict[str, int] = {}
        for node in graph.nodes:
            for name in node.reads:
                self.reads[name] = self.reads.get(name, 0) + 1
        for name in graph.outputs:
            self.reads[name] = self.reads.get(name, 0) + 1
        self.spans: dict[str, tuple[int, ...]] = {}
        self.labels: dict[str, str] = {}
        nodes: list[Node] = []
        for node in graph.nodes:
            nodes += self._present(node)
        padding = {(place,) for places in self.spans.values() for place in places[:-1]}
        computing_nodes = [node for node in nodes if self.spans.get(node.name) not in padding]
        self.graph = Graph(
            computing_nodes,
            graph.outputs,
            self.shapes,
            graph.constants,
            self.dtypes,
            written=graph.written,
            front_end=LITERT,
            bodies=graph.bodies,
        )

    def _present(self, node: Node) -> Iterator[Node]:
        place = self.lane.operators.get(node.name)
        if place is None:
            yield node
            return
        self.spans[node.name] = (place,)
        operator = self.lane.subgraph.operators[place]
        kind = name_operator(self.lane.model, operator)
        is_image = kind in CONVOLVES or kind in POOLS or kind == TRANSPOSED
        ranks = [len(self.shapes.get(name, ())) for name in (node.reads[0], node.results[0])]
        if is_image and ranks == [RANK, RANK] and len(node.results) == 1:
            yield from self._present_image(node, place, operator, kind)
        else:
            yield self._present_plain(node, operator, kind)

    def _present_plain(self, node: Node, operator: Any, kind: str) -> Node:
        """Return a node with the arguments that rewrites read."""
        numbers, compute = dict(node.numbers), node.compute
        if kind == "TRANSPOSE" and (order := self._read_constant(node, 1)):
            numbers["dims"] = tuple(map(float, order))
            compute = partial(_transpose, order)
        if kind in VIEWS:
            compute = partial(_reshape, self.shapes[node.results[0]])
        if node.operator in REDUCTIONS:
            numbers["keepdim"] = (float(bool(operator.builtinOptions.keepDims)),)
        if kind == "CUMSUM" and (axis := self._read_constant(node, 1)):
            options = operator.builtinOptions
            numbers["dim"] = (float(axis[0]),)
            numbers["exclusive"] = (float(bool(options.exclusive)),)
            numbers["reverse"] = (float(bool(options.reverse)),)
        return node._replace(numbers=numbers, compute=compute)

    def _read_constant(self, node: Node, place: int) -> list[int]:
        """Return the integers of a constant operand, or []."""
        name = node.reads[place] if place < len(node.reads) else ""
        if name not in self.original.constants:
            return []
        return np.ravel(self.original.constants[name]()).astype(int).tolist()

    def _present_image(self, node: Node, place: int, operator: Any, kind: str) -> Iterator[Node]:
        image, *weights_and_bias = node.reads
        pads = ((0, 0), (0, 0))
        takes_pads = kind in CONVOLVES and operator.builtinOptions.padding != SAME
        if takes_pads and (padded := self._find_pads(image)):
            image, pads = padded
            pad_place = self.lane.operators[self.makers[node.reads[0]].name]
            self.spans[node.name] = (pad_place, place)
        (result,) = node.results
        first = self._permute(node, image, FIRST, f"{result}/image")
        yield first
        reads = [first.results[0]]
        if weights_and_bias:
            order = (0, 3, 1, 2) if kind == "CONV_2D" else (3, 0, 1, 2)
            weights = self._permute(node, weights_and_bias[0], order, f"{result}/weights")
            yield weights
            has_bias = kind != TRANSPOSED or len(node.reads) == BIASED_READS
            reads += [weights.results[0], *(weights_and_bias[1:2] if has_bias else ())]
        inner = f"{result}/first"
        self._note(inner, result, FIRST)
        numbers = self._list_numbers(operator, kind, reads, inner, pads)
        yield node._replace(
            reads=tuple(reads), results=(inner,), numbers=numbers, compute=None, operands=None
        )
        yield self._permute(node, inner, LAST, result)

    def _find_pads(self, value: str) -> tuple[str, tuple[tuple[int, int], tuple[int, int]]] | None:
        """Return what a PAD of zeros around an image pads, and by how much, if nothing else reads
        its result."""
        pad = self.makers.get(value)
        if pad is None or pad.operator != "pad" or self.reads.get(value) != 1:
            return None
        counts = [*map(int, pad.numbers.get("pad", ()))]  # of the last axis first
        is_plain = pad.numbers.get("value") == (0.0,) and pad.name in self.lane.operators
        if len(counts) != 2 * RANK or any((*counts[:2], *counts[6:])) or not is_plain:
            return None
        return pad.reads[0], ((counts[4], counts[5]), (counts[2], counts[3]))

    def _permute(self, node: Node, source: str, order: Sequence[int], result: str) -> Node:
        if result not in self.shapes:
            self._note(result, source, order)
        name = f"{result}/permuted" if result in node.results else result
        self.labels[name] = node.name
        return Node(
            PERMUTE,
            (source,),
            (result,),
            None,
            node.origin,
            partial(_transpose, order),
            name=name,
            numbers={"dims": tuple(map(float, order))},
            place=node.place,
        )

    def _note(self, name: str, source: str, order: Sequence[int]) -> None:
        shape = self.shapes[source]
        self.shapes[name] = tuple(shape[axis] for axis in order)
        self.dtypes[name] = self.dtypes.get(source, "float32")

    def _list_numbers(
        self,
        operator: Any,
        kind: str,
        reads: Sequence[str],
        result: str,
        pads: tuple[tuple[int, int], tuple[int, int]],
    ) -> dict[str, tuple[float, ...]]:
        """Return the arguments of an operator on images under torch's names."""
        options = operator.builtinOptions
        sizes, lengths = self.shapes[reads[0]][2:], self.shapes[result][2:]
        stride = (options.strideH, options.strideW)
        dilation = (
            getattr(options, "dilationHFactor", 1) or 1,
            getattr(options, "dilationWFactor", 1) or 1,
        )
        numbers: dict[str, Sequence[float]] = {"stride": stride, "dilation": dilation}
        kernel: Sequence[int]
        if kind in POOLS:
            kernel = (options.filterHeight, options.filterWidth)
            numbers |= {"kernel_size": kernel, "count_include_pad": (0,), "ceil_mode": (0,)}
        else:
            shape = self.shapes[reads[1]]
            kernel = shape[2:]
            channels = self.shapes[reads[0]][1]
            is_transposed = kind == TRANSPOSED
            numbers["groups"] = (1 if is_transposed else channels // shape[1],)
        before, after, extra = [], [], []
        for axis in range(len(IMAGE_AXES)):
            size, length, step = sizes[axis], lengths[axis], stride[axis]
            reach = (kernel[axis] - 1) * dilation[axis] + 1
            begin, end = pads[axis]
            if kind == TRANSPOSED:
                total = max((size - 1) * step + reach - length, 0)
                begin = total // 2 if options.padding == SAME else 0
                beyond = length + begin - ((size - 1) * step + reach)
                end, unused_length = max(-beyond, 0), max(beyond, 0)
                extra.append(unused_length)
            elif options.padding == SAME:
                total = max((math.ceil(size / step) - 1) * step + reach - size, 0)
                begin, end = total // 2, total - total // 2
            before.append(begin)
            after.append(end)
        numbers["padding"] = before
        if before != after:
            numbers |= {"padding_before": before, "padding_after": after}
        if extra:
            numbers["output_padding"] = extra
        return {name: tuple(map(float, values)) for name, values in numbers.items()}


def _transpose(order: Sequence[int], operands: Sequence[Array | None]) -> list[Array]:
    """Return the first operand with its axes in another order: of any type, which LiteRT's operator
    does not take."""
    return [array.transpose(order) for array in operands[:1] if array is not None]


def _reshape(shape: Sequence[int], operands: Sequence[Array | None]) -> list[Array]:
    return [array.reshape(shape) for array in operands[:1] if array is not None]


class _Writing:
    """Writes an edited graph to the model of a lane."""

    def __init__(self, lane: LitertLane, edit: GraphEditor) -> None:
        self.lane, self.edit = lane, edit
        self.subgraph = lane.subgraph
        self.count = len(self.subgraph.tensors)  # of the file's own tensors
        self.writer = LitertWriter(lane.model, self.subgraph)
        self.original = {node.name: node for node in lane.graph.nodes}

    def write(self) -> None:
        before: dict[str, list[Insert]] = {}
        for insert in self.edit.inserts.values():
            before.setdefault(insert.before, []).append(insert)
        for node in self.lane.graph.nodes:
            for insert in before.get(node.name, ()):
                self._write_insert(insert)
            if node.name in self.edit.nodes:
                self._write_kept(self.edit.nodes[node.name])
        self._set_outputs()
        self.subgraph.operators = self.writer.operators
        for subgraph in self.lane.model.subgraphs:
            join_activations(self.lane.model, subgraph)
        interpreter = _allocate(self._finish())
        details = interpreter.get_tensor_details(subgraph_index=self.lane.entry.subgraph)
        fill_shapes(self.subgraph, self.writer.added, details)
        self.lane.written = pack_model(drop_unread(self.lane.model, self.subgraph))

    def _finish(self) -> Any:
        """Return the model with all constants in its flatbuffer."""
        keep_buffers(self.lane.model, self.lane.data)
        return self.lane.model

    def _write_insert(self, insert: Insert) -> None:
        lane, node = self.lane, insert.node
        call = lane.make_call(insert, self.edit)
        for read in call.reads:
            if read is not None:
                self._know(read.name)
        if node.operator == PERMUTE and self._pass_image(node):
            return
        if insert.repeats and not can_write(node.operator):
            lane.write_repeated(self.writer, call, lane.repeat(insert))
        else:
            self.writer.write(call)

    def _know(self, name: str) -> None:
        """Note the tensor of the file that holds a value."""
        if name not in self.writer.tensors and name not in self.writer.images:
            number = self.lane.numbers.get(name)
            if number is not None:
                self.writer.tensors[name] = number

    def _write_kept(self, node: Node) -> None:
        """Write a node of the file, some of whose operands may be others."""
        writer, lane = self.writer, self.lane
        for name in node.reads:
            self._know(name)
        if node.name in lane.labels and self._pass_image(node):
            return
        places = lane.spans.get(node.name)
        if places is None:  # what the file has no operator for, such as restored weights
            return
        operators = [copy(lane.subgraph.operators[place]) for place in places]
        first, last = operators[0], operators[-1]
        original = self.original[node.name]
        if original.results != node.results or original.operator != node.operator:
            raise ValueError(f"{node.name} is another call")
        if node.results[0].removesuffix("/first") == node.name and node.reads[0].endswith("/image"):
            self._write_image(node, original, operators)
            return
        inputs = self._list_inputs(node, original, first)
        first.inputs = np.array(inputs, np.int32)
        writer.operators.append(last)
        for name, number in zip(node.results, list_numbers(last.outputs), strict=True):
            writer.tensors[name] = number

    def _list_inputs(self, node: Node, original: Node, operator: Any) -> list[int]:
        """Return the tensors that an operator reads after the edit."""
        writer, inputs = self.writer, [*list_numbers(operator.inputs)]
        order = _list_order(name_operator(self.lane.model, operator), len(node.reads))
        for place, read, old in zip(order, node.reads, original.reads, strict=True):
            if read != old or read in writer.images:
                inputs[place] = writer.find(describe(read, self.edit)) if read else -1
            elif read in writer.tensors:
                inputs[place] = writer.tensors[read]
        return inputs

    def _write_image(self, node: Node, original: Node, operators: Sequence[Any]) -> None:
        """Write a layer or a pool on images as it was."""
        writer, first, last = self.writer, operators[0], operators[-1]
        is_transposed = name_operator(self.lane.model, last) == TRANSPOSED
        place = 2 if is_transposed else 0
        inputs = [*list_numbers(first.inputs)]
        inputs[place] = writer.find_image(describe(node.reads[0], self.edit))
        first.inputs = np.array(inputs, np.int32)
        layer_inputs = [*list_numbers(last.inputs)]
        spelled = _list_order(name_operator(self.lane.model, last), len(node.reads))
        for position, (read, old) in enumerate(zip(node.reads, original.reads, strict=True)):
            if position == 1 and read != old:
                raise ValueError(f"the weights of {node.name} are others")
            if position == 2 and read != old:
                layer_inputs[spelled[position]] = writer.find(describe(read, self.edit))
        if first is not last:
            layer_inputs[place] = list_numbers(first.outputs)[0]
        else:
            layer_inputs[place] = inputs[place]
        last.inputs = np.array(layer_inputs, np.int32)
        writer.operators += operators
        writer.images[node.results[0]] = list_numbers(last.outputs)[0]

    def _pass_image(self, node: Node) -> bool:
        """Let a permutation that only puts the channels of an image first or last be the image
        itself, in that order. Return False for another permutation."""
        order = tuple(map(int, node.numbers.get("dims", ())))
        (source,), (result,) = node.reads[:1], node.results
        writer = self.writer
        if order == FIRST:
            if self.edit.value(source) is None:
                writer.images[result] = writer.find(describe(source, self.edit))
                return True
            return node.name in self.lane.labels  # weights
        if order == LAST and source in writer.images:
            writer.tensors[result] = writer.images[source]
            self._rename(result, writer.tensors[result])
            return True
        if order == LAST and node.name in self.lane.labels:
            writer.tensors[result] = writer.find_image(describe(source, self.edit))
            self._rename(result, writer.tensors[result])
            return True
        # Weights of a depthwise convolution
        return node.name in self.lane.labels

    def _rename(self, value: str, number: int) -> None:
        """Give a new tensor the name of the one that it replaces."""
        old = self.lane.numbers.get(value)
        if number >= self.count and old is not None and old != number:
            self.subgraph.tensors[number].name = self.subgraph.tensors[old].name

    def _set_outputs(self) -> None:
        """Return the results of the edited graph, under the names of the file."""
        for old, new in self.edit.redirected.items():
            if new in self.edit.inserts and new in self.writer.tensors:
                self._rename(old, self.writer.tensors[new])
        numbers = [*list_numbers(self.subgraph.outputs)]
        replaced: dict[int, int] = {}
        taken = {*list_numbers(self.subgraph.inputs)}
        for place, name in zip(self.lane.entry.outputs, self.edit.outputs, strict=True):
            self._know(name)
            number = self.writer.find(describe(name, self.edit))
            if number != place:
                is_free = number >= self.count and number not in taken
                if not is_free or has_data(self.lane.model, self.subgraph.tensors[number]):
                    number = self._copy(number, place)
                self.subgraph.tensors[number].name = self.subgraph.tensors[place].name
            taken.add(number)
            replaced[place] = number
        self.subgraph.outputs = np.array([replaced.get(n, n) for n in numbers], np.int32)
        for signature in self.lane.model.signatureDefs or ():
            if int(signature.subgraphIndex) == self.lane.entry.subgraph:
                for port in signature.outputs or ():
                    port.tensorIndex = replaced.get(int(port.tensorIndex), int(port.tensorIndex))

    def _copy(self, source: int, output: int) -> int:
        """Return a tensor with the value of another one, in the shape of an output."""
        shape = read_shape(self.subgraph.tensors[output])
        name = name_tensor(self.subgraph, output)
        dtype = read_dtype(self.subgraph.tensors[output])
        sizes = self.writer.add_constant(f"{name}/shape", np.array(shape, np.int32))
        target = self.writer.add_tensor(name, dtype, shape)
        return self.writer.add_operator("RESHAPE", [source, sizes], target, "ReshapeOptions")


def join_activations(model: Any, subgraph: Any) -> None:
    """Let operators contain their activations again, which ci.graphs.litert_file.split_activations
    made operators."""
    reads: dict[int, int] = {}
    for operator in subgraph.operators:
        for number in list_numbers(operator.inputs):
            reads[number] = reads.get(number, 0) + 1
    for number in list_numbers(subgraph.outputs):
        reads[number] = reads.get(number, 0) + 1
    activations = {name: n for n, name in name_numbers("ActivationFunctionType").items()}
    joined: list[Any] = []
    makers: dict[int, Any] = {}
    for operator in subgraph.operators:
        kind, inputs = name_operator(model, operator), list_numbers(operator.inputs)
        source = makers.get(inputs[0]) if inputs and reads.get(inputs[0]) == 1 else None
        name = subgraph.tensors[inputs[0]].name or b"" if inputs else b""
        if source is not None and kind in activations and name.endswith(BEFORE_ACTIVATION):
            source.builtinOptions = copy(source.builtinOptions)
            source.builtinOptions.fusedActivationFunction = activations[kind]
            source.outputs = operator.outputs
            continue
        joined.append(operator)
        for number in list_numbers(operator.outputs):
            makers[number] = operator
    subgraph.operators = joined


def drop_unread(model: Any, subgraph: Any) -> Any:
    """Remove the tensors of a subgraph that nothing reads, and their constants."""
    used = {*list_numbers(subgraph.inputs), *list_numbers(subgraph.outputs)}
    for operator in subgraph.operators:
        used.update(list_numbers(operator.inputs), list_numbers(operator.outputs))
        operator.intermediates = None
    used_tensors = sorted(number for number in used if number >= 0)
    places = {number: place for place, number in enumerate(used_tensors)}
    places[-1] = -1
    subgraph.tensors = [subgraph.tensors[number] for number in used_tensors]
    for operator in subgraph.operators:
        for ports in ("inputs", "outputs"):
            numbers = [places[number] for number in list_numbers(getattr(operator, ports))]
            setattr(operator, ports, np.array(numbers, np.int32))
    for ports in ("inputs", "outputs"):
        numbers = [places[number] for number in list_numbers(getattr(subgraph, ports))]
        setattr(subgraph, ports, np.array(numbers, np.int32))
    number_of_subgraph = next(n for n, each in enumerate(model.subgraphs) if each is subgraph)
    for signature in model.signatureDefs or ():
        if int(signature.subgraphIndex) == number_of_subgraph:
            for port in (*(signature.inputs or ()), *(signature.outputs or ())):
                port.tensorIndex = places[int(port.tensorIndex)]
    keep_buffers(model)
    return model
