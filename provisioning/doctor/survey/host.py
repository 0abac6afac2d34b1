"""The machine: system, glibc, cores, memory, disk, CPU flags, tools, libraries of the system; and
the devices that adb lists.

A device takes one shell call. Without adb, without a server or without a device there are no facts,
which is no fault.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath

from provisioning.console.process import run_process
from provisioning.doctor.facts import DeviceFacts, HostFacts, ToolFacts
from provisioning.elf.loader import find_libraries
from provisioning.errors import ToolError
from provisioning.files import free_bytes

MAX_TEXT_BYTES = 1 << 20
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def survey_host(
    disk: Path,
    programs: Mapping[str, str],
    libraries: Iterable[str],
    variables: Mapping[str, str],
) -> HostFacts:
    """What the machine is. ``disk`` is a path whose file system's free space matters."""
    line = re.search(r"^flags\s*:(.*)$", read_text(Path("/proc/cpuinfo")), re.MULTILINE)
    return HostFacts(
        system=platform.system(),
        machine=platform.machine(),
        glibc=_glibc(),
        cores=usable_cores(),
        memory_gb=round(_memory_bytes() / 1e9, 1),
        disk_free_gb=round(free_bytes(disk) / 1e9, 1),
        disk_path=str(disk),
        cpu_flags=frozenset(line[1].split() if line else []),
        tools=survey_tools(programs, variables) if programs else (),
        libraries=find_libraries(libraries),
    )


def usable_cores() -> int:
    """Cores that this process may use; all there are where the system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _glibc() -> str | None:
    """2.36; None on another C library."""
    with suppress(ValueError, OSError, AttributeError):
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return version if name == "glibc" else None
    return None


def _memory_bytes() -> int:
    """The machine's memory, or the limit of our control group where that is less."""
    total = re.search(r"^MemTotal:\s+(\d+) kB", read_text(Path("/proc/meminfo")), re.MULTILINE)
    limits = [text.strip() for path in MEMORY_LIMITS if (text := read_text(Path(path)))]
    known = [int(total[1]) * 1024] if total else []
    return min([*known, *(int(text) for text in limits if text.isdecimal())], default=0)


def read_text(path: Path) -> str:
    """The text of a small file, '' when it is missing, large or unreadable."""
    with suppress(OSError):
        if path.stat().st_size <= MAX_TEXT_BYTES:  # 0 for a file of the kernel
            return path.read_text(encoding="utf-8", errors="replace")
    return ""


TIMEOUT_S = 10.0
VERSION = re.compile(r"\d+(?:\.\d+)+")


def survey_tools(
    programs: Mapping[str, str], variables: Mapping[str, str]
) -> tuple[ToolFacts, ...]:
    """Find each program (name -> the words of its candidates) on the PATH of ``variables``."""
    with ThreadPoolExecutor(4) as pool:
        rows = pool.map(lambda item: _survey_tool(item[0], item[1], variables), programs.items())
        return tuple(rows)


def _survey_tool(name: str, program: str, variables: Mapping[str, str]) -> ToolFacts:
    found = shutil.which(program, path=variables.get("PATH", ""))
    return ask_version(name, Path(found), variables) if found else ToolFacts(name, None)


def ask_version(name: str, path: Path, variables: Mapping[str, str] | None = None) -> ToolFacts:
    """Run ``path --version``; the version is the first number with a dot in what it says."""
    try:
        ended = run_process(
            [path, "--version"], env=variables, timeout_s=TIMEOUT_S, check=False, keep_lines=20
        )
    except ToolError as error:
        return ToolFacts(name, str(path), None, error.why)
    said = ended.output.strip().splitlines()
    first = said[0] if said else ended.describe()
    if ended.returncode != 0 or ended.timed_out:
        return ToolFacts(name, str(path), None, f"{ended.describe()}: {first}")
    version = VERSION.search(ended.output)
    return ToolFacts(name, str(path), version[0] if version else None, first)


LIST_TIMEOUT_S = 15.0
SHELL_TIMEOUT_S = 60.0
# Of toybox only, which every Android since 6 has. A device's shell prints \r\n on old versions.
SCRIPT = r"""
echo "soc=$(getprop ro.soc.model)"
echo "android=$(getprop ro.build.version.release)"
echo "api=$(getprop ro.build.version.sdk)"
echo "page=$(getconf PAGE_SIZE 2>/dev/null)"
echo "uid=$(id -u)"
echo "su=$(su 0 id -u 2>/dev/null)"
df -k {directory} 2>/dev/null | tail -n 1 | while read -r _ _ _ free _; do echo "free=$free"; done
for file in {directory}/libQnn*.so; do
  [ -f "$file" ] || continue
  build=$(grep -aoE 'v[0-9]+\.[0-9]+\.[0-9]+\.[0-9]{{12}}' "$file" | head -n 1)
  echo "library=$file $build"
done
"""


def survey_devices(variables: Mapping[str, str], directory: str) -> tuple[DeviceFacts, ...]:
    """Facts of each device, with the libraries in ``directory`` on it."""
    adb = shutil.which("adb", path=variables.get("PATH", ""))
    if adb is None:
        return ()
    output = _run([adb, "devices"], variables, LIST_TIMEOUT_S)
    return tuple(
        _ask(adb, serial, variables, directory) if state == "device" else DeviceFacts(serial, state)
        for serial, state in _parse_list(output)
    )


def _run(words: list[str], variables: Mapping[str, str], timeout_s: float) -> str:
    try:
        ended = run_process(words, env=variables, timeout_s=timeout_s, check=False)
    except ToolError:
        return ""
    return ended.output if ended.returncode == 0 else ""


def _parse_list(output: str) -> Iterator[tuple[str, str]]:
    """Serials and states below the line 'List of devices attached'."""
    _, _, rows = output.partition("List of devices attached")
    for row in rows.splitlines():
        words = row.split()
        if len(words) >= 2 and not row.startswith("*"):
            yield words[0], words[1]


def _ask(adb: str, serial: str, variables: Mapping[str, str], directory: str) -> DeviceFacts:
    script = SCRIPT.format(directory=shlex.quote(directory))
    output = _run([adb, "-s", serial, "shell", script], variables, SHELL_TIMEOUT_S)
    rows = [line.strip().partition("=") for line in output.splitlines()]
    said = {key: value for key, _, value in rows if key != "library"}
    libraries = [value.partition(" ") for key, _, value in rows if key == "library"]
    free_kib = _number(said.get("free"))
    return DeviceFacts(
        serial,
        "device",
        soc=said.get("soc", ""),
        android=said.get("android", ""),
        api_level=_number(said.get("api")),
        page_bytes=_number(said.get("page")),
        free_mb=None if free_kib is None else free_kib * 1024 // 1_000_000,
        is_root="0" in (said.get("uid"), said.get("su")),
        directory=directory,
        libraries={PurePosixPath(path).name: build for path, _, build in libraries},
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
