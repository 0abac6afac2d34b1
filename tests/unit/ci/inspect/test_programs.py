"""What is read of programs and context binaries, whole, odd, damaged or hostile, and its text."""

from __future__ import annotations

import io
import json
import math
import random
import signal
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

from ci.inspect.files import Inspected, Inspection, Library, inspect_file
from ci.verbs.inspect import render_files
from provisioning.doctor.survey import programs
from provisioning.doctor.survey.context_binaries import (
    ContextBinary,
    Graph,
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
    parse_program,
)
from provisioning.elf.programs import MAX_ITEMS, NO_SOC, Tables
from provisioning.errors import QnnCiError
from tests.stand_ins.lowered import Number, Vector, make_binary, make_flatbuffer, make_program
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")
LIMIT_S, MUTANTS = 20, 150
BINARY, NEWER = make_binary(), make_binary(version=4)
SOCS = (("SM8650", 57, 75), ("SM8750", 69, 79))


def show(value: object, indent: str = "  ") -> str:
    """The fields of a struct that do not have their defaults, and the structs in it."""
    assert is_dataclass(value)
    plain, nested = [], ""
    for field in fields(value):
        value_of_field = getattr(value, field.name)
        usual = field.default
        if usual is MISSING and field.default_factory is not MISSING:
            usual = field.default_factory()
        if isinstance(value_of_field, tuple) and value_of_field and is_dataclass(value_of_field[0]):
            nested += "".join(
                f"{indent}{field.name}: {show(item, f'{indent}  ')}" for item in value_of_field
            )
        elif usual is MISSING or value_of_field != usual:
            plain.append(f"{field.name}={value_of_field!r}")
    return f"{type(value).__name__} {', '.join(plain)}\n{nested}"


def parse(data: bytes, name: str = "model.pte") -> Program:
    program = parse_program(memoryview(data), name)
    assert program
    return program


def program_of(*methods: Mapping[int, Any], **options: Any) -> bytes:
    """A .pte with these methods."""
    inline_data = {3: Vector(options["inline"])} if "inline" in options else {}
    return make_flatbuffer({1: Vector(methods), **inline_data}, b"ET12" + options.get("head", b""))


# -- context binaries -----------------------------------------------------------------------------


def edit(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


def with_options(data: bytes, text: str) -> bytes:
    """A context binary with more compile options at its end."""
    changed = bytearray(data)
    (size,) = struct.unpack_from("<Q", changed, 32)
    struct.pack_into("<Q", changed, 32, size + len(text))
    return bytes(changed) + text.encode()


def with_less_vtcm(graph: int) -> bytes:
    """A binary of two graphs, one of which has 2 MB instead of 4."""
    data = bytearray(make_binary(graphs=("a", "b"), vtcm_mb=4))
    packed = struct.pack("<IQII", 1, 0, 0, 4 << 20)
    place = data.rindex(packed) if graph else data.index(packed)
    struct.pack_into("<I", data, place + 16, 2 << 20)
    return bytes(data)


def with_facts(size: int) -> bytes:
    """HTP's facts about the graph are this many bytes long."""
    head = struct.pack("<IIQII", 112, 1, 0, 0, 8 << 20)[:12]
    return edit(BINARY, head, struct.pack("<I", size) + head[4:])


def with_backend(number: int) -> bytes:
    place = BINARY.index(struct.pack("<3I", 2, 38, 0))  # the version of the core API, after the id
    start = BINARY.rindex(struct.pack("<I", 6), 0, place)
    return BINARY[:start] + struct.pack("<I", number) + BINARY[start + 4 :]


OTHER_TARGET = "min_arch=73;soc_type=SM8750;arch=79;unroll=1;vtcm_size=2097152;"
NO_TARGET = f"soc_type={NO_SOC};arch=75;unroll=1;vtcm_size=2097152;"
CONTEXTS: dict[str, Callable[[], bytes]] = {
    "two graphs": lambda: make_binary(graphs=("prefill", "decode"), vtcm_mb=4),
    "targets that have nothing in common": lambda: with_options(NEWER, OTHER_TARGET),
    "a target without an SoC": lambda: with_options(NEWER, NO_TARGET),
    "less VTCM in the first graph": lambda: with_less_vtcm(0),
    "less VTCM in the second graph": lambda: with_less_vtcm(1),
    # Seen: QNN 2.51 writes 8 MB into the options of a graph that has 4.
    "VTCM of the options differs": lambda: edit(
        make_binary(vtcm_mb=4), b"vtcm_size=4194304;", b"vtcm_size=8388608;"
    ),
    "the version is in the second field": lambda: make_binary(version=0),
    "another version": lambda: make_binary(version=4),
    "an unknown SoC": lambda: make_binary(soc=("NEW1", 999, 285)),
    "cut": lambda: BINARY[:-1],
    "nothing known": lambda: bytes(24) + struct.pack("<QQ", 0, 40),
    **{
        f"scale {scale}": lambda scale=scale: BINARY.replace(  # type: ignore[misc]
            struct.pack("<f", 0.5), struct.pack("<f", scale)
        )
        for scale in (math.inf, -math.inf, math.nan)
    },
    **{f"{number} bytes about the graph": partial(with_facts, number) for number in (19, 20, 95)},
    **{f"backend {number}": partial(with_backend, number) for number in (3, 4, 5, 6, 7, 12)},
}  # fmt: skip


def test_context_binary_names_its_compiler_target_and_graphs() -> None:
    usual = show(parse_context_binary(BINARY, 64))
    shown = f"usual\n  {usual}"
    for name, make in CONTEXTS.items():
        described = show(parse_context_binary(make(), 64))
        lines = [line for line in described.splitlines() if line not in usual.splitlines()]
        shown += f"{name}\n" + "".join(f"  {line}\n" for line in lines)
    check_snapshot(SNAPSHOTS / "contexts.txt", shown)


@pytest.mark.parametrize(
    ("kind", "name", "bits"),
    [
        *((0x00, "int", (8, 16, 32, 64)), (0x01, "uint", (8, 16, 32, 64))),
        *((0x02, "float", (16, 32, 64)), (0x05, "bool", (8,))),
        *((0x03, "sfixed", (4, 8, 16, 32)), (0x04, "ufixed", (4, 8, 16, 32))),
    ],
)
def test_qnn_types_are_named_by_kind_and_bits(kind: int, name: str, bits: tuple[int, ...]) -> None:
    """QnnTypes.h writes the bits in decimal digits: 0x0432 has 32."""
    for each in (4, 8, 16, 32, 64):
        number = kind << 8 | int(str(each), 16)
        data = BINARY.replace(struct.pack("<I", 0x0408), struct.pack("<I", number))
        (graph,) = parse_context_binary(data).graphs
        expected = f"{name}{each}" if each in bits else f"0x{number:04x}"
        assert graph.inputs[0].dtype == expected


def test_context_binaries_are_found_anywhere_if_they_are_whole() -> None:
    for parse_all in (scan_context_binaries, list_context_binaries):
        for start in (0, 7):
            assert [context.offset for context in parse_all(BINARY, start)] == [start]
    for size, count in ((0, 0), (40, 0), (41, 1)):  # the header alone is 40 bytes long
        small = BINARY[:24] + struct.pack("<QQ", 0, size) + bytes(40)
        assert len([*scan_context_binaries(small)]) == count
    for size in (8, 39, 40, len(BINARY) - 1):
        assert list(scan_context_binaries(bytes(8) + BINARY[:size])) == []
    contexts = list(scan_context_binaries(bytes(64) + BINARY + bytes(3) + BINARY + BINARY[:-1]))
    assert contexts == [parse_context_binary(BINARY, at) for at in (64, 67 + len(BINARY))]
    for data, is_known in ((b"PK\3\4" + bytes(60), True), (bytes(64), False)):
        assert (programs._find_context(memoryview(data), 0, len(data)) is not None) == is_known


def test_package_has_a_context_binary_for_each_soc() -> None:
    """It is a ZIP archive without compression."""
    packed, starts = io.BytesIO(), []
    with zipfile.ZipFile(packed, "w") as archive:
        for soc in SOCS:
            archive.writestr(zipfile.ZipInfo(f"{soc[0]}.bin"), make_binary(soc=soc))
            starts.append(packed.tell() - len(BINARY))
        archive.writestr("dlc.metadata", "text")
    data = packed.getvalue()
    contexts = list_context_binaries(memoryview(data), 5)
    assert [(context.soc, context.damage, context.offset - 5) for context in contexts] == [
        (soc[0], "", start) for soc, start in zip(SOCS, starts, strict=True)
    ]
    (cut,) = list_context_binaries(memoryview(data)[:-30], 5)
    assert (cut.offset, cut.damage[:9], cut.soc) == (5, "is cut sh", "")
    empty = io.BytesIO()
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("readme", "text")
    (unread_context,) = list_context_binaries(memoryview(empty.getvalue()))
    assert "without a context binary" in unread_context.unread
    for data_of_file, count in ((data, 2), (BINARY, 1)):
        program = parse(data_of_file, "a.bin")
        assert (program.kind, program.size_bytes, program.damage) == (
            "context",
            len(data_of_file),
            "",
        )
        assert (len(program.contexts), program.is_package) == (count, count > 1)


# -- programs -------------------------------------------------------------------------------------


def with_flag(field: int) -> bytes:
    """A program whose compile options have a flag."""
    soc = {0: Number("i", 57), 1: {0: Number("i", 75), 1: Number("I", 8)}}
    options = make_flatbuffer({0: soc, field: Number("B", 1)})
    other_spec = {0: "other_spec", 1: Vector(b"of another kind")}
    spec = Vector([other_spec, {0: "qnn_compile_spec", 1: Vector(options)}, other_spec])
    return program_of({0: "forward", 7: Vector([{0: "QnnBackend", 2: spec}])})


def tensor(dtype: int, *sizes: int, buffer: int | None = None, **options: Any) -> dict[int, Any]:
    stored = {5: Number("I", buffer)} if buffer is not None else {}
    shape = {0: Number("b", dtype), 2: Vector(sizes, "i"), **stored, **options.get("fields", {})}
    return {0: Number("B", 5), 1: shape}


SCALAR = {0: Number("B", 2), 1: {0: Number("q", 5)}}
PORTS = {3: Vector([0], "i"), 4: Vector([0], "i")}
DELEGATES = [{0: "QnnBackend", 1: {1: Number("I", number)}} for number in (0, 1)]


def make_odd_program() -> bytes:
    """What QNN does not write: odd values, operators, delegates and data in the flatbuffer."""
    stored = tensor(6, 2, buffer=1)
    calls = [{0: Number("B", 1), 1: {0: Number("i", status)}} for status in (1, 0, 1, 2, -1)]
    qnn = {0: "QnnBackend", 1: {0: Number("b", 0), 1: Number("I", 1)}}
    none = {0: "QnnBackend", 1: {0: Number("b", 0), 1: Number("I", 0)}}
    forward = {
        0: "forward",
        2: Vector([SCALAR, tensor(99, 4), {0: Number("B", 5)}, stored]),
        3: Vector([1, 0], "i"),
        4: Vector([2, 1], "i"),
        5: Vector([{2: Vector([*calls, {0: Number("B", 1)}])}]),
        6: Vector([{0: "z::last", 1: "out"}, {0: "a::first"}]),
        7: Vector([{0: "Other", 1: {1: Number("I", 9)}}, none, qnn, {0: "QnnBackend"}, qnn]),
    }
    fourth = {0: "again", 2: Vector([stored]), **PORTS}
    pair = {0: "get_pair", 2: Vector([SCALAR, SCALAR]), 4: Vector([1, 0], "i")}
    inline = [{0: Vector(b"none of QNN")}, {0: Vector(BINARY)}]
    return program_of(forward, pair, fourth, inline=inline)


def make_tensors(*names: str) -> bytes:
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


def refer(change: Mapping[int, Any]) -> bytes:
    plan = {0: "forward", 2: Vector([tensor(0, *[1] * 16)]), 3: Vector([0], "i")}
    return program_of({**plan, **change})


def point_outside() -> bytes:
    program = bytearray(make_program())
    struct.pack_into("<I", program, 0, len(program) - 2)
    return bytes(program)


def claim_more() -> bytes:
    data = make_program()
    place = data.index(struct.pack("<I", 0x5678ABCD)) + 12
    return data[:place] + struct.pack("<Q", 1 << 40) + data[place + 8 :]


EXTERNAL = tensor(6, 2, buffer=1, fields={9: {1: "w", 2: Number("b", 1)}})
NEEDS_PTD = program_of({0: "forward", 2: Vector([EXTERNAL]), **PORTS}, head=bytes(24))
DELEGATE = {0: "QnnBackend", 1: {0: Number("b", 1), 1: Number("I", 0)}}
WEIGHTS = [
    {0: "prefill", 2: Vector([tensor(6, 2, 3, buffer=1), tensor(1, 5, buffer=2)]), **PORTS},
    {0: "decode", 2: Vector([tensor(6, 2, 3, buffer=1), tensor(6, 4, buffer=3)]), **PORTS},
]
PROGRAMS: dict[str, Callable[[], bytes]] = {
    "usual": make_program,
    **{f"a segment at {at}": partial(make_program, align=at) for at in (64, 4096, 8192)},
    "a segment that cannot be mapped": lambda: make_program(align=4),
    **{f"option {field}": partial(with_flag, field) for field in (3, 4, 5)},
    "an odd program": make_odd_program,
    "an odd program whose context is damaged": lambda: make_odd_program().replace(
        BINARY[32:40], b"\xff" * 8
    ),
    "the second of two contexts is damaged": lambda: program_of(
        {0: "forward", 7: Vector(DELEGATES)},
        inline=[{0: Vector(BINARY)}, {0: Vector(BINARY + bytes(4))}],
    ),
    "16 dimensions": lambda: refer({}),
    "17 dimensions": lambda: refer({2: Vector([tensor(0, *[1] * 17)])}),
    "a value that is missing": lambda: refer({3: Vector([1], "i")}),
    "a value before the first": lambda: refer({3: Vector([-1], "i")}),
    "data that is missing": lambda: refer({7: Vector([DELEGATE])}),
    "weights of an unknown type": lambda: program_of(
        {0: "forward", 2: Vector([tensor(6, 1), tensor(99, 2, 3, buffer=1)]), **PORTS}
    ),
    "weights of two methods, each buffer once": lambda: program_of(*WEIGHTS),
    "cut": lambda: make_program()[:-10],
    "a context that claims more": claim_more,
    "an offset that leads out": point_outside,
    "tensors": lambda: make_tensors("a.weight", "a.bias"),
    "cut tensors": lambda: make_tensors("a.weight", "a.bias")[:-1],
    "a program that needs a .ptd": lambda: NEEDS_PTD,
    "a bundle of it": lambda: make_flatbuffer({2: NEEDS_PTD}, b"BP08"),
    "an empty bundle": lambda: make_flatbuffer({}, b"BP08"),
}  # fmt: skip


def test_program_has_methods_partitions_constants_segments_and_contexts() -> None:
    shown = "".join(f"{name}\n  {show(parse(make()), '    ')}" for name, make in PROGRAMS.items())
    check_snapshot(SNAPSHOTS / "programs.txt", shown)


# The scalar types of executorch/schema/scalar_type.fbs by their numbers, and others.
SCALARS = {0: "uint8", **{number: f"int{4 << number}" for number in range(1, 5)}}
SCALARS |= {5: "float16", 6: "float32", 7: "float64"}
SCALARS |= {11: "bool", 15: "bfloat16", 22: "bits16", 27: "uint16", 28: "uint32", 29: "uint64"}


# -- hostile files --------------------------------------------------------------------------------


def test_flatbuffer_offsets_that_form_a_loop_are_read_in_bounded_time() -> None:
    loop = Tables(make_flatbuffer({1: Vector([{1: Vector([{}])}])})).root()
    assert len(list(loop.list_tables(1))) == 1
    tables = Tables(make_flatbuffer({1: Vector([0] * 4000, "I")}))
    for _ in range(MAX_ITEMS // 4001):  # with the table, each round reads 4,001 items again
        tables.root().list(1)
    with pytest.raises(struct.error):
        tables.root().list(1)


def test_reader_of_flatbuffers_reads_no_byte_outside_its_data() -> None:
    for place in (-8, -1, 13, 1 << 40):
        with pytest.raises(struct.error):
            Tables(bytes(16)).read("I", place)
    data = make_flatbuffer({0: "abcd"})
    assert Tables(data).root().text(0) == "abcd"
    with pytest.raises(struct.error):
        Tables(data, 0, len(data) - 2).root().text(0)
    fields_of_table = {
        number: Number("I", 7) for number in range(4)
    }  # the table follows the vtable at once
    table = Tables(make_flatbuffer(fields_of_table)).root()
    assert [table.number(number, default=5) for number in range(6)] == [7, 7, 7, 7, 5, 5]


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
def test_mutated_file_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    """A sample: 2,000 mutations of real programs were tried when this test was written."""
    data = make_program() if kind.endswith(".pte") else make_binary(graphs=("a", "b"))
    chance, path = random.Random(43), tmp_path / kind
    damaged = 0
    for _ in range(MUTANTS):
        path.write_bytes(mutate(data, chance))
        try:
            inspected = inspect_file(path)
        except QnnCiError:
            continue
        damaged += bool(inspected.damage)
        assert render_files([inspected])
        json.dumps(msgspec.to_builtins(Inspection((inspected,))), allow_nan=False)
    assert damaged > MUTANTS // 10


# -- text -----------------------------------------------------------------------------------------

FIRST = ContextBinary(
    *(64, 1000),
    qnn="2.48.40",
    binary_info=3,
    core_api="2.30.0",
    backend_api="5.48.0",
    soc="SM8650",
    soc_id=57,
    hexagon=75,
    vtcm_mb=8,
)
PORT = TensorSpec("x", "float32", (1, 4), scale=0.5, zero_point=3)
GRID = replace(PORT, name="y", zero_point=0)
GRAPHS = (
    Graph("g1", (PORT,), (GRID,), constant_bytes=2000),
    Graph("g2"),
    Graph("g3", constant_bytes=0),
)
SECOND = ContextBinary(7, 1024, soc_id=57)
CALLS = {"aten::erf.out": 1, "aten::bmm.out": 2}
TENSOR = TensorSpec("x", "float32", (1, 4))
PARTS = tuple(Partition(f"{name}nnBackend") for name in "QXQ")
WHOLE = Program(
    *("m.pte", "program", 1),
    methods=(
        Method("m1", (TENSOR, replace(TENSOR, name="x2")), (TENSOR,), PARTS, {}),
        Method("m2", (), (), PARTS[:1], CALLS),
    ),
    metadata={"get_length": 512, "get_dtype": (6, 5)},
    contexts=(
        replace(FIRST, graphs=GRAPHS),
        replace(SECOND, unread="too new"),
        replace(SECOND, soc_id=0),
        replace(SECOND, soc_id=0, unread="a DLC"),
    ),
    segments=(SegmentSpan(128, 2048, 128), SegmentSpan(4096, 4096, 4096)),
    constant_bytes={"float32": 2048, "int8": 100},
    misplaced="has a segment at byte 3",
)  # fmt: skip


def test_text_of_inspected_files_has_each_figure() -> None:
    cut = Program("m.pte", "program", 1, metadata={"get_length": 512}, damage="is cut")
    hexagon = Library("Hexagon", 75, qnn="2.50", api_level=30, align=4096)
    plain = Library("aarch64", 0, qnn="", api_level=0, align=64)
    inner = Inspected(
        "b.apk", "package", 9, entries=(Inspected("c.so", "library", 8, library=plain),)
    )
    entries = (Inspected("a.so", "library", 7, "is cut"), inner)
    tensors = parse(make_tensors("a.weight", "a.bias"), "m.ptd")
    text = render_files(
        [
            Inspected("m.pte", "program", 1500, program=WHOLE),
            Inspected("m.pte", "program", 1, "is cut", cut),
            Inspected("m.ptd", "data", 812, program=tensors),
            Inspected("a.so", "library", 1, library=hexagon),
            Inspected("a.so", "library", 1, library=plain),
            Inspected("app.apks", "package", 2048, "contains files", entries=entries),
            *(Inspected("x", kind, 812) for kind in ("bundle", "context", "onnx", "unknown")),
        ]
    )
    check_snapshot(SNAPSHOTS / "inspected.txt", text)
