"""A model with a batch norm is quantized to the same graph whether or not torchao looks for the
patterns of quantization-aware training in it."""

from __future__ import annotations

import os
import warnings
from typing import Any
from unittest.mock import patch

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

from ci.models.model import Model  # noqa: E402
from ci.models.schemes import Scheme  # noqa: E402


class Norms(torch.nn.Module):
    """Batch norms without convolutions, and one value that several operators read."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.one(torch.relu(x)))
        return self.two(y) + y * torch.sigmoid(y)


def draw(seed: int) -> tuple[Any]:
    return (torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(seed)),)


def test_training_patterns_are_skipped_only_where_they_cannot_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Without QNN_SDK_ROOT ExecuTorch's import downloads an SDK.
    with patch.dict(os.environ, QNN_SDK_ROOT="nowhere"), warnings.catch_warnings():
        from torchao.quantization.pt2e import qat_utils

        from ci.executorch import patches
        from ci.executorch.quantize import quantize_model
    # The patch wraps what it finds here; monkeypatch restores it.
    monkeypatch.setattr(qat_utils, "_fold_conv_bn_qat_helper", qat_utils._fold_conv_bn_qat_helper)
    case = Model("norms", Norms().eval(), (draw(0),), (draw(0), draw(1)))
    exported_patterns: list[Any] = []
    export = qat_utils._get_aten_graph_module_for_pattern

    def record(*words: Any, **options: Any) -> Any:
        exported_patterns.append(export(*words, **options))
        return exported_patterns[-1]

    monkeypatch.setattr(qat_utils, "_get_aten_graph_module_for_pattern", record)
    plain = quantize_model(case, Scheme.A8W8, "SM8650")
    assert len(exported_patterns) == 96
    assert all(map(patches.has_divided_norm, exported_patterns[::2]))  # a replacement follows each
    assert not any(map(patches.has_divided_norm, exported_patterns[1::2]))
    exported_patterns.clear()
    patches.skip_training_patterns()
    patched = quantize_model(case, Scheme.A8W8, "SM8650")
    assert not exported_patterns
    assert patched.code == plain.code
    states = plain.state_dict(), patched.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
