"""Which values a quantized output can have: of the same network in each lane."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")

from onnx import ModelProto, parser, save  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.ao.quantization.fx import _decomposed  # noqa: E402
from torch.fx import Graph, GraphModule  # noqa: E402

from ci.analysis.grids import NO_GRID, Grid, add_grids, find_grids, find_step  # noqa: E402
from ci.analysis.noise import find_errors  # noqa: E402
from ci.graphs.onnx_program import read_onnx  # noqa: E402
from ci.graphs.torch_program import read_graphs, read_torch  # noqa: E402
from ci.models.rounding import PRODUCT_BIAS  # noqa: E402
from ci.models.tensors import TensorInfo  # noqa: E402
from tests.build.exports import export_graph  # noqa: E402

assert _decomposed  # registers the operators
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export's own
OPS: Any = torch.ops.quantized_decomposed
HEAD = '<ir_version: 10, opset_import: ["" : 21]> g (float[4, 6] x) => (float[a, b] y) '
X = torch.randn(4, 6)
K = torch.randn(4, 6)
FIRST = torch.tensor([2, 0, 1])
HALVES = Grid(0.5, -3, 252)
JOINS = 40  # each of which has two ways to what is joined


def add_rounding(value: str, result: str, scale: float = 0.5, levels: str = "uint8 z {3}") -> str:
    """ONNX's text of a quantizer and a dequantizer."""
    return (
        f"{result}s = Constant<value_float = {scale}>()\n"
        f"{result}z = Constant<value: tensor = {levels}>()\n"
        f"{result}q = QuantizeLinear({value}, {result}s, {result}z)\n"
        f"{result} = DequantizeLinear({result}q, {result}s, {result}z)\n"
    )


def round_to(values: Tensor, scale: float = 0.5, zero: int = 3, dtype: Any = torch.uint8) -> Tensor:
    limits = torch.iinfo(dtype)
    levels = (scale, zero, limits.min, limits.max, dtype)
    result: Tensor = OPS.dequantize_per_tensor(OPS.quantize_per_tensor(values, *levels), *levels)
    return result


def parse(nodes: str, head: str = HEAD) -> ModelProto:
    return parser.parse_model(f"{head}{{{nodes}}}")


def read_file(folder: Path, model: ModelProto, on_cpu: Collection[str] = ()) -> list[Grid]:
    path = folder / "network.onnx"
    save(model, path)
    return find_grids(read_onnx(path, folder / "scratch.onnx").graphs.values(), on_cpu)


def read_network(compute: Callable[[Tensor], Any]) -> list[Grid]:
    class Network(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return compute(x)

    return find_grids(read_torch(export_graph(Network(), (X,)), (X,)).graphs.values())


def join_and_halve(value: Tensor) -> Tensor:
    for _ in range(JOINS):
        value = torch.cat([value, value])[:4]
    return value


def write_joins() -> str:
    nodes = (
        "j0 = Sin(x)\n zero = Constant<value_ints = [0]>() four = Constant<value_ints = [4]>()\n"
    )
    for number in range(JOINS):
        nodes += f"c{number} = Concat<axis = 0>(j{number}, j{number})\n"
        nodes += f"j{number + 1} = Slice(c{number}, zero, four)\n"
    return f"{nodes} a = Identity(j{JOINS})\n"


STORED = "k = Constant<value: tensor = float[4, 6] k {" + ", ".join(["0.3"] * 24) + "}>()\n"
PLACES = "i = Constant<value: tensor = int64[3] i {2, 0, 1}>()\n"
ROWS = (
    "i = Constant<value: tensor = int64[1, 1] i {0}>()\n"
    "first = Constant<value_ints = [0]>()\n second = Constant<value_ints = [1]>()\n"
    "r = Slice(x, first, second)\n"
)


@pytest.mark.parametrize(
    ("nodes", "compute", "has_grid"),
    [
        ("a = Sin(x)\n", torch.sin, True),
        ("b = Sin(x)\n a = Relu(b)\n", lambda x: x.sin().relu(), True),
        ("b = Sin(x)\n a = Transpose<perm = [1, 0]>(b)\n", lambda x: x.sin().t(), True),
        ("a = Flatten(x)\n", lambda x: x.flatten(1), False),
        ("a = Relu(x)\n", torch.relu, False),
        (
            "b = Sin(x)\n c = Cos(x)\n a = Concat<axis = 0>(b, c)\n",
            lambda x: torch.cat([x.sin(), x.cos()]),
            True,
        ),
        (
            "b = Sin(x)\n a = Concat<axis = 0>(b, x)\n",
            lambda x: torch.cat([x.sin(), x]),
            False,
        ),
        (
            f"{STORED} b = Sin(x)\n a = Concat<axis = 0>(b, k)\n",
            lambda x: torch.cat([x.sin(), K]),
            False,
        ),
        (
            "b = Sin(x)\n n = Shape(b)\n f = ConstantOfShape(n)\n a = Concat<axis = 0>(b, f)\n",
            lambda x: torch.cat([x.sin(), torch.full_like(x, 0.5)]),
            False,
        ),
        (
            f"{PLACES} b = Sin(x)\n a = Gather<axis = 0>(b, i)\n",
            lambda x: x.sin()[FIRST],
            True,
        ),
        (
            f"{ROWS} b = Sin(x)\n a = ScatterND(b, i, r)\n",
            lambda x: torch.slice_scatter(x.sin(), x[:1], 0, 0, 1),
            False,
        ),
        (
            "b = Sin(x)\n" + add_rounding("b", "c") + "a = Flatten(c)\n",
            lambda x: round_to(x.sin()).flatten(1),
            True,
        ),
        (
            "b = Sin(x)\n" + add_rounding("b", "c", 0.25) + "a = Flatten(c)\n",
            lambda x: round_to(x.sin(), 0.25).flatten(1),
            False,
        ),
        (
            "b = Sin(x)\n" + add_rounding("b", "c", 0.5, "uint8 z {4}") + "a = Flatten(c)\n",
            lambda x: round_to(x.sin(), 0.5, 4).flatten(1),
            False,
        ),
        (write_joins(), lambda x: join_and_halve(x.sin()), True),
    ],
    ids=[
        "computed",
        "limited",
        "moved",
        "an input that is moved",
        "an input that is limited",
        "joined",
        "joined to an input",
        "joined to a constant",
        "joined to what is filled",
        "selected",
        "a part is an input",
        "rounded so before",
        "rounded to other steps before",
        "rounded with another zero before",
        "joined to itself again and again",
    ],
)
def test_only_what_qnn_computes_has_a_grid(
    tmp_path: Path, nodes: str, compute: Callable[[Tensor], Tensor], *, has_grid: bool
) -> None:
    expected = [HALVES if has_grid else NO_GRID]
    assert read_file(tmp_path, parse(nodes + add_rounding("a", "y"))) == expected
    assert read_network(lambda x: round_to(compute(x))) == expected


@pytest.mark.parametrize(
    ("dtype", "zero", "scale", "in_file", "in_module"),
    [
        ("uint8", 100, 0.5, (0.5, -100, 155), (0.5, -100, 155)),
        ("int8", -3, 0.25, (0.25, -125, 130), (0.25, -125, 130)),
        # onnxruntime gives some results of 16 bits other steps.
        ("uint16", 9, 0.5, (0.0, 0, 0), (0.5, -9, 65526)),
        ("int16", 0, 0.5, (0.0, 0, 0), (0.5, -32768, 32767)),
    ],
)
def test_a_grid_is_the_scale_and_the_range_of_the_type(
    tmp_path: Path, dtype: str, zero: int, scale: float, in_file: Any, in_module: Any
) -> None:
    nodes = "b = Sin(x)\n" + add_rounding("b", "y", scale, f"{dtype} z {{{zero}}}")
    assert read_file(tmp_path, parse(nodes)) == [in_file]
    torch_dtype = getattr(torch, dtype)
    assert read_network(lambda x: round_to(x.sin(), scale, zero, torch_dtype)) == [in_module]


def test_outputs_that_are_not_rounded_alone_and_once_have_no_grid(tmp_path: Path) -> None:
    head = HEAD.replace("y)", "y, float[c, d] plain, float[e, f] other, float[g, h] channels)")
    nodes = "b = Sin(x)\n" + add_rounding("b", "y") + "plain = Neg(y)\n"
    nodes += "other = DequantizeLinear(yq, ys)\n"  # with the zero point 0
    nodes += "cs = Constant<value_floats = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]>()\n"
    nodes += "cz = Constant<value: tensor = uint8[6] z {3, 3, 3, 3, 3, 3}>()\n"
    nodes += "cq = QuantizeLinear(b, cs, cz)\n channels = DequantizeLinear(cq, cs, cz)\n"
    assert read_file(tmp_path, parse(nodes, head)) == [HALVES, NO_GRID, NO_GRID, NO_GRID]
    scales, zeros = torch.full((6,), 0.5), torch.full((6,), 3)

    def compute(x: Tensor) -> Any:
        quantized = OPS.quantize_per_tensor(x.sin(), 0.5, 3, 0, 255, torch.uint8)
        y = OPS.dequantize_per_tensor(quantized, 0.5, 3, 0, 255, torch.uint8)
        shifted = OPS.dequantize_per_tensor(quantized, 0.5, 0, 0, 255, torch.uint8)
        by_channel = OPS.quantize_per_channel(x.sin(), scales, zeros, 1, 0, 255, torch.uint8)
        channels = OPS.dequantize_per_channel(by_channel, scales, zeros, 1, 0, 255, torch.uint8)
        return y, -y, shifted, channels

    assert read_network(compute) == [HALVES, NO_GRID, NO_GRID, NO_GRID]


@pytest.mark.parametrize(
    ("nodes", "on_cpu", "has_grid"),
    [
        ("b = Sin(x)\n", {"Sin"}, False),
        ("b = Sin(x)\n", {"Cos"}, True),
        ("d = Cos(x)\n b = Sin(d)\n", {"Cos"}, True),
        ("d = Sin(x)\n e = Cos(x)\n b = Concat<axis = 0>(d, e)\n", {"Cos"}, False),
    ],
)
def test_what_the_cpu_computes_has_no_grid(
    tmp_path: Path, nodes: str, on_cpu: set[str], *, has_grid: bool
) -> None:
    model = parse(nodes + add_rounding("b", "y"))
    assert read_file(tmp_path, model, on_cpu) == [HALVES if has_grid else NO_GRID]


def test_the_zero_point_has_the_type_if_nothing_else_shows_it(tmp_path: Path) -> None:
    head = HEAD.replace('"" : 21', '"" : 21, "own" : 1')
    nodes = "b = Sin(x)\n" + add_rounding("b", "c") + "i = own.Identity(cq)\n"
    model = parse(nodes + "y = DequantizeLinear(i, cs, cz)\n", head)
    assert read_file(tmp_path, model, {"Sin"}) == [HALVES]


def make_graph(*levels: Any, operator: Any = torch.ops.aten.tanh.default) -> GraphModule:
    """A module that dequantizes what an operator returns, without a quantizer. It returns the
    result of the operator itself for levels that are None."""
    graph = Graph()
    value = graph.call_function(operator, (graph.placeholder("x"),))
    outputs = []
    for numbers in levels:
        arguments = (value, *(numbers or ()), torch.uint8)
        dequantize = OPS.dequantize_per_tensor.default
        outputs.append(graph.call_function(dequantize, arguments) if numbers else value)
    graph.output(tuple(outputs))
    return GraphModule(nn.Module(), graph)


def test_each_output_of_each_method_has_its_own_grid() -> None:
    first = make_graph((0.5, 3, 0, 255), None, (0.25, -4, -128, 127))
    moved = make_graph((0.5, 3, 0, 255), None, operator=torch.ops.aten.squeeze.default)
    parts = {"one": first, "two": moved, "three": nn.Linear(2, 2)}
    expected = [HALVES, NO_GRID, (0.25, -124, 131), NO_GRID, NO_GRID]
    assert find_grids(read_graphs(parts).values()) == expected


@pytest.mark.parametrize("bits", [8, 16])
def test_outputs_of_a_litert_model_are_integers_whatever_computes_them(bits: int) -> None:
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
    from ci.graphs.litert_file import list_entries, read_levels, read_model
    from ci.graphs.litert_program import LitertProgram
    from ci.litert.suite import Net, quantize

    net = Net()
    source = net.add_tensor((4, 6), "x")
    shape = np.array([6, 4], np.int32)
    moved = net.call(
        *("RESHAPE", (source, net.add_constant(shape)), (6, 4), "ReshapeOptions"), newShape=shape
    )
    net.end([source], [moved, net.call("EXP", (source,), (4, 6))])
    data = quantize(net, bits, [np.linspace(-1, 3, 24, dtype=np.float32).reshape(4, 6)])
    model = read_model(data)
    expected = []
    for number in list_entries(model)[0].outputs:
        levels = read_levels(model.subgraphs[0].tensors[number])
        assert levels
        zero, half = int(levels.zero_points[0]), 2 ** (bits - 1)
        expected.append((float(levels.scales[0]), -half - zero, half - 1 - zero))
    assert find_grids(LitertProgram(data).graphs.values()) == expected


def test_each_tensor_is_described_with_its_own_grid() -> None:
    infos = [TensorInfo("float32", (2,)), TensorInfo("int64", (3,))]
    first, second = add_grids(infos, [HALVES, NO_GRID])
    assert (first.step, first.lowest, first.highest) == HALVES
    assert second == infos[1]
    with pytest.raises(ValueError, match="shorter"):
        add_grids(infos, [HALVES])


LAST_HEAD = (
    '<ir_version: 10, opset_import: ["" : 21]> g (float[{lead}, 4, 6] x, float[{lead}, 6, 4] v)'
    " => (float[{lead}, 4, 4] y) "
)
WEIGHTS = (
    "ws = Constant<value_float = 0.1>()\n"
    "wz = Constant<value: tensor = int8 z {0}>()\n"
    "wq = Constant<value: tensor = int8[4, 4] w {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}>()\n"
    "w = DequantizeLinear(wq, ws, wz)\n"
)


@pytest.mark.parametrize(
    ("lead", "first", "last", "levels", "is_biased"),
    [
        (2, "MatMul(xr, vr)", "MatMul(hr, w)", "uint8 z {3}", True),
        (1, "MatMul(xr, vr)", "MatMul(hr, w)", "uint8 z {3}", False),  # a single product
        (2, "MatMul(xr, vr)", "MatMul(hr, w)", "uint16 z {3}", False),
        (2, "MatMul(xr, vr)", "MatMul(hr, hr)", "uint8 z {3}", False),  # without weights
        (2, "Relu(xw)", "MatMul(hr, w)", "uint8 z {3}", False),
    ],
)
def test_the_last_of_several_products_is_a_quarter_of_a_step_larger(
    tmp_path: Path, lead: int, first: str, last: str, levels: str, is_biased: bool
) -> None:
    nodes = add_rounding("x", "xr") + add_rounding("v", "vr") + WEIGHTS
    nodes += "xw = MatMul(xr, vr)\n" if "xw" in first else ""
    nodes += f"h = {first}\n" + add_rounding("h", "hr", 0.5)
    nodes += f"o = {last}\n" + add_rounding("o", "y", 0.5, levels)
    path = tmp_path / "products.onnx"
    save(parse(nodes, LAST_HEAD.replace("{lead}", str(lead))), path)
    program = read_onnx(path, tmp_path / "scratch.onnx")
    errors = find_errors(next(iter(program.graphs.values())), {})
    (change,) = [change for name, change in errors.items() if name == "yq"]
    moved: Any = change.compute
    assert moved.__self__.term.bias == (PRODUCT_BIAS if is_biased else 0.0)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        (np.arange(-9, 240) * np.float32(0.37), 0.37),
        (np.array([0, 3, 4, 250], np.float32) * np.float32(1e-6), 1e-6),
        (np.array([0.0, 2.0, 4.0]), 2.0),  # what is rounded to 1 may use every other step only
        (np.array([0.0, 0.5, 0.8]), 0.0),  # joined from tensors with other steps
        (np.linspace(-1, 1, 1000), 0.0),  # more than 8 bits
        (np.zeros(4), 0.0),
        (np.array([0.0, 1.0, np.inf]), 0.0),
        (np.zeros(0), 0.0),
    ],
)
def test_the_step_of_an_output_is_found_in_its_numbers(values: Any, step: float) -> None:
    assert find_step(values) == pytest.approx(step)
