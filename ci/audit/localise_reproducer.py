"""Writes a part of a model as a Python file that lowers the part, runs it on the HTP emulator, and
compares its outputs with those of eager mode. The file imports nothing from this project. It needs
the .pt file next to it, with weights and inputs, and the variables of ``qnn-ci env``."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from string import Template

from ci.audit.localise_search import Located
from ci.cases.spec import CaseSpec
from provisioning.console.caller import own_command
from provisioning.documents import read_text
from provisioning.files import write_whole
from provisioning.quoting import docstring_text, shell_word

TEMPLATE = Path(__file__).resolve().parent / "templates" / "reproducer.txt"
MARGIN_DB = 6.0


def write_reproducer(file: Path, forward: str, spec: CaseSpec, located: Located) -> None:
    """Write the Python file for the smallest part that is wrong. ``forward`` is the code of its
    ``forward`` method, as returned by write_code."""
    worst = max(located.part_outputs, key=lambda output: output.excess_db)
    rows = [docstring_text(f"    {operator.name}: {operator}") for operator in located.part]
    text = Template(read_text(TEMPLATE)).substitute(
        title=f"QNN reaches {worst.reached_db:.1f} dB instead of {worst.predicted_db:.1f} dB.",
        model=docstring_text(spec.model),
        scheme=spec.scheme.value,
        soc=spec.soc,
        torch=version("torch"),
        executorch=version("executorch"),
        name=docstring_text(shell_word(file.name)),
        tensors=docstring_text(file.with_suffix(".pt").name),
        operators="\n".join(rows),
        variables=docstring_text(own_command("env", "emulator", "--shell")),
        forward=forward + "\n",
        predicted=repr([round(output.predicted_db, 1) for output in located.part_outputs]),
        fp16=not spec.scheme.quantized,
        convolution=spec.scheme.recipe.linear_as_convolution,
        margin=f"{MARGIN_DB:g}",
    )
    write_whole(file, text.encode())
