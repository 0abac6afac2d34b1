"""Sessions of executorch-qnn-ci: ``./nox -s test_emulator``.

Each session runs a process in an environment with one dependency group of pyproject.toml. Sessions
share environments: ``core`` is small and ``lowering`` has torch, so that sessions without torch do
not wait for it. How they run is in ci/nox_sessions.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

is_interruptible = __name__ == "__main__" and signal.getsignal(signal.SIGINT) != signal.SIG_IGN
if is_interruptible:
    # Ctrl-C while nox is imported, before anything has begun, ends without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import nox  # noqa: E402

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # a nox that was not started by ./nox does not look there

from ci.nox_sessions.runs import (  # noqa: E402
    USAGE,
    end_run,
    fail,
    make_environment,
    run_module,
)
from ci.packages.locks import GROUPS  # noqa: E402
from ci.verbs.sessions import (  # noqa: E402
    accepts_arguments,
    fetch_library,
    list_nox_words,
    list_verbs,
    require_writable_store,
    run_build,
    run_nox,
    run_runtimes,
    run_verb,
)

nox.needs_version = ">=2025.10"
nox.options.default_venv_backend = "none"  # ci/nox_sessions creates environments, under locks
# nox looks for uv even if no session uses it.
logging.getLogger("nox").addFilter(lambda record: record.msg != "uv binary not found.")
nox.options.sessions = []  # `./nox` alone lists the sessions
atexit.register(end_run)

# Three workers for two cores, since some tests wait. Each worker collects all tests, which takes
# 6 s of CPU. The tests of most files run in one worker (see tests/conftest.py) and share setup such
# as a process that imported torch.
PARALLEL = ("-n3", "--dist", "loadfile", "--no-loadscope-reorder")
# Unit tests seldom wait, and each worker collects all of them, which takes seconds of CPU.
PER_CPU = (f"-n{(os.cpu_count() or 1) + 1}", *PARALLEL[1:])

# The sessions that run a verb with the arguments of the session, and what they do.
SESSIONS = {
    "test_emulator": "Lower models, run them on the HTP emulator, and judge their outputs.\n\n"
    "With ``--suite faults``, run the graphs with known faults instead.",
    "test_upstream": "Run ExecuTorch's own QNN tests on the HTP emulator, and judge their outputs, "
    "too.",
    "test_onnx": "Compile ONNX models with ONNX Runtime, run them on the emulator, and judge their "
    "outputs.",
    "test_litert": "Compile .tflite models with LiteRT's plugin for Qualcomm, run them on the "
    "emulator, and judge their outputs.",
    "audit": "Report which operators of models QNN supports and which stay on the CPU, without "
    "lowering.",
    "mend": "Make red models green by rewriting them, with proof that they compute the same.",
    "fuzz": "Find faults in QNN's compiler with small generated graphs, which run on the HTP "
    "emulator.",
    "test_llm": "Lower a language model, generate text on the HTP emulator, and judge its tokens.",
    "provision": "Fetch and verify artifacts or whole profiles, and put them into the store.",
    "validate": "Check the environment of a profile, and print faults with their fixes.",
    "parity": "Report where ExecuTorch's Buck and CMake files disagree.",
    "plan": "Print which sessions a change needs, and why.",
    "build_aot": "Build the AOT adaptor, with which ExecuTorch lowers, from a checkout, and "
    "test it.",
    "build_android": "Build the runtime and the runner for Android arm64-v8a.",
    "build_linux": "Build the runtime and the runner for embedded Linux on aarch64.",
    "build_direct": "Build the QNN backend that runs on the Hexagon DSP of the SoC in ``--soc``.",
    "sign_skel": "Sign the libraries that a device's DSP loads.",
    "stage": "Collect the files that a device needs to run programs.\n\n"
    "For example: ``--soc SM8650 --runner FILE --runtime DIR --out bundle``.",
    "deploy": "Copy a bundle created by ``stage`` to a phone or a board: ``--device adb: --bundle "
    "DIR``.",
    "docker_build": "Build Docker images: ``nox -s docker_build -- emulator``.",
    "docker_shell": "Open a shell, or run a command, in a Docker image.",
}
VERBS = {
    "provision": "fetch",
    "validate": "doctor",
    "build_aot": "build aot",
    "build_android": "build android",
    "build_linux": "build linux",
    "build_direct": "build direct",
    "sign_skel": "sign",
    "docker_build": "image build",
    "docker_shell": "image shell",
}


def add_session(name: str, verb: str, text: str = "") -> None:
    """Add a session that runs a verb. ``verb`` may contain its first arguments."""

    start = run_build if verb.startswith("build ") else run_verb

    def run(session: nox.Session) -> None:
        start(session, *verb.split(), *session.posargs)

    run.__doc__ = text
    nox.session(run, name=name, default=False)


for _name, _text in SESSIONS.items():
    add_session(_name, VERBS.get(_name, _name.replace("_", "-")), _text)


@nox.session(default=False)
def test(session: nox.Session) -> None:
    """Judge models by every runtime that can take them, and compare the results."""
    run_runtimes(session)


@nox.session(default=False)
def test_trained(session: nox.Session) -> None:
    """Judge trained models whose correct verdicts are known.

    Options: ``--model 'pnet*'``, ``--lane onnx``.
    """
    if not accepts_arguments(session, "tests.trained"):
        return
    fetch_library(session, "test")
    run_module(session, "test", "tests.trained", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the project's own tests."""
    run_tests(session, "test")


@nox.session(default=False)
def journeys(session: nox.Session) -> None:
    """Run the tests that type whole commands: users' journeys, and one command per page."""
    run_tests(session, "test", "tests/journeys", "tests/documented")


@nox.session(default=False)
def unit(session: nox.Session) -> None:
    """Run the tests that need neither torch nor a download."""
    run_tests(session, "unit", "tests/unit", parallel=PER_CPU)


@nox.session(default=False)
def stress(session: nox.Session) -> None:
    """Run the tests that kill at random instants, race, or measure time, one after the other.

    Those that kill run five times each; ``--seeds 1`` runs each of them once.
    """
    run_tests(session, "test", "tests/stress", parallel=())


def run_tests(
    session: nox.Session, group: str, *folders: str, parallel: Sequence[str] = PARALLEL
) -> None:
    """Run pytest with the programs of an environment first on PATH. ``folders`` are left out if the
    user's arguments name files or folders of tests. Without arguments, it runs in ``parallel``."""
    python = make_environment(session, group)
    words = list_pytest_words(session.posargs or parallel, *folders)
    env = {"PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    report = f"--junit-xml={ROOT / 'reports' / session.name / 'junit.xml'}"
    session.run(str(python), "-m", "pytest", report, *words, env=env)


def list_pytest_words(words: Iterable[str], *folders: str) -> list[str]:
    """Return pytest's arguments for those of a session. What names files or folders of tests from
    the user's directory is written from the root. ``folders`` are added if nothing does."""
    caller = Path(os.environ.get("QNN_CI_CALLER_DIR", ROOT))
    arguments, names_tests = [], False
    for word in words:
        path, *test = word.split("::", 1)
        # Users' paths are relative to the directory of the call, but pytest runs in the root.
        if "tests" in word and (caller / path).exists():
            word = "::".join([os.path.relpath(caller / path, ROOT), *test])
        names_tests |= "tests" in word and (ROOT / word.partition("::")[0]).exists()
        arguments.append(word)
    return arguments if names_tests else [*arguments, *folders]


LINTERS = {
    "ruff": ("ruff format --check .", "ruff check ."),
    "mypy": ("mypy",),
    "imports": ("lint-imports",),
    "workflows": ("python -m tests.workflows",),
    "site": ("mkdocs build --strict --quiet --clean --config-file .ci/mkdocs.yml",),
    "docker": ("hadolint --no-color docker/Dockerfile",),
    "pages": ("python -m pytest -q tests/static",),
}


@nox.session
def lint(session: nox.Session) -> None:
    """Run ruff, mypy and import-linter; check workflows, scripts and pages.

    Arguments select checks: ``ruff``, ``mypy``, ``imports``, ``workflows``, ``site``, ``docker``,
    ``pages``.
    """
    if unknown := [name for name in session.posargs if name not in LINTERS]:
        fail(session, USAGE, f"lint has no check {unknown[0]}; use {', '.join(LINTERS)}")
    programs = make_environment(session, "lint").parent
    env = {"PYTHONPATH": str(ROOT)}
    if os.environ.get("GITHUB_ACTIONS") == "true":
        env["RUFF_OUTPUT_FORMAT"] = "github"
        sys.stdout.write(f"::add-matcher::{ROOT / '.github' / 'lint-matcher.json'}\n")
        sys.stdout.flush()
    for name in session.posargs or LINTERS:
        for line in LINTERS[name]:
            program, *words = shlex.split(line)
            session.run(str(programs / program), *words, env=env)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Run a benchmark against a comparable tool."""
    if accepts_arguments(session, "tests.bench"):
        if "litert-operators" in session.posargs:  # it needs another version of QNN
            run_module(session, "test-litert", "tests.bench", *session.posargs)
        else:
            run_module(session, "test", "tests.bench", *session.posargs)


@nox.session(default=False)
def mutants(session: nox.Session) -> None:
    """Insert small faults into the code that decides verdicts, and check that tests detect them."""
    if accepts_arguments(session, "tests.mutants"):
        run_module(session, "test", "tests.mutants", *session.posargs)


@nox.session(default=False)
def build_runner(session: nox.Session) -> None:
    """Build the x86-64 runner against the wheel or a checkout."""
    require_writable_store(session, "lowering")
    run_module(session, "lowering", "ci", "build", "runner", *session.posargs)


@nox.session(default=False)
def release(session: nox.Session) -> None:
    """Build the sdist, the wheel and the SBOM in dist/, and the documentation in build/site."""
    python = make_environment(session, "release")
    core = make_environment(session, "core")
    # The date of the commit, so that two builds of it have the same bytes.
    when = session.run("git", "log", "-1", "--format=%ct", silent=True, external=True)
    env = {"SOURCE_DATE_EPOCH": str(when).strip()}
    session.run(str(python), "-m", "build", "--outdir", "dist", env=env)
    words = ["environment", str(core), "--pyproject", "pyproject.toml", "--output-reproducible"]
    sbom = ["--output-file", "dist/sbom.cdx.json"]
    session.run(str(python.with_name("cyclonedx-py")), *words, *sbom)
    program, *words = shlex.split(*LINTERS["site"])
    session.run(str(python.with_name(program)), *words)


@nox.session(default=False)
def environments(session: nox.Session) -> None:
    """Create Python environments for the groups after ``--``, by default core and lowering."""
    groups = session.posargs or ["core", "lowering"]
    if unknown := [group for group in groups if group not in GROUPS]:
        cause = f"there is no environment {unknown[0]}; use {', '.join(GROUPS)}"
        fail(session, USAGE, cause)
    for group in groups:
        make_environment(session, group)


@nox.session(default=False)
def qnn_ci(session: nox.Session) -> None:
    """Run any verb: ``./nox -s qnn_ci -- cache info``."""
    verb, *words = session.posargs or ["--help"]
    run_verb(session, verb, *words)


def add_verbs() -> None:
    """Make each verb that the command line names as a session a session: ``./nox -s localise`` is
    ``./nox -s qnn_ci -- localise``."""
    sessions = nox.registry.get()
    unknown = [word for word in list_nox_words() if word not in sessions and word[:1] != "-"]
    verbs = list_verbs() if unknown else []
    for name in unknown:
        if (verb := name.replace("_", "-")) in verbs:
            add_session(name, verb)


if __name__ == "__main__":
    if is_interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which nox expects
    run_nox()
elif __name__ == "user_nox_module":  # how nox loads this file, with an empty registry
    add_verbs()
