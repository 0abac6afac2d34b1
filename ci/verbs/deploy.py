"""``deploy``: bring a bundle to a phone or a board, and send only what it lacks."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from shlex import quote

from ci.device.bundle import FILES, Bundle, Target, read_bundle
from ci.device.connection import Device, DeviceFacts, identify, open_device
from ci.device.runner import STARTS, DeviceRunner
from provisioning.console.command import Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.errors import StoreError, UnfitError, UsageError
from provisioning.manifest.targets import read_socs

ROOM = 64 << 20  # bytes besides the bundle: programs, inputs and outputs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_device(parser, required=True)
    parser.add_argument("--clean", action="store_true", help="remove what is ours there, and stop")


def add_device(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options that name a device and what it runs programs with."""
    add = parser.add_argument
    add(
        "--device",
        required=required,
        default="",
        metavar="adb:SERIAL|ssh:HOST",
        help="a phone (adb: is the only one) or a board (ssh:[USER@]HOST[:PORT])",
    )
    add("--bundle", type=user_path, metavar="DIR", help="what `stage` wrote for it")
    add("--place", default="", metavar="DIR", help="our directory on the device")
    add("--wait", type=float, default=0.0, metavar="S", help="seconds to wait for a device in use")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    device = open_device(args.device, args.place)
    if args.clean:
        device.ask(f"rm -rf {quote(device.place)}")
        return Outcome(f"{device.name}: {device.place} was removed\n", {"removed": device.place})
    began = time.monotonic()
    with ready_device(args, progress) as (runner, facts):
        sent = runner.sent
    bundle, wall_s = runner.bundle, time.monotonic() - began
    text = (
        f"{device.name}: {facts.describe()}\n"
        f"{bundle.target.value} bundle {bundle.digest[:12]} is in {runner.directory}:"
        f" {sent:,} bytes sent, {wall_s:.1f} s\n"
    )
    data = {"device": device.name, "facts": asdict(facts), "directory": runner.directory}
    return Outcome(text, {**data, "sent_bytes": sent, "bundle": bundle.digest})


@contextmanager
def ready_device(
    args: argparse.Namespace, progress: Progress
) -> Iterator[tuple[DeviceRunner, DeviceFacts]]:
    """Yield a runner on the device that the options name, with their bundle in place, and hold the
    device meanwhile. Raises UsageError, UnfitError, ToolError or StoreError."""
    if not args.bundle:
        raise UsageError("--device without --bundle", fix="make one with `qnn-ci stage`")
    bundle = read_bundle(args.bundle)
    device = open_device(args.device, args.place)
    facts = identify(device)
    progress.step(f"{device.name}: {facts.describe()}")
    require_match(device, facts, bundle)
    directory = f"{device.place}/bundles/{bundle.digest[:16]}"
    usual = 1 if bundle.target is Target.EMULATOR else STARTS
    starts = getattr(args, "starts", 0) or usual
    runner = DeviceRunner(device, bundle, directory, progress, wait_s=args.wait, starts=starts)
    with runner.lease():
        files = {file.name: args.bundle / FILES / file.name for file in bundle.files}
        digests = {file.name: file.sha256 for file in bundle.files}
        runner.sent = device.push(directory, files, digests)
        progress.step(f"{device.name}: {runner.sent:,} bytes of the bundle sent")
        yield runner, facts


def describe_device(runner: DeviceRunner, facts: DeviceFacts) -> str:
    """Return for a report on what its programs ran."""
    emulates = runner.bundle.target is Target.EMULATOR
    what = "the HTP emulator" if emulates else facts.soc or "an unknown SoC"
    return (
        f"run on {runner.device.name} ({facts.describe()}), by {what} of QNN"
        f" {runner.bundle.qnn or 'unknown'}; {runner.sent:,} bytes were sent"
    )


def require_match(device: Device, facts: DeviceFacts, bundle: Bundle) -> None:
    """Before anything is sent. Raises UnfitError for a device that a bundle is not for, StoreError
    if it has no room."""
    if facts.machine != bundle.target.machine and (facts.machine, bundle.target.machine) not in ARM:
        raise UnfitError(
            f"{device.name} is {facts.machine}, the bundle is for {bundle.target.value}",
            fix="stage one with the runner and the libraries for that machine",
        )
    is_phone = bool(facts.android)
    if bundle.target is not Target.EMULATOR and is_phone is not (bundle.target is Target.ANDROID):
        raise UnfitError(
            f"{device.name} runs {'Android' if is_phone else 'Linux'}, the bundle is for"
            f" {bundle.target.value}",
            fix="stage one with a runner of build_android or build_linux, and libraries like it",
        )
    other = facts.soc in read_socs() and facts.soc not in bundle.socs
    if other and bundle.target is not Target.EMULATOR:
        raise UnfitError(
            f"{device.name} has {facts.soc}, the bundle is for {', '.join(bundle.socs)}",
            why="another Hexagon version or size of VTCM: error 14001 or 5005",
            fix=f"stage one with --soc {facts.soc}",
        )
    if facts.closed and not facts.dsp and bundle.target is not Target.EMULATOR:
        raise UnfitError(
            f"{device.name}: {facts.user} may not open {', '.join(facts.closed)}",
            why="the DSP is reached through it: error 4000 or 14001",
            fix="let a udev rule or a group give it to this user",
        )
    needed = sum(file.size_bytes for file in bundle.files) + ROOM
    if facts.free_bytes and facts.free_bytes < needed:
        raise StoreError(
            f"{device.name} has {facts.free_bytes >> 20} MiB free in {device.place}",
            why=f"the bundle and its runs may need {needed >> 20} MiB",
            fix="free space there, or name another directory with --place",
        )


ARM = {("arm64", "aarch64"), ("armv8l", "aarch64")}
