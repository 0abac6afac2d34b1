"""What is read of LiteRT models and bundles, whole, compiled, damaged or hostile."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ci.inspect.files import Inspection, inspect_file
from ci.verbs.inspect import render_files
from provisioning.doctor.survey.litert import read_flexbuffer
from tests.stand_ins.litert import (
    make_bundle,
    make_compiled,
    make_flexbuffer,
    make_model,
    make_plain,
)
from tests.stand_ins.lowered import make_binary
from tests.stand_ins.snapshots import check_snapshot
from tests.unit.ci.inspect.test_programs import mutate

SNAPSHOTS = Path(__file__).with_name("snapshots")
MUTANTS = 150
TOKENIZER = (4, b"pieces", {})
GEMMA = (3, make_compiled(), {"model_type": "tf_lite_prefill_decode", "version": 2})
OTHER_SOC = make_binary(soc=("SM8750", 69, 79))
FILES: dict[str, Callable[[], bytes]] = {
    "plain.tflite": make_plain,
    "compiled.tflite": make_compiled,
    "without_stamp.tflite": lambda: make_compiled(stamp=b""),
    "of_another_vendor.tflite": lambda: make_compiled(stamp=b"MediaTek\0mt6991", binary=b"\1" * 99),
    "for_another_soc.tflite": lambda: make_compiled(binary=OTHER_SOC),
    # LiteRT's plugin stamps the name that it was given, and QNN writes the first of a number.
    "for_a_second_name.tflite": lambda: make_compiled(
        stamp=b"Qualcomm\0SA8775", binary=make_binary(soc=("SA8255", 52, 73))
    ),
    "for_an_soc_beyond_executorch.tflite": lambda: make_compiled(
        stamp=b"Qualcomm\0SM6650", binary=make_binary(soc=("SM6650", 74, 73), vtcm_mb=2)
    ),
    "sparse.tflite": lambda: make_compiled(weights=bytes(12)),
    "cut_bytecode.tflite": lambda: make_compiled()[:-1],
    "not_a_context.tflite": lambda: make_compiled(binary=b"\1" * 99),
    "far_bytecode.tflite": lambda: make_compiled(start=2**32 - 1, size=2**32 - 1),
    "no_bytecode.tflite": lambda: make_compiled(size=0),
    "other_options.tflite": lambda: make_compiled(options=make_flexbuffer({"name": "x"})),
    "no_options.tflite": lambda: make_compiled(options=b"\0"),
    "empty.tflite": lambda: make_model([]),
    "half.tflite": lambda: make_plain()[:400],
    "gemma.litertlm": lambda: make_bundle([GEMMA, TOKENIZER, (99, b"x", {"scale": 0.5})]),
    "cut.litertlm": lambda: make_bundle([TOKENIZER, GEMMA], cut=-200),
    "cut_header.litertlm": lambda: make_bundle([GEMMA], cut=100),
    "start.litertlm": lambda: make_bundle([GEMMA], cut=20),
    "nothing.litertlm": lambda: make_bundle([]),
    "broken_model.litertlm": lambda: make_bundle([(3, make_model([]), {})]),
}


def test_litert_files_are_described_or_their_damage_is(tmp_path: Path) -> None:
    texts = []
    for name, make in FILES.items():
        (tmp_path / name).write_bytes(make())
        texts.append(render_files([inspect_file(tmp_path / name)]))
    check_snapshot(SNAPSHOTS / "litert.txt", "\n".join(texts))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"bytecode_offset": 0, "bytecode_size": 2**32 - 1, "name": "qnn_partition_0"},
        {"name": "", "a": 7},
    ],
)
def test_flexbuffers_are_read_as_they_were_written(values: dict[str, int | str]) -> None:
    assert read_flexbuffer(make_flexbuffer(values)) == values


def test_data_that_is_no_flexbuffer_is_refused() -> None:
    complete = make_flexbuffer({"bytecode_offset": 7, "name": "x"})
    for data in (
        b"",
        b"\0\0",
        bytes(99),
        complete[:-1],
        complete[:-3] + b"\xff\x26\x01",
        complete[20:],
    ):
        with pytest.raises(struct.error):
            read_flexbuffer(data)


@pytest.mark.parametrize("name", ["plain.tflite", "compiled.tflite", "gemma.litertlm"])
def test_mutated_litert_file_is_read_or_refused(name: str, tmp_path: Path) -> None:
    data, chance, path = FILES[name](), random.Random(44), tmp_path / name
    damaged = 0
    for _ in range(MUTANTS):
        path.write_bytes(mutate(data, chance))
        inspected = inspect_file(path)
        damaged += bool(inspected.damage)
        assert render_files([inspected])
        json.dumps(msgspec.to_builtins(Inspection((inspected,))), allow_nan=False)
    assert damaged > MUTANTS // 20
