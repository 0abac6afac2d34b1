"""Detectors, segmenters and keypoint heads that join parts of unlike ranges, and look-alikes.

Each function in LOST has a part that 8 bits lose, because the parts share a step. ``NAME_apart`` is
the same network, which returns the parts as separate outputs. None of those in RIGHT loses a part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.realistic.vision import Made, block, vary

Joined = Tensor | tuple[Tensor, ...]
WIDTH, SIDE = 24, 8
CELLS = SIDE * SIDE


class Body(nn.Module):
    """Features [1, 24, 8, 8] of a picture, and layers for heads of its cells."""

    def __init__(self, join: Callable[..., Joined], *, apart: bool, **heads: int) -> None:
        super().__init__()
        self.body = nn.Sequential(block(3, 16, 2), block(16, WIDTH, 2))
        self.heads = nn.ModuleDict(
            {name: nn.Conv2d(WIDTH, size, 1) for name, size in heads.items()}
        )
        self.join, self.apart = join, apart
        ys, xs = torch.meshgrid(torch.arange(SIDE) + 0.5, torch.arange(SIDE) + 0.5, indexing="ij")
        self.register_buffer("grid", torch.stack([xs, ys]).reshape(1, 2, CELLS))
        columns = functional.one_hot(torch.arange(CELLS) % SIDE, SIDE).T
        self.register_buffer("columns", columns.reshape(1, SIDE, CELLS).float())
        self.register_buffer("stride", torch.tensor([8.0] * 4 + [1.0] * 4).reshape(1, 8, 1))
        self.register_buffer("is_box", (torch.arange(8) < 4).reshape(1, 8, 1))
        self.register_buffer("known", (torch.arange(6) < 5).float().reshape(1, 6, 1))

    def forward(self, image: Tensor) -> Joined:
        features = self.body(image)
        raw = {name: head(features).flatten(2) for name, head in self.heads.items()}
        return self.join(self, **raw)


def make(join: Callable[..., Joined], *, apart: bool = False, **heads: int) -> Made:
    return vary(Body(join, apart=apart, **heads), (1, 3, 32, 32))


def decode(net: Body, boxes: Tensor) -> Tensor:
    """Corners in pixels, [1, 4, 64]."""
    near, far = boxes.relu().split([2, 2], 1)
    return torch.cat([net.grid - near, net.grid + far], 1) * 8


def yolo(net: Body, boxes: Tensor, scores: Tensor) -> Joined:
    parts = decode(net, boxes), torch.sigmoid(scores - 3)
    return parts if net.apart else torch.cat(parts, 1)


def yolo_scaled(net: Body, boxes: Tensor, scores: Tensor) -> Joined:
    parts = decode(net, boxes) / 8, torch.sigmoid(scores - 3)
    if net.apart:
        return parts[0] * 8, parts[1]
    return torch.cat(parts, 1) * net.stride * 2


def retina(net: Body, boxes: Tensor, scores: Tensor) -> Joined:
    parts = (boxes * 40 + 60).transpose(1, 2), torch.sigmoid(scores - 3).transpose(1, 2)
    return parts if net.apart else torch.cat(parts, -1)


def ssd_flat(net: Body, boxes: Tensor, scores: Tensor) -> Joined:
    """A row of boxes and scores per cell, behind each other in one axis."""
    parts = (boxes * 40 + 60).transpose(1, 2), torch.sigmoid(scores - 3).transpose(1, 2)
    return parts if net.apart else torch.cat(parts, -1).reshape(1, -1)


def ssd_cells(net: Body, boxes: Tensor, scores: Tensor) -> Joined:
    parts = boxes * 40 + 60, torch.sigmoid(scores - 3)
    if net.apart:
        return parts
    return torch.cat(parts, 1).reshape(1, 8, SIDE, SIDE).permute(0, 2, 3, 1)


def distance(net: Body, metres: Tensor, scores: Tensor) -> Joined:
    parts = metres.relu() * 30 + 1, torch.sigmoid(scores - 3)
    return parts if net.apart else torch.stack(parts, -1)


def assigned(net: Body, boxes: Tensor, scores: Tensor) -> Joined:
    parts = boxes * 40 + 60, torch.sigmoid(scores - 3)
    if net.apart:
        return parts
    rows = torch.zeros(1, 8, CELLS)
    rows[:, :4] = parts[0]
    rows[:, 4:] = parts[1]
    return rows


def rescaled(net: Body, raw: Tensor) -> Joined:
    """One layer, whose boxes are scaled in place."""
    rows = torch.sigmoid(raw - 2)
    if net.apart:
        return rows[:, :4] * 200, rows[:, 4:] * 1.0
    rows[:, :4] = rows[:, :4] * 200
    return rows


def split_again(net: Body, raw: Tensor) -> Joined:
    boxes, scores = raw.split([4, 4], 1)
    parts = boxes.sigmoid() * 300, torch.sigmoid(scores - 3)
    return parts if net.apart else torch.cat(parts, 1)


def nested(net: Body, centres: Tensor, sizes: Tensor, scores: Tensor, classes: Tensor) -> Joined:
    centres, sizes = (net.grid + centres.tanh()) * 8, sizes.exp() * 16
    scores, classes = torch.sigmoid(scores * 4 - 3), torch.sigmoid(classes * 2 - 3)
    if net.apart:
        return centres, sizes, scores, classes
    return torch.cat([torch.cat([centres, sizes], 1), torch.cat([scores, classes], 1)], 1)


def offset(net: Body, boxes: Tensor, scores: Tensor) -> Joined:
    """Everything is scaled and shifted behind the concatenation."""
    parts = boxes * 40, torch.tanh(scores) * 0.2
    if net.apart:
        return parts[0] * 2, parts[1] * 2
    return (torch.cat(parts, 1) * 2 + 0.1).transpose(1, 2)


def masked(net: Body, boxes: Tensor, scores: Tensor, valid: Tensor) -> Joined:
    """Cells without an object are cleared, in both parts."""
    parts, is_valid = (boxes * 40 + 60, torch.sigmoid(scores - 3)), torch.sigmoid(valid)
    if net.apart:
        return parts[0] * is_valid, parts[1] * is_valid
    return torch.cat(parts, 1) * is_valid


def chosen(net: Body, raw: Tensor) -> Joined:
    """A constant mask selects which channels are boxes."""
    boxes, scores = raw * 40 + 60, torch.sigmoid(raw - 3)
    if net.apart:
        return boxes[:, :4] * 1.0, scores[:, 4:] * 1.0
    return torch.where(net.is_box, boxes, scores)


def levels(net: Body, boxes: Tensor, scores: Tensor) -> Joined:
    """Two levels of anchors behind each other."""
    rows, coarse = [], []
    for size in (CELLS, 16):
        level = (boxes[..., :size] * 40 + 60, torch.sigmoid(scores[..., :size] - 3))
        rows.append(torch.cat(level, 1))
        coarse += level
    return tuple(coarse) if net.apart else torch.cat(rows, 2)


def keypoints(net: Body, places: Tensor, visible: Tensor) -> Joined:
    """x, y and visibility of 17 joints, in one row of 51."""
    places = places.mean(-1).reshape(1, 17, 2) * 100 + 150
    visible = torch.sigmoid(visible.mean(-1) * 3 - 2).reshape(1, 17, 1)
    return (places, visible) if net.apart else torch.cat([places, visible], -1).reshape(1, 51)


def masks(net: Body, boxes: Tensor, scores: Tensor, weights: Tensor) -> Joined:
    """Boxes, scores and the coefficients of a mask, as for YOLACT."""
    parts = boxes * 100 + 200, torch.sigmoid(scores), torch.tanh(weights) * 0.5
    return parts if net.apart else torch.cat(parts, 1)


def uncertain(net: Body, logits: Tensor, doubt: Tensor) -> Joined:
    """A segmentation at twice the size, with a channel of doubt."""
    logits, doubt = (
        part.reshape(1, -1, SIDE, SIDE) for part in (logits * 20, torch.sigmoid(doubt) * 0.05)
    )
    if net.apart:
        return tuple(functional.interpolate(part, scale_factor=2.0) for part in (logits, doubt))
    return functional.interpolate(torch.cat([logits, doubt], 1), scale_factor=2.0)


def normalized(net: Body, boxes: Tensor, scores: Tensor) -> Joined:
    """Divided by the picture's size, behind the concatenation and a transpose."""
    parts = boxes * 40 + 60, torch.sigmoid(scores - 3)
    if net.apart:
        return parts[0].transpose(1, 2) / 4, parts[1].transpose(1, 2) / 4
    return (torch.cat(parts, 1).transpose(1, 2) / 4).contiguous()


def phase(net: Body, size: Tensor, turn: Tensor) -> Joined:
    """A spectrum as magnitude and phase."""
    parts = torch.exp(size) * 30, torch.tanh(turn) * 0.1
    return parts if net.apart else torch.stack(parts, 1).reshape(1, 2, SIDE, SIDE)


def upright(net: Body, boxes: Tensor, scores: Tensor) -> Joined:
    """Behind a flip and a slice, as after a rotation of the picture."""
    parts = boxes * 40 + 60, torch.sigmoid(scores - 3)
    if net.apart:
        return parts[0][..., ::2], parts[1][..., ::2]
    return torch.cat(parts, 1).reshape(1, 8, SIDE, SIDE).transpose(2, 3)[..., :4]


def one_layer(net: Body, raw: Tensor) -> Joined:
    return (raw[:, :4] * 1.0, raw[:, 4:] * 1.0) if net.apart else raw


def one_class(net: Body, raw: Tensor) -> Joined:
    return raw


def one_angle(net: Body, raw: Tensor) -> Joined:
    return raw.transpose(1, 2)


def shrink(network: Made, name: str, rows: slice, factor: float) -> Made:
    """The same network, in which some rows of a head are smaller."""
    head: Any = network[0].heads[name]
    with torch.no_grad():
        head.weight[rows] *= factor
        head.bias[rows] *= factor
    return network


# By name: how the parts are joined, the channels of the heads, and the lost part's name.
JOINS: dict[str, tuple[Callable[..., Joined], dict[str, int], str]] = {
    "yolo": (yolo, {"boxes": 4, "scores": 4}, "4:8 along axis 1"),
    "yolo_scaled": (yolo_scaled, {"boxes": 4, "scores": 4}, "4:8 along axis 1"),
    "retina": (retina, {"boxes": 4, "scores": 6}, "4:10 along axis 2"),
    "ssd_flat": (ssd_flat, {"boxes": 4, "scores": 4}, "4:512 (4 of every 8) along axis 1"),
    "ssd_cells": (ssd_cells, {"boxes": 4, "scores": 4}, "4:8 along axis 3"),
    "distance": (distance, {"metres": 1, "scores": 1}, "1:2 along axis 3"),
    "assigned": (assigned, {"boxes": 4, "scores": 4}, "4:8 along axis 1"),
    "rescaled": (rescaled, {"raw": 8}, "4:8 along axis 1"),
    "split_again": (split_again, {"raw": 8}, "4:8 along axis 1"),
    "nested": (
        nested,
        {"centres": 2, "sizes": 2, "scores": 1, "classes": 3},
        "4:5 along axis 1",
    ),
    "offset": (offset, {"boxes": 4, "scores": 4}, "4:8 along axis 2"),
    "masked": (masked, {"boxes": 4, "scores": 4, "valid": 1}, "4:8 along axis 1"),
    "chosen": (chosen, {"raw": 8}, "4:8 along axis 1"),
    "levels": (levels, {"boxes": 4, "scores": 4}, "4:8 along axis 1"),
    "keypoints": (keypoints, {"places": 34, "visible": 17}, "2:51:3 along axis 1"),
    "masks": (masks, {"boxes": 4, "scores": 4, "weights": 8}, "8:16 along axis 1"),
    "uncertain": (uncertain, {"logits": 5, "doubt": 1}, "5:6 along axis 1"),
    "phase": (phase, {"size": 1, "turn": 1}, "1:2 along axis 1"),
    "upright": (upright, {"boxes": 4, "scores": 4}, "4:8 along axis 1"),
    "normalized": (normalized, {"boxes": 4, "scores": 4}, "4:8 along axis 2"),
}


def constant_column(net: Body, boxes: Tensor) -> Joined:
    boxes = boxes * 40 + 60
    return torch.cat([boxes, torch.full((1, 1, CELLS), 0.01)], 1)


def padded(net: Body, boxes: Tensor) -> Joined:
    return functional.pad(boxes * 40 + 60, (0, 16, 0, 4))


def class_without_weight(net: Body, scores: Tensor) -> Joined:
    """A class that is switched off, so that its score is zero."""
    return torch.sigmoid(scores - 1) * net.known


def equal_ranges(net: Body, boxes: Tensor, scores: Tensor) -> Joined:
    return torch.cat([torch.sigmoid(boxes), torch.sigmoid(scores - 1)], 1)


def small_part(net: Body, boxes: Tensor, scores: Tensor) -> Joined:
    """Eight times smaller, which 8 bits keep."""
    return torch.cat([boxes * 20, torch.tanh(scores) * 5], 1)


def hard_mask(net: Body, scores: Tensor) -> Joined:
    """The probabilities of classes, and masks that are nearly everywhere zero or one."""
    return torch.cat([scores.softmax(1), torch.clamp(scores * 4, 0, 1)], 1)


def one_hot(net: Body, scores: Tensor) -> Joined:
    """Boxes of a grid's cells, and a constant code of each cell's column."""
    return torch.cat([torch.sigmoid(scores) * 2, net.columns], 1)


def rare_class(net: Body, scores: Tensor) -> Joined:
    """Probabilities that add up to one. No cell belongs to the last class."""
    low = torch.cat([scores[:, :5], scores[:, 5:] * 0.1 - 12], 1)
    return low.softmax(1)


def features(net: Body, raw: Tensor) -> Joined:
    """Features behind a ReLU."""
    return raw.relu()


def halves_again(net: Body, raw: Tensor) -> Joined:
    """Halves of one tensor, exchanged, as for rotary embeddings."""
    low, high = raw.chunk(2, 1)
    return torch.cat([-high, low], 1)


def spread(net: Body, raw: Tensor) -> Joined:
    """Channels whose ranges decrease evenly."""
    return raw


ALIKE: dict[str, tuple[Callable[..., Joined], dict[str, int]]] = {
    "constant_column": (constant_column, {"boxes": 4}),
    "padded": (padded, {"boxes": 4}),
    "class_without_weight": (class_without_weight, {"scores": 6}),
    "equal_ranges": (equal_ranges, {"boxes": 4, "scores": 4}),
    "small_part": (small_part, {"boxes": 4, "scores": 4}),
    "hard_mask": (hard_mask, {"scores": 6}),
    "one_hot": (one_hot, {"scores": 6}),
    "rare_class": (rare_class, {"scores": 6}),
    "halves_again": (halves_again, {"raw": 8}),
}


def define(name: str, join: Callable[..., Joined], heads: dict[str, int], *, apart: bool) -> None:
    def build() -> Made:
        return make(join, apart=apart, **heads)

    build.__name__ = name
    globals()[name] = build


for _name, (_join, _heads, _) in JOINS.items():
    define(f"{_name}_joined", _join, _heads, apart=False)
    define(f"{_name}_apart", _join, _heads, apart=True)
for _name, (_alike, _heads) in ALIKE.items():
    define(_name, _alike, _heads, apart=False)


def one_layer_joined() -> Made:
    """One convolution whose last channels are 400 times smaller."""
    return shrink(make(one_layer, raw=8), "raw", slice(4, 8), 1 / 400)


def one_class_joined() -> Made:
    """One of 80 classes has a score that is 300 times smaller."""
    return shrink(make(one_class, raw=80), "raw", slice(37, 38), 1 / 300)


def one_angle_joined() -> Made:
    """Rotated boxes, whose angle is 200 times smaller."""
    return shrink(make(one_angle, raw=5), "raw", slice(4, 5), 1 / 200)


def off_channel() -> Made:
    """Features behind a ReLU, of which one is nearly always off."""
    network = make(features, raw=8)
    head: Any = network[0].heads["raw"]
    with torch.no_grad():
        head.weight[5] *= 0.02
        head.bias[5] = -0.02
    return network


def even_spread() -> Made:
    """Channels whose ranges decrease from one to the next, down to a sixtieth."""
    network = make(spread, raw=8)
    for channel in range(8):
        shrink(network, "raw", slice(channel, channel + 1), 0.56**channel)
    return network


LOST = {f"{name}_joined": part for name, (_, _, part) in JOINS.items()} | {
    "one_layer_joined": "4:8 along axis 1",
    "one_class_joined": "37:38 along axis 1",
    "one_angle_joined": "4:5 along axis 2",
}
APART = tuple(f"{name}_apart" for name in JOINS)
RIGHT = (*ALIKE, "even_spread", "off_channel")
