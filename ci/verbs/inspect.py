"""``inspect FILE...``: show what programs, context binaries, libraries, APKs and AARs contain."""

from __future__ import annotations

import argparse

import msgspec

from ci.inspect.files import Inspected, Inspection, inspect_file
from ci.inspect.render import render_files
from provisioning.console.command import Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        type=user_path,
        nargs="+",
        metavar="FILE",
        help="a .pte, a context binary, an ONNX context model, a library, an APK or an AAR",
    )
    parser.add_argument(
        "--seal",
        action="store_true",
        help="write the SHA-256 of an ONNX context model's binary into the model",
    )


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    found: list[Inspected] = []
    for path in args.files:
        progress.step(f"reading {path.name}")
        found.append(inspect_file(path, str(path)))
        if args.seal and found[-1].kind == "onnx" and not found[-1].damage:
            from ci.onnx.contexts import seal_context

            seal_context(path)
    code = ExitCode.FAILED if any(one.damage for one in found) else ExitCode.OK
    return Outcome(render_files(found), msgspec.to_builtins(Inspection(tuple(found))), code)
