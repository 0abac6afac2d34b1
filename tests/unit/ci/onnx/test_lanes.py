"""Both lanes in one table, and how the lane's cases are chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ci.cases.policy import read_emulator_policy
from ci.cases.spec import select_cases
from ci.models.schemes import EXECUTORCH, ONNX, Scheme
from ci.models.suite import SUITE
from ci.models.user_models import ModelEntry
from ci.report.schema import Case, Status
from ci.verbs.lanes.onnx import TWINS, compare_lanes, require_python
from provisioning.doctor.examine import find_fitness
from provisioning.errors import UnfitError, UsageError
from tests.stand_ins.reports import make_report

SOCS = ["SM8650", "SM8750"]


def test_the_schemes_of_a_pair_have_the_same_bits() -> None:
    def name_bits(scheme: Scheme) -> str:
        bits = scheme.value.removeprefix("u").removesuffix("_channel")
        return "8a8w" if bits == "8" else bits

    assert {name_bits(one): other.value for one, other in TWINS.items()} == {
        name_bits(one): name_bits(one) for one in TWINS
    }
    assert {*TWINS} == {*ONNX.schemes} - {Scheme.ASIS}
    assert {*TWINS.values()} <= {*EXECUTORCH.schemes}


def case(model: str, scheme: str, sqnr_db: float) -> Case:
    return Case(
        model=model,
        scheme=scheme,
        soc="SM8650",
        status=Status.PASSED,
        sqnr_db=sqnr_db,
        max_abs=1.0,
        pte_bytes=2048,
        delegated_nodes=3,
        fallback_nodes=0,
        lower_s=1.5,
    )


def test_cases_of_the_same_bits_stand_side_by_side() -> None:
    executorch = make_report([case("mlp", "8a8w", 33.5), case("lstm", "fp16", 60.0)])
    onnx = make_report([case("mlp", "u8", 33.8), case("mlp", "u16a8w", 36.9)])
    table = compare_lanes(executorch, onnx)
    assert table.endswith("|\n")
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()[2:]]
    assert rows[2][1:-1] == [
        "mlp",
        "SM8650",
        "8a8w / u8",
        "passed / passed",
        "33.5 / 33.8",
        "2.00 KiB / 2.00 KiB",
        "3/3 / 3/3",
        "1.50 / 1.50",
    ]
    assert len(rows) == 3
    elsewhere = replace(case("mlp", "u8", 33.8), soc="SM8750")
    assert compare_lanes(executorch, make_report([elsewhere])) == "No case is in both reports.\n"
    one = compare_lanes(executorch, make_report([elsewhere, case("mlp", "u8", 33.8)]))
    assert len(one.splitlines()) == 5
    onnx = make_report([case("mlp", "asis", 33.8), case("mlp", "u8", 33.8)])
    assert len(compare_lanes(executorch, onnx).splitlines()) == 5
    assert compare_lanes(executorch, make_report([])) == "No case is in both reports.\n"


def test_the_lanes_suite_is_large_enough() -> None:
    policy = read_emulator_policy(lane="onnx")
    cases = select_cases(policy.suite, SOCS, lane=ONNX)
    assert set(policy.suite) == set(SUITE)
    assert len(cases) >= 20
    assert {one.scheme for one in cases} == {*ONNX.schemes} - {Scheme.ASIS}


def test_an_onnx_file_is_a_model_of_this_lane_alone(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(b"")
    cases = select_cases({}, SOCS, models=[str(file)], lane=ONNX)
    assert [one.scheme for one in cases] == [Scheme.FP16, Scheme.U8, Scheme.U16A8W]
    assert {(one.model, one.reference, one.is_file) for one in cases} == {
        (str(file), str(file), True)
    }
    for given in ({"models": [str(file)]}, {"entries": {"net": ModelEntry(str(file))}}):
        with pytest.raises(UsageError, match=r"net(\.onnx)? is an .onnx file"):
            select_cases({}, SOCS, **given)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no model"):
        select_cases({}, SOCS, models=[str(tmp_path / "gone.onnx")], lane=ONNX)
    with pytest.raises(UsageError, match="no scheme '8a8w'"):
        select_cases({}, SOCS, models=["mlp"], schemes=["8a8w"], lane=ONNX)


def test_python_3_10_is_refused_with_the_reason() -> None:
    require_python("3.11.0")
    for version in ("3.9.2", "3.10.15"):
        with pytest.raises(UnfitError, match=f"this is Python {version}") as caught:
            require_python(version)
    assert caught.value.fix == "run nox with Python 3.11 or later"


def test_the_doctor_asks_for_no_executorch() -> None:
    assert find_fitness("emulator").python
    assert not find_fitness("onnx").python
