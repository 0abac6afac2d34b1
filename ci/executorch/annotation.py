"""Parts with schemes of their own, annotations and recipes of the user's, given to a quantizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from executorch.backends.qualcomm.quantizer.quant_recipe import QuantRecipe
from executorch.backends.qualcomm.quantizer.quantizer import (
    ModuleQConfig,
    QnnQuantizer,
    QuantDtype,
)
from torch.fx import Node
from torchao.quantization.pt2e import MinMaxObserver

from ci.models.lowering_options import Choices, Part
from ci.models.model import call_function
from ci.models.schemes import Scheme
from provisioning.errors import UsageError

ANNOTATION = "an annotation takes the exported GraphModule and sets quantization_annotation"
RECIPE = "a recipe's function takes nothing and returns ExecuTorch's QuantRecipe"


def configure(scheme: Scheme) -> dict[str, Any]:
    """What QnnQuantizer and ModuleQConfig take for a scheme.

    The moving average of ExecuTorch's default observer clips what few calibration sets hold;
    minimum and maximum do not. Training has observers of its own.
    """
    training = bool(scheme.recipe.training_steps)
    return {
        "quant_dtype": QuantDtype[scheme.recipe.dtype],
        "is_qat": training,
        "is_conv_per_channel": True,
        "is_linear_per_channel": True,
        "act_observer": None if training else MinMaxObserver,
    }


@contextmanager
def annotated(quantizer: QnnQuantizer, choices: Choices) -> Iterator[None]:
    """Let ``quantizer`` annotate as the choices say.

    Raises UsageError for a recipe that is none, at the end for a part that no node belongs to.
    """
    found: set[Part] = set()
    quantizer.set_submodule_qconfig_list(
        [
            (partial(_belongs, part=part, found=found), ModuleQConfig(**configure(part.scheme)))
            for part in choices.parts
        ]
    )
    if choices.annotation:
        quantizer.add_custom_quant_annotations(
            [partial(call_function, choices.annotation, ANNOTATION)]
        )
    if choices.recipe:
        recipe = call_function(choices.recipe, RECIPE)
        if not isinstance(recipe, QuantRecipe):
            raise UsageError(f"{Path(choices.recipe).name} gives no recipe", fix=RECIPE)
        quantizer.set_recipe(recipe)
    yield
    for part in choices.parts:
        if part not in found:
            why = "module and type are those of the model, a node is called as torch.export does"
            raise UsageError(f"no node belongs to the part {part}", why=why)


def _belongs(node: Node, part: Part, found: set[Part]) -> bool:
    stack = [*(node.meta.get("nn_module_stack") or {}).values()]
    belongs = (
        (bool(part.node) and node.name == part.node)
        or (bool(part.module) and any(_is_inside(path, part.module) for path, _ in stack))
        or (bool(part.type) and any(_name_type(kind) == part.type for _, kind in stack))
    )
    if belongs:
        found.add(part)
    return belongs


def _is_inside(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _name_type(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind)).rpartition(".")[2]
