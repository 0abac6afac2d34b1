"""ExecuTorch's compile specification and quantizer for a backend."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer
from executorch.backends.qualcomm.serialization import qc_schema
from executorch.backends.qualcomm.utils import utils

from ci.models.lowering_options import NO_CHOICES, PROFILE_LEVELS, Choices
from ci.models.schemes import FLOAT16, Scheme
from provisioning.errors import FailedError
from provisioning.manifest.backends import Backend

KINDS = {
    Backend.GPU: "kGpuBackend",
    Backend.LPAI: "kLpaiBackend",
    Backend.LPAI_ARM: "kLpaiBackend",
}
TARGETS = {Backend.LPAI: "kX86", Backend.LPAI_ARM: "kArm"}


def compiler_spec(
    scheme: Scheme,
    soc: str,
    choices: Choices = NO_CHOICES,
    backend: Backend = Backend.HTP,
    *,
    saver: bool = False,
) -> list[Any]:
    """ExecuTorch's compile specification. GPU's graph is always composed on the device, as upstream
    does it. Raises FailedError where ExecuTorch does not know the backend."""
    name = f"generate_{backend.kind}_compiler_spec"
    generate = getattr(utils, name, None)
    if generate is None:
        version = importlib.metadata.version("executorch")
        raise FailedError(
            f"ExecuTorch {version} does not lower for {backend.value}",
            why=f"it has no {name}",
            fix="install the ExecuTorch that pyproject.toml pins",
        )
    spec: list[Any] = utils.generate_qnn_executorch_compiler_spec(
        soc_model=qc_schema.QcomChipset[soc],
        backend_options=generate(**_options(scheme, choices, backend)),
        saver=saver,
        online_prepare=choices.online_prepare or backend is Backend.GPU,
        shared_buffer=choices.shared_buffer,
        dump_intermediate_outputs=choices.dump_intermediate_outputs,
        profile_level=PROFILE_LEVELS[choices.profile_level],
    )
    return spec


def _options(scheme: Scheme, choices: Choices, backend: Backend) -> Mapping[str, Any]:
    if backend is Backend.HTP:
        return {
            "use_fp16": scheme.recipe.activation_bits == FLOAT16.activation_bits,
            "use_weight_sharing": choices.weight_sharing,
        }
    if backend is Backend.GPU:
        return {"precision": qc_schema.QnnExecuTorchGpuPrecision.kGpuPrecisionFp16}
    return {"target_env": qc_schema.QnnExecuTorchLpaiTargetEnv[TARGETS[backend]]}


def make_quantizer(soc: str, backend: Backend = Backend.HTP) -> QnnQuantizer:
    """The quantizer, with the rules of the backend."""
    chipset = qc_schema.QcomChipset[soc]
    if backend is Backend.HTP:
        return QnnQuantizer(soc_model=chipset)
    kind = qc_schema.QnnExecuTorchBackendType[KINDS[backend]]
    return QnnQuantizer(backend=kind, soc_model=chipset)
