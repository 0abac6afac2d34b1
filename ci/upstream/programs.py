"""Runs the programs of upstream's tests on the emulator with ExecuTorch's Python runtime instead of
qnn_executor_runner.

Upstream's tests start an executable for each program. The executable that ``make_runner`` writes
passes its arguments to a process that was forked before the first test. That process has loaded
torch but not QNN's compiler, and forks again for each program. The executable prints the output or
the error to stdout, and exits with 0, FAILED or, if the fork dies, DEAD.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from ci.cases.forked import run_forked
from ci.executorch import internals
from ci.executorch.runtime import SCALAR_TYPES, convert_input, overwrite_freed_memory
from ci.models.tensors import read_array
from provisioning.console.process import end_with_parent
from provisioning.documents import read_text
from provisioning.errors import FailedError, QnnCiError
from provisioning.quoting import script_word

ADDRESS = "QNN_CI_EMULATOR"  # the abstract socket address (unix(7)) for calls
# As qnn_executor_runner: it exits with 1 for a truncated program, and with 134 if it aborts, such
# as for a missing library.
FAILED, DEAD = 1, 134
LACKING = "this runner has no"  # how the error about an unknown flag starts
CLIENT = Path(__file__).with_name("templates") / "client.txt"
# The path where tests/rework expects the runner. The other suites use QNN_EXECUTOR_RUNNER.
RUNNER = "build-x86/examples/qualcomm/executor_runner/qnn_executor_runner"


def make_runner(directory: Path) -> None:
    """Write the executable into ``directory``, and set QNN_EXECUTOR_RUNNER to it."""
    client = directory / RUNNER
    client.parent.mkdir(parents=True, exist_ok=True)
    text = read_text(CLIENT).format(python=script_word(sys.executable), address=ADDRESS)
    client.write_text(text, encoding="utf-8")
    client.chmod(0o755)
    os.environ["QNN_EXECUTOR_RUNNER"] = str(client)


def serve_programs(timeout_s: float = 0) -> None:
    """Start the process that serves the executable's calls. It ends with this process. A program
    that has not ended after ``timeout_s`` seconds is killed, so that it does not keep the next one
    waiting; 0 for no limit."""
    address = f"qnn-ci-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{address}")
    listener.listen()
    parent = os.getpid()
    if os.fork() == 0:
        end_with_parent(parent)
        while True:
            line, _ = listener.accept()
            with line, line.makefile("rw") as stream:
                place, *words = json.loads(stream.read())
                call = partial(run_within, timeout_s, Path(place), words)
                try:
                    answer = 0, run_forked(call, "running the program")
                except QnnCiError as error:
                    died = "without a result" in str(error)
                    answer = DEAD if died else FAILED, f"E {error}"
                json.dump(answer, stream)
    listener.close()
    os.environ[ADDRESS] = address


def run_within(timeout_s: float, place: Path, words: Sequence[str]) -> str:
    """Do as run_call, but kill this process if it has not ended after ``timeout_s`` seconds."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, in whatever library it waits
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    return run_call(place, words)


def run_call(place: Path, words: Sequence[str]) -> str:
    """Run a program as qnn_executor_runner would with the arguments ``words`` in the directory
    ``place``, and return a message. Raises FailedError for a sample with the wrong number of
    inputs, or for an unknown argument."""
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    for name in ("model_path", "input_list_path", "output_folder_path"):
        parser.add_argument(f"--{name}", type=place.joinpath, required=True)
    parser.add_argument("--method_index", type=int, default=0)
    args, unknown = parser.parse_known_args(list(words))
    if unknown:
        raise FailedError(f"{LACKING} {' '.join(unknown)[:100]}")
    overwrite_freed_memory()
    _ = internals.quantized_kernels
    program = internals.pybindings._load_program(str(args.model_path))
    method = program.load_method(program.get_method_name(args.method_index))
    meta = method.method_meta()
    metas = [meta.input_tensor_meta(index) for index in range(meta.num_inputs())]
    lines = [line for line in read_text(args.input_list_path).splitlines() if line.strip()]
    for number, line in enumerate(lines or [""]):
        files = [args.input_list_path.parent / name for name in line.split()]
        if len(files) != len(metas):
            raise FailedError(
                f"sample {number} has the wrong number of inputs:"
                f" {len(files)} instead of {len(metas)}"
            )
        inputs = []
        for file, meta in zip(files, metas, strict=True):
            dtype = str(SCALAR_TYPES[int(meta.dtype())]).removeprefix("torch.")
            inputs.append(convert_input(read_array(file, dtype), meta))
        outputs = [value for value in method(inputs) if isinstance(value, torch.Tensor)]
        for index, tensor in enumerate(outputs):
            # The bytes in their order in memory, as the C++ runner writes them.
            flat = tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())
            path = args.output_folder_path / f"output_{number}_{index}.raw"
            path.write_bytes(flat.contiguous().view(torch.uint8).numpy().tobytes())
    return "1 sample was run" if len(lines) == 1 else f"{len(lines)} samples were run"
