"""How a session of noxfile.py runs a verb, in the environment that its arguments need.

It works in the environment of ./nox, see ci.nox_sessions.
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import json
import os
import subprocess
import sys
from pathlib import Path

import nox

from ci.nox_sessions.environments import announce
from ci.nox_sessions.runs import (
    USAGE,
    fail,
    find_environment,
    finished,
    list_sessions,
    make_environment,
    require_host,
    run_module,
)
from ci.packages.locks import LARGE, ROOT, read_pairs
from ci.verbs.environments import OTHERS, choose_runtimes
from ci.verbs.groups import describe_sessions
from ci.verbs.registry import RENAMED, VERBS, choose_environment
from provisioning.errors import QnnCiError
from provisioning.store.home import require_store

# What people run without arguments. Only a policy can then be wrong.
BARE = {"test-emulator", "test-onnx", "test-upstream", "test-llm", "audit", "fuzz"}
POLICY = "qnn.toml"
# The profiles that verbs and runtimes provision first, unless an option asks for something else.
PROFILES = {
    "test-emulator": "emulator",
    "test-llm": "emulator",
    "audit": "emulator",
    "test-onnx": "onnx",
    "fuzz": "onnx",
    "test-litert": "litert",
    "executorch": "emulator",
    "onnxruntime": "onnx",
    "litert": "litert",
}


# Verbs that also work without their packages: setup reports that they are missing, and init writes
# a policy without knowing whether a .tflite file is quantized.
WITHOUT_PACKAGES = frozenset({"setup", "init"})
# Verbs that only read files, and need nothing of the store.
WITHOUT_STORE = frozenset({"init", "inspect", "judge"})
# With one of these, the sessions of a call build nothing.
BUILD_NOTHING = frozenset({"-h", "--help", "--check", "--dry-run"})
# With one of these, a call may need nothing that is not there already.
MAY_FETCH_NOTHING = BUILD_NOTHING | {"--list", "--offline", "--sdk", "--adaptor"}


def run_verb(session: nox.Session, verb: str, *words: str) -> None:
    """Run a verb with ``words`` in the environment that it needs for them."""
    group = choose_environment([verb, *words])
    if group in LARGE and needs_only_core(session, group, verb, *words):
        group = "core"
    if group in LARGE:
        if verb not in WITHOUT_STORE:
            require_writable_store(session, group)
        fetch_library(session, group)
    lowers = verb in {"test-emulator", "test-upstream", "audit"}
    executorch = choose_executorch(session) if lowers else ""
    if verb in PROFILES and group in LARGE:
        install_beside_fetch(session, group, PROFILES[verb], executorch)
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
    if verb in WITHOUT_PACKAGES:
        env["QNN_CI_ONLY_PARSE"] = "1"
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=False)
    return ended.returncode == USAGE or (ended.returncode == 0 and verb not in WITHOUT_PACKAGES)


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
    if BUILD_NOTHING & {*session.posargs}:
        builds = []
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


def run_build(session: nox.Session, verb: str, *words: str) -> None:
    """Build a target. Before torch is installed, check that no other requirement is missing. With
    --check, this is all that was asked for."""
    if not find_environment(session, "lowering").is_complete():
        target, *options = words
        others = [word for word in options if word != "--check"]
        only_check = bool({"--check", "-h", "--help"} & {*options})
        words_of_check = [verb, target, "--check", *others]
        run_module(session, "core", "ci", *words_of_check, is_step=not only_check)
        if only_check:
            return
        finished.remove(session.name)  # it has yet to build
        require_writable_store(session, "lowering")
    executorch = choose_executorch(session) if words[0] == "aot" else ""
    run_module(session, "lowering", "ci", verb, *words, executorch=executorch)


def run_runtimes(session: nox.Session) -> None:
    """Judge models by several runtimes, each in its own environment, and compare the results."""
    pythons = []
    for runtime, group in choose_runtimes(session.posargs).items():
        require_writable_store(session, group)
        fetch_library(session, group)
        python = install_beside_fetch(session, group, PROFILES[runtime])
        pythons.append(f"--python={runtime}={python}")
    run_module(session, "core", "ci", "test", *pythons, *session.posargs)


def require_writable_store(session: nox.Session, group: str) -> None:
    """If the group's environment does not exist yet, fail the session if artifacts could not be
    fetched into the store afterwards."""
    require_host(session, group)
    typed = {word.partition("=")[0] for word in session.posargs}
    may_fetch_nothing = typed & MAY_FETCH_NOTHING or os.environ.get("QNN_CI_SDK")
    if may_fetch_nothing or find_environment(session, group).is_complete():
        return
    try:
        require_store()
    except QnnCiError as error:
        fail(session, error.exit_code, str(error))


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
        run_module(session, "core", "ci", "fetch", "libatomic", *words, is_step=True)


def install_beside_fetch(
    session: nox.Session, group: str, profile: str, executorch: str = ""
) -> Path:
    """Create a group's environment, fetch the artifacts of a profile meanwhile, and return the path
    of the environment's Python. If the fetch fails, the verb fetches again, and reports why.

    If the arguments ask for other artifacts, or for none, nothing is fetched.
    """
    typed = {word.partition("=")[0] for word in session.posargs}
    is_usual = not typed & {"--offline", *OTHERS} and not os.environ.get("QNN_CI_SDK")
    if not is_usual or find_environment(session, group, executorch).is_complete():
        return make_environment(session, group, executorch)
    core = make_environment(session, "core")
    fetch = subprocess.Popen(
        [str(core), "-m", "ci", "fetch", "--quiet", profile],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        python = make_environment(session, group, executorch)
        if fetch.poll() is None:
            with announce(session, "fetching QNN's libraries"):
                fetch.wait()
        return python
    finally:
        fetch.terminate()  # unless it has ended
        fetch.wait()


def list_verbs() -> list[str]:
    """Return the names of all verbs."""
    return [*VERBS, *RENAMED]


def list_nox_words() -> list[str]:
    """Return nox's own arguments, which are those before ``--``."""
    return sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]


def run_nox() -> None:
    """Run nox with the arguments of ./nox. If nox does not understand them, print how to write
    them, and exit with USAGE."""
    sys.argv[0] = "nox"
    command = os.environ.get("QNN_CI_COMMAND", "nox")
    if sys.argv[1:] in ([], ["-l"], ["--list"], ["--list-sessions"]):
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
