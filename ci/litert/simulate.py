"""Compiles a LiteRT model for a SoC that QNN's simulator knows, and reads what it predicts.

The plugin writes QNN's schematic, but not its profile, and its program can be read only from inside
of its process. So LiteRT applies the plugin in this process, as it does on a phone, and the hook of
ci.latency.profile_hook reads the profile. LiteRT asks the host for its SoC then, which is none: the
plugin's functions that get the SoC are found by their names in its symbol table, whose entries are
changed to functions that pass the simulated SoC. This changes memory of the process: use it only in
a fork. All of it was seen with ai-edge-litert 2.3.0 and QNN 2.51.
"""

from __future__ import annotations

import ctypes
import gzip
import mmap
from collections.abc import Callable
from ctypes import (
    CDLL,
    CFUNCTYPE,
    POINTER,
    RTLD_GLOBAL,
    Structure,
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    cast,
    sizeof,
)
from pathlib import Path
from typing import Any

from ci.cases.engine import Compiled, Delegation, Staging
from ci.cases.qnn_files import Peak, make_footprint
from ci.cases.spec import CaseSpec
from ci.latency.profile_hook import READ_WRITE, SimulatorHook
from ci.latency.simulation import TRACE, choose_simulated, read_simulation
from ci.litert.compile import describe_untaken
from ci.litert.empty_library import make_empty_library
from ci.litert.plugin import (
    PLUGINS,
    UNUSED_LIBRARY,
    NothingTakenError,
    find_package,
    run_plugin,
)
from ci.litert.source import LitertSource
from ci.models.user_code import working_directory
from provisioning.errors import FailedError
from provisioning.files import scratch_directory

PLUGIN = "libLiteRtCompilerPlugin_Qualcomm.so"
SYSTEM = "libQnnSystem.so"
# They take the plugin, the name of the SoC, and up to four other arguments.
WITH_SOC = ("LiteRtCompilerPluginPartition", "LiteRtCompilerPluginCompile")
Taking = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_void_p, c_void_p, c_void_p)
SYMBOL_INFO = 1  # RTLD_DL_SYMENT
FIRST_EVENT = "QNN (finalize) time"  # of a graph


class Location(Structure):
    """Dl_info: where a symbol is."""

    _fields_ = (("file", c_char_p), ("base", c_void_p), ("name", c_char_p), ("address", c_void_p))


class TableEntry(Structure):
    """Elf64_Sym."""

    _fields_ = (
        ("name", c_uint32),
        ("info", c_uint8),
        ("other", c_uint8),
        ("section", c_uint16),
        ("value", c_uint64),
        ("size", c_uint64),
    )


def simulate_litert(
    source: LitertSource, spec: CaseSpec, staging: Staging, *, library: Path, timeout_s: float
) -> Compiled:
    """Return what QNN's simulator predicts for the model of a case. ``library`` is QNN's backend.
    The trace is written to the staging directory.

    Raises FailedError if there is no prediction, and the errors of run_plugin.
    """
    soc = choose_simulated(spec.soc)
    with scratch_directory(staging.cache, "simulating") as scratch:
        path = scratch / "source.tflite"
        path.write_bytes(source.data)
        left = count_left(source, path, soc, library=library, log=staging.log, timeout_s=timeout_s)
        hook = apply_plugin(path, soc, library)
        observed = hook.observe()
    graphs = sum(name == FIRST_EVENT for _, name, _ in observed.events)
    if not graphs:
        raise FailedError("LiteRT's plugin compiled no graph in this process")
    simulation = read_simulation(observed, soc, graphs)
    (staging.directory / TRACE).write_bytes(gzip.compress(observed.traces))
    size = (staging.directory / TRACE).stat().st_size
    footprint = make_footprint(
        program_bytes=size, partitions=graphs, contexts=(), log="", operators=[], peak=Peak(0)
    )
    operators = sum(len(subgraph.operators or ()) for subgraph in source.model.subgraphs)
    return Compiled(
        program=TRACE,
        binary=TRACE,
        size_bytes=size,
        delegation=Delegation(operators - left, left, graphs),
        footprint=footprint,
        simulation=simulation,
    )


def count_left(
    source: LitertSource, path: Path, soc: str, *, library: Path, log: Path, timeout_s: float
) -> int:
    """Return how many operators of a model the plugin leaves on the CPU. Raises FailedError if it
    takes none."""
    try:
        result = run_plugin(
            path,
            path.with_name("partitioned.tflite"),
            soc,
            library_folder=library.parent,
            log=log,
            timeout_s=timeout_s,
            compiles=False,
        )
    except NothingTakenError as error:
        raise describe_untaken(source.model, error) from error
    total = sum(len(subgraph.operators or ()) for subgraph in source.model.subgraphs)
    return total - sum(result.selected.values())


def apply_plugin(path: Path, soc: str, library: Path) -> SimulatorHook:
    """Let LiteRT compile a file for ``soc`` in this process, and return what QNN reported."""
    from ai_edge_litert.compiled_model import CompiledModel
    from ai_edge_litert.environment import Environment
    from ai_edge_litert.hardware_accelerator import HardwareAccelerator
    from ai_edge_litert.options import Options
    from ai_edge_litert.qualcomm_options import QualcommProfiling

    plugins = find_package() / PLUGINS
    unused = path.with_name(UNUSED_LIBRARY)
    unused.write_bytes(make_empty_library(UNUSED_LIBRARY))
    # The plugin finds loaded libraries by their names.
    for name in (unused, library.with_name(SYSTEM), library):
        CDLL(str(name), RTLD_GLOBAL)
    hook = SimulatorHook(library, "ai-edge-litert")
    hook.install()
    plugin = CDLL(str(plugins / PLUGIN))
    names_in_memory = [pass_soc(plugin, name, soc.encode()) for name in WITH_SOC]
    environment = Environment.create(
        compiler_plugin_path=str(plugins), dispatch_library_path=str(plugins)
    )
    options = Options.create()
    options.hardware_accelerators = HardwareAccelerator.NPU | HardwareAccelerator.CPU
    options.qualcomm_options.profiling = QualcommProfiling.OPTRACE
    with working_directory(path.parent):  # QNN writes its schematics there
        CompiledModel.from_file(str(path.absolute()), environment=environment, options=options)
    del names_in_memory
    return hook


def pass_soc(plugin: CDLL, name: str, soc: bytes) -> Any:
    """Make dlsym find another function under the name of one of the plugin's, which calls it with
    ``soc``. Return what must live as long as it may be called. Raises FailedError if the
    plugin has no such symbol, or if the symbol has another address than its function."""
    address = cast(getattr(plugin, name), c_void_p).value or 0
    process = CDLL(None, use_errno=True)
    place, symbol_address = Location(), c_void_p()
    process.dladdr1.argtypes = (c_void_p, POINTER(Location), POINTER(c_void_p), c_int)
    process.mprotect.argtypes = (c_void_p, c_size_t, c_int)
    if (
        not process.dladdr1(address, byref(place), byref(symbol_address), SYMBOL_INFO)
        or not symbol_address.value
    ):
        raise FailedError(f"{PLUGIN} has no symbol {name}")
    symbol = TableEntry.from_address(symbol_address.value)
    base = place.base or 0
    if base + symbol.value != address:
        raise FailedError(f"the symbol {name} of {PLUGIN} has another address than its function")
    original = Taking(address)
    replacement = Taking(pass_first(original, soc))
    # mprotect takes whole pages.
    page = symbol_address.value & -mmap.PAGESIZE
    length = symbol_address.value + sizeof(TableEntry) - page
    if process.mprotect(page, length, READ_WRITE):
        raise FailedError(f"{PLUGIN} cannot be changed: {ctypes.get_errno()}")
    symbol.value = ((cast(replacement, c_void_p).value or 0) - base) % 2**64
    return original, replacement


def pass_first(original: Callable[..., int], soc: bytes) -> Callable[..., int]:
    """Return a function that calls another one with an SoC as its second argument."""

    def call(plugin: Any, _: bytes, *arguments: Any) -> int:
        return original(plugin, soc, *arguments)

    return call
