"""What every test starts from, whoever calls pytest."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from provisioning.console import process
from provisioning.console.interrupts import ENDING_SIGNALS
from provisioning.console.usage import measure_memory
from provisioning.errors import QnnCiError
from tests.programs import FILE, OnlyTheseTests, SkippedTests

# Set by ./nox for the verbs of a session: where paths are relative to, and how hints name verbs.
for name in ("QNN_CI_CALLER_DIR", "QNN_CI_COMMAND", "QNN_CI_SESSION", "QNN_CI_CAUSE_FILE"):
    os.environ.pop(name, None)
# What CI says of itself: tests that need it say it themselves.
PREFIXES = ("GITHUB_", "GITLAB_CI", "BUILDKITE", "TF_BUILD", "JENKINS_", "CIRCLECI", "TEAMCITY_")
for name in [
    variable for variable in os.environ if variable == "CI" or variable.startswith(PREFIXES)
]:
    del os.environ[name]

# The user's git configuration, such as safe.directory, must not affect a test either.
os.environ["GIT_CONFIG_GLOBAL"] = os.devnull

# Many tests start `python -m ci`: with this set, each start would compile every module again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A file system in memory, which Linux has for every user.
MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a directory there that no other user can read
# Tests write less than 1 GB there at a time, except in a run whose tests fail: pytest keeps theirs.
ROOM, SPARE = 4 << 30, 8 << 30


def write_to_memory() -> None:
    """Let tests write to memory instead of a disk, unless TMPDIR is set or there is no room.

    ext4 gives no inode away for 5 s after its file was removed, and looks at all of these for each
    new file. Tests create and remove files faster than that: unit tests took 62 s, a third of it in
    the kernel, and 44 s in memory.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    state = os.statvfs(MEMORY)
    if state.f_flag & os.ST_NOEXEC or state.f_bavail * state.f_frsize < ROOM:
        return
    available, _ = measure_memory()
    if available >= SPARE:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


write_to_memory()

# Collection creates objects that stay. Scanning them again took a third of its time.
gc.disable()

# Tests of this file mostly wait. One after the other, they would have all workers wait at once.
WAITING = "tests/integration/console/test_process.py"

# Tests of these take long, or wait, and share no set-up that would have to be made for each worker.
SPREAD = ("tests/documented/", "tests/journeys/", WAITING)

# Tests of one of these share set-up that takes seconds, for example a tree of environments.
TOGETHER = ("tests/integration/doctor/",)

# A shell starts what runs in the background with SIGINT ignored; every process of a test would
# inherit that, and outlive the interrupt that it is sent.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_variables() -> Iterator[None]:
    """What sets environment variables in a test ends with it. Verbs set some for their later steps
    and processes, such as --adaptor, which the next test in this process would follow."""
    with mock.patch.dict(os.environ):
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run all commands that pages show, not one per verb and model"
    parser.addoption("--every-documented-command", action="store_true", help=text)
    text = "how often tests/stress runs each test, each time with another seed"
    choices = range(1, 1000)
    parser.addoption("--seeds", type=int, default=5, choices=choices, metavar="N", help=text)
    text = "run only the tests that another run skipped because programs were missing"
    parser.addoption("--only-skipped-in", type=Path, metavar="FILE", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Write which tests lack programs, or run only these (tests/programs.py)."""
    settle_examples()
    report = config.getoption("xmlpath")
    if report and not hasattr(config, "workerinput"):
        claim_directory(config, Path(report).parent)
        config.pluginmanager.register(SkippedTests(Path(report).parent / FILE))
    if skipped := config.getoption("--only-skipped-in"):
        tests = json.loads(skipped.read_text("utf-8"))
        config.pluginmanager.register(OnlyTheseTests(config.rootpath, tests))
    elif worker := getattr(config, "workerinput", None):
        number = int(worker["workerid"].removeprefix("gw"))
        compile_tests(config, list_test_files(config.args)[number :: worker["workercount"]])


def settle_examples() -> None:
    """Let examples of Hypothesis have no limit of time. By day, each run tries the same ones."""
    from hypothesis import HealthCheck, settings

    is_day = not os.environ.get("QNN_CI_NIGHTLY")
    settings.register_profile(
        "project",
        deadline=None,
        derandomize=is_day,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("project")


def list_test_files(arguments: list[str]) -> list[Path]:
    """Return the files that pytest collects for its arguments."""
    paths = [Path(argument.partition("::")[0]) for argument in arguments]
    return sorted(
        {file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py"))}
    )


def compile_tests(config: pytest.Config, files: list[Path]) -> None:
    """Compile test files as pytest does, unless it has kept what it compiled of them.

    All workers collect all files in the same order. In a fresh checkout, each of them compiled each
    file at the same time as the others, which takes 9 s of CPU.
    """
    from _pytest.assertion import rewrite

    if not (state := config.stash.get(rewrite.assertstate_key, None)):  # --assert=plain
        return
    for file in files:
        folder = rewrite.get_cache_dir(file)
        compiled = folder / f"{file.stem}{rewrite.PYC_TAIL}"
        if not compiled.exists() and rewrite.try_makedirs(folder):
            with contextlib.suppress(SyntaxError):  # which the collection reports
                source_hash, code = rewrite._rewrite_test(file, config)
                rewrite._write_pyc(state, code, source_hash, compiled)


def claim_directory(config: pytest.Config, directory: Path) -> None:
    """Keep other runs of this session from replacing the reports of this one."""
    from ci.report.claim import lock_reports  # the workers of a run do not need it

    try:
        lock = lock_reports(directory)
    except QnnCiError as error:
        raise pytest.UsageError(str(error)) from error
    if lock:  # not one of claim_reports, which each verb that a test calls releases
        config.add_cleanup(lock.release)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that take long, unless QNN_CI_NIGHTLY is set."""
    items[:] = mix_waiting(items)
    if os.environ.get("QNN_CI_NIGHTLY"):
        return
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.skip(reason="QNN_CI_NIGHTLY is not set"))


def mix_waiting(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests with those in WAITING distributed over the beginnings of the other files."""
    waiting = [item for item in items if item.nodeid.startswith(WAITING)]
    unwaited_items = [item for item in items if not item.nodeid.startswith(WAITING)]
    files = list(dict.fromkeys(item.path for item in unwaited_items))
    between = max(len(files) // (len(waiting) + 1), 1)
    places = set(files[between::between])
    mixed: list[pytest.Item] = []
    for item in unwaited_items:
        if waiting and item.path in places:
            places.remove(item.path)
            mixed.append(waiting.pop(0))
        mixed.append(item)
    return [*mixed, *waiting]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadfile, a worker runs whole files, except those in SPREAD (a run lasted as long
    as all journeys one after the other), and whole folders of TOGETHER."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            for folder in TOGETHER:
                if nodeid.startswith(folder):
                    return folder
            return nodeid if nodeid.startswith(SPREAD) else super()._split_scope(nodeid)

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Restore the handlers of signals after each test: a verb that is called in this process
    replaces them, and one that was interrupted ignores SIGINT and SIGTERM from then on."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    try:
        return (yield)
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def pytest_collection_finish() -> None:
    """Collect garbage less often, and never look through what imports and collection made: it
    stays to the end. Unit tests took 57 s of CPU before, 50 after."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


def pytest_unconfigure() -> None:
    """End this process's guardian, of which Python would print a ResourceWarning."""
    for guardian in process._guardian:
        guardian.communicate()
