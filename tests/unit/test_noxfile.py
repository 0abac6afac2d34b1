"""The parts of noxfile.py: environments, the index of torch, hosts, what sessions run."""

from __future__ import annotations

import importlib.util
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType

import nox.registry
import pytest

from tests.documented.pages import ROOT


class Log:
    """Of a nox session, what it says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def log(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def noxfile(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delenv("QNN_CI_TORCH_INDEX", raising=False)
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    assert spec
    assert spec.loader
    nox.registry.reset()
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "noxfile", module)
    spec.loader.exec_module(module)
    return module


class Index(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(200 if self.path == "/whl/cpu/torch/" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def index() -> Iterator[str]:
    """A package index that has torch."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/whl/cpu"
        server.shutdown()


def test_torch_comes_from_the_cpu_index_that_answers(noxfile: ModuleType, index: str) -> None:
    noxfile.CPU_INDEX = index
    log = Log()
    assert noxfile.choose_index(log) == ["--index-url", index]
    assert log.said == [f"torch: from {index}"]


def test_torch_comes_from_the_configured_index_else(noxfile: ModuleType, index: str) -> None:
    noxfile.CPU_INDEX = index.replace("cpu", "none")
    log = Log()
    assert noxfile.choose_index(log) == []
    assert log.said[0].startswith("torch: from the package index that pip is configured for (http")


def test_an_index_that_hangs_is_given_up(noxfile: ModuleType) -> None:
    noxfile.PROBE_S = 0.1
    with socket.create_server(("127.0.0.1", 0)) as silent:
        noxfile.CPU_INDEX = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert noxfile.choose_index(Log()) == []


@pytest.mark.parametrize(
    ("named", "options"), [("", []), ("none", []), ("u", ["--index-url", "u"])]
)
def test_an_index_that_is_named_is_not_probed(
    noxfile: ModuleType, monkeypatch: pytest.MonkeyPatch, named: str, options: list[str]
) -> None:
    monkeypatch.setenv("QNN_CI_TORCH_INDEX", named)
    noxfile.answers = None
    log = Log()
    assert noxfile.choose_index(log) == options
    assert "QNN_CI_TORCH_INDEX" in log.said[0]


def test_a_wait_is_reported_again_and_again(noxfile: ModuleType) -> None:
    noxfile.HEARTBEAT_S = 0.01
    log = Log()
    with noxfile.heartbeat(log, "installing"):
        while len(log.said) < 3:
            time.sleep(0.01)
    assert log.said[:2] == ["installing", "installing: 0 s"]


class RefusedError(Exception):
    """What a session ends with."""


class Start(Log):
    """A session that begins in a fresh checkout, and may install nothing."""

    name = "test_emulator"
    posargs = ("--offline",)

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.env_dir = folder / ".nox" / "session"

    def error(self, text: str) -> None:
        raise RefusedError(text)


@pytest.mark.parametrize(
    ("system", "machine", "hint"),
    [("Darwin", "arm64", "parity"), ("Linux", "aarch64", "parity"), ("Windows", "AMD64", "WSL")],
)
def test_another_host_is_told_what_works_there_before_anything_is_installed(
    noxfile: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    system: str,
    machine: str,
    hint: str,
) -> None:
    monkeypatch.setattr(noxfile.platform, "system", lambda: system)
    monkeypatch.setattr(noxfile.platform, "machine", lambda: machine)
    for session in (noxfile.test_emulator, noxfile.test_onnx, noxfile.tests):
        noxfile.failures.clear()
        with pytest.raises(RefusedError, match=hint) as caught:
            session.func(Start(tmp_path))
        assert "\n" not in str(caught.value)
        assert [failure.code for failure in noxfile.failures] == [3]
    noxfile.failures.clear()
    assert not list(tmp_path.iterdir())
    is_refused = system == "Windows"
    with pytest.raises(RefusedError) if is_refused else nullcontext():
        noxfile.require_host(Start(tmp_path), "core")
    noxfile.failures.clear()


def test_a_library_that_is_missing_is_made_before_torch_is_installed(
    noxfile: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(noxfile, "run_module", lambda session, *words: ran.append(words))
    monkeypatch.setattr(noxfile.ctypes, "CDLL", lambda name: None)
    noxfile.test_emulator.func(Start(tmp_path))
    lane = ("lowering", "ci", "test-emulator", "--offline")
    assert ran == [lane]

    def refuse(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(noxfile.ctypes, "CDLL", refuse)
    noxfile.test_emulator.func(Start(tmp_path))
    assert ran[1:] == [("core", "ci", "fetch", "libatomic", "--offline"), lane]


class Steps(Log):
    """A session that notes what it would run."""

    name = "lint"

    def __init__(self) -> None:
        super().__init__()
        self.ran: dict[str, dict[str, str]] = {}

    def run(self, program: str, *words: str, env: dict[str, str]) -> None:
        self.ran[" ".join([program.rpartition("/")[2], *words])] = env


@pytest.mark.parametrize("where", ["true", ""])
def test_lint_annotates_lines_on_github(
    noxfile: ModuleType,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", where)
    monkeypatch.setattr(noxfile, "make_environment", lambda session, group: ROOT / "python")
    steps = Steps()
    noxfile.lint.func(steps)
    told = [line for line in capfd.readouterr().out.splitlines() if line.startswith("::")]
    matcher = ROOT / ".github" / "lint-matcher.json"
    assert told == ([f"::add-matcher::{matcher}"] if where else [])
    assert steps.ran["ruff check ."].get("RUFF_OUTPUT_FORMAT") == ("github" if where else None)
    assert "hadolint --no-color docker/Dockerfile" in steps.ran


def test_an_environment_of_other_packages_is_made_again(
    noxfile: ModuleType, tmp_path: Path
) -> None:
    stamp = tmp_path / "installed.sha256"
    assert not noxfile.is_made(tmp_path, "core")
    for text, made in (
        (noxfile.digest_group("core"), True),
        (noxfile.digest_group("lint"), False),
        ("", False),
    ):
        stamp.write_text(text)
        assert noxfile.is_made(tmp_path, "core") is made
