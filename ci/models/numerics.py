"""What decides the last bits of a float result besides its operands: fixed, and named in keys.

ExecuTorch switches oneDNN off on AMD hosts as soon as a quantizer is made, so that what was
computed before differs from what is computed after; the number of threads changes the order of
sums.
"""

from __future__ import annotations

THREADS = 1
NUMERICS = f"oneDNN off, {THREADS} thread"
# Read when a process starts, hence of the environment.
VARIABLES = {
    f"{library}_NUM_THREADS": str(THREADS) for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")
}


def fix_numerics() -> None:
    """Before the first tensor of a process."""
    import torch

    torch.backends.mkldnn.enabled = False
    if torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)


def name_instructions() -> str:
    """The instructions that torch's kernels are chosen for, such as ``AVX2``."""
    import torch

    return torch.backends.cpu.get_cpu_capability()
