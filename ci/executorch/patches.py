"""Patches of torch that save time and do not change what a program computes: three for every
lowering, one for the search for faults.

Each patch names the versions that it was proven with: programs lowered with the patches are
compared with those lowered without, and with tests/plain_script.py (tests/integration/emulator/
test_plain_script.py). With any other version a patch is off; ``--plain`` switches all off.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.graph import _PyTreeCodeGen
from torch.fx.traceback import NodeSource

from ci.cases.forked import still_tqdm
from ci.executorch import lower  # noqa: F401 - loaded once, before the forks
from ci.executorch.internals import to_edge_transform_and_lower
from ci.executorch.quantize import quantize_model
from ci.models.model import Model
from ci.models.schemes import Scheme
from provisioning.versions import is_same

SOC = "SM8650"
write_code, reduce_module = GraphModule.recompile, GraphModule.__reduce__
WRITTEN = ("_code", "_lineno_map", "_prologue_start")  # set in a module by writing its code


@functools.cache
def warm_up(*, plain: bool) -> tuple[str, ...]:
    """Apply the patches, then quantize and lower a small model without QNN: once per process.

    Returns a line for each patch that stays off because it was not proven with the installed
    versions.
    """
    still_tqdm()
    notes = () if plain else tuple(apply_patches(PATCHES))
    inputs = tuple((torch.ones(1, 4) * number,) for number in range(2))
    model = Model("warm-up", torch.nn.Linear(4, 4).eval(), inputs[:1], inputs)
    converted = quantize_model(model, Scheme.A8W8, SOC)
    to_edge_transform_and_lower(torch.export.export(converted, inputs[0], strict=True))
    return notes


def apply_patches(patches: Iterable[Patch]) -> Iterator[str]:
    """Apply the patches that were proven with the installed versions; yield why others are off."""
    for patch in patches:
        unproven = [
            f"{name} {version(name)} (proven: {', '.join(proven)})"
            for name, proven in (("torch", patch.torch), ("executorch", patch.executorch))
            if not any(is_same(version(name), one) for one in proven)
        ]
        if unproven:
            yield f"patch {patch.apply.__name__} is off: not proven with {' and '.join(unproven)}"
        else:
            patch.apply()


def write_code_late() -> None:
    """Write a module's Python code when it is needed, not after each change of its graph.

    Passes read graphs: of 434 generated texts in one lowering, 13 were run.
    """
    GraphModule.recompile, GraphModule.__reduce__ = recompile_late, reduce_written
    for name in WRITTEN:
        setattr(GraphModule, name, Written(name))


def share_provenance() -> None:
    """Let nodes share the record of their origin, which torch copies deeply for each node.

    Nothing changes such a record once it is made. The copies took a quarter of the time to lower a
    recurrent net.
    """

    def share(source: Any, memo: dict[int, Any]) -> Any:  # noqa: ARG001 - copy's protocol
        return source

    NodeSource.__deepcopy__ = share


def materialize_once() -> None:
    """Look up the composite operators again only if one was registered since the last time.

    torch looks up all 800 for each of its 40 namespaces, in every decomposition.
    """
    utils = torch._export.utils
    look_up, seen = utils._materialize_cpp_cia_ops, list[Any]()

    def look_up_new() -> None:
        registered = torch._C._dispatch_get_registrations_for_dispatch_key(COMPOSITE)
        if registered not in seen:
            look_up()
            seen[:] = [registered]

    utils._materialize_cpp_cia_ops = look_up_new


COMPOSITE = "CompositeImplicitAutograd"


def skip_training_patterns() -> None:
    """Make convert_pt2e skip the batch norms of quantization-aware training; used only in the
    search for faults. convert_pt2e exports 96 patterns, in 8 s, for each model that has a batch
    norm, and none of them occurs in a model that was quantized after training."""
    from torchao.quantization.pt2e import qat_utils  # private, and not in every version

    qat_utils._fold_conv_bn_qat_helper = lambda module, *_, **__: module


@dataclass(frozen=True)
class Patch:
    """A patch, and the versions of torch and ExecuTorch that it was proven with."""

    apply: Callable[[], None]
    torch: tuple[str, ...]
    executorch: tuple[str, ...]


PATCHES = (
    Patch(write_code_late, ("2.13.0",), ("1.5.1",)),
    Patch(share_provenance, ("2.13.0",), ("1.5.1",)),
    Patch(materialize_once, ("2.13.0",), ("1.5.1",)),
)
PATCHES_OF_SEARCH = (Patch(skip_training_patterns, ("2.13.0",), ("1.5.1",)),)


def recompile_late(module: Any) -> Unwritten:
    """Forget the code of a module and of its submodules."""
    if isinstance(module.graph._codegen, _PyTreeCodeGen):
        info = module.graph._codegen.pytree_info
        module._in_spec, module._out_spec = info.in_spec, info.out_spec
    for name in WRITTEN:
        vars(module).pop(name, None)
    later = Unwritten(module)
    type(module).forward = later  # each module has a separate class
    module._recompile_submodules()
    return later


def reduce_written(module: Any) -> Any:
    """Return what pickle stores of a module, including its code."""
    write_code(module)
    return reduce_module(module)


class Unwritten:
    """A module's ``forward``, and the result of ``recompile``, until its code is written."""

    def __init__(self, module: Any) -> None:
        self._module = weakref.ref(module)

    def __get__(self, module: Any, owner: Any) -> Any:
        write_code(self._module())
        return (owner if module is None else module).forward

    def __getattr__(self, name: str) -> Any:
        return getattr(write_code(self._module()), name)


class Written:
    """An attribute that a module has once its code is written."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, module: Any, owner: Any) -> Any:
        if module is None:
            return self
        write_code(module)
        return vars(module)[self._name]
