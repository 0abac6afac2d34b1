"""Programs as the Python runtime runs them, and what is noted of upstream's tests, without QNN."""

from __future__ import annotations

import os
import subprocess
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
    from ci.llm.runtime import StaticProgram
    from ci.upstream import emulator
    from ci.upstream.capture import Capture, Seen
    from ci.upstream.journal import Member
    from ci.upstream.record import find_scheme, work_out

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
        one = SimpleNamespace(dtype=lambda: FLOAT32, sizes=lambda: [2])
        return SimpleNamespace(num_inputs=lambda: 1, input_tensor_meta=lambda _: one)

    def __call__(self, given: list[Any]) -> list[Any]:
        self.calls += 1
        self.kept.copy_(given[0] * self.factor)
        return [self.kept, None]


class Crossing:
    """Has two inputs of different sizes, and gives twice each, the second one first."""

    def method_meta(self) -> Any:
        metas = [SimpleNamespace(dtype=lambda: FLOAT32, sizes=lambda n=n: [n]) for n in (2, 3)]
        return SimpleNamespace(num_inputs=lambda: 2, input_tensor_meta=metas.__getitem__)

    def __call__(self, given: list[Any]) -> list[Any]:
        first, second = given
        return [second * 2, None, first * 2]


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> dict[str, Method]:
    """The methods of every program; nothing is loaded."""
    held = {"first": Method(2.0), "second": Method(10.0)}
    loaded = SimpleNamespace(load_method=held.get)
    bindings = SimpleNamespace(_load_program=lambda *_, **__: loaded)
    monkeypatch.setattr(runtime, "internals", SimpleNamespace(pybindings=bindings))
    monkeypatch.setattr(runtime, "overwrite_freed_memory", lambda: None)
    return held


def load(**more: Any) -> runtime.LoadedProgram:
    compiled = SimpleNamespace(methods=("first", "second"))
    return runtime.LoadedProgram(SimpleNamespace(path=Path("p"), compiled=compiled), **more)


def array(*values: float) -> Any:
    return np.float32(values)


def test_each_method_gets_its_own_inputs_and_outputs_stay(methods: dict[str, Method]) -> None:
    sets = [[array(1, 2), array(3, 4)], [array(5, 6), array(7, 8)]]
    made = load().run(sets)
    assert [[one.tolist() for one in row] for row in made] == [
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
    made = load().run(sets)
    assert [[one.tolist() for one in outputs] for outputs in made] == [
        [[2 * n, 2 * n], [4, 6, 2 * n], [2, 2 * n]] for n in range(2)
    ]
    with pytest.raises(FailedError, match=r"input set 1 has .*: 2 instead of 3"):
        load().run([sets[0], sets[1][:2]])
    with pytest.raises(FailedError, match="an input is 8 bytes long instead of 12"):
        load().run([[*sets[0][:2], array(1, 2)]])


def test_the_numbers_of_dtypes_are_executorchs() -> None:
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


def test_the_time_of_a_step_is_that_of_decode_alone() -> None:
    program = StaticProgram.__new__(StaticProgram)
    program.times_s, program.methods, program.metas = [], {}, {}
    for size in (1, 4):
        meta = SimpleNamespace(dtype=lambda: FLOAT32, sizes=lambda size=size: [1, size])
        program.methods[size], program.metas[size] = (lambda given: given), [meta]
    for size in (4, 1, 4, 1):
        tokens = np.full((1, size), size, np.float32)
        assert program.call([tokens])[0].tolist() == tokens.tolist()
    assert len(program.times_s) == 2
    program.times_s = [1.0, 2.0]
    assert program.finish() == 1.5
    # Each input has its own form, and each result is kept as it was.
    metas = [SimpleNamespace(dtype=lambda: FLOAT32, sizes=lambda n=n: [1, n]) for n in (4, 3)]
    program.methods[4], program.metas[4] = (lambda given: given[::-1]), metas
    given = [np.ones((1, 4), np.float32), np.zeros((1, 3), np.float32)]
    made = program.run([given, given])
    assert [[one.shape for one in outputs] for outputs in made] == [[(1, 3), (1, 4)]] * 2
    with pytest.raises(FailedError, match="an input is 16 bytes long instead of 12"):
        program.run([[given[0], given[0]]])


def test_no_program_finds_what_another_left_in_memory(
    methods: dict[str, Method], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(runtime, "overwrite_freed_memory", lambda: calls.append(1))
    load()
    assert calls == [1]


def test_the_allocator_is_asked_to_fill_what_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load_library(name: Any) -> Any:
        return SimpleNamespace(mallopt=lambda *given: asked.append((name, *given)))

    monkeypatch.setattr(runtime, "ctypes", SimpleNamespace(CDLL=load_library))
    runtime.overwrite_freed_memory()
    assert asked == [(None, -6, 0x5A)]  # M_PERTURB of malloc.h


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, {}),
        ({"debug_bytes": 0}, {"enable_etdump": True, "debug_buffer_size": 0}),
        ({"debug_bytes": 9}, {"enable_etdump": True, "debug_buffer_size": 9}),
    ],
)
def test_a_trace_is_recorded_only_if_asked_for(
    methods: dict[str, Method], monkeypatch: pytest.MonkeyPatch, asked: Any, told: Any
) -> None:
    loads: list[Any] = []

    def load_program(*given: Any, **more: Any) -> Any:
        loads.append((given, more))
        written = lambda *files: loads.append(files)  # noqa: E731
        return SimpleNamespace(load_method=methods.get, write_etdump_result_to_file=written)

    bindings = SimpleNamespace(_load_program=load_program)
    monkeypatch.setattr(runtime, "internals", SimpleNamespace(pybindings=bindings))
    load(**asked).write_trace(Path("trace"), Path("debug"))
    assert loads == [(("p",), told), ("trace", "debug")]


@pytest.mark.parametrize("quantizes", [False, True])
def test_kernels_that_quantize_are_imported_only_where_the_cpu_quantizes(
    methods: dict[str, Method], monkeypatch: pytest.MonkeyPatch, *, quantizes: bool
) -> None:
    imported: list[str] = []

    class Internals:
        pybindings = runtime.internals.pybindings

        @property
        def quantized_kernels(self) -> None:
            imported.append("kernels")

    monkeypatch.setattr(runtime, "internals", Internals())
    load(quantizes=quantizes)
    assert imported == ["kernels"] * quantizes


def test_a_program_without_names_of_methods_has_one(methods: dict[str, Any]) -> None:
    methods["forward"] = methods.pop("first")
    compiled = SimpleNamespace(methods=())
    program = runtime.LoadedProgram(SimpleNamespace(path=Path("p"), compiled=compiled))
    assert program.methods == [methods["forward"]]


@pytest.mark.parametrize("debug", [False, True])
def test_only_events_of_qnn_are_read_of_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, debug: bool
) -> None:
    name = "Accelerator (execute) time (cycles)"

    def event(delegated: bool, *values: float, named: str = name) -> Any:
        return SimpleNamespace(
            name=named,
            is_delegated_op=delegated,
            perf_data=SimpleNamespace(raw=[*values]),
            debug_data=[torch.full((1,), values[0])],
        )

    blocks = [[event(False, 1.0), event(True, 10.0, 30.0)], [event(True, 2.0, 6.0, named="x (us)")]]
    given: dict[str, Any] = {}

    def inspect(**more: Any) -> Any:
        given.update(more)
        return SimpleNamespace(event_blocks=[SimpleNamespace(events=one) for one in blocks])

    scale = SimpleNamespace(NS="ns")
    monkeypatch.setattr(runtime, "internals", SimpleNamespace(Inspector=inspect, TimeScale=scale))
    figures, names = runtime.read_trace(tmp_path, 2, 1, debug=debug)
    assert given == {
        "etdump_path": str(tmp_path / runtime.ETDUMP),
        "debug_buffer_path": str(tmp_path / runtime.DEBUG) if debug else None,
        "source_time_scale": "ns",
        "target_time_scale": "ns",
    }
    if debug:
        assert (figures, len(names)) == ({}, 2)
        assert [np.load(tmp_path / one).tolist() for one in names] == [[10], [2]]
        return
    assert (figures, names) == ({"accelerator_cycles": 20}, ("profile.csv",))
    assert (tmp_path / "profile.csv").read_text().splitlines() == [
        "Event Identifier,Unit of Measurement,Run,Time",
        "Accelerator (execute) time,CYCLES,0,10",
        "Accelerator (execute) time,CYCLES,1,30",
        "x,US,0,2",
        "x,US,1,6",
    ]
    for others in ([], [[event(True, 3.0, named="x (ms)")]]):  # no event, none with a known unit
        blocks[:] = others
        with pytest.raises(FailedError, match="no QNN events") as caught:
            runtime.read_trace(tmp_path, 2, 1, debug=False)
        assert caught.value.fix


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_dumped_tensor_has_its_own_file(tmp_path: Path, count: int) -> None:
    events = [
        SimpleNamespace(name=name, debug_data=[torch.full((2,), float(n)) for n in range(count)])
        for name in ("aten.conv: 1", "add")
    ]
    events.append(SimpleNamespace(name="other", debug_data=None))
    written = list(runtime.write_tensors(events, tmp_path / runtime.INTERMEDIATES))
    assert len(written) == len(set(written)) == 2 * count
    values = [np.load(tmp_path / name).tolist() for name in written]
    assert values == [[n, n] for n in range(count)] * 2
    with pytest.raises(FailedError):
        list(runtime.write_tensors(events[2:], tmp_path / "none"))


def test_each_run_of_an_event_is_a_row_with_its_unit() -> None:
    def event(name: str, *values: float) -> Any:
        return SimpleNamespace(name=name, perf_data=SimpleNamespace(raw=[*values]))

    assert list(runtime.list_rows(event("Accelerator (execute) time (cycles)", 10.4, 20.6))) == [
        ("Accelerator (execute) time", "CYCLES", 0, 10),
        ("Accelerator (execute) time", "CYCLES", 1, 21),
    ]
    assert list(runtime.list_rows(event("load (us)", 3.0))) == [("load", "US", 0, 3)]
    assert list(runtime.list_rows(event("load (ms)", 3.0))) == []
    assert list(runtime.list_rows(SimpleNamespace(name="load (us)", perf_data=None))) == []


@pytest.mark.parametrize(("index", "factor"), [(None, 2), (0, 2), (1, 10)])
def test_upstream_s_test_gets_the_outputs_of_the_method_that_it_asks_for(
    methods: dict[str, Method],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    index: int | None,
    factor: int,
) -> None:
    names = [*methods]
    loaded = SimpleNamespace(load_method=methods.get, get_method_name=names.__getitem__)
    bindings = SimpleNamespace(_load_program=lambda *_: loaded)
    monkeypatch.setattr(
        emulator, "internals", SimpleNamespace(pybindings=bindings, quantized_kernels=None)
    )
    monkeypatch.setattr(emulator, "overwrite_freed_memory", lambda: None)
    (tmp_path / "p.pte").write_bytes(b"program")
    for number in range(2):
        (tmp_path / f"x{number}.raw").write_bytes(array(number, 5).tobytes())
    (tmp_path / "inputs.txt").write_text("x0.raw\n\nx1.raw\n")
    paths = {"model": "p.pte", "input_list": "inputs.txt", "output_folder": "."}
    words = [f"--{name}_path={path}" for name, path in paths.items()]
    words += [] if index is None else [f"--method_index={index}"]
    keep = tmp_path / "kept/0.pte"
    assert emulator.run_call(tmp_path, words, keep) == "2 input sets were run"
    assert keep.read_bytes() == b"program"
    for number in range(2):
        made = np.fromfile(tmp_path / f"output_{number}_0.raw", np.float32)
        assert made.tolist() == [factor * number, factor * 5]
    methods["second"] = Crossing()  # type: ignore[assignment]
    (tmp_path / "y.raw").write_bytes(array(3, 4, 6).tobytes())
    (tmp_path / "inputs.txt").write_text("x0.raw y.raw\nx1.raw y.raw\n")
    if index == 1:
        assert emulator.run_call(tmp_path, words, keep) == "2 input sets were run"
        read = [
            np.fromfile(tmp_path / f"output_{number}_{place}.raw", np.float32).tolist()
            for number in range(2)
            for place in range(2)
        ]
        assert read == [[6, 8, 12], [0, 10], [6, 8, 12], [2, 10]]
        return
    (tmp_path / "inputs.txt").write_text("x0.raw x1.raw\n")
    with pytest.raises(FailedError, match=r"input set 0 has .*: 2 instead of 1"):
        emulator.run_call(tmp_path, words, keep)
    with pytest.raises(FailedError, match="--shared_buffer"):
        emulator.run_call(tmp_path, [*words, "--shared_buffer=1"], keep)


def test_an_executable_gets_the_answer_of_the_process_that_serves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each program is kept by its number, and the process ends with the block."""

    def answer(place: Path, words: Any, keep: Path) -> tuple[int, str]:
        return len(words), f"{place.name} {' '.join(words)} {keep.name}"

    monkeypatch.setattr(emulator, "answer_call", answer)
    monkeypatch.setenv(emulator.ADDRESS, "")
    client = tmp_path / "deep" / "runner"
    emulator.write_client(client)
    with emulator.serve_programs(tmp_path):
        ended = [
            subprocess.run(
                [client, *words], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            for words in (["--a=1", "b c"], [])
        ]
    told = [(one.returncode, one.stdout, one.stderr) for one in ended]
    name = tmp_path.name
    assert told == [(2, f"{name} --a=1 b c 0.pte\n", ""), (0, f"{name}  1.pte\n", "")]
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert subprocess.run([client], capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (None, (0, "done")),
        (FailedError("no", why="so"), (1, f"E {FailedError('no', why='so')}")),
        (FailedError("it ended without a result"), (134, "E it ended without a result")),
    ],
)
def test_a_call_is_answered_as_the_runner_would_exit(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, answer: tuple[int, str]
) -> None:
    def fork(job: Any, what: str) -> str:
        assert what == "running the program"
        if error:
            raise error
        return str(job())

    monkeypatch.setattr(emulator, "run_forked", fork)
    monkeypatch.setattr(emulator, "run_call", lambda *words: "done" if words == CALL else "")
    assert emulator.answer_call(*CALL) == answer


CALL = (Path("place"), ["--a=1"], Path("0.pte"))


# -- what is noted of upstream's tests -------------------------------------------------------------


class Parts(torch.nn.Module):
    """A magnitude and the index of its largest element."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Any) -> Any:
        made = self.second(self.first(x).relu())
        return made, made.argmax(-1)


def test_tensors_are_noted_as_they_were_when_they_were_compared() -> None:
    capture, given, made = Capture(), torch.ones(2), torch.ones(2)
    capture.begin(None, [given])
    given.fill_(5)
    capture.compare([made], [made])
    made.fill_(7)
    (seen,) = capture.seen
    held = (*seen.inputs, *seen.outputs, *seen.wanted)
    assert [one.tolist() for one in held] == [[1, 1]] * 3
    capture.compare([made], [made])  # of no run that began
    assert len(capture.seen) == 1


def test_a_comparison_knows_its_program_and_the_model_that_it_was_made_of() -> None:
    capture, program, model, plain = Capture(), Parts(), Parts(), Parts()
    capture.note_quantized(program, model)
    for own, size in ((True, 17), (False, 0)):
        capture.begin(program, [torch.ones(1), torch.zeros(2)], is_own=own, pte_bytes=size)
        capture.compare([torch.ones(3)], [torch.ones(4), torch.ones(5)])
    capture.begin(plain, [])
    capture.compare([], [])
    first, second, third = capture.seen
    assert (first.program, first.float_model) == (program, model)
    assert [(one.is_own, one.pte_bytes) for one in capture.seen] == [
        (True, 17),
        (False, 0),
        (True, 0),
    ]
    assert [len(one) for one in (second.inputs, second.outputs, second.wanted)] == [2, 1, 2]
    assert (third.program, third.float_model) == (plain, None)


def quantize(scheme: Scheme) -> tuple[Any, Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    net, sets = Parts().eval(), tuple((torch.randn(1, 8),) for _ in range(2))
    return quantize_model(Model("net", net, sets[:1], sets), scheme, "SM8650"), net, sets[0]


@pytest.mark.parametrize(
    "scheme",
    [
        *(Scheme.A8W8, Scheme.A8W4, Scheme.A16W8, Scheme.A16W16, Scheme.A16W4),
        *(Scheme.A16W2, Scheme.FP16W8),
    ],
)
def test_a_program_is_of_the_scheme_of_its_narrowest_weights(scheme: Scheme) -> None:
    program, net, _ = quantize(scheme)
    assert find_scheme(program) is scheme
    assert find_scheme(net) is Scheme.FP16
    if scheme is Scheme.A16W4:
        nodes = [one for one in program.graph.nodes if "quantize_per_channel" in str(one.target)]
        *others, low, high, kind = nodes[0].args
        nodes[0].args = (*others, low * 16, high * 16, kind)
        assert find_scheme(program) is scheme


def test_most_activations_and_the_narrowest_weights_decide_on_a_scheme() -> None:
    """Whatever their order; a bias of 32 bits decides nothing."""
    quantize_tensor: Any = torch.ops.quantized_decomposed.quantize_per_tensor.default
    eight, sixteen, four, bias = (-128, 127), (0, 65535), (-8, 7), (-(2**31), 2**31 - 1)
    for activations, weights, scheme in (
        ([sixteen, eight, eight], [eight], Scheme.A8W8),
        ([eight, sixteen, sixteen], [bias, eight], Scheme.A16W8),
        ([eight, sixteen, eight], [eight, four], Scheme.A8W4),
        ([sixteen, eight, sixteen], [four, eight, bias], Scheme.A16W4),
        ([sixteen, sixteen], [bias], Scheme.A16W8),
        ([sixteen], [sixteen], Scheme.A16W16),
        ([sixteen], [(-2, 1)], Scheme.A16W2),
        ([], [eight], Scheme.FP16W8),
        ([eight], [], Scheme.A8W8),
        ([four], [four], None),
    ):
        graph = torch.fx.Graph()
        value = graph.placeholder("x")
        held = torch.nn.Module()
        for number, (low, high) in enumerate(weights):
            held.register_buffer(f"w{number}", torch.ones(1))
            given = graph.get_attr(f"w{number}")
            graph.call_function(quantize_tensor, (given, 1.0, 0, low, high, torch.int32))
        for low, high in activations:
            value = graph.call_function(quantize_tensor, (value, 1.0, 0, low, high, torch.int32))
        graph.output(value)
        assert find_scheme(torch.fx.GraphModule(held, graph)) is scheme


def test_an_index_next_to_a_magnitude_has_bounds() -> None:
    program, net, inputs = quantize(Scheme.A8W8)
    with torch.no_grad():
        outputs = [*program(*inputs)]
    wanted = [one.clone() for one in outputs]
    seen = Seen(
        program=program,
        float_model=net,
        inputs=inputs,
        is_own=True,
        pte_bytes=17,
        outputs=outputs,
        wanted=wanted,
    )
    record, arrays = work_out(seen)
    assert record.lacks == ()
    for member, tensors in (
        (Member.INPUT, inputs),
        (Member.OUTPUT, outputs),
        (Member.UPSTREAM, wanted),
    ):
        pairs = zip(arrays[member], tensors, strict=True)
        assert all(one is tensor for one, tensor in pairs)
    assert (record.scheme, record.pte_bytes) == ("8a8w", 17)
    assert [one.shape for one in record.inputs] == [(1, 8)]
    assert [(one.dtype, one.shape) for one in record.outputs] == [
        ("float32", (1, 8)),
        ("int64", (1,)),
    ]
    magnitude_info, index_info = record.outputs
    assert magnitude_info.step > 0
    assert magnitude_info.highest - magnitude_info.lowest == 255
    assert (index_info.step, index_info.joined) == (0, ())
    assert {Member.LOW, Member.HIGH} <= arrays.keys()
    assert arrays[Member.LOW][1] <= outputs[1] <= arrays[Member.HIGH][1]
    magnitude, _ = net(*inputs)
    assert torch.equal(arrays[Member.FLOAT][0], magnitude.detach())


def test_the_scales_of_blocks_are_rounded_in_the_reference() -> None:
    torch.manual_seed(0)
    net, sets = torch.nn.Linear(64, 8).eval(), tuple((torch.randn(1, 64),) for _ in range(2))
    program = quantize_model(Model("net", net, sets[:1], sets), Scheme.A16W4_BLOCK, "SM8650")
    with torch.no_grad():
        plain, rounded = (one(*sets[0]) for one in (program, round_blocks(program)))
    assert not torch.equal(plain, rounded)
    seen = Seen(
        program=program,
        float_model=net,
        inputs=sets[0],
        is_own=True,
        outputs=[plain],
        wanted=[plain],
    )
    record, arrays = work_out(seen)
    assert record.scheme == Scheme.A16W4_BLOCK.value
    assert torch.equal(arrays[Member.QUANTIZED][0], rounded)
