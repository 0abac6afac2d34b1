"""How much coarser than rounding QNN computes each operator: manifests/rounding/VERSION.toml.

Each operator is lowered alone, in several shapes and ranges, in float16 and with activations of 8
and 16 bits. The outputs of its program are compared with those of its quantized model (in float16,
of its float32 model), and the errors are split into the parts of ci.models.rounding.Term.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from ci.executorch.toolchain import LIBRARY
from ci.judging.figures import decibels, measure_pooled
from ci.models.rounding import FLOAT16, MOVED, RELATIVE, TALL, UNIFORM, Term, find_version
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from provisioning.doctor.facts import HOST_DIRECTORY
from provisioning.errors import FailedError
from provisioning.files import write_whole
from provisioning.manifest.reader import manifests_root

ROOT = Path(__file__).resolve().parents[2]
SCHEMES = {FLOAT16: "fp16", "8": "8a8w", "16": "16a8w"}
SETS, BUNDLE, ROOM, LEAST_ROW, BINS = 8, 12, 0.1, 8, 6
ROWS = ((1, 1, 32), (1, 16, 32), (1, 3, 200))
IMAGES = ((1, 8, 12, 12), (1, 32, 7, 9), (1, 16, 14, 14))
SCALES = (1.0, 4.0)
# The RMS of a typical output in steps (in float16, of any). With it, a term is compared with the
# error that every operator is predicted to make.
TYPICAL = {FLOAT16: 1.0, "8": 40.0, "16": 10_000.0}
EVERY = {FLOAT16: RELATIVE**2 / UNIFORM**2, "8": MOVED[8], "16": MOVED[16]}
SHARED = 0.2  # errors that all elements share matter from this share of EVERY on
# Below this SQNR, a graph has a fault, such as the logarithm in 16 bits.
LEAST_DB = {FLOAT16: 35.0, "8": 20.0, "16": 40.0}


class Probe(NamedTuple):
    """A graph of one operator: how to make its module from the shape of its inputs, whether these
    are positive, their number, and what precedes the operator."""

    make: Callable[[tuple[int, ...]], Any]
    shapes: Sequence[tuple[int, ...]] = ROWS
    positive: bool = False
    inputs: int = 1
    after: str = ""


def list_probes() -> Iterator[Probe]:
    """Yield the graphs to measure."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Calls(nn.Module):
        def __init__(self, call: Callable[..., Any], before: Any = None) -> None:
            super().__init__()
            self.call, self.before = call, before

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.call(*([self.before(*inputs)] if self.before else inputs))
            return result

    def calls(call: Callable[..., Any], *arguments: Any, **options: Any) -> Probe:
        return Probe(lambda _: Calls(call), *arguments, **options)

    activations: list[Any] = [functional.gelu, torch.sigmoid, torch.tanh, functional.silu]
    yield from map(calls, activations)
    yield from map(calls, [functional.elu, functional.hardswish, functional.hardsigmoid])
    yield from map(calls, [torch.exp, torch.sin, torch.cos, torch.neg, functional.leaky_relu])
    for call in (torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal):
        yield calls(call, positive=True)
    for pair in (torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum):
        yield calls(pair, inputs=2)
    yield calls(torch.div, positive=True, inputs=2)
    yield calls(lambda x: x.softmax(-1))
    yield calls(lambda x: x.log_softmax(-1))
    yield calls(lambda x: x.mean(-1, keepdim=True))
    yield calls(lambda x: x.sum(-1, keepdim=True))
    for positive in (False, True):
        yield calls(lambda x: x.mean((2, 3)), IMAGES, positive)
        yield calls(lambda x: functional.avg_pool2d(x, 2), IMAGES, positive)
        yield calls(lambda x: functional.adaptive_avg_pool2d(x, 1), IMAGES, positive)
    yield calls(lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), IMAGES)
    yield Probe(lambda shape: nn.LayerNorm(shape[-1]))
    yield Probe(lambda shape: nn.RMSNorm(shape[-1]))
    yield Probe(lambda shape: nn.GroupNorm(4, shape[1]), IMAGES)
    yield Probe(lambda shape: nn.InstanceNorm2d(shape[1], affine=True), IMAGES)
    yield Probe(lambda shape: nn.ConvTranspose2d(shape[1], 8, 4, 2, 1), IMAGES)
    yield Probe(lambda shape: nn.ConvTranspose2d(shape[1], 8, 4, 2, 1, groups=4), IMAGES)
    yield Probe(lambda shape: nn.ConvTranspose2d(shape[1], 8, 3, 2, 1, output_padding=1), IMAGES)
    yield Probe(lambda shape: nn.Linear(shape[-1], 24))
    yield Probe(lambda shape: nn.Conv2d(shape[1], 16, 3, padding=1), IMAGES)
    yield Probe(lambda shape: nn.Conv2d(shape[1], shape[1], 3, groups=shape[1]), IMAGES)
    for call in activations[:-1]:  # in a SiLU, only the sigmoid is fused
        for shapes, after in ((ROWS[:1], "add"), (ROWS[1:2], TALL)):
            yield Probe(lambda _, call=call: Calls(call, torch.add), shapes, inputs=2, after=after)
        yield Probe(lambda shape, call=call: Calls(call, nn.Linear(shape[-1], 32)), after="layer")


class Measured(NamedTuple):
    """The error of one graph: its parts, and its power and that of the output in squared steps."""

    term: Term
    power: float
    signal: float


def measure(numbers: str, progress: Callable[[str], None]) -> Iterator[Measured]:
    """Lower and run all graphs in one numeric type, and yield what was measured of each."""
    import torch

    from ci.faults.executorch_runner import before_forks
    from ci.models.numerics import fix_numerics

    fix_numerics()
    before_forks()
    torch.manual_seed(5)
    jobs = [
        (probe, shape, scale)
        for probe in list_probes()
        for shape in probe.shapes
        for scale in SCALES
        if numbers == FLOAT16 or not probe.after
    ]
    for start in range(0, len(jobs), BUNDLE):
        progress(f"bench operators: {numbers}, {start} of {len(jobs)}")
        yield from measure_together(numbers, jobs[start : start + BUNDLE])


def measure_together(
    numbers: str, jobs: Sequence[tuple[Probe, tuple[int, ...], float]]
) -> list[Measured]:
    """Lower and run several graphs as one program. If QNN refuses it, try each half of them; a
    graph that QNN refuses alone is left out."""
    try:
        return list(measure_bundle(numbers, jobs))
    except (AssertionError, RuntimeError):
        half = len(jobs) // 2
        parts = (jobs[:half], jobs[half:]) if half else ()
        return [measured for part in parts for measured in measure_together(numbers, part)]


def draw_inputs(jobs: Sequence[tuple[Probe, tuple[int, ...], float]]) -> tuple[Any, ...]:
    """Return random tensors, all inputs of all graphs in a row."""
    import torch

    inputs = []
    for probe, shape, scale in jobs:
        for _ in range(probe.inputs):
            drawn = scale * torch.randn(shape)
            inputs.append(drawn.abs() + ROOM if probe.positive else drawn)
    return tuple(inputs)


def measure_bundle(
    numbers: str, jobs: Sequence[tuple[Probe, tuple[int, ...], float]]
) -> Iterator[Measured]:
    """Lower and run several graphs as one program."""
    import torch
    from torch import nn

    from ci.analysis.grids import NO_GRID, find_grids
    from ci.executorch.quantize import make_quantizer, quantize_method
    from ci.faults.executorch_runner import lower_and_run
    from ci.graphs.torch_program import read_graphs
    from ci.models.eager import run_eager
    from ci.models.lowering_options import NO_CHOICES
    from ci.models.model import Model, split_module
    from ci.models.schemes import Scheme

    class Bundle(nn.Module):
        def __init__(self, parts: Sequence[nn.Module]) -> None:
            super().__init__()
            self.parts = nn.ModuleList(parts)

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            outputs, first = [], 0
            for part, (probe, _, _) in zip(self.parts, jobs, strict=True):
                outputs.append(part(*inputs[first : first + probe.inputs]))
                first += probe.inputs
            return tuple(outputs)

    modules = [probe.make(shape) for probe, shape, _ in jobs]
    for operator in modules:
        for weight in operator.parameters():
            weight.data += 0.5 * torch.rand_like(weight)
    module: Any = Bundle(modules).eval()
    sets = tuple(draw_inputs(jobs) for _ in range(SETS))
    scheme = Scheme(SCHEMES[numbers])
    grids = [NO_GRID] * len(jobs)
    if scheme.quantized:
        model = Model("operators", module, sets, sets)
        module = quantize_method(model, scheme, NO_CHOICES, make_quantizer("SM8650"))
        grids = find_grids(read_graphs(split_module(module)).values())
    exact_outputs = run_eager(module, sets)
    program_outputs, left = lower_and_run(module, sets, scheme, "SM8650")
    names = name_operators(module, sets[0], len(jobs))
    for index, (probe, _, _) in enumerate(jobs):
        if names[index] and index not in left:
            expected = np.stack(
                [np.asarray(outputs[index], np.float64) for outputs in exact_outputs]
            )
            got = np.stack([np.asarray(outputs[index], np.float64) for outputs in program_outputs])
            step = grids[index].step or 1.0
            term = Term(operator=names[index], numbers=numbers, after=probe.after)
            if measure_pooled(expected, got) > LEAST_DB[numbers]:
                yield measure_error(term, expected / step, got / step)


def name_operators(module: Any, inputs: Any, count: int) -> list[str]:
    """Return the last operator of each output of a graph that computes something; empty if several
    do, except for what precedes an activation."""
    import torch
    from torch.utils._pytree import tree_leaves

    from ci.graphs.operators import is_quantizer
    from ci.graphs.torch_calls import name_operator
    from ci.graphs.torch_reader import computes_node

    if not hasattr(module, "graph"):
        module = torch.export.export(module, inputs, strict=True).module()
    (end,) = (node for node in module.graph.nodes if node.op == "output")
    names = []
    for leaf in tree_leaves(end.args)[:count]:
        node = leaf
        while not computes_node(node) or is_quantizer(name_operator(node)):
            node = node.args[0]
        names.append(name_operator(node).strip("_"))
    return names


def measure_error(term: Term, expected: Any, got: Any) -> Measured:
    """Return the parts of an output's error. The outputs are in steps, [sample, *shape]."""
    error = got - expected
    bias = float(error.mean())
    noise, row = error - bias, 0.0
    if expected.shape[-1] >= LEAST_ROW:
        power = np.maximum((expected**2).sum(-1, keepdims=True), np.finfo(float).tiny)
        gains = (noise * expected).sum(-1, keepdims=True) / power
        chance = float((noise**2).mean()) * power.size
        row = math.sqrt(max(0.0, float((gains**2 * power).sum()) - chance) / float(power.sum()))
        noise = noise - gains * expected * (row > 0)
    steps, relative = fit_parts(expected**2, noise**2)
    term = structs.replace(term, steps=steps, bias=bias, relative=relative, row=row)
    return Measured(term, float((error**2).mean()), float((expected**2).mean()))


def fit_parts(signals: Any, errors: Any) -> tuple[float, float]:
    """Return the constant and the proportional part of errors as RMS; both arguments are powers."""
    order = np.argsort(signals, axis=None)
    bins = [part for part in np.array_split(order, BINS) if len(part)]
    x = np.array([signals.reshape(-1)[part].mean() for part in bins])
    y = np.array([errors.reshape(-1)[part].mean() for part in bins])
    slope = float(np.mean((x - x.mean()) * (y - y.mean())) / max(float(x.var()), 1e-300))
    slope = min(max(slope, 0.0), float(y.mean() / max(float(x.mean()), 1e-300)))
    return math.sqrt(max(0.0, float(y.mean() - slope * x.mean()))), math.sqrt(slope)


def combine(rows: Sequence[Measured]) -> list[Term]:
    """Return a term per operator, numeric type and predecessor that is coarser than rounding, with
    its spread."""
    groups: dict[tuple[str, str, str], list[Measured]] = {}
    for row in rows:
        key = (row.term.numbers, row.term.operator, row.term.after)
        groups.setdefault(key, []).append(row)
    terms = [combine_group(groups[key]) for key in sorted(groups)]
    return [term for term in terms if is_coarse(term)]


def find_power(term: Term, signal: float) -> float:
    """Return the power of an error for an output with this power, both in squared steps."""
    shared = term.bias**2 + term.varies**2
    return term.steps**2 + shared + (term.relative**2 + term.row**2) * signal


def is_coarse(term: Term) -> bool:
    """Return whether the prediction would be too optimistic without a term."""
    rounding = EVERY[term.numbers]
    shared = term.bias**2 + term.varies**2
    power = find_power(term, TYPICAL[term.numbers] ** 2)
    return bool(term.after) or power > rounding or shared > SHARED * rounding


def combine_group(rows: Sequence[Measured]) -> Term:
    """Return the mean of the terms of several graphs of an operator."""

    def mean(name: str) -> float:
        return math.sqrt(float(np.mean([getattr(row.term, name) ** 2 for row in rows])))

    first = rows[0].term
    term = structs.replace(
        first,
        bias=float(np.mean([row.term.bias for row in rows])),
        varies=float(np.std([row.term.bias for row in rows])),
        **{name: mean(name) for name in ("steps", "relative", "row")},
        graphs=len(rows),
    )
    if first.numbers == FLOAT16 and not first.after:  # an absolute error depends on the scale
        term = structs.replace(term, steps=0.0, bias=0.0, varies=0.0)
    ratios = [
        decibels(row.power, max(find_power(term, row.signal), 1e-300)) for row in rows if row.power
    ]
    return structs.replace(
        term, least_db=min(ratios, default=0.0), most_db=max(ratios, default=0.0)
    )


def render_terms(
    version: str, terms: Sequence[Term], command: str = "./nox -s bench -- operators"
) -> str:
    """Return the file of a version of QNN, a line per term. ``command`` is what writes it."""
    lines = [
        f"# How much coarser than rounding QNN {version} computes operators on the HTP emulator.",
        f"# `{command}` writes this file; ci.models.rounding describes its keys.",
        "term = [",
    ]
    for term in terms:
        shown = {}
        for name, value in structs.asdict(term).items():
            if value or name in {"operator", "numbers"}:
                is_float = not isinstance(value, (str, int))
                shown[name] = f"{value:.2g}" if is_float else json.dumps(value)
        lines.append(f"    {{ {', '.join(f'{name} = {text}' for name, text in shown.items())} }},")
    return "\n".join([*lines, "]", ""])


def run_bench(progress: Progress) -> Mapping[str, Any]:
    """Measure every numeric type in a process of its own, and write the file of the installed
    QNN."""
    environment = provision_profile("emulator", progress).apply(os.environ)
    rows: list[Measured] = []
    for numbers in SCHEMES:
        argv = [sys.executable, "-m", "tests.bench.operators", numbers]
        done = subprocess.run(
            argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            raise FailedError(f"the operators could not be measured in {numbers}")
        lines = (line for line in done.stdout.splitlines() if line.startswith("ROW "))
        for line in lines:
            term, power, signal = json.loads(line.removeprefix("ROW "))
            rows.append(Measured(Term(**term), power, signal))
    terms = combine(rows)
    version = find_version(Path(environment["QNN_SDK_ROOT"]) / HOST_DIRECTORY / LIBRARY)
    target = manifests_root() / "rounding" / f"{version}.toml"
    write_whole(target, render_terms(version, terms))
    return {"version": version, "terms": list(map(structs.asdict, terms))}


def render_bench(figures: Mapping[str, Any]) -> str:
    """Return the table: an operator per row."""
    rows = [f"QNN {figures['version']}; RMS in steps of the output, shares of its values"]
    for term in figures["terms"]:
        name = f"{term['operator']} {term['after'] and 'after ' + term['after']}"
        rows.append(
            f"{term['numbers']:8s} {name:30s} steps {term['steps']:8.3f}"
            f"  bias {term['bias']:+7.3f} ({term['varies']:.3f})  relative {term['relative']:.2g}"
            f"  row {term['row']:.2g}  {term['graphs']} graphs,"
            f" {term['least_db']:+.1f} to {term['most_db']:+.1f} dB of their mean"
        )
    return "\n".join(rows)


def main() -> int:
    numbers = sys.argv[1]
    for measured in measure(numbers, lambda text: print(text, file=sys.stderr, flush=True)):
        row = [structs.asdict(measured.term), measured.power, measured.signal]
        print(f"ROW {json.dumps(row)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
