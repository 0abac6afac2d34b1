"""What ``./nox`` adds to the verbs that it runs: environments, exit codes, causes."""

from __future__ import annotations

import fcntl

import pytest

from tests.documented.setups import plant_toolchains
from tests.documented.stage import Stage
from tests.stand_ins.tiny_toolchains import missing_programs

COMPILERS = ("g++", "aarch64-linux-gnu-g++")


@pytest.fixture
def bare(stage: Stage) -> Stage:
    """A checkout in which torch has yet to be installed."""
    shared = (stage.project / ".nox").resolve()
    own = stage.folder / "environments"
    own.mkdir()
    for name in ("bootstrap", "core"):
        (own / name).symlink_to((shared / name).resolve())
    (stage.project / ".nox").unlink()
    (stage.project / ".nox").symlink_to(own)
    return stage


def test_sessions_are_listed_while_environments_are_made(bare: Stage) -> None:
    environments = (bare.project / ".nox").resolve()
    (environments / "core").unlink()
    with (environments / "core.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = bare.run("timeout 60 ./nox --list")
        waiting = bare.run("timeout 3 ./nox -s parity -- --list")
    assert (ended.returncode, "- parity -> " in ended.stdout) == (0, True), ended.said
    assert (waiting.returncode, "waiting" in waiting.stderr) == (124, True), waiting.said


def test_any_verb_is_a_session(bare: Stage) -> None:
    ended = bare.run("./nox -s cache_key parity completion -- --help")
    assert ended.returncode == 0, ended.said
    for name in ("cache-key", "completion"):
        assert f"usage: ./nox -s qnn_ci -- {name} " in ended.stdout, ended.said
    assert bare.run("./nox -s locolise").returncode == 2


def test_the_cause_of_the_first_failure_is_told_again_at_the_end(bare: Stage) -> None:
    ended = bare.run("./nox -s build_android parity -- --source /nonexistent")
    assert ended.returncode == 2, ended.said
    end = ended.stderr.partition("build_android failed first, with exit code 2\n")[2]
    assert end.startswith("./nox -s build_android: --source /nonexistent "), ended.said
    assert "* parity: failed" in ended.stderr


def test_one_session_tells_its_failure_once(bare: Stage) -> None:
    ended = bare.run("./nox -s parity -- --source /nonexistent")
    assert ended.returncode == 2, ended.said
    assert ended.said.count("/nonexistent is not a directory") == 1, ended.said
    assert "uv binary" not in ended.said


@pytest.mark.parametrize("target", ["android", "linux", "direct"])
def test_a_build_tells_what_is_missing_before_torch_is_installed(bare: Stage, target: str) -> None:
    ended = bare.run(f"./nox -s build_{target} -- --soc SM8750")
    assert ended.returncode == 3, ended.said
    assert f"./nox -s provision -- {target}" in ended.stderr, ended.said
    assert not (bare.project / ".nox" / "lowering").exists()


@pytest.mark.skipif(bool(missing_programs(*COMPILERS)), reason=missing_programs(*COMPILERS))
def test_a_check_needs_no_package_of_the_build(bare: Stage) -> None:
    plant_toolchains(bare)
    core = bare.project / ".nox" / "core" / "bin" / "python"
    words = f"{core} -m ci build linux --no-doctor"
    assert "nothing is missing" in bare.run(f"{words} --check").stdout
    assert "torchgen" in bare.run(f"{words} --dry-run").stderr


def test_the_doctor_needs_no_torch_to_run(bare: Stage) -> None:
    ended = bare.run("./nox -s validate")
    assert (ended.returncode, "QNN503" in ended.said) == (3, True), ended.said
    assert not (bare.project / ".nox" / "lowering").exists()


def test_an_executorch_that_is_not_supported_is_refused_before_it_is_installed(
    bare: Stage,
) -> None:
    ended = bare.run("./nox -s test_emulator -- --model mlp --executorch 1.0.1")
    assert (ended.returncode, "1.4.1" in ended.stderr) == (2, True), ended.said
    assert not list((bare.project / ".nox").glob("lowering*"))


def test_environments_that_cannot_be_written(bare: Stage) -> None:
    environments = (bare.project / ".nox").resolve()
    (environments / "core").unlink()
    (environments / "core.lock").mkdir()
    ended = bare.run("./nox -s parity")
    assert (ended.returncode, "cannot be written" in ended.stderr) == (4, True), ended.said


def test_packages_that_cannot_be_downloaded(bare: Stage) -> None:
    bare.edit("pyproject.toml", '"isal==1.9.1"', '"executorch-qnn-ci-no-such-package==1"')
    bare.variables |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    environments = (bare.project / ".nox").resolve()
    (environments / "core").unlink()
    ended = bare.run("./nox -s parity")
    assert (ended.returncode, "could not be created" in ended.stderr) == (4, True), ended.said
    assert not (environments / "core" / "installed.sha256").exists()
