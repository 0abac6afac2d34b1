"""A module is exported once for everything that reads its graph."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")

from torch import Tensor, nn  # noqa: E402

from ci.executorch.graph_reader import describe_module, find_module_parts  # noqa: E402
from ci.graphs.torch_program import read_torch  # noqa: E402
from ci.models.exports import export_module  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export's own
A, B = torch.ones(2, 3), torch.zeros(2, 3)


class Counter(nn.Module):
    """Adds its calls to a buffer, and writes to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x.mul_(2) + self.calls


@pytest.mark.parametrize("strict", [False, True])
def test_the_same_inputs_get_the_same_program_and_others_get_another(strict: bool) -> None:
    module, inputs = nn.Linear(3, 3).eval(), (A,)
    program = export_module(module, inputs, strict=strict)
    assert export_module(module, (A,), strict=strict) is program  # another tuple of the same
    assert export_module(module, inputs, strict=not strict) is not program
    assert export_module(module, (B,), strict=strict) is not program
    assert export_module(nn.Linear(3, 3).eval(), inputs, strict=strict) is not program


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_changes_neither_the_state_nor_the_inputs(strict: bool) -> None:
    module, x = Counter().eval(), A.clone()
    export_module(module, (x,), strict=strict)
    assert (module.calls.tolist(), x.tolist()) == ([0.0], A.tolist())


def test_the_analyses_of_a_lowering_share_one_export_of_each_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, inputs = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval(), (A,)
    exports: list[bool] = []
    export = torch.export.export

    def count(*args: Any, strict: bool) -> Any:
        exports.append(strict)
        return export(*args, strict=strict)

    monkeypatch.setattr(torch.export, "export", count)
    describe_module(module, inputs)
    read_torch(module, inputs)
    find_module_parts(module, inputs)
    export_module(module, inputs, strict=True)  # as the quantizer does
    assert exports == [False, True]
