"""Whatever is in place of a file that a user gives, a command ends soon, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ci.verbs.registry import VERBS
from tests.stand_ins.forks import Forks, start_forks

ROOT = Path(__file__).parents[2]
ELF = ROOT / "tests" / "artifacts" / "elf" / "libhexagon.so"
# Importing torch 2.13.0 and ExecuTorch 1.5.1 takes 930 MB with the build of torch for CUDA, which
# is what pip finds for Python 3.13, and 350 MB with the one for CPUs (measured).
MOST_BYTES = 1200 << 20
# {} is the path in question, {bin} the same with another suffix, {file} a regular file.
COMMANDS = (
    "report {}",
    "report {} --base {file}",
    "verify-evidence {file} --evidence {}",
    "verify-evidence {} --evidence {file}",
    "inspect {}",
    "inspect {} --runtime 2.49.40",
    "inspect --load {}",
    "explain --policy {} {file}",
    "matrix {}",
    "gate {} --needs {file} --results {dir}",
    "gate {file} --needs {} --results {dir}",
    "sign --verify {}",
    "lock-skels {}",
    "parity --source {}",
    "test-emulator --policy {}",
    "test-emulator --plan {}",
    "test-emulator --device ssh:none --bundle {dir} --model mlp",
    "test-llm --project {}",
    "test-llm --weights {bin} --tokenizer {file}",
    "test-llm --weights {dir} --tokenizer {file}",
    "test-llm --program {} --tokenizer {file}",
    "upgrade-report {} {}",
    "fuzz --graph {}",
    "judge {}",
    "stage --soc SM8650 --runner {} --runtime {dir} --out {dir}",
    "stage --soc SM8650 --runner {file} --runtime {dir} --out {dir} --program {}",
    "deploy --bundle {dir} --device ssh:none",
)
# A device is refused where a pipe is; these take a directory, too, or read more than one file.
DIRECTORIES = (
    "report {}",
    "verify-evidence {file} --evidence {}",
    "explain --policy {} {file}",
    "parity --source {}",
    "test-llm --weights {bin} --tokenizer {file}",
    "upgrade-report {} {}",
    "judge {}",
)


Make = Callable[[Path], None]


def list_params() -> Iterator[tuple[str, Make]]:
    """Every command with every kind of file."""
    for command in COMMANDS:
        kinds = [make_pipe, make_long, make_unreadable_text]
        if command in DIRECTORIES:
            kinds += [make_device, make_directory]
        for make in kinds:
            yield command, make


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


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """Forks of a process that is small: a worker of pytest takes ten times as long to fork."""
    with start_forks(*(verb.module for verb in VERBS.values()), limit_s=60) as forks:
        yield forks


@pytest.mark.parametrize(("command", "make"), [*list_params()])
def test_a_command_ends_soon_with_a_pipe_device_huge_or_binary_file(
    forks: Forks, tmp_path: Path, command: str, make: Make
) -> None:
    odd, directory = tmp_path / "odd.json", tmp_path / "dir"
    make(odd)
    directory.mkdir()
    for link in (directory / "bundle.json", directory / "config.json", tmp_path / "odd.bin"):
        link.symlink_to(odd)
    words = command.replace("{}", str(odd)).replace("{dir}", str(directory))
    words = words.replace("{bin}", str(tmp_path / "odd.bin"))
    argv = words.replace("{file}", str(ELF)).split()
    variables = {**os.environ, "QNN_CI_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    ended = forks.run_module("ci", *argv, cwd=tmp_path, env=variables)
    text = ended.stdout + ended.stderr
    assert ended.returncode in {1, 2, 3}, text
    assert "Traceback" not in text
    assert forks.peak_bytes < MOST_BYTES
