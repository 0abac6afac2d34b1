"""A decoder with static shapes and with the same interface as ExecuTorch's static Llama for QNN
(examples/qualcomm/oss_scripts/llama/model/static_llama.py).

ExecuTorch's wheel contains that Llama, but importing it needs transformers, torchtune and tabulate,
which the wheel does not require. This module therefore defines the same graph: RoPE on halves
instead of adjacent pairs, grouped heads with ``expand``, new keys and values as separate outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from ci.llm.config import DecoderConfig, Rope

Turns = tuple[Tensor, Tensor]  # the cosine and the sine for each position and pair


class Attention(nn.Module):
    """Attention of new tokens to a cache and to each other. Each key head serves a group of
    query heads."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        sizes = {"wq": (config.dim, queries), "wk": (config.dim, keys), "wv": (config.dim, keys)}
        for name, size in (sizes | {"wo": (queries, config.dim)}).items():
            self.add_module(name, nn.Linear(*size, bias=name in config.biases))
        if config.query_key_norm:
            self.q_norm_fn = nn.RMSNorm(config.head_dim, eps=config.norm_eps)
            self.k_norm_fn = nn.RMSNorm(config.head_dim, eps=config.norm_eps)

    def forward(
        self, x: Tensor, turns: Turns | None, mask: Tensor, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the result [1, n, dim] for ``x`` of the same shape, and the new keys [1, kv heads,
        head dim, n] and values [1, kv heads, n, head dim]. ``past`` has the cached ones."""
        config, count = self.config, x.shape[1]

        def split(projected: Tensor, heads: int, norm: nn.Module | None = None) -> Tensor:
            if norm:  # of rank 3: QNN's RMS norm of rank 4 is wrong for some sizes of heads
                projected = norm(projected.reshape(1, count * heads, config.head_dim))
            return projected.view(1, count, heads, config.head_dim).transpose(1, 2)

        q_norm, k_norm = (self.q_norm_fn, self.k_norm_fn) if config.query_key_norm else (None, None)
        q = rotate(split(self.wq(x), config.heads, q_norm), turns)
        k = rotate(split(self.wk(x), config.kv_heads, k_norm), turns).transpose(2, 3)
        v = split(self.wv(x), config.kv_heads)
        keys = repeat_heads(torch.cat([past[0], k], dim=-1), config.heads // config.kv_heads)
        values = repeat_heads(torch.cat([past[1], v], dim=2), config.heads // config.kv_heads)
        scores = cap(q @ keys / math.sqrt(config.head_dim), config.score_cap) + mask
        mixed = torch.softmax(scores, dim=-1) @ values
        return self.wo(mixed.transpose(1, 2).reshape(1, count, -1)), k, v


class FeedForward(nn.Module):
    """A feed-forward layer with a gate: SwiGLU, or GeGLU with the tanh form of GELU."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gelu = config.gelu
        self.w1 = nn.Linear(config.dim, config.hidden, bias=False)
        self.w2 = nn.Linear(config.hidden, config.dim, bias=False)
        self.w3 = nn.Linear(config.dim, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the result [1, n, dim] for ``x`` of the same shape."""
        gate = self.w1(x)
        activated = (
            functional.gelu(gate, approximate="tanh") if self.gelu else functional.silu(gate)
        )
        return self.w2(activated * self.w3(x))


class Layer(nn.Module):
    """A layer of a decoder: attention, then a feed-forward network, each with its norms."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.ffn_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        kind = nn.RMSNorm if config.post_norms else nn.Identity
        self.post_attention_norm = kind(config.dim, eps=config.norm_eps)
        self.post_ffn_norm = kind(config.dim, eps=config.norm_eps)


class Decoder(nn.Module):
    """A decoder. Its inputs are:

    - tokens, int32 [1, n]
    - a mask [1, 1, n, context], in which 0 means attend
    - positions, int32 [1, n]
    - the keys of each layer, [1, kv heads, head dim, context - n]
    - the values of each layer, [1, kv heads, context - n, head dim]

    Its outputs are logits [1, n, vocabulary], followed by the new keys and values of each layer,
    with n instead of context - n.
    """

    def __init__(self, config: DecoderConfig, context: int) -> None:
        super().__init__()
        self.config = config
        self.tok_embeddings = nn.Embedding(config.vocabulary, config.dim)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocabulary, bias=False)
        ropes = [config.rope(number) for number in range(config.layers)]
        # Layers with the same angles share their tables.
        suffixes: dict[Rope, str] = {}
        for rope in ropes:
            if rope.frequencies and rope not in suffixes:
                suffixes[rope] = str(len(suffixes) or "")
        self.tables = [suffixes.get(rope) for rope in ropes]
        for rope, suffix in suffixes.items():
            places = torch.arange(context).double()
            angles = torch.outer(places, torch.tensor(rope.frequencies))
            for name, table in (("cos", angles.cos()), ("sin", angles.sin())):
                scaled_table = (rope.gain * table).float()
                self.register_buffer(f"freqs_{name}{suffix}", scaled_table, persistent=False)

    def forward(
        self, tokens: Tensor, mask: Tensor, positions: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the logits, then the new keys and values of each layer, see the class."""
        turns: dict[str | None, Turns] = {
            suffix: (
                self.get_buffer(f"freqs_cos{suffix}")[positions][0],
                self.get_buffer(f"freqs_sin{suffix}")[positions][0],
            )
            for suffix in dict.fromkeys(self.tables)
            if suffix is not None
        }
        count = len(self.layers)
        x = self.tok_embeddings(tokens)
        keys, values = [], []
        for layer, suffix, past in zip(
            self.layers, self.tables, zip(caches[:count], caches[count:], strict=True), strict=True
        ):
            attended, k, v = layer.attention(layer.attention_norm(x), turns.get(suffix), mask, past)
            x = x + layer.post_attention_norm(attended)
            x = x + layer.post_ffn_norm(layer.feed_forward(layer.ffn_norm(x)))
            keys.append(k)
            values.append(v)
        # One output per layer, as upstream: with the keys of stories260k in one torch.stack, the
        # logits had 40.4 dB in 16a8w instead of 60.8 dB.
        return cap(self.output(self.norm(x)), self.config.logit_cap), *keys, *values


def rotate(x: Tensor, turns: Turns | None) -> Tensor:
    """Apply RoPE to pairs that consist of a value from each half of the rotated values, as Hugging
    Face's weights require. The rotated values are the first ones of a head."""
    if turns is None:
        return x
    cosine, sine = (turn[None, None] for turn in turns)
    half = cosine.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    parts = [first * cosine - second * sine, first * sine + second * cosine]
    if 2 * half < x.shape[-1]:
        parts.append(x[..., 2 * half :])
    return torch.cat(parts, dim=-1)


def cap(x: Tensor, most: float | None) -> Tensor:
    """Limit values to below ``most`` with tanh, or return them unchanged without ``most``."""
    return x if most is None else most * torch.tanh(x / most)


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """Repeat each key or value head for its group of query heads. In a quantized model,
    repeat_interleave would stay on the CPU."""
    if times == 1:
        return x
    _, heads, *sizes = x.shape
    return x[:, :, None].expand(1, heads, times, *sizes).reshape(1, heads * times, *sizes)


def pair_to_half(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a query or key weight for ``rotate``, which pairs values of the two
    halves of a head. The weights of Meta and llama2.c are for pairs of adjacent values."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def make_decoder(config: DecoderConfig, weights: Mapping[str, Tensor], context: int) -> Decoder:
    """Return a decoder in eval mode with ``weights``, which are named as in static_llama.py."""
    decoder = Decoder(config, context)
    decoder.load_state_dict(dict(weights), strict=True)
    return decoder.eval()
