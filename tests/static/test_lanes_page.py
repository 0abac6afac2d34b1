"""docs/reference/lanes.md says which features the lanes have, and why one lacks the others."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "lanes.md"
# For each feature, what implements it: for PyTorch, for ONNX and for LiteRT; "" if nothing does.
CODE = {
    "predicted noise": (
        "ci/analysis/noise.py:predict_noise",
        "ci/analysis/noise.py:predict_noise",
        "ci/analysis/noise.py:predict_noise",
    ),
    "parts of an output": (
        "ci/executorch/graph_reader.py:find_module_parts",
        "ci/onnx/compile.py:describe_file",
        "ci/litert/compile.py:describe_model",
    ),
    "known faults": (
        "ci/executorch/graph_reader.py:describe_module",
        "ci/onnx/compile.py:describe_file",
        "ci/litert/compile.py:describe_model",
    ),
    "where quantization costs": (
        "ci/analysis/layers.py:find_loss",
        "ci/analysis/layers.py:find_loss",
        "ci/litert/losses.py:find_quantization_loss",
    ),
    "where float16 costs": (
        "ci/analysis/layers.py:find_float16_loss",
        "ci/analysis/layers.py:find_float16_loss",
        "ci/analysis/layers.py:find_float16_loss",
    ),
    "results of all layers": (
        "ci/executorch/layers.py:expose_layers",
        "ci/onnx/layers.py:expose_layers",
        "ci/litert/layers.py:expose_layers",
    ),
    "[experiments]": (
        "ci/mend/experiments.py:Experiments",
        "ci/mend/experiments.py:Experiments",
        "ci/mend/experiments.py:Experiments",
    ),
    "tensors that leave": (
        "ci/analysis/clipping.py:choose_clipped",
        "ci/analysis/clipping.py:choose_clipped",
        "ci/analysis/clipping.py:choose_clipped",
    ),
    "integers and booleans": (
        "ci/analysis/ties.py:find_ties",
        "ci/analysis/ties.py:find_ties",
        "ci/analysis/ties.py:find_ties",
    ),
    "mixtures of schemes": (
        "ci/analysis/mixtures.py:assign_parts",
        "ci/analysis/mixtures.py:assign_parts",
        "ci/mend/litert_mixtures.py:write_quantized",
    ),
    "`localise`": (
        "ci/audit/localise_graph.py:Division",
        "ci/audit/localise_graph.py:Division",
        "ci/audit/localise_graph.py:Division",
    ),
    "`mend`: rewrites": (
        "ci/mend/proof.py:RewriteProof",
        "ci/mend/proof.py:RewriteProof",
        "ci/mend/proof.py:RewriteProof",
    ),
    "models that keep values": (
        "ci/models/eager.py:run_eager",
        "",
        "ci/graphs/litert_states.py:expose_states",
    ),
    "`mend`: a search": (
        "ci/mend/mixture_search.py:choose_mixtures",
        "ci/mend/mixture_search.py:choose_mixtures",
        "ci/mend/mixture_search.py:choose_mixtures",
    ),
    "evidence": (
        "ci/report/evidence.py:parse_statement",
        "ci/report/evidence.py:parse_statement",
        "ci/report/evidence.py:parse_statement",
    ),
    "times by QNN's simulator": (
        "ci/latency/profile_hook.py:SimulatorHook",
        "ci/onnx/simulate.py:simulate_source",
        "ci/litert/simulate.py:simulate_litert",
    ),
    "`fuzz`": (
        "ci/faults/executorch_runner.py:run_modules",
        "ci/faults/onnx_graphs.py:run_items",
        "ci/faults/litert_runner.py:run_converted",
    ),
    "`audit`": (
        "ci/audit/operators_partitions.py:partition_model",
        "ci/audit/operators_files.py:ask_onnxruntime",
        "ci/audit/operators_files.py:ask_litert",
    ),
    "a phone": (
        "ci/verbs/emulate.py:choose_socs",
        "",
        "",
    ),
    "a board": (
        "ci/verbs/emulate.py:choose_socs",
        "ci/verbs/board.py:ready_board",
        "",
    ),
}
# Their engines differ: how a model is exported, compiled and simulated, how results are added,
# whether a policy or the file has a mixture, and whether a quantized model runs without rounding.
ENGINES = {
    "where quantization costs",
    "mixtures of schemes",
    *("parts of an output", "known faults", "results of all layers", "times by QNN's simulator"),
    "models that keep values",
    "`fuzz`",
    "`audit`",
    "a board",
}
COUNTERPARTS = {  # what a lane would have under these names, if it had the feature
    "a phone": (("ci/verbs/onnx.py", "ci/verbs/litert.py"), "choose_socs"),
    "a board": (("ci/verbs/litert.py",), "read_board"),
}


def list_definitions(path: Path) -> set[str]:
    """The names that a module defines, and "" for the module itself."""
    body = ast.parse(path.read_text("utf-8")).body
    return {"", *(str(getattr(statement, "name", "")) for statement in body)}


def read_rows() -> dict[str, list[str]]:
    """The cells of each row of the table, by the feature's words before a comma."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    lanes_by_feature = {}
    for line in lines[1:]:
        feature, *lanes = (cell.strip() for cell in line.strip("|").split("|"))
        lanes_by_feature[feature] = lanes
    return lanes_by_feature


def test_each_feature_is_in_all_lanes_or_has_a_reason() -> None:
    rows = read_rows()
    assert len(rows) == len(CODE)
    for start, implementations in CODE.items():
        (lanes,) = (lanes for feature, lanes in rows.items() if feature.startswith(start))
        for place, cell in zip(implementations, lanes, strict=True):
            path, _, name = place.partition(":")
            if place:
                assert cell == "yes", (start, cell)
                assert name in list_definitions(ROOT / path), place
            else:
                assert cell.startswith("no: "), (start, cell)


def test_only_what_depends_on_the_engines_is_written_for_each_lane() -> None:
    separate = {feature for feature, places in CODE.items() if len({*filter(None, places)}) > 1}
    assert separate == ENGINES


def test_what_a_lane_lacks_is_still_missing() -> None:
    for feature, (patterns, name) in COUNTERPARTS.items():
        paths = [path for pattern in patterns for path in ROOT.glob(pattern)]
        defined = {definition for path in paths for definition in list_definitions(path)}
        assert name not in defined, f"{feature}: the page says that this lane lacks it"
