"""``setup``: what the steps that follow in a job get, and when it fails.

Provisioning and the doctor's survey are stand-ins; export and outputs are real.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ci.__main__ import main
from ci.verbs import setup as verb
from provisioning.artifacts.environment import DROPPED_VARIABLES, Environment
from provisioning.artifacts.provision import Provisioned
from provisioning.doctor.examine import Verdict
from provisioning.doctor.registry import Finding, Severity
from provisioning.errors import ExitCode
from tests.workflows.commands import Heard

ROOT = "a ##[root"  # a runner takes this for a command, and a shell for two words
BAD = Finding("QNN901", "a library", "it is missing", "lib/", "nothing runs", "fetch it")


@dataclass
class World:
    """What provisioning and the doctor give, and what they were asked for."""

    root: Path
    findings: tuple[Finding, ...] = ()
    repaired: tuple[str, ...] = ()
    while_provisioning: Callable[[], object] = lambda: None
    calls: list[Any] = field(default_factory=list)

    def provision(self, *arguments: Any, **options: Any) -> Environment:
        self.calls.append((arguments[0], options))
        self.while_provisioning()
        runtime = Provisioned("qnn-runtime", "2.49.40", self.root / ROOT, repaired=self.repaired)
        libcxx = Provisioned("libcxx", "18.1", self.root / "libcxx")
        return Environment(arguments[0], (runtime, libcxx), {"QNN_SDK_ROOT": str(runtime.root)})

    def examine(self, profile: str, environment: Environment, **options: Any) -> Verdict:
        self.calls.append((profile, environment.variables, options["python"]))
        return Verdict(profile, self.findings)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    for name in DROPPED_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    fake = World(tmp_path)
    monkeypatch.setattr(verb, "provision_profile", fake.provision)
    monkeypatch.setattr(verb, "examine", fake.examine)
    return fake


@pytest.fixture
def github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """What the job's file of a name, such as ENV, has."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for name in ("ENV", "PATH", "OUTPUT"):
        monkeypatch.setenv(f"GITHUB_{name}", str(tmp_path / name))
    return lambda name: (tmp_path / name).read_text()


def read_outputs(text: str) -> dict[str, Any]:
    rows = dict(line.split("=", 1) for line in text.splitlines())
    outputs = {name: json.loads(value) for name, value in rows.items() if name != "report"}
    return {**outputs, "report": rows["report"]}


def list_annotations(text: str, level: str) -> list[str]:
    heard = Heard()
    heard.hear(text)
    return [annotation.text for annotation in heard.annotations if annotation.level == level]


def test_setup_on_github_writes_variables_and_outputs(
    world: World,
    github: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stale = next(name for name in DROPPED_VARIABLES if name != "QNN_SDK_ROOT")
    for name in (stale, "QNN_SDK_ROOT"):
        monkeypatch.setenv(name, "/another/QNN")
    assert main(["setup"]) == ExitCode.OK
    assert {*github("ENV").splitlines()} == {f"{stale}=", f"QNN_SDK_ROOT={world.root / ROOT}"}
    assert read_outputs(github("OUTPUT")) == {
        "roots": {"qnn-runtime": str(world.root / ROOT), "libcxx": str(world.root / "libcxx")},
        "versions": {"qnn-runtime": "2.49.40", "libcxx": "18.1"},
        "report": str(world.root / "reports/setup/doctor.json"),
        "changed": False,
        "repaired": False,
    }
    assert json.loads(Path("reports/setup/doctor.json").read_text())["fit"]
    assert capsys.readouterr().out.splitlines() == [
        f"qnn-runtime 2.49.40  {world.root / ROOT}",
        f"libcxx 18.1  {world.root / 'libcxx'}",
    ]
    assert world.calls[0][0] == "emulator"
    assert github("PATH") == ""


@pytest.mark.parametrize(("name", "is_own"), [("qnn-ci", True), ("python", False)])
def test_later_steps_find_the_program_of_this_call(
    world: World,
    github: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    is_own: bool,
) -> None:
    monkeypatch.chdir(world.root)
    monkeypatch.setattr("sys.argv", [f"bin/{name}"])
    assert main(["setup"]) == ExitCode.OK
    assert github("PATH") == (f"{world.root / 'bin'}\n" if is_own else "")


def test_setup_in_a_shell_prints_lines_to_evaluate(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["setup", "emulator"]) == ExitCode.OK
    script = capsys.readouterr().out + 'printf %s "$QNN_SDK_ROOT"'
    done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)
    assert done.stdout == str(world.root / ROOT)


def test_an_unfit_environment_fails_and_gives_no_variables(
    world: World, github: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    world.findings = (BAD, replace(BAD, id="QNN902", fix="install it"))
    assert main(["setup", "--report", "out/d.json"]) == ExitCode.ENVIRONMENT
    assert github("ENV") == ""
    outputs = read_outputs(github("OUTPUT"))
    assert outputs["report"] == str(world.root / "out/d.json")
    assert not outputs["repaired"]  # an error of the doctor's is no damage
    assert not json.loads(Path("out/d.json").read_text())["fit"]
    heard = capsys.readouterr()
    assert heard.out == ""
    first, second = list_annotations(heard.err, "error")
    assert (first.startswith("QNN901"), second.startswith("QNN902")) == (True, True)
    assert "fetch it" in first
    world.findings = (replace(BAD, severity=Severity.WARNING),)
    assert main(["setup"]) == ExitCode.OK
    assert github("ENV")


@pytest.mark.parametrize(
    ("files", "ending"),
    [
        (["lib/libQnnHtp.so"], "lib/libQnnHtp.so"),
        (
            [f"lib{number}.so" for number in range(7)],
            ": lib0.so, lib1.so, lib2.so, lib3.so, lib4.so and 2 more",
        ),
    ],
)
def test_setup_warns_of_a_repaired_tree(
    world: World,
    github: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    files: list[str],
    ending: str,
) -> None:
    world.repaired = tuple(files)
    assert main(["setup"]) == ExitCode.OK
    assert read_outputs(github("OUTPUT"))["repaired"]
    (warning,) = list_annotations(capsys.readouterr().err, "warning")
    assert warning.endswith(ending)


@pytest.mark.parametrize(
    ("before", "after", "changed", "repaired"),
    [
        (b"old", b"new", True, True),
        (b"old", None, True, False),
        (None, b"new", True, False),
        (b"old", b"old", False, False),
        (None, None, False, False),
    ],
)
def test_setup_detects_a_restored_cache_that_is_damaged_or_incomplete(
    world: World,
    github: Callable[[str], str],
    before: bytes | None,
    after: bytes | None,
    changed: bool,
    repaired: bool,
) -> None:
    cached = world.root / "a.whl"
    if before is not None:
        cached.write_bytes(before)

    def fetch() -> None:
        if after is None:
            cached.unlink(missing_ok=True)
        elif after != before:
            (world.root / "part").write_bytes(after)
            (world.root / "part").rename(cached)

    world.while_provisioning = fetch
    paths = ("another", "a.whl", "a third")
    assert main(["setup", *(f"--cached={path}" for path in paths)]) == ExitCode.OK
    outputs = read_outputs(github("OUTPUT"))
    assert (outputs["changed"], outputs["repaired"]) == (changed, repaired)


@pytest.mark.usefixtures("github")
def test_setup_provisions_verifies_and_examines_the_requested_profile(
    world: World,
) -> None:
    words = ["--offline", "--trust-first-use", "--accept-licence", "--python", "python3"]
    assert main(["setup", "android+ndk@r26c", *words]) == ExitCode.OK
    (name, arguments), (examined, variables, python) = world.calls
    assert name == examined == "android+ndk@r26c"
    options = arguments["options"]
    assert arguments["verify"]
    assert (options.offline, options.trust_first_use, options.accept_licence) == (True,) * 3
    assert (bool(variables["QNN_SDK_ROOT"]), python) == (True, Path("python3"))
    assert main(["setup"]) == ExitCode.OK
    assert not world.calls[-2][-1]["options"].offline


@pytest.mark.usefixtures("github")
def test_secrets_are_masked_before_anything_is_fetched(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QNN_CI_MIRROR", "https://mirror.example/?sig=abcdef0123")
    printed: list[str] = []
    world.while_provisioning = lambda: printed.append(capsys.readouterr().err)
    assert main(["setup"]) == ExitCode.OK
    assert "::add-mask::abcdef0123" in printed[0].splitlines()
