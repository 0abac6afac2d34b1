"""Run git in a given directory, never in an enclosing repository. No other module runs git."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from provisioning.console.process import Completed, run_process, run_streams
from provisioning.documents import read_text
from provisioning.errors import MissingToolError, ToolError, UsageError
from provisioning.quoting import shell_word

TIMEOUT_S = 120.0
# Other transports, such as fd:: and ext::, wait for input or run programs. As by default in git, a
# submodule may not be a local directory.
ALLOWED = {
    "protocol.allow": "never",
    "protocol.file.allow": "user",
    **{f"protocol.{name}.allow": "always" for name in ("https", "http", "ssh", "git")},
}
NONE: Mapping[str, str] = MappingProxyType({})
# The variables that git drops when it enters another repository (`git rev-parse --local-env-vars`),
# except GIT_CONFIG_COUNT and GIT_CONFIG_PARAMETERS, which may set the user's proxies and mirrors.
REPOSITORY_VARIABLES = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_CONFIG",
        "GIT_DIR",
        "GIT_GRAFT_FILE",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_NO_REPLACE_OBJECTS",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
    }
)


def run_git(
    root: Path,
    *words: str,
    timeout_s: float = TIMEOUT_S,
    silence_s: float = math.inf,
    check: bool = True,
    variables: Mapping[str, str] = NONE,
    on_line: Callable[[str], None] | None = None,
) -> Completed:
    """Run git in ``root`` for its side effects; ``output`` of the result is git's output and
    messages.

    ``variables`` are added to git's environment. Raises the errors of run_process.
    """
    env = {**_environment(root), **variables}
    with _explain_owner(root):
        return run_process(
            _name(root, words),
            env=env,
            timeout_s=timeout_s,
            silence_s=silence_s,
            on_line=on_line,
            check=check,
        )


def ask_git(root: Path, *words: str, data: bytes = b"") -> bytes:
    """Run git in ``root`` (a checkout, its .git, or a bare repository) and return its stdout.

    Raises ToolError; its ``why`` is git's stderr.
    """
    argv, env = _name(root, words), _environment(root)
    with _explain_owner(root):
        ended = run_streams(argv, data=data, env=env, timeout_s=TIMEOUT_S)
        ended.require()
        return ended.stdout


def read_commit(root: Path, revision: str = "HEAD") -> str:
    """Return the hash of the commit that ``revision`` names in ``root``. Raises ToolError."""
    # ^{commit}: an annotated tag is followed to its commit. A revision from outside may start with
    # a hyphen.
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    return ask_git(root, *words).decode().strip()


def is_git_directory(path: Path) -> bool:
    """Return whether ``path`` is a bare repository or a checkout's .git."""
    return (path / "objects").is_dir() and (path / "HEAD").is_file()


def parse_submodules(text: str) -> tuple[str, ...]:
    """Return the submodules' paths in the text of a .gitmodules file, parsed by git. Raises
    UsageError.
    """
    if not text.strip():
        return ()
    # Parsed by git itself: the file has quotes, escapes and sections. An include could read any
    # file of this machine.
    words = ("config", "--file=-", "--no-includes", "--list", "--null")
    try:
        raw = ask_git(Path("/"), *words, data=text.encode())
    except MissingToolError:
        raise
    except ToolError as error:
        raise UsageError("git cannot read .gitmodules", why=error.why) from error
    rows = (row.partition("\n") for row in raw.decode().split("\0"))
    return tuple(
        path
        for key, _, path in rows
        if path and key.startswith("submodule.") and key.endswith(".path")
    )


def list_submodules(root: Path) -> tuple[str, ...]:
    """Return the submodules' paths in the .gitmodules file of a checkout. Raises UsageError."""
    path = root / ".gitmodules"
    return parse_submodules(read_text(path, "replace")) if path.is_file() else ()


@contextmanager
def _explain_owner(root: Path) -> Iterator[None]:
    """Turn a ToolError in the block into a MissingToolError with a fix if git refuses the checkout
    ``root`` because another user owns it. With --git-dir, its message does not mention the owner.
    """
    try:
        yield
    except MissingToolError:
        raise
    except ToolError as error:
        top = root.parent.resolve() if root.name == ".git" else root.resolve()
        probe = ["git", "-C", str(top), "rev-parse", "--git-dir"]
        if b"dubious ownership" not in run_streams(probe, env=_environment(top)).stderr:
            raise
        trust = f"git config --global --add safe.directory {shell_word(str(top))}"
        raise MissingToolError(
            f"git refuses to read {top}",
            why="it belongs to another user",
            fix=f"if you trust its content, run `{trust}`",
        ) from error


def _name(root: Path, words: Sequence[str]) -> list[str]:
    """Return the complete command that runs git in ``root``."""
    if is_git_directory(root):
        return ["git", f"--git-dir={root}", *words]
    place = root.parent if root.is_file() else root  # in a linked work tree, .git is a file
    return ["git", "-C", str(place), *words]


def _environment(root: Path) -> dict[str, str]:
    variables = {key: value for key, value in os.environ.items() if key not in REPOSITORY_VARIABLES}
    before = variables.get("GIT_CONFIG_COUNT", "")
    first = int(before) if before.isdecimal() else 0
    for number, (key, value) in enumerate(ALLOWED.items(), first):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {
        **variables,
        "GIT_CONFIG_COUNT": str(first + len(ALLOWED)),
        # Without this, git would treat a directory without .git as part of an enclosing repository.
        "GIT_CEILING_DIRECTORIES": str(root.resolve().parent),
        # git would ask for a login and wait, also if no user is at its terminal.
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_LFS_SKIP_SMUDGE": "1",
        # Its messages are parsed.
        "LC_ALL": "C",
    }
