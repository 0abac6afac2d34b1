"""What is refused before an ONNX model runs, word by word: models, contexts, options, data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed in this environment")

import onnx

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

from ci.onnx.contexts import check_context, read_context
from ci.onnx.models import external_files, read_model
from ci.onnx.options import check_options, choose_options, parse_options
from ci.onnx.source import find_rates, list_inputs, read_beside, read_float
from provisioning.errors import QnnCiError
from tests.qnn_provider.contexts import BINARY, make_blob, write_context, write_embedded
from tests.qnn_provider.models import tensor
from tests.stand_ins.snapshots import check_snapshot
from tests.unit.ci.onnx.test_contexts import BLOB, BROKEN
from tests.unit.ci.onnx.test_models import NO_MODEL, UNUSABLE, Write, of_input, write
from tests.unit.ci.onnx.test_options import OPTIONS, REFUSED, WRONG, take
from tests.unit.ci.onnx.test_source import count, load

SNAPSHOTS = Path(__file__).with_name("snapshots")
__all__ = ["write"]  # a fixture


def check_messages(name: str, calls: Mapping[str, Callable[[], object]], place: Path) -> None:
    """Compare the errors of some calls with a file."""
    shown = {}
    for what, call in calls.items():
        with pytest.raises(QnnCiError) as caught:
            call()
        shown[what] = f"{type(caught.value).__name__} {caught.value.exit_code:d} {caught.value}"
    text = "".join(f"{what}\n  {message}\n" for what, message in shown.items())
    text = text.replace(str(place), "PLACE").replace("w" * 5000, "www")
    check_snapshot(SNAPSHOTS / f"{name}.txt", text)


def is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except QnnCiError:
        return True
    return False


def test_models_are_refused_with_their_faults(write: Write, tmp_path: Path) -> None:
    def read(data: bytes, reader: Callable[[Path], object] = read_model) -> Callable[[], object]:
        return lambda: reader(write(data))

    calls = {name: read(data) for name, (data, _) in NO_MODEL.items()}
    for name, (model, _) in UNUSABLE.items():
        calls[name] = read(model.SerializeToString())
        calls[f"{name}, its files"] = read(model.SerializeToString(), external_files)
    dynamic = of_input(["batch", 3]).SerializeToString()
    for shape in (("z", (1, 3)), ("x", (1,)), ("x", (1, 4))):
        calls[f"shape {shape}"] = read(dynamic, lambda path, one=shape: read_model(path, [one]))
    check_messages("models", calls, tmp_path)


def test_contexts_are_refused_with_their_faults(tmp_path: Path) -> None:
    def broken(number: int, name: str) -> Callable[[], object]:
        folder = tmp_path / str(number) / "model"
        folder.mkdir(parents=True)
        for outside in ("outside.bin", BINARY):
            (folder.parent / outside).write_bytes(BLOB)
        (folder / "link.bin").symlink_to(folder.parent / "outside.bin")
        blob, changes, _ = BROKEN[name]
        path = write_context(folder, blob, **changes)
        return lambda: read_context(path)

    calls = {name: broken(number, name) for number, name in enumerate(BROKEN)}
    inside, other = tmp_path / "inside", tmp_path / "other"
    inside.mkdir()
    other.mkdir()
    short = write_embedded(inside, BLOB[:-1])
    fine = write_context(other)
    calls |= {
        "embedded": lambda: read_context(short),
        "another SoC": lambda: check_context(fine, "SM8650"),
        "an older runtime": lambda: check_context(fine, "SM8750", "2.37.0"),
        "no SoC": lambda: check_context(
            write_context(other, make_blob(soc="UNKNOWN_SDM", arch=68), soc="0"), "SM8750"
        ),
    }
    check_messages("contexts", calls, tmp_path)


def test_options_are_refused_with_their_faults(tmp_path: Path) -> None:
    def check(options: Mapping[str, str], entries: Mapping[str, str]) -> Callable[[], object]:
        return lambda: check_options(options, entries, version="2.5.0")

    calls = {f"{options} {entries}": check(options, entries) for options, entries, _ in WRONG}
    for option in OPTIONS:
        for given in ({option.name: REFUSED[option.kind]}, take(option)):
            is_entry = "." in option.name
            call = check({} if is_entry else given, given if is_entry else {})
            calls[f"{given}"] = call
    for words in (["a"], ["=b"], ["a=1", "a=2"]):
        calls[f"{words}"] = lambda words=words: parse_options(words)
    calls = {name: call for name, call in calls.items() if is_refused(call)}
    check_messages("options", calls, tmp_path)


def test_data_is_refused_with_its_faults(tmp_path: Path) -> None:
    np.savez(tmp_path / "name.npz", image=np.ones((4, 2, 3), "float32"))
    np.savez(tmp_path / "shape.npz", x=np.ones((4, 3, 2), "float32"))
    np.savez(tmp_path / "type.npz", x=np.ones((4, 2, 3), "uint8"))
    np.save(tmp_path / "few.npy", count(3))
    (tmp_path / "text.npy").write_bytes(b"hello")
    names = ("name.npz", "shape.npz", "type.npz", "few.npy", "text.npy")
    calls = {
        f"{key} {name}": (lambda key=key, name=name: load(tmp_path, **{key: str(tmp_path / name)}))
        for key in ("inputs", "calibration")
        for name in names
        if (key, name) != ("calibration", "few.npy")
    }
    load(tmp_path)
    (tmp_path / "beside/test_data_set_0").mkdir(parents=True)
    plain = onnx.load(tmp_path / "net.onnx")
    quantized = onnx.ModelProto.FromString(plain.SerializeToString())
    quantized.graph.node.add(op_type="QuantizeLinear")
    onnx.save(quantized, tmp_path / "quantized.onnx")
    wider = onnx.ModelProto.FromString(quantized.SerializeToString())
    wider.graph.input.add().CopyFrom(tensor("more", [3], 7))
    for name, model in (("net", plain), ("quantized", quantized), ("net", wider)):
        path = tmp_path / f"{name}.onnx"
        calls[f"float {len(calls)}"] = lambda path=path, model=model: read_float(path, model)
    calls["beside"] = lambda: list(read_beside(tmp_path / "beside/a.onnx", list_inputs(wider)))
    ports = {**list_inputs(wider), "sr": (np.dtype("int64"), (1,))}
    calls["rate"] = lambda: find_rates(tmp_path / "a.onnx", plain, ports)
    check_messages("data", calls, tmp_path)


def test_options_of_a_case_are_those_of_its_soc_and_scheme() -> None:
    from ci.models.schemes import Scheme

    lines = [
        f"{scheme.value} {soc} {choose_options(scheme, soc, given)}"
        for scheme in (Scheme.FP16, Scheme.U8, Scheme.U16A8W)
        for soc in ("SM8650", "SM8750", "QCM6490")
        for given in ({}, {"vtcm_mb": "4", "soc_model": "0"})
    ]
    check_snapshot(SNAPSHOTS / "chosen.txt", "".join(f"{line}\n" for line in lines))
