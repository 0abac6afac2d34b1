"""Bundles of LiteRT-LM for real: models of litert-torch on LiteRT's interpreter, and compiled by
the plugin on the emulator; right ones, and such with a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")
pytest.importorskip("sentencepiece", reason="sentencepiece is not installed in this environment")
pytest.importorskip("torch", reason="torch is not installed in this environment")

from ci.graphs.litert_file import list_entries, pack_model, read_model, schema
from ci.llm import tiny
from ci.llm.bundle_case import BundleJob, BundleResult, list_findings
from ci.llm.bundle_file import read_bundle
from ci.llm.bundle_loop import choose_caches, make_caches
from ci.llm.bundle_models import InterpretedModel, OpenBundle
from ci.report.schema import ControlKind
from provisioning.errors import FailedError, UsageError
from tests.build.litert_bundles import (
    LLM,
    PLACE,
    plant_at_zero,
    read_part,
    write_tiny,
)

WEIGHTS = Path(tiny.__file__).with_name("weights.bin")
TEXT = "Ben has a blue boat. The boat sails far."
CONTROLS = [
    ControlKind.SECOND_CHUNK_LOST,
    ControlKind.CHUNK_SHIFTED,
    ControlKind.POSITIONS_RESTARTED,
    ControlKind.FIRST_MASK_REUSED,
]


def judge(path: Path, prompt: str = "Ben has a", **options: Any) -> BundleResult:
    return BundleJob(path, prompt, 48, "SM8650", Path(), **options)()


@pytest.mark.parametrize("decoder", ["decoder.tflite", "decoder_int8.tflite"])
def test_a_right_bundle_passes(tmp_path: Path, decoder: str) -> None:
    path = write_tiny(tmp_path / "tiny.litertlm", decoder=read_part(decoder))
    result = judge(path, weights=WEIGHTS)
    assert result.text == TEXT
    assert [judged.name for judged in result.judged] == [
        "a prompt of 4 tokens (1 chunk of 8)",
        "a prompt of 8 tokens (1 chunk of 8)",
        "a prompt of 9 tokens (2 chunks of 8)",
        "a prompt of 24 tokens (3 chunks of 8)",
        "decode alone",
        "free text",
    ]
    assert list_findings(result, 0.75) == []
    assert result.agreement == 1.0
    assert [(each.kind, each.rejected) for each in result.controls] == [
        (kind, True) for kind in CONTROLS
    ]


def test_the_cache_written_at_0_is_named(tmp_path: Path) -> None:
    auxiliary = plant_at_zero(read_part("auxiliary.tflite"))
    result = judge(write_tiny(tmp_path / "tiny.litertlm", auxiliary=auxiliary))
    by_name = {judged.name: judged for judged in result.judged}
    assert not by_name["a prompt of 8 tokens (1 chunk of 8)"].faults
    assert not by_name["decode alone"].faults
    wrong = by_name["a prompt of 24 tokens (3 chunks of 8)"]
    assert wrong.faults
    assert wrong.where.startswith("from the second chunk on: keys of layer 0")
    assert "the second chunk also changes keys or values of earlier tokens" in wrong.where
    assert list_findings(result, 0.75)


def test_another_decoder_departs_from_the_reference(tmp_path: Path) -> None:
    """Weights of a layer are swapped: only another bundle, or weights, show it."""
    decoder = read_part("decoder.tflite")
    start = decoder.index(np.float32(find_weight()).tobytes())
    wrong = decoder[: start + 4] + decoder[start + 8 : start + 72] + decoder[start + 4 : start + 8]
    wrong += decoder[len(wrong) :]
    path = write_tiny(tmp_path / "wrong.litertlm", decoder=wrong)
    right = write_tiny(tmp_path / "right.litertlm")
    assert list_findings(judge(path), 0.75) == []
    findings = list_findings(judge(path, reference=right), 0.75)
    assert any("decode alone" in finding.headline for finding in findings)


def find_weight() -> float:
    """A weight of the first layer of ``tiny``, as it is in the decoder."""
    from ci.llm.weights import read_weights

    _, weights = read_weights(WEIGHTS)
    return float(weights["layers.0.feed_forward.w2.weight"].flatten()[0])


def test_a_prompt_or_metadata_that_does_not_fit_a_bundle_is_refused(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.litertlm")
    with pytest.raises(UsageError, match="does not fit in a context of 64 tokens"):
        judge(path, "Ben has a " * 8)
    silent = write_tiny(tmp_path / "silent.litertlm", metadata=LLM[7:])
    with pytest.raises(UsageError, match="the prompt has no tokens"):
        judge(silent, "")
    far = write_tiny(tmp_path / "far.litertlm", metadata=LLM[:6] + b"\x7f" + LLM[7:])
    with pytest.raises(FailedError, match="the decoder has 57 logits"):
        judge(far)


def test_a_cache_of_another_type_in_decode_stays_empty_there(tmp_path: Path) -> None:
    """As LiteRT-LM does with layer 25 of a Gemma 3."""
    model = read_model(read_part("decoder.tflite"))
    (decode,) = list_entries(model, ["decode"])
    tensors = model.subgraphs[decode.subgraph].tensors
    for number, name in zip(decode.inputs, decode.input_names, strict=True):
        if name in {"kv_cache_k_1", "kv_cache_v_1"}:
            tensors[number].type = schema.TensorType.INT16
    file = read_bundle(write_tiny(tmp_path / "tiny.litertlm", decoder=pack_model(model)))
    assert [cache.name for cache in file.shared_caches] == ["kv_cache_k_0", "kv_cache_v_0"]
    bundle = OpenBundle(file, *[InterpretedModel(PLACE / "embedder.tflite")] * 3)
    full = {name: array + 1 for name, array in make_caches(bundle).items()}
    chosen = choose_caches(bundle, "decode", full)
    assert {name: (array.dtype.name, float(array.max())) for name, array in chosen.items()} == {
        "kv_cache_k_0": ("float32", 1.0),
        "kv_cache_k_1": ("int16", 0.0),
        "kv_cache_v_0": ("float32", 1.0),
        "kv_cache_v_1": ("int16", 0.0),
    }
