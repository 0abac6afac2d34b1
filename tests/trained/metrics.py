"""What a user asks of each model: more is better. Outputs are [samples, *shape]; so are labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeAlias

import torch
from torch import Tensor

Metric: TypeAlias = Callable[[list[Tensor], Tensor], float]


def takes_tensors(metric: Metric) -> Callable[[Sequence[Any], Any], float]:
    """Return a metric that also takes arrays, which it gets for ONNX models."""

    @wraps(metric)
    def measure(outputs: Sequence[Any], labels: Any) -> float:
        return metric([torch.as_tensor(output) for output in outputs], torch.as_tensor(labels))

    return measure


@takes_tensors
def pnet_overlap(outputs: list[Tensor], labels: Tensor) -> float:
    """Mean overlap of the best cell's box with the face; labels are boxes in pixels, [sets, 4]."""
    shifts, scores = outputs[0][:, 0], outputs[1][:, 0, 1]
    columns = scores.shape[-1]
    corners = []
    for shift, score in zip(shifts, scores, strict=True):
        row, column = divmod(int(score.argmax()), columns)
        corner = torch.tensor([column, row, column, row]) * 2 + torch.tensor([1, 1, 12, 12])
        corners.append(corner + shift[:, row, column] * 12)
    return overlap(torch.stack(corners), labels).mean().item()


@takes_tensors
def crop_overlap(outputs: list[Tensor], labels: Tensor) -> float:
    """Of crops of faces the overlap of the box, of others whether they are told apart, mean.

    Labels are [sets, crops, 5]: 1 and a box in widths of the crop, or 0.
    """
    shifts, faces = outputs[0], outputs[-1][..., 1] > 0.5
    boxes = shifts + torch.tensor([0.0, 0.0, 1.0, 1.0])
    is_face = labels[..., 0] > 0
    right = overlap(boxes, labels[..., 1:]) * faces
    is_no_face = (~faces).float()
    return (right[is_face].mean().item() + is_no_face[~is_face].mean().item()) / 2


@takes_tensors
def centre_overlap(outputs: list[Tensor], labels: Tensor) -> float:
    """CenterFace: heat map, sizes, offsets, landmarks, all of stride 4."""
    heat, sizes, offsets = (output[:, 0] for output in outputs[:3])
    columns = heat.shape[-1]
    boxes = []
    for number in range(len(heat)):
        row, column = divmod(int(heat[number, 0].argmax()), columns)
        high, wide = (sizes[number, :, row, column].clamp(max=6).exp() * 4).tolist()
        down, right = offsets[number, :, row, column].tolist()
        x, y = (column + right + 0.5) * 4 - wide / 2, (row + down + 0.5) * 4 - high / 2
        boxes.append(torch.tensor([x, y, x + wide, y + high]))
    return overlap(torch.stack(boxes), labels).mean().item()


@takes_tensors
def yolo_overlap(outputs: list[Tensor], labels: Tensor) -> float:
    """NudeNet: [4 + classes, boxes], of which the class FACE_FEMALE is the second."""
    boxes = []
    for candidate in outputs[0][:, 0]:
        x, y, wide, high = candidate[:4, int(candidate[4 + 1].argmax())].tolist()
        boxes.append(torch.tensor([x - wide / 2, y - high / 2, x + wide / 2, y + high / 2]))
    return overlap(torch.stack(boxes), labels).mean().item()


def overlap(boxes: Tensor, other_boxes: Tensor) -> Tensor:
    """Intersection over union, [..., 4] each."""
    low = torch.maximum(boxes[..., :2], other_boxes[..., :2])
    high = torch.minimum(boxes[..., 2:], other_boxes[..., 2:])
    common = (high - low).clamp(min=0).prod(-1)
    areas = [
        (corners[..., 2:] - corners[..., :2]).clamp(min=0).prod(-1)
        for corners in (boxes, other_boxes)
    ]
    return common / (areas[0] + areas[1] - common).clamp(min=1e-6)


@takes_tensors
def crepe_pitch(outputs: list[Tensor], labels: Tensor) -> float:
    """Share of frames within 50 cents of the labels' Hz; bins of 20 cents from 31.7 Hz on."""
    cents = 20 * average_bins(outputs[0], 4) + 1997.3794
    return within(cents, 1200 * torch.log2(labels / 10))


@takes_tensors
def pesto_pitch(outputs: list[Tensor], labels: Tensor) -> float:
    """The same of bins of a third of a semitone, moved as the checkpoint says (PESTO_SHIFT)."""
    bins = average_bins(outputs[0].roll(PESTO_SHIFT, -1), 2)
    return within(100 * bins / 3, 6900 + 1200 * torch.log2(labels / 440))


PESTO_SHIFT = -20


def average_bins(activations: Tensor, reach: int) -> Tensor:
    """The place of the highest bin, averaged with its neighbours, [sets, frames]."""
    best = activations.argmax(-1, keepdim=True)
    near = (best + torch.arange(-reach, reach + 1)).clamp(0, activations.shape[-1] - 1)
    weights = activations.gather(-1, near).clamp(min=0)
    return (weights * near).sum(-1) / weights.sum(-1).clamp(min=1e-9)


def within(cents: Tensor, truth: Tensor, tolerance: float = 50) -> float:
    return ((cents - truth).abs() < tolerance).float().mean().item()


@takes_tensors
def voice_activity(outputs: list[Tensor], labels: Tensor) -> float:
    """Decisions at 0.5, speech and silence weighing the same."""
    decided, speech = outputs[0].flatten() > 0.5, labels.flatten() > 0
    return (decided[speech].float().mean().item() + (~decided[~speech]).float().mean().item()) / 2


@takes_tensors
def ranking(outputs: list[Tensor], labels: Tensor) -> float:
    """Mean reciprocal rank of the nearest embedding of the same label, among all others."""
    embeddings = outputs[0].flatten(0, 1)
    kinds = labels.flatten()
    embeddings = embeddings / embeddings.norm(dim=-1, keepdim=True).clamp(min=1e-9)
    near = embeddings @ embeddings.T
    near.fill_diagonal_(-9)
    order = kinds[near.argsort(-1, descending=True)] == kinds[:, None]
    return (1 / (order.float().argmax(-1) + 1)).mean().item()


@takes_tensors
def accuracy(outputs: list[Tensor], labels: Tensor) -> float:
    """Share of right classes."""
    return (outputs[0].flatten(0, -2).argmax(-1) == labels.flatten()).float().mean().item()


@takes_tensors
def text_area(outputs: list[Tensor], labels: Tensor) -> float:
    """Overlap of what is marked as text with what is, over all pages."""
    marked, text = outputs[0].flatten() > 0.3, labels.flatten() > 0
    return ((marked & text).sum() / (marked | text).sum().clamp(min=1)).item()


@takes_tensors
def edit_distance(outputs: list[Tensor], labels: Tensor) -> float:
    """1 less the edits that a character needs; 0 is the blank, labels end with -1."""
    edits = characters = 0
    for best, label in zip(outputs[0][:, 0].argmax(-1), labels, strict=True):
        read = [int(character) for character in best.unique_consecutive() if character]
        expected = [int(character) for character in label if character >= 0]
        row = list(range(len(expected) + 1))
        for number, read_character in enumerate(read, 1):
            before, row[0] = row[0], number
            for at, expected_character in enumerate(expected, 1):
                before, row[at] = (
                    row[at],
                    min(
                        row[at] + 1,
                        row[at - 1] + 1,
                        before + (read_character != expected_character),
                    ),
                )
        edits, characters = edits + row[-1], characters + len(expected)
    return 1 - edits / characters


@takes_tensors
def notes(outputs: list[Tensor], labels: Tensor) -> float:
    """F-score of the notes of basic-pitch, [frames, 88], its second output."""
    played, truth = outputs[1][:, 0] > 0.3, labels > 0
    hits = (played & truth).sum().item()
    return 2 * hits / max(played.sum().item() + truth.sum().item(), 1)
