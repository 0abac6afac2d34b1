"""Graphs of one .tflite file are judged apart, on a plugin that stands in."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("litert_converter", reason="litert-torch is not installed in this environment")

from ci.cases.engine import Fallback
from ci.faults import litert_runner
from ci.faults.known import REFUSED, RIGHT, WRONG
from ci.faults.results import Item
from ci.graphs.litert_file import list_entries, name_operator, name_tensor
from ci.graphs.litert_session import Reference
from ci.litert.convert import convert_module
from ci.models.schemes import Scheme
from ci.onnx.fallback import StageError
from provisioning.errors import FailedError

# torch warns about what litert-torch does with its trees.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
TEXTS = (
    "x = input(2, 4, 8)\ny = tanh(x)\nz = cos(y)\nreturn y, z\n",
    "x = input(2, 16, 64)\nc = constant(16, 64)\na = add(x, c)\ny = sigmoid(a)\nreturn y\n",
)
ITEMS = [Item(text, seed) for seed, text in enumerate(TEXTS, 1)]
KNOWN = ("broadcast-before-sigmoid-in-litert",)


class Plugin:
    """Takes all operators, except ``left``, and computes on the CPU. It can spoil the last
    output."""

    def __init__(self) -> None:
        self.left: tuple[str, ...] = ()
        self.sign = 1

    def compile(self, data: bytes, model: Any, *_: object) -> tuple[Any, Sequence[Fallback]]:
        self.data, self.model = data, model
        (subgraph,) = model.subgraphs
        fallbacks = []
        for operator in subgraph.operators:
            kind = name_operator(model, operator)
            if kind in self.left:
                name = name_tensor(subgraph, operator.outputs[0])
                fallbacks.append(Fallback(kind, "it may not", name=name))
        return SimpleNamespace(model=model), fallbacks

    def open(self, *_: object) -> Any:
        return SimpleNamespace(list_calls=lambda entries: [SimpleNamespace(run=self.run)])

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        ((*first, last),) = Reference(self.data, self.model, list_entries(self.model)).run([arrays])
        return [*first, self.sign * last]


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Plugin:
    stand_in = Plugin()
    monkeypatch.setattr(litert_runner, "compile_file", stand_in.compile)
    monkeypatch.setattr(litert_runner, "Execution", stand_in.open)
    monkeypatch.setattr(litert_runner, "list_on_cpu", lambda _: set())
    return stand_in


def try_items() -> list[tuple[str, str, tuple[str, ...]]]:
    options = {"backend_path": str(Path("libQnnHtp.so"))}
    results = litert_runner.run_converted(ITEMS, Scheme.FP16, "SM8650", options)
    assert [(result.text, result.seed) for result in results] == [
        (item.text, item.seed) for item in ITEMS
    ]
    return [(result.end, result.why, result.faults) for result in results]


def test_graphs_of_one_file_are_judged_apart(plugin: Plugin) -> None:
    assert try_items() == [(RIGHT, "", ())] * 2
    plugin.sign = -1
    assert try_items() == [(RIGHT, "", ()), (WRONG, "", KNOWN)]
    plugin.left = ("COS",)
    cos_is_left = (REFUSED, "COS is left to the CPU", ())
    assert try_items() == [cos_is_left, (WRONG, "", KNOWN)]
    plugin.sign, plugin.left = 1, ("LOGISTIC",)
    assert try_items() == [(RIGHT, "", ()), (REFUSED, "LOGISTIC is left to the CPU", KNOWN)]


def test_what_the_plugin_refuses_and_what_the_converter_changes_are_told_apart(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "run", lambda _: 1 / 0)
    with pytest.raises(StageError, match="QNN"):
        try_items()

    def convert_another(module: Any, inputs: Any) -> bytes:
        changed = copy.deepcopy(module)
        changed.parts[1].c_c.data += 1
        return convert_module(changed, inputs)

    monkeypatch.setattr(litert_runner, "convert_module", convert_another)
    with pytest.raises(FailedError, match="litert-torch changed the model: output 2"):
        try_items()
