"""Renders the results of a search for a terminal, and each finding as a self-contained bug report
with a script."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Template

from ci.faults.graph import Graph, Tensor, parse_graph
from ci.faults.results import Finding, Searched
from ci.models.schemes import Scheme
from ci.report.document import make_markdown_table
from ci.report.text import count
from provisioning.documents import read_text
from provisioning.manifest.targets import find_any_soc

TEMPLATES = Path(__file__).resolve().parent / "templates"
FUNCTION = re.compile(r"^(?:(\w+) = lambda .*\n|def (\w+)\(.*\n(?:    .*\n)+)", re.MULTILINE)


def render_searches(searches: Sequence[Searched]) -> str:
    """Return the results of searches as text: a line per search, followed by lines about known
    faults, about suspects without a result, and about each finding."""
    lines = []
    for searched in searches:
        result_counts = _show_ends(searched.ends)
        lines.append(
            f"{searched.frontend} {searched.scheme} {searched.soc}, seed {searched.seed}:"
            f" {count(searched.graphs, 'graph')} in {searched.seconds:.0f} s"
            f" ({searched.per_minute:.0f} per minute, {searched.cpu_s:.3f} s of CPU time each):"
            f" {result_counts or 'none'}"
        )
        for fault_name, suspect_count in searched.known.items():
            lines.append(f"  known: {fault_name}, {count(suspect_count, 'suspect')}")
        if searched.unconfirmed:
            suspects = count(searched.unconfirmed, "suspect was", "suspects were")
            lines.append(
                f"  {suspects} not confirmed: the graphs did not fail again, or too rarely"
            )
        if searched.unexamined:
            suspects = count(searched.unexamined, "suspect was", "suspects were")
            result_counts = _show_ends(searched.unexamined_ends)
            lines.append(f"  {suspects} not examined ({result_counts}): increase --minutes")
        if searched.cells:
            lines.append(_describe_coverage(searched.cells))
        for finding in searched.findings:
            right_variations = "; ".join(finding.right[:2]) or "none"
            lines.append(
                f"  {describe_finding(finding)}, {count(finding.suspects, 'suspect')};"
                f" variations that are right: {right_variations}"
            )
    return "".join(f"{line}\n" for line in lines)


def _describe_coverage(cells: Mapping[str, Mapping[str, Mapping[str, int]]]) -> str:
    """Return how many of the blocks, and of their size classes, were tried. ``cells`` counts
    results per block, size class and result."""
    is_tried = []  # of each size class of each block
    tried_blocks = 0
    for sizes in cells.values():
        is_tried += [bool(result_counts) for result_counts in sizes.values()]
        tried_blocks += any(sizes.values())
    return (
        f"  tried {tried_blocks} of {count(len(cells), 'block')}, in"
        f" {sum(is_tried)} of {count(len(is_tried), 'size class', 'size classes')}"
    )


def render_coverage(searches: Sequence[Searched]) -> str:
    """Return a table of the tried blocks, with a row per block and size class and a column per
    search. A cell has the results, or nothing if it was not tried."""
    columns = []
    for searched in searches:
        hexagon = find_any_soc(searched.soc).hexagon
        columns.append(f"{searched.scheme} {searched.soc} (V{hexagon})")
    rows = []
    for block, sizes in searches[0].cells.items():
        for size in sizes:
            ends = [_show_ends(searched.cells[block][size]) for searched in searches]
            rows.append((block, size, *ends))
    return make_markdown_table(("block", "sizes", *columns), rows) + "\n"


def _show_ends(ends: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {end}" for end, number in sorted(ends.items()))


def describe_finding(finding: Finding) -> str:
    """Return a finding as one line, such as ``wrong: add -> layer_norm (add: over_batch), 2.0 dB
    instead of 68.9, 10/10 seeds``."""
    relations = f" ({', '.join(finding.relations)})" if finding.relations else ""
    reached = ""
    if finding.sqnr_db is not None:
        reached = f", {finding.sqnr_db:.1f} dB instead of {finding.predicted_db:.1f}"
    notes = ""
    if not finding.shrunk:
        notes += ", not shrunk further"
    if finding.block:
        notes += f", in {finding.block}"
    if finding.known:
        notes += f", known: {finding.known}"
    if finding.mended_by:
        notes += f", right with {' or '.join(finding.mended_by)}"
    return (
        f"{finding.end}: {' -> '.join(finding.operators)}{relations}{reached},"
        f" {finding.failed}/{finding.repeats} seeds{notes}"
    )


def render_markdown(finding: Finding, version: str, toolchain: str) -> str:
    """Return a bug report: the result, the versions, the graph, a table of variations, and a
    script."""
    reached = (
        ""
        if finding.sqnr_db is None
        else f": {finding.sqnr_db} dB, {finding.predicted_db} dB expected"
    )
    block, _, size = finding.block.partition(" ")
    late = "A smaller graph may have the fault: there was no time to shrink it further."
    parts = [
        f"# {' -> '.join(finding.operators)} in {finding.scheme} is {finding.end}{reached}",
        f"Found on the HTP emulator with {toolchain}, SoC {finding.soc}.",
        f"```text\n{finding.graph.rstrip()}\n```",
        f"It is a part of the block `{block}` in the sizes of `{size}`." * bool(finding.block),
        late * (not finding.shrunk),
        f"The cause is known: `{finding.known}`." * bool(finding.known),
        f"{finding.cause[:1].upper()}{finding.cause[1:]}." * bool(finding.cause),
        f"The message: `{finding.why}`" * bool(finding.why),
        f"The result is the same with {finding.failed} of {finding.repeats} other seeds.",
    ]
    rows = [("none", f"{finding.end}{reached}"), *((text, "right") for text in finding.right)]
    rows += [(f"the rewrite {name} of `qnn-ci mend`", "right") for name in finding.mended_by]
    rows += [(text, "not right") for text in finding.also_wrong]
    script = drop_unused(SCRIPTS[finding.frontend](parse_graph(finding.graph), finding, version))
    parts += [make_markdown_table(("change", "result"), rows), f"```python\n{script.rstrip()}\n```"]
    return "\n\n".join(filter(None, parts)) + "\n"


def drop_unused(script: str) -> str:
    """Return a script without the functions that it does not call."""
    # From the last one to the first: a function may be called only by a later one that is dropped,
    # and the positions of earlier ones stay correct.
    for function in reversed([*FUNCTION.finditer(script)]):
        name = function[1] or function[2]
        without = script[: function.start()] + script[function.end() :]
        if f"{name}(" not in without:
            script = without
    return script


def write_script(graph: Graph, finding: Finding, version: str) -> str:
    """Return Python code that builds a graph as an ONNX model, runs it with onnxruntime on the CPU
    and on QNN, and compares the outputs."""
    from ci.faults.onnx_graphs import list_calls
    from ci.onnx.options import choose_options

    scheme = Scheme(finding.scheme)
    calls, fixed = list_calls(graph)
    tensors = {name: _draw(tensor) for name, tensor in graph.tensors.items()}
    stored = {name: text for name, text in tensors.items() if graph.is_constant(name)}
    recipe = scheme.recipe
    kinds = {"activations": recipe.activations, "weights": recipe.weights}
    quantize = _fill("onnx_quantize", **kinds, per_channel=recipe.per_channel)
    return _fill(
        "onnx",
        version=version,
        constants=_show_entries(fixed | stored),
        inputs=_show_entries({name: tensors[name] for name in graph.inputs}),
        nodes="".join(f"    {call},\n" for call in calls),
        outputs=list(graph.outputs),
        quantize=quantize if scheme.quantized else "",
        soc=choose_options(scheme, finding.soc, {})["soc_model"],
        half=int(not scheme.quantized),
    )


def write_executorch_script(graph: Graph, finding: Finding, version: str) -> str:
    """Return Python code that lowers a graph with ExecuTorch, runs it, and compares the outputs
    with those of torch."""
    scheme = Scheme(finding.scheme)
    quantize = _fill("executorch_quantize", soc=finding.soc, dtype=scheme.recipe.dtype)
    return _fill(
        "executorch",
        version=version,
        net=write_net(graph),
        quantize=quantize if scheme.quantized else "",
        fp16=not scheme.quantized,
        soc=finding.soc,
        convolution=scheme.recipe.linear_as_convolution,
    )


def write_litert_script(graph: Graph, finding: Finding, version: str) -> str:
    """Return Python code that converts a graph to a .tflite file, writes it with samples next to
    it, and compares the outputs of LiteRT on the CPU with those of torch. Only a phone or this
    project runs what LiteRT's plugin compiles."""
    return _fill("litert", version=version, net=write_net(graph), soc=finding.soc)


def write_net(graph: Graph) -> str:
    """Return Python code that defines a graph as a torch module, ``net``, with its ``inputs``."""
    from ci.faults.torch_graphs import write_forward

    tensors = {name: _draw(tensor) for name, tensor in graph.tensors.items()}
    constants = [
        f"        self.c_{name} = torch.nn.Parameter({text}, requires_grad=False)"
        for name, text in tensors.items()
        if graph.is_constant(name) and not graph.tensors[name].is_number
    ]
    return _fill(
        "net",
        constants="\n".join(constants),
        forward="\n".join(f"    {line}" for line in write_forward(graph).splitlines()),
        inputs=", ".join(tensors[name] for name in graph.inputs),
    )


SCRIPTS: Mapping[str, Callable[[Graph, Finding, str], str]] = {
    "onnx": write_script,
    "executorch": write_executorch_script,
    "litert": write_litert_script,
}


def _fill(name: str, **values: object) -> str:
    """Return the text of a template with these values."""
    return Template(read_text(TEMPLATES / f"{name}.txt")).substitute(values).rstrip("\n")


def _show_entries(texts: Mapping[str, str]) -> str:
    return "".join(f'    "{name}": {text},\n' for name, text in texts.items())


def _draw(tensor: Tensor) -> str:
    sizes = ", ".join(map(str, tensor.shape))
    return f"{tensor.like}({sizes})" if tensor.value is None else f"whole({tensor.value}, {sizes})"
