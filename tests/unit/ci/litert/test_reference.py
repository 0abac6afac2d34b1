"""References of models, and models whose outputs nothing can be compared with."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.graphs.graph import Array
from ci.graphs.litert_file import list_entries, read_model, schema
from ci.graphs.litert_session import MOST_CHANNELS
from ci.litert.compile import Judged, run_reference
from ci.litert.suite import Net
from provisioning.errors import FailedError


def make_places() -> Net:
    """The places of the elements above 0, of which no two samples have the same number."""
    net = Net()
    source = net.add_tensor((4,), "x")
    is_above = net.call("GREATER", (source, net.add_number(0.0)), (4,), "GreaterOptions")
    net.tensors[is_above].type = schema.TensorType.BOOL
    places = net.call("WHERE", (is_above,), (0, 1), "WhereOptions")
    net.tensors[places].type = schema.TensorType.INT64
    net.end([source], [places])
    return net


def make_reshaped() -> Net:
    """A reshape to the shape that is an input, which random numbers are not."""
    net = Net()
    shape = net.add_tensor((2,), "shape", "int32")
    source = net.add_tensor((2, 4), "x")
    net.end([source, shape], [net.call("RESHAPE", (source, shape), (2, 4), "ReshapeOptions")])
    return net


X = np.array([1, -1, 2, -2], np.float32)
# The model, two samples, and the error.
WRONG: dict[str, tuple[Net, list[list[Array]], str]] = {
    "a shape that depends on the sample": (
        make_places(),
        [[X], [np.abs(X)]],
        r"the shape of an output depends on the data: \[2, 1\] for one sample, \[4, 1\] for",
    ),
    "inputs that do not fit": (
        make_reshaped(),
        [[np.ones((2, 4), np.float32), np.array([3, 3], np.int32)]] * 2,
        "does not run the model on these inputs",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_compared_is_an_error_with_its_cause(name: str) -> None:
    net, sets, message = WRONG[name]
    data = net.pack()
    model = read_model(data)
    with pytest.raises(FailedError, match=message):
        run_reference(Judged(data, model, list_entries(model), sets))


@pytest.mark.parametrize("channels", [MOST_CHANNELS, MOST_CHANNELS + 1])
def test_a_depthwise_convolution_with_many_channels_returns(channels: int) -> None:
    """LiteRT's usual kernel for it has no end with more than MOST_CHANNELS."""
    net = Net()
    source = net.add_tensor((1, 2, 1, 1), "x")
    reads = (source, net.draw(1, 1, 1, channels), net.add_constant(np.zeros(channels, np.float32)))
    strides = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
    shape, options = (1, 2, 1, channels), "DepthwiseConv2DOptions"
    settings = {**strides, "depthMultiplier": channels}
    net.end([source], [net.call("DEPTHWISE_CONV_2D", reads, shape, options, **settings)])
    data = net.pack()
    model = read_model(data)
    weights = model.buffers[model.subgraphs[0].tensors[reads[1]].buffer].data
    sample = np.array([2, -1], np.float32).reshape(1, 2, 1, 1)
    ((output,),) = run_reference(Judged(data, model, list_entries(model), [[sample]]))
    np.testing.assert_allclose(output, sample * np.frombuffer(weights, np.float32), rtol=1e-6)
