"""What a compilation writes and tells besides the context, without QNN."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from ci.cases.engine import Compiled, Delegation, Staging
from ci.cases.spec import CaseSpec
from ci.models.schemes import Scheme
from ci.models.user_models import Source as UserSource
from ci.onnx import compile as compiling
from ci.onnx.models import read_model
from ci.onnx.source import from_file
from ci.report.schema import Footprint
from tests.qnn_provider.models import write_conv, write_relu


def compile_file(
    path: Path,
    scheme: Scheme,
    monkeypatch: pytest.MonkeyPatch,
    *,
    layers: bool = False,
    **told: str,
) -> Compiled:
    """The record of a file's program; ``told`` is what its source tells."""

    def write_context(model: Path, directory: Path, *_: Any, **__: Any) -> Any:
        directory.mkdir()
        (directory / compiling.CONTEXT).write_bytes(model.read_bytes())
        return Delegation(1, 0, 1), Footprint()

    monkeypatch.setattr(compiling, "write_context", write_context)
    spec = CaseSpec("net", scheme, "SM8650", UserSource(str(path)), layers=layers)
    source = replace(from_file(path, read_model(path), [], spec.source), **told)
    work = path.with_name(f"{path.stem}-{scheme.value}-{len(list(path.parent.iterdir()))}")
    work.mkdir()
    staging = Staging(work / "staging", work / "log", work)
    staging.directory.mkdir()
    return compiling.compile_source(source, spec, staging, {}, embed=True, saver="")


@pytest.mark.parametrize("scheme", [Scheme.ASIS, Scheme.U8])
def test_the_values_of_a_quantized_output_are_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: Scheme
) -> None:
    path = (write_conv if scheme is Scheme.ASIS else write_relu)(tmp_path / "net.onnx")
    (output,) = compile_file(path, scheme, monkeypatch).outputs
    assert output.step > 0
    assert output.highest - output.lowest == 255


def test_a_float_output_has_no_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (output,) = compile_file(write_relu(tmp_path / "net.onnx"), Scheme.FP16, monkeypatch).outputs
    assert output.step == 0


@pytest.mark.parametrize(
    ("scheme", "made", "calibration", "wanted"),
    [
        (Scheme.U8, "", "random inputs", "calibrated on random inputs"),
        (Scheme.U8, "random inputs", "", "random inputs"),
        (Scheme.U8, "", "", ""),
        (Scheme.FP16, "", "random inputs", ""),
        (Scheme.FP16, "random inputs", "", "random inputs"),
    ],
)
def test_what_was_made_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheme: Scheme,
    made: str,
    calibration: str,
    wanted: str,
) -> None:
    told = {"made": made, "calibration_made": calibration}
    path = write_relu(tmp_path / "net.onnx")
    assert compile_file(path, scheme, monkeypatch, **told).made_inputs == wanted


@pytest.mark.parametrize("scheme", [Scheme.ASIS, Scheme.U8, Scheme.FP16])
def test_only_a_program_that_was_calibrated_tells_on_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: Scheme
) -> None:
    path = (write_conv if scheme is Scheme.ASIS else write_relu)(tmp_path / "net.onnx")
    assert bool(compile_file(path, scheme, monkeypatch).calibration) is (scheme is Scheme.U8)
