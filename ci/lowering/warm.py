"""What a process does once, before it forks for every lowering."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from executorch.exir import to_edge_transform_and_lower
from torch.fx.traceback import NodeSource

from ci.lowering import lower  # noqa: F401 - held for the forks
from ci.lowering.forked import still_tqdm
from ci.lowering.model import Model
from ci.lowering.quantize import quantize_model
from ci.lowering.schemes import Scheme

SOC = "SM8650"


@functools.cache
def warm_up() -> None:
    """Export, quantize and lower a small model without QNN, once a process."""
    still_tqdm()
    inputs = tuple((torch.ones(1, 4) * number,) for number in range(2))
    model = Model("warm-up", torch.nn.Linear(4, 4).eval(), inputs[:1], inputs)
    converted = quantize_model(model, Scheme.A8W8, SOC)
    to_edge_transform_and_lower(torch.export.export(converted, inputs[0], strict=True))
    share_provenance()
    materialize_once()


def share_provenance() -> None:
    """Let nodes share the record of where they came from: torch copies it in depth for each.

    Nothing changes such a record once it is made. Copies took a quarter of the lowering of a
    recurrent net.
    """

    def share(source: Any, memo: dict[int, Any]) -> Any:  # noqa: ARG001 - copy's protocol
        return source

    NodeSource.__deepcopy__ = share


def materialize_once() -> None:
    """Keep torch.export from looking up all composite operators again, 1,000 a call."""
    for name in ("torch._export", "torch._export.utils"):
        module: Any = sys.modules.get(name)
        if hasattr(module, "_materialize_cpp_cia_ops"):
            module._materialize_cpp_cia_ops = lambda: None
