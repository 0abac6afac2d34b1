"""Patches of torch, torchao and ExecuTorch that save time: eleven for every lowering, which do not
change the resulting programs, and one for the search for faults.

Each patch lists the versions for which it is verified. With other versions it is disabled;
``--plain`` disables all patches. To verify them, tests/integration/emulator/test_plain_script.py
compares programs that are lowered with the patches, without them, and by tests/plain_script.py.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
import weakref
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from operator import getitem
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.graph import _PyTreeCodeGen
from torch.fx.passes.infra.pass_base import PassResult
from torch.fx.traceback import NodeSource

from ci.cases.forked import still_tqdm
from ci.executorch.bytecode import end_compiling
from ci.models.exports import take_export
from ci.models.model import Model
from ci.models.schemes import Scheme
from provisioning.documents import read_text
from provisioning.versions import is_same

SOC = "SM8650"
write_code, reduce_module = GraphModule.recompile, GraphModule.__reduce__
WRITTEN = ("_code", "_lineno_map", "_prologue_start")  # set when code is generated


@functools.cache
def warm_up(*, plain: bool) -> tuple[str, ...]:
    """Apply the patches unless ``plain`` is true, then quantize and lower a small model without
    QNN. This is done once per process.

    Returns one line per patch that is disabled because it is not verified with the installed
    versions.
    """
    # Before the forks, which would lose tqdm's thread with a warning.
    still_tqdm()
    notes = () if plain else tuple(apply_patches(PATCHES))
    # Imported now, because skip_inductor is too late for an ExecuTorch that is already there.
    importlib.import_module("ci.executorch.lower")  # loaded once, before the forks
    from ci.executorch.internals import to_edge_transform_and_lower
    from ci.executorch.quantize import quantize_model

    inputs = tuple((torch.ones(1, 4) * number,) for number in range(2))
    # The first lowerings of a process take 3.4 s, later ones of a small model 1.1 to 1.8 s.
    model = Model("warm-up", torch.nn.Linear(4, 4).eval(), inputs[:1], inputs)
    converted = quantize_model(model, Scheme.A8W8, SOC)
    to_edge_transform_and_lower(torch.export.export(converted, inputs[0], strict=True))
    return notes


def before_forks() -> None:
    """Warm up in the fork server, once for all workers. If this fails, each worker tries it again,
    and reports why."""
    with suppress(Exception):
        warm_up(plain=False)
    end_compiling()


def apply_patches(patches: Iterable[Patch]) -> Iterator[str]:
    """Apply the patches that are verified with the installed versions. For every other patch, yield
    a line with the versions."""
    for patch in patches:
        unproven = []
        for name, verified in (("torch", patch.torch), ("executorch", patch.executorch)):
            installed = version(name)
            if not any(is_same(installed, release) for release in verified):
                unproven.append(f"{name} {installed} (verified: {', '.join(verified)})")
        if unproven:
            yield f"patch {patch.apply.__name__} is off: not verified with {' and '.join(unproven)}"
        else:
            patch.apply()


def skip_inductor() -> None:
    """Make ExecuTorch load torch's inductor only for a program with operators that torch made
    functional, of which ExecuTorch removes the traces. The import takes a second of CPU."""
    if FUNCTIONALIZED not in sys.modules:
        stand_in: Any = ModuleType(FUNCTIONALIZED)
        stand_in.unsafe_remove_auto_functionalized_pass = remove_functionalized
        sys.modules[FUNCTIONALIZED] = stand_in


def remove_functionalized(program: Any) -> Any:
    """Do what the function of FUNCTIONALIZED does to a program."""
    higher = torch.ops.higher_order
    kinds = (higher.auto_functionalized, higher.auto_functionalized_v2)
    if has_target(program.graph_module, kinds):
        return load_functionalized().unsafe_remove_auto_functionalized_pass(program)
    # What it does to a program without such an operator.
    with program.graph_module._set_replace_hook(program.graph_signature.get_replace_hook()):
        for node in program.graph.nodes:
            if node.target is torch.ops.aten.copy_.default and node.args[0] == node.args[1]:
                node.replace_all_uses_with(node.args[0])
                program.graph.erase_node(node)
        program.graph.eliminate_dead_code()
    return program


@functools.cache
def load_functionalized() -> Any:
    """Import torch's module for which skip_inductor has a stand-in."""
    sys.modules.pop(FUNCTIONALIZED, None)
    return importlib.import_module(FUNCTIONALIZED)


FUNCTIONALIZED = "torch.export._remove_auto_functionalized_pass"


def write_code_late() -> None:
    """Make torch generate the Python code of a module only when it is needed, instead of after each
    change of its graph.

    Most passes only read graphs: in one lowering, code was generated 434 times, but used only 13
    times.
    """
    # Measured in CPU seconds per lowering, before and after: mlp 8a8w 3.5 and 2.2, transformer 8a8w
    # 7.7 and 5.2, mlp fp16 1.7 and 1.2.
    GraphModule.recompile, GraphModule.__reduce__ = recompile_late, reduce_written
    for name in WRITTEN:
        setattr(GraphModule, name, Written(name))


def share_provenance() -> None:
    """Make nodes share the record of their origin.

    torch makes a deep copy of the record for each node, although a record never changes. Without
    the copies, a recurrent network is lowered in three quarters of the time.
    """

    def share(source: Any, memo: dict[int, Any]) -> Any:  # noqa: ARG001 - copy's protocol
        return source

    # In lstm 8a8w, the copies took 25 % of the time of a lowering.
    NodeSource.__deepcopy__ = share


def materialize_once() -> None:
    """Make torch look up its composite operators again only if one was registered since the last
    lookup.

    Without the patch, every decomposition looks up all 800 operators for each of torch's 40
    namespaces. With it, the list of registered operators is read once per decomposition, since
    collecting operators registers none.
    """
    utils = torch._export.utils
    look_up, collect = utils._materialize_cpp_cia_ops, utils._collect_all_valid_cia_ops
    last_registered = list[Any]()
    is_collecting = False

    def look_up_new() -> None:
        if is_collecting:
            return
        registered = torch._C._dispatch_get_registrations_for_dispatch_key(COMPOSITE)
        if registered not in last_registered:
            look_up()
            last_registered[:] = [registered]

    def collect_once() -> Any:
        nonlocal is_collecting
        look_up_new()
        is_collecting = True
        try:
            return collect()
        finally:
            is_collecting = False

    # In mlp 8a8w, the look-ups took 14 % of the time of a lowering. Reading the list once for each
    # namespace took 3 % of the suite's.
    utils._materialize_cpp_cia_ops = look_up_new
    for user in (utils, torch.export.exported_program, torch.export.decomp_utils):
        user._collect_all_valid_cia_ops = collect_once


COMPOSITE = "CompositeImplicitAutograd"


def skip_empty_decompositions() -> None:
    """Make torch return a program that it has decomposed before, unless one of its operators is in
    the new table.

    For a partitioner such as QNN's, ExecuTorch decomposes each program three times: first with an
    empty table, which makes the program functional, and then with two tables that have almost
    nothing left to do. Each time, the whole program is traced again.
    """
    # ExecuTorch 1.5.1 skips the second one for the same reason, but only for other partitioners
    # (_gen_edge_manager_for_partitioners in exir/program/_program.py). The names of nodes, which
    # another trace would make again, do not matter: ExecuTorch's next pass makes all of them anew.
    original = torch.export.ExportedProgram.run_decompositions
    decomposed: weakref.WeakSet[Any] = weakref.WeakSet()

    def run_decompositions(program: Any, decomp_table: Any = None, **options: Any) -> Any:
        is_repeated = program in decomposed and decomp_table is not None and not options
        if is_repeated and not has_target(program.graph_module, decomp_table):
            return program
        result = original(program, decomp_table, **options)
        decomposed.add(result)
        return result

    torch.export.ExportedProgram.run_decompositions = run_decompositions


def skip_idle_passes() -> None:
    """Make ExecuTorch skip passes that would change nothing: those that only replace transpositions
    and other views, of which an earlier pass leaves none, and one for symbolic numbers. Each traces
    the whole program again, which takes 4 % of the time of a lowering."""
    # What else a trace changes, such as names, does not matter: one of the other passes between
    # these, which also trace the program, always runs.
    from ci.executorch import internals

    replaced = {
        internals.NormalizeTransposePass: lambda node: node.target == torch.ops.aten.t.default,
        internals.ReplaceBrokenOpsWithFunctionalOpsPass: is_view,
        internals.SymToTensorPass: is_symbolic,
    }
    for pass_class, needs_pass in replaced.items():
        pass_class.call = skip_unless(needs_pass, pass_class.call)


def skip_unless(needs_pass: Callable[[Node], bool], call: Callable[..., Any]) -> Any:
    """Return the method ``call`` of a pass, which is skipped if no node of a module and of its
    submodules needs the pass."""

    def call_if_needed(self: Any, module: GraphModule) -> Any:
        if any(map(needs_pass, list_nodes(module))):
            return call(self, module)
        return PassResult(module, False)

    return call_if_needed


def is_view(node: Node) -> bool:
    """Return whether a node calls an operator whose result shares memory with its input."""
    return isinstance(node.target, OpOverload) and node.target.is_view


def is_symbolic(node: Node) -> bool:
    """Return whether a node's result is a number that is not known before the program runs."""
    return isinstance(node.meta.get("val"), torch.types.py_sym_types)


def list_nodes(module: GraphModule) -> list[Node]:
    """Return the nodes of a module and of its submodules."""
    parts = (part for part in module.modules() if isinstance(part, GraphModule))
    return [node for part in parts for node in part.graph.nodes]


def has_target(module: GraphModule, targets: Container[Any]) -> bool:
    """Return whether a module or one of its submodules calls one of the ``targets``."""
    calls = (node for node in list_nodes(module) if node.op == "call_function")
    return any(node.target in targets for node in calls)


def register_fast() -> None:
    """Make torch register Python kernels without evaluating annotations.

    Each decomposition registers about 6,000 kernels. For each, torch defines a function, whose
    annotations take most of the time.
    """
    operator_class, key_class = torch._ops.OperatorBase, torch._C.DispatchKey
    original_py_impl = operator_class.py_impl

    def py_impl(operator: Any, key: Any) -> Any:
        """Return a decorator that registers a kernel for a dispatch key."""

        def register(kernel: Any) -> Any:
            operator.py_kernels[key] = kernel
            operator._dispatch_cache.clear()
            return kernel

        # A key can also be a mode, a tensor class or a transform, which have other tables. The
        # original function also raises the errors for DispatchKey.Python and a second kernel.
        is_plain_key = isinstance(key, key_class) and key != key_class.Python
        if is_plain_key and key not in operator.py_kernels:
            return register
        return original_py_impl(operator, key)

    operator_class.py_impl = py_impl


def read_vendor() -> None:
    """Read the vendor of the CPU, on which ExecuTorch disables MKLDNN, from /proc/cpuinfo.
    ExecuTorch asks another process, which takes a second."""
    from ci.executorch.internals import qnn_sdk_setup  # not in every version

    vendor = re.search(r"(?m)^vendor_id\s*:(.*)$", read_text(Path("/proc/cpuinfo"), "replace"))
    qnn_sdk_setup._vendor_is_amd = vendor is not None and "amd" in vendor[1].lower()


def skip_training_patterns() -> None:
    """Make convert_pt2e skip the batch norm patterns of quantization-aware training, unless a batch
    norm of the model follows a division, as it does in all patterns.

    Without the patch, 96 patterns are exported for each model that has a batch norm left, which
    takes 8 s.
    """
    from torchao.quantization.pt2e import qat_utils  # private; missing in some versions

    fold = qat_utils._fold_conv_bn_qat_helper

    def fold_divided(module: GraphModule, *arguments: Any, **options: Any) -> GraphModule:
        if has_divided_norm(module):
            return fold(module, *arguments, **options)
        # What it does to a model without a match.
        module.graph.eliminate_dead_code()
        qat_utils._duplicate_dequantize_node(module)
        qat_utils._remove_extra_dequantize(module)
        module.graph.eliminate_dead_code()
        module.recompile()
        return module

    qat_utils._fold_conv_bn_qat_helper = fold_divided


def has_divided_norm(module: GraphModule) -> bool:
    """Return whether the input of a batch norm is a quotient, or a sum with a quotient."""
    from torchao.quantization.pt2e.utils import _is_bn_node

    norms = (node.all_input_nodes[0] for node in module.graph.nodes if _is_bn_node(node))
    near = (node for source in norms for node in (source, *source.all_input_nodes))
    return any(node.target is torch.ops.aten.div.Tensor for node in near)


def export_graphs_directly() -> None:
    """Make torch.export trace a graph by running it, even where ``strict`` is asked for.

    ExecuTorch exports a quantized model again when it lowers it. Dynamo, which follows the control
    flow of Python code, takes more than half of that time, but a graph has no control flow.
    """
    # With and without dynamo, the exported graphs have the same nodes, names and origins. Only the
    # order of their parameters differs, and parameters that quantization replaced are still there;
    # ExecuTorch removes those (remove_unused_parameters_pass).
    export = torch.export.export

    def trace(module: Any, *args: Any, **options: Any) -> Any:
        if options.get("strict") and isinstance(module, GraphModule) and is_flat(module):
            with suppress(Exception):  # otherwise torch reports why it cannot be exported
                return export(module, *args, **{**options, "strict": False})
        return export(module, *args, **options)

    torch.export.export = trace


def is_flat(module: GraphModule) -> bool:
    """Return whether a graph calls only operators, and neither modules nor other graphs."""
    return all(
        isinstance(node.target, OpOverload) or node.target is getitem
        for node in module.graph.nodes
        if node.op not in {"placeholder", "get_attr", "output"}
    )


def export_once() -> None:
    """Make torch.export return the program that an analysis has exported of the same module for the
    same inputs. ExecuTorch would export a float model again when it lowers it."""
    export = torch.export.export

    def take_or_export(module: Any, args: Any, *further: Any, **options: Any) -> Any:
        # Other options, and an export that records gradients, may lead to another program.
        given_options = {name: option for name, option in options.items() if option is not None}
        is_plain = given_options == {"strict": True} and not (further or torch.is_grad_enabled())
        program = take_export(module, args) if is_plain else None
        return export(module, args, *further, **options) if program is None else program

    torch.export.export = take_or_export


def export_without_dynamo() -> None:
    """Make torch.export trace a module by running it, even where ``strict`` is asked for. Only the
    search for faults uses this patch. Dynamo takes a third of the time of its lowerings, but its
    graphs have no control flow that dynamo would have to follow. With and without it, the
    suite's 32 programs are equal byte for byte."""
    export = torch.export.export

    def trace(*args: Any, **options: Any) -> Any:
        return export(*args, **{**options, "strict": False})

    torch.export.export = trace


@dataclass(frozen=True)
class Patch:
    """A patch, and the versions of torch and ExecuTorch for which it is verified."""

    apply: Callable[[], None]
    torch: tuple[str, ...] = ("2.13.0",)
    executorch: tuple[str, ...] = ("1.5.1",)


PATCHES = (
    Patch(skip_inductor),  # first, as others import ExecuTorch
    Patch(write_code_late),
    Patch(share_provenance),
    Patch(materialize_once),
    Patch(skip_empty_decompositions),
    Patch(skip_idle_passes),
    Patch(export_graphs_directly),
    Patch(export_once),
    Patch(register_fast),
    Patch(read_vendor),
    Patch(skip_training_patterns),
)
PATCHES_OF_SEARCH = (Patch(export_without_dynamo),)


def recompile_late(module: Any) -> Unwritten:
    """Discard the code of a module and of its submodules. Return an object that generates the code
    when it is used. This replaces GraphModule.recompile."""
    # torch's own recompile sets these, too (torch 2.13.0), and they do not need the code.
    if isinstance(module.graph._codegen, _PyTreeCodeGen):
        info = module.graph._codegen.pytree_info
        module._in_spec, module._out_spec = info.in_spec, info.out_spec
    for name in WRITTEN:
        vars(module).pop(name, None)
    later = Unwritten(module)
    type(module).forward = later  # each module has its own class
    module._recompile_submodules()
    return later


def reduce_written(module: Any) -> Any:
    """Return what pickle needs to store a module, including its code. This replaces
    GraphModule.__reduce__."""
    write_code(module)
    return reduce_module(module)


class Unwritten:
    """Stands in for a module's ``forward`` and the result of ``recompile``. The first use generates
    the code."""

    def __init__(self, module: Any) -> None:
        self._module = weakref.ref(module)

    def __get__(self, module: Any, owner: Any) -> Any:
        write_code(self._module())
        return (owner if module is None else module).forward

    def __getattr__(self, name: str) -> Any:
        return getattr(write_code(self._module()), name)


class Written:
    """An attribute of a module. Its first use generates the module's code."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, module: Any, owner: Any) -> Any:
        if module is None:
            return self
        write_code(module)
        return vars(module)[self._name]
