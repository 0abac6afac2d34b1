"""An engine for parts of a model: it quantizes the model once, and lowers parts of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ci.audit.localise_search import Cut, Operator, Row
from ci.cases.cache import hash_words
from ci.cases.engine import Compiled, Staging
from ci.cases.spec import CaseSpec
from ci.executorch.engine import ExecutorchEngine
from ci.models.graph_steps import Step, describe_steps
from provisioning.files import digest_sources
from provisioning.manifest.targets import Backend

MOST_SETS = 4  # of the judged input sets: every program runs all of them, and there are many


@dataclass(frozen=True)
class PartEngine:
    """Compiles the part ``cut`` of each case's model. The worker keeps the model, and so serves
    this model only."""

    engine: ExecutorchEngine
    cut: Cut

    @property
    def imports(self) -> tuple[str, ...]:
        return self.engine.imports

    def give_layers(self, spec: CaseSpec) -> CaseSpec | None:
        del spec
        return None

    def preload(self, spec: CaseSpec) -> None:
        self.engine.warm_up(spec)
        hold(spec, self.engine.backend)

    def key(self, spec: CaseSpec) -> str:
        code = digest_sources(*Path(__file__).parent.glob("localise_[ceq]*.py"))
        return hash_words(self.engine.key(spec), code, msgspec.json.encode(self.cut).decode())

    def read_data(self, spec: CaseSpec) -> int:
        return self.engine.read_data(spec)

    def warm_up(self, spec: CaseSpec) -> None:
        self.engine.warm_up(spec)

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        from ci.executorch.lower import Lowering
        from ci.models.eager import run_eager
        from ci.models.model import load_digested

        model, _ = load_digested(spec.reference, spec.source)
        module, sets = hold(spec, self.engine.backend).cut(self.cut)
        outputs = tuple(run_eager(module, sets))
        part = replace(model, module=module, evaluation=tuple(sets), reference=outputs)
        return Lowering(part, spec, staging, self.engine.backend).write_program(module)

    def explain(self, error: Exception, log: Path) -> str:
        return self.engine.explain(error, log)


@cache
def hold(spec: CaseSpec, backend: Backend) -> Any:
    """Return the graphs of a case's model with up to MOST_SETS of its input sets, made once per
    process."""
    from ci.audit.localise_cuts import make_graphs
    from ci.executorch.quantize import quantize_model
    from ci.models.model import load_digested

    model, _ = load_digested(spec.reference, spec.source)
    module = model.module
    if spec.scheme.quantized:
        module = quantize_model(model, spec.scheme, spec.soc, spec.source.choices, backend)
    every = -(-len(model.evaluation) // MOST_SETS)
    return make_graphs(module, model.module, model.evaluation[::every])


class Description(Struct, frozen=True):
    """A model's operators in the graph's order, those with the model's outputs, how much
    quantization loses at each, worst first, and the steps of its float32 graph."""

    operators: Sequence[Operator]
    outputs: Sequence[str]
    losses: Sequence[Row]
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class DescribeJob:
    """Describes a model, in a worker that serves only this model."""

    engine: ExecutorchEngine
    spec: CaseSpec

    def __call__(self) -> Description:
        self.engine.warm_up(self.spec)
        from ci.models.model import load_digested

        graphs = hold(self.spec, self.engine.backend)
        model, _ = load_digested(self.spec.reference, self.spec.source)
        steps = describe_steps(model.module, model.evaluation[0])
        return Description(graphs.describe(), graphs.outputs, graphs.rank_losses(), steps)


@dataclass(frozen=True)
class SourceJob:
    """Returns the Python text of a part, its weights and inputs, for a self-contained file."""

    engine: ExecutorchEngine
    spec: CaseSpec
    cut: Cut
    weights: Path

    def __call__(self) -> str:
        from ci.audit.localise_reproducer import write_tensors

        return write_tensors(hold(self.spec, self.engine.backend), self.cut, self.weights)
