"""git answers for the directory that it is asked about, whatever the caller's variables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.console.git import ask_git, parse_submodules, read_commit, run_git
from provisioning.doctor.survey.host import survey_checkout
from provisioning.errors import ExitCode, MissingToolError, ToolError
from tests.stand_ins.environments import git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "executorch", "one")


def make_repository(root: Path, message: str) -> Path:
    root.mkdir()
    git(root, "init", "-q", ".")
    git(root, "commit", "-q", "--allow-empty", "-m", message)
    return root


def test_git_variables_of_the_caller_do_not_select_another_repository(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_repository = make_repository(tmp_path / "other", "two")
    commit = read_commit(repository)
    assert commit != read_commit(other_repository)
    for name in ("GIT_DIR", "GIT_COMMON_DIR"):
        monkeypatch.setenv(name, str(other_repository / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other_repository))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other_repository / "no-index"))

    assert survey_checkout(repository).commit == commit
    assert read_commit(repository / ".git") == commit


def test_lines_of_git_are_streamed_with_its_variables(repository: Path) -> None:
    lines: list[str] = []
    words = ("-c", "alias.say=!echo one; echo $QNN_CI_X; exit 3", "say")
    ended = run_git(
        repository, *words, check=False, variables={"QNN_CI_X": "two"}, on_line=lines.append
    )
    assert (ended.returncode, lines) == (3, ["one", "two"])
    with pytest.raises(ToolError, match="exited with 3"):
        run_git(repository, *words)


def test_a_directory_inside_a_repository_is_not_that_repository(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = repository / "vendored" / "executorch"
    inner.mkdir(parents=True)
    (tmp_path / "link").symlink_to(inner)
    monkeypatch.chdir(inner.parent)

    for place in (inner, tmp_path / "link", Path(inner.name)):
        assert not survey_checkout(place).is_git
        with pytest.raises(ToolError):
            read_commit(place)


def test_git_config_in_the_users_variables_still_applies(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{repository}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://nowhere.example/executorch")

    listed = ask_git(repository, "ls-remote", "https://nowhere.example/executorch", "HEAD")

    assert listed.decode().startswith(read_commit(repository))


@pytest.mark.parametrize("place", ["", ".git"])
def test_the_error_for_another_users_checkout_shows_the_git_setting_that_allows_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # as git's own tests do
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))  # as git sets it for a hook
    with pytest.raises(MissingToolError) as caught:
        ask_git(repository / place, "-C", str(repository), "diff", "--no-such-option")
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert caught.value.what == f"git refuses to read {repository}"
    assert f"safe.directory {repository}`" in caught.value.fix
    with pytest.raises(MissingToolError):
        run_git(repository / place, "no-such-command")


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("", ()),
        ('[submodule "a"]\n\tpath = third-party/a\n\turl = x\n', ("third-party/a",)),
        ('[submodule "a"]\npath="with space" ; why\n[submodule "b"]\nPath=b', ("with space", "b")),
        ('[submodule "a"]\n\tpaths = a\n\tsubpath = b\n\tpath =\n[core]\n\tpath = c\n', ()),
        ("[include]\n\tpath = /etc/passwd\n", ()),
    ],
)
def test_submodules_are_those_that_git_reads(text: str, paths: tuple[str, ...]) -> None:
    assert parse_submodules(text) == paths
