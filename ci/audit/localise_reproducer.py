"""Writes a part of a model as a Python file that lowers the part, runs it on the HTP emulator, and
compares its outputs with those of eager mode. The file imports nothing from this project. It needs
the .pt file next to it, with weights and inputs, and the variables of ``qnn-ci env``."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from string import Template

from ci.audit.localise_search import Located
from ci.cases.spec import CaseSpec
from provisioning.files import write_whole

TEMPLATE = Template('''\
"""$title

Written by qnn-ci localise for $model, $scheme, $soc; needs torch $torch and executorch $executorch.

    eval "$$(qnn-ci env emulator --shell)"
    python $name

It reads weights and inputs from $tensors, lowers the model below with ExecuTorch's documented
call, runs it on the HTP emulator, and prints the SQNR of each output against the same model in
eager mode. It exits with 1 as long as an output is more than $margin dB below the prediction.
Operators:
$operators
"""

import sys
from math import inf, nan  # noqa: F401
from pathlib import Path

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    to_edge_transform_and_lower_to_qnn,
)
from executorch.extension.pybindings import _C
from torch import device  # noqa: F401
from torchao.quantization.pt2e import quantize_pt2e  # noqa: F401 - registers the roundings

PREDICTED_DB = $predicted  # per output, with rounding errors alone


class Model(torch.nn.Module):
    def __init__(self, weights):
        super().__init__()
        for name, tensor in weights.items():
            self.register_buffer(name, tensor)

$forward

def measure_db(wanted, given):
    wanted, given = wanted.double(), given.double()
    noise = (wanted - given).square().sum()
    return float(10 * torch.log10(wanted.square().sum() / noise)) if noise else inf


def main():
    held = torch.load(Path(__file__).with_suffix(".pt"), weights_only=True)
    model, sets = Model(held["weights"]).eval(), held["inputs"]
    with torch.no_grad():
        wanted = [model(*inputs) for inputs in sets]
        options = generate_htp_compiler_spec(use_fp16=$fp16)
        edge = to_edge_transform_and_lower_to_qnn(
            model,
            sets[0],
            generate_qnn_executorch_compiler_spec(QcomChipset.$soc, options),
            convert_linear_to_conv2d=$convolution,
        )
    buffer = edge.to_executorch().buffer  # the program reads it for as long as it runs
    program = _C._load_for_executorch_from_buffer(buffer)
    given = [program.run_method("forward", inputs) for inputs in sets]
    wrong = False
    for index, predicted in enumerate(PREDICTED_DB):
        reached = min(measure_db(a[index], b[index]) for a, b in zip(wanted, given))
        wrong = wrong or reached < predicted - $margin
        print(f"output {index}: {reached:.1f} dB, {predicted:.1f} dB predicted")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
''')
MARGIN_DB = 6.0


def write_reproducer(file: Path, forward: str, spec: CaseSpec, found: Located) -> None:
    """Write the Python file for the smallest part that is wrong. ``forward`` is the code of its
    ``forward`` method, as returned by Graphs.write."""
    worst = max(found.part_outputs, key=lambda one: one.excess_db)
    rows = [f"    {one.name}: {one}" for one in found.part]
    text = TEMPLATE.substitute(
        title=f"QNN reaches {worst.reached_db:.1f} dB instead of {worst.predicted_db:.1f} dB.",
        model=spec.model,
        scheme=spec.scheme.value,
        soc=spec.soc,
        torch=version("torch"),
        executorch=version("executorch"),
        name=file.name,
        tensors=file.with_suffix(".pt").name,
        operators="\n".join(rows),
        forward=forward + "\n",
        predicted=repr([round(output.predicted_db, 1) for output in found.part_outputs]),
        fp16=not spec.scheme.quantized,
        convolution=spec.scheme.recipe.linear_as_convolution,
        margin=f"{MARGIN_DB:g}",
    )
    write_whole(file, text.encode())
