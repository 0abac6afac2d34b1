"""Converts the decoder ``tiny`` with litert-torch's generative API, in about a minute:
``python -m tests.stand_ins.tiny_bundle DIRECTORY [WEIGHTS TOKENIZER]``, in the environment of the
group test-litert. It wrote tests/artifacts/litert_lm.

The embedder, the auxiliary graphs and the decoder become separate models, as for an NPU. Other
weights and their tokenizer, both of llama2.c, may be converted instead.
"""

from __future__ import annotations

import importlib.machinery
import shutil
import struct
import sys
from pathlib import Path
from types import ModuleType

from sentencepiece import sentencepiece_model_pb2 as sentencepiece
from torch import Tensor

from ci.llm import tiny
from ci.llm.config import DecoderConfig
from ci.llm.weights import read_weights

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # types of pieces
LAYER_NAMES = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
NAMES = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
INT8 = "dynamic_wi8_afp32"


def name_weight(name: str) -> str:
    """Return the name that transformers has for a weight of a Llama."""
    if name in NAMES:
        return NAMES[name]
    _, number, part = name.split(".", 2)
    return f"model.layers.{number}.{LAYER_NAMES[part.removesuffix('.weight')]}.weight"


def write_model(config: DecoderConfig, weights: dict[str, Tensor], place: Path) -> None:
    """Write weights as a model of transformers."""
    import transformers

    described = transformers.LlamaConfig(
        vocab_size=config.vocabulary,
        hidden_size=config.dim,
        intermediate_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.most_context,
        rms_norm_eps=config.norm_eps,
        rope_theta=config.rope_base,
        tie_word_embeddings=config.tied,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = transformers.LlamaForCausalLM(described)
    model.load_state_dict({name_weight(name): tensor for name, tensor in weights.items()})
    model.save_pretrained(place)


def write_tokenizer(source: Path, target: Path) -> None:
    """Write a tokenizer of llama2.c, which once was one of sentencepiece, as sentencepiece does."""
    data, start = source.read_bytes(), 4
    model = sentencepiece.ModelProto()
    special = {0: ("<unk>", UNKNOWN), 1: ("<s>", CONTROL), 2: ("</s>", CONTROL)}
    while start < len(data):
        score, length = struct.unpack_from("<fi", data, start)
        start += 8 + length
        text = data[start - length : start].decode()
        kind = BYTE if text.startswith("<0x") else NORMAL
        text, kind = special.get(len(model.pieces), (text.replace(" ", "\u2581"), kind))
        model.pieces.add(piece=text, score=score, type=kind)
    trainer = model.trainer_spec
    trainer.model_type, trainer.vocab_size = trainer.BPE, len(model.pieces)
    trainer.byte_fallback = any(piece.type == BYTE for piece in model.pieces)
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = 0, 1, 2, -1
    normalizer = model.normalizer_spec
    normalizer.add_dummy_prefix, normalizer.escape_whitespaces = True, True
    normalizer.remove_extra_whitespaces = False
    target.write_bytes(model.SerializeToString())


def replace_tensorflow() -> None:
    """Let litert-torch 0.10.0 be imported without TensorFlow: its image models import the schema
    from there, which ai-edge-litert has, too."""
    from ai_edge_litert import schema_py_generated

    for name in ("tensorflow", "tensorflow.lite", "tensorflow.lite.python"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    module = sys.modules["tensorflow.lite.python"]
    module.schema_py_generated = schema_py_generated  # type: ignore[attr-defined]
    sys.modules["tensorflow.lite.python.schema_py_generated"] = schema_py_generated


def convert(source: Path, target: Path, *, chunk: int, context: int, recipe: str) -> None:
    """Convert a model of transformers to .tflite files in ``target``, in float without a
    ``recipe``."""
    replace_tensorflow()
    from litert_torch.generative.export_hf import export

    export.export(
        model=str(source),
        output_dir=str(target),
        prefill_lengths=[chunk],
        cache_length=context,
        quantization_recipe=recipe,
        externalize_embedder=True,
        split_cache=True,
        use_jinja_template=False,
        tokenizer_path_override=str(source / "tokenizer.model"),
        keep_temporary_files=True,
    )


def main() -> None:
    """Write the models of a decoder in float, and the decoder in int8."""
    directory = Path(sys.argv[1])
    place = Path(tiny.__file__).parent
    weights, tokenizer = place / "weights.bin", place / "tokenizer.bin"
    if len(sys.argv) > 2:
        weights, tokenizer = map(Path, sys.argv[2:4])
    chunk, context = (8, 64) if len(sys.argv) == 2 else (16, 128)
    source = directory / "transformers"
    write_model(*read_weights(weights), source)
    write_tokenizer(tokenizer, source / "tokenizer.model")
    for recipe in ("", INT8):
        convert(
            source, directory / (recipe or "float"), chunk=chunk, context=context, recipe=recipe
        )
    shutil.copy(source / "tokenizer.model", directory)
    for name in ("model", "embedder", "auxiliary"):
        target = "decoder" if name == "model" else name
        shutil.copy(directory / "float" / f"{name}.tflite", directory / f"{target}.tflite")
    shutil.copy(directory / INT8 / "model_quantized.tflite", directory / "decoder_int8.tflite")


if __name__ == "__main__":
    main()
