"""What is read from a quantized graph, and which nodes a part means, on graphs written by hand."""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("executorch", reason="executorch is not installed in this environment")

from torch.ao.quantization.fx import _decomposed  # noqa: E402
from torch.fx import Graph, GraphModule  # noqa: E402
from torchao.quantization.pt2e import (  # noqa: E402
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)

# As in lowering_steps.py.
with patch.dict(os.environ, QNN_SDK_ROOT="nowhere"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ci.executorch import delegation, engine, quantize
    from ci.executorch.quantize import NO_GRID, find_grids, round_blocks

from ci.cases.spec import CaseSpec  # noqa: E402
from ci.models.layers import measure_effects  # noqa: E402
from ci.models.lowering_options import NO_CHOICES, Choices, Part  # noqa: E402
from ci.models.model import (  # noqa: E402
    Methods,
    Model,
    split_module,
)
from ci.models.schemes import Scheme  # noqa: E402
from provisioning.errors import FailedError, UsageError  # noqa: E402
from provisioning.manifest.targets import Backend  # noqa: E402

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
    given = graph.call_function(operator, (graph.placeholder("x"),))
    kind = torch.uint8
    made = [
        graph.call_function(OPS.dequantize_per_tensor.default, (given, *one, kind))
        if one
        else given
        for one in outputs
    ]
    graph.output(tuple(made))
    return GraphModule(torch.nn.Module(), graph)


def test_the_values_of_an_output_are_multiples_of_its_step_from_zero() -> None:
    module = make_graph((0.5, 3, 0, 255), None, (0.25, -4, -128, 127))
    assert find_grids(module) == [(0.5, -3, 252), NO_GRID, (0.25, -124, 131)]
    assert find_grids(torch.nn.Linear(2, 2)) == []


def test_an_output_that_only_moves_an_input_may_hold_any_value() -> None:
    moved = make_graph((0.5, 3, 0, 255), None, operator=torch.ops.aten.squeeze.default)
    assert find_grids(moved) == [NO_GRID, NO_GRID]
    graph = Graph()
    kept = graph.call_function(torch.ops.aten.squeeze.default, (graph.placeholder("x"),))
    grid = (0.5, 3, 0, 255, torch.uint8)
    rounded = graph.call_function(OPS.quantize_per_tensor.default, (kept, *grid))
    graph.output((graph.call_function(OPS.dequantize_per_tensor.default, (rounded, *grid)),))
    assert find_grids(GraphModule(torch.nn.Module(), graph)) == [NO_GRID]
    graph = Graph()
    parts = [graph.placeholder(name) for name in "xy"]
    joined = graph.call_function(torch.ops.aten.cat.default, (parts,))
    graph.output((graph.call_function(OPS.dequantize_per_tensor.default, (joined, *grid)),))
    assert find_grids(GraphModule(torch.nn.Module(), graph)) == [NO_GRID]
    graph = Graph()
    sine = graph.call_function(torch.ops.aten.sin.default, (graph.placeholder("x"),))
    filled = graph.call_function(torch.ops.aten.full_like.default, (sine, 0.5))
    for second, known in ((sine, True), (filled, False)):
        joined = graph.call_function(torch.ops.aten.cat.default, ([sine, second],))
        end = graph.output(
            (graph.call_function(OPS.dequantize_per_tensor.default, (joined, *grid)),)
        )
        found = find_grids(GraphModule(torch.nn.Module(), graph))
        assert found == [(0.5, -3, 252) if known else NO_GRID]
        graph.erase_node(end)
    computed = make_graph((0.5, 3, 0, 255))
    assert find_grids(computed) == [(0.5, -3, 252)]


@pytest.mark.parametrize(("name", "moves"), [("squeeze", True), ("tanh", False)])
def test_an_input_that_is_rounded_before_and_after_its_move_is_only_moved(
    name: str, *, moves: bool
) -> None:
    graph = Graph()
    value = graph.placeholder("x")
    numbers = (0.5, 3, 0, 255, torch.uint8)
    for operator in (None, getattr(torch.ops.aten, name).default):
        value = graph.call_function(operator, (value,)) if operator else value
        value = graph.call_function(OPS.quantize_per_tensor.default, (value, *numbers))
        value = graph.call_function(OPS.dequantize_per_tensor.default, (value, *numbers))
    graph.output((value,))
    wanted = NO_GRID if moves else (0.5, -3, 252)
    assert find_grids(GraphModule(torch.nn.Module(), graph)) == [wanted]


def test_noise_belongs_to_the_rounding_that_causes_it_and_not_to_what_amplifies_it() -> None:
    graph = Graph()
    value = graph.placeholder("x")
    for name, scale in (("neg", 0.01), ("square", 0.01), ("sqrt", 0.0001)):
        value = graph.call_function(getattr(torch.ops.aten, name).default, (value,))
        grid = (scale, 128 if name == "neg" else 0, 0, 255 if scale > 0.001 else 65535, torch.int32)
        value = graph.call_function(OPS.quantize_per_tensor.default, (value, *grid))
        value = graph.call_function(OPS.dequantize_per_tensor.default, (value, *grid))
    graph.output((value,))
    module = GraphModule(torch.nn.Module(), graph)
    found = measure_effects(module, (torch.rand(1, 64) * 0.2,))
    assert max(found, key=lambda one: found[one]) == ("square_default", "sqrt_default")
    assert set(found) == {("neg_default", "square_default"), max(found, key=lambda one: found[one]),
                          ("sqrt_default",)}  # fmt: skip


def test_blocks_are_rounded_to_sixteenths_of_the_channels_largest() -> None:
    graph = Graph()
    given, scale = graph.placeholder("x"), graph.get_attr("scale")
    del scale
    graph.output(graph.call_function(Affine(), (given, (1, 2), "scale")))
    module = torch.nn.Module()
    module.register_buffer("scale", torch.tensor([[1.6, 0.33, 0.0, 1.0], [0.05, 0.2, 0.36, 0.8]]))
    whole = GraphModule(module, graph)
    rounded = round_blocks(whole)
    assert whole.scale[0, 1] == pytest.approx(0.33)
    expected = torch.tensor([[1.6, 0.3, 0.1, 1.0], [0.05, 0.2, 0.35, 0.8]])
    torch.testing.assert_close(rounded.scale, expected)


@pytest.mark.parametrize("scheme", [Scheme.A8W8, Scheme.A16W8, Scheme.A16W4])
def test_ranges_are_those_that_were_seen_and_weights_have_a_scale_a_channel(
    scheme: Scheme,
) -> None:
    chosen = quantize.configure(scheme)
    training = bool(scheme.recipe.training_steps)
    assert chosen == {
        "quant_dtype": quantize.QuantDtype[scheme.recipe.dtype],
        "is_qat": training,
        "is_conv_per_channel": True,
        "is_linear_per_channel": True,
        "act_observer": None if training else quantize.MinMaxObserver,
    }


def test_choices_that_mean_nothing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    quantizer: Any = MagicMock()

    def annotate(choices: Choices) -> None:
        with quantize.annotated(quantizer, choices):
            pass

    for choices, told in (
        (Choices(recipe="mlp:gone"), "mlp has no function 'gone'"),
        (Choices(discard_nodes=("gone",)), "the graph has no gone"),
    ):
        with pytest.raises(UsageError, match=told) as caught:
            annotate(choices)
        assert caught.value.why or caught.value.fix
    recipe = object.__new__(quantize.QuantRecipe)
    for made in (recipe, 5):
        monkeypatch.setattr(quantize, "call_function", lambda *_, made=made: made)
        if made == 5:
            with pytest.raises(UsageError, match=r"net\.py:five returns no recipe") as caught:
                annotate(Choices(recipe="/my/net.py:five"))
            assert caught.value.fix == quantize.RECIPE
        else:
            annotate(Choices(recipe="/my/net.py:five"))
    quantizer.set_recipe.assert_called_once_with(recipe)


def test_a_users_annotation_gets_the_graph_after_those_of_the_toolkit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quantizer: Any = MagicMock()
    called: list[object] = []
    monkeypatch.setattr(quantize, "call_function", lambda *given: called.append(given))
    with quantize.annotated(quantizer, Choices(annotation="/my/net.py:mark"), [called.append]):
        ((functions,), _) = quantizer.add_custom_quant_annotations.call_args
        for one in functions:
            one("graph")
    assert called == ["graph", ("/my/net.py:mark", quantize.ANNOTATION, "graph")]


@pytest.mark.parametrize("gone", [0, 1])
def test_each_node_to_discard_has_to_be_there(gone: int) -> None:
    """Of two, the one without a node is named."""
    names = ["linear", "linear"]
    names[gone] = "gone"
    nodes = [SimpleNamespace(name=name, meta={}, op="call_function") for name in ("relu", "linear")]
    quantizer: Any = MagicMock()

    def discard() -> None:
        with quantize.annotated(quantizer, Choices(discard_nodes=tuple(names))):
            ((functions,), _) = quantizer.add_custom_quant_annotations.call_args
            functions[0](SimpleNamespace(graph=SimpleNamespace(nodes=nodes)))

    with pytest.raises(UsageError, match="discard_nodes: the graph has no gone") as caught:
        discard()
    assert caught.value.fix == "use one of: relu, linear"


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
    assert [[one.name for one in graph.nodes if has(one)] for has, _ in quantizer.rows] == [
        ["tanh_default"],
        ["relu_default"],
    ]
    assert [config.quant_dtype.name for _, config in quantizer.rows] == ["use_16a8w", "use_16a4w"]


def test_operators_are_counted_on_the_processor_where_they_run() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.aten.erf.default, (x,)))
    inner = SimpleNamespace(graph=graph)
    outer = torch.fx.Graph()
    y = outer.placeholder("x")
    for _ in range(2):
        y = outer.call_function(torch.ops.aten.relu.default, (y,))
    held = SimpleNamespace(name="lowered_module_0", op="get_attr", target="lowered_module_0")
    named_like_it = SimpleNamespace(name="lowered_module_x", op="placeholder", target="x")
    module = SimpleNamespace(
        graph=SimpleNamespace(nodes=[*outer.nodes, held, named_like_it]),
        lowered_module_0=SimpleNamespace(original_module=inner),
    )
    last = SimpleNamespace(name="lowered_module_1", op="get_attr", target="lowered_module_1")
    other = SimpleNamespace(
        graph=SimpleNamespace(nodes=[*outer.nodes, held, last]),
        lowered_module_0=SimpleNamespace(original_module=inner),
        lowered_module_1=SimpleNamespace(original_module=SimpleNamespace(graph=outer)),
    )
    for modules, wanted in (
        ([module], {("erf.default", 1, 0), ("relu.default", 0, 2)}),
        ([module, other], {("erf.default", 2, 0), ("relu.default", 2, 4)}),
    ):
        counts = {(one.op, one.npu, one.cpu) for one in delegation.count_operators(modules)}
        assert counts == wanted


def test_patches_that_are_off_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ci.executorch.patches.warm_up", lambda plain: [f"off: {plain}"])
    engine.ExecutorchEngine(()).warm_up(CaseSpec("net", Scheme.A8W8, "SM8650"))
    assert [one.message for one in caplog.records] == ["off: False"]


def test_each_method_is_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    def quantize_method(part: Model, scheme: Scheme, choices: Choices, quantizer: Any) -> Any:
        assert (scheme, choices, quantizer) == (Scheme.A8W8, NO_CHOICES, ("SM8650", Backend.GPU))
        return torch.nn.Sequential(part.module, torch.nn.ReLU())

    monkeypatch.setattr(quantize, "make_quantizer", lambda *given: given)
    monkeypatch.setattr(quantize, "quantize_method", quantize_method)
    parts = {name: torch.nn.Linear(2, 2) for name in ("forward", "other")}
    methods = Methods(parts, dict.fromkeys(parts, 1))
    sets = ((torch.ones(1, 2), torch.ones(1, 2)),) * 2
    for module, names in ((methods, [*parts]), (parts["forward"], ["forward"])):
        own = tuple(one[: len(names)] for one in sets)
        model = Model("net", module, own, own)
        args = (model, Scheme.A8W8, "SM8650", NO_CHOICES, Backend.GPU)
        made = split_module(quantize.quantize_model(*args))
        assert {name: one[0] for name, one in made.items()} == {name: parts[name] for name in names}


class Counting(torch.nn.Module):
    """A layer that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x)


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")
def test_calibration_leaves_no_state_in_a_model() -> None:
    sets = ((torch.ones(1, 2),),) * 3
    model = Model("net", Counting().eval(), sets, sets)
    quantizer = quantize.make_quantizer("SM8650")
    made = quantize.quantize_method(model, Scheme.A8W8, NO_CHOICES, quantizer)
    assert dict(made.named_buffers())["calls"].tolist() == [0]


def test_a_model_of_which_nothing_is_quantized_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "convert_pt2e", lambda _: make_graph(None))
    sets = ((torch.ones(1, 2),),) * 2
    model = Model("/my/net.py:make", torch.nn.Linear(2, 2).eval(), sets, sets)
    with pytest.raises(FailedError, match=r"8a8w quantizes nothing in net\.py:make") as caught:
        quantize.quantize_method(model, Scheme.A8W8, NO_CHOICES, quantize.make_quantizer("SM8650"))
    assert caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize(
    ("scheme", "prepares", "calibrates"),
    [
        (Scheme.A16W4, "prepare_pt2e", "run_eager"),
        (Scheme.A16W4_TRAINED, "prepare_qat_pt2e", "train"),
    ],
)
def test_what_is_trained_is_prepared_for_training(
    monkeypatch: pytest.MonkeyPatch, scheme: Scheme, prepares: str, calibrates: str
) -> None:
    prepared = {name: torch.nn.Linear(2, 2) for name in ("prepare_pt2e", "prepare_qat_pt2e")}
    for name, made in prepared.items():
        monkeypatch.setattr(quantize, name, lambda *_, made=made: made)
    for name in ("run_eager", "train", "convert_pt2e"):

        def stop(module: Any, *_: Any, name: str = name) -> None:
            assert module is prepared[prepares]
            raise FailedError(name)

        monkeypatch.setattr(quantize, name, stop)
    sets = ((torch.ones(1, 2),),) * 2
    model = Model("net", torch.nn.Linear(2, 2).eval(), sets, sets)
    with pytest.raises(FailedError, match=f"^{calibrates}$"):
        quantize.quantize_method(model, scheme, NO_CHOICES, MagicMock())


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


def test_the_range_of_each_observer_covers_what_it_saw() -> None:
    fakes = [
        quantize.FusedMovingAvgObsFakeQuantize(
            MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.uint8
        )
        for _ in range(2)
    ]
    module = torch.nn.Sequential(fakes[0], torch.nn.Hardtanh(-1.0, 2.0), fakes[1])
    quantize.cover_ranges(module, [(torch.tensor([-4.0, 1.0]),), (torch.tensor([-0.5, 3.0]),)])
    ranges = [
        (float(one.min_val), float(one.max_val))
        for one in (fake.activation_post_process for fake in fakes)
    ]
    assert ranges == [(-4.0, 3.0), (-1.0, 2.0)]
    scales = [float(fake.scale) for fake in fakes]
    assert scales == pytest.approx([7 / 255, 3 / 255])
    assert not any(fake.observer_enabled for fake in fakes)


def test_the_loss_is_noise_over_signal_summed_over_magnitudes() -> None:
    made = [torch.tensor([1.0, 3.0]), torch.tensor([7]), torch.tensor([2.0])]
    wanted = [torch.tensor([1.0, 2.0]), torch.tensor([9]), torch.tensor([1.0])]
    assert quantize.measure_loss(made, wanted).item() == pytest.approx(0.5 / 2.5 + 1)
    with pytest.raises(ValueError, match="longer"):
        quantize.measure_loss(made[:2], wanted)
