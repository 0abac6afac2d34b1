"""``inspect FILE...``: show what programs, context binaries, libraries, APKs and AARs contain."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

import msgspec

from ci.inspect.files import Inspected, Inspection, Library, inspect_file
from ci.report.text import count, name_some, show_bytes, show_row
from provisioning.console.command import FILE, FLAG, Outcome
from provisioning.console.progress import Progress
from provisioning.doctor.survey.context_binaries import ContextBinary, TensorSpec
from provisioning.doctor.survey.programs import Method, Program
from provisioning.errors import ExitCode

KINDS = {
    "program": "ExecuTorch program",
    "bundle": "ExecuTorch program bundled with test cases",
    "data": "tensors for ExecuTorch programs",
    "context": "QNN context binary",
    "onnx": "ONNX model",
    "library": "library",
    "package": "package",
    "unknown": "file",
}
INDENT, COLUMN, SHOWN = "  ", 14, 4


def render_files(files: Iterable[Inspected]) -> str:
    """Return a block of text for each file."""
    return "\n".join("".join(f"{line}\n" for line in _describe(file)) for file in files)


def _describe(item: Inspected) -> Iterator[str]:
    yield f"{show_row(item.file)}: {KINDS[item.kind]}, {show_bytes(item.size_bytes)}"
    if item.damage:
        yield _row("problem", f"it {item.damage}")
    if item.library:
        yield _row("library", _describe_library(item.library))
    if item.program:
        yield from _describe_program(item.program)
    for entry in item.entries:
        yield from (f"{INDENT}{line}" for line in _describe(entry))


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


def _describe_program(program: Program) -> Iterator[str]:
    if program.misplaced:
        yield _row("warning", program.misplaced)
    for context in program.contexts:
        yield from _describe_context(context)
    for method in program.methods:
        yield from _describe_method(method)
    for name, value in (program.metadata or {}).items():
        yield _row("constant", f"{name} = {value}")
    if program.external:
        tensors = f"{count(len(program.external), 'tensor')}: {name_some(program.external, SHOWN)}"
        if program.kind == "data":
            yield _row("contains", tensors)
        else:
            yield _row("needs a .ptd", f"with {tensors}")
    for segment in program.segments:
        place = f"at byte {segment.offset}, a multiple of {segment.align}"
        yield _row("segment", f"{show_bytes(segment.size_bytes)} {place}")
    for dtype, size in (program.constant_bytes or {}).items():
        yield _row("CPU weights", f"{dtype}, {show_bytes(size)}")


def _describe_context(context: ContextBinary) -> Iterator[str]:
    versions = {
        "core API": context.core_api,
        "backend API": context.backend_api,
        "binary info": context.binary_info,
    }
    told = "".join(f", {name} {value}" for name, value in versions.items() if value)
    yield _row("context", f"{show_bytes(context.size_bytes)} at byte {context.offset}")
    if context.qnn or context.soc_id or not context.unread:
        yield _row("compiled with", f"QNN {context.qnn or 'unknown'}{told}")
        soc = context.soc or (f"SoC {context.soc_id}" if context.soc_id else "an unknown SoC")
        yield _row("compiled for", f"{soc}, V{context.hexagon}, {context.vtcm_mb} MB VTCM")
    if context.unread:
        yield _row("not read", context.unread)
    for graph in context.graphs:
        constants = graph.constant_bytes
        packed = "" if constants is None else f", constants of {show_bytes(constants)}"
        yield _row("graph", f"{graph.name}{packed}")
        yield from _describe_ports(graph.inputs, graph.outputs)


def _describe_method(method: Method) -> Iterator[str]:
    backends = sorted({partition.backend for partition in method.partitions})
    parts = count(len(method.partitions), "partition")
    users = f" for {','.join(backends)}" if backends else ""
    yield _row("method", f"{method.name}, {parts}{users}")
    yield from _describe_ports(method.inputs, method.outputs)
    for name, times in method.cpu_operators.items():
        yield _row(f"{INDENT}on the CPU", f"{name}{f', {times} times' if times > 1 else ''}")


def _describe_ports(inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> Iterator[str]:
    for kind, ports in (("input", inputs), ("output", outputs)):
        for port in ports:
            grid = ""
            if port.scale is not None:
                grid = f", scale {port.scale:g}, zero point {port.zero_point}"
            yield _row(f"{INDENT}{kind}", f"{port.name} {port.dtype} {list(port.shape)}{grid}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a .pte, a context binary, an ONNX context model, a library, an APK or an AAR"
    parser.add_argument("files", nargs="+", **FILE, help=text)
    text = "write the SHA-256 of an ONNX context model's binary into the model"
    parser.add_argument("--seal", **FLAG, help=text)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    found: list[Inspected] = []
    for path in args.files:
        progress.step(f"reading {path.name}")
        found.append(inspect_file(path, str(path)))
        if args.seal and found[-1].kind == "onnx" and not found[-1].damage:
            from ci.onnx.contexts import seal_context

            seal_context(path)
    code = ExitCode.FAILED if any(inspected.damage for inspected in found) else ExitCode.OK
    return Outcome(render_files(found), msgspec.to_builtins(Inspection(tuple(found))), code)
