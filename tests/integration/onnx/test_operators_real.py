"""The table of operators against the provider: a sample by day, and all rows by night."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

from ci.onnx.fallback import read_notes
from ci.onnx.models import read_model
from ci.onnx.options import installed_version
from provisioning.errors import UsageError
from tests.qnn_provider.asking import SOC, STRICT, ask
from tests.qnn_provider.larger import write_casts, write_dynamic, write_gelu, write_if, write_loop
from tests.qnn_provider.operators import Case, list_cases
from tests.qnn_provider.survey import find_reason, survey
from tests.qnn_provider.table import Answer, read_operators

EVERY = 101  # of about 2200 cases; prime, so that types and ranks change


def find_row(case: Case) -> tuple[Answer, str] | None:
    """What the table says of a case; None where ONNX has no such model."""
    name = f"{case.domain}:{case.op}" if case.domain else case.op
    (operator,) = (table_row for table_row in read_operators().operator if table_row.name == name)
    for row in operator.rows:
        if row.variant == case.variant and case.kind in row.kinds and case.rank in row.ranks:
            return row.answer, row.reason
    return None


@pytest.mark.parametrize("step", [EVERY, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_operator_table_agrees_with_the_providers_answers(step: int) -> None:
    table = read_operators()
    assert installed_version() == table.provider
    differing = []
    for answer in survey(list(list_cases())[::step]):
        row = find_row(answer.case)
        if answer.verdict == "invalid":
            assert row is None, answer.case.key
        elif row != (Answer(answer.verdict), answer.reason):
            differing.append(f"{answer.case.key}: {answer}, the table says {row}")
    assert not differing


def test_the_operator_table_has_only_known_cases_and_nearly_all_of_them() -> None:
    cases_of_table = {
        (table_row.name, row.variant, kind, rank)
        for table_row in read_operators().operator
        for row in table_row.rows
        for kind in row.kinds
        for rank in row.ranks
    }
    cases = {
        (f"{case.domain}:{case.op}" if case.domain else case.op, case.variant, case.kind, case.rank)
        for case in list_cases()
    }
    assert cases_of_table <= cases
    assert len(cases - cases_of_table) < 40  # no ONNX: the type is none of the operator's


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("flow")
    models = {
        "if": write_if(folder / "if.onnx", fixed=False),
        "fixed if": write_if(folder / "fixed.onnx", fixed=True),
        "if of one name": write_if(folder / "shared.onnx", fixed=False, shared=True),
        "loop": write_loop(folder / "loop.onnx"),
        "named batch": write_dynamic(folder / "named.onnx", "batch"),
        "GELU with Erf": write_gelu(folder / "gelu.onnx"),
        "to int64 by way of int32": write_casts(folder / "casts.onnx"),
        "any batch": write_dynamic(folder / "any.onnx", None),
    }
    requests = [
        {"model": str(path), "options": SOC, "entries": STRICT, "compare": [-2, 2, 0]}
        for path in models.values()
    ]
    answered = zip(models, models.values(), ask(requests), strict=True)
    return {name: (path, answer) for name, path, answer in answered}


@pytest.mark.parametrize("name", ["if", "fixed if", "GELU with Erf"])
def test_operators_that_the_notes_call_supported_run_with_right_outputs(
    name: str, answers: dict[str, tuple[Path, dict[str, Any]]]
) -> None:
    path, answer = answers[name]
    assert answer["agreement"] > 35
    read_model(path)


@pytest.mark.parametrize(
    ("name", "reason", "says"),
    [
        (
            "loop",
            "Operators of type `Loop` are not supported by QNN EP.",
            "QNN does not support loops",
        ),
        ("named batch", "Cannot get shape", "--shape x=1,4"),
        ("any batch", "Cannot get shape", "--shape x=1,4"),
    ],
)
def test_operators_that_the_provider_refuses_are_refused_with_the_fix(
    name: str, reason: str, says: str, answers: dict[str, tuple[Path, dict[str, Any]]]
) -> None:
    path, answer = answers[name]
    assert find_reason(answer) == reason
    with pytest.raises(UsageError) as caught:
        read_model(path)
    assert says in f"{caught.value.what} {caught.value.fix}"


def test_a_float_cast_to_int64_by_way_of_int32_is_rounded_as_the_notes_say(
    answers: dict[str, tuple[Path, dict[str, Any]]],
) -> None:
    _, answer = answers["to int64 by way of int32"]
    assert answer["agreement"] < 0
    assert "rounded" in read_notes()["Cast"]


def test_the_provider_refuses_if_branches_that_share_a_tensor_name(
    answers: dict[str, tuple[Path, dict[str, Any]]],
) -> None:
    _, answer = answers["if of one name"]
    assert "share internal tensor name `i`" in find_reason(answer)
    assert read_notes()["If"]
