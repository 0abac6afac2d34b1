"""``[models.NAME.lowering]``: what an entry asks of ExecuTorch beside a scheme, and what excludes
what."""

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
    """A separate scheme for some nodes: those of a ``module``, by its name in the model, of a
    ``type`` of modules, or the ``node`` that torch.export calls so."""

    scheme: Scheme
    module: str = ""
    type: str = ""
    node: str = ""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.module, self.type, self.node))) != 1:
            raise ValueError("a part is named by one of module, type and node")

    def __str__(self) -> str:
        return f"{self.module or self.type or self.node} {self.scheme.value}"


class RunOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """``[models.NAME.run]``: flags of qnn_executor_runner, of which 0 leaves one of LPAI to QNN.
    ``warm_up`` runs precede the ``iteration`` runs of which the time is taken.
    """

    warm_up: Count = 0
    iteration: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    lpai_fps: Count = 0
    lpai_ftrt_ratio: Count = 0
    lpai_client_perf_type: Literal[0, 1, 2] = 0
    lpai_affinity: Literal[0, 1, 2] = 0
    lpai_core_selection: Count = 0

    @property
    def flags(self) -> dict[str, int]:
        """Those that are not as usual."""
        usual = structs.asdict(ONE_RUN)
        return {name: value for name, value in structs.asdict(self).items() if value != usual[name]}

    @property
    def of_lpai(self) -> tuple[str, ...]:
        """The flags that LPAI alone has."""
        return tuple(name for name in self.flags if name.startswith("lpai_"))

    def __str__(self) -> str:
        """``warm_up 2, iteration 10``."""
        return ", ".join(f"{name} {value}" for name, value in self.flags.items())


ONE_RUN = RunOptions()


class Choices(Struct, frozen=True, forbid_unknown_fields=True):
    """The choices, called as ExecuTorch calls them where it has a word.

    ``skip_nodes`` and ``skip_ops`` stay on the CPU; ``parts`` have their own schemes;
    ``discard_nodes`` are not quantized; ``block_size`` input channels share a scale in a scheme of
    blocks; ``log_level`` is QNN's, of compiler and runtime;
    ``annotation`` (of a GraphModule) and ``recipe`` (which returns a QuantRecipe) are
    ``file.py:function``. ``methods`` are further functions of the model's file, each a method of
    the same program, whose weights ``weight_sharing`` keeps once.
    """

    skip_nodes: tuple[Word, ...] = ()
    skip_ops: tuple[Word, ...] = ()
    discard_nodes: tuple[Word, ...] = ()
    block_size: Count = 0
    parts: tuple[Part, ...] = ()
    annotation: str = ""
    recipe: str = ""
    online_prepare: bool = False
    shared_buffer: bool = False
    dump_intermediate_outputs: bool = False
    profile_level: Literal["", "detailed", "optrace"] = ""
    saver: bool = False
    methods: tuple[Word, ...] = ()
    weight_sharing: bool = False
    log_level: Literal["", LogLevel] = ""

    @property
    def functions(self) -> tuple[str, ...]:
        """The user's own code that takes part: its effect is in no key."""
        return tuple(filter(None, (self.annotation, self.recipe)))

    @property
    def traces(self) -> bool:
        """Whether a run leaves a trace."""
        return bool(self.profile_level or self.dump_intermediate_outputs)

    def __str__(self) -> str:
        """``skip_ops aten.add.Tensor, shared_buffer``."""
        return ", ".join(_tell(name, value) for name, value in self.chosen())

    def chosen(self) -> Iterator[tuple[str, Any]]:
        """Names and values of those that are not as usual."""
        return ((name, value) for name, value in structs.asdict(self).items() if value)


def _tell(name: str, value: Any) -> str:
    if value is True:
        return name
    if isinstance(value, str):
        return f"{name} {value.rpartition('/')[2]}"
    return f"{name} {value if isinstance(value, int) else ' + '.join(map(str, value))}"


NO_CHOICES = Choices()
PROFILE_LEVELS = {"": 0, "detailed": 2, "optrace": 3}


# Two choices that do not go together, and why: what ExecuTorch 1.5.1 refuses, or does other than
# what is asked and says nothing.
EXCLUSIONS = (
    ("recipe", "parts", "QnnQuantizer.annotate looks at a recipe alone"),
    ("recipe", "annotation", "QnnQuantizer.annotate looks at a recipe alone"),
    ("recipe", "discard_nodes", "QnnQuantizer.annotate looks at a recipe alone"),
    ("recipe", "block_size", "QnnQuantizer.annotate looks at a recipe alone"),
    ("dump_intermediate_outputs", "methods", "debug handles of methods would be the same"),
    ("profile_level", "dump_intermediate_outputs", "what is dumped changes the times"),
    ("profile_level", "methods", "a trace does not say of which method an event is"),
    ("saver", "methods", "ExecuTorch saves the first method alone"),
    ("online_prepare", "weight_sharing", "weights are shared when a context is compiled"),
    ("online_prepare", "methods", "a DLC is read back by the name of one graph"),
)
QUANTIZING = ("parts", "annotation", "recipe", "discard_nodes", "block_size")


def check_choices(choices: Choices, scheme: Scheme, model: str) -> None:
    """Raises UsageError for choices that exclude each other, or that the scheme does not have."""
    for what, why in _find_faults(choices, scheme):
        raise UsageError(f"models.{model}.lowering: {what}", why=why)


def _find_faults(choices: Choices, scheme: Scheme) -> Iterator[tuple[str, str]]:
    asked = {name for name, _ in choices.chosen()}
    for one, other, why in EXCLUSIONS:
        if {one, other} <= asked:
            yield f"{one} and {other} exclude each other", why
    if choices.weight_sharing and not choices.methods:
        yield "weight_sharing needs methods", "one graph shares with no other"
    if len({"forward", *choices.methods}) <= len(choices.methods):
        yield "a method is named twice", "the first one is called forward"
    quantizing = sorted(asked.intersection(QUANTIZING))
    if quantizing and not scheme.quantized:
        yield f"{quantizing[0]} and {scheme.value} exclude each other", "nothing is quantized"
    elif choices.block_size and not scheme.recipe.block:
        yield f"block_size and {scheme.value} exclude each other", "it is for 16a4w_block"
    for part in choices.parts:
        recipe = part.scheme.recipe
        if not recipe.dtype or recipe.block:
            yield f"{part} is no part", "its scheme has to be ExecuTorch's, without blocks"
        if bool(recipe.training_steps) != bool(scheme.recipe.training_steps):
            yield f"{part} is no part of {scheme.value}", "a model is trained as a whole"
