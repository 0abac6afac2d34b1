"""The audit asks QNN's provider without compiling, and agrees with what test-onnx compiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from provisioning.errors import ExitCode

pytestmark = pytest.mark.emulator
ROOT = Path(__file__).resolve().parents[3]


def save_model(path: Path) -> None:
    """A file with two operators that QNN's provider does not take, the first between others."""
    weights = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    constants = [
        numpy_helper.from_array(weights, "w"),
        numpy_helper.from_array(np.array([2, 8, 8]), "s"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node("Erf", ["a"], ["b"], "erf"),
        helper.make_node("Reshape", ["b", "s"], ["c"], "reshape"),
        helper.make_node("Det", ["c"], ["d"], "determinant"),
        helper.make_node("Relu", ["b"], ["e"], "relu"),
    ]
    ports = [("x", [4, 64]), ("e", [4, 32]), ("d", [2])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in ports]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def run(folder: Path, *words: str) -> Any:
    """The JSON of a verb that finds red cases."""
    argv = [sys.executable, "-m", "ci", *words, "--json", "--offline"]
    env = {**os.environ, "QNN_CI_CALLER_DIR": str(folder)}
    ended = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == ExitCode.FAILED, ended.stderr
    return json.loads(ended.stdout)


def test_the_audit_of_a_file_counts_what_the_compiled_program_has(tmp_path: Path) -> None:
    save_model(tmp_path / "net.onnx")
    cases = ("--model", "net.onnx", "--scheme", "fp16", "--scheme", "u8")
    place = str(tmp_path / "reports")
    audited = run(tmp_path, "audit", *cases, "--reports", place)
    judged = run(tmp_path, "test-onnx", *cases, "--reports", place, "--diagnose", "0")
    for case, program in zip(audited["cases"], judged["cases"], strict=True):
        taken = sum(row["count"] for row in case["operators"] if row["taken"])
        left = sum(row["count"] for row in case["operators"] if not row["taken"])
        facts = program["program"]
        assert (case["scheme"], taken, left) == (
            program["scheme"],
            facts["delegated_nodes"],
            facts["fallback_nodes"],
        )
        reasons = {row["op"]: row["reason"] for row in case["operators"] if not row["taken"]}
        assert reasons.keys() >= {"Erf", "Det"}
        assert "not supported by QNN EP" in reasons["Det"]
        assert case["border_bytes"] is None  # partitions are not known before they are compiled
