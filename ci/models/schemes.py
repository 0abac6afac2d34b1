"""The quantization schemes of ExecuTorch and ONNX Runtime, one per row.

Most names contain the bits of activations and weights, such as ``16a8w``. Names that start with
``u`` are ONNX Runtime's, and so is ``asis``. ExecuTorch and ONNX Runtime both have ``fp16``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import TypeAlias

from msgspec import Struct

from ci.models.suite import LITERT_SUITE, SUITE
from provisioning.manifest.reader import read_policy
from provisioning.manifest.targets import Soc, read_htp_socs, read_litert_socs, read_socs


class Recipe(Struct, frozen=True):
    """How a scheme is lowered."""

    dtype: str = ""  # a member of ExecuTorch's QuantDtype; empty for fp16 and ONNX Runtime
    activation_bits: int = 11  # for float16, the size of the significand
    block: int = 0  # input channels that share a scale; 0 if the scheme has no blocks
    linear_as_convolution: bool = False  # lower linear layers as 1x1 convolutions
    training_steps: int = 0  # of quantization-aware training; 0: only calibrate ranges
    activations: str = ""  # a member of ONNX Runtime's QuantType, or "given"
    weights: str = ""  # likewise
    per_channel: bool = False  # a separate scale for each output channel of a convolution


FLOAT16 = Recipe()
TRAINING_STEPS = 64


class Scheme(str, Enum):
    """A scheme's name and its recipe."""

    recipe: Recipe
    _value_: str

    FP16 = "fp16"
    A8W8 = "8a8w", Recipe("use_8a8w", 8)
    A16W8 = "16a8w", Recipe("use_16a8w", 16)
    # Before Hexagon V73, QNN refuses linear layers with 16-bit weights.
    A16W16 = "16a16w", Recipe("use_16a16w", 16)
    A16W4 = "16a4w", Recipe("use_16a4w", 16)
    # Measured with QNN 2.49.40: a block-quantized linear layer with more than 64 outputs computes
    # wrong values (SQNR 3 dB); the same layer as a convolution is correct.
    A16W4_BLOCK = "16a4w_block", Recipe("use_16a4w_block", 16, block=32, linear_as_convolution=True)
    A8W4 = "8a4w", Recipe("use_8a4w", 8)
    # Measured: an ordinary model reaches only 0.2 dB, and one that was trained for 2-bit weights 10
    # dB or more.
    A16W2 = "16a2w", Recipe("use_16a2w", 16)
    FP16W8 = "fp16a8w", Recipe("use_fp16a8w")
    A8W8_TRAINED = "8a8w_qat", Recipe("use_8a8w", 8, training_steps=TRAINING_STEPS)
    A16W8_TRAINED = "16a8w_qat", Recipe("use_16a8w", 16, training_steps=TRAINING_STEPS)
    A16W4_TRAINED = "16a4w_qat", Recipe("use_16a4w", 16, training_steps=TRAINING_STEPS)
    U8 = "u8", Recipe("", 8, activations="QUInt8", weights="QUInt8")
    # HTP supports per-channel scales and 16-bit weights only with signed weights.
    U8_CHANNEL = (
        "u8_channel",
        Recipe("", 8, activations="QUInt8", weights="QInt8", per_channel=True),
    )
    # Against their quantized models, the suite's programs reach 40 to 53 dB with these weights, and
    # 74 dB with int8 weights.
    U16A8W = "u16a8w", Recipe("", 16, activations="QUInt16", weights="QUInt8")
    U16A8W_CHANNEL = (
        "u16a8w_channel",
        Recipe("", 16, activations="QUInt16", weights="QInt8", per_channel=True),
    )
    U16A16W = "u16a16w", Recipe("", 16, activations="QUInt16", weights="QInt16")
    U16A4W = "u16a4w", Recipe("", 16, activations="QUInt16", weights="QInt4", per_channel=True)
    # An ONNX file that is already quantized. It contains its own types.
    ASIS = "asis", Recipe("", 0, activations="given", weights="given")

    def __new__(cls, name: str, recipe: Recipe = FLOAT16) -> Scheme:  # noqa: PYI034 - Python 3.10
        member = str.__new__(cls, name)
        member._value_ = name
        member.recipe = recipe
        return member

    def __str__(self) -> str:
        return self.value

    @property
    def quantized(self) -> bool:
        """Return whether the scheme quantizes."""
        return bool(self.recipe.dtype or self.recipe.activations)

    @property
    def base(self) -> Scheme:
        """Return the scheme itself; a Mixture has another one."""
        return self

    @property
    def weight_bits(self) -> int:
        """Return the bits of a quantized weight, or 0 if there is none or they are unknown."""
        bits = re.search(r"(\d+)w?(?:_block)?$", self.recipe.dtype or self.recipe.weights)
        return int(bits[1]) if bits else 0


@dataclass(frozen=True)
class Mixture:
    """A scheme that a model's entry in a policy defines. ``value`` is its name. The lowering
    options of its cases select the parts of the model that have another scheme than ``base``."""

    value: str
    base: Scheme

    def __str__(self) -> str:
        return self.value

    @property
    def recipe(self) -> Recipe:
        """Return the recipe of the base."""
        return self.base.recipe

    @property
    def quantized(self) -> bool:
        """Return whether the base quantizes."""
        return self.base.quantized


class Alternatives(Struct, frozen=True, forbid_unknown_fields=True):
    """Other schemes for a model that fails in a scheme. The comments in alternatives.toml explain
    each field."""

    finer: Scheme | None = None
    around: tuple[Scheme, ...] = ()
    whole: tuple[Scheme, ...] = ()


@cache
def read_alternatives() -> Mapping[Scheme, Alternatives]:
    """Return the other schemes for each scheme that has any. Raises ManifestError."""
    return read_policy("alternatives", dict[Scheme, Alternatives])


def find_alternatives(scheme: Scheme) -> Alternatives:
    """Return the other schemes for a model that fails in this one. Raises ManifestError."""
    return read_alternatives().get(scheme, Alternatives())


AnyScheme: TypeAlias = Scheme | Mixture

# How others write the bits of activations (a) and weights (w)
SPELLINGS = tuple(
    map(
        re.compile,
        (
            r"a(?P<a>\d+)w(?P<w>\d+)",
            r"(?P<a>\d+)a(?P<w>\d+)w",
            r"w(?P<w>\d+)a(?P<a>\d+)",
            r"(?P<w>\d+)w(?P<a>\d+)a",
            r"(?P<a>(?P<w>8))(?:bits?)?",
        ),
    )
)
FLOATS = frozenset({"fp16", "f16", "float16", "half", "float"})
SEPARATORS = re.compile(r"[\s_/,-]|u?int")


def read_spelling(word: str) -> Scheme | None:
    """Return the scheme of ExecuTorch that another spelling of its bits means, such as W8A8, w8a16,
    8w8a or int8, or fp16 for float16. None if it means none."""
    squeezed = SEPARATORS.sub("", word.lower())
    if squeezed in FLOATS:
        return Scheme.FP16
    for spelling in SPELLINGS:
        if bits := spelling.fullmatch(squeezed):
            widths = (int(bits["a"]), int(bits["w"]))
            for scheme in Scheme:
                if (scheme.recipe.activation_bits, scheme.weight_bits) == widths:
                    return scheme
    return None


@dataclass(frozen=True)
class SchemeSet:
    """The schemes of a lane (ExecuTorch, ONNX Runtime or LiteRT). A model that specifies no schemes
    is tested with those in ``default``. ``suffix`` is the suffix of the model files that the lane
    accepts, or "" if it accepts none, ``title`` what its compiler is called, and ``suite`` this
    project's models with their descriptions. ``unused_keys`` are those of a model's entry in a
    policy that have no effect for such a file, with the reasons, and ``socs`` returns the SoCs that
    the lane compiles for. ``runtime`` is the lane's name in options and reports."""

    schemes: tuple[Scheme, ...]
    default: tuple[Scheme, ...]
    suffix: str = ""
    title: str = "ExecuTorch"
    suite: Mapping[str, str] = field(default_factory=lambda: SUITE)
    unused_keys: Mapping[str, str] = field(default_factory=dict)
    socs: Callable[[], Mapping[str, Soc]] = read_socs
    runtime: str = "executorch"

    def find_counterpart(self, scheme: Scheme) -> Scheme | None:
        """Return this lane's scheme for what ``scheme`` of another lane is: the one with as many
        bits, or fp16 if this lane quantizes nothing itself. None if there is none."""
        if scheme in self.schemes or not scheme.quantized:
            return scheme if scheme in self.schemes else None
        widths = (scheme.recipe.activation_bits, scheme.weight_bits)
        quantizing = [candidate for candidate in self.schemes if candidate.weight_bits]
        for candidate in quantizing:
            if (candidate.recipe.activation_bits, candidate.weight_bits) == widths:
                return candidate
        is_float = not quantizing and Scheme.FP16 in self.schemes
        return Scheme.FP16 if is_float else None

    def translate(self, schemes: Iterable[AnyScheme]) -> list[AnyScheme]:
        """Return this lane's schemes for those of any lane, each once. A mixture of a scheme that
        this lane has stands for itself, and another one for its base."""
        own_schemes: list[AnyScheme] = []
        for scheme in schemes:
            is_own = scheme.base in self.schemes
            counterpart = scheme if is_own else self.find_counterpart(scheme.base)
            if counterpart and counterpart not in own_schemes:
                own_schemes.append(counterpart)
        return own_schemes

    def repeat_runtime(self, *, is_file: bool) -> list[str]:
        """Return the words that choose this lane for a model in a command: none for ExecuTorch,
        which is the default, nor for a file, which only one runtime takes."""
        is_default = is_file or self.runtime == "executorch"
        return [] if is_default else ["--runtime", self.runtime]

    @property
    def file_kind(self) -> str:
        """Return what a file of the lane is called: ``an .onnx file``, or ``a .tflite file``."""
        article = "an" if self.suffix[1:2] in {"a", "e", "i", "o", "u"} else "a"
        return f"{article} {self.suffix} file"


EXECUTORCH = SchemeSet(
    tuple(scheme for scheme in Scheme if not scheme.recipe.activations),
    (Scheme.FP16, Scheme.A8W8, Scheme.A16W8),
)
ON_NO_DEVICE = "this project runs no program of ONNX Runtime on a device"
ONNX = SchemeSet(
    tuple(scheme for scheme in Scheme if not scheme.recipe.dtype),
    (Scheme.FP16, Scheme.U8, Scheme.U16A8W),
    ".onnx",
    "ONNX Runtime",
    unused_keys=dict.fromkeys(
        ("budget.p50_ms", "budget.p90_ms", "budget.load_ms", "budget.device_memory_bytes"),
        ON_NO_DEVICE,
    ),
    socs=read_htp_socs,
    runtime="onnxruntime",
)
# A file is compiled as it is: in float16, or with the integers that it has.
UNTIMED = "the times of the programs of LiteRT's plugin are predicted, but not measured"
LITERT = SchemeSet(
    (Scheme.ASIS, Scheme.FP16),
    (Scheme.ASIS,),
    ".tflite",
    "LiteRT",
    LITERT_SUITE,
    {
        "calibration": "LiteRT's plugin compiles it with the numbers that it has, so nothing is"
        " calibrated",
        "mixtures": "LiteRT's plugin compiles each operator with the type that it has",
        **dict.fromkeys(("budget.p50_ms", "budget.p90_ms", "budget.load_ms"), UNTIMED),
        "budget.device_memory_bytes": "this project runs no program of LiteRT on a device",
    },
    read_litert_socs,
    runtime="litert",
)
LANES_OF_FILES = (ONNX, LITERT)
MODEL_FILES = tuple(lane.suffix for lane in LANES_OF_FILES)
RUNTIMES = {lane.runtime: lane for lane in (EXECUTORCH, *LANES_OF_FILES)}
