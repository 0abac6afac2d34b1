"""Read LiteRT models (.tflite) and bundles of LiteRT-LM (.litertlm), without LiteRT.

A model is a flatbuffer. The field numbers in this module come from LiteRT's schema.fbs, as in the
package ai-edge-litert 2.3.0. A model that a compiler plugin compiled for an NPU has an operator
DISPATCH_OP for each partition. The operator's options are a flexbuffer, which states where in the
file the partition's bytecode is: for Qualcomm's plugin, a context binary of QNN.

A bundle starts with LITERTLM and three u32, its version. At byte 24 is the end of its header (u64),
which is a flatbuffer from byte 32; its schema is that of the package litert-lm-builder 0.18.1. It
lists sections, each with its place in the file.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from provisioning.doctor.survey.context_binaries import (
    ContextBinary,
    TensorSpec,
    parse_context_binary,
)
from provisioning.doctor.survey.litert_names import DTYPES, MODEL_SECTION, OPERATORS, SECTIONS
from provisioning.doctor.survey.programs import (
    MAX_RANK,
    QUALCOMM,
    Constant,
    Method,
    Partition,
    Program,
)
from provisioning.elf.programs import MAX_TEXT, Table, Tables, View
from provisioning.manifest.targets import is_same_soc

MODEL, BUNDLE = b"TFL3", b"LITERTLM"
DISPATCH, CUSTOM = "DISPATCH_OP", 32
STAMP = "LiteRtStamp"
# Values in a bundle's metadata, by their types' numbers.
VALUE_FORMS = {1: "B", 2: "b", 3: "H", 4: "h", 5: "I", 6: "i", 7: "f", 8: "?"}
VALUE_FORMS |= {10: "Q", 11: "q", 12: "d"}
VALUE_TEXT = 9
HEADER_AT, HEADER_END_AT = 32, 24


@dataclass(frozen=True)
class Section:
    """A section of a bundle: its content, place and items, such as ``model_type``, and the model in
    it. The places in a model are counted from the section's start."""

    content: str
    offset: int
    size_bytes: int
    items: dict[str, Constant]
    model: Program | None = None


@dataclass(frozen=True)
class Bundle:
    """A .litertlm file: the version of its format, such as 1.7.0, its own items, such as
    ``Authors``, and its sections. ``damage`` is the reason why it cannot be loaded."""

    version: str = ""
    items: dict[str, Constant] | None = None
    sections: tuple[Section, ...] = ()
    damage: str = ""


def is_model(view: View) -> bool:
    """Return whether these are the bytes of a .tflite file."""
    return bytes(view[4:8]) == MODEL


def is_bundle(view: View) -> bool:
    """Return whether these are the bytes of a .litertlm file."""
    return bytes(view[: len(BUNDLE)]) == BUNDLE


def list_models(view: View, name: str) -> tuple[tuple[Program, ...], str]:
    """Return the models of a .tflite or .litertlm file called ``name``, and the reason why the file
    cannot be loaded, such as ``has no section``. Of another file, there are none, and no reason."""
    if is_model(view):
        model = parse_model(view, name)
        return (model,), model.damage
    if is_bundle(view):
        bundle = parse_bundle(view)
        models = (section.model for section in bundle.sections)
        return tuple(model for model in models if model), bundle.damage
    return (), ""


def parse_model(view: View, name: str) -> Program:
    """Return the content of a .tflite file called ``name``: a method for each subgraph. If a
    compiler plugin compiled it, ``cpu_operators`` are those that stayed on the CPU, else all."""
    program = Program(name, "litert", len(view), metadata={})
    try:
        return _Model(view).describe(program)
    except (struct.error, OverflowError, IndexError) as error:
        return replace(program, damage=f"has a flatbuffer that cannot be read: {error}")


def find_largest_constant(view: View) -> TensorSpec | None:
    """Return the constant tensor of a .tflite file with the most bytes, such as the table of an
    embedder. None if there is none, or if the file is damaged."""
    largest, most_bytes = None, 0
    try:
        model = _Model(view)
        for subgraph in model.root.list_tables(2):
            for tensor in subgraph.list_tables(0):
                start, end = model.find_data(tensor.number(2))
                if end - start > most_bytes:
                    dtype, _ = DTYPES.get(tensor.number(1, "b"), ("unknown", 0))
                    largest = TensorSpec(tensor.text(3), dtype, _read_shape(tensor))
                    most_bytes = end - start
    except (struct.error, OverflowError, IndexError):
        return None
    return largest


class _Model:
    """A .tflite file while it is read."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.root = Tables(view).root()
        self.operators = [_name_operator(code) for code in self.root.list_tables(1)]
        self.buffers = list(self.root.list_tables(4))
        self.contexts: dict[tuple[int, int], ContextBinary] = {}
        self.damage = ""
        texts = dict(self.list_metadata())
        self.compiled_for = texts.pop(STAMP, "")  # such as "Qualcomm SM8650"
        self.metadata: dict[str, Constant] = {**texts}
        self.manufacturer, _, self.soc = self.compiled_for.partition(" ")

    def describe(self, program: Program) -> Program:
        signatures = self.list_signatures()
        methods = []
        sizes = Counter[str]()
        for number, subgraph in enumerate(self.root.list_tables(2)):
            tensors = list(subgraph.list_tables(0))
            sizes.update(self.measure_weights(tensors))
            names, names_of_tensors = signatures.get(number, ([], {}))
            methods.append(
                Method(
                    ", ".join(names) or subgraph.text(4) or f"subgraph {number}",
                    _describe_ports(tensors, subgraph.list(1, "i"), names_of_tensors),
                    _describe_ports(tensors, subgraph.list(2, "i"), names_of_tensors),
                    *self.read_operators(subgraph),
                )
            )
        if not methods:
            self.report("has no subgraph")
        if missing := [number for number in signatures if number >= len(methods)]:
            self.report(
                f"has a signature of subgraph {missing[0]}, and there are {len(methods)} subgraphs"
            )
        for context in self.contexts.values():
            if context.damage:
                self.report(f"contains a context binary that {context.damage}")
            # The stamp is text that a tool may copy from another file; the context binary itself
            # decides what runs.
            if context.soc and self.soc and not is_same_soc(context.soc, self.soc):
                self.report(
                    f"is stamped as compiled for {self.soc}, but contains a context binary for "
                    f"{context.soc}"
                )
        return replace(
            program,
            methods=tuple(methods),
            metadata=self.metadata,
            contexts=tuple(self.contexts.values()),
            constant_bytes=dict(sizes),
            compiled_for=self.compiled_for,
            damage=self.damage,
        )

    def report(self, damage: str) -> None:
        """Keep the first damage."""
        self.damage = self.damage or damage

    def list_metadata(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of each entry of the metadata; binary data has only its
        size."""
        for entry in self.root.list_tables(6):
            data = bytes(self.view[slice(*self.find_data(entry.number(1)))][:MAX_TEXT])
            words = [word.decode("utf-8", "replace") for word in data.split(b"\0") if word]
            text = " ".join(words)
            yield entry.text(0), text if text.isprintable() else f"{len(data)} bytes"

    def list_signatures(self) -> dict[int, tuple[list[str], dict[int, str]]]:
        """Return, by the number of the subgraph, the keys of its signatures and the names that they
        give to tensors."""
        signatures: dict[int, tuple[list[str], dict[int, str]]] = {}
        for signature in self.root.list_tables(7):
            keys, names = signatures.setdefault(signature.number(4), ([], {}))
            keys.append(signature.text(2))
            for field in (0, 1):
                for port in signature.list_tables(field):
                    names.setdefault(port.number(1), port.text(0))
        return signatures

    def find_data(self, number: int) -> tuple[int, int]:
        """Return the first byte of a buffer's data and the one behind its last; both 0 if it has
        none. Raises struct.error if it is outside of the file."""
        if number >= len(self.buffers):
            raise struct.error(f"buffer {number} is missing, there are {len(self.buffers)}")
        buffer = self.buffers[number]
        start, size = buffer.span(0)
        if offset := buffer.number(1, "Q"):
            start, size = offset, buffer.number(2, "Q")
        # Files above 2 GiB have their data behind the flatbuffer. Its offset is 1 if it is empty.
        if start <= 1:
            return 0, 0
        if start + size > len(self.view):
            self.report(
                f"is cut short: a buffer ends at byte {start + size}, the file at {len(self.view)}"
            )
            return 0, 0
        return start, start + size

    def measure_weights(self, tensors: list[Table]) -> Counter[str]:
        """Return the size in bytes of a subgraph's constant tensors by their types. Report weights
        that are shorter than their tensor: LiteRT's plugin compiles them without a word, and
        LiteRT's interpreter does not load the file. Sparse models that a plugin compiled are such
        files."""
        sizes = Counter[str]()
        for tensor in tensors:
            start, end = self.find_data(tensor.number(2))
            if not end:
                continue
            dtype, bits = DTYPES.get(tensor.number(1, "b"), ("unknown", 0))
            sizes[dtype] += end - start
            shape = _read_shape(tensor)
            needed_bytes = -(-math.prod(shape) * bits // 8)
            # Field 6 is the sparsity: such weights are shorter than their tensor by design.
            if min(shape, default=1) > 0 and needed_bytes > end - start and not tensor.find(6):
                cause = ""
                if self.compiled_for and "DENSIFY" in self.operators:
                    cause = (
                        "; compiling a sparse model for an NPU drops what says that it is sparse"
                    )
                self.report(
                    f"has weights that are too short, so LiteRT does not load it: {tensor.text(3)} "
                    f"is {dtype} {list(shape)}, {needed_bytes} bytes, and its buffer has "
                    f"{end - start}{cause}"
                )
        return sizes

    def read_operators(self, subgraph: Table) -> tuple[tuple[Partition, ...], dict[str, int]]:
        """Return the partitions of a subgraph, and how often it calls each other operator."""
        partitions = []
        counts = Counter[str]()
        for operator in subgraph.list_tables(3):
            number = operator.number(0)
            if number >= len(self.operators):
                raise struct.error(
                    f"operator code {number} is missing, there are {len(self.operators)}"
                )
            name = self.operators[number]
            if name == DISPATCH:
                partitions.append(
                    Partition(self.manufacturer or DISPATCH, self.read_partition(operator))
                )
            else:
                counts[name] += 1
        return tuple(partitions), dict(sorted(counts.items()))

    def read_partition(self, operator: Table) -> int | None:
        """Return the number of the context binary that an operator DISPATCH_OP runs, None if its
        bytecode is none of QNN's."""
        options = read_flexbuffer(operator.bytes(5))
        start, size = options.get("bytecode_offset"), options.get("bytecode_size")
        if not isinstance(start, int) or not isinstance(size, int):
            self.report("has a partition whose options do not say where its bytecode is")
            return None
        if not size or start + size > len(self.view):
            self.report(
                f"has a partition with {size} bytes from byte {start}, and the file has "
                f"{len(self.view)}: it was cut short, or written again without its bytecode"
            )
            return None
        # Plugins of other manufacturers write their own bytecode.
        if self.manufacturer not in {"", QUALCOMM}:
            return None
        place = (start, size)
        if place not in self.contexts:
            self.contexts[place] = parse_context_binary(self.view[start : start + size], start)
        return list(self.contexts).index(place)


def _name_operator(code: Table) -> str:
    # Old files have only the field of one byte, and newer ones both.
    number = max(code.number(0, "b"), code.number(3, "i"))
    if number == CUSTOM:
        name = code.text(1)
        return name if name == DISPATCH else f"{name} (custom)"
    return OPERATORS[number] if 0 <= number < len(OPERATORS) else f"operator {number}"


def _describe_ports(
    tensors: list[Table], numbers: tuple[int, ...], names: dict[int, str]
) -> tuple[TensorSpec, ...]:
    ports = []
    for number in numbers:
        if not 0 <= number < len(tensors):
            raise struct.error(f"tensor {number} is missing, there are {len(tensors)}")
        tensor = tensors[number]
        dtype, _ = DTYPES.get(tensor.number(1, "b"), ("unknown", 0))
        port = TensorSpec(names.get(number) or tensor.text(3), dtype, _read_shape(tensor))
        quantization = tensor.table(4)
        scales = quantization.list(2, "f") if quantization else ()
        zero_points = quantization.list(3, "q") if quantization else ()
        # Scales per channel do not fit into one pair.
        if len(scales) == len(zero_points) == 1 and math.isfinite(scales[0]):
            port = replace(port, scale=scales[0], zero_point=zero_points[0])
        ports.append(port)
    return tuple(ports)


def _read_shape(tensor: Table) -> tuple[int, ...]:
    """Return a tensor's shape; -1 is an axis whose length may change."""
    # Field 7, shape_signature, has -1 for axes whose length may change; field 0 has 1 there.
    shape = tensor.list(7, "i") or tensor.list(0, "i")
    if len(shape) > MAX_RANK:
        raise struct.error(f"a tensor has {len(shape)} dimensions")
    return shape


INTEGERS = {1: "signed", 2: "unsigned"}  # flexbuffer types
TEXT, MAP = 5, 9


def read_flexbuffer(data: bytes) -> dict[str, int | str]:
    """Return the integers and texts of a flexbuffer whose root is a map; values of other types are
    left out. Raises struct.error for data that is none.

    The format (flatbuffers.dev/flexbuffers): the last byte is the width of the root, the one before
    its type and the width of its elements. A map's values are preceded by the offset to its keys,
    the width of these offsets, and the number of its elements, and followed by their types.
    """

    def read(place: int, width: int, *, signed: bool = False) -> int:
        if width not in {1, 2, 4, 8} or place < 0 or place + width > len(data):
            raise struct.error(f"byte {place} is outside of the options")
        return int.from_bytes(data[place : place + width], "little", signed=signed)

    if len(data) < 3 or data[-2] >> 2 != MAP:
        raise struct.error("the options of a partition are no map")
    root_at = len(data) - 2 - data[-1]
    width = 1 << (data[-2] & 3)
    values = root_at - read(root_at, data[-1])
    count = read(values - width, width)
    # Before the loop: a damaged count of eight bytes would run it forever.
    if count > len(data):
        raise struct.error(f"a map of {count} elements has {len(data)} bytes")
    keys = values - 3 * width - read(values - 3 * width, width)
    key_width = read(values - 2 * width, width)
    options: dict[str, int | str] = {}
    for number in range(count):
        key_place = keys + number * key_width
        key_at = key_place - read(key_place, key_width)
        if key_at < 0:
            raise struct.error(f"byte {key_at} is outside of the options")
        key = data[key_at:].partition(b"\0")[0].decode("utf-8", "replace")
        kind = read(values + count * width + number, 1)
        place = values + number * width
        if sign := INTEGERS.get(kind >> 2):
            options[key] = read(place, width, signed=sign == "signed")
        elif kind >> 2 == TEXT:
            # Offsets in a flexbuffer count backwards.
            text_at = place - read(place, width)
            size = read(text_at - (1 << (kind & 3)), 1 << (kind & 3))
            options[key] = data[text_at : text_at + size].decode("utf-8", "replace")
    return options


def _find_overlap(sections: Sequence[Section]) -> str:
    """Return why the places of sections cannot be right, "" if they may be: two have a byte."""
    ordered = sorted(sections, key=lambda section: section.offset)
    for first, second in pairwise(ordered):
        if second.offset < first.offset + first.size_bytes and second.size_bytes > 0:
            return f"has a damaged header: {first.content} and {second.content} overlap"
    return ""


def parse_bundle(view: View) -> Bundle:
    """Return the sections of a .litertlm file, and the models in them."""
    if len(view) < HEADER_AT:
        return Bundle(damage=f"is cut short: it has {len(view)} bytes")
    version = ".".join(map(str, struct.unpack_from("<3I", view, len(BUNDLE))))
    (end,) = struct.unpack_from("<Q", view, HEADER_END_AT)
    if not HEADER_AT < end <= len(view):
        return Bundle(version, damage=f"is cut short: its header ends at byte {end}")
    try:
        root = Tables(view, HEADER_AT, end).root()
        system, listed = root.table(0), root.table(1)
        items = dict(_list_items(system, 0)) if system else {}
        sections = [_read_section(table) for table in listed.list_tables(0)] if listed else []
    except (struct.error, OverflowError) as error:
        return Bundle(version, damage=f"has a header that cannot be read: {error}")
    damage = _find_overlap(sections) if sections else "has no section"
    described = []
    for number, section in enumerate(sections):
        end = section.offset + section.size_bytes
        if section.size_bytes < 0 or end > len(view):
            damage = damage or (
                f"is cut short: section {number}, {section.content}, ends at byte {end}, and the "
                f"file at {len(view)}"
            )
        elif section.content == SECTIONS[MODEL_SECTION]:
            label = str(section.items.get("model_type") or f"section {number}")
            model = parse_model(memoryview(view)[section.offset : end], label)
            section = replace(section, model=model)
            if model.damage:
                damage = damage or f"contains a model, {label}, that {model.damage}"
        described.append(section)
    return Bundle(version, items, tuple(described), damage)


def _read_section(table: Table) -> Section:
    number = table.number(3, "B")
    content = SECTIONS[number] if number < len(SECTIONS) else f"data of type {number}"
    begin, end = table.number(1, "Q"), table.number(2, "Q")
    return Section(content, begin, end - begin, dict(_list_items(table, 0)))


def _list_items(table: Table, field: int) -> Iterator[tuple[str, Constant]]:
    """Yield the keys and the values of a list of pairs; a value of an unknown type is None."""
    for pair in table.list_tables(field):
        kind, content = pair.number(1, "B"), pair.table(2)
        value: Constant = None
        if content and kind == VALUE_TEXT:
            value = content.text(0)
        elif content and kind in VALUE_FORMS:
            number = content.number(0, VALUE_FORMS[kind])
            value = number if math.isfinite(number) else str(number)
        yield pair.text(0), value
