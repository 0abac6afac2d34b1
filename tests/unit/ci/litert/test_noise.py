"""The predicted noise of .tflite files has the errors that were measured with them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.analysis.noise import predict_noise
from ci.graphs.litert_file import read_levels
from ci.graphs.litert_program import LitertProgram
from ci.litert.suite import Net, quantize

# The operator, the bits, and between which numbers of steps the RMS of the predicted error is. An
# operator without a term has an error of 0.3 steps in 8 bits, and of one step in 16 bits.
PREDICTED = {
    ("SQRT", 8): (0.6, 0.9),  # measured: 0.7
    ("RSQRT", 16): (10.0, 100.0),  # measured: 12 to 32
    ("TANH", 8): (0.2, 0.4),
}


@pytest.mark.parametrize(("operator", "bits"), PREDICTED)
def test_the_prediction_has_the_errors_of_litert(operator: str, bits: int) -> None:
    net, shape = Net(), (1, 16, 32)
    source = net.add_tensor(shape, "x")
    net.end([source], [net.call(operator, (source,), shape)])
    positive = np.abs(np.random.default_rng(5).standard_normal(shape)).astype(np.float32) + 0.1
    program = LitertProgram(quantize(net, bits, [positive]))
    tensors = program.model.subgraphs[0].tensors
    levels, result_levels = read_levels(tensors[source]), read_levels(tensors[-1])
    assert levels is not None
    assert result_levels is not None
    steps = np.round(positive / levels.scales[0]) + levels.zero_points[0]
    integers = steps.astype(f"int{bits}")
    (errors,) = predict_noise(program, [[integers]], qnn="2.51.0")
    lowest, most = PREDICTED[operator, bits]
    assert lowest < float(np.sqrt(np.mean(np.square(errors)))) / result_levels.scales[0] < most


def make_remainder(*, is_last: bool) -> bytes:
    """A sum, its remainder, and a product behind it unless the remainder ``is_last``. The remainder
    is what QNN does not take."""
    net = Net()
    source = net.add_tensor((4, 64), "x")
    raised = net.call("ADD", (source, net.add_number(33.3)), (4, 64), "AddOptions")
    divisor = net.add_number(64.0)
    result = net.call("FLOOR_MOD", (raised, divisor), (4, 64), "FloorModOptions")
    if not is_last:
        result = net.call("MUL", (result, net.add_number(1.0)), (4, 64), "MulOptions")
    net.end([source], [result])
    return net.pack()


def measure_noise(program: LitertProgram, tensors: Collection[tuple[int, str]]) -> float:
    """The RMS of the predicted error if these tensors are computed on the CPU."""
    sets = [[np.random.default_rng(7).standard_normal((4, 64)).astype(np.float32)]]
    values = program.find_values(tensors)
    (errors,) = predict_noise(program, sets, qnn="2.51.0", on_cpu=values)
    return float(np.sqrt(np.mean(np.square(errors))))


@pytest.mark.parametrize("is_last", [True, False])
def test_what_the_cpu_computes_is_rounded_only_where_qnn_reads_it(is_last: bool) -> None:
    program = LitertProgram(make_remainder(is_last=is_last))
    raised, remainder, *_ = map(number_result, program.model.subgraphs[0].operators)
    tensors = [tensor.name.decode() for tensor in program.model.subgraphs[0].tensors]
    names = [tensors[number] for number in (raised, remainder)]
    on_npu = measure_noise(program, ())
    on_cpu = measure_noise(program, {(0, names[1])})
    assert 0 < on_cpu < 0.9 * on_npu
    alone = measure_noise(program, {(0, name) for name in names})
    assert alone == 0 if is_last else 0 < alone < on_npu
    # The tensor of another subgraph is another one.
    assert measure_noise(program, {(1, name) for name in names}) == on_npu


def number_result(operator: Any) -> int:
    return int(operator.outputs[0])


@pytest.mark.parametrize("bits", [8, 16])
def test_integers_that_the_cpu_computes_have_no_error(bits: int) -> None:
    net, shape = Net(), (1, 16, 32)
    source = net.add_tensor(shape, "x")
    net.end([source], [net.call("SQRT", (source,), shape)])
    positive = np.abs(np.random.default_rng(5).standard_normal(shape)).astype(np.float32) + 0.1
    program = LitertProgram(quantize(net, bits, [positive]))
    tensors = program.model.subgraphs[0].tensors
    levels = read_levels(tensors[source])
    assert levels is not None
    steps = np.round(positive / levels.scales[0]) + levels.zero_points[0]
    values = program.find_values({(0, tensors[-1].name.decode())})
    (errors,) = predict_noise(program, [[steps.astype(f"int{bits}")]], on_cpu=values)
    assert not errors.any()


@pytest.mark.parametrize(
    ("shape", "least_db", "most_db"),
    [
        ((2, 16, 64), 46.0, 52.0),  # measured: 48.1, as for a sum of two tensors
        ((16, 64), 62.0, 75.0),  # 66.7 in the first row of the batch
        ((64,), 62.0, 75.0),
    ],
)
def test_a_whole_constant_before_a_sigmoid_is_predicted_as_a_sum_of_tensors(
    shape: tuple[int, ...], least_db: float, most_db: float
) -> None:
    net, whole_shape = Net(), (2, 16, 64)
    source = net.add_tensor(whole_shape, "x")
    values = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    total = net.call("ADD", (source, net.add_constant(values)), whole_shape, "AddOptions")
    net.end([source], [net.call("LOGISTIC", (total,), whole_shape)])
    program = LitertProgram(net.pack())
    sets = [[np.random.default_rng(7).standard_normal(whole_shape).astype(np.float32)]]
    ((exact,),) = program.run(sets)
    (errors,) = predict_noise(program, sets, qnn="2.51.0")
    predicted_db = 10 * np.log10(np.mean(np.square(exact)) / np.mean(np.square(errors)))
    assert least_db < predicted_db < most_db
