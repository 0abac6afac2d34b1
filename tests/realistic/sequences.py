"""Networks over time, text and actions, with state, ids and masks as real ones have them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.realistic.vision import Inputs, Made, vary

WORDS, WIDTH, HEADS, GROUPS, HEAD = 64, 48, 4, 2, 12


class Tcn(nn.Module):
    """Causal dilated convolutions over [1, 8, 64], residual, then a class a step."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Conv1d(8, 24, 1)
        self.layers = nn.ModuleList(nn.Conv1d(24, 24, 3, dilation=2**n) for n in range(3))
        self.head = nn.Conv1d(24, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for number, layer in enumerate(self.layers):
            x = x + functional.relu(layer(functional.pad(x, (2 * 2**number, 0))))
        classes: Tensor = self.head(x)
        return classes


def tcn() -> Made:
    return vary(Tcn(), (1, 8, 64))


class Keyword(nn.Module):
    """A mel spectrogram [1, 16, 48] to the probability of ten words."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(16, 32, 5), nn.ReLU(), nn.Conv1d(32, 32, 3), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, mel: Tensor) -> Tensor:
        return functional.softmax(3 * self.head(self.body(mel).mean(-1)), -1)


def keyword() -> Made:
    return vary(Keyword(), (1, 16, 48))


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(16, 24, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, steps: Tensor) -> Tensor:
        classes: Tensor = self.head(self.cell(steps)[0])
        return classes


def gru() -> Made:
    return vary(Gru(), (1, 12, 16))


class GruCell(nn.Module):
    """A GRU of linear layers, six steps, the state in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.new = nn.Linear(40, 48), nn.Linear(40, 24)
        self.head = nn.Linear(24, 5)

    def forward(self, steps: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        for step in range(6):
            x = steps[:, step]
            reset, keep = torch.sigmoid(self.gates(torch.cat([x, state], 1))).chunk(2, 1)
            new = torch.tanh(self.new(torch.cat([x, reset * state], 1)))
            state = keep * state + (1 - keep) * new
        return self.head(state), state


def gru_cell() -> Made:
    return vary(GruCell(), (1, 6, 16), (1, 24))


class Tagger(nn.Module):
    """int64 tokens [1, 12] to scores, the best tag of each and which are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.head = nn.Linear(WIDTH, 9)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.mix(self.embedding(tokens).transpose(1, 2)).transpose(1, 2)
        scores = self.head(functional.relu(x))
        return scores, scores.argmax(-1)


def draw_tokens(module: nn.Module, length: int, *other_shapes: tuple[int, ...]) -> Made:
    varied, _, _ = vary(module, (1, 1))
    with torch.no_grad():
        varied.get_parameter("embedding.weight").normal_()
    sets = [
        (torch.randint(0, WORDS, (1, length)), *map(torch.randn, other_shapes)) for _ in range(8)
    ]
    return varied, sets[0], sets[1:]


def tagger() -> Made:
    return draw_tokens(Tagger(), 12)


class Grouped(nn.Module):
    """Attention with rotary embedding and two key heads for four query heads, int64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.query = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.key = nn.Linear(WIDTH, GROUPS * HEAD, bias=False)
        self.value = nn.Linear(WIDTH, GROUPS * HEAD, bias=False)
        self.out = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.logits = nn.Linear(WIDTH, WORDS, bias=False)
        angles = torch.arange(8.0)[:, None] / 100 ** (torch.arange(HEAD // 2) * 2 / HEAD)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.register_buffer("mask", torch.full((8, 8), -16.0).triu(1), persistent=False)

    def rotate(self, x: Tensor) -> Tensor:
        first, second = x[..., : HEAD // 2], x[..., HEAD // 2 :]
        turned = first * self.cos - second * self.sin, first * self.sin + second * self.cos
        return torch.cat(turned, -1)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embedding(tokens)
        query = self.rotate(self.query(x).view(1, 8, HEADS, HEAD).transpose(1, 2))
        key = self.rotate(self.key(x).view(1, 8, GROUPS, HEAD).transpose(1, 2))
        value = self.value(x).view(1, 8, GROUPS, HEAD).transpose(1, 2)
        key, value = (t[:, [0, 0, 1, 1]] for t in (key, value))
        scores = query @ key.transpose(-1, -2) * HEAD**-0.5 + self.mask
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(1, 8, HEADS * HEAD)
        logits = self.logits(x + self.out(mixed))
        return logits, logits[:, -1].argmax(-1)


def grouped_queries() -> Made:
    return draw_tokens(Grouped(), 8)


class Cache(nn.Module):
    """A decoder's step whose keys and values are buffers, written at an int64 position."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(32, 32, bias=False) for _ in range(3))
        self.head = nn.Linear(32, 24)
        self.register_buffer("keys", torch.zeros(1, 8, 32))
        self.register_buffer("values", torch.zeros(1, 8, 32))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        self.keys.index_copy_(1, position, self.key(x))
        self.values.index_copy_(1, position, self.value(x))
        scores = self.query(x) @ self.keys.transpose(-1, -2) * 32**-0.5
        mixed: Tensor = self.head(x + scores.softmax(-1) @ self.values)
        return mixed


def kv_cache() -> Made:
    module, _, _ = vary(Cache(), (1, 1))
    sets = [(torch.randn(1, 1, 32), torch.tensor([number])) for number in range(8)]
    return module, sets[0], sets[1:]


class Gated(nn.Module):
    """RMS norm and SwiGLU as in Llama's feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(WIDTH))
        self.gate, self.up = (nn.Linear(WIDTH, 96, bias=False) for _ in range(2))
        self.down = nn.Linear(96, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.rms_norm(x, (WIDTH,), self.norm, 1e-5)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def swiglu() -> Made:
    return vary(Gated(), (1, 8, WIDTH))


class ActorCritic(nn.Module):
    """Three outputs of other scales: the chance of each action, a value near 100, the action."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.actor, self.critic = nn.Linear(32, 5), nn.Linear(32, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.body(state)
        logits = self.actor(features)
        return (
            functional.softmax(2 * logits, -1),
            100 + 40 * self.critic(features),
            logits.argmax(-1),
        )


def actor_critic() -> Made:
    return vary(ActorCritic(), (4, 20))


class Router(nn.Module):
    """A mixture of experts' router: the two best of eight as values and int64 indices."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 48), nn.ReLU())
        self.route = nn.Linear(48, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = torch.topk(self.route(self.body(x)), 2)
        return values, indices


def router() -> Made:
    return vary(Router(), (1, 8, 32))


class Latent(nn.Module):
    """A variational encoder: means, and log variances that are far smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(48, 64), nn.ReLU())
        self.mean, self.variance = nn.Linear(64, 16), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return 5 * self.mean(features), 0.02 * self.variance(features) - 0.1


def latent() -> Made:
    return vary(Latent(), (4, 48))


class Matching(nn.Module):
    """Two towers, normalised: how near each of four pairs is, and whether near enough."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(24, 32), nn.Linear(24, 32)

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        left, right = (
            functional.normalize(self.left(first), dim=-1),
            functional.normalize(self.right(second), dim=-1),
        )
        near = (left * right).sum(-1)
        return near, near > 0.1


def matching() -> Made:
    return vary(Matching(), (8, 24), (8, 24))


class Denoiser(nn.Module):
    """One step of diffusion over [1, 4, 16, 16], the time as a table of sines."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(4, 24, 3, 1, 1), nn.Conv2d(24, 4, 3, 1, 1)
        self.time = nn.Linear(16, 24)
        self.norm = nn.GroupNorm(4, 24)

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        x = self.into(noisy) + self.time(time)[:, :, None, None]
        return noisy - self.out(functional.silu(self.norm(x)))


def denoiser() -> Made:
    return vary(Denoiser(), (1, 4, 16, 16), (1, 16))


class Masked(nn.Module):
    """A classifier over padded steps: a mask of 0 and 1 comes in, and goes out as booleans."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(16, 32), nn.Linear(32, 6)

    def forward(self, steps: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        features = functional.relu(self.body(steps)) * mask
        logits: Tensor = self.head(features.sum(1) / mask.sum(1))
        return logits, mask > 0.5


def masked_pooling() -> Made:
    module, _, _ = vary(Masked(), (1, 1))
    sets: list[Inputs] = []
    for number in range(8):
        mask = (torch.arange(10) < 3 + number % 7).float()[None, :, None]
        sets.append((torch.randn(1, 10, 16), mask))
    return module, sets[0], sets[1:]
