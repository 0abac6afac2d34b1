"""How a session of noxfile.py runs a module in a Python environment, and with which exit code a
call of nox ends."""

from __future__ import annotations

import errno
import os
import platform
import signal
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple, NoReturn

import nox
from nox.command import CommandFailed

from ci.nox_sessions.environments import PythonEnvironment
from ci.packages.locks import LARGE, ROOT, Lock
from ci.packages.pip_settings import SettingsError
from provisioning.quoting import shell_word

USAGE, ENVIRONMENT, DOWNLOAD = 2, 3, 4  # docs/reference/exit-codes.md
# Not `pip install .`: nox adds a full stop, and not everyone is in that directory.
INSTALL = f"install the checkout with `pip install {shell_word(str(ROOT))}`"
MOVE = f"{INSTALL}, or copy it to a directory that you own"
ELSEWHERE = "parity, plan, sign_skel and the verb report"


class Failure(NamedTuple):
    """Why a session failed, and its exit code."""

    session: str
    code: int
    cause: str


# Of this call of nox: the sessions that it has started, those that passed, and why others failed.
started: set[str] = set()
finished: list[str] = []
failures: list[Failure] = []


def run_module(
    session: nox.Session, group: str, *words: str, executorch: str = "", is_step: bool = False
) -> None:
    """Run ``python -m WORDS`` in the environment of a dependency group. ``executorch`` selects
    another version of ExecuTorch. With ``is_step``, another module prints the session's result, so
    that stdout, such as a second JSON document, is shown only if this one fails or is interrupted.

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
    with (
        tempfile.NamedTemporaryFile("r", encoding="utf-8", prefix="qnn-ci-") as cause,
        tempfile.TemporaryFile("w+", encoding="utf-8") as step_output,
    ):
        try:
            session.run(
                *(str(python), "-m", *words),
                env={**env, "QNN_CI_CAUSE_FILE": cause.name},
                stdout=step_output if is_step else None,
                stderr=None,
                interrupt_timeout=3,
                terminate_timeout=10,
            )
        except (CommandFailed, KeyboardInterrupt) as error:
            step_output.seek(0)
            sys.stdout.write(step_output.read())
            if isinstance(error, KeyboardInterrupt):
                failures.clear()  # nox ends with 130
            else:
                code = error.return_code or 1
                failures.append(Failure(session.name, code, cause.read().strip()))
            raise
    finished.append(session.name)


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
    except OSError as error:
        problem = f"{error.filename or environment.folder} cannot be written ({error.strerror})"
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        fail(session, DOWNLOAD, f"{problem}; {'free space there' if is_full else MOVE}")
    except SettingsError as error:
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
