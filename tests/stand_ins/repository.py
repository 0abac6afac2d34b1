"""A git repository to try plans on."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WHO = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false")
LOCAL = ("-c", "protocol.file.allow=always")


@dataclass
class Checkout:
    """A repository with a work tree."""

    root: Path

    def git(self, *words: str) -> str:
        """What git prints; it has to succeed."""
        argv = ["git", "-C", str(self.root), *WHO, *LOCAL, *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    def write(self, files: Mapping[str, str | None]) -> None:
        """Write files; None deletes one."""
        for name, text in files.items():
            path = self.root / name
            if text is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def commit(self, files: Mapping[str, str | None] | None = None) -> str:
        """Write files and commit all that is there; the commit."""
        self.write(files or {})
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "x")
        return self.git("rev-parse", "HEAD")


def make_checkout(root: Path, files: Mapping[str, str]) -> Checkout:
    """A repository of one commit on main."""
    root.mkdir()
    checkout = Checkout(root)
    checkout.git("init", "-q", "-b", "main")
    checkout.commit(dict(files))
    return checkout
