"""What is recorded of upstream's tests, on modules that stand in for upstream's."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")

import torch

from ci.upstream import capture as module
from ci.upstream.capture import Capture, Check, wrap

ONE, TWO = torch.tensor([1.0]), torch.tensor([2.0])
EXECUTED = SimpleNamespace(buffer=bytes(7))


def describe(check: Check) -> tuple[Any, ...]:
    values = ([float(value) for value in values] for values in (check.outputs, check.expected))
    return (check.program, check.float_model, check.inputs, check.is_own, check.pte_bytes, *values)


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Iterator[Capture]:
    capture_of_test = Capture()
    monkeypatch.setattr(module, "capture", capture_of_test)
    yield capture_of_test
    assert capture_of_test.now is None


def stand_in(monkeypatch: pytest.MonkeyPatch, **names: Any) -> None:
    monkeypatch.setattr(module.importlib, "import_module", lambda _: SimpleNamespace(**names))


def test_a_wrapper_sees_arguments_and_results_and_changes_neither() -> None:
    class Owner:
        def add(self, first: int, *, two: int) -> int:
            return first + two

        @staticmethod
        def double(number: int) -> int:
            return 2 * number

    calls: list[Any] = []
    owner = Owner()
    wrap(Owner, "add", before=lambda *words, **options: calls.append((words, options)))
    assert owner.add(1, two=2) == 3
    with pytest.raises(TypeError):
        owner.add("one", two=2)  # type: ignore[arg-type]
    assert calls.pop() == ((owner, "one"), {"two": 2}), "the arguments come first"
    wrap(Owner, "double", after=lambda result, argument: calls.append((result, argument)))
    assert (owner.double(4), Owner.double(5)) == (8, 10)
    assert calls == [((owner, 1), {"two": 2}), (8, 4), (10, 5)]
    assert Owner.add.__name__ == "add"


def test_a_comparison_is_kept_with_the_program_that_ran_last_and_with_copies() -> None:
    capture, program, source = Capture(), object(), object()
    capture.compare([ONE], [TWO])
    assert capture.checks == []
    inputs, output, expected = torch.tensor([3.0]), torch.tensor([4.0]), torch.tensor([5.0])
    weight = torch.tensor([6.0], requires_grad=True)
    capture.note_quantized(program, source)
    capture.begin(object(), [ONE])
    capture.begin(program, [inputs, "word"], pte_bytes=9)
    capture.compare([output, weight], [expected, TWO])
    capture.compare([TWO], [TWO])
    for tensor in (inputs, output, expected):
        tensor.add_(100)
    (check,) = capture.checks
    assert describe(check) == (program, source, (3.0, "word"), True, 9, [4.0, 6.0], [5.0, 2.0])
    assert not check.outputs[1].requires_grad
    capture.begin(source, [], is_own=False)
    capture.compare([], [])
    assert describe(capture.checks[1]) == (source, None, (), False, 0, [], [])


def test_comparisons_of_upstreams_new_tests_are_captured(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Calibrate:
        def __init__(self, model: Any, quantized: Any) -> None:
            self.module, self.quantized, self.inputs = model, quantized, []

        def __enter__(self) -> Any:
            return self.quantized

    class Metrics:
        pass

    class Near(Metrics):
        def assert_close(self, device_output: Any, ref_output: Any) -> None:
            del device_output, ref_output

    class Equal(Metrics):
        def assert_close(self, device_output: Any, ref_output: Any) -> None:
            del device_output, ref_output

    def verify(*, module: Any, inputs: Any, executorch_prog: Any, metric: Any) -> None:
        del module, inputs, executorch_prog
        metric.assert_close([ONE], [TWO])

    def compute(module: Any, inputs: Any) -> None:
        del module, inputs

    stand = SimpleNamespace(
        calibrate=Calibrate,
        verify_output_emulator=verify,
        _get_expected_output=compute,
        Metrics=Metrics,
    )
    stand_in(monkeypatch, **vars(stand))
    monkeypatch.setattr(module.importlib, "import_module", lambda _: stand)
    module.watch_rework()
    quantized, plain, unquantized = object(), object(), object()
    Calibrate(plain, quantized).__enter__()
    Calibrate(unquantized, unquantized).__enter__()
    for model, metric in ((plain, Near()), (unquantized, Equal()), (plain, Equal())):
        stand.verify_output_emulator(
            module=model, inputs=(), executorch_prog=EXECUTED, metric=metric
        )
    assert [describe(check) for check in capture.checks] == [
        (quantized, plain, (), False, 7, [1.0], [2.0]),
        (unquantized, None, (), True, 7, [1.0], [2.0]),
        (quantized, plain, (), False, 7, [1.0], [2.0]),
    ]


class Exported:
    def __init__(self, graph_module: Any) -> None:
        self.graph_module = graph_module

    def module(self, *, check_guards: bool) -> Any:
        assert not check_guards
        return self.graph_module


def test_comparisons_of_upstreams_backend_suite_are_captured(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(*names: str) -> Any:
        nodes = [SimpleNamespace(target=name, op="call_function") for name in names]
        graph_module = SimpleNamespace(graph=SimpleNamespace(nodes=nodes), names=names)
        return Exported(graph_module)

    class Tester:
        def __init__(self, model: Any) -> None:
            self.original_module = model

        def run_method_and_compare_outputs(self, exported: Any) -> None:
            self._calculate_reference_output(exported, [TWO])
            self._compare_outputs({"a": ONE}, (TWO,))

        @staticmethod
        def _calculate_reference_output(exported: Any, inputs: Any) -> None:
            del exported, inputs

        @staticmethod
        def _compare_outputs(expected: Any, outputs: Any) -> None:
            del expected, outputs

    class Quantize:
        def run(self, artifact: Any, inputs: Any) -> None:
            del artifact, inputs

    stand_in(monkeypatch, Tester=Tester, Quantize=Quantize)
    monkeypatch.setattr(module, "name_operator", lambda node: node.target)
    module.watch_backend_suite()
    quantized = ["add", "quantize_per_tensor"]
    for model, names in (("a", quantized), ("b", ["add"]), ("c", quantized)):
        Tester(model).run_method_and_compare_outputs(program(*names))
    assert [check.float_model for check in capture.checks] == ["a", None, "c"]
    for check in capture.checks:
        assert describe(check)[2:] == ((2.0,), True, 0, [2.0], [1.0])
