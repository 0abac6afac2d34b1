"""Lower one model with the adaptor below a directory: ``python proof_program.py DIRECTORY``.

This program runs in the Python that the adaptor is built for, so it imports nothing from this
project. It also loads the library of quantized operators, if one was built with the adaptor. The
last line that it prints is ``proved BYTES ADAPTOR`` if all of this succeeded, otherwise the error.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ADAPTOR = "executorch.backends.qualcomm.python.PyQnnManagerAdaptor"
DELEGATE = b"QnnBackend"
OPERATOR = "quantized_decomposed::quantize_per_tensor"
SOC = "SM8650"


def prove(overlay: Path) -> str:
    """Return ``proved``, the program's size in bytes and the adaptor's path as one line. Raises
    ValueError if the adaptor or the lowered program is not the expected one.
    """
    adaptor = Path(str(importlib.import_module(ADAPTOR).__file__)).resolve()
    # PYTHONPATH may contain another executorch first.
    if overlay.resolve() not in adaptor.parents:
        raise ValueError(f"the adaptor is {adaptor}, which is not below {overlay}")
    program = lower_model()
    # Without a partition for QNN, lowering succeeds and everything runs on the CPU.
    if DELEGATE not in program:
        raise ValueError("the lowered program contains no QNN delegate")
    load_quantized(overlay)
    return f"proved {len(program)} {adaptor}"


def load_quantized(overlay: Path) -> None:
    """Load the out variants of quantized operators, if the overlay has its own library of them.

    Raises ValueError if importing executorch.kernels.quantized, which hides errors, does not load
    the library, or if the library registers no out variant.
    """
    library = overlay / "executorch/kernels/quantized/libquantized_ops_aot_lib.so"
    if library.is_symlink() or not library.is_file():
        return
    import torch

    importlib.import_module("executorch.kernels.quantized")
    if str(library.resolve()) not in torch.ops.loaded_libraries:
        raise ValueError(f"executorch.kernels.quantized does not load {library}")
    schemas = torch._C._jit_get_schemas_for_operator(OPERATOR)  # torch.ops caches overloads
    if "out" not in [schema.overload_name for schema in schemas]:
        raise ValueError(f"{library} registers no out variant of {OPERATOR}")


def lower_model() -> bytes:
    """Return the program of a convolution and a linear layer, in float16 for the HTP."""
    import torch
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
    from executorch.backends.qualcomm.utils import utils

    # Every proof lowers the same model.
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 4)
    )
    options = utils.generate_qnn_executorch_compiler_spec(
        soc_model=getattr(QcomChipset, SOC),
        backend_options=utils.generate_htp_compiler_spec(use_fp16=True),
    )
    lowered = utils.to_edge_transform_and_lower_to_qnn(
        model.eval(), (torch.randn(1, 3, 8, 8),), options
    )
    return bytes(lowered.to_executorch().buffer)


def main() -> int:
    """Print the proof and return 0, or print the error and return 1."""
    try:
        text, code = prove(Path(sys.argv[1])), 0
    except Exception as error:  # noqa: BLE001 - torch and ExecuTorch raise many kinds
        text, code = f"{type(error).__name__}: {error}", 1
    sys.stdout.write(text + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
