"""A device that is attached. Nothing here makes an environment unfit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from provisioning.doctor.checks.finding import Finding, Severity
from provisioning.doctor.checks.fitness import DevicePolicy
from provisioning.doctor.facts import DeviceFacts


class DeviceLibraries(NamedTuple):
    """The libraries of an SDK for a device: their build of QNN (v2.49.40.26...) and the smallest
    alignment of their segments in bytes, 0 without any.
    """

    build: str | None = None
    load_align: int = 0


def judge_device(
    device: DeviceFacts,
    policy: DevicePolicy,
    *,
    soc: str | None,
    libraries: DeviceLibraries,
    needs_root: bool,
) -> Iterator[Finding]:
    """``soc`` is the one asked for, ``libraries`` are what would be pushed."""
    for code, subject, what, why, fix in _faults(device, policy, soc, libraries, needs_root):
        yield Finding(
            code,
            f"device {device.serial}",
            f"device {device.serial} {what}",
            f"{device.serial}:{subject}",
            why,
            fix,
            Severity.WARNING,
        )


def _faults(
    device: DeviceFacts,
    policy: DevicePolicy,
    soc: str | None,
    libraries: DeviceLibraries,
    needs_root: bool,
) -> Iterator[tuple[str, str, str, str, str]]:
    if device.state != "device":
        why = "nothing can be pushed to it"
        fix = "accept the key on its screen, or replug it; 'adb kill-server' helps at times"
        yield "QNN801", "state", f"is {device.state}", why, fix
        return
    if soc and device.soc and device.soc.upper() != soc.upper():
        why = "a context binary for another SoC ends with error 5005 or 14001"
        yield (
            "QNN802",
            "ro.soc.model",
            f"is a {device.soc}, not a {soc}",
            why,
            f"--soc {device.soc}",
        )
    if device.api_level is not None and device.api_level < policy.api_level:
        what = f"has API level {device.api_level}, the libraries are for {policy.api_level}"
        fix = f"build with ANDROID_PLATFORM android-{device.api_level}, or use a newer device"
        yield "QNN803", "ro.build.version.sdk", what, "'cannot locate symbol'", fix
    if device.free_mb is not None and device.free_mb < policy.free_mb:
        what = f"has {device.free_mb} MB free, {policy.free_mb} are advised"
        why = "'No space left on device' in the middle of a push"
        yield "QNN804", device.directory, what, why, f"remove what is in {device.directory}"
    if needs_root and not device.is_root:
        why = "the LPAI skel is loaded from a place that only root can write"
        yield "QNN805", "id", "gives no root", why, "use a device with a userdebug build: adb root"
    yield from _stale(device, libraries.build)
    if device.page_bytes and 0 < libraries.load_align < device.page_bytes:
        what = f"has pages of {device.page_bytes} bytes, libraries are aligned to less"
        why = f"the loader refuses segments aligned to {libraries.load_align} bytes"
        fix = (
            "use libraries linked with -Wl,-z,max-page-size=16384 (QNN225 names those that are not)"
        )
        yield "QNN807", "getconf PAGE_SIZE", what, why, fix


def _stale(device: DeviceFacts, build: str | None) -> Iterator[tuple[str, str, str, str, str]]:
    for name, there in sorted(device.libraries.items()):
        if there and build and there != build:
            what = f"holds {name} of {there}, the SDK is {build}"
            why = "a run that pushes only a part ends with 'Stub lib id mismatch' (error 1008)"
            fix = f"push all of them again, or remove {device.directory}/libQnn*"
            yield "QNN806", f"{device.directory}/{name}", what, why, fix
