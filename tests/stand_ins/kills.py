"""Kill a process at an instant that the test chooses: before a step, or in the middle of a file."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "fcntl.flock")


def run_until(instant: int, task: Callable[[], object], below: Path) -> bool:
    """Run ``task`` in a fork that kills itself (SIGKILL) before it touches files below ``below``
    for the ``instant``-th time. Return whether it was killed."""
    child = os.fork()
    if child == 0:
        count = 0

        def watch(event: str, args: tuple[object, ...]) -> None:
            nonlocal count
            if event in EVENTS and (event == "fcntl.flock" or str(args[0]).startswith(str(below))):
                count += 1
                if count == instant:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        try:
            task()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def kill_before(event: str, pattern: str) -> None:
    """Let this process kill itself (SIGKILL) at the first audit event of Python with this name of
    which an argument matches."""

    def watch(name: str, args: tuple[object, ...]) -> None:
        if name == event and any(re.search(pattern, str(argument)) for argument in args):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def kill_in_file(size_bytes: int) -> None:
    """Let the kernel kill this process (SIGXFSZ) after it has written that much of a file, if the
    file would be larger."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it


def read_tree(top: Path) -> dict[str, bytes | str]:
    """Return the content of all files below a directory, and the targets of links."""
    tree: dict[str, bytes | str] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            tree[name] = str(path.readlink())
        elif path.is_file():
            tree[name] = path.read_bytes()
    return tree
