"""What a compilation and a run tell besides the context and the outputs, without QNN."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from ci.cases.engine import Compiled, Delegation, Staging
from ci.cases.qnn_files import PROFILE_CSV
from ci.cases.spec import CaseSpec
from ci.models.lowering_options import LOG_LEVELS
from ci.models.schemes import Scheme
from ci.models.user_models import Source as UserSource
from ci.onnx import compile as compiling
from ci.onnx import engine
from ci.onnx.engine import Executed, note_execution
from ci.onnx.fallback import QNN
from ci.onnx.models import read_model
from ci.onnx.session import FATAL, VERBOSE, WARNING, name_severity
from ci.onnx.source import from_file
from ci.report.schema import Footprint
from tests.qnn_provider.models import write_conv, write_relu

BINARY = "model_qnn.bin"


def compile_file(
    path: Path,
    scheme: Scheme,
    monkeypatch: pytest.MonkeyPatch,
    *,
    embed: bool = True,
    **told: str,
) -> Compiled:
    """The record of a file's program; ``told`` is what its source tells."""

    def write_context(_: Path, directory: Path, *__: Any, embed: bool, **more: Any) -> Any:
        assert not more
        directory.mkdir()
        (directory / compiling.CONTEXT).write_bytes(bytes(100))
        if not embed:
            (directory / BINARY).write_bytes(bytes(2000))
        return Delegation(1, 0, 1), Footprint()

    monkeypatch.setattr(compiling, "write_context", write_context)
    spec = CaseSpec("net", scheme, "SM8650", UserSource(str(path)))
    source = replace(from_file(path, read_model(path), [], spec.source), **told)
    work = path.with_name(f"{path.stem}-{scheme.value}-{len(list(path.parent.iterdir()))}")
    work.mkdir()
    staging = Staging(work / "staging", work / "log", work)
    staging.directory.mkdir()
    return compiling.compile_source(source, spec, staging, {}, embed=embed, saver="")


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


@pytest.mark.parametrize(
    ("embed", "binary", "size_bytes"), [(True, compiling.CONTEXT, 100), (False, BINARY, 2100)]
)
def test_a_program_is_the_model_with_its_context_wherever_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embed: bool, binary: str, size_bytes: int
) -> None:
    made = compile_file(write_relu(tmp_path / "net.onnx"), Scheme.FP16, monkeypatch, embed=embed)
    assert made.program == f"{compiling.PROGRAM}/{compiling.CONTEXT}"
    assert (made.binary, made.size_bytes) == (f"{compiling.PROGRAM}/{binary}", size_bytes)


def test_where_accuracy_is_lost_is_only_looked_for_in_what_was_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def find_loss(*_: Any) -> None:
        looked.append(1)

    monkeypatch.setattr(compiling, "find_loss", find_loss)
    for scheme, times in ((Scheme.ASIS, 0), (Scheme.FP16, 0), (Scheme.U8, 1)):
        path = (write_conv if scheme is Scheme.ASIS else write_relu)(tmp_path / "net.onnx")
        compile_file(path, scheme, monkeypatch)
        assert len(looked) == times


def test_weights_are_known_by_their_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, same, other = (
        compile_file(write_conv(tmp_path / f"{name}.onnx", seed=seed), Scheme.ASIS, monkeypatch)
        for name, seed in (("one", 0), ("same", 0), ("other", 1))
    )
    assert one.weights == same.weights != other.weights


def test_the_figures_of_a_profile_are_those_of_its_runs_and_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def read(profile: Path, runs: int, partitions: int) -> dict[str, int]:
        asked.append((profile, runs, partitions))
        return {"cycles": 9}

    monkeypatch.setattr(engine, "read_accelerator", read)
    compiled = SimpleNamespace(sets=5, delegation=Delegation(8, 0, 2))
    opened: Any = SimpleNamespace(program=SimpleNamespace(directory=tmp_path, compiled=compiled))
    notes = note_execution(opened, Executed({QNN: ("a",)}))
    assert asked == [(tmp_path / PROFILE_CSV, 5, 2)]
    assert (notes.accelerator, notes.files, notes.faults) == ({"cycles": 9}, (), ())
    (tmp_path / PROFILE_CSV).touch()
    assert note_execution(opened, Executed({QNN: ("a",)})).files == (tmp_path / PROFILE_CSV,)


def test_each_level_of_qnns_log_is_a_severity() -> None:
    assert name_severity("") == WARNING
    found = [name_severity(level) for level in LOG_LEVELS]
    assert found == [FATAL, 3, WARNING, 1, VERBOSE, VERBOSE]
