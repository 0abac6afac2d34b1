"""Marks of tests that compile and run .tflite files, with the version of QNN that LiteRT's plugin
needs."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QNN = "onnxruntime-qnn"
PINNED = re.search(rf"litert = \[[^]]*{QNN}==([\d.]+)", (ROOT / "pyproject.toml").read_text())
is_pinned = PINNED is not None and importlib.metadata.version(QNN) == PINNED[1]
NEEDS_PINNED_QNN = [
    pytest.mark.emulator,
    pytest.mark.skipif(not is_pinned, reason=f"LiteRT's plugin needs another version of {QNN}"),
]
