"""`image` with several names: each is told, and each can fail the call."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import tarfile
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.images import shell, wheels
from ci.images.engine import is_podman
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, ToolError, UnfitError

CLIENT: Any = None


def test_a_lock_has_what_builds_packages_without_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(words: Any, more: Any, python: str) -> str:
        asked.extend([*words, *more, python])
        rows = [
            {
                "metadata": {"name": name, "version": "1"},
                "download_info": {"archive_info": {"hashes": {"sha256": name, "md5": "no"}}},
            }
            for name in ("C", "b")
        ]
        return f"WARNING: the cache is not used\n{json.dumps({'install': rows})}"

    monkeypatch.setattr(wheels, "_run_pip", answer)
    monkeypatch.setattr(wheels.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(wheels, "wanted_requirements", lambda _: ["antlr4-python3-runtime==4.9.3"])
    plan: Any = SimpleNamespace(base=SimpleNamespace(python="3.12"), checkout=None)
    lock = wheels.resolve_lock(plan, Progress())
    assert lock == "b==1 --hash=sha256:b\nc==1 --hash=sha256:C\n"
    assert asked == [
        *("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"),
        *("antlr4-python3-runtime==4.9.3", "setuptools", "wheel", "/bin/python3.12"),
    ]


def test_a_lock_needs_the_python_of_its_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.shutil, "which", lambda _: None)
    plan: Any = SimpleNamespace(base=SimpleNamespace(python="3.12", image="team/base"))
    with pytest.raises(UnfitError, match=r"python3\.12 is not on PATH") as caught:
        wheels.resolve_lock(plan, Progress())
    assert "team/base" in caught.value.fix


def test_every_wheel_of_a_lock_is_fetched_for_every_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    lock = tmp_path / "lock.txt"
    lock.write_text("a-b==1 --hash=sha256:0\ntorch==2\nc==3 --hash=sha256:1\n")
    ran: list[list[str]] = []
    monkeypatch.setattr(wheels, "_run_pip", lambda words, more: ran.append([*words, *more]))
    monkeypatch.setattr(wheels, "_fetch_torch", ran.append)
    place = tmp_path / "home/downloads/wheels/python-3.12"
    place.mkdir(parents=True)
    files = ["a_b-1-py3-none-any.whl", "c-3-py3-none-any.whl", "torch-2-cp312-x.whl"]
    for name in (*files, "c-30-py3-none-any.whl", "other-1-py3-none-any.whl"):
        (place / name).touch()
    plan: Any = SimpleNamespace(python_lock=lock, name="aot", base=SimpleNamespace(python="3.12"))
    assert [path.name for path in wheels.fetch_wheels(plan, Progress())] == files
    hashed, torch = ran
    for words in ran:
        named = [word for at, word in enumerate(words) if words[at - 1] == "--platform"]
        assert named[0] == "manylinux_2_34_x86_64"  # newest first; QNN needs this glibc, too
        assert {*named} > {"manylinux_2_17_x86_64", "manylinux2014_x86_64"}
        assert not any(re.search("_2_(3[5-9]|[4-9][0-9])_", name) for name in named)
    assert torch[-1] == "torch==2"
    assert (place / "requirements.txt").read_text() == "".join(
        f"{line}\n" for line in lock.read_text().splitlines() if "torch" not in line
    )
    assert hashed[-2:] == ["-r", place / "requirements.txt"]


@pytest.mark.parametrize(
    ("names", "podman"),
    [
        (["Engine", "Podman Engine"], True),
        (["podman"], True),
        (["Engine", "containerd"], False),
        ([None], False),
        ([], False),
        (None, False),
    ],
)
def test_podman_may_be_any_component(names: list[str] | None, podman: bool) -> None:
    components = names and [{"Name": name} if name else {} for name in names]
    client: Any = SimpleNamespace(version=lambda: {"Components": components})
    assert is_podman(client) is podman


def test_the_callers_user_and_group_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(shell.os, "getuid", lambda: 7)
    monkeypatch.setattr(shell.os, "getgid", lambda: 8)
    monkeypatch.setattr(shell, "read_file", lambda _, __, path: f"root of {path}\n")
    client: Any = SimpleNamespace(
        api=SimpleNamespace(put_archive=lambda _id, _where, data: sent.append(data))
    )
    shell._name_user(client, "c")
    with tarfile.open(fileobj=io.BytesIO(sent[0])) as tar:
        texts = {one.name: tar.extractfile(one).read().decode() for one in tar}  # type: ignore[union-attr]
    assert texts == {
        "passwd": f"root of /etc/passwd\ndev:x:7:8:dev:{shell.HOME}:/bin/bash\n",
        "group": "root of /etc/group\ndev:x:8:\n",
    }


def test_what_is_typed_is_sent_until_stdin_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = iter([[], [0], [], [0], [0]])
    typed = iter([b"one ", b"two", b""])
    waiting = SimpleNamespace(select=lambda *_: (next(ready), [], []))
    monkeypatch.setattr(shell, "select", waiting)
    monkeypatch.setattr(shell, "os", SimpleNamespace(read=lambda *_: next(typed)))
    done = threading.Event()
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    with ours, theirs:
        shell._feed(ours, done)
        assert b"".join(iter(lambda: theirs.recv(9), b"")) == b"one two"
        done.set()
        shell._feed(ours, done)  # nothing is left to be read
        done.clear()
        theirs.close()
        ready, typed = iter([[0]]), iter([b"late"])
        shell._feed(ours, done)  # the container has exited


@pytest.mark.parametrize("breaks", [False, True])
def test_typing_ends_with_the_container(monkeypatch: pytest.MonkeyPatch, breaks: bool) -> None:
    fed: list[threading.Event] = []

    def pieces(*_: object) -> Iterator[tuple[int, bytes]]:
        if breaks:
            raise OSError("reset")
        return iter(())

    monkeypatch.setattr(shell, "_feed", lambda _, done: (fed.append(done), done.wait(5)))
    monkeypatch.setattr(shell, "_pieces", pieces)
    with pytest.raises(OSError, match="reset") if breaks else nullcontext():
        shell.copy_streams(CLIENT, terminal=False)
    assert [one.is_set() for one in fed] == [True]


def test_a_terminal_has_the_lines_and_columns_of_the_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[tuple[str, dict[str, int]]] = []
    client: Any = SimpleNamespace(
        api=SimpleNamespace(resize=lambda name, **size: sizes.append((name, size)))
    )
    done: list[Any] = []
    settings = SimpleNamespace(
        tcgetattr=lambda _: ["before"], TCSADRAIN=1, tcsetattr=lambda *given: done.append(given)
    )
    monkeypatch.setattr(shell, "termios", settings)
    monkeypatch.setattr(shell, "tty", SimpleNamespace(setraw=done.append))
    monkeypatch.setattr(shell.shutil, "get_terminal_size", lambda: os.terminal_size((132, 43)))
    resized: list[int] = []
    former = signal.signal(signal.SIGWINCH, lambda number, _: resized.append(number))
    with shell.raw_terminal(client, "c1"):
        assert sizes == [("c1", {"height": 43, "width": 132})]
        assert done == [0]
        monkeypatch.setattr(shell.shutil, "get_terminal_size", lambda: os.terminal_size((80, 9)))
        signal.raise_signal(signal.SIGWINCH)
        assert sizes[1:] == [("c1", {"height": 9, "width": 80})]
        client.api = None  # the container may have exited
        signal.raise_signal(signal.SIGWINCH)
    signal.raise_signal(signal.SIGWINCH)
    signal.signal(signal.SIGWINCH, former)
    assert resized == [signal.SIGWINCH]  # the caller's own handler is back
    assert done == [0, (0, 1, ["before"])]


def test_a_download_of_pip_that_fails_says_why_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(argv: object, *, fix: str) -> Any:
        raise ToolError("pip exited with 1", why="no matching distribution", fix=fix)

    monkeypatch.setattr(wheels, "run_process", fail)
    with pytest.raises(DownloadError) as caught:
        wheels._run_pip(["download"], ["torch"])
    assert caught.value.why == "no matching distribution"
    assert "index" in caught.value.fix
