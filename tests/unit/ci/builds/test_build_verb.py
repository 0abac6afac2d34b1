"""``build``: what is checked before anything is built, what is written where, and exit codes.

Preparing, building and comparing are stand-ins; the verb's own order and record are real.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.__main__ import main
from ci.builds.plan import BuildRequest
from ci.builds.targets import find_target
from ci.verbs import build as verb
from provisioning.artifacts.choice import SDK_VARIABLE
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, UnfitError, UsageError

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
        plan = SimpleNamespace(
            target=target,
            list_commands=lambda: [("cmake", "-S", f"a {request.python}")],
            values={"executorch_version": self.versions[len(self.requests) - 1]},
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
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv(SDK_VARIABLE, "")
    made = Builds()
    for name, own in {
        "prepare_job": made.prepare,
        "check_delivery": made.check,
        "run_build": made.build,
        "deliver": made.deliver,
        "compare_parity": made.compare,
        "describe_result": lambda result: {"published": result.published},
        "render_result": lambda *_: "",
        "render_table": lambda *_, **__: "",
        "render_document": lambda _: {"findings": []},
        "find_python": lambda word: Path(word or "python"),
    }.items():
        monkeypatch.setattr(verb, name, own)
    return made


RECORD = Path("reports/build_aot/artifacts.json")
TWO = ("--python", "3.10", "--python", "3.11")


@pytest.mark.parametrize(
    ("published", "code", "delivered"),
    [([True, True], 0, 2), ([False, True], 1, 1), ([True, False], 1, 1), ([False, False], 1, 0)],
)
def test_one_build_that_is_not_published_fails_the_call(
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


def test_what_was_built_before_a_build_that_cannot_start_is_recorded(builds: Builds) -> None:
    builds.published = [True, None]  # type: ignore[list-item]
    assert main(["build", "aot", *TWO]) == ExitCode.ENVIRONMENT
    assert len(json.loads(RECORD.read_text())["builds"]) == 1


FAILING = SimpleNamespace(failing=("one",), unread=())
UNREAD = SimpleNamespace(failing=(), unread=("all",))


@pytest.mark.parametrize(
    ("words", "parity", "compared", "code"),
    [
        ([], FAILING, True, 0),
        (["--parity", "strict"], GOOD, True, 0),
        (["--parity", "strict"], FAILING, True, 1),
        (["--parity", "strict"], UNREAD, True, 1),
        (["--parity", "off"], FAILING, False, 0),
        (["--dry-run"], FAILING, False, 0),
        (["--dry-run", "--parity", "strict"], FAILING, True, 1),
        (["--parity", "strict"], None, True, 0),
    ],
)
def test_parity_fails_a_build_where_it_is_strict(
    builds: Builds, words: list[str], parity: Any, compared: bool, code: int
) -> None:
    builds.parity = parity
    assert main(["build", "aot", *words]) == code
    assert ("parity" in builds.done) is compared
    assert ("build" in builds.done) is ("--dry-run" not in words)


def test_a_failed_build_stays_one_when_parity_is_strict_and_good(builds: Builds) -> None:
    builds.published = [False]
    assert main(["build", "aot", "--parity", "strict"]) == ExitCode.FAILED


def test_a_dry_run_prints_commands_that_a_shell_takes_and_writes_nothing(
    builds: Builds, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", "aot", "--dry-run"]) == ExitCode.OK
    assert capsys.readouterr().out == "cmake -S 'a python'\n"
    assert builds.done == ["delivery", "check"]
    assert main(["build", "aot", "--dry-run", *TWO]) == ExitCode.OK
    assert capsys.readouterr().out == "cmake -S 'a 3.10'\ncmake -S 'a 3.11'\n"
    assert not [*Path().iterdir()]


def test_a_check_asks_for_no_packages_and_builds_nothing(builds: Builds) -> None:
    assert main(["build", "aot", "--check", *TWO]) == ExitCode.OK
    assert builds.done == ["check", "check"]
    assert {one.packages for one in builds.requests} == {False}
    assert not [*Path().iterdir()]


def test_a_directory_that_cannot_be_written_is_named_before_a_build(builds: Builds) -> None:
    Path("a-file").touch()
    assert main(["build", "aot", "--reports", "a-file"]) == ExitCode.DOWNLOAD
    assert "build" not in builds.done


def test_every_option_reaches_the_build(builds: Builds, tmp_path: Path) -> None:
    assert main(["build", "aot"]) == ExitCode.OK
    assert builds.requests == [BuildRequest(python=Path("python"))]
    assert builds.places == [("overlay", True)] * 2
    builds.places.clear()
    (tmp_path / "tree").mkdir()
    where = ["--source", "tree", "--python", "3.11", "--install", "none", "--no-proof"]
    how = ["--jobs", "3", "--clean", "--release", "--no-doctor", "-D", "A=b=c", "-D", "B="]
    assert main(["build", "aot", *where, *how]) == ExitCode.OK
    assert builds.requests[-1] == BuildRequest(
        source=tmp_path / "tree",
        python=Path("3.11"),
        jobs=3,
        release=True,
        clean=True,
        defines={"A": "b=c", "B": ""},
        doctor=False,
    )
    assert builds.places == [("none", False)] * 2
    more = ["--soc", "SM8750", "--dsp-type", "0", "--with", "llama", "--with", "x", "--check"]
    assert main(["build", "direct", *more]) == ExitCode.OK
    assert builds.requests[-1] == BuildRequest(
        python=Path("python"),
        soc="SM8750",
        dsp_type=0,
        extras=frozenset({"llama", "x"}),
        packages=False,
    )


@pytest.mark.parametrize("target", ["runner", "aot", "android"])
def test_every_target_takes_one_python(builds: Builds, target: str) -> None:
    assert main(["build", target, "--python", "3.11"]) == ExitCode.OK
    assert builds.requests == [BuildRequest(python=Path("3.11"))]


def test_the_data_of_a_build_name_its_record(
    builds: Builds, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", "aot", "--parity", "off", "--reports", "out", "--json"]) == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    path = tmp_path / "out" / "build_aot" / "artifacts.json"
    rows = [{"published": True, "overlay": "overlay"}]
    assert (data["builds"], data["report"]) == (rows, str(path))
    assert json.loads(path.read_text())["builds"] == rows


def source_target() -> str:
    """The target that builds the runner of a checkout."""
    return find_target("runner").with_source


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["direct", "--dsp-type", "0"], lambda: find_target("direct").lpai_profile),
        (["direct"], lambda: find_target("direct").profile),
        (["runner"], lambda: find_target("runner").profile),
        (["runner", "--source", "."], lambda: find_target(source_target()).profile),
        (
            ["runner", "--source", ".", "--profile", find_target(source_target()).profile],
            lambda: find_target(source_target()).profile,
        ),
        (["direct", "--profile", "direct"], lambda: "direct"),
        (["direct", "--profile", "direct-lpai"], lambda: "direct-lpai"),
        (["direct", "--dsp-type", "0", "--profile", "direct"], lambda: "direct"),
    ],
)
def test_the_profile_is_the_one_of_what_is_built(
    builds: Builds, words: list[str], expected: Callable[[], str]
) -> None:
    assert main(["build", *words]) == ExitCode.OK
    assert builds.targets[-1].profile == expected()


@pytest.mark.parametrize("target", ["runner", "aot", "android", "linux"])
@pytest.mark.parametrize(
    ("asked", "is_built"),
    [("", True), ("1.5.1", True), ("v1.5.1", True), ("1.4.1", False), ("9.9", False)],
)
def test_another_executorch_than_that_of_the_sources_is_refused(
    builds: Builds, capsys: pytest.CaptureFixture[str], target: str, asked: str, is_built: bool
) -> None:
    code = main(["build", target, *(("--executorch", asked) if asked else ())])
    assert (code, "build" in builds.done) == ((0, True) if is_built else (2, False))
    if not is_built:
        said = capsys.readouterr().err
        assert asked in said
        assert "1.5.1" in said


def test_the_sources_of_every_build_are_of_the_wanted_version(builds: Builds) -> None:
    builds.versions = ["1.5.1", "1.4.1"]
    assert main(["build", "aot", *TWO, "--executorch", "1.5.1"]) == ExitCode.USAGE
    assert builds.done == []


def test_a_checkout_chooses_the_target_for_checkouts(builds: Builds) -> None:
    assert main(["build", "runner", "--source", "."]) == ExitCode.OK
    assert main(["build", "runner"]) == ExitCode.OK
    assert [one.name for one in builds.targets] == [source_target(), "runner"]


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
    ],
)
def test_a_call_that_makes_no_sense_prepares_nothing(builds: Builds, words: list[str]) -> None:
    assert main(["build", *words]) == ExitCode.USAGE
    assert not builds.targets


def test_only_extras_of_the_target_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[Any] = []
    target: Any = SimpleNamespace(name="aot", origin="checkout", extras=("llama", "x"))
    monkeypatch.setitem(verb.PREPARERS, "checkout", lambda *given: prepared.append(given) or "job")
    progress = Progress()
    for extras in ((), ("llama",), ("x", "llama")):
        request = BuildRequest(python=Path("python"), extras=frozenset(extras))
        assert verb.prepare_job(target, request, progress) == "job"
        assert prepared.pop() == (target, request, progress)
    request = BuildRequest(python=Path("python"), extras=frozenset({"x", "z", "other"}))
    with pytest.raises(UsageError, match="no extra other, z") as caught:
        verb.prepare_job(target, request, progress)
    assert caught.value.fix == "its extras: llama, x"
    with pytest.raises(UsageError) as caught:
        verb.prepare_job(SimpleNamespace(name="aot", extras=()), request, progress)  # type: ignore[arg-type]
    assert caught.value.fix == "its extras: none"


@pytest.mark.parametrize("folders", [(), ("backends/qualcomm", "examples")])
def test_parity_reads_the_folders_that_a_target_is_built_from(
    monkeypatch: pytest.MonkeyPatch, folders: tuple[str, ...]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(verb, "compare_folders", lambda *given: asked.append(given) or GOOD)
    monkeypatch.setattr(verb, "read_policy", lambda *given: given)
    target = SimpleNamespace(parity=folders)
    job: Any = SimpleNamespace(plan=SimpleNamespace(target=target, source=Path("/tree")))
    assert verb.compare_parity(job, Progress()) is (GOOD if folders else None)
    if folders:
        ((source, same, policy, kept),) = asked
        assert (source, same, policy) == (Path("/tree"), folders, ("parity", verb.ParityPolicy))
        assert kept.name == "parity"

        def refuse(*_: object) -> None:
            raise UsageError("no tree")

        monkeypatch.setattr(verb, "compare_folders", refuse)
        with pytest.raises(UsageError, match="no tree"):
            verb.compare_parity(job, Progress())


def test_a_record_is_named_by_its_whole_path_wherever_the_caller_is(
    builds: Builds,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("QNN_CI_CALLER_DIR")
    assert main(["build", "aot", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["report"] == str(tmp_path / RECORD)
    builds.published = [True]
    assert main(["build", "aot"]) == ExitCode.OK
    assert capsys.readouterr().out == f"{RECORD}\n"
