"""Who executes a program: a fork with ExecuTorch's Python runtime, or a program of its own."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ci.cases.pool import Ended, Pool
from ci.cases.run_job import RunJob
from provisioning.console.command import user_command
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.errors import UsageError


class Runner(Protocol):
    """Executes one job, at most ``timeout_s`` seconds; ``fresh``: in a process that ran nothing."""

    @property
    def name(self) -> str: ...

    def execute(
        self, job: RunJob, log: Path, timeout_s: float, *, fresh: bool = False
    ) -> Ended: ...


@dataclass(frozen=True)
class PythonRunner:
    """ExecuTorch's Python runtime in a process of the pool."""

    pool: Pool
    name: str = "python"

    def execute(self, job: RunJob, log: Path, timeout_s: float, *, fresh: bool = False) -> Ended:
        return self.pool.run("run", job, log, timeout_s, fresh=fresh)


@dataclass(frozen=True)
class ProgramRunner:
    """A program that takes qnn_executor_runner's flags, run in ``environment``."""

    argv: Sequence[str]
    environment: Mapping[str, str]

    @property
    def name(self) -> str:
        return Path(self.argv[0]).name

    def execute(self, job: RunJob, log: Path, timeout_s: float, *, fresh: bool = False) -> Ended:
        del fresh  # each run is a process of its own
        ended = run_process(
            [
                *self.argv,
                f"--model_path={job.model}",
                f"--input_list_path={job.input_list}",
                f"--output_folder_path={job.outputs}",
            ],
            env=self.environment,
            cwd=Path(job.outputs).parent,
            timeout_s=timeout_s,
            log=log,
            check=False,
        )
        failed = ended.timed_out or ended.returncode != 0
        failure = f"the runner {ended.describe()}" if failed else ""
        return Ended(None, failure, ended.tail, ended.wall_s)


def find_runner(
    word: str, pool: Pool, environment: Mapping[str, str], progress: Progress
) -> Runner:
    """``python``, ``cpp`` (built here against ExecuTorch's wheel), or a command of the user's.

    Raises UsageError when there is no such program, and what the build of ``cpp`` raises.
    """
    if word == "python":
        return PythonRunner(pool)
    if word == "cpp":
        from ci.builds.runner import ensure_wheel_runner

        return ProgramRunner([str(ensure_wheel_runner(progress))], environment)
    try:
        words, why = shlex.split(word), "it is not a program that can be started"
    except ValueError as error:
        words, why = [], str(error)
    argv = user_command(words) if words else [""]
    if not shutil.which(argv[0]):
        raise UsageError(
            f"no runner {word!r}",
            why=why,
            fix="python, cpp, or a program that takes qnn_executor_runner's flags",
        )
    return ProgramRunner(argv, environment)
