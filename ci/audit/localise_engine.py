"""An engine that quantizes a model once, and compiles parts of its graph."""

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

MOST_SETS = 4  # only a few input sets are used, because many programs run them


@dataclass(frozen=True)
class PartEngine:
    """Compiles the part ``cut`` of a case's model. The worker process keeps the model's graphs in
    memory for the next parts, and is leased for this case only."""

    engine: ExecutorchEngine
    cut: Cut

    @property
    def imports(self) -> tuple[str, ...]:
        return self.engine.imports

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
    """Return the graphs of a case's model, with at most MOST_SETS of its input sets. They are made
    once per process."""
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
    """A description of a model. ``operators`` are in the graph's order. ``outputs`` are the names
    of the operators whose results are the model's outputs. ``losses`` lists the SQNR that
    quantization loses at operators and ranges, most noise first. ``steps`` describes the float32
    graph."""

    operators: Sequence[Operator]
    outputs: Sequence[str]
    losses: Sequence[Row]
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class DescribeJob:
    """A job that describes a model. Its worker process is leased for this case only."""

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
    """A job that writes the weights and inputs of a part to the file ``weights``, and returns the
    Python code of the part's ``forward`` method."""

    engine: ExecutorchEngine
    spec: CaseSpec
    cut: Cut
    weights: Path

    def __call__(self) -> str:
        from ci.audit.localise_reproducer import write_tensors

        return write_tensors(hold(self.spec, self.engine.backend), self.cut, self.weights)
