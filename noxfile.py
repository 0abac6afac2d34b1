"""Sessions of executorch-qnn-ci: ``nox -s test_emulator``; ``nox --list`` shows them all.

Each session runs a process. Two environments are shared between sessions: env_tools is small
and env_models holds torch, so that what does not need torch does not wait for it.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import IO

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.10"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "tests"]

ROOT = Path(__file__).resolve().parent
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
# PyTorch's own index has CPU builds; without it the default index serves CUDA builds of some GB.
TORCH_INDEX = os.environ.get("QNN_CI_TORCH_INDEX", "")
SETUP_LOCK = ROOT / ".nox" / "setup.lock"
NEEDS_TOOLS, NEEDS_MODELS = ["env_tools"], ["env_models"]


def lock_setup() -> list[IO[str]]:
    """Hold the environments of this checkout while they are made; say so when that has to wait."""
    try:
        SETUP_LOCK.parent.mkdir(exist_ok=True)
        lock = SETUP_LOCK.open("w")
    except OSError:  # a checkout that cannot be written: nothing is made
        return []
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write("nox > another nox makes the environments here; waiting\n")
        fcntl.flock(lock, fcntl.LOCK_EX)
    return [lock]


def is_listing(argv: list[str]) -> bool:
    """Whether nox is only asked what there is; words after ``--`` are a session's."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    return not {"-l", "--list", "--list-sessions", "-h", "--help"}.isdisjoint(own)


setup_locks = [] if is_listing(sys.argv) else lock_setup()


def unlock_setup() -> None:
    """Let others go on: from here on, this run only uses its environments."""
    while setup_locks:
        setup_locks.pop().close()


def install(session: nox.Session, group: str) -> None:
    """Install a dependency group of pyproject.toml, unless this environment has it already."""
    wanted = nox.project.dependency_groups(PYPROJECT, group)
    stamp = Path(session.virtualenv.location) / "installed.sha256"
    key = hashlib.sha256("\n".join([*wanted, TORCH_INDEX]).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == key:
        return
    stamp.unlink(missing_ok=True)
    extra = ["--extra-index-url", TORCH_INDEX] if TORCH_INDEX else []
    session.install(*wanted, *extra)
    stamp.write_text(key)


def run_module(session: nox.Session, environment: str, *words: str) -> None:
    """Run ``python -m WORDS`` with the Python of a shared environment.

    nox itself ends with 1 whatever failed; the documented exit code is kept, and stderr stays
    apart from what --json prints. An interrupted verb gets the time to end what it runs.
    """
    python = Path(session.env_dir).parent / environment / "bin" / "python"
    unlock_setup()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = (str(python), "-m", *words)
    try:
        session.run(*command, external=True, stderr=None, interrupt_timeout=3, terminate_timeout=10)
    except CommandFailed as error:
        atexit.register(end_with, error.return_code or 1)
        raise


def end_with(code: int) -> None:
    """End this process at once with ``code``, over the one that nox chose."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if 0 < code < 256 else 1)


@nox.session(default=False)
def env_tools(session: nox.Session) -> None:
    """The shared environment of what needs no torch."""
    install(session, "core")


@nox.session(default=False)
def env_models(session: nox.Session) -> None:
    """The shared environment with torch and ExecuTorch."""
    install(session, "lowering")


@nox.session(requires=NEEDS_MODELS, venv_backend="none", default=False)
def test_emulator(session: nox.Session) -> None:
    """Lower the suite, run it on the HTP emulator, judge and report."""
    run_module(session, "env_models", "ci", "test-emulator", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """The project's own tests."""
    install(session, "test")
    unlock_setup()
    session.run("python", "-m", "pytest", *(session.posargs or ["-n2"]))


@nox.session(default=False)
def unit(session: nox.Session) -> None:
    """The tests that need neither torch nor a download."""
    install(session, "unit")
    unlock_setup()
    session.run("python", "-m", "pytest", *(session.posargs or ["-n2", "tests/unit"]))


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, mypy strict, the contracts between packages, and the workflows."""
    install(session, "lint")
    unlock_setup()
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")
    session.run("lint-imports", env={"PYTHONPATH": str(ROOT)})
    workflows = sorted(map(str, Path(".github/workflows").glob("*.yml")))
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    session.run("zizmor", "--offline", "--quiet", ".github")


@nox.session(requires=NEEDS_TOOLS, venv_backend="none", default=False)
def provision(session: nox.Session) -> None:
    """Fetch, verify and publish artifacts or the artifacts of a profile."""
    run_module(session, "env_tools", "provisioning", "fetch", *session.posargs)


@nox.session(requires=NEEDS_MODELS, venv_backend="none", default=False)
def validate(session: nox.Session) -> None:
    """Whether the environment of a profile is fit: ``nox -s validate -- emulator``."""
    run_module(session, "env_models", "provisioning", "doctor", *session.posargs)


@nox.session(requires=NEEDS_MODELS, venv_backend="none", default=False)
def bench(session: nox.Session) -> None:
    """Measure a part beside its peer: ``nox -s bench -- provisioning``."""
    run_module(session, "env_models", "tests.bench", *session.posargs)


@nox.session(requires=NEEDS_TOOLS, venv_backend="none", default=False)
def parity(session: nox.Session) -> None:
    """Report where the Buck and the CMake description of an ExecuTorch tree differ."""
    run_module(session, "env_tools", "ci", "parity", *session.posargs)


@nox.session(requires=NEEDS_MODELS, venv_backend="none", default=False)
def build_runner(session: nox.Session) -> None:
    """The x86-64 runner: against the installed wheel, or with ``--source`` from a checkout."""
    run_module(session, "env_models", "ci", "build", "runner", *session.posargs)


@nox.session(requires=NEEDS_MODELS, venv_backend="none", default=False)
def build_aot(session: nox.Session) -> None:
    """PyQnnManagerAdaptor from an ExecuTorch checkout, proven by lowering a model with it."""
    run_module(session, "env_models", "ci", "build", "aot", *session.posargs)


@nox.session(requires=NEEDS_MODELS, venv_backend="none", default=False)
def build_android(session: nox.Session) -> None:
    """Runtime and runner for Android arm64-v8a."""
    run_module(session, "env_models", "ci", "build", "android", *session.posargs)


@nox.session(requires=NEEDS_MODELS, venv_backend="none", default=False)
def build_linux(session: nox.Session) -> None:
    """Runtime and runner for aarch64 embedded Linux."""
    run_module(session, "env_models", "ci", "build", "linux", *session.posargs)


@nox.session(requires=NEEDS_MODELS, venv_backend="none", default=False)
def build_direct(session: nox.Session) -> None:
    """The QNN backend for Hexagon itself, for one ``--soc``."""
    run_module(session, "env_models", "ci", "build", "direct", *session.posargs)


@nox.session(requires=NEEDS_TOOLS, venv_backend="none", default=False)
def sign_skel(session: nox.Session) -> None:
    """Sign what a device's DSP loads: ``nox -s sign_skel -- --lpai-arch v6``."""
    run_module(session, "env_tools", "ci", "sign", *session.posargs)
