"""Run context models on a board with the board's own ONNX Runtime: what its Python has, how the
script run_onnx.py is called there, and which provider ran the nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from msgspec import Struct

from ci.cases.engine import Program
from ci.device.bundle import Bundle, Target
from ci.device.connection import Device
from ci.device.provenance import BundleFile
from ci.device.runner import Dialect
from ci.onnx.engine import BACKEND, Executed, find_lies
from ci.onnx.fallback import PROVIDER, read_profile
from ci.onnx.options import NO_FALLBACK, choose_options, rate_severity
from provisioning.documents import DocumentError, decode_json
from provisioning.errors import UnfitError
from provisioning.files import hash_file
from provisioning.versions import is_older

SCRIPT = Path(__file__).with_name("run_onnx.py")
PYTHON = "python3"  # of a board
MODEL, TIMES, PROFILE = "model.onnx", "times.json", "profile.json"
ANSWER_S = 300.0  # a board imports ONNX Runtime, and reads QNN's library, slowly
NO_PROGRAM = (126, 127)  # a shell's exit codes for a program that it cannot start
OF_HOST = ("soc_model", "htp_arch")  # which SoC a host emulates; a board has its own
INSTALL_FIX = (
    "install onnxruntime-qnn and the onnxruntime that it needs there, or pass the Python that has"
    " them with --board-python"
)


class BoardPython(Struct, frozen=True):
    """What a board's Python has: the versions of its packages, the providers of its ONNX Runtime
    and, if QNN's provider cannot be used, why (``refusal``). ``missing`` are the packages that it
    lacks, ``plugin`` is the version of onnxruntime-qnn, and ``qnn`` that of its QNN, "" if it is
    unknown."""

    python: str
    executable: str
    missing: tuple[str, ...] = ()
    onnxruntime: str = ""
    plugin: str = ""
    providers: tuple[str, ...] = ()
    qnn: str = ""
    refusal: str = ""

    def describe(self) -> str:
        """Return the versions as text."""
        plugin = f", onnxruntime-qnn {self.plugin}" if self.plugin else ""
        return f"Python {self.python}, onnxruntime {self.onnxruntime}{plugin}"


class Times(Struct, frozen=True):
    """The times that the script writes: of loading the model, and of each run."""

    load_ms: float
    runs_ms: tuple[float, ...]


def make_bundle(soc: str, machine: str) -> Bundle:
    """Return the bundle for a board with this ``machine``, as ``uname -m`` names it: the script. An
    x86-64 computer emulates the SoC."""
    target = Target.EMULATOR if machine == Target.EMULATOR.machine else Target.LINUX
    row = BundleFile(SCRIPT.name, hash_file(SCRIPT), SCRIPT.stat().st_size)
    return Bundle(target=target, socs=(soc,), runner=SCRIPT.name, qnn="", files=(row,))


def ask_python(device: Device, python: str, directory: str) -> BoardPython:
    """Return what the board's ``python`` has. The script is in ``directory`` there. Raises
    UnfitError if there is no such Python or its answer is not one of the script, and the same
    errors as ``Device.call``."""
    script = quote(f"{directory}/{SCRIPT.name}")
    answer = device.call(f"{quote(python)} {script} --about", timeout_s=ANSWER_S)
    fix = "install Python 3.10 or newer there, or pass another one with --board-python"
    if answer.code in NO_PROGRAM:
        raise UnfitError(f"{device.name} has no program {python}", why=answer.message, fix=fix)
    lines = answer.out.decode("utf-8", "replace").splitlines() or [""]
    try:
        return decode_json(lines[-1], BoardPython)  # packages may print something before
    except DocumentError as error:
        raise UnfitError(
            f"{device.name}: {python} cannot run {SCRIPT.name}",
            why=answer.message or f"it exited with code {answer.code}: {error}",
            fix=fix,
        ) from error


def require_provider(device: Device, board_python: BoardPython) -> None:
    """Raise UnfitError if a board's Python lacks a package, or QNN's provider, because the CPU
    would run the model."""
    python = f"{board_python.executable} of {device.name}"
    if board_python.missing:
        raise UnfitError(
            f"{python} has no {' and no '.join(board_python.missing)}",
            why="a board runs models with its own ONNX Runtime",
            fix=INSTALL_FIX,
        )
    if board_python.refusal:
        plugin = f"onnxruntime-qnn {board_python.plugin}"
        raise UnfitError(
            f"{python} has no {PROVIDER}",
            why=f"the provider of {plugin} cannot be used: {board_python.refusal}",
            fix="check that this user may open /dev/fastrpc-cdsp there, and which onnxruntime"
            f" {plugin} needs",
        )
    if PROVIDER not in board_python.providers:
        listed = ", ".join(board_python.providers) or "none"
        raise UnfitError(
            f"{python} has no {PROVIDER}",
            why=f"onnxruntime {board_python.onnxruntime} there has these providers: {listed}",
            fix=INSTALL_FIX,
        )


def require_qnn(device: Device, board_python: BoardPython, qnn: str) -> None:
    """Raise UnfitError if the board's QNN is known, and older than the ``qnn`` that compiles
    here."""
    if board_python.qnn and qnn and is_older(board_python.qnn, qnn):
        raise UnfitError(
            f"{device.name} has QNN {board_python.qnn}, and the models are compiled with QNN {qnn}",
            why="QNN rejects a context binary of a newer QNN, without saying so",
            fix="install the onnxruntime-qnn there that is installed here, or an older one here",
        )


def make_dialect(
    user_options: Mapping[str, str], log_level: str, python: str, target: Target
) -> Dialect:
    """Return how the script is called on a board: with the provider options that the host's session
    would have, except those that say which SoC to emulate."""
    left_out = BACKEND if target is Target.EMULATOR else (*BACKEND, *OF_HOST)

    def list_flags(program: Program) -> dict[str, Any]:
        spec = program.spec
        options = choose_options(spec.scheme.base, spec.soc, user_options)
        options = {name: value for name, value in options.items() if name not in left_out}
        entries = {} if program.compiled.delegation.fallback_ops else NO_FALLBACK
        return {
            "warm_up": spec.source.run.warm_up,
            "model_path": MODEL,
            "times_path": TIMES,
            "profile_path": PROFILE,
            "provider_options": json.dumps(options),
            "session_entries": json.dumps(entries),
            "log_severity": rate_severity(log_level),
        }

    return Dialect(
        list_files=list_files,
        list_flags=list_flags,
        read_times=read_times,
        launcher=python,
        result_files=(TIMES, PROFILE),
        find_faults=find_faults,
    )


def list_files(program: Program) -> dict[str, Path]:
    """Return the files of a program by their names on a board: the model, and the context binary
    that it names if it is next to it."""
    return {path.name: path for path in sorted(program.path.parent.iterdir())}


def read_times(files: Mapping[str, bytes]) -> tuple[float | None, tuple[float, ...]]:
    """Return the time of loading the model and the times of all runs, in ms; None and () if the
    script did not write them."""
    try:
        times = decode_json(files.get(TIMES, b""), Times)
    except DocumentError:
        return None, ()
    return times.load_ms, times.runs_ms


def find_faults(program: Program, files: Mapping[str, bytes]) -> Iterator[str]:
    """Yield a message if other providers ran nodes that were compiled for QNN, or if the board did
    not report who ran them."""
    path = program.directory / PROFILE
    path.write_bytes(files.get(PROFILE, b""))
    try:
        executed = Executed(read_profile(path))
    except (DocumentError, ValueError) as error:
        yield f"the board did not report which provider ran the nodes: {error}"
    else:
        yield from find_lies(executed, program.compiled)
