"""What is in the key of a context: everything that decides about it."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("torch", reason="torch is not installed")


from ci.cases.spec import CaseSpec
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from ci.onnx.engine import OnnxEngine
from ci.onnx.options import HTP, SAVER_LIBRARY
from ci.onnx.stages import StageError
from ci.verbs.lanes import onnx as lane
from tests.qnn_provider.models import write_relu

ROOM = Path(__file__).parents[4] / "ci" / "onnx"


def test_the_content_of_each_package_that_compiles_is_in_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # None of these computes a tensor. The copy that `./nox -s mutants` makes imports mutmut.
    own = {"ci", "provisioning", "google", "msgspec", "mutmut"}
    digested: list[str] = []
    monkeypatch.setattr(lane, "digest_packages", lambda names: digested.extend(names) or "d")
    lane.name_toolchain((), exports=True)
    nodes = [node for path in ROOM.rglob("*.py") for node in ast.walk(ast.parse(path.read_bytes()))]
    modules = [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
    modules += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    imported = {name.partition(".")[0] for name in modules}
    assert "onnxruntime" in imported
    assert imported - own - sys.stdlib_module_names <= {*digested}
    assert {"onnxruntime_qnn", "onnxruntime", "onnx"} <= {*lane.PACKAGES}


def test_whatever_decides_about_a_context_is_in_its_key(
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
        (replace(engine, given={"vtcm_mb": "4"}), spec),
        (replace(engine, given={"vtcm_mb": "8"}), spec),
        (replace(engine, embed=False), spec),
        (replace(engine, saver=True), spec),
        (replace(engine, direct=True), spec),
        (engine, replace(spec, layers=True)),
    ]
    keys = [one.key(case) for one, case in pairs]
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
        keys += [replace(engine, given=given).key(spec) for given in options]
    plain = write_relu(tmp_path / "plain.onnx")
    judged = replace(spec, source=Source(first, float_model=str(plain)))
    keys.append(engine.key(judged))
    plain.write_bytes((tmp_path / "two.onnx").read_bytes())
    keys.append(engine.key(judged))
    assert len(set(keys)) == len(keys)
    # Where QNN lies decides nothing; its digest is in the toolchain.
    assert replace(engine, sdk=Path("/elsewhere")).key(spec) == keys[0]
    monkeypatch.setattr("ci.models.numerics.NUMERICS", "computed otherwise")
    assert engine.key(spec) not in keys


class Compiling:
    """ci.onnx.compile, of which each function returns what it was given."""

    def load_source(self, *given: Any) -> Any:
        return SimpleNamespace(evaluation=[1] * 5, given=given)

    def compile_source(self, source: Any, *given: Any, **more: Any) -> Any:
        return (*source.given, *given, more)

    simulate_source = compile_source


def test_an_engine_compiles_the_model_of_its_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / HTP).parent.mkdir(parents=True)
    (tmp_path / HTP).touch()
    for name in ("compile", "simulate"):
        monkeypatch.setitem(sys.modules, f"ci.onnx.{name}", Compiling())
    spec = CaseSpec("one.onnx", Scheme.U8, "SM8650", Source("one.onnx"))
    given = {"backend_type": "htp", "vtcm_mb": "4"}
    engine = OnnxEngine(toolchain=(), sdk=tmp_path, given=given, embed=False)
    options = engine.options(spec)
    assert options == {
        "backend_path": str(tmp_path / HTP),
        "soc_model": "57",
        "enable_htp_fp16_precision": "0",
        "offload_graph_io_quantization": "0",
        "vtcm_mb": "4",
    }
    staging: Any = "staging"
    for fields, more in (
        ({}, {"embed": False, "saver": ""}),
        ({"embed": True}, {"embed": True, "saver": ""}),
        ({"direct": True}, {"embed": None, "saver": ""}),
        ({"saver": True}, {"embed": False, "saver": f"{tmp_path}/{SAVER_LIBRARY}"}),
    ):
        own = replace(engine, **fields)  # type: ignore[arg-type]
        assert own.compile(spec, staging) == (spec, spec, staging, options, more)
    assert engine.read_data(spec) == 5
    engine.preload(spec)  # which needs neither torch nor the file
    engine.warm_up(spec)  # nor an exporter


def test_a_model_of_torch_is_preloaded_and_its_exporter_is_warm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[Any] = []
    exporting = SimpleNamespace(warm_exporter=lambda: called.append("exporter"))
    monkeypatch.setitem(sys.modules, "ci.onnx.export", exporting)
    monkeypatch.setattr("ci.models.model.preload_model", lambda *words: called.append(words))
    monkeypatch.setattr("ci.models.model.count_judged", lambda *words: len(words) + 5)
    spec = CaseSpec("mlp", Scheme.U8, "SM8650")
    engine = OnnxEngine(toolchain=(), sdk=Path("/sdk"))
    assert not spec.is_file
    engine.preload(spec)
    engine.warm_up(spec)
    assert called == [(spec.reference, spec.source), "exporter"]
    assert engine.read_data(spec) == 7
    assert engine.imports == ("ci.onnx.compile", "ci.onnx.export", "ci.models.model")
    assert replace(engine, exports=False).imports == ("ci.onnx.compile",)


def test_a_refusal_is_explained_by_its_stage(tmp_path: Path) -> None:
    engine = OnnxEngine(toolchain=(), sdk=Path("/sdk"))
    told = engine.explain(StageError("quantizer"), tmp_path / "compile.log")
    assert told.headline.startswith("refused: quantizer: ")
    assert (tmp_path / "traceback.log").is_file()
