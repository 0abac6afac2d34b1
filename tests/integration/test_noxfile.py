"""noxfile.py and ci/nox_sessions: environments, the index of torch, hosts, what sessions run."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import io
import json
import os
import shlex
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import nox.registry
import pytest
from nox.command import CommandFailed

from ci.nox_sessions import environments, runs
from ci.nox_sessions.environments import PythonEnvironment
from ci.packages import locks, requirements
from ci.packages.locks import Lock
from ci.packages.requirements import list_requirements
from ci.verbs import sessions
from ci.verbs.registry import VERBS
from provisioning.console.progress import Progress
from provisioning.errors import StoreError
from provisioning.store.home import FIX
from provisioning.store.store import Store
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

    run_install = run  # what nox also runs with --install-only

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
    monkeypatch.setattr(sessions.ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(environments, "find_uv", lambda: "uv")
    monkeypatch.setattr(environments, "install_with_uv", note_installation)
    handler = signal.getsignal(signal.SIGTERM)
    yield runs
    signal.signal(signal.SIGTERM, handler)
    runs.failures.clear()


def note_installation(session: Recorder, uv: str, folder: Path, lock: Lock) -> None:
    """Note that a session installs a lock."""
    folder.mkdir(parents=True)
    session.run_install(uv, "sync", lock.name)


def make(session: Recorder, *groups: str) -> None:
    """Make environments without packages."""
    for group in groups:
        make_empty(runs.find_environment(session, group))


def make_empty(environment: PythonEnvironment) -> None:
    """Make an environment without packages that counts as complete."""
    environment.python.parent.mkdir(parents=True)
    environment.python.touch(0o755)
    (environment.folder / environments.STAMP).write_text(environment.lock.digest())


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
        ("fuzz", ("--runtime", "litert"), "litert-torch"),
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
        ("mend", ("--model", "net.tflite"), "litert"),
        ("qnn_ci", ("test-llm", "--help"), "core"),
        (
            "qnn_ci",
            ("upgrade-report", "onnxruntime-qnn==2.5.0", "onnxruntime-qnn==2.7.0"),
            "onnx-torch",
        ),
        ("qnn_ci", ("upgrade-report", "--matrix", "--sdk", "2.49.40"), "onnx-torch"),
        ("qnn_ci", ("versions-matrix", "--known"), "core"),
        ("qnn_ci", ("upgrade-report", "executorch==1.4.1", "executorch==1.5.1"), "test"),
        ("qnn_ci", ("estimate", "--model", "net.tflite"), "litert"),
        ("qnn_ci", ("estimate", "--model", "net.onnx"), "onnx"),
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
    monkeypatch.setattr(sessions, "fetch_library", lambda *arguments: fetched.append(arguments))
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


@pytest.mark.parametrize(("is_step", "shown"), [(True, '{"error": "..."}'), (False, "")])
def test_an_interrupted_step_shows_its_document(
    linux: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    is_step: bool,
    shown: str,
) -> None:
    session = Recorder(tmp_path, "build_aot")
    make(session, "core")

    def interrupt(options: Mapping[str, Any]) -> None:
        if options["stdout"]:
            options["stdout"].write('{"error": "..."}')
        raise KeyboardInterrupt

    session.act = interrupt
    with pytest.raises(KeyboardInterrupt):
        linux.run_module(session, "core", "ci", "build", "aot", "--json", is_step=is_step)
    assert capsys.readouterr().out == shown


def test_an_interrupt_while_nox_is_imported_shows_no_traceback(tmp_path: Path) -> None:
    interrupt = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "nox.py").write_text(interrupt)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "noxfile.py"]
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")


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
    assert not Path(env["QNN_CI_CAUSE_FILE"]).exists()


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
            monkeypatch.setattr(sessions.ctypes, "CDLL", lambda name: None)
            sessions.fetch_library(session, group)
            assert session.ran == []
            linux.find_environment(session, group).folder.mkdir(parents=True)  # it was begun
            monkeypatch.setattr(sessions.ctypes, "CDLL", refuse)
            monkeypatch.setattr(linux, "make_environment", lambda *_: tmp_path / "python")
            monkeypatch.setattr(sessions, "install_beside_fetch", lambda *_: None)
            monkeypatch.setattr(sessions, "needs_only_core", lambda *_: False)
            run(session)
            fetched, lane = (command.words[1:] for command in session.ran)
            assert fetched == ("-m", "ci", "fetch", "libatomic", *words[2:])
            assert lane == ("-m", "ci", name.replace("_", "-"), *words)
            is_hidden = [command.options["stdout"] is not None for command in session.ran]
            assert is_hidden == [True, False]  # with --json, stdout has one document
            assert "libatomic.so.1" in session.said[0]
            make(session, group)
            sessions.fetch_library(session, group)
            assert len(session.ran) == 2


@pytest.mark.parametrize(
    ("name", "words", "fetched"),
    [
        ("test_emulator", (), "emulator"),
        ("test_onnx", ("--model", "net.onnx"), "onnx"),
        ("test_litert", ("--model", "net.tflite"), "litert"),
        ("test_emulator", ("--offline",), ""),
        ("test_emulator", ("--sdk=2.49.40",), ""),
        ("test_emulator", ("--backend", "lpai"), ""),
        ("mend", (), ""),
    ],
)
@pytest.mark.parametrize("code", [0, 4])
def test_libraries_are_fetched_while_the_packages_are_installed(
    linux: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    words: tuple[str, ...],
    fetched: str,
    code: int,
) -> None:
    session = Recorder(tmp_path, name, *words)
    make(session, "core")
    core = tmp_path / ".nox" / "core" / "bin" / "python"
    # The installation ends when the fetch has begun, and the fetch when the packages are installed.
    core.write_text(
        f'#!/bin/sh\ncd {tmp_path}\n[ "$3" = fetch ] || exit 3\necho "$*" >call\n'
        f"read word <done\necho end >end\nexit {code}\n"
    )
    os.mkfifo(tmp_path / "done")

    def install(session: Recorder, uv: str, folder: Path, lock: Lock) -> None:
        python = folder / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch(0o755)
        if fetched:
            wait_until((tmp_path / "call").is_file)
            with (tmp_path / "done").open("w") as stream:
                stream.write("installed\n")

    monkeypatch.setattr(environments, "install_with_uv", install)
    run(session)
    call = tmp_path / "call"
    assert (call.read_text() if call.is_file() else "") == (
        f"-m ci fetch --quiet {fetched}\n" if fetched else ""
    )
    assert (tmp_path / "end").is_file() == bool(fetched)  # before the verb starts
    assert session.ran[-1].words[1:3] == ("-m", "ci")


def test_a_fetch_ends_if_the_packages_cannot_be_installed(
    linux: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = Recorder(tmp_path, "test_emulator")
    make(session, "core")
    core = tmp_path / ".nox" / "core" / "bin" / "python"
    core.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/id\nexec cat {tmp_path}/never\n")
    os.mkfifo(tmp_path / "never")

    def refuse(*_: Any) -> None:
        wait_until(lambda: (tmp_path / "id").is_file() and (tmp_path / "id").read_text())
        raise CommandFailed(return_code=2)

    monkeypatch.setattr(environments, "install_with_uv", refuse)
    with pytest.raises(RefusedError):
        run(session)
    assert [failure.code for failure in linux.failures] == [4]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "id").read_text()), 0)


# Calls whose verb needs the store, and whether they are refused if it cannot be written.
STORE_CALLS = (
    ("test_emulator", (), True),
    ("test_onnx", ("--model", "net.onnx"), True),
    ("mend", (), True),
    ("test", ("--model", "net.tflite"), True),
    ("build_runner", (), True),
    ("build_aot", (), True),
    ("qnn_ci", ("setup", "emulator"), True),
    ("test_emulator", ("--executorch", "1.2.0"), True),
    ("test_emulator", ("--list",), False),
    ("test_emulator", ("--sdk=folder",), False),
    ("test_emulator", ("--offline",), False),
    ("build_runner", ("--dry-run",), False),
    ("build_aot", ("--check",), False),
    ("qnn_ci", ("judge", "kept"), False),
    ("plan", (), False),
)


@pytest.mark.parametrize(("name", "words", "is_refused"), STORE_CALLS)
def test_a_store_that_cannot_be_written_is_refused_before_packages_are_installed(
    linux: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    words: tuple[str, ...],
    is_refused: bool,
) -> None:
    (tmp_path / "file").touch()
    home = tmp_path / "file" / "home"  # root may write everywhere else
    monkeypatch.setenv("QNN_CI_HOME", str(home))
    monkeypatch.delenv("QNN_CI_SDK", raising=False)
    session = Recorder(tmp_path, name, *words)
    make(session, "core")
    (tmp_path / ".nox" / "core" / "bin" / "python").write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(RefusedError) if is_refused else nullcontext() as caught:
        run(session)
    if not caught:
        return
    with pytest.raises(StoreError) as of_store, Store().lock(["qnn-runtime"], Progress()):
        pass
    assert str(caught.value) == str(of_store.value)
    assert str(caught.value) == (
        f"{home} cannot be written\n  why: {home}: Not a directory\n  fix: {FIX}"
    )
    assert [failure.code for failure in linux.failures] == [4]
    assert {path.name for path in (tmp_path / ".nox").iterdir()} == {"core"}
    assert not any("sync" in command.words for command in session.ran)


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
        (("init", "--model", "net.tflite"), 0, False),
        (("init", "--model", "net.tflite", "--x"), 2, True),
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
    monkeypatch.setattr(sessions, "fetch_library", lambda *_: None)
    monkeypatch.setattr(sessions, "install_beside_fetch", lambda *_: None)
    run(session)
    ran = [command.words for command in session.ran if "ci" in command.words]
    assert (ran[-1][0] == str(core)) == is_enough
    assert (tmp_path / "calls").read_text() == f"-m ci {' '.join(words)}\n"


@pytest.mark.parametrize(
    ("words", "checked", "built"),
    [
        (("--clean",), ("--check", "--clean"), ("--clean",)),
        (("--clean", "--check"), ("--check", "--clean"), None),
        (("--check",), ("--check",), None),
        (("--help",), ("--check", "--help"), None),
    ],
)
@pytest.mark.parametrize(("name", "target"), [("build_aot", "aot"), ("build_linux", "linux")])
def test_a_build_is_checked_once_before_torch_is_installed(
    linux: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    target: str,
    words: tuple[str, ...],
    checked: tuple[str, ...],
    built: tuple[str, ...] | None,
) -> None:
    monkeypatch.chdir(tmp_path)  # without reports of an earlier build
    session = Recorder(tmp_path, name, *words)
    make(session, "core")
    run(session)
    calls = {"core": checked, **({} if built is None else {"lowering": built})}
    assert [command.words for command in session.ran if "ci" in command.words] == [
        (str(tmp_path / ".nox" / group / "bin/python"), "-m", "ci", "build", target, *options)
        for group, options in calls.items()
    ]
    assert (tmp_path / ".nox/lowering").is_dir() == (built is not None)


@pytest.mark.parametrize(
    ("words", "codes", "shown"),
    [
        ((), [0, 0], "build\n"),
        ((), [0, 3], "build\n"),
        ((), [3], "check\n"),
        (("--check",), [0], "check\n"),
        (("--check",), [3], "check\n"),
    ],
)
def test_a_build_session_prints_one_document(
    linux: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    codes: list[int],
    shown: str,
) -> None:
    monkeypatch.chdir(tmp_path)  # without reports of an earlier build
    session = Recorder(tmp_path, "build_aot", "--json", *words)
    make(session, "core")

    def write(options: Mapping[str, Any]) -> None:
        ran = session.ran[-1].words
        if "ci" in ran:
            session.codes = codes[:1]
            del codes[:1]
            text = "check\n" if "--check" in ran else "build\n"
            (options["stdout"] or sys.stdout).write(text)

    session.act = write
    is_failed = bool(codes[-1])
    with pytest.raises(CommandFailed) if is_failed else nullcontext():
        run(session)
    assert capsys.readouterr().out == shown
    assert not codes
    assert len(linux.failures) == is_failed


@pytest.mark.parametrize("words", [(), ("--check",)])
def test_a_build_has_the_arguments_of_its_session_if_torch_is_installed(
    linux: ModuleType, tmp_path: Path, words: tuple[str, ...]
) -> None:
    session = Recorder(tmp_path, "build_aot", *words)
    make(session, "lowering")
    run(session)
    (ran,) = session.ran
    assert ran.words[1:] == ("-m", "ci", "build", "aot", *words)


@pytest.mark.parametrize("option", ["--check", "--dry-run"])
def test_a_session_that_built_nothing_selects_no_version_for_the_next_one(
    linux: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str
) -> None:
    monkeypatch.chdir(tmp_path)  # without reports
    for at, name in enumerate(("build_linux", "build_aot")):
        session = Recorder(tmp_path, name, option)
        make(session, *(() if at else ("lowering",)))
        run(session)
    assert linux.finished == ["build_linux", "build_aot"]


@pytest.mark.parametrize(
    ("words", "code", "installs"),
    [
        (("bench", "nope"), 2, False),
        (("bench",), 2, False),
        (("bench", "--help"), 0, False),
        (("bench", "gate"), 0, True),
        (("mutants", "ci/nope"), 2, False),
        (("mutants", "ci/judging", "--jobs", "0"), 2, False),
        (("mutants", "ci/judging"), 0, True),
        (("test_trained", "--lane", "x"), 2, False),
        (("test_trained", "--model", "nope*"), 2, False),
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


@pytest.fixture
def tiny(linux: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of locks of a project whose group core needs a and b. There is no uv."""
    folder = tmp_path / "locks"
    folder.mkdir()
    (folder / "core.txt").write_text("a==1\nb==2\n")
    monkeypatch.setattr(locks, "LOCKS", folder)
    monkeypatch.setattr(environments, "find_uv", lambda: None)
    return folder


def test_an_environment_is_made_once_and_again_when_its_lock_changes(
    linux: ModuleType, tiny: Path, tmp_path: Path
) -> None:
    session = Recorder(tmp_path, "plan")
    (tmp_path / "disk").mkdir()
    (tmp_path / ".nox").symlink_to("disk")  # an environment's programs contain its path
    python = linux.make_environment(session, "core")
    place = tmp_path / "disk" / "core"
    assert python == place / "bin" / "python"
    created, packages = session.ran
    assert created.words == (sys.executable, "-m", "virtualenv", "-q", str(place))
    pip = (str(python), "-m", "pip", "install", "-q", "--no-compile")
    assert packages.words == (*pip, "--no-deps", "--require-hashes", "-r", str(tiny / "core.txt"))
    assert all(command.options["silent"] and not command.options["log"] for command in session.ran)
    assert "uv cannot be used, so pip installs" in session.said[0]
    assert "installing 2 packages into core" in session.said[1]
    stamp = place / "installed.sha256"
    assert stamp.read_text() == linux.find_environment(session, "core").lock.digest()
    (place / "bin").mkdir()
    python.touch(0o755)
    linux.make_environment(session, "core")
    assert len(session.ran) == 2
    (tiny / "core.txt").write_text("a==1\nb==3\n")
    linux.make_environment(session, "core")
    assert len(session.ran) == 4
    linux.make_environment(session, "core")
    assert len(session.ran) == 6


@pytest.mark.parametrize("python", ["gone", "no program"])
def test_an_environment_whose_python_cannot_run_is_created_again(
    linux: ModuleType, tiny: Path, tmp_path: Path, python: str
) -> None:
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


def test_another_executorch_brings_the_torch_that_goes_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [("2.0", "3.1"), ("1.9", "3.0"), ("1.9", "3.1")]
    supported = "".join(
        f'[[supported]]\nexecutorch = "{executorch}"\ntorch = "{torch}"\n'
        for executorch, torch in rows
    )
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "pairs.toml").write_text(f'default = "2.0"\n{supported}')
    for module in (locks, requirements):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    group = ("torch==3.1", "executorch==2.0", "numpy==1")
    (tmp_path / "pyproject.toml").write_text(f"[dependency-groups]\nlowering = {[*group]}\n")
    monkeypatch.setattr(locks, "read_pairs", locks.read_pairs.__wrapped__)
    monkeypatch.setattr(requirements, "read_project", requirements.read_project.__wrapped__)
    assert list_requirements(Lock("lowering")) == group
    newer_lock = Lock("lowering", "1.9")
    assert list_requirements(newer_lock) == ("torch==3.0", "executorch==1.9", "numpy==1")
    assert (newer_lock.name, newer_lock.torch, newer_lock.builds.name) == (
        "lowering-1.9",
        "3.0",
        "torch-3.0.txt",
    )


@pytest.fixture
def two(
    linux: ModuleType, tiny: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> ModuleType:
    """The noxfile of a project that supports ExecuTorch 2.0, which is pinned, and 1.9."""
    for module in (sessions, locks):
        monkeypatch.setattr(module, "read_pairs", lambda: ({"2.0": "3.1", "1.9": "3.0"}, "2.0"))
    for name in ("lowering", "test", "lowering-1.9", "test-1.9"):
        (tiny / f"{name}.txt").write_text(f"# {name}\nexecutorch==1\n")
    for name in ("3.1", "3.0", "3.1-cuda", "3.0-cuda"):
        (tiny / f"torch-{name}.txt").touch()
    monkeypatch.setattr(environments, "find_uv", lambda: "uv")
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
    assert sessions.choose_executorch(session) == chosen
    (tmp_path / "reports").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    session = Recorder(tmp_path, "test_emulator", *words.split())
    assert sessions.choose_executorch(session) == chosen, "reports/ of the current directory"


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
    assert ("uv", "sync", f"{group}-1.9") in [command.words for command in session.ran]
    stamp = (environment / "installed.sha256").read_text()
    assert stamp == two.find_environment(session, group, "1.9").lock.digest()
    assert stamp != two.find_environment(session, group).lock.digest()


@pytest.mark.parametrize("step", [0, 1])
def test_an_environment_whose_installation_failed_is_not_recorded_as_installed(
    linux: ModuleType, tiny: Path, tmp_path: Path, step: int
) -> None:
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


@pytest.mark.parametrize(
    ("number", "fix"), [(errno.ENOSPC, "free space there"), (errno.EROFS, "copy it to a directory")]
)
def test_a_disk_that_cannot_be_written_is_named_with_what_to_do(
    linux: ModuleType,
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    number: int,
    fix: str,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/full/torch.txt")

    monkeypatch.setattr(environments, "install_with_pip", refuse)
    cause = rf"/full/torch.txt cannot be written \({os.strerror(number)}\); .*{fix}"
    with pytest.raises(RefusedError, match=cause):
        linux.make_environment(Recorder(tmp_path, "plan"), "core")
    assert [failure.code for failure in linux.failures] == [4]


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
        assert "waiting for another nox that creates core" in session.said[0]
        make_empty(environment)
    thread.join()
    assert installed == []


def test_the_lock_of_an_environment_is_not_written_through_a_link(
    linux: ModuleType, tiny: Path, tmp_path: Path
) -> None:
    session = Recorder(tmp_path, "plan")
    lock, notes = tmp_path / ".nox" / "core.lock", tmp_path / "notes"
    lock.parent.mkdir()
    notes.write_text("mine")
    lock.symlink_to(notes)
    with pytest.raises(RefusedError, match=r"core\.lock cannot be written"):
        linux.make_environment(session, "core")
    assert (session.ran, notes.read_text()) == ([], "mine")


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
    assert "environment cor;" in linux.failures[0].cause


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
    monkeypatch.setattr(sessions.nox, "main", lambda: sys.exit(gives))
    monkeypatch.setattr(sys, "argv", ["noxfile.py", *words])
    monkeypatch.setenv("QNN_CI_COMMAND", "./nox")
    with pytest.raises(SystemExit) as ended:
        sessions.run_nox()
    assert ended.value.code == ends
    assert sys.argv == ["nox", *words]
    errors = capsys.readouterr().err
    assert errors.startswith(f"  fix: {hint}") if hint else not errors
