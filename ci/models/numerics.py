"""Fix the settings that decide the last bits of a float result, and name them in cache keys.

ExecuTorch switches oneDNN off on AMD hosts as soon as a quantizer is made, so that results computed
before and after differ; the number of threads changes the order of sums.
"""

from __future__ import annotations

THREADS = 1
NUMERICS = f"oneDNN off, {THREADS} thread"
# Read when a process starts, so they must be in the environment.
VARIABLES = {
    f"{library}_NUM_THREADS": str(THREADS) for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")
}


def fix_numerics() -> None:
    """Fix the numerics; call it before the first tensor of a process."""
    import torch

    torch.backends.mkldnn.enabled = False
    if torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)


def name_instructions() -> str:
    """Return the instructions that torch chooses its kernels for, such as ``AVX2``."""
    import torch

    return torch.backends.cpu.get_cpu_capability()
