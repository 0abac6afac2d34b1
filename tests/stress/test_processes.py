"""Processes that are ended while they start, or while their parent is killed."""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import sys
import time

import pytest

from provisioning.console.process import end_marked
from tests.integration.console.test_process import find_command
from tests.stand_ins.waits import wait_until

TRIES = 15


def test_a_process_that_keeps_replacing_itself_is_ended(dice: random.Random) -> None:
    replace_itself = 'exec /bin/sh -c "$AGAIN"'
    for _ in range(TRIES):
        name, value = "TEST_END_MARKED", secrets.token_hex()
        with subprocess.Popen(
            ["/bin/sh", "-c", replace_itself], env={name: value, "AGAIN": replace_itself}
        ) as child:
            try:
                time.sleep(dice.uniform(0, 0.01))
                assert end_marked(f"{name}={value}") == ["sh"]
            finally:
                child.kill()


@pytest.mark.parametrize("longest_s", [0.4, 2.0])
def test_child_processes_end_when_their_parent_is_killed(
    dice: random.Random, longest_s: float
) -> None:
    """The whole process group ends, at whatever instant the kill comes."""
    mark = f"# {secrets.token_hex()}"
    command = ["sh", "-c", f"sleep 600 & sleep 600 {mark}; wait {mark}"]
    code = f"from provisioning.console.process import run_process as r\nwhile 1: r({command!r})"
    with subprocess.Popen([sys.executable, "-c", code], env=os.environ) as killed:
        time.sleep(dice.uniform(0, longest_s))
        killed.kill()
    wait_until(lambda: not find_command(mark))
