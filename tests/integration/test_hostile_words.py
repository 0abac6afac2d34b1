"""Whatever is given to a verb: an exit code of the page, a message, one JSON document."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest

import ci.__main__
import provisioning.__main__
from ci.verbs import registry
from provisioning.console.command import run_command
from provisioning.errors import ExitCode

HERE = Path(__file__).parents[2]
VERBS = {"ci": registry.VERBS, "provisioning": provisioning.__main__.VERBS}
PLACES = (
    "empty",
    "junk",
    "folder",
    "a b'q\"\n::error::x ##[error]##vso[x]\u202e.json",
    "\x1b[31mred\x1b]0;title\x07",
    "cut.json",
    "deep.json",
    "deep.toml",
    "wrong.toml",
    "latin.toml",
    "elf",
    "pipe",
    "loop",
    "huge",
    "junk/below",
    "missing",
    "\udcff\udcfe",
    "x" * 300,
    "x/" * 3000,
    "/dev/zero",
    "/proc/self/mem",
)
# {} is the hostile place, @ this checkout, which holds no ExecuTorch.
WITH_PLACES = (
    "ci report {}",
    "ci report @/nowhere.json --to {}",
    "ci parity --source {}/none",
    "ci parity --source @ --policy {}",
    "ci parity --source @ --sarif {}",
    "ci sign --verify {}",
    "ci sign --verify @/README.md --input {}",
    "ci context {}",
    "ci context {} --soc SM8750 --seal",
    "ci sign {} --signer true",
    "ci sign @/README.md --signer true --out {}",
    "ci sign --lpai-arch v6 --qnn-sdk {} --dry-run",
    "ci sign --op-package-dir {} --signer true --dry-run",
    "ci build aot --source {} --dry-run --no-doctor",
    "ci build runner --python {} --dry-run",
    "ci test-emulator --policy {} --list",
    "ci test-emulator --model {}:make --sdk none",
    "provisioning doctor --root qnn-sdk={}",
    "provisioning doctor --root staging={}",
    "provisioning doctor linux --root executorch={}",
    "provisioning fetch libcxx --offline --to {}",
)
WORDS = (
    "",
    " ",
    "-",
    "--",
    "\x1b[31mx",
    "a\n::error::b##[error]##vso[x]\u202e",
    "x" * 100_000,
    "*",
    "@",
    ":",
    "=",
    "\udcff",
)
NUMBERS = ("-1", "nan", "1e999", "9" * 20)
WITH_WORDS = (
    "provisioning fetch {} --offline",
    "provisioning path {}",
    "provisioning verify {}",
    "provisioning lock {} --offline",
    "provisioning env {} --offline",
    "provisioning doctor {}",
    "provisioning doctor --root {}",
    "provisioning {}",
    "ci {}",
    "ci build {}",
    "ci build runner -D {} --dry-run",
    "ci build runner --jobs {} --dry-run",
    "ci build direct --soc {} --dry-run",
    "ci parity --source @ --rev {}",
    "ci parity --source @ --scope {}",
    "ci sign --lpai-arch {} --dry-run",
    "ci sign --testsig {} --signer true --dry-run",
    "ci sign @/README.md --signer {} --dry-run",
    "ci sign @/README.md --signer true --timeout {} --dry-run",
    "ci test-emulator --model {} --sdk none",
    "ci test-emulator --scheme {} --sdk none",
    "ci test-emulator --soc {} --sdk none",
    "ci test-emulator --jobs {} --model none",
    "ci test-emulator --timeout-s {} --model none",
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    (root / "empty").touch()
    (root / "junk").write_bytes(bytes(range(256)) * 99)
    (root / "folder").mkdir()
    for name in PLACES[3:5]:
        (root / name).write_text("{}")
    (root / "cut.json").write_text('{"schema_version": 1, "cases": [')
    (root / "deep.json").write_text("[" * 99_999)
    (root / "deep.toml").write_text("a = " + "[" * 99_999)
    (root / "wrong.toml").write_text("schemes = 3\n")
    (root / "latin.toml").write_bytes(b"a = '\xe9\xff'\n")
    (root / "elf").write_bytes(b"\x7fELF" + bytes(range(256)) * 16)
    os.mkfifo(root / "pipe")
    (root / "loop").symlink_to("loop")
    (root / "huge").touch()
    os.truncate(root / "huge", 40 << 30)
    (root / "\udcff\udcfe").write_text("{}")
    return root


@contextmanager
def tree_kept(root: Path) -> Iterator[None]:
    """Nothing is made, changed or removed below ``root``."""

    def describe() -> list[tuple[str, int, int]]:
        paths = sorted(root.iterdir())
        return [(str(p), p.lstat().st_size, p.lstat().st_mtime_ns) for p in paths]

    before = describe()
    yield
    assert describe() == before


def check(line: str, word: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run ``line`` with ``word`` in it."""
    program, *words = [part.replace("@", str(HERE)) for part in line.split()]
    argv = [part.replace("{}", word) for part in words]
    flags = [flag] if flag else []
    code, text = run_command(program, VERBS[program], [*argv[:1], *flags, *argv[1:]])
    errors = capsys.readouterr().err
    assert code in set(ExitCode), argv
    assert "this is a bug" not in errors
    assert "\x1b" not in text + errors
    assert not re.search(r"(?m)^\s*::|##(?:\[|vso)|\u202e", text + errors)
    assert code == ExitCode.OK or errors or text
    if flag:
        json.loads(text)


@pytest.mark.parametrize("line", WITH_PLACES)
def test_a_hostile_path_argument_is_handled_without_traceback_or_change(
    line: str,
    places: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path))
    with tree_kept(places):
        for name, flag in zip(PLACES, cycle(["", "--json"]), strict=False):
            word = name if name.startswith("/") else f"{places}/{name}"
            if not ("--to" in line and name in {"folder", "missing"}):
                check(line, word, flag, capsys)


@pytest.mark.parametrize("line", WITH_WORDS)
def test_a_hostile_option_value_is_handled_without_traceback(
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path))
    for word, flag in zip((*WORDS, *NUMBERS), cycle(["--json", ""]), strict=False):
        check(line, word, flag, capsys)


@pytest.mark.parametrize("main", [ci.__main__.main, provisioning.__main__.main])
def test_main_with_an_empty_list_does_not_read_sys_argv(
    main: Callable[[list[str] | None], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["qnn-ci", "--version"])
    assert main([]) == ExitCode.USAGE
    assert main(None) == ExitCode.OK
