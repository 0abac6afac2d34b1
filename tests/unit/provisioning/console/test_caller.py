"""Hints name the command that the caller used; paths hold from where the caller stands."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from provisioning.__main__ import VERBS
from provisioning.console.caller import (
    CALLER,
    CHECKOUT,
    Caller,
    install_command,
    keep_cause,
    own_command,
    shown_path,
)
from provisioning.console.command import find_verb

SESSIONS = {"fetch": "provision", "build": "build_", "gc": ""}


@pytest.mark.parametrize(
    ("caller", "hint", "shown"),
    [
        (Caller("qnn-ci", {}), "qnn-ci fetch lpai", "qnn-ci fetch lpai"),
        (Caller("python -m ci", SESSIONS), "qnn-ci fetch lpai", "python -m ci fetch lpai"),
        (
            Caller("python -m provisioning", {"fetch": ""}),
            "qnn-ci build direct",
            "python -m ci build direct",
        ),
        (Caller("", SESSIONS, (), "./nox"), "qnn-ci fetch lpai", "./nox -s provision -- lpai"),
        (Caller("", SESSIONS, (), "nox"), "qnn-ci build direct", "nox -s build_direct"),
        (
            Caller("python -m provisioning", {"fetch": ""}),
            "qnn-ci fetch lpai",
            "python -m provisioning fetch lpai",
        ),
        (
            Caller("", SESSIONS, (), "nox"),
            "qnn-ci build direct --soc X",
            "nox -s build_direct -- --soc X",
        ),
        (
            Caller("", SESSIONS, (), "./nox"),
            "qnn-ci gc --dry-run",
            "./nox -s qnn_ci -- gc --dry-run",
        ),
        (
            Caller("", SESSIONS, (), "../nox"),
            "./nox -s build_aot -- --executorch 1.4.1",
            "../nox -s build_aot -- --executorch 1.4.1",
        ),
        (Caller("qnn-ci", SESSIONS), "./nox -s build_aot", "./nox -s build_aot"),
    ],
)
def test_a_command_in_a_message_is_rewritten_as_the_caller_would_type_it(
    caller: Caller, hint: str, shown: str
) -> None:
    assert caller.translate(f"run `{hint}`, or not") == f"run `{shown}`, or not"


@pytest.mark.parametrize(
    ("verb", "shown"),
    [
        ("fetch", "./nox -s provision -- aot"),
        ("doctor", "./nox -s validate -- aot"),
        ("env", "./nox -s qnn_ci -- env aot"),
    ],
)
def test_a_command_in_a_message_names_the_nox_session_of_its_verb(verb: str, shown: str) -> None:
    sessions = {name: verb_row.session for name, verb_row in VERBS.items()}
    assert Caller("", sessions, (), "./nox").translate(f"`qnn-ci {verb} aot`") == f"`{shown}`"
    session = shown.split()[2]
    assert find_verb(VERBS, session) == (verb if session != "qnn_ci" else "")


def test_the_label_of_a_command_is_what_the_user_typed() -> None:
    assert Caller("python -m ci", SESSIONS, ("fetch", "x")).label("fetch") == "python -m ci fetch"
    nox = Caller("python -m ci", SESSIONS, ("build", "android"), "./nox")
    assert nox.label("build") == "./nox -s build_android"
    assert nox.label("build", passing=True) == "./nox -s build_android --"
    assert nox.label("gc") == "./nox -s qnn_ci -- gc"


@pytest.mark.parametrize(
    ("session", "verb", "shown"),
    [
        ("docker_build", "image", "./nox -s docker_build --"),
        ("provision", "fetch", "./nox -s provision --"),
        ("qnn_ci", "fetch", "./nox -s qnn_ci -- fetch"),  # not the session that does the same
        ("qnn_ci", "image", "./nox -s qnn_ci -- image"),
    ],
)
def test_the_label_of_a_command_names_the_session_that_the_user_typed(
    session: str, verb: str, shown: str
) -> None:
    caller = Caller("python -m ci", {**SESSIONS, "image": ""}, (verb, "x"), "./nox", session)
    assert caller.label(verb, passing=True) == shown
    assert caller.label(verb) == shown.removesuffix(" --")


def test_shown_paths_are_relative_to_the_callers_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    monkeypatch.chdir(checkout)
    assert shown_path(Path("reports")) == "reports"
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    assert shown_path(Path("reports")) == "checkout/reports"
    (tmp_path / "link").symlink_to("/")
    assert shown_path(tmp_path / "link" / "etc") == "link/etc"  # as the user named it
    monkeypatch.setenv("QNN_CI_CALLER_DIR", "/nonexistent")
    assert shown_path(Path("reports")) == f"{checkout}/reports"


def test_the_cause_of_a_failure_is_written_to_the_file_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_cause("nobody asks")
    monkeypatch.setenv("QNN_CI_CAUSE_FILE", str(tmp_path / "cause"))
    keep_cause("a model failed")
    assert (tmp_path / "cause").read_text() == "a model failed"
    keep_cause("no file \udcff")
    assert (tmp_path / "cause").read_text() == "no file \\udcff"
    monkeypatch.setenv("QNN_CI_CAUSE_FILE", str(tmp_path / "gone" / "cause"))
    keep_cause("nox has ended")


@pytest.mark.parametrize(
    ("origin", "target"),
    [
        ({"url": "file:///a%20b", "dir_info": {}}, "/a b[device]"),
        ({"url": "file:///a.whl", "archive_info": {}}, "executorch-qnn-ci[device] @ file:///a.whl"),
        ({"url": 3}, f"{CHECKOUT}[device]"),  # damaged
    ],
)
def test_an_extra_is_installed_from_where_this_copy_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: object, target: str
) -> None:
    (tmp_path / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(metadata, "distribution", lambda _: metadata.PathDistribution(tmp_path))
    assert install_command("device").endswith(f'pip install "{target}"')


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("tools/qnn-ci/uv-receipt.toml", "uv tool install --force {}"),
        ("venvs/qnn-ci/pipx_metadata.json", "pipx install --force {}"),
        (
            "uv/archive-v0/Ab1/pyvenv.cfg",
            "uvx --from {} qnn-ci test-emulator --model 'my net.py:factory'",
        ),
        ("venv/pyvenv.cfg", "{python} -m pip install {}"),
    ],
)
def test_an_extra_is_installed_as_this_copy_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, command: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).touch()
    monkeypatch.setattr(sys, "prefix", str((tmp_path / file).parent))
    monkeypatch.setenv("PATH", str(tmp_path))  # without the pip of the environment of the tests
    monkeypatch.setattr(sys, "argv", ["qnn-ci", "test-emulator", "--model", "my net.py:factory"])
    commit = {"url": "file:///a/b", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}
    (tmp_path / "direct_url.json").write_text(json.dumps(commit))
    monkeypatch.setattr(metadata, "distribution", lambda _: metadata.PathDistribution(tmp_path))
    target = '"executorch-qnn-ci[device] @ git+file:///a/b@c0ffee"'
    assert install_command("device") == command.format(target, python=sys.executable)


@pytest.mark.parametrize(
    ("caller", "shown"),
    [
        (None, "qnn-ci env emulator --shell"),
        (Caller("qnn-ci", {"env": ""}), "qnn-ci env emulator --shell"),
        (Caller("", {"env": ""}, (), "./nox"), "./nox -s qnn_ci -- env emulator --shell"),
    ],
)
def test_a_command_in_a_written_file_is_one_that_the_user_has(
    caller: Caller | None, shown: str
) -> None:
    before = CALLER.set(caller) if caller else None
    try:
        assert own_command("env", "emulator", "--shell") == shown
    finally:
        if before:
            CALLER.reset(before)
