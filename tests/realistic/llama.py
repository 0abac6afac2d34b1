"""One decode step of a Llama as llama2.c has it, with the new keys and values as outputs.

With QNN_CI_STORIES260K, the directory that holds stories260K.bin, the weights are those of that
model of 260 thousand parameters; without it they are drawn. The format of the file: seven int32
(width, hidden, layers, heads, groups, vocabulary, longest), then float32 in the order of `read`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.realistic.vision import Inputs, Made

DIRECTORY = "QNN_CI_STORIES260K"
CONTEXT, MASKED = 64, -100.0
STEPS = (1, 8, 20, 40, 5, 13, 30, 55)  # tokens that are in the caches, by sample
BEGIN = 1


class Shape(NamedTuple):
    width: int = 64
    hidden: int = 172
    layers: int = 5
    heads: int = 8
    groups: int = 4
    vocabulary: int = 512

    @property
    def head(self) -> int:
        return self.width // self.heads


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        inner = shape.groups * shape.head
        self.norm = nn.Parameter(torch.ones(shape.width))
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key = nn.Linear(shape.width, inner, bias=False)
        self.value = nn.Linear(shape.width, inner, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.norm_feed = nn.Parameter(torch.ones(shape.width))
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)

    def forward(
        self, x: Tensor, angles: Tensor, mask: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.shape
        normed = normalize(x, self.norm)
        query = rotate(self.query(normed).view(1, shape.heads, shape.head), angles)
        key = rotate(self.key(normed).view(1, shape.groups, shape.head), angles)
        value = self.value(normed).view(1, shape.groups, shape.head)
        key, value = key.transpose(0, 1)[None], value.transpose(0, 1)[None]  # [1, groups, 1, head]
        every_key, every_value = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        grouped = query.view(1, shape.groups, shape.heads // shape.groups, shape.head)
        scores = grouped @ every_key.transpose(-1, -2) * shape.head**-0.5
        scores = scores + mask
        mixed = torch.softmax(scores, -1) @ every_value
        x = x + self.out(mixed.reshape(1, shape.width))
        normed = normalize(x, self.norm_feed)
        x = x + self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return x, key, value


def normalize(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight, 1e-5)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of the halves of [1, heads, head] by [2, head / 2]."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles[0], angles[1]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def halve(weight: Tensor, head: int) -> None:
    """Reorder what llama2.c rotates in adjacent pairs for a rotation of halves: the product of
    queries and keys is the same."""
    rows = weight.data.view(-1, head // 2, 2, weight.shape[-1])
    weight.data.copy_(rows.transpose(1, 2).reshape(weight.shape).clone())


class Llama(nn.Module):
    """The new keys of all layers leave as one tensor."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))

    def forward(
        self, token: Tensor, angles: Tensor, mask: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, ...]:
        """token int32 [1]; angles [2, head / 2]; mask [1, 1, 1, CONTEXT + 1]; keys, values
        [layers, 1, groups, CONTEXT, head] -> logits [1, vocabulary], new keys, new values."""
        x = self.embedding(token)
        new_keys, new_values = [], []
        for number, block in enumerate(self.blocks):
            x, key, value = block(x, angles, mask, keys[number], values[number])
            new_keys.append(key)
            new_values.append(value)
        logits = functional.linear(normalize(x, self.norm), self.embedding.weight)
        return logits, torch.stack(new_keys), *new_values


def stories() -> Made:
    """Return the model and its samples."""
    torch.manual_seed(0)
    directory = os.environ.get(DIRECTORY)
    model = Llama(Shape()).eval()
    if directory:
        read(Path(directory, "stories260K.bin"), model)
    else:
        spread(model)
    sets = draw(model)
    return model, sets[0], tuple(sets[1:])


def read(file: Path, model: Llama) -> None:
    """Fill a model with the weights of a file in llama2.c's format."""
    width, hidden, layers, heads, groups, vocabulary, _ = map(int, np.fromfile(file, "<i4", 7))
    if Shape(width, hidden, layers, heads, groups, vocabulary) != model.shape:
        raise ValueError(f"{file} is another model")
    weights, start = np.fromfile(file, "<f4", offset=28), 0

    def fill(*targets: Tensor) -> None:
        nonlocal start
        for target in targets:
            part = weights[start : start + target.numel()].copy()
            target.data.copy_(torch.from_numpy(part).view(target.shape))
            start += target.numel()

    blocks: list[Block] = list(model.blocks)  # type: ignore[arg-type]
    fill(model.embedding.weight)
    fill(*(block.norm for block in blocks))
    fill(*(block.query.weight for block in blocks))
    fill(*(block.key.weight for block in blocks))
    fill(*(block.value.weight for block in blocks))
    fill(*(block.out.weight for block in blocks))
    fill(*(block.norm_feed for block in blocks))
    fill(*(block.gate.weight for block in blocks))
    fill(*(block.down.weight for block in blocks))
    fill(*(block.up.weight for block in blocks))
    fill(model.norm)
    for block in blocks:
        halve(block.query.weight, model.shape.head)
        halve(block.key.weight, model.shape.head)


def spread(model: Llama) -> None:
    """Give drawn weights the sizes that trained ones have."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=1.5 * parameter.shape[-1] ** -0.5)


def draw(model: Llama) -> list[Inputs]:
    """Let the model write a story, and take some of its steps as samples."""
    shape = model.shape
    keys = torch.zeros(shape.layers, 1, shape.groups, CONTEXT, shape.head)
    values = torch.zeros_like(keys)
    token, samples = BEGIN, {}
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for step in range(max(STEPS) + 1):
            turns = step / 10000 ** (torch.arange(0, shape.head, 2) / shape.head)
            mask = torch.full((1, 1, 1, CONTEXT + 1), MASKED)
            mask[..., :step] = 0.0
            mask[..., -1] = 0.0
            tokens = torch.tensor([token], dtype=torch.int32)
            angles = torch.stack([turns.cos(), turns.sin()])
            samples[step] = (tokens, angles, mask, keys.clone(), values.clone())
            logits, new_keys, *new_values = model(*samples[step])
            keys[:, :, :, step] = new_keys[:, :, :, 0]
            values[:, :, :, step] = torch.stack(new_values)[:, :, :, 0]
            greedy = os.environ.get(DIRECTORY)
            odds = torch.softmax(logits[0], 0)
            drawn = torch.multinomial(odds, 1, generator=generator)
            token = int(logits.argmax()) if greedy else int(drawn)
    return [samples[step] for step in STEPS]
