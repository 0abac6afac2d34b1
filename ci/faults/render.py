"""Renders the results of a search for a terminal, and each finding as a self-contained bug report
with a script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import Template

from ci.faults.graph import Graph, Tensor, parse_graph
from ci.faults.results import Finding, Searched
from ci.models.schemes import Scheme
from ci.report.document import make_markdown_table
from ci.report.text import count
from provisioning.manifest.targets import find_soc

SCRIPT = Template("""\
# pip install onnx onnxruntime onnxruntime-qnn==$version
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_qnn
from onnx import helper as h, numpy_helper as nh

rng = np.random.default_rng(0)
normal = lambda *s: np.clip(rng.standard_normal(s), -3, 3).astype("f")
positive = lambda *s: rng.uniform(0.5, 1.5, s).astype("f")
large = lambda *s: 16 * normal(*s)
causal = lambda *s: np.triu(np.full(s, -30, "f"), 1)
window = lambda *s: causal(*s) + np.tril(np.full(s, -30, "f"), -8)
def alibi(*s):
    h, t, u = (np.arange(n, dtype="f") for n in s[-3:])
    slopes = 2 ** (-8 * (h + 1) / len(h))
    return np.broadcast_to(slopes[:, None, None] * np.minimum(u - t[:, None], 0), s)
whole = lambda v, *s: np.full(s, v, "f")
constants = {
$constants}
inputs = {
$inputs}
nodes = [
$nodes]
value = lambda n, s: h.make_tensor_value_info(n, 1, s)
given = [value(n, a.shape) for n, a in inputs.items()], [value(n, None) for n in $outputs]
graph = h.make_graph(nodes, "g", *given, [nh.from_array(a, n) for n, a in constants.items()])
opset = [h.make_opsetid("", 21)]
onnx.save(h.make_model(graph, opset_imports=opset, ir_version=10), "float.onnx")
path = "float.onnx"
$quantize
wanted = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)
ort.register_execution_provider_library("QNN", onnxruntime_qnn.get_library_path())
options = ort.SessionOptions()
device = next(one for one in ort.get_ep_devices() if "QNN" in one.ep_name)
backend = Path(onnxruntime_qnn.get_library_path()).with_name("libQnnHtp.so")
options.add_provider_for_devices([device], {"backend_path": str(backend), "soc_model": "$soc",
    "enable_htp_fp16_precision": "$half", "offload_graph_io_quantization": "0"})
given = ort.InferenceSession(path, options).run(None, inputs)
for name, a, b in zip($outputs, wanted, given):
    for row in range(a.shape[0] if a.ndim else 1):
        share = np.square(a[row]).mean() / max(np.square(a[row] - b[row]).mean(), 1e-30)
        print(name, "row", row, f"{10 * np.log10(share):.1f} dB")
""")
QUANTIZE = Template('''\
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
class Reader(CalibrationDataReader):
    left = [inputs]
    def get_next(self):
        return self.left.pop() if self.left else None
types = {"activation_type": QuantType.$activations, "weight_type": QuantType.$weights}
config = get_qnn_qdq_config(path, Reader(), per_channel=$per_channel, **types)
quantize(path, "quantized.onnx", config)
path = "quantized.onnx"''')

EXECUTORCH = Template("""\
# pip install executorch==$version torch torchao
# Before you start Python, set QNN_SDK_ROOT to the directory of QNN, and LD_LIBRARY_PATH to its
# subdirectory lib/x86_64-linux-clang.
import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    to_edge_transform_and_lower_to_qnn,
)
from executorch.extension.pybindings import _C

torch.manual_seed(0)
normal = lambda *s: torch.randn(s).clamp(-3, 3)
positive = lambda *s: torch.rand(s) + 0.5
large = lambda *s: 16 * normal(*s)
causal = lambda *s: torch.full(s, -30.0).triu(1)
window = lambda *s: causal(*s) + torch.full(s, -30.0).tril(-8)
def alibi(*s):
    h, t, u = (torch.arange(float(n)) for n in s[-3:])
    slopes = 2 ** (-8 * (h + 1) / len(h))
    return (slopes[:, None, None] * (u - t[:, None]).clamp(max=0)).expand(s).clone()
whole = lambda v, *s: torch.full(s, float(v))
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
$constants
$forward

net, inputs = Net().eval(), ($inputs,)
$quantize
wanted = net(*inputs)
options = generate_htp_compiler_spec(use_fp16=$fp16)
spec = generate_qnn_executorch_compiler_spec(QcomChipset.$soc, options)
lower = to_edge_transform_and_lower_to_qnn
edge = lower(net, inputs, spec, convert_linear_to_conv2d=$convolution)
buffer = edge.to_executorch().buffer
given = _C._load_for_executorch_from_buffer(buffer).run_method("forward", inputs)
for index, (a, b) in enumerate(zip(wanted, given)):
    for row in range(len(a) if a.dim() else 1):
        right, error = (a[row], a[row] - b[row]) if a.dim() else (a, a - b)
        share = right.square().mean() / error.square().mean().clamp(min=1e-30)
        print("output", index, "row", row, f"{10 * torch.log10(share):.1f} dB")
""")
PT2E = Template("""\
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from torchao.quantization.pt2e import MinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
quantizer = QnnQuantizer(soc_model=QcomChipset.$soc)
quantizer.set_default_quant_config(
    QuantDtype.$dtype, is_conv_per_channel=True, is_linear_per_channel=True,
    act_observer=MinMaxObserver,
)
exported = torch.export.export(net, inputs, strict=True).module(check_guards=False)
prepared = prepare_pt2e(exported, quantizer)
prepared(*inputs)
net = convert_pt2e(prepared)""")


FUNCTION = re.compile(r"^(?:(\w+) = lambda .*\n|def (\w+)\(.*\n(?:    .*\n)+)", re.MULTILINE)


def render_found(found: Sequence[Searched]) -> str:
    """Return the results of searches as text: a line per search, followed by lines about known
    faults, about suspects without a result, and about each finding."""
    lines = []
    for searched in found:
        ends = _show_ends(searched.ends)
        lines.append(
            f"{searched.frontend} {searched.scheme} {searched.soc}, seed {searched.seed}:"
            f" {count(searched.graphs, 'graph')} in {searched.seconds:.0f} s"
            f" ({searched.per_minute:.0f} per minute, {searched.cpu_s:.3f} s of CPU time each):"
            f" {ends or 'none'}"
        )
        lines += [
            f"  known: {name}, {count(number, 'suspect')}"
            for name, number in searched.known.items()
        ]
        if searched.unconfirmed:
            told = count(searched.unconfirmed, "suspect was", "suspects were")
            lines.append(f"  {told} not confirmed: the graphs did not fail again, or too rarely")
        if searched.unexamined:
            told = count(searched.unexamined, "suspect was", "suspects were")
            ends = _show_ends(searched.unexamined_ends)
            lines.append(f"  {told} not examined ({ends}): increase --minutes")
        if searched.cells:
            tried = [cells for cells in searched.cells.values() if any(cells.values())]
            sizes = [ends for cells in searched.cells.values() for ends in cells.values()]
            lines.append(
                f"  tried {len(tried)} of {count(len(searched.cells), 'block')}, in"
                f" {sum(map(bool, sizes))} of {count(len(sizes), 'size class', 'size classes')}"
            )
        lines += [
            f"  {describe_finding(finding)}, {count(finding.suspects, 'suspect')};"
            " variations that are right: " + ("; ".join(finding.right[:2]) or "none")
            for finding in searched.findings
        ]
    return "".join(f"{line}\n" for line in lines)


def render_coverage(found: Sequence[Searched]) -> str:
    """Return a table of the tried blocks, with a row per block and size class and a column per
    search. A cell has the results, or nothing if it was not tried."""
    columns = [f"{one.scheme} {one.soc} (V{find_soc(one.soc).hexagon})" for one in found]
    names = [(block, size) for block, sizes in found[0].cells.items() for size in sizes]
    rows = [
        (block, size, *(_show_ends(searched.cells[block][size]) for searched in found))
        for block, size in names
    ]
    return make_markdown_table(("block", "sizes", *columns), rows) + "\n"


def _show_ends(ends: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {end}" for end, number in sorted(ends.items()))


def describe_finding(one: Finding) -> str:
    """Return a finding as one line, such as ``wrong: add -> layer_norm (add: over_batch), 2.0 dB
    instead of 68.9, 10/10 seeds``."""
    relations = f" ({', '.join(one.relations)})" if one.relations else ""
    reached = ""
    if one.sqnr_db is not None:
        reached = f", {one.sqnr_db:.1f} dB instead of {one.predicted_db:.1f}"
    known = ", not shrunk further" * (not one.shrunk) + (f", in {one.block}" if one.block else "")
    known += f", known: {one.known}" if one.known else ""
    mended = f", right with {' or '.join(one.mended_by)}" if one.mended_by else ""
    return (
        f"{one.end}: {' -> '.join(one.operators)}{relations}{reached},"
        f" {one.failed}/{one.repeats} seeds{known}{mended}"
    )


def render_markdown(one: Finding, version: str, toolchain: str) -> str:
    """Return a bug report: the result, the versions, the graph, a table of variations, and a
    script."""
    reached = "" if one.sqnr_db is None else f": {one.sqnr_db} dB, {one.predicted_db} dB expected"
    block, _, size = one.block.partition(" ")
    late = "A smaller graph may have the fault: there was no time to shrink it further."
    parts = [
        f"# {' -> '.join(one.operators)} in {one.scheme} is {one.end}{reached}",
        f"Found on the HTP emulator with {toolchain}, SoC {one.soc}.",
        f"```text\n{one.graph.rstrip()}\n```",
        f"It is a part of the block `{block}` in the sizes of `{size}`." * bool(one.block),
        late * (not one.shrunk),
        f"It is the known fault `{one.known}` of docs/findings/faults.md." * bool(one.known),
        f"The message: `{one.why}`" * bool(one.why),
        f"The result is the same with {one.failed} of {one.repeats} other seeds.",
    ]
    rows = [("none", f"{one.end}{reached}"), *((text, "right") for text in one.right)]
    rows += [(f"the rewrite {name} of `qnn-ci mend`", "right") for name in one.mended_by]
    rows += [(text, "not right") for text in one.also_wrong]
    write = write_script if one.frontend == "onnx" else write_executorch_script
    script = drop_unused(write(parse_graph(one.graph), one, version))
    parts += [make_markdown_table(("change", "result"), rows), f"```python\n{script.rstrip()}\n```"]
    return "\n\n".join(filter(None, parts)) + "\n"


def drop_unused(script: str) -> str:
    """Return a script without the functions that it does not call."""
    for found in reversed([*FUNCTION.finditer(script)]):
        rest = script[: found.start()] + script[found.end() :]
        script = script if f"{found[1] or found[2]}(" in rest else rest
    return script


def write_script(graph: Graph, one: Finding, version: str) -> str:
    """Return Python code that builds a graph as an ONNX model, runs it with onnxruntime on the CPU
    and on QNN, and compares the outputs."""
    from ci.faults.onnx_graphs import list_calls
    from ci.onnx.options import choose_options

    scheme = Scheme(one.scheme)
    calls, fixed = list_calls(graph)
    tensors = {name: _draw(own) for name, own in graph.tensors.items()}
    stored = {name: text for name, text in tensors.items() if graph.is_constant(name)}
    recipe = scheme.recipe
    kinds = {"activations": recipe.activations, "weights": recipe.weights}
    quantize = QUANTIZE.substitute(kinds, per_channel=recipe.per_channel)
    return SCRIPT.substitute(
        version=version,
        constants=_show_entries(fixed | stored),
        inputs=_show_entries({name: tensors[name] for name in graph.inputs}),
        nodes="".join(f"    {call},\n" for call in calls),
        outputs=list(graph.outputs),
        quantize=quantize if scheme.quantized else "",
        soc=choose_options(scheme, one.soc, {})["soc_model"],
        half=int(not scheme.quantized),
    )


def write_executorch_script(graph: Graph, one: Finding, version: str) -> str:
    """Return Python code that lowers a graph with ExecuTorch, runs it, and compares the outputs
    with those of torch."""
    from ci.faults.torch_graphs import write_forward

    scheme = Scheme(one.scheme)
    tensors = {name: _draw(own) for name, own in graph.tensors.items()}
    constants = [
        f"        self.c_{name} = torch.nn.Parameter({text}, requires_grad=False)"
        for name, text in tensors.items()
        if graph.is_constant(name) and not graph.tensors[name].is_number
    ]
    quantize = PT2E.substitute(soc=one.soc, dtype=scheme.recipe.dtype)
    return EXECUTORCH.substitute(
        version=version,
        constants="\n".join(constants),
        forward="\n".join(f"    {line}" for line in write_forward(graph).splitlines()),
        inputs=", ".join(tensors[name] for name in graph.inputs),
        quantize=quantize if scheme.quantized else "",
        fp16=not scheme.quantized,
        soc=one.soc,
        convolution=scheme.recipe.linear_as_convolution,
    )


def _show_entries(texts: Mapping[str, str]) -> str:
    return "".join(f'    "{name}": {text},\n' for name, text in texts.items())


def _draw(tensor: Tensor) -> str:
    sizes = ", ".join(map(str, tensor.shape))
    return f"{tensor.like}({sizes})" if tensor.value is None else f"whole({tensor.value}, {sizes})"
