"""What is read of programs and context binaries, and of damaged ones."""

from __future__ import annotations

import io
import json
import math
import os
import random
import re
import signal
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

from ci.inspect.files import Inspection, inspect_file
from ci.verbs.inspect import render_files
from provisioning.doctor.survey import context_binaries, programs
from provisioning.doctor.survey.context_binaries import (
    ContextBinary,
    TensorSpec,
    list_context_binaries,
    parse_context_binary,
    scan_context_binaries,
)
from provisioning.doctor.survey.programs import (
    Method,
    Partition,
    Program,
    SegmentSpan,
    parse_constant,
    parse_program,
    read_program,
)
from provisioning.elf.programs import NO_SOC, Target
from provisioning.elf.tables import MAX_ITEMS, Tables
from provisioning.errors import QnnCiError, UsageError
from tests.stand_ins.lowered import (
    BUILD,
    Number,
    Vector,
    make_binary,
    make_flatbuffer,
    make_program,
    make_tensor,
)

LIMIT_S, MUTANTS = 20, 150


def test_a_context_binary_names_its_compiler_target_and_graphs() -> None:
    found = parse_context_binary(make_binary(graphs=("prefill", "decode"), vtcm_mb=4), 64)
    assert (found.build, found.qnn, found.backend) == (BUILD, "2.49.40", "HTP")
    assert (found.core_api, found.backend_api, found.format) == ("2.38.0", "5.49.0", "4.0.4")
    assert (found.soc, found.soc_id, found.hexagon, found.vtcm_mb) == ("SM8650", 57, 75, 4)
    assert (found.binary_info, found.offset, found.damage, found.unread) == (3, 64, "", "")
    assert [(one.name, one.vtcm_mb) for one in found.graphs] == [("prefill", 4), ("decode", 4)]
    assert (found.min_arch, found.graphs[0].constant_bytes) == (75, 24 << 10)
    assert found.targets == (Target("SM8650", 75, 4),)
    assert found.graphs[0].inputs == (TensorSpec("x", "ufixed8", (1, 3), 0.5, 128),)
    assert found.graphs[0].outputs == (TensorSpec("y", "float32", (1, 4)),)


def with_options(data: bytes, *texts: str) -> bytes:
    """A context binary with more compile options at its end."""
    changed, more = bytearray(data), "".join(texts).encode()
    (size,) = struct.unpack_from("<Q", changed, 32)
    struct.pack_into("<Q", changed, 32, size + len(more))
    return bytes(changed) + more


def test_graphs_for_several_targets_have_none_in_common() -> None:
    options = "min_arch=73;soc_type=SM8750;arch=79;unroll=1;vtcm_size=2097152;"
    found = parse_context_binary(with_options(make_binary(version=4), options))
    assert (found.soc, found.hexagon, found.vtcm_mb, found.min_arch) == ("", 0, 8, 73)
    assert found.targets == (Target("SM8650", 75, 8), Target("SM8750", 79, 2))


@pytest.mark.parametrize("first", [0, 1])
def test_the_vtcm_is_the_most_that_a_graph_has(first: int) -> None:
    data = bytearray(make_binary(graphs=("a", "b"), vtcm_mb=4))
    packed = struct.pack("<IQII", 1, 0, 0, 4 << 20)
    place = data.index(packed) if first else data.rindex(packed)
    struct.pack_into("<I", data, place + 16, 2 << 20)
    found = parse_context_binary(bytes(data))
    assert (found.vtcm_mb, sorted(one.vtcm_mb or 0 for one in found.graphs)) == (4, [2, 4])


def test_the_version_of_a_description_may_be_in_its_second_field() -> None:
    found = parse_context_binary(make_binary(version=0))
    assert (found.binary_info, found.unread, len(found.graphs)) == (3, "", 1)


@pytest.mark.parametrize("scale", [math.inf, -math.inf, math.nan])
def test_a_scale_that_is_no_number_is_unknown(scale: float) -> None:
    data = make_binary().replace(struct.pack("<f", 0.5), struct.pack("<f", scale))
    (graph,) = parse_context_binary(data).graphs
    assert graph.inputs == (TensorSpec("x", "ufixed8", (1, 3), None, 128),)


def test_the_vtcm_is_that_of_the_graphs_where_the_options_differ() -> None:
    """Seen: QNN 2.51 writes 8 MB into the options of a graph that has 4."""
    data = make_binary(vtcm_mb=4).replace(b"vtcm_size=4194304;", b"vtcm_size=8388608;")
    assert parse_context_binary(data).vtcm_mb == 4


def test_a_target_without_a_soc_does_not_hide_the_one_that_is_named() -> None:
    other = f"soc_type={NO_SOC};arch=75;unroll=1;vtcm_size=2097152;".encode()
    data = bytearray(make_binary(version=4) + other)
    (size,) = struct.unpack_from("<Q", data, 32)
    struct.pack_into("<Q", data, 32, size + len(other))
    found = parse_context_binary(bytes(data))
    targets = (Target("SM8650", 75, 8), Target(NO_SOC, 75, 2))
    assert (found.soc, found.targets, found.vtcm_mb) == ("SM8650", targets, 8)
    assert found.damage == ""


@pytest.mark.parametrize(
    ("version", "has_outer", "name"),
    [(3, True, "g"), (2, True, "?"), (4, True, "?"), (3, False, "?")],
)
def test_a_graph_of_another_version_is_not_read(version: int, has_outer: bool, name: str) -> None:
    ports = Vector([make_tensor("x", 0x0232, (1,))])
    outer = {0: {0: {0: "g", 2: ports, 4: ports}}}
    fields = {0: Number("I", version), **({2: outer} if has_outer else {})}
    graph = context_binaries._parse_graph(Tables(make_flatbuffer(fields)).root())
    assert (graph.name, len(graph.inputs), len(graph.outputs)) == (name, *[int(name == "g")] * 2)


@pytest.mark.parametrize(
    ("change", "grid"),
    [
        ({}, (0.5, 128)),
        ({5: Number("I", 0)}, (0.5, 128)),
        ({5: Number("I", 1)}, (None, None)),  # one scale for each channel
        ({4: Number("I", 0x7FFFFFFF)}, (None, None)),
    ],
)
def test_a_grid_is_one_scale_and_one_zero_point(
    change: dict[int, Any], grid: tuple[float | None, int | None]
) -> None:
    fields = make_tensor("x", 0x0408, (2, 3), 0.5) | change
    tensor = context_binaries._parse_tensor(Tables(make_flatbuffer(fields)).root())
    assert tensor == TensorSpec("x", "ufixed8", (2, 3), *grid)


BINARY = make_binary()


@pytest.mark.parametrize(
    ("head", "told", "size", "offset", "length", "damage"),
    [
        (b"\xcd\xab\x78\x56".ljust(256, b"\0"), 0, 0, 256, len(BINARY), ""),
        (b"\xcd\xab\x78\x56".ljust(20, b"\0"), 0, 0, 20, len(BINARY), ""),
        (b"\xcd\xab\x78\x56".ljust(20, b"\0"), 0, 9, 20, len(BINARY), ""),
        (b"\xcd\xab\x78\x57".ljust(20, b"\0"), 9, 0, 20, len(BINARY), ""),
        (b"\xcd\xab\x78\x56".ljust(19, b"\0"), 0, 0, 19, len(BINARY), ""),
        (b"", 0, 0, 0, len(BINARY), ""),
        (b"\xcd\xab\x78\x56".ljust(20, b"\0"), 0, -1, 20, len(BINARY) - 1, "has only"),
        (b"\xcd\xab\x78\x56".ljust(20, b"\0"), 1, 0, 20, len(BINARY), "has only"),
        (b"\xcd\xab\x78\x56".ljust(20, b"\0"), 99, 99, 20, len(BINARY) + 99, "has only"),
        (b"", 0, 10, 0, len(BINARY) + 10, "is "),
        (b"", 0, 11, 0, len(BINARY) + 11, "has only"),
    ],
)
def test_a_context_binary_is_found_behind_the_header_of_its_data(
    head: bytes, told: int, size: int, offset: int, length: int, damage: str
) -> None:
    """The data is between 64 bytes and 10 more; ``told`` and ``size`` are added to its own."""
    head = head[:12] + struct.pack("<Q", len(BINARY) + told) + head[20:] if len(head) > 19 else head
    view = memoryview(bytes(64) + head + BINARY + bytes(10))
    found = programs._find_context(view, 64, len(head) + len(BINARY) + size)
    assert found
    assert (found.offset, found.size_bytes) == (64 + offset, length)
    assert found.damage.startswith(damage)
    assert bool(found.damage) == bool(damage)


@pytest.mark.parametrize(("data", "is_known"), [(b"PK\3\4" + bytes(60), True), (bytes(64), False)])
def test_data_of_a_delegate_may_be_an_archive_or_another_thing(data: bytes, is_known: bool) -> None:
    found = programs._find_context(memoryview(data), 0, len(data))
    assert (found is not None) == is_known


def test_what_is_unknown_of_a_context_binary_is_said() -> None:
    other = parse_context_binary(make_binary(version=4))
    assert (other.binary_info, other.graphs) == (4, ())
    assert "version 4" in other.unread
    assert (other.qnn, other.soc, other.hexagon, other.vtcm_mb) == ("2.49.40", "SM8650", 75, 8)
    strange = parse_context_binary(make_binary(soc=("NEW1", 999, 285)))
    assert (strange.soc, strange.soc_id, strange.hexagon) == ("NEW1", 999, 285)
    cut = parse_context_binary(make_binary()[:-1])
    assert "cut short" in cut.damage
    nothing = parse_context_binary(bytes(24) + struct.pack("<QQ", 0, 40))
    assert nothing == ContextBinary(0, 40, unread="it has an unknown format")


def test_a_program_has_methods_partitions_constants_and_segments() -> None:
    program = parse_program(memoryview(make_program()), "model.pte")
    assert program
    (method,) = program.methods
    assert (method.name, method.cpu_operators) == ("forward", {"aten::erf.out": 1})
    assert method.partitions == (Partition("QnnBackend", 0, 57, 75, 8),)
    assert method.inputs == method.outputs == (TensorSpec("0", "float32", (1, 3)),)
    assert program.metadata == {"get_max_seq_len": 512}
    assert program.constant_bytes == {"int8": 6}
    (context,) = program.contexts
    assert (context.offset, context.soc, context.damage) == (1280, "SM8650", "")
    assert program.segments == (SegmentSpan(1024, len(make_binary()) + 256, 1024),)
    assert (program.damage, program.misplaced) == ("", "")


@pytest.mark.parametrize(("at", "align"), [(64, 64), (4096, 4096), (8192, 4096)])
def test_a_segment_is_aligned_to_at_most_a_page(at: int, align: int) -> None:
    program = parse_program(memoryview(make_program(align=at)), "model.pte")
    assert program
    (segment,) = program.segments
    assert (segment.offset % at, segment.align >= align, segment.align <= 4096) == (0, True, True)


@pytest.mark.parametrize(("field", "is_online"), [(3, False), (4, True), (5, False)])
def test_options_tell_whether_the_device_compiles(field: int, is_online: bool) -> None:
    soc = {0: Number("i", 57), 1: {0: Number("i", 75), 1: Number("I", 8)}}
    options = make_flatbuffer({0: soc, field: Number("B", 1)})
    other = {0: "other_spec", 1: Vector(b"of another kind")}
    spec = Vector([other, {0: "qnn_compile_spec", 1: Vector(options)}, other])
    plan = {0: "forward", 7: Vector([{0: "QnnBackend", 2: spec}])}
    program = parse_program(make_flatbuffer({1: Vector([plan])}, b"ET12"), "a.pte")
    assert program
    assert program.methods[0].partitions == (
        Partition("QnnBackend", None, 57, 75, 8, online_prepare=is_online),
    )


def test_a_program_may_have_what_qnn_does_not_write() -> None:
    binary = make_binary()
    scalar = {0: Number("B", 2), 1: {0: Number("q", 5)}}
    tensor = {0: Number("B", 5), 1: {0: Number("b", 99), 2: Vector([4], "i")}}
    stored = {0: Number("B", 5), 1: {0: Number("b", 6), 2: Vector([2], "i"), 5: Number("I", 1)}}
    calls = [{0: Number("B", 1), 1: {0: Number("i", one)}} for one in (1, 0, 1, 2, -1)]
    qnn = {0: "QnnBackend", 1: {0: Number("b", 0), 1: Number("I", 1)}}
    none = {0: "QnnBackend", 1: {0: Number("b", 0), 1: Number("I", 0)}}
    forward = {
        0: "forward",
        2: Vector([scalar, tensor, {0: Number("B", 5)}, stored]),
        3: Vector([1, 0], "i"),
        4: Vector([2, 1], "i"),
        5: Vector([{2: Vector([*calls, {0: Number("B", 1)}])}]),
        6: Vector([{0: "z::last", 1: "out"}, {0: "a::first"}]),
        7: Vector([{0: "Other", 1: {1: Number("I", 9)}}, none, qnn, {0: "QnnBackend"}, qnn]),
    }
    again = {0: "again", 2: Vector([stored]), 3: Vector([0], "i"), 4: Vector([0], "i")}
    pair = {0: "get_pair", 2: Vector([scalar, scalar]), 4: Vector([1, 0], "i")}
    inline = Vector([{0: Vector(b"none of QNN")}, {0: Vector(binary)}])
    data = make_flatbuffer({1: Vector([forward, pair, again]), 3: inline}, b"ET12")
    program = parse_program(memoryview(data), "model.pte")
    assert program
    ports = TensorSpec("0", "unknown", (4,)), TensorSpec("1", "not a tensor", ())
    outputs = TensorSpec("0", "not a tensor", ()), TensorSpec("1", "unknown", (4,))
    operators = {"a::first": 2, "operator -1": 1, "operator 2": 1, "z::last.out": 1}
    partitions = (
        Partition("Other"),
        Partition("QnnBackend"),
        Partition("QnnBackend", 0),
        Partition("QnnBackend"),
        Partition("QnnBackend", 0),
    )
    port = (TensorSpec("0", "float32", (2,)),)
    assert program == Program(
        "model.pte",
        "program",
        len(data),
        methods=(
            Method("forward", ports, outputs, partitions, operators),
            Method("again", port, port, (), {}),
        ),
        metadata={"get_pair": (5, 5)},
        contexts=(parse_context_binary(binary, data.index(binary)),),
        constant_bytes={"float32": 8},
        misplaced="contains a context binary in its flatbuffer, not in a segment",
    )
    assert list(program.methods[0].cpu_operators) == list(operators)
    cut = parse_program(memoryview(data.replace(binary[32:40], b"\xff" * 8)), "model.pte")
    assert cut
    assert "contains a context binary that is " in cut.damage
    assert cut.misplaced == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({3: Vector([1], "i")}, "a method refers to value 1, but has only 1"),
        ({3: Vector([-1], "i")}, "a method refers to value -1, but has only 1"),
        ({2: Vector([{0: Number("B", 5), 1: {2: Vector([1] * 17, "i")}}])}, "17 dimensions"),
        (
            {7: Vector([{0: "QnnBackend", 1: {0: Number("b", 1), 1: Number("I", 0)}}])},
            "a delegate refers to data 0, but there are 0",
        ),
    ],
)
def test_a_program_that_refers_to_what_it_lacks_is_damaged(
    change: dict[int, Any], why: str
) -> None:
    value = {0: Number("B", 5), 1: {2: Vector([1] * 16, "i")}}
    plan = {0: "forward", 2: Vector([value]), 3: Vector([0], "i")}
    for given, damage in ((plan, ""), (plan | change, "has a flatbuffer that cannot be read: ")):
        data = make_flatbuffer({1: Vector([given])}, b"ET12")
        program = parse_program(memoryview(data), "a.pte")
        assert program
        assert program.damage.startswith(damage)
        assert bool(program.damage) == (why in program.damage) == bool(damage)


def test_weights_of_an_unknown_type_have_no_known_size() -> None:
    stored = {0: Number("b", 99), 2: Vector([2, 3], "i"), 5: Number("I", 1)}
    port = {0: Number("B", 5), 1: {0: Number("b", 6), 2: Vector([1], "i")}}
    weight = {0: Number("B", 5), 1: stored}
    ports = {3: Vector([0], "i"), 4: Vector([0], "i")}
    forward = {0: "forward", 2: Vector([port, weight]), **ports}
    program = parse_program(make_flatbuffer({1: Vector([forward])}, b"ET12"), "a.pte")
    assert program
    assert program.constant_bytes == {"unknown": 0}


# The scalar types of executorch/schema/scalar_type.fbs by their numbers, and others.
SCALARS = {0: "uint8", **{number: f"int{4 << number}" for number in range(1, 5)}}
SCALARS |= {5: "float16", 6: "float32", 7: "float64"}
SCALARS |= {11: "bool", 15: "bfloat16", 22: "bits16", 27: "uint16", 28: "uint32", 29: "uint64"}
OTHERS = {*range(31)} - {*SCALARS}


def test_a_file_is_damaged_if_any_of_its_contexts_is() -> None:
    whole, cut = ContextBinary(0, 9), ContextBinary(9, 9, damage="is cut")
    for contexts, damage in (((), ""), ((whole,), ""), ((whole, cut, whole), "is cut")):
        program = programs.wrap_contexts("m.onnx", "onnx", 18, contexts)
        many = len(contexts) > 1
        assert program == Program(
            "m.onnx", "onnx", 18, contexts=contexts, damage=damage, is_package=many
        )


def test_types_of_tensors_have_their_names_and_sizes() -> None:
    def store(dtype: int) -> dict[int, Any]:
        shape = {2: Vector([3], "i"), 5: Number("I", 1 + dtype)}
        return {0: Number("B", 5), 1: {0: Number("b", dtype), **shape}}

    values = Vector([store(number) for number in SCALARS])
    ports = Vector(range(len(SCALARS)), "i")
    plan = {0: "forward", 2: values, 3: ports, 4: Vector([0], "i")}
    program = parse_program(make_flatbuffer({1: Vector([plan])}, b"ET12"), "a.pte")
    assert program
    assert [one.dtype for one in program.methods[0].inputs] == [*SCALARS.values()]
    assert program.constant_bytes == {
        name: 3 * int(re.sub(r"\D", "", name) or 8) // 8 for name in SCALARS.values()
    }
    plan |= {2: Vector([store(number) for number in OTHERS]), 3: Vector([0], "i")}
    program = parse_program(make_flatbuffer({1: Vector([plan])}, b"ET12"), "a.pte")
    assert program
    assert program.constant_bytes == {"unknown": 0}


@pytest.mark.parametrize(
    ("kind", "name", "bits"),
    [
        *((0x00, "int", (8, 16, 32, 64)), (0x01, "uint", (8, 16, 32, 64))),
        *((0x02, "float", (16, 32, 64)), (0x05, "bool", (8,))),
        *((0x03, "sfixed", (4, 8, 16, 32)), (0x04, "ufixed", (4, 8, 16, 32))),
    ],
)
def test_types_of_qnn_are_their_kind_and_their_bits(
    kind: int, name: str, bits: tuple[int, ...]
) -> None:
    """QnnTypes.h writes the bits in decimal digits: 0x0432 has 32."""
    for each in (4, 8, 16, 32, 64):
        number = kind << 8 | int(str(each), 16)
        data = make_binary().replace(struct.pack("<I", 0x0408), struct.pack("<I", number))
        (graph,) = parse_context_binary(data).graphs
        known = f"{name}{each}" if each in bits else f"0x{number:04x}"
        assert graph.inputs[0].dtype == known


@pytest.mark.parametrize(
    ("number", "name"),
    [*((3, "CPU"), (4, "GPU"), (5, "DSP"), (6, "HTP"), (12, "LPAI")), (7, "backend 7")],
)
def test_a_context_binary_is_for_a_backend(number: int, name: str) -> None:
    data = make_binary()
    place = data.index(struct.pack("<3I", 2, 38, 0))  # the version of the core API, after the id
    start = data.rindex(struct.pack("<I", 6), 0, place)
    changed = data[:start] + struct.pack("<I", number) + data[start + 4 :]
    assert parse_context_binary(changed).backend == name


def test_weights_are_those_of_all_methods_each_buffer_once() -> None:
    def store(dtype: int, buffer: int, *sizes: int) -> dict[int, Any]:
        shape = {2: Vector(sizes, "i"), 5: Number("I", buffer)}
        return {0: Number("B", 5), 1: {0: Number("b", dtype), **shape}}

    ports = {3: Vector([0], "i"), 4: Vector([0], "i")}
    plans = [
        {0: "prefill", 2: Vector([store(6, 1, 2, 3), store(1, 2, 5)]), **ports},
        {0: "decode", 2: Vector([store(6, 1, 2, 3), store(6, 3, 4)]), **ports},
    ]
    program = parse_program(make_flatbuffer({1: Vector(plans)}, b"ET12"), "a.pte")
    assert program
    assert program.constant_bytes == {"float32": 40, "int8": 5}


@pytest.mark.parametrize(
    ("size", "vtcm_mb", "constant_bytes"),
    [(19, None, None), (20, 8, None), (95, 8, None), (96, 8, 24 << 10)],
)
def test_a_graph_has_what_htp_wrote_about_it(
    size: int, vtcm_mb: int | None, constant_bytes: int | None
) -> None:
    data = bytearray(make_binary())
    place = data.index(struct.pack("<IIQII", 96, 1, 0, 0, 8 << 20)[:12])
    struct.pack_into("<I", data, place, size)
    (graph,) = parse_context_binary(bytes(data)).graphs
    assert (graph.vtcm_mb, graph.constant_bytes) == (vtcm_mb, constant_bytes)


def test_context_binaries_are_found_anywhere() -> None:
    binary = make_binary()
    for parse in (scan_context_binaries, list_context_binaries):
        assert [one.offset for one in parse(binary)] == [0]
        assert [one.offset for one in parse(binary, 7)] == [7]
    for size, count in ((0, 0), (40, 0), (41, 1)):  # the header alone is 40 bytes long
        small = binary[:24] + struct.pack("<QQ", 0, size) + bytes(40)
        assert len([*scan_context_binaries(small)]) == count
    found = list(scan_context_binaries(bytes(64) + binary + bytes(3) + binary + binary[:-1]))
    assert found == [parse_context_binary(binary, at) for at in (64, 67 + len(binary))]


def test_a_package_has_a_context_binary_for_each_soc() -> None:
    """It is a zip archive without compression."""
    socs = (("SM8650", 57, 75), ("SM8750", 69, 79))
    binaries = {soc[0]: make_binary(soc=soc) for soc in socs}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in binaries.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.bin"), data)
    package = memoryview(packed.getvalue())
    found = list_context_binaries(package, 5)
    assert [(one.soc, one.damage) for one in found] == [("SM8650", ""), ("SM8750", "")]
    starts = [packed.getvalue().index(data) for data in binaries.values()]
    assert [one.offset for one in found] == [5 + start for start in starts]
    (cut,) = list_context_binaries(package[:-30], 5)
    assert (cut.offset, cut.damage[:9], cut.soc) == (5, "is cut sh", "")
    empty = io.BytesIO()
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("readme", "text")
    (one,) = list_context_binaries(memoryview(empty.getvalue()))
    assert "without a context binary" in one.unread


def test_only_a_file_of_several_contexts_is_a_package() -> None:
    socs = (("SM8650", 57, 75), ("SM8750", 69, 79))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for soc in socs:
            archive.writestr(zipfile.ZipInfo(f"{soc[0]}.bin"), make_binary(soc=soc))
        archive.writestr("dlc.metadata", "text")
    for data, count in ((packed.getvalue(), 2), (make_binary(), 1)):
        program = parse_program(memoryview(data), "a.bin")
        assert program
        assert (program.kind, program.size_bytes, program.damage) == ("context", len(data), "")
        assert (len(program.contexts), program.is_package) == (count, count > 1)


def test_a_context_binary_at_the_end_of_a_file_is_whole_or_is_none() -> None:
    binary = make_binary()
    assert len(list(scan_context_binaries(bytes(8) + binary))) == 1
    for size in (8, 39, 40, len(binary) - 1):  # its header has 40 bytes
        assert list(scan_context_binaries(bytes(8) + binary[:size])) == []


def test_a_program_whose_segment_cannot_be_mapped_is_read() -> None:
    program = parse_program(memoryview(make_program(align=4)), "model.pte")
    assert program
    assert program.contexts[0].soc == "SM8650"
    assert "not at a multiple of 128" in program.misplaced


def test_damage_of_any_context_in_a_program_is_named() -> None:
    binary = make_binary()
    delegates = [{0: "QnnBackend", 1: {1: Number("I", number)}} for number in (0, 1)]
    forward = {0: "forward", 7: Vector(delegates)}
    inline = [{0: Vector(binary)}, {0: Vector(binary + bytes(4))}]
    data = make_flatbuffer({1: Vector([forward]), 3: Vector(inline)}, b"ET12")
    found = parse_program(memoryview(data), "model.pte")
    assert found
    assert [bool(one.damage) for one in found.contexts] == [False, True]
    assert found.damage == f"contains a context binary that {found.contexts[1].damage}"


def test_damage_inside_a_program_is_named() -> None:
    data = make_program()
    cut = parse_program(memoryview(data[:-10]), "model.pte")
    assert cut
    assert "cut short" in cut.damage
    header = struct.pack("<I", 0x5678ABCD)
    place = data.index(header) + 12
    larger = data[:place] + struct.pack("<Q", 1 << 40) + data[place + 8 :]
    found = parse_program(memoryview(larger), "model.pte")
    assert found
    assert "contains a context binary that has" in found.damage
    whole = bytearray(data)
    struct.pack_into("<I", whole, 0, len(data) - 2)
    found = parse_program(memoryview(bytes(whole)), "model.pte")
    assert found
    assert "flatbuffer" in found.damage


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.pte"
    for data in (b"", b"just some text"):
        path.write_bytes(data)
        with pytest.raises(UsageError):
            read_program(path)
    with pytest.raises(UsageError):
        read_program(tmp_path / "missing.pte")
    os.mkfifo(tmp_path / "pipe.pte")
    for place in (tmp_path, tmp_path / "pipe.pte"):
        with pytest.raises(UsageError):
            read_program(place)


def test_offsets_that_lead_back_cost_bounded_time() -> None:
    table = bytearray(make_flatbuffer({1: Vector([{1: Vector([{}])}])}))
    loop = Tables(bytes(table)).root()
    assert len(list(loop.list_tables(1))) == 1
    many = make_flatbuffer({1: Vector([0] * 4000, "I")})
    tables = Tables(many)
    for _ in range(MAX_ITEMS // 4001):  # with the table, each round reads 4,001 items again
        tables.root().list(1)
    with pytest.raises(struct.error):
        tables.root().list(1)


@pytest.mark.parametrize("place", [-8, -1, 13, 1 << 40])
def test_no_byte_outside_is_read(place: int) -> None:
    with pytest.raises(struct.error):
        Tables(bytes(16)).read("I", place)


def test_a_field_behind_the_vtable_has_its_default() -> None:
    fields = {number: Number("I", 7) for number in range(4)}  # the table follows at once
    table = Tables(make_flatbuffer(fields)).root()
    assert [table.number(one, default=5) for one in range(6)] == [7, 7, 7, 7, 5, 5]


def test_bytes_that_end_outside_are_not_read() -> None:
    data = make_flatbuffer({0: "abcd"})
    assert Tables(data).root().text(0) == "abcd"
    with pytest.raises(struct.error):
        Tables(data, 0, len(data) - 2).root().text(0)


def test_a_constant_that_json_cannot_have_is_text() -> None:
    double = make_flatbuffer({0: Number("B", 4), 1: {0: Number("d", float("inf"))}})
    assert parse_constant(Tables(double).root()) == "inf"
    for items, shown in (((0.5, math.nan), "(0.5, nan)"), ((0.5, 1.5), (0.5, 1.5))):
        many = make_flatbuffer({0: Number("B", programs.DOUBLES), 1: {0: Vector(items, "d")}})
        assert parse_constant(Tables(many).root()) == shown


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Flipped bits, cuts, huge numbers and offsets that lead elsewhere."""
    changed = bytearray(data)
    kind = chance.randrange(5)
    if kind == 0:
        for _ in range(chance.choice((1, 4, 64))):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del changed[chance.randrange(len(changed)) :]
    elif kind == 2:
        huge = chance.choice((0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, len(data), 1 << 20))
        struct.pack_into("<I", changed, chance.randrange(len(changed) - 4), huge)
    elif kind == 3:
        place = chance.randrange(len(changed) // 4 - 1) * 4
        struct.pack_into("<i", changed, place, chance.choice((0, 4, -4, 8, -place)))
    else:
        huge = chance.choice((2**64 - 1, 1 << 63, len(data) * 2, 0))
        struct.pack_into("<Q", changed, chance.randrange(56), huge)
    return bytes(changed)


@pytest.fixture
def _limit() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_limit")
@pytest.mark.parametrize("kind", ["model.pte", "context.bin"])
def test_a_mutated_file_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    """A sample; 2,000 of real programs were tried when this was written."""
    data = make_program() if kind.endswith(".pte") else make_binary(graphs=("a", "b"))
    chance, path = random.Random(43), tmp_path / kind
    damaged = 0
    for _ in range(MUTANTS):
        path.write_bytes(mutate(data, chance))
        try:
            found = inspect_file(path)
        except QnnCiError:
            continue
        damaged += bool(found.damage)
        assert render_files([found])
        json.dumps(msgspec.to_builtins(Inspection((found,))), allow_nan=False)
    assert damaged > MUTANTS // 10


@pytest.mark.parametrize(
    ("kind", "held", "value"),
    [
        (programs.INT, Number("q", 7), 7),
        (programs.BOOL, Number("?", 1), True),
        (programs.DOUBLE, Number("d", 0.5), 0.5),
        (programs.STRING, "a text", "a text"),
        (programs.INTS, Vector((7, 1 << 40), "q"), (7, 1 << 40)),
        (programs.BOOLS, Vector((True, False), "?"), (True, False)),
        (programs.DOUBLES, Vector((0.5, 1.5), "d"), (0.5, 1.5)),
        (programs.TENSOR, Number("q", 7), None),
    ],
)
def test_a_constant_is_read_as_its_type(kind: int, held: object, value: object) -> None:
    found = parse_constant(Tables(make_flatbuffer({0: Number("B", kind), 1: {0: held}})).root())
    assert (found, type(found)) == (value, type(value))
    empty = make_flatbuffer({0: Number("B", kind)})
    assert parse_constant(Tables(empty).root()) is None


def make_tensors(names: list[str]) -> bytes:
    """A .ptd with 16 bytes for each tensor."""
    table = make_flatbuffer(
        {
            1: Vector([{0: Number("Q", 16 * n), 1: Number("Q", 16)} for n in range(len(names))]),
            2: Vector([{0: name, 1: Number("I", n)} for n, name in enumerate(names)]),
        },
        b"FT01" + bytes(40),
    )
    base = len(table) + -len(table) % 128
    head = struct.pack("<4sIQQQQ", b"FH01", 40, 0, len(table), base, 16 * len(names))
    return (table[:8] + head + table[48:]).ljust(base, b"\0") + bytes(16 * len(names))


def test_tensors_for_programs_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.ptd"
    path.write_bytes(make_tensors(["a.weight", "a.bias"]))
    found = inspect_file(path)
    assert found.program
    assert (found.kind, found.damage, found.program.external) == (
        "data",
        "",
        ("a.weight", "a.bias"),
    )
    assert [one.size_bytes for one in found.program.segments] == [16, 16]
    assert "contains      2 tensors: a.weight, a.bias" in render_files([found])
    path.write_bytes(path.read_bytes()[:-1])
    assert inspect_file(path).damage.startswith("is cut short: it has ")


def test_a_program_that_needs_a_ptd_says_so_and_a_bundle_is_read_like_its_program() -> None:
    extra = {1: "w", 2: Number("b", 1)}
    stored = {0: Number("b", 6), 2: Vector([2], "i"), 5: Number("I", 1), 9: extra}
    values = Vector([{0: Number("B", 5), 1: stored}])
    plan = {0: "forward", 2: values, 3: Vector([0], "i"), 4: Vector([0], "i")}
    blob = make_flatbuffer({1: Vector([plan])}, b"ET12" + bytes(24))
    program = parse_program(blob, "m.pte")
    assert program
    assert (program.external, program.constant_bytes) == (("w",), {})
    bundle = parse_program(make_flatbuffer({2: blob}, b"BP08"), "m.bpte")
    assert bundle
    assert (bundle.kind, bundle.methods, bundle.damage) == ("bundle", program.methods, "")
    empty = parse_program(make_flatbuffer({}, b"BP08"), "m.bpte")
    assert empty
    assert empty.damage == "contains no program"
