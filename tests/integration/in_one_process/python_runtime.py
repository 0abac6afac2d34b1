"""Programs as the Python runtime runs them, and what is noted of upstream's tests, without QNN."""

from __future__ import annotations

import os
import warnings
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

with patch.dict(os.environ, QNN_SDK_ROOT="nowhere"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from executorch.exir.tensor import scalar_type_enum

    from ci.executorch import runtime
    from ci.executorch.quantize import quantize_model, round_blocks
    from ci.upstream.capture import Check
    from ci.upstream.comparison import Member
    from ci.upstream.record import work_out

from ci.models.lowering_options import RunOptions  # noqa: E402
from ci.models.model import Model  # noqa: E402
from ci.models.schemes import Scheme  # noqa: E402
from provisioning.errors import FailedError  # noqa: E402

WARNINGS = ("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
pytestmark = pytest.mark.filterwarnings(*WARNINGS)
FLOAT32 = 6


class Method:
    """Multiplies one input by ``factor``, and writes each result where the one before was."""

    def __init__(self, factor: float) -> None:
        self.factor, self.kept, self.calls = factor, torch.empty(2), 0

    def method_meta(self) -> Any:
        tensor_meta = SimpleNamespace(dtype=lambda: FLOAT32, sizes=lambda: [2])
        return SimpleNamespace(num_inputs=lambda: 1, input_tensor_meta=lambda _: tensor_meta)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        self.calls += 1
        self.kept.copy_(inputs[0] * self.factor)
        return [self.kept, None]


class Crossing:
    """Has two inputs of different sizes, and gives twice each, the second one first."""

    def method_meta(self) -> Any:
        metas = [SimpleNamespace(dtype=lambda: FLOAT32, sizes=lambda n=n: [n]) for n in (2, 3)]
        return SimpleNamespace(num_inputs=lambda: 2, input_tensor_meta=metas.__getitem__)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        first, second = inputs
        return [second * 2, None, first * 2]


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> dict[str, Method]:
    """The methods of every program; nothing is loaded."""
    methods_by_name = {"first": Method(2.0), "second": Method(10.0)}
    loaded = SimpleNamespace(load_method=methods_by_name.get)
    bindings = SimpleNamespace(_load_program=lambda *_, **__: loaded)
    monkeypatch.setattr(runtime, "internals", SimpleNamespace(pybindings=bindings))
    monkeypatch.setattr(runtime, "overwrite_freed_memory", lambda: None)
    return methods_by_name


def load(**options: Any) -> runtime.LoadedProgram:
    compiled = SimpleNamespace(methods=("first", "second"))
    return runtime.LoadedProgram(SimpleNamespace(path=Path("p"), compiled=compiled), **options)


def array(*values: float) -> Any:
    return np.float32(values)


def list_values(outputs: list[Any]) -> list[Any]:
    """The values of each output."""
    return [output.tolist() for output in outputs]


def test_each_method_gets_its_own_inputs_and_earlier_outputs_stay(
    methods: dict[str, Method],
) -> None:
    sets = [[array(1, 2), array(3, 4)], [array(5, 6), array(7, 8)]]
    outputs_of_sets = load().run(sets)
    assert [list_values(outputs) for outputs in outputs_of_sets] == [
        [[2, 4], [30, 40]],
        [[10, 12], [70, 80]],
    ]
    for wrong in ([array(1, 2)], [array(1, 2)] * 3, [array(1, 2), array(1)]):
        with pytest.raises(FailedError):
            load().run([wrong])


def test_a_method_gets_each_of_its_inputs_and_gives_each_of_its_outputs(
    methods: dict[str, Any],
) -> None:
    methods["second"] = Crossing()
    sets = [[array(n, n), array(1, n), array(2, 3, n)] for n in range(2)]
    outputs_of_sets = load().run(sets)
    assert [list_values(outputs) for outputs in outputs_of_sets] == [
        [[2 * n, 2 * n], [4, 6, 2 * n], [2, 2 * n]] for n in range(2)
    ]
    with pytest.raises(FailedError, match=r"sample 1 has .*: 2 instead of 3"):
        load().run([sets[0], sets[1][:2]])
    with pytest.raises(FailedError, match="an input is 8 bytes long instead of 12"):
        load().run([[*sets[0][:2], array(1, 2)]])


def test_the_dtype_numbers_are_executorchs() -> None:
    numbers = {dtype: int(scalar_type_enum(dtype)) for dtype in runtime.SCALAR_TYPES.values()}
    assert {number: dtype for dtype, number in numbers.items()} == runtime.SCALAR_TYPES
    floats = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    integers = {torch.uint8, torch.uint16, torch.int8, torch.int16, torch.int32, torch.int64}
    assert numbers.keys() == floats | integers | {torch.bool}


def test_each_run_is_timed_alone_and_those_to_warm_up_are_not(
    methods: dict[str, Method], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "time", SimpleNamespace(perf_counter=count().__next__))
    program = load(repeated=RunOptions(warm_up=2, iteration=3))
    program.run([[array(1, 2), array(3, 4)]] * 2)
    assert methods["first"].calls == 2 * (2 + 3)
    assert program.times_s == [1] * 2 * 3
    program.times_s = [1.0, 2.0, 6.0]
    assert program.finish() == 3.0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_dumped_tensor_has_its_own_file(tmp_path: Path, count: int) -> None:
    tensors = [torch.full((2,), float(n)) for n in range(count)]
    events = [
        SimpleNamespace(name="aten.conv: 1", debug_data=tensors),
        SimpleNamespace(name="add", debug_data=tensors),
        SimpleNamespace(name="other", debug_data=None),
    ]
    written = list(runtime.write_tensors(events, tmp_path / runtime.INTERMEDIATES))
    assert len(written) == len(set(written)) == 2 * count
    values = [np.load(tmp_path / name).tolist() for name in written]
    assert values == [[n, n] for n in range(count)] * 2
    with pytest.raises(FailedError):
        list(runtime.write_tensors(events[2:], tmp_path / "none"))


# -- what is noted of upstream's tests -------------------------------------------------------------


class Parts(torch.nn.Module):
    """A magnitude and the index of its largest element."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Any) -> Any:
        values = self.second(self.first(x).relu())
        return values, values.argmax(-1)


def quantize(scheme: Scheme) -> tuple[Any, Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    net, sets = Parts().eval(), tuple((torch.randn(1, 8),) for _ in range(2))
    return quantize_model(Model("net", net, sets[:1], sets), scheme, "SM8650"), net, sets[0]


def test_the_scales_of_blocks_are_rounded_in_the_reference() -> None:
    torch.manual_seed(0)
    net, sets = torch.nn.Linear(64, 8).eval(), tuple((torch.randn(1, 64),) for _ in range(2))
    program = quantize_model(Model("net", net, sets[:1], sets), Scheme.A16W4_BLOCK, "SM8650")
    with torch.no_grad():
        plain, rounded = (module(*sets[0]) for module in (program, round_blocks(program)))
    assert not torch.equal(plain, rounded)
    check = Check(
        program=program,
        float_model=net,
        inputs=sets[0],
        is_own=True,
        outputs=[plain],
        expected=[plain],
    )
    record, arrays = work_out(check)
    assert record.scheme == Scheme.A16W4_BLOCK.value
    assert torch.equal(torch.from_numpy(arrays[Member.QUANTIZED][0]), rounded)
