"""A red test_llm names the layer whose keys, values or hidden state departs first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.__main__ import main
from ci.llm.lowering import LlmEngine
from ci.verbs import llm
from provisioning.errors import ExitCode

pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
pytestmark = [pytest.mark.emulator, pytest.mark.nightly, pytest.mark.timeout(1800)]
FAULT = "QNN_CI_TEST_WRONG_LAYER"  # see tests/stand_ins/wrong_layers.py
WAYS = ("prefill", "decode after prefill", "decode alone")


@pytest.mark.parametrize("scheme", ["fp16", "8a8w", "16a8w", "16a4w"])
def test_swapped_key_heads_of_a_layer_are_named(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(llm, "IMPORTS", (*LlmEngine.imports, "tests.stand_ins.wrong_layers"))
    monkeypatch.setenv(FAULT, "heads:1")
    assert main(["test-llm", "--scheme", scheme, "--json"]) == ExitCode.FAILED
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    first, *_ = [one for one in case["findings"] if one["id"] == "QNN2007"]
    told = [one.partition(", at token")[0] for one in first["where"]]
    assert told == [f"{way}: first wrong in the keys of layer 1" for way in WAYS]
