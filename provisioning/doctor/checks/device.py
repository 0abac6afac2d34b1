"""A device that is attached. Nothing here makes an environment unfit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from provisioning.doctor.checks.coherence import most_common_build
from provisioning.doctor.checks.registry import Case, Seen, Severity, Subjects, seen
from provisioning.doctor.facts import DeviceFacts
from provisioning.elf.facts import EM_AARCH64


class Device(NamedTuple):
    """A device in its case: the SDK's files are what would be pushed to it."""

    facts: DeviceFacts
    case: Case

    def seen(self, at: str, **values: object) -> Seen:
        where = f"{self.facts.serial}:{at}"
        return seen(f"device {self.facts.serial}", where, device=self.facts, **values)


DEVICES = Subjects(lambda case: [Device(one, case) for one in case.facts.devices or ()])
check: Callable[..., Callable[[Callable[[Device], Iterable[Seen]]], object]] = partial(
    DEVICES.check, severity=Severity.WARNING
)


@check(
    "QNN801",
    "{subject} is {device.state}",
    "nothing can be pushed to it",
    "accept the key on its screen, or replug it; 'adb kill-server' helps at times",
)
def see_unready(device: Device) -> Iterator[Seen]:
    if device.facts.state != "device":
        yield device.seen("state")


@check(
    "QNN802",
    "{subject} is a {device.soc}, not a {soc}",
    "a context binary for another SoC ends with error 5005 or 14001",
    "give --soc {device.soc}, and lower the model for it",
    after=("QNN801",),
)
def see_other_soc(device: Device) -> Iterator[Seen]:
    wanted, found = device.case.soc, device.facts.soc
    if wanted and found and found.upper() != wanted[0].upper():
        yield device.seen("ro.soc.model", soc=wanted[0])


@check(
    "QNN803",
    "{subject} has API level {device.api_level}, the libraries are for {wanted}",
    "'cannot locate symbol'",
    "build with ANDROID_PLATFORM android-{device.api_level}, or use a newer device",
    after=("QNN801",),
)
def see_old_android(device: Device) -> Iterator[Seen]:
    level, wanted = device.facts.api_level, device.case.android_api
    if level is not None and level < wanted:
        yield device.seen("ro.build.version.sdk", wanted=wanted)


@check(
    "QNN804",
    "{subject} has {device.free_mb} MB free, {wanted} are advised",
    "'No space left on device' in the middle of a push",
    "remove what you do not need from {device.directory}",
    after=("QNN801",),
)
def see_full_device(device: Device) -> Iterator[Seen]:
    free_mb, wanted = device.facts.free_mb, device.case.policy.device.free_mb
    if free_mb is not None and free_mb < wanted:
        yield device.seen(device.facts.directory, wanted=wanted)


@check(
    "QNN805",
    "{subject} gives no root",
    "the LPAI skel is loaded from a place that only root can write",
    "run `adb root`, which needs a userdebug build of Android",
    after=("QNN801",),
)
def see_no_root(device: Device) -> Iterator[Seen]:
    if device.case.fitness.root_on_device and not device.facts.is_root:
        yield device.seen("id")


@check(
    "QNN806",
    "{subject} holds {name} of {there}, the SDK is {build}",
    "a run that pushes only a part ends with 'Stub lib id mismatch' (error 1008)",
    "push all of them again, or remove {device.directory}/libQnn*",
    after=("QNN801",),
)
def see_stale_libraries(device: Device) -> Iterator[Seen]:
    build = most_common_build(device.case.sdk_files)
    for name, there in sorted(device.facts.libraries.items()):
        if there and build and there != build.text:
            where = f"{device.facts.directory}/{name}"
            yield device.seen(where, name=name, there=there, build=build.text)


@check(
    "QNN807",
    "{subject} has pages of {device.page_bytes} bytes, libraries are aligned to less",
    "the loader refuses segments aligned to {align} bytes",
    "use libraries linked with -Wl,-z,max-page-size=16384 (QNN225 names those that are not)",
    after=("QNN801",),
)
def see_large_pages(device: Device) -> Iterator[Seen]:
    elves = (file.elf for file in device.case.sdk_files)
    aligns = [elf.load_align for elf in elves if elf and elf.machine == EM_AARCH64]
    align = min(aligns, default=0)
    if device.facts.page_bytes and 0 < align < device.facts.page_bytes:
        yield device.seen("getconf PAGE_SIZE", align=align)
