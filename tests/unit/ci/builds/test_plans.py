"""Targets, and the plan of a build: commands, environment, identity and the digest of settings."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.builds.plan import BuildPlan, BuildRequest, find_place
from ci.builds.targets import CompilerChoice, fill_placeholders, find_target, read_targets
from ci.builds.toolchains import Program, Version
from provisioning.doctor.policies import elf_policy
from provisioning.errors import ManifestError
from provisioning.manifest.reader import read_profile, read_toolchain
from tests.build.builds import KIT, REQUEST, TARGET, TOOLS, explain, plan
from tests.build.signing import show
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")
VARIABLES = {
    **dict.fromkeys(("HOME", "TMPDIR", "TERM", "USER", "CCACHE_DIR", "SCCACHE_BUCKET"), "kept"),
    **dict.fromkeys(("PYTHONPATH", "CMAKE_PREFIX_PATH", "QNN_SDK_ROOT", "LDFLAGS"), "dropped"),
    **dict.fromkeys(("CFLAGS", "CXXFLAGS", "LD_LIBRARY_PATH"), "dropped"),
    "PATH": "/own",
}


@pytest.fixture(autouse=True)
def caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of the caller."""
    for name in os.environ:
        if not name.startswith(("PYTEST", "QNN_CI_MANIFESTS", "WRITE_")):
            monkeypatch.delenv(name)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


# Plans


def describe(build_plan: BuildPlan) -> Iterable[str]:
    yield from (" ".join(command) for command in build_plan.list_commands())
    for title, row in (
        ("identity", build_plan.identity),
        ("value", build_plan.values),
        ("alias", build_plan.aliases),
        ("variable", build_plan.environment),
    ):
        project_values = {
            name: value for name, value in row.items() if not name.startswith("PYTEST")
        }
        yield from (f"{title} {name}: {value}" for name, value in sorted(project_values.items()))


def test_a_build_plan_has_commands_environment_and_identity(tmp_path: Path) -> None:
    cache = replace(TOOLS, cache=Program(Path("/x/ccache"), Version("4")))
    stages: Any = TARGET["stages"]
    plans = {
        "two extras and two options": plan(tmp_path),
        "one extra, a release and a compiler cache": plan(
            tmp_path / "b c",
            BuildRequest(jobs=3, release=True, extras=frozenset({"two"})),
            replace(KIT, tools=cache),
            build_type="Debug",
        ),
        "an own build type": plan(
            tmp_path, BuildRequest(jobs=1, defines={"CMAKE_BUILD_TYPE": "Debug"}), stages=stages[1:]
        ),
    }
    described = {name: [*describe(build_plan)] for name, build_plan in plans.items()}
    described["an own build type"] = described["an own build type"][:3]  # the commands
    hidden = {str(tmp_path): "PLACE", str(Path(__file__).parents[4]): "PROJECT"}
    check_snapshot(SNAPSHOTS / "plans.txt", show(described, hidden))
    first, second = plans["two extras and two options"].stages
    swapped = replace(plans["two extras and two options"], stages=(second, first))
    kinds = [command[1] for command in swapped.list_commands()]
    assert kinds == ["-S", "--build", "--install", "-S", "--build"]
    assert swapped.compile_command(second, ("z",))[-3:] == ("--target", "all", "z")


def test_every_setting_changes_the_digest_and_the_number_of_jobs_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: Any = TARGET["stages"]
    compilers = KIT.compilers[CompilerChoice.NDK]
    newer = Version("99")

    def with_ndk(**change: Any) -> BuildPlan:
        compilers_by_choice = {**KIT.compilers, CompilerChoice.NDK: replace(compilers, **change)}
        return plan(tmp_path, kit=replace(KIT, compilers=compilers_by_choice))

    plans = [
        plan(tmp_path),
        plan(tmp_path / "other"),
        with_ndk(identity={"release": "27"}),
        with_ndk(options={"T": "a newer NDK"}),
        *(
            plan(tmp_path, kit=replace(KIT, values={**KIT.values, name: "2"}))
            for name in ("qnn_sdk_version", "dsp_arch")
        ),
        *(
            plan(
                tmp_path,
                kit=replace(KIT, tools=replace(TOOLS, **{name: Program(program.path, newer)})),
            )
            for name, program in (("cmake", TOOLS.cmake), ("ninja", TOOLS.ninja))
        ),
        plan(tmp_path, replace(REQUEST, defines={"D": "user", "E": "6"})),
        plan(tmp_path, replace(REQUEST, release=True), build_type="Debug"),
        plan(tmp_path, replace(REQUEST, extras=frozenset({"one"}))),
        plan(tmp_path, artifacts=[{"path": "x"}]),
        *(
            plan(tmp_path, stages=[stages[0], {**stages[1], **change}])
            for change in ({"options": {"Z": "1"}}, {"if_present": ["w", "z"]})
        ),
        *(
            plan(tmp_path, stages=[{**stages[0], **change}, stages[1]])
            for change in ({"source": "c"}, {"name": "other"}, {"targets": ["p", "q"]})
        ),
    ]
    for name in ("CFLAGS", "CXXFLAGS"):
        environment = {**plans[0].environment, name: "-O1"}
        plans.append(replace(plans[0], environment=environment))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "7")
    plans.append(plan(tmp_path))
    assert len({build_plan.settings_digest for build_plan in plans}) == len(plans)
    assert plan(tmp_path, replace(REQUEST, jobs=9)).settings_digest == plans[-1].settings_digest


def test_each_build_target_source_and_variant_has_its_own_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path))
    rows = (("a", "/s", "1"), ("a", "/s", "2"), ("a", "/t", "1"), ("b", "/s", "1"))
    places = [find_place(name, Path(source), variant).root for name, source, variant in rows]
    assert len({*places}) == 4
    assert all(place.parent == tmp_path / "builds" for place in places)
    assert [place.name[:2] for place in places] == ["a-", "a-", "a-", "b-"]
    (tmp_path / "link").symlink_to(tmp_path)
    assert find_place("a", tmp_path / "link", "1").root == find_place("a", tmp_path, "1").root
    for value, off in (("OFF", True), ("no", True), ("0", True), ("", True), ("ON", False)):
        request = BuildRequest(defines={"A:BOOL": value})
        assert (request.turns_off("A"), request.turns_off("B")) == (off, False)


# Targets


def test_every_target_of_the_file_names_profiles_components_and_policies_that_exist() -> None:
    values = {
        "policy": "x86_64-linux",
        "linux_policy": "aarch64-oe-linux",
        "hexagon_policy": "hexagon-v79",
    }
    components = set(read_toolchain("executorch").components)
    for target in read_targets().values():
        if target.profile:
            read_profile(target.profile)
        extras = [name for row in target.needs.extras.values() for name in row]
        assert {*target.needs.components, *extras} <= components
        for row in (*target.artifacts, target):
            assert elf_policy(fill_placeholders(row.policy, values)).machine
        if target.with_source:
            assert find_target(target.with_source).origin.value == "checkout"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[recipe.a]\n[[target]]\nname='t'\nrecipe='b'", "no recipe 'b'"),
        ("[recipe.a]\n[[target]]\nname='t'\nrecipe='a'", "t does not match its schema"),
        ("[recipe.a]\nx=1\n[[target]]\nname='t'\nrecipe='a'", "t does not match its schema"),
    ],
)
def test_a_malformed_targets_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    (tmp_path / "targets.toml").write_text(text)
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path))
    with pytest.raises(ManifestError, match=message):
        read_targets()


def test_an_unknown_target_or_placeholder_is_named() -> None:
    refusal = explain(lambda: find_target("x"))
    assert refusal.startswith("UsageError there is no build target 'x'")
    assert "runner, runner_checkout, aot" in refusal
    with pytest.raises(ManifestError, match=r"no value for \{root\}"):
        fill_placeholders("{root}/a", {"tree": "/t"})
