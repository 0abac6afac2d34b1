"""Models with operators that LiteRT's interpreter does not know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.graphs.litert_file import CUSTOM, pack_model, read_model
from ci.litert.split import SplitInputs, list_unknown
from ci.litert.suite import Net
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
