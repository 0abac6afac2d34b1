"""What ``./nox`` adds to the verbs that it runs: environments, exit codes, causes."""

from __future__ import annotations

import fcntl
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
from tests.documented.setups import plant_toolchains
from tests.documented.stage import Stage
from tests.stand_ins.tiny_toolchains import missing_programs

COMPILERS = ("g++", "aarch64-linux-gnu-g++")


@pytest.fixture
def bare(stage: Stage) -> Stage:
    """A checkout in which torch has yet to be installed."""
    shared = (stage.project / ".nox").resolve()
    own = stage.folder / "environments"
    own.mkdir()
    for name in ("bootstrap", "core"):
        (own / name).symlink_to((shared / name).resolve())
    (stage.project / ".nox").unlink()
    (stage.project / ".nox").symlink_to(own)
    return stage


def test_sessions_are_listed_while_environments_are_made(bare: Stage) -> None:
    environments = (bare.project / ".nox").resolve()
    (environments / "core").unlink()
    with (environments / "core.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = bare.run("timeout 60 ./nox --list")
        waiting = bare.run("timeout 3 ./nox -s parity -- --list")
    assert (ended.returncode, "- parity -> " in ended.stdout) == (0, True), ended.said
    assert (waiting.returncode, "waiting" in waiting.stderr) == (124, True), waiting.said


def test_the_cause_of_the_first_failure_is_told_again_at_the_end(bare: Stage) -> None:
    ended = bare.run("./nox -s build_android parity -- --source /nonexistent")
    assert ended.returncode == 3, ended.said
    end = ended.stderr.partition("build_android failed first, with exit code 3\n")[2]
    assert end.startswith("./nox -s build_android: EXECUTORCH_ROOT=/nonexistent "), ended.said
    assert "* parity: failed" in ended.stderr


def test_one_session_tells_its_failure_once(bare: Stage) -> None:
    ended = bare.run("./nox -s parity -- --source /nonexistent")
    assert ended.returncode == 2, ended.said
    assert ended.said.count("/nonexistent is not a directory") == 1, ended.said
    assert "uv binary" not in ended.said


@pytest.mark.parametrize("target", ["android", "linux", "direct"])
def test_a_build_tells_what_is_missing_before_torch_is_installed(bare: Stage, target: str) -> None:
    ended = bare.run(f"./nox -s build_{target} -- --soc SM8750")
    assert ended.returncode == 3, ended.said
    assert f"./nox -s provision -- {target}" in ended.stderr, ended.said
    assert not (bare.project / ".nox" / "lowering").exists()


@pytest.mark.skipif(bool(missing_programs(*COMPILERS)), reason=missing_programs(*COMPILERS))
def test_a_check_needs_no_package_of_the_build(bare: Stage) -> None:
    plant_toolchains(bare)
    core = bare.project / ".nox" / "core" / "bin" / "python"
    words = f"{core} -m ci build linux --no-doctor"
    assert "nothing is missing" in bare.run(f"{words} --check").stdout
    assert "torchgen" in bare.run(f"{words} --dry-run").stderr


def test_the_doctor_needs_no_torch_to_run(bare: Stage) -> None:
    ended = bare.run("./nox -s validate")
    assert (ended.returncode, "QNN503" in ended.said) == (3, True), ended.said
    assert not (bare.project / ".nox" / "lowering").exists()


def test_environments_that_cannot_be_written(bare: Stage) -> None:
    environments = (bare.project / ".nox").resolve()
    (environments / "core").unlink()
    (environments / "core.lock").mkdir()
    ended = bare.run("./nox -s parity")
    assert (ended.returncode, "cannot be written" in ended.stderr) == (4, True), ended.said


def test_packages_that_cannot_be_downloaded(bare: Stage) -> None:
    bare.edit("pyproject.toml", '"isal==1.9.1"', '"executorch-qnn-ci-no-such-package==1"')
    bare.variables |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    environments = (bare.project / ".nox").resolve()
    (environments / "core").unlink()
    ended = bare.run("./nox -s parity")
    assert (ended.returncode, "could not be made" in ended.stderr) == (4, True), ended.said
    assert not (environments / "core" / "installed.sha256").exists()


# -- the index of torch -------------------------------------------------------------------------


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
