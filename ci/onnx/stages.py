"""Determines which stage of a compilation rejected a model, and why."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ci.facts.finding import NO_ADVICE, Finding, describe_error
from ci.facts.kinds import NOT_LOWERED
from provisioning.documents import read_window
from provisioning.errors import QnnCiError

QUANTIZER, ONNXRUNTIME, QNN, CPU = "quantizer", "onnxruntime", "QNN", "CPU"
CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : ")
PROVIDER_LOG, TRACEBACK_LOG = "provider.log", "traceback.log"
# ONNX Runtime's log lines at level error.
SAID = re.compile(r"^(?:\x1b\[[\d;]*m)?\d{4}-.* \[E:onnxruntime:[^]]*\] (.*)", re.MULTILINE)
MOST_SAID = 8


class StageError(Exception):
    """An error in one stage of a compilation. Its message is the name of the stage, and its cause
    is the original exception."""


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Turn an exception raised in the block into a StageError with the stage's ``name``. A
    StageError is passed on unchanged."""
    try:
        yield
    except StageError:
        raise
    except Exception as error:
        raise StageError(name) from error


def describe_refusal(error: Exception, log: Path) -> Finding:
    """Return why a case failed, such as ``QNN: ...``. The finding contains the stage, the first
    MOST_SAID error lines of the provider, and the exception.

    Also write the traceback and all error lines to TRACEBACK_LOG next to ``log``.
    """
    cause = error.__cause__ if isinstance(error, StageError) else error
    stage = f"{error}: " if isinstance(error, StageError) else ""
    if isinstance(cause, QnnCiError):
        raised, advice = cause.what, describe_error(cause)
    else:
        plain = CODE.sub("", str(cause))
        name = f"{type(cause).__name__}: " if plain == str(cause) else ""
        raised = " ".join(f"{name}{plain}".split()).rstrip(":")
        advice = NO_ADVICE
    said: list[str] = []
    provider = log.with_name(PROVIDER_LOG)
    if str(error) == QNN:
        text = read_window(provider)
        said = list(dict.fromkeys(line.strip() for line in SAID.findall(text)))
    lines = [*traceback.format_exception(cause), *(f"{line}\n" for line in said)]
    log.with_name(TRACEBACK_LOG).write_text("".join(lines), encoding="utf-8")
    left = len(said) - MOST_SAID
    more = [f"and {left} more, which --keep-artifacts keeps in {PROVIDER_LOG}"] if left > 0 else []
    told = [*(line for line in said[:MOST_SAID] if line not in raised), *more, raised]
    evidence = "\n".join(told) if told[1:] else ""  # a single line is the headline
    return NOT_LOWERED.find(f"{stage}{told[0]}", evidence=evidence, advice=advice)
