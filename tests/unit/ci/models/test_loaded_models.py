"""The inputs that a model is judged on and calibrated with, its digest, and a user's metric."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")

from torch import Tensor, nn  # noqa: E402

from ci.models import model as loading  # noqa: E402
from ci.models.eager import (  # noqa: E402
    compute_reference,
    copy_inputs,
    list_tensors,
    run_eager,
)
from ci.models.factory import unpack  # noqa: E402
from ci.models.model import (  # noqa: E402
    derive_inputs,
    load_model,
    read_source,
)
from ci.models.user_code import (  # noqa: E402
    call_function,
    import_file,
    load_function,
    own_packages_hidden,
    users_code,
    working_directory,
)
from ci.models.user_data import read_sets  # noqa: E402
from ci.models.user_models import (  # noqa: E402  # noqa: E402
    RANDOM,
    SHUFFLED,
    Source,
)
from provisioning.errors import FailedError, QnnCiError, UsageError  # noqa: E402
from tests.stand_ins.snapshots import check_snapshot  # noqa: E402

UserModel = tuple[nn.Module, tuple[Tensor, ...], tuple[tuple[Tensor, ...], ...]]


def draw(seed: int) -> Tensor:
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(seed))


def same(sets: Any, expected_sets: Any) -> bool:
    for tensors, expected_tensors in zip(sets, expected_sets, strict=True):
        for tensor, expected in zip(tensors, expected_tensors, strict=True):
            if not torch.equal(tensor, expected):
                return False
    return True


def test_a_user_s_package_of_the_same_name_does_not_replace_this_project_s() -> None:
    own_modules = {
        name: module for name, module in sys.modules.items() if name.partition(".")[0] == "ci"
    }
    try:
        with own_packages_hidden():
            assert not own_modules.keys() & sys.modules.keys()
            sys.modules |= {"ci": ModuleType("ci"), "ci.nets_of_a_user": ModuleType("nets")}
        assert {name: sys.modules[name] for name in own_modules} == own_modules
        assert "ci.nets_of_a_user" in sys.modules
    finally:
        sys.modules.pop("ci.nets_of_a_user", None)


def test_the_error_for_a_missing_file_names_the_callers_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    with pytest.raises(FailedError) as caught, users_code("net.py"):
        Path("weights.pt").read_bytes()
    assert str(tmp_path.resolve()) in (caught.value.fix or "")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 6])
def test_a_model_with_fewer_than_four_input_sets_gets_derived_ones(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model without sets gets those derived from its example; no set is derived twice."""
    example = (draw(0),)
    calibration = tuple((draw(seed),) for seed in range(1, count + 1))
    monkeypatch.setattr(loading, "make_model", lambda *_: (nn.ReLU(), example, calibration))
    loaded = load_model("net.py:factory")
    derived = derive_inputs(example)
    expected = (example, *calibration) if count else derived
    if len(expected) < 4:
        expected = (*expected, *derived[1:])
    assert same(loaded.calibration, expected)
    assert same(loaded.evaluation, expected[:4])
    assert same(loaded.reference, [(x.relu(),) for (x,) in expected[:4]])
    assert loaded.name == "net.py:factory"
    assert (loaded.made_inputs == "", loaded.made_calibration == "") == (count >= 3, count > 0)


@pytest.mark.parametrize("key", ["inputs", "calibration"])
def test_data_files_of_a_policy_replace_the_factorys_and_errors_name_their_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    user_model: UserModel = (nn.ReLU(), (draw(0),), ((draw(9),),))
    monkeypatch.setattr(loading, "make_model", lambda *_: user_model)
    sets = torch.stack([draw(seed) for seed in range(1, 6)])
    np.save(tmp_path / "good.npy", sets.numpy())
    np.save(tmp_path / "bad.npy", sets[:, :1].numpy())
    _, example, calibration, judged = read_source(
        "net.py:f", Source(**{key: str(tmp_path / "good.npy")})
    )
    assert same([example], [user_model[1]])
    read, factory_sets = (judged, calibration) if key == "inputs" else (calibration, judged)
    assert same(read, [(tensor,) for tensor in sets])
    assert same(factory_sets, [] if key == "calibration" else user_model[2])
    with pytest.raises(UsageError) as caught:
        read_source("net.py:f", Source(**{key: str(tmp_path / "bad.npy")}))
    assert caught.value.what.startswith(f"{key}: bad.npy ")
    assert "[1, 4]" in caught.value.why
    assert ("sample 0" if key == "inputs" else "calibration sample 0") in caught.value.why


def test_a_syntax_error_is_at_its_own_line_not_at_that_of_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("path", [*sys.path]), ("modules", {**sys.modules})):
        monkeypatch.setattr(sys, name, value)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "net.py").write_text("import broken_parts\n")
    (tmp_path / "broken_parts.py").write_text("x = 1\n\ndef f(:\n")
    with pytest.raises(QnnCiError, match=r"net\.py:f raised SyntaxError") as caught:
        call_function(f"{tmp_path}/net.py:f")
    assert caught.value.why == "broken_parts.py, line 3, in <module>"


def test_weights_and_data_of_any_layout_become_row_major(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    sets = np.arange(4 * 75.0, dtype=np.float32).reshape(4, 1, 3, 5, 5)
    np.save(tmp_path / "sets.npy", np.asfortranarray(sets))
    read = read_sets(f"{tmp_path}/sets.npy")
    assert all(array.flags.c_contiguous for (array,) in read)
    example = tuple(map(torch.from_numpy, read[0]))
    monkeypatch.setattr(loading, "make_model", lambda *_: (net, example, ()))
    loaded = load_model("net.py:f", Source(inputs=f"{tmp_path}/sets.npy"))
    assert same(loaded.evaluation, [(tensor,) for tensor in torch.from_numpy(sets)])
    assert loaded.module.weight.is_contiguous()
    assert not loaded.module.training
    transposed = draw(0).t().requires_grad_()
    _, example, calibration = unpack("net.py:f", (net, transposed, [(transposed,)]))
    for (tensor,) in (example, *calibration):
        assert torch.equal(tensor, transposed)
        assert (tensor.is_contiguous(), tensor.requires_grad) == (True, False)


class Gives(nn.Module):
    """Any function of one input as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, values: Tensor) -> Any:
        return self.function(values)


class Count(nn.Module):
    """Keeps state outside its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, values: Tensor) -> Tensor:
        self.count += 1
        return values + self.count


def fail(values: Tensor) -> None:
    raise ValueError("no such thing")


def test_every_refusal_of_a_models_outputs_says_what_why_and_what_to_do() -> None:
    modules: dict[str, nn.Module] = {
        "no tensor": Gives(lambda x: (None, 3)),
        "text": Gives(lambda x: (x, "text")),
        "a set": Gives(lambda x: [x, {1, 2}]),
        "the second of another type": Gives(lambda x: (x, x.double())),
        "shapes of the data": Gives(lambda x: x[x > 0]),
        "random": Gives(torch.rand_like),
        "state": Count(),
        "an error": Gives(fail),
    }
    text = ""
    for name, module in modules.items():
        with pytest.raises(QnnCiError) as caught:
            compute_reference("net.py:f", module, [(draw(seed),) for seed in (1, 1, 2)])
        text += f"{name}\n  {type(caught.value).__name__} {caught.value}\n"
    text = re.sub(r"why: \S+py, line \d+, in", "why: FILE, line N, in", text)
    check_snapshot(Path(__file__).with_name("snapshots") / "outputs.txt", text)


# Of each model of the suite: how many weights it has, and the RMS of each output for the example
# and for the last calibration sample. The recorded baselines are of these models.
MODELS: dict[str, tuple[int, list[float], list[float]]] = {
    "mlp": (17_616, [1.3562], [2.0453]),
    "resnet": (19_946, [3.7567], [3.9325]),
    "mobilenet": (2_912, [1.5539], [1.4795]),
    "deeplab": (8_942, [0.66561], [0.62494]),
    "transformer": (33_472, [1.4922], [1.5935]),
    "decoder": (53_440, [1.0621, 0.92472, 1.0655], [1.1439, 1.2402, 1.3136]),
    "superres": (6_036, [1.3592], [1.3152]),
    "lstm": (16_336, [0.36469, 0.25005, 0.49279], [0.45785, 0.2163, 0.55154]),
    "mlp:make_row": (17_616, [1.3344], [1.6887]),
    "mlp:make_ternary": (17_616, [0.5647], [0.66986]),
}


def measure_rms(tensors: Any) -> list[float]:
    return [float(tensor.square().mean().sqrt()) for tensor in tensors]


@pytest.mark.parametrize("name", MODELS)
def test_suite_models_have_the_size_and_outputs_of_the_recorded_figures(name: str) -> None:
    module, example, calibration = unpack(name, call_function(name))
    outputs = run_eager(module, [example, calibration[-1]])
    rms_of_outputs = [measure_rms(tensors) for tensors in outputs]
    weights, *expected_rms = MODELS[name]
    assert sum(parameter.numel() for parameter in module.parameters()) == weights
    assert rms_of_outputs == [pytest.approx(rms, rel=1e-3) for rms in expected_rms]
    assert (module.training, len(calibration)) == (False, 7)


def test_tensors_of_any_structure_are_outputs_and_numbers_are_left_out() -> None:
    x = draw(0)
    for returned in (x, (x, None, 3), {"a": x, "b": 0.5}, [True, [x]]):
        assert same(
            compute_reference("net", Gives(lambda x, returned=returned: returned), [(x,)]), [(x,)]
        )


def test_the_digest_of_a_model_contains_how_its_inputs_were_generated() -> None:
    """The record of a program, which is found by this digest, shows it."""
    sets = ((draw(0),),) * 4
    models = [
        loading.Model("net", nn.ReLU(), sets, sets, sets, *notes)
        for notes in (("", ""), (SHUFFLED, ""), ("", SHUFFLED), (RANDOM, ""))
    ]
    assert len({loading.digest_model(model) for model in (*models, *models)}) == len(models)


def test_a_tensor_is_in_a_digest_with_its_type_shape_strides_and_elements() -> None:
    square = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    tensors = (
        *(square, square.t(), square.flatten(), square.double(), square + 1, square.to_sparse()),
        *(torch.ones(0), torch.ones(0, 2)),
    )
    digests = []
    for tensor in tensors:
        digests.append(hashlib.sha256())
        loading.update_tensor(digests[-1], tensor)
    assert len({digest.digest() for digest in digests}) == len(tensors)


def test_derived_input_sets_vary_each_input_of_the_example() -> None:
    """Elements are shuffled, equal floats get noise, and a single integer stays."""
    example = (draw(1), torch.arange(8), torch.ones(2, 3), torch.tensor([7]))
    first, *derived = derive_inputs(example)
    assert same([first], [example])
    assert same(derive_inputs(example), [first, *derived])
    for number, tensors in enumerate(derived):
        assert [tensor.shape for tensor in tensors] == [tensor.shape for tensor in example]
        for place in (0, 1):
            assert not torch.equal(tensors[place], example[place]), number
            assert torch.equal(
                tensors[place].sort().values if place else tensors[place].flatten().sort().values,
                example[place].flatten().sort().values,
            )
        assert float(tensors[2].std()) > 0
        assert torch.equal(tensors[3], example[3])
    assert len({tuple(inputs[0].flatten().tolist()) for inputs in derived}) == len(derived)


def test_a_file_is_imported_like_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files next to it take precedence over installed packages, and the working directory is the
    caller's again afterwards."""
    (tmp_path / "my_net.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    import_file(tmp_path / "my_net.py")
    assert sys.path[:1] == [str(tmp_path)]
    assert sys.dont_write_bytecode
    package = tmp_path / "my_package" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "my_own.py").write_text("")
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "net.py").write_text(
        "import beside, my_own\nfrom . import beside as same\ndef make(): return beside\n"
    )
    (package / "beside.py").touch()
    (package / "alone.py").touch()
    import_file(package / "alone.py")
    assert sys.path[:2] == [str(package), str(tmp_path)]
    assert "my_package.inner" in sys.modules
    loaded = import_file(package / "net.py")
    assert loaded.__name__ == "my_package.inner.net"
    assert loaded.same.__name__ == "my_package.inner.beside"
    (tmp_path / "link.py").symlink_to(package / "net.py")
    assert load_function(f"{tmp_path}/link.py:make")() is loaded.beside
    caller_directory = Path.cwd()
    with working_directory(tmp_path):
        assert Path.cwd() == tmp_path
    assert Path.cwd() == caller_directory
    with pytest.raises(LookupError), working_directory(tmp_path):
        raise LookupError
    assert Path.cwd() == caller_directory


def test_copied_inputs_are_nested_like_the_inputs() -> None:
    inputs = (torch.ones(2), (torch.ones(1), [torch.ones(3)]), 4)
    copied = copy_inputs(inputs)
    copied[1][1][0].zero_()
    assert [tensor.tolist() for tensor in list_tensors(inputs)] == [[1, 1], [1], [1, 1, 1]]
    assert (copied[0].tolist(), copied[2]) == ([1, 1], 4)
