"""The cause and the remedy that a report shows name no other runtime than that of the case: what
ExecuTorch does explains no model that onnxruntime compiled. Nor do they name other types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

import pytest
from msgspec import structs

from ci.faults.known import INTEGERS as INTEGERS_OF_FILES
from ci.faults.known import Fault, Frontend, read_faults
from ci.graphs.graph import EXECUTORCH, LITERT, ONNXRUNTIME
from ci.mend.table import Rewrite, RewriteLane, read_rewrites
from ci.models import schemes
from ci.models.schemes import Scheme

RUNTIMES: Mapping[Frontend, re.Pattern[str]] = {
    "executorch": re.compile(r"ExecuTorch|torchao"),
    "onnx": re.compile(r"\bONNX|onnxruntime|QNN's provider"),
    "litert": re.compile(r"LiteRT|\.?tflite"),
}
# The kinds of models that a front end compiles
KINDS: Mapping[Frontend, tuple[RewriteLane, ...]] = {
    "executorch": ("torch",),
    "onnx": ("onnx",),
    "litert": ("torch", "litert"),
}
SCHEMES: Mapping[Frontend, Sequence[str]] = {
    "executorch": schemes.EXECUTORCH.schemes,
    "onnx": schemes.ONNX.schemes,
    "litert": ("fp16", *INTEGERS_OF_FILES),
}
INTEGERS, FLOAT16 = re.compile(r"\b(8|16) bits\b"), re.compile(r"fp16|float16")


def list_foreign(text: str, front_end: Frontend) -> list[str]:
    """The names of other runtimes in a text."""
    others = [pattern for name, pattern in RUNTIMES.items() if name != front_end]
    return [match[0] for pattern in others for match in pattern.finditer(text)]


def list_reasons() -> Iterator[tuple[Frontend, Rewrite]]:
    """Each rewrite with each front end for whose models it is tried."""
    for front_end, lanes in KINDS.items():
        for lane in lanes:
            for row in read_rewrites(lane, front_end=front_end):
                # Experiments change only models in float for LiteRT.
                if front_end != "litert" or row.helps_in(Scheme.FP16):
                    yield front_end, row


def is_shown(fault: Fault, front_end: Frontend) -> bool:
    """Whether the fault may be named for a model of a front end."""
    return any(fault.applies(scheme, front_end=front_end) for scheme in SCHEMES[front_end])


def is_of_other_types(row: Rewrite) -> bool:
    """Whether a reason is about integers alone, and is shown for models in float16, too."""
    about_integers = INTEGERS.search(row.reason) and not FLOAT16.search(row.reason)
    return bool(about_integers) and row.helps_in(Scheme.FP16)


def test_no_reason_of_a_rewrite_names_another_runtime() -> None:
    rows = [*list_reasons()]
    assert {front_end for front_end, _ in rows} == {*get_args(Frontend)}
    named = {(end, row.name): list_foreign(row.reason, end) for end, row in rows}
    assert {place: names for place, names in named.items() if names} == {}


def test_no_reason_of_a_rewrite_is_about_other_types() -> None:
    assert [row.name for _, row in list_reasons() if is_of_other_types(row)] == []


def test_no_known_fault_names_another_runtime() -> None:
    foreign = []
    for fault in read_faults():
        for front_end in RUNTIMES:
            texts: Sequence[str] = ()
            if is_shown(fault, front_end):
                wording = fault.describe(front_end)
                texts = (wording.seen, wording.remedy)
            foreign += [(fault.name, front_end) for t in texts if list_foreign(t, front_end)]
    assert foreign == []


@pytest.mark.parametrize(
    ("text", "front_end", "names"),
    [
        ("ExecuTorch takes only sizes that divide", EXECUTORCH, []),
        ("ExecuTorch takes only sizes that divide", ONNXRUNTIME, ["ExecuTorch"]),
        ("right in .tflite files and ONNX models", EXECUTORCH, ["ONNX", ".tflite"]),
        ("QNN takes rank 4", LITERT, []),
    ],
)
def test_another_runtime_is_found(text: str, front_end: Frontend, names: list[str]) -> None:
    assert list_foreign(text, front_end) == names


@pytest.mark.parametrize(
    ("reason", "schemes", "is_wrong"),
    [
        ("wrong in 16 bits", (), True),
        ("wrong in 16 bits", (Scheme.A16W8,), False),
        ("wrong in 16 bits, and inexact in fp16", (), False),
    ],
)
def test_a_reason_about_other_types_is_found(
    reason: str, schemes: tuple[Scheme, ...], is_wrong: bool
) -> None:
    row = structs.replace(read_rewrites("torch")[0], reason=reason, schemes=schemes)
    assert is_of_other_types(row) is is_wrong
