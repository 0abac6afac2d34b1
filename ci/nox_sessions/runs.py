"""How a session of noxfile.py runs a verb or another module in the environment that this needs, and
with which exit code a call of nox ends."""

from __future__ import annotations

import argparse
import ctypes
import difflib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import nox
from nox.command import CommandFailed

from ci.nox_sessions.environments import PythonEnvironment, UnwritableError
from ci.nox_sessions.locks import LARGE, ROOT, Lock, read_pairs
from ci.nox_sessions.pip_settings import SettingsError

USAGE, ENVIRONMENT, DOWNLOAD = 2, 3, 4  # docs/reference/exit-codes.md
ELSEWHERE = "parity, plan, sign_skel and the verb report"
# What people run without arguments. Only a policy can then be wrong.
BARE = {"test-emulator", "test-onnx", "test-upstream", "test-llm", "audit", "fuzz"}
POLICY = "qnn.toml"


@dataclass
class Failure:
    """Why a session failed, and its exit code."""

    session: str
    code: int
    cause: str


# Of this call of nox: the sessions that it has started, those that passed, and why others failed.
started: set[str] = set()
finished: list[str] = []
failures: list[Failure] = []


def run_module(session: nox.Session, group: str, *words: str, executorch: str = "") -> None:
    """Run ``python -m WORDS`` in the environment of a dependency group. ``executorch`` selects
    another version of ExecuTorch.

    stderr is kept separate from the output of --json, and an interrupted verb gets time to end its
    processes. A failure is recorded for ``end_run``.
    """
    python = make_environment(session, group, executorch)
    env = {
        "QNN_CI_COMMAND": os.environ.get("QNN_CI_COMMAND", "nox"),
        "QNN_CI_SESSION": session.name,
        "QNN_CI_SESSIONS": list_sessions(session),
        "QNN_CI_FINISHED": " ".join(finished),
    }
    if executorch:
        # ExecuTorch 1.2 looks for its flatc on PATH.
        env["PATH"] = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    # As Ctrl-C does, SIGTERM lets nox wait for the verb, which ends its own processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="qnn-ci-") as folder:
        cause = Path(folder) / "cause"
        try:
            session.run(
                str(python),
                "-m",
                *words,
                env={**env, "QNN_CI_CAUSE_FILE": str(cause)},
                stderr=None,
                interrupt_timeout=3,
                terminate_timeout=10,
            )
        except CommandFailed as error:
            text = cause.read_text("utf-8").strip() if cause.is_file() else ""
            failures.append(Failure(session.name, error.return_code or 1, text))
            raise
        except KeyboardInterrupt:
            failures.clear()  # nox ends with 130
            raise
    finished.append(session.name)


def choose_executorch(session: nox.Session) -> str:
    """Return the version of ExecuTorch to use, or '' for the default version.

    If --executorch is set, this is its version. Otherwise, it is the version that an earlier
    session of this call built, unless a QNN SDK is set (--sdk, QNN_CI_SDK) or this machine cannot
    lower with the build's SDK. An unsupported version fails the session.
    """
    # Only the options that decide the environment: the verb, which parses all of them, is not
    # installed yet.
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--executorch", default="")
    options.add_argument("--reports", type=Path, default=Path("reports"))
    options.add_argument("--sdk", default=os.environ.get("QNN_CI_SDK", ""))
    try:
        arguments = options.parse_known_args(session.posargs)[0]
    except SystemExit:  # the verb reports what is wrong with its arguments
        return ""
    torch_versions, default = read_pairs()
    version: str = arguments.executorch
    # `./nox -s build_aot test_emulator` lowers for what was just built.
    builds = [name for name in finished if name.startswith("build_")]
    if builds and not (version or arguments.sdk):
        path = arguments.reports / builds[-1] / "artifacts.json"
        build = json.loads(path.read_text("utf-8"))["builds"][-1]
        if build["lowers_with"]:
            version = build["identity"]["executorch_version"]
    if version not in {"", *torch_versions}:
        supported = ", ".join(torch_versions)
        cause = f"ExecuTorch {version} is not supported; pass --executorch with one of {supported}"
        fail(session, USAGE, cause)
    return "" if version == default else version


def list_sessions(session: nox.Session) -> str:
    """Return the names of this call's sessions, separated by spaces, or "" for a single session.
    Several sessions share the arguments after ``--``."""
    names: list[str] = list(session._runner.global_config.sessions or ())  # nox has no public API
    return " ".join(names) if len(names) > 1 else ""


def fail(session: nox.Session, code: int, cause: str) -> NoReturn:
    """End a session with a documented exit code."""
    failures.append(Failure(session.name, code, cause))
    session.error(cause)


def end_run() -> None:
    """Exit with the code of the first failure. After several sessions, print the cause of that
    failure again.

    nox exits with 1 for any failure (final_reduce in nox/tasks.py), and a SystemExit in a session
    would skip later sessions and the summary. os._exit also skips the exit handlers that were
    registered before this one.
    """
    if not failures:
        return
    first = failures[0]
    if len(started) > 1:
        sys.stderr.write(f"nox > {first.session} failed first, with exit code {first.code}\n")
        sys.stderr.write(f"{first.cause}\n" if first.cause else "")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(first.code if 0 < first.code < 256 else 1)


def find_environment(session: nox.Session, group: str, executorch: str = "") -> PythonEnvironment:
    """Return a dependency group's environment, which need not exist yet. If .nox is a link, the
    environment is in its target, because the programs in an environment contain its path."""
    folder = Path(session.env_dir).parent.resolve()
    lock = Lock(group, executorch)
    return PythonEnvironment(folder / lock.name, lock)


def make_environment(session: nox.Session, group: str, executorch: str = "") -> Path:
    """Create or update a group's environment if needed, and return the path of its Python. Fail
    the session if this machine cannot run it, or if it cannot be created."""
    started.add(session.name)
    require_host(session, group)
    environment = find_environment(session, group, executorch)
    if not environment.lock.path.is_file():
        fail(session, USAGE, f"the tests do not work with ExecuTorch {executorch}")
    try:
        environment.create(session)
    except (UnwritableError, SettingsError) as error:
        fail(session, DOWNLOAD, str(error))
    except CommandFailed:
        hint = "see the output above, and check the disk, pip's index, proxy and certificates"
        cause = f"{environment.folder} could not be created: {hint} (pip config list)"
        fail(session, DOWNLOAD, cause)
    return environment.python


def require_host(session: nox.Session, group: str) -> None:
    """Fail a session that this machine cannot run, before anything is installed."""
    system, machine = platform.system(), platform.machine()
    if system == "Windows":
        cause = "sessions do not run on Windows; on x86-64, all of them run in WSL 2"
        fail(session, ENVIRONMENT, cause)
    if group in LARGE and (system, machine) != ("Linux", "x86_64"):
        needs = f"{session.name} needs Linux on x86-64, such as in a CI job"
        fail(session, ENVIRONMENT, f"{needs}; this is {system} {machine}, where {ELSEWHERE} work")


def run_verb(session: nox.Session, verb: str, *words: str) -> None:
    """Run a verb with ``words`` in the environment that it needs for them."""
    from ci.verbs.registry import choose_environment  # an image's environments do without verbs

    group = choose_environment([verb, *words])
    if group in LARGE and needs_only_core(session, group, verb, *words):
        group = "core"
    if group in LARGE:
        fetch_library(session, group)
    lowers = verb in {"test-emulator", "test-upstream", "audit"}
    executorch = choose_executorch(session) if lowers else ""
    if verb == "doctor" and not any(word.startswith("--python") for word in words):
        # The doctor itself needs no torch, but examines the Python that has it.
        examined = find_environment(session, "lowering")
        if {"onnx", "onnx-sdk"} & {*words}:
            examined = find_environment(session, "onnx")
        elif "litert" in words:
            examined = find_environment(session, "litert")
        if examined.can_run():
            words = (*words, "--python", str(examined.python))
    run_module(session, group, "ci", verb, *words, executorch=executorch)


def needs_only_core(session: nox.Session, group: str, verb: str, *words: str) -> bool:
    """Return whether the small environment is enough for this call of a verb, because the verb
    refuses ``words`` or this Python, or needs none of the group's packages for them. Verbs check
    their arguments first, and then that these packages are installed. So a mistake is reported
    before the group is installed, which takes minutes."""
    require_host(session, group)
    if verb == "test-onnx" and sys.version_info < (3, 11):
        return True
    caller = Path(os.environ.get("QNN_CI_CALLER_DIR", ROOT))
    has_policy = any((folder / POLICY).exists() for folder in (caller, *caller.parents))
    is_plain = not words and verb in BARE and not has_policy
    if is_plain or find_environment(session, group).is_complete():
        return False
    command = [str(make_environment(session, "core")), "-m", "ci", verb, *words]
    env = {**os.environ, "QNN_CI_SESSIONS": list_sessions(session)}
    if verb == "setup":  # works without the packages, and reports that they are missing
        env["QNN_CI_ONLY_PARSE"] = "1"
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=False)
    return ended.returncode == USAGE or (ended.returncode == 0 and verb != "setup")


def run_build(session: nox.Session, verb: str, *words: str) -> None:
    """Build a target. Before torch is installed, check that no other requirement is missing."""
    if not find_environment(session, "lowering").is_complete():
        run_module(session, "core", "ci", verb, *words[:1], "--check", *words[1:])
    executorch = choose_executorch(session) if words[0] == "aot" else ""
    run_module(session, "lowering", "ci", verb, *words, executorch=executorch)


def run_runtimes(session: nox.Session) -> None:
    """Judge models by several runtimes, each in its own environment, and compare the results."""
    from ci.verbs.environments import choose_runtimes

    pythons = []
    for runtime, group in choose_runtimes(session.posargs).items():
        fetch_library(session, group)
        pythons.append(f"--python={runtime}={make_environment(session, group)}")
    run_module(session, "core", "ci", "test", *pythons, *session.posargs)


def list_verbs() -> list[str]:
    """Return the names of all verbs."""
    from ci.verbs.registry import RENAMED, VERBS  # an image's environments do without verbs

    return [*VERBS, *RENAMED]


def accepts_arguments(session: nox.Session, module: str) -> bool:
    """Return whether a module of the group ``test`` has something to do for a session's arguments:
    False if it printed its help. If it refuses them, fail the session before the environment is
    installed. With QNN_CI_ONLY_PARSE, the module only checks its arguments, and needs no other
    package than those of nox for this."""
    require_host(session, "test")
    if find_environment(session, "test").is_complete():
        return True  # the module itself refuses them at once
    command = [sys.executable, "-m", module, *session.posargs]
    env = {**os.environ, "QNN_CI_ONLY_PARSE": "1"}
    checked = subprocess.run(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False
    )
    sys.stdout.write(checked.stdout)
    if checked.returncode:
        fail(session, checked.returncode, f"{session.name} does not accept these arguments")
    return not checked.stdout


def fetch_library(session: nox.Session, group: str) -> None:
    """If the group's environment does not exist yet and libatomic.so.1 is missing, build that
    library first, so that a failure shows before torch is installed."""
    require_host(session, group)
    if find_environment(session, group).is_complete():
        return
    try:
        # libQnnSystem.so needs three functions of it, and some machines lack it.
        ctypes.CDLL("libatomic.so.1")
    except OSError:
        session.log("libatomic.so.1 is missing, so it is built before torch is installed")
        words = [word for word in session.posargs if word == "--offline"]
        run_module(session, "core", "ci", "fetch", "libatomic", *words)


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


def list_nox_words() -> list[str]:
    """Return nox's own arguments, which are those before ``--``."""
    return sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]


def run_nox() -> None:
    """Run nox with the arguments of ./nox. If nox does not understand them, print how to write
    them, and exit with USAGE."""
    sys.argv[0] = "nox"
    command = os.environ.get("QNN_CI_COMMAND", "nox")
    if sys.argv[1:] in ([], ["-l"], ["--list"], ["--list-sessions"]):
        from ci.verbs.groups import describe_sessions  # an image's environments do without verbs

        documented = {name: func.__doc__ or "" for name, func in nox.registry.get().items()}
        sys.stdout.write(describe_sessions(command, documented))
        return
    try:
        nox.main()
    except SystemExit as ended:
        if ended.code not in {2, 3}:  # a wrong argument, an unknown session
            raise
        names = [*nox.registry.get(), *list_verbs()]
        near = (difflib.get_close_matches(word, names, 1) for word in list_nox_words())
        name = next(filter(None, near), ["SESSION"])[0]
        sys.stderr.write(f"  fix: {command} -s {name} -- ARGUMENTS; {command} -l lists sessions\n")
        sys.exit(USAGE)
