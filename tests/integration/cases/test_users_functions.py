"""Jobs in a process with limits: what a user's function does there is named as such, and ended."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from ci.__main__ import main
from ci.cases.limited import run_limited
from ci.cases.pool import Pool
from ci.facts.finding import Place
from ci.facts.kinds import DIED
from ci.models.user_code import call_function
from provisioning.console.usage import has_ended
from provisioning.errors import ExitCode, FailedError, QnnCiError

DATA = """
import os, subprocess, sys, time
from pathlib import Path

def start():
    pids = []
    for new_session in (False, True):
        child = subprocess.Popen(["sleep", "3600"], start_new_session=new_session)
        pids.append(str(child.pid))
    Path("pids").write_text(" ".join(pids))

def hangs():
    start()
    time.sleep(3600)

def dies():
    start()
    os._exit(0)

def is_killed():
    start()
    os.kill(os.getpid(), 9)

def returns():
    start()
    return 7
"""


NET = """
import os
import torch

def factory():
    {}
    return torch.nn.Linear(4, 4), (torch.zeros(1, 4),)
"""


def call(reference: str) -> object:
    return call_function(reference, "it returns samples")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data.py").write_text(DATA)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data.py"


def require_no_children(folder: Path) -> None:
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    assert len(pids) == 2
    assert [has_ended(pid) for pid in pids] == [True, True]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("hangs", "did not end within 3 s"),
        ("dies", "the process that called it exited with 0"),
        ("is_killed", "the process that called it was killed by SIGKILL"),
    ],
)
def test_a_users_function_that_does_not_return_is_named_and_its_children_are_ended(
    data: Path, function: str, why: str
) -> None:
    with pytest.raises(FailedError) as caught:
        run_limited(partial(call, f"{data}:{function}"), "the model", timeout_s=3)
    assert caught.value.what == f"your function data.py:{function} did not return"
    assert why in caught.value.why
    require_no_children(data.parent)


def test_the_finding_of_a_case_points_to_the_function_that_did_not_return(
    data: Path, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path))
        pool = Pool(dict(os.environ), tmp_path, ())
    try:
        ended = pool.run(partial(call, f"{data}:is_killed"), tmp_path / "log", 60)
    finally:
        pool.close()
    finding = ended.find(DIED)
    assert "your function data.py:is_killed did not return: the process was killed" in finding.text
    line = DATA.splitlines().index("def is_killed():") + 1
    assert finding.places == (Place(file="data.py", line=line),)


def test_what_a_function_that_returns_leaves_running_is_ended(data: Path) -> None:
    assert run_limited(partial(call, f"{data}:returns"), "the model") == 7
    require_no_children(data.parent)


@pytest.mark.parametrize("function", ["none", "start"])
def test_the_process_of_a_job_that_calls_no_function_is_not_blamed_on_one(
    data: Path, function: str
) -> None:
    """Also not if a function was called and returned, or does not exist."""
    with pytest.raises(QnnCiError) as caught:
        run_limited(partial(die_after, f"{data}:{function}"), "the model")
    assert "did not return" not in caught.value.what


def die_after(reference: str) -> None:
    call(reference)
    os._exit(3)


@pytest.mark.nightly
def test_the_nodes_of_a_model_are_listed_when_its_function_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the fix says: the function returns, and the limit is raised."""
    pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    words = ["test-emulator", "--list", "--model", "net.py:factory", "--timeout-s"]
    (tmp_path / "net.py").write_text(NET.format("os._exit(3)"))
    assert main([*words, "600"]) == ExitCode.FAILED
    message = " ".join(capsys.readouterr().err.split())
    assert "net.py:factory did not return" in message
    assert "let it return; raise --timeout-s if it is slow" in message
    (tmp_path / "net.py").write_text(NET.format("pass"))
    assert main([*words, "1200"]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[-1].split() == ["linear", "linear"]
