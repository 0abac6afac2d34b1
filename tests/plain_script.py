"""Lower models with the calls that ExecuTorch documents and with nothing of this project.

The programs of ``test-emulator`` have to be equal to those of this script, byte for byte
(tests/integration/emulator/test_plain_script.py). Run as a program with QNN_SDK_ROOT and
LD_LIBRARY_PATH set: ``python -m tests.plain_script DIRECTORY MODULE:FUNCTION:SCHEME...``. FUNCTION
returns a module, example inputs and calibration samples, as in docs/guides/pytorch.md. Writes
``MODULE-FUNCTION-SCHEME.pte`` for each.
"""

from __future__ import annotations

import importlib
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    to_edge_transform_and_lower_to_qnn,
)
from executorch.exir import ExecutorchBackendConfig
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torchao.quantization.pt2e import MinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

SOC = QcomChipset.SM8650
FLOAT = "fp16"
BLOCK = 32  # input channels that share a scale in a scheme that ends with _block
Inputs = tuple[torch.Tensor, ...]


def lower(module: Any, sets: Sequence[Inputs], scheme: str) -> bytes:
    """The program of a module; ``sets`` are calibrated with, the first is exported with."""
    if scheme != FLOAT:
        module = quantize(module, sets, scheme)
    return compile_module(module, sets[0], scheme)


def compile_module(module: Any, example: Inputs, scheme: str) -> bytes:
    """The program of a module that is quantized already, except for fp16."""
    options = generate_htp_compiler_spec(use_fp16=scheme == FLOAT)
    edge = to_edge_transform_and_lower_to_qnn(
        module,
        example,
        generate_qnn_executorch_compiler_spec(soc_model=SOC, backend_options=options),
        convert_linear_to_conv2d=scheme.endswith("_block"),
        skip_mutable_buffer=True,  # a delegated buffer starts with what is in memory
    )
    signature = edge.exported_program().graph_signature
    mutated = set(signature.buffers_to_mutate.values())
    buffers = [name for name, buffer in signature.inputs_to_buffers.items() if buffer in mutated]
    passes = [InitializedMutableBufferPass(buffers)] if buffers else []
    program: bytes = edge.to_executorch(ExecutorchBackendConfig(passes=passes)).buffer
    return program


def quantize(module: Any, sets: Sequence[Inputs], scheme: str) -> Any:
    """Post-training quantization with ranges from minimum to maximum."""
    # As torch does if the path of the caller's file has "executorch" (docs/reference/emulator.md).
    exported = torch.export.export(module, sets[0], strict=True).module(check_guards=False)
    quantizer = QnnQuantizer(soc_model=SOC)
    quantizer.set_default_quant_config(
        QuantDtype[f"use_{scheme}"],
        is_conv_per_channel=True,
        is_linear_per_channel=True,
        act_observer=MinMaxObserver,
    )
    if scheme.endswith("_block"):
        quantizer.set_block_size_map(find_blocks(exported))
    prepared = prepare_pt2e(exported, quantizer)
    names = {name for name, _ in module.named_buffers()}
    state = {
        name: tensor_of_buffer.clone()
        for name, tensor_of_buffer in prepared.named_buffers()
        if name in names
    }
    for inputs in sets:
        prepared(*(tensor.clone() for tensor in inputs))
    for name, before in state.items():  # a program starts with the state that the model starts with
        prepared.get_buffer(name).copy_(before)
    return convert_pt2e(prepared)


def find_blocks(exported: torch.fx.GraphModule) -> dict[str, tuple[int, ...]]:
    """The shape of a block, by node, of linear layers and convolutions without a kernel."""
    layers = (torch.ops.aten.conv2d.default, torch.ops.aten.linear.default)
    weights = {node.name: node.args[1] for node in exported.graph.nodes if node.target in layers}
    shapes = {name: weight.meta["val"].shape for name, weight in weights.items()}
    blocks = {}
    for name, (_, channels, *kernel) in shapes.items():
        if not channels % BLOCK and all(size == 1 for size in kernel):
            blocks[name] = (1, BLOCK, *kernel)
    return blocks


def write_program(directory: str, case: str) -> None:
    """Lower one case, as MODULE:FUNCTION:SCHEME."""
    # What decides the last bits of a range: CI sets both too (docs/reference/emulator.md).
    torch.backends.mkldnn.enabled = False
    torch.set_num_threads(1)
    name, function, scheme = case.split(":")
    with torch.no_grad():
        module, example, calibration = getattr(importlib.import_module(name), function)()
        program = lower(module.eval(), [example, *calibration], scheme)
    Path(directory, f"{case.replace(':', '-')}.pte").write_bytes(program)


def main() -> None:
    """QNN numbers graphs through a process's life, so each case has a process of its own."""
    directory, *cases = sys.argv[1:]
    for case in cases:
        process = multiprocessing.get_context("fork").Process(
            target=write_program, args=(directory, case)
        )
        process.start()
        process.join()
        print(f"{case} {'ok' if process.exitcode == 0 else process.exitcode}", flush=True)


if __name__ == "__main__":
    main()
