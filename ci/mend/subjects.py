"""Writes what a diagnosis runs as separate models: the whole model, or a part of its float form
with the values that the model computes in front of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from ci.audit.localise_graph import Division
from ci.audit.localise_search import Cut
from ci.cases.spec import CaseSpec
from ci.diagnosis.experiments import SHRINK, Operator, RunPart
from ci.models.schemes import ONNX
from provisioning.files import write_whole

T = TypeVar("T")
MOST_SETS = 12  # of a part: those that are judged, and those for calibration
PART, FUNCTION = "part", "make_part"
INPUTS, CALIBRATION = "inputs.npz", "calibration.npz"  # the samples of a whole model
SOURCE = '''\
"""A part of a model that `qnn-ci` cut out to find the cause of a red verdict. `make_part` returns
it with its inputs."""

from pathlib import Path

import torch


def make_part():
    path = Path(__file__).with_suffix(".pt")
    module, samples = torch.load(path, weights_only=False)
    return module, samples[0], samples[1:]
'''


@dataclass(frozen=True)
class Subjects:
    """Divides the float model of a case. All methods run in a worker. ``is_onnx`` is whether the
    lane compiles ONNX files, and ``work`` a directory of the case."""

    spec: CaseSpec
    is_onnx: bool
    work: Path

    def write_model(self) -> str:
        """Write the float model as an .onnx file, if it is not a file already, and return the
        reference to the model. Its samples are written to INPUTS and CALIBRATION: next to the file,
        a sample that is judged, too, would be left out of the calibration, and a model that is
        calibrated with others decides otherwise."""
        if not self.is_onnx or self.spec.is_file:
            return self.spec.reference
        import numpy as np

        from ci.onnx.compile import load_source, write_float

        self.work.mkdir(parents=True, exist_ok=True)
        source, path = load_source(self.spec), self.work / f"model{ONNX.suffix}"
        write_float(source, path)
        for name, sets in ((INPUTS, source.evaluation), (CALIBRATION, source.calibration)):
            np.savez(self.work / name, *map(np.stack, zip(*sets, strict=True)))
        return str(path)

    def list_operators(self) -> list[Operator]:
        """Return the operators of the float model, in order."""
        division = self.divide()
        operators = []
        for name, node in division.operators.items():
            operators.append(
                Operator(
                    name=name,
                    kind=node.label.partition(" ")[0],
                    inputs=tuple(division.find_inputs(name)),
                    node=division.names.get(name, ""),
                    line=str(node.place) if node.place.line else "",
                )
            )
        return operators

    def divide(self) -> Division:
        """Return the division of the float model."""
        if self.is_onnx:
            from ci.audit.localise_onnx import make_division
            from ci.onnx.compile import load_source, write_float

            self.work.mkdir(parents=True, exist_ok=True)
            source = load_source(self.spec)
            plain = write_float(source, self.work / "float.onnx", self.spec.source.shapes)
            sets = (*source.evaluation, *source.calibration)[:MOST_SETS]
            return make_division(plain, plain, sets, self.work)
        import torch

        from ci.audit import localise_torch
        from ci.models.model import load_digested

        model, _ = load_digested(self.spec.reference, self.spec.source)
        with torch.no_grad():
            program = torch.export.export(model.module, model.evaluation[0], strict=True)
        plain_module: Any = program.module(check_guards=False)
        localise_torch.require_stateless(plain_module)
        judged = (*model.evaluation, *model.calibration)[:MOST_SETS]
        return localise_torch.make_division(plain_module, plain_module, judged)

    def write_part(self, form: RunPart, folder: Path) -> str:
        """Write a part in the form of an experiment with its inputs to a folder, and return its
        reference. No operators stand for all of them. Raises ValueError if there is no such
        form."""
        division, operators, returns_all = self.divide(), form.part, form.returns_all
        names = [name for name in division.operators if name in {*operators} or not operators]
        read_inside = {read for name in names for read in division.find_inputs(name)}
        last = [
            name
            for name in names
            if name in division.outputs or is_read_outside(division, name, names)
        ]
        last = last or [name for name in names if name not in read_inside]
        outputs = [*last, *(name for name in names if returns_all and name not in last)]
        cut = Cut(tuple(names), tuple(outputs))
        folder.mkdir(parents=True, exist_ok=True)
        if self.is_onnx:
            return self._write_onnx(division, cut, folder, form)
        return self._write_torch(division, cut, folder, form)

    @staticmethod
    def _write_onnx(division: Division, cut: Cut, folder: Path, form: RunPart) -> str:
        import numpy as np

        from ci.audit.localise_onnx import write_file
        from ci.mend.onnx_files import change_form

        path = folder / f"{PART}{ONNX.suffix}"
        sets = [*write_file(division, cut, path).evaluation]
        if form.shrunk:
            sets = [tuple(map(shrink, inputs)) for inputs in sets]
        if form.doubled:
            sets = [tuple(map(np.concatenate, zip(*pair, strict=True))) for pair in pair_up(sets)]
        if form.doubled or form.decomposed:
            change_form(path, form.decomposed, sets[0])
        np.savez(path.with_suffix(".npz"), *map(np.stack, zip(*sets, strict=True)))
        return str(path)

    @staticmethod
    def _write_torch(division: Division, cut: Cut, folder: Path, form: RunPart) -> str:
        import torch

        from ci.audit.localise_torch import write_module
        from ci.graphs.torch_part import decompose

        module, sets = write_module(division, cut)
        if form.decomposed:
            module = decompose(module, sets[0], form.decomposed)
        if form.shrunk:
            sets = [tuple(map(shrink, inputs)) for inputs in sets]
        if form.doubled:
            sets = [tuple(map(torch.cat, zip(*pair, strict=True))) for pair in pair_up(sets)]
            module(*sets[0])  # a shape that is written into the part fits no other size
        path = folder / f"{PART}.py"
        write_whole(path, SOURCE.encode())
        torch.save((module, sets), path.with_suffix(".pt"))
        return f"{path}:{FUNCTION}"


def shrink(tensor: T) -> T:
    """Return numbers of a torch tensor or an array divided by SHRINK; others, such as indices, as
    they are."""
    values: Any = tensor
    is_float = "float" in str(values.dtype)
    return cast(T, values / SHRINK) if is_float else tensor


def pair_up(sets: Sequence[T]) -> list[tuple[T, T]]:
    """Return each sample with the next one."""
    return [*zip(sets, (*sets[1:], sets[0]), strict=True)]


def is_read_outside(division: Division, name: str, names: Sequence[str]) -> bool:
    """Return whether an operator outside of a part reads a result of it."""
    return any(
        name in division.find_inputs(reader) for reader in division.operators if reader not in names
    )
