"""The tolerance that `bench -- gate` compares with is the one of ExecuTorch's own tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.bench.gate import has_tolerance

RIGHT = np.array([[5.0, -3.0, 0.05]])


@pytest.mark.parametrize(
    ("scheme", "factor", "accepted"),
    [
        ("8a8w", 0.0, True),  # a share of 1 of the reference lets zeros pass
        ("8a8w", 2.0, True),
        ("8a8w", 2.5, False),
        ("fp16", 0.0, False),
        ("fp16", 1.1, True),
        ("fp16", 1.2, False),
    ],
)
def test_tolerance_is_a_share_of_the_reference(scheme: str, factor: float, accepted: bool) -> None:
    references = SimpleNamespace(float32=[SimpleNamespace(values=RIGHT)])
    case: Any = SimpleNamespace(artifact=SimpleNamespace(scheme=scheme), references=references)
    assert has_tolerance(case, [RIGHT * factor]) is accepted
