"""Quote text in the Python code, the TOML files and the shell commands that this project writes.

Every name of a file may contain quotes, backslashes, spaces and line breaks. No other module puts
such a name into code or into a command (tests/static/test_quoting.py).
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable


def python_string(text: str) -> str:
    """Return a Python expression for a string."""
    return repr(text)


def python_docstring(text: str) -> str:
    """Return a docstring as it is written in a function of one statement."""
    is_plain = text.isprintable() and "\\" not in text and '"' not in text
    return f'"""{text}"""' if is_plain else repr(text)


def docstring_text(text: str) -> str:
    """Return text as a part of a line of a docstring between three double quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in escaped)


def shell_word(text: str) -> str:
    """Return an argument as it is typed in a shell.

    Text with control characters, other characters that are not shown, or backticks, which end a
    command in our messages, is quoted as $'...', which bash and zsh know.
    """
    if text.isprintable() and "`" not in text:
        return shlex.quote(text)
    quoted = []
    for char in text:
        if char in "\\'":
            quoted.append(f"\\{char}")
        elif char.isprintable() and char != "`":
            quoted.append(char)
        else:
            # Byte by byte, since a name need not be UTF-8.
            quoted += [f"\\x{byte:02x}" for byte in os.fsencode(char)]
    return f"$'{''.join(quoted)}'"


def shell_words(words: Iterable[str]) -> str:
    """Return the arguments of a command as they are typed in a shell."""
    return " ".join(map(shell_word, words))


def script_word(text: str) -> str:
    """Return an argument in a script, which any POSIX shell may run."""
    return shlex.quote(text)


def script_words(words: Iterable[str]) -> str:
    """Return the arguments of a command in a script, which any POSIX shell may run."""
    return shlex.join(words)


def show_command(verb: str, *words: str) -> str:
    """Return ``qnn-ci VERB WORDS`` in backticks, for a message. It is translated into the command
    of the user, see provisioning.console.caller."""
    return f"`qnn-ci {shell_words((verb, *words))}`"


def is_unicode(text: str) -> bool:
    """Return whether a text is valid Unicode. A name with bytes other than UTF-8 is not."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def toml_string(text: str) -> str:
    """Return a string of a TOML file, which contains only valid Unicode."""
    # JSON leaves DEL as it is, which TOML does not allow.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(text: str) -> str:
    """Return a key of a TOML file."""
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else toml_string(text)
