"""``deploy``: push a bundle to a phone or a board, sending only the files that it lacks."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from ci.device.bundle import FILES, Bundle, Target, read_bundle
from ci.device.connection import (
    SCRIPTS,
    Device,
    DeviceFacts,
    identify,
    list_phones,
    open_device,
)
from ci.device.runner import STARTS, DeviceRunner, lease_first
from ci.verbs.options import DEVICE_OPTIONS, MOST, add_option, require_effect
from provisioning.console.command import DIR, FLAG, MANY, Outcome, between, group_options
from provisioning.console.process import fill_script
from provisioning.console.progress import Progress
from provisioning.errors import StoreError, ToolError, UnfitError, UsageError
from provisioning.manifest.targets import read_socs

ROOM = 64 << 20  # bytes needed in addition to the bundle, for programs, inputs and outputs

ON_DEVICE = "--device or --any"  # what the options of a device need


@dataclass(frozen=True)
class DeviceChoice:
    """The options that choose a device and a bundle. ``names`` are the values of --device,
    ``any_soc`` is that of --any, and ``starts`` is how often each program is started to measure
    times, or 0 for the default."""

    names: tuple[str, ...]
    any_soc: str
    bundle: Path | None
    place: str = ""
    wait_s: float = 0.0
    starts: int = 0

    @property
    def name(self) -> str:
        """Return the only value of --device. Raises UsageError if it is missing, if it is repeated,
        or if --any is also passed."""
        if len(self.names) != 1 or self.any_soc:
            raise UsageError(
                "--clean needs a --device"
                if self.any_soc
                else f"{len(self.names)} devices are given",
                fix="pass one --device; without --clean, --any soc=SOC chooses from several",
            )
        return self.names[0]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = group_options(parser)
    add_device(parser)
    add("--clean", "only remove this project's files from the device", **FLAG)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a device and the bundle with its runner."""
    add = partial(add_option, parser, DEVICE_OPTIONS)
    add(
        "--device adb:SERIAL|ssh:HOST",
        "a phone (just adb: if only one is connected) or a board (ssh:[USER@]HOST[:PORT]);"
        " repeatable with --any",
        again=str,
        **MANY,
    )
    add(
        "--any soc=SOC",
        "use the first free device with that SoC, from --device or, without --device, from"
        " those that adb lists",
        default="",
        again=str,
    )
    bundle = "the directory that `stage` wrote"
    add("--bundle", bundle, **DIR, again=str, needs=ON_DEVICE)
    add_use(parser, "device", ON_DEVICE)


def add_use(parser: argparse.ArgumentParser, noun: str, needs: str) -> None:
    """Add the options that say how a device, a ``noun`` such as ``board``, is used. They need the
    option ``needs``, which chooses it."""
    add = partial(add_option, parser, DEVICE_OPTIONS)
    add("--place DIR", f"this project's directory on the {noun}", default="", needs=needs)
    wait = f"seconds to wait for a {noun} that is in use"
    add("--wait S", wait, type=between(0, MOST), default=0.0, needs=needs)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Push a bundle to a device, or remove this project's files from it. Raises UsageError if no
    device is chosen, and the same errors as ready_device and clean_device."""
    choice = read_device(args)
    if not choice:
        raise UsageError(
            "no device is specified", fix="pass --device adb:, --device ssh:HOST or --any soc=SOC"
        )
    if args.clean:
        require_effect(args, "--clean", "--device", "--any", "--place")
        return clean_device(open_device(choice.name, choice.place))
    began = time.monotonic()
    with ready_device(choice, progress) as (runner, facts):
        sent = runner.sent
    bundle, wall_s = runner.bundle, time.monotonic() - began
    device = runner.device
    text = (
        f"{device.name}: {facts.describe()}\n"
        f"{bundle.target.value} bundle {bundle.digest[:12]} is in {runner.directory}:"
        f" {sent:,} bytes sent, {wall_s:.1f} s\n"
    )
    data = {"device": device.name, "facts": asdict(facts), "directory": runner.directory}
    return Outcome(text, {**data, "sent_bytes": sent, "bundle": bundle.digest})


def read_device(args: argparse.Namespace) -> DeviceChoice | None:
    """Return the device that the options choose, or None if they choose none."""
    if not (args.device or args.any):
        return None
    starts = getattr(args, "starts", 0)  # deploy itself starts no program
    return DeviceChoice(
        tuple(args.device), args.any, args.bundle, args.place, args.wait, starts=starts
    )


def clean_device(device: Device) -> Outcome:
    """Remove this project's files from a device, and their directory if nothing else is in it.
    Raises UsageError if the directory is another one, and the same errors as ``Device.call``."""
    answer = device.call(f"set -e\n{fill_script(SCRIPTS / 'clean.sh', place=device.place)}")
    if answer.code:
        raise UsageError(
            f"{device.name}: nothing was removed from {device.place}",
            why=answer.message or "it has files, but none of this project",
            fix="pass the --place with which the bundle was deployed",
        )
    left = len(answer.out.splitlines())
    exception = f", except {left} files and directories that are not this project's" if left else ""
    text = f"{device.name}: {device.place} was removed{exception}\n"
    return Outcome(text, {"removed": device.place})


@contextmanager
def ready_device(
    choice: DeviceChoice, progress: Progress
) -> Iterator[tuple[DeviceRunner, DeviceFacts]]:
    """Lease the device that the options select, push the bundle to it, and yield a runner and the
    facts about the device. The lease ends with the block. Raises UsageError, UnfitError, ToolError
    or StoreError."""
    bundle = require_bundle(choice)
    if choice.any_soc:
        candidates = list_candidates(choice, bundle, progress)
    else:
        candidates = [find_device(choice.name, choice, bundle, progress)]
    # Times on the emulator are not judged, so one start is enough there.
    usual = 1 if bundle.target is Target.EMULATOR else STARTS
    starts = choice.starts or usual
    runners = [
        DeviceRunner(device, bundle, place_bundle(device, bundle), progress, starts=starts)
        for device, _ in candidates
    ]
    # The lease keeps other computers away while files are sent, and until the last run.
    with lease_first(runners, choice.wait_s) as runner:
        root = choice.bundle or Path()
        files = {file.name: root / FILES / file.name for file in bundle.files}
        # By these, only what the device lacks is sent: 0 instead of 23.6 MB in a second run.
        digests = {file.name: file.sha256 for file in bundle.files}
        runner.sent = runner.device.push(runner.directory, files, digests)
        progress.step(f"{runner.device.name}: sent {runner.sent:,} bytes of the bundle")
        yield runner, candidates[runners.index(runner)][1]


def require_bundle(choice: DeviceChoice) -> Bundle:
    """Return the bundle in --bundle. Raises UsageError if it is missing or invalid."""
    if not choice.bundle:
        raise UsageError(
            "--bundle is missing",
            fix="create a bundle with `stage`, as docs/guides/device.md shows, and pass its path",
        )
    return read_bundle(choice.bundle)


def find_device(
    word: str, choice: DeviceChoice, bundle: Bundle, progress: Progress
) -> tuple[Device, DeviceFacts]:
    """Return a device that matches a bundle, and its facts. Raises the same errors as
    ``open_device``, ``identify`` and ``require_match``."""
    device = open_device(word, choice.place)
    facts = identify(device)
    progress.step(f"{device.name}: {facts.describe()}")
    require_match(device, facts, bundle)
    return device, facts


def list_candidates(
    choice: DeviceChoice, bundle: Bundle, progress: Progress
) -> list[tuple[Device, DeviceFacts]]:
    """Return the reachable devices with the wanted SoC. For a bundle that runs on the emulator, any
    host is suitable. Raises UsageError or UnfitError."""
    key, _, soc = choice.any_soc.partition("=")
    soc = soc.upper()
    if key != "soc" or soc not in read_socs():
        raise UsageError(
            f"--any {choice.any_soc} does not specify a known SoC",
            fix=f"pass --any soc={bundle.socs[0]}, for which the bundle is",
        )
    if soc not in bundle.socs:
        raise UnfitError(
            f"--any {choice.any_soc}: the bundle is for {', '.join(bundle.socs)}",
            fix=f"stage a bundle with --soc {soc}",
        )
    candidates: list[tuple[Device, DeviceFacts]] = []
    rejections: list[str] = []
    fixes: list[str] = []
    # A phone that is not ready is opened, too: the error says what to do.
    for word in dict.fromkeys(choice.names or [f"adb:{serial}" for serial in list_phones()]):
        try:
            device, facts = find_device(word, choice, bundle, progress)
        # One device that cannot be used leaves the others.
        except (ToolError, UnfitError, StoreError) as error:
            rejections.append(f"{word}: {error.what}")
            fixes.append(error.fix)
            continue
        if facts.soc == soc or bundle.target is Target.EMULATOR:
            candidates.append((device, facts))
        else:
            rejections.append(f"{device.name} has {facts.soc or 'no known SoC'}")
    if not candidates:
        only_fix = fixes[0] if len(rejections) == 1 and fixes else ""
        raise UnfitError(
            f"there is no usable device with {soc}",
            why="; ".join(rejections) or "adb lists no device",
            fix=only_fix or "connect a phone, or pass boards: --device ssh:A --device ssh:B",
        )
    return candidates


def describe_device(runner: DeviceRunner, facts: DeviceFacts) -> str:
    """Return a sentence for the report that describes the device and the runtime."""
    return (
        f"run on {runner.device.name} ({facts.describe()}), with"
        f" {runner.describe_processor(facts)} and QNN"
        f" {runner.bundle.qnn or 'unknown'}; {runner.sent:,} bytes were sent"
    )


def require_match(device: Device, facts: DeviceFacts, bundle: Bundle) -> None:
    """Check a device before anything is sent. Raises UnfitError if the bundle is not for it, and
    the same errors as require_usable."""
    if facts.machine != bundle.target.machine and (facts.machine, bundle.target.machine) not in ARM:
        raise UnfitError(
            f"{device.name} is {facts.machine or 'an unknown machine'}, but the bundle is for"
            f" {bundle.target.value}",
            fix="stage a bundle with the runner and the libraries for that machine",
        )
    is_phone = bool(facts.android)
    if bundle.target is not Target.EMULATOR and is_phone is not (bundle.target is Target.ANDROID):
        raise UnfitError(
            f"{device.name} runs {'Android' if is_phone else 'Linux'}, but the bundle is for"
            f" {bundle.target.value}",
            fix="stage a bundle with a runner of build_android or build_linux",
        )
    is_other_soc = facts.soc in read_socs() and facts.soc not in bundle.socs
    if is_other_soc and bundle.target is not Target.EMULATOR:
        raise UnfitError(
            f"{device.name} has {facts.soc}, but the bundle is for {', '.join(bundle.socs)}",
            why="with another Hexagon version or VTCM size, QNN fails with error 14001 or 5005",
            fix=f"stage a bundle with --soc {facts.soc}",
        )
    require_usable(device, facts, bundle)


def require_usable(device: Device, facts: DeviceFacts, bundle: Bundle) -> None:
    """Raise UnfitError if the user may not open the DSP of a device, and StoreError if the device
    has too little space for a bundle and its runs."""
    if facts.closed and not facts.dsp and bundle.target is not Target.EMULATOR:
        raise UnfitError(
            f"{device.name}: {facts.user} may not open {', '.join(facts.closed)}",
            why="without access to the DSP, QNN fails with error 4000 or 14001",
            fix="give this user access to the device files, with a udev rule or a group",
        )
    if facts.free_bytes is not None:
        require_space(device, facts.free_bytes, bundle)


def require_space(device: Device, free_bytes: int, bundle: Bundle) -> None:
    """Raise StoreError if a device has too little space for the files of a bundle that it lacks,
    and for its runs."""
    files = bundle.files
    if free_bytes < sum(file.size_bytes for file in files) + ROOM:
        # Only now, as the device reads all of its files for it.
        digests = device.peek_digests(place_bundle(device, bundle))
        files = tuple(file for file in files if digests.get(file.name) != file.sha256)
    needed = sum(file.size_bytes for file in files) + ROOM
    if free_bytes < needed:
        what = "the bundle" if len(files) == len(bundle.files) else "what it lacks of the bundle"
        raise StoreError(
            f"{device.name} has only {free_bytes >> 20} MiB free in {device.place}",
            why=f"{what} and its runs may need {needed >> 20} MiB",
            fix="free space on the device, or pass another directory with --place",
        )


def place_bundle(device: Device, bundle: Bundle) -> str:
    """Return the directory on a device for the files of a bundle."""
    return f"{device.place}/bundles/{bundle.digest[:16]}"


ARM = {("arm64", "aarch64"), ("armv8l", "aarch64")}
