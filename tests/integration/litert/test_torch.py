"""PyTorch models in the LiteRT lane for real: converted by litert-torch, compiled by the plugin,
run on the emulator, and judged by the outputs of PyTorch. Conversions are right, wrong on purpose,
or refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
pytest.importorskip("litert_converter", reason="litert-torch is not installed in this environment")

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.emulator
MODELS = """
import os

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layer = nn.Embedding(32, 8), nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        return torch.relu(self.layer(x))


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


class Two(Net):
    def forward(self, x, y):  # outputs in another order than that of their names
        return {"sum": self.layer(x) + y, "difference": self.layer(x) - 2 * y}


def two():
    return Two(), (draw(4, 8), draw(4, 8) + 3)


class Tokens(Net):
    def forward(self, tokens):
        scores = self.layer(self.table(tokens))
        return scores, scores.argmax(-1)


def tokens():
    return Tokens(), (torch.arange(8).reshape(1, 8),)


def wrong():
    import litert_torch

    convert = litert_torch.convert

    def convert_wrongly(module, inputs):
        with torch.no_grad():
            module.layer.weight[0, 0] += 0.05
        return convert(module, inputs)

    litert_torch.convert = convert_wrongly
    return Net(), (draw(4, 8),)


class Counting(Net):
    def forward(self, x):
        self.calls += 1
        return self.layer(x) + self.calls


def counting():
    return Counting(), (draw(4, 8),)


class Branching(Net):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def branching():
    return Branching(), (draw(4, 8),)


class Best(Net):
    # The values of the best are not read: the plugin returns them, and the file does not
    def forward(self, x):
        scores = self.layer(x)
        return torch.gather(scores, 1, torch.topk(scores, 3).indices), scores


def best():
    return Best(), (draw(4, 8),)


class Unknown(Net):
    def forward(self, x):
        return torch.linalg.svdvals(x)


def unknown():
    return Unknown(), (draw(4, 4),)


class Positions(nn.Module):
    # Positions without a batch before a norm, of which QNN computes one row of the batch only
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.places, self.norm = nn.Parameter(torch.randn(1, 24, 64)), nn.LayerNorm(64)

    def forward(self, x):
        return self.norm(x + self.places)


def positions():
    return Positions(), (draw(2, 24, 64),)


def dying():
    import litert_torch

    litert_torch.convert = lambda module, inputs: os.abort()
    return Net(), (draw(2, 8),)  # another key in the cache than that of ``wrong``
"""
# The status of each model, and what its first finding says.
EXPECTED = {
    "two": ("passed", ""),
    "tokens": ("passed", ""),
    "wrong": ("failed", "litert-torch changed the model: output 0"),
    "counting": ("failed", "litert-torch changed the model: output 0"),
    "branching": ("failed", "because torch.export cannot trace it"),
    "best": ("failed", "of TOPK_V2 to LiteRT, which expects fewer results"),
    "unknown": ("failed", "cannot convert the operator aten._linalg_svd.default"),
    "dying": ("failed", ""),
    # Experiments change the PyTorch model, and convert it anew.
    "positions": ("failed", "dB with expand-constant)"),
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The cases of one run of all models, by the names of their functions."""
    folder = tmp_path_factory.mktemp("torch")
    (folder / "net.py").write_text(MODELS)
    words = [word for name in EXPECTED for word in ("--model", f"net.py:{name}")]
    ended = subprocess.run(
        [sys.executable, "-m", "ci", "test-litert", *words, "--reports", "reports"],
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1, ended.stderr
    report = json.loads((folder / "reports" / "test_litert" / "report.json").read_text())
    return {case["model"].partition(":")[2]: case for case in report["cases"]}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_model_from_pytorch_is_judged_by_its_module(name: str, cases: dict[str, Any]) -> None:
    status, message = EXPECTED[name]
    judgement = cases[name]["judgement"]
    assert judgement["status"] == status, cases[name]
    assert message in json.dumps(judgement), judgement
