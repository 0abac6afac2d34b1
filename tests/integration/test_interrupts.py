"""A verb that is interrupted while it runs something: 130, nothing left running, nothing lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ci.signing.record import RECORD_NAME

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "tests" / "artifacts" / "elf" / "libhexagon.so"
SIGNER = "import os, subprocess, sys; open(sys.argv[1], 'w').write(str(os.getpid())); {}"
CHILD = "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"


def wait_for(path: Path, limit_s: float = 30.0) -> str:
    """The text of a file that another process writes."""
    ends = time.monotonic() + limit_s
    while time.monotonic() < ends:
        if path.is_file() and (text := path.read_text()):
            return text
        time.sleep(0.02)
    raise TimeoutError(path)


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
    (tmp_path / "signer.py").write_text(SIGNER.format(CHILD))
    (tmp_path / "out").mkdir()
    for name in ("old", RECORD_NAME):  # --force replaces only what sign wrote
        (tmp_path / "out" / name).touch()
    signer = f"{sys.executable} {tmp_path}/signer.py {tmp_path}/started {{input}} {{output}}"
    words = ["sign", str(LIBRARY), "--signer", signer, "--out", str(tmp_path / "out"), "--force"]
    # A shell starts what runs in the background with SIGINT ignored, and so would this process.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    argv = [sys.executable, "-m", "ci", *words]
    process = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE)
    group = int(wait_for(tmp_path / "started"))
    process.send_signal(first)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)  # impatience must not end the cleaning up
    errors = process.communicate(timeout=120)[1]

    assert process.returncode == 130
    assert errors.endswith(b"python -m ci sign: interrupted\n")
    assert b"Traceback" not in errors
    assert not group_runs(group)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"old", RECORD_NAME}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "signer.py", "started"]
