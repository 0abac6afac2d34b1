"""Both front ends build the same graphs: ONNX on the CPU gives what torch gives."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")

import torch

from ci.faults import onnx_graphs
from ci.faults.generate import generate
from ci.faults.graph import parse_graph, read_operators
from ci.faults.known import REFUSED, RIGHT, WRONG, name_operators, read_faults
from ci.faults.onnx_graphs import number_of, write_model
from ci.faults.results import Item
from ci.faults.torch_graphs import Bundle, Module, compute, draw, draw_sets, find_shapes
from ci.graphs.onnx_session import open_reference
from ci.models.schemes import Scheme
from ci.onnx.fallback import StageError
from provisioning.errors import FailedError, UsageError

GRAPHS = 40


def test_generated_and_known_graphs_are_the_same_in_onnx_and_torch(tmp_path: Path) -> None:
    texts = []
    for fault in read_faults():
        if "onnx" in {row.frontend for row in fault.tried}:
            texts += [text for text in (fault.graph, fault.mended) if text]
    graphs = [generate(1, number) for number in range(GRAPHS)] + list(map(parse_graph, texts))
    seeds = list(range(len(graphs)))
    write_model(graphs, seeds, tmp_path / "graphs.onnx")
    session = open_reference(tmp_path / "graphs.onnx")
    feed = {
        f"g{number}_{name}": array
        for number, graph in enumerate(graphs)
        for name, array in zip(graph.inputs, draw_sets(graph, number)[0], strict=True)
    }
    outputs = dict(
        zip([output.name for output in session.get_outputs()], session.run(None, feed), strict=True)
    )
    compared_operators = set()
    for name, array in outputs.items():
        number = number_of(name)
        graph = graphs[number]
        expected = compute(graph, number)[0][name.partition("_")[2]].numpy()
        # What two large numbers leave of each other is only as exact as they are.
        atol = 1e-6 * max(np.abs(expected).max(), 100)
        np.testing.assert_allclose(array, expected, rtol=1e-3, atol=atol, err_msg=str(graph))
        compared_operators.update(graph.operators)
    assert len(compared_operators) > 25


PICTURE = ("x = input(2, 4, 6, 6)", "c = constant(4)", 'p = constant(4, like="positive")')
ROWS = ("x = input(2, 3, 8)", "c = constant(8)", 'p = constant(8, like="positive")')


@pytest.mark.parametrize(
    ("ports", "call"),
    [
        *(
            (ROWS, f"{operator}(x)")
            for operator, row in read_operators().items()
            if row.kind == "unary" and operator != "clip"
        ),
        *((ROWS, f"{operator}(p, x)") for operator in ("add", "sub", "mul", "maximum", "minimum")),
        *((ROWS, f"{operator}(x, p)") for operator in ("sub", "div")),
        *((ROWS, f"{operator}(p)") for operator in ("log", "sqrt", "reciprocal")),
        (ROWS, "leaky_relu(x, slope=0.3)"),
        (ROWS, "clip(x, low=-0.5, high=0.25)"),
        *(
            (ROWS, f"{operator}(x, axis=1)")
            for operator in ("softmax", "log_softmax", "lp_norm", "cumsum")
        ),
        *((ROWS, f"layer_norm({words})") for words in ("x", "x, p", "x, p, c")),
        (PICTURE, "batch_norm(x, p, c, c, p)"),
        (PICTURE, "instance_norm(x)"),
        *(
            (PICTURE, f"{operator}(x, axes=[1, -1], keep={keep})")
            for operator in ("mean", "sum", "amax", "amin")
            for keep in (0, 1)
        ),
        (("x = input(5, 8)", "w = constant(3, 8)"), "linear(x, w)"),
        (("x = input(5, 8)", "w = constant(3, 8)", "c = constant(3)"), "linear(x, w, c)"),
        ((*ROWS, "w = constant(3, 8)"), "linear(x, w)"),
        ((*ROWS, "w = constant(3, 8)", "b = constant(3)"), "linear(x, w, b)"),
        ((*ROWS, "u = input(2, 8, 5)"), "matmul(x, u)"),
        ((*PICTURE, "w = constant(6, 4, 3, 3)"), "conv(x, w)"),
        ((*PICTURE, "w = constant(6, 2, 3, 3)"), "conv(x, w, stride=2, pad=1, groups=2)"),
        ((*PICTURE, "w = constant(4, 1, 3, 2)"), "conv(x, w, c, pad=1, groups=4)"),
        ((*ROWS, "w = constant(6, 3, 5)"), "conv(x, w, stride=2, pad=2)"),
        ((*PICTURE, "w = constant(4, 5, 3, 2)"), "conv_transpose(x, w)"),
        ((*PICTURE, "w = constant(4, 5, 3, 3)"), "conv_transpose(x, w, stride=2)"),
        (PICTURE, "max_pool(x, kernel=3, stride=2)"),
        (PICTURE, "avg_pool(x, kernel=2, stride=1)"),
        (PICTURE, "avg_pool(x, kernel=3, stride=2, pad=1)"),
        (PICTURE, "avg_pool(x, kernel=3, stride=2, pad=1, counts_pad=0)"),
        (("x = input(1, 2, 4, 6, 6)",), "avg_pool(x, kernel=2, stride=2)"),
        (ROWS, "reshape(x, shape=[6, 8])"),
        (PICTURE, "transpose(x, order=[2, 0, 3, 1])"),
        (PICTURE, "slice(x, axis=2, start=1, stop=4)"),
        (ROWS, "pad(x, axis=1, before=2, after=1)"),
        (ROWS, "pad(x, axis=-1, before=0, after=3, value=1.5)"),
        (ROWS, "expand(p, shape=[2, 3, 8])"),
        (ROWS, "concat(x, x, axis=1)"),
        (PICTURE, "upsample(x, scale=2)"),
        (PICTURE, "upsample(x, scale=3)"),
        (ROWS, "prelu(x, p)"),
        (ROWS, "pow(p, x)"),
        (ROWS, "pow(x, base=1.5)"),
    ],
)
def test_each_form_of_an_operator_is_the_same_in_onnx_and_torch(
    tmp_path: Path, ports: tuple[str, ...], call: str
) -> None:
    graph = parse_graph("\n".join([*ports, f"y = {call}", "return y"]))
    write_model([graph], [3], tmp_path / "graph.onnx")
    for inputs, expected in zip(draw_sets(graph, 3), compute(graph, 3), strict=False):
        session = open_reference(tmp_path / "graph.onnx")
        feed = {f"g0_{name}": values for name, values in zip(graph.inputs, inputs, strict=True)}
        (output,) = session.run(None, feed)
        np.testing.assert_allclose(output, expected["y"].numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scheme", [Scheme.FP16, Scheme.U8])
def test_graphs_of_one_onnx_model_are_judged_apart(
    monkeypatch: pytest.MonkeyPatch, scheme: Scheme
) -> None:
    """A stand-in of the provider computes on the CPU, and can spoil the last output."""
    texts = (
        "x = input(2, 4, 8)\ny = tanh(x)\nz = sigmoid(y)\nreturn y, z\n",
        "x = input(2, 6)\nu = input(2, 6)\ny = add(x, u)\nreturn y\n",
    )
    items = [Item(text, seed) for seed, text in enumerate(texts, 1)]
    left: list[Any] = []
    sign = 1

    def nodes(provider: str, *pairs: tuple[str, str]) -> Any:
        assigned = [SimpleNamespace(name=name, op_type=kind) for name, kind in pairs]
        return SimpleNamespace(ep_name=provider, get_nodes=lambda: assigned)

    class Session:
        def __init__(self, path: Path, options: Any, entries: Any) -> None:
            assert (options, entries) == ({"soc_model": "57"}, onnx_graphs.RECORD_ASSIGNMENT)
            self.session = open_reference(path)

        def get_provider_graph_assignment_info(self) -> list[Any]:
            taken = nodes(onnx_graphs.PROVIDER, ("g1_y", "Add"))
            return [taken, nodes("CPU", ("q", "QuantizeLinear"), *left)]

        def run(self, names: None, feed: Any) -> Any:
            *first_outputs, last = self.session.run(names, feed)
            return [*first_outputs, sign * last]

    monkeypatch.setattr(onnx_graphs, "open_session", Session)

    def try_items() -> list[str]:
        results = onnx_graphs.run_items(items, scheme, {"soc_model": "57"})
        assert [(result.text, result.seed) for result in results] == [
            (item.text, item.seed) for item in items
        ]
        return [result.end for result in results]

    assert try_items() == [RIGHT, RIGHT]
    sign = -1
    for pairs, ends in (
        ([], [RIGHT, WRONG]),
        ([("g0_y", "Tanh")], [REFUSED, WRONG]),
        ([("g1_y", "Tanh")], [RIGHT, REFUSED]),
    ):
        left[:] = pairs
        assert try_items() == ends
    for place, name in ((Session, "run"), (onnx_graphs, "open_session")):
        monkeypatch.setattr(place, name, lambda *_: 1 / 0)
        with pytest.raises(StageError, match="QNN"):
            try_items()


def test_an_operator_that_onnx_lacks_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    texts = (f"x = input(2, 4)\ny = {operator}(x)\nreturn y" for operator in ("relu", "rms_norm"))
    with pytest.raises(FailedError, match="the operator rms_norm does not exist in ONNX"):
        write_model([*map(parse_graph, texts)], [0, 0], tmp_path / "graph.onnx")


NETS: dict[str, tuple[torch.nn.Module, tuple[int, ...]]] = {
    "clip": (torch.nn.ReLU6(), (2, 4)),
    "softmax": (torch.nn.Softmax(-1), (2, 4)),
    "log_softmax": (torch.nn.LogSoftmax(-1), (2, 4)),
    "layer_norm": (torch.nn.LayerNorm(4), (2, 4)),
    "batch_norm": (torch.nn.BatchNorm2d(4).eval(), (2, 4, 3, 3)),
    "linear": (torch.nn.Linear(4, 3), (2, 4)),
    "conv": (torch.nn.Conv1d(4, 3, 3), (2, 4, 8)),
    "max_pool": (torch.nn.MaxPool2d(2), (2, 4, 8, 8)),
    "avg_pool": (torch.nn.AvgPool3d(2), (2, 4, 8, 8, 8)),
    "reshape": (torch.nn.Flatten(), (2, 4, 3)),
    "pad": (torch.nn.ConstantPad1d(1, 0.0), (2, 4)),
}


class AllNets(torch.nn.Module):
    """Each of NETS with an input of its own, because one export is faster than many."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = torch.nn.ModuleDict({name: net for name, (net, _) in NETS.items()})

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        return [net(values) for net, values in zip(self.nets.values(), inputs, strict=True)]


def test_torch_layers_are_recognised_as_exported_and_as_decomposed() -> None:
    inputs = tuple(torch.rand(shape) for _, shape in NETS.values())
    exported = torch.export.export(AllNets(), inputs, strict=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forms = exported, exported.run_decompositions()
    for form in forms:
        recognised: dict[str, set[str | None]] = {name: set() for name in NETS}
        for node in form.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload):
                *_, (path, _) = node.meta["nn_module_stack"].values()
                operator = name_operators().get(node.target.overloadpacket.__name__)
                recognised[path.rpartition(".")[2]].add(operator)
        assert all(name in operators for name, operators in recognised.items()), recognised


def draw_of(line: str, reader: str, seed: int = 3, number: int = 0) -> Any:
    """The elements of t, which another line reads."""
    text = f"x = input(2, 4, 8, 8)\nt = {line}\ny = {reader}\nz = add(y, x)\nreturn z\n"
    return draw(parse_graph(text), "t", seed, number)


def test_drawn_values_depend_on_name_seed_and_set_and_stay_in_range() -> None:
    line = "constant(100, 100)"
    first = draw_of(line, "add(x, t)")
    assert (first == draw_of(line, "add(x, t)")).all()
    for change in ({"seed": 4}, {"number": 1}):
        assert (first != draw_of(line, "add(x, t)", **change)).any()
    assert np.abs(first).max() == 3
    assert 0.9 < first.std() < 1.1
    positive = draw_of('constant(100, 100, like="positive")', "add(x, t)")
    assert 0.5 <= positive.min() < 0.51
    assert 1.49 < positive.max() <= 1.5
    for words, value in (("value=-4", -4), ('like="large", value=0', 0)):
        assert (draw_of(f"constant(2, 3, {words})", "add(x, t)") == value).all()
    graph = parse_graph("u = input(3)\nx = input(3)\ny = add(u, x)\nreturn y\n")
    sets = draw_sets(graph, 7)
    for number, arrays in enumerate(sets, 1):
        for name, array in zip("ux", arrays, strict=True):
            assert (array == draw(graph, name, 7, number)).all()
    assert len({array.tobytes() for arrays in sets for array in arrays}) == 4


def test_each_graph_of_a_bundle_reads_all_its_inputs_and_no_others() -> None:
    pair = parse_graph("x = input(2, 4)\nu = input(2, 4)\ny = sub(x, u)\nreturn y\n")
    single = parse_graph("x = input(2, 4)\ny = relu(x)\nz = tanh(x)\nreturn y, z\n")
    modules = [Module(graph, 0) for graph in (pair, single, pair)]
    inputs = tuple(torch.full((2, 4), 2.0**number) for number in range(5))
    bundled = Bundle(modules)(*inputs)
    alone = (*modules[0](*inputs[:2]), *modules[1](inputs[2]), *modules[2](*inputs[3:]))
    for output, expected in zip(bundled, alone, strict=True):
        torch.testing.assert_close(output, expected)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("mean(x, dims=[1])", "mean got an unexpected keyword argument 'dims'"),
        ("softmax(x)", "softmax missing 1 required positional argument"),
        ("matmul(x, x)", "[2, 4]"),
        ("relu(x, x)", "relu takes 1 positional argument"),
        ("softmax(x, axis=2)", "Dimension out of range"),
    ],
)
def test_a_graph_that_torch_cannot_compute_is_refused_with_the_tensor_s_name(
    line: str, why: str
) -> None:
    with pytest.raises(UsageError) as caught:
        find_shapes(parse_graph(f"x = input(2, 4)\nz = {line}\nreturn z\n"))
    assert caught.value.why.startswith("z: ")
    assert why in caught.value.why


def test_every_known_and_generated_graph_can_be_computed() -> None:
    for text in (text for fault in read_faults() for text in (fault.graph, fault.mended) if text):
        find_shapes(parse_graph(text))
    for number in range(60):
        find_shapes(generate(7, number))
