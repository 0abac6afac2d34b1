"""The tables ``[models.NAME.lowering]`` and ``[models.NAME.run]`` of a policy, and the lowering
options that cannot be combined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, structs

from ci.models.schemes import Scheme
from provisioning.errors import UsageError

Word = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
LogLevel = Literal["off", "error", "warn", "info", "verbose", "debug"]
LOG_LEVELS = get_args(LogLevel)  # 0 to 5 in QNN


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """A different scheme for some nodes of a model. Exactly one of ``module``, ``type`` and
    ``node`` selects them."""

    scheme: Scheme
    module: str = ""  # the name of a module; its submodules are included
    type: str = ""  # the name of a module class
    node: str = ""  # the name of a node in torch.export's graph

    def __post_init__(self) -> None:
        if sum(map(bool, (self.module, self.type, self.node))) != 1:
            raise ValueError("a part must have exactly one of module, type or node")

    def __str__(self) -> str:
        return f"{self.module or self.type or self.node} {self.scheme.value}"


class RunOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The table ``[models.NAME.run]``: flags of qnn_executor_runner, under their original names.
    LPAI flags that are 0 are not passed to the runner."""

    warm_up: Count = 0  # untimed runs of each input set, before the timed ones
    # Timed runs of each input set. On a device, 1 stands for 10.
    iteration: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    lpai_fps: Count = 0
    lpai_ftrt_ratio: Count = 0
    lpai_client_perf_type: Literal[0, 1, 2] = 0
    lpai_affinity: Literal[0, 1, 2] = 0
    lpai_core_selection: Count = 0

    @property
    def flags(self) -> dict[str, int]:
        """Return the flags that differ from the default."""
        usual = structs.asdict(ONE_RUN)
        return {name: value for name, value in structs.asdict(self).items() if value != usual[name]}

    @property
    def of_lpai(self) -> tuple[str, ...]:
        """Return the flags that apply only to LPAI, QNN's low-power AI backend."""
        return tuple(name for name in self.flags if name.startswith("lpai_"))

    def __str__(self) -> str:
        """Return the flags as text, such as ``warm_up 2, iteration 10``."""
        return ", ".join(f"{name} {value}" for name, value in self.flags.items())


ONE_RUN = RunOptions()


class Choices(Struct, frozen=True, forbid_unknown_fields=True):
    """Lowering options, with ExecuTorch's names where it has them."""

    skip_nodes: tuple[Word, ...] = ()  # nodes that stay on the CPU
    skip_ops: tuple[Word, ...] = ()  # operators that stay on the CPU
    discard_nodes: tuple[Word, ...] = ()  # nodes that are not quantized
    # input channels that share a scale in a block scheme; 0 for the scheme's default
    block_size: Count = 0
    parts: tuple[Part, ...] = ()
    annotation: str = ""  # file.py:function that takes a GraphModule and annotates it
    recipe: str = ""  # file.py:function that returns a QuantRecipe
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
        return ", ".join(_tell(name, value) for name, value in self.chosen())

    def chosen(self) -> Iterator[tuple[str, Any]]:
        """Return the names and values of the options that differ from the default."""
        return ((name, value) for name, value in structs.asdict(self).items() if value)


def _tell(name: str, value: Any) -> str:
    if value is True:
        return name
    if isinstance(value, str):
        return f"{name} {value.rpartition('/')[2]}"
    return f"{name} {value if isinstance(value, int) else ' + '.join(map(str, value))}"


NO_CHOICES = Choices()
PROFILE_LEVELS = {"": 0, "detailed": 2, "optrace": 3}


# Pairs of options that cannot be combined, and why: ExecuTorch 1.5.1 refuses the pair, or silently
# ignores one of them.
EXCLUSIONS = (
    ("recipe", "parts", "QnnQuantizer.annotate reads only the recipe"),
    ("recipe", "annotation", "QnnQuantizer.annotate reads only the recipe"),
    ("recipe", "discard_nodes", "QnnQuantizer.annotate reads only the recipe"),
    ("recipe", "block_size", "QnnQuantizer.annotate reads only the recipe"),
    ("dump_intermediate_outputs", "methods", "all methods would have the same debug handles"),
    ("profile_level", "dump_intermediate_outputs", "dumping outputs changes the times"),
    ("profile_level", "methods", "a trace does not name the method of an event"),
    ("saver", "methods", "ExecuTorch saves only the first method"),
    (
        "online_prepare",
        "weight_sharing",
        "weights are shared only if this host compiles the context",
    ),
    ("online_prepare", "methods", "a DLC is loaded by the name of a single graph"),
)
QUANTIZING = ("parts", "annotation", "recipe", "discard_nodes", "block_size")


def check_choices(choices: Choices, scheme: Scheme, model: str) -> None:
    """Raise UsageError for options that cannot be combined or do not work with the scheme."""
    for what, why in _find_faults(choices, scheme):
        raise UsageError(f"models.{model}.lowering: {what}", why=why)


def _find_faults(choices: Choices, scheme: Scheme) -> Iterator[tuple[str, str]]:
    asked = {name for name, _ in choices.chosen()}
    for one, other, why in EXCLUSIONS:
        if {one, other} <= asked:
            yield f"{one} and {other} cannot be combined", why
    if choices.weight_sharing and not choices.methods:
        yield "weight_sharing needs methods", "a single graph has nothing to share weights with"
    if len({"forward", *choices.methods}) <= len(choices.methods):
        yield (
            "a method is listed twice",
            "each name must be different; forward is already the first method",
        )
    quantizing = sorted(asked.intersection(QUANTIZING))
    if quantizing and not scheme.quantized:
        yield (
            f"{quantizing[0]} cannot be used with {scheme.value}",
            f"{scheme.value} quantizes nothing",
        )
    elif choices.block_size and not scheme.recipe.block:
        yield (
            f"block_size cannot be used with {scheme.value}",
            "block_size is only for 16a4w_block",
        )
    for part in choices.parts:
        recipe = part.scheme.recipe
        if not recipe.dtype or recipe.block:
            yield (
                f"the part {part} has an unsuitable scheme",
                "a part needs a quantized scheme of ExecuTorch without blocks",
            )
        if bool(recipe.training_steps) != bool(scheme.recipe.training_steps):
            yield (
                f"the part {part} does not fit {scheme.value}",
                "a model is trained only as a whole",
            )
