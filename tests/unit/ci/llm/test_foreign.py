"""Programs that others made: what they declare, and what is said of what they give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ci.cases.spec import CaseSpec
from ci.llm.foreign import Declared, Foreign, Shape, find_faults, read_border, read_interface
from ci.llm.generation import Loop
from ci.llm.interface import DECODE, PREFILL, Border
from ci.llm.runtime import code_step
from ci.llm.session import judge_program
from ci.llm.verdict import Likeness
from ci.models.schemes import Scheme
from ci.report.schema import Status
from provisioning.errors import UsageError

SPEC = CaseSpec("m.pte", Scheme.ASIS, "SM8750")
# As upstream's stories260k_hybrid_llama_qnn.pte has them, with one layer.
CONSTANTS = {
    "get_vocab_size": 512,
    "get_n_layers": 1,
    "get_max_context_len": 128,
    "get_kv_io_bit_width": 8,
    "get_logits_scale": 0.5,
    "get_logits_zero_point": 100,
}


def list_inputs(count: int) -> tuple[Shape, ...]:
    left = 128 - count
    return (
        Shape("int32", (1, count)),
        Shape("uint16", (1, 1, count, 128)),
        Shape("int32", (1, count)),
        Shape("uint8", (1, 4, 8, left)),
        Shape("uint8", (1, 4, left, 8)),
    )


DECLARED = Declared(
    CONSTANTS,
    {PREFILL: list_inputs(32), DECODE: list_inputs(1)},
    {
        name: (
            Shape("uint16", (1, n, 512)),
            Shape("uint8", (1, 4, 8, n)),
            Shape("uint8", (1, 4, n, 8)),
        )
        for name, n in ((PREFILL, 32), (DECODE, 1))
    },
)


def test_upstreams_interface_is_read_from_shapes_and_constants() -> None:
    one = read_interface("m.pte", DECLARED)
    sizes = (one.layers, one.kv_heads, one.head_dim, one.vocabulary, one.context, one.prefill)
    assert sizes == (1, 4, 8, 512, 128, 32)


def test_its_masks_caches_and_logits_are_integers() -> None:
    taken: list[Any] = []

    def run(arrays: Any) -> Any:
        taken[:] = arrays
        keys, values = np.full((1, 4, 8, 1), 7, np.uint8), np.full((1, 4, 1, 8), 250, np.uint8)
        return [np.full((1, 1, 512), 102, np.uint16), keys, values]

    loop = Loop(
        read_interface("m.pte", DECLARED), code_step(run, {1: read_border(DECLARED, DECODE)})
    )
    assert loop.feed([7]).tolist() == [[1.0] * 512]
    loop.feed([8])
    tokens, mask, positions, keys, values = taken
    assert [one.dtype.name for one in (tokens, mask, positions)] == ["int32", "uint16", "int32"]
    assert mask[0, 0, 0].tolist() == [65535] + [0] * 126 + [65535]
    assert (keys.dtype, keys.shape, values.shape) == (np.uint8, (1, 4, 8, 127), (1, 4, 127, 8))
    assert (keys[0, 0, 0, :2].tolist(), values[0, 0, :2, 0].tolist()) == ([7, 0], [250, 0])


def test_a_program_in_floats_has_nothing_to_code() -> None:
    shapes = [replace(one, dtype="float32") for one in list_inputs(1)]
    inputs = {**DECLARED.inputs, DECODE: tuple(shapes)}
    outputs = {**DECLARED.outputs, DECODE: (Shape("float32", (1, 1, 512)),)}
    floats = replace(DECLARED, constants={}, inputs=inputs, outputs=outputs)
    assert read_border(floats, DECODE) == Border((None,) * 5, (None,))


@pytest.mark.parametrize(
    ("constant", "other"),
    [
        ("get_vocab_size", 32000),
        ("get_n_layers", 5),
        ("get_max_context_len", 64),
        ("get_kv_io_bit_width", 16),
    ],
)
def test_metadata_of_another_model_is_an_error_with_both_numbers(constant: str, other: int) -> None:
    wrong = replace(DECLARED, constants=CONSTANTS | {constant: other})
    with pytest.raises(
        UsageError, match=f"{constant} is {other}, its methods have {CONSTANTS[constant]}"
    ):
        read_interface("m.pte", wrong)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"inputs": {DECODE: list_inputs(1)}}, "no method prefill_forward"),
        ({"inputs": {PREFILL: list_inputs(32), DECODE: list_inputs(1)[:2]}}, "its inputs are"),
        (
            {
                "inputs": {
                    PREFILL: list_inputs(16)[:3] + list_inputs(32)[3:],
                    DECODE: list_inputs(1),
                }
            },
            "other caches",
        ),
        ({"inputs": {PREFILL: list_inputs(1), DECODE: list_inputs(1)}}, "no static Llama"),
        ({"constants": {}}, "no get_logits_scale"),
    ],
)
def test_another_interface_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_interface("m.pte", replace(DECLARED, **change))


LOGITS = np.eye(6, dtype=np.float32)


@pytest.mark.parametrize(
    ("tokens", "logits", "fault"),
    [
        ((0, 1, 2, 3, 4, 5), LOGITS, ""),
        ((0,) * 6, LOGITS, "every token is 0"),
        ((0, 1, 2, 3, 4, 5), LOGITS * np.nan, "not finite"),
        ((0, 1, 2, 3, 4, 5), LOGITS * 0, "the same"),
        ((0, 1, 0, 1, 0, 1), LOGITS[:1].repeat(6, axis=0), "the same at every step"),
    ],
)
def test_what_no_right_program_gives(tokens: Any, logits: Any, fault: str) -> None:
    found = find_faults(tokens, logits)
    assert fault in "".join(found)
    assert bool(found) == bool(fault)


@pytest.mark.parametrize(
    ("agreement", "faults", "status"),
    [
        (0.9, (), Status.PASSED),
        (0.7, (), Status.FAILED),
        (0.9, ("wrong",), Status.FAILED),
        (None, (), Status.PASSED),
        (None, ("wrong",), Status.FAILED),
    ],
)
def test_a_program_is_judged_by_its_share_of_right_tokens(
    agreement: float | None, faults: tuple[str, ...], status: Status
) -> None:
    likeness = None if agreement is None else Likeness(agreement, 0.1)
    foreign = Foreign((1, 2), (1,), 0.1, 2, likeness, faults)
    result = judge_program(SPEC, foreign, "a story", 0.75)
    assert result.case.status is status
    assert "10.0 tokens/s of the emulator" in result.noted
    assert bool(result.case.warnings) is (agreement is None)
