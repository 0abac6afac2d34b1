"""What is the same question about a model is answered by the same code: a public function or class
of one lane that another lane has, too, is listed here with the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.stand_ins.sources import parse_source

CI = Path(__file__).parents[2] / "ci"
FILES = {
    "PyTorch": (
        "graphs/torch_*.py",
        "executorch/*.py",
        "mend/torch_*.py",
        "mend/torch_rewrites/*.py",
        "audit/localise_torch.py",
        "faults/torch_graphs.py",
        "faults/executorch_runner.py",
    ),
    "ONNX": (
        "graphs/onnx_*.py",
        "onnx/*.py",
        "mend/onnx_*.py",
        "mend/onnx_rewrites/*.py",
        "audit/localise_onnx.py",
        "faults/onnx_graphs.py",
    ),
    "LiteRT": ("graphs/litert_*.py", "litert/*.py", "audit/localise_litert.py"),
}
READS = "reads the lane's own format"
WRITES = "writes the lane's own format"
SEAM = "the lane's implementation of a Protocol, or of what the verbs call"
OTHER = "only the name is the same"
ALLOWED = {
    "Executed": SEAM,
    "Values": OTHER,
    "Written": OTHER,
    "before_forks": SEAM,
    "change_scales": WRITES,
    "check_float_model": "an .onnx file is fed by name, a .tflite file by place",
    "check_model": READS,
    "compute": OTHER,
    "computes_node": READS,
    "count_operators": READS,
    "cut_model": WRITES,
    "describe_refusal": READS,
    "drop_unused": WRITES,
    "expose_layers": WRITES,  # choose_exposed chooses them
    "find_shapes": OTHER,
    "is_fixed": OTHER,
    "is_quantized": READS,
    "list_bodies": READS,
    "list_candidates": READS,
    "list_left": OTHER,
    "list_nodes": SEAM,
    "list_reads": READS,
    "list_tensors": OTHER,
    "make_division": SEAM,
    "make_runner": SEAM,
    "name_operator": READS,
    "name_result": READS,
    "name_toolchain": SEAM,
    "note_execution": SEAM,
    "open_program": SEAM,
    "read_constant": READS,
    "read_model": READS,
    "run_reference": SEAM,
    "run_sets": SEAM,
}


def list_public(sources: Iterable[str]) -> set[str]:
    """The public functions and classes that modules define."""
    names = set()
    for source in sources:
        for statement in parse_source(source).body:
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                names.add(statement.name)
    return {name for name in names if not name.startswith("_")}


def find_counterparts(sources_of_lane: Mapping[str, Iterable[str]]) -> set[str]:
    """The names that more than one lane defines."""
    counterparts: set[str] = set()
    names_before: set[str] = set()
    for sources in sources_of_lane.values():
        names = list_public(sources)
        counterparts |= names & names_before
        names_before |= names
    return counterparts


def read_lanes() -> dict[str, list[str]]:
    """The sources of each lane's own modules."""
    lanes: dict[str, list[str]] = {}
    for lane, patterns in FILES.items():
        paths = [path for pattern in patterns for path in sorted(CI.glob(pattern))]
        lanes[lane] = [path.read_text("utf-8") for path in paths]
    return lanes


def test_each_pattern_of_a_lane_matches_a_module() -> None:
    for patterns in FILES.values():
        for pattern in patterns:
            assert [*CI.glob(pattern)], pattern


def test_lanes_have_no_counterparts_without_a_reason() -> None:
    hint = "write it once for all lanes, or state in ALLOWED why two lanes have it"
    assert find_counterparts(read_lanes()) == ALLOWED.keys(), hint


@pytest.mark.parametrize(
    ("first", "second", "counterparts"),
    [
        ("def predict_noise(): ...", "def predict_noise(): ...", {"predict_noise"}),
        ("class Noise: ...", "class Noise: ...", {"Noise"}),
        ("def predict_noise(): ...", "def _predict_noise(): ...", set()),
        ("def _round(): ...", "def _round(): ...", set()),
        ("class A:\n    def run(self): ...", "class B:\n    def run(self): ...", set()),
    ],
)
def test_a_function_of_two_lanes_is_found(first: str, second: str, counterparts: set[str]) -> None:
    assert find_counterparts({"PyTorch": [first], "ONNX": [second]}) == counterparts
