"""`image` with several names: each is told, and each can fail the call."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.images import shell, wheels
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, ToolError, UnfitError


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
