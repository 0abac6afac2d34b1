"""Functions in forks: what comes back, and what is said of a fork that dies."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ci.cases.forked import answer_job, describe_error, note_step, run_forked
from ci.cases.pool import ROOT, read_tail
from provisioning.console.process import TAIL_LINES
from provisioning.errors import FailedError, QnnCiError, StoreError, UnfitError, UsageError


def fail(error: BaseException) -> Any:
    raise error


def die(number: int) -> None:
    note_step("QNN compiled the graph")
    os.kill(os.getpid(), number)


def test_a_fork_returns_its_result_and_leaves_the_parent_unchanged() -> None:
    numbers = [1]
    assert run_forked(lambda: [*numbers, numbers.append(2)]) == [1, None]
    assert numbers == [1]


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (UsageError("no model", why="it is not there"), UsageError, "it is not there"),
        (ValueError("seven"), FailedError, "ValueError: seven"),
        (SystemExit(3), FailedError, "SystemExit: 3"),
        (
            OSError(errno.ENOSPC, "No space left", "/there"),
            StoreError,
            "there is no space left for /there",
        ),
    ],
)
def test_an_exception_in_a_fork_comes_back_as_an_error_of_the_tree(
    error: BaseException, kind: type[QnnCiError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        run_forked(lambda: fail(error))


def test_a_fork_that_dies_is_described_with_its_last_step() -> None:
    with pytest.raises(FailedError, match="killed by SIGKILL") as caught:
        run_forked(lambda: die(signal.SIGKILL))
    assert caught.value.why == "while QNN compiled the graph"
    with pytest.raises(FailedError, match="exited with 3 without a result") as caught:
        run_forked(lambda: os._exit(3))
    assert not caught.value.why  # not that of the fork before
    with pytest.raises(FailedError, match="exited with 0 without a result"):
        run_forked(lambda: os._exit(0))


@pytest.mark.parametrize(("size", "shown"), [(288, "x" * 288), (289, "x" * 288 + "...")])
def test_an_error_is_described_in_one_line_of_limited_length(size: int, shown: str) -> None:
    assert describe_error(ValueError("x" * size)) == f"ValueError: {shown}"
    assert describe_error(ValueError("a\n  b")) == "ValueError: a b"
    assert describe_error(ValueError()) == "ValueError"


def test_the_tail_of_a_log_skips_noise_and_keeps_the_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert read_tail(log) == ""
    lines = [f"line {number} {'x' * 400}" for number in range(3 * TAIL_LINES)]
    noise = (
        *["[INFO] [Qnn ExecuTorch]: Destroy Qnn device"] * 40,
        "Completed stage: Graph Preparation Initializing (2 us)",
        "[#####     ] 50 %",
        " [          ]   0%",
        "  write_total_bytes=12",
        "<omitting python frames>",
        "  return cls.__new__(cls, *args)",
        "[WARNING 2026-11-23 08:08:42,993 pass_manager.py:82] PassManager is deprecated. Use",
        "INFO     executorch.backends.qualcomm.qnn_preprocess:qnn_preprocess.py:122 Visiting: a, b",
        "WARNING  root:qnn_manager_lifecycle.py:96 No QnnManager active for backend type kGpu",
    )
    frames_of_ours = (
        f'  File "{ROOT}/ci/cases/pool.py", line 1, in run_job\n    return job()\n    ^^^\n'
    )
    trace, frames_of_user = (
        "Traceback (most recent call last):\n",
        '  File "net.py", line 3, in net\n    x()\n',
    )
    for text, tail in (
        (f"{trace}{frames_of_ours}{frames_of_ours}OSError: full\n", "OSError: full"),
        (
            f"{trace}{frames_of_ours}{frames_of_user}OSError: full\n",
            f"{trace}{frames_of_user}OSError: full",
        ),
        ("the cause\n" + "".join(f"{line}\n" for line in noise), "the cause"),
        ("x" * 3_000_000 + "\nthe end\n", "x" * 400 + "\nthe end"),
        ("\n\n".join(lines), "\n".join(line[:400] for line in lines[-TAIL_LINES:])),
    ):
        log.write_text(text)
        assert read_tail(log) == tail


def test_a_library_that_a_limit_of_memory_keeps_out_is_blamed_on_the_limit() -> None:
    def fail() -> None:
        raise ImportError("libtorch_cpu.so: failed to map segment from shared object")

    error = answer_job(fail)
    assert isinstance(error, UnfitError)
    assert "ulimit -v" in error.why
