"""What a user's factory may return, and what is said of one that is wrong; no QNN takes part."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.stand_ins.torch_forks import TorchForks, start_forks

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
ROOT = Path(__file__).resolve().parents[3]
CODE = """
import json, sys
from ci.models.model import digest_model, load_model
from provisioning.errors import QnnCiError
said = {}
for name in sys.argv[2:]:
    try:
        model = load_model(f"{sys.argv[1]}:{name}")
        shape = [list(one.shape) for one in model.reference[0]]
        said[name] = [digest_model(model), str(shape)]
    except QnnCiError as error:
        said[name] = [type(error).__name__, str(error)]
print(json.dumps(said))
"""
MODELS = """
import functools, json
from pathlib import Path
import torch
from torch import nn

HERE = Path(__file__).parent

def draw(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

class Net(nn.Module):
    def __init__(self, compute):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(16, 16)
        self.compute = compute
        self.register_buffer("total", torch.zeros(16))

    def forward(self, *inputs):
        return self.compute(self, *inputs)

X = (draw(4, 16),)
plain = lambda: (Net(lambda self, x: self.linear(x)), X)
largest = lambda: (Net(lambda self, x: self.linear(x).argmax(-1)), X)
configured = lambda: (Net(lambda self, x: self.linear(x) * CONFIG), X)
CONFIG = json.loads((HERE / "config.json").read_text())
OPERATOR = {"relu": torch.relu, "clamp": lambda x: x.clamp(min=0)}
chosen = lambda: (Net(lambda self, x: choose()(self.linear(x))), X)
choose = lambda: OPERATOR[(HERE / "operator.txt").read_text()]
relative = lambda: (Net(lambda self, x, by=json.load(open("weights.json")): x * by), X)
accumulating = lambda: (Net(accumulate), X)
with_a_number = lambda: (Net(lambda self, x: (self.linear(x), None, 3)), X)
writes_its_input = lambda: (Net(lambda self, x: self.linear(x.mul_(2))), X)
channels_last = lambda: (Net(lambda self, x: x + 1), (IMAGE,))
IMAGE = draw(1, 3, 4, 4).to(memory_format=torch.channels_last)
many = lambda: (*plain(), [draw(4, 16, seed=seed) for seed in range(5)])

def accumulate(self, x):
    self.total.add_(self.linear(x).mean(0))
    return x + self.total

def at_line():
    return Net(fails), X

def fails(self, x):
    return x @ x

brain = lambda: (Net(lambda self, x: self.linear(x).bfloat16()), X)
selects = lambda: (Net(lambda self, x: x[x > 0]), X, [draw(4, 16, seed=s) for s in range(4)])
text = lambda: (Net(lambda self, x: (self.linear(x), "logits")), X)
array = lambda: (Net(lambda self, x: {"y": self.linear(x), "ids": __import__("numpy").ones(3)}), X)
no_output = lambda: (Net(lambda self, x: 3), X)
asks = lambda size: None

def compiled():
    module = Net(lambda self, x: self.linear(x) + 1)
    return torch.compile(module, backend=lambda graph, inputs: 1 / 0), X

def skipped():
    raise type("Skipped", (BaseException,), {})("could not import 'timm'")

def not_evaluated():
    module = plain()[0]
    module.eval = lambda: fails(None, torch.ones(2, 3))
    return module, X
"""
GOOD = ["plain", "largest", "configured", "chosen", "relative", "accumulating", "with_a_number"]
GOOD += ["writes_its_input", "channels_last", "many", "compiled"]
WRONG = {
    "brain": ("UsageError", "output 0 is bfloat16"),
    "text": ("UsageError", "has an output of type str"),
    "array": ("UsageError", "has an output of type ndarray"),
    "no_output": ("UsageError", "returns no tensor"),
    "selects": ("FailedError", "shape depends on the data"),
    "at_line": ("PlacedError", "in fails"),
    "not_evaluated": ("PlacedError", "(in module.eval())\n  why: nets.py, line"),
    "skipped": ("PlacedError", "raised Skipped: could not import 'timm'"),
    "asks": ("UsageError", "missing a required argument: 'size'"),
}


LoadModels = Callable[..., dict[str, list[str]]]


@pytest.fixture(scope="module")
def forks() -> Iterator[TorchForks]:
    with start_forks() as forks:
        yield forks


@pytest.fixture(scope="module")
def load_models(forks: TorchForks) -> LoadModels:
    """By factory: key and shapes of the outputs, or the error's class and text."""

    def load(folder: Path, *names: str) -> dict[str, list[str]]:
        environment = {**os.environ, "QNN_CI_CALLER_DIR": str(folder / "called_here")}
        printed = forks.run(CODE, str(folder / "nets.py"), *names, cwd=ROOT, env=environment)
        results: dict[str, list[str]] = json.loads(printed)
        return results

    return load


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "nets.py").write_text(MODELS)
    (folder / "config.json").write_text("2.0")
    (folder / "operator.txt").write_text("relu")
    (folder / "called_here").mkdir()
    (folder / "called_here" / "weights.json").write_text("3.0")
    return folder


@pytest.fixture(scope="module")
def loaded(folder: Path, load_models: LoadModels) -> dict[str, list[str]]:
    return load_models(folder, *GOOD, *WRONG)


def test_factories_with_equal_weights_have_different_keys(
    loaded: dict[str, list[str]],
) -> None:
    keys = {name: loaded[name][0] for name in GOOD}
    assert all(len(key) == 64 for key in keys.values()), keys
    assert len(set(keys.values())) == len(GOOD)
    assert loaded["plain"][1] == loaded["with_a_number"][1] == "[[4, 16]]"
    assert loaded["largest"][1] == "[[4]]"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_factory_is_refused_with_the_reason(
    loaded: dict[str, list[str]], name: str
) -> None:
    kind, words = WRONG[name]
    assert loaded[name][0] == kind
    assert words in loaded[name][1]
    assert "Traceback" not in loaded[name][1]


def test_exception_in_a_users_model_is_reported_with_its_line(
    loaded: dict[str, list[str]],
) -> None:
    line = MODELS.splitlines().index("    return x @ x") + 1
    assert f"nets.py, line {line}, in fails" in loaded["at_line"][1]


def test_a_number_read_from_a_file_changes_the_key_of_the_model_that_uses_it(
    folder: Path, loaded: dict[str, list[str]], load_models: LoadModels
) -> None:
    names = ("configured", "plain")
    (folder / "config.json").write_text("2.5")
    changed = load_models(folder, *names)
    (folder / "config.json").write_text("2.0")
    assert changed["configured"][0] != loaded["configured"][0]
    assert changed["plain"] == loaded["plain"]
    assert load_models(folder, "accumulating") == {"accumulating": loaded["accumulating"]}


def test_an_operator_chosen_by_a_file_changes_the_key_even_with_equal_outputs(
    folder: Path, loaded: dict[str, list[str]], load_models: LoadModels
) -> None:
    (folder / "operator.txt").write_text("clamp")
    changed = load_models(folder, "chosen", "plain")
    (folder / "operator.txt").write_text("relu")
    assert changed["chosen"][0] != loaded["chosen"][0]
    assert changed["plain"] == loaded["plain"]


def plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "called_here").mkdir()


LINEAR = "lambda: (torch.nn.Linear(3, 3), (torch.ones(2, 3),))"


def test_model_in_a_package_can_import_relatively(tmp_path: Path, load_models: LoadModels) -> None:
    """The package has the name of one of this project's packages."""
    net = "import beside, torch\nfrom .. import half\nfrom ci.parts import whole\n"
    files = {
        "ci/__init__.py": "half = 0.5\n",
        "ci/parts.py": "whole = 1.0\n",
        "ci/nets/__init__.py": "",
        "ci/nets/beside.py": "",
        "ci/nets/nets.py": f"{net}assert half + whole == 1.5\nplain = {LINEAR}\n",
    }
    plant(tmp_path, files)
    (tmp_path / "ci/nets/called_here").mkdir()
    results = load_models(tmp_path / "ci/nets", "plain")
    assert results["plain"][1] == "[[2, 3]]", results


def test_errors_in_a_users_models_name_the_path_in_the_repository_and_line(
    tmp_path: Path, load_models: LoadModels
) -> None:
    parts = "import torch\n\ndef fails():\n    return torch.ones(2) @ torch.ones(3)\n"
    files = {
        ".git/HEAD": "",
        "one/nets.py": "import parts\nplain = parts.fails\n",
        "one/parts.py": parts,
        "two/nets.py": "plain = 3\n\ndef factory(:\n",
        "one/called_here/x": "",
        "two/called_here/x": "",
    }
    plant(tmp_path, files)
    assert "one/parts.py, line 4, in fails" in load_models(tmp_path / "one", "plain")["plain"][1]
    assert "two/nets.py, line 3, in" in load_models(tmp_path / "two", "plain")["plain"][1]
