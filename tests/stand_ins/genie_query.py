"""Let libGenie answer a prompt: ``python -m tests.stand_ins.genie_query LIBRARIES PROMPT``, in a
folder for Genie. ``LIBRARIES`` is the folder of QNN's libraries, which LD_LIBRARY_PATH must name,
too. It prints the text.

libGenie of QNN 2.51.0 clears a quarter of caches in float32, and masks do not exclude what is in
the rest. With MALLOC_PERTURB_=255, memory is zero from the start.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

SAMPLER = {"version": 1, "seed": 1, "temp": 1.0, "top-k": 1, "top-p": 1.0, "greedy": True}
RUNTIMES = ("libc++abi.so.1", "libunwind.so.1", "libc++.so.1")
Callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p)


def require(status: int, call: str) -> None:
    """Raise RuntimeError if a call of libGenie failed."""
    if status:
        raise RuntimeError(f"{call} returned {status}")


def main() -> None:
    """Print the text that libGenie generates."""
    libraries, prompt = Path(sys.argv[1]), sys.argv[2]
    document = json.loads(Path("genie_config.json").read_text())
    document["dialog"]["sampler"] = SAMPLER
    for name in RUNTIMES:
        for path in libraries.glob(f"{name}*"):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    genie: Any = ctypes.CDLL(str(libraries / "libGenie.so"))
    config, dialog = ctypes.c_void_p(), ctypes.c_void_p()
    text = json.dumps(document).encode()
    require(genie.GenieDialogConfig_createFromJson(text, ctypes.byref(config)), "createFromJson")
    require(genie.GenieDialog_create(config, ctypes.byref(dialog)), "GenieDialog_create")
    parts: list[bytes] = []

    def add(part: bytes | None, _: int, __: object) -> None:
        parts.append(part or b"")

    callback = Callback(add)
    require(genie.GenieDialog_query(dialog, prompt.encode(), 0, callback, None), "query")
    print(b"".join(parts).decode())
    sys.stdout.flush()
    os._exit(0)  # QNN's libraries may crash at the end of a process


if __name__ == "__main__":
    main()
