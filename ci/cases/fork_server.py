"""Prepares the fork server, which imports this module once. This module then imports the modules
that were passed to ci.cases.pool.Pool, so that every worker starts with them.

If one of them defines before_forks(), that function is called after the import. It does work that
is slow the first time.

The fork server exits when the process that started it exits, even during imports. Its forks exit
when the fork server exits.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import tempfile

from ci.cases.forked import redirected
from ci.cases.pool import IMPORTS, STARTER
from provisioning.console.process import end_with_parent

if STARTER not in os.environ:  # started by multiprocessing, as the pool's server had just ended
    os._exit(1)
# A model's factory runs in the user's directory; modules there must not be imported by accident.
sys.path[:] = [place for place in sys.path if place]
# Ctrl-C also reaches this process. It exits anyway when the process that started it exits.
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
end_with_parent(int(os.environ[STARTER]))
gc.disable()  # garbage collection took a fifth of the import time and freed little
# Imports print notes, such as torchao's about CUDA libraries and QNN's about its configuration.
# They are shown only if an import fails.
with tempfile.TemporaryFile() as printed:
    try:
        with redirected(printed.fileno(), 1, 2):
            for module in os.environ[IMPORTS].split():
                getattr(importlib.import_module(module), "before_forks", lambda: None)()
    except BaseException:
        printed.seek(0)
        os.write(2, printed.read())
        raise
gc.freeze()  # the forks do not scan these objects either
gc.enable()
