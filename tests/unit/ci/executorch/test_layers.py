"""Which operators of a torch model return their results, if it is asked for them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")
import torch
from torch import nn
from torch.fx import GraphModule, symbolic_trace

from ci.executorch.layers import expose_layers

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export's own


class Net(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added = x + 1
        return torch.sigmoid(added) * x


def export(module: nn.Module, x: torch.Tensor) -> GraphModule:
    return torch.export.export(module, (x,)).module(check_guards=False)


@pytest.mark.parametrize(
    "make_module",
    [
        lambda x: Net(),
        lambda x: export(Net(), x),
        lambda x: symbolic_trace(Net()),  # a graph without the out_spec that an exported one has
    ],
    ids=["module", "exported", "traced"],
)
def test_a_model_and_its_graph_return_the_results_of_the_same_operators(make_module) -> None:
    x = torch.randn(2, 3)
    exposed, layers = expose_layers(make_module(x), (x,))
    added = x + 1
    expected = [torch.sigmoid(added) * x, added, torch.sigmoid(added)]
    assert [layer.name for layer in layers] == ["add", "sigmoid"]
    for returned, wanted in zip(exposed(x), expected, strict=True):
        torch.testing.assert_close(returned, wanted)
