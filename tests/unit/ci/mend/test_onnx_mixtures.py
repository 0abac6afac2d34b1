"""Which nodes of an .onnx file need more bits, measured by the quantized file, without QNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")
from onnx.helper import make_node

from ci.mend.onnx_mixtures import MixableFile
from ci.mend.precision import FaultTrials, MixTrials
from ci.models.lowering_options import Choices, Part
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from tests.qnn_provider.models import constant, tensor, write_model

DRAWS = np.random.default_rng(0)
MATRIX = DRAWS.standard_normal((16, 16))
SETS = [(DRAWS.standard_normal((2, 8, 16)).astype(np.float32),) for _ in range(8)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The logarithm of scores, many of which are below half a step of 8 bits. The preprocessing
    turns the first product and the sum into a Gemm between two Reshapes."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"], "product"),
        make_node("Add", ["a", "k"], ["b"], "sum"),
        make_node("Reshape", ["b", "s"], ["f"]),
        make_node("Sigmoid", ["f"], ["p"], "scores"),
        make_node("Log", ["p"], ["l"]),
        make_node("Transpose", ["l"], ["t"], perm=[1, 0]),
        make_node("MatMul", ["v", "t"], ["y"], "head"),
    ]
    constants = [constant("w", MATRIX), constant("k", MATRIX[0]), constant("v", MATRIX[:4])]
    constants.append(constant("s", [16, 16], np.int64))
    ends = [tensor("x", (2, 8, 16))], [tensor("y", (4, 16))]
    np.savez(tmp_path / "net.npz", x=np.stack([arrays[0] for arrays in SETS]))
    return write_model(tmp_path / "net.onnx", nodes, *ends, constants)


def test_a_unit_is_a_node_with_those_that_move_its_result(path: Path, tmp_path: Path) -> None:
    model = MixableFile(path, Scheme.U8, SETS, tmp_path)
    assert [unit.nodes for unit in model.units] == [("f",), ("p",), ("l", "t"), ("y",)]
    # The product of 16 inputs, and its two Reshapes, which only the preprocessing added.
    assert [unit.cost for unit in model.units] == [16**3 + 2 * 16**2, 16**2, 16**2, 16**2]


def test_the_measure_is_that_of_the_quantized_file(path: Path, tmp_path: Path) -> None:
    def measure(scheme: Scheme, *tensors: str) -> float:
        parts = tuple(Part(Scheme.U16A8W, tensor=name) for name in tensors)
        return MixableFile(path, scheme, SETS, tmp_path).measure(Choices(parts=parts))

    lossy, cured = measure(Scheme.U8), measure(Scheme.U8, "p", "l", "t")
    assert lossy < 10 < 20 < cured
    # With all nodes in 16 bits, only the input and the output's type remain.
    finer = measure(Scheme.U16A8W)
    assert measure(Scheme.U8, "f", "p", "l", "t", "y") == pytest.approx(finer, abs=1)


@pytest.mark.parametrize(
    ("target_db", "limit_s", "tensors"),
    [
        (20, 60, "l p t"),  # the scores and their logarithm
        (60, 60, ""),  # 16 bits do not suffice, either
        (20, 0, ""),  # no time
    ],
)
def test_a_mixture_of_a_file_has_the_nodes_that_lose_all_in_8_bits(
    path: Path, target_db: float, limit_s: float, tensors: str
) -> None:
    trials = MixTrials(
        *(str(path), Source(str(path)), (), Scheme.U8),
        *(Scheme.U16A8W, "SM8650", target_db, limit_s),
        path=path,
    )
    cheapest = next(iter(trials()), ())
    assert " ".join(part.tensor for part in cheapest) == tensors
    assert {part.scheme for part in cheapest} <= {Scheme.U16A8W}


@pytest.mark.parametrize(("largest", "is_low"), [(9.3, False), (10.0, True)])
def test_the_operators_with_a_known_fault_are_found_by_the_samples(
    largest: float, is_low: bool, tmp_path: Path
) -> None:
    """An exp of numbers below -88 is wrong in float16: the graph alone shows only that it may
    be."""
    nodes = [
        make_node("Mul", ["x", "x"], ["s"]),
        make_node("Neg", ["s"], ["n"]),
        make_node("Exp", ["n"], ["y"]),
    ]
    path = write_model(
        tmp_path / "net.onnx", nodes, [tensor("x", (2, 4))], [tensor("y", (2, 4))], []
    )
    sample = np.linspace(0, largest, 8, dtype=np.float32).reshape(2, 4)
    np.savez(path.with_suffix(".npz"), x=np.stack([sample / 2, sample, sample / 3]))
    trials = FaultTrials(
        *(str(path), Source(str(path)), (), Scheme.FP16, "SM8650", (Scheme.U16A8W,), ()), path=path
    )
    steps, _, _ = trials.describe()
    assert ["low" in step.numbers for step in steps if step.operator == "exp"] == [is_low]
