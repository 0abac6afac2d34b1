"""Numbers of other projects' formats, compared with those projects' own files."""

from __future__ import annotations

import json
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES as SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import pytest

from ci.inspect import files
from provisioning.console.process import run_process
from provisioning.doctor.survey import context_binaries, programs

# ScalarType's names that differ from numpy's.
NUMPY = {
    "byte": "uint8",
    "char": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
}
KINDS = ("int", "uint", "float", "sfixed", "ufixed", "bool")
INTEGERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
FLOATS = {"float16", "float32", "float64"}
FIXED = {f"{kind}{bits}" for kind in ("sfixed", "ufixed") for bits in (4, 8, 16, 32)}


@pytest.fixture(scope="module")
def executorch() -> Path:
    """The directory of the installed ExecuTorch, which is not imported."""
    if not (spec := find_spec("executorch")) or not spec.submodule_search_locations:
        pytest.skip("ExecuTorch is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


@pytest.fixture(scope="module")
def scalar_types(executorch: Path) -> dict[int, str]:
    text = (executorch / "schema/scalar_type.fbs").read_text("utf-8")
    rows = re.findall(r"^  (\w+) = (\d+),", text, re.MULTILINE)
    return {int(number): NUMPY.get(name.lower(), name.lower()) for name, number in rows}


def read_union(executorch: Path, name: str) -> dict[str, int]:
    """The numbers of a union's members in the schema of programs, which start at 1."""
    text = (executorch / "schema/program.fbs").read_text("utf-8")
    union = re.search(rf"^union {name} {{(.*?)}}", text, re.MULTILINE | re.DOTALL)
    assert union
    members = re.findall(r"^  (\w+),", union[1], re.MULTILINE)
    return {member: number for number, member in enumerate(members, 1)}


def test_tensor_types_of_a_program_have_executorchs_numbers(scalar_types: dict[int, str]) -> None:
    ours = programs.DTYPES
    assert {number: name for number, (name, _) in ours.items()} == {
        number: name for number, name in scalar_types.items() if number in ours
    }
    for name, size_bytes in ours.values():
        assert size_bytes * 8 == int(re.sub(r"\D", "", name) or 8), name


def test_every_tensor_type_has_a_name() -> None:
    named = [name for name, _ in programs.DTYPES.values()]
    assert sorted(named) == sorted({*INTEGERS, *FLOATS, "bool", "bfloat16", "bits16"})
    ours = [*context_binaries.DTYPES.values()]
    assert sorted(ours) == sorted({*INTEGERS, *FLOATS, *FIXED, "bool8"})


def test_backends_have_the_ids_of_qnn_s_headers() -> None:
    names = {3: "CPU", 4: "GPU", 5: "DSP", 6: "HTP", 12: "LPAI"}
    assert names == context_binaries.BACKENDS


def test_input_types_of_a_foreign_program_have_executorchs_numbers(
    scalar_types: dict[int, str],
) -> None:
    foreign = pytest.importorskip("ci.llm.foreign")
    ours = foreign.DTYPES
    assert ours == {number: name for number, name in scalar_types.items() if number in ours}
    assert {name: int(re.sub(r"\D", "", name)) for name in foreign.WIDTHS} == foreign.WIDTHS


def test_value_and_instruction_kinds_have_executorchs_numbers(executorch: Path) -> None:
    kinds = read_union(executorch, "KernelTypes")
    ours = {
        "Int": programs.INT,
        "Bool": programs.BOOL,
        "Double": programs.DOUBLE,
        "Tensor": programs.TENSOR,
        "String": programs.STRING,
        "IntList": programs.INTS,
        "DoubleList": programs.DOUBLES,
        "BoolList": programs.BOOLS,
    }
    assert ours == {name: kinds[name] for name in ours}
    assert read_union(executorch, "InstructionArguments")["KernelCall"] == programs.KERNEL_CALL


PRINT_TYPES = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("PyQnnManagerAdaptor", sys.argv[1])
adaptor = importlib.util.module_from_spec(spec)
spec.loader.exec_module(adaptor)
print(json.dumps({name: int(one) for name, one in adaptor.Qnn_DataType_t.__members__.items()}))
"""


def test_tensor_types_of_a_context_binary_have_qnns_numbers(executorch: Path) -> None:
    """The adaptor in ExecuTorch's wheel has the numbers of QNN's headers, except those of rare
    types. It is imported in another process because its module can only be loaded under its own
    name."""
    places = (
        executorch / f"backends/qualcomm/python/PyQnnManagerAdaptor{suffix}" for suffix in SUFFIXES
    )
    adaptor = next((place for place in places if place.is_file()), None)
    if not adaptor:
        pytest.skip("this ExecuTorch has no adaptor for this Python")
    ended = run_process([sys.executable, "-c", PRINT_TYPES, str(adaptor)])
    for name, number in json.loads(ended.output).items():
        words = name.removeprefix("QNN_DATATYPE_").lower()
        if words != "undefined":
            ours = context_binaries.DTYPES[number]
            assert ours == words.replace("_point", "").replace("_", ""), name


@pytest.mark.parametrize(("number", "name"), context_binaries.DTYPES.items())
def test_the_digits_of_a_qnn_type_number_are_its_kind_and_bits(number: int, name: str) -> None:
    assert name == f"{KINDS[number >> 8]}{number & 0xFF:x}"


@pytest.mark.parametrize(("number", "name"), files.DTYPES.items())
def test_tensor_types_of_an_onnx_file_have_onnxs_numbers(number: int, name: str) -> None:
    onnx = pytest.importorskip("onnx")
    word = onnx.TensorProto.DataType.Name(number).lower()
    assert name == {"float": "float32", "double": "float64"}.get(word, word)
