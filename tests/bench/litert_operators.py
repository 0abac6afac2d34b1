"""How much coarser than rounding the QNN of the LiteRT lane computes each operator:
manifests/rounding/VERSION.toml, as tests.bench.operators measures it for ExecuTorch's QNN.

LiteRT's plugin works with another version of QNN than ExecuTorch, so the graphs are .tflite models
here, in float, int8 and int16. Their outputs are compared with those of LiteRT's CPU interpreter.
The environment is that of the group test-litert.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from ci.graphs.graph import LITERT, Array
from ci.graphs.litert_file import list_entries, name_operator, read_levels, read_model
from ci.graphs.litert_program import LitertProgram
from ci.graphs.litert_session import Reference
from ci.graphs.operators import computes, is_quantizer
from ci.judging.figures import measure_pooled
from ci.litert.compiled import DISPATCH, CompiledModel
from ci.litert.execution import Execution
from ci.litert.plugin import run_plugin
from ci.litert.suite import KINDS, Net, quantize
from ci.models.rounding import (
    FLOAT16,
    TALL,
    Term,
    Terms,
    find_version,
    list_files,
    read_terms,
    take_term,
)
from ci.models.schemes import Scheme
from ci.onnx.options import choose_options, find_library
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from provisioning.errors import FailedError
from provisioning.files import write_whole
from provisioning.manifest.reader import manifests_root
from provisioning.versions import parse_version
from tests.bench import operators
from tests.bench.operators import (
    BUNDLE,
    EVERY,
    LEAST_DB,
    ROOM,
    ROWS,
    SCALES,
    SETS,
    TYPICAL,
    Measured,
    combine,
    find_power,
    measure_error,
    render_terms,
)

SOC, SEED, TIMEOUT_S = "SM8650", 5, 300
COMMAND = "./nox -s bench -- litert-operators"
LEAST_DIFFERENCE_DB = 3.0
NUMBERS = {FLOAT16: 0, "8": 8, "16": 16}  # the bits of a quantized model
IMAGES = ((1, 12, 12, 8), (1, 7, 9, 32), (1, 14, 14, 16))
Shape = tuple[int, ...]


class Probe(NamedTuple):
    """A model of one operator: how to write it from its operands and their shape, whether these are
    positive, their number, and what precedes the operator."""

    write: Callable[[Net, Sequence[int], Shape], int]
    shapes: Sequence[Shape] = ROWS
    positive: bool = False
    inputs: int = 1
    after: str = ""
    numbers: Sequence[str] = tuple(NUMBERS)


class Job(NamedTuple):
    """A model to measure: with operands of a shape and a size."""

    probe: Probe
    shape: Shape
    scale: float


def list_probes() -> Iterator[Probe]:
    """Yield the models to measure."""
    yield from map(Probe, (call("LOGISTIC"), call("TANH"), call("ELU"), call("EXP", "ExpOptions")))
    yield Probe(call("HARD_SWISH", "HardSwishOptions"))
    yield Probe(call("LEAKY_RELU", "LeakyReluOptions", alpha=0.1))
    yield Probe(call("GELU", "GeluOptions", approximate=True))
    yield Probe(call("GELU", "GeluOptions", approximate=False))
    yield from map(Probe, (call("SIN"), call("COS"), call("LOG_SOFTMAX", "LogSoftmaxOptions")))
    yield Probe(call("SOFTMAX", "SoftmaxOptions", beta=1.0))
    yield Probe(call("L2_NORMALIZATION", "L2NormOptions"))
    for name in ("SQRT", "RSQRT", "LOG"):
        yield Probe(call(name), positive=True)
    for name in ("ADD", "SUB", "MUL"):
        yield Probe(call(name, f"{name.title()}Options"), inputs=2)
    yield Probe(call("DIV", "DivOptions"), positive=True, inputs=2)
    # LiteRT's MAXIMUM of integers needs operands of one scale.
    yield Probe(call("MAXIMUM", "MaximumMinimumOptions"), inputs=2, numbers=(FLOAT16,))
    for name in ("MEAN", "SUM"):
        yield Probe(partial(write_reduction, name))
    for positive in (False, True):
        yield Probe(partial(write_reduction, "MEAN"), IMAGES, positive)
        yield Probe(write_pool, IMAGES, positive)
    yield Probe(write_resize, IMAGES)
    yield Probe(write_linear)
    yield Probe(write_product, inputs=2)
    yield Probe(write_convolution, IMAGES)
    yield Probe(write_depthwise, IMAGES)
    activations = (call("LOGISTIC"), call("TANH"), call("GELU", "GeluOptions", approximate=True))
    for write in activations:
        yield Probe(partial(write_behind, write, write_linear), after="layer", numbers=(FLOAT16,))
        for shapes, after in ((ROWS[:1], "add"), (ROWS[1:2], TALL)):
            behind_sum = partial(write_behind, write, call("ADD", "AddOptions"))
            yield Probe(behind_sum, shapes, inputs=2, after=after, numbers=(FLOAT16,))


def call(name: str, options: str = "", **arguments: Any) -> Callable[[Net, Any, Shape], int]:
    """Return what writes an operator whose result has the shape of its operands."""
    return lambda net, sources, shape: net.call(name, sources, shape, options, **arguments)


def write_behind(
    write: Callable[[Net, Any, Shape], int],
    before: Callable[[Net, Any, Shape], int],
    net: Net,
    sources: Sequence[int],
    shape: Shape,
) -> int:
    """Write an operator behind another one."""
    source = before(net, sources, shape)
    return write(net, [source], tuple(net.tensors[source].shape))


def write_reduction(name: str, net: Net, sources: Sequence[int], shape: Shape) -> int:
    """Write a MEAN or a SUM over the rows, or over an image."""
    is_image = len(shape) == 4
    axes = net.add_constant(np.array([1, 2] if is_image else [2], np.int32))
    result = (1, 1, 1, shape[3]) if is_image else (*shape[:-1], 1)
    return net.call(name, (*sources, axes), result, "ReducerOptions", keepDims=True)


def write_pool(net: Net, sources: Sequence[int], shape: Shape) -> int:
    """Write an average over windows of 2 x 2."""
    _, height, width, depth = shape
    return net.call(
        "AVERAGE_POOL_2D",
        sources,
        (1, height // 2, width // 2, depth),
        "Pool2DOptions",
        strideH=2,
        strideW=2,
        filterHeight=2,
        filterWidth=2,
        padding=1,
    )


def write_resize(net: Net, sources: Sequence[int], shape: Shape) -> int:
    """Write a bilinear RESIZE to twice the size."""
    _, height, width, depth = shape
    size = net.add_constant(np.array([2 * height, 2 * width], np.int32))
    return net.call(
        "RESIZE_BILINEAR",
        (*sources, size),
        (1, 2 * height, 2 * width, depth),
        "ResizeBilinearOptions",
        halfPixelCenters=True,
    )


def write_linear(net: Net, sources: Sequence[int], shape: Shape) -> int:
    """Write a linear layer."""
    return net.add_linear(sources[0], shape, 24)


def write_product(net: Net, sources: Sequence[int], shape: Shape) -> int:
    """Write a product of two operands, of which the second is transposed."""
    result = (*shape[:-1], shape[-2])
    return net.call("BATCH_MATMUL", sources, result, "BatchMatMulOptions", adjY=True)


def write_convolution(net: Net, sources: Sequence[int], shape: Shape) -> int:
    """Write a convolution without an activation."""
    result = net.add_convolution(sources[0], shape, 16)
    net.operators[-1].builtinOptions.fusedActivationFunction = 0
    return result


def write_depthwise(net: Net, sources: Sequence[int], shape: Shape) -> int:
    """Write a convolution of each channel alone."""
    weights = net.draw(1, 3, 3, shape[3], scale=1 / 3)
    return net.call(
        "DEPTHWISE_CONV_2D",
        (*sources, weights, net.draw(shape[3], scale=0.1)),
        shape,
        "DepthwiseConv2DOptions",
        strideH=1,
        strideW=1,
        dilationHFactor=1,
        dilationWFactor=1,
        depthMultiplier=1,
    )


def measure(numbers: str, library: Path, progress: Progress) -> Iterator[Measured]:
    """Compile and run all models in one numeric type, and yield what was measured of each."""
    random = np.random.default_rng(SEED)
    jobs = [
        Job(probe, shape, scale)
        for probe in list_probes()
        for shape in probe.shapes
        for scale in SCALES
        if numbers in probe.numbers
    ]
    for start in range(0, len(jobs), BUNDLE):
        progress.step(f"bench litert-operators: {numbers}, {start} of {len(jobs)}")
        yield from measure_together(numbers, jobs[start : start + BUNDLE], library, random)


def measure_together(
    numbers: str, jobs: Sequence[Job], library: Path, random: np.random.Generator
) -> list[Measured]:
    """Compile and run several models as one. If it is refused, try each half of them; a model that
    is refused alone is left out."""
    try:
        return measure_bundle(numbers, jobs, library, random)
    except (FailedError, RuntimeError, ValueError):
        half = len(jobs) // 2
        parts = (jobs[:half], jobs[half:]) if half else ()
        return [
            measured
            for part in parts
            for measured in measure_together(numbers, part, library, random)
        ]


def measure_bundle(
    numbers: str, jobs: Sequence[Job], library: Path, random: np.random.Generator
) -> list[Measured]:
    """Compile and run several models as one."""
    net, sources, outputs = Net(), list[int](), list[int]()
    for probe, shape, _ in jobs:
        operands = [net.add_tensor(shape) for _ in range(probe.inputs)]
        outputs.append(probe.write(net, operands, shape))
        sources += operands
    net.end(sources, outputs)
    sets = [draw_inputs(jobs, random) for _ in range(SETS)]
    bits = NUMBERS[numbers]
    data = quantize(net, bits, sets[0]) if bits else net.pack()
    model = read_model(data)
    tensors = model.subgraphs[0].tensors
    if bits:
        sets = [
            [
                round_input(tensors[number], array)
                for number, array in zip(sources, arrays, strict=True)
            ]
            for arrays in sets
        ]
    right = Reference(data, model, list_entries(model)).run(sets)
    got, on_cpu = run_program(data, sets, library, Scheme.ASIS if bits else Scheme.FP16)
    names = name_results(data)
    measured = []
    for place, (job, output) in enumerate(zip(jobs, outputs, strict=True)):
        expected, outcome = (
            np.stack([np.asarray(sample[place], np.float64) for sample in samples])
            for samples in (right, got)
        )
        levels = read_levels(tensors[output])
        step = float(levels.scales[0]) if levels else 1.0
        is_right = measure_pooled(expected, outcome) > LEAST_DB[numbers]
        if is_right and tensors[output].name not in on_cpu:
            term = Term(
                operator=names[place],
                numbers=numbers,
                after=job.probe.after,
                front_end=LITERT,
            )
            measured.append(measure_error(term, expected / step, outcome / step))
    return measured


def draw_inputs(jobs: Sequence[Job], random: np.random.Generator) -> list[Array]:
    """Return random operands, those of all models in a row."""
    inputs = []
    for probe, shape, scale in jobs:
        for _ in range(probe.inputs):
            drawn = scale * random.standard_normal(shape)
            drawn = np.abs(drawn) + ROOM if probe.positive else drawn
            inputs.append(drawn.astype(np.float32))
    return inputs


def round_input(tensor: Any, array: Array) -> Array:
    """Return numbers as the integers of a quantized tensor."""
    levels, dtype = read_levels(tensor), np.int8 if tensor.type == KINDS["int8"] else np.int16
    if levels is None:
        raise ValueError("an input is not quantized")
    limits = np.iinfo(dtype)
    steps = np.round(array / levels.scales[0]) + levels.zero_points[0]
    return np.clip(steps, limits.min, limits.max).astype(dtype)


def run_program(
    data: bytes, sets: Sequence[Sequence[Array]], library: Path, scheme: Scheme
) -> tuple[list[list[Array]], set[bytes]]:
    """Compile and run a model. Return its outputs, and the names of the results that are computed
    on the CPU."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, target = folder / "source.tflite", folder / "compiled.tflite"
        source.write_bytes(data)
        run_plugin(
            source,
            target,
            SOC,
            library_folder=library.parent,
            log=folder / "log",
            timeout_s=TIMEOUT_S,
        )
        compiled = CompiledModel(target)
        options = {"backend_path": str(library), **choose_options(scheme.base, SOC, {})}
        execution = Execution(compiled, read_model(data), folder, options)
        (call_main,) = execution.list_calls(list_entries(compiled.model))
        subgraph = compiled.model.subgraphs[0]
        on_cpu = {
            subgraph.tensors[number].name
            for operator in subgraph.operators
            if name_operator(compiled.model, operator) != DISPATCH
            for number in operator.outputs
        }
        return [call_main.run(arrays) for arrays in sets], on_cpu


def name_results(data: bytes) -> list[str]:
    """Return the last operator of each output of a model that computes something."""
    graph = LitertProgram(data).graphs["serve"]
    makers = graph.list_makers()
    names = []
    for output in graph.outputs:
        node = makers[output]
        while not computes(node.operator) or is_quantizer(node.operator):
            node = makers[node.reads[0]]
        names.append(node.operator)
    return names


def run_bench(progress: Progress) -> Mapping[str, Any]:
    """Measure every numeric type, and write the file of the installed QNN."""
    environment = provision_profile("litert", progress)
    os.environ.update(environment.apply(os.environ))
    library = find_library(environment.root("qnn-runtime"), {})
    rows = [row for numbers in NUMBERS for row in measure(numbers, library, progress)]
    version = find_version(library)
    older = {path.stem for path in list_files()} - {version}
    older_terms = read_terms(max(older, key=parse_version)) if older else {}
    terms = [term for term in combine(rows) if differs(term, older_terms)]
    target = manifests_root() / "rounding" / f"{version}.toml"
    write_whole(target, render_terms(version, terms, COMMAND))
    return {"version": version, "terms": list(map(structs.asdict, terms))}


def differs(term: Term, older_terms: Terms) -> bool:
    """Return whether an operator is coarser than an older QNN's, by more than such measurements
    differ."""
    signal = TYPICAL[term.numbers] ** 2
    known_term = take_term(older_terms, term.operator, term.numbers, term.after)
    predicted = max(find_power(known_term, signal), EVERY[term.numbers])
    return find_power(term, signal) > predicted * 10 ** (LEAST_DIFFERENCE_DB / 10)


def render_bench(figures: Mapping[str, Any]) -> str:
    """Return the table: an operator per row."""
    return operators.render_bench(figures)
