"""Names of any characters in code, commands and TOML that this project writes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.console.caller import CALLER, Caller, translate_commands
from provisioning.quoting import (
    docstring_text,
    python_docstring,
    python_string,
    script_word,
    shell_word,
    show_command,
    toml_key,
    toml_string,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ODD = [
    "net.py", "a b.py", "it's.py", 'a"b.py', '"""', "a\\b.py", "a\\", "{HERE}.py", "é 漢.py",
    "a\nb.py", "`id`.py", "$(id).py", "a  b.py", "-rf", "\u202eyp.ten", "a\x1b[31m", "\x7f",
]  # fmt: skip
INVALID = "caf\udce9.py"  # a byte that is not UTF-8


@pytest.mark.parametrize("text", [*ODD, INVALID])
def test_text_in_code_and_in_commands_is_read_as_it_was(text: str) -> None:
    assert ast.literal_eval(python_string(text)) == text
    (function,) = ast.parse(f"def f():\n    {python_docstring(text)}").body
    assert isinstance(function, ast.FunctionDef)
    assert ast.get_docstring(function, clean=False) == text
    (node,) = ast.parse(f'"""about {docstring_text(text)}"""').body
    assert isinstance(node, ast.Expr)
    for quote, shell in ((shell_word, "bash"), (script_word, "sh")):
        command = [shell, "-c", f"printf %s:%s x {quote(text)}"]
        done = subprocess.run(command, capture_output=True, check=True, env={})
        assert done.stdout == b"x:" + text.encode(errors="surrogateescape")
        assert quote is script_word or (quote(text).isprintable() and "`" not in quote(text))


@pytest.mark.parametrize("text", ODD)
def test_quoted_toml_is_read_back_unchanged(text: str) -> None:
    assert tomllib.loads(f"{toml_key(text)} = {toml_string(text)}\n") == {text: text}


@pytest.mark.parametrize("text", ODD)
def test_a_command_in_a_message_is_translated_with_its_arguments(text: str) -> None:
    message = f"run {show_command('test-emulator', '--policy', text)}, then go on"
    caller = Caller("qnn-ci", {"test-emulator": "test_emulator"}, nox="./nox")
    token = CALLER.set(caller)
    try:
        shown = translate_commands(message)
    finally:
        CALLER.reset(token)
    assert shown == f"run `./nox -s test_emulator -- --policy {shell_word(text)}`, then go on"


def test_no_other_module_quotes_for_a_shell() -> None:
    root = Path(__file__).parents[3]
    quoting_modules = [
        str(path.relative_to(root))
        for folder in ("ci", "provisioning")
        for path in (root / folder).rglob("*.py")
        if path.name != "quoting.py" and re.search(r"shlex\.(quote|join)", path.read_text("utf-8"))
    ]
    assert quoting_modules == []
