"""What is read of a program that Qualcomm's own SDK compiled agrees with what is known of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provisioning.doctor.survey.programs import Program, read_program

FOLDER = os.environ.get("QNN_CI_TEST_STORIES", "")
NAME = "stories260k_hybrid_llama_qnn.pte"
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="QNN_CI_TEST_STORIES is not set: the directory of stories260K's programs"
)
CACHES, HEADS, WIDTH, VOCABULARY, LAYERS = 10, 4, 8, 512, 5


@pytest.fixture(scope="module")
def program() -> Program:
    return read_program(Path(FOLDER, NAME))


def test_inspect_reads_compiler_version_and_target_of_a_context_binary(
    program: Program,
) -> None:
    (context,) = program.contexts
    assert context.build.startswith("v2.37.0.250724")
    assert (context.qnn, context.core_api, context.backend_api) == ("2.37.0", "2.27.0", "5.37.0")
    assert (context.soc, context.soc_id, context.hexagon, context.vtcm_mb) == ("SM8650", 57, 75, 8)
    assert context.min_arch == context.hexagon
    assert [graph.name for graph in context.graphs] == ["kv_forward", "prefill_forward"]
    assert (program.damage, program.misplaced, context.unread) == ("", "", "")


@pytest.mark.parametrize(("method", "tokens", "past"), [("kv", 1, 127), ("prefill", 32, 96)])
def test_inspect_reads_the_inputs_and_outputs_of_each_method(
    program: Program, method: str, tokens: int, past: int
) -> None:
    by_name = {program_method.name: program_method for program_method in program.methods}
    assert len(by_name) == len(program.methods)
    forward = by_name[f"{method}_forward"]
    keys = [("uint8", (1, HEADS, WIDTH, past))] * LAYERS
    values = [("uint8", (1, HEADS, past, WIDTH))] * LAYERS
    first = [("int32", (1, tokens)), ("uint16", (1, 1, tokens, 128)), ("int32", (1, tokens))]
    assert [(port.dtype, port.shape) for port in forward.inputs] == [*first, *keys, *values]
    assert (forward.outputs[0].dtype, forward.outputs[0].shape) == (
        "uint16",
        (1, tokens, VOCABULARY),
    )
    assert len(forward.outputs) == 1 + CACHES
    assert [(partition.context, partition.soc_id) for partition in forward.partitions] == [(0, 57)]
    assert forward.cpu_operators == {}


def test_quantization_scales_equal_the_constants_of_the_program(
    program: Program,
) -> None:
    constants = program.metadata or {}
    assert (constants["get_max_seq_len"], constants["get_vocab_size"]) == (128, VOCABULARY)
    assert constants["get_use_kv_cache"] is True
    for graph in program.contexts[0].graphs:
        grids = {(output.scale, output.zero_point) for output in graph.outputs}
        logits = [output for output in graph.outputs if output.shape[-1] == VOCABULARY]
        assert [(logit.scale, logit.zero_point) for logit in logits] == [
            (pytest.approx(constants["get_logits_scale"]), constants["get_logits_zero_point"])
        ]
        for number in range(CACHES):
            cache = constants[f"get_kv_output_{number}_quant_attr"]
            assert isinstance(cache, tuple)
            assert cache[:2] in grids
