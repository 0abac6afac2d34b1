"""The noise that is predicted for a network, as a PyTorch module and as an ONNX file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")

from onnx import parser, save  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.ao.quantization.fx import _decomposed  # noqa: E402

from ci.analysis.noise import predict_noise  # noqa: E402
from ci.analysis.undefined import name_undefined  # noqa: E402
from ci.graphs.onnx_program import read_onnx  # noqa: E402
from ci.graphs.torch_program import read_torch  # noqa: E402
from tests.build.exports import export_graph  # noqa: E402

assert _decomposed  # registers the operators
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export's own
OPS: Any = torch.ops.quantized_decomposed
HEAD = '<ir_version: 8, opset_import: ["" : 21]> g (float[40, 16] x) => (float[a, b] y) '


def round_to(values: Tensor, step: float, bits: int) -> Tensor:
    limits = (2 ** (bits - 1), 0, 2**bits - 1, torch.uint8 if bits == 8 else torch.uint16)
    result: Tensor = OPS.dequantize_per_tensor(
        OPS.quantize_per_tensor(values, step, *limits), step, *limits
    )
    return result


def quantize(value: str, result: str, bits: int) -> str:
    return (
        f"{result}_q = QuantizeLinear({value}, s, z{bits})\n"
        f"{result} = DequantizeLinear({result}_q, s, z{bits})\n"
    )


CONSTANTS = """
    s = Constant<value_float = 0.01>()
    z8 = Constant<value: tensor = uint8 z8 {128}>()
    z16 = Constant<value: tensor = uint16 z16 {32768}>()
"""


@pytest.mark.parametrize(
    ("nodes", "compute"),
    [
        ("y = Softmax<axis = -1>(x)", lambda x: x.softmax(-1)),
        ("a = Tanh(x)\n y = Transpose<perm = [1, 0]>(a)", lambda x: x.tanh().t()),
        ("a = Add(x, x)\n y = Tanh(a)", lambda x: torch.tanh(x + x)),
        (CONSTANTS + quantize("x", "y", 8), lambda x: round_to(x, 0.01, 8)),
        (
            CONSTANTS + "a = Sin(x)\n" + quantize("a", "y", 8),
            lambda x: round_to(x.sin(), 0.01, 8),
        ),
        (
            CONSTANTS + "a = Exp(x)\n" + quantize("a", "b", 16) + "y = Sigmoid(b)",
            lambda x: round_to(x.exp(), 0.01, 16).sigmoid(),
        ),
    ],
    ids=["softmax", "a view", "a sum", "an input", "a term", "partly float"],
)
def test_a_network_has_the_same_noise_in_both_lanes(
    tmp_path: Path, nodes: str, compute: Any
) -> None:
    class Network(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return compute(x)

    torch.manual_seed(2)
    samples = [(torch.randn(40, 16),) for _ in range(4)]
    path = tmp_path / "network.onnx"
    save(parser.parse_model(HEAD + "{" + nodes + "}"), path)
    arrays = [(values.numpy(),) for (values,) in samples]
    (of_file,) = predict_noise(read_onnx(path, tmp_path / "scratch.onnx"), arrays)
    (of_module,) = predict_noise(
        read_torch(export_graph(Network(), samples[0]), samples[0]), samples
    )
    assert of_file.shape == of_module.shape
    spreads = [float(np.sqrt(np.mean(np.square(errors)))) for errors in (of_file, of_module)]
    assert spreads[0] == pytest.approx(spreads[1], rel=0.25)
    assert spreads[0] > 0


@pytest.mark.parametrize("bits", [0, 8, 16])
def test_a_number_that_where_chooses_has_no_error(tmp_path: Path, bits: int) -> None:
    """As a mask of -1e9 in 8 bits: a step of error would be larger than all that is not masked."""

    class Network(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            chosen = torch.where(x > 0, x.sin(), torch.tensor(-1.0))
            return round_to(chosen, 0.01, bits) if bits else chosen

    torch.manual_seed(2)
    samples = [(torch.randn(40, 16),) for _ in range(4)]
    nodes = "zero = Constant<value_float = 0.0>() low = Constant<value_float = -1.0>()\n"
    nodes += "k = Greater(x, zero) b = Sin(x)\n" + f"{'a' if bits else 'y'} = Where(k, b, low)\n"
    nodes += CONSTANTS + quantize("a", "y", bits) if bits else ""
    path = tmp_path / "network.onnx"
    save(parser.parse_model(HEAD + "{" + nodes + "}"), path)
    arrays = [(values.numpy(),) for (values,) in samples]
    (of_file,) = predict_noise(read_onnx(path, tmp_path / "scratch.onnx"), arrays)
    (of_module,) = predict_noise(read_torch(Network(), samples[0]), samples)
    is_low = np.stack([values <= 0 for (values,) in arrays])
    for errors in (of_file, of_module):
        at_low = errors[np.broadcast_to(is_low, errors.shape)]
        assert at_low.size
        assert not at_low.any()
        assert errors.any()


def predict_in_both(module: nn.Module, body: str, scale: float, folder: Path) -> Iterator[Any]:
    """Yield the predicted errors of the output of an ONNX graph and of a module that computes the
    same, for inputs with a standard deviation of ``scale``."""
    torch.manual_seed(2)
    samples = [(scale * torch.randn(40, 16),) for _ in range(2)]
    path = folder / "network.onnx"
    save(parser.parse_model(HEAD + "{" + body + "}"), path)
    of_file = read_onnx(path, folder / "scratch.onnx")
    of_module = read_torch(export_graph(module, samples[0]), samples[0])
    arrays = [(values.numpy(),) for (values,) in samples]
    for program, sets in ((of_file, arrays), (of_module, samples)):
        (errors,) = predict_noise(program, sets)
        yield errors


LOGIT = """
    low = Constant<value_float = 0.00001>() high = Constant<value_float = 0.99999>()
    one = Constant<value_float = 1.0>() p = Sigmoid(x)
    {limited}
    q = Sub(one, c) r = Div(c, q) l = Log(r) y = Sigmoid(l)
"""
LIMITED = {
    "Where": "k = Greater(p, high) b = Where(k, high, p) j = Less(b, low) c = Where(j, low, b)",
    "Min and Max": "b = Min(p, high) c = Max(b, low)",
    "Clip": "c = Clip(p, low, high)",
}


@pytest.mark.parametrize("limited", LIMITED.values(), ids=LIMITED)
def test_errors_do_not_leave_limits(tmp_path: Path, limited: str) -> None:
    """QNN computes torch.logit of probabilities near 1 with 44 dB."""

    def compute(x: Tensor) -> Tensor:
        return torch.sigmoid(torch.logit(torch.sigmoid(x), eps=1e-5))

    class Network(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return compute(x)

    body = LOGIT.format(limited=limited)
    for errors in predict_in_both(Network(), body, 10.0, tmp_path):
        assert np.isfinite(errors).all()
        assert 0 < float(np.sqrt(np.mean(np.square(errors)))) < 0.02


ENTROPY = """
    f = Constant<value_float = 0.000001>() n = Neg(x) s = Add(x, n) t = Add(x, s)
    p = Sigmoid(t) q = Add(p, f) l = Log(q) y = Mul(p, l)
"""


def test_errors_do_not_leave_the_range_of_an_operator(tmp_path: Path) -> None:
    """QNN fuses a sigmoid with a sum, and its results are never below 0."""

    class Network(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            p = torch.sigmoid(x + (x + x.neg()))
            return p * torch.log(p + 1e-6)

    for errors in predict_in_both(Network(), ENTROPY, 8.0, tmp_path):
        assert np.isfinite(errors).all()
        assert errors.any()


def test_the_operator_that_errors_make_undefined_is_named(tmp_path: Path) -> None:
    class Network(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sqrt(x.sin() - x.sin().cos().acos()).exp()

    torch.manual_seed(2)
    samples = [(torch.rand(40, 16) + 0.1,)]
    nodes = "a = Sin(x) b = Cos(a) c = Acos(b) d = Sub(a, c) e = Sqrt(d) y = Exp(e)"
    path = tmp_path / "network.onnx"
    save(parser.parse_model(HEAD + "{" + nodes + "}"), path)
    of_file = read_onnx(path, tmp_path / "scratch.onnx")
    of_module = read_torch(export_graph(Network(), samples[0]), samples[0])
    for program, sets in ((of_file, [(samples[0][0].numpy(),)]), (of_module, samples)):
        assert name_undefined(program, sets).lower().startswith("sqrt")


def test_what_underflows_before_an_undefined_operator_is_named() -> None:
    class Floor(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.clamp(min=1e-10).log()

    samples = [(torch.tensor([[-1.0, 2.0]]),)]
    program = read_torch(export_graph(Floor(), samples[0]), samples[0])
    assert name_undefined(program, samples).endswith("as small as 1e-10 underflow to 0")


class Cache(nn.Module):
    """Writes into a part of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, 16))

    def forward(self, values: Tensor) -> Tensor:
        self.rows[1] = values
        result: Tensor = self.rows * 3
        return result


def test_a_state_that_is_written_through_a_view_is_read_and_restored() -> None:
    torch.manual_seed(2)
    samples = [(torch.randn(16),) for _ in range(3)]
    graph = export_graph(Cache(), samples[0])
    (errors,) = predict_noise(read_torch(graph, samples[0]), samples)
    largest = max(float(values.abs().max()) for (values,) in samples)
    assert 0 < np.abs(errors).max() < 3 * largest * 2**-9
    assert not graph.rows.any()
