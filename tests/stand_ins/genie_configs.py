"""Let libGenie check configurations: ``python -m tests.stand_ins.genie_configs LIBRARIES``, with a
configuration as a string of JSON in each line of the standard input. ``LIBRARIES`` is the folder of
QNN's libraries, which LD_LIBRARY_PATH must name, too. It prints a status for each: 0 is right."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.stand_ins.genie_query import RUNTIMES


def main() -> None:
    """Print what libGenie says of each configuration."""
    libraries = Path(sys.argv[1])
    for name in RUNTIMES:
        for path in libraries.glob(f"{name}*"):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    genie: Any = ctypes.CDLL(str(libraries / "libGenie.so"))
    for line in sys.stdin:
        config, text = ctypes.c_void_p(), json.loads(line).encode()
        status = genie.GenieDialogConfig_createFromJson(text, ctypes.byref(config))
        print(f"status {status}")
    sys.stdout.flush()
    os._exit(0)  # QNN's libraries may crash at the end of a process


if __name__ == "__main__":
    main()
