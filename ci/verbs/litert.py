"""``test-litert``: compile .tflite files with LiteRT's plugin for Qualcomm, run them on the
emulator and judge their outputs."""

from __future__ import annotations

import argparse

from ci.verbs.lanes.devices import add_missing_device, refuse_device
from ci.verbs.lanes.lane import run_lane
from ci.verbs.lanes.litert import LANE, LitertRequest
from ci.verbs.options import CASES, add_options
from ci.verbs.requests import check_arguments, make_request
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress

OPTIONS = [flag for flag in CASES if flag != "--log-level"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    gaps = {
        "--model": "file.tflite, net.py:factory, or a folder of .tflite files",
        "--reports": f"{LANE.session}/",
    }
    add_options(parser, *OPTIONS, gaps=gaps)
    add_missing_device(parser)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run the requested cases, or list the choices. Raises the same errors as refuse_device,
    check_arguments and run_lane."""
    refuse_device(args.device, LANE.session)
    check_arguments(args, LANE.session)
    return run_lane(LANE, make_request(LitertRequest, args, LANE.session, judges=True), progress)
