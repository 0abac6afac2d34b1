"""One real run of each session of ``./nox``, and of each verb that no session runs.

``python -m tests.sessions`` types them in fresh clones, as a page's reader would; ``.ci/run`` calls
it after the tests. A session or verb without a row fails
tests/static/test_session_rows.py. A new session needs one row: a short command that a page shows,
and what it prints last.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

from ci.images.engine import connect_engine
from provisioning.console.process import run_process
from tests.documented import devices, readers
from tests.documented.images import describe_machine, find_leaks
from tests.documented.pages import ROOT, Command
from tests.documented.place import CACHE, Place
from tests.documented.table import (
    BUILD,
    BUNDLE,
    INIT,
    KEEP,
    NET,
    PLAN,
    SIGNER,
    Given,
)
from tests.stand_ins.browser import open_browser

BASE_IMAGE = "qnn-ci-tests/bare"  # a bare system, which .ci/run imports
BEFORE = ".ci/run, before the sessions"
SDK = "headers and libraries without code for the SDKs and the NDK, which need a licence"
SOURCES = f"a miniature of ExecuTorch, of which a build takes 12 minutes; {SDK}"


@dataclass(frozen=True)
class SessionRow:
    """A command that runs a session or a verb as its page shows it.

    Its last lines contain ``last``, in order, where `` ... `` stands for anything. ``before`` is
    done first, as in a row of table.py; ``meanwhile`` is there while the command runs, such as a
    phone; ``after`` raises AssertionError if what the command wrote is wrong. ``needs`` are
    programs of the machine, and ``engine`` is a Docker engine. ``stand_in`` says which part is not
    real, and why. ``run_by`` names who runs the command instead, so that it does not run twice.
    """

    name: str
    command: str
    last: str = ""
    code: int = 0
    before: Sequence[Given] = ()
    meanwhile: Callable[[Place], AbstractContextManager[Place]] | None = None
    after: Callable[[Place], None] | None = None
    needs: Sequence[str] = ()
    engine: bool = False
    minutes: float = 5
    stand_in: str = ""
    run_by: str = ""


def remove_downloads(place: Place) -> None:
    """An empty store, as at a newcomer."""
    shutil.rmtree(place.home / CACHE)


def remove_environments(place: Place) -> None:
    """No environment yet, not even the one of nox."""
    (place.clone / ".nox").unlink()


def link_environments(place: Place) -> None:
    """A directory of environments that belongs to the clone, in which images remember their
    base."""
    environments = (place.clone / ".nox").resolve()
    (place.clone / ".nox").unlink()
    (place.clone / ".nox").mkdir()
    for path in environments.iterdir():
        if (path / "pyvenv.cfg").is_file():
            (place.clone / ".nox" / path.name).symlink_to(path)


def open_report_page(place: Place) -> None:
    """The page of a run of test_onnx, in a real browser."""
    with open_browser(place.folder / "browser") as browser:
        browser.open(place.clone / "reports/test_onnx/index.html")
        assert "mlp" in browser.ask("document.body.innerText")
        assert browser.console == []


def find_distributions(place: Place) -> None:
    """What a release consists of."""
    names = {"*.whl", "*.tar.gz", "sbom.cdx.json"}
    missing = [name for name in sorted(names) if not list((place.clone / "dist").glob(name))]
    assert not missing, f"dist/ has no {missing[0]}"
    assert (place.clone / "build/site/index.html").is_file()


def look_into_image(place: Place) -> None:
    """No file of an image's layers names the machine that built it."""
    with connect_engine() as engine:
        leaks = find_leaks(
            engine, "executorch-qnn-ci/emulator:latest", describe_machine(), place.folder
        )
    assert not leaks, f"{leaks[0][0]} in the image contains {leaks[0][1]}"


STAND_IN_BUILD: dict[str, Any] = {**BUILD, "stand_in": SOURCES}
NET_COMMAND = "--model net.py:factory --scheme fp16"
TWO_BUILD_SYSTEMS = (readers.two_build_systems,)
ROWS = (
    # -- the store and the environment --
    SessionRow(
        "provision", "./nox -s provision -- emulator", "qnn-runtime", before=(remove_downloads,)
    ),
    SessionRow(
        "validate",
        "./nox -s validate -- emulator",
        "emulator: fit",
        before=("./nox -s environments -- lowering",),  # which the doctor examines
    ),
    SessionRow(
        "environments", "./nox -s environments -- core", "core", before=(remove_environments,)
    ),
    SessionRow("qnn_ci", "./nox -s qnn_ci -- cache info", "total"),
    SessionRow("list", "qnn-ci list", "profile lpai: "),
    SessionRow("path", "qnn-ci path NAME", "/store/qnn-runtime-"),
    SessionRow("verify", "qnn-ci verify", "all unchanged"),
    SessionRow("env", "qnn-ci env emulator", "QNN_SDK_ROOT"),
    SessionRow("setup", "qnn-ci setup", "export QNN_SDK_ROOT="),
    SessionRow("cache", "qnn-ci cache gc", "freed"),
    SessionRow("lock", "qnn-ci lock NAME...", "nothing changed"),
    SessionRow("update", "qnn-ci update qnn-runtime@2.49.40", "nothing changed"),
    SessionRow(
        "lock-skels",
        "qnn-ci lock-skels WHEEL...",
        "+skels",
        before=(readers.skel_wheel,),
        stand_in="a wheel with a skel without code, since all wheels' skels are listed",
    ),
    # -- models on the emulator --
    SessionRow("test_emulator", "./nox -s test_emulator", run_by=BEFORE),
    SessionRow(
        "test",
        "./nox -s test -- --model net.py:factory",
        "on SM8650: fastest: ",
        before=(readers.net,),
        minutes=15,
    ),
    SessionRow(
        "test_onnx",
        "./nox -s test_onnx -- --model mlp --scheme u8",
        "1 passed, 0 failed",
        after=open_report_page,
        needs=("chromium",),
    ),
    SessionRow(
        "test_litert", "./nox -s test_litert -- --model dense --soc SM8750", "passed ... 0 failed"
    ),
    SessionRow("test_llm", "./nox -s test_llm -- --scheme fp16", "passed ... 0 failed", minutes=10),
    SessionRow(
        "test_upstream",
        "./nox -s test_upstream -- --filter '*FloatingPointOperator::test_qnn_backend_relu*'",
        "2 tests: 2 both",
    ),
    SessionRow(
        "test_trained",
        "./nox -s test_trained -- --model 'pnet*'",
        "3 bad cases, 0 green; 5 good cases, 0 red",
        minutes=15,
    ),
    SessionRow(
        "audit",
        "./nox -s audit -- --model net.py:factory --scheme 8a8w --soc SM8650 --soc QCM6490",
        "an audit does not run QNN's compiler",
        before=NET,
    ),
    SessionRow(
        "mend",
        "./nox -s mend -- --model tests/realistic/lost.py:positions --scheme fp16",
        "0 of 1 case green before, 1 after",
    ),
    SessionRow("fuzz", "./nox -s fuzz -- --graphs 20 --scheme fp16", "seed 0: 20 graphs"),
    SessionRow("localise", f"qnn-ci localise {NET_COMMAND}", "as predicted", before=NET),
    SessionRow(
        "estimate",
        'qnn-ci estimate --model net.py:factory --scheme fp16 --device "Galaxy S24"',
        "simulated for",
        before=NET,
    ),
    SessionRow("judge", "qnn-ci judge kept", "passed", before=(*NET, KEEP)),
    SessionRow(
        "upgrade-report",
        "qnn-ci upgrade-report onnxruntime-qnn==2.5.0 onnxruntime-qnn==2.7.0 --model mlp "
        "--scheme u8",
        "onnxruntime-qnn==2.5.0 -> onnxruntime-qnn==2.7.0: ... worse",
        minutes=10,
    ),
    # -- programs, reports, logs --
    SessionRow(
        "inspect",
        "qnn-ci inspect model.pte --soc SM8750",
        "model.pte for SM8750: no (Hexagon, SoC)",
        1,
        before=(readers.program,),
    ),
    SessionRow("report", "qnn-ci report PATH", "1 passed", before=(readers.report,)),
    SessionRow(
        "verify-evidence",
        "qnn-ci verify-evidence model.pte --evidence evidence.intoto.json --policy qnn.toml",
        "passed ... case: mlp 8a8w SM8650",
        before=(readers.evidence,),
        stand_in="the bytes of a program and its statement, since only a job on GitHub signs one",
    ),
    SessionRow(
        "explain",
        "qnn-ci explain build.log",
        "libc++.so.1: cannot open shared object file",
        1,
        before=(readers.logs,),
    ),
    SessionRow("completion", "qnn-ci completion bash", "qnn"),
    SessionRow("init", INIT, "wrote ... qnn.toml"),
    # -- plans and comparisons --
    SessionRow("plan", "./nox -s plan", "1 file changed", before=(readers.change,)),
    SessionRow("matrix", "qnn-ci matrix plan.json", "include", before=PLAN),
    SessionRow(
        "gate",
        "qnn-ci gate plan.json --needs needs.json --results results",
        "green",
        before=(*PLAN, readers.results),
        stand_in="the results of the jobs, which run on GitHub",
    ),
    SessionRow(
        "parity",
        "./nox -s parity -- --source ~/executorch",
        "cmake-only-source",
        1,
        before=TWO_BUILD_SYSTEMS,
        stand_in="a repository with both build systems instead of a clone of ExecuTorch",
    ),
    # -- builds --
    SessionRow("build_runner", "./nox -s build_runner", "built in", needs=("g++", "make")),
    SessionRow(
        "build_aot",
        "./nox -s build_aot -- --no-proof",
        "to use it ... build_aot/artifacts.json",
        **STAND_IN_BUILD,
    ),
    SessionRow("build_android", "./nox -s build_android", "built in", **STAND_IN_BUILD),
    SessionRow("build_linux", "./nox -s build_linux", "built in", **STAND_IN_BUILD),
    SessionRow(
        "build_direct",
        "./nox -s build_direct -- --soc SM8450",
        "built in",
        **STAND_IN_BUILD,
    ),
    # -- devices, signing, images --
    SessionRow(
        "sign_skel",
        "./nox -s sign_skel -- --lpai-arch v6",
        "signed and verified",
        before=SIGNER,
        stand_in="a signer, and libraries without code: both need Qualcomm's licence",
    ),
    SessionRow("stage", BUNDLE[1], "x86_64-linux for SM8650", before=BUNDLE[:1]),
    SessionRow(
        "deploy",
        "./nox -s deploy -- --device adb: --bundle bundle",
        "is in /data/local/tmp/qnn-ci/bundles/ ... bytes sent",
        before=BUNDLE,
        meanwhile=devices.phone,
        needs=("adb",),
        stand_in="a program that answers the real adb as a phone does, instead of a phone",
    ),
    SessionRow(
        "deploy",
        "qnn-ci deploy --device ssh:board --bundle bundle",
        "is in qnn-ci/bundles/ ... bytes sent",
        before=BUNDLE,
        meanwhile=devices.board,
        needs=("ssh", "sshd"),
        stand_in="this machine behind a real sshd, instead of a board",
    ),
    SessionRow(
        "docker_build",
        "./nox -s docker_build -- emulator --base IMAGE",
        "MB",
        before=(link_environments,),
        after=look_into_image,
        engine=True,
        minutes=20,
    ),
    SessionRow(
        "docker_shell",
        "./nox -s docker_shell -- emulator ./nox -s test_emulator -- --model mlp",
        "passed ... 0 failed",
        before=(link_environments, "./nox -s docker_build -- emulator --base IMAGE"),
        engine=True,
        minutes=15,
    ),
    # -- the project itself --
    SessionRow("tests", "./nox -s tests", run_by=BEFORE),
    SessionRow("lint", "./nox -s lint", run_by=BEFORE),
    SessionRow("journeys", "./nox -s journeys", "passed", minutes=30),
    SessionRow("unit", "./nox -s unit -- tests/unit/ci/audit", "passed"),
    SessionRow("stress", "./nox -s stress", "passed", minutes=30),
    SessionRow("bench", "./nox -s bench -- emulator", "cold: ... warm: ", minutes=20),
    SessionRow(
        "mutants", "./nox -s mutants -- ci/gate/parts.py --sample 10", "10 of ... mutants tried"
    ),
    SessionRow("release", "./nox -s release", "Successfully built", after=find_distributions),
)


@cache
def list_sessions() -> frozenset[str]:
    """The sessions that nox lists."""
    words = [sys.executable, "-m", "nox", "--noxfile", ROOT / "noxfile.py", "--list"]
    return frozenset(re.findall(r"(?m)^[*-] (\S+)", run_process(words, timeout_s=1200).output))


@cache
def read_sessions() -> Mapping[str, list[str]]:
    """The program, verb and words that a session of noxfile.py starts, if it starts one of ours."""
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    calls_of_sessions = {}
    tables = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    }
    for name in tables["SESSIONS"]:
        verb = tables["VERBS"].get(name, name.replace("_", "-"))
        calls_of_sessions[name] = ["ci", *verb.split()]
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            words = [str(word.value) for word in call.args if isinstance(word, ast.Constant)]
            runner = getattr(call.func, "id", "")
            if runner == "run_module" and len(words) > 1:
                calls_of_sessions[function.name] = words[1:]
            if runner == "run_verb" and words:
                calls_of_sessions[function.name] = ["ci", *words]
    for name in ("bench", "mutants"):
        calls_of_sessions[name].append(name)
    del calls_of_sessions["test_trained"]  # a module without verbs
    return calls_of_sessions


def list_names(sessions: Collection[str], verbs: Collection[str]) -> set[str]:
    """The sessions, and the verbs that none of them runs."""
    covered = {words[1] for name, words in read_sessions().items() if words[0] == "ci"}
    return {*sessions, *(verb for verb in verbs if verb not in covered)}


def find_faults(
    rows: Sequence[SessionRow], names: Collection[str], shown: Collection[str]
) -> list[str]:
    """What is wrong with the rows for the sessions and verbs ``names``, if pages show the commands
    ``shown``."""
    faults = [f"{name} has no row" for name in sorted({*names} - {row.name for row in rows})]
    for row in rows:
        command = Command("", row.command)
        typed = {*command.sessions, *(command.verb[1][:1] if command.verb else ())}
        if row.name not in names:
            faults.append(f"{row.name} is neither a session nor a verb without one")
        elif row.name not in typed:
            faults.append(f"{row.name}: `{row.command}` does not run it")
        if command.key not in shown:
            faults.append(f"{row.name}: no page shows `{row.command}`")
        if not (row.last or row.run_by):
            faults.append(f"{row.name}: what `{row.command}` prints last is missing")
    return faults
