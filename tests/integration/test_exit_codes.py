"""Each exit code of docs/reference/exit-codes.md, by a real command; each cause has one code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioning.errors import ExitCode
from tests.stand_ins.dsp_toolchains import make_inputs
from tests.stand_ins.forks import Forks, start_forks

ROOT = Path(__file__).parents[2]
SIGN = "ci sign --lpai-arch v6 --qnn-sdk {tmp}/qairt --out {tmp}/signed --signer"
# A verb that ends as its name says.
VERB = """
import os, signal, sys, types
from provisioning.console.command import Verb, run_program
verb = types.ModuleType("verb")
verb.add_arguments = lambda parser: None
verb.execute = lambda args, progress: {action}
sys.modules["verb"] = verb
sys.exit(run_program("p", {{"verb": Verb("verb", "ends")}}, ["verb"]))
"""


@dataclass(frozen=True)
class Case:
    """What is run: ``words`` for ``python -m``, with ``variables`` and stdout where it is sent."""

    name: str
    code: ExitCode
    words: str
    variables: str = ""
    stdout: str = "/dev/null"
    message: str = ""


CASES = (
    Case("fine", ExitCode.OK, "provisioning list"),
    Case("an unsigned library", ExitCode.FAILED, "ci sign --verify {elf}/libhexagon.so"),
    Case("no such artifact", ExitCode.USAGE, "provisioning fetch nonsense"),
    Case("no such policy", ExitCode.USAGE, "ci parity --source {tmp} --policy {tmp}/none.toml"),
    Case("nothing is provisioned", ExitCode.ENVIRONMENT, "provisioning doctor emulator"),
    Case("not in the store", ExitCode.DOWNLOAD, "provisioning fetch qnn-runtime-aarch64 --offline"),
    Case("a signer that fails", ExitCode.TOOL, f"{SIGN} false"),
    Case("no signer", ExitCode.ENVIRONMENT, f"{SIGN} {{tmp}}/none"),
    # No room, and no permission, wherever something is written.
    Case("stdout is full", ExitCode.DOWNLOAD, "provisioning list", stdout="/dev/full"),
    Case(
        "no room for SARIF",
        ExitCode.DOWNLOAD,
        "ci parity --source {tmp} --no-cache --sarif /dev/full",
        message="there is no space left for /dev/full",
    ),
    Case(
        "SARIF below /proc",
        ExitCode.DOWNLOAD,
        "ci parity --source {tmp} --no-cache --sarif /proc/none/log.sarif",
        message="/proc/none/log.sarif cannot be written",
    ),
    Case(
        "a store below /proc",
        ExitCode.DOWNLOAD,
        "provisioning fetch libcxx --offline",
        variables="QNN_CI_HOME=/proc/none",
        message="/proc/none cannot be written",
    ),
    Case(
        "a library signed below /proc",
        ExitCode.DOWNLOAD,
        "ci sign --lpai-arch v6 --qnn-sdk {tmp}/qairt --out /proc/none/signed --signer false",
    ),
)
ACTIONS = {
    "1 // 0": ExitCode.DEFECT,
    "os.kill(os.getpid(), signal.SIGINT)": ExitCode.INTERRUPTED,
    "os.kill(os.getpid(), signal.SIGTERM)": ExitCode.INTERRUPTED,
    "os.write(os.open('/dev/full', os.O_WRONLY), b'x')": ExitCode.DOWNLOAD,
}


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    names = ("fetch", "list")
    modules = (
        "ci.verbs.sign",
        "ci.verbs.parity",
        *(f"provisioning.verbs.{name}" for name in names),
    )
    with start_forks(*modules) as forks:
        yield forks


def run(
    argv: Sequence[str], home: Path, case: Case, forks: Forks | None = None
) -> subprocess.CompletedProcess[str]:
    variables = dict(pair.split("=", 1) for pair in case.variables.split())
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "QNN_CI_HOME": str(home)}
    if forks:
        _, module, *words = argv
        return forks.run_module(module, *words, cwd=home.parent, env={**environment, **variables})
    with Path(case.stdout).open("w") as stdout:
        return subprocess.run(
            [sys.executable, *argv],
            env={**environment, **variables},
            cwd=home.parent,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=1200,
            check=False,
        )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_command_exits_with_its_documented_code(
    case: Case, tmp_path: Path, forks: Forks
) -> None:
    make_inputs(tmp_path)
    (tmp_path / "BUCK").touch()
    (tmp_path / "CMakeLists.txt").write_text("project(executorch)\n")
    words = case.words.format(tmp=tmp_path, elf=ROOT / "tests/artifacts/elf").split()
    # One that succeeds is a process of its own, and one whose standard output is no file.
    is_own_process = case.code is ExitCode.OK or case.stdout != "/dev/null"
    ended = run(["-m", *words], tmp_path / "home", case, None if is_own_process else forks)
    assert ended.returncode == case.code, ended.stderr
    assert case.message in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("action", "code"), ACTIONS.items())
def test_each_verb_exception_has_its_exit_code(action: str, code: ExitCode, tmp_path: Path) -> None:
    ended = run(["-c", VERB.format(action=action)], tmp_path / "home", Case("", code, ""))
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr


def test_every_exit_code_has_a_test_here() -> None:
    assert {case.code for case in CASES} | set(ACTIONS.values()) == set(ExitCode)
