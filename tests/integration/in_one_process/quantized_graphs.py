"""What is read from a quantized graph, and which nodes a part means, on graphs written by hand."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("executorch", reason="executorch is not installed in this environment")

from torch.ao.quantization.fx import _decomposed  # noqa: E402
from torch.fx import Graph, GraphModule  # noqa: E402
from torchao.quantization.pt2e import (  # noqa: E402
    MovingAveragePerChannelMinMaxObserver,
)

# As in lowering_steps.py.
with patch.dict(os.environ, QNN_SDK_ROOT="nowhere"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ci.executorch import quantize
    from ci.executorch.compiled_types import ASKED
    from ci.executorch.delegation import Refusals, audit_delegation
    from ci.executorch.quantize import round_blocks
    from ci.mend.torch_mixtures import MixableModule

from ci.analysis.effects import choose_rounded, list_roundings  # noqa: E402
from ci.analysis.grids import NO_GRID, find_grids  # noqa: E402
from ci.graphs.torch_program import TorchProgram, read_graphs  # noqa: E402
from ci.models.lowering_options import NO_CHOICES, Choices, Part  # noqa: E402
from ci.models.model import (  # noqa: E402
    FORWARD,
    Model,
    load_model,
)
from ci.models.schemes import Scheme  # noqa: E402
from provisioning.errors import FailedError, UsageError  # noqa: E402

assert _decomposed  # registers the operators
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
OPS: Any = torch.ops.quantized_decomposed


class Affine:
    """As torchao names its operator for blocks."""

    __name__ = "dequantize_affine.default"

    def __call__(self, *values: Any) -> Any:
        return values[0]


def make_graph(*outputs: Any, operator: Any = torch.ops.aten.tanh.default) -> GraphModule:
    """Outputs as numbers for a dequantization (scale, zero, low, high) of what ``operator`` gives,
    or None for the input."""
    graph = Graph()
    value = graph.call_function(operator, (graph.placeholder("x"),))
    kind = torch.uint8
    values = [
        graph.call_function(OPS.dequantize_per_tensor.default, (value, *output, kind))
        if output
        else value
        for output in outputs
    ]
    graph.output(tuple(values))
    return GraphModule(torch.nn.Module(), graph)


def test_outputs_that_are_none_or_numbers_are_not_described() -> None:
    graph = Graph()
    sine = graph.call_function(torch.ops.aten.sin.default, (graph.placeholder("x"),))
    graph.output(({"y": sine, "loss": None, "count": 3},))
    module = GraphModule(torch.nn.Module(), graph)
    assert find_grids(read_graphs({FORWARD: module}).values()) == [NO_GRID]
    assert audit_delegation([module], Refusals()).on_host == (True,)


def test_noise_is_attributed_to_the_rounding_not_to_what_amplifies_it() -> None:
    graph = Graph()
    value = graph.placeholder("x")
    for name, scale in (("neg", 0.01), ("square", 0.01), ("sqrt", 0.0001)):
        value = graph.call_function(getattr(torch.ops.aten, name).default, (value,))
        grid = (scale, 128 if name == "neg" else 0, 0, 255 if scale > 0.001 else 65535, torch.int32)
        value = graph.call_function(OPS.quantize_per_tensor.default, (value, *grid))
        value = graph.call_function(OPS.dequantize_per_tensor.default, (value, *grid))
    graph.output((value,))
    module = GraphModule(torch.nn.Module(), graph)
    program = TorchProgram(module, {FORWARD: module})
    largest = ("square_default", "sqrt_default")
    names = {("neg_default", "square_default"), largest, ("sqrt_default",)}
    assert set(list_roundings(program)) == names
    assert choose_rounded(program, (torch.rand(1, 64) * 0.2,)) == largest


def test_blocks_are_rounded_to_sixteenths_of_the_channels_largest() -> None:
    graph = Graph()
    blocks_input, scale = graph.placeholder("x"), graph.get_attr("scale")
    del scale
    graph.output(graph.call_function(Affine(), (blocks_input, (1, 2), "scale")))
    module = torch.nn.Module()
    module.register_buffer("scale", torch.tensor([[1.6, 0.33, 0.0, 1.0], [0.05, 0.2, 0.36, 0.8]]))
    original = GraphModule(module, graph)
    rounded = round_blocks(original)
    assert original.scale[0, 1] == pytest.approx(0.33)
    expected = torch.tensor([[1.6, 0.3, 0.1, 1.0], [0.05, 0.2, 0.35, 0.8]])
    torch.testing.assert_close(rounded.scale, expected)


def test_quantization_options_without_effect_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    quantizer: Any = MagicMock()

    def annotate(choices: Choices) -> None:
        with quantize.annotated(quantizer, choices):
            pass

    for choices, message in (
        (Choices(recipe="mlp:gone"), "mlp has no function 'gone'"),
        (Choices(discard_nodes=("gone",)), "the graph has no gone"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            annotate(choices)
        assert caught.value.why or caught.value.fix
    types: Any = (quantize.QuantDtype.use_8a8w, False, quantize.MinMaxObserver, 0)
    recipe = quantize.QuantRecipe(types[0], False, quantize.MinMaxObserver, 0)
    recipe.add_node_target({torch.ops.aten.relu.default}, *types)
    recipe.add_regex({r"layers\.\d$", "head"}, *types)
    returned: Any = 5
    monkeypatch.setattr(quantize, "call_function", lambda *_: returned)
    with pytest.raises(UsageError, match=r"net\.py:five returns no recipe") as caught:
        annotate(Choices(recipe="/my/net.py:five"))
    assert caught.value.fix == quantize.RECIPE
    returned = recipe
    annotate(Choices(recipe="/my/net.py:five"))
    quantizer.set_recipe.assert_called_once_with(recipe)
    graph = torch.fx.Graph()
    for path in ("", "layers.0", "head.linear"):
        node = graph.call_function(torch.ops.aten.relu.default, (graph.placeholder("x"),))
        node.meta["nn_module_stack"] = {"L": (path, None)}
    (check,) = recipe.custom_quant_annotations
    check(SimpleNamespace(graph=graph))
    recipe.add_regex({r"layers\.\d.wv"}, *types)
    with pytest.raises(UsageError, match=r"net\.py:five has the pattern 'layers.*wv'") as caught:
        check(SimpleNamespace(graph=graph))
    assert caught.value.why == "the graph has the modules layers.0, head.linear"


def test_an_annotation_function_that_annotates_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, quantizer = torch.fx.Graph(), MagicMock()
    node = graph.call_function(torch.ops.aten.relu.default, (graph.placeholder("x"),))
    with quantize.annotated(quantizer, Choices(annotation="/my/net.py:finer")):
        (annotate,) = quantizer.add_custom_quant_annotations.call_args.args[0]
    monkeypatch.setattr(quantize, "call_function", lambda *_: None)
    with pytest.raises(UsageError, match=r"annotation: net\.py:finer annotates no node") as caught:
        annotate(SimpleNamespace(graph=graph))
    assert "aten.relu.default" in caught.value.why
    changed = {"quantization_annotation": "16 bit"}
    monkeypatch.setattr(quantize, "call_function", lambda *_: node.meta.update(changed))
    annotate(SimpleNamespace(graph=graph))


def test_each_node_has_the_configuration_of_the_first_part_that_selects_it() -> None:
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    for name in ("relu", "sigmoid", "tanh"):
        value = graph.call_function(getattr(torch.ops.aten, name).default, (value,))
    parts = (Part(Scheme.A16W8, op="tanh"), Part(Scheme.A16W4, node="relu_default"))
    quantizer: Any = SimpleNamespace(
        transform_for_annotation=lambda module: module,
        set_submodule_qconfig_list=lambda rows: setattr(quantizer, "rows", rows),
    )
    quantize.select_parts(quantizer, Choices(parts=parts))
    quantizer.transform_for_annotation(SimpleNamespace(graph=graph))
    selected_names = []
    for is_selected, _ in quantizer.rows:
        selected_names.append([node.name for node in graph.nodes if is_selected(node)])
    assert selected_names == [["tanh_default"], ["relu_default"]]
    assert [config.quant_dtype.name for _, config in quantizer.rows] == ["use_16a8w", "use_16a4w"]


def test_a_model_of_which_nothing_is_quantized_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "convert_pt2e", lambda _: make_graph(None))
    sets = ((torch.ones(1, 2),),) * 2
    model = Model("/my/net.py:make", torch.nn.Linear(2, 2).eval(), sets, sets)
    with pytest.raises(FailedError, match=r"8a8w quantizes nothing in net\.py:make") as caught:
        quantize.quantize_method(model, Scheme.A8W8, NO_CHOICES, quantize.make_quantizer("SM8650"))
    assert caught.value.why
    assert caught.value.fix


def test_a_model_in_float16_is_refused_for_a_quantized_scheme() -> None:
    sets = ((torch.ones(1, 2).half(),),) * 2
    model = Model("/my/net.py:make", torch.nn.Linear(2, 2).half().eval(), sets, sets)
    with pytest.raises(UsageError, match=r"net\.py:make is in float16, but 16a8w needs float32"):
        quantize.quantize_method(model, Scheme.A16W8, NO_CHOICES, quantize.make_quantizer("SM8650"))


class PositionBias(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", torch.randn(5, 2))
        self.layer = torch.nn.Linear(2, 4)

    def forward(self, x: Any) -> Any:
        return x + self.layer(self.grid)


def test_the_constant_input_of_a_layer_is_not_taken_for_its_weights() -> None:
    sets = ((torch.randn(5, 4),),) * 2
    model = Model("/my/net.py:make", PositionBias().eval(), sets, sets)
    graph = quantize.quantize_method(
        model, Scheme.A16W8, NO_CHOICES, quantize.make_quantizer("SM8650")
    ).graph
    asked_bits = [(node.meta.get("custom") or {}).get(ASKED) for node in graph.nodes]
    assert {bits[1]: tuple(bits[2:]) for bits in asked_bits if bits} == {
        "linear": (16, 8),
        "add": (16, 0),
    }


def test_a_trained_range_covers_all_sets_channel_by_channel() -> None:
    fake = quantize.FusedMovingAvgObsFakeQuantize(
        MovingAveragePerChannelMinMaxObserver,
        quant_min=-128,
        quant_max=127,
        dtype=torch.int8,
        qscheme=torch.per_channel_symmetric,
        ch_axis=0,
    )
    sets = [(torch.tensor(rows),) for rows in ([[-1.0, 2.0], [3.0, 4.0]], [[0.0, 5.0], [1.0, 2.0]])]
    quantize.cover_ranges(torch.nn.Sequential(fake), sets)
    observer = fake.activation_post_process
    assert (observer.min_val.tolist(), observer.max_val.tolist()) == ([-1, 1], [5, 4])
    torch.testing.assert_close(fake.scale, torch.tensor([5, 4]) / 127.5)
    assert not fake.observer_enabled


NORMS = """
import torch
from torch import nn


def factory():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4)]
    return nn.Sequential(*layers).eval(), (torch.randn(1, 3, 8, 8),)
"""


def test_a_batch_norm_is_a_unit_of_mend_only_if_no_convolution_absorbs_it(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NORMS)
    mixable = MixableModule(load_model(f"{tmp_path}/net.py:factory"), Scheme.A8W8, "SM8650")
    names = [name for unit in mixable.units for name in unit.nodes]
    assert names == ["conv2d", "relu", "batch_norm_1"]
    for name in names:  # the quantizer knows each of them
        choices = Choices(parts=(Part(Scheme.A16W8, node=name),))
        assert math.isfinite(mixable.measure(choices))
