"""A verb that is interrupted while it runs something: 130, nothing left running, nothing lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ci.signing.record import RECORD_NAME
from tests.stand_ins.waits import wait_for_text, wait_until

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "tests" / "artifacts" / "elf" / "libhexagon.so"
# Its end takes until a file is there. Meanwhile, it is the group's: a child of it runs, too.
SIGNER = """
import os, pathlib, signal, subprocess, sys
place = pathlib.Path(sys.argv[1])

def end(number, frame):
    (place / "ending").write_text("ending\\n")
    while not (place / "go").exists():
        pass
    sys.exit(1)

signal.signal(signal.SIGTERM, end)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(place / "started").write_text(f"{os.getpid()}\\n")
child.wait()
"""


def group_runs(group: int) -> bool:
    """Whether any process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    "first",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.nightly),
        pytest.param(signal.SIGHUP, marks=pytest.mark.nightly),
    ],
)
def test_an_interrupted_signer_leaves_nothing(first: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "signer.py").write_text(SIGNER)
    (tmp_path / "out").mkdir()
    for name in ("old", RECORD_NAME):  # --force replaces only what sign wrote
        (tmp_path / "out" / name).touch()
    signer = f"{sys.executable} {tmp_path}/signer.py {tmp_path} {{input}} {{output}}"
    words = ["sign", str(LIBRARY), "--signer", signer, "--out", str(tmp_path / "out"), "--force"]
    # A shell starts what runs in the background with SIGINT ignored, nohup with SIGHUP, and so
    # would this process.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    argv = [sys.executable, "-m", "ci", *words]
    process = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE)
    group = int(wait_for_text(tmp_path / "started"))
    process.send_signal(first)
    wait_for_text(tmp_path / "ending")
    process.send_signal(signal.SIGINT)  # impatience must not end the cleaning up
    (tmp_path / "go").touch()
    errors = process.communicate()[1]

    assert process.returncode == 130
    assert errors.endswith(b"python -m ci sign: interrupted\n")
    assert b"Traceback" not in errors
    wait_until(lambda: not group_runs(group))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"old", RECORD_NAME}
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"ending", "go", "out", "signer.py", "started"}
