"""The verbs that work where only the dependencies of the package are installed."""

from __future__ import annotations

import subprocess
import sys

# These lower, run or judge models, or run programs on a device.
NEED_NUMPY = {
    *("audit", "deploy", "estimate", "fuzz", "judge", "localise", "mend", "test-emulator"),
    *("test-litert", "test-llm", "test-onnx", "test-upstream", "upgrade-report"),
}
LOAD = """
import sys
sys.modules["numpy"] = None
from ci.verbs.registry import VERBS
from provisioning.console.command import load_verb
for name, verb in VERBS.items():
    try:
        load_verb(verb)
    except Exception:
        print(name)
"""


def test_only_verbs_that_compute_need_numpy() -> None:
    ended = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True)
    assert set(ended.stdout.split()) == NEED_NUMPY
