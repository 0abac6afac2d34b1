"""A model that also returns the results of its inner operators: where a program goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.graphs.litert_file import list_numbers, read_model
from ci.graphs.litert_session import Reference
from ci.litert.layers import expose_layers
from ci.litert.source import LitertSource, make_source
from ci.litert.suite import Net, make_model
from ci.models.user_models import NO_SOURCE
from provisioning.errors import FailedError
from tests.build.litert_states import make_decoder, make_gru, make_lstm
from tests.unit.ci.litert.test_control_flow import make_composite


def load(data: bytes) -> LitertSource:
    return make_source("net.tflite", data, NO_SOURCE)


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("dense", ["FULLY_CONNECTED"]),  # with the activation that it contains
        ("convolution", ["CONV_2D", "CONV_2D", "MEAN"]),
        ("convolution_int8", ["CONV_2D", "CONV_2D", "MEAN"]),
        ("dense_int16", ["FULLY_CONNECTED"]),
        ("cpu_middle", ["FULLY_CONNECTED", "ADD", "FLOOR_MOD", "SUB"]),
    ],
)
def test_inner_results_come_after_the_outputs(name: str, operators: list[str]) -> None:
    source = load(make_model(name))
    exposed, layers = expose_layers(replace(source, float_data=b"a float model"))
    assert [layer.operator for layer in layers] == operators
    assert not exposed.float_data
    before = Reference(source.data, source.model, source.entries).run(source.evaluation)
    after = Reference(exposed.data, exposed.model, exposed.entries).run(source.evaluation)
    for old, new in zip(before, after, strict=True):
        assert len(new) == len(old) + len(layers)
        for output, same_output in zip(old, new, strict=False):
            np.testing.assert_array_equal(output, same_output)
        assert all(array.dtype == np.float32 for array in new)  # quantized ones are restored


def test_the_layers_of_a_signature_that_the_policy_names_are_those_of_its_subgraph() -> None:
    chosen = structs.replace(NO_SOURCE, signatures=("decode",))
    source = make_source("net.tflite", make_model("signatures"), chosen)
    exposed, layers = expose_layers(source)
    assert [entry.key for entry in exposed.entries] == ["decode"]
    (outputs, *_) = Reference(exposed.data, exposed.model, exposed.entries).run(source.evaluation)
    assert len(outputs) == len(source.entries[0].outputs) + len(layers)


@pytest.mark.parametrize("make", [make_gru, make_lstm, make_decoder])
def test_the_next_value_of_a_state_is_no_layer(make: Callable[[], bytes]) -> None:
    source = load(make())
    exposed, layers = expose_layers(source)
    (outputs, *_) = Reference(exposed.data, exposed.model, exposed.entries).run(source.evaluation)
    assert len(outputs) == len(source.entries[0].outputs) + len(layers)


def test_only_the_result_of_a_composite_is_a_layer() -> None:
    """The tensors inside of it are those of another subgraph."""
    exposed, layers = expose_layers(load(make_composite()))
    assert [layer.operator for layer in layers] == ["FULLY_CONNECTED", "TANH"]
    assert len(exposed.entries[0].outputs) == 1 + len(layers)


def test_layers_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(FailedError, match="several signatures"):
        expose_layers(load(make_model("signatures")))
    net = Net()
    source = net.add_tensor((2, 4), "x")
    net.end([source], [net.call("TANH", (source,), (2, 4))])
    with pytest.raises(FailedError, match="no inner results"):
        expose_layers(load(net.pack()))


def test_a_signature_names_the_inner_results() -> None:
    exposed, layers = expose_layers(load(make_model("dense")))
    (signature,) = read_model(exposed.data).signatureDefs
    assert len(list_numbers(read_model(exposed.data).subgraphs[0].outputs)) == 1 + len(layers)
    names = [port.name for port in signature.outputs]
    assert len({*names}) == 1 + len(layers)
