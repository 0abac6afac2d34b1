"""Both lanes in one table, and how the lane's cases are chosen."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ci.report.schema import Case, Status
from ci.verbs.lanes.onnx import compare_lanes, require_python
from provisioning.errors import UnfitError
from tests.stand_ins.reports import make_report


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
    elsewhere = replace(case("mlp", "u8", 33.8), soc="SM8750")
    same = [case("mlp", scheme, 33.8) for scheme in ("u8", "u16a8w", "asis")]
    table = compare_lanes(executorch, make_report([*same, elsewhere]))
    (row,) = [line for line in table.splitlines() if line.startswith("| mlp")]
    assert [cell.strip() for cell in row.split("|")][1:-1] == [
        *("mlp", "SM8650", "8a8w / u8", "passed / passed", "33.5 / 33.8", "2.00 KiB / 2.00 KiB"),
        *("3/3 / 3/3", "1.50 / 1.50"),
    ]
    for cases in ([], [elsewhere]):
        assert compare_lanes(executorch, make_report(cases)) == "No case is in both reports.\n"


def test_python_3_10_is_refused_with_the_reason() -> None:
    require_python("3.11.0")
    for version in ("3.9.2", "3.10.15"):
        with pytest.raises(UnfitError, match=f"this is Python {version}") as caught:
            require_python(version)
    assert caught.value.fix == "run nox with Python 3.11 or later"
