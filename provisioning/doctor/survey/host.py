"""Gather facts about the machine, about the devices that adb lists, and about installations: a QNN
SDK, an Android NDK, and a checkout of ExecuTorch.

Each device is examined with one call of adb's shell. It is not a fault if there is no adb, no adb
server or no device.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from provisioning.artifacts.installations import SDK_YAML, SdkIdentity, read_sdk_yaml
from provisioning.console.git import ask_git, read_commit
from provisioning.console.memory import limit_bytes
from provisioning.console.process import fill_script, run_process
from provisioning.console.usage import measure_memory
from provisioning.doctor.facts import (
    HOST_DIRECTORY,
    CheckoutFacts,
    DeviceFacts,
    HostFacts,
    NdkFacts,
    SdkFacts,
    SubmoduleFacts,
    ToolFacts,
)
from provisioning.doctor.survey import qnn_probe
from provisioning.doctor.survey.python_probe import find_adaptors
from provisioning.documents import open_regular, read_window
from provisioning.elf.facts import MACHINE_NAMES
from provisioning.elf.loader import find_libraries
from provisioning.errors import ToolError, UnfitError
from provisioning.files import free_bytes, has_files


def survey_host(
    disk: Path,
    programs: Mapping[str, str],
    libraries: Iterable[str],
    variables: Mapping[str, str],
) -> HostFacts:
    """Return facts about the machine. ``disk`` is a path on the file system to check for free
    space.
    """
    line = re.search(r"^flags\s*:(.*)$", read_window(Path("/proc/cpuinfo")), re.MULTILINE)
    library, version = platform.libc_ver()
    return HostFacts(
        system=platform.system(),
        machine=platform.machine(),
        glibc=version if library == "glibc" else None,
        cores=usable_cores(),
        memory_gb=round(measure_memory()[1] / 1e9, 1),
        disk_free_gb=round(free_bytes(disk) / 1e9, 1),
        disk_path=str(disk),
        address_space_gb=round(limit_bytes() / 1e9, 2),
        cpu_flags=frozenset(line[1].split() if line else []),
        tools=survey_tools(programs, variables) if programs else (),
        libraries=find_libraries(libraries),
        has_cuda=has_cuda_toolkit(variables),
    )


CUDA = "/usr/local/cuda"  # where NVIDIA's packages install the toolkit


def has_cuda_toolkit(variables: Mapping[str, str]) -> bool:
    """Return whether CMake would find a CUDA toolkit: by nvcc, a variable or the usual place."""
    places = [variables.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH", "CUDAToolkit_ROOT")]
    compilers = [Path(place) / "bin/nvcc" for place in (*places, CUDA) if place]
    nvcc = shutil.which("nvcc", path=variables.get("PATH", ""))
    return bool(nvcc) or any(compiler.is_file() for compiler in compilers)


def usable_cores() -> int:
    """Return the number of cores that this process may use; all cores if unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


VERSION = re.compile(r"\d+(?:\.\d+)+")


def survey_tools(
    programs: Mapping[str, str], variables: Mapping[str, str]
) -> tuple[ToolFacts, ...]:
    """Find each program (name -> command) on the PATH in ``variables``, and ask for its version."""

    def look(name: str, program: str) -> ToolFacts:
        # With the job's PATH, which may differ from this process's.
        path = shutil.which(program, path=variables.get("PATH", ""))
        return ask_version(name, Path(path), variables) if path else ToolFacts(name, None)

    with ThreadPoolExecutor(4) as pool:
        return tuple(pool.map(look, programs.keys(), programs.values()))


def ask_version(name: str, path: Path, variables: Mapping[str, str] | None = None) -> ToolFacts:
    """Run ``path --version``; the version is the first number with a dot in its output."""
    try:
        ended = run_process([path, "--version"], env=variables, timeout_s=TIMEOUT_S, check=False)
    except ToolError as error:
        return ToolFacts(name, str(path), None, error.why)
    first = next(iter(ended.output.strip().splitlines()), ended.describe())
    if not ended.is_good:
        return ToolFacts(name, str(path), None, f"{ended.describe()}: {first}")
    # In all of the output: some programs print their version on a later line.
    version = VERSION.search(ended.output)
    return ToolFacts(name, str(path), version and version[0], first)


# adb may have to start its server first.
LIST_TIMEOUT_S = 15.0
SHELL_TIMEOUT_S = 60.0
SCRIPT = Path(__file__).with_name("device.sh")


def survey_devices(variables: Mapping[str, str], directory: str) -> tuple[DeviceFacts, ...]:
    """Return facts about each device that adb lists, with the QNN libraries in the device's
    ``directory``.
    """
    adb = shutil.which("adb", path=variables.get("PATH", ""))
    if adb is None:
        return ()
    output = _run([adb, "devices"], variables, LIST_TIMEOUT_S)
    devices = []
    for serial, state in _parse_list(output):
        if state == "device":
            devices.append(_ask(adb, serial, variables, directory))
        else:  # offline or unauthorized: it answers no questions
            devices.append(DeviceFacts(serial, state))
    return tuple(devices)


def _run(argv: list[str], variables: Mapping[str, str], timeout_s: float) -> str:
    try:
        ended = run_process(argv, env=variables, timeout_s=timeout_s, check=False)
    except ToolError:
        return ""
    return ended.output if ended.returncode == 0 else ""


def _parse_list(output: str) -> Iterator[tuple[str, str]]:
    """Yield serials and states below the line 'List of devices attached'."""
    _, _, rows = output.partition("List of devices attached")
    for row in rows.splitlines():
        columns = row.split()
        # adb prints lines that start with * when it starts its server.
        if len(columns) >= 2 and not row.startswith("*"):
            yield columns[0], columns[1]


def _ask(adb: str, serial: str, variables: Mapping[str, str], directory: str) -> DeviceFacts:
    script = fill_script(SCRIPT, directory=directory)
    output = _run([adb, "-s", serial, "shell", script], variables, SHELL_TIMEOUT_S)
    rows = [line.strip().partition("=") for line in output.splitlines()]
    answers = {key: value for key, _, value in rows if key != "library"}
    libraries = [value.partition(" ") for key, _, value in rows if key == "library"]
    free_kib = _number(answers.get("free"))
    return DeviceFacts(
        serial,
        "device",
        soc=answers.get("soc", ""),
        android=answers.get("android", ""),
        api_level=_number(answers.get("api")),
        page_bytes=_number(answers.get("page")),
        free_mb=None if free_kib is None else free_kib * 1024 // 1_000_000,
        # adb's shell may be root itself, or able to become it with su.
        is_root="0" in (answers.get("uid"), answers.get("su")),
        directory=directory,
        libraries={PurePosixPath(path).name: build for path, _, build in libraries},
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


MARKERS = (SDK_YAML, "QNN_README.txt")
API_PART = re.compile(r"^\s*#\s*define\s+QNN_API_VERSION_(MAJOR|MINOR|PATCH)\s+(\d+)", re.MULTILINE)
API_HEADER = "include/QNN/QnnCommon.h"
TIMEOUT_S = 30.0


def survey_sdk(root: Path, headers: Iterable[str], *, asks_library: bool = False) -> SdkFacts:
    """Return facts about an SDK. ``headers`` are the paths below include/QNN to look for. If
    ``asks_library`` is true, the library's API version is found out.
    """
    if not root.is_dir():
        return SdkFacts(root, is_directory=False)
    identity, fault = SdkIdentity(), ""
    try:
        identity = read_sdk_yaml(root)
    except UnfitError as error:
        fault = error.why
    parts = dict(API_PART.findall(read_window(root / API_HEADER)))
    names = ("MAJOR", "MINOR", "PATCH")
    places = ("lib/*", "lib/*/*signed", "bin/*")  # such as lib/hexagon-v75/unsigned
    directories = [path for place in places for path in root.glob(place) if path.is_dir()]
    return SdkFacts(
        root,
        is_directory=True,
        markers=tuple(name for name in MARKERS if (root / name).is_file()),
        version=identity.version or None,
        stamp=identity.stamp or None,
        fault=fault,
        directories=tuple(sorted(path.relative_to(root).as_posix() for path in directories)),
        headers=tuple(name for name in headers if (root / "include" / "QNN" / name).is_file()),
        api_version=".".join(parts[name] for name in names) if set(names) <= parts.keys() else None,
        library_api=ask_library(root / HOST_DIRECTORY) if asks_library else None,
    )


def ask_library(directory: Path) -> str | None:
    """Load the libQnnHtp.so in ``directory`` in a separate process, and return the version of its
    API, None if it cannot be found out.
    """
    # The loader reads this variable only when a process starts, so a new one is needed. It may also
    # crash.
    variables = {**os.environ, "LD_LIBRARY_PATH": str(directory)}
    argv = [sys.executable, qnn_probe.__file__, "api", str(directory / "libQnnHtp.so")]
    try:
        ended = run_process(argv, env=variables, timeout_s=TIMEOUT_S, check=False)
    except ToolError:
        return None
    api = re.search(r"^api (\d+\.\d+\.\d+)$", ended.output, re.MULTILINE)
    return api[1] if api else None


REVISION = re.compile(r"^Pkg\.Revision\s*=\s*([\w.+-]+)", re.MULTILINE)
TARGET = "aarch64-linux-android"


def survey_ndk(root: Path, host_tag: str) -> NdkFacts:
    """Return facts about an NDK. Its clang is run with --version."""
    revision = REVISION.search(read_window(root / "source.properties"))
    prebuilt = root / "toolchains" / "llvm" / "prebuilt"
    clang = prebuilt / host_tag / "bin" / "clang++"
    levels = prebuilt / host_tag / "sysroot" / "usr" / "lib" / TARGET
    return NdkFacts(
        root,
        is_directory=root.is_dir(),
        revision=revision[1] if revision else None,
        has_toolchain_file=(root / "build" / "cmake" / "android.toolchain.cmake").is_file(),
        host_tags=tuple(sorted(path.name for path in prebuilt.glob("*") if path.is_dir())),
        clang=ask_version("clang++", clang) if clang.exists() else None,
        api_levels=tuple(sorted(int(p.name) for p in levels.glob("*") if p.name.isdecimal())),
    )


STATES = {"-": "missing", "+": "moved", "U": "moved", " ": "ok"}
# flatcc's build writes these into the source tree, where a build for another target finds them.
FLATCC_OUTPUTS = ("bin/flatcc", "bin/flatcc_d", "lib/libflatccrt.a", "lib/libflatccrt_d.a")
ARCHIVE = b"!<arch>\n"
MAX_BYTES = 64 << 20
# A file called version.txt may contain anything.
MAX_VERSION = 40


def survey_checkout(root: Path, needed: Sequence[str] = ()) -> CheckoutFacts:
    """Return facts about a checkout, which git reads. Nothing is written. ``needed`` are paths of
    submodules: git does not list one inside a submodule that was copied without its ``.git``."""
    if not root.is_dir():
        return CheckoutFacts(root, is_directory=False)
    commit, status = None, ""
    with suppress(ToolError):
        commit = read_commit(root)
        # Nested ones, too: CMake reports a missing submodule late, and only the first group.
        status = ask_git(root, "submodule", "status", "--recursive").decode("utf-8", "replace")
    outputs = [root / "third-party" / "flatcc" / path for path in FLATCC_OUTPUTS]
    modules = [_look_again(root, row) for row in _parse_status(status)]
    listed = {module.path for module in modules}
    modules += [
        SubmoduleFacts(path, "ok" if has_files(root / path) else "missing")
        for path in needed
        if path not in listed
    ]
    return CheckoutFacts(
        root,
        is_directory=True,
        is_git=commit is not None,
        commit=commit,
        submodules=tuple(modules),
        leftovers=tuple((str(path), _machine_of(path)) for path in outputs if path.is_file()),
        has_adaptor=bool(find_adaptors(str(root))),
        version=read_window(root / "version.txt").strip()[:MAX_VERSION],
    )


def _parse_status(output: str) -> Iterator[SubmoduleFacts]:
    """Parse lines such as ``-896db5... third-party/flatcc`` or `` 896db5... path (v0.6)``."""
    for line in output.splitlines():
        state = STATES.get(line[:1])
        commit, _, path_and_tag = line[1:].partition(" ")
        # SHA-1 and SHA-256 repositories.
        if state and len(commit) in (40, 64):
            path = path_and_tag.rsplit(" (", 1)[0] if path_and_tag.endswith(")") else path_and_tag
            yield SubmoduleFacts(path, state, commit)


def _look_again(root: Path, module: SubmoduleFacts) -> SubmoduleFacts:
    """Correct the state of a submodule that git reports as missing: without `git submodule init`,
    it may still have its files, as in a copy of a mirror. If it has a commit, that is compared with
    the recorded one.
    """
    place = root / module.path
    if module.state != "missing" or not has_files(place):
        return module
    with suppress(ToolError):
        if (place / ".git").exists() and (commit := read_commit(place)) != module.commit:
            return replace(module, state="moved", commit=commit)
    return replace(module, state="ok")


def _machine_of(path: Path) -> str:
    """Return the machine of an ELF file, or of the first ELF member of an archive (.a)."""
    from provisioning.elf.reader import parse_headers

    try:
        with open_regular(path) as file:
            data = file.read(MAX_BYTES)
        at = data.find(b"\x7fELF") if data.startswith(ARCHIVE) else 0
        return MACHINE_NAMES.get(parse_headers(data[at:]).machine, "unknown")
    # An unknown machine is no leftover of another build, see QNN708.
    except (OSError, ValueError):
        return "unknown"
