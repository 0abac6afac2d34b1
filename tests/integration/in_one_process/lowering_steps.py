"""The steps of a lowering that need ExecuTorch and no QNN: quantization, refusals, records."""

from __future__ import annotations

import copy
import json
import logging
import operator
import os
import pickle
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

# Without QNN_SDK_ROOT ExecuTorch's import downloads an SDK; and it warns of what it uses itself.
with patch.dict(os.environ, QNN_SDK_ROOT="nowhere"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from executorch.backends.qualcomm.serialization import qc_schema
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
    from executorch.backends.qualcomm.serialization.qc_schema_serialize import flatbuffer_to_option

    from ci.executorch import delegation as audit
    from ci.executorch import engine, lower, patches, quantize
    from ci.executorch.compiled_types import TypeRecord
    from ci.executorch.delegation import (
        BUILDER,
        MAX_REASON,
        audit_delegation,
        record_refusals,
    )
    from ci.executorch.quantize import block_sizes, quantize_model

from ci.cases.engine import Delegation, Fallback, Staging  # noqa: E402
from ci.cases.forked import MAX_RAISED, describe_error  # noqa: E402
from ci.cases.spec import CaseSpec  # noqa: E402
from ci.executorch.toolchain import EXECUTORCH, list_places  # noqa: E402
from ci.facts.finding import Origin  # noqa: E402
from ci.models.exports import export_module  # noqa: E402
from ci.models.lowering_options import Choices, Part  # noqa: E402
from ci.models.model import Model  # noqa: E402
from ci.models.schemes import Scheme  # noqa: E402
from ci.models.tensors import TensorInfo  # noqa: E402
from ci.models.user_code import find_origin  # noqa: E402
from ci.models.user_models import ReferencePolicy, Source  # noqa: E402
from ci.report.schema import Footprint  # noqa: E402
from provisioning.errors import FailedError, UsageError  # noqa: E402
from provisioning.manifest.pairs import read_pairs  # noqa: E402
from provisioning.manifest.targets import Backend  # noqa: E402

WARNINGS = ("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
pytestmark = pytest.mark.filterwarnings(*WARNINGS)
SPEC = CaseSpec("net", Scheme.A8W8, "SM8650")
NO_TYPES = TypeRecord()


def draw(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_what_lowering_imports_of_executorch_is_in_its_key() -> None:
    keyed = [Path(place, part) for place in list_places() for part in EXECUTORCH]
    files = {
        module.__spec__.origin
        for name, module in tuple(sys.modules.items())
        if name.count(".") > 1 and name.startswith("executorch.") and module.__spec__.origin
    }
    assert len(files) > 300
    for file in files:
        assert any(Path(file).is_relative_to(place) for place in keyed), file


class Convolutions(torch.nn.Module):
    """Layers that blocks of 32 fit and that they do not, and a state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pointwise = torch.nn.Conv2d(32, 48, 1)
        self.odd = torch.nn.Conv2d(48, 32, 1)
        self.wide = torch.nn.Conv2d(32, 32, 3)
        self.linear = torch.nn.Linear(64, 4)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        y = self.linear(self.wide(self.odd(self.pointwise(x))).reshape(1, 32, -1)[:, :, :64])
        self.total.add_(y.mean((0, 1)))
        x.zero_()
        return y + self.total


@pytest.fixture(scope="module")
def quantized() -> tuple[Model, Any]:
    sets = tuple((draw(1, 32, 10, 10, seed=seed) * scale,) for seed, scale in enumerate((1, 1, 8)))
    model = Model("net", Convolutions().eval(), sets[:1], sets)
    return model, quantize_model(model, Scheme.A8W8, "SM8650")


def trace(target: Any) -> Any:
    """A graph module that calls ``target``."""
    graph = torch.fx.Graph()
    graph.output(graph.call_function(target, (graph.placeholder("x"),)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A graph module in one, run once and then changed: a sigmoid has taken a relu's place."""
    graph_module = torch.fx.GraphModule
    for name in ("recompile", "__reduce__"):
        monkeypatch.setattr(graph_module, name, getattr(graph_module, name))
    for name in patches.WRITTEN:
        monkeypatch.setattr(graph_module, name, None, raising=False)
    patches.write_code_late()
    outer = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    outer.add_submodule("inner", trace(torch.relu))
    outer.graph.output(outer.graph.call_module("inner", (outer.graph.placeholder("x"),)))
    outer.recompile()
    assert outer(draw(4)).min() == 0
    (relu,) = [node for node in outer.inner.graph.nodes if node.target is torch.relu]
    relu.target = torch.sigmoid
    outer.recompile()
    return outer


ASKED: dict[str, Callable[[Any, Any], Any]] = {
    "called": lambda module, x: module(x),
    "forward": lambda module, x: module.forward(x),
    "forward of the class": lambda module, x: type(module).forward(module, x),
    "copied": lambda module, x: copy.deepcopy(module)(x),
    "pickled": lambda module, x: pickle.loads(pickle.dumps(module))(x),  # noqa: S301
    "exported": lambda module, x: torch.export.export(module, (x,), strict=True).module()(x),
}


@pytest.mark.parametrize("way", ASKED)
def test_a_patched_graph_module_computes_its_changed_graph_in_every_way_of_use(
    changed: Any, way: str
) -> None:
    assert not {*patches.WRITTEN} & {*vars(changed), *vars(changed.inner)}
    assert torch.equal(ASKED[way](changed, draw(4)), torch.sigmoid(draw(4)))


def test_a_kernel_is_registered_once_as_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    base, key, relu = (
        torch._ops.OperatorBase,
        torch._C.DispatchKey.Lazy,
        torch.ops.aten.relu.default,
    )
    monkeypatch.setattr(base, "py_impl", base.py_impl)
    monkeypatch.setattr(relu, "py_kernels", {})
    patches.register_fast()
    assert relu.py_impl(key)(abs) is abs
    assert relu.py_kernels == {key: abs}
    with pytest.raises(RuntimeError, match="override"):
        relu.py_impl(key)(abs)


def test_the_search_for_faults_exports_without_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.export, "export", lambda *arguments, **options: (arguments, options))
    patches.export_without_dynamo()
    assert torch.export.export(1, strict=True, kwargs=2) == ((1,), {"strict": False, "kwargs": 2})


def relu_module(*, nested: bool) -> Any:
    """A graph module that calls relu itself, or in another graph module."""
    inner = trace(torch.ops.aten.relu.default)
    if not nested:
        return inner
    outer = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    outer.add_submodule("inner", inner)
    outer.graph.output(outer.graph.call_module("inner", (outer.graph.placeholder("x"),)))
    outer.recompile()
    return outer


@pytest.mark.parametrize("nested", [False, True])
def test_a_target_is_found_in_a_graph_and_in_those_that_it_calls(nested: bool) -> None:
    module, relu = relu_module(nested=nested), torch.ops.aten.relu.default
    assert patches.has_target(module, {relu: None})
    assert not patches.has_target(module, {torch.ops.aten.sigmoid.default: None})
    assert patches.is_flat(module) != nested


def test_a_program_is_decomposed_again_only_if_that_changes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program_class = torch.export.ExportedProgram
    decompose = program_class.run_decompositions
    monkeypatch.setattr(program_class, "run_decompositions", decompose)
    patches.skip_empty_decompositions()
    exported = torch.export.export(torch.nn.Softmax(-1).eval(), (torch.ones(1, 4),))
    table = torch.export.default_decompositions()
    functional = exported.run_decompositions({})
    assert functional is not exported
    assert "aten.softmax.int" in str(functional.graph)
    core = functional.run_decompositions(table)
    assert "aten._softmax.default" in str(core.graph)
    assert core.run_decompositions(table) is core
    assert str(decompose(core, table).graph) == str(core.graph)
    assert core.run_decompositions() is not core  # without a table, torch chooses one


def trace_symbol(*, is_symbol: bool) -> Any:
    """A graph module with a number that is known, or only when it runs."""
    module = trace(torch.ops.aten.relu.default)
    (call,) = (node for node in module.graph.nodes if node.op == "call_function")
    environment = torch.fx.experimental.symbolic_shapes.ShapeEnv()
    call.meta["val"] = environment.create_unbacked_symint() if is_symbol else 2
    return module


@pytest.mark.parametrize(
    ("needs_pass", "idle", "needing"),
    [
        (patches.is_view, trace(torch.ops.aten.t_copy.default), trace(torch.ops.aten.t.default)),
        (patches.is_view, trace(torch.relu), trace(torch.ops.aten.view.default)),
        (patches.is_symbolic, trace_symbol(is_symbol=False), trace_symbol(is_symbol=True)),
    ],
)
def test_a_pass_is_skipped_if_no_node_needs_it(needs_pass: Any, idle: Any, needing: Any) -> None:
    call = patches.skip_unless(needs_pass, lambda name, module: f"{name} changed {id(module)}")
    assert call("it", needing) == f"it changed {id(needing)}"
    skipped = call("it", idle)
    assert (skipped.graph_module, skipped.modified) == (idle, False)


def list_targets(module: Any) -> list[Any]:
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def test_only_passes_without_work_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    from executorch.exir import passes

    classes = (
        passes.NormalizeTransposePass,
        passes.ReplaceBrokenOpsWithFunctionalOpsPass,
        passes.SymToTensorPass,
    )
    for pass_class in classes:
        monkeypatch.setattr(pass_class, "call", pass_class.call, raising=False)
    exported = torch.export.export(torch.nn.Linear(4, 4).eval(), (torch.ones(1, 4),))
    core = exported.run_decompositions()  # with a permutation, which is a view

    def run_passes() -> list[Any]:
        return [pass_class()(core.graph_module).graph_module for pass_class in classes]

    results = run_passes()
    patches.skip_idle_passes()
    skipping = run_passes()
    # Not their names, which each pass makes anew.
    assert [list_targets(result) for result in skipping] == [*map(list_targets, results)]
    assert [result is core.graph_module for result in skipping] == [True, False, True]


def list_calls(program: Any) -> list[tuple[Any, ...]]:
    """The calls of an exported program: name, operator, arguments, place in the model."""
    calls = (node for node in program.graph.nodes if node.op == "call_function")
    return [(node.name, node.target, str(node.args), find_origin(node)) for node in calls]


def test_a_quantized_model_is_exported_without_dynamo_to_the_same_graph(
    quantized: tuple[Model, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (model, converted), export, strict = quantized, torch.export.export, list[bool]()

    def record(*arguments: Any, **options: Any) -> Any:
        strict.append(options["strict"])
        return export(*arguments, **options)

    monkeypatch.setattr(torch.export, "export", record)
    patches.export_graphs_directly()
    traced = torch.export.export(converted, model.evaluation[0], strict=True)
    assert list_calls(traced) == list_calls(export(converted, model.evaluation[0], strict=True))
    torch.export.export(torch.nn.ReLU(), (torch.ones(1),), strict=True)
    torch.export.export(relu_module(nested=True), (torch.ones(1),), strict=True)
    assert strict == [False, True, True]


def test_a_graph_that_cannot_be_exported_gets_the_error_of_a_strict_export(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, strict: bool) -> Any:
        raise ValueError(f"strict={strict}")

    monkeypatch.setattr(torch.export, "export", refuse)
    patches.export_graphs_directly()
    with pytest.raises(ValueError, match="strict=True"):
        torch.export.export(relu_module(nested=False), (torch.ones(1),), strict=True)


def test_an_export_of_an_analysis_is_used_once_for_the_lowering(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.export, "export", torch.export.export)
    patches.export_once()
    module, inputs = torch.nn.ReLU().eval(), (torch.ones(1, 4),)
    program = export_module(module, inputs, strict=True)
    with torch.no_grad():
        options = {"strict": True, "dynamic_shapes": None}
        assert torch.export.export(module, (torch.ones(1, 4),), **options) is not program
        assert torch.export.export(module, inputs, strict=False) is not program
        assert torch.export.export(module, inputs, **options) is program
        assert torch.export.export(module, inputs, **options) is not program
    again = export_module(module, inputs, strict=True)
    assert again is not program
    assert torch.export.export(module, inputs, strict=True) is not again  # records gradients


def double(x: Any) -> None:
    x.mul_(2)


class Mutating(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        y = x.clone()
        torch.ops.shop.double_(y)
        return y + 1


class Idle(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        x.copy_(x)
        return x + 1


@pytest.mark.parametrize("module", [Mutating(), Idle(), torch.nn.Linear(4, 4)])
def test_a_program_is_changed_as_by_the_function_of_torch_that_needs_inductor(module: Any) -> None:
    with torch.library._scoped_library("shop", "FRAGMENT") as library:
        library.define("double_(Tensor(a!) x) -> ()")
        library.impl("double_", double, "CompositeExplicitAutograd")
        exported = torch.export.export(module.eval(), (torch.ones(1, 4),)).run_decompositions()
        with exported.graph.inserting_before(exported.graph.output_node()):
            exported.graph.call_function(torch.ops.aten.neg.default, (find_input(exported),))
        expected = patches.load_functionalized().unsafe_remove_auto_functionalized_pass(
            copy.deepcopy(exported)
        )
        changed = patches.remove_functionalized(copy.deepcopy(exported))
        assert str(changed.graph) == str(expected.graph)
        assert "neg" not in str(changed.graph)
        assert "auto_functionalized" not in str(changed.graph)
        assert ("double_" in str(changed.graph)) == isinstance(module, Mutating)


def find_input(program: Any) -> Any:
    """The last input of an exported program, which is the user's."""
    return [node for node in program.graph.nodes if node.op == "placeholder"][-1]


def test_a_patch_is_off_with_a_note_for_unverified_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    applied: list[str] = []

    def first() -> None:
        applied.append("first")

    def second() -> None:
        applied.append("second")

    rows = (patches.Patch(first, ("9.1",), ("1.5.1",)), patches.Patch(second, ("9.2",), ("1.5.1",)))
    monkeypatch.setattr(patches, "PATCHES", rows)
    installed = {"torch": "9.1+cpu", "executorch": "1.5.1"}
    monkeypatch.setattr(patches, "version", installed.__getitem__)
    (note,) = patches.apply_patches(patches.PATCHES)
    assert applied == ["first"]
    assert all(word in note for word in ("second", "torch 9.1+cpu", "9.2"))
    several = [patches.Patch(second, ("9.0", "9.1"), ("1.4.1", "1.5.1"))]
    assert list(patches.apply_patches(several)) == []
    assert applied.pop() == "second"
    installed["executorch"] = "1.6.0"
    assert len(list(patches.apply_patches(patches.PATCHES))) == 2
    (two_versions,) = patches.apply_patches(rows[1:])
    assert two_versions.endswith(
        "torch 9.1+cpu (verified: 9.2) and executorch 1.6.0 (verified: 1.5.1)"
    )
    assert applied == ["first"]


def test_patches_are_verified_with_the_pinned_versions() -> None:
    """Otherwise, a change of the pins would turn all of them off, and only the longer time would
    show it."""
    pinned = read_pairs()
    for row in patches.PATCHES:
        assert pinned.find_torch() in row.torch
        assert pinned.default in row.executorch


def test_only_1x1_layers_of_a_fitting_width_are_quantized_in_blocks() -> None:
    exported = torch.export.export(Convolutions().eval(), (draw(1, 32, 10, 10),), strict=True)
    sizes = block_sizes(exported.module(), 32)
    assert list(sizes.values()) == [(1, 32, 1, 1), (1, 32)]
    parts = [Part(Scheme.A16W8, type="Linear")]
    assert list(block_sizes(exported.module(), 32, parts).values()) == [(1, 32, 1, 1)]
    parts.insert(0, Part(Scheme.A16W8, node="none"))
    assert list(block_sizes(exported.module(), 32, parts).values()) == [(1, 32, 1, 1)]
    uneven = torch.nn.Conv2d(32, 8, (1, 3))
    exported = torch.export.export(uneven, (draw(1, 32, 4, 4),), strict=True)
    assert block_sizes(exported.module(), 32) == {}


def test_calibration_covers_rare_values_and_changes_no_state_or_inputs(
    quantized: tuple[Model, Any],
) -> None:
    model, converted = quantized
    assert all(inputs[0].any() for inputs in model.calibration)
    assert not model.module.total.any()
    assert not dict(converted.named_buffers())["total"].any()
    first = next(node for node in converted.graph.nodes if "quantize_per_tensor" in str(node))
    scale = float(first.args[1])
    widest = max(float(inputs[0].abs().max()) for inputs in model.calibration)
    assert scale * 255 > widest * 1.5  # a moving average stays near 1 / 100 of the way to it


def test_convolutions_and_linear_layers_have_a_scale_a_channel(
    quantized: tuple[Model, Any],
) -> None:
    targets = [str(node.target) for node in quantized[1].graph.nodes]
    assert sum("dequantize_per_channel" in target for target in targets) >= 4


@pytest.mark.parametrize(
    ("scheme", "soc"),
    [
        (Scheme.FP16, "SM8650"),
        (Scheme.FP16W8, "SM8650"),
        (Scheme.A8W8, "SM8650"),
        (Scheme.FP16, "SM8750"),
    ],
)
def test_the_compiler_gets_the_soc_and_the_precision(scheme: Scheme, soc: str) -> None:
    (spec,) = lower.compiler_spec(scheme, soc)
    option = flatbuffer_to_option(spec.value)
    assert option.soc_info.soc_model == QcomChipset[soc]
    fp16 = lower.compiler_spec(Scheme.FP16, soc)[0].value
    assert (spec.value == fp16) == (scheme in {Scheme.FP16, Scheme.FP16W8})


def test_initial_values_are_kept_for_buffers_that_change() -> None:
    def edge(*mutated: str) -> Any:
        signature = SimpleNamespace(
            buffers_to_mutate={f"out_{name}": name for name in mutated},
            inputs_to_buffers={"b_total": "total", "b_fixed": "fixed"},
        )
        program = SimpleNamespace(graph_signature=signature)
        return SimpleNamespace(methods={"forward"}, exported_program={"forward": program}.get)

    (constant_pass,) = lower.keep_initial_state(edge("total")).passes
    assert constant_pass.patterns == ["b_total"]
    assert lower.keep_initial_state(edge()).passes == []
    first, second = edge("total"), edge("fixed")
    programs = {
        "kv": first.exported_program("forward"),
        "prefill": second.exported_program("forward"),
    }
    several = SimpleNamespace(methods={*programs}, exported_program=programs.get)
    (constant_pass,) = lower.keep_initial_state(several).passes
    assert constant_pass.patterns == ["b_total", "b_fixed"]


class Parts(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.cat([x, x * 2], 1), x.argmax(1)


def make_model() -> Model:
    sets = tuple((draw(2, 3, seed=seed),) for seed in range(4))
    return Model("net", Parts(), sets, sets, tuple(Parts()(*inputs) for inputs in sets))


def make_lowering(folder: Path, choices: Choices | None = None) -> lower.Lowering:
    spec = replace(SPEC, source=Source(choices=choices or Choices()))
    return lower.Lowering(make_model(), spec, Staging(folder, folder / "log", folder))


def test_outputs_are_described_by_their_types_and_shapes() -> None:
    infos = lower.describe_outputs(make_model(), ())
    assert infos == (TensorInfo("float32", (2, 6)), TensorInfo("int64", (2,)))


@pytest.mark.parametrize("layers", [False, True])
def test_a_degenerate_reference_is_refused_before_lowering_and_names_the_inputs(
    tmp_path: Path, *, layers: bool
) -> None:
    """It is refused before anything is quantized, for layers too."""
    model = make_model()
    zeros = tuple(tuple(map(torch.zeros_like, outputs)) for outputs in model.reference)
    model = replace(model, reference=zeros, made_inputs="random inputs")
    policy = ReferencePolicy(min_rms=1e-6, min_spread=1e-3)
    staging = Staging(tmp_path, tmp_path / "log", tmp_path, policy)
    lowering = replace(make_lowering(tmp_path), model=model, staging=staging)
    with pytest.raises(FailedError, match="proves nothing") as caught:
        lowering.write_program(model.module) if layers else lowering.write()
    assert "random inputs" in caught.value.why
    assert not (tmp_path / "quantized").exists()


def test_an_output_that_is_of_another_dtype_when_quantized_is_refused(tmp_path: Path) -> None:
    class Quotient(Parts):
        def forward(self, x: Any) -> Any:
            joined, largest = super().forward(x)
            return joined, largest / 1

    message = "output 1 of net is float32 instead of int64 when quantized"
    with pytest.raises(FailedError, match=message) as caught:
        make_lowering(tmp_path).write_program(Quotient())
    assert caught.value.fix


def test_only_the_index_output_next_to_a_float_one_gets_bounds(tmp_path: Path) -> None:
    model, lowering = make_model(), make_lowering(tmp_path)
    lowering.staging.write_float(model.reference)
    lowering.write_bounds("float", model.module, model.reference)
    names = {path.name for path in (tmp_path / "float").iterdir()}
    assert {"0_1.raw", "0_1.low.raw", "3_1.high.raw"} <= names
    assert not {"0_0.low.raw", "0_0.high.raw"} & names
    assert (tmp_path / "float/2_0.raw").read_bytes() == model.reference[2][0].numpy().tobytes()
    near = torch.tensor([[1.0, 1.001, -1.0], [1.0, 3.0, -1.0]])
    lowering.model.evaluation[3][0].copy_(near)
    lowering.write_bounds("float", model.module, [*model.reference[:3], model.module(near)])
    kinds = (".low", ".high")
    bounds = [np.fromfile(tmp_path / f"float/3_1{kind}.raw", np.int64) for kind in kinds]
    assert [bound.tolist() for bound in bounds] == [[0, 1], [1, 1]]


def fail(error: Exception, cause: Exception | None = None) -> Callable[..., Any]:
    def run(*words: Any) -> Any:
        raise error from cause

    return run


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        self.total.add_(x.sum(0))
        return x + self.total, x.argmax(1)


def test_a_concatenated_input_has_the_range_of_the_concatenation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch adds a guard function after the inputs unless the caller's path contains executorch."""

    class Cache(torch.nn.Module):
        def forward(self, cache_step: Any, x: Any) -> Any:
            return torch.cat([cache_step, x * 4])

    monkeypatch.setattr("torch.export._unlift._ok_to_generate_guards_fn", lambda: True)
    sets = tuple((draw(2, 8, seed=seed), draw(2, 8, seed=9 + seed)) for seed in range(3))
    model = Model("net", Cache(), sets, sets)
    nodes = quantize_model(model, Scheme.A8W8, "SM8650").graph.nodes
    steps = [
        graph_node.args[1]
        for graph_node in nodes
        if "quantize_per_tensor" in str(graph_node.target)
    ]
    cache_step, output_step = steps[0], steps[-1]
    assert cache_step == output_step


def test_a_scheme_that_an_older_executorch_lacks_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quantize, "QuantDtype", Enum("QuantDtype", ["use_8a8w"]))
    with pytest.raises(FailedError, match="has no scheme 16a8w") as caught:
        quantize.configure(Scheme.A16W8)
    assert Scheme.A16W8.recipe.dtype in caught.value.why
    assert quantize.configure(Scheme.A8W8)["quant_dtype"].name == "use_8a8w"


def test_a_quantized_model_is_compiled_with_its_initial_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_state = []

    def compile_program(
        self: Any, module: Any, choices: Choices
    ) -> tuple[bytes, Delegation, Footprint, TypeRecord]:
        has_state.append(bool(module.total.any()))
        return b"program", Delegation(1, 0, 1), Footprint(program_bytes=7), NO_TYPES

    example = make_model().evaluation[0]
    graph = torch.export.export(Counting(), example, strict=True).module()
    monkeypatch.setattr(lower, "quantize_model", lambda *words: graph)
    monkeypatch.setattr(lower.Lowering, "compile", compile_program)
    compiled = make_lowering(tmp_path).write()
    assert has_state == [False]
    assert (compiled.program, compiled.sets, compiled.size_bytes) == ("program.pte", 4, 7)
    assert compiled.footprint == Footprint(program_bytes=7)
    names = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.*")}
    bounds = {f"{kind}/3_1.{way}.raw" for kind in ("float", "quantized") for way in ("low", "high")}
    assert names >= bounds | {"program.pte", "inputs/3_0.raw", "quantized/3_0.raw"}


@pytest.mark.parametrize(
    ("choices", "field", "value"),
    [
        (Choices(online_prepare=True), "online_prepare", True),
        (Choices(shared_buffer=True), "shared_buffer", True),
        (Choices(dump_intermediate_outputs=True), "dump_intermediate_outputs", True),
        (
            Choices(profile_level="detailed"),
            "profile_level",
            qc_schema.QnnExecuTorchProfileLevel.kProfileDetailed,
        ),
        (
            Choices(profile_level="optrace"),
            "profile_level",
            qc_schema.QnnExecuTorchProfileLevel.kProfileOptrace,
        ),
        (Choices(log_level="error"), "log_level", qc_schema.QnnExecuTorchLogLevel.kLogLevelError),
        (Choices(log_level="debug"), "log_level", qc_schema.QnnExecuTorchLogLevel.kLogLevelDebug),
    ],
)
def test_the_compiler_gets_the_lowering_options_of_a_policy_entry(
    choices: Choices, field: str, value: object
) -> None:
    options = [
        flatbuffer_to_option(lower.compiler_spec(Scheme.A8W8, "SM8650", chosen_options)[0].value)
        for chosen_options in (Choices(), choices)
    ]
    plain, chosen = (getattr(option, field) for option in options)
    assert chosen == value
    assert (plain == chosen) == (choices.log_level == "error")  # the default


def test_graphs_for_the_gpu_are_always_prepared_on_the_device() -> None:
    for backend, prepared in ((Backend.GPU, True), (Backend.HTP, False)):
        (spec,) = lower.compiler_spec(Scheme.FP16, "SM8650", backend=backend)
        assert flatbuffer_to_option(spec.value).online_prepare is prepared


def test_training_gives_the_same_weights_each_time_nearer_to_the_float32_model() -> None:
    sets = tuple((draw(4, 64, seed=seed),) for seed in range(4))
    model = Model("net", make_net(), sets, sets)
    with torch.no_grad():
        references = [model.module(*inputs) for inputs in sets]

    def measure(scheme: Scheme, model: Model = model) -> tuple[float, list[Any]]:
        converted = quantize_model(model, scheme, "SM8650")
        with torch.no_grad():
            outputs = [converted(*inputs) for inputs in sets]
        noise = sum(float((a - b).square().sum()) for a, b in zip(outputs, references, strict=True))
        return noise, outputs

    before, after, repeated = map(
        measure, [Scheme.A16W4, Scheme.A16W4_TRAINED, Scheme.A16W4_TRAINED]
    )
    assert after[0] < before[0] / 2
    assert all(map(torch.equal, after[1], repeated[1]))
    judged_on_two = replace(
        model, evaluation=tuple((draw(4, 64, seed=seed),) for seed in range(8, 10))
    )
    judged_on_others = measure(Scheme.A16W4_TRAINED, judged_on_two)
    assert all(map(torch.equal, after[1], judged_on_others[1]))
    assert all(
        torch.equal(model.module(*inputs), was)
        for inputs, was in zip(sets, references, strict=True)
    )


def make_net() -> Any:
    torch.manual_seed(0)
    linear = torch.nn.Linear
    return torch.nn.Sequential(linear(64, 32), torch.nn.ReLU(), linear(32, 8)).eval()


def test_a_part_has_its_scheme_and_one_without_a_node_is_an_error() -> None:
    sets = tuple((draw(4, 64, seed=seed),) for seed in range(2))
    model = Model("net", make_net(), sets, sets)

    def quantize(*parts: Part) -> set[str]:
        quantized_model = quantize_model(model, Scheme.A8W8, "SM8650", Choices(parts=parts))
        return {
            str(node.args[-1])
            for node in quantized_model.graph.nodes
            if "quantize_per_tensor" in node.name
        }

    wide = "torch.int32"  # ExecuTorch's 16-bit activations
    assert wide not in quantize()
    for part in (
        Part(Scheme.A16W8, module="2"),
        Part(Scheme.A16W8, type="ReLU"),
        Part(Scheme.A16W8, node="linear"),
    ):
        assert wide in quantize(part)
    for part in (Part(Scheme.A16W8, module="22"), Part(Scheme.A16W8, type="Conv2d")):
        with pytest.raises(UsageError, match=f"no node belongs to the part {part}"):
            quantize(Part(Scheme.A16W8, module="2"), part)


def test_a_discarded_node_is_not_quantized_and_an_unknown_one_is_refused() -> None:
    sets = tuple((draw(4, 64, seed=seed),) for seed in range(2))
    model = Model("net", make_net(), sets, sets)
    quantized_model = quantize_model(
        model, Scheme.A8W8, "SM8650", Choices(discard_nodes=("linear_1",))
    )
    (output,) = (node for node in quantized_model.graph.nodes if node.op == "output")
    assert [node.name for node in output.all_input_nodes] == ["linear_1"]  # and no dequantize
    with pytest.raises(
        UsageError, match=r"the graph has no relu_9\n  fix: use one of: linear, relu, "
    ):
        quantize_model(model, Scheme.A8W8, "SM8650", Choices(discard_nodes=("relu_9",)))


@pytest.mark.parametrize("block", [0, 16, 48])
def test_blocks_have_the_size_that_an_entry_asks_for(block: int) -> None:
    """All layers have one size: of two sizes in its map, ExecuTorch takes the last one for both."""
    sets = tuple((draw(4, 64, seed=seed),) for seed in range(2))
    model = Model("net", make_net(), sets, sets)
    if block == 48:
        message = (
            r"no layer of .* can have blocks of size 48\n  why: .*must be a multiple of the block"
        )
        with pytest.raises(UsageError, match=message):
            quantize_model(model, Scheme.A16W4_BLOCK, "SM8650", Choices(block_size=block))
        return
    first, last = (Part(Scheme.A16W8, module=name) for name in ("0", "2"))
    rows = [((), 2), ((last,), 1), *([] if block else [((first, last), 0)])]
    for parts, layers in rows:
        choices = Choices(block_size=block, parts=parts)
        quantized_model = quantize_model(model, Scheme.A16W4_BLOCK, "SM8650", choices)
        shapes = [
            node.args[1] for node in quantized_model.graph.nodes if "dequantize_affine" in node.name
        ]
        assert [shape[1] for shape in shapes] == [block or 32] * layers


def test_a_name_to_skip_that_the_graph_does_not_have_is_an_error() -> None:
    relu = SimpleNamespace(
        name="relu_1", op="call_function", target=SimpleNamespace(__name__="aten.relu.default")
    )
    for choices, is_known in (
        (Choices(skip_nodes=("relu_1",)), True),
        (Choices(skip_ops=("aten.relu.default",)), True),
        (Choices(skip_nodes=("relu",)), False),
        (Choices(skip_ops=("relu",)), False),
        (Choices(skip_nodes=("relu_1", "relu")), False),
        (Choices(skip_ops=("aten.relu.default", "relu")), False),
    ):
        refusals = audit.Refusals(choices)
        rounding = ("q", "quantized_decomposed.quantize_per_tensor.default")
        assert refusals.is_skipped(*rounding)  # it rounds for a node on the CPU
        assert not audit.Refusals().is_skipped(*rounding)
        refusals.operators |= {"view": "aten.view", relu.name: audit.name_operator(relu)}
        skipped = {*choices.skip_nodes, *choices.skip_ops}
        is_skipped = refusals.is_skipped(relu.name, audit.name_operator(relu))
        assert is_skipped is bool(skipped & {"relu_1", "aten.relu.default"})
        if is_known:
            refusals.require_skipped()
        else:
            with pytest.raises(
                UsageError,
                match=f"^{'skip_nodes' if choices.skip_nodes else 'skip_ops'}: "
                r"the graph has no relu\n  fix: use one of: (aten\.)?relu[^ ]*, (aten\.)?view$",
            ):
                refusals.require_skipped()


@pytest.mark.parametrize(("unshared", "fits"), [(100, True), (99, False), (98, False)])
def test_weights_that_are_not_shared_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unshared: int, *, fits: bool
) -> None:
    compiled_choices = []

    def compile_program(self: Any, module: Any, choices: Choices) -> tuple[bytes, Delegation]:
        compiled_choices.append(choices)
        return bytes(unshared), Delegation(1, 0, 1)

    monkeypatch.setattr(lower.Lowering, "compile", compile_program)
    shared = make_lowering(tmp_path, Choices(methods=("other",), weight_sharing=True))
    assert make_lowering(tmp_path).compile_unshared(None, 99) == b""
    if fits:
        assert shared.compile_unshared(None, 99) == bytes(unshared)
    else:
        with pytest.raises(FailedError, match=f"shared no weights: .* {unshared} without"):
            shared.compile_unshared(None, 99)
    assert compiled_choices == [Choices(methods=("other",))]


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    with pytest.raises(type(error)) as caught:
        fail(error, cause)()
    return caught.value


def test_a_refusal_lists_qnns_errors_the_exceptions_and_their_place(tmp_path: Path) -> None:
    root = raised(KeyError("aten.erf"))
    error = raised(RuntimeError("cannot\n  lower"), root)
    inner, outer = lower.list_refusals(error, tmp_path / "none.log")
    assert re.fullmatch(r"KeyError: 'aten.erf' \[.*lowering_steps.py\]", inner)
    assert outer == "RuntimeError: cannot lower"
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("[")
    rows = lower.list_refusals(raised(RuntimeError("cannot"), caught.value), tmp_path / "log")
    assert rows[0].endswith("json/decoder.py]"), "where the cause was raised"
    rows = lower.list_refusals(raised(RuntimeError("top"), error), tmp_path / "log")
    assert rows[0].startswith("KeyError: 'aten.erf' [")
    assert rows[1:] == ["RuntimeError: top"]
    log = tmp_path / "log"
    log.write_bytes(b"\xff [ERROR]  <E> no such op\nfine\n")
    explained = engine.ExecutorchEngine(()).explain(error, log)
    assert explained.headline == "refused: no such op"
    assert explained.evidence.splitlines()[1:] == ["RuntimeError: cannot lower"]
    assert describe_error(ValueError("x" * 400)).endswith("...")
    assert len(describe_error(ValueError("x" * 400))) == MAX_RAISED + 3


def test_a_refusal_names_four_nodes_on_the_cpu_and_each_cause_once(tmp_path: Path) -> None:
    no_rule = "No quant config is implemented for op, aten"
    lines = [f"{no_rule}.{op}" for op in ("dropout.default", "gru.input", "gru.input", "erf")]
    (tmp_path / "log").write_text("\n".join([*lines, "<E> why 1", "<E> another cause"]))
    failed = raised(ValueError("no binary"))
    left = [Fallback(f"op{number}", f"why {number}") for number in (0, 0, 1, 2, 3, 4)]
    vars(failed)[audit.LEFT] = left
    *causes, error = lower.list_refusals(failed, tmp_path / "log")
    assert causes == [
        "aten.gru.input is not quantized: ExecuTorch has no rule for it",
        "aten.erf is not quantized: ExecuTorch has no rule for it",
        *(f"op{number}: why {number}" for number in range(4)),
        "another cause",
    ]
    assert error.startswith("ValueError: no binary [")


def test_an_error_of_torch_comes_before_operators_without_a_rule(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("No quant config is implemented for op, aten.silu_.default")
    bare = "aten.silu_.default is not quantized: ExecuTorch has no rule for it"
    for error, last in ((NotImplementedError("a namedtuple"), True), (KeyError("scale"), False)):
        causes = lower.list_refusals(raised(error), tmp_path / "log")
        assert (causes.index(bare) > 0) == last


def test_qnns_errors_are_listed_once_without_noise_and_shortened() -> None:
    log = "a.cc:12::ERROR: one\n <E> two\n <E> one\n <E> Please refer to the manual\nfine\n"
    assert audit.qnn_errors(log) == "one; two"
    for repeated in (
        "Please refer to the manual",
        "QnnBackend_validateOpConfig failed 3110",
        "Failed to get context binary size",
        "Requested I/O datatype set:",
        "Supported I/O datatype sets for the configuration: BF16",
    ):
        assert audit.qnn_errors(f"<E> {repeated}\n<E> the cause\n") == "the cause"
    assert len(audit.qnn_errors(f"<E> {'x' * 1000}")) == MAX_REASON


def node(name: str, target: Any, line: int = 7) -> Any:
    trace = f'  File "/my/net.py", line {line}, in forward\n'
    meta = {"stack_trace": trace}
    return SimpleNamespace(
        name=name, op="call_function", target=target, meta=meta, all_input_nodes=[]
    )


class Operator:
    """What a node calls: known by its name, as ExecuTorch's are."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __str__(self) -> str:
        return self.__name__


@pytest.fixture
def partitioner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """ExecuTorch's partitioner with answers of ours, by operator; its log is tmp_path/log."""
    log = tmp_path / "log"
    log.write_text("<E> of an earlier node\n")

    def answer(self: Any, submodules: Any, asked_node: Any) -> bool:
        if asked_node.target.__name__ == "raises":
            raise KeyError("seven")
        if asked_node.target.__name__ == "qnn":
            with log.open("a") as stream:
                stream.write("<E> QNN has no such type\n")
        if asked_node.target.__name__ == "logged":
            logging.getLogger(audit.qnn_partitioner.logger.name).info("[QNN] node | no visitor")
        if asked_node.target.__name__ in {"qnn", "warned"}:
            warnings.warn(f"{BUILDER}Only the last axis.", stacklevel=1)
        return asked_node.target.__name__ == "fine"

    support = audit.qnn_partitioner.QnnOperatorSupport
    monkeypatch.setattr(support, "is_node_supported", answer)
    return support, answer, log


def test_a_failed_lowering_names_what_was_left_to_the_cpu_before(partitioner: Any) -> None:
    """QNN's error for such a node is listed once, with its line, before its consequences."""
    support, _, log = partitioner
    log.write_text("")
    error = raised(RuntimeError("no binary"))

    def compile_program() -> None:
        print("No quant config is implemented for op, aten.lstm_cell.default", flush=True)
        with record_refusals(log):
            for name in ("fine", "qnn", "quantized_decomposed.quantize_per_tensor", "logged"):
                support.is_node_supported(None, {}, node(name, Operator(name)))
            with log.open("a") as stream:
                stream.write("<E> could not create op\n")
            raise error

    with log.open("a") as stream, redirect_stdout(stream), pytest.raises(RuntimeError):
        compile_program()
    first, *causes = lower.list_refusals(error, log)
    assert "aten.lstm_cell.default" in first
    assert causes[0] == "qnn: QNN has no such type [net.py:7]"
    assert causes[1] == "logged: no visitor [net.py:7]"
    assert causes[2] == "could not create op"
    assert causes[3].startswith("RuntimeError: no binary")


def test_a_failure_at_a_node_names_the_nodes_line_first(partitioner: Any) -> None:
    support, _, log = partitioner
    left, bad = node("erf", Operator("qnn"), line=3), node("pool", Operator("raises"), line=9)

    def judge() -> None:
        with record_refusals(log):
            support.is_node_supported(None, {}, left)
            support.is_node_supported(None, {}, bad)

    with pytest.raises(RuntimeError) as caught:
        judge()
    refusal = lower.describe_refusal(caught.value, log)
    assert [place.line for place in refusal.places] == [9, 3]


def test_a_graph_that_qnn_cannot_compile_names_the_line_of_the_first_unmade_node(
    partitioner: Any,
) -> None:
    support, _, log = partitioner
    unmade = ("unknown", "view", "bmm")

    def compile_program() -> None:
        with record_refusals(log):
            for line, name in enumerate(("linear", "view", "bmm"), 3):
                support.is_node_supported(None, {}, node(name, Operator("fine"), line=line))
            lines = (f'QnnDsp <E> "{name}" generated: could not create op' for name in unmade)
            log.write_text("\n".join(("could not create op: q::linearclip", *lines)))
            raise RuntimeError("no binary")

    with pytest.raises(RuntimeError) as caught:
        compile_program()
    assert [place.line for place in lower.describe_refusal(caught.value, log).places] == [4]


def partition(name: str, *operators: str) -> Any:
    """A node of a lowered graph for a partition, and the module of which it is the name."""
    nodes = [node(operator, Operator(operator)) for operator in operators]
    placeholder = node("x", Operator("placeholder"))
    placeholder.op = "placeholder"
    attribute = node(name, name)
    attribute.op = "get_attr"
    graph = SimpleNamespace(nodes=[placeholder, *nodes])
    return attribute, SimpleNamespace(original_module=SimpleNamespace(graph=graph))


def test_nodes_on_the_cpu_are_counted_and_named_with_their_reason() -> None:
    first, two = partition("lowered_module_0", "aten.relu", "aten.add")
    second, one = partition("lowered_module_1", "aten.tanh")
    nodes = [
        first,
        second,
        node("x", Operator("placeholder")),
        node("call", Operator("executorch_call_delegate")),
        node("part", operator.getitem),
        node("erf", Operator("aten.erf"), line=3),
        node("topk", Operator("aten.topk"), line=4),
    ]
    nodes[2].op = "placeholder"
    refusals = audit.Refusals()
    refusals.by_node["erf"] = "no visitor"
    graph = SimpleNamespace(
        graph=SimpleNamespace(nodes=nodes), lowered_module_0=two, lowered_module_1=one
    )
    assert audit_delegation([graph], refusals) == Delegation(
        3,
        2,
        2,
        (
            Fallback("aten.erf", "no visitor", origin=Origin(file="net.py", line=3)),
            Fallback("aten.topk", "not offered to QNN", origin=Origin(file="net.py", line=4)),
        ),
    )
    refusals.choices = Choices(skip_ops=("aten.topk",))
    skipped = [fallback.asked for fallback in audit_delegation([graph], refusals).fallback_ops]
    assert skipped == [False, True]


@pytest.mark.parametrize("way", ["quantize", "dequantize"])
def test_a_conversion_on_the_cpu_counts_except_on_lpai(way: str) -> None:
    left = [node("q", Operator(f"quantized_decomposed.{way}_per_tensor.default"))]
    graph = SimpleNamespace(graph=SimpleNamespace(nodes=left))
    counts = {
        backend: audit_delegation([graph], audit.Refusals(), backend).fallback_nodes
        for backend in Backend
    }
    assert counts == {backend: int(not backend.is_lpai) for backend in Backend}
    assert 0 < sum(counts.values()) < len(counts)
