"""Models with operators that LiteRT's interpreter does not know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.graphs.litert_file import (
    CUSTOM,
    list_entries,
    pack_model,
    read_model,
    schema,
)
from ci.graphs.litert_part import cut_entry
from ci.graphs.litert_session import Pieces, Reference, open_interpreter
from ci.litert.source import make_source
from ci.litert.split import SplitInputs, list_unknown
from ci.litert.suite import Net, make_model
from ci.models.user_models import Source
from provisioning.errors import FailedError

UNKNOWN = "Landmarks"


def make_quotient(divisor_shape: Sequence[int] = (2, 4), custom: str = "") -> bytes:
    """A model of two operators. The first one can be a custom one of this name."""
    net = Net()
    source = net.add_tensor((2, 4), "x")
    hidden = net.call("TANH", (source,), (2, 4))
    net.end([source], [net.call("DIV", (hidden, net.draw(*divisor_shape)), (2, 4), "DivOptions")])
    model = read_model(net.pack())
    if custom:
        code = model.operatorCodes[0]
        code.builtinCode = code.deprecatedBuiltinCode = CUSTOM
        code.customCode = custom.encode()
    return pack_model(model)


@pytest.mark.parametrize("unknown", [[], [UNKNOWN]])
def test_operators_that_the_interpreter_does_not_know_are_listed(unknown: list[str]) -> None:
    data = make_quotient(custom="".join(unknown))
    assert list_unknown(data, read_model(data)) == unknown


def test_a_model_that_the_interpreter_refuses_is_an_error_with_its_reason() -> None:
    data = make_quotient((2, 5))
    with pytest.raises(FailedError, match="LiteRT does not load the model") as raised:
        list_unknown(data, read_model(data))
    assert "[2,4] and [2,5], are not broadcastable" in raised.value.why


def test_int16_with_zero_points_has_no_reference() -> None:
    model = read_model(make_model("dense_int16"))
    (source,) = model.subgraphs[0].inputs
    model.subgraphs[0].tensors[source].quantization.zeroPoint = [5000]
    data = pack_model(model)
    with pytest.raises(FailedError, match=r"no reference: .* no int16 with a zero point") as raised:
        list_unknown(data, read_model(data))
    assert "5000 != 0" in raised.value.why
    assert "around zero" in raised.value.fix


def test_a_part_reads_what_the_parts_before_it_compute_or_else_random_numbers() -> None:
    net = Net()
    source, unknown = net.add_tensor((2, 4), "x"), net.add_tensor((2, 4), "of an unknown operator")
    hidden = net.call("TANH", (source,), (2, 4))
    net.end([source], [hidden], "first")
    net.end([hidden, unknown], [net.call("ADD", (hidden, unknown), (2, 4), "AddOptions")], "second")
    data = net.pack()
    inputs = SplitInputs(data, read_model(data), ["x"])
    assert inputs.list_random() == ["of an unknown operator"]
    values = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    first, second, random = inputs.make([values])
    np.testing.assert_array_equal(first, values)
    np.testing.assert_allclose(second, np.tanh(values), rtol=1e-5)
    assert random.shape == (2, 4)
    assert random.std() > 0


@pytest.mark.parametrize("names", [("self", "x"), ("self", "self0"), ("x", "self")])
def test_a_signature_may_call_an_input_self(names: tuple[str, str]) -> None:
    """LiteRT's runner takes inputs as keywords, next to its own argument of this name."""
    net = Net()
    sources = [net.add_tensor((2, 4), name) for name in names]
    net.end(sources, [net.call("SUB", sources, (2, 4), "SubOptions")], "main")
    data = net.pack()
    model = read_model(data)
    first, second = np.full((2, 4), 3, np.float32), np.ones((2, 4), np.float32)
    ((output,),) = Reference(data, model, list_entries(model)).run([(first, second)])
    np.testing.assert_array_equal(output, first - second)
    assert SplitInputs(data, model, names).list_random() == []


def make_scatter(*, replaces: bool) -> bytes:
    """A STABLEHLO_SCATTER that replaces numbers, as litert-torch writes it, or subtracts them,
    which LiteRT's interpreter cannot."""
    net = Net()
    source = net.add_tensor((4, 2), "x")
    update = net.call("TANH", (source,), (4, 2))
    places = net.add_constant(np.arange(4, dtype=np.int32).reshape(4, 1))
    net.end([source], [net.call("STABLEHLO_SCATTER", (source, places, update), (4, 2))], "main")
    numbers = [net.add_tensor((), "a"), net.add_tensor((), "b")]
    combined = numbers[1] if replaces else net.call("SUB", numbers, (), "SubOptions")
    net.end(numbers, [combined], "body")
    model = read_model(net.pack())
    model.signatureDefs = model.signatureDefs[:1]
    options = schema.StablehloScatterOptionsT()
    options.updateWindowDims, options.insertedWindowDims = [1], [0]
    options.scatterDimsToOperandDims, options.indexVectorDim = [0], 1
    options.updateComputationSubgraphIndex = 1
    scatter = model.subgraphs[0].operators[1]
    scatter.builtinOptions, scatter.builtinOptionsType = None, 0
    scatter.builtinOptions2 = options
    scatter.builtinOptions2Type = schema.BuiltinOptions2.StablehloScatterOptions
    return pack_model(model)


@pytest.mark.parametrize(("replaces", "unknown"), [(True, []), (False, ["STABLEHLO_SCATTER"])])
def test_an_operator_of_stablehlo_is_run_with_its_subgraph_or_unknown(
    *, replaces: bool, unknown: list[str]
) -> None:
    data = make_scatter(replaces=replaces)
    model = read_model(data)
    assert list_unknown(data, model) == unknown
    (entry,) = list_entries(model)
    names = {number: f"tensor {number}" for number in range(len(model.subgraphs[0].tensors))}
    part = cut_entry(
        model, data, entry, names, reads=entry.inputs, results=entry.outputs, biases={}
    )
    assert list_unknown(part, read_model(part)) == unknown
    if not unknown:
        x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
        places = np.arange(4, dtype=np.int32).reshape(4, 1)
        pieces = Pieces(model, 0)
        arrays = {0: x, 1: np.tanh(x), 2: places}
        reads = pieces.list_reads(1)
        (output,) = pieces.run(1, [arrays[number] for number in reads])
        np.testing.assert_allclose(output, np.tanh(x), rtol=1e-5)


@pytest.mark.parametrize("taken", ["", "tensor_1"])
def test_tensors_without_a_name_get_one_that_no_other_has(taken: str) -> None:
    """A context binary binds its tensors by their names."""
    model = read_model(make_quotient())
    whole = pack_model(model)
    assert make_source("net.tflite", whole, Source("net.tflite")).data == whole
    model.subgraphs[0].tensors[0].name = taken.encode() or None
    model.subgraphs[0].tensors[1].name = None
    source = make_source("net.tflite", pack_model(model), Source("net.tflite"))
    names = [tensor.name for tensor in source.model.subgraphs[0].tensors]
    assert all(names)
    assert len(set(names)) == len(names)
    assert names[0] == (taken or "tensor_0").encode()
    open_interpreter(source.data).invoke()
