"""When a build is done again: nothing is compiled, only what decides about it is changed."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.builds import builder
from ci.builds.builder import Result, run_build
from ci.builds.files import State, read_record
from ci.builds.plan import BuildJob, BuildPlan, BuildRequest, Place
from ci.builds.targets import find_target
from provisioning.console.progress import Progress
from provisioning.errors import ToolError, UnfitError
from tests.build.builds import plan_runner, write_files


class Builds:
    """A project of one file whose steps stand in: compiling copies it, and it is published."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source, self.headers = folder / "source", folder / "headers"
        self.libraries = folder / "libraries"
        self.place = Place(folder / "place")
        self.overlay = self.place.tree / find_target("runner").tree_name
        write_files(folder, dict.fromkeys(("source/a.c", "headers/a.h", "libraries/a.a"), "one"))
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
        stripped = SimpleNamespace(path=paths[0], symbols=paths[1], errors=[])
        return (
            stripped,
            SimpleNamespace(path=paths[0], symbols=None, errors=["bad"] * self.is_bad),
        )

    def publish_artifacts(self, _: BuildPlan, judged: Any) -> None:
        self.taken.append("publish")
        self.place.artifacts.mkdir(exist_ok=True)
        for path in (judged[0].path, judged[0].symbols):
            (self.place.artifacts / path.name).write_bytes(path.read_bytes())

    def make_job(self, version: str = "1", **choices: Any) -> BuildJob:
        request = BuildRequest(**choices)
        plan = plan_runner(self.place.root, request, qnn_version=version)
        plan, skip = replace(plan, source=self.source), frozenset({"notes.txt"})
        inputs = {"headers": self.headers, "libraries": self.libraries}
        return BuildJob(plan, request, inputs, skip)

    def run(self, stream: io.StringIO | None = None, **choices: Any) -> Result:
        self.taken.clear()
        return run_build(self.make_job(**choices), Progress(stream))

    def read_state(self) -> tuple[str, list[str]]:
        state = read_record(self.place.state, State)
        return state.digest, [artifact.path for artifact in state.artifacts]


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builds:
    return Builds(tmp_path, monkeypatch)


CHANGES: dict[str, Callable[[Builds], object]] = {
    "a source": lambda builds: (builds.source / "a.c").write_text("two"),
    "a new source": lambda builds: (builds.source / "b.c").write_text("two"),
    "a header of the SDK": lambda builds: (builds.headers / "a.h").write_text("two"),
    "a library of the SDK": lambda builds: (builds.libraries / "a.a").write_text("two"),
    "an artifact": lambda builds: (builds.place.artifacts / "a.so").write_text("two"),
    "no artifact": lambda builds: (builds.place.artifacts / "a.so").unlink(),
    "the copy": lambda builds: (builds.overlay / "a.c").write_text("two"),
    "a file in the copy": lambda builds: (builds.overlay / "b.c").write_text("two"),
    "no copy": lambda builds: shutil.rmtree(builds.overlay),
    "no record": lambda builds: builds.place.state.unlink(),
    "no record of the copy": lambda builds: builds.place.tree_record.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_affects_the_artifacts_causes_a_rebuild(builds: Builds, change: str) -> None:
    assert not builds.run().up_to_date
    assert builds.run().up_to_date
    CHANGES[change](builds)
    result = builds.run()
    assert (result.up_to_date, result.published) == (False, True)
    edits = {"the copy": ("a.c",), "a file in the copy": ("b.c",)}
    assert result.undone == edits.get(change, ())
    assert builds.run().up_to_date


@pytest.mark.parametrize(
    ("choices", "is_rebuilt"),
    [
        ({"clean": True}, True),
        ({"defines": {"A": "1"}}, True),
        ({"version": "2"}, True),
        ({"jobs": 3}, False),
    ],
)
def test_changed_settings_cause_a_rebuild_and_irrelevant_changes_do_not(
    builds: Builds, choices: dict[str, Any], is_rebuilt: bool
) -> None:
    builds.run()
    (builds.source / "notes.txt").write_text("left out")
    (builds.source / "a.c").write_text("one")  # another modification time, the same bytes
    assert builds.run(**choices).up_to_date is not is_rebuilt


def test_a_second_build_in_the_same_place_is_refused_until_the_first_ends(builds: Builds) -> None:
    with (
        builds.place.locked(),
        pytest.raises(UnfitError, match=f"another build is running in {builds.place.root}"),
    ):
        builds.run()
    assert builds.run().published


def test_a_build_that_violates_its_policy_keeps_what_was_published(builds: Builds) -> None:
    builds.run()
    builds.is_bad = True
    (builds.source / "a.c").write_text("two")
    for _ in range(2):  # a failed build is not up to date
        result = builds.run()
        assert builds.taken == ["two", "split", "collect"]
        assert (result.published, result.up_to_date) == (False, False)
        assert builds.read_state() == ("", ["a.so", "a.so.debug", "a.so"])
        assert (builds.place.artifacts / "a.so").read_text() == "a.so of one"


def test_a_build_that_fails_is_continued_with_the_copy_of_its_sources(builds: Builds) -> None:
    builds.fault = ToolError("the compiler failed")
    for _ in range(2):
        with pytest.raises(ToolError):
            builds.run()
        assert builds.taken == ["one"]
        assert builds.read_state() == ("", [])
        assert builds.place.tree_record.is_file()
        builds.place.stages.mkdir(exist_ok=True)
        (builds.place.stages / "object.o").touch()
    assert (builds.place.stages / "object.o").exists()
    builds.fault = None
    assert builds.run().published
    assert (builds.place.stages / "object.o").exists()


def test_a_copy_that_cannot_be_recorded_is_made_again_by_the_next_build(
    builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(builder, "record_copy", fail)
    for _ in range(2):
        assert builds.run().published
        assert builds.taken == ["one", "split", "collect", "publish"]


def test_changed_settings_or_an_unknown_source_copy_cause_a_clean_build(builds: Builds) -> None:
    place = builds.place
    builds.run()

    def run(**choices: Any) -> tuple[set[str], Result]:
        """What a build keeps of what an earlier one left."""
        folders = (place.stages, place.prefix, place.stripped, place.tree)
        for folder in folders:
            folder.mkdir(exist_ok=True)
        left = [*(folder / "old" for folder in folders), place.log, place.cache_log, place.proof]
        for path in left:
            path.touch()
        result = builds.run(version="2", **choices)
        return {path.name for path in left if path.exists()}, result

    assert run()[0] == {place.proof.name}
    place.tree_record.unlink()
    assert run()[0] == {place.proof.name}
    kept_files, cleaned = run(clean=True)
    assert (kept_files, cleaned.undone, cleaned.changed_files) == (set(), (), 0)
