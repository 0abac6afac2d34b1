"""A build of two stages with two toolchains, stand-ins for programs, and a CMake that answers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ci.builds.plan import BuildPlan, BuildRequest, Kit, Place, make_plan
from ci.builds.steps import run_stages
from ci.builds.targets import CompilerChoice, Target, find_target
from ci.builds.toolchains import Compilers, Program, Tools, Version
from provisioning.console.progress import Progress
from provisioning.errors import QnnCiError

TARGET = {
    "name": "t",
    "help": "h",
    "session": "s",
    "platform": "p",
    "origin": "checkout",
    "toolchain": "host",
    "tree_name": "et",
    "policy": "hexagon-{dsp_arch}",
    "artifacts": [],
    "stages": [
        {
            "name": "first",
            "source": "a/../b",
            "options": {
                "A": "{prefix}",
                "B": True,
                "C": False,
                "D": "target",
                "CMAKE_INSTALL_PREFIX": "{prefix}/own",
            },
            "extra_options": {"one": {"X": "1"}, "two": {"Y": True}},
            "extra_targets": {"one": ["p"], "two": ["q"]},
        },
        {"name": "second", "toolchain": "ndk", "install": True, "if_present": ["z", "w"]},
    ],
}
TOOLS = Tools(
    Program(Path("/c/cmake"), Version("3.30")), Program(Path("/n/ninja"), Version("1.11")), None
)
KIT = Kit(
    TOOLS,
    {
        CompilerChoice.HOST: Compilers({"T": "host"}, {"cc": "gcc", "cxx": "g++"}, {"one": "1"}),
        CompilerChoice.NDK: Compilers({"T": "ndk"}, {"release": "26"}, {"two": "2"}),
    },
    {"qnn_sdk_root": "/sdk", "ndk_root": "/ndk", "qnn_sdk_version": "2.49", "dsp_arch": "v75"},
    {"HEXAGON_SDK_ROOT": "/hexagon"},
)
REQUEST = BuildRequest(jobs=3, extras=frozenset({"one", "two"}), defines={"D": "user", "E": "5"})


def plan(
    place: Path,
    request: BuildRequest = REQUEST,
    kit: Kit = KIT,
    source: Path = Path("/source"),
    **row: Any,
) -> BuildPlan:
    """The plan of TARGET with some fields of its row changed."""
    target = msgspec.convert({**TARGET, **row}, Target)
    return make_plan(target, request, source, Place(place), kit)


def plan_runner(place: Path, request: BuildRequest | None = None, **kit: Any) -> BuildPlan:
    """The plan of the wheel's runner."""
    tools, values = kit.pop("tools", TOOLS), {"wheel_root": "/w", **kit}
    build_kit = Kit(tools, {CompilerChoice.HOST: Compilers({}, {"cc": "one"})}, values)
    request = request or BuildRequest()
    return make_plan(find_target("runner"), request, Path("/s"), Place(place), build_kit)


def write_program(path: Path, body: str = "") -> Path:
    """A program of some lines of shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


CMAKE = """
step=$1 words=" $*" targets=
case $step in
--help-variable-list) echo CMAKE_CXX_STANDARD; exit 3 ;;
-S) build=$4; mkdir -p "$build/.cmake/api/v1"; cp -R "{folder}/reply" "$build/.cmake/api/v1/" ;;
*) build=$2 ;;
esac
case $words in *--target*) targets=" --target${{words#*--target}}" ;; esac
echo "${{build##*/}}: $step$targets" >> {folder}/calls
. "{folder}/${{build##*/}}$step"
"""


class Cmake:
    """A build whose CMake notes its calls and runs lines of shell for each step of a stage."""

    def __init__(self, folder: Path, request: BuildRequest = REQUEST) -> None:
        self.folder = folder / "cmake"
        program = write_program(self.folder / "cmake", CMAKE.format(folder=self.folder))
        tools = Tools(Program(program, Version("3.30")), TOOLS.ninja, None)
        (folder / "source").mkdir()
        kit = Kit(tools, KIT.compilers, {**KIT.values, "ndk_root": str(folder / "ndk")})
        self.plan = plan(folder / "place", request, kit, folder / "source")
        self.place = self.plan.place
        self.place.root.mkdir()
        for stage in self.plan.stages:
            for step in ("-S", "--build", "--install"):
                self.answer(stage.name, step, "")
        self.reply("index-2026-01-02T00-00.json", ["all", "w"])

    def answer(self, stage: str, step: str, body: str) -> None:
        (self.folder / f"{stage}{step}").write_text(f"{body}\n")

    def say(self, stage: str, step: str, text: str, code: int = 0) -> None:
        """Print a text in a step, and end with a code."""
        path = self.folder / f"{stage}{step}.txt"
        path.write_text(text)
        self.answer(stage, step, f"cat '{path}'; exit {code}")

    def reply(self, index: str, targets: list[str]) -> None:
        """What CMake's file API answers about the targets of a project."""
        index_of_replies = {"reply": {"codemodel-v2": {"jsonFile": f"model-{index}"}}}
        model = {"configurations": [{"targets": [{"name": name}]} for name in targets]}
        files = {index: json.dumps(index_of_replies), f"model-{index}": json.dumps(model)}
        write_files(self.folder / "reply", files)

    def run(self, stream: io.StringIO | None = None) -> list[str]:
        """The calls of one run."""
        calls = self.folder / "calls"
        calls.unlink(missing_ok=True)
        run_stages(self.plan, Progress(stream))
        return calls.read_text().splitlines()

    def fail(self, stream: io.StringIO | None = None) -> QnnCiError:
        """The error of one run."""
        try:
            self.run(stream)
        except QnnCiError as error:
            return error
        raise AssertionError("the build succeeded")


def explain(call: Callable[[], Any]) -> str:
    """The kind and the text of a call's error, or what it returns."""
    try:
        return str(call())
    except QnnCiError as error:
        return f"{type(error).__name__} {error}"
