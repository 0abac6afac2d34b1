"""Let the QNN adaptor that Python finds create a device for a backend (the only argument), as every
lowering does first. This module uses only the standard library and executorch, since it is run as a
script, in a process that may crash.

The last line of its output is ``device`` followed by ``ok`` or by ExecuTorch's error. QNN's
messages come before this line.
"""

from __future__ import annotations

import sys

SOCS = {"htp": "SM8650", "gpu": "SM8650", "lpai": "SM8850", "lpai-arm": "SM8850"}


def create_device(backend: str) -> str:
    """Create a device for ``backend``; return ``ok`` or the name of ExecuTorch's error."""
    from executorch.backends.qualcomm.python import PyQnnManagerAdaptor
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
    from executorch.backends.qualcomm.utils import utils

    kind = backend.partition("-")[0]
    words = {"use_fp16": True} if kind == "htp" else {}
    options = getattr(utils, f"generate_{kind}_compiler_spec")(**words)
    spec = utils.generate_qnn_executorch_compiler_spec(
        soc_model=getattr(QcomChipset, SOCS[backend]), backend_options=options
    )
    said = str(PyQnnManagerAdaptor.QnnManager(spec[0].value).InitBackend()).rpartition(".")[2]
    return said.lower() if said == "Ok" else said


def main() -> None:
    """Create a device for the backend in the first argument, and print ``device RESULT``."""
    try:
        text = create_device(sys.argv[1])
    except Exception as error:  # noqa: BLE001 - executorch may raise anything
        text = f"{type(error).__name__}: {error}".splitlines()[0]
    sys.stdout.write(f"\ndevice {text}\n")


if __name__ == "__main__":
    main()
