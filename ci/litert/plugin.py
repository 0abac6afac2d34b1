"""Runs LiteRT's compiler plugin for Qualcomm in a process with limits, and reads its messages.

The plugin can die (signal 11 for a file that was cut in the middle) or never end (a linear layer
from one number to several in int8, with a scale per channel), so it gets limits of time and memory.
Lines were seen with ai-edge-litert 2.3.0: stderr has LiteRT's, which name the operators that stay
on the CPU, and stdout has QNN's, which say why.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ci.cases.engine import CompilerError
from ci.litert.empty_library import make_empty_library
from provisioning.console.allowance import Allowance
from provisioning.console.caller import install_command
from provisioning.console.process import Completed, run_streams
from provisioning.console.usage import share_memory
from provisioning.errors import FailedError, UnfitError

CONVERTER = "litert-torch"  # makes .tflite files of PyTorch models
PACKAGE, PROGRAM = "ai_edge_litert", "tools/apply_plugin_main"
PLUGINS = "vendors/qualcomm/compiler"
UNUSED_LIBRARY = "libQnnLpai.so"
# It names the operator and the place in its subgraph. A custom operator is named by no line.
REFUSED = re.compile(r"LiteRT Op #(\d+) '[^']*' \(code=\d+\) is not supported in")
PARTITIONED = re.compile(
    r"Partitioned subgraph<(\d+)>, selected (\d+) ops, from a total of (\d+) ops"
)
# QNN checks an operator; its reasons come before the line that says that it failed.
QNN_ERROR = re.compile(r"\[ ERROR \]\s+<E> (.*)")
QNN_REFUSED = re.compile(r"Failed to validate op (\S+) with error")
NOISE = re.compile(r"QnnBackend_validateOpConfig failed|^\[\d+\] has incorrect")
MISMATCH = re.compile(r".*(?:is mismatched|minimum supported version).*")
# Errors may be in each other: "ERROR: [apply_plugin.cc:455] ERROR: [compiler_plugin.cc:504]".
ERROR_LINE = re.compile(r"^(?:\[[^]]*\] )?(?:ERROR: (?:\[[^]]*\] ?)?)+(.*)$", re.MULTILINE)
# Why the plugin cannot translate an operator for QNN.
QNN_REASON = re.compile(r"^ERROR: \[Qnn\] (.+)$", re.MULTILINE)
SAME_NAME = "QNN_TENSOR_ERROR_ALREADY_EXISTS"
WRITING = "Starting Serializing model..."  # the last line before the compiled file is written
UNSAID = "QNN refuses it, and gives no reason"
NOTHING_TAKEN, LOST_IN_TRANSLATION, LOST_IN_PREPARE = 1, 3, 6
MOST_BYTES = 256 << 20  # of messages; QNN prints 1 MB for 300 operators


@dataclass(frozen=True)
class PluginResult:
    """What the plugin did. ``refused`` are the operators that stay on the CPU, each by the number
    of its subgraph and its place there, with the reason, or "" if no line has one. ``selected`` are
    the numbers of operators that QNN takes, by subgraph."""

    refused: Mapping[tuple[int, int], str] = field(default_factory=dict)
    selected: Mapping[int, int] = field(default_factory=dict)


class NothingTakenError(FailedError):
    """QNN takes no operator of a model. ``result`` is what the plugin did."""

    result = PluginResult()


def read_messages(stderr: str, stdout: str) -> PluginResult:
    """Return what the plugin's messages say."""
    refused: dict[tuple[int, int], str] = {}
    selected: dict[int, int] = {}
    places: list[int] = []
    for line in stderr.splitlines():
        if refusal := REFUSED.search(line):
            places.append(int(refusal[1]))
        elif partitioning := PARTITIONED.search(line):
            number = int(partitioning[1])
            selected[number] = int(partitioning[2])
            refused |= {(number, place): "" for place in places}
            places = []
    reasons = list_qnn_reasons(stdout)
    # QNN is not asked about an operator that the plugin cannot translate, so that the reasons of
    # the others could be those of any.
    if len(reasons) == len(refused):
        refused = dict(zip(refused, reasons, strict=True))
    return PluginResult(refused, selected)


def list_qnn_reasons(stdout: str) -> list[str]:
    """Return why QNN refused operators, in the order in which it was asked."""
    reasons: list[str] = []
    messages: list[str] = []  # about the operator that QNN checks
    for error in filter(None, map(QNN_ERROR.search, stdout.splitlines())):
        message = error[1]
        if QNN_REFUSED.search(message):
            reasons.append(messages[0] if messages else UNSAID)
            messages = []
        elif "has incorrect Rank" in message:
            rank = message.rpartition(" ")[2].rstrip(".")
            messages.append(f"QNN takes no tensor with {rank} axes here")
        elif not NOISE.search(message):
            messages.append(" ".join(message.split()))
    return reasons


def find_package() -> Path:
    """Return the folder of ai-edge-litert. Raises UnfitError if it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.origin:
        raise UnfitError(
            f"this Python has no {PACKAGE}",
            why="its compiler plugin compiles .tflite files",
            fix=f"{install_command('litert')}, which installs the tested versions",
        )
    return Path(spec.origin).parent


def run_plugin(
    source: Path,
    target: Path,
    soc: str,
    *,
    library_folder: Path,
    log: Path,
    timeout_s: float,
    compiles: bool = True,
) -> PluginResult:
    """Compile ``source`` for an SoC and write the result to ``target``. QNN's libraries are in
    ``library_folder``. Both streams are written next to ``log``. Unless it ``compiles``, only ask
    QNN about each operator.

    Raises FailedError if the plugin takes no operator, refuses the file, dies or exceeds a limit.
    """
    package = find_package()
    scratch = target.with_name("libraries")
    scratch.mkdir(exist_ok=True)
    (scratch / UNUSED_LIBRARY).write_bytes(make_empty_library(UNUSED_LIBRARY))
    inherited = os.environ.get("LD_LIBRARY_PATH", "")
    folders = [str(library_folder), *filter(None, [inherited]), str(scratch)]
    ended = run_streams(
        [
            package / PROGRAM,
            f"--cmd={'apply' if compiles else 'partition'}",
            f"--model={source}",
            f"--o={target}",
            "--soc_manufacturer=Qualcomm",
            f"--soc_model={soc}",
            "--err=--",
            f"--libs={package / PLUGINS}",
        ],
        env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)},
        allowance=Allowance(timeout_s, *share_memory()),
        most_bytes=MOST_BYTES,
        most_messages=MOST_BYTES,
    )
    stdout = ended.stdout.decode("utf-8", "replace")
    log.with_name("plugin.stderr.log").write_bytes(ended.stderr)
    log.with_name("plugin.stdout.log").write_bytes(ended.stdout)
    result = read_messages(ended.output, stdout)
    # A failure leaves an empty target.
    if ended.is_good and target.is_file() and target.stat().st_size:
        return result
    raise describe_failure(ended, result)


def describe_death(end: str, *, has_compiled: bool) -> CompilerError:
    """Return the error for a signal that ended the plugin's program, before or after QNN had
    compiled the model."""
    if has_compiled:
        return CompilerError(
            f"LiteRT's apply_plugin_main {end} while it wrote the compiled file",
            why="QNN had compiled the model; it does so if several operators STABLEHLO_SCATTER stay"
            " on the CPU, which litert-torch makes of index_copy",
            fix="let localise find the operators, and write values at a position of a cache with"
            " torch.where(places == position, new, old)",
            died=True,
        )
    return CompilerError(
        f"LiteRT's plugin for Qualcomm {end}",
        fix="let localise find the operator, and write it with others; or write the file again, if"
        " it is damaged or has a dimension of 0",
        died=True,
    )


def describe_failure(ended: Completed, result: PluginResult) -> FailedError:
    """Return why the plugin compiled nothing."""
    code, stderr, end = ended.returncode, ended.output, ended.describe()
    stdout = ended.stdout.decode("utf-8", "replace")
    if ended.exceeded:
        excess = ended.exceeded.removeprefix("the process ")
        return CompilerError(
            f"LiteRT's plugin for Qualcomm was ended: it {excess}",
            fix="change the model; if it is only slow to compile, raise --timeout-s",
            exceeded=True,
        )
    if code < 0:
        return describe_death(end, has_compiled=stderr.rstrip().endswith(WRITING))
    if version := MISMATCH.search(stderr):
        return FailedError(
            "LiteRT's plugin does not work with this QNN",
            why=" ".join(version[0].split()),
            fix="use the QNN that the profile litert pins",
        )
    if code == NOTHING_TAKEN and result.selected and not any(result.selected.values()):
        reason = next(filter(None, result.refused.values()), "")
        untaken = NothingTakenError(
            "QNN takes no operator of the model",
            why=reason or "LiteRT's plugin cannot translate any",
            fix="change what the reason names: the operator, its type (quantize the model) or the"
            " SoC; --keep-artifacts keeps all reasons of QNN, as plugin.stdout.log",
        )
        untaken.result = result
        return untaken
    if code == LOST_IN_PREPARE:
        reasons = [" ".join(line.split()) for line in QNN_ERROR.findall(stdout)]
        return CompilerError(
            "QNN took operators of the model, and then could not prepare its graph",
            why=reasons[-1] if reasons else "",
            fix="--keep-artifacts keeps QNN's messages, as plugin.stdout.log",
        )
    if SAME_NAME in stderr:
        return FailedError(
            "LiteRT's plugin cannot translate a model with several tensors of one name",
            why="QNN finds tensors by their names, in which the plugin replaces all but letters and"
            " digits by _: some names are then the same, or are empty",
            fix="give each tensor its own name, of letters and digits",
        )
    reasons = QNN_REASON.findall(stderr)
    if code == LOST_IN_TRANSLATION and reasons:
        return CompilerError(
            "LiteRT's plugin took operators of the model, and then could not translate them for"
            " QNN",
            why=reasons[-1],
            fix="change or quantize these operators in another way; --keep-artifacts keeps all"
            " messages, as plugin.stderr.log",
        )
    lines = [line.strip() for line in ERROR_LINE.findall(stderr) if line.strip()]
    return CompilerError(
        f"LiteRT's plugin {end}",
        why=lines[-1] if lines else "",
        fix="--keep-artifacts keeps its messages, as plugin.stderr.log",
    )
