"""How a torch module and the file that litert-torch made of it fit, and what is said if there is no
such file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")
pytest.importorskip("torch", reason="torch is not installed in this environment")

from ci.graphs.litert_file import list_entries, read_model
from ci.litert.convert import blame_converter
from ci.litert.source import fit_module, list_tensors
from ci.litert.suite import make_model
from provisioning.errors import FailedError

MODEL = read_model(make_model("dense"))
INPUTS = list_tensors(MODEL, list_entries(MODEL), "input")
RIGHT = np.ones((4, 64))


def test_arrays_of_a_module_get_the_types_of_the_file() -> None:
    for dtype, changes in (
        ("float32", []),
        ("int64", ["input 0 float32 instead of the int64"]),
    ):
        noted: dict[str, None] = {}
        (fitted,) = fit_module("input", [RIGHT.astype(dtype)], INPUTS, noted)
        np.testing.assert_array_equal(fitted, RIGHT.astype(np.float32), strict=True)
        assert [*noted] == changes


MISFITS: dict[str, tuple[list[Any], str]] = {
    "another shape": ([RIGHT[:1]], "changed the inputs of the model"),
    "an input that the file does not have": ([RIGHT, RIGHT], "changed the inputs of the model"),
    "no input": ([], "changed the inputs of the model"),
    "a number that float32 does not have": ([RIGHT.astype(int) << 30 | 1], "input 0 has values"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_arrays_that_the_file_does_not_take_are_refused(name: str) -> None:
    arrays, message = MISFITS[name]
    with pytest.raises(FailedError, match=message):
        fit_module("input", arrays, INPUTS, {})


CODE = """
import torch
def branch():
    class Net(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x  # line 6
    torch.export.export(Net(), (torch.ones(2),), strict=False)
def unknown():
    raise RuntimeError("Lowering not found: aten._linalg_svd.default")
def other():
    raise ValueError("first\\nsecond")
"""
REASONS = {
    "branch": ("because torch.export cannot trace it", 6),
    "unknown": ("cannot convert the operator aten._linalg_svd.default", 9),
    "other": ("cannot convert the model", 11),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_litert_torch_cannot_convert_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    message, line = REASONS[name]
    namespace: dict[str, Any] = {}
    path = tmp_path / "net.py"
    path.write_text(CODE)
    exec(compile(CODE, str(path), "exec"), namespace)  # noqa: S102
    with pytest.raises(FailedError) as raised, blame_converter():
        namespace[name]()
    assert message in raised.value.what
    assert [place.line for place in raised.value.places] == [line]
    assert "second" not in raised.value.why
