"""Devices that adb lists: SoC, Android, space, root, and the QNN libraries already there.

One shell call a device. Without adb, without a server or without a device there are no facts,
which is no fault.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from provisioning.console.process import run_process
from provisioning.doctor.facts import DeviceFacts
from provisioning.errors import ToolError

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
