"""No test depends on time, or on how many processors there are: ./nox -s stress has those that do.

A test waits for what happens (tests/stand_ins/waits.py), chooses the instant of a fault
(tests/stand_ins/kills.py), or sets a clock (tests/stand_ins/clocks.py). A program that sleeps for
FOREVER_S stands for one that hangs: the test ends it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Folders whose results are times, or races.
ELSEWHERE = ("tests/stress/", "tests/bench/")
FOREVER_S = 600
CLOCKS = {
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "thread_time",
}
ALLOWED = {
    "tests/stand_ins/waits.py": "looks again after 10 ms until something has happened",
    "tests/static/test_time.py": "plants what it finds",
    "tests/mutants/run.py": "measures the tests of mutants, and is no test",
    "tests/sessions.py": "prints how long commands took",
    "tests/unit/ci/verbs/test_case_arguments.py": "the default of --jobs is this number",
}
# Stand-ins and hostile jobs that are slow on purpose. What is tested ends them, or they end when
# they are not wanted any more: no result depends on how slow they are.
PAUSES = {
    "tests/integration/cases/test_island.py": "a job's answer that never ends",
    "tests/stand_ins/adbd.py": "the link of a phone",
    "tests/stand_ins/bad_server.py": "servers that stall or drip",
    "tests/stand_ins/slow_link.py": "the link of a board",
}
# Only files with one of these are parsed: that of all takes 10 s of CPU.
POSSIBLE = re.compile(r"\btime\s*\.|from\s+time\b|sleep|Timer|cpu_count|sched_getaffinity")
SLEEP = re.compile(r"\bsleep(?:\(| )(\d+(?:\.\d+)?)")


def find_times(text: str) -> Iterator[str]:
    """Return where Python code sleeps, reads a clock, starts a timer, or counts processors, as
    ``LINE: WHAT``. Programs in its strings count, too."""
    if not POSSIBLE.search(text):
        return
    tree = ast.parse(text)
    hangs = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and is_hang(node)
        for part in (node.func, *node.args)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            is_clock = node.value.id == "time" and node.attr in CLOCKS
            is_sleep = node.attr == "sleep" and id(node) not in hangs
            if is_clock or is_sleep or name in {"os.cpu_count", "os.sched_getaffinity"}:
                yield f"{node.lineno}: {name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Timer"):
            yield f"{node.lineno}: {ast.unparse(node.func)}"
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield f"{node.lineno}: from time import"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for match in SLEEP.finditer(node.value):
                if float(match[1]) < FOREVER_S:
                    yield f"{node.lineno}: {match[0]}"


def is_hang(call: ast.Call) -> bool:
    """Return whether a call is ``time.sleep(600)`` or ``partial(time.sleep, 600)``."""
    last = call.args[-1] if call.args else None
    return isinstance(last, ast.Constant) and last.value == FOREVER_S


def list_files() -> list[Path]:
    files = sorted((ROOT / "tests").rglob("*.py"))
    return [path for path in files if not name_file(path).startswith(ELSEWHERE)]


def name_file(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_test_sleeps_measures_time_or_counts_processors() -> None:
    places = {name_file(path): [*find_times(path.read_text("utf-8"))] for path in list_files()}
    uses = {f"{name}:{use}" for name, uses in places.items() if name not in ALLOWED for use in uses}
    assert not uses, "choose the instant instead, or move the test to tests/stress"
    assert not [name for name in ALLOWED if not places.get(name)], "they are allowed for nothing"


def test_only_stand_ins_that_are_slow_on_purpose_pause() -> None:
    callers = {
        name_file(path)
        for path in list_files()
        if re.search(r"(?<![.\w])pause\(", path.read_text("utf-8"))
    }
    assert callers - ALLOWED.keys() == PAUSES.keys()


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("import time\ntime.sleep(0.3)", ["2: time.sleep"]),
        ("asyncio.sleep(delay_s)", ["1: asyncio.sleep"]),
        ("from time import sleep", ["1: from time import"]),
        ("partial(time.sleep, 2)", ["1: time.sleep"]),
        ("assert time.monotonic() - began < 5", ["1: time.monotonic"]),
        ("began = time.perf_counter()", ["1: time.perf_counter"]),
        ("assert time.process_time() - began < 5", ["1: time.process_time"]),
        ("threading.Timer(5, lock.release).start()", ["1: threading.Timer"]),
        ("run(['sh', '-c', 'sleep 0.5; echo a'])", ["1: sleep 0.5"]),
        ("run(f'import time; time.sleep(60); {more}')", ["1: sleep(60"]),
        ("jobs = os.cpu_count()", ["1: os.cpu_count"]),
        ("time.sleep(600)", []),
        ("partial(time.sleep, 600)", []),
        ("run('exec sleep 600')", []),
        ("isinstance(thread, threading.Timer)", []),
        ("patch.setattr('time.monotonic', clock.read)", []),
    ],
)
def test_a_planted_use_of_time_is_found(text: str, uses: list[str]) -> None:
    assert list(find_times(text)) == uses
