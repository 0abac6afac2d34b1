"""Finds which operators of a model need another precision: those that QNN computes wrongly, or
those that add most noise. Each lane measures a mixture by its quantized model on the calibration
samples; the sets that are judged are not used, except for a .tflite file, which has no others."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ci.cases.spec import CaseSpec
from ci.mend.mixture_search import Mixable, OverError, Selector, Unit, choose_mixtures
from ci.models.lowering_options import Choices, Observer, Part
from ci.models.schemes import LITERT, Scheme
from ci.models.user_models import Source

if TYPE_CHECKING:
    from ci.analysis.steps import Step
    from ci.mend.litert_mixtures import MixableLitert
    from ci.models.model import Model


@dataclass(frozen=True)
class Rewritten:
    """A model with rewrites, in a scheme."""

    reference: str
    source: Source
    rewrites: tuple[str, ...]
    scheme: Scheme

    @property
    def is_onnx(self) -> bool:
        """Whether ONNX Runtime quantizes the model."""
        return bool(self.scheme.recipe.activations)

    @property
    def is_litert(self) -> bool:
        """Whether the model is a .tflite file, whose quantization stays."""
        return self.reference.endswith(LITERT.suffix)

    def open_quantized(self) -> MixableLitert:
        """Read a quantized .tflite file and its float model."""
        from ci.mend.litert_mixtures import open_quantized

        # Neither the name of the case nor its SoC matters for a file.
        return open_quantized(CaseSpec(self.reference, self.scheme, "", self.source), self.rewrites)

    def load(self) -> Model:
        """Load a PyTorch model, and rewrite it."""
        from ci.mend.rewrite import rewrite_module
        from ci.models.model import load_digested

        model, _ = load_digested(self.reference, self.source)
        if not self.rewrites:
            return model
        module = rewrite_module(model.module, model.evaluation[0], self.rewrites)
        return replace(model, module=module)


@dataclass(frozen=True)
class MixTrials(Rewritten):
    """A job that returns mixtures of a model with rewrites: parts in the scheme ``higher``. It ends
    after ``limit_s`` seconds with the best so far. ``observer`` calibrates. ``path`` is a rewritten
    .onnx file, or None for a PyTorch model."""

    higher: Scheme
    soc: str
    target_db: float
    limit_s: float
    observer: Observer = ""
    path: Path | None = None

    def __call__(self) -> list[tuple[Part, ...]]:
        deadline = time.monotonic() + self.limit_s
        with TemporaryDirectory() as scratch:
            model = self.open_model(Path(scratch))

            def measure(high: Collection[Unit]) -> float:
                if time.monotonic() > deadline:
                    raise OverError
                parts = self.make_parts(high, model.selector)
                return model.measure(Choices(parts=parts, observer=self.observer))

            mixtures = choose_mixtures(model.units, measure, self.target_db)
        return [self.make_parts(high, model.selector) for high in mixtures]

    def open_model(self, scratch: Path) -> Mixable:
        """Return the model as its lane measures it. Files are written to ``scratch``."""
        if self.is_litert:
            return self.open_quantized()
        if self.path:
            from ci.mend.onnx_mixtures import open_file

            return open_file(Path(self.reference), self.source, self.path, self.scheme, scratch)
        if self.is_onnx:
            from ci.mend.onnx_mixtures import open_model

            return open_model(self.load(), self.scheme, scratch)
        from ci.mend.torch_mixtures import MixableModule

        return MixableModule(self.load(), self.scheme, self.soc)

    def make_parts(self, high: Collection[Unit], selector: Selector) -> tuple[Part, ...]:
        """Return the parts of a mixture with these units in the higher scheme."""
        # Several operators of the quantizer's graph may come from one node of the model.
        names = sorted({name for unit in high for name in unit.nodes})
        return tuple(Part(self.higher, **{selector: name}) for name in names)


@dataclass(frozen=True)
class FaultTrials(Rewritten):
    """A job that returns mixtures of a model with rewrites: its operators with a known fault in
    ``scheme``, or else those of ``lines``, in one of the schemes ``alternatives``. ``path`` is a
    rewritten .onnx file, or None for a PyTorch model."""

    soc: str
    alternatives: tuple[Scheme, ...]
    lines: tuple[str, ...]
    path: Path | None = None

    def __call__(self) -> list[tuple[Part, ...]]:
        from ci.faults.match import match_faults

        steps, marked, selectable = self.describe()
        faults = match_faults(steps, self.scheme.value, "")
        selector = "tensor" if self.path or self.is_onnx else "node"
        mixtures = []
        for scheme in self.alternatives:
            remaining = {fault.fault for fault in match_faults(steps, scheme.value, "")}
            cured = [fault.nodes for fault in faults if fault.fault not in remaining]
            choices = [[*chain(*cured)] if faults else marked]
            if self.is_litert:
                # With the last one alone in float, QNN has no pattern of one type to join. A file
                # with all of its operators in float crashed once (a pool, SIGSEGV in QNN 2.51).
                choices.insert(0, [nodes[-1] for nodes in cured])
            for names in choices:
                if selectable is not None:
                    names = [selectable[name] for name in names if name in selectable]
                mixture = tuple(Part(scheme, **{selector: name}) for name in dict.fromkeys(names))
                if mixture and mixture not in mixtures:
                    mixtures.append(mixture)
        return mixtures

    def describe(self) -> tuple[tuple[Step, ...], list[str], Mapping[str, str] | None]:
        """Return the steps of the rewritten model with the numbers that its samples have, as a
        verdict has them, the names of the nodes on the lines, and by what
        parts select the steps that they can select, by name, or None in ONNX. The quantizer's graph
        may lack nodes of the steps: a rewritten model is exported in another way than the
        original."""
        if self.is_litert:
            steps, names = self.open_quantized().describe()
            return steps, [], names
        if self.path or self.is_onnx:
            from ci.mend.onnx_mixtures import measure_steps_of_file, measure_steps_of_model

            with TemporaryDirectory() as scratch:
                folder = Path(scratch)
                if not self.path:
                    return measure_steps_of_model(self.load(), folder), [], None
                original = Path(self.reference)
                steps = measure_steps_of_file(original, self.source, self.path, folder)
                return steps, [], None
        from ci.executorch.graph_reader import measure_module
        from ci.graphs.torch_candidates import list_candidates
        from ci.mend.torch_mixtures import read_annotated

        model = self.load()
        nodes = read_annotated(
            model, self.soc, self.scheme, lambda module: list_candidates(module.graph)
        )
        marked = [node.name for node in nodes if not {*node.line}.isdisjoint(self.lines)]
        selectable = {name: name for candidate in nodes for name in candidate.node}
        return measure_module(model.module, model.evaluation), marked, selectable
