"""The decoders of Hugging Face that can be read: their config.json, the names of their weights, and
what distinguishes them from a Llama."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from ci.llm.config import DecoderConfig, Factor, Positive, RopeFactors, RopeScaling
from provisioning.documents import DocumentError, decoding, open_regular, read_json
from provisioning.errors import UsageError

if TYPE_CHECKING:  # reading a config.json takes half a second, importing torch two
    from torch import Tensor

Scaling = RopeScaling | RopeFactors | None
CONFIG = "config.json"
FORMS = f"a .bin file of llama2.c, or a Hugging Face directory with {CONFIG} and safetensors"
# Hugging Face's name for each weight of a layer.
OF_LAYER = {
    "attention_norm": "input_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}
SILU = ("silu", "swish", None)
GELU = ("gelu_pytorch_tanh", "gelu", None)  # Gemma means the tanh form by either name


class Family(Struct, frozen=True):
    """How the models of a Hugging Face ``model_type`` differ from a Llama in what config.json does
    not state: defaults, factors, and the names of weights. The source is modeling_TYPE.py and
    configuration_TYPE.py in transformers."""

    activations: tuple[str | None, ...] = SILU  # the names of the only one that is supported
    tied: bool = False
    norm_eps: float = 1e-6
    rope_base: float = 10000.0
    head_dim: int | None = None
    biases: tuple[str, ...] = ()
    norm_offset: float = 0.0  # norms multiply by this plus their weight
    scaled_embedding: bool = False  # embeddings are multiplied by the root of their size
    query_key_norm: bool = False
    post_norms: bool = False
    fused: bool = False  # queries, keys and values are one weight, gate and factor another
    partly_rotated: bool = False  # partial_rotary_factor may be below 1
    sliding_pattern: int | None = None  # each layer with this period sees everything
    windowed: bool = True  # a ``sliding_window`` counts, also without ``use_sliding_window``
    unrotated_interval: int | None = None


QKV = ("wq", "wk", "wv")
GEMMA = Family(activations=GELU, tied=True, norm_offset=1, scaled_embedding=True, head_dim=256)
FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(biases=QKV, windowed=False),
    "qwen3": Family(query_key_norm=True, windowed=False, head_dim=128),
    "gemma": GEMMA,
    "gemma2": structs.replace(GEMMA, post_norms=True, sliding_pattern=2),
    "gemma3_text": structs.replace(
        GEMMA, post_norms=True, sliding_pattern=6, query_key_norm=True, rope_base=1e6
    ),
    "smollm3": Family(tied=True, rope_base=2e6, windowed=False, unrotated_interval=4),
    "phi3": Family(fused=True, partly_rotated=True, norm_eps=1e-5),
    "granite": Family(),
}


def find_family(model_type: str) -> Family:
    """Return how models of this type differ from a Llama. Raises UsageError if they are not
    supported here."""
    if model_type not in FAMILIES:
        raise UsageError(
            f"{CONFIG} has model_type {model_type!r}",
            why=f"decoders of these types are supported: {', '.join(FAMILIES)}",
        )
    return FAMILIES[model_type]


class ModelType(Struct, frozen=True):
    """The field of a config.json that decides which other fields it has."""

    model_type: str = ""


class HuggingFaceConfig(Struct, frozen=True):
    """The fields of a config.json that affect what the model computes."""

    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    vocab_size: Positive
    max_position_embeddings: Positive
    model_type: str = ""
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    rms_norm_eps: float | None = None
    rope_theta: float | None = None
    rope_local_base_freq: float = 10000.0
    rope_scaling: dict[str, Any] | None = None  # transformers prefers it to rope_parameters
    # Since transformers 5, instead of the three fields above. Gemma 3 has one by type of layer.
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float = 1.0
    original_max_position_embeddings: Positive | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: str | None = None
    hidden_activation: str | None = None
    use_bidirectional_attention: object = None
    sliding_window: Positive | None = None
    use_sliding_window: bool = False
    layer_types: tuple[str, ...] | None = None
    sliding_window_pattern: Positive | None = None
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: Positive | None = None
    query_pre_attn_scalar: Factor | None = None
    attn_logit_softcapping: Factor | None = None
    final_logit_softcapping: Factor | None = None
    embedding_multiplier: Factor = 1.0
    attention_multiplier: Factor | None = None
    residual_multiplier: Factor = 1.0
    logits_scaling: Factor = 1.0

    @property
    def family(self) -> Family:
        """Raises UsageError for a model_type that is not supported here."""
        return find_family(self.model_type)

    @property
    def size_of_head(self) -> int:
        """Return the number of elements of a head: its own, the family's, or an equal share."""
        return self.head_dim or self.family.head_dim or self.hidden_size // self.num_attention_heads

    def convert(self) -> DecoderConfig:
        """Return the dimensions. Raises UsageError for features that are not supported here."""
        family = self.family
        act = self.hidden_activation or self.hidden_act
        if act not in family.activations:
            raise UsageError(
                f"{CONFIG} has hidden_act {act!r}",
                why=f"the activation of a {self.model_type} must be {family.activations[0]!r}",
            )
        for name in ("layer_types", "no_rope_layers"):
            listed = getattr(self, name)
            if listed is not None and len(listed) != self.num_hidden_layers:
                text = f"{CONFIG} has {len(listed)} {name} for {self.num_hidden_layers} layers"
                raise UsageError(text, why="they must be as many")
        if self.mlp_bias:
            raise UsageError(f"{CONFIG} has mlp_bias", why="such layers are not supported")
        if self.use_bidirectional_attention:
            text = f"{CONFIG} has use_bidirectional_attention"
            raise UsageError(text, why="such a model computes embeddings and generates no text")
        base, scaling, rotated, local = self.read_rope()
        most = self.max_position_embeddings
        is_windowed = family.windowed or self.use_sliding_window  # distant tokens are hidden
        # Within its window, such a model sees everything.
        if is_windowed and self.sliding_window:
            most = min(most, self.sliding_window)
        # longrope has its short factors up to the length of the original training.
        if isinstance(scaling, RopeFactors) and self.original_max_position_embeddings:
            most = min(most, self.original_max_position_embeddings)
        return DecoderConfig(
            dim=self.hidden_size,
            hidden=self.intermediate_size,
            layers=self.num_hidden_layers,
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads or self.num_attention_heads,
            vocabulary=self.vocab_size,
            most_context=most,
            head_dim=self.size_of_head,
            norm_eps=family.norm_eps if self.rms_norm_eps is None else self.rms_norm_eps,
            rope_base=base,
            rope_scaling=scaling,
            tied=family.tied if self.tie_word_embeddings is None else self.tie_word_embeddings,
            rotated=rotated,
            unrotated=self.list_unrotated(),
            local=self.list_sliding() if self.model_type == "gemma3_text" else (),
            local_rope_base=local,
            biases=(*QKV, "wo") if self.attention_bias else family.biases,
            query_key_norm=family.query_key_norm,
            post_norms=family.post_norms,
            gelu=family.activations is GELU,
            score_cap=self.attn_logit_softcapping,
            logit_cap=self.final_logit_softcapping,
        )

    def read_rope(self) -> tuple[float, Scaling, int | None, float]:
        """Return RoPE's base, its scaling, the number of rotated values (None for all of a head),
        and the base of layers with a sliding window."""
        fields = dict(self.rope_scaling or self.rope_parameters or {})
        sliding, full = fields.get("sliding_attention"), fields.get("full_attention")
        fields = full if isinstance(full, dict) else fields
        base = fields.get("rope_theta", self.rope_theta) or self.family.rope_base
        share = fields.get("partial_rotary_factor", self.partial_rotary_factor)
        local = self.rope_local_base_freq
        if isinstance(sliding, dict):
            local = sliding.get("rope_theta", local)
        numbers = {"rope_theta": base, "partial_rotary_factor": share, "sliding rope_theta": local}
        for name, number in numbers.items():
            if not isinstance(number, (int, float)) or number <= 0:
                raise UsageError(f"{CONFIG} has {name} {number!r}", why="it must be above 0")
        if share != 1 and not self.family.partly_rotated:
            raise UsageError(
                f"{CONFIG} has partial_rotary_factor {share}",
                why=f"a {self.model_type} rotates each head as a whole",
            )
        rotated = int(self.size_of_head * share)
        scaling = self.parse_scaling(fields, rotated)
        return float(base), scaling, None if share == 1 else rotated, float(local)

    def list_sliding(self) -> tuple[int, ...]:
        """Return the layers that see only the last tokens, within the sliding window."""
        if self.layer_types is not None:
            kinds = enumerate(self.layer_types)
            return tuple(layer for layer, kind in kinds if kind == "sliding_attention")
        layers = range(self.num_hidden_layers)
        period = self.sliding_window_pattern or self.family.sliding_pattern
        return tuple(layer for layer in layers if period and (layer + 1) % period)

    def list_unrotated(self) -> tuple[int, ...]:
        """Return the layers without RoPE."""
        if not self.family.unrotated_interval:
            return ()
        if self.no_rope_layers is not None:
            return tuple(layer for layer, turns in enumerate(self.no_rope_layers) if not turns)
        period = self.no_rope_layer_interval or self.family.unrotated_interval
        return tuple(range(period - 1, self.num_hidden_layers, period))

    def parse_scaling(self, fields_of_file: Mapping[str, Any], rotated: int) -> Scaling:
        """Return the scaling, or None if there is none. Raises UsageError for an unknown kind."""
        kind = fields_of_file.get("rope_type", fields_of_file.get("type"))
        try:
            if kind == "default" or not {*fields_of_file} - {"rope_theta", "partial_rotary_factor"}:
                return None
            if kind == "llama3":
                scaling_fields = {
                    name: fields_of_file[name]
                    for name in RopeScaling.__struct_fields__
                    if name in fields_of_file
                }
                return msgspec.convert(scaling_fields, RopeScaling)
            fields = msgspec.convert(fields_of_file, FactorFields)
            if kind == "linear" and fields.factor:
                return RopeFactors((fields.factor,) * (rotated // 2))
            if kind == "longrope" and len(fields.short_factor) == rotated // 2:
                return RopeFactors(fields.short_factor, self.find_gain(fields))
        except (msgspec.ValidationError, ArithmeticError, ValueError) as error:
            raise UsageError(f"{CONFIG}: rope_scaling: {error}") from error
        raise UsageError(
            f"{CONFIG} has rope_scaling {kind!r}",
            why="only complete llama3, linear and longrope are supported",
        )

    def find_gain(self, factors: FactorFields) -> float:
        """Return the factor for sine and cosine of longrope (see _compute_longrope_parameters in
        transformers)."""
        if factors.attention_factor is not None:
            return factors.attention_factor
        trained = self.original_max_position_embeddings or factors.original_max_position_embeddings
        if trained is None:
            raise ValueError("original_max_position_embeddings is missing")
        ratio = factors.factor or self.max_position_embeddings / trained
        return math.sqrt(1 + math.log(ratio) / math.log(trained)) if ratio > 1 else 1.0

    def list_names(self) -> dict[str, str]:
        """Return Hugging Face's name of each weight, by its name in ci.llm.decoder."""
        family, of_layer = self.family, dict(OF_LAYER)
        if family.post_norms:
            of_layer |= {
                "post_attention_norm": "post_attention_layernorm",
                "ffn_norm": "pre_feedforward_layernorm",
                "post_ffn_norm": "post_feedforward_layernorm",
            }
        if family.query_key_norm:
            of_layer |= {
                "attention.q_norm_fn": "self_attn.q_norm",
                "attention.k_norm_fn": "self_attn.k_norm",
            }
        config = self.convert()
        kinds = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in of_layer.items()} | {
            f"attention.{bias}.bias": f"{OF_LAYER[f'attention.{bias}']}.bias"
            for bias in config.biases
        }
        return {
            f"layers.{number}.{ours}": f"model.layers.{number}.{theirs}"
            for number in range(config.layers)
            for ours, theirs in kinds.items()
        } | {
            "tok_embeddings.weight": "model.embed_tokens.weight",
            "norm.weight": "model.norm.weight",
            "output.weight": "model.embed_tokens.weight" if config.tied else "lm_head.weight",
        }

    def split_fused(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return ``tensors`` with Phi's fused weights as separate ones."""
        head = self.size_of_head
        keys = head * (self.num_key_value_heads or self.num_attention_heads)
        cuts = {
            "qkv_proj": ([head * self.num_attention_heads, keys, keys], "q_proj k_proj v_proj"),
            "gate_up_proj": ([self.intermediate_size] * 2, "gate_proj up_proj"),
        }
        weights: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            place, _, kind = name.removesuffix(".weight").rpartition(".")
            if self.family.fused and kind in cuts and tensor.shape[:1] == (sum(cuts[kind][0]),):
                sizes, parts = cuts[kind]
                for part, weight in zip(parts.split(), tensor.split(sizes), strict=True):
                    weights[f"{place}.{part}.weight"] = weight
            else:
                weights[name] = tensor
        return weights

    def factor(self, name: str) -> float:
        """Return the factor by which a weight of ci.llm.decoder exceeds the published one."""
        family, kind = self.family, name.partition(".")[2].partition(".")[2]
        if name == "tok_embeddings.weight":
            scaled = math.sqrt(self.hidden_size) if family.scaled_embedding else 1.0
            return scaled * self.embedding_multiplier
        if name == "output.weight":
            return 1 / self.logits_scaling
        if kind in {"attention.wo.weight", "feed_forward.w2.weight", "attention.wo.bias"}:
            return self.residual_multiplier
        last = "attention.q_norm_fn." if family.query_key_norm else "attention.wq."
        if kind.startswith(last):
            scale = self.attention_multiplier
            if self.query_pre_attn_scalar is not None:
                scale = self.query_pre_attn_scalar**-0.5
            return 1.0 if scale is None else scale * math.sqrt(self.size_of_head)
        return 1.0

    def adapt(self, name: str, tensor: Tensor) -> Tensor:
        """Return a weight as ci.llm.decoder takes it, with the family's factors in it."""
        if "norm" in name:
            tensor = tensor + self.family.norm_offset
        return tensor * self.factor(name)


class FactorFields(Struct, frozen=True):
    """The fields of a rope_scaling of the types linear and longrope."""

    short_factor: tuple[Factor, ...] = ()
    factor: Factor | None = None
    attention_factor: Factor | None = None
    original_max_position_embeddings: Positive | None = None


def require_form(weights: Path) -> None:
    """Raise UsageError for a path that has none of the FORMS of weights, or whose dimensions
    read_config or read_header refuses. This needs no torch."""
    if weights.is_dir():
        read_config(weights / CONFIG)
    elif weights.suffix == ".bin" and weights.is_file():
        read_header(weights)
    else:
        why = f"weights are read from {FORMS}" if weights.exists() else "there is no such file"
        raise UsageError(f"{weights} has no weights", why=why)


HEADER = struct.Struct("<7i")  # dim, hidden, layers, heads, kv heads, vocabulary, longest text


def read_header(path: Path) -> DecoderConfig:
    """Read the dimensions in the header of a file in the first version of llama2.c's format.

    A negative vocabulary size means that the output layer is separate. Raises UsageError if the
    file cannot be read, is shorter than a header, or has a model that is not supported.
    """
    try:
        with decoding(), open_regular(path) as file:
            header = file.read(HEADER.size)
    except DocumentError as error:
        raise UsageError(f"{path} cannot be read", why=str(error)) from error
    if len(header) < HEADER.size:
        raise UsageError(
            f"{path.name} is not a weights file of llama2.c",
            why=f"its size is {len(header)} bytes, but the header alone needs {HEADER.size}",
        )
    dim, hidden, layers, heads, kv_heads, vocabulary, longest = HEADER.unpack(header)
    config = DecoderConfig(
        dim=dim,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        vocabulary=abs(vocabulary),
        most_context=longest,
        head_dim=dim // heads if heads > 0 else 0,
        tied=vocabulary > 0,
    )
    config.require_shape(path.name)
    return config


def read_config(path: Path) -> tuple[HuggingFaceConfig, DecoderConfig]:
    """Read Hugging Face's config.json. Raises UsageError if the file cannot be read, or if its
    model is not supported."""
    try:
        find_family(read_json(path, ModelType).model_type)
        file_config = read_json(path, HuggingFaceConfig)
    except DocumentError as error:
        raise UsageError(f"{path} is not the config.json of a decoder", why=str(error)) from error
    config = file_config.convert()
    config.require_shape(path.name)
    return file_config, config
