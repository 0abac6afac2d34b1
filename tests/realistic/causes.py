"""Small networks, each with one cause of lost accuracy that a report must name."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.realistic.vision import Made, vary


class TopBoxes(nn.Module):
    """The boxes of the ten best of 64 anchors, [1, 24, 8, 8] to [1, 10, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes, self.scores = nn.Conv2d(24, 4, 1), nn.Conv2d(24, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        boxes = self.boxes(x).flatten(2).transpose(1, 2)
        best = self.scores(x).flatten(2).transpose(1, 2).sigmoid().amax(-1)
        _, places = best.topk(10)
        return boxes.gather(1, places.unsqueeze(-1).expand(-1, -1, 4))


def top_boxes() -> Made:
    return vary(TopBoxes(), (1, 24, 8, 8))


class Masked(nn.Module):
    """Causal attention [1, 16, 32] with scores that a mask sets to a number. With ``fills``, the
    mask is made in forward, so that no pattern of a graph knows it."""

    def __init__(self, number: float, *, fills: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))
        self.number, self.fills = number, fills
        self.register_buffer("hidden", torch.ones(16, 16, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 32**0.5
        if self.fills:
            scores = torch.where(self.hidden, torch.full_like(scores, self.number), scores)
        else:
            scores = scores.masked_fill(self.hidden, self.number)
        values: Tensor = scores.softmax(-1) @ self.v(x)
        return values


def masked() -> Made:
    return vary(Masked(-1e9), (1, 16, 32))


def masked_by_fill() -> Made:
    return vary(Masked(-1e9, fills=True), (1, 16, 32))


def masked_slightly() -> Made:
    return vary(Masked(-30.0), (1, 16, 32))


class MaskedWithSink(nn.Module):
    """Causal attention [1, 16, 32] whose softmax also reads a learned score, an attention sink."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))
        self.sink = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("mask", torch.full((16, 16), torch.finfo(torch.float32).min).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 32**0.5 + self.mask
        sinks = self.sink.view(1, 1, 1).expand(1, 16, 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        values: Tensor = weights @ self.v(x)
        return values


def masked_with_sink() -> Made:
    return vary(MaskedWithSink(), (1, 16, 32))


class Angles(nn.Module):
    """Sines and cosines of a time step up to 1,000 times eight frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("frequencies", 2.0 ** -torch.arange(8.0))

    def forward(self, x: Tensor) -> Tensor:
        angles = (x.sigmoid() * 1000) * self.frequencies
        result: Tensor = self.layer(torch.cat([angles.sin(), angles.cos()], -1))
        return result


def angles() -> Made:
    return vary(Angles(), (8, 1))


class Squares(nn.Module):
    """An RMS norm, written as its formula, of numbers up to about a thousand."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x) * 500
        normal: Tensor = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return normal


def squares() -> Made:
    return vary(Squares(), (1, 16, 32))


class Radial(nn.Module):
    """Radial basis functions, as a layer of a KAN has: exp reads numbers down to -110."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(128, 8)
        self.register_buffer("centres", torch.linspace(-2, 2, 8))

    def forward(self, x: Tensor) -> Tensor:
        distances = (x.unsqueeze(-1) - self.centres) * 2
        bases = torch.exp(-distances * distances)
        result: Tensor = self.layer(bases.flatten(1))
        return result


def radial() -> Made:
    return vary(Radial(), (4, 16))


class Crossed(nn.Module):
    """A cross product, as in the kinematics of a robot."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, x: Tensor, points: Tensor) -> Tensor:
        return torch.linalg.cross(self.layer(x), points, dim=-1) + points


def crossed() -> Made:
    return vary(Crossed(), (1, 64, 16), (1, 64, 3))


class Sum(nn.Module):
    """A running sum of 1,200 positive steps, as a phase has."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(x.sigmoid(), 1)


def running_sum() -> Made:
    return vary(Sum(), (1, 1200, 4))


class Skipped(nn.Module):
    """A batch norm whose convolution is also used without it, before a score of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16))
        self.norm, self.classes = nn.BatchNorm2d(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        scores: Tensor = self.classes((x + self.norm(x).relu()).mean((2, 3)))
        return scores


def skipped() -> Made:
    module, example, sets = vary(Skipped(), (1, 3, 16, 16))
    with torch.no_grad():
        module.get_buffer("norm.running_mean").uniform_(-0.5, 0.5)
        module.get_buffer("norm.running_var").uniform_(0.2, 0.8)
    return module, example, sets


class Packed(nn.Module):
    """Attention whose queries, keys and values are one projection, viewed with five axes."""

    def __init__(self) -> None:
        super().__init__()
        self.joint = nn.Linear(64, 192)

    def forward(self, x: Tensor) -> Tensor:
        joint = self.joint(x).view(x.shape[0], 17, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(*joint.unbind(0))


def packed() -> Made:
    return vary(Packed(), (2, 17, 64))


class FeedForward(nn.Module):
    """A layer norm and two linear layers over 64 rows, as in a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(192)
        self.up, self.down = nn.Linear(192, 768), nn.Linear(768, 192)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(self.up(self.norm(x)).relu())
        return result


def feed_forward() -> Made:
    return vary(FeedForward(), (1, 64, 192))


def short_row() -> Made:
    return vary(nn.Conv1d(20, 32, 7, padding=3), (1, 20, 16))


class Limited(nn.Module):
    """A linear layer [1, 16, 32] to [1, 16, 24] whose results are limited from -80 on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 24)

    def forward(self, x: Tensor) -> Tensor:
        limited: Tensor = self.layer(x).clamp(min=-80.0)
        return limited


def limited() -> Made:
    return vary(Limited(), (1, 16, 32))


class Gaussians(nn.Module):
    """Gaussians of a scene [1, 40, 24] to [1, 40, 7]: their positions, scales and opacities in one
    tensor, whose ranges differ by hundreds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(24, 32), nn.Linear(32, 7)

    def forward(self, x: Tensor) -> Tensor:
        features = self.head(functional.gelu(self.layer(x)))
        positions, scales, opacities = features.split([3, 3, 1], -1)
        return torch.cat([positions * 20, torch.exp(scales - 4), opacities.sigmoid()], -1)


def gaussians() -> Made:
    return vary(Gaussians(), (1, 40, 24))


class Massive(nn.Module):
    """The residual stream [1, 12, 32] of a transformer, one of whose channels is massive."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(functional.gelu(self.up(self.norm(x))))
        return result


def massive() -> Made:
    module, example, sets = vary(Massive(), (1, 12, 32))
    with torch.no_grad():
        module.get_parameter("down.weight")[7] *= 150
    return module, example, sets


class Gated(nn.Module):
    """A SwiGLU [1, 10, 24] one of whose products is a thousand times as large as the others, and
    weighs little."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(24, 48), nn.Linear(24, 48)
        self.down = nn.Linear(48, 24)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return result


def gated() -> Made:
    module, example, sets = vary(Gated(), (1, 10, 24))
    with torch.no_grad():
        module.get_parameter("gate.weight")[5] *= 20
        module.get_parameter("up.weight")[5] *= 20
        module.get_parameter("down.weight")[:, 5] *= 1e-4
    return module, example, sets


class Odds(nn.Module):
    """The logarithms of odds [1, 12, 16] to [1, 12, 8], from probabilities up to 0.99."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        chances = torch.sigmoid(self.layer(x) * 1.2)
        result: Tensor = self.head(torch.log(chances / (1 - chances)))
        return result


def odds() -> Made:
    return vary(Odds(), (1, 12, 16))


class Projected(nn.Module):
    """Windows [1, 2, 3, 4, 16] of an image times a matrix [16, 8], without nn.Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(16, 8) * 0.2)

    def forward(self, windows: Tensor) -> Tensor:
        return windows @ self.matrix


def projected() -> Made:
    return vary(Projected(), (1, 2, 3, 4, 16))


class Experts(nn.Module):
    """Tokens [1, 10, 1, 1, 16] times the matrices [8, 16, 32] of eight experts."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.Parameter(torch.randn(8, 16, 32) * 0.2)

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens @ self.matrices


def experts() -> Made:
    return vary(Experts(), (1, 10, 1, 1, 16))


class Heads(nn.Module):
    """A layer over windows [1, 2, 3, 4, 16], and then a matrix [16, 8] for each of three heads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.matrices = nn.Parameter(torch.randn(3, 16, 8) * 0.2)

    def forward(self, windows: Tensor) -> Tensor:
        result: Tensor = self.layer(windows) @ self.matrices
        return result


def heads() -> Made:
    return vary(Heads(), (1, 2, 3, 4, 16))


class Energy(nn.Module):
    """The energy [8] of ten classes, from [8, 24]: a score of what a classifier has not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        return torch.logsumexp(self.classes(x), -1)


def energy() -> Made:
    return vary(Energy(), (8, 24))


class Decay(nn.Module):
    """Differences of running sums of [1, 16, 8], as the decay of Mamba 2's state space."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(8, 1)
        self.register_buffer("triangle", torch.ones(16, 16).tril())

    def forward(self, tokens: Tensor) -> Tensor:
        sums = self.triangle @ torch.sigmoid(self.step(tokens))
        return torch.exp(-torch.abs(sums - sums.transpose(1, 2))) @ tokens


def decay() -> Made:
    return vary(Decay(), (1, 16, 8))


class DeltaRule(nn.Module):
    """Two steps of a gated delta rule, which writes what it reads from [1, 2, 32] to a state of
    [1, 2, 16, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
        self.rates = nn.Linear(32, 2)

    def forward(self, tokens: Tensor, state: Tensor) -> Tensor:
        keys = functional.normalize(self.keys(tokens).view(1, 2, 2, 16), dim=-1)
        values = self.values(tokens).view(1, 2, 2, 16)
        rates = torch.sigmoid(self.rates(tokens))
        for step in range(2):
            key = keys[:, step]
            old = (state @ key.unsqueeze(-1)).squeeze(-1)
            written = (values[:, step] - old) * rates[:, step, :, None]
            state = state + written.unsqueeze(-1) * key.unsqueeze(-2)
        return state


def delta_rule() -> Made:
    return vary(DeltaRule(), (1, 2, 32), (1, 2, 16, 16))


class Mixed(nn.Module):
    """A matrix [1, 64] that is mixed from four by weights that are nearly equal, as a dynamic
    convolution mixes its kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(16, 4)
        self.matrices = nn.Parameter(torch.randn(4, 64))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(x) * 0.02
        return torch.softmax(scores, -1) @ self.matrices


def mixed() -> Made:
    return vary(Mixed(), (1, 16))


class Weighed(nn.Module):
    """Images [1, 8, 8, 8], each scaled by a channel of a softmax over channels, as a fusion of
    features weighs them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.scores = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        images = functional.relu(self.stem(x))
        weights = torch.softmax(self.scores(images), 1)
        return images * weights[:, :1] + images.flip(1) * weights[:, 1:]


def weighed() -> Made:
    return vary(Weighed(), (1, 3, 8, 8))
