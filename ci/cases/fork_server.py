"""Imported once by the fork server: the modules that its forks need to run or to look up a program.

A module can define before_forks(), which does once whatever is slow the first time.

The fork server ends with the process that started it, even while it imports; its forks end with the
fork server.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from ci.cases.pool import IMPORTS, STARTER
from provisioning.console.process import end_with_parent


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hide what imports print, such as torchao's notes on CUDA libraries, unless they fail."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


# A model's factory runs in the user's directory, from which nothing may be imported.
sys.path[:] = [place for place in sys.path if place]
# Ctrl-C also reaches this process, which ends anyway with the one that started it.
signal.signal(signal.SIGINT, signal.SIG_IGN)
end_with_parent(int(os.environ[STARTER]))
gc.disable()  # collections took a fifth of the import time and freed little
with quiet_stderr():
    for module in os.environ[IMPORTS].split():
        getattr(importlib.import_module(module), "before_forks", lambda: None)()
gc.freeze()  # the forks do not scan these objects either
gc.enable()
