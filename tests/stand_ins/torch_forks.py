"""Code in fresh processes that need not import torch: forks of one that has, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.stand_ins import forks


class TorchForks:
    """A process that holds torch and all that torch.export imports."""

    def __init__(self, process: forks.Forks) -> None:
        self.process = process

    def run(self, code: str, *words: str, cwd: Path, env: Mapping[str, str]) -> str:
        """What ``code`` prints in a fork of its own, as by ``python -c CODE WORDS``."""
        ended = self.process.run(code, *words, cwd=cwd, env=env)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@contextmanager
def start_forks() -> Iterator[TorchForks]:
    with forks.start_forks("torch.export._trace") as process:
        yield TorchForks(process)
