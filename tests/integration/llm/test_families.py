"""Decoders of each family that can be read: their logits are those of transformers, and a trained
one is judged right on the emulator."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ci.__main__ import main
from provisioning.errors import ExitCode

pytest.importorskip("torch", reason="torch is not installed in this environment")

import torch

from ci.llm import tiny
from ci.llm.decoder import make_decoder
from ci.llm.families import HuggingFaceConfig
from ci.llm.weights import read_weights
from provisioning.documents import read_json
from tests.stand_ins.safetensors import write_safetensors
from tests.stand_ins.tiny_decoder import PIECES, train

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": len(PIECES),
    "max_position_embeddings": 256,
}
SOFT = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 128}
LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.2, 1.5], "long_factor": [2.0, 3.0, 4.0]}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# What each config.json has beside SIZES, as the models of Hugging Face have it.
FAMILIES: Mapping[str, dict[str, Any]] = {
    "llama": {"rope_scaling": LLAMA3, "rope_theta": 500000.0},
    "mistral": {"sliding_window": 128},
    "qwen2": {"use_sliding_window": False, "sliding_window": 32},
    "qwen3": {"head_dim": 16, "rope_theta": 1000000.0},
    "gemma": {"head_dim": 16, "hidden_act": "gelu"},
    "gemma2": {**SOFT, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {**SOFT, "sliding_window_pattern": 2, "rope_local_base_freq": 100.0},
    "smollm3": {"no_rope_layers": [1, 0, 1, 1], "pad_token_id": 0},
    "phi3": {
        "partial_rotary_factor": 0.75,
        "rope_scaling": LONGROPE,
        "original_max_position_embeddings": 64,
        "pad_token_id": 0,
    },
    "granite": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.3,
        "logits_scaling": 0.5,
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SIZES, **FAMILIES[family])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.float().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(tmp_path)
    tokens = torch.randint(0, len(PIECES), (1, 24))
    with torch.no_grad():
        expected = model(tokens).logits
    for text in ("as transformers writes it", "as older versions wrote it"):
        if text.startswith("as older"):
            write_config(tmp_path, family)
        decoder, weights = read_weights(tmp_path)
        keys, values = (decoder.head_dim, 8), (8, decoder.head_dim)
        shapes = [keys] * decoder.layers + [values] * decoder.layers
        mask = torch.full((24, 32), -1e9).triu(9)
        mask[:, :8] = -1e9
        with torch.no_grad():
            logits = make_decoder(decoder, weights, 32)(
                tokens.int(),
                mask[None, None],
                torch.arange(24).int()[None],
                *(torch.zeros(1, decoder.kv_heads, *shape) for shape in shapes),
            )[0]
        assert torch.allclose(logits, expected, rtol=1e-4, atol=1e-4), text


@pytest.mark.emulator
@pytest.mark.nightly  # half a minute for each family
@pytest.mark.parametrize("family", FAMILIES)
def test_a_trained_decoder_passes_in_float_and_in_four_bits(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The session test_llm has a decoder of the family llama in the other schemes, too."""
    pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
    monkeypatch.chdir(tmp_path)
    write_trained(tmp_path, family)
    place = str(Path(tiny.__file__).parent / "tokenizer.bin")
    words = ["--weights", str(tmp_path), "--tokenizer", place, "--prompt", tiny.PROMPTS[0]]
    ended = main(["test-llm", *words, "--scheme", "fp16", "--scheme", "16a4w", "--json"])
    report = json.loads(capsys.readouterr().out)
    ids_by_scheme = {}
    for case in report["cases"]:
        ids_by_scheme[case["scheme"]] = [finding["id"] for finding in case["judgement"]["findings"]]
    assert ids_by_scheme == {"fp16": [], "16a4w": []}
    assert ended == ExitCode.OK
    for remark in report["remarks"]:
        assert re.search(r"\((\d+) of \1 tokens equal the model's", remark), remark
        # Weights of 4 bits may have another text than float32's, which is then said.
        differs = "16a4w" in remark and "the text differs from float32's" in remark
        assert differs or "'Ben has a blue boat. The boat sails far.'" in remark, remark


def write_config(directory: Path, family: str, **fields: Any) -> HuggingFaceConfig:
    document = {"model_type": family, **SIZES, **FAMILIES[family], **fields}
    (directory / "config.json").write_text(json.dumps(document))
    return read_json(directory / "config.json", HuggingFaceConfig)


def write_trained(directory: Path, family: str) -> None:
    """Train a decoder, and write its weights as Hugging Face publishes those of the family."""
    # With a small base, the logits of a short text depend on each position.
    fields = {"tie_word_embeddings": False, "rope_theta": 100.0}
    config_of_family = write_config(directory, family, **fields)
    config = config_of_family.convert()
    weights = train(config).state_dict()
    published = {}
    for ours, theirs in config_of_family.list_names().items():
        published[theirs] = weights[ours] / config_of_family.factor(
            ours
        ) - config_of_family.family.norm_offset * ("norm" in ours)
    if config_of_family.family.fused:
        for layer in range(config.layers):
            for fused, parts in (("self_attn.qkv", "qkv"), ("mlp.gate_up", ("gate", "up"))):
                place, _, _ = fused.rpartition(".")
                names = [f"model.layers.{layer}.{place}.{part}_proj.weight" for part in parts]
                joined = torch.cat([published.pop(name) for name in names])
                published[f"model.layers.{layer}.{fused}_proj.weight"] = joined
    write_safetensors(directory / "model.safetensors", published)
