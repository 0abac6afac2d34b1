"""A Llama with static shapes and with the same interface as ExecuTorch's static Llama for QNN
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

from ci.llm.config import DecoderConfig


class Attention(nn.Module):
    """Attention of new tokens to a cache and to each other. Each key head serves a group of
    query heads."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        keys = config.kv_heads * config.head_dim
        self.wq = nn.Linear(config.dim, config.heads * config.head_dim, bias=False)
        self.wk = nn.Linear(config.dim, keys, bias=False)
        self.wv = nn.Linear(config.dim, keys, bias=False)
        self.wo = nn.Linear(config.heads * config.head_dim, config.dim, bias=False)

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        one, count = self.config, x.shape[1]

        def split(made: Tensor, heads: int) -> Tensor:
            return made.view(1, count, heads, one.head_dim).transpose(1, 2)

        q = rotate(split(self.wq(x), one.heads), turns)
        k = rotate(split(self.wk(x), one.kv_heads), turns).transpose(2, 3)
        v = split(self.wv(x), one.kv_heads)
        keys = repeat_heads(torch.cat([past[0], k], dim=-1), one.heads // one.kv_heads)
        values = repeat_heads(torch.cat([past[1], v], dim=2), one.heads // one.kv_heads)
        scores = q @ keys / math.sqrt(one.head_dim) + mask
        mixed = torch.softmax(scores, dim=-1) @ values
        return self.wo(mixed.transpose(1, 2).reshape(1, count, -1)), k, v


class FeedForward(nn.Module):
    """A SwiGLU feed-forward layer."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.hidden, bias=False)
        self.w2 = nn.Linear(config.hidden, config.dim, bias=False)
        self.w3 = nn.Linear(config.dim, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.ffn_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)


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
        angles = torch.outer(torch.arange(context).double(), torch.tensor(config.frequencies()))
        self.register_buffer("freqs_cos", angles.cos().float(), persistent=False)
        self.register_buffer("freqs_sin", angles.sin().float(), persistent=False)

    def forward(
        self, tokens: Tensor, mask: Tensor, positions: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        turns = self.freqs_cos[positions][0], self.freqs_sin[positions][0]
        count = len(self.layers)
        x = self.tok_embeddings(tokens)
        keys, values = [], []
        for layer, past in zip(
            self.layers, zip(caches[:count], caches[count:], strict=True), strict=True
        ):
            made, k, v = layer.attention(layer.attention_norm(x), turns, mask, past)
            x = x + made
            x = x + layer.feed_forward(layer.ffn_norm(x))
            keys.append(k)
            values.append(v)
        return self.output(self.norm(x)), *keys, *values


def rotate(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Apply RoPE to pairs that consist of a value from each half of a head, as Hugging Face's
    weights require."""
    cosine, sine = (one[None, None] for one in turns)
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """Repeat each key or value head for its group of query heads. In a quantized model,
    repeat_interleave would stay on the CPU."""
    if times == 1:
        return x
    _, heads, *rest = x.shape
    return x[:, :, None].expand(1, heads, times, *rest).reshape(1, heads * times, *rest)


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
