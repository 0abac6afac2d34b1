"""What an image is made of, and what changes its tag; its locks; the errors of an engine."""

from __future__ import annotations

import io
import re
import shutil
import socket
import tarfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError

from ci.images import build as wheels
from ci.images.build import follow_build, pin_lines, read_pin, write_context
from ci.images.definition import (
    Base,
    ImagePlan,
    chain,
    find_checkout,
    find_image,
    read_images,
    wanted_requirements,
)
from ci.images.engine import connect_engine, explain_connection, explain_error
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, StoreError, ToolError, UnfitError, UsageError
from tests.unit.ci.images.conftest import copy_build_files

ROOT = find_checkout()
BASE = Base(image="base", python="3.12")


def plan(checkout: Path = ROOT, name: str = "emulator") -> ImagePlan:
    return ImagePlan(name, find_image(name), "base", BASE, "sha256:1", checkout)


def copy_manifests(folder: Path) -> Path:
    """Return a copy of the manifests to which locks can be added."""
    shutil.copytree(ROOT / "manifests", folder / "manifests")
    return folder / "manifests"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    copy_build_files(tmp_path)
    shutil.copytree(ROOT / "docker", tmp_path / "docker")
    return tmp_path


NAMES = ("Dockerfile", "packages.sh", "environments.sh", "entry.sh")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        *((f"docker/{name}", "", "# more\n") for name in NAMES),
        ("pyproject.toml", '"rich==', '"richer=='),
        ("nox", "NOX_VERSION=2", "NOX_VERSION=3"),
        ("ci/nox_sessions/environments.py", 'python = f"python{sys', 'python = f"python-{sys'),
        ("ci/nox_sessions/links.py", "target.hardlink_to(source)", "shutil.copy(source, target)"),
    ],
)
def test_packages_and_build_files_change_the_tag_of_an_image(
    checkout: Path, name: str, old: str, new: str
) -> None:
    before = plan(checkout).reference()
    text = (checkout / name).read_text("utf-8")
    assert old in text
    (checkout / name).write_text(text.replace(old, new) if old else text + new, "utf-8")
    assert plan(checkout).reference() != before


def test_unrelated_files_do_not_change_the_tag_of_an_image(checkout: Path) -> None:
    before = plan(checkout).reference()
    text = (checkout / "noxfile.py").read_text("utf-8")
    (checkout / "noxfile.py").write_text(text + "\n\ndef more() -> None: ...\n", "utf-8")
    pyproject = (checkout / "pyproject.toml").read_text("utf-8")
    (checkout / "pyproject.toml").write_text(pyproject + "\n[tool.more]\n", "utf-8")
    (checkout / "docker" / "packages" / "aot.txt").write_text("more\n")  # of another image
    assert plan(checkout).reference() == before


def test_every_image_has_a_package_list_and_descends_from_emulator() -> None:
    for name in read_images().images:
        assert chain(name)[0] == "emulator"
        assert (ROOT / "docker" / "packages" / f"{name}.txt").is_file()
    with pytest.raises(UsageError, match="no image 'gone'"):
        chain("gone")


def test_every_base_is_named_by_digest_with_a_lock_for_its_python() -> None:
    images = read_images()
    for base in images.bases.values():
        assert re.fullmatch(r"ubuntu@sha256:[0-9a-f]{64}", base.image)
        assert (ROOT / f"manifests/locks/images/python-{base.python}.txt").is_file()
    assert images.default_base in images.bases


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_the_image_locks_pin_every_requirement_with_a_hash(python: str) -> None:
    lines = (ROOT / f"manifests/locks/images/python-{python}.txt").read_text("utf-8").splitlines()
    pins = {line.split()[0] for line in lines}
    requirements = {
        requirement for requirement in wanted_requirements(ROOT) if ";" not in requirement
    }
    assert requirements - pins == set()
    unhashed = [line for line in lines if "--hash=sha256:" not in line]
    assert [line.split("==")[0] for line in unhashed] == ["torch"]


def test_a_lock_leaves_out_cuda_and_local_versions() -> None:
    def row(name: str, version: str) -> dict[str, dict[str, object]]:
        hashes = {"archive_info": {"hashes": {"sha256": "ab"}}}
        return {"metadata": {"name": name, "version": version}, "download_info": hashes}

    rows = [row("torch", "2.13.0+cpu"), row("nvidia-cublas", "1"), row("Py_YAML", "6")]
    rows += [row("cuda-bindings", "1"), row("cudaless", "2"), row("triton", "3")]
    assert list(pin_lines(rows)) == [
        "torch==2.13.0\n",
        "py-yaml==6 --hash=sha256:ab\n",
        "cudaless==2 --hash=sha256:ab\n",
    ]


@pytest.mark.parametrize(
    ("file", "pin"),
    [
        ("PyYAML-6.0.2-cp311-cp311-manylinux_2_17_x86_64.whl", ("pyyaml", "6.0.2")),
        ("antlr4-python3-runtime-4.9.3.tar.gz", ("antlr4-python3-runtime", "4.9.3")),
        ("ruamel.yaml-0.18-py3-none-any.whl", ("ruamel-yaml", "0.18")),
        ("torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", ("torch", "2.13.0")),
        ("requirements.txt", None),
        ("broken.whl", None),
    ],
)
def test_pin_is_read_from_a_file_name(file: str, pin: tuple[str, str] | None) -> None:
    assert read_pin(Path(file)) == pin


@pytest.mark.parametrize("locked", [False, True])
def test_the_docker_context_contains_only_our_files_and_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: bool
) -> None:
    """It also contains the lock of apt packages if the base has one."""
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(copy_manifests(tmp_path)))
    if locked:
        plan().apt_lock.write_text("dash=1\n")
    wheels = [tmp_path / f"{name}-1-py3-none-any.whl" for name in "ab"]
    for wheel in wheels:
        wheel.write_bytes(b"wheel")
    first, second = io.BytesIO(), io.BytesIO()
    for file in (first, second):
        write_context(file, plan(), wheels)
    assert first.getvalue() == second.getvalue()
    with tarfile.open(fileobj=io.BytesIO(first.getvalue())) as archive:
        modes = {member.name: member.mode for member in archive}
        sent = {
            member.name: archive.extractfile(member).read() for member in archive if member.isreg()
        }  # type: ignore[union-attr]
    files = {name: ROOT / name for name in modes}
    files |= {f"wheels/{wheel.name}": wheel for wheel in wheels} | {
        "locks/apt.lock": plan().apt_lock
    }
    assert sent == {name: files[name].read_bytes() for name in sent}
    assert modes == {
        "locks": 0o755,
        "wheels": 0o755,
        "docker/Dockerfile": 0o644,
        "docker/entry.sh": 0o755,
        "docker/environments.sh": 0o755,
        "docker/packages.sh": 0o755,
        "docker/packages/emulator.txt": 0o644,
        "ci/__init__.py": 0o644,
        "ci/nox_sessions/__init__.py": 0o644,
        "ci/nox_sessions/environments.py": 0o644,
        "ci/nox_sessions/links.py": 0o644,
        "ci/nox_sessions/runs.py": 0o644,
        "nox": 0o755,
        "noxfile.py": 0o644,
        "pyproject.toml": 0o644,
        "wheels/a-1-py3-none-any.whl": 0o644,
        "wheels/b-1-py3-none-any.whl": 0o644,
        **({"locks/apt.lock": 0o644} if locked else {}),
    }
    child = io.BytesIO()
    write_context(child, plan(), [])  # as for an image with a parent
    with tarfile.open(fileobj=io.BytesIO(child.getvalue())) as archive:
        assert {*archive.getnames()} == {
            mode for mode in modes if not mode.startswith("wheels/")
        } | {"wheels"}


def test_a_missing_container_engine_and_a_denied_socket_have_different_fixes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    absent = explain_connection(OSError("Connection refused"))
    denied = explain_connection(OSError("Permission denied"))
    assert (absent.exit_code, denied.exit_code) == (3, 3)
    assert absent.why == "unix:///var/run/docker.sock: Connection refused"
    assert "start docker" in absent.fix
    assert "usermod -aG docker" in denied.fix


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:port", "tcp://[::1", "garbage"])
def test_an_invalid_docker_host_is_unfit(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(UnfitError) as caught, connect_engine():
        pass
    assert caught.value.why.startswith(f"{host}: ")


def test_a_full_disk_of_the_engine_exits_with_4_and_other_errors_with_5() -> None:
    for text in ("write: no space left on device", "No space left on device: /x"):
        error = explain_error(OSError(text))
        assert (error.exit_code, error.why) == (4, text)
    assert explain_error(OSError("no such image")).exit_code == 5
    error_of_api = APIError("500 Server Error", explanation="no such image: x")
    assert explain_error(error_of_api).why == "no such image: x"
    assert explain_error(APIError("write: no space left on device")).exit_code == 4


def test_only_the_first_answer_of_the_container_engine_has_a_short_time_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    released = threading.Event()

    def answer(engine: socket.socket) -> None:
        head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        bodies = [b'{"ApiVersion": "1.44"}', b'{"Version": "9"}']
        for body in bodies:
            connection, _ = engine.accept()
            connection.recv(65536)
            connection.sendall(head % len(body) + body)
            connection.close()
        with engine.accept()[0]:
            released.wait()

    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "s"))
        engine.listen()
        answering = threading.Thread(target=answer, args=(engine,), daemon=True)
        answering.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 's'}")
        monkeypatch.setattr("ci.images.engine.CONNECT_S", 600)
        with connect_engine() as client:
            assert client.api.timeout > 600
            assert client.version()["Version"] == "9"
        monkeypatch.setattr("ci.images.engine.CONNECT_S", 0.1)
        with pytest.raises(UnfitError, match="no Docker engine answers"), connect_engine():
            pass
        released.set()
        answering.join()


@pytest.mark.parametrize("words", ["Step 2/2 : RUN false", "STEP 2/2: RUN false"])
def test_the_failing_build_step_of_docker_or_podman_is_named(words: str) -> None:
    events = [{"stream": f"{words}\n"}, {"error": "exit status 1"}]
    with pytest.raises(ToolError) as caught:
        follow_build(events, "tiny", Progress())
    assert caught.value.what == f"image tiny was not built: {words}"


@pytest.mark.parametrize(
    ("printed", "error"),
    [("", "write /x: No space left on device"), ("no space left on device", "1")],
)
def test_a_build_that_fails_on_a_full_disk_exits_with_4(printed: str, error: str) -> None:
    events = [{"stream": f"Step 1/1 : RUN dd\n{printed}\n"}, {"error": error}]
    with pytest.raises(StoreError) as caught:
        follow_build(events, "tiny", Progress())
    assert caught.value.exit_code == 4


def test_an_image_lock_needs_the_python_of_its_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.shutil, "which", lambda _: None)
    base: Any = SimpleNamespace(base=SimpleNamespace(python="3.12", image="team/base"))
    with pytest.raises(UnfitError, match=r"python3\.12 is not on PATH") as caught:
        wheels.resolve_lock(base, Progress())
    assert "team/base" in caught.value.fix


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
