"""Fixes the settings on which the last bits of a float result depend. Cache keys include them.

ExecuTorch disables oneDNN on AMD hosts when a quantizer is created, so results that are computed
afterwards would differ from earlier ones. The number of threads changes the order in which sums are
computed.
"""

from __future__ import annotations

import re
from pathlib import Path

from provisioning.documents import read_text

THREADS = 1
NUMERICS = f"oneDNN off, {THREADS} thread"
# Libraries read these when a process starts, so they must be in the environment.
VARIABLES = {
    f"{library}_NUM_THREADS": str(THREADS) for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")
}


def fix_numerics() -> None:
    """Disable oneDNN and set the number of threads. Call this before a process creates its first
    tensor."""
    import torch

    # Seen: without oneDNN, outputs are equal to the last bit, before and after a quantizer is
    # created.
    torch.backends.mkldnn.enabled = False
    if torch.get_num_threads() != THREADS:
        # OpenMP's threads do not survive a fork, which then waits for them forever.
        torch.set_num_threads(THREADS)


def name_instructions() -> str:
    """Return the instruction set for which torch selects its kernels, such as ``AVX2``."""
    import torch

    return torch.backends.cpu.get_cpu_capability()


def name_extensions(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's vector extensions, such as ``avx avx2 fma``, for which ONNX Runtime
    selects its kernels. Raises OSError if ``cpuinfo`` cannot be read."""
    text = read_text(cpuinfo, "replace")
    flags = re.search(r"(?m)^flags\s*:(.*)$", text)
    names = flags[1].split() if flags else []
    prefixes = ("avx", "amx", "fma", "f16c")
    return " ".join(sorted(name for name in names if name.startswith(prefixes)))
