"""``build``: what is checked before anything is built, what is written where, and exit codes.

Preparing, building and comparing are stand-ins; the verb's own order and record are real.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.__main__ import main
from ci.builds.targets import find_target
from ci.report.document import Document
from ci.verbs import build as verb
from provisioning.artifacts.choice import SDK_VARIABLE
from provisioning.errors import ExitCode, UnfitError

GOOD = SimpleNamespace(failing=(), unread=())


class Builds:
    """What the verb asked for, in order; ``published`` says how each build ends."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.requests: list[Any] = []
        self.targets: list[Any] = []
        self.published = [True, True]
        self.parity: Any = GOOD
        self.places: list[tuple[str, bool]] = []
        self.versions = ["1.5.1"] * 9

    def prepare(self, target: Any, request: Any, _progress: Any) -> Any:
        self.targets.append(target)
        self.requests.append(request)
        request.require_version(self.versions[len(self.requests) - 1])
        plan = SimpleNamespace(
            target=target,
            list_commands=lambda: [("cmake", "-S", f"a {request.python}")],
        )
        return SimpleNamespace(plan=plan, check=lambda: self.done.append("check"), number=request)

    def check(self, _job: Any, install: str, *, with_proof: bool) -> None:
        self.done.append("delivery")
        self.places.append((install, with_proof))

    def build(self, _job: Any, _progress: Any) -> Any:
        self.done.append("build")
        published = self.published.pop(0)
        if published is None:
            raise UnfitError("no compiler")
        return SimpleNamespace(published=published)

    def deliver(self, _job: Any, _result: Any, where: str, *_: Any, with_proof: bool) -> Any:
        self.done.append("deliver")
        self.places.append((where, with_proof))
        return {"overlay": where}

    def compare(self, _job: Any, _progress: Any) -> Any:
        self.done.append("parity")
        return self.parity


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builds:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkout/backends/qualcomm").mkdir(parents=True)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv(SDK_VARIABLE, "")
    stand_ins = Builds()
    for name, step in {
        "prepare_job": stand_ins.prepare,
        "check_delivery": stand_ins.check,
        "run_build": stand_ins.build,
        "deliver": stand_ins.deliver,
        "compare_parity": stand_ins.compare,
        "describe_result": lambda result: {"published": result.published},
        "render_result": lambda *_: "",
        "make_document": lambda *_: Document("", "", ()),
        "render_document": lambda _: {"findings": []},
        "find_python": lambda word: Path(word or "python"),
    }.items():
        monkeypatch.setattr(verb, name, step)
    return stand_ins


RECORD = Path("reports/build_aot/artifacts.json")
TWO = ("--python", "3.10", "--python", "3.11")


@pytest.mark.parametrize(
    ("published", "code", "delivered"),
    [([True, True], 0, 2), ([False, True], 1, 1), ([True, False], 1, 1), ([False, False], 1, 0)],
)
def test_one_unpublished_build_makes_the_build_verb_fail(
    builds: Builds, published: list[bool], code: int, delivered: int
) -> None:
    builds.published = [*published]
    assert main(["build", "aot", *TWO]) == code
    data = json.loads(RECORD.read_text())
    assert [row["published"] for row in data["builds"]] == published
    assert [("overlay" in row) for row in data["builds"]] == published
    assert data["parity"] == {"findings": []}
    assert builds.done.count("deliver") == delivered
    assert builds.done[:3] == ["delivery", "delivery", "parity"]


def test_builds_that_finished_before_a_failing_one_are_recorded(builds: Builds) -> None:
    builds.published = [True, None]  # type: ignore[list-item]
    assert main(["build", "aot", *TWO]) == ExitCode.ENVIRONMENT
    assert len(json.loads(RECORD.read_text())["builds"]) == 1


def test_a_dry_run_prints_commands_that_a_shell_takes_and_writes_nothing(
    builds: Builds, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", "aot", "--dry-run"]) == ExitCode.OK
    assert capsys.readouterr().out == "cmake -S 'a python'\n"
    assert builds.done == ["delivery", "check"]
    assert main(["build", "aot", "--dry-run", *TWO]) == ExitCode.OK
    assert capsys.readouterr().out == "cmake -S 'a 3.10'\ncmake -S 'a 3.11'\n"
    assert [*Path().iterdir()] == [Path("checkout")]


@pytest.mark.parametrize(
    ("words", "profile"),
    [
        (["direct", "--dsp-type", "0"], find_target("direct").lpai_profile),
        (["direct"], find_target("direct").profile),
        (["runner"], find_target("runner").profile),
        (
            ["runner", "--source", "checkout"],
            find_target(find_target("runner").with_source).profile,
        ),
        (["direct", "--profile", "direct-lpai"], "direct-lpai"),
        (["direct", "--dsp-type", "0", "--profile", "direct"], "direct"),
    ],
)
def test_build_target_chooses_the_profile(builds: Builds, words: list[str], profile: str) -> None:
    assert main(["build", *words]) == ExitCode.OK
    assert builds.targets[-1].profile == profile


@pytest.mark.parametrize(
    ("requested", "is_built"), [("", True), ("1.5.1", True), ("v1.5.1", True), ("1.4.1", False)]
)
def test_an_installed_executorch_of_another_version_than_the_checkout_is_refused(
    builds: Builds, capsys: pytest.CaptureFixture[str], requested: str, is_built: bool
) -> None:
    for target in ("runner", "aot"):
        code = main(["build", target, *(("--executorch", requested) if requested else ())])
        assert (code, "build" in builds.done) == ((0, True) if is_built else (2, False))
        errors = capsys.readouterr().err
        assert is_built or (requested in errors and "1.5.1" in errors)


@pytest.mark.parametrize(
    "words",
    [
        ["aot", "--jobs", "-1"],
        ["aot", "-D", "A"],
        ["aot", "-D", "=b"],
        ["android", *TWO],
        ["android", "--profile", "lpai"],
        ["android", "--profile", "direct-lpai"],
        ["runner", "--profile", "aot"],
        ["aot", "--sdk", "no-such-directory"],
        ["aot", "--source", "no-such-directory"],
        ["aot", "--source", "."],
    ],
)
def test_contradictory_build_options_are_usage_errors_before_any_preparation(
    builds: Builds, words: list[str]
) -> None:
    assert main(["build", *words]) == ExitCode.USAGE
    assert not builds.targets
