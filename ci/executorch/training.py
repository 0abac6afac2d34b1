"""Quantization-aware training: weights learn to give, quantized, what the float32 model gives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule
from torchao.quantization.pt2e import FusedMovingAvgObsFakeQuantize

from ci.models.eager import copy_inputs, flatten_outputs, keep_state, run_eager
from ci.models.model import Model
from ci.models.user_code import Inputs

RATE = 1e-3


def train(prepared: GraphModule, model: Model, steps: int) -> None:
    """Adam towards the float32 model's outputs for the calibration sets, one set a step.

    Nothing is drawn at random, so that a training gives the same weights each time. Labels are not
    needed: the float32 model is the teacher.
    """
    with keep_state(model.module):
        wanted = run_eager(model.module, model.calibration)
    cover_ranges(prepared, model.calibration)
    weights = [weight for weight in prepared.parameters() if weight.is_floating_point()]
    optimizer = torch.optim.Adam([weight.requires_grad_() for weight in weights], lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        number = step % len(wanted)
        optimizer.zero_grad()
        made = flatten_outputs(prepared(*copy_inputs(model.calibration[number])))
        measure_loss(made, wanted[number]).backward()
        optimizer.step()
        schedule.step()
    for weight in weights:
        weight.requires_grad_(requires_grad=False)


def measure_loss(made: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
    """Noise over signal, summed over the outputs that are magnitudes."""
    pairs = [pair for pair in zip(made, wanted, strict=True) if pair[1].is_floating_point()]
    noise = [(one - other).square().mean() / other.square().mean() for one, other in pairs]
    return torch.stack(noise).sum()


def cover_ranges(prepared: GraphModule, sets: Sequence[Inputs]) -> None:
    """Fix each range to the least and the greatest value of all sets, as calibration does.

    By itself torchao moves a range by a hundredth towards each set's, so that few sets clip.
    """
    fakes = [one for one in prepared.modules() if isinstance(one, FusedMovingAvgObsFakeQuantize)]
    seen: list[list[tuple[Tensor, Tensor]]] = [[] for _ in fakes]
    for one in fakes:
        one.activation_post_process.averaging_constant = 1.0
    with torch.no_grad():
        for inputs in sets:
            prepared(*copy_inputs(inputs))
            for one, ranges in zip(fakes, seen, strict=True):
                observer = one.activation_post_process
                ranges.append((observer.min_val.clone(), observer.max_val.clone()))
    for one, ranges in zip(fakes, seen, strict=True):
        observer = one.activation_post_process
        observer.min_val.copy_(torch.stack([low for low, _ in ranges]).amin(0))
        observer.max_val.copy_(torch.stack([high for _, high in ranges]).amax(0))
        scale, zero = one.calculate_qparams()
        one.scale.copy_(scale.reshape(one.scale.shape))
        one.zero_point.copy_(zero.reshape(one.zero_point.shape))
        one.disable_observer()
