"""The digest of input sets has all that they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ci.models.tensors import digest_sets

ONE, TWO = np.float32([1, 2]), np.float32([3, 4])
SETS: list[list[Any]] = [[ONE, TWO], [TWO, ONE]]
OTHERS: dict[str, list[list[Any]]] = {
    "dtype": [[ONE.view(np.int32), TWO], [TWO, ONE]],
    "dtype of the last": [[ONE, TWO], [TWO, ONE.view(np.int32)]],
    "shape": [[ONE.reshape(2, 1), TWO], [TWO, ONE]],
    "value": [[ONE, TWO], [TWO, np.float32([1, 3])]],
    "order of tensors": [[TWO, ONE], [TWO, ONE]],
    "order of sets": [[TWO, ONE], [ONE, TWO]],
    "one set": [[ONE, TWO, TWO, ONE]],
    "a set for each tensor": [[ONE], [TWO], [TWO], [ONE]],
    "a set less": [[ONE, TWO]],
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_any_difference_between_input_sets_changes_their_digest(other: list[list[Any]]) -> None:
    same = [[one.copy() for one in tensors] for tensors in SETS]
    assert digest_sets(other) != digest_sets(SETS) == digest_sets(same)
