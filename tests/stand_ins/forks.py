"""Code in fresh processes that need not import: forks of one that has, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SERVER = """
import atexit, importlib, json, os, signal, sys, traceback
for name in sys.argv[1:]:
    importlib.import_module(name)
for line in sys.stdin:
    job = json.loads(line)
    if os.fork():
        _, status, used = os.wait4(-1, 0)
        print(os.waitstatus_to_exitcode(status), used.ru_maxrss << 10, flush=True)
        continue
    code = 1
    signal.alarm(job["limit_s"])
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(job["out"], os.O_WRONLY), 1)
        os.dup2(os.open(job["err"], os.O_WRONLY), 2)
        os.environ.clear()
        os.environ.update(job["env"])
        os.chdir(job["cwd"])
        sys.argv = ["-c", *job["words"]]
        exec(job["code"], {"__name__": "__main__"})
        code = 0
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""
Run = Callable[..., subprocess.CompletedProcess[str]]
RUN_MODULE = """
import runpy, sys
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


class Forks:
    """A process that holds modules, and runs code in forks of it, for at most ``limit_s`` each.
    The last one had ``peak_bytes`` of memory at once."""

    def __init__(self, process: subprocess.Popen[str], limit_s: int) -> None:
        self.process, self.limit_s, self.peak_bytes = process, limit_s, 0

    def run(
        self, code: str, *words: str, cwd: Path, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """``python -c CODE WORDS`` in a fork of its own, without standard input."""
        assert self.process.stdin
        assert self.process.stdout
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder) / "out", Path(folder) / "err"
            out.touch()
            err.touch()
            files = {"out": str(out), "err": str(err)}
            job = {"code": code, "words": words, "cwd": str(cwd), "env": dict(env), **files}
            job["limit_s"] = self.limit_s
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            ended, self.peak_bytes = map(int, self.process.stdout.readline().split())
            texts = (path.read_text("utf-8", "replace") for path in (out, err))
            return subprocess.CompletedProcess(words, ended, *texts)

    def run_module(
        self, module: str, *words: str, cwd: Path, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """``python -m MODULE WORDS``, likewise."""
        return self.run(RUN_MODULE, module, *words, cwd=cwd, env=env)


@contextmanager
def start_forks(*modules: str, limit_s: int = 0) -> Iterator[Forks]:
    words = [sys.executable, "-c", SERVER, *modules]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Forks(process, limit_s)
        finally:
            process.kill()
