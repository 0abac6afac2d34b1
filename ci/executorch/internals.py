"""The objects of ExecuTorch that this project uses; other modules import them from here.

A name is resolved on first use, so that a process that only runs programs does not import the
compiler. docs/reference/pairs.md lists the names. If a new release moves an object, nightly.yml
reports it, because it runs the suite on the newest wheel.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any

# The first place that exists is used. Later places are for older versions of ExecuTorch.
PLACES: dict[str, tuple[str, ...]] = {
    "BuildQuantIo": ("backends.qualcomm._passes.build_quant_io:BuildQuantIo",),
    "ExecutorchBackendConfig": ("exir:ExecutorchBackendConfig",),
    "InitializedMutableBufferPass": ("exir.passes.init_mutable_pass:InitializedMutableBufferPass",),
    "Inspector": ("devtools:Inspector",),
    "MemoryPlanningPass": ("exir.passes:MemoryPlanningPass",),
    "ModuleQConfig": ("backends.qualcomm.quantizer.quantizer:ModuleQConfig",),
    "NodeVisitor": ("backends.qualcomm.builders.node_visitor:NodeVisitor",),
    "NormalizeTransposePass": ("exir.passes:NormalizeTransposePass",),
    "PreprocessResult": ("exir.backend.backend_details:PreprocessResult",),
    "QnnBackend": ("backends.qualcomm.qnn_preprocess:QnnBackend",),
    "QnnQuantizer": ("backends.qualcomm.quantizer.quantizer:QnnQuantizer",),
    "QuantDtype": ("backends.qualcomm.quantizer.quantizer:QuantDtype",),
    "QuantRecipe": ("backends.qualcomm.quantizer.quant_recipe:QuantRecipe",),
    "ReplaceBrokenOpsWithFunctionalOpsPass": ("exir.passes:ReplaceBrokenOpsWithFunctionalOpsPass",),
    "SymToTensorPass": ("exir.passes:SymToTensorPass",),
    "TagQuantIO": ("backends.qualcomm._passes:TagQuantIO",),
    "TimeScale": ("devtools.inspector:TimeScale",),
    "annotate_kv_8bit": ("backends.qualcomm.quantizer.custom_annotation:annotate_kv_8bit",),
    "flatbuffer_to_option": (
        "backends.qualcomm.serialization.qc_schema_serialize:flatbuffer_to_option",
    ),
    "option_to_flatbuffer": (
        "backends.qualcomm.serialization.qc_schema_serialize:option_to_flatbuffer",
    ),
    # The bindings behind executorch.runtime, which would also import the compiler, in three
    # seconds.
    "pybindings": ("extension.pybindings._C", "extension.pybindings._portable_lib"),
    "qc_schema": ("backends.qualcomm.serialization.qc_schema",),
    "qnn_partitioner": ("backends.qualcomm.partition.qnn_partitioner",),
    "qnn_passes": ("backends.qualcomm._passes.qnn_pass_manager",),
    "qnn_sdk_setup": ("backends.qualcomm.utils.qnn_sdk_setup",),
    "quantized_kernels": ("kernels.quantized",),  # registers them
    "to_edge_transform_and_lower": ("exir:to_edge_transform_and_lower",),
    "utils": ("backends.qualcomm.utils.utils",),
}


def __getattr__(name: str) -> Any:
    """Return the object called ``name`` in PLACES. Raises AttributeError if PLACES lacks the name,
    and ImportError or AttributeError if the object is at none of its places."""
    if name not in PLACES:
        raise AttributeError(name)
    *older, last = PLACES[name]
    for place in older:
        with suppress(ImportError, AttributeError):
            return find(place)
    return find(last)


def find(place: str) -> Any:
    """Return the module of ExecuTorch at ``place`` or, for ``module:name``, the object in it.
    Raises ImportError if there is no such module, and AttributeError if it has no such object."""
    module, _, name = place.partition(":")
    loaded = importlib.import_module(f"executorch.{module}")
    return getattr(loaded, name) if name else loaded
