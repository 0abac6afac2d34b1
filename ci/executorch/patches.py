"""What a process does once, before it forks for every lowering."""

from __future__ import annotations

import functools
import sys
import typing
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from executorch.backends.qualcomm.utils import qnn_sdk_setup
from executorch.exir import to_edge_transform_and_lower
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.fx.graph import _PyTreeCodeGen
from torch.fx.traceback import NodeSource

from ci.cases.forked import still_tqdm
from ci.executorch import lower  # noqa: F401 - held for the forks
from ci.executorch.quantize import quantize_model
from ci.models.model import Model
from ci.models.schemes import Scheme

SOC = "SM8650"
NAMES_OPERATORS = "_materialize_cpp_cia_ops"
CHECKS_KEY = "_validate_cache_key"
write_code, reduce_module = GraphModule.recompile, GraphModule.__reduce__
WRITTEN = ("_code", "_lineno_map", "_prologue_start")  # what it leaves in a module


@functools.cache
def warm_up() -> None:
    """Export, quantize and lower a small model without QNN, once a process."""
    still_tqdm()
    write_code_late()
    leave_vendor_out()
    decompose_once()
    remember_quantization()
    inputs = tuple((torch.ones(1, 4) * number,) for number in range(2))
    model = Model("warm-up", torch.nn.Linear(4, 4).eval(), inputs[:1], inputs)
    with materialize_once():
        converted = quantize_model(model, Scheme.A8W8, SOC)
        to_edge_transform_and_lower(torch.export.export(converted, inputs[0], strict=True))
    share_provenance()


def leave_vendor_out() -> None:
    """Start no process that asks who made this CPU: ExecuTorch would switch oneDNN off on an AMD
    host, and ci.models.numerics does so on all."""
    if hasattr(qnn_sdk_setup, "_vendor_is_amd"):
        qnn_sdk_setup._vendor_is_amd = True


def decompose_once() -> None:
    """Trace a program that was decomposed no second time for operators that it does not have.

    ExecuTorch does so for the operators that QNN does not want kept; most traces found none.
    """
    decompose, decomposed = ExportedProgram.run_decompositions, weakref.WeakSet[Any]()

    def decompose_rest(program: Any, table: Any = None, *words: Any, **named: Any) -> Any:
        parts = (part for part in program.graph_module.modules() if isinstance(part, GraphModule))
        targets = {node.target for part in parts for node in part.graph.nodes}
        if program in decomposed and table and not any(target in table for target in targets):
            return program
        made = decompose(program, table, *words, **named)
        decomposed.add(made)
        return made

    ExportedProgram.run_decompositions = decompose_rest


def remember_quantization() -> None:
    """Let torch look up what a quantization of a shape gives, as it does for operators of its own,
    and the annotations that it writes for each kernel that an export registers."""
    check = getattr(FakeTensorMode, CHECKS_KEY, lambda *_: None)

    def check_others(mode: Any, operator: Any, *words: Any) -> None:
        if getattr(operator, "namespace", "") != "quantized_decomposed":
            check(mode, operator, *words)

    setattr(FakeTensorMode, CHECKS_KEY, check_others)
    torch._ops.Callable = typing.Callable  # that of collections.abc is made anew each time


def share_provenance() -> None:
    """Let nodes share the record of where they came from: torch copies it in depth for each.

    Nothing changes such a record once it is made. Copies took a quarter of the lowering of a
    recurrent net.
    """

    def share(source: Any, memo: dict[int, Any]) -> Any:  # noqa: ARG001 - copy's protocol
        return source

    NodeSource.__deepcopy__ = share


@contextmanager
def materialize_once() -> Iterator[None]:
    """Look up all 1,000 composite operators now and once more after, and let torch.export, which
    does so for each of 40 namespaces, do it no more."""
    look_up = getattr(sys.modules.get("torch._export.utils"), NAMES_OPERATORS, lambda: None)
    look_up()
    for name in ("torch._export", "torch._export.utils"):
        if hasattr(sys.modules.get(name), NAMES_OPERATORS):
            setattr(sys.modules[name], NAMES_OPERATORS, lambda: None)
    yield
    look_up()


def write_code_late() -> None:
    """Let a module's Python be written when something asks for it, and not after each change of its
    graph: passes read graphs, and of 434 texts in one lowering 13 were run."""
    GraphModule.recompile, GraphModule.__reduce__ = recompile_late, reduce_written
    for name in WRITTEN:
        setattr(GraphModule, name, Written(name))


def recompile_late(module: Any) -> Unwritten:
    """Forget the code of a module and of those in it."""
    if isinstance(module.graph._codegen, _PyTreeCodeGen):
        info = module.graph._codegen.pytree_info
        module._in_spec, module._out_spec = info.in_spec, info.out_spec
    for name in WRITTEN:
        vars(module).pop(name, None)
    later = Unwritten(module)
    type(module).forward = later  # each has a class of its own
    module._recompile_submodules()
    return later


def reduce_written(module: Any) -> Any:
    """What pickle takes of a module: its code too."""
    write_code(module)
    return reduce_module(module)


class Unwritten:
    """A module's ``forward``, and what its ``recompile`` gives, until its code is written."""

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
