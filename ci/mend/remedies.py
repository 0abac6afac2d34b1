"""Measures what the known faults of a quantized model cost: the accuracy of the quantized model
with the rewrites that cure them. Neither QNN nor a program is involved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ci.cases.spec import CaseSpec
from ci.facts.known_fault import KnownFault
from ci.mend.mixture_search import measure_sqnr
from ci.mend.precision import Rewritten
from ci.mend.table import RewriteLane, read_rewrites

if TYPE_CHECKING:
    from ci.models.model import Model


@dataclass(frozen=True)
class TorchRemedyTrial(Rewritten):
    """A job that returns the SQNR in dB of the quantized model with those of the rewrites that
    apply, on the judged samples. Raises ValueError if none does."""

    soc: str

    def load(self) -> Model:
        """Load a PyTorch model, and rewrite it."""
        from ci.mend.rewrite import export_module, rewrite_graph
        from ci.models.model import load_digested

        model, _ = load_digested(self.reference, self.source)
        exported = export_module(model.module, model.evaluation[0])
        graph, changes = rewrite_graph(exported, self.rewrites)
        if not any(changes):
            raise ValueError(NO_REMEDY)
        return replace(model, module=graph)

    def __call__(self) -> float:
        from ci.executorch.quantize import make_quantizer, quantize_method
        from ci.mend.torch_mixtures import to_arrays
        from ci.models.eager import keep_state, run_eager

        model = self.load()
        choices = self.source.choices
        quantized = quantize_method(model, self.scheme, choices, make_quantizer(self.soc))
        with keep_state(quantized):
            outputs = run_eager(quantized, model.evaluation)
        return measure_sqnr(to_arrays(model.reference), to_arrays(outputs))


@dataclass(frozen=True)
class OnnxRemedyTrial:
    """The same for a model of the ONNX lane, which ONNX Runtime quantizes."""

    spec: CaseSpec
    rewrites: tuple[str, ...]

    def __call__(self) -> float:
        import onnx

        from ci.mend.onnx_files import OnnxFile
        from ci.onnx.compile import load_source, run_reference, write_float, write_quantized

        source, shapes = load_source(self.spec), self.spec.source.shapes
        with TemporaryDirectory() as scratch:
            original = write_float(source, Path(scratch, "float.onnx"), shapes)
            exact_outputs = run_reference(original, source.evaluation)
            rewritten, changes = OnnxFile(original, shapes).rewrite(self.rewrites)
            if not any(changes):
                raise ValueError(NO_REMEDY)
            cured, quantized = Path(scratch, "cured.onnx"), Path(scratch, "quantized.onnx")
            onnx.save(rewritten, cured)
            write_quantized(source, cured, quantized, self.spec)
            quantized_outputs = run_reference(quantized, source.evaluation)
        return measure_sqnr(exact_outputs, quantized_outputs)


NO_REMEDY = "no remedy applies to the model"


# A fault whose remedy makes the quantized model no better is not the cause: a RoBERTa in u8 was put
# down to its mask, but has 7.0 dB with it, and 7.1 dB with a mask of -30.
def make_torch_trial(
    spec: CaseSpec, faults: Sequence[KnownFault], *, approximate: bool = False
) -> Callable[[], float] | None:
    """Return the job that measures a PyTorch model with the rewrites that cure known faults, or
    None if there are none. ``approximate`` also allows those that change the function."""
    rewrites = list_cures(faults, "torch", approximate=approximate)
    if not rewrites:
        return None
    return TorchRemedyTrial(spec.reference, spec.source, rewrites, spec.scheme.base, spec.soc)


def make_onnx_trial(
    spec: CaseSpec, faults: Sequence[KnownFault], *, approximate: bool = False
) -> Callable[[], float] | None:
    """The same for a model of the ONNX lane."""
    rewrites = list_cures(faults, "onnx", approximate=approximate)
    return OnnxRemedyTrial(spec, rewrites) if rewrites else None


def list_cures(
    faults: Sequence[KnownFault], lane: RewriteLane, *, approximate: bool = False
) -> tuple[str, ...]:
    """Return the rewrites of a lane that cure known faults and keep the function, or those that
    change it, too, if ``approximate``."""
    fault_names = {fault.fault for fault in faults}
    cures = []
    for row in read_rewrites(lane):
        is_allowed = approximate or not row.approximate
        if is_allowed and not fault_names.isdisjoint(row.cures):
            cures.append(row.name)
    return tuple(cures)
