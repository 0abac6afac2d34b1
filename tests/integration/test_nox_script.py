"""``./nox`` before there is a nox: what it says when it cannot make its environment."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from provisioning.console.process import Completed, run_process
from tests.stand_ins.quick_venv import make_python

SCRIPT = Path(__file__).parents[2] / "nox"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copy(SCRIPT, tmp_path / "nox")
    return tmp_path


def run_script(checkout: Path, **variables: str) -> Completed:
    env = {**os.environ, "QNN_CI_PYTHON": sys.executable, **variables}
    return run_process([checkout / "nox", "--list"], env=env, timeout_s=120, check=False)


def test_a_place_that_cannot_be_written(checkout: Path) -> None:
    (checkout / ".nox").write_text("in the way")
    ended = run_script(checkout)
    assert (ended.returncode, "cannot be written" in ended.output) == (4, True)
    assert "Traceback" not in ended.output


def test_a_lock_that_cannot_be_written(checkout: Path) -> None:
    (checkout / ".nox" / "bootstrap.lock").mkdir(parents=True)
    ended = run_script(checkout)
    assert (ended.returncode, "cannot be written" in ended.output) == (4, True), ended.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_checkout_of_somebody_else(checkout: Path) -> None:
    for path in (checkout, *checkout.parents):
        if "pytest-of-" in str(path):
            path.chmod(0o755)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    ended = run_process([*nobody, checkout / "nox", "--list"], timeout_s=60, check=False)
    assert (ended.returncode, "cannot be written" in ended.output) == (4, True), ended.output


def test_no_fit_python(checkout: Path) -> None:
    ended = run_script(checkout, QNN_CI_PYTHON="no-such-python")
    assert (ended.returncode, "QNN_CI_PYTHON" in ended.output) == (3, True)


def test_an_index_that_cannot_be_reached(checkout: Path) -> None:
    python = make_python(checkout / "quick")
    away = {"PIP_INDEX_URL": "http://127.0.0.1:1/simple", "PIP_RETRIES": "0"}
    own = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_NO_INDEX": "0"}
    ended = run_script(checkout, QNN_CI_PYTHON=str(python), **own, **away)
    assert (ended.returncode, "check pip's index" in ended.output) == (4, True), ended.output
    assert "No matching distribution found for nox" in ended.output
    assert [path.name for path in (checkout / ".nox").iterdir()] == ["bootstrap.lock"]
