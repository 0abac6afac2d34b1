"""Exports a torch module once for everything that reads its graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ci.models.eager import copy_inputs, keep_state
from ci.models.factory import Inputs


@dataclass(frozen=True)
class Export:
    """An exported program, and the inputs that it was exported for."""

    inputs: Inputs
    program: Any

    def fits(self, inputs: Inputs) -> bool:
        """Return whether these are the same inputs."""
        own_leaves, leaves = tree_leaves(self.inputs), tree_leaves(inputs)
        pairs = zip(own_leaves, leaves, strict=False)
        return len(own_leaves) == len(leaves) and all(own_leaf is leaf for own_leaf, leaf in pairs)


# The last export of each module that is still in use, with and without strictness.
_exports: WeakKeyDictionary[nn.Module, dict[bool, Export]] = WeakKeyDictionary()


def export_module(module: nn.Module, inputs: Inputs, *, strict: bool) -> Any:
    """Return the program that torch.export makes of a module. Later calls for the same module and
    inputs return the same program, which must not be changed. It shares its weights with the
    module. Raises the errors of torch.export.

    In the suite, the exports of four analyses and of the quantizer took a tenth of the time of the
    lowerings.
    """
    exports = _exports.setdefault(module, {})
    if strict not in exports or not exports[strict].fits(inputs):
        with torch.no_grad():
            if strict:
                program = torch.export.export(module, inputs, strict=True)
            else:  # this runs the module, which may write to its inputs and its state
                with keep_state(module):
                    program = torch.export.export(module, copy_inputs(inputs), strict=False)
        exports[strict] = Export(inputs, program)
    return exports[strict].program


def take_export(module: nn.Module, inputs: Inputs) -> Any:
    """Return the last strict export of a module for these inputs, for a caller that changes it, or
    None if there is none. The next ``export_module`` exports the module again."""
    exports = _exports.get(module, {})
    return exports.pop(True).program if True in exports and exports[True].fits(inputs) else None
