"""ExecuTorch in miniature, toolchains and a home, in which the builder is called."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.programs import missing_programs
from tests.stand_ins.forks import Forks
from tests.stand_ins.tiny_toolchains import make_libcxx, make_qnn_sdk

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "tests/stand_ins/tiny_executorch"
VENDOR_VARIABLES = (
    "QNN_SDK_ROOT",
    "ANDROID_NDK_ROOT",
    "HEXAGON_SDK_ROOT",
    "HEXAGON_TOOLS_ROOT",
    "EXECUTORCH_ROOT",
)
SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
BACKEND = "libqnn_executorch_backend.so"
QUANTIZED = "libquantized_ops_aot_lib.so"
WITHOUT_TORCH = ("-D", "EXECUTORCH_BUILD_KERNELS_QUANTIZED_AOT=OFF")

needs_host = pytest.mark.skipif(
    bool(missing_programs("g++", "make")), reason=missing_programs("g++", "make")
)
needs_clang = pytest.mark.skipif(
    bool(missing_programs("clang", "ld.lld")), reason=missing_programs("clang", "ld.lld")
)
needs_cross = pytest.mark.skipif(
    bool(missing_programs("aarch64-linux-gnu-g++")),
    reason=missing_programs("aarch64-linux-gnu-g++"),
)
needs_models = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torchgen", "yaml", "executorch")),
    reason="torch and executorch are not installed here; the builds run Python code of theirs",
)
NEEDS = [needs_host, needs_models]


@dataclass
class BuildWorld:
    """A checkout, toolchains and a home of their own, and the way to call the builder in them."""

    folder: Path
    forks: Forks
    variables: dict[str, str] = field(default_factory=dict)
    with_doctor: bool = False

    @property
    def checkout(self) -> Path:
        return self.folder / "checkout of mine"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def environment(self) -> dict[str, str]:
        variables = {
            name: value for name, value in os.environ.items() if name not in VENDOR_VARIABLES
        }
        home = {"QNN_CI_HOME": str(self.home), "QNN_CI_CACHE": "none", "PYTHONPATH": str(ROOT)}
        return {**variables, **home, **self.variables}

    def command(self, *words: str) -> list[str]:
        # The stand-ins for SDKs hold no libraries, to which the doctor objects with reason.
        doctor = [] if self.with_doctor else ["--no-doctor"]
        return [sys.executable, "-m", "ci", "build", "--json", "--jobs", "2", *doctor, *words]

    def call(self, *words: str) -> tuple[int, dict[str, Any], str]:
        _, _, module, *arguments = self.command(*words)
        ended = self.forks.run_module(module, *arguments, cwd=self.folder, env=self.environment)
        assert "Traceback" not in ended.stderr, ended.stderr
        return ended.returncode, json.loads(ended.stdout or "{}"), ended.stderr

    def build(self, *words: str) -> dict[str, Any]:
        code, data, text = self.call(*words)
        assert code == 0, text + json.dumps(data)
        for row in data["builds"][0]["artifacts"]:
            assert os.fsencode(self.home) not in Path(row["path"]).read_bytes(), row["name"]
        return data["builds"][0]

    def refuse(self, code: int, pattern: str, *words: str) -> dict[str, Any]:
        """The error of a call that must exit with ``code`` and tell what ``pattern`` matches."""
        exit_code, data, _ = self.call(*words)
        assert exit_code == code, data
        assert re.search(pattern, data["what"]), data
        return data

    def published(self) -> list[Path]:
        return sorted(self.home.glob("builds/*/artifacts/*"))


def make_world(folder: Path, forks: Forks) -> BuildWorld:
    # A copy whose directory has another name: the builder's own tree is called executorch.
    world = BuildWorld(folder, forks)
    shutil.copytree(TINY, world.checkout)
    world.variables = {
        "EXECUTORCH_ROOT": str(world.checkout),
        "QNN_SDK_ROOT": str(make_qnn_sdk(folder / "qnn")),
        "QNN_CI_LIBCXX_ROOT": str(make_libcxx(folder / "libcxx")),
    }
    return world


@dataclass(frozen=True)
class Kept:
    """A world in which a target was built, a copy of its files, and what the build printed."""

    world: BuildWorld
    files: Path
    build: dict[str, Any]


def keep(world: BuildWorld, *words: str) -> Kept:
    build = world.build(*words)
    files = world.folder.with_name("files")
    shutil.copytree(world.folder, files, symlinks=True)
    return Kept(world, files, build)


def restore(snapshot: Kept) -> BuildWorld:
    """The world of a build, with its files as that build left them."""
    folder = snapshot.world.folder
    shutil.rmtree(folder)
    shutil.copytree(snapshot.files, folder, symlinks=True)
    return BuildWorld(folder, snapshot.world.forks, dict(snapshot.world.variables))


def index_artifacts(build: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in build["artifacts"]}


def read_published(world: BuildWorld) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in world.published()}


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def list_files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def list_artifacts(build: dict[str, Any]) -> dict[str, str]:
    return {name: row["sha256"] for name, row in index_artifacts(build).items()}


def assert_error_in_checkout(world: BuildWorld, data: dict[str, Any], source: Path) -> None:
    """An error is in a file of the checkout, not of the copy that is compiled."""
    message = data["what"] + data["why"]
    assert f"{source}:" in message, message
    assert "/tree/executorch" not in message
    (log,) = (world.home / "builds").glob("*/build.log")
    assert f"{source}:" in log.read_text()
