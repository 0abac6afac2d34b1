"""Models as they are loaded, run and keyed, function by function; no QNN takes part."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")

from ci.cases.spec import CaseSpec  # noqa: E402
from ci.executorch import engine  # noqa: E402
from ci.executorch.engine import ExecutorchEngine  # noqa: E402
from ci.models import model, numerics  # noqa: E402
from ci.models.calls import digest_calls  # noqa: E402
from ci.models.eager import compute_reference, run_eager  # noqa: E402
from ci.models.lowering_options import Choices, Part  # noqa: E402
from ci.models.model import (  # noqa: E402
    Model,
    digest_graph,
    digest_model,
    digest_weights,
    load_model,
    update_tensor,
)
from ci.models.numerics import THREADS, VARIABLES, fix_numerics  # noqa: E402
from ci.models.schemes import Recipe, Scheme  # noqa: E402
from ci.models.user_models import Source  # noqa: E402
from provisioning.errors import FailedError, UsageError  # noqa: E402
from provisioning.manifest.targets import Backend  # noqa: E402


class Net(torch.nn.Module):
    """Any function of (module, inputs) as a module with a buffer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("other", torch.zeros(4))

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def torch_line(net: Any, x: Any) -> Any:
    return x @ torch.eye(4).T + net.total


def is_exporting() -> bool:
    return bool(torch.compiler.is_exporting())


def draw(seed: int = 0) -> Any:
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(seed))


def add_up(net: Any, x: Any) -> Any:
    net.total.add_(x.sum(0))
    net.other.add_(1)
    return net.total


@pytest.fixture
def numerics_kept() -> Iterator[None]:
    threads, one_dnn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    torch.set_num_threads(2)
    torch.backends.mkldnn.enabled = True
    yield
    torch.set_num_threads(threads)
    torch.backends.mkldnn.enabled = one_dnn


def test_numerics_are_fixed_before_a_model_computes(
    numerics_kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_in_model = []

    def note(net: Any, x: Any) -> Any:
        settings_in_model.append((torch.backends.mkldnn.enabled, torch.get_num_threads()))
        return x

    monkeypatch.setattr(model, "call_function", lambda _: (Net(note), (draw(),)))
    load_model("my.py:factory")
    assert set(settings_in_model) == {(False, 1)}
    assert (THREADS, set(VARIABLES.values())) == (1, {"1"})
    torch.backends.mkldnn.enabled = True
    fix_numerics()
    assert not torch.backends.mkldnn.enabled


def test_data_of_an_entry_come_before_those_of_its_factory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned = (Net(lambda net, x: x + 1), (draw(),), [(draw(9),)])
    monkeypatch.setattr(model, "call_function", lambda _: returned)
    sets = torch.stack([draw(seed) for seed in range(1, 6)])
    for name, array in (("inputs", sets), ("calibration", -sets[:3]), ("odd", sets[:, :1])):
        np.save(tmp_path / f"{name}.npy", array.numpy())
    names = ("inputs", "calibration", "odd")
    inputs, calibration, odd = (str(tmp_path / f"{name}.npy") for name in names)
    source = Source(inputs=inputs, calibration=calibration)
    loaded = load_model("my.py:factory", source)
    assert torch.equal(torch.stack([tensor for (tensor,) in loaded.evaluation]), sets)
    assert torch.equal(torch.stack([tensor for (tensor,) in loaded.reference]), sets + 1)
    assert torch.equal(torch.stack([tensor for (tensor,) in loaded.calibration[1:4]]), -sets[:3])
    assert (loaded.name, loaded.made_inputs, loaded.made_calibration) == ("my.py:factory", "", "")
    assert model.count_judged("my.py:factory", source) == 5
    assert model.count_judged("my.py:factory", Source()) == 4
    for key in ("inputs", "calibration"):
        with pytest.raises(UsageError, match=rf"^{key}: odd\.npy has a sample whose shapes"):
            model.count_judged("my.py:factory", Source(**{key: odd}))
    with pytest.raises(UsageError, match=r"^inputs: too few samples"):
        load_model("my.py:factory", Source(inputs=calibration))


def test_each_method_is_made_by_a_function_of_the_models_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    references = []

    def make(reference: str) -> Any:
        references.append(reference)
        return Net(lambda net, x: x), (draw(),)

    monkeypatch.setattr(model, "call_function", make)
    choices = Choices(methods=("other",))
    for reference in ("/my/net.py:factory", "mlp"):
        module, example, _ = model.make_model(reference, choices)
        assert ([*model.split_module(module)], len(example)) == (["forward", "other"], 2)
        inputs_by_method = model.split_inputs(module, (draw(1), draw(2)))
        assert {name: len(inputs) for name, inputs in inputs_by_method.items()} == {
            "forward": 1,
            "other": 1,
        }
        assert all(map(torch.equal, module(draw(1), draw(2)), (draw(1), draw(2))))
        first, second = (draw(1), draw(2)), (draw(3), draw(4))
        parts = model.split_model(Model("net", module, (first, second), (second,)))
        assert {name: part.name for name, part in parts.items()} == {
            "forward": "net.forward",
            "other": "net.other",
        }
        other_part = parts["other"]
        assert other_part.module is model.split_module(module)["other"]
        assert (other_part.evaluation, other_part.calibration) == (
            ((first[1],), (second[1],)),
            ((second[1],),),
        )
    assert references == ["/my/net.py:factory", "/my/net.py:other", "mlp", "mlp:other"]


def test_each_reference_is_computed_from_the_state_after_the_one_before() -> None:
    net = Net(add_up)
    outputs = run_eager(net, [(draw(),), (draw(1),)])
    assert not torch.equal(outputs[0][0], outputs[1][0])
    net = Net(add_up)
    first, second = compute_reference("net", net, [(draw(),), (draw(1),)])
    assert torch.equal(second[0], first[0] + draw(1).sum(0))
    assert not net.total.any()


def test_an_input_that_a_model_writes_into_stays_as_it_was() -> None:
    inputs = (draw(),)
    run_eager(Net(lambda net, x: x.mul_(2)), [inputs])
    assert torch.equal(inputs[0], draw())


def test_an_output_that_is_random_is_found_beside_one_that_is_not() -> None:
    with pytest.raises(FailedError, match="different outputs for the same inputs"):
        compute_reference("net", Net(lambda net, x: (x, torch.rand(2))), [(draw(),)])
    nan = Net(lambda net, x: x * float("nan"))
    assert compute_reference("net", nan, [(draw(),)])[0][0].isnan().all()


def digest_called(net: torch.nn.Module, inputs: Any) -> str | None:
    return digest_calls(net, inputs, update_tensor)


DIGESTS = pytest.mark.parametrize("digest", [digest_graph, digest_called])


@DIGESTS
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda net, x: x + torch.tensor([1.0]), lambda net, x: x + torch.tensor([2.0])),
        (
            lambda net, x: torch.ops.aten.add(x, x, alpha=2),
            lambda net, x: torch.ops.aten.add(x, x, alpha=3),
        ),
        (lambda net, x: x.relu(), lambda net, x: x.sigmoid()),
        (lambda net, x: x.sum(0), lambda net, x: x.sum(1)),
        (lambda net, x: (x, x + 1), lambda net, x: (x + 1, x)),
        (lambda net, x: x.view(8), lambda net, x: x.reshape(8)),
        (lambda net, x: x * net.total, lambda net, x: x * net.other),
        (lambda net, x: x + 0, lambda net, x: x + 0.0),
        (lambda net, x: x.relu_(), lambda net, x: x.relu()),
        (lambda net, x: x[0], lambda net, x: x[1]),
        (lambda net, x: x[:, 1:], lambda net, x: x[:, :1]),
        (lambda net, x: x.T, lambda net, x: x.mT),
        (lambda net, x: (x, x.shape[0]), lambda net, x: (x, x.shape[1])),
        (torch_line, lambda net, x: torch.nn.functional.linear(x, torch.eye(4), net.total)),
        (lambda net, x: x.relu(), lambda net, x: x if is_exporting() else x.relu()),
    ],
)
def test_every_change_of_what_a_graph_computes_changes_its_digest(
    digest: Callable[..., str | None], before: Callable[..., Any], after: Callable[..., Any]
) -> None:
    digests = [digest(Net(function), (draw(),)) for function in (before, before, after)]
    assert digests[0] is not None
    assert digests[0] == digests[1] != digests[2]


def halve(x: Any) -> Any:
    return x / 2


def script_halve() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(halve)


def catch(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except Exception:  # noqa: BLE001 - as models do
        return torch.zeros(4)


OWN = torch.ones(4)  # a constant of the file
UNSEEN: dict[str, Callable[..., Any]] = {
    "TorchScript": lambda net, x: script_halve()(x),
    "control flow": lambda net, x: torch.cond(x.sum() > 0, halve, halve, (x,)),
    "numpy": lambda net, x: x + torch.from_numpy(np.ones(4, np.float32)),
    "a function for a function": lambda net, x: torch.vmap(halve)(x),
    "an error": lambda net, x: x @ x,
    "what the model catches": lambda net, x: catch(lambda: x + torch.from_numpy(np.ones(4))),
    "a generator": lambda net, x: x + torch.rand(4, generator=torch.Generator().manual_seed(1)),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_a_model_whose_calls_do_not_tell_everything_is_exported(name: str) -> None:
    assert digest_called(Net(UNSEEN[name]), (draw(),)) is None


def test_tensors_of_the_module_and_its_file_are_in_the_digest_of_its_calls() -> None:
    def make(value: float, *, shared: bool = False) -> Net:
        net = Net(lambda net, x: x + net.held[0] + net.table["key"] + OWN)
        net.held = [torch.full((4,), value)]
        net.table = {"key": net.held[0] if shared else torch.full((4,), value)}
        return net

    parameter = make(1.0)
    del parameter.total
    parameter.total = torch.nn.Parameter(torch.zeros(4))
    nets = [make(1.0), make(1.0), make(2.0), make(1.0, shared=True), parameter]
    digests = [digest_called(net, (draw(),)) for net in nets]
    assert digests[0] is not None
    assert digests[0] == digests[1]
    assert len({*digests}) == 4


class Above(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.relu()


class Below(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.relu()


@DIGESTS
def test_the_line_that_a_refusal_would_name_is_in_the_digest_of_a_graph(
    digest: Callable[..., str | None],
) -> None:
    digests = [digest(net, (draw(),)) for net in (Above(), Above(), Below())]
    assert digests[0] == digests[1] != digests[2]


@DIGESTS
def test_state_and_its_type_are_in_the_digest_of_a_graph(
    digest: Callable[..., str | None],
) -> None:
    def make(total: Any) -> Net:
        net = Net(lambda net, x: x + net.total)
        net.total = total
        return net

    inputs = (draw(),)
    totals = [torch.zeros(4), torch.ones(4), torch.zeros(4, dtype=torch.int32)]
    assert len({digest(make(total), inputs) for total in totals}) == 3
    sparse = [torch.eye(4).to_sparse(), torch.eye(4).to_sparse() * 2]
    assert len({digest_weights(make(total)) for total in (torch.eye(4), *sparse)}) == 3
    net = Net(add_up)
    digest(net, inputs)
    assert not net.total.any()


def test_a_model_that_is_not_exported_has_another_digest_each_time() -> None:
    branching = Net(lambda net, x: x if x.sum() > 0 else -x)
    assert digest_graph(branching, (draw(),)) != digest_graph(branching, (draw(),))


def test_each_tensor_that_is_kept_with_a_program_is_in_the_digest_of_its_model() -> None:
    sets = tuple((draw(seed),) for seed in range(4))
    original = Model("net", Net(lambda net, x: x.relu()), sets, sets, sets)
    other_sets = (*sets[:3], (draw(9),))
    changed = [replace(original, **{name: other_sets}) for name in ("evaluation", "calibration")]
    changed += [replace(original, reference=other_sets), replace(original, calibration=sets[:3])]
    assert digest_model(original) == digest_model(replace(original, name="another"))
    assert len({digest_model(variant) for variant in (original, *changed)}) == 5


def test_weights_have_one_digest_wherever_they_are_and_another_if_one_changes() -> None:
    def make(factor: float = 1.0) -> Any:
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        with torch.no_grad():
            net[0].weight.mul_(factor)
        return net

    scaled, tracked = make(1.05), make()
    tracked[1].running_mean.add_(1)
    digests = [digest_weights(net) for net in (make(), make(), scaled, tracked)]
    assert digests[0] == digests[1]
    assert len({*digests}) == 3


SPEC = CaseSpec("net", Scheme.A8W8, "SM8650")
TOOLS = ("torch 2", "numpy 1")


def key(spec: CaseSpec = SPEC, toolchain: tuple[str, ...] = TOOLS, digest: str = "model") -> str:
    return ExecutorchEngine(toolchain).digest_key(digest, spec)


def test_every_setting_of_a_program_changes_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        key(),
        key(replace(SPEC, scheme=Scheme.A16W8)),
        key(replace(SPEC, scheme=Scheme.FP16)),
        key(replace(SPEC, soc="SM8750")),
        key(replace(SPEC, layers=True)),
        key(toolchain=("torch 2", "numpy 2")),
        key(toolchain=("torch 2n", "umpy 1")),
        key(digest="other"),
        ExecutorchEngine(TOOLS, plain=True).digest_key("model", SPEC),
        ExecutorchEngine(TOOLS, Backend.GPU).digest_key("model", SPEC),
    ]
    for module, name, value in (
        (numerics, "NUMERICS", "oneDNN on"),
        (torch.backends.cpu, "get_cpu_capability", lambda: "AVX-2"),
        (torch.backends.cpu, "get_cpu_capability", lambda: "AVX-512"),
        (engine, "digest_rooms", lambda _: "changed"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            keys.append(key())
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


def test_the_recipe_of_a_scheme_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(SPEC.scheme, "recipe", Recipe("use_8a8w", 8, block=16))
    assert key() != before


def test_each_lowering_option_changes_the_key_unless_it_names_a_function() -> None:
    def choose(**chosen: object) -> str:
        source = Source(choices=Choices(**chosen))  # type: ignore[arg-type]
        return key(replace(SPEC, source=source))

    values: dict[str, object] = {
        name: ("name",) if isinstance(value, tuple) else True if value is False else "detailed"
        for name, value in msgspec.structs.asdict(Choices()).items()
    }
    values["parts"] = (Part(Scheme.A16W8, node="linear"),)
    functions = {name: values.pop(name) for name in ("annotation", "recipe")}
    keys = [choose(), *(choose(**{name: value}) for name, value in values.items())]
    assert len({*keys}) == len(keys) == len(Choices.__struct_fields__) - 1
    assert keys[1:] == [choose(**{name: value}) for name, value in values.items()]
    for name, value in functions.items():
        assert choose(**{name: value}) != choose(**{name: value})
