"""Reads a user's ONNX model with the onnx package, and checks it before ONNX Runtime and QNN do.

Only faults that those two do not explain are checked here. onnx.checker is not used, because it
rejects models that ONNX Runtime accepts (nodes in any order, outputs without a shape). Real faults
that it detects are also reported by ONNX Runtime when the model is compiled.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple

import onnx
from google.protobuf.message import DecodeError

from ci.graphs.onnx_file import list_graphs
from ci.report.text import show_row
from provisioning.documents import POINTER, open_regular, read_text, read_user_file
from provisioning.errors import UsageError
from provisioning.files import mib
from provisioning.quoting import shell_word

# The newest versions that onnxruntime 1.32 accepts. A test compares them with the installed one.
NEWEST_IR, NEWEST_OPSET = 14, 28
LIMIT_BYTES = 2 << 30  # protobuf's limit for a message, and HTP's for a graph
SMALLER = "split the model, or use fewer bits: HTP's limit for a graph is also 2 GiB"
# Parsing a message needs memory of up to a hundred times its size. A model with weights needs only
# about its own size.
MEMORY_FACTOR, MEMORY_BASE = 3, 512 << 20
MOST_SHOWN = 8
MISSING = "is missing"
DOMAINS = ("", "ai.onnx", "com.microsoft", "com.ms.internal.nhwc")
CLASSICAL = "ai.onnx.ml"  # trees, linear classifiers and scalers, as skl2onnx writes them
UNKNOWN_DOMAIN = {  # what is wrong and its fix, by whether the domain is CLASSICAL
    True: (
        "QNN does not support",
        "let the CPU run this model, or use a neural network of ONNX's operators",
    ),
    False: (
        "ONNX Runtime does not know",
        "use ONNX's operators, or define it as a function in the model",
    ),
}
# Operators of quantized models. QNN's provider supports only the first two.
QUANTIZED = (
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "ConvInteger",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
)
CONTROL_FLOW = ("Loop", "Scan")
# By TensorProto.DataType. The last ones, from bfloat16 on, have no type in numpy.
REFUSED = {8: "string", 11: "float64", 14: "complex64", 15: "complex128", 16: "bfloat16"} | {
    number: name.lower() for name, number in onnx.TensorProto.DataType.items() if number > 16
}
AGAIN = "export or copy it again; `check-model FILE.onnx`, which onnx installs, shows details"
# Suggested sizes for dimensions that are not fixed: for images, and for other inputs.
PIXELS, LENGTH = 224, 128
PICTURE_RANK = 4
# Names of first dimensions that are not a batch.
LENGTH_NAME = re.compile("seq|len|time|frame|token|step")
BARE_KEY = re.compile("[A-Za-z0-9_-]+")  # of TOML
# First bytes of files that often have the suffix .onnx by mistake.
OTHERS = {
    b"\x80": "a Python pickle",
    b"PK\x03\x04": "a zip archive, as written by torch.save",
    POINTER: "a Git LFS pointer: run `git lfs pull`",
    b"\x7fELF": "an ELF file",
    b"<": "HTML or XML, likely the error page of a download",
    b"{": "JSON",
}


Shapes = Iterable[tuple[str, tuple[int, ...]]]  # names and shapes of inputs


class Fault(NamedTuple):
    """A fault in a model and its fix. ``shapes`` are shapes of inputs that fix it, by name."""

    what: str
    fix: str = AGAIN
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})


def read_model(path: Path, shapes: Shapes = ()) -> Any:
    """Read the model at ``path`` without external weights, set its inputs to these ``shapes``,
    check it, and return the onnx.ModelProto.

    Raises UsageError if the file is not a complete ONNX model, or if QNN cannot execute it: for
    example, if a shape is not fixed, the model has a loop, or a weight file is missing.
    """
    model = parse_model(path)
    fix_shapes(model, shapes)
    check_model(model, path)
    files = [path, *external_files(model, path)]
    if sum(file.stat().st_size for file in files) > LIMIT_BYTES:
        what = f"{path.name} and its weights are longer than {LIMIT_BYTES} bytes"
        raise UsageError(what, fix=SMALLER)
    return model


def list_required_inputs(model: Any) -> list[Any]:
    """Return the inputs that have no initializer, in the model's order."""
    constants = {initializer.name for initializer in model.graph.initializer}
    return [one for one in model.graph.input if one.name not in constants]


def is_quantized(model: Any) -> bool:
    """Return whether a model has operators that only quantized models have."""
    return any(node.op_type in QUANTIZED for node in model.graph.node)


def external_files(model: Any, path: Path) -> list[Path]:
    """Return the paths of the external weight files of the model at ``path``, sorted."""
    return sorted({path.parent / find_location(one) for one in list_external(model)})


def fix_shapes(model: Any, shapes: Shapes) -> None:
    """Set the shapes of the inputs that ``shapes`` names. Raises UsageError for an unknown input,
    or for a shape that contradicts the model's."""
    ports = {one.name: one for one in list_required_inputs(model)}
    for name, shape in shapes:
        if name not in ports:
            raise UsageError(
                f"the model has no input {name!r}", fix=f"use one of: {', '.join(ports)}"
            )
        held = ports[name].type.tensor_type
        pairs = zip(held.shape.dim, shape, strict=False)
        contradicts = len(held.shape.dim) != len(shape) or any(
            is_fixed(one) and one.dim_value != size for one, size in pairs
        )
        if held.HasField("shape") and contradicts:
            raise UsageError(
                f"input {name!r} cannot have the shape {list(shape)}",
                why=f"its shape in the model is {describe_shape(ports[name])}",
            )
        held.shape.CopyFrom(onnx.TensorShapeProto(dim=[{"dim_value": size} for size in shape]))
    if shapes:
        del model.graph.value_info[:]  # it may name sizes that are now fixed


def describe_shape(port: Any) -> str:
    """Return the shape of an input, such as ``[batch, 3, ?, ?]``, or ``without a shape``. A ``?``
    stands for an unknown size."""
    held = port.type.tensor_type
    if not held.HasField("shape"):
        return "without a shape"
    sizes = (
        str(dim.dim_value) if is_fixed(dim) else dim.dim_param or "?" for dim in held.shape.dim
    )
    return f"[{', '.join(sizes)}]"


def is_fixed(dimension: Any) -> bool:
    """Return whether a dimension has a fixed size. Exporters write -1 for an unknown size."""
    return dimension.HasField("dim_value") and dimension.dim_value != -1


def parse_model(path: Path) -> Any:
    """Return the onnx.ModelProto without checking it. Raises UsageError if the file is incomplete
    or not an ONNX model."""
    data = read_user_file(path, "the model", LIMIT_BYTES, smaller=SMALLER)
    what = f"{path.name} is not an ONNX model"
    for start, kind in OTHERS.items():
        if data.startswith(start):
            raise UsageError(what, why=f"it is {kind}", fix="pass the .onnx file itself")
    try:
        with limited_memory(MEMORY_FACTOR * len(data) + MEMORY_BASE):
            model = onnx.ModelProto.FromString(data)
    except (DecodeError, MemoryError) as error:
        why = f"it cannot be parsed completely: {error}"
        raise UsageError(what, why=why, fix=AGAIN) from error
    if not model.HasField("graph"):
        raise UsageError(what, why="it has no graph", fix=AGAIN)
    return model


@contextmanager
def limited_memory(size_bytes: int) -> Iterator[None]:
    """Limit the additional memory that this process can allocate during the block. This has an
    effect only on Linux."""
    if sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    pages = int(read_text(Path("/proc/self/statm")).split()[5])
    wanted = pages * resource.getpagesize() + size_bytes
    limits = [one for one in (soft, hard) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([wanted, *limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def check_model(
    model: Any, path: Path, command: str = "", entry: str = "", known: Shapes = ()
) -> None:
    """Raise UsageError with the first MOST_SHOWN faults of the model at ``path``, if it has any.

    The fix for shapes that vary is a line for the model's ``entry`` in a policy or, without an
    entry, the ``command`` line of the case with more options. ``known`` are the shapes of the
    user's data.
    """
    faults = list(itertools.islice(find_faults(model, path, known), MOST_SHOWN))
    if faults:
        first, *others = faults
        why = "; ".join(fault.what for fault in others)
        fix = first.fix
        if first.shapes and entry:
            fix += f", in [models.{entry}] of the policy:\n    {write_shapes(first.shapes)}"
        elif first.shapes:
            words = [f"{name}={','.join(map(str, one))}" for name, one in first.shapes.items()]
            options = " ".join(f"--shape {shell_word(word)}" for word in words)
            again = f"{command} {options}".strip()
            fix += f", with --shape or as `shapes` in a policy:\n    {again}"
        raise UsageError(f"{path.name} cannot be used: {first.what}", why=why, fix=fix)


def find_faults(model: Any, path: Path, known: Shapes = ()) -> Iterator[Fault]:
    """Yield the faults of the model at ``path``, in the order in which they should be fixed. For
    shapes that vary, those in ``known`` are suggested, or else usual ones."""
    yield from _find_version_faults(model)
    inputs = list_required_inputs(model)
    if not inputs:
        yield Fault("it has no inputs", "add an input, because a QNN graph needs at least one")
    if not model.graph.output:
        yield Fault("it has no outputs")
    for port in inputs:
        yield from _find_input_faults(port)
    functions = {(function.domain, function.name) for function in model.functions}
    for node in itertools.chain.from_iterable(graph.node for graph in list_graphs(model.graph)):
        label, domain = show_row(f"{node.op_type} {node.name!r}"), show_row(f"{node.domain!r}")
        if node.op_type in CONTROL_FLOW and node.domain in ("", "ai.onnx"):
            yield Fault(
                f"it has the node {label}, but QNN does not support loops",
                "export it with the loop unrolled to a fixed number of steps:"
                " torch.onnx.export(..., dynamo=True) does this for a loop over a range",
            )
        if node.domain not in DOMAINS and (node.domain, node.op_type) not in functions:
            who, fix = UNKNOWN_DOMAIN[node.domain == CLASSICAL]
            yield Fault(f"the node {label} is in domain {domain}, which {who}", fix)
    for tensor in list_external(model):
        location = find_location(tensor)
        fault = find_location_fault(location, path.parent) or _find_shortage(tensor, path.parent)
        if fault:
            yield Fault(f"the external file {location!r} of weight {tensor.name!r} {fault}")
    if free := list_free(inputs):  # the only fault that an option fixes
        own = dict(known)
        named = ", ".join(f"{port.name!r} {describe_shape(port)}" for port in free)
        yield Fault(
            f"QNN supports only fixed shapes, but these inputs have sizes that vary: {named}",
            "set the sizes that you use in practice",
            {name: own.get(name, one) for name, one in suggest_shapes(free).items()},
        )


def _find_version_faults(model: Any) -> Iterator[Fault]:
    if model.ir_version > NEWEST_IR:
        yield Fault(
            f"its IR version is {model.ir_version}, but ONNX Runtime accepts at most {NEWEST_IR}",
            f"save it with model.ir_version = {NEWEST_IR}, or with an older onnx package",
        )
    domains = ["" if opset.domain == "ai.onnx" else opset.domain for opset in model.opset_import]
    for domain in sorted(one for one, times in Counter(domains).items() if times > 1):
        yield Fault(
            f"it imports several opsets of the domain {show_row(repr(domain or 'ai.onnx'))}"
        )
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and not 1 <= opset.version <= NEWEST_OPSET:
            yield Fault(
                f"its opset is {opset.version}, but ONNX Runtime accepts 1 to {NEWEST_OPSET}",
                "export it with opset_version=21, or convert it with onnx.version_converter",
            )


def list_free(inputs: Iterable[Any]) -> list[Any]:
    """Return the inputs that are tensors without a fixed shape."""
    return [
        port
        for port in inputs
        if port.type.HasField("tensor_type")
        and not (
            port.type.tensor_type.HasField("shape")
            and all(map(is_fixed, port.type.tensor_type.shape.dim))
        )
    ]


def find_batch(model: Any, shapes: Shapes = ()) -> tuple[str, dict[str, tuple[int, ...]]]:
    """Return the name of a model's batch size (``?`` if it has none), and the shapes of the inputs
    with this size, for a batch of 1. Inputs in ``shapes`` are fixed already.

    The first dimension of inputs is taken as the batch if no other dimension of an input varies,
    if all have the same name or none has one, and if the name is not that of a length. An input of
    rank 1 alone could be a list of any length. Otherwise, the result is empty.
    """
    given = dict(shapes)
    ports = list_required_inputs(model)
    free = list_free(port for port in ports if port.name not in given)
    fixed = (port.type.tensor_type.shape.dim for port in ports if port.name in given)
    bound = {dim.dim_param for dims in fixed for dim in dims}
    dims = [list(port.type.tensor_type.shape.dim) for port in free]
    names = {dim[0].dim_param.strip("?") if dim else "" for dim in dims}
    is_batch = (
        free
        and bound.isdisjoint(names)
        and len(names) == 1
        and not any(LENGTH_NAME.search(name.lower()) for name in names)
        and all(dim and not is_fixed(dim[0]) and all(map(is_fixed, dim[1:])) for dim in dims)
        and any(len(dim) > 1 for dim in dims)
    )
    if not is_batch:
        return "", {}
    sizes = ((1, *(dim.dim_value for dim in one[1:])) for one in dims)
    return names.pop() or "?", {port.name: one for port, one in zip(free, sizes, strict=True)}


def write_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return a line of a policy, such as ``shapes = {x = [1, 3, 224, 224]}``."""
    keys = (name if BARE_KEY.fullmatch(name) else json.dumps(name) for name in shapes)
    rows = (f"{key} = {[*one]}" for key, one in zip(keys, shapes.values(), strict=True))
    return f"shapes = {{{', '.join(rows)}}}"


def suggest_shapes(ports: Iterable[Any]) -> dict[str, tuple[int, ...]]:
    """Return a usual shape, such as ``(1, 3, 224, 224)``, for each input that has no fixed shape.
    Dimensions with the same name have the same size."""
    known: dict[str, int] = {}
    found: dict[str, tuple[int, ...]] = {}
    for port in ports:
        held = port.type.tensor_type
        usual = PIXELS if len(held.shape.dim) == PICTURE_RANK else LENGTH
        sizes = []
        for place, one in enumerate(held.shape.dim):
            varies = usual if place or LENGTH_NAME.search(one.dim_param.lower()) else 1
            size = one.dim_value if is_fixed(one) else varies
            sizes.append(
                known.setdefault(one.dim_param, size) if one.dim_param.strip("?") else size
            )
        found[port.name] = tuple(sizes) if held.HasField("shape") else (1, 3, PIXELS, PIXELS)
    return found


def _find_input_faults(port: Any) -> Iterator[Fault]:
    label, held = f"input {port.name!r}", port.type.tensor_type
    if not port.type.HasField("tensor_type"):
        yield Fault(f"{label} is not a tensor", "QNN supports only tensors: export tensor inputs")
        return
    known = held.elem_type in onnx.helper.get_all_tensor_dtypes()
    kind = REFUSED.get(held.elem_type, "" if known else str(held.elem_type))
    if kind:
        fix = "export with float32 or integer inputs"
        yield Fault(f"{label} has element type {kind}, which QNN does not support", fix)
    width = 0 if kind else onnx.helper.tensor_dtype_to_np_dtype(held.elem_type).itemsize
    sizes = [dim.dim_value for dim in held.shape.dim]
    if not all(map(is_fixed, held.shape.dim)):
        return
    if min(sizes, default=1) < 1:
        yield Fault(f"{label} has a dimension of size {min(sizes)}")
    elif math.prod(sizes) * width > LIMIT_BYTES:
        fix = "export with a smaller input"
        limit = mib(LIMIT_BYTES)
        yield Fault(f"{label} of shape {sizes} exceeds HTP's limit for a graph: {limit}", fix)


def list_external(model: Any) -> Iterator[Any]:
    """Yield the tensors whose data is in another file, including the tensors of inner graphs."""
    for graph in list_graphs(model.graph):
        attributes = itertools.chain.from_iterable(node.attribute for node in graph.node)
        held = ((attribute.t, *attribute.tensors) for attribute in attributes)
        for tensor in itertools.chain(graph.initializer, itertools.chain.from_iterable(held)):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                yield tensor


def find_location(tensor: Any) -> str:
    """Return the path of an external tensor's file, relative to its model; empty if the tensor has
    none."""
    found = [one.value for one in tensor.external_data if one.key == "location"]
    return os.fsdecode(found[-1]) if found else ""  # protobuf returns bytes if it is not UTF-8


def _find_shortage(tensor: Any, directory: Path) -> str:
    """Return that the file of an external tensor ends before it, or that its place in the file has
    no numbers of 64 bits; empty otherwise."""
    held = {one.key: one.value for one in tensor.external_data}
    sizes = [held.get("offset", "0"), held.get("length", "0")]
    if not all(re.fullmatch("[0-9]{1,18}", size) for size in sizes):
        return "has an offset or a length that is no number of bytes"
    end = sum(map(int, sizes))
    found = (directory / find_location(tensor)).stat().st_size
    return f"is incomplete: it has {found} bytes, but {end} are needed" if found < end else ""


def find_location_fault(location: str, directory: Path) -> str:
    """Return why an external file of a model in ``directory`` must not be read; empty if it may be
    read.

    ONNX Runtime rejects a symbolic link that points outside the directory, but QNN's provider
    follows it.
    """
    parts = PurePosixPath(location.replace("\\", "/"))
    path = directory / location
    if not location or "\0" in location:
        return "has no valid name"
    if parts.is_absolute() or any(":" in part for part in parts.parts[:1]):
        return "is an absolute path: the file has to be next to the model"
    if ".." in parts.parts:
        return "points outside the model's directory with '..'"
    try:
        if path.is_dir():
            return "is a directory"
        if not path.is_file():
            return "is not a regular file" if path.exists() else MISSING
        if not path.resolve().is_relative_to(directory.resolve()):
            return "is a symbolic link that points outside the model's directory"
        with open_regular(path) as stream:
            is_pointer = stream.read(len(POINTER)) == POINTER
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return f"is {OTHERS[POINTER]}" if is_pointer else ""
