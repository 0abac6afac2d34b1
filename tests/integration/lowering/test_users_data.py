"""A user's data and metric: what they may be, and what is said of those that will not do."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
ROOT = Path(__file__).resolve().parents[3]
CODE = """
import json, sys
import msgspec
import numpy as np
from ci.models.model import digest_model, load_model
from ci.models.user_data import read_sets
from ci.models.user_models import Metric, MetricJob, Source
from ci.models.user_data import check_metric, run_metric
from provisioning.errors import QnnCiError
folder = sys.argv[1]
ONES = np.arange(12, dtype="float32").reshape(4, 1, 3)
said = {}

def note(name, work):
    try:
        said[name] = work()
    except QnnCiError as error:
        said[name] = [type(error).__name__, str(error)]

def measure(function, labels="labels.npy"):
    metric = Metric(f"{folder}/users.py:{function}", f"{folder}/{labels}", 0.1)
    made = run_metric(MetricJob(metric, [ONES * 2], [ONES], [ONES * 3]))
    without = run_metric(MetricJob(metric, [ONES * 2], [ONES]))
    assert without == msgspec.structs.replace(made, quantized=None)
    return [made.value, made.float32, made.shifted, made.quantized]

def check(function, labels="labels.npy"):
    check_metric(Metric(f"{folder}/users.py:{function}", f"{folder}/{labels}", 0.1), 4)

def load(inputs="", calibration="", name="make"):
    sources = [f"{folder}/{one}" if one else "" for one in (calibration, inputs)]
    model = load_model(f"{folder}/users.py:{name}", Source("", *sources))
    sets = len(model.evaluation), len(model.calibration)
    return [*sets, model.evaluation[0][0].tolist(), digest_model(model)]

for name in json.loads(sys.argv[2]):
    kind, _, word = name.partition(" ")
    if kind == "metric":
        note(name, lambda: measure(word))
    if kind == "check":
        note(name, lambda: check(*word.split()))
    if kind == "labels":
        note(name, lambda: measure("mean", word))
    if kind == "sets":
        note(name, lambda: [len(read_sets(f"{folder}/{word}"))])
    if kind == "inputs":
        note(name, lambda: load(inputs=word))
    if kind == "column":
        note(name, lambda: load(inputs=word, name="column"))
    if kind == "calibration":
        note(name, lambda: load(calibration=word))
print(json.dumps(said))
"""
USERS = """
import numpy as np
import torch

def make():
    torch.manual_seed(0)
    calibration = [(torch.ones(1, 3) * i,) for i in range(2, 9)]
    return torch.nn.Linear(3, 3), (torch.ones(1, 3),), calibration

class First(torch.nn.Module):
    def forward(self, x):
        return x[:, :1] + 1

def column():
    return First(), (torch.ones(1, 3),), make()[2]

def mean(outputs, labels):
    return outputs[0].mean()

def shapes(outputs, labels):
    assert [list(one.shape) for one in outputs] == [[4, 1, 3]], outputs
    assert list(labels.shape) == [4], labels
    outputs[0].zero_()
    labels.zero_()
    return np.float64(0.5)

def writes(outputs, labels):
    return labels.add_(1).sum()

def first(outputs, labels):
    return outputs[0][0, 0, 0]

def integer(outputs, labels):
    return 1

def raises(outputs, labels):
    return outputs[0] @ outputs[0]

def leaves(outputs, labels):
    raise SystemExit("no")

def nan(outputs, labels):
    return float("nan")

def infinite(outputs, labels):
    return outputs[0].sum() / 0

def vector(outputs, labels):
    return outputs[0].mean(-1)

def nothing(outputs, labels):
    pass

def text(outputs, labels):
    return "0.5?"

def complex_number(outputs, labels):
    return 1j

def one_argument(outputs):
    return 1.0

def four():
    return [0, 1, 2, 3]

def sets():
    return [(torch.ones(1, 3) * i,) for i in range(5)]

def bare():
    return [torch.ones(1, 3) * i for i in range(5)]

def two():
    return sets()[:2]

def three_wide():
    return [(torch.ones(1, 4),)] * 5

def no_list():
    return 3

def of_strings():
    return ["a", "b", "c", "d"]

def fails():
    return open("nowhere.npy")

constant = 3
"""
GOOD: dict[str, object] = {
    "metric mean": [11.0, 5.5, 5.5, 16.5],
    "metric shapes": [0.5, 0.5, 0.5, 0.5],
    "metric writes": [10.0, 10.0, 10.0, 10.0],
    "metric first": [0.0, 0.0, 9.0, 0.0],
    "metric integer": [1.0, 1.0, 1.0, 1.0],
    "check mean": None,
    "labels users.py:four": [11.0, 5.5, 5.5, 16.5],
    "sets five.npy": [5],
    "sets pair.npz": [5],
    "sets users.py:sets": [5],
    "sets users.py:bare": [5],
}
WRONG = {
    "metric raises": ("FailedError", "users.py, line {}, in raises", "@ outputs[0]"),
    "metric leaves": ("FailedError", "raised SystemExit: no", ""),
    "metric nan": ("FailedError", "users.py:nan gives nan", ""),
    "metric infinite": ("FailedError", "users.py:infinite gives inf", ""),
    "metric vector": ("UsageError", "it returned a Tensor of shape [4, 1]", ""),
    "metric nothing": ("UsageError", "it returned a NoneType", ""),
    "metric text": ("UsageError", "it returned a str", ""),
    "metric complex_number": ("UsageError", "it returned a complex", ""),
    "metric one_argument": ("FailedError", "takes 1 positional argument", ""),
    "check one_argument": ("UsageError", "metric.function: users.py:one_argument: too many", ""),
    "check mean three.npy": ("UsageError", "metric.labels: three.npy has labels of shape", ""),
    "metric missing": ("UsageError", "has no function 'missing'", ""),
    "metric constant": ("UsageError", "has no function 'constant'", ""),
    "labels three.npy": ("UsageError", "labels of shape [3]", ""),
    "labels scalar.npy": ("UsageError", "labels of shape []", ""),
    "labels pair.npz": ("UsageError", "holds 2 arrays", ""),
    "labels strings.npy": ("UsageError", "strings.npy gives no labels", ""),
    "labels objects.npy": ("UsageError", "objects.npy cannot be read", ""),
    "labels users.py:of_strings": ("UsageError", "users.py:of_strings gives no labels", ""),
    "sets empty.npy": ("UsageError", "empty.npy cannot be read", ""),
    "sets cut.npz": ("UsageError", "cut.npz cannot be read", ""),
    "sets text.npy": ("UsageError", "text.npy cannot be read", ""),
    "sets gone.npy": ("UsageError", "gone.npy cannot be read", ""),
    "sets uneven.npz": ("UsageError", "its arrays are [5, 1, 3], [4, 1, 3]", ""),
    "sets scalar.npy": ("UsageError", "the first axis counts the sets", ""),
    "sets users.py:no_list": ("UsageError", "it returned a int", ""),
    "sets users.py:fails": ("FailedError", "users.py, line {}, in fails", "nowhere.npy"),
    "inputs users.py:two": ("UsageError", "inputs: too few inputs to judge on", ""),
    "inputs users.py:three_wide": ("UsageError", "inputs: users.py:three_wide gives inputs of", ""),
    "inputs double.npy": ("UsageError", "is float64", ""),
    "inputs pair.npz": ("UsageError", "inputs of different shapes", ""),
    "calibration users.py:three_wide": ("UsageError", "calibration: users.py:three_wide gives", ""),
    "calibration pair.npz": ("UsageError", "calibration: pair.npz gives inputs of different", ""),
    "calibration users.py:of_strings": ("UsageError", "is a str, not a tensor", ""),
}
MODELS = ["inputs five.npy", "inputs other.npy", "calibration five.npy", "inputs users.py:sets"]
MODELS += ["column five.npy", "column changed.npy"]  # of the same outputs


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    folder = tmp_path_factory.mktemp("data")
    (folder / "users.py").write_text(USERS)
    five = np.arange(15, dtype="float32").reshape(5, 1, 3)
    arrays = {
        "labels": np.arange(4),
        "three": np.arange(3),
        "scalar": np.array(3.0),
        "strings": np.array(["a", "b", "c", "d"]),
        "five": five,
        "other": five[::-1],
        "changed": five * np.array([1, 2, 2], dtype="float32"),
        "double": five.astype("float64"),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(folder / "pair.npz", five, five)
    np.savez(folder / "uneven.npz", five, five[:4])
    (folder / "empty.npy").write_bytes(b"")
    (folder / "cut.npz").write_bytes((folder / "pair.npz").read_bytes()[:200])
    (folder / "text.npy").write_text("1 2 3")
    names = json.dumps([*GOOD, *WRONG, *MODELS])
    argv = [sys.executable, "-c", CODE, str(folder), names]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, list[object]] = json.loads(ended.stdout)
    return found


def test_data_and_metrics_of_every_form_are_taken(said: dict[str, list[object]]) -> None:
    assert {name: said[name] for name in GOOD} == GOOD


@pytest.mark.parametrize("name", WRONG)
def test_what_will_not_do_is_said(said: dict[str, list[object]], name: str) -> None:
    kind, words, marked = WRONG[name]
    lines = USERS.splitlines()
    line = next((n for n, text in enumerate(lines, 1) if marked and marked in text), 0)
    assert said[name][0] == kind, said[name]
    assert words.format(line) in str(said[name][1])
    assert "Traceback" not in str(said[name][1])


def test_inputs_are_judged_on_and_calibration_is_calibrated_on(
    said: dict[str, list[object]],
) -> None:
    """And what is judged on counts for what was lowered before."""
    assert said["inputs five.npy"][:3] == [5, 8, [[0.0, 1.0, 2.0]]]
    assert said["inputs users.py:sets"][:3] == [5, 8, [[0.0, 0.0, 0.0]]]
    assert said["calibration five.npy"][:3] == [4, 6, [[1.0, 1.0, 1.0]]]
    assert len({str(said[name][3]) for name in MODELS}) == len(MODELS)
