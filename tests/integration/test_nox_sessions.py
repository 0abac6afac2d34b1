"""What ``./nox`` adds to the verbs that it runs: environments, exit codes, causes."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from tests.documented.place import Ended, Place, make_place
from tests.documented.readers import sdks
from tests.documented.table import EXPORTS
from tests.programs import missing_programs

COMPILERS = ("g++", "aarch64-linux-gnu-g++")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nox")
    # With nox's own option for "make the environments, run nothing".
    assert run(make_place(folder), "./nox --install-only -s environments -- core").code == 0
    return folder


@pytest.fixture
def bare(folder: Path) -> Place:
    """A clone in which torch has yet to be installed."""
    place = make_place(folder)
    linked = place.clone / ".nox"
    shared = linked.resolve()
    linked.unlink()
    linked.mkdir()
    for name in ("bootstrap", "core"):
        (linked / name).symlink_to(shared / name)
    return place


def run(place: Place, line: str) -> Ended:
    return place.run(line, 300)


def test_nox_list_does_not_wait_for_an_environment_that_is_being_made(bare: Place) -> None:
    environments = bare.clone / ".nox"
    (environments / "core").unlink()
    with (environments / "core.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = run(bare, "timeout 60 ./nox --list")
        waiting = run(bare, "timeout 3 ./nox -s parity -- --list")
    assert (ended.code, "parity  " in ended.text) == (0, True), ended.text
    assert (waiting.code, "waiting" in waiting.text) == (124, True), waiting.text


def test_every_verb_is_also_a_nox_session(bare: Place) -> None:
    ended = run(bare, "./nox -s list parity completion -- --help")
    assert ended.code == 0, ended.text
    for name in ("list", "completion"):
        assert f"usage: ./nox -s {name} -- " in ended.text, ended.text
    assert run(bare, "./nox -s locolise").code == 2


def test_nox_repeats_the_cause_of_the_first_failed_session_at_the_end(bare: Place) -> None:
    ended = run(bare, "./nox -s build_android parity -- --source /nonexistent")
    assert ended.code == 2, ended.text
    end = ended.text.partition("build_android failed first, with exit code 2\n")[2]
    assert end.startswith("./nox -s build_android: --source /nonexistent "), ended.text
    assert "* parity: failed" in ended.text


def test_a_single_failed_session_prints_its_cause_once(bare: Place) -> None:
    ended = run(bare, "./nox -s parity -- --source /nonexistent")
    assert ended.code == 2, ended.text
    assert ended.text.count("/nonexistent is not a directory") == 1, ended.text
    assert "uv binary" not in ended.text


def test_build_names_missing_toolchains_before_it_installs_torch(bare: Place) -> None:
    ended = run(bare, "./nox -s build_direct -- --soc SM8750")
    assert ended.code == 3, ended.text
    assert "./nox -s provision -- direct" in ended.text, ended.text
    assert not (bare.clone / ".nox" / "lowering").exists()


@pytest.mark.skipif(bool(missing_programs(*COMPILERS)), reason=missing_programs(*COMPILERS))
def test_build_check_needs_no_build_packages(bare: Place) -> None:
    sdks(bare)
    core = bare.clone / ".nox" / "core" / "bin" / "python"
    line = "\n".join([*EXPORTS, f"{core} -m ci build linux --no-doctor"])
    assert "nothing is missing" in run(bare, f"{line} --check").text
    assert "torchgen" in run(bare, f"{line} --dry-run").text


def test_the_doctor_needs_no_torch_to_run(bare: Place) -> None:
    ended = run(bare, "./nox -s validate")
    assert (ended.code, "QNN503" in ended.text) == (3, True), ended.text
    assert not (bare.clone / ".nox" / "lowering").exists()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        # A version selects the environment; everything else is checked by the verb itself, and
        # tests/unit/ci/verbs/test_rejected_before_provisioning.py has its mistakes.
        ("test_emulator -- --model mlp --executorch 1.0.1", "1.4.1"),
        pytest.param(
            *("audit -- --model gone.py:factory", "gone.py is not a file"),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_wrong_arguments_are_refused_before_torch_is_installed(
    bare: Place, words: str, shown: str
) -> None:
    ended = run(bare, f"./nox -s {words}")
    assert (ended.code, shown in ended.text) == (2, True), ended.text
    assert not list((bare.clone / ".nox").glob("lowering*"))


def test_an_unwritable_environment_lock_exits_with_4(bare: Place) -> None:
    environments = bare.clone / ".nox"
    (environments / "core").unlink()
    (environments / "core.lock").mkdir()
    ended = run(bare, "./nox -s parity")
    assert (ended.code, "cannot be written" in ended.text) == (4, True), ended.text


@pytest.mark.nightly  # by day, test_nox_script has an index that cannot be reached
def test_packages_that_cannot_be_downloaded_exit_with_4_and_are_not_recorded(
    bare: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = bare.clone / "manifests/locks/python/core.txt"
    digest = "0" * 64
    lock.write_text(f"executorch-qnn-ci-no-such-package==1 --hash=sha256:{digest}\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    environments = bare.clone / ".nox"
    (environments / "core").unlink()
    ended = run(bare, "./nox -s parity")
    assert (ended.code, "could not be created" in ended.text) == (4, True), ended.text
    assert not (environments / "core" / "installed.sha256").exists()
