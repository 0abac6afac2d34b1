"""Trains the decoder ``tiny`` in seconds: ``python -m tests.stand_ins.tiny_decoder DIRECTORY``.

In an untrained decoder, the two best logits of a step are closer together than the quantization
noise, so no run could be rejected by its tokens. This decoder learns three sentences by heart. It
has 20,000 parameters, grouped heads, a separate output layer, and a token for the end of a text.
Noise on the logits during training widens the margins. Seeds are fixed, but the last bits of the
weights differ between processors.
"""

from __future__ import annotations

import string
import struct
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ci.llm.config import DecoderConfig
from ci.llm.decoder import Decoder
from ci.llm.families import HEADER, OF_LAYER
from ci.llm.interface import MASKED
from ci.models.numerics import fix_numerics

SENTENCES = (
    "Ann has a red kite. The kite flies high.",
    "Ben has a blue boat. The boat sails far.",
    "Tom has a green frog. The frog jumps up.",
)
PIECES = ("<unk>", "<s>", "</s>", " ", ".", *string.ascii_uppercase, *string.ascii_lowercase)
BOS, EOS = 1, 2
CONFIG = DecoderConfig(
    dim=32,
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=2,
    vocabulary=len(PIECES),
    most_context=64,
    head_dim=8,
    tied=False,
)
STEPS, RATE, DECAY, NOISE = 300, 5e-3, 0.05, 0.3


def list_ids(sentence: str) -> list[int]:
    """Return BOS, the space that llama2.c adds before a text, the characters, and EOS."""
    return [BOS, *(PIECES.index(character) for character in f" {sentence}"), EOS]


def train(config: DecoderConfig = CONFIG) -> Decoder:
    """Return a decoder that knows the sentences by heart."""
    fix_numerics()
    torch.manual_seed(0)
    decoder = Decoder(config, 64)
    for parameter in decoder.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    rows = [torch.tensor(list_ids(sentence)) for sentence in SENTENCES]
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses = [measure_loss(decoder, row) for row in rows]
        torch.stack(losses).sum().backward()
        optimizer.step()
        schedule.step()
    return decoder.eval()


def measure_loss(decoder: Decoder, row: Tensor) -> Tensor:
    """Return the cross entropy of a sentence with noise on the logits."""
    count, config = len(row) - 1, decoder.config
    shapes = [(config.head_dim, 0)] * config.layers + [(0, config.head_dim)] * config.layers
    empty = [torch.zeros((1, config.kv_heads, *shape)) for shape in shapes]
    positions = torch.arange(count, dtype=torch.int32)[None]
    mask = torch.full((count, count), MASKED).triu(1)[None, None]
    logits = decoder(row[None, :-1].int(), mask, positions, *empty)[0][0]
    return functional.cross_entropy(logits + NOISE * torch.randn_like(logits), row[1:])


def write_weights(decoder: Decoder, path: Path) -> None:
    """Write the weights in the first version of llama2.c's format, which is for RoPE on adjacent
    pairs. In its header, a negative vocabulary size means that the output layer is separate."""
    config, weights = CONFIG, decoder.state_dict()
    parts = [weights["tok_embeddings.weight"]]
    for name in OF_LAYER:
        for number in range(config.layers):
            weight = weights[f"layers.{number}.{name}.weight"]
            if name.endswith((".wq", ".wk")):
                halves = weight.view(-1, 2, config.head_dim // 2, config.dim)
                weight = halves.transpose(1, 2).reshape(weight.shape)
            parts.append(weight)
    unused = torch.zeros(config.most_context * config.head_dim)
    parts += [weights["norm.weight"], unused, weights["output.weight"]]
    header = HEADER.pack(
        config.dim,
        config.hidden,
        config.layers,
        config.heads,
        config.kv_heads,
        -config.vocabulary,
        config.most_context,
    )
    path.write_bytes(header + b"".join(part.numpy().astype("<f4").tobytes() for part in parts))


def write_tokenizer(path: Path) -> None:
    """Write the tokenizer in llama2.c's format. It has only single characters, which are never
    merged."""
    rows = (struct.pack("<fi", 0.0, len(piece)) + piece.encode() for piece in PIECES)
    path.write_bytes(struct.pack("<i", max(map(len, PIECES))) + b"".join(rows))


def main() -> None:
    directory = Path(sys.argv[1])
    write_weights(train(), directory / "weights.bin")
    write_tokenizer(directory / "tokenizer.bin")


if __name__ == "__main__":
    main()
