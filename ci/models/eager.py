"""Runs a torch module in eager mode. Its outputs are the references against which a program is
judged. Further runs show how small errors change integer outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ci.models.factory import Inputs, check_tensor
from ci.models.user_code import blame_model
from provisioning.errors import FailedError, UsageError

DYNAMO = "torch._dynamo"


def compute_reference(name: str, module: nn.Module, sets: Sequence[Inputs]) -> tuple[Inputs, ...]:
    """Return the outputs for each sample, in order. The module's state does not change.

    Raises FailedError if the module fails, if a second run on the first set returns different
    outputs, or if the shapes of outputs depend on the data. Raises UsageError if there are no
    outputs, or if an output has a type that no program can return or a dtype that HTP does not
    support.
    """
    with blame_model(name, " (in eager mode, before lowering)"):
        with keep_state(module):
            outputs = run_eager(module, sets)
        with keep_state(module):
            repeated = run_eager(module, sets[:1])
    if not outputs[0]:
        raise UsageError(
            f"{name} returns no tensor", fix="return a tensor, or a tuple or dict of tensors"
        )
    for index, tensor in enumerate(outputs[0]):
        check_tensor(name, f"output {index}", tensor)
    distinct_shapes = [*dict.fromkeys(map(_list_shapes, outputs))]  # in the order of the samples
    if len(distinct_shapes) > 1:
        first, second, *_ = distinct_shapes
        raise FailedError(
            f"{name} returns outputs whose shape depends on the data",
            why=f"the shapes are {first} for one sample and {second} for another",
            fix="a program for QNN has fixed shapes: return a mask, or the first k of torch.topk",
        )
    tensor_pairs = zip(outputs[0], repeated[0], strict=True)
    if not all(np.array_equal(*tensors, equal_nan=True) for tensors in tensor_pairs):
        raise FailedError(
            f"{name} returns different outputs for the same inputs",
            why="it draws random numbers, or keeps state outside its buffers",
            fix="switch dropout and noise off in eval mode, and make the state a buffer",
        )
    return tuple(outputs)


def _list_shapes(tensors: Inputs) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tensor.shape) for tensor in tensors)


def run_eager(module: Callable[..., Any], sets: Sequence[Inputs]) -> list[Inputs]:
    """Return the outputs for each sample, as tuples of tensors that later runs do not change.

    Code under torch.compile runs uncompiled, because its compiler can hang in a fork, and rounds
    differently."""
    with torch.no_grad(), force_eager():
        outputs = []
        for inputs in sets:
            tensors = flatten_outputs(module(*copy_inputs(inputs)))
            outputs.append(tuple(tensor.clone() for tensor in tensors))
        return outputs


class StanceSetter(MetaPathFinder):
    """Finds torch._dynamo, and enters torch's stance ``force_eager`` as soon as it is imported."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the usual spec, whose loader also enters the stance."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == DYNAMO else None
        if spec and spec.loader:
            load = spec.loader.exec_module

            def load_and_enter(module: ModuleType) -> None:
                load(module)
                self.stack.enter_context(torch.compiler.set_stance("force_eager"))

            spec.loader.exec_module = load_and_enter  # type: ignore[method-assign]
        return spec


@contextmanager
def force_eager() -> Iterator[None]:
    """Let code under torch.compile run uncompiled in the block.

    torch's own set_stance imports torch._dynamo, which takes longer than to run most models. Before
    somebody else imports it, nothing is compiled."""
    with ExitStack() as stack:
        if DYNAMO in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        else:
            finder = StanceSetter(stack)
            sys.meta_path.insert(0, finder)
            stack.callback(sys.meta_path.remove, finder)
        yield


def copy_inputs(inputs: Inputs) -> Inputs:
    """Return copies of the inputs, which may be nested, because a model may write to its inputs."""
    copied: Inputs = torch.utils._pytree.tree_map_only(Tensor, Tensor.clone, tuple(inputs))
    return copied


def list_tensors(structure: Any) -> Inputs:
    """Return the tensors in a nested structure, in order."""
    leaves, _ = torch.utils._pytree.tree_flatten(structure)
    return tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))


def flatten_outputs(output: Any) -> Inputs:
    """Return the tensors of a model's output, in the order in which ExecuTorch returns them.

    Numbers and None are omitted. Raises UsageError for other types, which no program can return.
    """
    leaves, _ = torch.utils._pytree.tree_flatten(output)
    for leaf in leaves:
        if leaf is not None and not isinstance(leaf, (Tensor, int, float)):
            kind = type(leaf).__name__
            raise UsageError(
                f"the model has an output of type {kind}",
                why="a program for QNN returns tensors",
                fix="omit this output, or return its values as a tensor",
            )
    return list_tensors(leaves)


@contextmanager
def keep_state(module: nn.Module, names: Collection[str] | None = None) -> Iterator[None]:
    """When the block ends, restore the module's buffers in ``names``, or all buffers if ``names``
    is None.

    Otherwise the program would start with the state that the reference run left behind, such as a
    filled KV cache or the statistics of a BatchNorm layer.
    """
    saved = {
        name: (buffer, buffer.clone())
        for name, buffer in module.named_buffers()
        if names is None or name in names
    }
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in saved.values():
                buffer.copy_(before)


def find_changed(module: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    """Return the buffers that a call of a module changes, by name, with their values afterwards.
    The module's state does not change."""
    if not any(True for _ in module.buffers()):
        return {}
    with keep_state(module):
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        run_eager(module, [inputs])
        after = {name: buffer.clone() for name, buffer in module.named_buffers()}
    return {
        name: value
        for name, value in after.items()
        if not torch.equal(value.nan_to_num(), before[name].nan_to_num())
    }


LOST_SHARE = 0.5  # of the change of a buffer, that a quantized model does not make


def find_frozen(module: nn.Module, changed: nn.Module, inputs: Inputs) -> tuple[str, ...]:
    """Return the buffers that a call of a module changes and on which its outputs depend, but not
    the outputs of ``changed``, which a tool made of the module and whose buffers have the same
    names; or which a call of ``changed`` does not change so. What reads them has become a constant
    there, or what it writes goes to a copy, so that only the first call is right. The state of both
    does not change."""
    frozen = []
    new_values = find_changed(changed, inputs)
    for name, value in find_changed(module, inputs).items():
        if any(name not in dict(part.named_buffers()) for part in (module, changed)):
            continue
        if not _is_moved(module, name, value, inputs):
            continue
        before = dict(changed.named_buffers())[name]
        is_lost = _is_update_lost(before, value, new_values.get(name, before))
        if is_lost or not _is_moved(changed, name, value, inputs):
            frozen.append(name)
    return tuple(frozen)


def _is_update_lost(before: Tensor, right: Tensor, value: Tensor) -> bool:
    """Return whether the ``value`` of a buffer after a call is about as far from the ``right`` one
    as the buffer was ``before`` the call."""
    was_off, is_off = (
        float((tensor.double() - right.double()).nan_to_num().norm()) for tensor in (before, value)
    )
    return is_off > LOST_SHARE * was_off


def _is_moved(module: nn.Module, name: str, value: Tensor, inputs: Inputs) -> bool:
    """Return whether an output of a module depends on the value of a buffer."""
    with keep_state(module):
        (before,) = run_eager(module, [inputs])
    with keep_state(module):
        with torch.no_grad():
            dict(module.named_buffers())[name].copy_(value)
        (after,) = run_eager(module, [inputs])
    pairs = zip(before, after, strict=True)
    return not all(torch.equal(*tensors) for tensors in pairs)


class Disturbance(TorchDispatchMode):
    """Adds a small error to the floating-point inputs of each operator that returns integers or
    booleans, such as a comparison, an argmax, a top-k or a conversion.

    Quantizing operators are left out. Zeros stay zero, as in a program.
    """

    def __init__(self, share: float, seed: int) -> None:
        super().__init__()
        self.share, self.generator = share, torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        kinds = [leaf for leaf in list_tensors(result) if not leaf.is_floating_point()]
        takes = any(leaf.is_floating_point() for leaf in list_tensors((args, kwargs)))
        if not kinds or not takes or func.namespace == "quantized_decomposed":
            return result
        moved = torch.utils._pytree.tree_map(self._move, args)
        return func(*moved, **kwargs)

    def _move(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() == 0:
            return value
        signs = torch.randint(0, 2, value.shape, generator=self.generator) * 2 - 1
        rms = value.float().square().mean().sqrt()
        return torch.where(value == 0, value, value + signs * (self.share * rms))
