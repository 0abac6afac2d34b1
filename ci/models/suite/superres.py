"""Super-resolution by sub-pixel convolution: [1, 1, 24, 24] -> [1, 1, 48, 48]."""

from __future__ import annotations

from torch import Tensor, nn

from ci.models.suite.seeding import Case, draw_normal, make_inputs, seed_weights

SCALE = 2


class SuperRes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 16, 3, padding=1), nn.ReLU()
        )
        self.project = nn.Conv2d(16, SCALE**2, 3, padding=1)
        self.shuffle = nn.PixelShuffle(SCALE)

    def forward(self, image: Tensor) -> Tensor:
        """Map an image [1, 1, 24, 24] to [1, 1, 48, 48]."""
        return self.shuffle(self.project(self.features(image)))


def make_case() -> Case:
    return (seed_weights(SuperRes(), 7, gain=1.4), *make_inputs(draw_normal(1, 1, 24, 24), 701))
