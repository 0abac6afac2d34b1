from __future__ import annotations

import io
import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ci.builds import checkout, steps, toolchains
from ci.builds.artifacts import collect_artifacts
from ci.builds.builder import CacheCounts, read_counts
from ci.builds.checkout import check_lpai, list_names, unneeded_submodules, wanted_submodules
from ci.builds.deliver import LACKS, run_import
from ci.builds.plan import BuildPlan, BuildRequest, Kit, Place, make_plan
from ci.builds.record import HOST_LIBRARY, find_lowering_sdk
from ci.builds.steps import Output, _run_step, explain_failure
from ci.builds.targets import (
    Artifact,
    CompilerChoice,
    Stage,
    fill_placeholders,
    find_target,
    read_targets,
)
from ci.builds.toolchains import (
    Compilers,
    Program,
    Tools,
    Version,
    ask_python,
    choose_program,
    find_cache,
    find_compiler,
    find_tools,
    identify_compiler,
)
from provisioning.artifacts.environment import Environment
from provisioning.artifacts.provision import Provisioned
from provisioning.console.progress import Bar, Progress
from provisioning.doctor.facts import PythonFacts
from provisioning.doctor.policies import elf_policy
from provisioning.errors import (
    FailedError,
    ManifestError,
    MissingToolError,
    StoreError,
    ToolError,
    UnfitError,
    UsageError,
)
from provisioning.files import write_json
from provisioning.manifest.pairs import read_pairs
from provisioning.manifest.reader import read_profile, read_toolchain

VALUES = {
    "policy": "x86_64-linux", "linux_policy": "aarch64-oe-linux", "hexagon_policy": "hexagon-v79",
}  # fmt: skip


def read_output(text: str, *, echo: bool = False) -> tuple[Output, str]:
    stream = io.StringIO()
    output = Output(Bar("build", 0, "", None, live=False), Progress(stream), echo)
    for line in text.splitlines():
        output.read_line(line)
    return output, stream.getvalue()


NINJA = """\
[1/9] Building CXX object a.o
[2/9] Building CXX object b.o
FAILED: b.o
/usr/bin/c++ -Werror=all -o b.o -c b.cpp
b.cpp:3:5: error: expected ';'
    3 | int x
      |     ^
[3/9] Building CXX object c.o
c.cpp:1:1: error: another
ninja: build stopped
"""


def test_the_first_error_is_kept_with_what_follows_and_steps_are_counted() -> None:
    output, echoed = read_output(NINJA)
    assert output.first_error == "b.cpp:3:5: error: expected ';'"
    assert output.excerpt.splitlines()[1] == "    3 | int x"
    assert "c.cpp:1:1" in output.excerpt
    assert (output.bar.done, output.bar.total) == (3, 9)
    assert echoed == ""


UNUSED = """\
    TOO_EARLY
CMake Warning:
  Manually-specified variables were not used by the project:

    ONE_OPTION
    TWO_OPTION
    not an option

-- Build files have been written
    TOO_LATE
"""


def test_options_that_cmake_did_not_use_are_those_of_its_list() -> None:
    output, _ = read_output(UNUSED)
    assert output.unused == {"ONE_OPTION", "TWO_OPTION"}
    output, _ = read_output("[10/12] a.o\n")
    assert (output.bar.done, output.bar.total) == (10, 12)
    output, _ = read_output("[3/4] \n")
    assert (output.bar.done, output.bar.total) == (3, 4)
    output, _ = read_output("[3/3] a.o\n[1/4] b.o\n[2/4] c.o\n")
    assert (output.bar.done, output.bar.total) == (4, 4)  # another ninja of the same step


def test_the_targets_of_a_project_are_those_of_its_last_configuration(tmp_path: Path) -> None:
    reply = tmp_path / steps.API / "reply"
    reply.mkdir(parents=True)
    with pytest.raises(ToolError, match="left no usable file API reply"):
        steps.read_cmake_targets(tmp_path)
    for time, names in (("2026-01-02T00-00", ["a", "b"]), ("2026-01-01T00-00", ["old"])):
        index = {"reply": {steps.CODE_MODEL: {"jsonFile": f"model-{time}.json"}}}
        model = {"configurations": [{"targets": [{"name": name}]} for name in names]}
        write_json(reply / f"index-{time}.json", index)
        write_json(reply / f"model-{time}.json", model)
    assert steps.read_cmake_targets(tmp_path) == {"a", "b"}
    for text in ("{", '{"reply": {}}', '{"reply": {"codemodel-v2": {"jsonFile": "gone.json"}}}'):
        (reply / "index-2026-01-03T00-00.json").write_text(text)
        with pytest.raises(ToolError, match="left no usable file API reply"):
            steps.read_cmake_targets(tmp_path)


def test_a_path_in_a_copy_or_under_an_alias_is_that_of_the_file_to_edit(tmp_path: Path) -> None:
    source, root, sdk = (tmp_path / name for name in ("source", "root", "sdk"))
    overlay = root / "tree/et"
    for path in (source / "a.cpp", overlay / "made.h", root / "stages/x.h", sdk / "q.h"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    aliases = {"/build": str(root), "/qnn_sdk_root": str(sdk)}
    place = SimpleNamespace(root=root)
    plan: Any = SimpleNamespace(place=place, aliases=aliases, overlay=overlay, source=source)
    shown = {
        f"{overlay}/a.cpp:3:5: error": f"{source}/a.cpp:3:5: error",
        "/build/tree/et/a.cpp:3": f"{source}/a.cpp:3",
        "/build/tree/et/made.h": f"{overlay}/made.h",
        "in /build/stages/x.h": f"in {root}/stages/x.h",
        "/qnn_sdk_root/q.h /build/tree/et/a.cpp": f"{sdk}/q.h {source}/a.cpp",
        "/qnn_sdk_root/gone.h": "/qnn_sdk_root/gone.h",
        **dict.fromkeys([f"{one}/build/tree/et/a.cpp" for one in ("/other", ".", "..")]),
    }
    for text, path in shown.items():
        assert steps.PathMap(plan)(text) == (path or text)


class Stages:
    """Stands in for CMake in a build of two stages: notes its calls, and answers with options that
    were not used.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.unused: dict[str, set[str]] = {"one": set(), "two": set()}
        self.words: set[str] = set()
        self.plan: Any = SimpleNamespace(
            target=SimpleNamespace(name="t"),
            stages=[
                SimpleNamespace(
                    name=name, build=folder / name, if_present=("x", "y"), install=name == "two"
                )
                for name in self.unused
            ],
            named=frozenset({"MY_OPTION", "MY_OTHER"}),
            configure_command=lambda stage: ("configure", stage.name),
            compile_command=lambda stage, more: ("compile", stage.name, *more),
            install_command=lambda stage: ("install", stage.name),
        )
        monkeypatch.setattr(steps, "_run_step", self.run_step)
        monkeypatch.setattr(steps, "_read_words", lambda _: frozenset(self.words))
        monkeypatch.setattr(steps, "read_cmake_targets", lambda _: {"y", "z"})

    def run_step(self, _: Any, label: str, command: tuple[str, ...], __: Progress) -> Any:
        assert label.startswith(f"t: {command[0]} {command[1]}")
        self.calls.append(command)
        return SimpleNamespace(unused=frozenset(self.unused[command[1]]))

    def run(self) -> list[str]:
        self.calls.clear()
        return list(steps.run_stages(self.plan, Progress(None)))


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stages:
    return Stages(tmp_path, monkeypatch)


def test_each_stage_is_configured_compiled_and_installed(stages: Stages) -> None:
    assert stages.run() == ["one", "two"]
    assert stages.calls == [
        *(("configure", "one"), ("compile", "one", "y")),
        *(("configure", "two"), ("compile", "two", "y"), ("install", "two")),
    ]
    for stage in stages.plan.stages:
        assert (stage.build / "configured").is_file()
        assert [one.name for one in stage.build.glob(".cmake/api/v1/query/*")] == ["codemodel-v2"]
    for stage in stages.plan.stages:
        stage.if_present = ()
    stages.run()
    assert ("compile", "one") in stages.calls


def test_only_a_fresh_configuration_forgets_the_last_one(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configuration that failed is no configuration."""

    def fail(*_: object) -> None:
        raise ToolError("cmake failed")

    build = stages.plan.stages[0].build
    for name in ("3.30", "4.0.1", "one.dir"):
        (build / "CMakeFiles" / name).mkdir(parents=True)
    for name in ("CMakeCache.txt", "object.o", "CMakeFiles/one.dir/other.o"):
        (build / name).touch()
    stages.run()
    assert not (build / "CMakeCache.txt").exists()
    assert [path.name for path in (build / "CMakeFiles").iterdir()] == ["one.dir"]
    assert (build / "object.o").exists()
    assert (build / "CMakeFiles/one.dir/other.o").exists()
    (build / "CMakeCache.txt").touch()
    stages.run()
    assert (build / "CMakeCache.txt").exists()
    with monkeypatch.context() as patched:
        patched.setattr(steps, "_run_step", fail)
        with pytest.raises(ToolError):
            stages.run()
    stages.run()
    assert not (build / "CMakeCache.txt").exists()


def test_an_option_that_no_stage_uses_is_refused_once_that_is_known(stages: Stages) -> None:
    both = {"MY_OPTION", "MY_OTHER", "NOT_OF_THE_USER"}
    stages.unused = {"one": {"MY_OPTION"}, "two": {"MY_OTHER"}}
    stages.words = {"MY_OPTION"}
    assert stages.run() == ["one", "two"]
    for words, calls in (({"MY_OTHER"}, 3), (set[str](), 1)):
        stages.unused = {"one": both, "two": {"MY_OTHER"}}
        stages.words = {*words, "MY_OTHERS"}
        for stage in stages.plan.stages:
            (stage.build / "configured").unlink(missing_ok=True)
        with pytest.raises(UsageError) as caught:
            stages.run()
        names = "MY_OTHER" if words else "MY_OPTION, MY_OTHER"
        assert caught.value.what == f"CMake did not use -D {names}"
        assert caught.value.fix == "did you mean MY_OTHERS?"
        assert len(stages.calls) == calls
        assert not (stages.plan.stages[calls // 2].build / "configured").exists()
    stages.words = set()
    with pytest.raises(UsageError) as caught:
        stages.run()
    assert caught.value.fix == "correct the name, or remove the option"
    several = [f"MY_{letter}" for letter in "ABCDEFGH"]
    assert steps.refuse_options(stages.plan, frozenset(several)).what.endswith(", ".join(several))


def test_options_that_were_checked_are_not_checked_again(stages: Stages) -> None:
    stages.run()
    stages.unused = {"one": {"MY_OPTION"}, "two": {"MY_OPTION"}}
    assert stages.run() == ["one", "two"]


CMAKE = """\
CMake Error at CMakeTestCXXCompiler.cmake:73 (message):
  The C++ compiler

    "/usr/bin/c++"

  is not able to compile a simple test program.

  It fails with the following output:

    Change Dir: '/build/TryCompile-ugg73j'
    
    Run Build Command(s): ninja -v cmTC_5c518
    [1/2] ccache c++ -o a.o -c a.cxx
    FAILED: [code=1] a.o 
    ccache: error: Failed to create directory /ccache/tmp: Permission denied
    ninja: build stopped: subcommand failed.
"""  # noqa: W291, W293


def test_a_cause_far_below_cmake_s_own_words_is_kept() -> None:
    output, _ = read_output(CMAKE)
    assert output.first_error.startswith("ccache: error: Failed to create directory")
    assert "ccache: error: Failed to create directory" in output.excerpt.splitlines()[-1]
    assert "" not in output.excerpt.splitlines()


def test_a_cmake_error_without_a_tool_s_is_told_in_two_lines() -> None:
    first, second = "CMake Error at a.cmake:1 (find_package)", "CMake Error at b.cmake:2 (message)"
    output, _ = read_output(f"{first}:\n  no Torch\n\n  Add it.\n\n{second}:\n  no Torch either\n")
    assert output.first_error == "CMake Error at a.cmake:1 (find_package): no Torch"


def test_an_option_is_looked_for_in_every_cmake_file_and_in_cmake(tmp_path: Path) -> None:
    texts = {"CMakeLists.txt": "option(MY_FIRST)", "a/b.cmake": "if(MY_OTHER)", "a/c.txt": "MY_NO"}
    texts |= {"a/CMakeLists.txt": "set(MY_SECOND)", "a/d.cmake": "set(MY_THIRD MY_OTHERX)"}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    cmake = tmp_path / "cmake"
    cmake.write_text(
        '#!/bin/sh\n[ "$*" = --help-variable-list ] && echo CMAKE_CXX_STANDARD\nexit 3\n'
    )
    cmake.chmod(0o755)
    tools = SimpleNamespace(cmake=SimpleNamespace(path=cmake))
    plan: Any = SimpleNamespace(overlay=tmp_path, tools=tools)
    for wrong, near in (
        ("MY_FIRTS", "MY_FIRST"),
        ("MY_OTHR", "MY_OTHER"),
        ("MY_SECOMD", "MY_SECOND"),
        ("MY_THIRB", "MY_THIRD"),
        ("CMAKE_CXX_STANDART", "CMAKE_CXX_STANDARD"),
        ("MY_NO_WORD", ""),
    ):
        fix = steps.refuse_options(plan, frozenset({wrong})).fix
        assert fix == (
            f"did you mean {near}?" if near else "correct the name, or remove the option"
        )


def test_in_ci_every_line_is_shown() -> None:
    assert read_output(NINJA, echo=True)[1] == NINJA


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("/usr/bin/ld: final link failed: No space left on device", StoreError),
        ("fatal error: error writing to /tmp/x.s: File too large", StoreError),
        ("fatal error: error writing to /tmp/x.s: Disk quota exceeded", StoreError),
        ("ld.lld: error: undefined symbol: f", ToolError),
        ("collect2: fatal error: ld terminated with signal 9", ToolError),
    ],
)
def test_a_full_disk_is_no_fault_of_the_sources(line: str, error: type[Exception]) -> None:
    output, _ = read_output(line)
    found = explain_failure("build", output, "exited with 1", "the tail", Path("log"))
    assert isinstance(found, error)
    assert found.what == (
        "build: the disk is full" if error is StoreError else f"build failed: {line}"
    )
    assert found.why == line


def test_a_disk_that_was_full_once_is_the_cause_whatever_is_said_later() -> None:
    first, *more = "a.c: No space left on device", "b.c: File too large", "ninja: error: stopped"
    output, _ = read_output("\n".join([first, *more]))
    assert explain_failure("build", output, "ended", "", Path("log")).why == first


def test_without_an_error_line_the_end_is_told() -> None:
    output, _ = read_output("all quiet")
    error = explain_failure("build", output, "was killed by SIGKILL", "all quiet", Path("log"))
    assert (error.what, error.why) == ("build failed: was killed by SIGKILL", "all quiet")


def test_a_step_that_fails_says_what_helps_and_where_its_output_is(tmp_path: Path) -> None:
    place = SimpleNamespace(root=tmp_path, log=tmp_path / "build.log")
    plan = SimpleNamespace(
        place=place, aliases={}, environment={}, overlay=tmp_path, source=tmp_path
    )
    for line, helps in (("fatal error: QnnInterface.h: No such file", True), ("no idea", False)):
        later = f"printf '%s\\n' {'compiled ' * 99}"
        command = ["/bin/sh", "-c", f"echo 'a.cpp:1: {line} or directory'; {later}; exit 1"]
        with pytest.raises(ToolError) as raised:
            _run_step(plan, "compile", command, Progress(None))  # type: ignore[arg-type]
        assert ("QNN_SDK_ROOT" in raised.value.fix) == helps
        assert str(place.log) in raised.value.fix


def test_a_step_runs_in_the_environment_of_its_plan_and_tells_paths_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, root = tmp_path / "source", tmp_path / "root"
    for folder in (source, root):
        folder.mkdir()
    (source / "a.cpp").touch()
    overlay, log = root / "tree/et", root / "build.log"
    place = SimpleNamespace(root=root, log=log)
    environment = {"WHAT": f"{overlay}/a.cpp:3", "PATH": os.defpath}
    plan: Any = SimpleNamespace(
        place=place, aliases={}, environment=environment, overlay=overlay, source=source
    )
    shown = f"{source}/a.cpp:3"
    for github in ("", "true"):
        monkeypatch.setenv("GITHUB_ACTIONS", github)
        stream = io.StringIO()
        for text, what, why in (
            ("$WHAT: error: no", f"compile failed: {shown}: error: no", f"{shown}: error: no"),
            ("$WHAT", "compile failed: ", shown),
        ):
            log.unlink(missing_ok=True)
            command = ["/bin/sh", "-c", f'echo "{text}"; exit 1']
            with pytest.raises(ToolError) as raised:
                _run_step(plan, "compile", command, Progress(stream))
            assert raised.value.what.startswith(what)
            assert raised.value.why == why
            assert log.read_text().splitlines()[1] == why
        lines = stream.getvalue().splitlines()
        assert (shown in lines, "::group::compile" in lines) == (bool(github),) * 2


def test_a_step_whose_program_is_missing_is_in_the_log(tmp_path: Path) -> None:
    place = SimpleNamespace(root=tmp_path, log=tmp_path / "build.log")
    plan: Any = SimpleNamespace(
        place=place, aliases={}, environment={}, overlay=tmp_path, source=tmp_path
    )
    with pytest.raises(MissingToolError):
        _run_step(plan, "compile", [str(tmp_path / "gone"), "x"], Progress(None))
    assert place.log.read_text() == f"$ {tmp_path}/gone x\n\n"


@pytest.mark.parametrize(
    "line",
    [
        "a.cpp:1:2: error: no",
        "a.cpp:1:2: fatal error: no",
        "error: no",
        "CMake Error: no",
        "a.o: undefined reference to `f'",
    ],
)
def test_a_line_that_tells_an_error_is_the_first_one(line: str) -> None:
    output, _ = read_output(f"all is well: no terror: x\nFAILED: a.o\n{line}\nmore\nb: error: late")
    assert output.first_error == ("b: error: late" if line.startswith("CMake") else line)
    assert output.excerpt.splitlines() == [line, "more", "b: error: late"]


@pytest.mark.parametrize("ending", ["exit 1", "kill -9 $$"])
def test_a_step_that_is_killed_has_failed_too(tmp_path: Path, ending: str) -> None:
    place = SimpleNamespace(root=tmp_path, log=tmp_path / "build.log")
    plan: Any = SimpleNamespace(
        place=place, aliases={}, environment={}, overlay=tmp_path, source=tmp_path
    )
    place.log.write_text("earlier\n")
    command = ["/bin/sh", "-c", f"echo quiet; {ending}"]
    with pytest.raises(ToolError):
        _run_step(plan, "compile", command, Progress(None))
    assert place.log.read_text() == f"earlier\n$ {' '.join(command)}\nquiet\n\n"
    assert [path.name for path in tmp_path.iterdir()] == ["build.log"]


def test_every_target_names_what_there_is() -> None:
    for target in read_targets().values():
        if target.profile:
            read_profile(target.profile)
        known = read_toolchain("executorch").components
        wanted = [
            *target.needs.components,
            *(n for row in target.needs.extras.values() for n in row),
        ]
        assert set(wanted) <= set(known)
        for row in target.artifacts:
            policy = fill_placeholders(row.policy, VALUES)
            assert elf_policy(policy).machine
        assert fill_placeholders(target.policy, VALUES) in {
            "x86_64-linux", "aarch64-android", "aarch64-oe-linux", "hexagon-v79",
        }  # fmt: skip
        if target.with_source:
            assert find_target(target.with_source).origin.value == "checkout"


def test_extras_are_those_of_files_and_stages_by_name() -> None:
    stages = (
        Stage("one", extra_options={"z": {"A": True}}, extra_targets={"c": ("x",), "b": ("y",)}),
        Stage("two", extra_options={"a": {}}, toolchain=CompilerChoice.NDK),
        Stage("three", toolchain=CompilerChoice.HOST),
        Stage("four", toolchain=CompilerChoice.HEXAGON),
    )
    rows = (
        Artifact("m", extra="m"),
        Artifact("n"),
        Artifact("o", extra="b"),
        Artifact("p", extra="p"),
    )
    target = msgspec.structs.replace(find_target("runner"), stages=stages, artifacts=rows)
    assert target.extras == ("a", "b", "c", "m", "p", "z")
    assert target.toolchain is CompilerChoice.HOST
    others = (CompilerChoice.NDK, CompilerChoice.HEXAGON)
    assert target.toolchains == (CompilerChoice.HOST, *others)


def test_a_row_goes_on_top_of_its_recipe() -> None:
    host, android = find_target("runner_checkout"), find_target("android")
    assert host.needs.components == ("adaptor", "runner")
    assert android.needs.components == ("runner",)
    assert host.needs.modules
    assert msgspec.structs.replace(host.needs, components=("runner",)) == android.needs
    assert host.stages == android.stages


def test_wrong_names_are_told() -> None:
    with pytest.raises(UsageError, match="no build target 'x'") as caught:
        find_target("x")
    assert "runner, runner_checkout, aot" in caught.value.fix
    with pytest.raises(ManifestError, match=r"no value for \{root\}"):
        fill_placeholders("{root}/a", {"tree": "/t"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[recipe.a]\n[[target]]\nname='t'\nrecipe='b'", "no recipe 'b'"),
        ("[recipe.a]\n[[target]]\nname='t'\nrecipe='a'", "t does not match its schema"),
        ("[recipe.a]\nx=1\n[[target]]\nname='t'\nrecipe='a'", "t does not match its schema"),
    ],
)
def test_a_wrong_file_of_targets_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    (tmp_path / "targets.toml").write_text(text)
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path))
    with pytest.raises(ManifestError, match=message):
        read_targets()


def make_kit(**values: str) -> Kit:
    tools = Tools(
        Program(Path("/t/cmake"), Version("3.30")), Program(Path("/t/ninja"), Version("1.12")), None
    )
    return Kit(
        tools, {CompilerChoice.HOST: Compilers({"CMAKE_C_COMPILER": "cc"}, {"cc": "one"})}, values
    )


def test_a_plan_depends_on_all_that_changes_bytes_and_not_on_jobs() -> None:
    place = Place(Path("/b"))
    target = find_target("runner")

    def digest(request: BuildRequest, **values: str) -> str:
        kit = make_kit(wheel_root="/w", **values)
        return make_plan(target, request, Path("/s"), place, kit).settings_digest

    base = digest(BuildRequest())
    assert digest(BuildRequest(jobs=7)) == base
    changed = [
        digest(BuildRequest(defines={"A": "1"})),
        digest(BuildRequest(), executorch_version="9"),
        make_plan(
            target, BuildRequest(), Path("/s"), Place(Path("/c")), make_kit(wheel_root="/w")
        ).settings_digest,
        digest(BuildRequest(), hexagon_arch="v79"),
    ]
    assert base not in changed
    assert len(set(changed)) == 4


@pytest.mark.parametrize("tool", ["cmake", "ninja"])
def test_another_version_of_a_tool_is_a_build_from_nothing(tool: str) -> None:
    kit, place, target = make_kit(wheel_root="/w"), Place(Path("/b")), find_target("runner")
    newer = replace(getattr(kit.tools, tool), version=Version("99"))
    digests = [
        make_plan(target, BuildRequest(), Path("/s"), place, one).settings_digest
        for one in (kit, replace(kit, tools=replace(kit.tools, **{tool: newer})))
    ]
    assert len(set(digests)) == 2


def test_flags_and_the_time_that_objects_get_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest() -> str:
        kit = make_kit(wheel_root="/w")
        place = Place(Path("/b"))
        return make_plan(
            find_target("runner"), BuildRequest(), Path("/s"), place, kit
        ).settings_digest

    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    base = digest()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    assert digest() != base


def test_a_define_goes_before_what_the_target_says() -> None:
    target = msgspec.structs.replace(find_target("runner"), build_type="Debug")
    name = next(iter(target.stages[0].options))
    plan = make_plan(
        target,
        BuildRequest(defines={name: "mine"}, release=True),
        Path("/s"),
        Place(Path("/b")),
        make_kit(wheel_root="/w"),
    )
    defines = plan.stages[0].defines
    assert [one for one in defines if one.startswith(f"-D{name}=")] == [f"-D{name}=mine"]
    assert "-DCMAKE_BUILD_TYPE=Release" in defines
    assert plan.aliases == {"/build": "/b", "/wheel_root": "/w"}


def test_the_environment_of_a_build_holds_no_flags_of_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXXFLAGS", "-O0 -DSURPRISE")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    plan = make_plan(
        find_target("runner"),
        BuildRequest(),
        Path("/s"),
        Place(Path("/b c")),
        make_kit(wheel_root="/w"),
    )
    assert "LD_LIBRARY_PATH" not in plan.environment
    assert plan.environment["CCACHE_DISABLE"] == "1"
    assert plan.environment["CXXFLAGS"].startswith("'-ffile-prefix-map=/b c=/build'")
    assert plan.environment["CFLAGS"] == plan.environment["CXXFLAGS"]
    assert plan.environment["PATH"].startswith("/t:")


@pytest.mark.parametrize(
    ("variable", "is_kept"),
    [
        *((one, True) for one in ("HOME", "TMPDIR", "TERM", "USER")),
        *((one, True) for one in ("CCACHE_DIR", "SCCACHE_BUCKET", "QNN_CI_HOME")),
        *((one, False) for one in ("PYTHONPATH", "CMAKE_PREFIX_PATH", "QNN_SDK_ROOT", "LDFLAGS")),
    ],
)
def test_a_build_sees_only_some_variables_of_the_caller(
    monkeypatch: pytest.MonkeyPatch, variable: str, is_kept: bool
) -> None:
    monkeypatch.setenv(variable, "/of/the/caller")
    kit, place = make_kit(wheel_root="/w"), Place(Path("/b"))
    plan = make_plan(find_target("runner"), BuildRequest(), Path("/s"), place, kit)
    assert (plan.environment.get(variable) == "/of/the/caller") is is_kept


def test_a_user_s_own_define_wins() -> None:
    request = BuildRequest(defines={"CMAKE_BUILD_TYPE": "Debug"})
    plan = make_plan(
        find_target("runner"), request, Path("/s"), Place(Path("/b")), make_kit(wheel_root="/w")
    )
    (stage,) = plan.stages
    assert [one for one in stage.defines if "BUILD_TYPE" in one] == ["-DCMAKE_BUILD_TYPE=Debug"]


def make_cached_plan(tmp_path: Path, cache: Path | None) -> BuildPlan:
    kit = make_kit(wheel_root="/w")
    program = Program(cache, Version("4.7")) if cache else None
    kit = replace(kit, tools=replace(kit.tools, cache=program))
    place = Place(tmp_path)
    return make_plan(find_target("runner"), BuildRequest(), Path("/s"), place, kit)


@pytest.mark.parametrize(
    ("value", "off"), [("OFF", True), ("no", True), ("0", True), ("", True), ("ON", False)]
)
def test_an_option_is_off_as_cmake_reads_it(value: str, off: bool) -> None:
    request = BuildRequest(defines={"A:BOOL": value})
    assert (request.turns_off("A"), request.turns_off("B")) == (off, False)


def collect(place: Path, request: BuildRequest, *rows: Artifact) -> list[str]:
    """The names of what a build of these rows is found to have left."""
    target = msgspec.structs.replace(find_target("runner"), artifacts=rows)
    plan = make_plan(target, request, Path("/s"), Place(place), make_kit(wheel_root="/w"))
    return [one.path.name for one in collect_artifacts(plan, request)]


def test_what_a_build_must_leave_is_there_or_is_named(tmp_path: Path) -> None:
    for name in ("a.so", "b.so"):
        (tmp_path / name).write_bytes(b"")
    row = Artifact("*.so", "x86_64-linux")
    assert collect(tmp_path, BuildRequest(), row) == ["a.so", "b.so"]
    gone = msgspec.structs.replace(row, path="gone.*", option="A", extra="b")
    with pytest.raises(FailedError, match=r"produced no gone\.\*"):
        collect(tmp_path, BuildRequest(extras=frozenset({"b"})), gone)
    optional = msgspec.structs.replace(gone, optional=True)
    extras = frozenset({"b"})
    assert collect(tmp_path, BuildRequest(extras=extras), optional) == []
    assert collect(tmp_path, BuildRequest(), gone) == []
    assert collect(tmp_path, BuildRequest(extras=extras, defines={"A": "OFF"}), gone) == []


def test_a_file_that_was_stripped_is_judged_instead_of_the_one_with_its_symbols(
    tmp_path: Path,
) -> None:
    target = msgspec.structs.replace(
        find_target("runner"), artifacts=(Artifact("*.so", "x86_64-linux", split_symbols=True),)
    )
    place = Place(tmp_path)
    plan = make_plan(target, BuildRequest(), Path("/s"), place, make_kit(wheel_root="/w"))
    place.stripped.mkdir()
    for name in ("a.so", "b.so"):
        (tmp_path / name).write_bytes(b"with symbols")
    (place.stripped / "b.so").write_bytes(b"without")
    found = {one.path: one.size_bytes for one in collect_artifacts(plan, BuildRequest())}
    assert found == {tmp_path / "a.so": 12, place.stripped / "b.so": 7}


@pytest.mark.parametrize(
    ("executorch", "library", "lowers"),
    [
        *((row.executorch, True, True) for row in read_pairs().supported),
        *(("1.5.1+cpu", True, True), ("1.5.1", False, False)),
        *(("0.1.0", True, False), ("", True, False)),
    ],
)
def test_an_sdk_lowers_here_with_libraries_for_hosts_and_a_supported_executorch(
    tmp_path: Path, executorch: str, library: bool, lowers: bool
) -> None:
    if library:
        (tmp_path / HOST_LIBRARY).parent.mkdir(parents=True)
        (tmp_path / HOST_LIBRARY).write_bytes(b"")
    values = {"qnn_sdk_root": str(tmp_path), "executorch_version": executorch}
    assert find_lowering_sdk(values) == (str(tmp_path) if lowers else "")
    assert find_lowering_sdk({"executorch_version": executorch}) == ""
    assert find_lowering_sdk({}) == ""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("QNN_HTP_A", {"QNN_HTP_A"}),
        *(
            (f"f({name}, x{name}, {name.lower()})", {name})
            for name in (
                *("QNN_HTP_A_1", "QNN_GPU_A", "QNN_LPAI_A", "QNN_IR_A", "QNN_SAVER_A"),
                *("QNN_SYSTEM_A", "QnnHtp_Setting_t", "Qnn_A1_t"),
            )
        ),
        ("QNN_HTP_, QNN_OP_A, QNN_HTP_a, QnnHtp_Setting, QnnHtp_t", set()),
        ("#endif\n#else\nQNN_HTP_A\n#elif\n", {"QNN_HTP_A"}),
        ("#define A QNN_HTP_A\n#pragma QNN_HTP_B\n", set()),
        ('"a\\"QNN_HTP_A" "QNN_HTP_B\nQNN_HTP_C"', {"QNN_HTP_B", "QNN_HTP_C"}),
        ("#ifndef __hexagon__\nQNN_HTP_A\n#endif\nQNN_HTP_B", {"QNN_HTP_A", "QNN_HTP_B"}),
        ("#ifndef __hexagon__\n#else\nQNN_HTP_A\n#endif", set()),
        ("#ifndef __hexagon__\n#elif NEWER\nQNN_HTP_A\n#endif", set()),
        ("#if NEWER\n#else\nQNN_HTP_A\n#endif", set()),
        ("#if NEWER\n#elif NEW\nQNN_HTP_A\n#else\nQNN_HTP_B\n#endif\nQNN_HTP_C", {"QNN_HTP_C"}),
        ("#ifdef NEWER\nQNN_HTP_A\n#endif\nQNN_HTP_B", {"QNN_HTP_B"}),
        ("#ifndef __hexagon__\n#if NEWER\nQNN_HTP_A\n#endif\nQNN_HTP_B\n#endif", {"QNN_HTP_B"}),
        (
            "#ifndef __hexagon__\n#ifndef __hexagon__\n#else\n#endif\nQNN_HTP_B\n#endif",
            {"QNN_HTP_B"},
        ),
        (
            "#ifndef __hexagon__\n#ifndef __hexagon__\n#else\nQNN_HTP_A\n#endif\n#endif",
            set(),
        ),
        ("// A\n#ifndef A_H\n#define A_H\nQNN_HTP_A\n#endif  // A_H\n", {"QNN_HTP_A"}),
        ("#ifndef A_H\n#define B_H\nQNN_HTP_A\n#endif\n", set()),
        ("QNN_HTP_B\n#ifndef A\n#define A\nQNN_HTP_A\n#endif\n", {"QNN_HTP_B"}),
        ('// QNN_HTP_A\n/* QNN_HTP_A */ "QNN_HTP_A"', set()),
    ],
)
def test_names_of_qnn_count_where_each_host_and_device_compiles_them(
    text: str, names: set[str]
) -> None:
    assert list_names(text) == names


def test_ccache_is_counted_from_its_log(tmp_path: Path) -> None:
    plan = make_cached_plan(tmp_path, Path("/usr/bin/ccache"))
    assert read_counts(plan) == CacheCounts("ccache", "4.7", 0, 0)
    plan.place.cache_log.write_text(
        "# a.cpp\ncache_miss\n# b.cpp\ndirect_cache_hit\n# c.cpp\npreprocessed_cache_hit\n"
        "# d.cpp\ndirect_cache_miss\npreprocessed_cache_miss\ncache_miss\n"
        "# e.cpp\ndirect_cache_hit\n"
    )
    assert read_counts(plan) == CacheCounts("ccache", "4.7", 3, 2)
    assert read_counts(make_cached_plan(tmp_path, None)) is None


SCCACHE = (
    '{"stats": {"cache_hits": {"counts": {"C": 5, "C++": 4}}, "cache_misses": {"counts": {}}}}'
)


@pytest.mark.parametrize(
    ("answer", "counts"),
    [(SCCACHE, (6, 0)), ("no server", (0, 0)), ('{"stats": {}}', (0, 0)), ("[]", (0, 0))],
)
def test_sccache_is_counted_from_what_it_says(
    tmp_path: Path, answer: str, counts: tuple[int, int]
) -> None:
    tool = tmp_path / "sccache"
    words = "--show-stats --stats-format json"
    asked = f"[ \"$*:$LC_ALL\" = '{words}:C.UTF-8' ]"  # with the variables of the build
    tool.write_text(f"#!/bin/sh\n{asked} && cat <<'END'\n{answer}\nEND\n")
    tool.chmod(0o755)
    found = read_counts(make_cached_plan(tmp_path, tool))
    assert found
    since = found.since(replace(found, hits=3, misses=1))
    assert (since.hits, since.misses) == counts


def test_the_cache_is_chosen_by_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("ccache", "sccache"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} 1.0\n")
        (tmp_path / name).chmod(0o755)
    found = {}
    for word in ("", "ccache", "sccache", "none"):
        monkeypatch.setenv("QNN_CI_CACHE", word)
        program = find_cache()
        found[word] = program.path.name if program else None
    assert found == {"": "ccache", "ccache": "ccache", "sccache": "sccache", "none": None}
    monkeypatch.setenv("QNN_CI_CACHE", "attic")
    with pytest.raises(UsageError, match="QNN_CI_CACHE=attic: "):
        find_cache()
    (tmp_path / "sccache").unlink()
    monkeypatch.setenv("QNN_CI_CACHE", "sccache")
    with pytest.raises(UnfitError, match="no working sccache"):
        find_cache()


def test_a_cache_that_does_not_work_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("QNN_CI_CACHE", raising=False)
    assert find_cache() is None
    for name, text in (("ccache", "exit 1"), ("sccache", "echo sccache 1.2")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    assert find_cache() == Program(tmp_path / "sccache", Version("1.2"))
    monkeypatch.setenv("QNN_CI_CACHE", "ccache")
    with pytest.raises(UnfitError, match="no working ccache"):
        find_cache()


@pytest.mark.parametrize(
    ("cmake", "ninja", "lacks"),
    [("3.28", "1.10", ""), ("3.27.9", "1.10", "cmake 3.28"), ("3.28", "1.9.1", "ninja 1.10")],
)
def test_a_build_needs_tools_of_at_least_these_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cmake: str, ninja: str, lacks: str
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("QNN_CI_CACHE", "none")
    for name, version in (("cmake", cmake), ("ninja", ninja)):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} version {version}\n")
        (tmp_path / name).chmod(0o755)
    if lacks:
        with pytest.raises(UnfitError, match=f"{lacks} or newer was not found"):
            find_tools()
        return
    found = find_tools()
    assert (found.cmake.path.name, found.ninja.path.name) == ("cmake", "ninja")
    assert found.cache is None


@pytest.mark.parametrize(("code", "lacks"), [(LACKS, "numpy"), (0, ""), (1, None)])
def test_an_import_ends_with_its_last_line(tmp_path: Path, code: int, lacks: str | None) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho a warning\necho numpy\nexit {code}\n")
    python.chmod(0o755)
    if lacks is not None:
        assert run_import(tmp_path / "A.so", python, {}) == lacks
        return
    with pytest.raises(FailedError, match=r"cannot import A\.so") as caught:
        run_import(tmp_path / "A.so", python, {})
    assert caught.value.why == "numpy"


def test_a_program_that_is_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "tool"
    old.write_text("#!/bin/sh\necho tool version 1.2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnfitError, match=r"tool 1\.3 or newer was not found") as caught:
        choose_program("tool", Version("1.3"))
    assert f"{old} has version 1.2" in caught.value.why
    assert choose_program("tool", Version("1.2")) == Program(old, Version("1.2"))


def test_a_program_next_to_this_python_comes_before_that_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {}
    for name, version in (("venv", "1.2"), ("path", "1.3")):
        places[name] = tmp_path / name / "tool"
        places[name].parent.mkdir()
        places[name].write_text(f"#!/bin/sh\necho tool version {version}\n")
        places[name].chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    for floor, name in (("1.2", "venv"), ("1.3", "path")):
        assert choose_program("tool", Version(floor)).path == places[name]
    with pytest.raises(UnfitError) as caught:
        choose_program("tool", Version("1.4"))
    for name, version in (("venv", "1.2"), ("path", "1.3")):
        assert f"{places[name]} has version {version}" in caught.value.why


def test_a_python_is_asked_with_the_variables_of_the_caller_unless_others_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    facts = PythonFacts("/py")
    monkeypatch.setattr(toolchains, "survey_python", lambda *given: asked.append(given) or facts)
    assert ask_python(Path("/py"), ["a", "b"]) is facts
    assert ask_python(Path("/py"), variables={"A": "b"}) is facts
    assert asked == [
        (Path("/py"), ("executorch",), ["a", "b"], os.environ),
        (Path("/py"), ("executorch",), (), {"A": "b"}),
    ]
    facts = PythonFacts("/py", error="no module named json")
    with pytest.raises(UnfitError, match="/py cannot be used") as caught:
        ask_python(Path("/py"))
    assert (caught.value.why, caught.value.fix) == ("no module named json", "correct --python")


def test_a_compiler_that_a_variable_names_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/c++")
    with pytest.raises(UnfitError, match="CXX=/no/such/c\\+\\+ is not a program"):
        find_compiler("CXX", ("c++",), "install one")
    monkeypatch.setenv("CXX", sys.executable)
    assert find_compiler("CXX", ("c++",), "") == Path(sys.executable)


def test_submodules_that_no_target_needs_are_neither_read_nor_copied() -> None:
    tiny = Path(__file__).resolve().parents[3] / "stand_ins/tiny_executorch"
    skipped = unneeded_submodules(tiny, ("adaptor",))
    assert skipped == {"third-party/unneeded", "extension/llm/tokenizers"}
    assert skipped.isdisjoint(wanted_submodules(tiny, ("adaptor",)))


@pytest.mark.parametrize(
    ("version", "is_fit"), [("2.38.1", False), ("2.39.0", True), ("2.50.1", True)]
)
def test_a_build_for_lpai_needs_an_sdk_that_lowers_for_it(version: str, is_fit: bool) -> None:
    row = read_pairs().find("1.5.1")
    assert row
    assert row.lpai == "2.39"
    artifacts = (
        Provisioned("qnn-sdk", version, Path()),
        Provisioned("executorch", "1.5.1", Path()),
    )
    for other in ("1.2", "9.9"):  # one without a version for LPAI, and an unknown one
        rows = (artifacts[0], Provisioned("executorch", other, Path()))
        check_lpai(Environment("direct-lpai", rows, {}))
    with nullcontext() if is_fit else pytest.raises(UnfitError, match=r"QNN SDK 2\.39 or later"):
        check_lpai(Environment("direct-lpai", artifacts, {}))


def test_a_compiler_that_was_replaced_is_another(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho cc 12\n")
    compiler.chmod(0o755)
    names = [identify_compiler(compiler)]
    os.utime(compiler, (1, 1))
    names.append(identify_compiler(compiler))
    compiler.write_text("#!/bin/sh\necho cc 123\n")
    os.utime(compiler, (1, 1))
    names.append(identify_compiler(compiler))
    assert len({*names}) == 3
    assert all(name.startswith("cc 12") for name in names)
    compiler.write_text("#!/bin/sh\nexit 0\n")
    os.utime(compiler, ns=(1, 1))
    assert identify_compiler(compiler) == " [17 bytes, 1]"
    compiler.write_text("#!/bin/sh\nexit 3\n")
    for gone in (compiler, tmp_path / "gone"):
        with pytest.raises(UnfitError, match="compiler"):
            identify_compiler(gone)


def test_each_python_and_sdk_has_a_build_of_an_adaptor_and_shares_that_of_a_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that one left would else be taken for those of another."""
    compilers = Compilers({}, {"cc": "one"})
    kit = make_kit()
    asked: dict[str, str] = {}

    def locate(profile: str, _: Progress) -> Environment:
        rows = (
            Provisioned("executorch", "1.5.1", tmp_path),
            Provisioned("qnn-sdk", asked["sdk"], tmp_path),
            Provisioned("android-ndk", "r26c", tmp_path),
            Provisioned("hexagon-sdk", "6", tmp_path),
        )
        return Environment(profile, rows, {})

    wanted: list[tuple[str, ...]] = []
    monkeypatch.setattr(checkout, "locate_profile", locate)
    checked: list[tuple[Any, ...]] = []
    for name in ("check_headers", "check_names", "check_programs"):
        monkeypatch.setattr(checkout, name, partial(lambda *given: checked.append(given), name))
    monkeypatch.setattr(checkout, "check_submodules", lambda _, given: wanted.append(given))
    monkeypatch.setattr(checkout, "unneeded_submodules", lambda *_: frozenset())
    monkeypatch.setattr(checkout, "find_tools", lambda: kit.tools)
    values = {"android_platform": "android-30", "hexagon_tools_root": "/tools"}
    monkeypatch.setattr(checkout, "resolve_compilers", lambda *_: replace(compilers, values=values))
    monkeypatch.setattr(checkout, "probe_python", lambda *_: (asked["python"], "3.11.7"))

    def place(target: str, python: str, sdk: str) -> Path:
        asked.update(python=python, sdk=sdk)
        job = checkout.prepare_checkout(
            find_target(target), BuildRequest(source=tmp_path), Progress(io.StringIO())
        )
        return job.plan.place.root

    monkeypatch.setenv("EXECUTORCH_ROOT", "/other")
    pairs = [("cpython-311", "2.37.0"), ("cpython-312", "2.37.0"), ("cpython-311", "2.49.40")]
    assert len({place("aot", *pair) for pair in pairs}) == 3
    assert checked[-3:] == [
        ("check_headers", tmp_path),
        ("check_names", tmp_path, tmp_path),
        ("check_programs", find_target("aot").needs.programs),
    ]
    assert place("aot", *pairs[0]) == place("aot", *pairs[0])
    assert len({place("android", *pair) for pair in pairs}) == 1
    assert os.environ["EXECUTORCH_ROOT"] == str(tmp_path)
    os.environ["EXECUTORCH_ROOT"] = "/other"  # without --source, it stays
    job = checkout.prepare_checkout(find_target("android"), BuildRequest(), Progress(io.StringIO()))
    assert os.environ["EXECUTORCH_ROOT"] == "/other"
    versions = {"executorch": "1.5.1", "android_ndk": "r26c", "hexagon_sdk": "6"}
    versions["qnn_sdk"] = asked["sdk"]
    known = {f"{name}_version": version for name, version in versions.items()}
    known["python_version"] = f"{asked['python']} 3.11.7"
    roots = dict.fromkeys((f"{name}_root" for name in versions), str(tmp_path))
    roots["hexagon_tools_root"] = "/tools"
    ends = ("_version", "_root")
    given = {name: one for name, one in job.plan.values.items() if name.endswith(ends)}
    assert given == known | roots

    target = find_target("android")  # the submodules of extras are needed only with them
    for extras in ((), *((extra,) for extra in target.needs.extras)):
        request = BuildRequest(source=tmp_path, extras=frozenset(extras))
        checkout.prepare_checkout(target, request, Progress(io.StringIO()))
        more = [name for extra in extras for name in target.needs.extras[extra]]
        assert wanted[-1] == (*target.needs.components, *more)

    def place_of_soc(soc: str, dsp_type: int, sdk: str) -> Path:
        asked["sdk"] = sdk
        request = BuildRequest(source=tmp_path, soc=soc, dsp_type=dsp_type)
        job = checkout.prepare_checkout(find_target("direct"), request, Progress(io.StringIO()))
        return job.plan.place.root

    with pytest.raises(UnfitError, match="for LPAI"):
        place_of_soc("SM8850", checkout.LPAI, "2.38.1")
    builds = [("SM8850", checkout.LPAI, "2.49.40"), ("SM8850", checkout.HTP, "2.38.1")]
    assert len({place_of_soc(*one) for one in (*builds, ("SM8650", checkout.HTP, "2.38.1"))}) == 3
