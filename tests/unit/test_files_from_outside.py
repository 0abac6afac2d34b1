"""Whatever is in place of a file that a user gives, a command ends soon, in bounded memory."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.__main__ import main

ELF = Path(__file__).parents[1] / "artifacts" / "elf" / "libhexagon.so"
# {} is the path in question, {file} a regular file.
COMMANDS = (
    "report {}",
    "report {} --base {file}",
    "verify-evidence {file} --evidence {}",
    "verify-evidence {} --evidence {file}",
    "inspect {}",
    "compat {} --runtime 2.49.40",
    "check-app {}",
    "explain --policy {} {file}",
    "matrix {}",
    "gate {} --needs {file} --results {dir}",
    "gate {file} --needs {} --results {dir}",
    "verify-signature {}",
    "parity --source {}",
    "test-emulator --policy {}",
    "test-emulator --plan {}",
    "test-emulator --device ssh:none --bundle {dir} --model mlp",
    "test-llm --project {}",
    "test-llm --weights {} --tokenizer {file}",
    "test-llm --weights {dir} --tokenizer {file}",
    "test-llm --program {} --tokenizer {file}",
    "upgrade-report {} {}",
    "fuzz --graph {}",
    "judge {}",
    "stage --soc SM8650 --runner {} --runtime {dir} --out {dir}",
    "stage --soc SM8650 --runner {file} --runtime {dir} --out {dir} --program {}",
    "deploy --bundle {dir} --device ssh:none",
)


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_long(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 << 30)


def make_unreadable_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\0[" * 1000)


def make_directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    "make", [make_pipe, make_device, make_long, make_unreadable_text, make_directory]
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_ends_soon_with_a_pipe_device_huge_or_binary_file(
    tmp_path: Path, command: str, make: Callable[[Path], None]
) -> None:
    odd, directory = tmp_path / "odd.json", tmp_path / "dir"
    make(odd)
    directory.mkdir()
    for name in ("bundle.json", "config.json"):
        (directory / name).symlink_to(odd)
    words = command.replace("{}", str(odd)).replace("{dir}", str(directory))
    argv = words.replace("{file}", str(ELF)).split()
    code, size_bytes, text = call(argv, tmp_path)
    assert code in {1, 2, 3}, text
    assert "Traceback" not in text
    assert size_bytes < 700 << 20


def call(argv: list[str], place: Path, limit_s: float = 60.0) -> tuple[int, int, str]:
    """Return the exit code of a command, by how many bytes its memory grew at most, and what it
    printed."""
    log = place / "log"
    before = int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGESIZE")
    pid = os.fork()
    if not pid:
        code = 70
        try:
            os.chdir(place)
            os.environ["QNN_CI_HOME"] = str(place / "home")
            with log.open("wb") as stream:
                os.dup2(stream.fileno(), 1)
                os.dup2(stream.fileno(), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            code = main(argv)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    deadline = time.monotonic() + limit_s
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            text = log.read_text("utf-8", "replace")
            return os.waitstatus_to_exitcode(status), (usage.ru_maxrss << 10) - before, text
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
