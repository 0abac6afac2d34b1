"""Replaces qnn_executor_runner: runs programs on the emulator with ExecuTorch's Python runtime.

Upstream's tests start an executable for each program. The executable that ``write_client`` writes
passes its arguments to a process that was forked before the test began. That process has loaded
torch but not QNN's compiler, and forks again for each program. The executable prints the output or
the error to stdout, and exits with 0, FAILED or, if the fork dies, DEAD.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ci.cases.forked import run_forked
from ci.executorch import internals
from ci.executorch.runtime import SCALAR_TYPES, convert_input, overwrite_freed_memory
from provisioning.console.process import end_with_parent
from provisioning.documents import read_text
from provisioning.errors import FailedError, QnnCiError

ADDRESS = "QNN_CI_EMULATOR"  # the abstract socket address (unix(7)) for calls

FAILED, DEAD = 1, 134
LACKING = "lacking.txt"  # in a test's directory: the flags of its calls that this runner lacks
CLIENT = """#!{python} -SE
import json, os, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect("\\0" + os.environ["{address}"])
line.sendall(json.dumps([os.getcwd(), *sys.argv[1:]]).encode())
line.shutdown(socket.SHUT_WR)
code, output = json.load(line.makefile())
print(output)
sys.exit(code)
"""


def write_client(path: Path) -> None:
    """Write to ``path`` the executable that upstream's tests start for each program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CLIENT.format(python=sys.executable, address=ADDRESS), encoding="utf-8")
    path.chmod(0o755)


@contextmanager
def serve_programs(keep: Path) -> Iterator[None]:
    """Run a process that serves the executable's calls until the block ends. It copies each program
    to the directory ``keep``."""
    address = f"qnn-ci-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{address}")
    listener.listen()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        end_with_parent(parent)
        _answer_calls(listener, keep)
    listener.close()
    os.environ[ADDRESS] = address
    try:
        yield
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def _answer_calls(listener: socket.socket, keep: Path) -> None:
    for number in range(sys.maxsize):
        line, _ = listener.accept()
        with line, line.makefile("rw") as stream:
            place, *words = json.loads(stream.read())
            answer = answer_call(Path(place), words, keep / f"{number}.pte")
            json.dump(answer, stream)


def answer_call(place: Path, words: Sequence[str], keep: Path) -> tuple[int, str]:
    """Run a program in a fork, because the executable was called with the arguments ``words`` in
    the directory ``place``. Return the exit code and the output for the executable. ``keep`` is the
    path for a copy of the program."""
    try:
        return 0, run_forked(lambda: run_call(place, words, keep), "running the program")
    except QnnCiError as error:
        died = "without a result" in str(error)
        return DEAD if died else FAILED, f"E {error}"


def run_call(place: Path, words: Sequence[str], keep: Path) -> str:
    """Run a program as qnn_executor_runner would with the arguments ``words``, and return a
    message. Raises FailedError for an input set with the wrong number of inputs, or for an unknown
    argument. The file LACKING next to ``keep`` names such arguments."""
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    for name in ("model_path", "input_list_path", "output_folder_path"):
        parser.add_argument(f"--{name}", type=place.joinpath, required=True)
    parser.add_argument("--method_index", type=int, default=0)
    args, unknown = parser.parse_known_args(list(words))
    keep.parent.mkdir(parents=True, exist_ok=True)
    if unknown:
        message = f"this runner has no {' '.join(unknown)[:100]}"
        (keep.parent / LACKING).write_text(message, encoding="utf-8")
        raise FailedError(message)
    shutil.copyfile(args.model_path, keep)
    overwrite_freed_memory()
    _ = internals.quantized_kernels
    program = internals.pybindings._load_program(str(args.model_path))
    method = program.load_method(program.get_method_name(args.method_index))
    meta = method.method_meta()
    metas = [meta.input_tensor_meta(index) for index in range(meta.num_inputs())]
    lines = [one for one in read_text(args.input_list_path).splitlines() if one.strip()]
    for number, line in enumerate(lines or [""]):
        files = [args.input_list_path.parent / name for name in line.split()]
        if len(files) != len(metas):
            raise FailedError(
                f"input set {number} has the wrong number of inputs:"
                f" {len(files)} instead of {len(metas)}"
            )
        given = [convert_input(_read(*pair), pair[1]) for pair in zip(files, metas, strict=True)]
        made = [one for one in method(given) if isinstance(one, torch.Tensor)]
        for index, tensor in enumerate(made):
            path = args.output_folder_path / f"output_{number}_{index}.raw"
            path.write_bytes(_dump(tensor))
    return f"{len(lines)} input sets were run"


def _read(path: Path, meta: Any) -> Any:
    return np.fromfile(path, str(SCALAR_TYPES[int(meta.dtype())]).removeprefix("torch."))


def _dump(tensor: torch.Tensor) -> bytes:
    """Return a tensor's bytes in their order in memory, as the C++ runner writes them."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    data: bytes = flat.contiguous().view(torch.uint8).numpy().tobytes()
    return data
