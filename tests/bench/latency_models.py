"""Public models of AI Hub, rebuilt without weights: their times on devices are published, and the
simulator's cycles depend on the graph, not on the weights.

They need torchvision, timm, transformers and ultralytics, which only this bench installs. Sizes are
facts of the models' public configurations; the input sizes are those of the published figures.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Built = tuple[nn.Module, tuple[Tensor, ...]]


@dataclass(frozen=True)
class Rebuilt:
    """A model: its family, the component of the published figures ("" if there is only one), and
    whether it was chosen as a test before anything was fitted."""

    family: str
    make: Callable[[], Built]
    component: str = ""
    held_out: bool = False


@cache
def define_operators() -> torch.library.Library:
    """Define the operators of torchvision's C++ library as schemas. The library of the wheel is
    built for another torch, and the models here do not call it."""
    spec = importlib.util.find_spec("torchvision")
    root = Path(spec.origin).parent  # type: ignore[union-attr,arg-type]
    text = "".join(
        (root / name).read_text(encoding="utf-8")
        for name in ("_meta_registrations.py", "_autograd_registrations.py")
    )
    names = re.findall(r'(?:torchvision::|register_meta\("|ops\.torchvision\.)(\w+)', text)
    library = torch.library.Library("torchvision", "DEF")
    for name in sorted(set(names)):
        library.define(f"{name}(Tensor x) -> Tensor")
    return library  # the cache keeps it alive


class Normalized(nn.Module):
    """A classifier with the input normalization that the published programs contain."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.mean = nn.Buffer(torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1))
        self.std = nn.Buffer(torch.tensor([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1))

    def forward(self, image: Tensor) -> Any:
        return self.module((image - self.mean) / self.std)


class Wrapped(nn.Module):
    """Calls ``function`` with a module and the inputs."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self.module, *inputs)


def image(size: int, height: int = 0, channels: int = 3) -> tuple[Tensor]:
    return (torch.rand(1, channels, height or size, size),)


def vision(name: str, size: int = 224) -> Built:
    define_operators()
    from torchvision import models

    options = {"init_weights": False} if name in {"googlenet", "inception_v3"} else {}
    if name in {"googlenet", "inception_v3"}:
        options |= {"transform_input": False}
    model = models.get_model(name, weights=None, **options)
    if hasattr(model, "aux_logits"):
        model.aux_logits, model.AuxLogits = False, None
        model.aux1 = model.aux2 = None
    return Normalized(model), image(size)


def video(name: str) -> Built:
    define_operators()
    from torchvision import models

    return models.get_model(name, weights=None), (torch.rand(1, 3, 16, 112, 112),)


def segment(name: str, size: int) -> Built:
    define_operators()
    from torchvision import models

    model = models.get_model(name, weights=None, weights_backbone=None)
    model.aux_classifier = None
    return Normalized(Wrapped(model, lambda net, x: net(x)["out"].argmax(1))), image(size)


def timm(name: str, size: int = 224, **options: Any) -> Built:
    define_operators()
    import timm as library

    return Normalized(library.create_model(name, pretrained=False, **options)), image(size)


def yolo(config: str, size: int = 640, classes: int = 80) -> Built:
    define_operators()
    from ultralytics.nn.tasks import DetectionModel, SegmentationModel

    kind = SegmentationModel if "seg" in config else DetectionModel
    model = kind(config, ch=3, nc=classes, verbose=False).eval().fuse()
    head = model.model[-1]
    head.export, head.format = True, "onnx"
    if hasattr(head, "end2end"):
        head.end2end = False

    def decode(net: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        output = net(x)
        rows, extra = (output[0], output[1:]) if isinstance(output, tuple) else (output, ())
        center, half = rows[:, :2], rows[:, 2:4] / 2
        boxes = torch.cat([center - half, center + half], 1).transpose(1, 2)
        scores, kinds = rows[:, 4 : 4 + classes].max(1)
        further = (rows[:, 4 + classes :].transpose(1, 2),) if extra else ()
        return boxes, scores, kinds, *further, *extra

    return Wrapped(model, decode), image(size)


def bert(kind: str, tokens: int, **config: Any) -> Built:
    define_operators()
    import transformers

    settings = getattr(transformers, f"{kind}Config")(**config)
    settings._attn_implementation = "eager"
    head = {"Distil": "DistilBert"}.get(kind, kind)
    name = f"{head}Model" if tokens == 128 else f"{head}ForMaskedLM"
    model = getattr(transformers, name)(settings)

    def call(net: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        return net(input_ids=ids, attention_mask=mask)[0]

    ids = torch.randint(0, 1000, (1, tokens), dtype=torch.int32)
    return Wrapped(model, call), (ids, torch.ones(1, 1, 1, tokens))


def electra() -> Built:
    return bert(
        "Electra",
        384,
        embedding_size=768,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
    )


def whisper(width: int, layers: int, heads: int) -> Built:
    define_operators()
    import transformers
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    settings = transformers.WhisperConfig(
        d_model=width,
        encoder_layers=layers,
        encoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        num_mel_bins=80,
    )
    settings._attn_implementation = "eager"
    model = WhisperEncoder(settings)
    return Wrapped(model, lambda net, x: net(x)[0]), (torch.rand(1, 80, 3000),)


def hugging(
    kind: str, config: Any, inputs: tuple[Tensor, ...], output: str, **options: Any
) -> Built:
    define_operators()
    import transformers

    settings = getattr(transformers, f"{config}Config")(**options)
    settings._attn_implementation = "eager"
    model = getattr(transformers, kind)(settings)
    return Normalized(Wrapped(model, lambda net, *x: getattr(net(*x), output))), inputs


def depth() -> Built:
    define_operators()
    import transformers

    backbone = transformers.Dinov2Config(
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=6,
        image_size=518,
        patch_size=14,
        out_indices=[9, 10, 11, 12],
        reshape_hidden_states=False,
        apply_layernorm=True,
    )
    settings = transformers.DepthAnythingConfig(
        backbone_config=backbone,
        reassemble_hidden_size=384,
        patch_size=14,
        neck_hidden_sizes=[48, 96, 192, 384],
        fusion_hidden_size=64,
        head_in_index=-1,
    )
    settings._attn_implementation = backbone._attn_implementation = "eager"
    model = transformers.DepthAnythingForDepthEstimation(settings)
    return Normalized(Wrapped(model, lambda net, x: net(x).predicted_depth)), image(518)


def detr(layers: str, *, dilated: bool = False, conditional: bool = False) -> Built:
    define_operators()
    import transformers

    name = "ConditionalDetr" if conditional else "Detr"
    settings = getattr(transformers, f"{name}Config")(
        use_timm_backbone=True,
        use_pretrained_backbone=False,
        backbone=f"resnet{layers}",
        backbone_config=None,
        dilation=dilated,
        num_queries=300 if conditional else 100,
        num_labels=91,
    )
    settings._attn_implementation = "eager"
    model = getattr(transformers, f"{name}ForObjectDetection")(settings)

    def call(net: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        output = net(x, pixel_mask=torch.ones(1, 480, 480))
        scores, kinds = output.logits.softmax(-1)[..., :-1].max(-1)
        return output.pred_boxes, scores, kinds

    return Wrapped(model, call), image(480)


def convolution(before: int, after: int, kernel: int = 3, *, relu: bool = False) -> nn.Module:
    layer = nn.Conv2d(before, after, kernel, padding=kernel // 2)
    return nn.Sequential(layer, nn.ReLU()) if relu else layer


class QuickSr(nn.Module):
    """QuickSRNet: convolutions with clipping, and a pixel shuffle."""

    def __init__(self, width: int, between: int, *, residual: bool = False) -> None:
        super().__init__()
        self.first = nn.Sequential(convolution(3, width), nn.Hardtanh(0, 1))
        self.body = nn.ModuleList(
            nn.Sequential(convolution(width, width), nn.Hardtanh(0, 1)) for _ in range(between)
        )
        self.last = convolution(width, 48)
        self.add = nn.Conv2d(3, 48, 1) if residual else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        for layer in self.body:
            y = layer(y)
        y = self.last(y)
        y = y + self.add(x) if self.add is not None else y
        return functional.pixel_shuffle(y, 4).clamp(0, 1)


class Sesr(nn.Module):
    """SESR-M5 with its expanded layers, as its parameters count them."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(3, 16, 5), *[(16, 16, 3)] * 5, (16, 48, 5)]
        self.parts = nn.ModuleList(
            nn.Sequential(convolution(before, 256, kernel), nn.Conv2d(256, after, 1))
            for before, after, kernel in sizes
        )
        self.act = nn.ModuleList(nn.PReLU(16) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        first = y = self.act[0](self.parts[0](x))
        for part, act in zip(self.parts[1:6], self.act[1:], strict=True):
            y = act(part(y) + y)
        y = self.parts[6](y + first)
        return functional.pixel_shuffle(y + torch.cat([x] * 16, 1), 4).clamp(0, 1)


class Compact(nn.Module):
    """The compact network of Real-ESRGAN: convolutions with PReLU, and a shuffle."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [convolution(3, 64), nn.PReLU(64)]
        for _ in range(32):
            layers += [convolution(64, 64), nn.PReLU(64)]
        self.body = nn.Sequential(*layers, convolution(64, 48), nn.PixelShuffle(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + functional.interpolate(x, scale_factor=4, mode="nearest")


class Dense(nn.Module):
    """A residual dense block of ESRGAN."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(convolution(64 + 32 * n, 32) for n in range(4))
        self.last = convolution(192, 64)

    def forward(self, x: Tensor) -> Tensor:
        layers_so_far = [x]
        for layer in self.layers:
            layers_so_far.append(functional.leaky_relu(layer(torch.cat(layers_so_far, 1)), 0.2))
        return self.last(torch.cat(layers_so_far, 1)) * 0.2 + x


class Esrgan(nn.Module):
    """RRDBNet: 23 triples of dense blocks, enlarged four times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.after = convolution(3, 64), convolution(64, 64)
        self.body = nn.ModuleList(nn.Sequential(Dense(), Dense(), Dense()) for _ in range(23))
        self.up = nn.ModuleList(convolution(64, 64) for _ in range(3))
        self.last = convolution(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = y = self.first(x)
        for triple in self.body:
            y = triple(y) * 0.2 + y
        y = first + self.after(y)
        for layer in self.up[:2]:
            y = functional.interpolate(y, scale_factor=2, mode="nearest")
            y = functional.leaky_relu(layer(y), 0.2)
        return self.last(functional.leaky_relu(self.up[2](y), 0.2))


class Srgan(nn.Module):
    """SRResNet with 16 blocks, enlarged four times."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(convolution(3, 64, 9), nn.PReLU())
        self.body = nn.ModuleList(
            nn.Sequential(
                convolution(64, 64),
                nn.BatchNorm2d(64),
                nn.PReLU(),
                convolution(64, 64),
                nn.BatchNorm2d(64),
            )
            for _ in range(16)
        )
        self.after = nn.Sequential(convolution(64, 64), nn.BatchNorm2d(64))
        self.up = nn.Sequential(
            convolution(64, 256),
            nn.PixelShuffle(2),
            nn.PReLU(),
            convolution(64, 256),
            nn.PixelShuffle(2),
            nn.PReLU(),
        )
        self.last = convolution(64, 3, 9)

    def forward(self, x: Tensor) -> Tensor:
        first = y = self.first(x)
        for block in self.body:
            y = block(y) + y
        return self.last(self.up(self.after(y) + first))


class Denoiser(nn.Module):
    """DnCNN with 17 layers."""

    def __init__(self) -> None:
        super().__init__()
        body = [convolution(64, 64, relu=True) for _ in range(15)]
        self.body = nn.Sequential(convolution(1, 64, relu=True), *body, convolution(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.body(x)


class Unet(nn.Module):
    """The U-Net of 31 million parameters with transposed convolutions."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        widths = [64, 128, 256, 512, 1024]
        self.down = nn.ModuleList(
            self.double(before, after) for before, after in zip([3, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in widths[3::-1]
        )
        self.join = nn.ModuleList(self.double(2 * width, width) for width in widths[3::-1])
        self.last = nn.Conv2d(64, classes, 1)

    @staticmethod
    def double(before: int, after: int) -> nn.Module:
        return nn.Sequential(
            convolution(before, after, relu=True), convolution(after, after, relu=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for number, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if number else x)
            skipped.append(x)
        for number, (up, join) in enumerate(zip(self.up, self.join, strict=True)):
            x = join(torch.cat([skipped[3 - number], up(x)], 1))
        return self.last(x)


class Yamnet(nn.Module):
    """YAMNet: a MobileNet v1 for log-mel spectrograms."""

    def __init__(self) -> None:
        super().__init__()
        rows = [
            (64, 1),
            (128, 2),
            (128, 1),
            (256, 2),
            (256, 1),
            (512, 2),
            *[(512, 1)] * 5,
            (1024, 2),
            (1024, 1),
        ]
        layers, before = [nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU()], 32
        for width, stride in rows:
            layers += [
                nn.Conv2d(before, before, 3, stride, 1, groups=before),
                nn.ReLU(),
                nn.Conv2d(before, width, 1),
                nn.ReLU(),
            ]
            before = width
        self.body, self.last = nn.Sequential(*layers), nn.Linear(1024, 521)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x).mean((2, 3))).sigmoid()


class Posenet(nn.Module):
    """PoseNet on MobileNet v1 with an output stride of 16: four heads."""

    def __init__(self) -> None:
        super().__init__()
        rows = [
            (64, 1),
            (128, 2),
            (128, 1),
            (256, 2),
            (256, 1),
            (512, 2),
            *[(512, 1)] * 5,
            (1024, 1),
            (1024, 1),
        ]
        layers, before = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU6()], 32
        for width, stride in rows:
            layers += [
                nn.Conv2d(before, before, 3, stride, 1, groups=before),
                nn.ReLU6(),
                nn.Conv2d(before, width, 1),
                nn.ReLU6(),
            ]
            before = width
        self.body = nn.Sequential(*layers)
        self.heads = nn.ModuleList(nn.Conv2d(1024, width, 1) for width in (17, 34, 32, 32))

    def forward(self, x: Tensor) -> Any:
        y = self.body(x)
        scores, *further = [head(y) for head in self.heads]
        scores = scores.sigmoid()
        return scores, *further, functional.max_pool2d(scores, 3, 1, 1)


class Block(nn.Module):
    """A U2-Net block: a small U-Net with a residual."""

    def __init__(self, depth: int, before: int, middle: int, after: int, *, flat: bool) -> None:
        super().__init__()
        self.flat = flat
        self.first = self.layer(before, after)
        down = [self.layer(after, middle)]
        rates = [2**number for number in range(1, depth - 1)] if flat else [1] * (depth - 2)
        down += [self.layer(middle, middle, rate) for rate in rates]
        self.down = nn.ModuleList(down)
        self.bottom = self.layer(middle, middle, 2 ** (depth - 1) if flat else 2)
        up = [self.layer(2 * middle, middle, rate) for rate in reversed(rates)]
        self.up = nn.ModuleList([*up, self.layer(2 * middle, after)])

    @staticmethod
    def layer(before: int, after: int, rate: int = 1) -> nn.Module:
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=rate, dilation=rate), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        first = y = self.first(x)
        skipped = []
        for number, layer in enumerate(self.down):
            if number and not self.flat:
                y = functional.max_pool2d(y, 2, ceil_mode=True)
            y = layer(y)
            skipped.append(y)
        y = self.bottom(y)
        for layer in self.up:
            skip = skipped.pop()
            if y.shape != skip.shape:
                y = functional.interpolate(y, size=skip.shape[2:], mode="bilinear")
            y = layer(torch.cat([y, skip], 1))
        return y + first


class U2net(nn.Module):
    """U2-Net, 44 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        rows = [
            (7, 3, 32, 64),
            (6, 64, 32, 128),
            (5, 128, 64, 256),
            (4, 256, 128, 512),
            (4, 512, 256, 512),
            (4, 512, 256, 512),
        ]
        self.down = nn.ModuleList(Block(*row, flat=n > 3) for n, row in enumerate(rows))
        rows = [
            (4, 1024, 256, 512),
            (4, 1024, 128, 256),
            (5, 512, 64, 128),
            (6, 256, 32, 64),
            (7, 128, 16, 64),
        ]
        self.up = nn.ModuleList(Block(*row, flat=n == 0) for n, row in enumerate(rows))
        self.side = nn.ModuleList(convolution(n, 1) for n in (64, 64, 128, 256, 512, 512))
        self.join = nn.Conv2d(6, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        size, skipped = x.shape[2:], []
        for number, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if number else x)
            skipped.append(x)
        decoded = [x]
        for block, skip in zip(self.up, skipped[4::-1], strict=True):
            x = functional.interpolate(x, size=skip.shape[2:], mode="bilinear")
            x = block(torch.cat([x, skip], 1))
            decoded.append(x)
        maps = [
            functional.interpolate(side(features), size=size, mode="bilinear")
            for side, features in zip(self.side, decoded[::-1], strict=True)
        ]
        return self.join(torch.cat(maps, 1)).sigmoid()


def own(kind: Callable[[], nn.Module], *inputs: Tensor) -> Built:
    return kind(), inputs


CLASSIC, MOBILE, DENSE, MODERN = "residual", "mobile", "branches", "modern convolutions"
ATTENTION, DETECTOR, LARGER = "vision transformer", "yolo", "super resolution"
SEGMENT, LANGUAGE, SPEECH, VIDEO, DETR = "segmentation", "language", "speech", "video", "detr"
SMALL = torch.rand(1, 3, 128, 128)

MODELS: dict[str, Rebuilt] = {
    "resnet18": Rebuilt(CLASSIC, partial(vision, "resnet18")),
    "resnet50": Rebuilt(CLASSIC, partial(vision, "resnet50")),
    "resnet101": Rebuilt(CLASSIC, partial(vision, "resnet101")),
    "resnext50": Rebuilt(CLASSIC, partial(vision, "resnext50_32x4d"), held_out=True),
    "resnext101": Rebuilt(CLASSIC, partial(vision, "resnext101_32x8d")),
    "wideresnet50": Rebuilt(CLASSIC, partial(vision, "wide_resnet50_2")),
    "regnet": Rebuilt(CLASSIC, partial(vision, "regnet_x_3_2gf")),
    "regnet_y_800mf": Rebuilt(CLASSIC, partial(vision, "regnet_y_800mf")),
    "dla102x": Rebuilt(CLASSIC, partial(timm, "dla102x")),
    "mobilenet_v2": Rebuilt(MOBILE, partial(vision, "mobilenet_v2")),
    "mobilenet_v3_small": Rebuilt(MOBILE, partial(vision, "mobilenet_v3_small")),
    "mobilenet_v3_large": Rebuilt(MOBILE, partial(vision, "mobilenet_v3_large")),
    "mobilenet_v4": Rebuilt(MOBILE, partial(timm, "mobilenetv4_conv_medium")),
    "mnasnet05": Rebuilt(MOBILE, partial(vision, "mnasnet0_5")),
    "shufflenet_v2": Rebuilt(MOBILE, partial(vision, "shufflenet_v2_x0_5")),
    "efficientnet_b0": Rebuilt(MOBILE, partial(vision, "efficientnet_b0")),
    "efficientnet_b4": Rebuilt(MOBILE, partial(vision, "efficientnet_b4", 380)),
    "efficientnet_v2_s": Rebuilt(MOBILE, partial(vision, "efficientnet_v2_s", 384)),
    "efficientnet_lite4": Rebuilt(MOBILE, partial(timm, "efficientnet_lite4", 300)),
    "posenet_mobilenet": Rebuilt(MOBILE, partial(own, Posenet, torch.rand(1, 3, 513, 257))),
    "squeezenet1_1": Rebuilt(DENSE, partial(vision, "squeezenet1_1")),
    "googlenet": Rebuilt(DENSE, partial(vision, "googlenet")),
    "inception_v3": Rebuilt(DENSE, partial(vision, "inception_v3", 299)),
    "inception_v4": Rebuilt(DENSE, partial(timm, "inception_v4", 299)),
    "densenet121": Rebuilt(DENSE, partial(vision, "densenet121")),
    "nasnet": Rebuilt(DENSE, partial(timm, "nasnetalarge")),
    "hrnet_pose": Rebuilt(DENSE, partial(timm, "hrnet_w32")),
    "convnext_tiny": Rebuilt(MODERN, partial(vision, "convnext_tiny")),
    "convnext_base": Rebuilt(MODERN, partial(vision, "convnext_base")),
    "repvit": Rebuilt(MODERN, partial(timm, "repvit_m2_3")),
    "efficientvit_b2_cls": Rebuilt(MODERN, partial(timm, "efficientvit_b2", 224)),
    "efficientvit_l2_cls": Rebuilt(MODERN, partial(timm, "efficientvit_l2", 384)),
    "efficientformer": Rebuilt(MODERN, partial(timm, "efficientformer_l1")),
    "vit": Rebuilt(ATTENTION, partial(vision, "vit_b_16")),
    "beit": Rebuilt(ATTENTION, partial(timm, "beit_base_patch16_224")),
    "levit": Rebuilt(ATTENTION, partial(timm, "levit_128s")),
    "mobile_vit": Rebuilt(ATTENTION, partial(timm, "mobilevit_s", 256)),
    "swin_tiny": Rebuilt(ATTENTION, partial(vision, "swin_t"), held_out=True),
    "swin_small": Rebuilt(ATTENTION, partial(vision, "swin_s")),
    "swin_base": Rebuilt(ATTENTION, partial(vision, "swin_b")),
    "yolov3": Rebuilt(DETECTOR, partial(yolo, "yolov3-tiny.yaml", 416)),
    "yolov5": Rebuilt(DETECTOR, partial(yolo, "yolov5m.yaml")),
    "yolov8_det": Rebuilt(DETECTOR, partial(yolo, "yolov8n.yaml")),
    "yolov8_seg": Rebuilt(DETECTOR, partial(yolo, "yolov8n-seg.yaml")),
    "fastsam_s": Rebuilt(DETECTOR, partial(yolo, "yolov8s-seg.yaml", classes=1)),
    "yolov9_det": Rebuilt(DETECTOR, partial(yolo, "yolov9t.yaml")),
    "yolov10_det": Rebuilt(DETECTOR, partial(yolo, "yolov10n.yaml")),
    "yolov11_det": Rebuilt(DETECTOR, partial(yolo, "yolo11n.yaml"), held_out=True),
    "yolov11_seg": Rebuilt(DETECTOR, partial(yolo, "yolo11n-seg.yaml")),
    "yolo26_det": Rebuilt(DETECTOR, partial(yolo, "yolo26n.yaml")),
    "quicksrnetsmall": Rebuilt(LARGER, partial(own, partial(QuickSr, 32, 2), SMALL)),
    "quicksrnetmedium": Rebuilt(
        LARGER, partial(own, partial(QuickSr, 32, 5), SMALL), held_out=True
    ),
    "quicksrnetlarge": Rebuilt(
        LARGER, partial(own, partial(QuickSr, 64, 11, residual=True), SMALL)
    ),
    "sesr_m5": Rebuilt(LARGER, partial(own, Sesr, SMALL)),
    "real_esrgan_general_x4v3": Rebuilt(LARGER, partial(own, Compact, SMALL)),
    "real_esrgan_x4plus": Rebuilt(LARGER, partial(own, Esrgan, SMALL)),
    "srgan": Rebuilt(LARGER, partial(own, Srgan, SMALL)),
    "dncnn": Rebuilt(LARGER, partial(own, Denoiser, torch.rand(1, 1, 256, 256))),
    "fcn_resnet50": Rebuilt(SEGMENT, partial(segment, "fcn_resnet50", 520), held_out=True),
    "unet_segmentation": Rebuilt(SEGMENT, partial(own, Unet, torch.rand(1, 3, 640, 1280))),
    "u2net_segmentation": Rebuilt(SEGMENT, partial(own, U2net, torch.rand(1, 3, 320, 320))),
    "segformer_base": Rebuilt(
        SEGMENT,
        partial(
            hugging,
            "SegformerForSemanticSegmentation",
            "Segformer",
            image(512),
            "logits",
            num_labels=150,
            decoder_hidden_size=256,
        ),
        held_out=True,
    ),
    "depth_anything_v2": Rebuilt(SEGMENT, depth),
    "bert_base_uncased_hf": Rebuilt(LANGUAGE, partial(bert, "Bert", 384)),
    "distil_bert_base_uncased_hf": Rebuilt(
        LANGUAGE, partial(bert, "DistilBert", 384), held_out=True
    ),
    "albert_base_v2_hf": Rebuilt(
        LANGUAGE,
        partial(
            bert, "Albert", 384, hidden_size=768, num_attention_heads=12, intermediate_size=3072
        ),
    ),
    "electra_bert_base_discrim_google": Rebuilt(LANGUAGE, electra),
    "mobile_bert_uncased_google": Rebuilt(LANGUAGE, partial(bert, "MobileBert", 384)),
    "minilm_v2": Rebuilt(
        LANGUAGE,
        partial(
            bert,
            "Bert",
            128,
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
        ),
    ),
    "whisper_tiny": Rebuilt(SPEECH, partial(whisper, 384, 4, 6), "encoder"),
    "whisper_base": Rebuilt(SPEECH, partial(whisper, 512, 6, 8), "encoder"),
    "whisper_small": Rebuilt(SPEECH, partial(whisper, 768, 12, 12), "encoder"),
    "yamnet": Rebuilt(SPEECH, partial(own, Yamnet, torch.rand(1, 1, 96, 64))),
    "resnet_3d": Rebuilt(VIDEO, partial(video, "r3d_18")),
    "resnet_mixed": Rebuilt(VIDEO, partial(video, "mc3_18")),
    "resnet_2plus1d": Rebuilt(VIDEO, partial(video, "r2plus1d_18")),
    "detr_resnet50": Rebuilt(DETR, partial(detr, "50")),
    "detr_resnet101": Rebuilt(DETR, partial(detr, "101")),
    "detr_resnet50_dc5": Rebuilt(DETR, partial(detr, "50", dilated=True), held_out=True),
    "conditional_detr_resnet50": Rebuilt(DETR, partial(detr, "50", conditional=True)),
}
