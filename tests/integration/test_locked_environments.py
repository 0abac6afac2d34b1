"""Environments that uv and pip make from locks, with wheels from a folder and without a network."""

from __future__ import annotations

import os
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nox.command import CommandFailed

from ci.nox_sessions import installers
from ci.nox_sessions.environments import PythonEnvironment
from ci.nox_sessions.installers import install_with_pip, install_with_uv
from ci.packages import locks, pip_settings, uv
from ci.packages.locks import Lock
from ci.packages.torch_builds import CPU_INDEX, list_indexes, point_pip, point_uv
from ci.packages.uv import find_uv, translate
from tests.stand_ins.tiny_wheels import write_wheel

ROOT = Path(__file__).resolve().parents[2]
NEEDS_UV = pytest.mark.skipif(find_uv() is None, reason="uv's wheel cannot be had here")


class Session:
    """A nox session that runs programs and keeps what they print."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.printed = ""

    def log(self, text: str) -> None:
        self.said.append(text)

    def run_install(self, *words: str, env: dict[str, str] | None = None, **_: Any) -> None:
        env = {**os.environ, **(env or {})}
        ended = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        self.printed += ended.stdout + ended.stderr
        if ended.returncode:
            raise CommandFailed(return_code=ended.returncode)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels in which pip looks, and nowhere else. The group core needs one and other,
    the group lowering also torch 2.0, of which there is a build for the CPU and one for CUDA."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    packages = tmp_path / "locks"
    monkeypatch.setattr(locks, "LOCKS", packages)
    packages.mkdir()
    lines = [write_wheel(folder, "one", "1.0", "other"), write_wheel(folder, "other", "3.0")]
    write_wheel(folder, "other", "4.0")  # newer than the locked one
    for group in ("core", "lowering"):
        (packages / f"{group}.txt").write_text("\n".join(["# a note", *lines, ""]))
    cuda = write_wheel(folder, "nvidia_x", "7").replace("_", "-", 1)
    builds = [write_wheel(folder, "torch", "2.0", "nvidia-x", "one")]
    builds.append(write_wheel(folder, "torch", "2.0+cpu", "one"))
    (packages / "torch-2.0.txt").write_text("\n".join(builds))
    (packages / "torch-2.0-cuda.txt").write_text(f"{cuda}\n")
    monkeypatch.setattr(locks, "read_pairs", lambda: ({"1.0": "2.0"}, "1.0"))
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "QNN_CI_TORCH")):
            monkeypatch.delenv(name)
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nno-index = true\nfind-links =\n    {folder}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.setattr(pip_settings, "list_files", lambda _: [settings])
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("QNN_CI_TORCH_INDEX", "none")
    return folder


def list_installed(folder: Path) -> dict[str, str]:
    """Return the version of each package of an environment, except those that virtualenv adds."""
    packages = {}
    for about in folder.glob("lib/python*/site-packages/*.dist-info"):
        name, _, version = about.name.removesuffix(".dist-info").partition("-")
        packages[name] = version
    return {
        name: version for name, version in packages.items() if name not in {"pip", "setuptools"}
    }


def make(folder: Path, group: str, *, with_uv: bool = True) -> Session:
    """Make an environment."""
    session: Any = Session()
    if with_uv:
        install_with_uv(session, str(find_uv()), folder, Lock(group))
    else:
        install_with_pip(session, folder, Lock(group))
    return session


CPU = {"one": "1.0", "other": "3.0", "torch": "2.0+cpu"}


@pytest.mark.parametrize("with_uv", [pytest.param(True, marks=NEEDS_UV), False])
def test_an_environment_has_what_its_lock_has_and_the_build_of_torch_for_the_cpu(
    wheels: Path, tmp_path: Path, with_uv: bool
) -> None:
    session = make(tmp_path / "environment", "lowering", with_uv=with_uv)
    assert list_installed(tmp_path / "environment") == CPU
    program = tmp_path / "environment" / "bin" / "one"
    assert subprocess.run([program], capture_output=True, check=True).stdout == b"one\n"
    assert session.said == []


@NEEDS_UV
def test_a_cuda_build_of_torch_brings_its_packages_and_a_note(wheels: Path, tmp_path: Path) -> None:
    (wheels / "torch-2.0+cpu-py3-none-any.whl").unlink()
    session = make(tmp_path / "environment", "lowering")
    assert list_installed(tmp_path / "environment") == {**CPU, "torch": "2.0", "nvidia_x": "7"}
    assert session.said == [
        "torch: a CUDA build, 3 GB; QNN_CI_TORCH_INDEX=URL chooses another index"
    ]


@NEEDS_UV
def test_a_build_of_torch_that_the_lock_does_not_know_is_accepted(
    wheels: Path, tmp_path: Path
) -> None:
    write_wheel(wheels, "torch", "2.0+team", "one")
    make(tmp_path / "environment", "lowering")
    assert list_installed(tmp_path / "environment") == {**CPU, "torch": "2.0+team"}


@pytest.mark.parametrize("name", ["one-1.0", "torch-2.0+cpu"])
@pytest.mark.parametrize("with_uv", [pytest.param(True, marks=NEEDS_UV), False])
def test_a_wheel_with_another_hash_than_the_lock_has_is_refused(
    wheels: Path, tmp_path: Path, name: str, with_uv: bool
) -> None:
    """pip does not check the hashes of torch."""
    with zipfile.ZipFile(wheels / f"{name}-py3-none-any.whl", "a") as wheel:
        wheel.writestr("more.py", "")
    if name.startswith("torch") and not with_uv:
        make(tmp_path / "environment", "lowering", with_uv=False)
        return
    with pytest.raises(CommandFailed):
        make(tmp_path / "environment", "lowering", with_uv=with_uv)


@NEEDS_UV
def test_environments_share_files_and_what_an_interrupted_installation_left_goes(
    wheels: Path, tmp_path: Path
) -> None:
    session: Any = Session()
    first, second = tmp_path / "first", tmp_path / "second"
    make(first, "core")
    (second / "lib/python3/site-packages").mkdir(parents=True)
    (second / "lib/half").write_text("")
    PythonEnvironment(second, Lock("core")).create(session)
    (module,) = first.glob("lib/python*/site-packages/one.py")
    assert module.samefile(second / module.relative_to(first))
    assert not (second / "lib/half").exists()


@NEEDS_UV
def test_an_environment_counts_as_complete_only_for_its_lock(wheels: Path, tmp_path: Path) -> None:
    session: Any = Session()
    environment = PythonEnvironment(tmp_path / "core", Lock("core"))
    assert not environment.is_complete()
    environment.create(session)
    assert environment.is_complete()
    before = environment.folder.stat().st_ino
    environment.create(session)
    assert environment.folder.stat().st_ino == before
    (locks.LOCKS / "core.txt").write_text(write_wheel(wheels, "other", "4.0"))
    assert not environment.is_complete()
    environment.create(session)
    assert list_installed(environment.folder) == {"other": "4.0"}


@NEEDS_UV
def test_a_cache_that_cannot_be_written_is_next_to_the_environments(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = Session()
    program = str(find_uv())
    monkeypatch.delenv("UV_CACHE_DIR")
    monkeypatch.setattr(uv, "ROOT", tmp_path)
    monkeypatch.setattr(uv.os, "access", lambda *_: False)
    install_with_uv(session, program, tmp_path / "environment", Lock("core"))
    assert (tmp_path / ".nox" / "uv-cache").is_dir()


SECRET = "https://user:secret@host/simple"


@pytest.mark.parametrize(
    ("settings", "variables", "expected"),
    [
        ({}, {}, {}),
        (
            {"index-url": SECRET, "extra-index-url": "https://a\nhttps://b", "proxy": "http://p"},
            {"HTTPS_PROXY": "http://q"},
            {
                "UV_DEFAULT_INDEX": SECRET,
                "UV_INDEX": "https://a https://b",
                "ALL_PROXY": "http://p",
                "HTTP_PROXY": "http://p",
                "HTTPS_PROXY": "http://p",
            },
        ),
        (
            {"find-links": "/a /b", "trusted-host": "a b", "cert": "/c", "client-cert": "/d"},
            {"REQUESTS_CA_BUNDLE": "/e"},
            {
                "UV_FIND_LINKS": "/a,/b",
                "UV_INSECURE_HOST": "a b",
                "SSL_CERT_FILE": "/c",
                "SSL_CLIENT_CERT": "/d",
                "REQUESTS_CA_BUNDLE": "/e",
            },
        ),
        ({}, {"CURL_CA_BUNDLE": "/e"}, {"CURL_CA_BUNDLE": "/e", "SSL_CERT_FILE": "/e"}),
        ({"index-url": "https://a"}, {"UV_DEFAULT_INDEX": "b"}, {"UV_DEFAULT_INDEX": "b"}),
        ({"timeout": "9", "retries": "1"}, {}, {"UV_HTTP_TIMEOUT": "9", "UV_HTTP_RETRIES": "1"}),
    ],
)
def test_settings_of_pip_become_variables_of_uv(
    settings: dict[str, str], variables: dict[str, str], expected: dict[str, str]
) -> None:
    always = {"UV_INDEX_STRATEGY", "UV_PYTHON_DOWNLOADS", "UV_SYSTEM_CERTS"}
    result = translate(settings, variables)
    assert {name: text for name, text in result.items() if name not in always} == expected
    assert result["UV_INDEX_STRATEGY"] == "unsafe-best-match"


@pytest.mark.parametrize(
    ("index", "of_uv", "of_pip"),
    [
        (None, [{"UV_TORCH_BACKEND": "cpu"}, {}], [CPU_INDEX, None]),
        ("", [{}], [None]),
        ("none", [{}], [None]),
        ("https://t", [{"UV_INDEX": "https://t https://a"}], ["https://t"]),
    ],
)
def test_torch_is_looked_for_on_its_own_index_unless_a_variable_names_another(
    monkeypatch: pytest.MonkeyPatch,
    index: str | None,
    of_uv: Sequence[object],
    of_pip: Sequence[str | None],
) -> None:
    monkeypatch.delenv("QNN_CI_TORCH_INDEX", raising=False)
    if index is not None:
        monkeypatch.setenv("QNN_CI_TORCH_INDEX", index)
    indexes = list_indexes()
    assert [point_uv(place, {"UV_INDEX": "https://a"}) for place in indexes] == of_uv
    assert [point_pip(place).get("PIP_INDEX_URL") for place in indexes] == of_pip


@pytest.mark.parametrize(
    ("line", "source", "batches"),
    [
        ("torch==2.0 --hash=sha256:0", {}, [["lowering.txt", "torch.txt"]]),
        ("torch==2.0+team", {}, [["lowering.txt"], ["torch.txt"]]),
        ("torch==2.0 --hash=sha256:0", {"UV_INDEX": "u"}, [["lowering.txt"], ["torch.txt"]]),
        (
            "torch==2.0 --hash=sha256:0",
            {"UV_TORCH_BACKEND": "c"},
            [["lowering.txt"], ["torch.txt"]],
        ),
    ],
)
def test_only_torch_is_looked_for_on_an_index_for_torch(
    wheels: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    source: dict[str, str],
    batches: Sequence[Sequence[str]],
) -> None:
    """PyTorch's index has another build of torchao than the lock."""
    ran: list[tuple[list[str], bool, bool]] = []

    def run_install(*words: str, env: dict[str, str], **_: Any) -> None:
        if "install" in words:
            files = [Path(word).name for word in words if word.startswith("--requirements=")]
            ran.append((files, "--require-hashes" in words, source.items() <= env.items()))

    session: Any = SimpleNamespace(run_install=run_install, log=print)
    monkeypatch.setattr(installers, "choose_torch", lambda *_: ([line], source))
    (tmp_path / "environment").mkdir()
    install_with_uv(session, "uv", tmp_path / "environment", Lock("lowering"))
    assert [files for files, *_ in ran] == batches
    assert [row[1:] for row in ran] == [(True, not source), (False, True)][: len(ran)]


def test_a_uv_of_another_version_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "uv"
    program.write_text('#!/bin/sh\necho "uv $UV_TOLD (x86_64)"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(uv, "ROOT", tmp_path)
    fake: Any = SimpleNamespace(executable=str(tmp_path / "none" / "python"))
    monkeypatch.setattr(uv, "sys", fake)
    pins = [pin for pin, _ in locks.list_pins(locks.BOOTSTRAP) if pin.name == "uv"]
    (version,) = [specifier.version for specifier in pins[0].specifier]
    for printed_version, used in ((version, str(program)), ("0.1.0", None), ("", None)):
        monkeypatch.setenv("UV_TOLD", printed_version)
        assert find_uv() == used
