"""Joins several methods of a program into one module, which has the inputs and outputs of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ci.models.eager import flatten_outputs
from ci.models.user_code import Inputs

FORWARD = "forward"
Made = tuple[nn.Module, Inputs, tuple[Inputs, ...]]


class Methods(nn.Module):
    """Joins the modules of several methods. ``counts`` is the number of inputs per method."""

    def __init__(self, modules: Mapping[str, nn.Module], counts: Mapping[str, int]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules.values())
        self.names, self.counts = tuple(modules), dict(counts)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs: list[Tensor] = []
        for part, own in zip(self.parts, self.split(inputs).values(), strict=True):
            outputs += flatten_outputs(part(*own))
        return tuple(outputs)

    def split(self, inputs: Inputs) -> dict[str, Inputs]:
        """Split the concatenated inputs into those of each method."""
        given, start = {}, 0
        for name in self.names:
            given[name] = inputs[start : start + self.counts[name]]
            start += self.counts[name]
        return given


def join_methods(made: Mapping[str, Made]) -> Made:
    """Join what the factories of several methods return: modules, examples and calibration."""
    modules = {name: module for name, (module, _, _) in made.items()}
    counts = {name: len(example) for name, (_, example, _) in made.items()}
    example = _concatenate([example for _, example, _ in made.values()])
    sets = zip(*(calibration for _, _, calibration in made.values()), strict=False)
    return Methods(modules, counts), example, tuple(map(_concatenate, sets))


def split_module(module: nn.Module) -> dict[str, nn.Module]:
    """Return the module of each method. A module that is not Methods is the method forward."""
    if not isinstance(module, Methods):
        return {FORWARD: module}
    return dict(zip(module.names, module.parts, strict=True))


def split_inputs(module: nn.Module, inputs: Inputs) -> dict[str, Inputs]:
    """Split the inputs of a module into those of each method."""
    return module.split(inputs) if isinstance(module, Methods) else {FORWARD: inputs}


def join_modules(module: nn.Module, modules: Mapping[str, Any]) -> Any:
    """Return a copy of ``module`` with its methods replaced by ``modules``."""
    return Methods(modules, module.counts) if isinstance(module, Methods) else modules[FORWARD]


def _concatenate(sets: Sequence[Inputs]) -> Inputs:
    return tuple(tensor for inputs in sets for tensor in inputs)
