"""What the audit changes of ExecuTorch while it partitions, and how it measures; without QNN."""

from __future__ import annotations

import logging
import os
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

# Without QNN_SDK_ROOT ExecuTorch's import downloads an SDK; and it warns of what it uses itself.
with patch.dict(os.environ, QNN_SDK_ROOT="nowhere"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
    from executorch.backends.qualcomm.serialization.qc_schema_serialize import flatbuffer_to_option

    from ci.audit import operators_partitions as audit
    from ci.cases.engine import Delegation, Fallback, Staging
    from ci.cases.spec import CaseSpec
    from ci.executorch import delegation
    from ci.models.lowering_options import Choices
    from ci.models.model import Model
    from ci.models.schemes import Scheme
    from ci.models.user_models import Source

WARNINGS = ("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
pytestmark = pytest.mark.filterwarnings(*WARNINGS)
ROW = torch.ones(3)


def make_node(name: str, *, inputs: tuple[Any, ...] = (), val: Any = None) -> Any:
    target = SimpleNamespace(__name__=f"aten.{name}.default")
    return SimpleNamespace(
        op="call_function", name=name, target=target, meta={"val": val}, all_input_nodes=inputs
    )


def test_an_operator_that_crashes_the_partitioner_stays_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next operator is judged all the same. ExecuTorch up to 1.4 crashes at each operator
    without a builder: executorch#21607."""

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
            support.is_node_supported(None, make_node(name))
            for name in ("relu", "erf", "tanh", "a|b")
        ]
    assert judged == [True, False, False, False]
    assert len(crashes) == 2
    assert crashes[0].op == "aten.erf.default"
    assert crashes[0].reason.startswith("ExecuTorch's partitioner fails (KeyError: 'erf'")
    assert len(logged) == 2
    assert "KeyError" in logged[0]
    # As the partitioner's own reasons, each is what follows the only bar.
    assert [reason.count("|") for reason in logged] == [1, 1]
    assert varying == set()
    assert Support.is_node_supported is original


def test_a_shape_that_depends_on_the_data_is_noted_of_the_nodes_that_read_or_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Support:
        def is_node_supported(self, _: Any, node: Any) -> bool:
            raise KeyError(node.name)

    fake = SimpleNamespace(QnnOperatorSupport=Support, logger=logging.getLogger())
    monkeypatch.setattr(audit, "qnn_partitioner", fake)
    monkeypatch.setattr(audit, "measure_value", lambda value: None if value == "varies" else 1)
    nonzero = make_node("nonzero", val="varies")
    reader = make_node("sum", inputs=(make_node("relu"), nonzero))
    with audit.survive_crashes() as (crashes, varying):
        for node in (nonzero, reader, make_node("abs", inputs=(reader,))):
            Support().is_node_supported(None, node)
    assert varying == {"nonzero", "sum"}
    assert [audit.VARIES in crash.reason for crash in crashes] == [True, True, False]


class Last(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.max(0, keepdim=True).values


class Chain(torch.nn.Module):
    """Three operators, and a buffer that the model changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        self.total.add_(x.sum(0))
        return x.tanh().erf() + self.total


def partition(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lower_edge: Any, **source_fields: Any
) -> audit.Found:
    sets = ((torch.ones(2, 3),),)
    model = Model("net", Chain().eval(), sets, sets)
    spec = CaseSpec(
        "net", source_fields.pop("scheme", Scheme.FP16), "SM8650", Source(**source_fields)
    )
    monkeypatch.setattr(audit.Lowering, "lower_edge", lower_edge)
    return audit.partition_model(model, spec, Staging(folder, folder / "log", folder))


def test_operators_and_partitions_are_described_per_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """erf is refused in both methods; the first is one partition, the second two."""
    taken = torch.export.export(torch.nn.Sequential(torch.nn.Tanh(), torch.nn.ReLU()), (ROW,))
    plain = torch.export.export(torch.nn.Sequential(torch.nn.ReLU(), Last()), (torch.ones(5),))
    lowered: list[Any] = []

    def lower_edge(self: Any, module: Any, spec: Any) -> Any:
        (option,) = spec
        lowered.append((module, flatbuffer_to_option(option.value).soc_info.soc_model))
        exported = {
            name: torch.export.export(Chain().eval(), (torch.ones(2, 3),)).run_decompositions()
            for name in ("second", "first")
        }
        audit.QnnBackend.preprocess_multimethod({"first": [taken], "second": [taken, plain]}, {})
        return SimpleNamespace(methods={*exported}, exported_program=exported.get)

    left = Delegation(1, 2, 3, (Fallback("erf", "no builder"), Fallback("exp", "asked", True)))
    audited: list[Any] = []
    monkeypatch.setattr(
        audit, "audit_delegation", lambda *arguments: audited.append(arguments) or left
    )
    audited_model = partition(tmp_path, monkeypatch, lower_edge)
    ((module, soc),) = lowered
    assert (type(module), soc) == (Chain, QcomChipset.SM8650)
    assert [len(graphs) for graphs, _ in audited] == [2]
    assert all(origin.line or origin.module for _, origin in audited_model.taken)
    names = Counter[str]()
    for (name, _), count in audited_model.taken.items():
        names[name] += count
    assert names == {"tanh.default": 2, "relu.default": 3, "max.dim": 1}
    assert audited_model.partitions == (
        audit.Partition("first", 2, 12, 12),
        audit.Partition("second", 2, 12, 12),
        audit.Partition("second", 2, 20, 4),
    )
    assert audited_model.left == left.fallback_ops
    assert (audited_model.io_bytes, audited_model.written_back, audited_model.failure) == (
        2 * (24 + 24),
        2,
        None,
    )
    assert [step.operator for step in audited_model.steps].count("tanh") == 1


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_lowering_that_fails_keeps_what_was_judged_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, partitioned: bool
) -> None:
    """If the partitioner had finished, what it gave to QNN is kept, too."""
    program = torch.export.export(torch.nn.ReLU(), (ROW,))
    answers = {"relu": True, "tanh": False, "sin": False, "cos": False}

    class Support:
        def is_node_supported(self, _: Any, node: Any) -> bool:
            return answers[node.name]

    logger = logging.getLogger("partitioner")
    fake = SimpleNamespace(QnnOperatorSupport=Support, logger=logger)
    for module in (audit, delegation):
        monkeypatch.setattr(module, "qnn_partitioner", fake)

    def lower_edge(self: Any, module: Any, spec: Any) -> Any:
        for name in ("relu", "tanh", "erf"):
            Support().is_node_supported(None, make_node(name))
        varying_input = SimpleNamespace(meta={"val": None})
        monkeypatch.setattr(audit, "measure_value", lambda _: None)
        for name in ("sin", "cos"):
            Support().is_node_supported(None, make_node(name, inputs=(varying_input,)))
        if partitioned:
            audit.QnnBackend.preprocess_multimethod({"forward": [program]}, {})
        raise ValueError("no binary")

    audited_model = partition(tmp_path, monkeypatch, lower_edge)
    names = {name: count for (name, _), count in audited_model.taken.items()}
    assert names == {"relu.default" if partitioned else "aten.relu.default": 1}
    assert [partition_row.nodes for partition_row in audited_model.partitions] == [1] * partitioned
    assert [(fallback.op, fallback.asked) for fallback in audited_model.left] == [
        ("aten.tanh.default", False),
        ("aten.erf.default", False),
        ("aten.sin.default", False),
        ("aten.cos.default", False),
    ]
    assert all(
        fallback.reason.startswith(f"{audit.VARIES}: ") for fallback in audited_model.left[2:]
    )
    assert audit.VARIES not in audited_model.left[0].reason
    assert audited_model.failure
    assert "aten.erf.default: ExecuTorch's partitioner fails" in audited_model.failure.headline
    assert "no binary" in audited_model.failure.evidence
    assert audited_model.io_bytes is None
    assert audited_model.steps


def test_a_model_that_cannot_be_quantized_has_a_failure_and_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise ValueError(f"no {arguments[1].value} for {arguments[2]}")

    monkeypatch.setattr("ci.executorch.lower.quantize_model", fail)
    audited_model = partition(tmp_path, monkeypatch, None, scheme=Scheme.A8W8)
    assert audited_model.failure
    assert audited_model.failure.headline.startswith("refused: ValueError: no 8a8w for SM8650")
    assert (audited_model.taken, audited_model.left, audited_model.partitions) == ({}, (), ())
    assert audited_model.steps


def test_a_refused_node_that_the_entry_skips_is_marked_as_requested() -> None:
    refusals = audit.Refusals(Choices(skip_ops=("aten.erf.default",), skip_nodes=("tanh_1",)))
    operators = {"erf": "aten.erf.default", "tanh_1": "aten.tanh.default", "tanh": "aten.tanh"}
    refusals.operators |= {**operators, "relu": "aten.relu.default"}
    refusals.by_node |= dict.fromkeys(operators, "refused")
    assert [(fallback.op, fallback.asked) for fallback in refusals.refused] == [
        ("aten.erf.default", True),
        ("aten.tanh.default", True),
        ("aten.tanh", False),
    ]


def test_within_uncompiled_nothing_is_compiled_and_the_original_is_restored() -> None:
    original = vars(audit.QnnBackend)["preprocess_multimethod"]
    with audit.uncompiled() as programs:
        processed = audit.QnnBackend.preprocess_multimethod({"forward": ["one", "two"]}, {})
    assert programs == {"forward": ["one", "two"]}
    assert [program.processed_bytes for program in processed["forward"]] == [b"", b""]
    assert vars(audit.QnnBackend)["preprocess_multimethod"] is original
