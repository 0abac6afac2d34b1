"""Graphs of PyTorch modules, as quantized models are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def export_graph(module: nn.Module, inputs: Sequence[Tensor], *, strict: bool = False) -> Any:
    """The graph of a module, without guards. With them, the graph would be exported again. Only
    recurrent layers need ``strict``, which takes longer."""
    with torch.no_grad():
        program = torch.export.export(module, tuple(inputs), strict=strict)
    return program.module(check_guards=False)
