"""A red test_llm names the layer whose keys, values or hidden state departs first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.__main__ import main
from ci.facts.kinds import TOKENS
from ci.llm import tiny
from ci.llm.lowering import LlmEngine
from ci.verbs import llm
from provisioning.errors import ExitCode
from tests.integration.llm.test_families import FAMILIES, write_trained

pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
pytestmark = [pytest.mark.emulator, pytest.mark.nightly, pytest.mark.timeout(1800)]
WAYS = ("prefill", "decode after prefill", "decode alone")


FAULTS = {
    "heads:{}": "the keys of layer {}",
    "ffn_norm:{}": "the hidden state that layer {} returns, or in the norm behind it",
}


@pytest.mark.parametrize("scheme", ["fp16", "8a8w", "16a8w", "16a4w"])
def test_swapped_key_heads_of_a_layer_are_named(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told = run_wrong("heads:1", ["--scheme", scheme], monkeypatch, capsys)
    assert told == [[f"{way}: first wrong in the keys of layer 1" for way in WAYS]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_wrong_layer_of_each_family_is_named(
    fault: str,
    family: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two of the three ways are enough in 16 bits: a wrong norm is near the limit there."""
    monkeypatch.chdir(tmp_path)
    write_trained(tmp_path, family)
    place = str(Path(tiny.__file__).parent / "tokenizer.bin")
    words = ["--weights", str(tmp_path), "--tokenizer", place, "--prompt", tiny.PROMPTS[0]]
    schemes = ["--scheme", "fp16", "--scheme", "16a8w"]
    found = run_wrong(fault.format(2), [*words, *schemes], monkeypatch, capsys)
    wanted = f"first wrong in {FAULTS[fault].format(2)}"
    counts = [sum(wanted in one for one in where) for where in found]
    assert [counts[0], min(counts[1], 2)] == [3, 2]


def run_wrong(
    fault: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> list[list[str]]:
    """Plant a fault (see tests/stand_ins/wrong_layers.py), and return what each red case names."""
    monkeypatch.setattr(llm, "IMPORTS", (*LlmEngine.imports, "tests.stand_ins.wrong_layers"))
    monkeypatch.setenv("QNN_CI_TEST_WRONG_LAYER", fault)
    assert main(["test-llm", *words, "--json"]) == ExitCode.FAILED
    cases = json.loads(capsys.readouterr().out)["cases"]
    firsts = [next(one for one in case["findings"] if one["id"] == TOKENS.id) for case in cases]
    return [[one.partition(", at token")[0] for one in first["where"]] for first in firsts]
