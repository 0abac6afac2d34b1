"""Context binaries that QNN has compiled: judged here, and what the provider says of the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

from ci.inspect.files import inspect_file
from ci.onnx.contexts import check_context, seal_context
from ci.onnx.models import parse_model, read_model
from provisioning.errors import FailedError, UnfitError
from provisioning.manifest.targets import read_socs
from tests.qnn_provider.asking import SOC, STRICT, ask
from tests.qnn_provider.contexts import read_context
from tests.qnn_provider.models import write_conv

CONTEXT = {**STRICT, "ep.context_enable": "1"}
SHARED = {"ep.share_ep_contexts": "1", "ep.context_embed_mode": "0"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Contexts of one model by SoC and embed mode, and two graphs that share their weights."""
    contexts = tmp_path_factory.mktemp("contexts")
    model = write_conv(contexts / "conv.onnx", seed=1)
    write_conv(contexts / "large.onnx", seed=1, size=12)

    def request(source: str, name: str, soc: str, **entries: str) -> dict[str, Any]:
        target = {"ep.context_file_path": str(contexts / f"{name}.onnx")}
        return {
            "model": str(contexts / f"{source}.onnx"),
            "options": {**SOC, "soc_model": soc},
            "entries": {**CONTEXT, **target, **entries},
        }

    def embed(mode: str) -> dict[str, str]:
        return {"ep.context_embed_mode": mode}

    last = {"ep.stop_share_ep_contexts": "1"}
    requests = [
        request("conv", "beside", "69", **embed("0")),
        request("conv", "inside", "69", **embed("1")),
        request("conv", "other", "43", **embed("0")),
        request("conv", "several", "57,69", **embed("0")),
    ]
    assert all(answer["session"] for answer in ask(requests)), ask(requests)
    shared = [
        request("conv", "first", "69", **SHARED),
        request("large", "second", "69", **SHARED, **last),
    ]
    # The first session has to live while the second is made.
    answers = ask([{**request_row, "keep": True} for request_row in shared])
    assert all(answer["session"] for answer in answers), answers
    assert model.is_file()
    return contexts


def run_context(path: Path, soc: str = "69") -> dict[str, Any]:
    options = {**SOC, "soc_model": soc}
    (answer,) = ask([{"model": str(path), "options": options, "entries": STRICT, "run": {}}])
    return answer


def copy(folder: Path, tmp_path: Path, name: str, change: tuple[bytes, bytes] = (b"", b"")) -> Path:
    for suffix in (".onnx", "_qnn.bin"):
        data = (folder / f"{name}{suffix}").read_bytes()
        data = data.replace(*change) if change[0] and suffix != ".onnx" else data
        (tmp_path / f"{name}{suffix}").write_bytes(data)
    return tmp_path / f"{name}.onnx"


@pytest.mark.parametrize("name", ["beside", "inside"])
def test_a_compiled_onnx_context_fits_its_soc_and_runs(folder: Path, name: str) -> None:
    path = folder / f"{name}.onnx"
    check_context(path, "SM8750")
    context = read_context(path)
    (target,) = context.targets
    assert (target.soc, target.hexagon, target.vtcm_mb) == ("SM8750", 79, 8)
    assert (context.qnn, context.socs, context.source) == ("2.49.40", (69,), "QNNExecutionProvider")
    read_model(path)
    assert run_context(path)["outputs"]


def test_a_context_for_several_socs_fits_each_of_them_and_no_other(folder: Path) -> None:
    path = folder / "several.onnx"
    assert [target.soc for target in read_context(path).targets] == ["SM8650", "SM8750"]
    for soc in ("SM8650", "SM8750"):
        check_context(path, soc)
    with pytest.raises(UnfitError):
        check_context(path, "SM8550")
    data = (folder / "several_qnn.bin").read_bytes()
    (folder / "several_qnn.bin").write_bytes(data[:-100])
    with pytest.raises(FailedError):
        read_context(path)
    (folder / "several_qnn.bin").write_bytes(data)


def list_shapes(values: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of each value."""
    shapes = []
    for value in values:
        sizes = value.type.tensor_type.shape.dim
        shapes.append((value.name, tuple(size.dim_value for size in sizes)))
    return shapes


@pytest.mark.parametrize(
    ("name", "socs"),
    [("beside", {69}), ("inside", {69}), ("other", {43}), ("several", {57, 69})],
)
def test_inspect_reads_what_the_provider_compiled(folder: Path, name: str, socs: set[int]) -> None:
    model = parse_model(folder / f"{name}.onnx")
    program = inspect_file(folder / f"{name}.onnx").program
    assert program
    assert {context.soc_id for context in program.contexts} == socs
    socs_by_id = {soc_row.id: soc_row for soc_row in read_socs().values()}
    (method,) = program.methods
    assert (len(method.partitions), method.cpu_operators) == (1, {})
    ends = [list_shapes(model.graph.input), list_shapes(model.graph.output)]
    for context in program.contexts:
        soc = socs_by_id[context.soc_id]
        assert (context.hexagon, context.qnn, context.unread) == (soc.hexagon, "2.49.40", "")
        (graph,) = context.graphs
        for ports, expected_ports in zip((graph.inputs, graph.outputs), ends, strict=True):
            assert [(port.name, port.shape) for port in ports] == expected_ports


def test_contexts_that_the_emulator_runs_but_a_device_would_not_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    """Contexts for another SoC, with another QNN version than their model, and with changed
    weights."""
    other_context = folder / "other.onnx"
    assert run_context(other_context, "69")["outputs"]
    with pytest.raises(UnfitError, match="compiled for SM8550, not for SM8750"):
        check_context(other_context, "SM8750")

    newer = copy(folder, tmp_path, "beside", (b"v2.49.40.", b"v2.60.40."))
    assert run_context(newer)["outputs"]
    with pytest.raises(FailedError, match="cannot be loaded"):
        check_context(newer, "SM8750")

    sealed = copy(folder, tmp_path, "beside")
    right = run_context(sealed)["outputs"]
    seal_context(sealed)
    assert run_context(sealed)["outputs"] == right, "the seal disturbs nothing"
    binary = tmp_path / "beside_qnn.bin"
    data = binary.read_bytes()
    binary.write_bytes(data[: len(data) // 2] + b"\x55" * 64 + data[len(data) // 2 + 64 :])
    assert run_context(sealed)["session"], "the provider sees no change"
    with pytest.raises(FailedError) as caught:
        read_context(sealed)
    assert "SHA-256" in caught.value.why


@pytest.mark.parametrize("size", [0, 1, 2000, -1])
def test_what_the_provider_refuses_is_refused_here_with_the_reason(
    folder: Path, tmp_path: Path, size: int
) -> None:
    path = copy(folder, tmp_path, "beside")
    binary = tmp_path / "beside_qnn.bin"
    binary.write_bytes(binary.read_bytes()[:size])
    assert "Failed to load from EpContext model" in run_context(path)["error"]
    with pytest.raises(FailedError) as caught:
        read_context(path)
    assert re.search(r"is empty|\d bytes? long", caught.value.why)


def test_context_with_shared_weights_fits_its_soc_but_the_emulator_refuses_it(
    folder: Path,
) -> None:
    """Both graphs are in one binary, which the emulator does not load."""
    first, second = (
        check_context(folder / f"{name}.onnx", "SM8750") for name in ("first", "second")
    )
    assert bytes(first) == bytes(second) == (folder / "first_qnn.bin").read_bytes()
    answer = run_context(folder / "second.onnx")
    assert "QNN_COMMON_ERROR_NOT_SUPPORTED" in answer["error"]
