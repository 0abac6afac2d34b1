"""Converts torch modules to LiteRT. Only a model from PyTorch needs this module, and with it torch
and litert-torch."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ci.cases.forked import still_tqdm
from ci.facts.finding import PlacedError
from ci.litert.plugin import CONVERTER
from ci.models.eager import keep_state
from ci.models.factory import Inputs
from ci.models.user_code import list_frames, list_places
from provisioning.errors import QnnCiError, describe_exception

# RuntimeError of backend/export.py in litert-torch 0.10.0
UNKNOWN_OPERATOR = re.compile(r"^Lowering not found: (\S+)")
TRACERS = ("torch._dynamo", "torch._export", "torch.export", "torch.fx")
ELSEWHERE = "or test the model with test-emulator or test-onnx, which do not use litert-torch"


def convert_module(module: nn.Module, inputs: Inputs) -> bytes:
    """Return a module as a .tflite file with the signature ``serving_default``. int64 becomes
    int32, also in the inputs and outputs, as is litert-torch's default. The module's state does not
    change. Raises FailedError if litert-torch cannot convert it."""
    litert_torch = import_converter()
    with torch.no_grad(), keep_state(module), blame_converter():
        content: bytes = litert_torch.convert(module, inputs).model_content()
    return content


def import_converter() -> Any:
    """Return the package litert_torch, which is imported only if it is needed."""
    still_tqdm()
    return importlib.import_module("litert_torch")


@contextmanager
def blame_converter() -> Iterator[None]:
    """Turn an exception of litert-torch, or of torch.export, which it calls, into a FailedError
    with the reason and the line of the user's code, if they are known."""
    try:
        yield
    except QnnCiError:
        raise
    except Exception as error:
        reason = describe_exception(error).strip().partition("\n")[0]
        unknown = UNKNOWN_OPERATOR.match(str(error))
        if unknown:
            problem = f"{CONVERTER} cannot convert the operator {unknown[1]}"
            reason = ""
            fix = f"write it with other operators, {ELSEWHERE}"
        elif type(error).__module__.startswith(TRACERS):
            # The rules of `explain` say what to do about each of torch.export's errors.
            problem = f"{CONVERTER} cannot convert the model, because torch.export cannot trace it"
            fix = ""
        else:
            problem, fix = f"{CONVERTER} cannot convert the model", f"change it, {ELSEWHERE}"
        lines = [f"{file}, line {line}, in {name}" for file, line, name in list_frames(error)]
        failure = PlacedError(problem, why="; ".join(filter(None, [reason, *lines])), fix=fix)
        failure.places = list_places(error)
        raise failure from error


def before_forks() -> None:
    """Import litert-torch before workers are forked, because this takes seconds. Nothing is
    converted: jax starts threads with its first operation, which a fork would lose."""
    import_converter()
