"""``[models.NAME.lowering]``: what an entry asks of ExecuTorch beside a scheme, and what excludes
what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, structs

from ci.models.schemes import Scheme
from provisioning.errors import UsageError

Word = Annotated[str, Meta(min_length=1)]


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """A scheme of its own for some nodes: those of a ``module``, by its name in the model, of a
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


class Choices(Struct, frozen=True, forbid_unknown_fields=True):
    """The choices, called as ExecuTorch calls them where it has a word.

    ``skip_nodes`` and ``skip_ops`` stay on the CPU; ``parts`` have schemes of their own;
    ``annotation`` (of a GraphModule) and ``recipe`` (which returns a QuantRecipe) are
    ``file.py:function``. ``methods`` are further functions of the model's file, each a method of
    the same program, whose weights ``weight_sharing`` keeps once.
    """

    skip_nodes: tuple[Word, ...] = ()
    skip_ops: tuple[Word, ...] = ()
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
    return f"{name} {' + '.join(map(str, value))}"


NO_CHOICES = Choices()
PROFILE_LEVELS = {"": 0, "detailed": 2, "optrace": 3}


# Two choices that do not go together, and why: what ExecuTorch 1.5.1 refuses, or does other than
# what is asked and says nothing.
EXCLUSIONS = (
    ("recipe", "parts", "QnnQuantizer.annotate looks at a recipe alone"),
    ("recipe", "annotation", "QnnQuantizer.annotate looks at a recipe alone"),
    ("dump_intermediate_outputs", "methods", "debug handles of methods would be the same"),
    ("profile_level", "dump_intermediate_outputs", "what is dumped changes the times"),
    ("profile_level", "methods", "a trace does not say of which method an event is"),
    ("saver", "methods", "ExecuTorch saves the first method alone"),
    ("online_prepare", "weight_sharing", "weights are shared when a context is compiled"),
    ("online_prepare", "methods", "a DLC is read back by the name of one graph"),
)
QUANTIZING = ("parts", "annotation", "recipe")


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
    for part in choices.parts:
        recipe = part.scheme.recipe
        if not recipe.dtype or recipe.block:
            yield f"{part} is no part", "its scheme has to be ExecuTorch's, without blocks"
        if bool(recipe.training_steps) != bool(scheme.recipe.training_steps):
            yield f"{part} is no part of {scheme.value}", "a model is trained as a whole"
