"""What a model's code does to its process: streams that it loses, exceptions that cannot be
printed, processes that it starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ci.cases.forked import run_forked
from ci.cases.pool import Pool
from provisioning.errors import FailedError


def fail(error: BaseException) -> Any:
    raise error


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_an_exception_that_cannot_be_printed_or_is_huge_is_described() -> None:
    with pytest.raises(FailedError, match="UnprintableError, whose message raised ValueError"):
        run_forked(lambda: fail(UnprintableError()))
    with pytest.raises(FailedError, match="ValueError: xxx") as caught:
        run_forked(lambda: fail(ValueError("x" * 5_000_000)))
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize("spoil", [lambda: None, lambda: os.fdopen(os.dup(1), "w")])
@pytest.mark.parametrize("raised", [None, ValueError("seven")])
def test_a_fork_that_loses_its_streams_answers_and_ends(
    spoil: Callable[[], Any], raised: Exception | None
) -> None:
    """Otherwise it would go on as a second process of its parent."""

    def lose() -> int:
        for name in ("stdout", "stderr"):
            setattr(sys, name, spoil())
            if stream := getattr(sys, name):
                stream.close()
        return fail(raised) if raised else os.getpid()

    parent = os.getpid()
    try:
        with pytest.raises(FailedError, match=r"^ValueError: seven$") if raised else nullcontext():
            assert run_forked(lose) != parent
    finally:
        if os.getpid() != parent:
            os._exit(1)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with closing(Pool(os.environ, tmp_path, ())) as opened:
        yield opened


def test_a_model_may_start_processes_and_none_outlives_the_pool(pool: Pool, tmp_path: Path) -> None:
    log = tmp_path / "log"
    call = "__import__('multiprocessing').Pool(1).map(abs, [-7])"
    assert pool.run(partial(eval, call), log, 60.0).result == [7]
    given = "__import__('multiprocessing').get_start_method()"
    assert pool.run(partial(eval, given), log, 60.0).result == "fork"
    command = "import os; os.setsid(); os.execvp('sleep', ['sleep', '61'])"
    words = (sys.executable, sys.executable, "-c", command)
    pid = pool.run(partial(os.spawnlp, os.P_NOWAIT, *words), log, 60.0).result
    pool.close()
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
