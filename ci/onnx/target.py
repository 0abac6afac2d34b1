"""The provider's options for a SoC and a scheme."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ci.models.schemes import Scheme
from ci.onnx.options import find_backend
from provisioning.errors import UnfitError
from provisioning.manifest.targets import find_soc

LIBRARIES = "lib/x86_64-linux-clang"
HTP = f"{LIBRARIES}/libQnnHtp.so"
SAVER_LIBRARY = f"{LIBRARIES}/libQnnSaver.so"


def choose_options(scheme: Scheme, soc: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options except the backend's path, with those that a user has ``given`` over ours.

    Without a SoC the emulator computes float models in float32, which no HTP does. The provider's
    own default leaves the quantization of inputs and outputs to the CPU. Neither is wanted here.
    Other backends have only those given.
    """
    if find_backend(given) != "htp":
        return dict(given)
    return {
        "soc_model": str(find_soc(soc).id),
        "enable_htp_fp16_precision": str(int(not scheme.quantized)),
        "offload_graph_io_quantization": "0",
        **given,
    }


def find_library(sdk: Path, given: Mapping[str, str]) -> Path:
    """Return the backend's library: HTP's, or what ``given`` names by backend_path or backend_type.
    Raises UnfitError if the SDK at ``sdk`` has no such library."""
    kind = given.get("backend_type", "")
    name = given.get("backend_path") or (f"libQnn{kind.capitalize()}.so" if kind else "")
    if not name or len(Path(name).parts) > 1:
        return Path(name) if name else sdk / HTP
    path = sdk / LIBRARIES / (name if kind in {"", "cpu", "gpu", "saver", "ir"} else Path(HTP).name)
    if not path.is_file():
        raise UnfitError(
            f"{sdk} has no {path.name}",
            why="the wheels have none for the CPU, a QNN SDK of Qualcomm's has one",
            fix="give it with --sdk, or leave the backend out",
        )
    return path


def profile_options(level: str, path: Path) -> dict[str, str]:
    """Return what has QNN write its profile of a ``level`` to ``path``; nothing without one."""
    return {"profiling_level": level, "profiling_file_path": str(path)} if level else {}
