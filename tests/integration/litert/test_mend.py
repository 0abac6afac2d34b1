"""Red .tflite files that mend makes green on the emulator: as LiteRT's CPU runs them, the new files
return what the old ones return."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.graphs.litert_file import list_entries, read_model
from ci.graphs.litert_session import Reference
from ci.litert.suite import Net, make_model
from tests.build.litert_nets import make_wide_channel, write_quantized
from tests.build.pinned_qnn import NEEDS_PINNED_QNN

ROOT = Path(__file__).parents[3]
pytestmark = NEEDS_PINNED_QNN
PADS = np.array([[0, 0], [2, 2], [2, 2], [0, 0]], np.int32)


def make_positions(net: Net) -> tuple[int, int]:
    """Positions that are added to a batch in front of a sigmoid."""
    shape = (2, 16, 64)
    x = net.add_tensor(shape, "x")
    total = net.call("ADD", (x, net.draw(16, 64)), shape, "AddOptions")
    return x, net.call("LOGISTIC", (total,), shape)


def make_padded(net: Net) -> tuple[int, int]:
    """A convolution whose padding is as long as its kernel."""
    x = net.add_tensor((1, 8, 8, 4), "x")
    padded = net.call("PAD", (x, net.add_constant(PADS)), (1, 12, 12, 4), "PadOptions")
    sizes = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1, "padding": 1}
    reads = (padded, net.draw(4, 2, 2, 4), net.draw(4, scale=0.1))
    return x, net.call("CONV_2D", reads, (1, 11, 11, 4), "Conv2DOptions", **sizes)


def make_longer_rows(net: Net) -> tuple[int, int]:
    """Zeros at the end of the last two axes, as litert-torch writes the output padding of a
    transposed convolution."""
    counts = net.add_constant(np.array([[0, 0], [0, 0], [0, 1], [0, 1]], np.int32))
    x = net.add_tensor((1, 8, 8, 8), "x")
    return x, net.call("PAD", (x, counts), (1, 8, 9, 9), "PadOptions")


Shape = tuple[int, ...]
RED: dict[str, tuple[Callable[[Net], tuple[int, int]], str, Shape]] = {
    "positions": (make_positions, "expand-constant", (2, 16, 64)),
    "padded": (make_padded, "surround-kernel", (1, 8, 8, 4)),
    "longer": (make_longer_rows, "concatenate-padding", (1, 8, 8, 8)),
}


def test_red_files_become_green_and_compute_the_same(tmp_path: Path) -> None:
    words = ["mend", "--json", "--reports", str(tmp_path), "--output", str(tmp_path / "mended")]
    for name, (make, *_) in RED.items():
        net = Net()
        x, y = make(net)
        net.end([x], [y])
        path = tmp_path / f"{name}.tflite"
        path.write_bytes(net.pack())
        words += ["--model", str(path)]
    command = [sys.executable, "-m", "ci", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    cases = {Path(case["model"]).stem: case for case in json.loads(ended.stdout)["cases"]}
    assert ended.returncode == 0
    for name, (_, rewrite, shape) in RED.items():
        case = cases[name]
        assert (case["result"], case["rewrites"]) == ("mended", [rewrite])
        assert case["after"]["sqnr_db"] > 40 > case["before"]["sqnr_db"]
        files = [tmp_path / f"{name}.tflite", tmp_path / "mended" / f"{name}.tflite"]
        inputs = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        outputs = []
        for file in files:
            data = file.read_bytes()
            model = read_model(data)
            (sample,) = Reference(data, model, list_entries(model)).run([[inputs]])
            outputs.append(sample[0])
        np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-5, atol=1e-6)


def mend(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    reports = ["--reports", str(folder / "reports"), "--output", str(folder / "mended")]
    command = [sys.executable, "-m", "ci", "mend", *words, *reports]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)


def test_a_quantized_file_without_a_float_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(make_model("dense_int16"))
    ended = mend(tmp_path, "--model", str(path))
    assert ended.returncode == 2
    assert "net.tflite is quantized, and its float model is not known" in ended.stderr
    assert not [*(tmp_path / "mended").iterdir()]


def make_padded_pool(net: Net) -> None:
    """An average pool behind a padding, which the NPU computes wrongly in int8."""
    x = net.add_tensor((1, 8, 8, 4), "x")
    pads = net.add_constant(np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32))
    padded = net.call("PAD", (x, pads), (1, 10, 10, 4), "PadOptions")
    sizes = {"strideH": 2, "strideW": 2, "filterHeight": 2, "filterWidth": 2, "padding": 1}
    pool = net.call("AVERAGE_POOL_2D", (padded,), (1, 5, 5, 4), "Pool2DOptions", **sizes)
    net.end([x], [pool])


IN_FLOAT: dict[str, tuple[Callable[[Net], None], set[str]]] = {
    "lost in 8 bits": (make_wide_channel, {"wide", "narrow"}),
    "known to be wrong in int8": (make_padded_pool, {"value_3"}),
}


@pytest.mark.parametrize("name", IN_FLOAT)
def test_operators_of_a_red_quantized_file_are_computed_in_float(name: str, tmp_path: Path) -> None:
    make, names = IN_FLOAT[name]
    path, _ = write_quantized(tmp_path, make)
    before = path.read_bytes()
    (tmp_path / "qnn.toml").write_text(
        'extends = "default"\n[models.net]\npath = "net.tflite"\nfloat_model = "float.tflite"\n'
    )
    words = ("--policy", str(tmp_path / "qnn.toml"), "--json")
    ended = mend(tmp_path, *words)
    assert ended.returncode == 0, ended.stderr
    (case,) = json.loads(ended.stdout)["cases"]
    parts = {part["tensor"]: part["scheme"] for part in case["parts"]}
    assert (case["result"], parts) == ("mended", dict.fromkeys(names, "fp16"))
    assert case["after"]["sqnr_db"] > 30 > 15 > case["before"]["sqnr_db"]
    assert case["after"]["cpu_nodes"] == 0
    assert path.read_bytes() == before
    # The policy that was written judges the new file by itself, with the same result.
    words = ("test-litert", "--json", "--reports", str(tmp_path / "judged"), "--policy")
    command = [sys.executable, "-m", "ci", *words, str(tmp_path / "mended" / "qnn.toml")]
    judged = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    (again,) = json.loads(judged.stdout)["cases"]
    assert again["judgement"]["status"] == "passed"
    assert again["judgement"]["sqnr_db"] == case["after"]["sqnr_db"]


def test_the_cause_of_a_red_file_is_proven_by_a_rewrite(tmp_path: Path) -> None:
    net = Net()
    x, y = make_positions(net)
    net.end([x], [y])
    path = tmp_path / "net.tflite"
    path.write_bytes(net.pack())
    words = ["test-litert", "--json", "--model", str(path), "--reports", str(tmp_path)]
    command = [sys.executable, "-m", "ci", *words, "--diagnose", "120"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    (case,) = json.loads(ended.stdout)["cases"]
    first = case["judgement"]["findings"][0]["causes"][0]
    assert (first["name"], first["certainty"]) == ("broadcast-before-sigmoid-in-litert", "proven")
    assert "with expand-constant" in first["text"]
