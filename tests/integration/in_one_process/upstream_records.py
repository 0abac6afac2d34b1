"""What is computed in upstream's process for the gate, on graphs made by hand."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

# Without QNN_SDK_ROOT ExecuTorch's import downloads an SDK; and it warns of what it uses itself.
with patch.dict(os.environ, QNN_SDK_ROOT="nowhere"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ci.models.schemes import Scheme
    from ci.upstream import record, worker
    from ci.upstream.capture import Capture, Seen
    from ci.upstream.emulator import CLIENT
    from ci.upstream.journal import Member
    from ci.upstream.record import Flat, find_scheme, work_out
    from ci.upstream.session import TestEnd
    from ci.upstream.worker import MAX_MESSAGE, Collected, Listener, find_refusal, summarize


def quantize_per_tensor(x: Any, *_: Any) -> Any:
    return x


def dequantize_affine(x: Any, *_: Any) -> Any:
    return x


def make_program(activations: str, weights: str = "", *, affine: bool = False) -> Any:
    """A graph with a quantizer of so many bits, such as "8 16 16", for each input and weight."""
    root, graph = torch.nn.Module(), torch.fx.Graph()
    x = graph.placeholder("x")
    for number, bits in enumerate(activations.split()):
        most = 2 ** int(bits) - 1 - (number == 1)  # a range need not be whole
        x = graph.call_function(quantize_per_tensor, (x, 0.1, 0, 0, most, torch.int32))
    for number, bits in enumerate(weights.split()):
        setattr(root, f"w{number}", torch.zeros(1))
        held = graph.get_attr(f"w{number}")
        half = 2 ** (int(bits) - 1)
        graph.call_function(quantize_per_tensor, (held, 0.1, 0, -half, half - 1, torch.int8))
    if affine:
        x = graph.call_function(dequantize_affine, (x,))
    graph.output(x)
    return torch.fx.GraphModule(root, graph)


@pytest.mark.parametrize(
    ("activations", "weights", "scheme"),
    [
        ("", "", Scheme.FP16),
        ("", "8", Scheme.FP16W8),
        ("8", "", Scheme.A8W8),
        ("8", "8 32", Scheme.A8W8),
        ("8 8", "8 4", Scheme.A8W4),
        ("16 16 8", "8", Scheme.A16W8),
        ("16 8 8", "8", Scheme.A8W8),
        ("16 8", "8", Scheme.A8W8),  # as many of each: the first of the sorted widths
        ("16", "", Scheme.A16W8),
        ("16", "16", Scheme.A16W16),
        ("16", "4 8", Scheme.A16W4),
        ("16", "2", Scheme.A16W2),
        ("8", "2", None),
        ("4", "4", None),
    ],
)
def test_the_scheme_of_a_graph_is_that_of_its_quantizers(
    activations: str, weights: str, scheme: Scheme | None
) -> None:
    assert find_scheme(make_program(activations, weights)) is scheme


def test_blocks_are_one_scheme_and_what_is_no_graph_is_not_quantized() -> None:
    assert find_scheme(make_program("16", "4", affine=True)) is Scheme.A16W4_BLOCK
    assert find_scheme(torch.nn.Linear(1, 1)) is Scheme.FP16


def test_nested_inputs_are_taken_flat_and_constants_stay() -> None:
    class Model(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def forward(self, first: Any, pair: Any, named: Any) -> Any:
            return first - 2 * pair[1] + named["a"], pair[0]

    one, two, three = (torch.tensor(float(n)) for n in (1, 10, 100))
    flat = Flat(Model(), (one, (7, two), {"a": three}))
    assert [float(found) for found in flat(three, two, one)] == [81.0, 7.0]


def report(outcome: str, text: str = "") -> Any:
    names = ("failed", "skipped", "passed")
    return SimpleNamespace(longrepr=text, **{name: name == outcome for name in names})


@pytest.mark.parametrize(
    ("reports", "summary"),
    [
        ([], ("passed", "")),
        ([report("passed", "x"), report("passed")], ("passed", "")),
        ([report("skipped", "a"), report("failed", "b"), report("failed", "c")], ("failed", "b")),
        ([report("passed"), report("skipped", "a"), report("skipped", "b")], ("skipped", "a")),
        ([report("failed", "x" + "y" * MAX_MESSAGE)], ("failed", "y" * MAX_MESSAGE)),
    ],
)
def test_a_test_has_the_worst_end_of_its_parts(
    reports: list[Any], summary: tuple[str, str]
) -> None:
    assert summarize(reports) == summary


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own
def test_a_comparison_of_a_float_program_has_its_own_outputs_and_noise() -> None:
    class Double(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def forward(self, x: Any) -> Any:
            return 2 * x

    given, made, wanted = (torch.full((2, 3), value) for value in (1.5, 3.001, 3.0))
    seen = Seen(
        program=torch.export.export(Double(), (given,)).module(),
        float_model=None,
        inputs=(given,),
        is_own=True,
        pte_bytes=8,
        outputs=[made],
        wanted=[wanted],
    )
    record, arrays = work_out(seen)
    assert (record.scheme, record.lacks, record.pte_bytes) == (Scheme.FP16.value, (), 8)
    assert [(one.dtype, one.shape) for one in record.inputs] == [("float32", (2, 3))]
    assert [(one.dtype, one.shape) for one in record.outputs] == [("float32", (2, 3))]
    assert arrays[Member.INPUT] == (given,)
    assert (arrays[Member.OUTPUT], arrays[Member.UPSTREAM]) == ([made], [wanted])
    assert arrays[Member.FLOAT] == [wanted]
    assert Member.NOISE in arrays
    assert not {Member.QUANTIZED, Member.LOW, Member.HIGH} & arrays.keys()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own
def test_a_program_of_no_known_scheme_has_a_record_without_bounds() -> None:
    program = make_program("4", "4")
    given = torch.ones(1)
    index = torch.ones(1, dtype=torch.int64)
    seen = Seen(
        program=program,
        float_model=torch.nn.Identity(),
        inputs=(given,),
        is_own=True,
        pte_bytes=8,
        outputs=[index],
        wanted=[index],
    )
    record, arrays = work_out(seen)
    assert (record.scheme, len(record.outputs)) == ("", 1)
    assert {Member.QUANTIZED, Member.FLOAT, Member.NOISE} <= arrays.keys()
    assert not {Member.LOW, Member.HIGH} & arrays.keys()


@pytest.mark.parametrize(
    ("activations", "weights", "float16"),
    [("", "", True), ("", "8", True), ("8", "8", False), ("16", "4", False), ("4", "4", False)],
)
def test_noise_is_that_of_float16_where_activations_are(
    monkeypatch: pytest.MonkeyPatch, activations: str, weights: str, float16: bool
) -> None:
    asked: list[Any] = []

    def predict(module: Any, sets: Any, *, float16: bool, qnn: str) -> Any:
        asked.append((module, sets, float16))
        return ["noise"]

    monkeypatch.setattr(record, "predict_noise", predict)
    program, given = make_program(activations, weights), (torch.ones(1),)
    seen = Seen(
        program=program,
        float_model=torch.nn.Identity(),
        inputs=given,
        is_own=True,
        outputs=[torch.ones(1)],
        wanted=[torch.ones(1)],
    )
    _, arrays = work_out(seen)
    assert asked == [(program, [given], float16)]
    assert arrays[Member.NOISE] == ["noise"]


@pytest.mark.parametrize(
    ("expected", "refusal"),
    [
        (pytest.RaisesExc(RuntimeError, match="no builder"), "no builder"),
        (pytest.RaisesExc(RuntimeError), ""),
        ("no exception", None),
        (None, None),
    ],
)
def test_a_refusal_that_upstream_expects_is_named(expected: Any, refusal: str | None) -> None:
    item = SimpleNamespace(callspec=SimpleNamespace(params={"kwargs": {"expected": expected}}))
    found = find_refusal(item)
    assert bool(found) == (refusal is not None)
    assert found.endswith(refusal or "")
    assert find_refusal(SimpleNamespace()) == ""
    odd = SimpleNamespace(callspec=SimpleNamespace(params={"kwargs": [expected]}))
    assert find_refusal(odd) == ""


@pytest.mark.parametrize(
    ("outcome", "comparisons", "refusal"),
    [("passed", 0, True), ("passed", 2, False), ("failed", 0, False), ("skipped", 0, False)],
)
def test_a_test_runs_with_seeds_and_a_runner_in_a_directory_of_its_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcome: str,
    comparisons: int,
    refusal: bool,
) -> None:
    """Its comparisons are written while its programs are still served."""
    place, own, seen = tmp_path / "kept", Capture(), cast("Seen", object())
    steps: list[Any] = []

    @contextmanager
    def serve(directory: Path) -> Iterator[None]:
        steps.append(("serve", directory))
        yield
        steps.append("served")

    def run(item: Any, nextitem: None) -> None:
        drawn = [torch.rand(1).item(), np.random.rand(), random.random()]
        steps.append((drawn, Path.cwd(), nextitem))
        item.callspec.params.clear()
        own.seen.extend([seen] * comparisons)
        worker.listener.pytest_runtest_logreport(report(outcome, "why" * (outcome != "passed")))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_EXECUTOR_RUNNER", "")
    monkeypatch.setattr(worker, "serve_programs", serve)
    monkeypatch.setattr(worker, "note_step", lambda _: None)
    monkeypatch.setattr(worker, "write_seen", lambda *written: steps.append(written))
    monkeypatch.setattr(worker, "capture", own)
    monkeypatch.setattr(worker, "listener", Listener())
    params = {"kwargs": {"expected": pytest.RaisesExc(RuntimeError, match="no builder")}}
    item = SimpleNamespace(
        config=SimpleNamespace(hook=SimpleNamespace(pytest_runtest_protocol=run)),
        callspec=SimpleNamespace(params=params),
    )
    monkeypatch.setattr(worker, "collected", Collected(items={"other": None, "own": item}))
    ends = []
    for _ in range(2):
        params["kwargs"] = {"expected": pytest.RaisesExc(RuntimeError, match="no builder")}
        own.seen.clear()
        worker.listener.reports.clear()
        ends.append(worker.run_here("own", place))
    told = "upstream expects the model to be refused: no builder" if refusal else ""
    message = "" if outcome == "passed" else "why"
    assert ends == [TestEnd(outcome, message, one.test_s, comparisons, told) for one in ends]
    first, again = steps[:4], steps[4:]
    assert first == again  # and so the same numbers were drawn
    serving, (drawn, directory, following), written, last = first
    assert len({*drawn}) == 3
    assert (serving, last) == (("serve", place), "served")
    assert (directory, following) == (place / "work", None)
    assert written == (place, own.seen)
    runner = Path(os.environ["QNN_EXECUTOR_RUNNER"])
    assert runner == place / "work" / worker.RUNNER
    assert os.access(runner, os.X_OK)
    assert (
        runner.read_text().splitlines()[1:-1]
        == CLIENT.format(python="", address="QNN_CI_EMULATOR").splitlines()[1:-1]
    )


def test_the_errors_of_a_collection_are_listed_by_their_ends() -> None:
    listener = Listener()
    long = "x" + "y" * MAX_MESSAGE
    for nodeid, failed, text in (("a.py", True, long), ("b.py", False, "z"), ("c.py", True, "w")):
        one = SimpleNamespace(nodeid=nodeid, failed=failed, longrepr=text)
        listener.pytest_collectreport(one)
    assert listener.errors == [f"a.py: {'y' * MAX_MESSAGE}", "c.py: w"]
