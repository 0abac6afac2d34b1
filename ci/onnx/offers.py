"""Asks QNN's provider which nodes of a model it takes, without compiling the model.

The provider decides about all nodes before it compiles the first partition, and logs each decision.
So a session is opened in a process that is ended as soon as the log says that it composes a graph.
Lines were seen with onnxruntime-qnn 2.5.0.
"""

from __future__ import annotations

import os
import re
import signal
import traceback
from collections.abc import Mapping
from pathlib import Path

from ci.cases.engine import QUANTIZING, Delegation
from ci.onnx.compile import find_blocked
from ci.onnx.fallback import PROVIDER, PROVIDER_LOG, UNIT, count_nodes, read_reasons
from ci.onnx.session import open_session
from provisioning.documents import read_text, read_window
from provisioning.errors import FailedError

COMPOSES = b"ComposeGraph Graph name:"
# Before the provider is asked about the nodes again, once their layout was changed
AGAIN = "Backend setup already!"
MEMBER = re.compile(r"^\tOperator type: (\S+) Node name: (.*) Node index: (\d+)$", re.MULTILINE)
ERROR = "session.txt"  # next to the log: why no session could be opened


def ask_provider(
    model: Path, options: Mapping[str, str], log: Path
) -> tuple[Delegation, list[tuple[str, str]]]:
    """Return which nodes of a file QNN's provider takes, and those as (name, operator), without
    quantizers. The provider's log is written next to ``log``. Raises FailedError if no session can
    be opened before the provider has decided."""
    log = log.with_name(PROVIDER_LOG)
    error = log.with_name(ERROR)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _open_session(model, options, writing, error)
    os.close(writing)
    with os.fdopen(reading, "rb") as lines, log.open("wb") as copy:
        for line in lines:
            if COMPOSES in line:
                os.kill(pid, signal.SIGKILL)
                break
            copy.write(line)
    os.waitpid(pid, 0)
    text = read_window(log)
    taken, left = list_decisions(text)
    if not taken and not left:
        reason = read_text(error) if error.is_file() else "it decided about no node"
        lines_of_reason = reason.strip().splitlines()
        raise FailedError(
            "QNN's provider could not be asked",
            why=lines_of_reason[-1] if lines_of_reason else "",
            fix=f"see {PROVIDER_LOG}",
        )
    parts = [(PROVIDER, taken)] * bool(taken) + [("CPU", left)]
    delegation = count_nodes(parts, read_reasons(text), find_blocked(model))
    return delegation, [node for node in taken if node[1] not in QUANTIZING]


def _open_session(model: Path, options: Mapping[str, str], writing: int, error: Path) -> None:
    """Open a session whose output goes to the file descriptor ``writing``, and end the process."""
    try:
        for stream in (1, 2):
            os.dup2(writing, stream)
        open_session(model, options, {}, log_level="verbose")
    except BaseException:  # noqa: BLE001 - the process ends here
        error.write_text(traceback.format_exc(), encoding="utf-8")
    finally:
        os._exit(0)


def list_decisions(log: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the nodes that QNN's provider takes, and those that it leaves, each as (name,
    operator), in the order in which it decided. The last time that it was asked counts."""
    decisions: dict[tuple[str, str], tuple[bool, str, str]] = {}
    _, *units = UNIT.split(log.rpartition(AGAIN)[2])
    for unit in units:
        head, _, _ = unit.partition("\n\n")
        is_taken = head.startswith("Validation PASSED")
        for operator, name, index in MEMBER.findall(head):
            decisions[name, index] = (is_taken, name, operator)
    taken: list[tuple[str, str]] = []
    left: list[tuple[str, str]] = []
    for is_taken, name, operator in decisions.values():
        (taken if is_taken else left).append((name, operator))
    return taken, left
