"""Calls a user's ``path/to/file.py:factory``. Exceptions in it are reported with file and line.

A factory returns ``(module, example_inputs)`` or ``(module, example_inputs, calibration_inputs)``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ci.models.source_lines import is_installed, name_file
from ci.models.user_models import is_suite, lacks_function
from provisioning.console.command import OWN_PACKAGES, user_path
from provisioning.errors import FailedError, QnnCiError, UsageError, describe_exception

CONTRACT = "a factory returns (module, example_inputs) or (module, example_inputs, calibration)"
STACK_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# Other dtypes, such as float64, bfloat16, complex numbers and float8, are refused.
DTYPES_OF_QNN = {torch.bool, torch.float16, torch.float32} | {
    getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
}

Inputs = tuple[Tensor, ...]


@contextmanager
def users_code(reference: str) -> Iterator[None]:
    """Run the block, which imports and calls a user's file, in the directory where the command was
    started. Exceptions of the user's code become FailedError. Afterwards, Python's filters of
    warnings, numpy's handling of errors, stdout and stderr are as before, because ExecuTorch warns
    and prints. Call this only in a process that has loaded no other model of the user."""
    with (
        blame_model(reference),
        working_directory(user_path(".")),
        own_packages_hidden(),
        warnings.catch_warnings(),
        np.errstate(),
        redirect_stdout(sys.stdout),
        redirect_stderr(sys.stderr),
    ):
        yield


def call_function(reference: str, contract: str = CONTRACT, *words: Any) -> Any:
    """Call a function of the suite or of a user's file with the arguments ``words``, and return its
    result. ``contract`` describes what the function takes and returns, for error messages.

    Raises UsageError if the function does not exist, and FailedError if the user's code raises an
    exception.
    """
    name, _, function = reference.partition(":")
    if not is_suite(reference):
        with users_code(reference):
            return load_function(reference)(*words)
    suite = importlib.import_module(f"ci.models.suite.{name}")
    found = getattr(suite, function or "make_case", None)
    if found is None:
        raise UsageError(f"the suite's model {name} has no function {function!r}", fix=contract)
    return found(*words)


def load_function(reference: str) -> Callable[..., Any]:
    """Return the function in ``file.py:function``; the file must exist. Raises UsageError if it
    does not have the function, and any exception that importing the file raises."""
    file, _, attribute = reference.rpartition(":")
    path = Path(file).resolve()
    module = import_file(path)
    function = getattr(module, attribute, None)
    if not callable(function):
        own = [name for name, value in vars(module).items() if callable(value)]
        raise lacks_function(path, attribute, own)
    return cast("Callable[..., Any]", function)


def import_file(path: Path) -> ModuleType:
    """Import a file like a script, or as a module if it is in a package. Other files in its
    directory and its package can be imported too. Raises UsageError if it is not a Python file, and
    any exception that its code raises.

    From then on, the process writes no bytecode. Otherwise Python could load outdated bytecode if a
    file changes within a second and keeps its length.
    """
    sys.dont_write_bytecode = True
    packages: list[str] = []
    top = path.parent
    while (top / "__init__.py").is_file():
        packages.insert(0, top.name)
        top = top.parent
    sys.path[:0] = list(dict.fromkeys([str(path.parent), str(top)]))
    if packages:
        importlib.import_module(".".join(packages))
    spec = importlib.util.spec_from_file_location(
        ".".join([*packages, path.stem]) if packages else f"model_{path.stem}", path
    )
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@contextmanager
def own_packages_hidden() -> Iterator[None]:
    """Let a user's file import its packages even if they have the names of this project's packages.

    Afterwards, the user's modules stay in sys.modules, because torch.export and ExecuTorch look up
    a model's functions there. But this project's modules are restored, even if a user's module has
    the same name.
    """
    names = [name for name in sys.modules if name.partition(".")[0] in OWN_PACKAGES]
    ours = {name: sys.modules.pop(name) for name in names}
    try:
        yield
    finally:
        sys.modules.update(ours)


@contextmanager
def blame_model(reference: str, doing: str = "") -> Iterator[None]:
    """Turn exceptions of a user's code into a FailedError with file and line. ``doing`` is appended
    to the message. A QnnCiError is raised unchanged. Call this only in processes of the pool, which
    ignore Ctrl-C, so that a KeyboardInterrupt is the user's."""
    try:
        yield
    except QnnCiError:
        raise
    except BaseException as error:  # such as SystemExit, or pytest's Skipped
        name = Path(reference).name
        raise FailedError(
            f"{name} raised {describe_exception(error)}{doing}",
            why=_find_place(error),
            fix=_advise(error),
        ) from error


def _find_place(error: BaseException) -> str:
    """Return the innermost line in the user's code, such as ``nets/net.py, line 12, in forward``,
    or "" if the exception was raised elsewhere."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users_file(frame.filename)]
    if isinstance(error, SyntaxError) and error.filename:
        own = [traceback.FrameSummary(error.filename, error.lineno, "<module>", lookup_line=False)]
    return (
        f"{name_file(Path(own[-1].filename))}, line {own[-1].lineno}, in {own[-1].name}"
        if own
        else ""
    )


def _advise(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return (
            f"relative paths start at {user_path('.').resolve()}, where the command was"
            " started; Path(__file__).parent is the model's directory"
        )
    if isinstance(error, ModuleNotFoundError):
        return (
            f"install it with {sys.executable} -m pip install, put it next to the model, or add its"
            " folder to PYTHONPATH"
        )
    if isinstance(error, ImportError) and "relative import" in describe_exception(error):
        return "put an __init__.py next to the file, or import without the leading dot"
    return ""


@contextmanager
def working_directory(directory: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


def unpack(reference: str, made: Any) -> tuple[nn.Module, Inputs, tuple[Inputs, ...]]:
    """Return the module, the example and the calibration sets from the result ``made`` of a
    factory. Raises UsageError if the result does not have the required form."""
    name = Path(reference).name
    if not isinstance(made, tuple) or len(made) not in {2, 3}:
        length = f" and length {len(made)}" if isinstance(made, (tuple, list)) else ""
        raise _unwanted(name, f"it returned an object of type {type(made).__name__}{length}")
    module, example, *rest = made
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise _unwanted(name, f"the first item has type {kind}, not torch.nn.Module")
    calibration = () if not rest or rest[0] is None else rest[0]
    try:
        given = iter(calibration)
    except TypeError:
        raise _unwanted(
            name, f"the calibration has type {type(calibration).__name__}; it must be a list"
        ) from None
    with users_code(reference):  # it may be a generator
        sets = [*given]
    example, *calibration = fit_sets(name, example, sets)
    return module, example, tuple(calibration)


def fit_sets(
    name: str, example: Any, sets: Sequence[Any], kind: str = "calibration set"
) -> list[Inputs]:
    """Return the example and the input sets as tuples of tensors. ``name`` is the file or function
    that provides them, for error messages. Raises UsageError if a set contains anything but
    non-empty dense tensors, or if its shapes or dtypes differ from the example's."""
    as_tuples = [_read_inputs(name, "the example", example)]
    as_tuples += [_read_inputs(name, f"{kind} {n}", inputs) for n, inputs in enumerate(sets)]
    for number, inputs in enumerate(as_tuples):
        if _describe(inputs) != _describe(as_tuples[0]):
            raise UsageError(
                f"{name} has an input set whose shapes or dtypes differ from those of the example",
                why=f"the example is {_describe(as_tuples[0])}, {kind} {number - 1} is"
                f" {_describe(inputs)}",
                fix="pad or crop them to one shape: a program for QNN has fixed shapes",
            )
    return as_tuples


def _describe(inputs: Inputs) -> str:
    rows = (f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in inputs)
    return f"({', '.join(rows)})"


def _unwanted(name: str, why: str, fix: str = CONTRACT) -> UsageError:
    return UsageError(f"{name} returned an invalid result", why=why, fix=fix)


def _read_inputs(name: str, place: str, inputs: Any) -> Inputs:
    """Return one input set as a tuple of dense, row-major tensors."""
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, (tuple, list)):
        kind = type(inputs).__name__
        raise _unwanted(name, f"{place} has type {kind}; it must be a tuple of tensors")
    if not inputs:
        raise _unwanted(name, f"{place} is empty, but a QNN graph needs an input")
    return tuple(_read_input(name, f"input {n} of {place}", one) for n, one in enumerate(inputs))


def _read_input(name: str, place: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        fix = "make it a constant of the module: a program for QNN takes only tensors"
        raise _unwanted(name, f"{place} has type {type(value).__name__}; it must be a tensor", fix)
    check_tensor(name, place, value)
    if value.device.type != "cpu":
        why = f"{place} is on the device {value.device}"
        raise _unwanted(name, why, "move the module and its inputs with .to('cpu')")
    return value.detach().contiguous()


def check_tensor(name: str, place: str, tensor: Tensor) -> None:
    """Raise UsageError for a tensor that is empty or not dense, and for a dtype that HTP computes
    incorrectly or does not support."""
    if tensor.dtype not in DTYPES_OF_QNN:
        raise UsageError(
            f"{name} has a dtype that HTP does not support",
            why=f"{place} is {str(tensor.dtype).removeprefix('torch.')}",
            fix="convert the module and its inputs with .float(); the scheme sets the precision",
        )
    is_dense = tensor.layout is torch.strided and not tensor.is_nested
    if not is_dense or not tensor.numel():
        raise UsageError(
            f"{name} has a tensor that a program for QNN cannot take or return",
            why=f"{place} is {'empty' if is_dense else 'sparse or nested'}",
            fix="make it a dense tensor with at least one element",
        )


def is_users_file(file: str) -> bool:
    """Return whether a file is Python source that is neither installed nor in this project's
    ``ci``."""
    here = Path(__file__).resolve().parents[2]
    return file.endswith(".py") and not is_installed(file) and not file.startswith(f"{here}/ci/")


def find_line(node: Any) -> str:
    """Return the source line of a node, such as `` [nets/net.py:12]``, or "" if it is unknown.

    An installed file is shown without its directory, because cache keys contain this text and
    environments are in different directories.
    """
    frames = STACK_FRAME.findall(node.meta.get("stack_trace") or "")
    own = [(file, line) for file, line in frames if not is_installed(file)]
    if own:
        return f" [{name_file(Path(own[-1][0]))}:{own[-1][1]}]"
    return f" [{Path(frames[-1][0]).name}:{frames[-1][1]}]" if frames else ""
