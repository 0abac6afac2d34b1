"""Networks that see, each at a size that lowers in seconds, with heads as real ones have them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

Inputs = tuple[Tensor, ...]
Made = tuple[nn.Module, Inputs, list[Inputs]]


def vary(module: nn.Module, *shapes: tuple[int, ...], seed: int = 0) -> Made:
    """The module with weights that keep a signal's scale, and eight sets of smooth images."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, (1.6 / weight[0].numel()) ** 0.5)
            elif "norm" not in name:
                weight.uniform_(-0.2, 0.2)
    sets = [tuple(map(draw_image, shapes)) for _ in range(8)]
    return module.eval(), sets[0], sets[1:]


def draw_image(shape: tuple[int, ...]) -> Tensor:
    """Noise over a smooth ground, as a picture has it."""
    if len(shape) != 4:
        return torch.randn(shape)
    coarse = torch.randn(*shape[:2], 4, 4)
    smooth = functional.interpolate(coarse, shape[2:], mode="bilinear", align_corners=False)
    return smooth + 0.3 * torch.randn(shape)


def block(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1), nn.ReLU())


class SsdHead(nn.Module):
    """Boxes in pixels beside scores of 0 to 1, in one tensor [1, 64, 10]."""

    def __init__(self, *, joined: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(block(3, 16, 2), block(16, 24, 2))
        self.boxes, self.scores = nn.Conv2d(24, 4, 1), nn.Conv2d(24, 6, 1)
        self.joined = joined

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features = self.body(image)
        boxes = self.boxes(features).flatten(2).transpose(1, 2) * 40 + 60
        scores = torch.sigmoid(2 * self.scores(features)).flatten(2).transpose(1, 2)
        return torch.cat([boxes, scores], -1) if self.joined else (boxes, scores)


def ssd_joined() -> Made:
    return vary(SsdHead(joined=True), (1, 3, 32, 32))


def ssd_apart() -> Made:
    return vary(SsdHead(joined=False), (1, 3, 32, 32))


class YoloHead(nn.Module):
    """[1, 9, 8, 8]: offsets by sigmoid, sizes by exp, an objectness and four classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(block(3, 16, 2), block(16, 32, 2))
        self.head = nn.Conv2d(32, 9, 1)

    def forward(self, image: Tensor) -> Tensor:
        raw = self.head(self.body(image))
        offsets, sizes, scores = raw[:, :2], raw[:, 2:4], raw[:, 4:]
        return torch.cat([offsets.sigmoid() * 8, sizes.exp() * 16, scores.sigmoid()], 1)


def yolo() -> Made:
    return vary(YoloHead(), (1, 3, 32, 32))


class Unet(nn.Module):
    """Two levels with skips; ``masks`` adds the class of each pixel and a boolean mask."""

    def __init__(self, *, masks: bool) -> None:
        super().__init__()
        self.first, self.second, self.third = block(3, 12), block(12, 24), block(24, 48)
        self.up, self.up_again = nn.ConvTranspose2d(48, 24, 2, 2), nn.ConvTranspose2d(24, 12, 2, 2)
        self.join, self.join_again = block(48, 24), block(24, 12)
        self.head = nn.Conv2d(12, 5, 1)
        self.masks = masks

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, ...]:
        first = self.first(image)
        second = self.second(functional.max_pool2d(first, 2, 2))
        third = self.third(functional.max_pool2d(second, 2, 2))
        wide = self.join(torch.cat([self.up(third), second], 1))
        logits: Tensor = self.head(self.join_again(torch.cat([self.up_again(wide), first], 1)))
        return (logits, logits.argmax(1), logits[:, :1] > 0) if self.masks else logits


def unet() -> Made:
    return vary(Unet(masks=False), (1, 3, 32, 32))


def unet_masks() -> Made:
    return vary(Unet(masks=True), (1, 3, 32, 32))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = block(3, 24, 2), nn.Conv2d(24, 16, 3, 2, 1)
        self.less, self.more = nn.Conv2d(24, 6, 1), nn.Conv2d(6, 24, 1)

    def forward(self, image: Tensor) -> Tensor:
        features = self.stem(image)
        share = functional.hardsigmoid(
            self.more(functional.relu(self.less(features.mean((2, 3), keepdim=True))))
        )
        scaled: Tensor = self.head(features * share)
        return scaled


def squeeze_excite() -> Made:
    return vary(SqueezeExcite(), (1, 3, 32, 32))


class MobileVit(nn.Module):
    """Convolutions around attention over patches of 2 x 2."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.into = block(3, 16, 2), nn.Conv2d(16, 32, 1)
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.norm, self.norm_feed = nn.LayerNorm(32), nn.LayerNorm(32)
        self.feed = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))
        self.fuse = nn.Conv2d(48, 24, 3, 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        stem = self.stem(image)
        x = self.into(stem).reshape(1, 32, 4, 2, 4, 2).permute(0, 3, 5, 2, 4, 1)
        x = x.reshape(4, 16, 32)
        normed = self.norm(x)
        scores = self.query(normed) @ self.key(normed).transpose(-1, -2) * 32**-0.5
        x = x + self.out(scores.softmax(-1) @ self.value(normed))
        x = x + self.feed(self.norm_feed(x))
        x = x.reshape(1, 2, 2, 4, 4, 32).permute(0, 5, 3, 1, 4, 2).reshape(1, 32, 8, 8)
        fused: Tensor = self.fuse(torch.cat([stem, x], 1))
        return fused


def mobilevit() -> Made:
    return vary(MobileVit(), (1, 3, 16, 16))


class ConvNext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 4, 4)
        self.depthwise = nn.Conv2d(32, 32, 7, padding=3, groups=32)
        self.norm = nn.LayerNorm(32)
        self.feed = nn.Sequential(nn.Linear(32, 96), nn.GELU(approximate="tanh"), nn.Linear(96, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        y = self.feed(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        logits: Tensor = self.head((x.permute(0, 2, 3, 1) + y).mean((1, 2)))
        return logits * 3


def convnext() -> Made:
    return vary(ConvNext(), (1, 3, 32, 32))


class Pose(nn.Module):
    """Heat maps of seven joints, and the place of each one's maximum as int64."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(block(3, 16, 2), block(16, 32), nn.Conv2d(32, 7, 1))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        heat = self.body(image)
        return heat, heat.flatten(2).argmax(-1)


def pose() -> Made:
    return vary(Pose(), (1, 3, 32, 32))


class Depth(nn.Module):
    """A disparity of 0 to 1 at full size, and a depth of 0.1 to 100 metres."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(block(3, 16, 2), block(16, 16), nn.Conv2d(16, 1, 3, 1, 1))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        small = self.body(image)
        large = functional.interpolate(
            small, scale_factor=2.0, mode="bilinear", align_corners=False
        )
        disparity = torch.sigmoid(large)
        return disparity, 1.0 / (0.05 + disparity)


def depth() -> Made:
    return vary(Depth(), (1, 3, 32, 32))


class Anomaly(nn.Module):
    """An auto-encoder: the picture again, its error a place, and which places are odd."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(block(3, 16, 2), block(16, 8, 2))
        self.up = nn.Sequential(nn.ConvTranspose2d(8, 16, 2, 2), nn.ReLU())
        self.out = nn.ConvTranspose2d(16, 3, 2, 2)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        restored = self.out(self.up(self.down(image)))
        error = (restored - image).abs().mean(1)
        return restored, error, error > 0.8


def anomaly() -> Made:
    return vary(Anomaly(), (1, 3, 16, 16))


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 48, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 48))
        self.position = nn.Parameter(torch.randn(1, 17, 48) * 0.3)
        self.norm, self.norm_feed, self.norm_out = (nn.LayerNorm(48) for _ in range(3))
        self.query, self.key, self.value, self.out = (nn.Linear(48, 48) for _ in range(4))
        self.feed = nn.Sequential(nn.Linear(48, 96), nn.GELU(approximate="tanh"), nn.Linear(96, 48))
        self.head = nn.Linear(48, 12)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token, x], 1) + self.position
        y = self.norm(x)

        def split(z: Tensor) -> Tensor:
            return z.reshape(1, 17, 3, 16).transpose(1, 2)

        scores = split(self.query(y)) @ split(self.key(y)).transpose(-1, -2) * 0.25
        mixed = (scores.softmax(-1) @ split(self.value(y))).transpose(1, 2).reshape(1, 17, 48)
        x = x + self.out(mixed)
        x = x + self.feed(self.norm_feed(x))
        logits = self.head(self.norm_out(x)[:, 0])
        return logits.softmax(-1), logits.argmax(-1)


def vision_transformer() -> Made:
    return vary(VisionTransformer(), (1, 3, 32, 32))
