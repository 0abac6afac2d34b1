"""The proof of a rewrite: what it accepts, and planted mistakes that it rejects, without QNN."""

from __future__ import annotations

import ast
import builtins
import copy
import dis
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from ci.mend import rewrite_module  # noqa: E402
from ci.mend.different import BeyondBound, Different  # noqa: E402
from ci.mend.proof import RewriteProof  # noqa: E402
from ci.mend.rewrite import export_module  # noqa: E402
from ci.mend.source import Factory, make_source  # noqa: E402
from ci.mend.torch_form import TorchSubject, copy_graph  # noqa: E402
from ci.mend.torch_rewrites import REWRITES  # noqa: E402

aten: Any = torch.ops.aten
INPUTS = (torch.zeros(2, 6, 8),)


class Block(nn.Module):
    """Attention with a mask behind an RMS norm, and a batch norm with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.BatchNorm1d(6)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)
        self.weight = nn.Parameter(torch.rand(8) + 0.5)
        self.register_buffer("mask", torch.triu(torch.full((6, 6), -30.0), 1))

    def forward(self, x: Any) -> Any:
        y = self.v(x)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        scores = self.q(y) @ self.k(y).transpose(-1, -2) / 8**0.5 + self.mask
        attended = scores.softmax(-1) @ y
        return self.norm(torch.relu(x + attended)), scores.argmax(-1)


def edit(operator: str, change: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """A rewrite that changes the arguments of the first call of an operator, or replaces it by the
    node that ``change`` returns."""

    def apply(graph: Any) -> Any:
        node = next(called for called in graph.graph.nodes if operator in str(called.target))
        with graph.graph.inserting_after(node):
            replacement = change(graph.graph, node)
        if replacement is not None:
            node.replace_all_uses_with(replacement)
            replacement.replace_input_with(replacement, node)
        graph.recompile()
        return (node.name,)

    return apply


def argument(index: int, value: Any) -> Callable[[Any, Any], Any]:
    """A change of one argument. ``value`` may be a function of the old one."""

    def change(graph: Any, node: Any) -> None:
        new = value(node.args[index]) if callable(value) else value
        node.args = (*node.args[:index], new, *node.args[index + 1 :])

    return change


def behind(target: Any, *arguments: Any) -> Callable[[Any, Any], Any]:
    """A call that reads the result instead of its readers."""
    return lambda graph, node: graph.call_function(target, (node, *arguments))


def constant(name: str, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A rewrite that changes a parameter or a buffer."""

    def apply(graph: Any) -> Any:
        with torch.no_grad():
            tensor = graph.get_parameter(name) if name[0] in "wqkv" else graph.get_buffer(name)
            tensor.copy_(change(tensor.clone()))
        return (name,)

    return apply


def swap_outputs(graph: Any) -> Any:
    end = next(node for node in graph.graph.nodes if node.op == "output")
    end.args = (end.args[0][::-1],)
    graph.recompile()
    return ("output",)


def drop_output(graph: Any) -> Any:
    end = next(node for node in graph.graph.nodes if node.op == "output")
    codegen = graph.graph._codegen
    leaves = end.args[0][:1]
    end.args = (leaves,)
    spec = torch.utils._pytree.tree_flatten((0,))[1]
    codegen.pytree_info = codegen.pytree_info._replace(out_spec=spec)
    graph.recompile()
    return ("output",)


def leave_epsilon(graph: Any) -> Any:
    """The epsilon of the RMS norm, which the inputs alone hardly show behind a biased layer."""
    return edit("aten.add.Tensor", argument(1, 0.0))(graph)


WRONG = {
    "an axis off": edit("aten.mean", argument(1, [1])),
    "the softmax over another axis": edit("aten.softmax", argument(1, -2)),
    "the argmax over another axis": edit("aten.argmax", argument(1, -2)),
    "a lost epsilon": leave_epsilon,
    "another epsilon": edit("aten.add.Tensor", argument(1, 1e-5)),
    "the epsilon of the batch norm": edit("aten.batch_norm", argument(7, 1e-3)),
    "an inverted mask": constant("mask", lambda mask: -30 - mask),
    "a mask moved by one": constant("mask", lambda mask: mask.roll(1, 1)),
    "a mask with another constant": constant("mask", lambda mask: mask / 10),
    "the lower triangle": constant("mask", lambda mask: mask.T),
    "a transposed weight": constant("q.weight", lambda weight: weight.T),
    "a scale twice": constant("weight", lambda weight: weight * weight),
    "a forgotten bias": edit("aten.linear", argument(2, None)),
    "mean and variance exchanged": constant("norm.running_mean", lambda mean: mean + 1e-3),
    "a shortened power": edit("aten.pow", argument(1, 1)),
    "a missing relu": edit("aten.relu", lambda _, node: node.args[0]),
    "another dtype": edit("aten.batch_norm", behind(aten.to.dtype, torch.float16)),
    "integers of another width": edit("aten.argmax", behind(aten.to.dtype, torch.int32)),
    "a random operator": edit("aten.relu", behind(aten.dropout.default, 1e-9, True)),
    "another shape": edit("aten.batch_norm", behind(aten.unsqueeze.default, 0)),
    "the outputs exchanged": swap_outputs,
    "an output missing": drop_output,
    "a small constant added": edit("aten.batch_norm", behind(aten.add.Tensor, 3e-4)),
    "NaN instead of zero": edit("aten.relu", behind(aten.div.Tensor, float("nan"))),
}


@pytest.fixture(scope="module")
def proof() -> RewriteProof:
    torch.manual_seed(1)
    return RewriteProof(TorchSubject(Block().eval(), [(torch.randn(2, 6, 8),) for _ in range(2)]))


@pytest.fixture(scope="module")
def exported_block() -> Any:
    return export_module(Block(), INPUTS)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own, of a copied graph
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rewrite_is_rejected(proof: RewriteProof, exported_block: Any, name: str) -> None:
    graph = copy.deepcopy(exported_block)
    replaced = WRONG[name](graph)
    with pytest.raises(Different):
        proof.measure(graph, 1e-5, replaced)


def test_an_unchanged_graph_and_an_equal_one_are_accepted(proof: RewriteProof) -> None:
    assert proof.measure(export_module(Block(), INPUTS), 0.0, ()) == 0
    graph, (changes,) = proof.rewrite(["scale-batch-norm"])
    assert [change.nodes for change in changes] == [("batch_norm",)]
    assert proof.measure(graph, 1e-5, ["batch_norm"]) == 0  # up to rounding


def test_a_model_with_an_input_of_one_element_can_be_rewritten() -> None:
    class Timed(nn.Module):
        def forward(self, x: Any, step: Any) -> Any:
            return torch.relu(x * step)

    sets = [(torch.ones(2, 3), torch.full((1,), 0.5))]
    proof = RewriteProof(TorchSubject(Timed(), sets))
    graph, _ = proof.rewrite([])
    assert proof.measure(graph, 1e-5, []) == 0


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")
def test_operands_of_a_layer_with_a_dropout_may_be_rewritten() -> None:
    """The initial state of an LSTM is a constant."""
    proof = RewriteProof(TorchSubject(nn.LSTM(4, 6).eval(), [(torch.randn(3, 1, 4),)]))
    graph, (changes,) = proof.rewrite(["fold-constants"])
    assert changes
    assert proof.measure(graph, 0.0, ()) == 0


class Amplifying(nn.Module):
    """A model in which the rounding of a first layer reaches the output 4,000 times as large."""

    def forward(self, x: Any) -> Any:
        y = (torch.sigmoid(x) + torch.tensor([[[0.25]], [[0.5]]])) * 0.75
        for _ in range(6):
            y = y + torch.sin(3 * y)
        return y


@torch.library.custom_op("tests::only_float32", mutates_args=())
def only_float32(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise RuntimeError("not implemented for 'Double'")
    return x.clone()


@only_float32.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class AmplifyingInFloat32(Amplifying):
    """The same with an operator that takes float32 only."""

    def forward(self, x: Any) -> Any:
        return only_float32(super().forward(x))


def lose_digits(graph: Any, node: Any) -> None:
    """Add 1,000 to a result and subtract it again."""
    sum_node = graph.call_function(aten.add.Tensor, (node, 1000.0))
    with graph.inserting_after(sum_node):
        difference = graph.call_function(aten.sub.Tensor, (sum_node, 1000.0))
    node.replace_all_uses_with(difference)
    sum_node.replace_input_with(difference, node)


def test_forms_that_differ_by_rounding_alone_are_compared_in_float64() -> None:
    torch.manual_seed(0)
    sets = [(torch.randn(1, 2, 3, 8),)]
    subject = TorchSubject(Amplifying(), sets)
    proof = RewriteProof(subject)
    graph, (changes,) = proof.rewrite(["multiply-before-add"])
    replaced = [name for change in changes for name in change.nodes]
    assert proof.measure(graph, 1e-5, replaced) < 1e-5
    for wrong_edit in (argument(1, 0.7500001), lose_digits):
        wrong = copy_graph(subject.original.exported)
        replaced_wrongly = edit("aten.mul", wrong_edit)(wrong)
        with pytest.raises(BeyondBound):
            proof.measure(wrong, 1e-5, replaced_wrongly)
    subject = TorchSubject(AmplifyingInFloat32(), sets)
    proof = RewriteProof(subject)
    graph, (changes,) = proof.rewrite(["multiply-before-add"])
    with pytest.raises(BeyondBound, match="1e-05 allowed"):
        proof.measure(graph, 1e-5, [name for change in changes for name in change.nodes])


class Alibi(nn.Module):
    """A bias and a mask of one constant, which has no other values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        far = (torch.arange(4)[None] - torch.arange(4)[:, None]).float()
        return (x + far).masked_fill(far > 0, -1e9).softmax(-1)


def test_constants_keep_their_values_while_a_rewrite_is_proven() -> None:
    proof = RewriteProof(TorchSubject(Alibi(), [(torch.randn(2, 4, 4),)]))
    graph, (changes,) = proof.rewrite(["mask-after-softmax"])
    assert proof.measure(graph, 1e-5, [name for change in changes for name in change.nodes]) < 1e-6


def test_a_rewritten_module_can_be_trained_and_needs_something_to_change() -> None:
    inputs = (torch.randn(2, 6, 8),)
    graph = rewrite_module(Block(), inputs, ["scale-batch-norm"])
    graph.train()(*inputs)[0].sum().backward()
    assert graph.get_parameter("weight").grad is not None
    with pytest.raises(ValueError, match="finds nothing to change"):
        rewrite_module(nn.Linear(8, 8), inputs, ["scale-batch-norm"])
    with pytest.raises(ValueError, match="there is no rewrite 'other'"):
        rewrite_module(nn.Linear(8, 8), inputs, ["other"])


def list_globals(code: CodeType) -> set[str]:
    """The names that code and the functions in it read from its module."""
    read_here = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in READS
    }
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return read_here.union(*map(list_globals, inner))


READS = {"LOAD_GLOBAL", "LOAD_NAME"}


def test_a_standalone_file_contains_every_rewrite_and_needs_nothing_of_this_project(
    tmp_path: Path,
) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn, ones\ndef factory(): return nn.BatchNorm1d(4), ones(2, 4)"
    )
    factory = Factory("net", f"{tmp_path}/net.py:factory", ("scale-batch-norm",))
    with_all = Factory("every", f"{tmp_path}/net.py:factory", tuple(REWRITES))
    text = make_source(tmp_path, [factory, with_all], standalone=True)
    namespace: dict[str, Any] = {
        "__name__": "mended_net",
        "__file__": str(tmp_path / "mended_net.py"),
    }
    sys.modules["mended_net"] = ModuleType("mended_net")  # dataclasses look it up
    code = compile(text, "mended_net.py", "exec")
    exec(code, namespace)  # noqa: S102 - our own text
    assert list_globals(code) - namespace.keys() - {*dir(builtins), "__annotations__"} == set()
    defined = [statement.name for statement in ast.parse(text).body if hasattr(statement, "name")]
    assigned = [
        target.id
        for statement in ast.parse(text).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    ]
    assert len([*defined, *assigned]) == len({*defined, *assigned})
    assert "import ci" not in text
    assert "from ci" not in text
    module, x = namespace["net"]()
    assert torch.ops.aten.batch_norm.default not in {node.target for node in module.graph.nodes}
    torch.testing.assert_close(module(x), nn.BatchNorm1d(4).eval()(x))
