"""When a build is done again: nothing is compiled, only what decides about it is changed."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.builds import builder
from ci.builds.builder import SOURCE, Result, run_build
from ci.builds.inputs import Built, Copy, State, record_copy, sync_overlay, write_state
from ci.builds.plan import BuildJob, BuildRequest, Kit, Place, make_plan
from ci.builds.targets import CompilerChoice, find_target
from ci.builds.toolchains import Compilers, Program, Tools, Version
from provisioning.console.progress import Progress
from provisioning.files import hash_file


class Builds:
    """A project of one file, whose build copies it and publishes it as a.so."""

    def __init__(self, folder: Path) -> None:
        self.source, self.headers = folder / "source", folder / "headers"
        self.place = Place(folder / "place")
        for place, name in ((self.source, "a.c"), (self.headers, "a.h")):
            place.mkdir()
            (place / name).write_text("one")
        self.count = 0

    def build(self, job: BuildJob, _before: State, now: State, copy: Copy, _: Progress) -> Result:
        self.count += 1
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

    def run(self, version: str = "1", **choices: Any) -> bool:
        """Whether the build was up to date."""
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
        job = BuildJob(plan, request, {"headers": self.headers}, frozenset({"notes.txt"}))
        before = self.count
        result = run_build(job, Progress(io.StringIO()))
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
    "an artifact": lambda one: (one.place.artifacts / "a.so").write_text("two"),
    "no artifact": lambda one: (one.place.artifacts / "a.so").unlink(),
    "the copy": lambda one: (one.overlay / "a.c").write_text("two"),
    "a file in the copy": lambda one: (one.overlay / "b.c").write_text("two"),
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


def test_what_decides_nothing_does_not_build_again(builds: Builds) -> None:
    (builds.source / "notes.txt").write_text("left out")
    (builds.source / "a.c").write_text("one")  # another time, the same bytes
    assert builds.run(jobs=3)
