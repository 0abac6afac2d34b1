"""What a test gives to a model: its inputs, the buffers of modules, and the state of the random
number generators.

Upstream's tests pass the same tensors and modules to the calibration, to the run that computes the
reference and then to the program. A model that writes to its inputs or buffers, or that draws
random numbers, would get other values in each of them.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from ci.models.eager import keep_state


def copy_values(value: Any) -> Any:
    """Return a copy of the tensors in a nested value, without their history. Other values in it
    are the same objects."""

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return tree_map(copy, value)


def read_generators() -> tuple[Any, ...]:
    """Return the states of the generators of torch, NumPy and Python."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def write_generators(states: tuple[Any, ...]) -> None:
    """Set the generators to states that read_generators returned."""
    of_torch, of_numpy, of_python = states
    torch.set_rng_state(of_torch)
    np.random.set_state(of_numpy)
    random.setstate(of_python)


@dataclass
class Given:
    """The state of ``modules`` and of the random number generators when this object was created."""

    modules: Sequence[Any] = ()
    generators: tuple[Any, ...] = field(default_factory=read_generators)

    def __post_init__(self) -> None:
        self.buffers = []
        for module in self.modules:
            self.buffers += [(buffer, buffer.clone()) for buffer in list_buffers(module)]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Set the modules and the generators to this state. At the end of the block, restore the
        state from before it."""
        before = Given(self.modules)
        self.restore()
        try:
            yield
        finally:
            before.restore()

    def restore(self) -> None:
        """Set the modules and the generators to this state."""
        with torch.no_grad():
            for buffer, value in self.buffers:
                buffer.copy_(value)
        write_generators(self.generators)


def list_buffers(module: Any) -> list[torch.Tensor]:
    """Return the buffers of a module or an exported program, none for another object."""
    named = getattr(module, "named_buffers", None)
    return [buffer for _, buffer in named()] if callable(named) else []


def keep_buffers(module: Any) -> AbstractContextManager[None]:
    """Return a context manager that restores the buffers of ``module``, if it has any."""
    return keep_state(module) if list_buffers(module) else nullcontext()


def protect(owner: Any, name: str, *, inputs: Collection[str], module: str = "") -> None:
    """Replace the function ``owner.name`` with one that runs on copies of the arguments ``inputs``
    and then restores the buffers of the argument ``module``. Its result has the same values."""
    inner = vars(owner)[name]
    function: Callable[..., Any] = inner.__func__ if isinstance(inner, staticmethod) else inner
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*words: Any, **options: Any) -> Any:
        bound = signature.bind(*words, **options)
        for argument in inputs:
            if argument in bound.arguments:
                bound.arguments[argument] = copy_values(bound.arguments[argument])
        with keep_buffers(bound.arguments.get(module)):
            # A copy: an output may be one of the buffers that are then restored.
            return copy_values(function(*bound.args, **bound.kwargs))

    setattr(owner, name, staticmethod(call) if isinstance(inner, staticmethod) else call)
