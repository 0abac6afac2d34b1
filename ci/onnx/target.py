"""The provider's options for a SoC and a scheme."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ci.models.schemes import Scheme
from provisioning.manifest.targets import find_soc

HTP = "lib/x86_64-linux-clang/libQnnHtp.so"
SAVER_LIBRARY = "lib/x86_64-linux-clang/libQnnSaver.so"


def choose_options(scheme: Scheme, soc: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options except the backend's path, with those that a user has ``given`` over ours.

    Without a SoC the emulator computes float models in float32, which no HTP does. The provider's
    own default leaves the quantization of inputs and outputs to the CPU. Neither is wanted here.
    """
    return {
        "soc_model": str(find_soc(soc).id),
        "enable_htp_fp16_precision": str(int(not scheme.quantized)),
        "offload_graph_io_quantization": "0",
        **given,
    }


def profile_options(level: str, path: Path) -> dict[str, str]:
    """Return what has QNN write its profile of a ``level`` to ``path``; nothing without one."""
    return {"profiling_level": level, "profiling_file_path": str(path)} if level else {}
