"""What is in the key of a context: everything that decides about it."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("torch", reason="torch is not installed")


from ci.cases.spec import CaseSpec
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from ci.onnx import toolchain as lane
from ci.onnx.engine import OnnxEngine
from tests.qnn_provider.models import write_relu

ROOM = Path(__file__).parents[4] / "ci" / "onnx"


def test_the_content_of_each_package_that_compiles_is_in_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # None of these computes a tensor. The copy that `./nox -s mutants` makes imports mutmut.
    not_computing = {"ci", "provisioning", "google", "msgspec", "mutmut"}
    digested: list[str] = []
    monkeypatch.setattr(lane, "digest_packages", lambda names: digested.extend(names) or "d")
    lane.name_toolchain((), exports=True)
    nodes = [node for path in ROOM.rglob("*.py") for node in ast.walk(ast.parse(path.read_bytes()))]
    modules = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    modules += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    imported = {name.partition(".")[0] for name in modules}
    assert "onnxruntime" in imported
    assert imported - not_computing - sys.stdlib_module_names <= {*digested}
    assert {"onnxruntime_qnn", "onnxruntime", "onnx"} <= {*lane.PACKAGES}


def test_every_setting_of_a_context_changes_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        (replace(engine, user_options={"vtcm_mb": "4"}), spec),
        (replace(engine, user_options={"vtcm_mb": "8"}), spec),
        (replace(engine, embed=False), spec),
        (replace(engine, saver=True), spec),
        (replace(engine, direct=True), spec),
        (engine, replace(spec, layers=True)),
    ]
    keys = [changed_engine.key(case) for changed_engine, case in pairs]
    assert len(set(keys)) == len(keys)
    assert engine.key(spec) == keys[0]
    for text in ("one", "two"):
        (tmp_path / "libOps.so").write_text(text)
        library = str(tmp_path / "libOps.so")
        packages = f"Add:{library}:provide:CPU"
        options = (
            {"backend_path": library},
            {"op_packages": packages},
            {"op_packages": f"Sub:{first}:provide:CPU,{packages}"},
        )
        keys += [
            replace(engine, user_options=provider_options).key(spec) for provider_options in options
        ]
    plain = write_relu(tmp_path / "plain.onnx")
    judged = replace(spec, source=Source(first, float_model=str(plain)))
    keys.append(engine.key(judged))
    plain.write_bytes((tmp_path / "two.onnx").read_bytes())
    keys.append(engine.key(judged))
    assert len(set(keys)) == len(keys)
    # The path of QNN does not matter; its digest is part of the toolchain.
    assert replace(engine, sdk=Path("/elsewhere")).key(spec) == keys[0]
    monkeypatch.setattr("ci.onnx.engine.NUMERICS", "computed otherwise")
    assert engine.key(spec) not in keys
