"""What is asked of an engine, and what comes of its answers: builds, labels, bases, prune, shells.

The engine is a stand-in; tests/integration/images has a real one.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from stat import filemode
from types import SimpleNamespace
from typing import Any

import pytest

from ci.__main__ import main
from ci.images import shell
from ci.images.build import Built, build_image
from ci.images.definition import (
    plan_image,
    recall_base,
)
from ci.images.shell import HOME, ShellRequest, copy_streams, run_shell
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, ExitCode, StoreError, ToolError
from tests.stand_ins.snapshots import check_snapshot
from tests.unit.ci.images.conftest import OWN


def names(engine: Any) -> list[str]:
    return [name for name, _ in engine.calls]


# -- building --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("wheels", "checkout")
def test_an_unpullable_base_image_is_reported_before_wheels_are_fetched(
    engine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.remote.clear()
    assert main(["image", "build"]) == ExitCode.DOWNLOAD
    assert names(engine) == ["pull"]
    errors = capsys.readouterr().err
    assert "no route to host" in errors
    assert "load the image into the engine and pass its name with --base" in " ".join(
        errors.split()
    )
    assert main(["image", "build", "--base", OWN]) == ExitCode.OK  # the engine has it


@pytest.mark.usefixtures("wheels")
@pytest.mark.parametrize(
    ("why", "kind"), [("no space left on device", StoreError), ("denied", DownloadError)]
)
def test_an_engine_that_refuses_to_pull_is_explained(
    engine: Any, monkeypatch: pytest.MonkeyPatch, why: str, kind: type[Exception]
) -> None:
    from docker.errors import APIError

    def refuse(*_: Any, **__: Any) -> None:
        raise APIError(why)

    monkeypatch.setattr(engine.api, "pull", refuse)
    with pytest.raises(kind):
        build_image(engine, "emulator", Progress())
    assert "wheels" not in names(engine)


@pytest.mark.usefixtures("wheels")
def test_an_existing_image_is_reused_unless_fresh_is_requested(engine: Any) -> None:
    first = build_image(engine, "emulator", Progress())
    second = build_image(engine, "emulator", Progress())
    assert (second.image_id, second.fresh) == (first.image_id, False)
    assert second.size_bytes == first.size_bytes > 0
    assert len(engine.called("build")) == 1
    build_image(engine, "emulator", Progress(), fresh=True)
    assert [call["nocache"] for call in engine.called("build")] == [False, True]


@pytest.mark.usefixtures("wheels")
def test_a_build_that_fails_leaves_no_tag_and_no_files(engine: Any) -> None:
    steps = [{"aux": {"ID": "sha256:of-a-step"}}, {"stream": "Step 3/9 : RUN x\nlast words\n"}]
    engine.events = [*steps, {"error": "exit 1"}]
    with pytest.raises(ToolError) as caught:
        build_image(engine, "emulator", Progress())
    assert "last words" in caught.value.why
    assert "tag" not in names(engine)
    assert not list((Path(os.environ["QNN_CI_HOME"]) / "tmp").iterdir())


# -- the remembered base ---------------------------------------------------------------------------


@pytest.mark.usefixtures("wheels")
def test_a_failed_image_build_is_not_remembered_as_the_base_of_the_checkout(
    engine: Any, checkout: Path
) -> None:
    engine.events = [{"error": "no"}]
    assert main(["image", "build", "--base", OWN]) == ExitCode.TOOL
    assert recall_base(checkout) == ""


# -- the shell -------------------------------------------------------------------------------------


@pytest.fixture
def request_(engine: Any, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> ShellRequest:
    """A command in the user's own base; its streams end at once."""
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(checkout))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)

    def open_closed(*_: Any) -> socket.socket:
        mounts = engine.called("container")[-1]["host_config"]["mounts"]
        (pipe,) = [mount["Source"] for mount in mounts if mount["Target"] == shell.CALLER]
        engine.note("attach", pipe=filemode(Path(pipe).stat().st_mode))
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    monkeypatch.setattr(shell, "open_stream", open_closed)
    plan = plan_image(engine, "emulator", OWN)
    return ShellRequest(plan, Built("emulator:1", engine.get(OWN).id, 0, fresh=False), ("true",))


def describe_calls(engine: Any) -> str:
    """The calls in their order; each container with its user, place, variables and mounts."""
    lines = []
    for name, call in engine.calls:
        lines.append(name)
        host = call.get("host_config", {})
        rows = {**call, **host, **(call.get("environment") or {})}
        for mount in rows.pop("mounts", ()):
            access = "read-only" if mount["ReadOnly"] else "writable"
            lines.append(f"  {mount['Type']} {mount['Source']} at {mount['Target']}, {access}")
        for key in ("host_config", "environment", "files"):
            rows.pop(key, None)
        lines += [f"  {key}: {value}" for key, value in sorted(rows.items())]
    return "\n".join(lines) + "\n"


def test_a_shell_has_the_callers_place_ids_and_settings_and_is_removed(
    engine: Any, request_: ShellRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams and the exit code are attached before the container starts, so that no output is
    lost. A volume belongs to its owner before the container is created."""
    for name in shell.PASSED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:1")
    monkeypatch.setenv("SECRET", "no")
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "getgid", lambda: 100)
    former = os.umask(0o027)
    engine.exit_code = 7
    try:
        assert run_shell(engine, request_) == 7
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(former)
    assert (Path(os.environ["QNN_CI_HOME"]) / "store").is_dir()  # else root owns it
    (put,) = engine.called("put")
    assert put["files"]["passwd"] == f"root:x\ndev:x:1000:100:dev:{HOME}:/bin/bash\n".encode()
    assert put["files"]["group"] == b"root:x\ndev:x:100:\n"
    assert put["files"]["pip.conf"] == b"[global]\n\n"
    text = describe_calls(engine).replace(str(tmp_path), "TMP")
    names_of_digests: dict[str, str] = {}
    text = re.sub(
        rf"\b[0-9a-f]{{12,64}}\b|emulator-[0-9a-f]{{8}}|{re.escape(tempfile.gettempdir())}/\S+",
        lambda match: names_of_digests.setdefault(match[0], f"<{len(names_of_digests)}>"),
        text,
    )
    check_snapshot(Path(__file__).with_name("snapshots") / "shell.txt", text)
    engine.calls.clear()
    run_shell(engine, request_)
    assert len(engine.called("container")) == 1, "the volumes are there"


def test_checkouts_of_one_name_share_a_home_and_no_environments(
    engine: Any, request_: ShellRequest, tmp_path: Path
) -> None:
    volumes = []
    for folder in ("a", "b"):
        checkout = tmp_path / folder / "clone"
        checkout.mkdir(parents=True)
        run_shell(engine, replace(request_, plan=replace(request_.plan, checkout=checkout)))
        mounts = engine.called("container")[-1]["host_config"]["mounts"]
        named = {mount["Target"]: mount["Source"] for mount in mounts}
        volumes.append((named[HOME], named[f"{checkout}/.nox"]))
    (home, first), (second_home, second) = volumes
    assert (home == second_home, first == second) == (True, False)


@pytest.mark.parametrize("where", ["", "own", "linked"])
def test_the_git_directory_of_a_linked_work_tree_is_mounted_too(tmp_path: Path, where: str) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    run = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    if where == "own":
        subprocess.run([*run, "init", "-q", checkout], check=True)
    elif where:
        main_ = tmp_path / "main"
        subprocess.run([*run, "init", "-q", main_], check=True)
        words = ["commit", "-q", "--allow-empty", "-m", "one"]
        subprocess.run([*run, "-C", main_, *words], check=True)
        subprocess.run([*run, "-C", main_, "worktree", "add", "-q", checkout], check=True)
    outer = [tmp_path / "main" / ".git"] if where == "linked" else []
    assert shell._outer_git(checkout) == outer
    plan: Any = SimpleNamespace(checkout=checkout)
    request = ShellRequest(plan, Built("", "", 0, fresh=False), ())
    mounts = shell._mounts(request, tmp_path / "pipe", {})
    home = shell.store_home()
    assert [(mount["Source"], mount["Target"], mount["ReadOnly"]) for mount in mounts] == [
        *((str(path), str(path), False) for path in (checkout, *outer, home)),
        (str(tmp_path / "pipe"), shell.CALLER, False),
    ]


def test_a_frozen_store_is_read_only_and_podman_keeps_the_user_id(
    engine: Any, request_: ShellRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = os.environ["QNN_CI_HOME"]
    engine.podman = True
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    run_shell(engine, replace(request_, read_only_store=True))
    host = engine.called("container")[-1]["host_config"]
    frozen = [mount["Target"] for mount in host["mounts"] if mount["ReadOnly"]]
    assert frozen == [f"{home}/store"]
    assert host["userns_mode"] == "keep-id"
    monkeypatch.setattr(os, "getuid", lambda: 0)
    run_shell(engine, request_)
    assert engine.called("container")[-1]["host_config"]["userns_mode"] is None, "it is root's"


@pytest.mark.parametrize("terminal", [False, True])
def test_an_interrupt_removes_the_container_and_is_raised_again(
    engine: Any, request_: ShellRequest, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    streams: list[socket.socket] = []

    def interrupt(stream: socket.socket, **_: Any) -> None:
        streams.append(stream)
        raise KeyboardInterrupt

    stream = SimpleNamespace(isatty=lambda: terminal)
    monkeypatch.setattr(shell, "sys", SimpleNamespace(stdin=stream))
    monkeypatch.setattr(shell, "user_stdout", lambda: stream)
    monkeypatch.setattr(shell, "raw_terminal", lambda *_: nullcontext())
    monkeypatch.setattr(shell, "copy_streams", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_shell(engine, request_)
    first = signal.SIGHUP if terminal else signal.SIGINT
    assert engine.called("kill")[0]["signal"] == first
    assert engine.called("container removed")
    assert streams[0].fileno() == -1, "the stream is closed"


def test_output_and_errors_of_a_container_stay_apart(capfd: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    for number, data in ((1, b"out\n"), (2, b"err\n"), (1, b"more\n")):
        theirs.sendall(struct.pack(">BxxxL", number, len(data)) + data)
    theirs.close()
    with ours:
        copy_streams(ours, terminal=False)
    assert capfd.readouterr() == ("out\nmore\n", "err\n")
