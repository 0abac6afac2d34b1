"""Bundles of LiteRT-LM whose decoder LiteRT's plugin compiled, for real: on the emulator, through
the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")
pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
pytest.importorskip("sentencepiece", reason="sentencepiece is not installed in this environment")
pytest.importorskip("torch", reason="torch is not installed in this environment")

from ci.litert.plugin import run_plugin
from ci.llm.subject import find_files
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, ExitCode
from tests.build.litert_bundles import (
    LLM,
    PLACE,
    pack_tiny,
    plant_at_zero,
    read_part,
    write_tiny,
)
from tests.build.pinned_qnn import NEEDS_PINNED_QNN

pytestmark = NEEDS_PINNED_QNN
TEXT = "Ben has a blue boat. The boat sails far."
Call = Callable[..., tuple[int, str, dict[str, Any]]]


def compile_decoder(source: Path, place: Path) -> bytes:
    """A decoder, compiled for SM8650."""
    root = provision_profile("litert", Progress()).root("qnn-runtime")
    target = place / f"compiled_{source.name}"
    folder = next(root.glob("lib/x86_64-*"))
    log = place / "log"
    run_plugin(source, target, "SM8650", library_folder=folder, log=log, timeout_s=300)
    return target.read_bytes()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The decoder of ``tiny``, compiled for SM8650."""
    return compile_decoder(PLACE / "decoder.tflite", tmp_path_factory.mktemp("compiled"))


@pytest.fixture
def call(tmp_path: Path) -> Call:
    def run(*words: str) -> tuple[int, str, dict[str, Any]]:
        ended = subprocess.run(
            [sys.executable, "-m", "ci", "test-llm", *words, "--reports", "reports"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            capture_output=True,
            text=True,
            check=False,
        )
        report = tmp_path / "reports" / "test_llm" / "report.json"
        data = json.loads(report.read_bytes()) if report.is_file() else {}
        return ended.returncode, ended.stdout + ended.stderr, data

    return run


@pytest.mark.parametrize("name", ["decoder.tflite", "decoder_int8.tflite"])
def test_a_compiled_bundle_runs_on_the_emulator(
    tmp_path: Path, compiled: bytes, call: Call, name: str
) -> None:
    decoder = compiled
    if name != "decoder.tflite":
        decoder = compile_decoder(PLACE / name, tmp_path)
    pack_tiny(tmp_path / "npu.litertlm", tmp_path, decoder=decoder)
    write_tiny(tmp_path / "cpu.litertlm", decoder=read_part(name))
    words = ("--bundle", "npu.litertlm", "--reference", "cpu.litertlm", "--prompt", "Ben has a")
    code, output, report = call(*words)
    assert code == ExitCode.OK, output
    assert TEXT in output
    (case,) = report["cases"]
    assert (case["soc"], case["judgement"]["status"]) == ("SM8650", "passed")
    assert case["judgement"]["equal"] == 1.0
    assert len(report["controls"]) == 4
    assert all(control["rejected"] for control in report["controls"])


def test_the_cache_written_at_0_is_red_on_the_emulator(
    tmp_path: Path, compiled: bytes, call: Call
) -> None:
    auxiliary = plant_at_zero(read_part("auxiliary.tflite"))
    write_tiny(tmp_path / "npu.litertlm", decoder=compiled, auxiliary=auxiliary)
    code, output, report = call("--bundle", "npu.litertlm", "--prompt", "Ben has a")
    assert code == ExitCode.FAILED, output
    assert "where: from the second chunk on: keys of layer 0" in output
    assert report["cases"][0]["judgement"]["status"] == "failed"


STORY = "Once upon a time, there was a little girl named Lily."


@pytest.mark.parametrize("name", ["decoder.tflite", "decoder_int8.tflite"])
def test_stories260k_is_converted_compiled_packed_and_judged(
    published: tuple[Path, Path], stories: Path, tmp_path: Path, call: Call, name: str
) -> None:
    """In float, the tokens are those of ExecuTorch's lane, see llm/test_stories.py."""
    parts = {part: (stories / f"{part}.tflite").read_bytes() for part in ("embedder", "auxiliary")}
    parts["tokenizer"] = (stories / "tokenizer.model").read_bytes()
    # The most tokens of a conversation (field 5) are those of its caches.
    parts["metadata"] = LLM[:-1] + b"\x80\x01"
    compiled_decoder = compile_decoder(stories / name, tmp_path)
    write_tiny(tmp_path / "npu.litertlm", **{**parts, "decoder": compiled_decoder})
    plain = (stories / name).read_bytes()
    write_tiny(tmp_path / "cpu.litertlm", **{**parts, "decoder": plain})
    weights = ("--weights", str(published[0]))
    words = ("--bundle", "npu.litertlm", "--reference", "cpu.litertlm", *weights)
    code, output, report = call(*words, "--prompt", "Once upon a time", "--tokens", "64")
    assert code == ExitCode.OK, output
    assert report["cases"][0]["judgement"]["status"] == "passed"
    assert all(control["rejected"] for control in report["controls"])
    if name == "decoder.tflite":
        assert STORY in " ".join(output.split())
        assert report["cases"][0]["judgement"]["equal"] == 1.0


@pytest.fixture(scope="module")
def published() -> tuple[Path, Path]:
    """The weights and the tokenizer of stories260k, fetched unless QNN_CI_STORIES260K names their
    directory."""
    try:
        return find_files("stories260k", Progress(), offline=False)
    except DownloadError as error:
        pytest.skip(error.what)


@pytest.fixture(scope="module")
def stories(published: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """stories260k as litert-torch's generative API converts it."""
    place = tmp_path_factory.mktemp("stories")
    words = [str(place), *map(str, published)]
    subprocess.run(
        [sys.executable, "-m", "tests.stand_ins.tiny_bundle", *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        check=True,
    )
    return place


def test_a_bundle_for_another_soc_is_refused(tmp_path: Path, compiled: bytes, call: Call) -> None:
    write_tiny(tmp_path / "npu.litertlm", decoder=compiled)
    code, output, report = call("--bundle", "npu.litertlm", "--soc", "SM8750")
    assert code == ExitCode.ENVIRONMENT
    assert "does not load on SM8750" in output
    assert not report


def test_a_bundle_of_a_newer_qnn_is_refused(tmp_path: Path, compiled: bytes, call: Call) -> None:
    newer = compiled.replace(b"v2.51.0.", b"v2.99.0.")
    assert newer != compiled
    write_tiny(tmp_path / "npu.litertlm", decoder=newer)
    code, output, report = call("--bundle", "npu.litertlm")
    assert code == ExitCode.ENVIRONMENT
    assert "compiled with QNN 2.99.0" in output
    assert not report
