"""Runners for any engine: a Python runtime in a process of the pool, or an external program."""

from __future__ import annotations

import secrets
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ci.cases.engine import CPU, INPUTS, Program, RunError, RunNotes, Sets
from ci.cases.outputs import OUTPUTS, read_outputs
from ci.cases.pool import Ended, Lease, Pool
from ci.facts.finding import Proof, advise
from ci.models.tensors import FILE, write_sets
from provisioning.console.allowance import Allowance
from provisioning.console.command import user_command, user_path
from provisioning.console.process import end_marked, run_process
from provisioning.console.usage import share_memory
from provisioning.documents import read_text
from provisioning.errors import UsageError

INPUT_LIST, SPEED = "input_list.txt", "speed.txt"
MARK = "QNN_CI_RUN"  # an environment variable that marks a runner's processes, see end_marked


class HeldProgram(Protocol):
    """A program that is open in a worker."""

    def run(self, sets: Sets) -> Sets:
        """Return the outputs, one list per sample."""

    def finish(self) -> Any:
        """Return the data that is passed to ``PooledRunner.note``."""


open_programs: list[HeldProgram] = []  # at most one: the program that is open in a worker


def open_held(opening: Callable[[Program], HeldProgram], program: Program) -> None:
    """Open a program with ``opening``. This worker keeps it for run_held and finish_held."""
    open_programs.clear()
    open_programs.append(opening(program))


def run_held(sets: Sets) -> Sets:
    """Return the outputs, one list per sample, of the program that is open in this worker."""
    return open_programs[-1].run(sets)


def finish_held() -> Any:
    """Finish the program that is open in this worker, and release it."""
    return open_programs.pop().finish()


@dataclass(frozen=True)
class PooledRunner:
    """Runs programs in workers of ``pool``. The worker opens a program with ``opening``. When the
    program is finished, this process passes the result of ``HeldProgram.finish`` to ``note``, which
    returns the notes on the runs. With ``alone``, each program has a separate process."""

    name: str
    pool: Pool
    opening: Callable[[Program], HeldProgram]
    note: Callable[[PooledProgram, Any], RunNotes]
    alone: bool = False

    @contextmanager
    def open(
        self, program: Program, timeout_s: float, *, fresh: bool = False
    ) -> Iterator[PooledProgram]:
        """Open a program in a worker for the block. Raises RunError."""
        fresh = fresh or self.alone
        with self.pool.lease(
            self.name, program.log, timeout_s, fresh=fresh, max_bytes=program.max_bytes
        ) as lease:
            require(lease.call(partial(open_held, self.opening, program)))
            yield PooledProgram(self, program, lease)


@dataclass
class PooledProgram:
    """A program that is open in a worker, and the samples and outputs of its last run."""

    runner: PooledRunner
    program: Program
    lease: Lease
    sets: Sets = ()
    outputs: Sets = ()

    @property
    def used(self) -> bool:
        """Return whether the process of the worker has run something before."""
        return self.lease.used

    def run(self, sets: Sets) -> Sets:
        """Return the outputs, one list per sample. Raises RunError."""
        self.sets, self.outputs = sets, require(self.lease.call(partial(run_held, sets)))
        return self.outputs

    def finish(self) -> RunNotes:
        """Finish the program, and return the notes on its runs. Raises RunError."""
        return self.runner.note(self, require(self.lease.call(finish_held)))


def require(ended: Ended) -> Any:
    """Return a job's result. Raises RunError if the job failed."""
    if ended.failure:
        lacks = CPU if ended.starved else ""
        raise RunError(
            ended.failure,
            ended.advice,
            used=ended.used,
            lacks=lacks,
            by_runtime=ended.error is not None,
            died=ended.died,
            exceeded=ended.exceeded,
        )
    return ended.result


@dataclass(frozen=True)
class ProgramRunner:
    """An external program that accepts qnn_executor_runner's flags. It runs with the environment
    variables ``environment``."""

    argv: Sequence[str]
    environment: Mapping[str, str]

    @property
    def name(self) -> str:
        """Return the file name of the external program, without its directory."""
        return Path(self.argv[0]).name

    @contextmanager
    def open(
        self, program: Program, timeout_s: float, *, fresh: bool = False
    ) -> Iterator[ExternalProgram]:
        """Return the program for the block. Nothing is started before its first run."""
        del fresh  # each run has its own process
        yield ExternalProgram(self, program, timeout_s)


@dataclass
class ExternalProgram:
    """A program that a ProgramRunner runs. Each run starts the external program again."""

    runner: ProgramRunner
    program: Program
    timeout_s: float
    used: bool = field(default=False, init=False)

    @property
    def speed(self) -> Path:
        """The file to which the external program writes the mean time of a run, in ms."""
        return self.program.directory / SPEED

    def run(self, sets: Sets) -> Sets:
        """Write the inputs as raw files, start the external program, and read the outputs that it
        wrote.

        Raises RunError if the external program fails, times out, or writes no valid outputs. If it
        leaves processes running, they are killed, and RunError is raised too.
        """
        inputs, outputs = (self.program.path.with_name(INPUTS), self.program.directory / OUTPUTS)
        # What an earlier run wrote must not pass for this run's outputs.
        for directory in (inputs, outputs):
            shutil.rmtree(directory, ignore_errors=True)
        # Without this directory, qnn_executor_runner exits with 0 and writes nothing.
        outputs.mkdir()
        write_sets(inputs, sets)
        listed = self.program.directory / INPUT_LIST
        with listed.open("w", encoding="utf-8") as stream:
            for number, tensors in enumerate(sets):
                files = [inputs / FILE.format(number, index) for index in range(len(tensors))]
                stream.write(" ".join(map(str, files)) + "\n")
        flags: dict[str, Any] = {
            "model_path": self.program.path,
            "input_list_path": listed,
            "output_folder_path": outputs,
            **self.program.spec.source.run.flags,
        }
        if self.program.spec.source.run.flags:
            flags["performance_output_path"] = self.speed
        # Processes inherit the mark, even if they leave the runner's process group or session.
        mark, most = secrets.token_hex(), self.program.max_bytes
        memory = (most, 0) if most else share_memory()
        try:
            ended = run_process(
                [*self.runner.argv, *(f"--{name}={value}" for name, value in flags.items())],
                env={**self.runner.environment, MARK: mark},
                cwd=self.program.directory,
                allowance=Allowance(self.timeout_s, *memory),
                log=self.program.log,
                check=False,
                fix="check the program's processor, or the interpreter in its first line (#!)",
            )
        finally:
            # Also after a failure or an interrupt: nothing that a runner started goes on.
            left = end_marked(f"{MARK}={mark}")
        if not ended.is_good:
            raise RunError(f"the runner {ended.describe()}")
        if left:
            text = "the runner exited but left processes running, which were killed"
            fix = (
                "let the runner wait for the processes that it starts; start servers that keep"
                " running, such as adb's, before the session"
            )
            raise RunError(f"{text}: {', '.join(left)}", advise(fix=fix, proof=Proof.PROVEN))
        try:
            # The exit code proves nothing: without an input list, qnn_executor_runner exits with 0,
            # too.
            return read_outputs(outputs, self.program.compiled, len(sets))
        except (OSError, ValueError) as error:
            raise RunError(str(error)) from error

    def finish(self) -> RunNotes:
        """Return the mean time of a run, if the program wrote it."""
        with suppress(OSError, ValueError):
            return RunNotes(run_ms=float(read_text(self.speed)))
        return RunNotes()


def find_program(word: str, environment: Mapping[str, str]) -> ProgramRunner:
    """Return the runner for a user's command. Raises UsageError if the command is not a program
    that can be started."""
    try:
        # A path is not split: it may contain spaces.
        is_path = bool(word) and user_path(word).is_file()
        words = [word] if is_path else shlex.split(word)
        why = "it is not a program that can be started"
    except ValueError as error:
        words, why = [], str(error)
    argv = user_command(words) if words else [""]
    if not shutil.which(argv[0]):
        raise UsageError(
            f"no runner {word!r}",
            why=why,
            fix="use python, cpp, or a program that accepts qnn_executor_runner's flags",
        )
    return ProgramRunner(argv, environment)
