"""A search names the operator that is spoiled, on an emulator's stand-in that computes eagerly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace as copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.fx import GraphModule, Interpreter, Node  # noqa: E402

from ci.audit import localise  # noqa: E402
from ci.audit.localise import (  # noqa: E402
    Localised,
    Localiser,
    TorchParts,
    advise_on_part,
    describe_smallest,
    find_suspect,
    match_operators,
    measure_departure,
)
from ci.audit.localise_graph import Division  # noqa: E402
from ci.audit.localise_search import (  # noqa: E402
    Cut,
    Departure,
    Laboratory,
    Located,
    Mend,
    Operator,
    Row,
    Search,
    Trial,
    rank_departures,
)
from ci.audit.localise_torch import (  # noqa: E402
    divide_module,
    make_division,
    write_module,
)
from ci.cases.engine import Delegation  # noqa: E402
from ci.cases.pool import Ended  # noqa: E402
from ci.cases.spec import CaseSpec  # noqa: E402
from ci.diagnosis import experiments  # noqa: E402
from ci.executorch.engine import ExecutorchEngine  # noqa: E402
from ci.facts.known_fault import KnownFault  # noqa: E402
from ci.judging.gate import judge_output  # noqa: E402
from ci.models.eager import run_eager  # noqa: E402
from ci.models.model import load_model  # noqa: E402
from ci.models.tensors import TensorInfo  # noqa: E402
from ci.report.schema import Threshold  # noqa: E402
from ci.verbs.localise import (  # noqa: E402
    choose_exit,
    data_of,
    render_cases,
)
from provisioning.console.progress import Progress  # noqa: E402
from provisioning.errors import FailedError, UsageError  # noqa: E402
from tests.build.exports import export_graph  # noqa: E402
from tests.build.setups import make_setup  # noqa: E402
from tests.stand_ins.lanes import (  # noqa: E402
    COARSE,
    LABELLER,
    SPEC,
    EchoRunner,
    fail,
    make_references,
)
from tests.stand_ins.snapshots import check_snapshot  # noqa: E402

PREDICTED_DB = 60.0
PARTS = TorchParts(ExecutorchEngine(("one",)))
Spoils = Callable[[GraphModule, Node], bool]


class Spoiled(Interpreter):
    """Computes a part as a machine does that gives a tenth too much for some nodes."""

    def __init__(self, module: GraphModule, spoils: Spoils) -> None:
        super().__init__(module)
        self.spoils = spoils

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        return result * 1.1 if self.spoils(self.module, n) else result


def measure(right: Sequence[Any], program_sets: Sequence[Any], index: int) -> float:
    ratios = []
    for right_outputs, program_outputs in zip(right, program_sets, strict=True):
        noise = (right_outputs[index].double() - program_outputs[index].double()).square().sum()
        ratios.append(
            float(10 * torch.log10(right_outputs[index].double().square().sum() / (noise + 1e-15)))
        )
    return min(ratios)


def search(
    graphs: Division, spoils: Spoils, limit: int = 200, suspects: Sequence[Sequence[str]] = ()
) -> tuple[Located, Laboratory]:
    def try_cut(cut: Cut) -> Trial:
        module, sets = write_module(graphs, cut)
        right = run_eager(module, sets)
        with torch.no_grad():
            spoiled_sets = [Spoiled(module, spoils).run(*inputs) for inputs in sets]
        reached = [measure(right, spoiled_sets, index) for index in range(len(cut.outputs))]
        return Trial(
            tuple(
                Departure(operator=name, reached_db=db, predicted_db=PREDICTED_DB, faithful=db > 50)
                for name, db in zip(cut.outputs, reached, strict=True)
            )
        )

    laboratory = Laboratory(try_cut, limit)
    operators = {operator.name: operator for operator in graphs.describe()}
    return Search(operators, graphs.outputs, laboratory, suspects).run(), laboratory


def open_suite(name: str) -> Division:
    model = load_model(name)
    return divide_module(model.module, model.module, model.evaluation[:2])


@pytest.mark.parametrize(
    ("model", "kind", "place"),
    [
        ("mlp", "linear", -1),
        ("resnet", "conv2d", 3),
        ("decoder", "softmax", 0),
        ("lstm", "tanh", 2),
        ("transformer", "gelu", 0),
    ],
)
def test_localise_names_a_planted_faulty_operator(model: str, kind: str, place: int) -> None:
    graphs = open_suite(model)
    spoiled = [operator for operator in graphs.describe() if operator.kind == kind][place]
    located, laboratory = search(graphs, lambda _, node: node.name == spoiled.name)
    assert located.first == spoiled
    assert located.part == (spoiled,)
    assert located.program_rows[0].operator == spoiled
    assert spoiled.line
    assert len(laboratory.tried) < 20


class Pair(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        left, right = x.sin() + 2, y.cos() * 3
        return torch.stack([left, right]).exp(), x.abs() + 1


def open_pair() -> Division:
    torch.manual_seed(0)
    sets = [(torch.randn(2, 4), torch.randn(2, 4)) for _ in range(2)]
    return divide_module(Pair(), Pair(), sets)


def test_operators_that_are_right_only_when_exposed_are_named_with_their_reader() -> None:
    """The simulated compiler joins two operators with the stack that reads both, unless the program
    returns the result of one of them."""

    def joins(module: Any, node: Node) -> bool:
        end = next(candidate for candidate in module.graph.nodes if candidate.op == "output")
        sources = [source for source in node.all_input_nodes if source.op == "call_function"]
        joins_two = len(sources) == 2 and not any(end in source.users for source in sources)
        return node.name == "stack" and joins_two

    located, _ = search(open_pair(), joins)
    assert located.first is None
    assert [operator.kind for operator in located.part] == ["add", "mul", "stack"]
    assert [reader.kind for reader in located.readers] == ["stack"]
    assert [output.wrong for output in located.returned] == [False]
    assert {operator.kind for operator in located.cured_by} < {"add", "mul"}


def test_localise_names_no_operator_of_a_right_program() -> None:
    located, laboratory = search(open_pair(), lambda *_: False)
    assert located.first is None
    assert not located.part
    assert located.program_rows
    assert len(laboratory.tried) == 2


def quantize(value: Any, scale: float, zero: int, low: int = 0, high: int = 65535) -> Any:
    operators = torch.ops.quantized_decomposed
    rounded = operators.quantize_per_tensor(value, scale, zero, low, high, torch.int32)
    return operators.dequantize_per_tensor(rounded, scale, zero, low, high, torch.int32)


class Twice(nn.Module):
    """A quantized layer that is called with inputs of two scales, and whose bias has one."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("weight", torch.randint(-127, 128, (4, 8), generator=generator).char())
        self.register_buffer(
            "bias", torch.randint(-900000, 900000, (4,), generator=generator).int()
        )
        self.register_buffer("scales", torch.full((4,), 0.01))
        self.register_buffer("bias_scales", torch.full((4,), 1e-6))
        self.register_buffer("zeros", torch.zeros(4, dtype=torch.int64))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        back = torch.ops.quantized_decomposed.dequantize_per_channel
        weight = back(self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8)
        limits = (-(2**31), 2**31 - 1, torch.int32)
        bias = back(self.bias, self.bias_scales, self.zeros, 0, *limits)
        first = nn.functional.linear(quantize(x, 1e-4, 32768), weight, bias)
        second = nn.functional.linear(quantize(y, 4e-4, 32768), weight, bias)
        return quantize(first, 1e-3, 32768), quantize(second, 1e-3, 32768)


def find_bias_off(part: Any, name: str) -> float:
    division = make_division(part, part, ())
    return division.find_bias_off(name) if name in division.operators else 0.0


def test_a_bias_with_a_wrong_shared_scale_is_named_and_corrected() -> None:
    pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    torch.manual_seed(0)
    sets = [(torch.randn(2, 8), 3 * torch.randn(2, 8)) for _ in range(2)]
    module = export_graph(Twice(), sets[0])
    graphs = make_division(module, module, sets)
    located, _ = search(graphs, lambda part, node: find_bias_off(part, node.name) > 0.1)
    (wrong,) = located.part
    assert wrong.name == "linear_1"
    assert wrong.bias_off == pytest.approx(0.75)
    assert located.mended_by == (Mend.BIASES,)
    assert not located.changed[0].wrong
    assert located.first == wrong
    cut = Cut(("linear_1",), ("linear_1",))
    as_it_is, mended = (
        run_eager(*write_module(graphs, trial_cut))
        for trial_cut in (cut, Cut(cut.operators, cut.outputs, (Mend.BIASES,)))
    )
    assert torch.allclose(as_it_is[0][0], mended[0][0], atol=2e-3)


@pytest.mark.parametrize("names", [("linear",), ("linear", "linear_1")])
@pytest.mark.parametrize("quantized", [False, True])
def test_the_tensors_and_the_code_of_a_part_compute_what_the_part_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantized: bool, names: tuple[str, ...]
) -> None:
    """A weight that two operators read is written only once."""
    pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    model: Any = Twice() if quantized else Wide(rounds=False)
    shape = (2, 8)
    sets = [(torch.randn(shape),) * (1 + quantized) for _ in range(2)]
    module = export_graph(model, sets[0])
    graphs, cut = make_division(module, module, sets), Cut(names, names)
    file = tmp_path / "new" / "part.pt"
    opened: list[Any] = []
    monkeypatch.setattr(localise, "hold", lambda *arguments: opened.append(arguments) or graphs)
    engine: Any = SimpleNamespace(backend="the backend", warm_up=lambda _: None)
    code = TorchParts(engine).write(SPEC, cut, file.with_suffix(".py"))
    assert opened == [(SPEC, "the backend")]
    assert "= None" not in code
    saved = torch.load(file, weights_only=True)
    assert len(saved["weights"]) == (5 if quantized else 2 * len(names))
    part, inputs = write_module(graphs, cut)
    for saved_arrays, arrays in zip(saved["inputs"], inputs, strict=True):
        assert [array.tolist() for array in saved_arrays] == [array.tolist() for array in arrays]
    space: dict[str, Any] = {"torch": torch, "device": torch.device}
    exec(f"class Model(torch.nn.Module):\n{code}", space)  # noqa: S102 - the code that was written
    rebuilt = space["Model"]()
    for name, tensor in saved["weights"].items():
        rebuilt.register_buffer(name, tensor)
    for arrays in inputs:
        torch.testing.assert_close(rebuilt(*arrays), part(*arrays), rtol=0, atol=0)


class Clipping(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        product = quantize(quantize(x, 1e-4, 32768) * 2, 1e-4, 32768)
        stacked = quantize(torch.stack([product, product]), 1e-4, 32768)
        return quantize(torch.cat([product, product], -1), 2e-4, 32768), stacked


def test_a_quantization_range_that_clips_is_named_and_widened() -> None:
    """The simulated compiler fuses the rounding of the product with the next one, so that nothing
    is clipped."""
    pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    sets = [(torch.linspace(-1, most, 16).reshape(1, 16),) for most in (0.5, 2.0)]
    module = export_graph(Clipping(), sets[0])
    graphs = make_division(module, module, sets)
    assert graphs.outputs == ("cat", "stack")
    _, (first, second) = write_module(graphs, Cut(("cat",), ("cat",)))
    assert [tensor.max() for tensor in (*first, *second)] == pytest.approx([1.0, 3.2767], abs=1e-3)

    def clips(part: Any, node: Node) -> bool:
        division = make_division(part, part, ())
        ranges = [division.find_range(candidate.name) for candidate in part.graph.nodes]
        narrow = [bounds for bounds in ranges if bounds and bounds[1] < 3.3]
        return node.name == "cat" and len(narrow) > 2

    located, _ = search(graphs, clips)
    assert [operator.kind for operator in located.part] == ["mul", "cat"]
    assert located.part[0].clipped == pytest.approx(4 / 3.2767 - 1, abs=1e-3)
    assert located.mended_by == (Mend.RANGES,)
    assert [operator.kind for operator in located.sharing] == ["stack"]


class Wide(nn.Module):
    """Of two layers, the second has ranges that are too wide by far."""

    def __init__(self, *, rounds: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rounds = rounds
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if not self.rounds:
            return self.second(self.first(x).tanh()).tanh()
        x = quantize(quantize(self.first(x), 1e-4, 32768).tanh(), 1e-4, 32768)
        return quantize(quantize(self.second(x), 1e-1, 32768).tanh(), 1e-4, 32768)


def export_wide() -> Division:
    """The graphs of both forms of Wide, without lines of the source."""
    pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    sets = [(torch.randn(4, 8),)]
    graph = export_graph(Wide(rounds=True), sets[0])
    plain = export_graph(Wide(rounds=False), sets[0])
    for module in (graph, plain):
        for node in module.graph.nodes:
            node.meta.pop("stack_trace", None)
    return make_division(graph, plain, sets)


def test_the_range_that_loses_most_is_the_first_row() -> None:
    worst, *other_rows = export_wide().rank_losses()
    assert worst.is_range
    assert worst.operator.name == "linear_1"
    assert worst.lost_db > 40
    assert all(row.behind_db > 60 for row in other_rows if row.operator.name in {"linear", "tanh"})


def test_an_operator_is_compared_only_with_one_of_the_same_line() -> None:
    graphs = export_wide()
    assert "linear_1" in {row.operator.name for row in graphs.rank_losses()}
    programs: Any = graphs.program, graphs.float32
    for line, program in zip((3, 4), programs, strict=True):
        nodes = program.module.graph.nodes
        (node,) = (candidate for candidate in nodes if candidate.name == "linear_1")
        node.meta["stack_trace"] = f'File "/home/me/net.py", line {line}, in forward'
    graphs = make_division(*(program.module for program in programs), graphs.sets)
    rows = {(row.operator.name, row.is_range): row for row in graphs.rank_losses()}
    assert not {("linear_1", False), ("linear_1", True)} & rows.keys()
    # An operator that reads it starts with the loss of its input.
    assert rows["tanh_1", False].before_db == rows["tanh", True].behind_db


def test_a_model_that_changes_its_buffers_is_refused() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(x)
            return x + self.seen

    with pytest.raises(UsageError, match="changes its buffers"):
        divide_module(Counter(), Counter(), [(torch.ones(4),)])


def rank_rounded(kind: Any, *inputs: Tensor) -> list[Any]:
    """The losses of a model that rounds against the same one that does not, best first."""
    pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    graph, plain = (export_graph(kind(rounds=rounds), inputs) for rounds in (True, False))
    for module in (graph, plain):
        for node in module.graph.nodes:
            node.meta.pop("stack_trace", None)
    rows = make_division(graph, plain, [inputs]).rank_losses()
    return sorted(rows, key=lambda row: -row.behind_db)


class Folding(nn.Module):
    """A convolution with a batch norm, which the quantized model folds into its weights."""

    def __init__(self, *, rounds: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        conv, norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        norm.running_var.fill_(0.01)
        conv_and_norm = nn.Sequential(conv, norm).eval()
        folded = nn.Sequential(nn.utils.fuse_conv_bn_eval(conv.eval(), norm.eval()), nn.Identity())
        self.net = folded if rounds else conv_and_norm
        self.rounds = rounds

    def forward(self, x: Tensor) -> Tensor:
        result = self.net(x)
        return quantize(result, 0.1, 32768) if self.rounds else result


def test_a_convolution_that_absorbed_a_batch_norm_is_compared_with_both() -> None:
    rows = rank_rounded(Folding, torch.linspace(-1, 1, 75).reshape(1, 3, 5, 5))
    worst = min(rows, key=lambda row: row.behind_db)
    assert (worst.operator.kind, worst.is_range) == ("conv2d", True)
    assert worst.behind_db > 30
    assert worst.before_db > 100


def test_a_result_is_recorded_before_a_later_operator_writes_to_it() -> None:
    class Shift(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.exp().add_(5)

    graphs = divide_module(Shift(), Shift(), [(torch.zeros(2),)])
    (recorded,) = graphs.record(["exp", "add_"])
    assert {name: value.tolist() for name, value in recorded.items()} == {
        "exp": [1.0, 1.0],
        "add_": [6.0, 6.0],
    }


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Inner(), Inner()])
        self.register_buffer("by", torch.ones(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x = layer(x)
        return x.reshape(2, 2).half(), (x + self.by.neg()).argmax() + 1


def test_an_operator_is_described_with_its_module_its_inputs_and_its_size() -> None:
    """A node that depends on no input is not an operator."""
    operators = divide_module(Outer(), Outer(), [(torch.ones(4),)]).describe()
    assert all("test_localise.py:" in operator.line for operator in operators)
    rows = [msgspec.structs.replace(operator, line="") for operator in operators]
    assert rows == [
        Operator(name="exp", kind="exp", module="layers.0", size_bytes=16),
        Operator(name="exp_1", kind="exp", module="layers.1", inputs=("exp",), size_bytes=16),
        Operator(name="reshape", kind="reshape", inputs=("exp_1",), computes=False, size_bytes=16),
        Operator(name="to", kind="to", inputs=("reshape",), computes=False, size_bytes=8),
        Operator(name="add", kind="add", inputs=("exp_1",), size_bytes=16),
        Operator(name="argmax", kind="argmax", inputs=("add",), size_bytes=8),
        Operator(name="add_1", kind="add", inputs=("argmax",), size_bytes=8),
    ]


def make_operator(name: str, kind: str, line: str, *inputs: str) -> Operator:
    return Operator(name=name, kind=kind, line=line, inputs=inputs)


CHAIN = {
    operator.name: operator
    for operator in (
        make_operator("embedding", "embedding", "n.py:3"),
        make_operator("add", "add", "n.py:4", "embedding"),
        make_operator("layer_norm", "layer_norm", "n.py:5", "add"),
        make_operator("add_1", "add", "n.py:6", "layer_norm"),
        make_operator("linear", "linear", "n.py:7", "add_1"),
    )
}


def make_fault(line: int, *operators: str) -> KnownFault:
    return KnownFault(
        fault="positions",
        title="",
        seen="wrong rows",
        fix="expand it",
        calls="add of [2, 4], then layer_norm",
        nodes=operators,
        operators=operators,
        file="n.py",
        line=line,
    )


def test_a_known_fault_is_found_among_the_operators_by_its_line_and_its_readers() -> None:
    operators = ("add", "layer_norm")
    assert find_suspect(CHAIN, make_fault(4, *operators)) == [*operators]
    assert find_suspect(CHAIN, make_fault(6, *operators)) == []
    assert find_suspect(CHAIN, make_fault(3, *operators)) == []
    assert find_suspect(CHAIN, make_fault(6, "add", "linear")) == ["add_1", "linear"]
    named = {name: msgspec.structs.replace(operator, node=name) for name, operator in CHAIN.items()}
    assert find_suspect(named, make_fault(0, "add_1", "linear")) == ["add_1", "linear"]
    long = {
        operator.name: operator
        for operator in (
            make_operator("first", "mul", "n.py:9"),
            make_operator("second", "add", "n.py:10", "first"),
            make_operator("other", "tanh", "n.py:11", "first"),
            make_operator("third", "tanh", "n.py:12", "other", "second"),
        )
    }
    fault = make_fault(9, "mul", "add", "tanh")
    assert find_suspect(long, fault) == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("outputs", "wrong", "code"),
    [((), False, 1), ((9.0,), True, 1), ((60.0,), False, 0), ((60.0, 9.0), True, 1)],
)
def test_localise_exits_with_1_for_a_wrong_program_or_none(
    outputs: tuple[float, ...], wrong: bool, code: int
) -> None:
    usual: dict[str, Any] = {"model": "net", "scheme": "fp16", "soc": "SM8650", "programs": 1}
    rows = tuple(
        Departure(operator="y", reached_db=db, predicted_db=60, faithful=db > 50) for db in outputs
    )
    assert Located(outputs=rows).is_wrong is wrong
    case, good = (
        Localised(outputs=departures, wrong=Located(outputs=departures).is_wrong, **usual)
        for departures in (
            rows,
            (Departure(operator="y", reached_db=60, predicted_db=60, faithful=True),),
        )
    )
    assert choose_exit([good, case]) == choose_exit([case, good]) == code


@pytest.mark.parametrize("inputs", [("good", "bad"), ("bad", "good")])
def test_loss_of_an_operator_excludes_the_loss_of_its_worst_input(
    inputs: tuple[str, str],
) -> None:
    operators = {name: make_operator(name, name, "") for name in ("good", "bad")}
    operators["sum"] = make_operator("sum", "add", "", *inputs)
    exposed = [
        Departure(operator=name, reached_db=db, predicted_db=60, faithful=False)
        for name, db in (("good", 59), ("bad", 20), ("sum", 18))
    ]
    lost = {row.operator.name: row.lost_db for row in rank_departures(operators, exposed)}
    assert lost == {"bad": 40, "sum": 2, "good": 1}


@pytest.mark.parametrize(("noise", "predicted_db"), [(0.1, 20.0), (1e-3, 60.0), (0.0, 78.3)])
@pytest.mark.parametrize("quantized", [True, False])
def test_a_departure_is_measured_from_the_quantized_model_with_a_capped_prediction(
    noise: float, predicted_db: float, quantized: bool
) -> None:
    right = np.random.default_rng(3).standard_normal((4, 2, 50)).astype(np.float32)
    coarse = right * np.float32(1.1)
    references = make_references(right, coarse if quantized else None, noise)
    info, limits = TensorInfo("float32", (2, 50)), Threshold(scheme="8a8w")
    judged_model = coarse if quantized else right
    for share, reached_db, faithful in ((0.0, 120.0, True), (0.5, 6.0, False)):
        judged = judge_output(references, 0, judged_model * np.float32(1 - share), info, limits)
        departure = measure_departure("y", judged, references, 0, info)
        assert departure.faithful is faithful
        assert departure.reached_db == pytest.approx(reached_db, abs=0.1)
        assert departure.predicted_db == pytest.approx(predicted_db, abs=1)


def test_an_output_of_indices_has_no_departure_in_decibels() -> None:
    ids = np.arange(8).reshape(4, 2)
    references, info = make_references(ids), TensorInfo("int64", (2,))
    limits = Threshold(scheme="fp16", min_equal=1.0)
    for off in (0, 1):
        judged = judge_output(references, 0, ids + off, info, limits)
        departure = measure_departure("y", judged, references, 0, info)
        assert (departure.reached_db, departure.predicted_db, departure.faithful) == (0, 0, not off)


class Leasing:
    """A pool that compiles the model of ``engine`` in place of any part. ``leased`` are the
    arguments of each lease with the jobs that it ran."""

    def __init__(self, engine: Any = LABELLER, ended: Ended | None = None) -> None:
        self.engine, self.ended = engine, ended
        self.leased: list[tuple[Any, ...]] = []

    @contextmanager
    def lease(self, *arguments: object) -> Iterator[Any]:
        def call(job: Any) -> Ended:
            self.leased.append((*arguments, job))
            return self.ended or Ended(copy(job, engine=self.engine)(), "", "")

        yield SimpleNamespace(call=call)


def try_part(
    tmp_path: Path, pool: Leasing | None = None, runner: Any = None, *, use_cache: bool = True
) -> Trial:
    """What a part whose only output is y ends with."""
    setup = make_setup(tmp_path, LABELLER, runner, pool or Leasing(), use_cache=use_cache)
    return Localiser(SPEC, setup, PARTS, Progress()).try_cut(Cut(("y",), ("y",)))


@pytest.mark.parametrize(
    ("first", "used", "calls"),
    [
        ("right", True, ["open", "run"]),
        ("wrong", True, ["open", "run", "fresh", "run"]),
        ("dies", True, ["open", "run", "fresh", "run"]),
        ("wrong", False, ["open", "run"]),
        ("dies", False, ["open", "run"]),
    ],
)
def test_a_wrong_part_is_confirmed_in_a_fresh_process(
    tmp_path: Path, first: str, used: bool, calls: list[str]
) -> None:
    outputs_of_turn = {"right": COARSE * np.float32(1.0005), "wrong": -COARSE}
    turns = [first, "right"]

    def answer(sets: Any) -> Any:
        turn = turns.pop(0)
        return fail(sets) if turn == "dies" else [[output] for output in outputs_of_turn[turn]]

    runner = EchoRunner(answer, used=used)
    trial = try_part(tmp_path, runner=runner)
    assert runner.calls == calls
    is_right = used or first == "right"
    assert (bool(trial.refused), trial.worst is not None) == (
        not is_right and first == "dies",
        not is_right and first == "wrong",
    )


@pytest.mark.parametrize(
    ("ended", "engine", "refused"),
    [
        (Ended(None, "was killed", ""), LABELLER, "was killed"),
        (None, copy(LABELLER, raises=ValueError("no such operator")), "no such operator"),
        (None, copy(LABELLER, delegation=Delegation(0, 3, 0)), "QNN accepts no node"),
    ],
    ids=["killed", "refused", "nothing delegated"],
)
def test_a_part_that_was_not_lowered_names_the_reason(
    tmp_path: Path, ended: Ended | None, engine: Any, refused: str
) -> None:
    runner = EchoRunner(fail)
    trial = try_part(tmp_path, Leasing(engine, ended), runner)
    assert trial.outputs == ()
    assert refused in trial.refused
    assert runner.calls == []


def test_a_part_whose_tensors_cannot_be_written_has_no_reproducer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Localiser, "call", lambda *_: Ended(None, "the disk is full", "the log"))
    localiser = Localiser(SPEC, SimpleNamespace(work=tmp_path), PARTS, Progress())  # type: ignore[arg-type]
    with pytest.raises(FailedError) as caught:
        localiser.write(tmp_path / "wrong.py", Located(outputs=()), Cut((), ()))
    assert caught.value.what == "no reproducer was written: the disk is full"
    assert caught.value.why == "the log"
    assert not [*tmp_path.iterdir()]


def test_a_localise_report_reads_as_its_snapshot() -> None:
    """Two of each part; every number and name differs, so that a mixed-up field shows."""

    def operator(name: str, **fields: Any) -> Operator:
        return Operator(name=name, kind=f"kind_{name}", line=f"{name}.py:1", **fields)

    def depart(name: str, reached_db: float, *, faithful: bool) -> Departure:
        return Departure(
            operator=name,
            reached_db=reached_db,
            predicted_db=60 + reached_db / 100,
            faithful=faithful,
        )

    def rows(*numbers: int) -> tuple[Row, ...]:
        return tuple(
            Row(
                operator=operator(f"row{number}", computes=number > 0),
                before_db=90.0 - number,
                behind_db=50.0 - number,
                lost_db=40.0 - number,
                is_range=number % 2 == 1,
            )
            for number in numbers
        )

    parts = (
        operator("p", clipped=0.03, bias_off=0.02),
        operator("q", module="layers.0", bias_off=1e-4),
    )
    located = Located(
        outputs=(depart("y", 9, faithful=False), depart("z", 58, faithful=False)),
        program_rows=rows(*range(10)),
        first=operator("first"),
        part=parts,
        part_outputs=(depart("q", 11, faithful=False), depart("p", 59, faithful=True)),
        cured_by=(operator("c1"), operator("c2")),
        readers=(operator("r1"), operator("r2")),
        mended_by=(Mend.RANGES,),
        changed=(depart("q", 57, faithful=True),),
        sharing=(operator("s1"), operator("s2")),
        ended="the limit of 5 programs (--limit) is reached",
    )
    cases = [
        Localised(
            **msgspec.structs.asdict(located),
            model="nets/net.py:f",
            scheme="8a8w",
            soc="SM8650",
            wrong=located.is_wrong,
            model_rows=rows(20, 21),
            programs=7,
            reproducer=str(Path.cwd() / "wrong.py"),
            known_faults=(make_fault(4, "add"), make_fault(5, "mul", "sub")),
        ).explained(advise_on_part(located)),
        Localised(
            model="other",
            scheme="fp16",
            soc="SM8750",
            wrong=False,
            programs=3,
            outputs=(depart("y", 61, faithful=True),),
            program_rows=rows(30),
        ),
        Localised(
            model="nets/net.onnx",
            runtime="onnxruntime",
            scheme="fp16",
            soc="SM8750",
            wrong=False,
            programs=1,
            reproducer=str(Path.cwd() / "small est.onnx"),
            ended="no program",
        ),
    ]
    place = Path(__file__).parent / "snapshots"
    check_snapshot(place / "localise.txt", render_cases(cases))
    data = data_of(cases)
    (first, *_) = data.pop("cases")
    assert data == {"schema_version": 1}
    assert first["part_outputs"] == msgspec.to_builtins(located.part_outputs)
    assert first["cause"].startswith("calibration")


def label(name: str, kind: str, line: str = "net.py:1", node: str = "") -> Operator:
    return Operator(name=name, kind=kind, line=line, node=node)


FLOAT = [
    experiments.Operator("add", "add", (), line="net.py:1"),
    experiments.Operator("add_1", "add", ("add",), line="net.py:1"),
    experiments.Operator("mul_4", "mul", ("add_1",), line="net.py:2"),
    experiments.Operator("y", "Relu", ("mul_4",), node="relu_node"),
]


@pytest.mark.parametrize(
    ("wanted_operators", "matches"),
    [
        ([label("add_1", "add")], ["add_1"]),
        # Another graph numbers its nodes otherwise; the only one of its line is the same.
        ([label("mul", "mul", "net.py:2")], ["mul_4"]),
        ([label("y_QuantizeLinear", "Relu", "", "relu_node")], ["y"]),
        # Of two that are alike, neither is chosen, and a part without one operator is another part.
        ([label("add_7", "add")], []),
        ([label("add_1", "add"), label("sub", "sub")], []),
        ([], []),
    ],
)
def test_an_operator_has_its_counterpart_by_name_or_by_line(
    wanted_operators: list[Operator], matches: list[str]
) -> None:
    assert [operator.name for operator in match_operators(wanted_operators, FLOAT)] == matches


def depart(reached_db: float) -> Departure:
    return Departure("add", reached_db, 60.0, faithful=reached_db > 50)


LOCATED = Located(part=(label("add", "add"),), part_outputs=(depart(55.0), depart(20.0)))


SHARED_BIAS = (
    "the quantizer gives a bias that several layers share a single scale, but QNN expects the"
    " product of the scales of each layer's input and weights (proven: the part (add [net.py:1])"
    " has 20.0 dB, and 59.0 dB with separate biases)"
)
FUSED = (
    "QNN computes these operators together, and each of them alone is right (proven: the part (add"
    " [net.py:1]) has 20.0 dB, and 58.0 dB if it returns the results inside of it)"
)
NOTHING = (
    "no experiment shows the cause: the part (add [net.py:1]) has 20.0 dB; no known rewrite applies"
    " to it"
)
BIASES = {"mended_by": (Mend.BIASES,), "changed": (depart(59.0),)}


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        (BIASES, SHARED_BIAS),
        ({"returned": (depart(59.0), depart(58.0))}, FUSED),
        ({}, NOTHING),
    ],
)
def test_what_a_search_alone_shows_is_worded_as_a_diagnosis(
    fields: dict[str, Any], cause: str
) -> None:
    located = msgspec.structs.replace(LOCATED, **fields)
    assert [shown.text for shown in advise_on_part(located).causes] == [cause]
    smallest = describe_smallest(located, FLOAT)
    assert smallest is not None
    assert [operator.name for operator in smallest.part] == ["add"]
    assert (smallest.result.reached_db, smallest.result.is_right) == (20.0, False)


def test_a_model_without_a_wrong_part_has_no_smallest_one() -> None:
    assert describe_smallest(Located(), FLOAT) is None


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("net.py:make raised KeyError", "net.py:make raised KeyError"),
        ("timed out after 9 s", "net.py:make: timed out after 9 s"),
    ],
)
def test_the_error_for_a_model_that_cannot_be_described_names_it_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: str, message: str
) -> None:
    log = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nthe log'
    monkeypatch.setattr(Localiser, "call", lambda *_: Ended(None, failure, log))
    spec = CaseSpec("nets/net.py:make", SPEC.scheme, SPEC.soc)
    setup: Any = SimpleNamespace(work=tmp_path)
    with pytest.raises(FailedError) as caught:
        Localiser(spec, setup, PARTS, Progress()).run(9, None)
    assert (caught.value.what, caught.value.why) == (message, "the log")
