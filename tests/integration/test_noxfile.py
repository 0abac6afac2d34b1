"""noxfile.py and ci/nox_sessions: environments, the index of torch, hosts, what sessions run."""

from __future__ import annotations

import fcntl
import importlib.util
import io
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import cache_from_source
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import nox.registry
import pytest
from nox.command import CommandFailed

from ci.nox_sessions import environments, runs
from ci.nox_sessions.environments import (
    PythonEnvironment,
    choose_torch_index,
    list_others,
    responds,
)
from ci.nox_sessions.links import link_packages
from ci.verbs.registry import VERBS
from tests.documented.pages import ROOT
from tests.stand_ins.users import unprivileged
from tests.stand_ins.waits import wait_until


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
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec.loader.exec_module(module)
    runs.started.clear()
    runs.finished.clear()
    runs.failures.clear()
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


def test_torch_comes_from_the_cpu_index_if_it_answers(
    monkeypatch: pytest.MonkeyPatch, index: str
) -> None:
    monkeypatch.delenv("QNN_CI_TORCH_INDEX", raising=False)
    monkeypatch.setattr(environments, "CPU_INDEX", index)
    messages: list[str] = []
    assert choose_torch_index(messages.append) == ["--index-url", index]
    assert messages == [f"torch: 0.2 GB from {index}"]
    monkeypatch.setattr(environments, "CPU_INDEX", index.replace("cpu", "none"))
    messages = []
    assert choose_torch_index(messages.append) == []
    assert "pip's index" in messages[0]
    assert "3 GB; QNN_CI_TORCH_INDEX=URL chooses another" in messages[1]
    assert max(len(f"nox > {line}") for line in messages) <= 100


@pytest.mark.parametrize(
    ("named", "options"), [("", []), ("none", []), ("u", ["--index-url", "u"])]
)
def test_a_package_index_named_by_a_variable_is_not_probed(
    monkeypatch: pytest.MonkeyPatch, named: str, options: list[str]
) -> None:
    monkeypatch.setenv("QNN_CI_TORCH_INDEX", named)
    monkeypatch.setattr(environments, "responds", None)
    messages: list[str] = []
    assert choose_torch_index(messages.append) == options
    assert "QNN_CI_TORCH_INDEX" in messages[0]


class RefusedError(Exception):
    """What a session ends with."""


class Ran(NamedTuple):
    """A program that a session started, and what it gave it."""

    words: tuple[str, ...]
    options: dict[str, Any]


class Recorder(Log):
    """A session in a fresh checkout that notes what it would run; ``codes`` are exit codes."""

    def __init__(self, folder: Path, name: str, *posargs: str, codes: Sequence[int] = ()) -> None:
        super().__init__()
        self.name, self.posargs = name, posargs
        self.env_dir = folder / ".nox" / name
        self.ran: list[Ran] = []
        self.codes = list(codes)
        self.act: Callable[[Mapping[str, Any]], None] = lambda options: None
        self._runner = SimpleNamespace(global_config=SimpleNamespace(sessions=[name]))

    def run(self, *words: str, **options: Any) -> str:
        self.ran.append(Ran(words, options))
        self.act(options)
        if "virtualenv" in words:
            Path(words[-1]).mkdir(parents=True, exist_ok=True)
        if code := self.codes.pop(0) if self.codes else 0:
            raise CommandFailed(return_code=code)
        return "1700000000\n"

    def error(self, text: str) -> None:
        raise RefusedError(text)


def run(session: Recorder, name: str = "") -> None:
    """Run a session of the noxfile that was loaded last, by default the one with this name."""
    nox.registry.get()[name or session.name].func(session)


@pytest.mark.parametrize(
    ("system", "machine", "hint"),
    [
        ("Darwin", "arm64", "parity"),
        ("Linux", "aarch64", "parity"),
        ("Windows", "AMD64", "WSL"),
    ],
)
def test_an_unsupported_host_is_refused_before_installation_with_what_works_there(
    noxfile: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    system: str,
    machine: str,
    hint: str,
) -> None:
    monkeypatch.setattr(runs.platform, "system", lambda: system)
    monkeypatch.setattr(runs.platform, "machine", lambda: machine)
    for name in ("test_emulator", "test_onnx", "tests", "bench"):
        runs.failures.clear()
        with pytest.raises(RefusedError, match=hint) as caught:
            run(Recorder(tmp_path, "test_emulator"), name)
        assert "\n" not in str(caught.value)
        assert [failure.code for failure in runs.failures] == [3]
    runs.failures.clear()
    assert not list(tmp_path.iterdir())
    is_refused = system == "Windows"
    with pytest.raises(RefusedError) if is_refused else nullcontext():
        runs.require_host(Recorder(tmp_path, "plan"), "core")
    runs.failures.clear()


# -- what sessions run, and how they end ----------------------------------------------------------


@pytest.fixture
def linux(noxfile: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """What sessions run, on a host where every session runs, with no signal handler left
    behind."""
    monkeypatch.setattr(runs.platform, "system", lambda: "Linux")
    monkeypatch.setattr(runs.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(runs.ctypes, "CDLL", lambda name: None)
    handler = signal.getsignal(signal.SIGTERM)
    yield runs
    signal.signal(signal.SIGTERM, handler)
    runs.failures.clear()


def make(session: Recorder, *groups: str) -> None:
    """Make environments without packages."""
    for group in groups:
        make_empty(runs.find_environment(session, group))


def make_empty(environment: PythonEnvironment) -> None:
    """Make an environment without packages that counts as complete."""
    environment.python.parent.mkdir(parents=True)
    environment.python.touch(0o755)
    (environment.folder / environments.STAMP).write_text(environment.digest())


MODULES = {
    "test_emulator": ("lowering", "ci", "test-emulator"),
    "test_onnx": ("onnx-torch", "ci", "test-onnx"),
    "audit": ("lowering", "ci", "audit"),
    "mend": ("lowering", "ci", "mend"),
    "fuzz": ("onnx-torch", "ci", "fuzz"),
    "test_llm": ("lowering", "ci", "test-llm"),
    "provision": ("core", "ci", "fetch"),
    "validate": ("core", "ci", "doctor"),
    "bench": ("test", "tests.bench"),
    "mutants": ("test", "tests.mutants"),
    "parity": ("core", "ci", "parity"),
    "plan": ("core", "ci", "plan"),
    "build_runner": ("lowering", "ci", "build", "runner"),
    "build_aot": ("lowering", "ci", "build", "aot"),
    "build_android": ("lowering", "ci", "build", "android"),
    "build_linux": ("lowering", "ci", "build", "linux"),
    "build_direct": ("lowering", "ci", "build", "direct"),
    "sign_skel": ("core", "ci", "sign"),
    "stage": ("device", "ci", "stage"),
    "deploy": ("device", "ci", "deploy"),
    "docker_build": ("core", "ci", "image", "build"),
    "docker_shell": ("core", "ci", "image", "shell"),
}


@pytest.mark.parametrize(
    ("session", "verb"),
    [(name, module_row[2]) for name, module_row in MODULES.items() if len(module_row) == 3],
)
def test_each_verb_names_the_session_that_runs_it(session: str, verb: str) -> None:
    assert VERBS[verb].session == session


def test_each_build_session_is_named_build_and_its_target() -> None:
    builds = {
        f"{VERBS['build'].session}{module_row[3]}"
        for module_row in MODULES.values()
        if "build" in module_row[2:3]
    }
    assert builds == {name for name in MODULES if name.startswith("build_")}


@pytest.mark.parametrize("name", MODULES)
def test_a_session_runs_its_module_in_its_environment(
    linux: ModuleType, tmp_path: Path, name: str
) -> None:
    group, *module = MODULES[name]
    session = Recorder(tmp_path, name, "--json", "x y")
    make(session, group)
    run(session)
    python = str(tmp_path / ".nox" / group / "bin" / "python")
    (ran,) = session.ran
    assert list(ran.words) == [python, "-m", *module, "--json", "x y"]
    assert ran.options["stderr"] is None
    assert (ran.options["interrupt_timeout"], ran.options["terminate_timeout"]) == (3, 10)
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    assert linux.started == {name}
    assert linux.failures == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="nox brings tomli")
def test_the_environment_of_a_verb_is_known_without_third_party_packages(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "QNN_CI_CALLER_DIR": str(tmp_path)}
    verbs = "('test-onnx', 'test-litert')"
    code = (
        f"from ci.verbs.registry import choose_environment as c; [print(c([v])) for v in {verbs}]"
    )
    for path, groups in (
        ("net.onnx", "onnx\nlitert\n"),
        ("net.py:f", "onnx-torch\nlitert-torch\n"),
    ):
        (tmp_path / "qnn.toml").write_text(f'[models.net]\npath = "{path}"\n')
        argv = [sys.executable, "-S", "-c", code]
        ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        assert (ended.stdout, ended.stderr) == (groups, "")


@pytest.mark.parametrize(
    ("name", "words", "group"),
    [
        ("test_emulator", ("--suite", "faults"), "test"),
        ("test_emulator", ("--suite", "upstream"), "core"),
        ("test_upstream", (), "test"),
        ("test_emulator", ("--model", "suite"), "lowering"),
        ("fuzz", ("--frontend", "executorch"), "lowering"),
        ("test_onnx", (), "onnx-torch"),
        ("test_onnx", ("--model", "net.onnx", "--model=a/b.onnx"), "onnx"),
        ("test_onnx", ("--model", "net.onnx", "--model", "mlp"), "onnx-torch"),
        ("test_onnx", ("--list",), "core"),
        ("test_litert", (), "litert"),
        ("test_litert", ("--model", "net.tflite", "--model=dense"), "litert"),
        ("test_litert", ("--model", "net.tflite", "--model=net.py:factory"), "litert-torch"),
        ("mend", ("--model", "net.onnx", "--scheme", "u8"), "onnx"),
        ("mend", ("--model", "red.py:factory"), "lowering"),
        ("qnn_ci", ("localise", "--model", "mlp", "--scheme", "8a8w"), "lowering"),
        ("qnn_ci", ("localise", "--model", "net.tflite"), "litert"),
        ("qnn_ci", ("localise", "--model", "net.onnx"), "onnx"),
        ("qnn_ci", ("localise", "--model", "a.onnx", "--model", "b.tflite"), "lowering"),
        ("mend", ("--model", "net.tflite"), "lowering"),
        ("qnn_ci", ("test-llm", "--help"), "core"),
        (
            "qnn_ci",
            ("upgrade-report", "onnxruntime-qnn==2.5.0", "onnxruntime-qnn==2.7.0"),
            "onnx-torch",
        ),
        ("qnn_ci", ("upgrade-report", "--matrix", "--sdk", "2.49.40"), "onnx-torch"),
        ("qnn_ci", ("versions-matrix", "--known"), "core"),
        ("qnn_ci", ("upgrade-report", "executorch==1.4.1", "executorch==1.5.1"), "test"),
        ("qnn_ci", ("inspect", "model_ctx.onnx"), "onnx"),
        ("qnn_ci", ("inspect", "model.pte"), "core"),
        ("qnn_ci", ("setup", "onnx+qnn-runtime@2.49.40"), "onnx"),
        ("qnn_ci", ("gone",), "core"),
    ],
)
def test_the_arguments_of_a_session_choose_its_environment(
    linux: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    words: tuple[str, ...],
    group: str,
) -> None:
    session = Recorder(tmp_path, name, *words)
    fetched = []
    monkeypatch.setattr(linux, "fetch_library", lambda *arguments: fetched.append(arguments))
    make(session, group)
    run(session)
    (ran,) = session.ran
    python = str(tmp_path / ".nox" / group / "bin" / "python")
    verb = () if name == "qnn_ci" else (name.replace("_", "-"),)
    assert ran.words == (python, "-m", "ci", *verb, *words)
    assert fetched == ([(session, group)] if group in linux.LARGE else [])


def test_a_session_knows_which_sessions_of_the_call_are_done(
    linux: ModuleType, tmp_path: Path
) -> None:
    done = []
    for name in ("plan", "parity", "provision"):
        session = Recorder(tmp_path, name)
        make(session, *(() if done else ("core",)))
        if name == "parity":
            session.codes = [1]
        with pytest.raises(CommandFailed) if name == "parity" else nullcontext():
            run(session)
        done.append(session.ran[0].options["env"]["QNN_CI_FINISHED"])
    assert done == ["", "plan", "plan"]
    assert linux.started == {"plan", "parity", "provision"}


def test_no_session_runs_by_default(noxfile: ModuleType) -> None:
    sessions = nox.registry.get()
    assert {*MODULES, "lint", "tests", "unit", "test_trained", "release"} < {*sessions}
    assert noxfile.nox.options.sessions == []


def test_lint_runs_all_checks_or_the_named_ones(linux: ModuleType, tmp_path: Path) -> None:
    ran = {}
    for words in ((), ("ruff", "imports"), ("spelling",)):
        session = Recorder(tmp_path / str(len(words)), "lint", *words)
        make(session, "lint")
        with pytest.raises(RefusedError) if words == ("spelling",) else nullcontext():
            run(session)
        ran[words] = [Path(command.words[0]).name for command in session.ran]
    assert ran["ruff", "imports"] == ["ruff", "ruff", "lint-imports"]
    assert ran[("spelling",)] == []
    assert {"mypy", "hadolint", "mkdocs", "lint-imports", "python"} < {*ran[()]}
    assert linux.failures[-1].code == linux.USAGE


@pytest.mark.parametrize(
    ("words", "adds"),
    [
        ((), "lowering"),
        (("--python", "p"), ""),
        (("--python=p",), ""),
        (("--json",), "lowering"),
        (("onnx",), "onnx"),
    ],
)
def test_the_doctor_examines_the_environment_that_lowers(
    linux: ModuleType, tmp_path: Path, words: tuple[str, ...], adds: str
) -> None:
    python_words = ("--python", str(tmp_path / f".nox/{adds}/bin/python")) if adds else ()
    make(Recorder(tmp_path, "validate"), "core", "lowering", "onnx")
    for name, arguments in (("validate", words), ("qnn_ci", ("doctor", *words))):
        session = Recorder(tmp_path, name, *arguments)
        run(session)
        assert session.ran[0].words[2:] == ("ci", "doctor", *words, *python_words)


@pytest.mark.parametrize(("code", "exit_code"), [(4, 4), (1, 1), (0, 1)])
def test_a_module_that_fails_leaves_its_code_and_its_cause(
    linux: ModuleType, tmp_path: Path, code: int, exit_code: int
) -> None:
    session = Recorder(tmp_path, "plan")
    make(session, "core")

    def fail(options: Mapping[str, Any]) -> None:
        if code != 1:
            Path(options["env"]["QNN_CI_CAUSE_FILE"]).write_text("why\n")
        raise CommandFailed(return_code=code)

    session.act = fail
    with pytest.raises(CommandFailed):
        run(session, "plan")
    assert linux.failures == [linux.Failure("plan", exit_code, "why" if code != 1 else "")]


def test_an_interrupt_leaves_nox_its_own_exit_code(linux: ModuleType, tmp_path: Path) -> None:
    session = Recorder(tmp_path, "plan")
    make(session, "core")
    linux.failures.append(linux.Failure("before", 1, ""))

    def interrupt(options: Mapping[str, Any]) -> None:
        raise KeyboardInterrupt

    session.act = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(session, "plan")
    assert linux.failures == []


@pytest.mark.parametrize(
    ("sessions", "sessions_text"), [(["plan"], ""), (["plan", "parity"], "plan parity")]
)
def test_a_verb_gets_its_command_and_sessions_in_variables(
    linux: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    sessions: list[str],
    sessions_text: str,
) -> None:
    monkeypatch.setenv("QNN_CI_COMMAND", "./nox")
    session = Recorder(tmp_path, "plan")
    session._runner.global_config.sessions = sessions
    make(session, "core")
    run(session, "plan")
    env = session.ran[0].options["env"]
    assert (env["QNN_CI_COMMAND"], env["QNN_CI_SESSIONS"]) == ("./nox", sessions_text)
    assert env["QNN_CI_SESSION"] == "plan"
    assert not Path(env["QNN_CI_CAUSE_FILE"]).parent.exists()


class ExitedError(Exception):
    """os._exit was called."""


@pytest.mark.parametrize(
    ("codes", "started", "ends", "is_shown"),
    [
        ([], ["plan"], None, False),
        ([3], ["plan"], 3, False),
        ([4], ["lint", "plan"], 4, True),
        ([5, 1], ["plan", "lint"], 5, True),  # which has no cause
        ([255], ["plan"], 255, False),
        ([256], ["plan"], 1, False),
    ],
)
def test_nox_ends_with_the_code_of_the_first_failure(
    linux: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    codes: list[int],
    started: list[str],
    ends: int | None,
    is_shown: bool,
) -> None:
    ended: list[int] = []
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written))
    sys.stdout.write("printed before")

    def leave(code: int) -> None:
        ended.append(code)
        assert written.getvalue() == b"printed before"
        raise ExitedError

    monkeypatch.setattr(linux.os, "_exit", leave)
    linux.failures += [
        linux.Failure(f"s{code}", code, "" if code == 5 else f"cause {code}") for code in codes
    ]
    linux.started.update(started)
    with pytest.raises(ExitedError) if codes else nullcontext():
        linux.end_run()
    assert ended == ([] if ends is None else [ends])
    shown = capsys.readouterr().err.splitlines()
    head = [f"nox > s{code} failed first, with exit code {code}" for code in codes[:1] if is_shown]
    assert shown == head + [
        failure.cause for failure in linux.failures[:1] if is_shown and failure.cause
    ]


@pytest.mark.parametrize(
    ("arguments", "is_place", "folder"),
    [
        ((), False, "."),
        (("-k", "docs"), False, "."),
        (("-x", "tests/unit/test_pins.py::test_one[a]"), True, "."),
        (("../tests/unit/test_pins.py::test_one[a]",), True, "docs"),
    ],
)
def test_tests_run_with_their_environment_first_on_the_path(
    noxfile: ModuleType,
    linux: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    is_place: bool,
    folder: str,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(ROOT / folder))
    monkeypatch.chdir(ROOT)
    session = Recorder(tmp_path, "unit", *arguments)
    make(session, "unit")
    run(session, "unit")
    (ran,) = session.ran
    programs = tmp_path / ".nox/unit/bin"
    assert ran.options == {"env": {"PATH": f"{programs}:/usr/bin"}}
    typed = [word.removeprefix("../") for word in arguments]
    words = (*(typed or noxfile.PER_CPU), *(() if is_place else ("tests/unit",)))
    report = f"--junit-xml={ROOT}/reports/unit/junit.xml"
    assert ran.words == (str(programs / "python"), "-m", "pytest", report, *words)


def test_a_library_that_is_missing_is_made_before_torch_is_installed(
    linux: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(name: str) -> None:
        assert name == "libatomic.so.1"
        raise OSError(name)

    for name, group in (("test_emulator", "lowering"), ("test_onnx", "onnx")):
        for words in ((), ("--model", "m", "--offline")):
            session = Recorder(tmp_path / f"{name}{len(words)}", name, *words)
            make(session, "core")
            monkeypatch.setattr(linux.ctypes, "CDLL", lambda name: None)
            linux.fetch_library(session, group)
            assert session.ran == []
            linux.find_environment(session, group).folder.mkdir(parents=True)  # it was begun
            monkeypatch.setattr(linux.ctypes, "CDLL", refuse)
            monkeypatch.setattr(linux, "make_environment", lambda *_: tmp_path / "python")
            monkeypatch.setattr(linux, "needs_only_core", lambda *_: False)
            run(session)
            fetched, lane = (command.words[1:] for command in session.ran)
            assert fetched == ("-m", "ci", "fetch", "libatomic", *words[2:])
            assert lane == ("-m", "ci", name.replace("_", "-"), *words)
            assert "libatomic.so.1" in session.said[0]
            make(session, group)
            linux.fetch_library(session, group)
            assert len(session.ran) == 2


@pytest.mark.parametrize(
    ("words", "code", "is_enough"),
    [
        (("upgrade-report",), 2, True),
        (("upgrade-report", "old", "new"), 3, False),  # packages are missing
        (("estimate",), 2, True),
        (("fuzz", "--graphs", "x"), 2, True),
        (("judge",), 2, True),
        (("upgrade-report", "--matrix", "--fault", "x"), 2, True),
        (("localise", "--model", "x"), 0, True),
        (("test-emulator", "--model", "mlp"), 3, False),
        (("setup", "emulator"), 0, False),
        (("setup", "emulator", "--x"), 2, True),
    ],
)
def test_arguments_are_checked_before_a_large_environment_is_created(
    linux: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[str, ...],
    code: int,
    is_enough: bool,
) -> None:
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    session = Recorder(tmp_path, "qnn_ci", *words)
    make(session, "core")
    core = tmp_path / ".nox" / "core" / "bin" / "python"
    core.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\nexit {code}\n')
    monkeypatch.setattr(linux, "fetch_library", lambda *_: None)
    run(session)
    ran = [command.words for command in session.ran if "ci" in command.words]
    assert (ran[-1][0] == str(core)) == is_enough
    assert (tmp_path / "calls").read_text() == f"-m ci {' '.join(words)}\n"


@pytest.mark.parametrize(
    ("words", "code", "installs"),
    [
        (("bench", "nope"), 2, False),
        pytest.param(("bench",), 2, False, marks=pytest.mark.nightly),
        pytest.param(("bench", "--help"), 0, False, marks=pytest.mark.nightly),
        (("bench", "gate"), 0, True),
        (("mutants", "ci/nope"), 2, False),
        pytest.param(("mutants", "ci/judging", "--jobs", "0"), 2, False, marks=pytest.mark.nightly),
        (("mutants", "ci/judging"), 0, True),
        (("test_trained", "--lane", "x"), 2, False),
        pytest.param(("test_trained", "--model", "nope*"), 2, False, marks=pytest.mark.nightly),
        (("test_trained", "--model", "centerface*"), 0, True),
    ],
)
def test_arguments_of_a_session_with_its_own_module_are_checked_before_installation(
    linux: ModuleType, tmp_path: Path, words: tuple[str, ...], code: int, installs: bool
) -> None:
    session = Recorder(tmp_path, *words)
    with pytest.raises(RefusedError) if code else nullcontext():
        run(session)
    assert [failure.code for failure in linux.failures] == [code] * bool(code)
    assert bool(session.ran) == installs


def test_onnx_refuses_an_old_python_before_its_environment_is_made(
    linux: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = Recorder(tmp_path, "test_onnx")
    old = namedtuple("old", "major minor")(3, 10)  # noqa: PYI024
    monkeypatch.setattr(linux.sys, "version_info", old)
    make(session, "core")
    run(session)
    (ran,) = session.ran
    assert ran.words == (str(tmp_path / ".nox/core/bin/python"), "-m", "ci", "test-onnx")


# -- environments ---------------------------------------------------------------------------------


def test_an_environment_is_made_once_and_again_when_its_packages_change(
    linux: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(linux, "PYPROJECT", {"dependency-groups": {"core": ["a==1", "b==2"]}})
    session = Recorder(tmp_path, "plan")
    (tmp_path / "disk").mkdir()
    (tmp_path / ".nox").symlink_to("disk")  # an environment's programs contain its path
    python = linux.make_environment(session, "core")
    place = tmp_path / "disk" / "core"
    assert python == place / "bin" / "python"
    created, packages, compiled = session.ran
    assert created.words == (sys.executable, "-m", "virtualenv", "-q", str(place))
    pip = (str(python), "-m", "pip", "install", "-q", "--no-compile")
    assert packages.words == (*pip, "a==1", "b==2")
    assert compiled.words[:5] == (str(python), "-m", "compileall", "-qq", "-j0")
    assert compiled.words[-2:] == (environments.RARE, str(place / "lib"))
    assert compiled.options == {"success_codes": [0, 1], "silent": True, "log": False}
    assert all(command.options["silent"] and not command.options["log"] for command in session.ran)
    assert "installing 2 packages into core" in session.said[0]
    stamp = place / "installed.sha256"
    assert stamp.read_text() == linux.find_environment(session, "core").digest()
    (place / "bin").mkdir()
    python.touch(0o755)
    linux.make_environment(session, "core")
    assert len(session.ran) == 3
    monkeypatch.setattr(linux, "PYPROJECT", {"dependency-groups": {"core": ["a==1", "b==3"]}})
    linux.make_environment(session, "core")
    assert session.ran[4].words[-1] == "b==3"
    python.unlink()
    linux.make_environment(session, "core")
    assert len(session.ran) == 9


@pytest.mark.parametrize("python", ["gone", "no program"])
def test_an_environment_whose_python_cannot_run_is_created_again(
    linux: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: str
) -> None:
    monkeypatch.setattr(linux, "PYPROJECT", {"dependency-groups": {"core": ["a==1"]}})
    session = Recorder(tmp_path, "plan")
    make(session, "core")
    place = tmp_path / ".nox" / "core"
    (place / "bin" / "python").unlink()
    if python == "gone":  # as after an upgrade of the system
        (place / "bin" / "python").symlink_to("python3.gone")
    else:
        (place / "bin" / "python").touch(0o644)
    linux.make_environment(session, "core")
    assert "virtualenv" in session.ran[0].words


@pytest.mark.parametrize("closed", ["core", "core.lock"])
def test_environments_of_another_user_are_refused_with_exit_code_4(
    linux: ModuleType, tmp_path: Path, closed: str
) -> None:
    session = Recorder(tmp_path, "plan")
    make(session, "core")
    folder = tmp_path / ".nox"
    (folder / "core.lock").touch()
    (folder / closed).chmod(0o000)
    if closed == "core.lock":
        (folder / "core" / "installed.sha256").write_text("of older packages")
    with unprivileged(tmp_path), pytest.raises(RefusedError) as caught:
        linux.make_environment(session, "core")
    (folder / closed).chmod(0o755)
    assert f"`pip install {shlex.quote(str(ROOT))}`, or copy it to a dir" in str(caught.value)
    assert linux.failures.pop().code == linux.DOWNLOAD


def put(environment: Path, name: str, *requires: str, module: str = "x = 1\n") -> None:
    """A package in an environment, with a script and a compiled module."""
    site, script = environment / "lib/python3.11/site-packages", environment / f"bin/{name}"
    about = site / f"{name}-1.0.dist-info"
    for folder in (site / "__pycache__", about, script.parent):
        folder.mkdir(parents=True, exist_ok=True)
    (site / f"{name}.py").write_text(module)
    Path(cache_from_source(str(site / f"{name}.py"))).write_bytes(b"compiled")
    script.write_text(f"#!{environment}/bin/python\n")
    script.chmod(0o755)
    lines = [
        f"Name: {name}",
        "Version: 1.0",
        *(f"Requires-Dist: {require}" for require in requires),
    ]
    (about / "METADATA").write_text("\n".join(lines))
    files = [f"{name}.py,sha256=0,6", f"../../../bin/{name},,9", f"{about.name}/METADATA,,"]
    (about / "RECORD").write_text("\n".join([*files, f"{about.name}/RECORD,,\n"]))


@pytest.mark.parametrize(
    ("requirements", "linked", "missing"),
    [
        ("a==1.0 b", "a b", ""),
        ("a[more]==1.0", "a b c", ""),
        ("a==2.0 b", "b", "a"),
        ("b d", "b", "d"),
        ("unmet", "unmet", "b"),
        ("changed", "", "changed"),
        ("edited", "", "edited"),
        ("half", "half", "gone"),
        ("begun", "", "begun"),
        ("above", "", "above"),
        ("absolute", "", "absolute"),
        ("present", "", ""),
    ],
)
def test_packages_of_another_environment_are_linked_if_they_are_what_is_wanted(
    tmp_path: Path, requirements: str, linked: str, missing: str
) -> None:
    """An environment whose packages are all linked needs neither pip nor a network."""
    complete, unfinished, fresh = (tmp_path / name for name in ("whole", "unfinished", "fresh"))
    put(complete, "a", "b>=1", "c; extra == 'more'", "gone; python_version < '3'")
    for name, requires in (("b", ()), ("c", ()), ("unmet", ("b>1",)), ("half", ("gone",))):
        put(complete, name, *requires)
    put(complete, "changed", module="x = 1000\n")
    put(complete, "edited")  # later than it was installed, with the same size
    os.utime(complete / "lib/python3.11/site-packages/edited.py", (2**31, 2**31))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    for name, path in (("above", "../../../../elsewhere"), ("absolute", str(elsewhere))):
        put(complete, name)
        about = complete / f"lib/python3.11/site-packages/{name}-1.0.dist-info"
        with (about / "RECORD").open("a") as record:
            record.write(f"{path},,4\n")
    (complete / "installed.sha256").touch()
    put(unfinished, "begun")
    put(fresh, "present")
    before = {path for path in fresh.rglob("*") if path.is_file()}
    assert link_packages(fresh, requirements.split(), list_others(fresh)) == missing.split()
    site, old = (environment / "lib/python3.11/site-packages" for environment in (fresh, complete))
    expected = set()
    for name in linked.split():
        script = fresh / "bin" / name
        assert script.read_text() == f"#!{fresh}/bin/python\n"
        assert os.access(script, os.X_OK)
        files = (f"{name}.py", f"{name}-1.0.dist-info/METADATA", f"{name}-1.0.dist-info/RECORD")
        expected |= {script, *(site / file for file in files)}
        expected.add(Path(cache_from_source(str(site / files[0]))))
        assert (site / files[0]).samefile(old / files[0])
    assert {path for path in fresh.rglob("*") if path.is_file()} == before | expected
    assert elsewhere.read_text() == "kept"


def test_another_executorch_brings_the_torch_that_goes_with_it(
    linux: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [("2.0", "3.1"), ("1.9", "3.0"), ("1.9", "3.1")]
    supported = "".join(
        f'[[supported]]\nexecutorch = "{executorch}"\ntorch = "{torch}"\n'
        for executorch, torch in rows
    )
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "pairs.toml").write_text(f'default = "2.0"\n{supported}')
    monkeypatch.setattr(linux, "ROOT", tmp_path)
    group = ("torch==3.1", "executorch==2.0", "numpy==1")
    monkeypatch.setattr(linux, "PYPROJECT", {"dependency-groups": {"lowering": [*group]}})
    assert linux.list_packages("lowering") == group
    other_packages = linux.list_packages("lowering", "1.9")
    assert other_packages == ("torch==3.0", "executorch==1.9", "numpy==1")


@pytest.fixture
def two(linux: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The noxfile of a project that supports ExecuTorch 2.0, which is pinned, and 1.9."""
    monkeypatch.setattr(linux, "read_pairs", lambda: ({"2.0": "3.1", "1.9": "3.0"}, "2.0"))
    group = ["torch==3.1", "executorch==2.0"]
    groups = dict.fromkeys(("core", "lowering", "test"), group)
    monkeypatch.setattr(linux, "PYPROJECT", {"dependency-groups": groups})
    monkeypatch.delenv("QNN_CI_SDK", raising=False)
    for session, lowers_with in (("build_android", ""), ("build_linux", "/sdk")):
        rows = [
            {"identity": {"executorch_version": version}, "lowers_with": lowers_with}
            for version in ("1.7", "1.9")
        ]
        (tmp_path / session).mkdir()
        (tmp_path / session / "artifacts.json").write_text(json.dumps({"builds": rows}))
    return linux


@pytest.mark.parametrize(
    ("words", "finished", "sdk", "chosen"),
    [
        ("", "", "", ""),
        ("--executorch 1.9", "", "", "1.9"),
        ("--executorch 2.0", "", "", ""),
        ("--exec 1.9", "", "", ""),
        ("", "parity build_android build_linux parity", "", "1.9"),
        ("", "build_linux build_android", "", ""),
        ("--executorch 2.0", "build_linux", "", ""),
        ("--sdk pinned", "build_linux", "", ""),
        ("", "build_linux", "pinned", ""),
    ],
)
def test_the_executorch_is_that_of_the_option_or_of_the_built_runtime(
    two: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: str,
    finished: str,
    sdk: str,
    chosen: str,
) -> None:
    monkeypatch.setenv("QNN_CI_SDK", sdk)
    two.finished += finished.split()
    session = Recorder(tmp_path, "test_emulator", *words.split(), "--reports", str(tmp_path))
    assert two.choose_executorch(session) == chosen
    (tmp_path / "reports").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    session = Recorder(tmp_path, "test_emulator", *words.split())
    assert two.choose_executorch(session) == chosen, "reports/ of the current directory"


@pytest.mark.parametrize(
    ("name", "runtime_words", "group"),
    [
        ("test_emulator", (), "lowering"),
        ("test_emulator", ("--suite=faults",), "test"),
        ("audit", (), "lowering"),
        ("build_aot", (), "lowering"),
        ("build_linux", (), "lowering"),
    ],
)
def test_another_executorch_has_its_own_environment(
    two: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    runtime_words: tuple[str, ...],
    group: str,
) -> None:
    """A runtime that was built has its own ExecuTorch and needs no other."""
    monkeypatch.setenv("PATH", "/opt/one")
    session = Recorder(tmp_path, name, "--executorch", "1.9", *runtime_words)
    make(session, "core", group)
    nox.registry.get()[name].func(session)
    *_, ran = session.ran
    environment = tmp_path / ".nox" / ("lowering" if name == "build_linux" else f"{group}-1.9")
    assert ran.words[0] == str(environment / "bin" / "python")
    if name == "build_linux":
        assert "PATH" not in ran.options["env"]
        return
    assert ran.options["env"]["PATH"] == f"{environment / 'bin'}{os.pathsep}/opt/one"
    (packages,) = [command.words for command in session.ran if "executorch==1.9" in command.words]
    assert packages[-2:] == ("torch==3.0", "executorch==1.9")
    stamp = (environment / "installed.sha256").read_text()
    assert stamp == two.find_environment(session, group, "1.9").digest()
    assert stamp != two.find_environment(session, group).digest()


def test_torch_is_installed_before_its_dependents_from_its_own_index(
    linux: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    groups = {"lowering": ["torch==2", "torchvision==1", "x==1"]}
    monkeypatch.setattr(linux, "PYPROJECT", {"dependency-groups": groups})
    monkeypatch.setenv("QNN_CI_TORCH_INDEX", "https://index")
    session = Recorder(tmp_path, "test_emulator")
    (tmp_path / ".nox").mkdir()
    linux.make_environment(session, "lowering")
    torch, other_packages = session.ran[1:3]
    assert torch.words[6:] == ("--no-deps", "torch==2", "--index-url", "https://index")
    assert torch.options == {"silent": True, "log": False}
    assert other_packages.words[6:] == ("torch==2", "torchvision==1", "x==1")


@pytest.mark.parametrize("step", [0, 1, 2])
def test_an_environment_whose_installation_failed_is_not_recorded_as_installed(
    linux: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: int
) -> None:
    monkeypatch.setattr(linux, "PYPROJECT", {"dependency-groups": {"core": ["a==1"]}})
    session = Recorder(tmp_path, "plan", codes=[0] * step + [1])
    place = tmp_path / ".nox" / "core"
    place.mkdir(parents=True)
    (place / "installed.sha256").write_text("old")
    with pytest.raises(RefusedError, match=f"{place} could not be created"):
        linux.make_environment(session, "core")
    assert not (place / "installed.sha256").exists()
    (failure,) = linux.failures
    assert (failure.session, failure.code) == ("plan", 4)
    assert failure.cause.startswith(f"{place} could not be created")


def test_an_environment_that_another_nox_makes_is_waited_for(
    two: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = Recorder(tmp_path, "plan")
    (tmp_path / ".nox").mkdir()
    environment = two.find_environment(session, "core")
    installed: list[object] = []
    monkeypatch.setattr(
        PythonEnvironment, "_install", lambda *arguments: installed.append(arguments)
    )
    with environment.folder.with_name("core.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = Thread(target=two.make_environment, args=(session, "core"))
        thread.start()
        wait_until(lambda: session.said)
        assert "waiting for another nox process that creates core" in session.said[0]
        make_empty(environment)
    thread.join()
    assert installed == []


def test_a_package_index_is_probed_with_a_time_limit(
    monkeypatch: pytest.MonkeyPatch, index: str
) -> None:
    monkeypatch.setattr(environments, "PROBE_S", 600)
    assert responds(f"{index}/torch/")
    assert not responds(f"{index}/none/")
    assert not responds("no URL")
    monkeypatch.setattr(environments, "PROBE_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not responds(f"http://127.0.0.1:{silent.getsockname()[1]}/")


def test_an_environment_of_no_group_is_refused_before_another_is_made(
    noxfile: ModuleType, linux: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    created_groups: list[str] = []
    monkeypatch.setattr(
        noxfile, "make_environment", lambda session, group: created_groups.append(group)
    )
    with pytest.raises(RefusedError):
        run(Recorder(tmp_path, "environments", "core", "cor"), "environments")
    assert (created_groups, [failure.code for failure in linux.failures]) == ([], [2])
    assert "group cor;" in linux.failures[0].cause


@pytest.mark.parametrize(
    ("words", "gives", "ends", "hint"),
    [
        (["-s", "test_emulater"], 3, 2, "./nox -s test_emulator -- "),
        (["test_onnx", "--", "--model", "lint"], 2, 2, "./nox -s test_onnx -- "),
        (["--zzz"], 2, 2, "./nox -s SESSION -- "),
        (["-s", "lint"], 1, 1, ""),
        (["-s", "lint"], 130, 130, ""),
    ],
)
def test_a_mistyped_nox_command_is_answered_with_the_right_form(
    noxfile: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    gives: int,
    ends: int,
    hint: str,
) -> None:
    monkeypatch.setattr(runs.nox, "main", lambda: sys.exit(gives))
    monkeypatch.setattr(sys, "argv", ["noxfile.py", *words])
    monkeypatch.setenv("QNN_CI_COMMAND", "./nox")
    with pytest.raises(SystemExit) as ended:
        runs.run_nox()
    assert ended.value.code == ends
    assert sys.argv == ["nox", *words]
    errors = capsys.readouterr().err
    assert errors.startswith(f"  fix: {hint}") if hint else not errors
