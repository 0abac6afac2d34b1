"""``./nox`` before there is a nox: what it says when it cannot make its environment."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from provisioning.console.process import Completed, run_process
from tests.stand_ins.quick_venv import make_python
from tests.stand_ins.tiny_wheels import write_wheel
from tests.stand_ins.users import as_unprivileged

ROOT = Path(__file__).parents[2]
LOCK = "manifests/locks/python/bootstrap.txt"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    copy_script(tmp_path)
    return tmp_path


def copy_script(checkout: Path) -> None:
    """Copy ./nox and the lock of what it installs."""
    (checkout / LOCK).parent.mkdir(parents=True)
    for name in ("nox", LOCK):
        shutil.copy(ROOT / name, checkout / name)


def run_script(checkout: Path, **variables: str) -> Completed:
    env = {**os.environ, "QNN_CI_PYTHON": sys.executable, **variables}
    return run_process([checkout / "nox", "--list"], env=env, timeout_s=1200, check=False)


def make_checkout(root: Path, does: str) -> Path:
    """A checkout whose Python runs a shell command; its ./nox."""
    programs = root / ".nox" / "bootstrap" / "bin"
    programs.mkdir(parents=True)
    copy_script(root)
    shutil.copy(ROOT / LOCK, programs.parent / "lock.txt")
    python = programs / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] || {{ {does}; }}\n')
    python.chmod(0o755)
    return root / "nox"


def test_an_unwritable_environment_directory_exits_with_4(checkout: Path) -> None:
    (checkout / ".nox").write_text("in the way")
    ended = run_script(checkout)
    assert (ended.returncode, "cannot be written" in ended.output) == (4, True)
    assert "Traceback" not in ended.output


def test_an_unwritable_bootstrap_lock_exits_with_4(checkout: Path) -> None:
    (checkout / ".nox" / "bootstrap.lock").mkdir(parents=True)
    ended = run_script(checkout)
    assert (ended.returncode, "cannot be written" in ended.output) == (4, True), ended.output


def test_a_read_only_checkout_exits_with_4(checkout: Path) -> None:
    checkout.chmod(0o555)
    command = as_unprivileged(checkout, checkout / "nox", "--list")
    ended = run_process(command, timeout_s=1200, check=False)
    assert (ended.returncode, "cannot be written" in ended.output) == (4, True), ended.output


def test_a_symlink_to_the_nox_script_uses_the_checkout_and_writes_nothing_next_to_itself(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    beside = tmp_path_factory.mktemp("bin")
    (beside / "nox").symlink_to(checkout / "nox")
    run_process([beside / "nox"], env={**os.environ, "QNN_CI_PYTHON": "none"}, check=False)
    assert [path.name for path in beside.iterdir()] == ["nox"]
    assert (checkout / ".nox").is_dir()


@pytest.mark.parametrize("name", ["a b", "$HOME", "~", "%s{x}", "-d"])
def test_the_nox_script_runs_in_a_checkout_of_any_name(tmp_path: Path, name: str) -> None:
    make_checkout(tmp_path / name, 'pwd; echo "$QNN_CI_CALLER_DIR" "$@"')
    ended = run_process([f"./{name}/nox", "-l"], cwd=tmp_path)
    assert ended.output.splitlines() == [str(tmp_path / name), f"{tmp_path} noxfile.py -l"]


@pytest.mark.parametrize(
    "name", ["PYTHONHOME", "PYTHONINSPECT", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE"]
)
def test_the_script_removes_python_variables_that_break_environments_or_slow_them_down(
    tmp_path: Path, name: str
) -> None:
    script = make_checkout(tmp_path, "env")
    ended = run_process([script, "-l"], env={**os.environ, name: "1"})
    assert not [line for line in ended.output.splitlines() if line.startswith(f"{name}=")]


def test_a_missing_python_exits_with_3_and_names_qnn_ci_python(checkout: Path) -> None:
    ended = run_script(checkout, QNN_CI_PYTHON="no-such-python")
    assert (ended.returncode, "QNN_CI_PYTHON" in ended.output) == (3, True)


def test_unreachable_package_index_exits_with_4_and_leaves_no_environment(
    checkout: Path,
) -> None:
    python = make_python(checkout / "quick")
    away = {"PIP_INDEX_URL": "http://127.0.0.1:1/simple", "PIP_RETRIES": "0"}
    pip_variables = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_NO_INDEX": "0"}
    ended = run_script(checkout, QNN_CI_PYTHON=str(python), **pip_variables, **away)
    assert (ended.returncode, "check pip's index" in ended.output) == (4, True), ended.output
    assert "No matching distribution found for " in ended.output
    assert [path.name for path in (checkout / ".nox").iterdir()] == ["bootstrap.lock"]


@pytest.mark.parametrize("change", ["", "# another lock\n"])
def test_nox_is_installed_again_only_if_its_lock_changes(tmp_path: Path, change: str) -> None:
    script = make_checkout(tmp_path, "echo ran")
    with (tmp_path / LOCK).open("a") as lock:
        lock.write(change)
    env = {**os.environ, "QNN_CI_PYTHON": "no-such-python"}
    ended = run_process([script, "-l"], env=env, check=False)
    assert (ended.returncode, "ran" in ended.output) == ((3, False) if change else (0, True))


def test_without_a_wheel_of_uv_nox_is_installed_alone_and_this_is_said(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wheels = tmp_path_factory.mktemp("wheels")
    uv = f"uv==9.9.9 --hash=sha256:{'0' * 64}"
    (checkout / LOCK).write_text(f"{write_wheel(wheels, 'nox', '9.9')}\n{uv}\n")
    (checkout / "noxfile.py").write_text("import nox\nprint('nox', nox.version)\n")
    python = make_python(checkout / "quick")
    places = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": str(wheels), "PIP_NO_INDEX": "1"}
    ended = run_script(checkout, QNN_CI_PYTHON=str(python), **places)
    lines = ended.output.splitlines()
    assert lines[1].endswith("uv could not be installed, so pip is used (slower); pip says:")
    assert "No matching distribution found for uv==9.9.9" in lines[2]
    assert (lines[3:], ended.returncode) == (["nox 9.9"], 0)
    second_run = run_script(checkout, QNN_CI_PYTHON="no-such-python")
    assert (second_run.output, second_run.returncode) == ("nox 9.9\n", 0)


def test_a_disk_that_is_full_while_nox_is_installed_exits_with_4_and_leaves_no_environment(
    checkout: Path,
) -> None:
    """The environment's directory is missing, so that nothing can be written there."""
    python = checkout / "python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    ended = run_script(checkout, QNN_CI_PYTHON=str(python))
    assert (ended.returncode, "  fix: free 100 MB in " in ended.output) == (4, True), ended.output
    assert [path.name for path in (checkout / ".nox").iterdir()] == ["bootstrap.lock"]


def test_ctrl_c_while_nox_is_installed_exits_with_130_and_leaves_no_environment(
    checkout: Path,
) -> None:
    python = checkout / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && exit\nmkdir -p "$3"\nkill -INT 0\nsleep 600\n')
    python.chmod(0o755)
    ended = run_script(checkout, QNN_CI_PYTHON=str(python))
    assert (ended.returncode, "fix:" in ended.output) == (130, False), ended.output
    assert [path.name for path in (checkout / ".nox").iterdir()] == ["bootstrap.lock"]
