"""Sessions of executorch-qnn-ci: ``./nox -s test_emulator``.

Each session runs a process in an environment with one dependency group of pyproject.toml. Sessions
share environments: ``core`` is small and ``lowering`` has torch, so that sessions without torch do
not wait for it.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import difflib
import hashlib
import json
import logging
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackagePath, distributions
from importlib.util import cache_from_source
from pathlib import Path

import nox
from nox.command import CommandFailed
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

nox.needs_version = ">=2025.10"
nox.options.default_venv_backend = "none"  # environments are created below, each under its own lock
# nox looks for uv even if no session uses it.
logging.getLogger("nox").addFilter(lambda record: record.msg != "uv binary not found.")
nox.options.sessions = []  # `./nox` alone lists the sessions

ROOT = Path(__file__).resolve().parent
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
# On the default package index, torch is a CUDA build of several GB.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Four workers for two cores, since many tests wait. The tests of most files run in one worker (see
# tests/conftest.py) and share setup such as a process that imported torch.
PARALLEL = ("-n4", "--dist", "loadfile", "--no-loadscope-reorder")
PROBE_S, HEARTBEAT_S = 2.0, 15.0
USAGE, ENVIRONMENT, DOWNLOAD = 2, 3, 4  # docs/reference/exit-codes.md
# Groups that are useful only on machines that can run QNN's host libraries.
LARGE = ("lowering", "onnx", "onnx-torch", "test")
# Modules that are rarely imported, although they are half of the files of an environment. They are
# compiled only when they are imported.
RARE = (
    r"site-packages/((pip|setuptools|pygments/lexers|scipy|sklearn|sympy/physics|coremltools"
    r"|huggingface_hub|textual|narwhals|onnxruntime/transformers)/"
    r"|.*/(tests?|testing|examples|benchmarks)/)"
)


@dataclass
class Failure:
    """Why a session failed, and its exit code."""

    session: str
    code: int
    cause: str


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
    # ExecuTorch 1.2 looks for its flatc there.
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="qnn-ci-") as folder:
        cause = Path(folder) / "cause"
        command = os.environ.get("QNN_CI_COMMAND", "nox")
        try:
            session.run(
                str(python),
                "-m",
                *words,
                env={
                    **({"PATH": path} if executorch else {}),
                    "QNN_CI_CAUSE_FILE": str(cause),
                    "QNN_CI_COMMAND": command,
                    "QNN_CI_SESSIONS": list_sessions(session),
                    "QNN_CI_FINISHED": " ".join(finished),
                },
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
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--executorch", default="")
    options.add_argument("--reports", type=Path, default=Path("reports"))
    options.add_argument("--sdk", default=os.environ.get("QNN_CI_SDK", ""))
    try:
        asked = options.parse_known_args(session.posargs)[0]
    except SystemExit:  # the verb reports what is wrong with its arguments
        return ""
    known, default = read_pairs()
    version: str = asked.executorch
    builds = [name for name in finished if name.startswith("build_")]
    if builds and not (version or asked.sdk):
        path = asked.reports / builds[-1] / "artifacts.json"
        row = json.loads(path.read_text("utf-8"))["builds"][-1]
        version = row["identity"]["executorch_version"] if row["lowers_with"] else ""
    if version not in {"", *known}:
        others = ", ".join(known)
        what = f"ExecuTorch {version} is not supported; pass --executorch with one of {others}"
        fail(session, USAGE, what)
    return "" if version == default else version


def read_pairs() -> tuple[dict[str, str], str]:
    """Return the torch version for each supported ExecuTorch, and the default ExecuTorch."""
    pairs = nox.project.load_toml(ROOT / "manifests" / "pairs.toml")
    return {row["executorch"]: row["torch"] for row in reversed(pairs["supported"])}, pairs[
        "default"
    ]


def list_sessions(session: nox.Session) -> str:
    """Return the names of this call's sessions, separated by spaces, or "" for a single session.
    Several sessions share the arguments after ``--``."""
    names: list[str] = list(session._runner.global_config.sessions or ())  # nox has no public API
    return " ".join(names) if len(names) > 1 else ""


def fail(session: nox.Session, code: int, cause: str) -> None:
    """End a session with a documented exit code."""
    failures.append(Failure(session.name, code, cause))
    session.error(cause)


@atexit.register
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


def find_environment(session: nox.Session, group: str, executorch: str = "") -> Path:
    """Return the path of a dependency group's environment, which need not exist yet. If .nox is a
    link, the path is the link's target, because the programs in an environment contain its path."""
    folder = Path(session.env_dir).parent.resolve()
    return folder / "-".join(filter(None, (group, executorch)))


def list_packages(group: str, executorch: str = "") -> list[str]:
    """Return a dependency group's packages. ``executorch`` selects another version of ExecuTorch,
    and the version of torch that manifests/pairs.toml pairs with it.
    """
    named = {"executorch": executorch, "torch": read_pairs()[0][executorch]} if executorch else {}
    own = {name: f"{name}=={version}" for name, version in named.items()}
    wanted = nox.project.dependency_groups(PYPROJECT, group)
    return [own.get(one.partition("==")[0], one) for one in wanted]


def is_made(environment: Path, group: str, executorch: str = "") -> bool:
    """Return whether an environment is complete, was created for its group's current packages in
    pyproject.toml and for the running version of Python, and this user can run its Python. One of
    another user, or whose Python was removed, is not."""
    try:
        stamp = (environment / "installed.sha256").read_text()
    except (OSError, UnicodeDecodeError):
        return False
    return can_run(environment) and stamp == digest_group(group, executorch)


def can_run(environment: Path) -> bool:
    """Return whether this user can run the Python of an environment."""
    python = environment / "bin" / "python"
    return os.access(python, os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def digest_group(group: str, executorch: str = "") -> str:
    """Return a digest of a dependency group's packages and the version of the running Python."""
    wanted = list_packages(group, executorch)
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return hashlib.sha256("\n".join([python, *wanted]).encode()).hexdigest()


def make_environment(session: nox.Session, group: str, executorch: str = "") -> Path:
    """Create or update a group's environment if needed, and return the path of its Python. Fail
    the session if this machine cannot run it."""
    started.add(session.name)
    require_host(session, group)
    environment = find_environment(session, group, executorch)
    python = environment / "bin" / "python"
    if is_made(environment, group, executorch):
        return python
    with locked(session, environment.with_name(f"{environment.name}.lock")):
        if not is_made(environment, group, executorch):
            install(session, environment, group, executorch)
    return python


def require_host(session: nox.Session, group: str) -> None:
    """Fail a session that this machine cannot run, before anything is installed."""
    system, machine = platform.system(), platform.machine()
    if system == "Windows":
        fail(
            session,
            ENVIRONMENT,
            "sessions do not run on Windows; on x86-64, all of them run in WSL 2",
        )
    if group in LARGE and (system, machine) != ("Linux", "x86_64"):
        needs = (
            f"{session.name} needs Linux on x86-64, such as in a CI job; this is {system} {machine}"
        )
        fail(session, ENVIRONMENT, f"{needs}, where {ELSEWHERE} work")


ELSEWHERE = "parity, plan, sign_skel and `./nox -s qnn_ci -- report`"


@contextmanager
def locked(session: nox.Session, path: Path) -> Iterator[None]:
    """Hold a lock for the duration of the block. While another process holds it, print a note and
    wait."""
    import fcntl  # does not exist on Windows

    try:
        path.parent.mkdir(exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        fail(session, DOWNLOAD, f"{path.parent} cannot be written ({error.strerror}); {MOVE}")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with heartbeat(session, f"waiting for another nox process that creates {path.stem}"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


MOVE = "copy the checkout to a directory that you own, or install it: pip install ."


def install(session: nox.Session, environment: Path, group: str, executorch: str = "") -> None:
    """Create an environment with the group's packages. It counts as complete only after all of them
    are installed."""
    stamp = environment / "installed.sha256"
    try:
        stamp.unlink(missing_ok=True)
    except OSError as error:
        cause = f"{environment} cannot be written ({error.strerror})"
        fail(session, DOWNLOAD, f"{cause}; remove it, or {MOVE}")
    wanted = list_packages(group, executorch)
    python = str(environment / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-q", "--no-compile"]
    # pip would compile on one core. Exit code 1 is fine: packages contain files that do not
    # compile.
    compile_all = [python, "-m", "compileall", "-qq", "-j0", "-x", RARE, str(environment / "lib")]
    quiet = {"silent": True, "log": False}  # heartbeat prints progress; pip prints only errors
    try:
        session.run(sys.executable, "-m", "virtualenv", "-q", str(environment), **quiet)
        with heartbeat(session, f"installing {len(wanted)} packages into {environment.name}"):
            missing = link_packages(environment, wanted)
            for torch in (one for one in wanted if one.startswith("torch==")):
                if "torch" in missing:
                    session.run(*pip, "--no-deps", torch, *choose_index(session), **quiet)
            if missing:
                session.run(*pip, *wanted, **quiet)
                session.run(*compile_all, success_codes=[0, 1], **quiet)
    except CommandFailed:
        hint = "see pip's output above, and check the disk, pip's index, proxy and certificates"
        fail(session, DOWNLOAD, f"{environment} could not be created: {hint} (pip config list)")
    stamp.write_text(digest_group(group, executorch))


def link_packages(environment: Path, wanted: list[str]) -> list[str]:
    """Link the wanted packages, and what they depend on, from this checkout's other environments,
    as hard links, which take no space and little time. Return the names of what is missing."""
    missing = [Requirement(one).name for one in wanted]
    for site in environment.glob("lib/python*/site-packages"):
        for stamp in sorted(environment.parent.glob("*/installed.sha256")):
            have = list_installed(site)
            other = list_installed(stamp.parent.resolve() / site.relative_to(environment))
            for name, package in resolve(wanted, {**other, **have}).items():
                if package and name not in have:
                    link_files(package, site)
        found = resolve(wanted, list_installed(site))
        missing = [name for name, package in found.items() if package is None]
    return missing


def list_installed(site: Path) -> dict[str, Distribution]:
    """Return the packages in a site-packages by name."""
    return {canonicalize_name(one.name): one for one in distributions(path=[str(site)])}


def resolve(wanted: list[str], packages: dict[str, Distribution]) -> dict[str, Distribution | None]:
    """Return the packages that are wanted, and those that they depend on, by name: None if there is
    none of the required version."""
    found: dict[str, Distribution | None] = {}
    todo = [(Requirement(one), "") for one in wanted]
    seen = set()
    while todo:
        need, extra = todo.pop()
        if (str(need), extra) in seen or not applies(need, extra):
            continue
        seen.add((str(need), extra))
        name = canonicalize_name(need.name)
        package = packages.get(name)
        is_met = package and need.specifier.contains(package.version, prereleases=True)
        if not is_met:
            found[name] = None
        elif found.setdefault(name, package):
            inner = [Requirement(one) for one in package.requires or ()]
            todo += [(one, extra) for one in inner for extra in ("", *need.extras)]
    return found


def applies(need: Requirement, extra: str) -> bool:
    """Return whether a package that was asked for with ``extra`` has a requirement here."""
    return not need.marker or need.marker.evaluate({"extra": extra})


def link_files(package: Distribution, site: Path) -> None:
    """Link a package's files and what was compiled of them, unless a file was changed, cannot be
    linked or is outside of the environment. Scripts are copied, because they contain the path of
    their environment."""
    old = Path(str(package.locate_file("")))
    environments = os.fsencode(old.parents[2]), os.fsencode(site.parents[2])
    files = [str(file) for file in package.files or ()]
    compiled = [cache_from_source(name) for name in files if name.endswith(".py")]
    names = dict.fromkeys([*files, *(name for name in compiled if (old / name).exists())])
    places = [Path(os.path.normpath(site / name)) for name in names]
    with suppress(OSError):
        if any(site.parents[2] not in place.parents for place in places):
            return
        records = [old / name for name in files if name.endswith(".dist-info/RECORD")]
        made = max((record.stat().st_mtime for record in records), default=0.0)
        if any(is_changed(file, old, made) for file in package.files or ()):
            return
        # A package whose dist-info is there counts as installed.
        for name in sorted(names, key=lambda name: ".dist-info" in name):
            source, target = old / name, site / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            if name.startswith("..") and source.read_bytes()[:2] == b"#!":
                target.write_bytes(source.read_bytes().replace(*environments, 1))
                shutil.copymode(source, target)
            else:
                target.hardlink_to(source)


def is_changed(file: PackagePath, site: Path, made: float) -> bool:
    """Return whether a file has not the size with which it was installed, or was written after
    RECORD, at ``made`` (s)."""
    is_made_here = file.parts[0] == ".." or file.suffix == ".pyc"
    state = (site / file).stat()
    return not is_made_here and (file.size not in {None, state.st_size} or state.st_mtime > made)


def choose_index(session: nox.Session) -> list[str]:
    """Return pip's options for the package index of torch: QNN_CI_TORCH_INDEX if it is set,
    otherwise PyTorch's CPU index if it responds. An empty list selects pip's configured index."""
    index = os.environ.get("QNN_CI_TORCH_INDEX")
    if index is None and answers(f"{CPU_INDEX}/torch/"):
        session.log(f"torch: 0.2 GB from {CPU_INDEX}")
        return ["--index-url", CPU_INDEX]
    if index is None:
        session.log(f"torch: {CPU_INDEX} does not respond, so pip's index is used")
        session.log("torch: if that has a CUDA build, 3 GB; QNN_CI_TORCH_INDEX=URL chooses another")
        return []
    if index in {"", "none"}:
        session.log("torch: from pip's index (QNN_CI_TORCH_INDEX); 3 GB if that has a CUDA build")
        return []
    session.log(f"torch: from {index} (QNN_CI_TORCH_INDEX)")
    return ["--index-url", index]


def answers(url: str) -> bool:
    """Return whether a URL can be read. The answer takes at most PROBE_S seconds, even if resolving
    the host's name hangs."""
    import urllib.request

    found = threading.Event()

    def ask() -> None:
        with suppress(OSError, ValueError):
            request = urllib.request.Request(url, method="HEAD")  # noqa: S310
            with urllib.request.urlopen(request, timeout=PROBE_S):  # noqa: S310
                found.set()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PROBE_S)
    return found.is_set()


@contextmanager
def heartbeat(session: nox.Session, what: str) -> Iterator[None]:
    """Print ``what`` at the start of the block and then, with the elapsed time, every HEARTBEAT_S
    seconds until its end."""
    begun, ended = time.monotonic(), threading.Event()

    def repeat() -> None:
        while not ended.wait(HEARTBEAT_S):
            session.log(f"{what}: {time.monotonic() - begun:.0f} s")

    session.log(what)
    threading.Thread(target=repeat, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def run_verb(session: nox.Session, verb: str, *words: str) -> None:
    """Run a verb with ``words`` in the environment that it needs for them."""
    group = ask_ci("--environment", verb, *words)
    if group in LARGE and needs_only_core(session, group, verb, *words):
        group = "core"
    if group in LARGE:
        fetch_library(session, group)
    lowers = verb in {"test-emulator", "test-upstream", "audit"}
    executorch = choose_executorch(session) if lowers else ""
    name = "onnx" if {"onnx", "onnx-sdk"} & {*words} else "lowering"
    lowering = find_environment(session, name)
    if verb == "doctor" and can_run(lowering) and "--python" not in " ".join(words):
        # The doctor itself needs no torch.
        words = (*words, "--python", str(lowering / "bin" / "python"))
    run_module(session, group, "ci", verb, *words, executorch=executorch)


# What people run without arguments. Only a policy can then be wrong.
BARE = {"test-emulator", "test-onnx", "test-upstream", "test-llm", "audit", "fuzz"}
POLICY = "qnn.toml"


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
    if is_plain or is_made(find_environment(session, group), group):
        return False
    command = [str(make_environment(session, "core")), "-m", "ci", verb, *words]
    env = {**os.environ, "QNN_CI_SESSIONS": list_sessions(session)}
    if verb == "setup":  # works without the packages, and reports that they are missing
        env["QNN_CI_ONLY_PARSE"] = "1"
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=False)
    return ended.returncode == USAGE or (ended.returncode == 0 and verb != "setup")


def run_build(session: nox.Session, verb: str, *words: str) -> None:
    """Build a target. Before torch is installed, check that no other requirement is missing."""
    if not is_made(find_environment(session, "lowering"), "lowering"):
        run_module(session, "core", "ci", verb, *words[:1], "--check", *words[1:])
    executorch = choose_executorch(session) if words[0] == "aot" else ""
    run_module(session, "lowering", "ci", verb, *words, executorch=executorch)


def ask_ci(*words: str) -> str:
    """Return what ``python -m ci WORDS`` prints. It needs only the standard library."""
    command = [sys.executable, "-m", "ci", *words]
    return subprocess.check_output(command, cwd=ROOT, text=True).strip()


# The sessions that run a verb with the arguments of the session, and what they do.
SESSIONS = {
    "test_emulator": "Lower models, run them on the HTP emulator, and judge their outputs.\n\n"
    "With ``--suite faults``, run the graphs with known faults instead.",
    "test_upstream": "Run ExecuTorch's own QNN tests on the HTP emulator, and judge their outputs, "
    "too.",
    "test_onnx": "Compile ONNX models with ONNX Runtime, run them on the emulator, and judge their "
    "outputs.",
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
def test_trained(session: nox.Session) -> None:
    """Judge trained models whose correct verdicts are known.

    Options: ``--model 'pnet*'``, ``--lane onnx``.
    """
    if not accepts_arguments(session, "tests.trained"):
        return
    fetch_library(session, "test")
    python = make_environment(session, "test")
    session.run(str(python), "-m", "tests.trained", *session.posargs)


def accepts_arguments(session: nox.Session, module: str) -> bool:
    """Return whether a module of the group ``test`` has something to do for a session's arguments:
    False if it printed its help. If it refuses them, fail the session before the environment is
    installed. With QNN_CI_ONLY_PARSE, the module only checks its arguments, and needs no other
    package than those of nox for this."""
    require_host(session, "test")
    if is_made(find_environment(session, "test"), "test"):
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
    if is_made(find_environment(session, group), group):
        return
    try:
        ctypes.CDLL("libatomic.so.1")
    except OSError:
        session.log("libatomic.so.1 is missing, so it is built before torch is installed")
        words = [word for word in session.posargs if word == "--offline"]
        run_module(session, "core", "ci", "fetch", "libatomic", *words)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the project's own tests."""
    run_tests(session, "test")


@nox.session(default=False)
def unit(session: nox.Session) -> None:
    """Run the tests that need neither torch nor a download."""
    run_tests(session, "unit", "tests/unit")


def run_tests(session: nox.Session, group: str, *folders: str) -> None:
    """Run pytest with the programs of an environment first on PATH. ``folders`` are left out if the
    user's arguments name files or folders of tests, from the root or from the user's directory."""
    python = make_environment(session, group)
    words = [*(session.posargs or PARALLEL)]
    caller = Path(os.environ.get("QNN_CI_CALLER_DIR", ROOT))
    for place, word in enumerate(words):
        path, *test = word.split("::", 1)
        if "tests" in word and (caller / path).exists():
            words[place] = "::".join([os.path.relpath(caller / path, ROOT), *test])
    if not any(Path(word.partition("::")[0]).exists() for word in words if "tests" in word):
        words += folders
    env = {"PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    report = f"--junit-xml={ROOT / 'reports' / session.name / 'junit.xml'}"
    session.run(str(python), "-m", "pytest", report, *words, env=env)


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
        run_module(session, "test", "tests.bench", *session.posargs)


@nox.session(default=False)
def mutants(session: nox.Session) -> None:
    """Insert small faults into the code that decides verdicts, and check that tests detect them."""
    if accepts_arguments(session, "tests.mutants"):
        run_module(session, "test", "tests.mutants", *session.posargs)


@nox.session(default=False)
def build_runner(session: nox.Session) -> None:
    """Build the x86-64 runner against the wheel or a checkout."""
    run_module(session, "lowering", "ci", "build", "runner", *session.posargs)


@nox.session(default=False)
def release(session: nox.Session) -> None:
    """Build the sdist, the wheel and the SBOM in dist/, and the documentation in build/site."""
    python = make_environment(session, "release")
    core = make_environment(session, "core")
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
    known = PYPROJECT["dependency-groups"]
    if unknown := [group for group in groups if group not in known]:
        what = f"pyproject.toml has no dependency group {unknown[0]}; use {', '.join(known)}"
        fail(session, USAGE, what)
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
    known = nox.registry.get()
    unknown = [word for word in list_words() if word not in known and word[:1] != "-"]
    verbs = ask_ci("--environment").split() if unknown else []
    for name in unknown:
        if (verb := name.replace("_", "-")) in verbs:
            add_session(name, verb)


def list_words() -> list[str]:
    """Return nox's own arguments, which are those before ``--``."""
    return sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]


def main() -> None:
    """Run nox for the script ./nox. If nox does not understand the arguments, print how to write
    them, and exit with USAGE."""
    sys.argv[0] = "nox"
    try:
        nox.main()
    except SystemExit as ended:
        if ended.code not in {2, 3}:  # a wrong argument, an unknown session
            raise
        names = [*nox.registry.get(), *ask_ci("--environment").split()]
        near = (difflib.get_close_matches(word, names, 1) for word in list_words())
        name = next(filter(None, near), ["SESSION"])[0]
        command = os.environ.get("QNN_CI_COMMAND", "nox")
        sys.stderr.write(f"  fix: {command} -s {name} -- ARGUMENTS; {command} -l lists sessions\n")
        sys.exit(USAGE)


if __name__ == "__main__":
    main()
elif __name__ == "user_nox_module":  # how nox loads this file, with an empty registry
    add_verbs()
