"""What the audit changes of ExecuTorch while it partitions, and how it measures; without QNN."""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

# Without QNN_SDK_ROOT ExecuTorch's import downloads an SDK; and it warns of what it uses itself.
with patch.dict(os.environ, QNN_SDK_ROOT="nowhere"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ci.audit import operators_partitions as audit
    from ci.models.lowering_options import Choices


def make_node(name: str, *, inputs: tuple[Any, ...] = (), val: Any = None) -> Any:
    target = SimpleNamespace(__name__=f"aten.{name}.default")
    return SimpleNamespace(
        op="call_function", name=name, target=target, meta={"val": val}, all_input_nodes=inputs
    )


def test_an_operator_at_which_the_partitioner_fails_is_left_and_the_next_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As ExecuTorch up to 1.4 fails at each that it has no builder for: executorch#21607."""

    class Support:
        def is_node_supported(self, _: Any, node: Any) -> bool:
            return {"relu": True, "tanh": False}[node.name]

    logged: list[str] = []
    logger = SimpleNamespace(info=lambda form, *words: logged.append(form % words))
    fake = SimpleNamespace(QnnOperatorSupport=Support, logger=logger)
    monkeypatch.setattr(audit, "qnn_partitioner", fake)
    original = Support.is_node_supported
    with audit.survive_crashes() as (crashes, varying):
        support = Support()
        judged = [
            support.is_node_supported(None, make_node(name)) for name in ("relu", "erf", "tanh")
        ]
    assert judged == [True, False, False]
    assert len(crashes) == 1
    assert crashes[0].startswith(
        "aten.erf.default: ExecuTorch's partitioner fails (KeyError: 'erf'"
    )
    assert len(logged) == 1
    assert "KeyError" in logged[0]
    assert varying == set()
    assert Support.is_node_supported is original


def test_a_refused_node_that_the_entry_skips_is_marked_as_requested() -> None:
    refusals = audit.Refusals(Choices(skip_ops=("aten.erf.default",), skip_nodes=("tanh_1",)))
    operators = {"erf": "aten.erf.default", "tanh_1": "aten.tanh.default", "tanh": "aten.tanh"}
    refusals.seen |= {**operators, "relu": "aten.relu.default"}
    refusals.by_node |= dict.fromkeys(operators, "refused")
    assert audit.list_refused(refusals) == (
        ("aten.erf.default", "refused", True),
        ("aten.tanh.default", "refused", True),
        ("aten.tanh", "refused", False),
    )


def test_a_node_that_reads_a_shape_which_varies_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    class Support:
        def is_node_supported(self, _: Any, node: Any) -> bool:
            raise TypeError(node.name)

    logger = SimpleNamespace(info=lambda *_: None)
    monkeypatch.setattr(
        audit, "qnn_partitioner", SimpleNamespace(QnnOperatorSupport=Support, logger=logger)
    )
    size = torch.export.Dim("size", min=2, max=8)
    program = torch.export.export(
        torch.nn.ReLU(), (torch.ones(4, 2),), dynamic_shapes={"input": {0: size}}
    )
    (given,) = (one for one in program.graph.nodes if one.op == "placeholder")
    assert audit.measure_value(given.meta["val"]) is None
    assert audit.measure(program.graph, [given.name]) is None
    with audit.survive_crashes() as (crashes, varying):
        Support().is_node_supported(None, make_node("sum", inputs=(given,), val=torch.ones(1)))
    assert varying == {"sum"}
    assert audit.VARIES in crashes[0]


def test_bytes_are_those_of_all_tensors_that_cross() -> None:
    program = torch.export.export(torch.nn.Linear(16, 8), (torch.ones(4, 16),), strict=True)
    signature = program.graph_signature
    assert audit.measure(program.graph, signature.user_inputs) == 4 * 4 * 16
    assert audit.measure(program.graph, signature.user_outputs) == 4 * 4 * 8
    assert audit.measure_value((torch.ones(2, dtype=torch.int8), None, 3)) == 2
    module = torch.nn.Bilinear(4, 8, 2)
    both = torch.export.export(module, (torch.ones(3, 4), torch.ones(3, 8)), strict=True)
    assert audit.measure(both.graph, both.graph_signature.user_inputs) == 4 * 3 * (4 + 8)
    assert audit.measure_value([torch.ones(2), torch.ones(3)]) == 20


def test_nothing_is_compiled_and_executorchs_own_is_put_back() -> None:
    original = vars(audit.QnnBackend)["preprocess_multimethod"]
    with audit.uncompiled() as programs:
        made = audit.QnnBackend.preprocess_multimethod({"forward": ["one", "two"]}, {})
    assert programs == {"forward": ["one", "two"]}
    assert [one.processed_bytes for one in made["forward"]] == [b"", b""]
    assert vars(audit.QnnBackend)["preprocess_multimethod"] is original


def test_a_long_exception_is_shortened_to_its_first_sentence() -> None:
    long = TypeError("__init__(): incompatible arguments. The following are supported: 1. x")
    assert audit.shorten(long) == "TypeError: __init__(): incompatible arguments"
