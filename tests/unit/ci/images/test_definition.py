"""What an image is made of, and what changes its tag; its locks; the errors of an engine."""

from __future__ import annotations

import io
import re
import shutil
import socket
import tarfile
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError

from ci.images import build as wheels
from ci.images.build import follow_build, read_pin, write_context
from ci.images.definition import (
    Base,
    ImagePlan,
    chain,
    find_checkout,
    find_image,
    python_locks,
    read_images,
)
from ci.images.engine import connect_engine, explain_connection, explain_error
from ci.packages import locks
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, StoreError, ToolError, UnfitError, UsageError

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
    shutil.copytree(ROOT / "docker", tmp_path / "docker")
    return tmp_path


NAMES = ("Dockerfile", "packages.sh", "environments.sh", "entry.sh")


@pytest.mark.parametrize("name", NAMES)
def test_build_files_change_the_tag_of_an_image(checkout: Path, name: str) -> None:
    before = plan(checkout).reference()
    with (checkout / "docker" / name).open("a") as file:
        file.write("# more\n")
    assert plan(checkout).reference() != before


@pytest.mark.parametrize(
    ("name", "changes"),
    [("core", True), ("lowering", True), ("bootstrap", True), ("lint", False)],
)
def test_locks_of_its_environments_change_the_tag_of_an_image(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, changes: bool
) -> None:
    folder = tmp_path / "python"
    shutil.copytree(locks.LOCKS, folder)
    monkeypatch.setattr(locks, "LOCKS", folder)
    before = plan().reference()
    with (folder / f"{name}.txt").open("a") as file:
        file.write("# more\n")
    assert (plan().reference() != before) == changes


def test_unrelated_files_do_not_change_the_tag_of_an_image(checkout: Path) -> None:
    before = plan(checkout).reference()
    (checkout / "docker" / "packages" / "aot.txt").write_text("more\n")  # of another image
    assert plan(checkout).reference() == before


def test_every_image_has_a_package_list_and_descends_from_emulator() -> None:
    for name in read_images().images:
        assert chain(name)[0] == "emulator"
        assert (ROOT / "docker" / "packages" / f"{name}.txt").is_file()
    with pytest.raises(UsageError, match="no image 'gone'"):
        chain("gone")


def test_every_base_is_named_by_digest() -> None:
    images = read_images()
    for base in images.bases.values():
        assert re.fullmatch(r"ubuntu@sha256:[0-9a-f]{64}", base.image)
    assert images.default_base in images.bases


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_each_python_gets_its_packages_without_conditions(python: str) -> None:
    for path in python_locks():
        lines = [wheels.drop_marker(line) for _, line in locks.list_pins(path, python)]
        names = [line.partition("==")[0] for line in lines if "==" in line]
        assert not [line for line in lines if ";" in line]
        assert len(names) == len({*names}) or path.name.startswith("torch-")
        assert ("tomli" in names) == (python == "3.10") or path.name != "core.txt"


@pytest.mark.parametrize(
    ("needs", "is_cuda"),
    [("", False), ("sympy", False), ("cuda-bindings<14,>=13", True), ("nvidia-cublas; x", True)],
)
def test_a_cuda_build_of_torch_is_known_by_what_it_needs(
    tmp_path: Path, needs: str, is_cuda: bool
) -> None:
    wheel = tmp_path / "torch-2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        text = f"Name: torch\nRequires-Dist: filelock\nRequires-Dist: {needs}\n"
        archive.writestr("torch-2.dist-info/METADATA", text)
    assert wheels.needs_cuda(wheel) == is_cuda


@pytest.mark.parametrize(
    ("file", "pin"),
    [
        ("PyYAML-6.0.2-cp311-cp311-manylinux_2_17_x86_64.whl", ("pyyaml", "==6.0.2")),
        ("antlr4-python3-runtime-4.9.3.tar.gz", ("antlr4-python3-runtime", "==4.9.3")),
        ("ruamel.yaml-0.18-py3-none-any.whl", ("ruamel-yaml", "==0.18")),
        ("torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", ("torch", "==2.13.0")),
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
        plan().apt_lock.parent.mkdir()
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
    files |= {f"python/{path.name}": path for path in python_locks()}
    files |= {f"wheels/{wheel.name}": wheel for wheel in wheels} | {
        "locks/apt.lock": plan().apt_lock
    }
    assert sent == {name: files[name].read_bytes() for name in sent}
    assert modes == {
        "locks": 0o755,
        "python": 0o755,
        "wheels": 0o755,
        "docker/Dockerfile": 0o644,
        "docker/entry.sh": 0o755,
        "docker/environments.sh": 0o755,
        "docker/packages.sh": 0o755,
        "docker/packages/emulator.txt": 0o644,
        **{f"python/{path.name}": 0o644 for path in python_locks()},
        "wheels/a-1-py3-none-any.whl": 0o644,
        "wheels/b-1-py3-none-any.whl": 0o644,
        **({"locks/apt.lock": 0o644} if locked else {}),
    }
    child = io.BytesIO()
    write_context(child, plan(), [])  # as for an image with a parent
    with tarfile.open(fileobj=io.BytesIO(child.getvalue())) as archive:
        assert {*archive.getnames()} == {
            mode for mode in modes if not mode.startswith(("wheels/", "python/"))
        }


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
        follow_build(events, "tiny", "base", Progress())
    assert caught.value.what == f"image tiny was not built: {words}"


@pytest.mark.parametrize(
    ("command", "fix"),
    [
        ("RUN sh /opt/qnn-ci/build/packages.sh aot", "the base's package archive, or pass --base"),
        ("RUN sh /opt/qnn-ci/environments.sh", "remove /store/downloads/wheels, so that"),
        ("COPY python /opt/qnn-ci/locks", "start a container: `docker run --rm base true`"),
    ],
)
def test_a_failing_build_step_has_a_fix_of_its_kind(
    monkeypatch: pytest.MonkeyPatch, command: str, fix: str
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", "/store")
    events = [{"stream": f"Step 3/9 : {command}\nE: no such host\n"}, {"error": "exit status 1"}]
    with pytest.raises(ToolError) as caught:
        follow_build(events, "tiny", "base", Progress())
    assert caught.value.why == "E: no such host\nexit status 1"
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("printed", "error"),
    [("", "write /x: No space left on device"), ("no space left on device", "1")],
)
def test_a_build_that_fails_on_a_full_disk_exits_with_4(printed: str, error: str) -> None:
    events = [{"stream": f"Step 1/1 : RUN dd\n{printed}\n"}, {"error": error}]
    with pytest.raises(StoreError) as caught:
        follow_build(events, "tiny", "base", Progress())
    assert caught.value.exit_code == 4


def test_a_download_of_pip_that_fails_says_why_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(argv: object, *, env: object, fix: str) -> Any:
        raise ToolError("pip exited with 1", why="no matching distribution", fix=fix)

    monkeypatch.setattr(wheels, "run_process", fail)
    with pytest.raises(DownloadError) as caught:
        wheels._run_pip(["download", "torch"], {})
    assert caught.value.why == "no matching distribution"
    assert "index" in caught.value.fix
