"""The board on which ``test-onnx`` runs its programs: its options, and how it is made ready."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from msgspec import structs

from ci.device.connection import DeviceFacts, identify, open_device
from ci.device.onnx_board import (
    PYTHON,
    SCRIPT,
    BoardPython,
    ask_python,
    make_bundle,
    make_dialect,
    require_provider,
)
from ci.device.runner import STARTS, DeviceRunner, lease_first
from ci.onnx.options import find_backend, list_host_paths
from ci.verbs.deploy import add_use, require_usable
from ci.verbs.options import DEVICE_OPTIONS, add_option, add_options
from provisioning.console.command import MANY
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError, UsageError
from provisioning.manifest.targets import find_any_soc

OPTION = "--device"


@dataclass(frozen=True)
class BoardChoice:
    """The options that choose a board: the value of --device, the Python that has ONNX Runtime
    there, this project's directory, how long to wait for the lease, and how often each program is
    started, 0 for the default."""

    name: str
    python: str = PYTHON
    place: str = ""
    wait_s: float = 0.0
    starts: int = 0


@dataclass(frozen=True)
class ReadyBoard:
    """A leased board that has the script, and what it and its Python are."""

    runner: DeviceRunner
    facts: DeviceFacts
    python: BoardPython

    def describe(self) -> str:
        """Return a sentence for the report that describes the board."""
        return (
            f"run on {self.runner.device.name} ({self.facts.describe()}), with"
            f" {self.runner.describe_processor(self.facts)}, {self.python.describe()} and QNN"
            f" {self.python.qnn or 'unknown'}"
        )


def add_board(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a board."""
    add = partial(add_option, parser, DEVICE_OPTIONS)
    text = "run the programs on a board (ssh:[USER@]HOST[:PORT]) with its own ONNX Runtime"
    add(f"{OPTION} ssh:HOST", text, again=str, **MANY)
    text = f"the board's Python that has onnxruntime-qnn; default: {PYTHON}"
    add("--board-python PYTHON", text, default=PYTHON, again=str, needs=OPTION)
    add_use(parser, "board", OPTION)
    add_options(parser, "--starts", needs=OPTION, gaps={"--starts": f"{STARTS}"})


def read_board(
    args: argparse.Namespace, user_options: Mapping[str, str], *, direct: bool
) -> BoardChoice | None:
    """Return the board that the options choose, or None if they choose none. Raises UsageError for
    several boards, and for options that have no effect there."""
    if not args.device:
        return None
    if len(args.device) > 1:
        raise UsageError(f"{len(args.device)} boards are given", fix="pass one --device")
    if direct or find_backend(user_options) != "htp":
        raise UsageError(
            f"{OPTION} is for context binaries of HTP",
            why="a board gets a compiled model",
            fix="leave out --direct and the option that selects another backend",
        )
    if args.profile:
        raise UsageError(
            f"--profile cannot be used with {OPTION}",
            why="QNN would write its profile to the board",
            fix="leave out --profile",
        )
    if paths := list_host_paths(user_options):
        raise UsageError(
            f"{', '.join(paths)} name files of this computer, which the board does not have",
            fix="leave them out, or leave out --device",
        )
    return BoardChoice(args.device[0], args.board_python, args.place, args.wait, starts=args.starts)


def find_number(soc: str) -> int | None:
    """Return QNN's number of an SoC, or None if it is unknown."""
    try:
        return find_any_soc(soc).id
    except UsageError:
        return None


@contextmanager
def ready_board(
    choice: BoardChoice,
    socs: Sequence[str],
    user_options: Mapping[str, str],
    log_level: str,
    progress: Progress,
) -> Iterator[ReadyBoard]:
    """Lease a board, send the script, and yield the board. Nothing is compiled before: a board that
    cannot run programs for ``socs`` is an error now. Raises UsageError, UnfitError, ToolError or
    StoreError."""
    if len(socs) > 1:
        raise UsageError(
            f"{choice.name} is one board, but the cases are for {', '.join(socs)}",
            fix="pass the --soc of the board",
        )
    (soc,) = socs
    device = open_device(choice.name, choice.place)
    facts = identify(device)
    progress.step(f"{device.name}: {facts.describe()}")
    bundle = make_bundle(soc, facts.machine)
    is_board = bundle.target.profile != ""
    # Names of one number are names of one SoC.
    if is_board and find_number(facts.soc) not in {None, find_number(soc)}:
        raise UnfitError(
            f"{device.name} has {facts.soc}, but the cases are for {soc}",
            why="with another Hexagon version or VTCM size, QNN fails with error 14001 or 5005",
            fix=f"pass --soc {facts.soc}",
        )
    require_usable(device, facts, bundle)
    starts = choice.starts or (STARTS if is_board else 1)  # a host's times are not a board's
    runner = DeviceRunner(
        device,
        bundle,
        f"{device.place}/bundles/{bundle.digest[:16]}",
        progress,
        starts=starts,
        dialect=make_dialect(user_options, log_level, choice.python, bundle.target),
    )
    with lease_first([runner], choice.wait_s):
        digests = {file.name: file.sha256 for file in bundle.files}
        runner.sent = device.push(runner.directory, {SCRIPT.name: SCRIPT}, digests)
        python = ask_python(device, choice.python, runner.directory)
        require_provider(device, python)
        progress.step(f"{device.name}: {python.describe()}, QNN {python.qnn or 'unknown'}")
        runner.bundle = structs.replace(bundle, qnn=python.qnn)
        yield ReadyBoard(runner, facts, python)
