"""SIGKILL at random instants, and many processes at once: the store stays right.

QNN_CI_TEST_KILLS sets the number of kills.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from provisioning.store.tree import compare_tree, parse_tree
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer
from tests.stand_ins.forks import Forks, start_forks
from tests.stand_ins.toolchains import VERSION, World

NIGHTLY = bool(os.environ.get("QNN_CI_NIGHTLY"))
KILLS = int(os.environ.get("QNN_CI_TEST_KILLS", "25" if NIGHTLY else "5"))
PROCESSES = 8 if NIGHTLY else 4  # at once
PARTS = ["qnn-sdk:host", "qnn-sdk:host,headers", "qnn-sdk:android", "qnn-sdk", "libcxx"]


# What a fetch imports before its first step, and on its way.
MODULES = (
    "provisioning.__main__",
    "provisioning.verbs.fetch",
    "provisioning.artifacts.sources.archive",
    "provisioning.artifacts.sources.unpacking",
    "provisioning.fetch.ranges",
    "provisioning.fetch.ranges",
    "requests",
)
# The system's alarm ends a process at any instant, as SIGKILL does: nothing of it handles that.
FETCH = """
import signal, sys
from provisioning.__main__ import main
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
sys.exit(main(["fetch", "--verify", *sys.argv[2:]]))
"""


def list_variables(world: World) -> dict[str, str]:
    variables = {**os.environ, **world.variables, "QNN_CI_ACCEPT_LICENCE": "all"}
    variables.pop("CI", None)
    return variables


def fetch(forks: Forks, world: World, *parts: str, killed_after_s: float = 0.0) -> int:
    """The exit code of a fork that fetches; it is killed after a time, unless that is zero."""
    words = (str(killed_after_s), *parts)
    ended = forks.run(FETCH, *words, cwd=Path.cwd(), env=list_variables(world))
    assert killed_after_s or not ended.returncode, ended.stderr
    return ended.returncode


def start(world: World, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "provisioning", *words],
        env=list_variables(world),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(world: World, *words: str) -> str:
    process = start(world, *words)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


def lock(world: World) -> None:
    """Lock every file, so that parts come over ranges."""
    run(world, "lock", "qnn-sdk", "--write")
    shutil.rmtree(world.home)


class Reader(threading.Thread):
    """Looks at the store all the time, as a reader does, and remembers what was not whole."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self.home, self.partial, self.looks = home, list[str](), 0
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(0.01):
            for path in (self.home / "store").glob("[!.]*"):
                self.look(path)

    def look(self, path: Path) -> None:
        """One look. While another tree takes the place it sees parts of both, and is void."""
        self.looks += 1
        try:
            place = path.stat().st_ino
            tree = parse_tree((path / "tree.json").read_bytes())
        except FileNotFoundError:
            self.partial.append(f"{path.name} without tree.json")
            return
        names = {entry.path for entry in tree.files}
        present = {
            item.relative_to(path / tree.artifact).as_posix()
            for item in (path / tree.artifact).rglob("*")
            if not item.is_dir() or item.is_symlink()
        }
        if names - present and path.stat().st_ino == place:
            self.partial.append(f"{path.name} lacks {names - present}")


def check_store(home: Path) -> None:
    """Every published tree is byte for byte what it says; nothing is left half-made."""
    published = list((home / "store").iterdir())
    assert published
    for path in published:
        tree = parse_tree((path / "tree.json").read_bytes())
        assert compare_tree(path / tree.artifact, tree.files) == []


@pytest.mark.timeout(1800)
def test_a_fetch_killed_at_any_instant_leaves_no_half_published_tree(world: World) -> None:
    lock(world)
    dice = random.Random(11)
    codes = []
    with start_forks(*MODULES) as forks:
        fetch(forks, world, *PARTS)
        began = time.monotonic()
        shutil.rmtree(world.home)
        fetch(forks, world, *PARTS)
        usual_s = time.monotonic() - began
        for number in range(KILLS):
            if number % 3 == 0:
                shutil.rmtree(world.home / "store")
                shutil.rmtree(world.home / "downloads", ignore_errors=True)
            elif number % 3 == 1:
                damage(world.home, dice)
            else:
                drop_one(world.home, dice)
            reader = Reader(world.home)
            reader.start()
            parts = dice.sample(PARTS, len(PARTS))
            share = (number + dice.random()) / KILLS  # a few kills are spread over a fetch, too
            after_s = max(usual_s * 1.1 * share, 0.001)
            codes.append(fetch(forks, world, *parts, killed_after_s=after_s))
            fetch(forks, world, *PARTS)
            reader.stopped.set()
            reader.join()
            assert reader.partial == []
            check_store(world.home)
    assert -signal.SIGALRM in codes


def damage(home: Path, dice: random.Random) -> None:
    """Change a byte of a published library."""
    path = dice.choice(sorted((home / "store").glob("[!.]*/*/lib/**/*.so*")))
    if path.is_symlink():
        return
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def drop_one(home: Path, dice: random.Random) -> None:
    """Take one published tree away, in one rename as gc does."""
    path = dice.choice(sorted((home / "store").glob("[!.]*")))
    gone = home / "gone"
    path.rename(gone)
    shutil.rmtree(gone)


@pytest.mark.timeout(300)
def test_concurrent_fetches_download_artifact_once(world: World, server: BadServer) -> None:
    def late(handler: bad.Handler, data: bytes) -> None:
        time.sleep(2.0)  # so that the others come while the first one is at work
        bad.serve(handler, data)

    server.faults["sdk.zip"] = [late]
    processes = [start(world, "fetch", "--json", "qnn-sdk") for _ in range(PROCESSES)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES, outputs
    whole_downloads = [request for request in server.requests if not request.range]
    assert len(whole_downloads) == 1
    assert sum('"fetched": true' in output for output in outputs) == 1
    waited = sum(": waiting for another process" in output for output in outputs)
    assert waited >= 1
    check_store(world.home)


@pytest.mark.timeout(300)
def test_processes_on_overlapping_components_fetch_each_member_once(
    world: World, server: BadServer
) -> None:
    lock(world)
    server.requests.clear()
    components_of_processes = [
        *("host,headers", "android,host", "host", "base"),
        *("host", "headers", "android", "host"),
    ][:PROCESSES]
    processes = [
        start(world, "fetch", "--json", f"qnn-sdk:{parts}") for parts in components_of_processes
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES, outputs
    parts = [request for request in server.requests if not request.range.startswith("bytes=-")]
    assert sum(request.sent for request in parts) < len(server.files["sdk.zip"]) * 1.02
    roots = {json.loads(output[output.index("{") :])["artifacts"][0]["root"] for output in outputs}
    assert len(roots) == len(set(components_of_processes))
    check_store(world.home)
    assert VERSION in next(iter(roots))
