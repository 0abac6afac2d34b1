"""The simulator's estimate, through ExecuTorch and ONNX Runtime, changes neither a program nor a
verdict, and crashes nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.conftest import MakeOnce
from tests.stand_ins.runs import JUDGED, run_to_end

pytestmark = [pytest.mark.emulator, pytest.mark.timeout(1200)]
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
        made = make_once(name, lambda place: run_lane(place, verb, *options))
        cases = json.loads((made / "reports" / verb.replace("-", "_") / "report.json").read_text())
        paths = sorted(made.glob(f"kept/*/artifact/**/{PROGRAMS[verb]}"))
        return cases["cases"], [*map(read, paths)]

    (plain, programs), (estimated, others) = run(), run("--estimate")
    assert len(programs) == len(plain) == 2
    assert programs == others
    for one, other in zip(plain, estimated, strict=True):
        assert (one["status"], one["sqnr_db"]) == (other["status"], other["sqnr_db"])
        assert one["estimate"] is None
        simulation = other["estimate"]["simulation"]
        assert simulation["soc"] == "QCS9100"
        assert 0 < simulation["lower_cycles"] <= simulation["cycles"] <= simulation["upper_cycles"]
        assert simulation["missing_ops"] == 0
        lines = [cost["place"] for cost in simulation["costs"] if cost["place"]]
        assert lines
        assert all(line.startswith("net.py:") for line in lines)
        assert bool(other["estimate"]["times"]) != bool(other["estimate"]["unknown"])


def test_several_graphs_with_a_node_on_the_cpu_have_cycles_but_no_time(tmp_path: Path) -> None:
    """ONNX Runtime writes the profile of all graphs but the last twice."""
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
    said = run_to_end([sys.executable, "-m", "ci", "estimate", *words], timeout_s=300)
    (case,) = json.loads(said[said.index("{") :])["cases"]
    assert case["estimate"]["unknown"] == "1 node runs on the CPU, which is not simulated"
    assert case["estimate"]["simulation"]["graphs"] == 2
    assert case["estimate"]["simulation"]["cycles"] > 0


HOOKED = """
import os, sys
from pathlib import Path

import torch

from ci.executorch.internals import qc_schema, utils
from ci.executorch.lower import sign_by_content
from ci.executorch.simulator import SimulatorHook

def lower(level):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    options = utils.generate_htp_compiler_spec(use_fp16=True)
    spec = utils.generate_qnn_executorch_compiler_spec(
        soc_model=qc_schema.QcomChipset["QCS9100"], backend_options=options, profile_level=level
    )
    with torch.no_grad():
        edge = utils.to_edge_transform_and_lower_to_qnn(net, (torch.rand(1, 3, 16, 16),), spec)
        return sign_by_content(edge.to_executorch().buffer)

os.chdir(sys.argv[3])
library = Path(os.environ["QNN_SDK_ROOT"], "lib/x86_64-linux-clang/libQnnHtp.so")
hook = SimulatorHook(library)
if sys.argv[1] == "hooked":
    hook.install()
Path(sys.argv[2]).write_bytes(lower(3))
observed = hook.observe()
print(len(observed.events), len(observed.schematics), b"traceEvents" in observed.traces)
"""


@pytest.mark.nightly
def test_the_hook_changes_no_byte_of_the_program_that_it_observes(tmp_path: Path) -> None:
    pytest.importorskip("executorch", reason="ExecuTorch is not installed")
    from provisioning.artifacts.environment import provision_profile
    from provisioning.console.progress import Progress

    environment = provision_profile("emulator", Progress()).apply(os.environ)
    said = {}
    for way in ("hooked", "plain"):
        words = [sys.executable, "-c", HOOKED, way, str(tmp_path / way), str(tmp_path)]
        said[way] = run_to_end(words, timeout_s=300, env=environment).splitlines()[-1]
    assert (tmp_path / "hooked").read_bytes() == (tmp_path / "plain").read_bytes()
    assert said["plain"] == "0 0 False"
    assert said["hooked"].endswith(" 1 True")


FUZZED = """
import os, resource, sys
from collections import Counter
from pathlib import Path

import torch

from ci.cases.forked import run_forked
from ci.executorch.internals import utils
from ci.executorch.lower import compiler_spec, sign_by_content
from ci.executorch.quantize import make_quantizer, quantize_method
from ci.executorch.simulator import SimulatorHook
from ci.faults.executorch_runner import before_forks
from ci.faults.generate import generate
from ci.faults.torch_graphs import Bundle, Module, draw_sets
from ci.latency.simulation import read_simulation
from ci.models.lowering_options import Choices
from ci.models.model import Model
from ci.models.numerics import fix_numerics
from ci.models.schemes import Scheme
from provisioning.errors import FailedError, QnnCiError

FAILED = "not lowered"
TRACED = Choices(profile_level="optrace")
LIBRARY = Path(os.environ["QNN_SDK_ROOT"], "lib/x86_64-linux-clang/libQnnHtp.so")
SCHEMES = (Scheme.FP16, Scheme.A8W8, Scheme.A16W8)


def lower(scheme, numbers, hooked):
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))  # QNN optimizes some graphs for minutes
    graphs = [generate(74, number, "executorch") for number in numbers]
    module = Bundle([Module(graph, 0) for graph in graphs]).eval()
    drawn = [draw_sets(graph, 0) for graph in graphs]
    sets = tuple(
        tuple(torch.from_numpy(array) for part in one for array in part)
        for one in zip(*drawn, strict=True)
    )
    fix_numerics()
    if scheme.quantized:
        model = Model("graphs", module, sets, sets)
        module = quantize_method(model, scheme, TRACED, make_quantizer("QCS9100"))
    hook = SimulatorHook(LIBRARY)
    if hooked:
        hook.install()
    with torch.no_grad():
        edge = utils.to_edge_transform_and_lower_to_qnn(
            module,
            sets[0],
            compiler_spec(scheme, "QCS9100", TRACED),
            convert_linear_to_conv2d=scheme.recipe.linear_as_convolution,
            skip_mutable_buffer=True,
        )
    program = sign_by_content(edge.to_executorch().buffer)
    observed = hook.observe()
    found = "plain"
    if hooked:
        try:
            simulation = read_simulation(observed, "QCS9100", len(observed.schematics))
            found = "Missing Ops" if simulation.missing_ops else "simulated"
        except FailedError as error:
            found = str(error)
    for one in Path().glob("*_schematic.bin"):
        one.unlink()
    return program, found


def attempt(scheme, numbers, hooked):
    try:
        return run_forked(lambda: lower(scheme, numbers, hooked))
    except QnnCiError as error:
        return str(error).partition("(")[0][:80], FAILED


def try_graphs(scheme, numbers):
    one, found = attempt(scheme, numbers, hooked=True)
    if found == FAILED and len(numbers) > 1:
        half = len(numbers) // 2
        try_graphs(scheme, numbers[:half])
        try_graphs(scheme, numbers[half:])
        return
    if found == FAILED or compares:
        other, _ = attempt(scheme, numbers, hooked=False)
        # A program of several graphs has some bytes that differ from run to run.
        same = one == other if found == FAILED else len(one) == len(other)
        assert same, (numbers, one[:80], other[:80])
    ends[found.translate({ord(digit): None for digit in "0123456789,"})] += len(numbers)


first, last, size = map(int, sys.argv[1:4])
compares = sys.argv[5] == "compare"
os.chdir(sys.argv[4])
torch.set_num_threads(1)  # threads do not survive a fork
before_forks()
ends = Counter()
for number in range(first, last, size):
    scheme = SCHEMES[number // size % len(SCHEMES)]
    try_graphs(scheme, list(range(number, min(number + size, last))))
    print(number + size, dict(ends), flush=True)
print("ends:", dict(ends))
"""


@pytest.mark.nightly
def test_the_hook_changes_no_result_of_generated_graphs(tmp_path: Path) -> None:
    pytest.importorskip("executorch", reason="ExecuTorch is not installed")
    from provisioning.artifacts.environment import provision_profile
    from provisioning.console.progress import Progress

    environment = provision_profile("emulator", Progress()).apply(os.environ)
    words = [sys.executable, "-c", FUZZED, "0", "9", "3", str(tmp_path), "compare"]
    said = run_to_end(words, timeout_s=600, env=environment).splitlines()[-1]
    assert said.startswith("ends: ")
    assert "simulated" in said
