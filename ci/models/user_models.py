"""A model of a user's policy: where it is, and the data and metric that go with it."""

from __future__ import annotations

import ast
import difflib
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, field, structs

from ci.models.lowering_options import NO_CHOICES, ONE_RUN, Choices, RunOptions
from ci.models.schemes import ONNX, Scheme
from ci.models.suite import SUITE
from ci.report.schema import Budget
from provisioning.errors import UsageError, at_key

FileOrFunction = Annotated[str, Meta(min_length=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Difference = Annotated[float, Meta(ge=0)]
Decibels = Annotated[float, Meta(ge=0)]  # below 0 dB there is more error than signal
Shape = tuple[Annotated[int, Meta(ge=1)], ...]
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
FACTORY, FUNCTION = "factory", "function"
# With one of these, a module may have names that its source does not bind.
DYNAMIC = frozenset({"*", "__getattr__", "exec", "eval", "globals", "locals", "vars", "setattr"})


class OutputLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of an output; the fields are those of the report's Threshold.

    ``min_sqnr_db`` and ``min_cosine`` are for the worst input set, ``min_sqnr_db_all`` for all at
    once; those named ``_quantized`` are in addition to the prediction of noise, which the error
    may exceed by ``max_above_noise_db``.
    """

    min_sqnr_db: Decibels | None = None
    min_sqnr_db_all: Decibels | None = None
    min_cosine: Share | None = None
    min_sqnr_db_quantized: Decibels | None = None
    min_cosine_quantized: Share | None = None
    max_above_noise_db: Decibels | None = None
    min_equal: Share | None = None
    min_equal_quantized: Share | None = None
    max_abs: Difference | None = None

    def __post_init__(self) -> None:
        for name, value in structs.asdict(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} is {value}")

    @property
    def given(self) -> dict[str, Any]:
        """The limits that are not None, by name."""
        names = OutputLimits.__struct_fields__
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Limits(OutputLimits, frozen=True, forbid_unknown_fields=True):
    """The limits of a scheme; ``outputs`` are limits of single outputs, by their index."""

    full_delegation: bool = True
    outputs: dict[Annotated[str, Meta(pattern="^[0-9]+$")], OutputLimits] = {}


class ModelBudget(Budget, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model's programs may take, in all schemes and in single ones."""

    schemes: dict[Scheme, Budget] = field(default_factory=dict)

    def of(self, scheme: Scheme) -> Budget:
        """Return the budget of a scheme."""
        return Budget().merge(self).merge(self.schemes.get(scheme, Budget()))


class ReferencePolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Below ``min_rms``, or with a spread below ``min_spread`` of it, a reference is refused."""

    min_rms: float
    min_spread: float


class Source(Struct, frozen=True):
    """A user's model: ``/whole/path/file.py:factory``, and files or functions of the same form
    that give the inputs to calibrate on and to judge on, instead of the factory's; or
    ``reference`` is a model of the suite. ``choices`` say how it is lowered, ``run`` how its
    program runs, ``shapes`` are those of an ONNX file's inputs by name, ``float_model`` is the file
    that a quantized one was made of."""

    reference: str = ""
    calibration: str = ""
    inputs: str = ""
    choices: Choices = NO_CHOICES
    run: RunOptions = ONE_RUN
    shapes: tuple[tuple[str, Shape], ...] = ()
    float_model: str = ""

    @property
    def has_data(self) -> bool:
        return bool(self.calibration or self.inputs)


NO_SOURCE = Source()


class Metric(Struct, frozen=True, forbid_unknown_fields=True):
    """``function`` of (outputs, labels), of which more is better.

    The program may have ``max_drop`` less of it than the float32 model, and at least ``min``. With
    ``strict``, a program that has it fails all the same if its model is not quantized well.
    """

    function: FileOrFunction
    labels: FileOrFunction
    max_drop: Annotated[float, Meta(ge=0)]
    min: float | None = None
    strict: bool = False

    @property
    def name(self) -> str:
        """``top1`` of metrics.py:top1."""
        return self.function.rpartition(":")[2]


class MetricJob(Struct, frozen=True):
    """``outputs`` of a program, the ``float32`` and the ``quantized`` model: an array per output,
    [sets, *shape]."""

    metric: Metric
    outputs: list[Any]
    float32: list[Any]
    quantized: list[Any] | None = None

    def __call__(self) -> MetricResult:
        """Measure in the process of a worker."""
        from ci.models.user_data import run_metric

        return run_metric(self)


class MetricResult(Struct, frozen=True):
    """What the metric is of the program, of the float32 model, of a program that gave each input's
    outputs for the next, and of the quantized model."""

    value: float
    float32: float
    shifted: float
    quantized: float | None = None


class ModelEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A model of the user's, ``path`` being ``file.py:factory``, an .onnx file or a model of the
    suite; paths are relative to the policy.

    ``lowering`` is what it is lowered with, ``run`` what its program is run with, ``limits`` are
    its own, by scheme, ``budget`` is what its programs may take. ``shapes`` are those of the inputs
    of an .onnx file, by name, ``float_model`` is what a quantized one was made of.
    """

    path: FileOrFunction
    schemes: tuple[Scheme, ...] = ()
    socs: tuple[str, ...] = ()
    calibration: str = ""
    inputs: str = ""
    lowering: Choices = NO_CHOICES
    run: RunOptions = ONE_RUN
    limits: dict[Scheme, Limits] = field(default_factory=dict)
    budget: ModelBudget = ModelBudget()
    metric: Metric | None = None
    shapes: dict[str, Shape] = field(default_factory=dict)
    float_model: str = ""

    @property
    def source(self) -> Source:
        """What is lowered."""
        shapes = tuple(self.shapes.items())
        return Source(
            self.path,
            self.calibration,
            self.inputs,
            self.lowering,
            self.run,
            shapes,
            self.float_model,
        )


def resolve_entry(name: str, entry: ModelEntry, folder: Path) -> ModelEntry:
    """The entry with whole paths. Raises UsageError for a name or a file that will not do."""
    if not NAME.fullmatch(name) or name in SUITE:
        raise UsageError(
            f"models.{name} is not a name for a model",
            why="the suite has one of that name" if name in SUITE else "",
            fix="letters, digits and . _ - between them, at most 64",
        )

    if entry.shapes and not entry.path.endswith(ONNX.suffix):
        fix = "a factory's inputs have the shapes that it gives them"
        raise UsageError(f"models.{name}.shapes are for an .onnx file", fix=fix)
    if entry.float_model and not entry.path.endswith(ONNX.suffix):
        fix = "what a factory returns is the float model: leave the key out"
        raise UsageError(f"models.{name}.float_model is for an .onnx file", fix=fix)

    def resolve(key: str, word: str, kind: str = "") -> str:
        if is_suite(word) and kind:
            return word
        with at_key(f"models.{name}.{key}"):
            return resolve_file(str(folder / word), kind) if word else ""

    metric = entry.metric and structs.replace(
        entry.metric,
        function=resolve("metric.function", entry.metric.function, FUNCTION),
        labels=resolve("metric.labels", entry.metric.labels),
    )
    return structs.replace(
        entry,
        path=resolve("path", entry.path, FACTORY),
        calibration=resolve("calibration", entry.calibration),
        inputs=resolve("inputs", entry.inputs),
        float_model=resolve("float_model", entry.float_model),
        lowering=structs.replace(
            entry.lowering,
            annotation=resolve("lowering.annotation", entry.lowering.annotation, "annotation"),
            recipe=resolve("lowering.recipe", entry.lowering.recipe, "recipe"),
        ),
        metric=metric,
    )


def is_suite(reference: str) -> bool:
    """Whether it is a model of the suite, or ``model:function`` of one."""
    return reference.partition(":")[0] in SUITE


def resolve_file(word: str, kind: str = "") -> str:
    """``file.py:function``, or where ``kind`` is empty a file of data, as a whole path.

    Raises UsageError.
    """
    file, _, function = word.rpartition(":")
    is_function = file.endswith(".py")
    is_model = kind == FACTORY and word.endswith(ONNX.suffix)
    what = f"no {'model' if kind == FACTORY else kind or 'file'} {word!r}"
    if word.endswith(".py"):
        raise UsageError(f"{word!r} names no function", fix=f"write {word}:{kind or FUNCTION}")
    path = Path(os.path.abspath(file if is_function or (kind and file) else word))  # noqa: PTH100
    if not path.is_file():
        fix = "in a policy, paths are relative to it"
        raise UsageError(what, why=f"{path} is not a file", fix=fix)
    if kind and not is_function and not is_model:
        raise UsageError(what, why=f"{path} is not a Python file", fix=f"file.py:{kind}")
    if not str(path).isprintable():  # it stands in reports, which are UTF-8 text
        why = "its path has bytes that are not UTF-8, or control characters"
        raise UsageError(what, why=why, fix="rename or copy it")
    if is_function:
        require_function(path, function)
    return f"{path}:{function}" if is_function else str(path)


def require_function(path: Path, function: str) -> None:
    """Raises UsageError if a Python file binds names and the function's is not one of them. What
    only its import can tell, as with ``from models import *`` or an error of syntax, is left to
    that."""
    bound: set[str] = set()
    used: set[str] = set()
    try:
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name):
                    (bound if isinstance(node.ctx, ast.Store) else used).add(name)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    bound.add(name)
                case ast.ClassDef(name=name) | ast.alias(asname=str(name)):
                    bound.add(name)
                case ast.alias(name=name):
                    bound.add(name.partition(".")[0])
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    if bound and function not in bound and not (bound | used) & DYNAMIC:
        own = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        raise lacks_function(path, function, own)


def lacks_function(path: Path, function: str, own: Sequence[str]) -> UsageError:
    """Return the error for a function that a file lacks; ``own`` are those that it has."""
    near = difflib.get_close_matches(function, own, n=1)
    has = f"it has {', '.join(own)}" if own else "it defines none"
    return UsageError(
        f"{path} has no function {function!r}", fix=f"write {path.name}:{near[0]}" if near else has
    )
