from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.console.terminal import clean_message, clean_output
from provisioning.errors import ExitCode

ROOT = Path(__file__).parents[4]
PROGRAM = [sys.executable, "-m", "provisioning"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no file \x1b[31mred\x1b]0;title\x07", "no file red"),
        ("a \x1b]8;;https://h\x1b\\link\x1b]8;;\x1b\\ \x1bM\x1b[0;1mb\x1b[2Kc", "a link bc"),
        ("no folder a\n::error::pwned", "no folder a\n: :error::pwned"),
        ("  ::set-output name=a::b", "  : :set-output name=a::b"),
        ("it says ##[error]x", "it says # #[error]x"),
        ("##vso[task.complete]x ##other", "# #vso[task.complete]x ##other"),
        ("a\u202ab\u202bc\u202cd\u202de\u202ef", "abcdef"),
        ("a\u2066b\u2067c\u2068d\u2069e", "abcde"),
        ("a\x00b\x08c\td\x0be\x1ff\x7fg\x80h\x9fi", "abc\tdefghi"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("n\udcff\udcfename", "n\\udcff\\udcfename"),
        ("git clone https://me:secret@host/x.git", "git clone https://***@host/x.git"),
        ("std::vector", "std::vector"),
    ],
)
def test_messages_have_no_terminal_sequences_and_no_passwords(text: str, expected: str) -> None:
    assert clean_message(text) == expected
    stream = io.StringIO()
    Progress(stream).step(text)
    assert stream.getvalue() == expected + "\n"


def test_output_holds_no_terminal_sequence_unless_it_is_exact() -> None:
    text = "\x1b[1;31mred\x1b[0m \x1b[2J\x1b]8;;x\x07\ta\udcff\n  ::error::x\n"
    assert clean_output(text) == "red \ta\udcff\n  : :error::x\n"
    assert Outcome(text).render(as_json=False) == "red \ta\udcff\n  : :error::x\n"
    assert Outcome(text, exact=True).render(as_json=False) == text


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("text", "shown"), [("", ""), ("one", "one\n"), ("one\n", "one\n")])
def test_output_ends_with_a_newline(text: str, shown: str, exact: bool) -> None:
    """Otherwise nox's line, or the user's prompt, follows on the same line."""
    assert Outcome(text, exact=exact).render(as_json=False) == shown


def run_shell(words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, **variables, "PYTHONPATH": str(ROOT)}
    argv = ["bash", "-c", words.replace("PROGRAM", " ".join(PROGRAM)) + '; exit "${PIPESTATUS[0]}"']
    return subprocess.run(argv, capture_output=True, env=env, timeout=1200, check=False)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("PROGRAM list >&-", ExitCode.OK, b""),
        ("PROGRAM list <&- >&- 2>&-", ExitCode.OK, b""),
        ("PROGRAM list | true", ExitCode.OK, b""),
        ("PROGRAM nonsense 2> >(true)", ExitCode.USAGE, b""),
        ("PROGRAM list >/dev/full", ExitCode.DOWNLOAD, b"No space left on device"),
        ("PROGRAM nonsense 2>/dev/full", ExitCode.USAGE, b""),
    ],
)
def test_closed_broken_or_full_stream_has_no_traceback(
    words: str, code: int, message: bytes
) -> None:
    ended = run_shell(words)
    assert ended.returncode == code
    assert message in ended.stderr
    assert b"Traceback" not in ended.stderr
    assert b"Exception ignored" not in ended.stderr


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "nonsense"])
def test_a_home_path_of_any_bytes_is_printed_in_any_locale(locale: str, tmp_path: Path) -> None:
    home = os.fsencode(tmp_path) + b"/h\xf6me \xe6\xa8\xa1"
    variables = {"QNN_CI_HOME": os.fsdecode(home), "LC_ALL": locale, "PYTHONUTF8": "0"}
    shown = run_shell("PROGRAM verify", **variables)
    assert (shown.returncode, shown.stdout) == (
        0,
        b"the store " + home + b" contains no artifact\n",
    )
    data = run_shell("PROGRAM list --json", **variables)
    assert os.fsencode(json.loads(data.stdout)["home"]) == home
