"""``context FILE``: deprecated, and removed in the next release. Use inspect or compat instead."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from provisioning.console.command import Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.manifest.targets import read_socs

if TYPE_CHECKING:  # it imports the onnx package, which --help does not need
    from ci.onnx.contexts import Context


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=user_path, metavar="FILE", help="an ONNX context model, NAME_ctx.onnx"
    )
    parser.add_argument(
        "--soc",
        type=str.upper,
        choices=sorted(read_socs()),
        metavar="SOC",
        help="check that this SoC can load the model",
    )
    parser.add_argument(
        "--qnn",
        default="",
        metavar="VERSION",
        help="also check that this version of QNN, such as 2.49.40, can load the model",
    )
    parser.add_argument(
        "--seal",
        action="store_true",
        help="write the SHA-256 of the context binary into the model, to detect later changes",
    )


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    if args.qnn and not args.soc:
        raise UsageError("--qnn needs --soc", fix="add --soc, for example SM8750")
    from ci.onnx.contexts import check_context, read_context, seal_context

    successor = f"compat {args.file.name} --soc {args.soc}" if args.soc else "inspect"
    progress.step(
        f"warning: `context` will be removed in the next release; use `qnn-ci {successor}`"
    )
    progress.step(f"reading {args.file.name}")
    if args.seal:
        seal_context(args.file)
    file, soc = args.file, args.soc
    context = check_context(file, soc, args.qnn) if soc else read_context(file)
    return Outcome(_render(context, args.soc), context.as_data())


def _render(context: Context, soc: str | None) -> str:
    where = context.file.name if context.file else "in the model"
    made_for = ", ".join(
        f"{one.soc} (V{one.hexagon}, {one.vtcm_mb} MB VTCM)" for one in context.targets
    )
    rows = {
        "binary": f"{where}, {context.size_bytes} bytes",
        "compiled with": f"QNN {context.qnn or 'unknown'}",
        "compiled for": made_for or "unknown",
        "graphs": ", ".join(context.partitions),
        "sealed": "yes, and the binary has not changed since" if context.seal else "no",
        **({"verdict": f"{soc} can load it"} if soc else {}),
    }
    return "".join(f"{name:14} {value}\n" for name, value in rows.items())
