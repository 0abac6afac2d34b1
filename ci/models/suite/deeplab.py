"""A segmentation head like DeepLab's: parallel dilated convolutions, then upsampling."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ci.models.suite.seeding import Case, draw_normal, make_inputs, seed_weights

RATES = (1, 2, 4)


class DeepLab(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Conv2d(16, 16, 3, padding=rate, dilation=rate) for rate in RATES
        )
        self.pooled = nn.Conv2d(16, 16, 1)
        self.project = nn.Conv2d(16 * (len(RATES) + 1), 24, 1)
        self.classify = nn.Conv2d(24, 6, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Map features [1, 16, 16, 16] to class scores [1, 6, 32, 32]."""
        height, width = features.shape[-2:]
        pooled = torch.relu(self.pooled(functional.adaptive_avg_pool2d(features, 1)))
        parts = [torch.relu(branch(features)) for branch in self.branches]
        parts.append(pooled.expand(-1, -1, height, width))
        scores = self.classify(torch.relu(self.project(torch.cat(parts, dim=1))))
        return functional.interpolate(
            scores, size=(2 * height, 2 * width), mode="bilinear", align_corners=False
        )


def make_case() -> Case:
    return (seed_weights(DeepLab(), 4, gain=1.4), *make_inputs(draw_normal(1, 16, 16, 16), 401))
