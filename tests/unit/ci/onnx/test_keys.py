"""What is in the key of a context: everything that decides about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from ci.cases.spec import CaseSpec
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from ci.onnx.engine import OnnxEngine
from tests.qnn_provider.models import write_relu


def test_whatever_decides_about_a_context_is_in_its_key(tmp_path: Path) -> None:
    first, second = (str(write_relu(tmp_path / f"{name}.onnx")) for name in ("one", "two"))
    (tmp_path / "two.onnx").write_bytes(Path(second).read_bytes() + b"\x1a\x00")
    spec = CaseSpec("one.onnx", Scheme.U8, "SM8650", Source(first))
    engine = OnnxEngine(toolchain=("onnxruntime 1", "qnn 2"), sdk=Path("/sdk"))
    pairs = [
        (engine, spec),
        (engine, replace(spec, scheme=Scheme.U16A8W)),
        (engine, replace(spec, scheme=Scheme.FP16)),
        (engine, replace(spec, soc="SM8750")),
        (engine, replace(spec, source=Source(second))),
        (replace(engine, toolchain=("onnxruntime 1", "qnn 3")), spec),
        (replace(engine, given={"vtcm_mb": "4"}), spec),
        (replace(engine, given={"vtcm_mb": "8"}), spec),
        (replace(engine, embed=False), spec),
        (replace(engine, saver=True), spec),
        (replace(engine, direct=True), spec),
    ]
    keys = [one.key(case) for one, case in pairs]
    assert len(set(keys)) == len(keys)
    assert engine.key(spec) == keys[0]
    # Where QNN lies decides nothing; its digest is in the toolchain.
    assert replace(engine, sdk=Path("/elsewhere")).key(spec) == keys[0]
