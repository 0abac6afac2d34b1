"""Call QNN in a process that may crash. This module uses only the standard library and, for a
device, executorch, since it is run as a script: ``api LIBRARY`` or ``device BACKEND``.
"""

from __future__ import annotations

import ctypes
import sys

WORD, POINTER = ctypes.c_uint32, ctypes.c_void_p
# ExecuTorch supports LPAI's hardware v6 only, which SM8850 has.
SOCS = {"htp": "SM8650", "gpu": "SM8650", "lpai": "SM8850", "lpai-arm": "SM8850"}


def find_api(path: str) -> str:
    """Return the API version of the library ``path``, a libQnnHtp.so. Raises OSError if the library
    cannot be loaded, or if QnnInterface_getProviders fails.

    QnnInterface_getProviders (QnnInterface.h) returns structs that start with the backend's id (32
    bits), a pointer to its name, and the core and backend API versions: six numbers of 32 bits.
    """
    providers, count = ctypes.POINTER(POINTER)(), WORD()
    library = ctypes.CDLL(path)
    if library.QnnInterface_getProviders(ctypes.byref(providers), ctypes.byref(count)) != 0:
        raise OSError(f"{path} has no provider")
    # The first number, padding to 8 bytes and a pointer of 8 bytes take four words; the core API's
    # version follows.
    return ".".join(map(str, (WORD * 7).from_address(providers[0] or 0)[4:]))


def create_device(backend: str) -> str:
    """Let the QNN adaptor that Python finds create a device for ``backend``, as every lowering does
    first. Return ``ok``, or the name of ExecuTorch's error.
    """
    from executorch.backends.qualcomm.python import PyQnnManagerAdaptor
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
    from executorch.backends.qualcomm.utils import utils

    kind = backend.partition("-")[0]
    words = {"use_fp16": True} if kind == "htp" else {}
    options = getattr(utils, f"generate_{kind}_compiler_spec")(**words)
    spec = utils.generate_qnn_executorch_compiler_spec(
        soc_model=getattr(QcomChipset, SOCS[backend]), backend_options=options
    )
    error_name = str(PyQnnManagerAdaptor.QnnManager(spec[0].value).InitBackend()).rpartition(".")[2]
    return error_name.lower() if error_name == "Ok" else error_name


def main(question: str, subject: str) -> None:
    """Print the question with its answer or error, as the last line, after QNN's messages."""
    try:
        text = find_api(subject) if question == "api" else create_device(subject)
    except Exception as error:  # noqa: BLE001 - executorch may raise anything
        text = f"{type(error).__name__}: {error}".splitlines()[0]
    # On a new line, since QNN's last message may have no newline.
    sys.stdout.write(f"\n{question} {text}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
