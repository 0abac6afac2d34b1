"""A fetch that is killed (SIGKILL) at each of its steps, and many at once: the store stays right.

tests/stress kills it at random instants, too.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

from tests.build.fetches import (
    MODULES,
    check_published,
    check_store,
    damage,
    drop_one,
    empty,
    fetch,
    forget_all,
    lock,
    start,
)
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer
from tests.stand_ins.forks import start_forks
from tests.stand_ins.toolchains import VERSION, World
from tests.stand_ins.waits import wait_until

NIGHTLY = bool(os.environ.get("QNN_CI_NIGHTLY"))
PROCESSES = 8 if NIGHTLY else 4  # at once
State = Callable[[Path, random.Random], object]


def before(event: str, pattern: str) -> str:
    return f"kills.kill_before({event!r}, {pattern!r})"


def in_file(size_bytes: int) -> str:
    return f"kills.kill_in_file({size_bytes})"


STAGING = r"/store/\.[a-z-]+\.staging-\w+"
# Each step of a fetch, from which state of the store it is reached, and how the fetch is killed.
STEPS: dict[str, tuple[State, str]] = {
    "before the record of licences is replaced": (forget_all, before("os.rename", "licences")),
    "before a lock is taken": (empty, before("fcntl.flock", "")),
    "before a directory is staged": (empty, before("os.mkdir", f"{STAGING}$")),
    "before the staged directory is locked": (empty, before("open", f"{STAGING}$")),
    "before a download": (empty, before("open", r"llvm.*\.part$")),
    "before the record of a download": (empty, before("open", r"llvm.*\.json$")),
    "in the middle of a record": (empty, in_file(10)),
    "in the middle of a download": (empty, in_file(1000)),
    "before a download has its name": (empty, before("os.rename", r"\.part$")),
    "after a download has its name": (empty, before("os.remove", r"llvm.*\.json$")),
    "before a member is written": (empty, before("open", f"{STAGING}/.*so")),
    "in the middle of a member": (empty, in_file(500_000)),
    "after a member": (empty, before("os.remove", r"\.parts$")),
    "before a member of another tree is linked": (drop_one, before("os.link", STAGING)),
    "before the record of a tree": (empty, before("open", f"{STAGING}/tree.json")),
    "after the record of a tree": (empty, before("os.chmod", f"{STAGING}/tree.json")),
    "before a tree is published": (empty, before("os.rename", f"{STAGING}$")),
    "after a tree is published": (empty, before("os.chmod", f"{STAGING}$")),
    "before a tree replaces a damaged one": (damage, before("ctypes.dlsym", "renameat2")),
    "before a damaged tree is removed": (damage, before("os.rmdir", STAGING)),
}


def test_a_fetch_killed_at_any_step_leaves_no_half_published_tree(world: World) -> None:
    lock(world)
    dice = random.Random(11)
    with start_forks(*MODULES) as forks:
        fetch(forks, world)
        for step, (prepare, kill) in STEPS.items():
            prepare(world.home, dice)
            code = fetch(forks, world, kill=kill)
            assert code in {-signal.SIGKILL, -signal.SIGXFSZ}, f"was not killed {step}: {code}"
            if prepare is not damage:
                check_published(world.home)
            fetch(forks, world)
            check_store(world.home)


def test_concurrent_fetches_download_artifact_once(
    world: World, server: BadServer, tmp_path: Path
) -> None:
    logs = [tmp_path / f"log{number}" for number in range(PROCESSES)]

    def are_waiting() -> bool:
        waiting = sum(": waiting for another process" in log.read_text("utf-8") for log in logs)
        return waiting == PROCESSES - 1

    def answer_when_all_others_wait(handler: bad.Handler, data: bytes) -> None:
        wait_until(are_waiting)
        bad.serve(handler, data)

    for log in logs:
        log.touch()
    server.faults["sdk.zip"] = [answer_when_all_others_wait]
    processes = [start(world, "fetch", "--json", "qnn-sdk", log=log) for log in logs]
    codes = [process.wait() for process in processes]
    outputs = [log.read_text("utf-8") for log in logs]
    assert codes == [0] * PROCESSES, outputs
    whole_downloads = [request for request in server.requests if not request.range]
    assert len(whole_downloads) == 1
    assert sum('"fetched": true' in output for output in outputs) == 1
    check_store(world.home)


def test_processes_on_overlapping_components_fetch_each_member_once(
    world: World, server: BadServer, tmp_path: Path
) -> None:
    lock(world)
    server.requests.clear()
    components_of_processes = [
        *("host,headers", "android,host", "host", "base"),
        *("host", "headers", "android", "host"),
    ][:PROCESSES]
    logs = [tmp_path / f"log{number}" for number in range(PROCESSES)]
    processes = [
        start(world, "fetch", "--json", f"qnn-sdk:{parts}", log=log)
        for parts, log in zip(components_of_processes, logs, strict=True)
    ]
    codes = [process.wait() for process in processes]
    outputs = [log.read_text("utf-8") for log in logs]
    assert codes == [0] * PROCESSES, outputs
    parts = [request for request in server.requests if not request.range.startswith("bytes=-")]
    assert sum(request.sent for request in parts) < len(server.files["sdk.zip"]) * 1.02
    roots = {json.loads(output[output.index("{") :])["artifacts"][0]["root"] for output in outputs}
    assert len(roots) == len(set(components_of_processes))
    check_store(world.home)
    assert VERSION in next(iter(roots))
