"""What every test starts from, whoever calls pytest."""

from __future__ import annotations

import os
import signal

# Set by ./nox for the verbs of a session: paths would be relative to it, not to a test's directory.
os.environ.pop("QNN_CI_CALLER_DIR", None)

# A shell starts what runs in the background with SIGINT ignored; every process of a test would
# inherit that, and outlive the interrupt that it is sent.
signal.signal(signal.SIGINT, signal.default_int_handler)
