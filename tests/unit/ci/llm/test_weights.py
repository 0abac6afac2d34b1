"""Weights in the formats of llama2.c and Hugging Face."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from ci.llm.config import RopeScaling
from ci.llm.decoder import Attention, Decoder, make_decoder
from ci.llm.families import HEADER, require_form
from ci.llm.weights import read_safetensors, read_weights
from provisioning.errors import UsageError
from tests.stand_ins.safetensors import write_safetensors
from tests.stand_ins.tiny_decoder import CONFIG, write_weights
from tests.unit.ci.llm.decoders import PLACE, Tiny, example_inputs

# The layers' weights in transformers' LlamaForCausalLM. w1 is gated by SiLU, w3 is its factor.
LLAMA = {
    "attention_norm": "input_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
}


def test_weights_that_training_writes_are_those_of_its_decoder(tmp_path: Path) -> None:
    torch.manual_seed(1)
    trained = Decoder(CONFIG, CONFIG.most_context).eval()
    for parameter in trained.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    write_weights(trained, tmp_path / "weights.bin")
    assert (tmp_path / "weights.bin").stat().st_size == (PLACE / "weights.bin").stat().st_size
    config, weights = read_weights(tmp_path / "weights.bin")
    assert config == CONFIG
    inputs = example_inputs(config, 16, 4)
    inputs[0].copy_(torch.tensor([[1, 5, 7, 9]]))
    read_decoder = make_decoder(config, weights, 16)
    with torch.no_grad():
        for read_output, trained_output in zip(
            read_decoder(*inputs), trained(*inputs), strict=True
        ):
            assert torch.allclose(
                torch.as_tensor(read_output[0]), torch.as_tensor(trained_output[0]), atol=1e-5
            )


def test_a_header_that_no_decoder_has_is_refused_before_torch_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(HEADER.pack(0, 16, 1, 2, 2, 4, 16))
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it fails
    with pytest.raises(UsageError, match="not a decoder") as caught:
        require_form(path)
    assert "dim is 0" in caught.value.why


@pytest.fixture
def model(tiny_model: Tiny, tmp_path: Path) -> Path:
    """The decoder of ours as Hugging Face would publish it."""
    config_of_model = tiny_model.config
    config = {
        "model_type": "llama",
        "hidden_size": config_of_model.dim,
        "intermediate_size": config_of_model.hidden,
        "num_hidden_layers": config_of_model.layers,
        "num_attention_heads": config_of_model.heads,
        "num_key_value_heads": config_of_model.kv_heads,
        "vocab_size": config_of_model.vocabulary,
        "max_position_embeddings": config_of_model.most_context,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "float32",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    names = {
        f"layers.{n}.{our}": f"model.layers.{n}.{name}"
        for n in (0, 1)
        for our, name in LLAMA.items()
    }
    names |= {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
    tensors = {
        f"{theirs}.weight": tiny_model.weights[f"{ours}.weight"] for ours, theirs in names.items()
    }
    write_safetensors(tmp_path / "model.safetensors", tensors)
    return tmp_path


def change(model: Path, **values: Any) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_hugging_face_weights_are_read_as_the_decoder_that_wrote_them(
    model: Path, tiny_model: Tiny
) -> None:
    config, weights = read_weights(model)
    assert config == tiny_model.config
    assert all(torch.equal(weights[name], tiny_model.weights[name]) for name in tiny_model.weights)


def test_a_model_in_several_files_is_read_by_its_index(model: Path, tiny_model: Tiny) -> None:
    single_file = model / "model.safetensors"
    names = [f"layers.{n}.{weight}.weight" for n in (0, 1) for weight in LLAMA]
    assert len(names) == 18
    tensors_by_file = {"a.safetensors": {}, "b.safetensors": {}}
    for number, (name, tensor) in enumerate(read_safetensors(single_file).items()):
        tensors_by_file["ab"[number % 2] + ".safetensors"][name] = tensor
    for name, tensors in tensors_by_file.items():
        write_safetensors(model / name, tensors)
    single_file.unlink()
    listed = {name: file for file, tensors in tensors_by_file.items() for name in tensors}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    assert torch.equal(read_weights(model)[1]["norm.weight"], tiny_model.weights["norm.weight"])


def test_an_index_that_is_a_pipe_is_refused_and_not_ignored(model: Path) -> None:
    os.mkfifo(model / "model.safetensors.index.json")
    with pytest.raises(UsageError, match=r"index\.json") as refusal:
        read_weights(model)
    assert "it is a pipe" in refusal.value.why


@pytest.mark.parametrize(("kind", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_half_precision_weights_are_widened_to_float32(
    kind: str, dtype: torch.dtype, model: Path, tiny_model: Tiny
) -> None:
    path = model / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in read_safetensors(path).items()}
    write_safetensors(path, tensors, kind)
    weight = read_weights(model)[1]["output.weight"]
    assert weight.dtype == torch.float32
    assert torch.equal(weight, tiny_model.weights["output.weight"].to(dtype).float())


def test_files_of_an_index_are_read_from_the_directory_of_the_model(
    model: Path, tmp_path_factory: pytest.TempPathFactory, tiny_model: Tiny
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "part.safetensors"
    outside.write_bytes(b"not to be read")
    (model / "model.safetensors").rename(model / "part.safetensors")
    for name in (str(outside), "../part.safetensors", "sub/part.safetensors"):
        (model / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"a": name, "b": name}})
        )
        assert torch.equal(read_weights(model)[1]["norm.weight"], tiny_model.weights["norm.weight"])


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_the_scaling_of_llama_3_is_read_by_either_name_of_its_kind(key: str, model: Path) -> None:
    scaling = RopeScaling(32.0, 1.0, 4.0, 8192)
    llama3 = {**structs.asdict(scaling), key: "llama3", "something": "new"}
    # "rope_type" is the newer name, which counts.
    for rope_scaling in (llama3, {**llama3, "rope_type": "llama3", "type": "linear"}):
        change(
            model, rope_scaling=rope_scaling, rope_parameters={"rope_theta": 7.0}
        )  # does not count
        config, _ = read_weights(model)
        assert (config.rope_scaling, config.rope_base) == (scaling, 10000.0)
    for none in (None, {}, {key: "default"}):
        change(model, rope_scaling=none)
        assert read_weights(model)[0].rope_scaling is None


def test_a_weight_of_another_shape_is_refused(model: Path) -> None:
    change(model, intermediate_size=72)
    with pytest.raises(UsageError, match=r"gate_proj.weight of \[64, 32\]"):
        read_weights(model)


def test_a_weight_that_the_family_lacks_is_refused(model: Path) -> None:
    extra = {"model.layers.0.self_attn.q_norm.weight": torch.ones(8)}
    write_safetensors(
        model / "model.safetensors", read_safetensors(model / "model.safetensors") | extra
    )
    with pytest.raises(UsageError, match="q_norm"):
        read_weights(model)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_weight_that_is_not_finite_is_refused(model: Path, value: float) -> None:
    path = model / "model.safetensors"
    tensors = read_safetensors(path)
    tensors["model.norm.weight"][0] = value
    write_safetensors(path, tensors)
    with pytest.raises(UsageError, match=r"norm.weight has NaN or infinite values"):
        read_weights(model)


def test_a_tied_head_is_the_embedding(model: Path) -> None:
    change(model, tie_word_embeddings=True)
    weights = read_weights(model)[1]
    assert torch.equal(weights["output.weight"], weights["tok_embeddings.weight"])


def test_llama_3_rope_scaling_changes_only_the_slow_frequencies() -> None:
    """The bands of transformers' _compute_llama3_parameters, for Llama 3.2 1B."""
    scaling = RopeScaling(32.0, 1.0, 4.0, 8192)
    fast, slow = 2 * math.pi / 1000, 2 * math.pi / 10000
    middle = 2 * math.pi / 4096
    assert scaling.scale(fast) == fast
    assert scaling.scale(slow) == slow / 32
    assert scaling.scale(middle) == pytest.approx(middle * (2 / 3 / 32 + 1 / 3))


def test_scores_are_divided_by_the_root_of_the_size_of_a_head() -> None:
    """The size may differ from the width of the decoder divided by the number of heads."""
    config = structs.replace(CONFIG, dim=8, heads=3, kv_heads=1, head_dim=16)
    torch.manual_seed(2)
    attention, x = Attention(config), torch.randn(1, 5, 8)
    turns = torch.ones(5, 8), torch.zeros(5, 8)
    past = torch.zeros(1, 1, 16, 0), torch.zeros(1, 1, 0, 16)
    with torch.no_grad():
        mixed_output, k, v = attention(x, turns, torch.zeros(1, 1, 5, 5), past)
        q = attention.wq(x).view(1, 5, 3, 16).transpose(1, 2)
        keys, values = (part.expand(1, 3, 5, 16) for part in (k.transpose(2, 3), v))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, keys, values)
        torch.testing.assert_close(
            mixed_output, attention.wo(mixed.transpose(1, 2).reshape(1, 5, -1))
        )
