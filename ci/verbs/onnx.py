"""``test-onnx``: compile models with ONNX Runtime, run them on the emulator and judge their
outputs."""

from __future__ import annotations

import argparse
from functools import partial

from ci.onnx.fitting import parse_shapes
from ci.onnx.options import find_backend, parse_options
from ci.verbs.board import add_board, read_board
from ci.verbs.lanes.devices import BOARD, refuse_device
from ci.verbs.lanes.lane import run_lane
from ci.verbs.lanes.onnx import LANE, OnnxRequest
from ci.verbs.options import CASES, add_option, add_options
from ci.verbs.requests import check_arguments, make_request
from provisioning.console.command import FLAG, HOW, MANY, RESULTS, Outcome
from provisioning.console.progress import Progress
from provisioning.errors import UsageError

EMBEDDED = "1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    gaps = {
        "--model": "file.onnx, a folder of such files, or file.py:factory",
        "--reports": f"{LANE.session}/",
    }
    add_options(parser, *CASES, gaps=gaps)
    add = partial(add_option, parser)
    add(HOW, "--option KEY=VALUE", "an option of QNN's execution provider", **MANY, again=str)
    add_options(parser, "--shape")
    saver = "also write the calls to QNN's API as C code, and count QNN's operators"
    add(RESULTS, "--saver", saver, **FLAG)
    text = "also write QNN's profile as CSV; the emulator's cycles are not judged"
    add(
        RESULTS,
        "--profile",
        text,
        nargs="?",
        choices=("basic", "detailed"),
        const="detailed",
        default="",
    )
    direct = "run the model without a context binary, as QNN's CPU backend always does"
    add(HOW, "--direct", direct, **FLAG, again=str)
    add_options(parser, "--sdk")
    embed = "write the context binary next to the ONNX file (0) or inside it (1)"
    add(HOW, "--embed-mode", embed, choices=("0", EMBEDDED), default=EMBEDDED)
    add_board(parser)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run the requested cases, or list the choices. Raises the same errors as read_request and
    run_lane."""
    return run_lane(LANE, read_request(args), progress)


def read_request(args: argparse.Namespace) -> OnnxRequest:
    """Return the request of a call. Raises UsageError for options that exclude each other, and the
    same errors as refuse_device, check_arguments and read_board."""
    refuse_device([name for name in args.device if not name.startswith(BOARD)], LANE.session)
    check_arguments(args, LANE.session)
    user_options = parse_options(args.option)
    is_cpu = find_backend(user_options) == "cpu"
    direct = args.direct or is_cpu  # QNN's CPU backend writes no context binary
    if direct and args.embed_mode != EMBEDDED:
        raise UsageError(
            f"--embed-mode {args.embed_mode} cannot be used without a context binary",
            why="--direct and QNN's CPU backend write none",
            fix="leave out --embed-mode",
        )
    if args.estimate and is_cpu:
        raise UsageError(
            "--estimate cannot be used with QNN's CPU backend",
            why="the simulator predicts the time of a program for HTP",
            fix="leave out --estimate",
        )
    return make_request(
        OnnxRequest,
        args,
        LANE.session,
        parsed={"direct": direct},
        user_options=user_options,
        shapes=parse_shapes(args.shape),
        embed=args.embed_mode == EMBEDDED,
        board=read_board(args, user_options, direct=direct),
        judges=True,
    )
