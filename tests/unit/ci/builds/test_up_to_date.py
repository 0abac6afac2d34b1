"""When a build is done again: nothing is compiled, only what decides about it is changed."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.builds import builder
from ci.builds.builder import SHOWN, SOURCE, CacheCounts, Result, run_build
from ci.builds.inputs import (
    Built,
    Copy,
    State,
    has_artifacts,
    read_record,
    record_copy,
    sync_overlay,
    write_state,
)
from ci.builds.plan import BuildJob, BuildPlan, BuildRequest, Kit, Place, make_plan
from ci.builds.targets import CompilerChoice, find_target
from ci.builds.toolchains import Compilers, Program, Tools, Version
from provisioning.console.progress import Progress
from provisioning.errors import StoreError, ToolError, UnfitError
from provisioning.files import hash_file


class Builds:
    """A project of one file, whose build copies it and publishes it as a.so."""

    def __init__(self, folder: Path) -> None:
        self.source, self.headers = folder / "source", folder / "headers"
        self.libraries = folder / "libraries"
        self.place = Place(folder / "place")
        inputs = ((self.source, "a.c"), (self.headers, "a.h"), (self.libraries, "a.a"))
        for place, name in inputs:
            place.mkdir()
            (place / name).write_text("one")
        self.count = 0
        self.edited: object = None

    def build(self, job: BuildJob, _before: State, now: State, copy: Copy, _: Progress) -> Result:
        self.count += 1
        self.edited = copy.edited
        plan, sources = job.plan, now.inputs[SOURCE]
        if not copy.sure:
            copy = Copy({}, frozenset(), (), sure=True)
        sync_overlay(plan.source, plan.overlay, sources, copy)
        record_copy(plan.overlay, sources, copy, self.place.tree_record)
        self.place.artifacts.mkdir(exist_ok=True)
        published = self.place.artifacts / "a.so"
        published.write_bytes((plan.overlay / "a.c").read_bytes())
        built = (Built("a.so", hash_file(published)),)
        write_state(self.place.state, State(now.settings, now.inputs, now.digest, built))
        return Result(plan, now.digest, (), True, False)

    def make_job(self, version: str = "1", **choices: Any) -> BuildJob:
        cmake, ninja = (
            Program(Path("/t/cmake"), Version("3.30")),
            Program(Path("/t/n"), Version("1")),
        )
        compilers = {CompilerChoice.HOST: Compilers({}, {"cc": "one"})}
        kit = Kit(
            Tools(cmake, ninja, None), compilers, {"wheel_root": "/w", "qnn_version": version}
        )
        request = BuildRequest(**choices)
        plan = make_plan(find_target("runner"), request, self.source, self.place, kit)
        inputs = {"headers": self.headers, "libraries": self.libraries}
        return BuildJob(plan, request, inputs, frozenset({"notes.txt"}))

    def run(self, version: str = "1", **choices: Any) -> bool:
        """Whether the build was up to date."""
        before = self.count
        result = run_build(self.make_job(version, **choices), Progress(io.StringIO()))
        assert result.up_to_date is (self.count == before)
        assert result.published
        return result.up_to_date

    @property
    def overlay(self) -> Path:
        return self.place.tree / find_target("runner").tree_name


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builds:
    made = Builds(tmp_path)
    monkeypatch.setattr(builder, "_build", made.build)
    monkeypatch.setattr(builder, "collect_artifacts", lambda *_: ())
    assert not made.run()
    assert made.run()
    return made


CHANGES: dict[str, Callable[[Builds], object]] = {
    "a source": lambda one: (one.source / "a.c").write_text("two"),
    "a new source": lambda one: (one.source / "b.c").write_text("two"),
    "a header of the SDK": lambda one: (one.headers / "a.h").write_text("two"),
    "a library of the SDK": lambda one: (one.libraries / "a.a").write_text("two"),
    "an artifact": lambda one: (one.place.artifacts / "a.so").write_text("two"),
    "no artifact": lambda one: (one.place.artifacts / "a.so").unlink(),
    "the copy": lambda one: (one.overlay / "a.c").write_text("two"),
    "a file in the copy": lambda one: (one.overlay / "b.c").write_text("two"),
    "no copy": lambda one: shutil.rmtree(one.overlay),
    "no record": lambda one: one.place.state.unlink(),
    "no record of the copy": lambda one: one.place.tree_record.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_decides_about_the_artifacts_builds_again(builds: Builds, change: str) -> None:
    CHANGES[change](builds)
    assert not builds.run()
    assert builds.run()


@pytest.mark.parametrize(
    "choices", [{"clean": True}, {"release": False, "defines": {"A": "1"}}, {"version": "2"}]
)
def test_other_settings_build_again(builds: Builds, choices: dict[str, Any]) -> None:
    assert not builds.run(**choices)


@pytest.mark.parametrize(("change", "edited"), [("a source", False), ("the copy", True)])
def test_only_edits_of_the_copy_are_undone(builds: Builds, change: str, edited: bool) -> None:
    CHANGES[change](builds)
    builds.run()
    assert bool(builds.edited) is edited


def test_what_decides_nothing_does_not_build_again(builds: Builds) -> None:
    (builds.source / "notes.txt").write_text("left out")
    (builds.source / "a.c").write_text("one")  # another time, the same bytes
    assert builds.run(jobs=3)


class Steps:
    """Stands in for the steps of a build, and notes which were taken."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = Builds(folder)
        self.place = self.made.place
        self.taken: list[str] = []
        self.fault: Exception | None = None
        self.is_bad = False
        for name in ("run_stages", "split_symbols", "collect_artifacts", "publish_artifacts"):
            monkeypatch.setattr(builder, name, getattr(self, name))

    def run_stages(self, plan: BuildPlan, _: Progress) -> dict[str, float]:
        self.taken.append((plan.overlay / "a.c").read_text())
        if self.fault:
            raise self.fault
        self.place.stages.mkdir(exist_ok=True)
        for name in ("a.so", "a.so.debug"):
            (self.place.stages / name).write_text(f"{name} of {self.taken[-1]}")
        return {"one": 1.5}

    def split_symbols(self, _: BuildPlan) -> None:
        self.taken.append("split")

    def collect_artifacts(self, plan: BuildPlan, request: BuildRequest) -> Any:
        assert isinstance(plan, BuildPlan)
        assert isinstance(request, BuildRequest)
        self.taken.append("collect")
        paths = [self.place.stages / name for name in ("a.so", "a.so.debug")]
        one = SimpleNamespace(path=paths[0], symbols=paths[1], errors=[])
        return (one, SimpleNamespace(path=paths[0], symbols=None, errors=["bad"] * self.is_bad))

    def publish_artifacts(self, _: BuildPlan, judged: Any) -> None:
        self.taken.append("publish")
        self.place.artifacts.mkdir(exist_ok=True)
        for path in (judged[0].path, judged[0].symbols):
            (self.place.artifacts / path.name).write_bytes(path.read_bytes())

    def run(self, **choices: Any) -> Result:
        self.taken.clear()
        return run_build(self.made.make_job(**choices), Progress(None))

    def read_state(self) -> tuple[str, list[str]]:
        state = read_record(self.place.state, State)
        return state.digest, [one.path for one in state.artifacts]


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(tmp_path, monkeypatch)


def test_a_build_takes_its_steps_in_order_and_records_what_it_published(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count(100)
    monkeypatch.setattr(builder, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    first = steps.run()
    assert steps.taken == ["one", "split", "collect", "publish"]
    assert (first.published, first.up_to_date, first.changed_files) == (True, False, 0)
    assert (first.stage_s, first.undone, first.cache) == ({"one": 1.5}, (), None)
    assert first.wall_s == 1
    assert len(first.artifacts) == 2
    assert steps.place.origin.read_text() == str(steps.made.source)
    assert steps.read_state() == (first.inputs_sha256, ["a.so", "a.so.debug", "a.so"])
    again = steps.run()
    assert steps.taken == ["collect"]
    assert (again.published, again.up_to_date) == (True, True)
    assert again.wall_s == 1
    (steps.made.source / "a.c").write_text("two")
    (steps.made.source / "b.c").write_text("new")
    (steps.made.headers / "a.h").unlink()
    third = steps.run()
    assert steps.taken == ["two", "split", "collect", "publish"]
    assert third.changed_files == 3
    assert third.inputs_sha256 != first.inputs_sha256


def test_a_build_counts_what_it_took_from_the_cache(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [CacheCounts("ccache", "4", 3, 10), CacheCounts("ccache", "4", 5, 11)]
    monkeypatch.setattr(builder, "read_counts", lambda _: counts.pop(0))
    assert steps.run().cache == CacheCounts("ccache", "4", 2, 1)
    assert not counts


def test_a_second_build_in_the_same_place_is_refused_until_the_first_ends(steps: Steps) -> None:
    with (
        steps.place.locked(),
        pytest.raises(UnfitError, match=f"another build is running in {steps.place.root}"),
    ):
        steps.run()
    assert steps.run().published


def test_a_build_that_violates_its_policy_keeps_what_was_published(steps: Steps) -> None:
    steps.run()
    steps.is_bad = True
    (steps.made.source / "a.c").write_text("two")
    for _ in range(2):  # it is not up to date by having failed
        result = steps.run()
        assert steps.taken == ["two", "split", "collect"]
        assert (result.published, result.up_to_date) == (False, False)
        assert steps.read_state() == ("", ["a.so", "a.so.debug", "a.so"])
        assert (steps.place.artifacts / "a.so").read_text() == "a.so of one"


def test_a_build_that_fails_is_continued_with_the_copy_of_its_sources(steps: Steps) -> None:
    steps.fault = ToolError("the compiler failed")
    for _ in range(2):
        with pytest.raises(ToolError):
            steps.run()
        assert steps.taken == ["one"]
        assert steps.read_state() == ("", [])
        assert steps.place.tree_record.is_file()
        steps.place.stages.mkdir(exist_ok=True)
        (steps.place.stages / "object.o").touch()
    assert (steps.place.stages / "object.o").exists()
    steps.fault = None
    assert steps.run().published
    assert (steps.place.stages / "object.o").exists()


def test_a_copy_that_cannot_be_recorded_is_made_again_by_the_next_build(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(builder, "record_copy", fail)
    for _ in range(2):
        assert steps.run().published
        assert steps.taken == ["one", "split", "collect", "publish"]


def test_a_place_that_cannot_be_written_is_named(steps: Steps, tmp_path: Path) -> None:
    steps.place.root.touch()
    with pytest.raises(StoreError, match=str(tmp_path)):
        steps.run()


def test_a_machine_that_is_not_fit_builds_nothing(steps: Steps) -> None:
    def refuse() -> None:
        raise UnfitError("the doctor found an error")

    job = replace(steps.made.make_job(), check=refuse)
    with pytest.raises(UnfitError, match="the doctor found an error"):
        run_build(job, Progress(None))
    assert not steps.place.root.exists()


def test_other_settings_or_a_copy_that_is_not_known_start_from_nothing(steps: Steps) -> None:
    steps.run()
    places = (steps.place.stages, steps.place.prefix, steps.place.stripped, steps.place.tree)

    def leave() -> list[Path]:
        for place in places:
            place.mkdir(exist_ok=True)
            (place / "old").touch()
        for path in (steps.place.log, steps.place.cache_log, steps.place.proof):
            path.touch()
        return [*(place / "old" for place in places), steps.place.log, steps.place.cache_log]

    old = leave()
    steps.run(version="2")
    assert [path for path in old if path.exists()] == []
    assert steps.place.proof.exists()
    old = leave()
    steps.place.tree_record.unlink()
    steps.run(version="2")
    assert [path for path in old if path.exists()] == []
    leave()
    cleaned = steps.run(version="2", clean=True)
    assert (cleaned.undone, cleaned.changed_files) == ((), 0)
    assert not steps.place.proof.exists()


def test_a_file_that_was_edited_in_the_copy_is_restored_and_named(steps: Steps) -> None:
    steps.run()
    copy = steps.made.overlay / "a.c"
    copy.write_text("edited")
    result = steps.run()
    assert (steps.taken[0], result.undone, result.changed_files) == ("one", ("a.c",), 0)
    assert copy.read_text() == "one"


@pytest.mark.parametrize(
    ("size", "shown"), [(SHOWN, "0.c, 1.c, 2.c, 3.c, 4.c"), (SHOWN + 2, "4.c and 2 more")]
)
def test_the_first_files_that_were_edited_in_the_copy_are_named(
    steps: Steps, size: int, shown: str
) -> None:
    for number in range(size):
        (steps.made.source / f"{number}.c").write_text("one")
    steps.run()
    for number in range(size):
        (steps.made.overlay / f"{number}.c").write_text("edited")
    stream = io.StringIO()
    run_build(steps.made.make_job(), Progress(stream))
    first, second, third, *_ = stream.getvalue().splitlines()
    assert first.startswith(f"restoring files in {steps.made.overlay}: 0.c, 1.c, ")
    assert first.endswith(shown)
    assert second == f"  this directory is a copy: edit {steps.made.source} instead"
    assert third == f"building runner in {steps.place.root}"


def test_artifacts_are_there_only_if_each_has_its_content(tmp_path: Path) -> None:
    for name in ("a.so", "b.so"):
        (tmp_path / name).write_bytes(b"built")
    state = State(artifacts=tuple(Built(n, hash_file(tmp_path / n)) for n in ("a.so", "b.so")))
    assert has_artifacts(tmp_path, state)
    assert not has_artifacts(tmp_path, State())
    for name in ("a.so", "b.so"):
        (tmp_path / name).write_bytes(b"other")
        assert not has_artifacts(tmp_path, state)
        (tmp_path / name).write_bytes(b"built")
