"""What is computed in upstream's process for the gate, on graphs made by hand."""

from __future__ import annotations

import os
import warnings
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

# Without QNN_SDK_ROOT ExecuTorch's import downloads an SDK; and it warns of what it uses itself.
with patch.dict(os.environ, QNN_SDK_ROOT="nowhere"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ci.models.schemes import Scheme
    from ci.upstream import record
    from ci.upstream.capture import Seen
    from ci.upstream.journal import Member
    from ci.upstream.record import Flat, find_scheme, work_out


def quantize_per_tensor(x: Any, *_: Any) -> Any:
    return x


def dequantize_affine(x: Any, *_: Any) -> Any:
    return x


def make_program(activations: str, weights: str = "", *, affine: bool = False) -> Any:
    """A graph with a quantizer of so many bits, such as "8 16 16", for each input and weight."""
    root, graph = torch.nn.Module(), torch.fx.Graph()
    x = graph.placeholder("x")
    for number, bits in enumerate(activations.split()):
        most = 2 ** int(bits) - 1 - (number == 1)  # a range need not be whole
        x = graph.call_function(quantize_per_tensor, (x, 0.1, 0, 0, most, torch.int32))
    for number, bits in enumerate(weights.split()):
        setattr(root, f"w{number}", torch.zeros(1))
        held = graph.get_attr(f"w{number}")
        half = 2 ** (int(bits) - 1)
        graph.call_function(quantize_per_tensor, (held, 0.1, 0, -half, half - 1, torch.int8))
    if affine:
        x = graph.call_function(dequantize_affine, (x,))
    graph.output(x)
    return torch.fx.GraphModule(root, graph)


@pytest.mark.parametrize(
    ("activations", "weights", "scheme"),
    [
        ("", "", Scheme.FP16),
        ("", "8", Scheme.FP16W8),
        ("8", "", Scheme.A8W8),
        ("8", "8 32", Scheme.A8W8),
        ("8 8", "8 4", Scheme.A8W4),
        ("16 16 8", "8", Scheme.A16W8),
        ("16 8 8", "8", Scheme.A8W8),
        ("16 8", "8", Scheme.A8W8),  # as many of each: the first of the sorted widths
        ("16", "", Scheme.A16W8),
        ("16", "16", Scheme.A16W16),
        ("16", "4 8", Scheme.A16W4),
        ("16", "2", Scheme.A16W2),
        ("8", "2", None),
        ("4", "4", None),
    ],
)
def test_the_scheme_of_a_graph_is_that_of_its_quantizers(
    activations: str, weights: str, scheme: Scheme | None
) -> None:
    assert find_scheme(make_program(activations, weights)) is scheme


def test_blocks_are_one_scheme_and_what_is_no_graph_is_not_quantized() -> None:
    assert find_scheme(make_program("16", "4", affine=True)) is Scheme.A16W4_BLOCK
    assert find_scheme(torch.nn.Linear(1, 1)) is Scheme.FP16


def test_nested_inputs_are_taken_flat_and_constants_stay() -> None:
    class Model(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def forward(self, first: Any, pair: Any, named: Any) -> Any:
            return first - 2 * pair[1] + named["a"], pair[0]

    one, two, three = (torch.tensor(float(n)) for n in (1, 10, 100))
    flat = Flat(Model(), (one, (7, two), {"a": three}))
    assert [float(found) for found in flat(three, two, one)] == [81.0, 7.0]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own
def test_a_comparison_of_a_float_program_has_its_own_outputs_and_noise() -> None:
    class Double(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def forward(self, x: Any) -> Any:
            return 2 * x

    given, made, wanted = (torch.full((2, 3), value) for value in (1.5, 3.001, 3.0))
    seen = Seen(
        program=torch.export.export(Double(), (given,)).module(),
        float_model=None,
        inputs=(given,),
        is_own=True,
        pte_bytes=8,
        outputs=[made],
        wanted=[wanted],
    )
    record, arrays = work_out(seen)
    assert (record.scheme, record.lacks, record.pte_bytes) == (Scheme.FP16.value, (), 8)
    assert [(one.dtype, one.shape) for one in record.inputs] == [("float32", (2, 3))]
    assert [(one.dtype, one.shape) for one in record.outputs] == [("float32", (2, 3))]
    assert arrays[Member.INPUT] == (given,)
    assert (arrays[Member.OUTPUT], arrays[Member.UPSTREAM]) == ([made], [wanted])
    assert arrays[Member.FLOAT] == [wanted]
    assert Member.NOISE in arrays
    assert not {Member.QUANTIZED, Member.LOW, Member.HIGH} & arrays.keys()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own
def test_a_program_of_no_known_scheme_has_a_record_without_bounds() -> None:
    program = make_program("4", "4")
    given = torch.ones(1)
    index = torch.ones(1, dtype=torch.int64)
    seen = Seen(
        program=program,
        float_model=torch.nn.Identity(),
        inputs=(given,),
        is_own=True,
        pte_bytes=8,
        outputs=[index],
        wanted=[index],
    )
    record, arrays = work_out(seen)
    assert (record.scheme, len(record.outputs)) == ("", 1)
    assert {Member.QUANTIZED, Member.FLOAT, Member.NOISE} <= arrays.keys()
    assert not {Member.LOW, Member.HIGH} & arrays.keys()


@pytest.mark.parametrize(
    ("activations", "weights", "float16"),
    [("", "", True), ("", "8", True), ("8", "8", False), ("16", "4", False), ("4", "4", False)],
)
def test_noise_is_that_of_float16_where_activations_are(
    monkeypatch: pytest.MonkeyPatch, activations: str, weights: str, float16: bool
) -> None:
    asked: list[Any] = []

    def predict(module: Any, sets: Any, *, float16: bool, qnn: str) -> Any:
        asked.append((module, sets, float16))
        return ["noise"]

    monkeypatch.setattr(record, "predict_noise", predict)
    program, given = make_program(activations, weights), (torch.ones(1),)
    seen = Seen(
        program=program,
        float_model=torch.nn.Identity(),
        inputs=given,
        is_own=True,
        outputs=[torch.ones(1)],
        wanted=[torch.ones(1)],
    )
    _, arrays = work_out(seen)
    assert asked == [(program, [given], float16)]
    assert arrays[Member.NOISE] == ["noise"]
