"""Servers that stop in the middle: a limit of time ends the transfer, and another one mends it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from provisioning.fetch.transfer import TransferPolicy
from tests.integration.fetch.test_download_faults import DATA, fetch
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer, Fault

QUICK = TransferPolicy(attempts=3, backoff_s=0.01, read_timeout_s=1.0, connect_timeout_s=1.0)


@pytest.mark.parametrize("is_dripping", [False, True])
def test_a_server_that_stalls_is_left_and_the_next_try_goes_on(
    server: BadServer, tmp_path: Path, dice: random.Random, is_dripping: bool
) -> None:
    server.files["a.zip"] = DATA
    fault: Fault = bad.drip(400, 0.02) if is_dripping else bad.stall(dice.uniform(0.1, 0.9), 600)
    server.faults["a.zip"] = [fault]
    ended, messages = fetch(server.url("a.zip"), tmp_path, policy=QUICK)
    assert ended == "ok", messages
    assert ("stalled" if is_dripping else "no data arrived within the time limit") in messages
    assert server.sent_bytes <= 1.01 * len(DATA)
