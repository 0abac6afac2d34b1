"""Runs a .pte in this process on raw input files, with the flags of qnn_executor_runner.

``--input_list_path`` has one line an execution, raw files separated by blanks; outputs are
written as ``output_<execution>_<index>.raw`` into ``--output_folder_path``.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

# Not executorch.runtime, which is the same with three seconds of imports of the compiler.
try:
    from executorch.extension.pybindings import _C
except ImportError:  # until 1.4
    # Those of 1.2 and 1.3 name a function that torch 2.13 renamed, and call it for no program.
    sys.setdlopenflags(os.RTLD_LAZY)
    _C = importlib.import_module("executorch.extension.pybindings._portable_lib")
    sys.setdlopenflags(os.RTLD_NOW)

from ci.cases.artifact import OUTPUT, write_set
from ci.cases.run_job import DEBUG, ETDUMP, RunJob
from ci.executorch.memory import overwrite_freed_memory
from provisioning.errors import FailedError

# Its import registers them.
QUANTIZED_KERNELS = "executorch.kernels.quantized"


def run_program(job: RunJob) -> None:
    """Load the program once and execute it for every line of the input list.

    The process may run more programs; none finds what another left in memory. Raises FailedError
    for an input file that is missing or of another size.
    """
    overwrite_freed_memory()
    if job.quantizes:
        importlib.import_module(QUANTIZED_KERNELS)
    program = load_program(job)
    names = [one.name for one in job.methods] or ["forward"]
    methods = [program.load_method(name) for name in names]
    metas = [list_inputs(method) for method in methods]
    lines = Path(job.input_list).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        files = [Path(word) for word in line.split()]
        wanted = sum(map(len, metas))
        if len(files) != wanted:
            raise FailedError(f"line {number} names {len(files)} inputs, {wanted} are wanted")
        outputs: list[torch.Tensor] = []
        for method, own in zip(methods, metas, strict=True):
            given = [read_input(file, meta) for file, meta in zip(files, own, strict=False)]
            files = files[len(own) :]
            # A None or a number among the outputs comes as itself, and needs no proof. The next
            # method may write where this one did.
            outputs += [one.clone() for one in method(given) if isinstance(one, torch.Tensor)]
        write_set(Path(job.outputs), number, outputs, OUTPUT)
    if job.trace:
        place = Path(job.trace)
        program.write_etdump_result_to_file(str(place / ETDUMP), str(place / DEBUG))


def load_program(job: RunJob) -> Any:
    """The program, which keeps a trace where one is wanted."""
    if not job.trace:
        return _C._load_program(job.model)
    return _C._load_program(job.model, enable_etdump=True, debug_buffer_size=job.debug_bytes)


def list_inputs(method: Any) -> list[Any]:
    """What each input of a method is."""
    meta = method.method_meta()
    return [meta.input_tensor_meta(index) for index in range(meta.num_inputs())]


# ExecuTorch gives ScalarType by its number in torch's own order.
SCALAR_TYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
}


def read_input(file: Path, meta: Any) -> torch.Tensor:
    """A tensor of the dtype and shape that the program wants. Raises FailedError."""
    dtype, shape = SCALAR_TYPES[int(meta.dtype())], tuple(meta.sizes())
    wanted = int(np.prod(shape)) * dtype.itemsize
    data = bytearray(file.read_bytes())
    if len(data) != wanted:
        raise FailedError(f"{file.name} has {len(data)} bytes, {wanted} are wanted")
    return torch.frombuffer(data, dtype=dtype).reshape(shape)
