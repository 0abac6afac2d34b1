"""The remedies of errors.toml for ONNX models that their key ``proof`` calls tried: without them a
model is red for the rule's reason, and with them it is green."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

import numpy as np
import onnx
from onnx import numpy_helper, parser

from ci.explain.rules import read_rules
from ci.report.schema import Status
from ci.report.write import read_report
from provisioning.errors import ExitCode
from tests.stand_ins.runs import run_to_end

pytestmark = [pytest.mark.emulator, pytest.mark.nightly]
FORM = '<ir_version: 10, opset_import: ["": 21]> m ({0}[8,16] x) => ({0}[8,32] y) {{ {1} }}'
PRODUCT = """{0} q = QuantizeLinear({1}, s, z) a = DequantizeLinear(q, s, z)
    b = DequantizeLinear<{2}>(w, t) c = MatMul(a, b)
    p = QuantizeLinear(c, s, z) {3} = DequantizeLinear(p, s, z) {4}"""
CHOICE = """y = If(k) <
    then_branch = f () => (float[8,32] fy) {{ fm = MatMul(x, w) fy = Relu(fm) }},
    else_branch = g () => (float[8,32] gy) {{ gm = MatMul(x, w) gy = Erf(gm) }}>"""
COMPUTED = "r = ReduceSum<keepdims=0>(x) o = Constant<value=float {0.0}>() k = Greater(r, o)"
FLOAT = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)


def rounded(kind: Any, scales: Any, repeats: int = 1) -> dict[str, Any]:
    integers = np.round(FLOAT / np.repeat(scales, repeats, 0)).clip(-127, 127).astype(np.int8)
    return {"s": kind(0.2), "z": np.uint8(128), "t": np.asarray(scales, kind), "w": integers}


ONE = abs(FLOAT).max() / 127
PER_COLUMN = abs(FLOAT).max(0) / 127
BLOCKS = abs(FLOAT.reshape(4, 4, 32)).max(1) / 127
CASTS = ("xf = Cast<to=1>(x)", "xf", "axis=0", "yf", "y = Cast<to=10>(yf)")
# For each rule, and a finding of compile.py: the type of the ports, the graph and the weights of
# the red and of the green model.
PAIRS: dict[str, Any] = {
    "onnx-scale-types": (
        ("float16", PRODUCT.format("", "x", "axis=0", "y", ""), rounded(np.float16, ONE)),
        ("float16", PRODUCT.format(*CASTS), rounded(np.float32, ONE)),
    ),
    "onnx-blocked-scales": (
        (
            "float",
            PRODUCT.format("", "x", "axis=0, block_size=4", "y", ""),
            rounded(np.float32, BLOCKS, 4),
        ),
        ("float", PRODUCT.format("", "x", "axis=1", "y", ""), rounded(np.float32, PER_COLUMN)),
    ),
    "computed-condition": (
        ("float", COMPUTED + CHOICE.format(), {"w": FLOAT}),
        ("float", CHOICE.format(), {"w": FLOAT, "k": np.bool_(True)}),
    ),
}


def test_a_remedy_makes_a_red_onnx_model_green(tmp_path: Path) -> None:
    names = [f"{rule}-{state}" for rule in PAIRS for state in ("before", "after")]
    for name, (kind, body, initializers) in zip(names, sum(PAIRS.values(), ()), strict=True):
        model = parser.parse_model(FORM.format(kind, body))
        values = [
            numpy_helper.from_array(np.asarray(value), key) for key, value in initializers.items()
        ]
        model.graph.initializer.extend(values)
        onnx.save(model, tmp_path / f"{name}.onnx")
    ids = {rule.id: rule.finding_id for rule in read_rules()}
    for scheme in ("asis", "fp16"):
        names_of_scheme = [
            name for name in names if name.startswith("computed-condition") == (scheme == "fp16")
        ]
        words = [
            word for name in names_of_scheme for word in ("--model", str(tmp_path / f"{name}.onnx"))
        ]
        argv = [sys.executable, "-m", "ci", "test-onnx", "--scheme", scheme, *words]
        argv += ["--reports", str(tmp_path / scheme)]
        run_to_end(argv, timeout_s=600, codes=(ExitCode.FAILED,))
        cases = dict(
            zip(names_of_scheme, read_report(tmp_path / scheme / "test_onnx").cases, strict=True)
        )
        passed = {name for name, case in cases.items() if case.judgement.status is Status.PASSED}
        assert passed == {name for name in names_of_scheme if name.endswith("after")}
        for name in {*names_of_scheme} - passed:
            causes = {
                cause.name for finding in cases[name].judgement.findings for cause in finding.causes
            }
            assert ids.get(name.removesuffix("-before"), "") in causes


def test_every_onnx_rule_with_a_proof_here_has_a_red_and_green_pair() -> None:
    proven = {rule.id for rule in read_rules() if rule.proof.endswith(Path(__file__).name)}
    assert proven == PAIRS.keys() - {"computed-condition"}
