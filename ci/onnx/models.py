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
# The newest opset in which models are compiled if they can be converted to it. onnxruntime 1.32
# has no kernels for some operators of opset 22 or newer, such as RandomUniformLike and
# RandomNormal, and no QuantizeLinear of opset 28.
NEWEST_TAKEN_OPSET = 21
RMS_NORM = "RMSNormalization"
# Operators of opset 23 and 24 that onnxruntime-qnn 2.5.0 takes in no form (each compiled in fp16
# and u8). Swish, of opset 24, is not one: onnxruntime writes it as the operators that define it.
UNTAKEN = ("Attention", "RotaryEmbedding", "TensorScatter")
LIMIT_BYTES = 2 << 30  # protobuf's limit for a message, and HTP's for a graph
SMALLER = "split the model, or use fewer bits: HTP's limit for a graph is also 2 GiB"
# Parsing a message needs memory of up to a hundred times its size. A model with weights needs only
# about its own size.
MEMORY_FACTOR, MEMORY_BASE = 3, 512 << 20
MOST_SHOWN = 8
MISSING = "is missing"
# ONNX Runtime uses the last one for nodes in the format that QNN's provider requests.
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
AGAIN = "export or copy it again; onnx.checker.check_model of the onnx package shows details"
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
LITERT_ID = b"TFL3"  # bytes 4 to 8 of a .tflite file


Shapes = Iterable[tuple[str, tuple[int, ...]]]  # names and shapes of inputs


class Fault(NamedTuple):
    """A fault in a model and its fix. ``shapes`` are shapes of inputs that fix it, by name."""

    problem: str
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
    # HTP's limit is for a graph with its weights, wherever the file has them.
    files = [path, *external_files(model, path)]
    if sum(file.stat().st_size for file in files) > LIMIT_BYTES:
        problem = f"{path.name} and its weights are longer than {LIMIT_BYTES} bytes"
        raise UsageError(problem, fix=SMALLER)
    return model


def list_required_inputs(model: Any) -> list[Any]:
    """Return the inputs that have no initializer, in the model's order."""
    # Up to IR version 3, each initializer is also listed as an input.
    constants = {initializer.name for initializer in model.graph.initializer}
    return [port for port in model.graph.input if port.name not in constants]


def is_quantized(model: Any) -> bool:
    """Return whether a model has operators that only quantized models have."""
    return any(node.op_type in QUANTIZED for node in model.graph.node)


def count_newer_operators(model: Any, opset: int) -> dict[str, int]:
    """Return how many nodes have each operator that an opset lacks, except RMS_NORM, which has an
    equivalent in older ones."""
    known_operators = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and schema.since_version <= opset
    }
    known_operators |= {RMS_NORM, *(function.name for function in model.functions)}
    operators: Counter[str] = Counter()
    for graph in list_graphs(model.graph):
        for node in graph.node:
            if node.domain in ("", "ai.onnx") and node.op_type not in known_operators:
                operators[node.op_type] += 1
    return dict(operators)


def count_untaken(model: Any) -> dict[str, int]:
    """Return how many nodes of a model have each operator of UNTAKEN."""
    newer = count_newer_operators(model, NEWEST_TAKEN_OPSET)
    return {operator: times for operator, times in newer.items() if operator in UNTAKEN}


def external_files(model: Any, path: Path) -> list[Path]:
    """Return the paths of the external weight files of the model at ``path``, sorted."""
    return sorted({path.parent / find_location(tensor) for tensor in list_external(model)})


def fix_shapes(model: Any, shapes: Shapes) -> None:
    """Set the shapes of the inputs that ``shapes`` names. Raises UsageError for an unknown input,
    or for a shape that contradicts the model's."""
    ports = {port.name: port for port in list_required_inputs(model)}
    for name, shape in shapes:
        if name not in ports:
            raise UsageError(
                f"the model has no input {name!r}", fix=f"use one of: {', '.join(ports)}"
            )
        tensor_type = ports[name].type.tensor_type
        dims = tensor_type.shape.dim
        contradicts = len(dims) != len(shape) or any(
            is_fixed(dim) and dim.dim_value != size for dim, size in zip(dims, shape, strict=True)
        )
        if tensor_type.HasField("shape") and contradicts:
            raise UsageError(
                f"input {name!r} cannot have the shape {list(shape)}",
                why=f"its shape in the model is {describe_shape(ports[name])}",
            )
        fixed_dims = [{"dim_value": size} for size in shape]
        tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=fixed_dims))
    if shapes:
        del model.graph.value_info[:]  # it may name sizes that are now fixed


def describe_shape(port: Any) -> str:
    """Return the shape of an input, such as ``[batch, 3, ?, ?]``, or ``without a shape``. A ``?``
    stands for an unknown size."""
    tensor_type = port.type.tensor_type
    if not tensor_type.HasField("shape"):
        return "without a shape"
    return f"[{', '.join(map(_describe_size, tensor_type.shape.dim))}]"


def _describe_size(dimension: Any) -> str:
    if is_fixed(dimension):
        return str(dimension.dim_value)
    return dimension.dim_param or "?"


def is_fixed(dimension: Any) -> bool:
    """Return whether a dimension has a fixed size. Exporters write -1 for an unknown size."""
    return dimension.HasField("dim_value") and dimension.dim_value != -1


def parse_model(path: Path) -> Any:
    """Return the onnx.ModelProto without checking it. Raises UsageError if the file is incomplete
    or not an ONNX model."""
    data = read_user_file(path, "the model", LIMIT_BYTES, smaller=SMALLER)
    problem = f"{path.name} is not an ONNX model"
    for start, kind in OTHERS.items():
        if data.startswith(start):
            raise UsageError(problem, why=f"it is {kind}", fix="pass the .onnx file itself")
    if data[4:8] == LITERT_ID:
        fix = "name the file NAME.tflite, and judge it with test-litert"
        raise UsageError(problem, why="it is a LiteRT model", fix=fix)
    try:
        with limited_memory(MEMORY_FACTOR * len(data) + MEMORY_BASE):
            model = onnx.ModelProto.FromString(data)
    except (DecodeError, MemoryError) as error:
        why = f"it cannot be parsed completely: {error}"
        raise UsageError(problem, why=why, fix=AGAIN) from error
    if not model.HasField("graph"):
        raise UsageError(problem, why="it has no graph", fix=AGAIN)
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
    # The sixth number is the pages of data and stack, see proc(5).
    data_pages = int(read_text(Path("/proc/self/statm")).split()[5])
    new_limit = data_pages * resource.getpagesize() + size_bytes
    # RLIM_INFINITY is -1 in Python, so it would be the minimum.
    old_limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([new_limit, *old_limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def check_model(
    model: Any, path: Path, command: str = "", entry: str = "", data_shapes: Shapes = ()
) -> None:
    """Raise UsageError with the first MOST_SHOWN faults of the model at ``path``, if it has any.

    The fix for shapes that vary is a line for the model's ``entry`` in a policy or, without an
    entry, the ``command`` line of the case with more options. ``data_shapes`` are the shapes of the
    user's data.
    """
    faults = list(itertools.islice(find_faults(model, path, data_shapes), MOST_SHOWN))
    if faults:
        first, *later = faults
        why = "; ".join(fault.problem for fault in later)
        fix = first.fix
        if first.shapes and entry:
            fix += f", in [models.{entry}] of the policy:\n    {write_shapes(first.shapes)}"
        elif first.shapes:
            words = [f"{name}={','.join(map(str, shape))}" for name, shape in first.shapes.items()]
            options = " ".join(f"--shape {shell_word(word)}" for word in words)
            longer_command = f"{command} {options}".strip()
            fix += f", with --shape or as `shapes` in a policy:\n    {longer_command}"
        raise UsageError(f"{path.name} cannot be used: {first.problem}", why=why, fix=fix)


def find_faults(model: Any, path: Path, data_shapes: Shapes = ()) -> Iterator[Fault]:
    """Yield the faults of the model at ``path``, in the order in which they should be fixed. For
    shapes that vary, those in ``data_shapes`` are suggested, or else usual ones."""
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
        # In this order, because only a file that may be read is measured.
        fault = find_location_fault(location, path.parent) or _find_shortage(tensor, path.parent)
        if fault:
            problem = f"the external file {location!r} of weight {tensor.name!r} {fault}"
            copy = f"copy {location!r} next to {path.name}, or export the model into one file"
            yield Fault(problem, copy if fault == MISSING else AGAIN)
    # Last, so that a model of scikit-learn is refused for its operators, and not for its batch
    # size.
    if free := list_free(inputs):  # the only fault that an option fixes
        shapes = suggest_shapes(free)
        shapes |= {name: shape for name, shape in data_shapes if name in shapes}
        named = ", ".join(f"{port.name!r} {describe_shape(port)}" for port in free)
        yield Fault(
            f"QNN supports only fixed shapes, but these inputs have sizes that vary: {named}",
            "set the sizes that you use in practice",
            shapes,
        )


def _find_version_faults(model: Any) -> Iterator[Fault]:
    if model.ir_version > NEWEST_IR:
        yield Fault(
            f"its IR version is {model.ir_version}, but ONNX Runtime accepts at most {NEWEST_IR}",
            f"save it with model.ir_version = {NEWEST_IR}, or with an older onnx package",
        )
    imports: Counter[str] = Counter()
    for opset in model.opset_import:
        imports["" if opset.domain == "ai.onnx" else opset.domain] += 1  # two names of one domain
    for domain in sorted(domain for domain, times in imports.items() if times > 1):
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
    free = []
    for port in inputs:
        if port.type.HasField("tensor_type"):
            tensor_type = port.type.tensor_type
            if not tensor_type.HasField("shape") or not all(map(is_fixed, tensor_type.shape.dim)):
                free.append(port)
    return free


def find_batch(model: Any, shapes: Shapes = ()) -> tuple[str, dict[str, tuple[int, ...]]]:
    """Return the name of a model's batch size (``?`` if it has none), and the shapes of the inputs
    with this size, for a batch of 1. Inputs in ``shapes`` are fixed already.

    The first dimension of inputs is taken as the batch if no other dimension of an input varies,
    if all have the same name or none has one, and if the name is not that of a length. An input of
    rank 1 alone could be a list of any length. Otherwise, the result is empty.
    """
    fixed_names = dict(shapes).keys()
    ports = list_required_inputs(model)
    free = list_free(port for port in ports if port.name not in fixed_names)
    bound: set[str] = set()  # names of sizes that ``shapes`` fixes
    for port in ports:
        if port.name in fixed_names:
            bound.update(dim.dim_param for dim in port.type.tensor_type.shape.dim)
    all_dims = {port.name: list(port.type.tensor_type.shape.dim) for port in free}
    for dims in all_dims.values():
        if not dims or is_fixed(dims[0]) or not all(map(is_fixed, dims[1:])):
            return "", {}
    names = {dims[0].dim_param.strip("?") for dims in all_dims.values()}
    is_batch = (
        len(names) == 1
        and bound.isdisjoint(names)
        and not any(LENGTH_NAME.search(name.lower()) for name in names)
        and any(len(dims) > 1 for dims in all_dims.values())
    )
    if not is_batch:
        return "", {}
    batch_shapes = {}
    for name, (_, *inner) in all_dims.items():
        batch_shapes[name] = (1, *(dim.dim_value for dim in inner))
    return names.pop() or "?", batch_shapes


def write_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return a line of a policy, such as ``shapes = {x = [1, 3, 224, 224]}``."""
    entries = []
    for name, shape in shapes.items():
        key = name if BARE_KEY.fullmatch(name) else json.dumps(name)
        entries.append(f"{key} = {[*shape]}")
    return f"shapes = {{{', '.join(entries)}}}"


def suggest_shapes(ports: Iterable[Any]) -> dict[str, tuple[int, ...]]:
    """Return a usual shape, such as ``(1, 3, 224, 224)``, for each input that has no fixed shape.
    Dimensions with the same name have the same size."""
    size_by_name: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for port in ports:
        tensor_type = port.type.tensor_type
        if not tensor_type.HasField("shape"):
            shapes[port.name] = (1, 3, PIXELS, PIXELS)
            continue
        usual = PIXELS if len(tensor_type.shape.dim) == PICTURE_RANK else LENGTH
        sizes = []
        for place, dim in enumerate(tensor_type.shape.dim):
            if is_fixed(dim):
                size = dim.dim_value
            elif place or LENGTH_NAME.search(dim.dim_param.lower()):
                size = usual
            else:  # a batch
                size = 1
            if dim.dim_param.strip("?"):
                size = size_by_name.setdefault(dim.dim_param, size)
            sizes.append(size)
        shapes[port.name] = tuple(sizes)
    return shapes


def _find_input_faults(port: Any) -> Iterator[Fault]:
    label, tensor_type = f"input {port.name!r}", port.type.tensor_type
    if not port.type.HasField("tensor_type"):
        yield Fault(f"{label} is not a tensor", "QNN supports only tensors: export tensor inputs")
        return
    number = tensor_type.elem_type
    is_valid = number in onnx.helper.get_all_tensor_dtypes()
    refused = REFUSED.get(number, "" if is_valid else str(number))
    if refused:
        fix = "export with float32 or integer inputs"
        yield Fault(f"{label} has element type {refused}, which QNN does not support", fix)
    width = 0 if refused else onnx.helper.tensor_dtype_to_np_dtype(number).itemsize
    sizes = [dim.dim_value for dim in tensor_type.shape.dim]
    if not all(map(is_fixed, tensor_type.shape.dim)):
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
        tensors = list(graph.initializer)
        for node in graph.node:
            for attribute in node.attribute:
                tensors += [attribute.t, *attribute.tensors]
        for tensor in tensors:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                yield tensor


def find_location(tensor: Any) -> str:
    """Return the path of an external tensor's file, relative to its model; empty if the tensor has
    none."""
    locations = [entry.value for entry in tensor.external_data if entry.key == "location"]
    # protobuf returns bytes if the path is not UTF-8
    return os.fsdecode(locations[-1]) if locations else ""


def _find_shortage(tensor: Any, directory: Path) -> str:
    """Return that the file of an external tensor ends before it, or that its place in the file has
    no numbers of 64 bits; empty otherwise."""
    fields = {entry.key: entry.value for entry in tensor.external_data}
    sizes = [fields.get("offset", "0"), fields.get("length", "0")]
    if not all(re.fullmatch("[0-9]{1,18}", size) for size in sizes):
        return "has an offset or a length that is no number of bytes"
    end = sum(map(int, sizes))
    actual = (directory / find_location(tensor)).stat().st_size
    return f"is incomplete: it has {actual} bytes, but {end} are needed" if actual < end else ""


def find_location_fault(location: str, directory: Path) -> str:
    """Return why an external file of a model in ``directory`` must not be read; empty if it may be
    read.

    ONNX Runtime rejects a symbolic link that points outside the directory, but QNN's provider
    follows it.
    """
    # A file from Windows may have backslashes, and a drive such as C: in front.
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
