"""Calls a user's ``path/to/file.py:function``. Exceptions in it are reported with file and line.
This module does not import torch."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from ci.facts.finding import NOWHERE, Origin, Place, PlacedError
from ci.models.source_lines import is_installed, name_file
from ci.models.user_models import is_suite, lacks_function
from provisioning.console.command import OWN_PACKAGES, explain_limit, user_path
from provisioning.documents import read_bytes
from provisioning.errors import QnnCiError, UsageError, describe_exception

CONTRACT = (
    "a factory takes no arguments, and returns (module, example_inputs) or (module, example_inputs,"
    " calibration)"
)
# Packages that are installed by another name than they are imported by.
PACKAGES = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
OWN_CODE = f"{Path(__file__).resolve().parents[1]}/"  # of this project's ``ci``
EXPORTER = re.compile(r"/(?:torch|torchao|executorch)/")
MOST_NAME_BYTES = 4096
STACK_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class TraceError(Exception):
    """torch.export cannot trace a model."""


_call_files: list[Path] = []  # to which calls of user's code are noted, the last one in use


@contextmanager
def calls_noted(path: Path) -> Iterator[None]:
    """Write to ``path`` which function of the user is running, during the block. If the process
    then hangs or dies, read_call names the function."""
    _call_files.append(path)
    try:
        yield
    finally:
        _call_files.pop()


@contextmanager
def _call_noted(reference: str) -> Iterator[None]:
    path = _call_files[-1] if _call_files else None
    with suppress(OSError):
        if path:
            path.write_text(str(user_path(reference)), encoding="utf-8")
    yield
    with suppress(OSError):  # not after an exception, which names the function itself
        if path:
            path.write_text("", encoding="utf-8")


def read_call(path: Path) -> str:
    """Return the user's function that was running when a process ended, such as
    ``/home/me/data.py:samples``, or "" if none was."""
    with suppress(OSError, UnicodeDecodeError):
        return read_bytes(path, MOST_NAME_BYTES).decode("utf-8")
    return ""


def name_call(reference: str) -> str:
    """Return how messages name what read_call returned: ``your function data.py:samples``."""
    return f"your function {Path(reference).name}"


@contextmanager
def users_code(reference: str) -> Iterator[None]:
    """Run the block, which imports and calls a user's file, in the directory where the command was
    started. Exceptions of the user's code become FailedError. Afterwards, Python's filters of
    warnings, numpy's handling of errors, stdout and stderr are as before, because ExecuTorch warns
    and prints. Call this only in a process that has loaded no other model of the user."""
    import numpy as np  # verbs that only read files work without it

    with (
        blame_model(reference),
        _call_noted(reference),
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
            called = load_function(reference, contract, *words)
            if hasattr(called, "forward") and not (words or inspect.isclass(called)):
                problem = f"{Path(reference).name} is a module, not a function"
                raise UsageError(problem, fix=contract)
            return called(*words)
    suite = importlib.import_module(f"ci.models.suite.{name}")
    make_case = getattr(suite, function or "make_case", None)
    if make_case is None:
        raise UsageError(f"the suite's model {name} has no function {function!r}", fix=contract)
    return make_case(*words)


def load_function(reference: str, contract: str = CONTRACT, *words: Any) -> Callable[..., Any]:
    """Return the function in ``file.py:function``; the file must exist. Raises UsageError if it
    does not have the function or if the function does not take the arguments ``words``, and any
    exception that importing the file raises."""
    file, _, attribute = reference.rpartition(":")
    path = Path(file).resolve()
    module = import_file(path)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise lacks_function(path, attribute, list_callables(module))
    with suppress(ValueError):  # a function written in C may have no signature
        try:
            inspect.signature(function).bind(*words)
        except TypeError as error:
            raise UsageError(f"{Path(reference).name}: {error}", fix=contract) from error
    return cast("Callable[..., Any]", function)


def list_callables(module: ModuleType) -> list[str]:
    """Return the names of the functions that a module defines, without private ones."""
    names = []
    for name, value in vars(module).items():
        is_own = inspect.isfunction(value) and value.__module__ == module.__name__
        if is_own and not name.startswith("_"):
            names.append(name)
    return names


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
    # Python puts a script's directory first, too, so files next to the model can be imported.
    sys.path[:0] = list(dict.fromkeys([str(path.parent), str(top)]))
    if packages:
        importlib.import_module(".".join(packages))
    spec = importlib.util.spec_from_file_location(
        ".".join([*packages, path.stem]) if packages else f"model_{path.stem}", path
    )
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    # torch.export and ExecuTorch look up a model's functions here.
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
        root = _find_root(error)
        if isinstance(root, ImportError) and (limit := explain_limit(root)):
            raise limit from error
        frames = [*list_frames(error)]
        problem = f"{Path(reference).name} raised {describe_exception(error)}{doing}"
        reasons = [f"{file}, line {line}, in {name}" for file, line, name in frames]
        if root is not error:
            reasons.append(f"caused by {describe_exception(root)}")
        failure = PlacedError(problem, why="; ".join(reasons), fix=_advise(root))
        failure.places = list_places(error)
        raise failure from error


def _find_root(error: BaseException) -> BaseException:
    """Return the first exception of a chain, as in ``raise error from cause``."""
    chain = [error]
    while (cause := chain[-1].__cause__) and cause not in chain:
        chain.append(cause)
    return chain[-1]


def list_places(error: BaseException) -> tuple[Place, ...]:
    """Return the innermost line of the user's code in which an exception was raised, if any."""
    return tuple(Place(file=file, line=line) for file, line, _ in list_frames(error))


def list_frames(error: BaseException) -> Iterator[tuple[str, int, str]]:
    """Yield the file, the line and the function of the innermost frame in the user's code, or
    nothing if the exception was raised elsewhere."""
    user_frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)
    ]
    if isinstance(error, SyntaxError) and error.filename:  # no frame is in a file with this error
        user_frames = [
            traceback.FrameSummary(error.filename, error.lineno, "<module>", lookup_line=False)
        ]
    for frame in user_frames[-1:]:
        yield name_file(Path(frame.filename)), max(frame.lineno or 1, 1), frame.name


def _is_users(file: str) -> bool:
    return file.endswith(".py") and not is_installed(file) and not file.startswith(OWN_CODE)


def _advise(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return (
            f"relative paths start at {user_path('.').resolve()}, where the command was"
            " started; Path(__file__).parent is the model's directory"
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return (
            f"put it next to the model, add its folder to PYTHONPATH, or install its package, such"
            f" as with {sys.executable} -m pip install {PACKAGES.get(package, package)}"
        )
    if isinstance(error, ImportError) and "relative import" in describe_exception(error):
        return "put an __init__.py next to the file, or import without the leading dot"
    return ""


@contextmanager
def working_directory(directory: Path) -> Iterator[None]:
    """Run the block in a directory, and return to the previous one afterwards."""
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


def find_origin(node: Any) -> Origin:
    """Return where a node of torch comes from: its line in the user's code, or else its module,
    such as ``body.4`` of an nn.Sequential, or else its line in an installed package."""
    traceback = node.meta.get("stack_trace") or ""
    is_own = any(not is_installed(file) for file, _ in _list_frames(traceback))
    module = "" if is_own else name_module(node)
    return Origin(module=module) if module else read_origin(traceback)


def name_module(node: Any) -> str:
    """Return the path of the innermost module that calls a node of torch, such as ``body.4``, or ""
    for the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    return next((str(path) for path, *_ in reversed([*stack.values()]) if path), "")


def read_origin(traceback: str) -> Origin:
    """Return the innermost line of a torch traceback that belongs to the user's code, or else to an
    installed package other than torch and ExecuTorch. The result is empty if there is none.

    An installed file is named without its directory, because cache keys contain this name and
    environments are in different directories.
    """
    frames = _list_frames(traceback)
    user_frames = [(file, line) for file, line in frames if not is_installed(file)]
    if user_frames:
        file, line = user_frames[-1]
        return Origin(file=name_file(Path(file)), line=int(line))
    if frames:
        file, line = frames[-1]
        return Origin(file=Path(file).name, line=int(line))
    return NOWHERE


def _list_frames(traceback: str) -> list[tuple[str, str]]:
    """Return the file and the line of each frame that is not torch's or ExecuTorch's."""
    return [
        (file, line)
        for file, line in STACK_FRAME.findall(traceback)
        if file[:1] != "<" and not (is_installed(file) and EXPORTER.search(file))
    ]
