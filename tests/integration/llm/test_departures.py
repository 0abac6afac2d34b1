"""A red test_llm names the layer whose keys, values or hidden state departs first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.__main__ import main
from ci.facts.kinds import TOKENS
from ci.llm import tiny
from ci.llm.lowering import LlmEngine
from ci.verbs.lanes import llm
from provisioning.errors import ExitCode
from tests.integration.llm.test_families import write_trained

pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
pytestmark = [pytest.mark.emulator, pytest.mark.nightly]
WAYS = ("prefill", "decode after prefill", "decode alone")


# Per fault, a scheme in which it is far above the noise, and what is wrong first.
FAULTS = {
    "heads:2": ("16a8w", "the keys of layer 2"),
    "ffn_norm:1": ("fp16", "the hidden state that layer 1 returns, or in the norm behind it"),
}


@pytest.mark.parametrize(
    ("fault", "scheme"),
    [*(("heads:1", scheme) for scheme in ("fp16", "16a4w")), ("halves:1", "8a8w")],
)
def test_a_layer_with_wrong_keys_is_named_as_the_first_wrong(
    fault: str,
    scheme: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    places = run_wrong(fault, ["--scheme", scheme], monkeypatch, capsys)
    assert places == [[f"{way}: first wrong in the keys of layer 1" for way in WAYS]]


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_wrong_layer_is_named_for_each_model_family(
    fault: str,
    family: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_trained(tmp_path, family)
    place = str(Path(tiny.__file__).parent / "tokenizer.bin")
    words = ["--weights", str(tmp_path), "--tokenizer", place, "--prompt", tiny.PROMPTS[0]]
    scheme, expected_place = FAULTS[fault]
    (places,) = run_wrong(fault, [*words, "--scheme", scheme], monkeypatch, capsys)
    assert places
    assert all(f"first wrong in {expected_place}" in place for place in places)


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
    places_of_cases = []
    for case in cases:
        first = next(
            finding for finding in case["judgement"]["findings"] if finding["id"] == TOKENS.id
        )
        places_of_cases.append([place.partition(", at token")[0] for place in first["where"]])
    return places_of_cases
