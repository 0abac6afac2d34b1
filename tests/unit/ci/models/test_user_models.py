"""A user's entry in a policy: its files and functions, and what is refused of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from ci.models.lowering_options import Choices, MixtureEntry
from ci.models.schemes import Scheme
from ci.models.tensors import describe_tensor, read_sets, write_sets
from ci.models.user_models import (
    Limits,
    Metric,
    ModelBudget,
    ModelEntry,
    check_data,
    lacks_function,
    resolve_entry,
    resolve_file,
)
from ci.report.schema import Budget
from provisioning.errors import QnnCiError, UsageError
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOT = Path(__file__).with_name("snapshots") / "user_models.txt"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    text = "from torch import nn\ndef factory(): pass\nclass Net: pass\ndef other(): pass\n"
    (tmp_path / "net.py").write_text(text)
    (tmp_path / "empty.py").write_text("value = 3\n")
    for name in ("net.onnx", "net.tflite", "float.onnx", "data.npy", "a\nb.npy"):
        (tmp_path / name).touch()
    return tmp_path


def list_refusals(place: Path) -> dict[str, Callable[[], object]]:
    def entry(name: str = "net", **fields: Any) -> Callable[[], object]:
        fields = {"path": "net.py:factory", **fields}
        return lambda: resolve_entry(name, ModelEntry(**fields), place)

    def file(word: str, kind: str = "") -> Callable[[], object]:
        return lambda: resolve_file(f"{place}/{word}", kind)

    shapes = {"x": (1, 2)}
    return {
        "a name": entry("a/b"),
        "a name that is too long": entry("a" * 65),
        "shapes of a factory": entry(shapes=shapes),
        "a float model of a factory": entry(float_model="float.onnx"),
        "a file that is gone": entry(inputs="gone.npy"),
        "a model without a function": entry(path="net.py"),
        "a model with an empty function": entry(path="net.py:"),
        "data without a function": entry(calibration="net.py"),
        "an ONNX file as a function of metrics": file("net.onnx", "function"),
        "a model that is gone": entry(path="gone.onnx"),
        "a recipe that is gone": entry(lowering=Choices(recipe="gone.py:recipe")),
        "a recipe that is no Python": entry(lowering=Choices(recipe="data.npy")),
        "an annotation without a function": entry(lowering=Choices(annotation="net.py")),
        "a model of another kind": file("data.npy", "factory"),
        "a function of no Python": file("data.npy:f", "function"),
        "a path with a line end": file("a\nb.npy"),
        "a function that is near": file("net.py:factori", "factory"),
        "a function that is not": file("net.py:zzz", "factory"),
        "a file without functions": file("empty.py:zzz", "factory"),
        "nothing near": lambda: raise_error(lacks_function(place / "net.py", "zzz", ["a", "b"])),
    }


# Keys with which a factory, an .onnx and a .tflite file can be judged, or not.
PER_CHANNEL = MixtureEntry(base=Scheme.U8, observer="percentile")
KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "calibration": ({"calibration": "data.npy"}, "factory onnx"),
    "inputs": ({"inputs": "data.npy"}, "factory onnx tflite"),
    "memory_bytes": ({"memory_bytes": 1}, "factory onnx tflite"),
    "socs": ({"socs": ("SM8750",)}, "factory onnx tflite"),
    "estimate": ({"estimate": True}, "factory onnx tflite"),
    "mixtures": ({"mixtures": {"mixed": PER_CHANNEL}}, "factory onnx"),
    "shapes": ({"shapes": {"x": (1, 2)}}, "onnx"),
    "float_model": ({"float_model": "float.onnx"}, "onnx tflite"),
    "signatures": ({"signatures": ("encode",)}, "tflite"),
    "limits.fp16": ({"limits": {"fp16": Limits()}}, "factory onnx tflite"),
    "limits.asis": ({"limits": {"asis": Limits()}}, "factory onnx tflite"),
    "limits.u8": ({"limits": {"u8": Limits()}}, "factory onnx"),
    "limits.8a8w": ({"limits": {"8a8w": Limits()}}, "factory"),
    "limits.mixed": (
        {"limits": {"mixed": Limits()}, "mixtures": {"mixed": PER_CHANNEL}},
        "factory onnx",
    ),
    "budget.partitions": ({"budget": ModelBudget(partitions=1)}, "factory onnx tflite"),
    "budget.ms": ({"budget": ModelBudget(ms=1.0)}, "factory onnx tflite"),
    "budget.schemes.asis.ms": (
        {"budget": ModelBudget(schemes={"asis": Budget(ms=1.0)})},
        "factory onnx tflite",
    ),
    "budget.p50_ms": ({"budget": ModelBudget(p50_ms=1.0)}, "factory"),
    "budget.schemes.u8": ({"budget": ModelBudget(schemes={"u8": Budget()})}, "factory onnx"),
}
PATHS = {"factory": "net.py:factory", "onnx": "net.onnx", "tflite": "net.tflite"}


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("key", KEYS)
def test_a_key_without_effect_is_refused(key: str, kind: str, place: Path) -> None:
    fields, kinds = KEYS[key]
    entry = ModelEntry(path=PATHS[kind], **fields)
    if kind in kinds.split():
        resolve_entry("net", entry, place)
        return
    with pytest.raises(UsageError, match=r"models\.net\.") as caught:
        resolve_entry("net", entry, place)
    assert caught.value.fix


def raise_error(error: QnnCiError) -> None:
    raise error


def test_every_refusal_says_what_why_and_what_to_do(place: Path) -> None:
    text = ""
    for name, call in list_refusals(place).items():
        with pytest.raises(QnnCiError) as caught:
            call()
        text += f"{name}\n  {type(caught.value).__name__} {caught.value}\n"
    check_snapshot(SNAPSHOT, text.replace(str(place), "PLACE"))


def test_a_policy_entry_gets_absolute_paths_and_keeps_other_keys(place: Path) -> None:
    entry = ModelEntry(
        path="net.onnx",
        calibration="data.npy",
        inputs="net.py:other",
        lowering=Choices(annotation="net.py:factory", recipe="net.py:other"),
        metric=Metric("net.py:other", "data.npy", max_drop=0.1, min=0.5),
        shapes={"x": (1, 2)},
        float_model="float.onnx",
    )
    resolved = resolve_entry("net", entry, place)
    assert resolved == ModelEntry(
        path=f"{place}/net.onnx",
        calibration=f"{place}/data.npy",
        inputs=f"{place}/net.py:other",
        lowering=Choices(annotation=f"{place}/net.py:factory", recipe=f"{place}/net.py:other"),
        metric=Metric(f"{place}/net.py:other", f"{place}/data.npy", max_drop=0.1, min=0.5),
        shapes={"x": (1, 2)},
        float_model=f"{place}/float.onnx",
    )
    assert (resolved.make_source().reference, resolved.make_source().shapes) == (
        resolved.path,
        (("x", (1, 2)),),
    )
    assert resolve_entry("a", ModelEntry("mlp"), place) == ModelEntry("mlp")
    with pytest.raises(QnnCiError, match=r"models\.a\.inputs: no file"):  # it is no model
        resolve_entry("a", ModelEntry("mlp", inputs="mlp"), place)
    (place / "mlp").touch()
    resolved = resolve_entry("a", ModelEntry("mlp", calibration="mlp", inputs="mlp"), place)
    assert resolved == ModelEntry("mlp", calibration=f"{place}/mlp", inputs=f"{place}/mlp")


@pytest.mark.parametrize(("labels", "fits"), [(4, False), (5, True), (6, False)])
def test_a_metric_needs_one_label_per_input_set(tmp_path: Path, labels: int, fits: bool) -> None:
    np.save(tmp_path / "inputs.npy", np.ones((5, 2)))
    np.save(tmp_path / "labels.npy", np.ones(labels))
    metric = Metric("m.py:top1", str(tmp_path / "labels.npy"), max_drop=0.1)
    entry = ModelEntry("net.py:f", inputs=str(tmp_path / "inputs.npy"), metric=metric)
    if fits:
        check_data("net", entry)
    else:
        with pytest.raises(QnnCiError, match=rf"models\.net\.metric\.labels.* {labels} rows"):
            check_data("net", entry)
    np.save(tmp_path / "few.npy", np.ones((1, 2)))  # enough to calibrate on
    check_data("net", ModelEntry("net.py:f", calibration=str(tmp_path / "few.npy")))
    # The number of sets that a function returns is known only after its call.
    check_data("net", structs.replace(entry, inputs="/data.py:load"))


def test_written_input_sets_replace_older_ones(tmp_path: Path) -> None:
    place = tmp_path / "a/deep/directory"
    for number in (0.0, 1.0):
        rows = np.asfortranarray(np.arange(6, dtype="float32").reshape(2, 3))
        sets = [[rows + number + index, np.arange(4)] for index in range(2)]
        write_sets(place, sets)
    infos = [describe_tensor(array) for array in sets[0]]
    for read, written in zip(read_sets(place, infos, 2), sets, strict=True):
        assert all(map(np.array_equal, read, written))
    assert sorted(path.name for path in place.iterdir()) == [
        f"{number}_{index}.raw" for number in range(2) for index in range(2)
    ]
