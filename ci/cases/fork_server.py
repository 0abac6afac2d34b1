"""Imported once by the fork server: what its forks need, for a run or a lookup in the cache.

A module can have a function before_forks, which does once what is slow the first time.

The fork server ends with the process that started it, also while it imports; each fork of it ends
with the fork server.
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
    """Hold back what imports print, torchao's notes on CUDA libraries for one, unless they fail."""
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


# A model's factory runs in its user's directory, which is not to be imported from.
sys.path[:] = [place for place in sys.path if place]
# Ctrl-C reaches this process too, which ends with the one that started it.
signal.signal(signal.SIGINT, signal.SIG_IGN)
end_with_parent(int(os.environ[STARTER]))
gc.disable()  # collections took a fifth of the imports, which leave little to collect
with quiet_stderr():
    for module in os.environ[IMPORTS].split():
        getattr(importlib.import_module(module), "before_forks", lambda: None)()
gc.freeze()  # nor do the forks look through it
gc.enable()
