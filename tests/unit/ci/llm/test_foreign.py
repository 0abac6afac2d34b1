"""Programs that others made: what they declare, and what is said of what they give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from ci.cases.pool import Ended
from ci.cases.session import Phases, run_session
from ci.cases.spec import CaseSpec
from ci.llm import foreign, tiny
from ci.llm.case import ForeignRun, judge_program
from ci.llm.decoder import make_decoder
from ci.llm.foreign import (
    Declared,
    Foreign,
    ForeignJob,
    find_faults,
    read_border,
    read_interface,
)
from ci.llm.generation import Loop, Step, code_step
from ci.llm.interface import DECODE, PREFILL
from ci.llm.lowering import LlmEngine
from ci.llm.verdict import Likeness
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo
from ci.report.schema import Report, Status, Tool
from provisioning.console.progress import Progress
from provisioning.errors import DefectError, ExitCode, UsageError
from tests.build.setups import make_options, make_setup
from tests.unit.ci.llm.decoders import CONTEXT, PLACE, Tiny, example_inputs
from tests.unit.ci.llm.decoders import PREFILL as SIZE

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


def list_inputs(count: int) -> tuple[TensorInfo, ...]:
    left = 128 - count
    return (
        TensorInfo("int32", (1, count)),
        TensorInfo("uint16", (1, 1, count, 128)),
        TensorInfo("int32", (1, count)),
        TensorInfo("uint8", (1, 4, 8, left)),
        TensorInfo("uint8", (1, 4, left, 8)),
    )


DECLARED = Declared(
    CONSTANTS,
    {PREFILL: list_inputs(32), DECODE: list_inputs(1)},
    {
        name: (
            TensorInfo("uint16", (1, n, 512)),
            TensorInfo("uint8", (1, 4, 8, n)),
            TensorInfo("uint8", (1, 4, n, 8)),
        )
        for name, n in ((PREFILL, 32), (DECODE, 1))
    },
)


def test_upstreams_interface_is_read_from_shapes_and_constants() -> None:
    interface = read_interface("m.pte", DECLARED)
    sizes = (
        interface.layers,
        interface.kv_heads,
        interface.head_dim,
        interface.vocabulary,
        interface.context,
        interface.prefill,
    )
    assert sizes == (1, 4, 8, 512, 128, 32)


def test_upstreams_masks_caches_and_logits_are_integers() -> None:
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
    assert [array.dtype.name for array in (tokens, mask, positions)] == ["int32", "uint16", "int32"]
    assert mask[0, 0, 0].tolist() == [65535] + [0] * 126 + [65535]
    assert (keys.dtype, keys.shape, values.shape) == (np.uint8, (1, 4, 8, 127), (1, 4, 127, 8))
    assert (keys[0, 0, 0, :2].tolist(), values[0, 0, :2, 0].tolist()) == ([7, 0], [250, 0])


LOGITS = np.eye(6, dtype=np.float32)


@pytest.mark.parametrize(
    ("tokens", "logits", "faults"),
    [
        ((0, 1, 2, 3, 4, 5), LOGITS, []),
        ((0,) * 6, LOGITS, ["every token is 0"]),
        ((0, 1, 2, 3, 4, 5), LOGITS * np.nan, ["the logits are not finite"]),
        ((0, 1, 2, 3, 4, 5), np.where(LOGITS == 1, np.inf, 0), ["the logits are not finite"]),
        ((0, 1, 2, 3, 4, 5), np.where(LOGITS == 1, 0, -np.inf), ["the logits are not finite"]),
        ((0, 1, 2, 3, 4, 5), LOGITS * 0, ["all logits of a step are the same"]),
        (
            (0, 1, 0, 1, 0, 1),
            LOGITS[:1].repeat(6, axis=0),
            ["the logits are the same at every step"],
        ),
        # Few tokens prove little.
        ((7,) * 4, LOGITS[:4], []),
        ((7,) * 5, LOGITS[:5], ["every token is 7"]),
        ((0,), LOGITS[:1], []),
        ((0, 1), LOGITS[:2] * [[1], [0]], ["all logits of a step are the same"]),
        ((0, 0), LOGITS[:1].repeat(2, axis=0), ["the logits are the same at every step"]),
    ],
)
def test_constant_or_non_finite_logits_and_tokens_are_faults(
    tokens: Any, logits: Any, faults: list[str]
) -> None:
    assert [fault.partition(" (")[0] for fault in find_faults(tokens, logits)] == faults


@pytest.mark.parametrize(
    ("agreement", "faults", "status"),
    [
        (0.9, (), Status.PASSED),
        (0.75, (), Status.PASSED),
        (0.7, (), Status.FAILED),
        (0.9, ("wrong",), Status.FAILED),
        (0.7, ("wrong", "late"), Status.FAILED),
        (None, (), Status.PASSED),
        (None, ("wrong",), Status.FAILED),
    ],
)
def test_a_program_is_judged_by_its_share_of_right_tokens(
    agreement: float | None, faults: tuple[str, ...], status: Status
) -> None:
    likeness = None if agreement is None else Likeness(agreement, 0.1)
    foreign = Foreign((1, 2), (1,), 0.1, 2, likeness, faults=faults)
    result = judge_program(SPEC, foreign, "a story", 0.75)
    assert result.case.judgement.status is status
    assert all(fault in result.case.reason for fault in faults)
    assert ("75% are required" in result.case.reason) is (
        agreement is not None and agreement < 0.75
    )
    assert "10.0 tokens/s on the emulator" in result.noted
    assert bool(result.case.judgement.warnings) is (agreement is None)
    assert (result.case.judgement.equal, result.case.run.ms) == (agreement, 100)
    assert ("the first 2 equal those of float32" in result.noted) is (agreement is not None)
    if agreement is not None:
        case = judge_program(SPEC, replace(foreign, where=("layer 1",)), "a story", 0.75).case
        wheres = [finding.where for finding in case.judgement.findings][:1] or [
            case.judgement.warnings
        ]
        assert wheres == [("layer 1",)]


# -- the tiny decoder as a program of others ------------------------------------------------------


def make_job(**changes: Any) -> ForeignJob:
    job = ForeignJob(
        Path("m.pte"), PLACE / "tokenizer.bin", tiny.PROMPTS[0], 40, PLACE / "weights.bin"
    )
    return replace(job, **changes)


@pytest.fixture
def right(tiny_model: Tiny) -> Step:
    return tiny_model.step(make_decoder(tiny_model.config, tiny_model.weights, CONTEXT))


def test_a_right_program_gives_the_text_of_its_weights(tiny_model: Tiny, right: Step) -> None:
    tokens = tiny_model.runs.model.run.tokens
    generated = make_job().generate(tiny_model.interface, tiny_model.tokenizer, right)
    assert generated.tokens == tokens
    assert generated.alone == tokens[:5]
    assert (generated.same_count, generated.step_s, generated.faults) == (len(tokens), 0.0, ())
    assert generated.likeness is not None
    assert generated.likeness.agreement == 1
    assert generated.likeness.divergence == pytest.approx(0, abs=1e-6)
    assert (
        make_job(tokens=3).generate(tiny_model.interface, tiny_model.tokenizer, right).tokens
        == tokens[:3]
    )
    unknown = make_job(weights=None).generate(tiny_model.interface, tiny_model.tokenizer, right)
    assert (unknown.tokens, unknown.alone) == (generated.tokens, generated.alone)
    assert (unknown.same_count, unknown.likeness, unknown.faults) == (None, None, ())


@pytest.mark.parametrize("weights", [None, PLACE / "weights.bin"])
def test_decode_that_differs_from_prefill_is_a_fault(
    weights: Path | None, tiny_model: Tiny, right: Step
) -> None:
    last = len(tiny_model.runs.prompt) - 1

    def wrong(arrays: Any) -> Any:
        logits, *caches = right(arrays)
        first = arrays[0].shape[1] == 1 and arrays[2][0, 0] == last
        return [-logits if first else logits, *caches]

    generated = make_job(weights=weights).generate(
        tiny_model.interface, tiny_model.tokenizer, wrong
    )
    tokens = tiny_model.runs.model.run.tokens
    assert generated.tokens == tokens
    assert generated.alone[0] != tokens[0]
    assert generated.faults == (
        f"decode alone yields {generated.alone}, but decode after prefill yields {tokens[:5]}",
    )


def test_a_foreign_program_is_compared_with_float32_on_its_own_text(
    tiny_model: Tiny, right: Step
) -> None:
    """Its text departs from float32's at the fourth token; given that text, all other tokens are
    equal."""
    place = len(tiny_model.runs.prompt) + 2
    better = tiny_model.runs.model.run.logits[3].argsort()[-2]

    def departing(arrays: Any) -> Any:
        logits, *caches = right(arrays)
        if arrays[0].shape[1] == 1 and arrays[2][0, 0] == place:
            logits[0, 0, better] = logits.max() + 1
        return [logits, *caches]

    generated = make_job().generate(tiny_model.interface, tiny_model.tokenizer, departing)
    assert (generated.same_count, generated.tokens[3]) == (3, better)
    assert generated.likeness is not None
    assert generated.likeness.agreement == pytest.approx(1 - 1 / len(generated.tokens))
    assert generated.likeness.divergence > 0


def endless(step: Step) -> Step:
    def run(arrays: Any) -> Any:
        logits, *caches = step(arrays)
        logits[..., 2] = -99
        return [logits, *caches]

    return run


def test_a_text_is_as_long_as_the_context_has_room_for(tiny_model: Tiny, right: Step) -> None:
    def generate(length: int) -> Foreign:
        tokenizer = replace(tiny_model.tokenizer, encode=lambda _: [5] * (length - 1))
        job = make_job(tokens=1000, weights=None)
        return job.generate(tiny_model.interface, tokenizer, endless(right))

    assert len(generate(10).tokens) == CONTEXT - 10 - SIZE
    without_eos = replace(tiny_model.tokenizer, eos=-1)  # the text of float32 goes on, too
    generated = make_job(tokens=1000).generate(tiny_model.interface, without_eos, right)
    assert (
        generated.same_count
        == len(generated.tokens)
        == CONTEXT - len(tiny_model.runs.prompt) - SIZE
    )
    assert len(generate(CONTEXT - SIZE - 1).tokens) == 1
    with pytest.raises(UsageError, match="a prompt of 56 tokens does not fit in a context of 64"):
        generate(CONTEXT - SIZE)


def test_the_decoder_of_the_weights_has_the_sizes_of_the_program(tiny_model: Tiny) -> None:
    decoder = make_job().load(tiny_model.interface)
    for count in (1, SIZE):
        assert decoder(*example_inputs(tiny_model.config, CONTEXT, count))[0].shape == (
            1,
            count,
            57,
        )
    for name in ("layers", "kv_heads", "head_dim", "vocabulary"):
        number = getattr(tiny_model.interface, name)
        changed = structs.replace(tiny_model.interface, **{name: number + 1})
        with pytest.raises(UsageError, match=r"weights\.bin does not contain") as it:
            make_job().load(changed)
        assert (
            it.value.why == f"it has {name} = {number}, but the program has {name} = {number + 1}"
        )


class Coded:
    """A program whose masks and logits are integers: of another width in each method."""

    right: Any = None

    def __init__(self, path: Path) -> None:
        assert path == Path("m.pte")

    def call(self, arrays: Any) -> Any:
        tokens, mask, *other_inputs = arrays
        assert mask.dtype == {1: np.uint16, SIZE: np.uint8}[tokens.shape[1]]
        open_ = mask == np.iinfo(mask.dtype).max
        plain = np.where(open_, 0, -255).astype(np.float32)
        logits, *caches = self.right([tokens, plain, *other_inputs])
        return [np.rint(logits / 0.001 + 30_000).astype(np.uint16), *caches]

    def finish(self) -> float:
        return 0.25


def declare(tiny_model: Tiny, **constants: Any) -> Declared:
    """The tiny decoder, as Coded takes and gives its tensors."""

    def list_taken(count: int, mask: str) -> tuple[TensorInfo, ...]:
        past_tokens = CONTEXT - count
        key, value = (1, 2, 8, past_tokens), (1, 2, past_tokens, 8)
        caches = [TensorInfo("float32", shape) for shape in [key] * 2 + [value] * 2]
        ids = TensorInfo("int32", (1, count))
        return (ids, TensorInfo(mask, (1, 1, count, CONTEXT)), ids, *caches)

    outputs = {
        name: (TensorInfo("uint16", (1, n, 57)), *[TensorInfo("float32", ())] * 4)
        for name, n in ((PREFILL, SIZE), (DECODE, 1))
    }
    constants_of_model = {
        "get_logits_scale": 0.001,
        "get_logits_zero_point": 30_000,
        "get_eos_id": 2,
    }
    inputs = {PREFILL: list_taken(SIZE, "uint8"), DECODE: list_taken(1, "uint16")}
    assert tiny_model.interface.layers == 2
    return Declared({**constants_of_model, "get_bos_id": 1, **constants}, inputs, outputs)


def test_a_foreign_program_runs_with_the_tokens_and_sizes_that_it_declares(
    tiny_model: Tiny, right: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Coded, "right", staticmethod(right))
    monkeypatch.setattr(foreign, "StaticProgram", Coded)
    monkeypatch.setattr(
        foreign, "read_declared", lambda path: {Path("m.pte"): declare(tiny_model)}[path]
    )
    generated, text = make_job()()
    assert text == "Ben has a blue boat. The boat sails far."
    assert (generated.tokens, generated.step_s) == (tiny_model.runs.model.run.tokens, 0.25)
    assert (generated.same_count, generated.faults) == (len(generated.tokens), ())
    for constant, name in (("get_bos_id", "bos"), ("get_eos_id", "eos"), ("get_vocab_size", "")):
        contradicting = declare(tiny_model, **{constant: 9})
        monkeypatch.setattr(
            foreign, "read_declared", lambda _, contradicting=contradicting: contradicting
        )
        with pytest.raises(UsageError) as caught:
            make_job()()
        assert f"it has {name} =" in caught.value.why or "contradicts" in caught.value.what
        assert caught.value.fix


@pytest.mark.parametrize(
    "name", ["read_interface", "read_border", "find_faults", "compare_float", "count_same"]
)
def test_an_exception_in_our_code_is_a_defect_not_a_fault_of_the_program(
    name: str, tiny_model: Tiny, right: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    def throw(*arguments: Any) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(Coded, "right", staticmethod(right))
    monkeypatch.setattr(foreign, "StaticProgram", Coded)
    monkeypatch.setattr(foreign, "read_declared", lambda _: declare(tiny_model))
    monkeypatch.setattr(foreign, name, throw)
    with pytest.raises(DefectError, match="could not be computed: KeyError"):
        make_job()()


# -- sessions -------------------------------------------------------------------------------------

TOOL = Tool(name="QNN", version="2.49")


def run_foreign(tmp_path: Path, ended: Ended, scheme: Scheme = Scheme.ASIS) -> Report:
    """The report of a session whose only worker gives this result."""
    calls = []

    def run(job: Any, log: Path, timeout_s: float, *, max_bytes: int = 0) -> Ended:
        assert max_bytes == 0
        calls.append((job, log.name, timeout_s))
        return ended

    spec = CaseSpec("m.pte", scheme, "SM8750")
    options = make_options("llm", session="test_llm", specs=[spec])
    pool: Any = SimpleNamespace(run=run, memory=None, close=lambda: None)
    runner: Any = SimpleNamespace(name="python")
    setup = make_setup(tmp_path, LlmEngine(()), runner, pool, options=options, parts=(TOOL,))
    job: Any = "job"
    report = run_session(
        setup, Phases(Progress()), lambda spec, setup: ForeignRun(spec, setup, job)
    )
    assert calls == [("job", "run.log", 9.0)]
    return report


def test_a_foreign_program_gets_a_report_with_its_verdict(tmp_path: Path) -> None:
    generated = Foreign((1, 2), (1,), 0.1, 2, Likeness(0.99, 0.1))
    report = run_foreign(tmp_path, Ended((generated, "a story"), "", ""))
    (case,) = report.cases
    assert (report.session, case.judgement.status, case.judgement.equal) == (
        "test_llm",
        Status.PASSED,
        0.99,
    )
    assert case.run.runner == "python"
    assert report.toolchain[0] == TOOL
    assert [phase.name for phase in report.summary.phases] == ["cases"]
    assert report.remarks[0].startswith(f"{case.name}: 'a story' (2 tokens; the first 2 equal")
    poor = replace(generated, likeness=Likeness(0.1, 3.0))
    (case,) = run_foreign(tmp_path, Ended((poor, "a story"), "", "")).cases
    assert case.judgement.status is Status.FAILED
    assert "10% of the program's tokens equal the float32 model's" in case.headline
    (case,) = run_foreign(tmp_path, Ended((poor, "a story"), "", ""), Scheme.FP16).cases
    assert case.judgement.status is Status.PASSED  # the policy has no limit for this scheme


def test_a_program_that_dies_is_a_case_that_failed(tmp_path: Path) -> None:
    report = run_foreign(tmp_path, Ended(None, "was killed by SIGSEGV", "the last words"))
    (case,) = report.cases
    assert (case.judgement.status, case.headline) == (Status.FAILED, "run: was killed by SIGSEGV")
    assert (case.run.log_tail, case.run.runner, report.session) == (
        "the last words",
        "python",
        "test_llm",
    )


def test_a_usage_error_in_the_worker_is_a_usage_error_of_the_call(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        run_foreign(tmp_path, Ended(None, "no program", "", error=UsageError("no program")))
    assert caught.value.what == "no program"


def test_a_defect_of_our_code_exits_with_70(tmp_path: Path) -> None:
    report = run_foreign(tmp_path, Ended(None, "ours", "", error=DefectError("ours")))
    assert report.exit_code is ExitCode.DEFECT
