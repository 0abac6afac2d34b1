"""The simulator's estimate, through ExecuTorch and ONNX Runtime, changes neither a program nor a
verdict, and crashes nothing."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.conftest import MakeOnce
from tests.stand_ins.runs import JUDGED, run_to_end

pytestmark = [pytest.mark.emulator]
LANES = {
    "test-emulator": ("executorch", ("fp16", "8a8w")),
    "test-onnx": ("onnxruntime_qnn", ("fp16", "u8")),
}
PROGRAMS = {"test-emulator": "*.pte", "test-onnx": "model.onnx"}
# ONNX Runtime's names contain a hash that differs from run to run, which the seal contains, too.
HASHED = re.compile(r"QNNExecutionProvider_\d+|[0-9a-f]{64}")
NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 32, 3), torch.nn.Conv2d(32, 64, 3)

    def forward(self, image):
        return self.second(torch.relu(self.first(image))).mean((2, 3))


def factory():
    torch.manual_seed(0)
    return Net(), (torch.rand(1, 3, 128, 128),)
"""


def run_lane(directory: Path, verb: str, *options: str) -> None:
    (directory / "net.py").write_text(NET)
    words = [sys.executable, "-m", "ci", verb, "--model", f"{directory}/net.py:factory"]
    words += [word for scheme in LANES[verb][1] for word in ("--scheme", scheme)]
    words += ["--no-cache", "--reports", str(directory / "reports"), *options]
    words += ["--keep-artifacts", str(directory / "kept")]
    run_to_end(words, timeout_s=900, codes=JUDGED)


@pytest.mark.nightly
@pytest.mark.parametrize("verb", LANES)
def test_an_estimate_changes_neither_program_nor_verdict(make_once: MakeOnce, verb: str) -> None:
    package = LANES[verb][0]
    if not importlib.util.find_spec(package):
        pytest.skip(f"{package} is not installed")

    def read(path: Path) -> Any:
        if path.suffix == ".pte":
            return path.read_bytes()
        import onnx

        model = onnx.load(path, load_external_data=False)
        for row in model.graph.node[0].attribute:
            if row.name == "ep_cache_context":  # the length of the name moves what follows it
                row.s = str(round(len(row.s) / 4096)).encode()
        return HASHED.sub("", str(model))

    def run(*options: str) -> tuple[list[dict[str, Any]], list[Any]]:
        name = f"estimate-{verb}-{len(options)}"
        folder = make_once(name, lambda place: run_lane(place, verb, *options))
        cases = json.loads(
            (folder / "reports" / verb.replace("-", "_") / "report.json").read_text()
        )
        paths = sorted(folder.glob(f"kept/*/artifact/**/{PROGRAMS[verb]}"))
        return cases["cases"], [*map(read, paths)]

    (plain, programs), (estimated, estimated_programs) = run(), run("--estimate")
    assert len(programs) == len(plain) == 2
    assert programs == estimated_programs
    for plain_case, estimated_case in zip(plain, estimated, strict=True):
        assert (plain_case["judgement"]["status"], plain_case["judgement"]["sqnr_db"]) == (
            estimated_case["judgement"]["status"],
            estimated_case["judgement"]["sqnr_db"],
        )
        assert plain_case["program"]["estimate"] is None
        estimate = estimated_case["program"]["estimate"]
        simulation = estimate["simulation"]
        assert simulation["soc"] == "QCS9100"
        assert 0 < simulation["lower_cycles"] <= simulation["cycles"] <= simulation["upper_cycles"]
        assert simulation["missing_ops"] == 0
        lines = [cost["place"] for cost in simulation["costs"] if cost["place"]]
        assert lines
        assert all(line.startswith("net.py:") for line in lines)
        assert bool(estimate["times"]) != bool(estimate["unknown"])


def test_an_estimate_with_a_node_on_the_cpu_has_cycles_but_no_time(tmp_path: Path) -> None:
    """ONNX Runtime writes the profile of every graph except the last one twice."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
    weights = onnx.numpy_helper.from_array(np.full((3, 3, 3, 3), 0.1, np.float32), "w")
    nodes = [
        onnx.helper.make_node(kind, [before, *extra], [after])
        for kind, before, extra, after in (
            ("Conv", "x", ["w"], "a"),
            ("Sinh", "a", [], "b"),
            ("Conv", "b", ["w"], "y"),
        )
    ]
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3, size, size])
        for name, size in (("x", 36), ("y", 32))
    ]
    graph = onnx.helper.make_graph(nodes, "net", ends[:1], ends[1:], [weights])
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "a.onnx"
    )
    words = ["--model", str(tmp_path / "a.onnx"), "--scheme", "fp16", "--json"]
    words += ["--trace", str(tmp_path / "traces")]
    output = run_to_end([sys.executable, "-m", "ci", "estimate", *words], timeout_s=1200)
    assert any(path.is_file() for path in (tmp_path / "traces").rglob("*"))
    (case,) = json.loads(output[output.index("{") :])["cases"]
    assert case["estimate"]["unknown"] == "1 node runs on the CPU, which is not simulated"
    assert case["estimate"]["simulation"]["graphs"] == 2
    assert case["estimate"]["simulation"]["cycles"] > 0
