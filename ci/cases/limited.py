"""Runs a job on a user's file in a new process with limits.

The parsers of models and tokenizers are written in C++ or Rust: a file can make them run forever,
take all memory, ignore Ctrl-C or end their process. Nothing that a verb itself does may depend on
that, so a verb that needs to know something about a file asks such a process.
"""

from __future__ import annotations

import os
import pickle
import secrets
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ci.cases.forked import answer_job, is_own, redirected
from ci.cases.pool import CALL, list_python_path
from ci.models.user_code import calls_noted, name_call, read_call
from provisioning.console.allowance import Allowance
from provisioning.console.command import explain_exception
from provisioning.console.process import end_marked, module_command, run_streams
from provisioning.console.usage import share_memory
from provisioning.errors import FailedError, QnnCiError, UsageError
from provisioning.files import explain_writes, scratch_directory

R = TypeVar("R")
TIMEOUT_S = 120.0
JOB_ID = "QNN_CI_LIMITED"  # by which processes that the job starts are found
MOST_MESSAGES = 1 << 20
MARK = "QNN_CI_ANSWER_MARK"  # the text after which the process writes its answer


def run_limited(
    job: Callable[[], R],
    subject: str,
    *,
    timeout_s: float = TIMEOUT_S,
    max_bytes: int = 0,
    fix: str = "",
) -> R:
    """Return the result of ``job``, or raise its exception, which may be any QnnCiError. An
    exception that is not a QnnCiError becomes a FailedError. The job and its result must be
    picklable, and the job must not be of the module that is run as a program.

    The process may take ``timeout_s`` seconds and ``max_bytes`` of memory or, if that is 0, the
    memory that is available. Raises UsageError, which says that ``subject`` cannot be read, if it
    exceeds a limit or dies, or FailedError if that happens in a user's function.
    """
    memory = (max_bytes, 0) if max_bytes else share_memory(1)
    mark, job_id = secrets.token_hex(), secrets.token_hex()
    path = list_python_path(os.environ.get("PYTHONPATH", ""))
    temporary = Path(tempfile.gettempdir())
    with explain_writes(temporary), scratch_directory(temporary, "limited") as folder:
        try:
            ended = run_streams(
                module_command("ci.cases.limited"),
                data=pickle.dumps((folder / CALL, pickle.dumps(job))),
                env={**os.environ, "PYTHONPATH": path, MARK: mark, JOB_ID: job_id},
                allowance=Allowance(timeout_s, *memory),
                most_messages=MOST_MESSAGES,
            )
        finally:
            # What a user's function started, also in a separate session.
            end_marked(f"{JOB_ID}={job_id}")
        call = read_call(folder / CALL)
    # Packages may print while they are imported, before the answer, and when the process exits.
    data = ended.stdout.partition(mark.encode())[2]
    if call and (ended.exceeded or not data):
        raise FailedError(  # as if it had raised an exception
            f"{name_call(call)} did not return",
            why=ended.exceeded or f"the process that called it {ended.describe()}",
            fix="call it in Python by itself, and let it return; raise --timeout-s if it is slow",
        )
    if not ended.is_good or not data:
        why = ended.exceeded or f"the process that reads it {ended.describe()}"
        if (message := ended.tail.strip()) and not ended.exceeded:
            why += f": {message.splitlines()[-1].strip()}"
        raise UsageError(f"{subject} cannot be read", why=why, fix=fix)
    result: R | QnnCiError = pickle.loads(data)  # noqa: S301 - from our own process
    if isinstance(result, QnnCiError):
        raise result
    return result


def answer(data: bytes) -> bytes:
    """Run a pickled job, and return its result or its QnnCiError, pickled."""
    call, job = pickle.loads(data)  # noqa: S301 - from our own process
    with calls_noted(call):
        return pickle.dumps(answer_job(lambda: _name_defects(pickle.loads(job))))  # noqa: S301


def _name_defects(job: Callable[[], R]) -> R:
    """Return the result of ``job``. An exception of this project's code becomes a DefectError."""
    try:
        return job()
    except Exception as error:
        if is_own(error) and not isinstance(error, QnnCiError):
            raise explain_exception(error) from error
        raise


def main() -> int:
    """Run the job on stdin, and write its result to stdout. What the job prints is a message."""
    answers = os.dup(1)
    mark = os.environ.pop(MARK)
    with redirected(2, 1):
        data = answer(sys.stdin.buffer.read())
    with os.fdopen(answers, "wb") as stream:
        stream.write(mark.encode() + data)  # a reader of a pickle ignores what follows
    return 0


if __name__ == "__main__":
    sys.exit(main())
