"""What is wrong with an ONNX model before ONNX Runtime or QNN sees it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ci.onnx.files.graph import Graph, Model, Node, Port, Tensor
from provisioning.files import mib

# What onnxruntime 1.31 takes; a test asks the one that is installed.
NEWEST_IR, NEWEST_OPSET = 13, 26
LARGEST_BYTES = 2 << 30  # of a graph on HTP
CONTROL_FLOW = ("Loop", "Scan")
DOMAINS = ("", "com.microsoft", "com.ms.internal.nhwc")
# Bits of an element by TensorProto.DataType; strings (8) have none.
FLOAT64, STRING = 11, 8
NAMES = {FLOAT64: "float64", STRING: "string", 14: "complex64", 15: "complex128"}
BITS = {
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8),
    **dict.fromkeys((4, 5, 10, 16), 16),
    **dict.fromkeys((1, 6, 12), 32),
    **dict.fromkeys((7, 11, 13, 14), 64),
    **dict.fromkeys((21, 22, 23), 4),
    **dict.fromkeys((25, 26), 2),
    15: 128,
}
AGAIN = "export the model again; `python -m onnx.checker` of the onnx package says more"
STATIC = "export for fixed shapes, or give it one: "
FIXER = "python -m onnxruntime.tools.make_dynamic_shape_fixed"


class Fault(NamedTuple):
    """What is wrong and how to fix it."""

    what: str
    fix: str


def find_faults(model: Model) -> Iterator[Fault]:
    """Faults in the order in which they are worth fixing."""
    yield from _find_version_faults(model)
    yield from _find_port_faults(model)
    yield from _find_graph_faults(model, model.graph, frozenset())
    for tensor in model.graph.all_tensors():
        if what := find_tensor_fault(tensor, model.path.parent):
            yield Fault(what, AGAIN)


def _find_version_faults(model: Model) -> Iterator[Fault]:
    if not 1 <= model.ir_version <= NEWEST_IR:
        yield Fault(
            f"its IR version is {model.ir_version}, ONNX Runtime takes 1 to {NEWEST_IR}",
            f"save it with model.ir_version = {NEWEST_IR}, or with an older onnx package",
        )
    version = model.opsets.get("")
    if version is None and any(not node.domain for node in model.graph.nodes):
        yield Fault("it names no opset of ONNX's operators", AGAIN)
    elif version is not None and not 1 <= version <= NEWEST_OPSET:
        yield Fault(
            f"its opset is {version}, ONNX Runtime takes 1 to {NEWEST_OPSET}",
            "export it with opset_version=21, or convert it with onnx.version_converter",
        )


def _find_port_faults(model: Model) -> Iterator[Fault]:
    constants = {tensor.name for tensor in model.graph.tensors}
    inputs = [port for port in model.graph.inputs if port.name not in constants]
    if not inputs:
        yield Fault("it has no inputs", "make what is to change an input: QNN has no such graph")
    if not model.graph.outputs:
        yield Fault("it has no outputs", AGAIN)
    for port in inputs:
        yield from _find_input_faults(port, model.path.name)


def _find_input_faults(port: Port, file: str) -> Iterator[Fault]:
    if not port.kind:
        yield Fault(f"input {port.name!r} is not a tensor", "give tensors: QNN has nothing else")
    elif port.kind in NAMES:
        yield Fault(
            f"input {port.name!r} is {NAMES[port.kind]}, which QNN does not have",
            "export with float32 or integer inputs",
        )
    if port.dims is None:
        fix = f"{FIXER} --input_name {port.name} --input_shape 1,3,224,224 {file} fixed.onnx"
        yield Fault(f"input {port.name!r} has no shape", STATIC + fix)
        return
    for place, dim in enumerate(port.dims):
        if not isinstance(dim, int):
            shown = f"{dim!r}" if dim else "not given"
            how = (
                f"--dim_param {dim} --dim_value 1"
                if dim
                else f"--input_name {port.name} --input_shape "
                + ",".join(str(one) if isinstance(one, int) else "1" for one in port.dims)
            )
            yield Fault(
                f"dimension {place} of input {port.name!r} is {shown}: QNN has fixed shapes only",
                f"{STATIC}{FIXER} {how} {file} fixed.onnx",
            )
            return
    yield from _find_size_faults(port)


def _find_size_faults(port: Port) -> Iterator[Fault]:
    dims = [dim for dim in port.dims or () if isinstance(dim, int)]
    size = math.prod(dims) * BITS.get(port.kind, 8) // 8
    if min(dims, default=1) < 1:
        yield Fault(f"input {port.name!r} has a dimension of {min(dims)}", AGAIN)
    elif size > LARGEST_BYTES:
        yield Fault(
            f"input {port.name!r} of {dims} has {mib(size)}, a graph on HTP at most"
            f" {mib(LARGEST_BYTES)}",
            "export for a smaller input",
        )


def _find_graph_faults(model: Model, graph: Graph, outer: frozenset[str]) -> Iterator[Fault]:
    if not graph.nodes and not outer:
        yield Fault("it has no nodes", AGAIN)
    for node in graph.nodes:
        yield from _find_node_faults(model, node)
    ours = [tensor.name for tensor in graph.tensors]
    ports = [port.name for port in graph.inputs]
    made = [name for node in graph.nodes for name in node.outputs if name]
    for name in _repeated(ours) + _repeated(ports) + _repeated(made):
        yield Fault(f"{name!r} is there twice: a value has one origin", AGAIN)
    for name in sorted({*made} & {*ours, *ports})[:3]:
        yield Fault(f"a node makes {name!r}, which is an input or a weight already", AGAIN)
    known = outer | {*ours, *ports}
    yield from _find_order_faults(graph, known)
    inside = known | {*made}
    for port in graph.outputs:
        if port.name not in inside:
            yield Fault(f"output {port.name!r} is made by no node", AGAIN)
    for node in graph.nodes:
        for attribute in node.attributes.values():
            for body in attribute.graphs:
                yield from _find_graph_faults(model, body, frozenset(inside))


def _find_node_faults(model: Model, node: Node) -> Iterator[Fault]:
    if node.op_type in CONTROL_FLOW and not node.domain:
        yield Fault(
            f"it has {node.label}: QNN has no loops",
            "export with a fixed number of steps, written out:"
            " torch.onnx.export(..., dynamo=True) does so for a loop over a range",
        )
    is_own = (node.domain, node.op_type) in model.functions
    if node.domain not in model.opsets:
        domain = node.domain or "ai.onnx"
        yield Fault(f"{node.label} is of domain {domain!r}, which the model does not import", AGAIN)
    elif node.domain not in DOMAINS and not is_own:
        yield Fault(
            f"{node.label} is of domain {node.domain!r}, which ONNX Runtime does not have",
            "write it with ONNX's own operators, or put it into the model as a function",
        )


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1][:3]


def _find_order_faults(graph: Graph, known: frozenset[str]) -> Iterator[Fault]:
    """Inputs that nothing makes, and circles; nodes may be in any order."""
    makers = {name: place for place, node in enumerate(graph.nodes) for name in node.outputs}
    waiting: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for place, node in enumerate(graph.nodes):
        wanted = {name for name in node.inputs if name and name not in known}
        lacking = sorted(name for name in wanted if name not in makers)
        if lacking:
            yield Fault(f"{node.label} reads {lacking[0]!r}, which nothing makes", AGAIN)
        before = {makers[name] for name in wanted if name in makers}
        waiting[place] = len(before)
        for maker in before:
            readers.setdefault(maker, []).append(place)
    ready = [place for place, count in waiting.items() if not count]
    while ready:
        place = ready.pop()
        del waiting[place]
        for reader in readers.get(place, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    if waiting:
        label = graph.nodes[min(waiting)].label
        yield Fault(f"its nodes read each other in a circle: {label} is one of them", AGAIN)


def find_tensor_fault(tensor: Tensor, directory: Path) -> str:
    """What is wrong with a weight, its file included; empty when nothing is."""
    label = f"weight {tensor.name!r}"
    bits = BITS.get(tensor.kind)
    if bits is None and tensor.kind != STRING:
        return f"{label} has the element type {tensor.kind}, which QNN does not have"
    if min(tensor.dims, default=1) < 0:
        return f"{label} has a dimension of {min(tensor.dims)}"
    size = (math.prod(tensor.dims) * (bits or 0) + 7) // 8
    if tensor.external:
        return _find_external_fault(tensor, size, directory)
    if tensor.raw is not None and tensor.kind != STRING and tensor.raw != size:
        return f"{label} of {list(tensor.dims)} needs {size} bytes and has {tensor.raw}"
    if tensor.raw is None and not tensor.typed and size:
        return f"{label} of {list(tensor.dims)} ({mib(size)}) has no data"
    return ""


def _find_external_fault(tensor: Tensor, size: int, directory: Path) -> str:
    label = f"weight {tensor.name!r}"
    location = tensor.external.get("location", "")
    if fault := find_location_fault(location, directory):
        return f"the data of {label}, {location!r}, {fault}"
    try:
        offset = int(tensor.external.get("offset") or 0)
        length = int(tensor.external.get("length") or size)
    except ValueError:
        return f"{label} has an offset or a length that is not a number"
    held = (directory / location).stat().st_size
    if offset < 0 or length < 0 or offset + length > held:
        return f"{label} is bytes {offset} to {offset + length} of {location}, which has {held}"
    return "" if length == size else f"{label} needs {size} bytes and has {length} in {location}"


def find_location_fault(location: str, directory: Path) -> str:
    """Why a file that a model names is not to be read; empty when it may be.

    ONNX Runtime refuses a symbolic link that leads out; QNN's provider follows it.
    """
    parts = PurePosixPath(location.replace("\\", "/"))
    if not location or "\0" in location:
        return "has no name"
    if parts.is_absolute() or ":" in parts.parts[0]:
        return "is an absolute path: it has to be beside the model"
    if ".." in parts.parts:
        return "leads out of the model's directory with '..'"
    path = directory / location
    if not path.resolve().is_relative_to(directory.resolve()):
        return "is a symbolic link that leads out of the model's directory"
    if not path.is_file():
        return "is a directory" if path.is_dir() else "is not there"
    return ""
