"""An inverted residual with a depthwise convolution: [1, 16, 24, 24] -> [1, 16, 24, 24]."""

from __future__ import annotations

from torch import Tensor, nn

from ci.models.suite.seeding import Case, draw_normal, make_inputs, seed_weights


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(16, 64, 1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU6(),
            nn.Conv2d(64, 64, 3, 1, 1, groups=64, bias=False),
            nn.BatchNorm2d(64),
            nn.Hardswish(),
            nn.Conv2d(64, 16, 1, bias=False),
            nn.BatchNorm2d(16),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map x [1, 16, 24, 24] to the same shape."""
        return x + self.body(x)


def make_case() -> Case:
    return (seed_weights(MobileNet(), 3, gain=1.4), *make_inputs(draw_normal(1, 16, 24, 24), 301))
