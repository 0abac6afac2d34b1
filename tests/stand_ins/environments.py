"""Environments that the doctor finds fit: real libraries of QNN, small ones for the rest.

The x86_64 and aarch64 libraries and the Hexagon skels are those of the pinned wheels, as the
product provisions them; headers, an NDK, a checkout with submodules, an interpreter and tools
are made here, with what is looked at and nothing more.
"""

from __future__ import annotations

import importlib.machinery
import os
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from provisioning.artifacts.lockfile import project_lock_path, read_lock
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.doctor.policies import read_doctor_policy
from provisioning.doctor.survey.environment import SurveyRequest
from provisioning.manifest.reader import read_toolchain
from provisioning.store.store import Store
from tests.stand_ins import elf_edits as elf
from tests.stand_ins.elf_edits import Edit, named, set_string
from tests.stand_ins.provisioned import provision_one

LIBRARIES = Path(__file__).parents[1] / "artifacts" / "elf"
NDK_REVISION = "26.2.11394342"


def _locked_build() -> tuple[str, str]:
    """The pinned QNN, and the whole name of its build, as the lock's evidence has it."""
    version = read_toolchain("qnn-runtime").default
    lock = read_lock(project_lock_path("qnn-runtime", version))
    build = re.search(r"libraries say (\S+)", "\n".join(lock.evidence if lock else ()))
    assert build
    return version, f"v{build[1]}"


VERSION, BUILD = _locked_build()
PLACEHOLDER_BUILD = "v2.49.40.260810104044"  # of tests/artifacts/elf
HOST = "lib/x86_64-linux-clang"
LINUX = "lib/aarch64-oe-linux-gcc11.2"
ANDROID = "lib/aarch64-android"
LPAI = "lib/lpai-v6/unsigned"
SUBMODULES = ("third-party/flatcc", "third-party/json")
TAG = importlib.machinery.EXTENSION_SUFFIXES[0]
HEADERS = read_doctor_policy().headers
API = "".join(
    f"#define QNN_API_VERSION_{part} {number}\n"
    for part, number in (("MAJOR", 2), ("MINOR", 31), ("PATCH", 0))
)


@dataclass
class World:
    """Where everything is."""

    base: Path
    commit: str = ""
    undo: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sdk = self.base / "sdk"
        self.android = self.base / "android-sdk"
        self.ndk = self.base / "android-ndk"
        self.checkout = self.base / "src" / "executorch"
        self.python = self.base / "venv" / "bin" / "python"
        self.tools = self.base / "tools"
        self.staging = self.base / "staging"
        self.libcxx = self.base / "libcxx"
        self.home = self.base / "home"
        self.kept = self.base / "kept"

    @property
    def site(self) -> Path:
        """The site-packages of the interpreter."""
        return next((self.base / "venv" / "lib").glob("python*/site-packages"))

    def request(self, profile: str) -> SurveyRequest:
        """What a fit environment of ``profile`` is asked with."""
        sdk = self.android if profile in ("android", "lpai") else self.sdk
        name = "qnn-runtime" if profile == "emulator" else "qnn-sdk"
        roots = {name: sdk}
        variables = {"PATH": str(self.tools), "QNN_SDK_ROOT": str(sdk)}
        variables["LD_LIBRARY_PATH"] = str(sdk / HOST)
        if profile in ("linux", "android", "aot"):
            roots["executorch"] = self.checkout
            variables["PYTHONPATH"] = str(self.checkout.parent)
        if profile == "aot":
            roots["libcxx"] = self.libcxx
        if profile == "android":
            roots["android-ndk"] = self.ndk
        if profile == "lpai":
            roots["hexagon-sdk"] = self.base / "hexagon-sdk"
        pins = {name: VERSION, "executorch-commit": self.commit, "android-ndk": NDK_REVISION}
        python = self.python if profile == "emulator" else None
        return SurveyRequest(
            profile, roots, variables, self.home, pins, submodules=SUBMODULES, python=python
        )

    def replace(self, path: Path, content: bytes) -> None:
        """Put ``content`` in the place of a file until the test ends."""
        mode = path.stat().st_mode
        self.remove(path)
        path.write_bytes(content)
        path.chmod(mode)

    def edit(self, path: Path, edit: Edit) -> None:
        """Change bytes of a file."""
        data = bytearray(path.read_bytes())
        edit(data)
        self.replace(path, bytes(data))

    def remove(self, path: Path) -> None:
        """Take a file or a directory away until the test ends."""
        self.kept.mkdir(exist_ok=True)
        hidden = self.kept / f"{len(self.undo)}"
        path.rename(hidden)

        def restore() -> None:
            _delete(path)
            hidden.rename(path)

        self.undo.append(restore)

    def move(self, path: Path, target: Path) -> None:
        """Rename until the test ends."""
        path.rename(target)
        self.undo.append(lambda: target.rename(path))

    def add(self, path: Path, content: bytes) -> None:
        """A file that was not there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.undo.append(path.unlink)

    def restore(self) -> None:
        """Undo everything, the last first."""
        while self.undo:
            self.undo.pop()()


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def make_environments(base: Path) -> World:
    """All of it. The wheels come from the package index, once, into the store."""
    world = World(base)
    _make_sdk(world)
    _make_android_sdk(world.android)
    _make_ndk(world.ndk)
    (base / "hexagon-sdk" / "tools" / "HEXAGON_Tools").mkdir(parents=True)
    _make_checkout(world)
    _make_python(world)
    _make_staging(world)
    _make_libcxx(world)
    for name, says in (("cmake", "3.31.2"), ("ninja", "1.12.1"), ("g++", "13.3.0")):
        write_program(world.tools / name, f"{name} version {says}")
    (world.tools / "git").symlink_to(shutil.which("git") or "/usr/bin/git")
    return world


def _make_sdk(world: World) -> None:
    for name in ("qnn-runtime", "qnn-runtime-aarch64"):
        toolchain = read_toolchain(name)
        request = ArtifactRequest(toolchain, toolchain.release())
        artifact = provision_one(request, Store(), Progress())
        shutil.copytree(
            artifact.root,
            world.sdk,
            symlinks=True,
            dirs_exist_ok=True,
            copy_function=_link,
        )
    _make_headers(world.sdk)


def _link(source: str, target: str) -> None:
    """A hard link where the file system allows it: these files are replaced, never written."""
    _delete(Path(target))
    with suppress(OSError):
        os.link(source, target, follow_symlinks=False)
        return
    shutil.copy2(source, target, follow_symlinks=False)


def _make_headers(root: Path) -> None:
    for name in HEADERS:
        write(root / "include" / "QNN" / name, "#pragma once\n")
    write(root / "include" / "QNN" / "QnnCommon.h", API)


def _make_android_sdk(root: Path) -> None:
    write(root / "sdk.yaml", f"version: {VERSION}\n")
    _make_headers(root)
    for part in ("Htp", "HtpPrepare", "System", "Lpai", "LpaiStub"):
        name = f"libQnn{part}.so"
        path = root / ANDROID / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = bytearray(named(LIBRARIES / "libplaceholder_for_android.so", name))
        elf.set_build(PLACEHOLDER_BUILD, BUILD)(data)
        path.write_bytes(data)
    skel = root / LPAI / "libQnnLpaiSkel.so"
    skel.parent.mkdir(parents=True)
    data = bytearray(named(LIBRARIES / "libplaceholder_for_hexagon.so", skel.name))
    elf.set_build(PLACEHOLDER_BUILD, BUILD)(data)
    elf.add_swiv(data)
    skel.write_bytes(data)


def _make_ndk(root: Path) -> None:
    write(root / "source.properties", f"Pkg.Desc = Android NDK\nPkg.Revision = {NDK_REVISION}\n")
    write(root / "build" / "cmake" / "android.toolchain.cmake", "")
    host = root / "toolchains" / "llvm" / "prebuilt" / "linux-x86_64"
    (host / "sysroot" / "usr" / "lib" / "aarch64-linux-android" / "30").mkdir(parents=True)
    write_program(host / "bin" / "clang++", "Android clang version 17.0.2")


def _make_checkout(world: World) -> None:
    """A repository with submodules, one of them with a submodule of its own."""
    origin = world.base / "origin"
    deep, json, flatcc = origin / "deep", origin / "json", origin / "flatcc"
    for repository in (deep, json, flatcc):
        _commit(repository, "README", repository.name)
    git(json, "submodule", "add", "-q", str(deep), "deep")
    git(json, "commit", "-qm", "deep")
    _commit(world.checkout, "version.txt", "1.5.1")
    for name in ("flatcc", "json"):
        git(world.checkout, "submodule", "add", "-q", str(origin / name), f"third-party/{name}")
    git(world.checkout, "submodule", "update", "-q", "--init", "--recursive")
    git(world.checkout, "commit", "-qm", "submodules")
    world.commit = git(world.checkout, "rev-parse", "HEAD").strip()


def _commit(repository: Path, name: str, text: str) -> None:
    write(repository / name, text)
    git(repository, "init", "-q", ".")
    git(repository, "add", name)
    git(repository, "commit", "-qm", "first")


def git(repository: Path, *words: str) -> str:
    """Run git as nobody in particular; submodules may come from directories."""
    identity = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    allowed = ("-c", "protocol.file.allow=always")
    return run_process(["git", "-C", repository, *identity, *allowed, *words]).output


def _make_python(world: World) -> None:
    run_process([sys.executable, "-m", "venv", "--without-pip", world.base / "venv"])
    for name, version in (("torch", "2.13.0+cpu"), ("executorch", "1.5.1")):
        install(world.site, name, version)
    for name in ("cpuinfo", "flatbuffers", "numpy", "yaml"):
        write(world.site / f"{name}.py", "")
    write(world.site / "executorch" / "__init__.py", "")
    adaptor = adaptor_path(world)
    adaptor.parent.mkdir(parents=True)
    data = bytearray((LIBRARIES / "libx86.so").read_bytes())
    elf.set_string("libneeded.so", "libc.so.6", everywhere=True)(data)
    adaptor.write_bytes(data)


def install(site: Path, name: str, version: str) -> None:
    """The metadata of a distribution."""
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    write(site / f"{name}-0.dist-info" / "METADATA", text)


def adaptor_path(world: World) -> Path:
    """Where the adaptor lies for the interpreter that runs the tests."""
    directory = world.site / "executorch" / "backends" / "qualcomm" / "python"
    return directory / f"PyQnnManagerAdaptor{TAG}"


def _make_staging(world: World) -> None:
    """What a V79 device gets."""
    world.staging.mkdir()
    for name in ("Htp", "HtpPrepare", "System", "HtpV79Stub"):
        source = world.sdk / LINUX / f"libQnn{name}.so"
        _link(str(source), str(world.staging / source.name))
    skel = world.sdk / "lib" / "hexagon-v79" / "unsigned" / "libQnnHtpV79Skel.so"
    _link(str(skel), str(world.staging / skel.name))


def _make_libcxx(world: World) -> None:
    """The three libraries of the wheel, under the names that LLVM gives them."""
    names = {"libunwind": "libunwind.so.1.0", "libc++abi": "libc++abi.so.1.0"}
    (world.libcxx / "lib").mkdir(parents=True)
    for stem, name in {**names, "libc++": "libc++.so.1.0"}.items():
        source = next((world.sdk / HOST).glob(f"{stem}-*"))
        data = bytearray(source.read_bytes())
        for other_stem in (*names, "libc++"):
            hashed = next((world.sdk / HOST).glob(f"{other_stem}-*")).name
            if hashed.encode() in data:
                set_string(hashed, f"{other_stem}.so.1", everywhere=True)(data)
        (world.libcxx / "lib" / name).write_bytes(data)
        (world.libcxx / "lib" / f"{stem}.so.1").symlink_to(name)


def write(path: Path, text: str) -> None:
    """A text file, with its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_program(path: Path, says: str, code: int = 0) -> None:
    """A program that says one line and ends."""
    write(path, f'#!/bin/sh\necho "{says}"\nexit {code}\n')
    path.chmod(0o755)
