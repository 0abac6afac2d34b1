"""The tables ``[models.NAME.lowering]``, ``[models.NAME.mixtures.X]`` and ``[models.NAME.run]`` of
a policy, and the lowering options that cannot be combined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, structs

from ci.models.schemes import AnyScheme, Mixture, Scheme
from provisioning.errors import UsageError

Word = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Observer = Literal["", "histogram", "moving_average", "percentile"]
LogLevel = Literal["off", "error", "warn", "info", "verbose", "debug"]
LOG_LEVELS = get_args(LogLevel)  # 0 to 5 in QNN


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """A different scheme for some nodes of a model: those to which all given selectors apply."""

    scheme: Scheme
    module: str = ""  # the name of a module; its submodules are included
    type: str = ""  # the name of a module class
    node: str = ""  # the name of a node in torch.export's graph or in an ONNX file
    op: str = ""  # the name of an operator, such as softmax
    line: str = ""  # file.py:line of the call
    tensor: str = ""  # the name of a tensor in an ONNX file

    def __post_init__(self) -> None:
        if not self.selectors:
            raise ValueError("a part must have one of module, type, node, op, line and tensor")

    @property
    def selectors(self) -> dict[str, str]:
        """Return the selectors that are not empty, by name."""
        fields = structs.asdict(self)
        return {name: fields[name] for name in SELECTORS if fields[name]}

    def __str__(self) -> str:
        return f"{' '.join(self.selectors.values())} {self.scheme}"


SELECTORS = ("module", "type", "node", "op", "line", "tensor")


class RunOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The table ``[models.NAME.run]``: flags of qnn_executor_runner, under their original names.
    LPAI flags that are 0 are not passed to the runner."""

    warm_up: Count = 0  # untimed runs of each sample, before the timed ones
    # Timed runs of each sample. On a device, 1 stands for 10.
    iteration: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    lpai_fps: Count = 0
    lpai_ftrt_ratio: Count = 0
    lpai_client_perf_type: Literal[0, 1, 2] = 0
    lpai_affinity: Literal[0, 1, 2] = 0
    lpai_core_selection: Count = 0

    @property
    def flags(self) -> dict[str, int]:
        """Return the flags that differ from the default."""
        defaults, fields = structs.asdict(ONE_RUN), structs.asdict(self)
        return {name: value for name, value in fields.items() if value != defaults[name]}

    @property
    def of_lpai(self) -> tuple[str, ...]:
        """Return the flags that apply only to LPAI, QNN's low-power AI backend."""
        return tuple(name for name in self.flags if name.startswith("lpai_"))

    def __str__(self) -> str:
        """Return the flags as text, such as ``warm_up 2, iteration 10``."""
        return ", ".join(f"{name} {value}" for name, value in self.flags.items())


ONE_RUN = RunOptions()


class Quantizing(Struct, frozen=True, forbid_unknown_fields=True):
    """The lowering options that determine how a model is quantized."""

    discard_nodes: tuple[Word, ...] = ()  # nodes that are not quantized
    # input channels that share a scale in a block scheme; 0 for the scheme's default
    block_size: Count = 0
    parts: tuple[Part, ...] = ()
    annotation: str = ""  # file.py:function that takes a GraphModule and annotates it
    recipe: str = ""  # file.py:function that returns a QuantRecipe
    # how ranges follow from the calibration samples, instead of their minimum and maximum
    observer: Observer = ""

    def chosen(self) -> Iterator[tuple[str, Any]]:
        """Return the names and values of the options that differ from the default."""
        return ((name, value) for name, value in structs.asdict(self).items() if value)


QUANTIZING = Quantizing.__struct_fields__
OF_ONNX = frozenset({"parts", "observer"})  # onnxruntime's quantizer has these


class MixtureEntry(Quantizing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[models.NAME.mixtures.X]``: a scheme, and what differs from it."""

    base: Scheme


class Choices(Quantizing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lowering options, with ExecuTorch's names where it has them."""

    skip_nodes: tuple[Word, ...] = ()  # nodes that stay on the CPU
    skip_ops: tuple[Word, ...] = ()  # operators that stay on the CPU
    online_prepare: bool = False
    shared_buffer: bool = False
    dump_intermediate_outputs: bool = False
    profile_level: Literal["", "detailed", "optrace"] = ""
    saver: bool = False  # whether QNN's Saver writes the API calls as C code
    methods: tuple[Word, ...] = ()  # functions in the model's file, each a method of the program
    weight_sharing: bool = False  # whether the methods' weights are stored once
    log_level: Literal["", LogLevel] = ""  # of QNN's log, for the compiler and the runtime

    @property
    def functions(self) -> tuple[str, ...]:
        """Return the user's functions that are called during lowering. No cache key can include
        what they do."""
        return tuple(filter(None, (self.annotation, self.recipe)))

    @property
    def traces(self) -> bool:
        """Return whether a run writes a trace."""
        return bool(self.profile_level or self.dump_intermediate_outputs)

    def __str__(self) -> str:
        """Return the options as text, such as ``skip_ops aten.add.Tensor, shared_buffer``."""
        skipped_first = sorted(self.chosen(), key=lambda row: not row[0].startswith("skip_"))
        return ", ".join(_describe(name, value) for name, value in skipped_first)

    def mix(self, mixture: MixtureEntry) -> Choices:
        """Return these options with those of a mixture."""
        quantizing = {name: getattr(mixture, name) for name in QUANTIZING}
        return structs.replace(self, **quantizing)


def _describe(name: str, value: Any) -> str:
    if value is True:
        return name
    if isinstance(value, str):
        return f"{name} {value.rpartition('/')[2]}"  # of a path, only the file
    if isinstance(value, int):
        return f"{name} {value}"
    return f"{name} {' + '.join(map(str, value))}"


NO_CHOICES = Choices()
PROFILE_LEVELS = {"": 0, "detailed": 2, "optrace": 3}


# Pairs of options that cannot be combined, and why: ExecuTorch 1.5.1 refuses the pair, or silently
# ignores one of them.
EXCLUSIONS = (
    *(
        ("recipe", option, "QnnQuantizer.annotate reads only the recipe")
        for option in QUANTIZING
        if option != "recipe"
    ),
    ("dump_intermediate_outputs", "methods", "all methods would have the same debug handles"),
    ("profile_level", "dump_intermediate_outputs", "dumping outputs changes the times"),
    ("profile_level", "methods", "a trace does not name the method of an event"),
    ("saver", "methods", "ExecuTorch saves only the first method"),
    ("online_prepare", "weight_sharing", "weights are shared only if this host compiles contexts"),
    ("online_prepare", "methods", "a DLC is loaded by the name of a single graph"),
)


def check_choices(choices: Choices, scheme: AnyScheme, model: str) -> None:
    """Raise UsageError for options that cannot be combined or do not work with the scheme."""
    table = f"mixtures.{scheme}" if isinstance(scheme, Mixture) else "lowering"
    for problem, why in _find_faults(choices, scheme):
        raise UsageError(f"models.{model}.{table}: {problem}", why=why)


def _find_faults(choices: Choices, scheme: AnyScheme) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with options, and why."""
    names = {name for name, _ in choices.chosen()}
    for first, second, why in EXCLUSIONS:
        if {first, second} <= names:
            yield f"{first} and {second} cannot be combined", why
    if choices.weight_sharing and not choices.methods:
        yield "weight_sharing needs methods", "a single graph has nothing to share weights with"
    if len({"forward", *choices.methods}) <= len(choices.methods):
        yield (
            "a method is listed twice",
            "each name must be different; forward is already the first method",
        )
    if isinstance(scheme, Mixture) and not names.intersection(QUANTIZING):
        why = "a mixture needs parts, annotation, recipe, discard_nodes, block_size or observer"
        yield f"it is the same as {scheme.base.value}", why
    yield from _find_misfits(choices, scheme.base)


def _find_misfits(choices: Choices, base: Scheme) -> Iterator[tuple[str, str]]:
    """Yield which options do not fit the scheme, and why."""
    names = {name for name, _ in choices.chosen()}
    quantizing = sorted(names.intersection(QUANTIZING))
    if quantizing and not base.quantized:
        yield f"{quantizing[0]} cannot be used with {base.value}", f"{base.value} quantizes nothing"
    elif choices.block_size and not base.recipe.block:
        yield f"block_size cannot be used with {base.value}", "it is only for 16a4w_block"
    if base is Scheme.ASIS and quantizing:
        yield f"{quantizing[0]} cannot be used with asis", "the file is already quantized"
    elif base.recipe.activations and (foreign := set(quantizing) - OF_ONNX):
        yield f"{min(foreign)} cannot be used with {base.value}", "only ExecuTorch supports it"
    elif choices.observer and base.quantized and base.recipe.training_steps:
        yield f"observer cannot be used with {base.value}", "its ranges are trained"
    elif choices.observer == ("histogram" if base.recipe.activations else "percentile"):
        why = "percentile is for onnxruntime, and histogram for ExecuTorch"
        yield f"the observer {choices.observer} cannot be used with {base.value}", why
    for part in choices.parts:
        yield from _find_part_faults(part, base)


def _find_part_faults(part: Part, base: Scheme) -> Iterator[tuple[str, str]]:
    recipe = part.scheme.recipe
    is_onnx = bool(base.recipe.activations)
    fits = recipe.activations if is_onnx else recipe.dtype
    # Nor float16: QNN takes almost no unquantized node in a quantized model
    # (docs/guides/precision.md).
    if not fits or recipe.block or part.scheme is Scheme.ASIS:
        lane = "ONNX Runtime" if is_onnx else "ExecuTorch without blocks"
        why = f"a part of {base.value} needs a quantized scheme of {lane}"
        yield f"the part {part} has an unsuitable scheme", why
    if part.tensor and not is_onnx:
        yield f"the part {part} selects a tensor", "only ONNX files have named tensors"
    if bool(recipe.training_steps) != bool(base.recipe.training_steps):
        yield f"the part {part} does not fit {base.value}", "a model is trained only as a whole"
