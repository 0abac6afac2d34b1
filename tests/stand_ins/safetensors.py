"""Writes safetensors files, which the product only reads."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor], kind: str = "F32") -> None:
    """Write a file as the library safetensors does."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        values = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        ends = [len(data), len(data) + len(values)]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": ends}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
