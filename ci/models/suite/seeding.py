"""Seeded weights and inputs for the models of the suite."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Inputs = tuple[Tensor, ...]
Case = tuple[nn.Module, Inputs, list[Inputs]]
CALIBRATION_SETS = 7


def seed_weights(module: nn.Module, seed: int, gain: float = 1.0) -> nn.Module:
    """Set random weights that keep activations near unit scale.

    Matrices and kernels have a standard deviation of gain / sqrt(fan_in), biases of 0.1. The
    weights of norms are near 1.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                fan_in = parameter[0].numel()
                parameter.copy_(noise * (gain / fan_in**0.5))
            elif name.endswith("bias"):
                parameter.copy_(noise * 0.1)
            else:
                parameter.copy_(1.0 + noise * 0.1)
    return module.eval()


def draw_normal(*shape: int) -> Callable[[torch.Generator], Inputs]:
    """Return a function that draws one input of this shape from a normal distribution."""
    return lambda generator: (torch.randn(shape, generator=generator),)


def make_inputs(
    make: Callable[[torch.Generator], Inputs], seed: int
) -> tuple[Inputs, list[Inputs]]:
    """Return an example and CALIBRATION_SETS more inputs, each from a different seed."""
    sets = [make(torch.Generator().manual_seed(seed + i)) for i in range(CALIBRATION_SETS + 1)]
    return sets[0], sets[1:]
