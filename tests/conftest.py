"""What every test starts from, whoever calls pytest."""

from __future__ import annotations

import os

# Set by ./nox for the verbs of a session: paths would be relative to it, not to a test's directory.
os.environ.pop("QNN_CI_CALLER_DIR", None)
