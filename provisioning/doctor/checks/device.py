"""A device that is attached. Nothing here makes an environment unfit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from provisioning.doctor.checks.coherence import most_common_build
from provisioning.doctor.checks.registry import Case, Seen, Severity, Subjects, seen
from provisioning.doctor.facts import DeviceFacts
from provisioning.doctor.fitness import DevicePolicy
from provisioning.elf.facts import EM_AARCH64


class Device(NamedTuple):
    """A device and what would be pushed to it: ``build`` of QNN (v2.49.40.26...), ``load_align``
    the smallest alignment of the libraries' segments in bytes, 0 without any.
    """

    facts: DeviceFacts
    policy: DevicePolicy
    api_level: int
    soc: str | None = None
    build: str | None = None
    load_align: int = 0
    needs_root: bool = False

    def seen(self, at: str, **values: object) -> Seen:
        where = f"{self.facts.serial}:{at}"
        return seen(f"device {self.facts.serial}", where, device=self.facts, **values)


def find_devices(case: Case) -> Iterator[Device]:
    facts = case.facts
    tree = facts.trees.get(facts.sdk_name)
    files = tree.files if tree else ()
    build = most_common_build(files)
    aligns = [file.elf.load_align for file in files if file.elf and file.elf.machine == EM_AARCH64]
    for device in facts.devices or ():
        yield Device(
            device,
            case.policy.device,
            case.android_api,
            case.soc[0] if case.soc else None,
            build.text if build else None,
            min(aligns, default=0),
            case.fitness.root_on_device,
        )


DEVICES = Subjects(find_devices)
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
    if device.soc and device.facts.soc and device.facts.soc.upper() != device.soc.upper():
        yield device.seen("ro.soc.model", soc=device.soc)


@check(
    "QNN803",
    "{subject} has API level {device.api_level}, the libraries are for {wanted}",
    "'cannot locate symbol'",
    "build with ANDROID_PLATFORM android-{device.api_level}, or use a newer device",
    after=("QNN801",),
)
def see_old_android(device: Device) -> Iterator[Seen]:
    level = device.facts.api_level
    if level is not None and level < device.api_level:
        yield device.seen("ro.build.version.sdk", wanted=device.api_level)


@check(
    "QNN804",
    "{subject} has {device.free_mb} MB free, {wanted} are advised",
    "'No space left on device' in the middle of a push",
    "remove what you do not need from {device.directory}",
    after=("QNN801",),
)
def see_full_device(device: Device) -> Iterator[Seen]:
    free_mb = device.facts.free_mb
    if free_mb is not None and free_mb < device.policy.free_mb:
        yield device.seen(device.facts.directory, wanted=device.policy.free_mb)


@check(
    "QNN805",
    "{subject} gives no root",
    "the LPAI skel is loaded from a place that only root can write",
    "run `adb root`, which needs a userdebug build of Android",
    after=("QNN801",),
)
def see_no_root(device: Device) -> Iterator[Seen]:
    if device.needs_root and not device.facts.is_root:
        yield device.seen("id")


@check(
    "QNN806",
    "{subject} holds {name} of {there}, the SDK is {build}",
    "a run that pushes only a part ends with 'Stub lib id mismatch' (error 1008)",
    "push all of them again, or remove {device.directory}/libQnn*",
    after=("QNN801",),
)
def see_stale_libraries(device: Device) -> Iterator[Seen]:
    for name, there in sorted(device.facts.libraries.items()):
        if there and device.build and there != device.build:
            where = f"{device.facts.directory}/{name}"
            yield device.seen(where, name=name, there=there, build=device.build)


@check(
    "QNN807",
    "{subject} has pages of {device.page_bytes} bytes, libraries are aligned to less",
    "the loader refuses segments aligned to {align} bytes",
    "use libraries linked with -Wl,-z,max-page-size=16384 (QNN225 names those that are not)",
    after=("QNN801",),
)
def see_large_pages(device: Device) -> Iterator[Seen]:
    if device.facts.page_bytes and 0 < device.load_align < device.facts.page_bytes:
        yield device.seen("getconf PAGE_SIZE", align=device.load_align)
