"""``inspect FILE...``: show what programs, context binaries, LiteRT models, libraries, APKs and
AARs contain."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import msgspec

from ci.inspect.files import Inspected, Inspection, Library, inspect_file
from ci.onnx.reading import seal_file
from ci.report.filled import fill_text
from ci.report.text import name_some, show_row
from provisioning.console.command import FILE, FLAG, Outcome
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode

KINDS = {
    "program": "ExecuTorch program",
    "bundle": "ExecuTorch program bundled with test cases",
    "data": "tensors for ExecuTorch programs",
    "context": "QNN context binary",
    "onnx": "ONNX model",
    "litert": "LiteRT model",
    "litertlm": "bundle of LiteRT-LM",
    "library": "library",
    "package": "package",
    "unknown": "file",
}
INDENT, COLUMN, SHOWN = "  ", 14, 4


def render_files(files: Iterable[Inspected]) -> str:
    """Return a block of text for each file."""
    return fill_text(
        "verbs/templates/inspect.txt.j2",
        files=files,
        kinds=KINDS,
        shown=SHOWN,
        show_row=show_row,
        row=_row,
        name_some=name_some,
        describe_library=_describe_library,
    )


def _row(name: str, value: str) -> str:
    return f"{INDENT}{name:<{COLUMN}}{show_row(value)}"


def _describe_library(library: Library) -> str:
    parts = [
        f"{library.machine}{f' V{library.hexagon}' if library.hexagon else ''}",
        f"QNN {library.qnn}" if library.qnn else "states no QNN build",
        f"Android API {library.api_level}" if library.api_level else "",
        f"aligned to {library.align} bytes",
    ]
    return ", ".join(filter(None, parts))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = (
        "a .pte, a context binary, an ONNX context model, a .tflite, a .litertlm, a library, an APK"
        " or an AAR"
    )
    parser.add_argument("files", nargs="+", **FILE, help=text)
    text = "write the SHA-256 of an ONNX context model's binary into the model"
    parser.add_argument("--seal", **FLAG, help=text)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Describe each file. The exit code is 1 if a file is damaged. Raises UsageError for a file
    that cannot be read."""
    inspected_files: list[Inspected] = []
    for path in args.files:
        progress.step(f"reading {path.name}")
        inspected_files.append(inspect_file(path, str(path)))
        if args.seal and inspected_files[-1].kind == "onnx" and not inspected_files[-1].damage:
            seal_file(path)
    code = (
        ExitCode.FAILED if any(inspected.damage for inspected in inspected_files) else ExitCode.OK
    )
    return Outcome(
        render_files(inspected_files), msgspec.to_builtins(Inspection(tuple(inspected_files))), code
    )
