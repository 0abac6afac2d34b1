"""The digest of samples, the types of tensors, and the terms of each version of QNN."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.facts.finding import Origin
from ci.graphs.graph import LITERT
from ci.models.rounding import FLOAT16, NO_TERM, list_files, read_terms, take_term
from ci.models.tensors import (
    Asked,
    TypedTensor,
    count_types,
    digest_sets,
    find_retyped,
)
from ci.report.schema import TypeShare
from provisioning.manifest.reader import MANIFESTS_VARIABLE

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


@pytest.mark.parametrize("other_sets", OTHERS.values(), ids=OTHERS)
def test_any_difference_between_input_sets_changes_their_digest(
    other_sets: list[list[Any]],
) -> None:
    copied = copy.deepcopy(SETS)
    assert digest_sets(other_sets) != digest_sets(SETS) == digest_sets(copied)


LINE = Origin(file="net.py", line=9)
TENSORS = [
    TypedTensor("conv", 8, origin=LINE),
    TypedTensor("conv", 4, 100),
    TypedTensor("norm", 8),  # an operator that was lowered as two
    TypedTensor("norm", 16),
    TypedTensor("exp", 32),
    TypedTensor("", 8, 300),
]


@pytest.mark.parametrize(
    ("requests", "descriptions"),
    [
        ({"conv": Asked("c", 8, 4)}, []),
        ({"conv": Asked("c")}, []),
        ({"norm": Asked("n", 16)}, []),
        ({"exp": Asked("e", 16)}, []),
        ({"gone": Asked("g", 16)}, []),
        (
            {"conv": Asked("c", 16, 8)},
            [
                "the result of c: 16 bit requested, 8 bit compiled [net.py:9]",
                "the weights of c: 8 bit requested, 4 bit compiled",
            ],
        ),
        ({"norm": Asked("n", 32)}, ["the result of n: float requested, 16 bit compiled"]),
    ],
)
def test_a_tensor_with_fewer_bits_than_requested_is_found(
    requests: dict[str, Asked], descriptions: list[str]
) -> None:
    assert [str(retyped) for retyped in find_retyped(requests, TENSORS)] == descriptions


def test_operators_and_bytes_of_weights_are_counted_by_type() -> None:
    rows = [("4 bit", 0, 100), ("8 bit", 2, 300), ("16 bit", 1, 0), ("float", 1, 0)]
    assert count_types(TENSORS) == tuple(
        TypeShare(type=name, operators=many, weight_bytes=size) for name, many, size in rows
    )


@pytest.mark.parametrize(
    ("measured", "version", "used"),
    [
        (["2.49.40"], "2.49.40", "2.49.40"),
        (["2.49.40"], "2.51.0", "2.49.40"),
        (["2.49.40"], "2.41.0", "2.49.40"),
        (["2.9.0", "2.10.0", "2.49.40"], "2.48.0", "2.10.0"),
        ([], "2.49.40", ""),
    ],
)
def test_a_qnn_version_uses_the_noise_terms_of_the_nearest_measured_version(
    measured: list[str], version: str, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rounding").mkdir()
    for measured_version in measured:
        text = f'term = [{{ operator = "{measured_version}", numbers = "8" }}]\n'
        (tmp_path / "rounding" / f"{measured_version}.toml").write_text(text, "utf-8")
    monkeypatch.setenv(MANIFESTS_VARIABLE, str(tmp_path))
    assert [key[0] for key in read_terms(version)] == ([used] if used else [])


@pytest.mark.parametrize(
    ("version", "front_end", "used"),
    [
        ("2.49.40", "executorch", {"sqrt": 1.0, "gelu": 2.0}),
        ("2.51.0", "executorch", {"sqrt": 1.0, "gelu": 2.0}),
        ("2.51.0", "litert", {"sqrt": 3.0, "gelu": 2.0, "matmul": 4.0}),
        ("2.60.0", "litert", {"sqrt": 5.0, "gelu": 2.0}),
        ("", "litert", {"sqrt": 5.0, "gelu": 2.0}),
        ("", "", {"sqrt": 1.0, "gelu": 2.0}),
    ],
)
def test_the_noise_terms_of_a_front_end_replace_those_of_all(
    version: str,
    front_end: str,
    used: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file with terms of one front end alone leaves those of the others as they are."""
    terms = {
        "2.49.40": (("sqrt", "", 1.0), ("gelu", "", 2.0)),
        "2.51.0": (("sqrt", "litert", 3.0), ("matmul", "litert", 4.0)),
        "2.55.0": (("sqrt", "litert", 5.0),),
    }
    (tmp_path / "rounding").mkdir()
    for measured_version, rows in terms.items():
        lines = [
            f'{{ operator = "{operator}", numbers = "8", front_end = "{name}", steps = {steps} }}'
            for operator, name, steps in rows
        ]
        text = f"term = [{', '.join(lines)}]\n"
        (tmp_path / "rounding" / f"{measured_version}.toml").write_text(text, "utf-8")
    monkeypatch.setenv(MANIFESTS_VARIABLE, str(tmp_path))
    read = read_terms(version, front_end)
    assert {term.operator: term.steps for term in read.values()} == used


@pytest.mark.parametrize("front_end", ["", LITERT])
def test_the_committed_noise_terms_have_known_types_and_positive_power(front_end: str) -> None:
    for path in list_files():
        terms = read_terms(path.stem, front_end)
        assert {term.numbers for term in terms.values()} == {FLOAT16, "8", "16"}
        sizes = [
            (term.steps, term.bias, term.varies, term.relative, term.row) for term in terms.values()
        ]
        assert all(map(any, sizes))
        assert all(term.graphs for term in terms.values())
        assert take_term(terms, "gelu", "16").steps > take_term(terms, "neg", "16").steps
        assert take_term(terms, "gelu", "16", "layer") == take_term(terms, "gelu", "16")
        assert take_term(terms, "unknown", "16") == NO_TERM
