"""What verbs say of a report of the schema before."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.report.schema import Case, DeviceFigures, Estimate, Report, Simulation
from ci.report.write import encode_report
from tests.stand_ins.reports import change_case, encode_earlier
from tests.stand_ins.shards import make_cases, make_shards

CALIBRATION = ["estimate", "--calibrate", "device", "--policy", "out/qnn.toml"]
UPGRADE = ["upgrade-report", "whole", "device", "--reports", "out"]


def measure(case: Case, number: int) -> Case:
    """A case on a device, with an estimate."""
    counts = ("graphs", "read_bytes", "fill_bytes", "spill_bytes", "write_bytes", "missing_ops")
    units = ("hmx_cycles", "hvx_cycles", "dma_cycles")
    simulation = Simulation(
        soc="SM8650",
        clock_mhz=1000.0,
        **dict.fromkeys(("cycles", "lower_cycles", "upper_cycles"), 1_000_000 * number),
        **dict.fromkeys((*counts, *units), 0),
    )
    figures = DeviceFigures(starts=1, runs=9, p50_ms=3.0 * number)
    return change_case(case, figures=figures, estimate=Estimate(simulation=simulation))


def read_files(folder: Path) -> dict[str, bytes]:
    """The files that a verb wrote, by their paths."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["report", "whole"], 1),
        (["report", "whole", "--json", "--base", "device"], 1),
        (["report", "whole", "--to", "out/copy", "--sarif", "out/log.sarif"], 1),
        (["report", "0", "1", "--to", "out/merged"], 0),
        (["report", "--trend", ".", "--to", "out"], 0),
        (["judge", "whole", "--reports", "out"], 1),
        (CALIBRATION, 0),
        (UPGRADE, 1),
    ],
)
def test_a_verb_says_the_same_of_a_report_of_the_schema_before(
    words: list[str],
    code: int,
    report: Report,
    troubled: Report,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured = [measure(case, n) for n, case in enumerate(report.cases, 1) if case.scheme == "fp16"]
    device = replace(report, cases=tuple(measured))
    shards = make_shards(make_cases("mlp fp16 SM8650", "mlp 8a8w SM8650"), 2)
    results = []
    for form, encode in (("now", encode_report), ("earlier", encode_earlier)):
        place = tmp_path / form
        for name, run in (("whole", troubled), ("device", device), *enumerate(shards)):
            (place / str(name)).mkdir(parents=True)
            (place / str(name) / "report.json").write_bytes(encode(run))
        (place / "out").mkdir()
        (place / "out" / "qnn.toml").write_text('extends = "default"\n')
        monkeypatch.chdir(place)
        results.append((main(words), capsys.readouterr(), read_files(place / "out")))
    assert results[0] == results[1]
    assert results[0][0] == code
