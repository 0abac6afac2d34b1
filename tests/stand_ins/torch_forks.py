"""Code in fresh processes that need not import torch: forks of one that has, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SERVER = """
import json, os, sys, traceback
import torch.export._trace  # which imports what torch.export does
for line in sys.stdin:
    job = json.loads(line)
    if os.fork():
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
        continue
    code = 1
    try:
        os.dup2(os.open(job["out"], os.O_WRONLY), 1)
        os.environ.clear()
        os.environ.update(job["env"])
        os.chdir(job["cwd"])
        sys.argv = ["-c", *job["words"]]
        exec(job["code"], {"__name__": "__main__"})
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""


class TorchForks:
    """A process that holds torch, and runs code in forks of it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def run(self, code: str, *words: str, cwd: Path, env: Mapping[str, str]) -> str:
        """What ``code`` prints in a fork of its own, as by ``python -c CODE WORDS``."""
        assert self.process.stdin
        assert self.process.stdout
        with tempfile.NamedTemporaryFile("r", encoding="utf-8") as out:
            job = {"code": code, "words": words, "cwd": str(cwd), "env": dict(env), "out": out.name}
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "0\n"
            return out.read()


@contextmanager
def start_forks() -> Iterator[TorchForks]:
    words = [sys.executable, "-c", SERVER]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield TorchForks(process)
        finally:
            process.kill()
