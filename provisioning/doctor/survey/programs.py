"""Read ExecuTorch programs (.pte) from their bytes, without torch.

A program is a flatbuffer. The field numbers in this module come from executorch/schema/program.fbs
in ExecuTorch 1.5.1. The options of a QNN delegate are a flatbuffer inside the program; their schema
is backends/qualcomm/serialization/qc_compiler_spec.fbs. ExecuTorch puts a header before a context
binary: a magic number, a signature and the binary's size (QnnContextCustomProtocol).
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning.doctor.survey.context_binaries import (
    ContextBinary,
    TensorSpec,
    list_context_binaries,
    parse_context_binary,
)
from provisioning.documents import MAPPED_BYTES, open_regular
from provisioning.elf.programs import (
    ARCHIVE,
    EXTENDED,
    MAGIC,
    PROGRAM,
    Table,
    Tables,
    View,
    find_misplaced,
    find_program_damage,
    list_segments,
)
from provisioning.errors import UsageError

QNN_BACKEND, COMPILE_SPEC = "QnnBackend", "qnn_compile_spec"
DLC = re.compile(rb"dlc\.metadata")  # a file in QNN's archives
# The names of a ZIP's members are in its directory, at the end: searching all of a large file takes
# long.
DLC_TAIL = 1 << 16
IDENTIFIER = b"ET"  # followed by two digits, at byte 4
# BundledProgram and FlatTensor: bundled_program_schema.fbs and flat_tensor.fbs of ExecuTorch.
BUNDLE, DATA = b"BP", b"FT"
DATA_HEADER = struct.Struct("<4sIQQQQ")  # at byte 8
EXTERNAL = 1  # TensorDataLocation
HEADER = struct.Struct("<IQQ")
HEADER_MAGIC = 0x5678ABCD  # ci/executorch/lower.py describes the header
HEADER_ROOM = 4096  # observed: the binary starts 256 bytes after the start of the header
MAX_RANK = 16
# By chance, the few line feeds of a small file may all follow a carriage return.
LEAST_LINES = 8
# The name and the size in bytes of each ScalarType.
DTYPES = {
    0: ("uint8", 1),
    1: ("int8", 1),
    2: ("int16", 2),
    3: ("int32", 4),
    4: ("int64", 8),
    5: ("float16", 2),
    6: ("float32", 4),
    7: ("float64", 8),
    11: ("bool", 1),
    15: ("bfloat16", 2),
    22: ("bits16", 2),
    27: ("uint16", 2),
    28: ("uint32", 4),
    29: ("uint64", 8),
}
# KernelTypes and InstructionArguments, by their index in the unions.
INT, BOOL, DOUBLE, TENSOR, STRING, INTS, DOUBLES, BOOLS = 2, 3, 4, 5, 6, 7, 8, 9
QUALCOMM = "Qualcomm"  # the manufacturer in the stamp of a compiled .tflite file
KERNEL_CALL = 1
INLINE = 0
Constant = int | float | bool | str | tuple[int | float | bool, ...] | None


@dataclass(frozen=True)
class Partition:
    """The part of a method that a backend runs. ``context`` is the number of its context binary in
    the program, None if it has none. ``soc_id``, ``hexagon`` and ``vtcm_mb`` describe the hardware
    that it was lowered for, according to the options that ExecuTorch stores; 0 if unknown.
    """

    backend: str
    context: int | None = None
    soc_id: int = 0
    hexagon: int = 0
    vtcm_mb: int = 0
    online_prepare: bool = False


@dataclass(frozen=True)
class Method:
    """A method of a program; ``cpu_operators`` maps each operator that stays on the CPU to the
    number of its calls.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    partitions: tuple[Partition, ...]
    cpu_operators: dict[str, int]


@dataclass(frozen=True)
class SegmentSpan:
    """A segment of a program: its offset and size in bytes, and its alignment, which is the largest
    power of two, at most 4096, that divides the offset.
    """

    offset: int
    size_bytes: int
    align: int


@dataclass(frozen=True)
class Program:
    """A lowered file. Its ``kind`` is ``program``, ``bundle`` (a program with inputs and outputs to
    test it), ``data`` (tensors for programs, .ptd), ``context`` (only a context binary), ``onnx``
    (an ONNX model that contains context binaries), or ``litert`` (a .tflite file, compiled or not;
    ``compiled_for`` names the manufacturer and the SoC).

    ``external`` are the names of the tensors that a .ptd contains, or that a program needs from
    one.

    ``is_package`` means that it has one equivalent context per SoC, and a device loads only the one
    for its SoC; otherwise, a device needs them all.

    ``metadata`` maps methods without inputs, such as get_max_seq_len, to the constants that they
    return. ``constant_bytes`` maps each type to the total size of the weights of that type. Weights
    that QNN packed into context binaries are not counted, since their types are unknown. ``damage``
    is the reason why the file cannot be loaded, ``misplaced`` why it cannot be mapped.
    """

    file: str
    kind: str
    size_bytes: int
    methods: tuple[Method, ...] = ()
    metadata: dict[str, Constant] | None = None
    contexts: tuple[ContextBinary, ...] = ()
    segments: tuple[SegmentSpan, ...] = ()
    constant_bytes: dict[str, int] | None = None
    damage: str = ""
    misplaced: str = ""
    is_package: bool = False
    external: tuple[str, ...] = ()
    compiled_for: str = ""

    @property
    def is_of_other_maker(self) -> bool:
        """Return whether a .tflite file is compiled for the NPU of another manufacturer."""
        return bool(self.compiled_for) and not self.compiled_for.startswith(QUALCOMM)


def read_program(path: Path) -> Program:
    """Read the program or context binary at ``path``. Raises UsageError for a file that is
    neither."""
    view = map_file(path)
    if program := parse_program(view, path.name):
        return program
    raise UsageError(
        f"{path.name} is neither an ExecuTorch program nor a QNN context binary",
        why=f"it starts with {bytes(view[:8]).hex(' ')}" if len(view) else "it is empty",
        fix="use a .pte or a context binary (.bin)",
    )


def describe_other(view: View) -> str:
    """Return why a file that should be a program or a context binary is neither, such as ``is
    empty``."""
    head = bytes(view[:64])
    if not head:
        return "is empty"
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer: run `git lfs pull`"
    if head.startswith(b"\x1f\x8b"):
        return "is compressed with gzip: unpack it"
    if head.startswith(ARCHIVE):
        return "is a ZIP archive: unpack it"
    if not any(view):
        return "contains only zeros: its download or copy is incomplete"
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is a web page: a server answered with an error instead of the file"
    if view[257:262] == b"ustar":
        return "is a tar archive, such as the weights that QNN's converters write next to a .cpp"
    return f"is of an unknown kind: it starts with {head[:8].hex(' ')}"


def map_file(path: Path) -> View:
    """Map a file's bytes. Raises UsageError if it cannot be read."""
    try:
        with open_regular(path, MAPPED_BYTES) as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except ValueError:  # an empty file cannot be mapped
        return memoryview(b"")
    except OSError as error:
        raise UsageError(f"cannot read {path}", why=error.strerror or str(error)) from error


def parse_program(view: View, name: str) -> Program | None:
    """Parse ``view``, the bytes of a file called ``name``; return None for another kind of file."""
    # A package has a context binary for each of several SoCs.
    is_zip = bytes(view[: len(ARCHIVE)]) == ARCHIVE
    is_package = is_zip and DLC.search(view, max(0, len(view) - DLC_TAIL))
    if view[: len(MAGIC)] == MAGIC or is_package:
        return wrap_contexts(name, "context", len(view), list_context_binaries(view))
    kinds = {
        DATA: ("data", _read_tensors),
        BUNDLE: ("bundle", _open_bundle),
        IDENTIFIER: ("program", _read_methods),
    }
    kind, read = kinds.get(bytes(view[4:6]), ("", None))
    if read is None:
        return None
    program = Program(name, kind, len(view))
    try:
        parsed = read(view, program)
    except (struct.error, OverflowError) as error:
        parsed = replace(program, damage=f"has a flatbuffer that cannot be read: {error}")
    # Only a damaged program is read for this, because it reads all of it.
    if parsed.damage and not parsed.contexts and read is _read_methods:
        return replace(parsed, damage=parsed.damage + _find_conversion(view))
    return parsed


def _read_methods(view: View, program: Program) -> Program:
    """Return the content of a program, and why it cannot be loaded or mapped."""
    if damage := find_program_damage(view):
        return replace(program, damage=damage)
    parsed = _parse(Tables(view), program)
    damaged = (context.damage for context in parsed.contexts if context.damage)
    damage = next((f"contains a context binary that {reason}" for reason in damaged), "")
    return replace(parsed, damage=damage, misplaced="" if damage else find_misplaced(view))


def _open_bundle(view: View, bundle: Program) -> Program:
    """Return the program in a bundle, with offsets from the program's own start."""
    start, size = Tables(view).root().span(2)
    inner = memoryview(view)[start : start + size]
    program = parse_program(inner, bundle.file) if size else None
    if program is None:
        return replace(bundle, damage="contains no program")
    return replace(program, kind="bundle", size_bytes=len(view))


def _read_tensors(view: View, data: Program) -> Program:
    """Return the tensors of a .ptd: their names, and the segments with their data."""
    _, _, _, _, base, size = DATA_HEADER.unpack_from(view, 8)
    if base + size > len(view):
        return replace(data, damage=f"is cut short: it has {len(view)} of {base + size} bytes")
    root = Tables(view, 0, base or None).root()
    names = tuple(table.text(0) for table in root.list_tables(2))
    places = [(base + table.number(0, "Q"), table.number(1, "Q")) for table in root.list_tables(1)]
    return replace(data, external=names, segments=_describe_segments(places))


def _describe_segments(places: Iterable[tuple[int, int]]) -> tuple[SegmentSpan, ...]:
    return tuple(SegmentSpan(at, size, math.gcd(at, 4096)) for at, size in places)


def _find_conversion(view: View) -> str:
    """Return a remark if each line feed in a damaged file follows a carriage return, which is so
    only after a conversion of line ends."""
    data = bytes(view)
    count = data.count(b"\n")
    if count > LEAST_LINES and count == data.count(b"\r\n"):
        return "; its line ends were converted: copy it as a binary file, in git with `*.pte -text`"
    return ""


def wrap_contexts(
    name: str, kind: str, size_bytes: int, contexts: tuple[ContextBinary, ...]
) -> Program:
    """Return a program that consists of the contexts of one file."""
    damage = next((context.damage for context in contexts if context.damage), "")
    package = len(contexts) > 1
    return Program(name, kind, size_bytes, contexts=contexts, damage=damage, is_package=package)


def _parse(tables: Tables, program: Program) -> Program:
    """Return ``program`` with the content of its flatbuffer. Raises struct.error."""
    view, root = tables.blob, tables.root()
    base = PROGRAM.unpack_from(view)[4] if view[8:12] == EXTENDED else 0
    segments = list_segments(tables, base) if base else []
    inline = [table.span(0) for table in root.list_tables(3)]
    contexts: dict[tuple[int, int], ContextBinary | None] = {}

    def find_context(delegate: Table) -> int | None:
        """Return the number of a delegate's context binary."""
        if delegate.text(0) != QNN_BACKEND or not (data := delegate.table(1)):
            return None
        spans, number = (inline if data.number(0, "b") == INLINE else segments), data.number(1)
        if number >= len(spans):
            raise struct.error(f"a delegate refers to data {number}, but there are {len(spans)}")
        span = spans[number]
        # Several delegates may refer to one context binary.
        if span not in contexts:
            contexts[span] = _find_context(view, *span)
        spans_with_context = [at for at, context in contexts.items() if context]
        return spans_with_context.index(span) if span in spans_with_context else None

    methods: list[Method] = []
    metadata: dict[str, Constant] = {}
    constants: dict[int, tuple[str, int]] = {}
    external: dict[str, None] = {}
    for plan in root.list_tables(1):
        values = list(plan.list_tables(2))
        name, inputs, outputs = plan.text(0), plan.list(3, "i"), plan.list(4, "i")
        delegates = list(plan.list_tables(7))
        # ExecuTorch lowers a constant method, such as get_max_seq_len, to a plan without inputs.
        if not inputs and not delegates:
            results = tuple(parse_constant(_pick(values, output)) for output in outputs)
            metadata[name] = results[0] if len(results) == 1 else results  # type: ignore[assignment]
            continue
        constants |= dict(_list_constants(values))
        external |= dict.fromkeys(_list_external(values))
        methods.append(
            Method(
                name,
                _parse_ports(values, inputs),
                _parse_ports(values, outputs),
                tuple(_parse_partition(table, find_context(table)) for table in delegates),
                _count_operators(plan),
            )
        )
    sizes = Counter[str]()
    for dtype, size in constants.values():
        sizes[dtype] += size
    return replace(
        program,
        methods=tuple(methods),
        metadata=metadata,
        contexts=tuple(context for context in contexts.values() if context),
        segments=_describe_segments(segments),
        constant_bytes=dict(sizes),
        external=tuple(external),
    )


def _find_context(view: View, start: int, size: int) -> ContextBinary | None:
    """Return the context binary in the delegate's data of ``size`` bytes at byte ``start``; None if
    it contains none, for example because the graph is compiled on the device.
    """
    end = start + size
    head = bytes(view[start : start + min(size, HEADER_ROOM)])
    at = head.find(MAGIC)
    if at < 0 and head[:4] != ARCHIVE:
        return None
    at = max(at, 0)
    if at >= HEADER.size:
        magic, _, stated_size = HEADER.unpack_from(head)
        end = start + at + stated_size if magic == HEADER_MAGIC else end
    if end > start + size or end > len(view):
        cut = f"has only {min(start + size, len(view)) - start - at} of {end - start - at} bytes"
        return ContextBinary(start + at, size - at, damage=cut)
    return parse_context_binary(view[start + at : end], start + at)


def _pick(values: list[Table], number: int) -> Table:
    if not 0 <= number < len(values):
        raise struct.error(f"a method refers to value {number}, but has only {len(values)}")
    return values[number]


def parse_constant(value: Table) -> Constant:
    """Return the value that a constant method returns. A float that JSON cannot represent is
    returned as text, and a value of any other type as None.
    """
    kind, content = value.number(0, "B"), value.table(1)
    if content is None:
        return None
    if kind == STRING:
        return content.text(0)
    if form := {INT: "q", BOOL: "?", DOUBLE: "d"}.get(kind):
        number: int | float | bool = content.number(0, form)
        # JSON has neither NaN nor infinity.
        return number if math.isfinite(number) else str(number)
    if form := {INTS: "q", BOOLS: "?", DOUBLES: "d"}.get(kind):
        numbers = content.list(0, form)
        return numbers if all(map(math.isfinite, numbers)) else str(numbers)
    return None


def _parse_ports(values: list[Table], numbers: tuple[int, ...]) -> tuple[TensorSpec, ...]:
    """Return the inputs or outputs with these numbers among a method's values, by position."""
    return tuple(
        _parse_tensor(_pick(values, number), str(place)) for place, number in enumerate(numbers)
    )


def _parse_tensor(value: Table, name: str) -> TensorSpec:
    tensor = _find_tensor(value)
    if not tensor:
        return TensorSpec(name, "not a tensor", ())
    sizes = tensor.list(2, "i")
    # A damaged rank could claim millions of dimensions.
    if len(sizes) > MAX_RANK:
        raise struct.error(f"a tensor has {len(sizes)} dimensions")
    return TensorSpec(name, DTYPES.get(tensor.number(0, "b"), ("unknown", 0))[0], sizes)


def _list_constants(values: Iterable[Table]) -> Iterator[tuple[int, tuple[str, int]]]:
    """Yield the number of each constant tensor's data buffer, with its type and size in bytes."""
    for tensor in filter(None, map(_find_tensor, values)):
        if (buffer := tensor.number(5)) and not (tensor.find(6) or _find_external(tensor)):
            sizes = tensor.list(2, "i")[:MAX_RANK]
            dtype, width = DTYPES.get(tensor.number(0, "b"), ("unknown", 0))
            yield buffer, (dtype, width * math.prod(sizes))


def _list_external(values: Iterable[Table]) -> Iterator[str]:
    """Yield the names of tensors whose data is in a .ptd."""
    for tensor in filter(None, map(_find_tensor, values)):
        if extra := _find_external(tensor):
            yield extra.text(1)


def _find_tensor(value: Table) -> Table | None:
    return value.table(1) if value.number(0, "B") == TENSOR else None


def _find_external(tensor: Table) -> Table | None:
    extra = tensor.table(9)
    return extra if extra and extra.number(2, "b") == EXTERNAL else None


def _count_operators(plan: Table) -> dict[str, int]:
    """Return how often the method calls each CPU operator."""
    names = [
        ".".join(filter(None, (table.text(0), table.text(1)))) for table in plan.list_tables(6)
    ]
    counts = Counter[str]()
    for chain in plan.list_tables(5):
        for instruction in chain.list_tables(2):
            call = instruction.table(1)
            if instruction.number(0, "B") == KERNEL_CALL and call:
                number = call.number(0, "i")
                counts[names[number] if 0 <= number < len(names) else f"operator {number}"] += 1
    return dict(sorted(counts.items()))


def _parse_partition(delegate: Table, context: int | None) -> Partition:
    backend = delegate.text(0)
    specs = {table.text(0): table.span(1) for table in delegate.list_tables(2)}
    start, size = specs.get(COMPILE_SPEC, (0, 0))
    # The options of other backends have other schemas.
    if backend != QNN_BACKEND or not size:
        return Partition(backend, context)
    options = Tables(delegate.tables.blob, start, start + size).root()
    soc = options.table(0)
    htp = soc.table(1) if soc else None
    return Partition(
        backend,
        context,
        soc.number(0, "i") if soc else 0,
        htp.number(0, "i") if htp else 0,
        htp.number(1) if htp else 0,
        bool(options.number(4, "B")),
    )
