"""No red case of a model whose cause is known names another one. tests/realistic/truths.toml has
the causes. Models outside of this repository are in the folder that QNN_CI_TRUE_CAUSES names;
without it, they are left out. QNN_CI_TRUE_CAUSES_MODELS chooses models by a glob, such as
``idioms/*``.

Each test writes a table, case by case: what was said, and whether it is true, to
``true-causes-LANE.md`` in the folder that QNN_CI_TRUE_CAUSES_TABLE names.
"""

from __future__ import annotations

import fnmatch
import os
import sys
from pathlib import Path

import pytest
from msgspec import Struct

from ci.report.write import read_report
from provisioning.manifest.reader import convert_toml, tomllib
from tests.named_causes import WRONG, judge_cause
from tests.stand_ins.runs import JUDGED, run_to_end

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

FOLDER = os.environ.get("QNN_CI_TRUE_CAUSES", "")
MODELS = os.environ.get("QNN_CI_TRUE_CAUSES_MODELS", "*")
TABLE = os.environ.get("QNN_CI_TRUE_CAUSES_TABLE", "")
pytestmark = [pytest.mark.emulator, pytest.mark.nightly]
# What each lane imports besides onnxruntime-qnn
LANES = {"test-emulator": "executorch", "test-onnx": "onnxscript", "test-litert": "litert_torch"}
OURS = "tests/"  # how the path of a model of this repository starts
DIAGNOSE_S = "300"
ROOT = Path(__file__).parents[3]
TRUTHS = ROOT / "tests" / "realistic" / "truths.toml"


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """A model with its schemes, and the pattern of its cause."""

    lane: str
    model: str
    schemes: tuple[str, ...]
    cause: str


class Truths(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of truths.toml."""

    case: tuple[Row, ...]


def read_truths() -> tuple[Row, ...]:
    text = TRUTHS.read_text(encoding="utf-8")
    return convert_toml(tomllib.loads(text), Truths, text).case


@pytest.mark.parametrize("lane", LANES)
def test_no_cause_that_is_named_is_wrong(lane: str, tmp_path: Path) -> None:
    pytest.importorskip(LANES[lane], reason=f"{LANES[lane]} is not installed in this environment")
    rows = [row for row in read_truths() if row.lane == lane]
    rows = [row for row in rows if fnmatch.fnmatchcase(row.model, MODELS)]
    rows = [row for row in rows if FOLDER or row.model.startswith(OURS)]
    if not rows:
        pytest.skip("no model is chosen for the lane: see QNN_CI_TRUE_CAUSES and its _MODELS")
    text = 'extends = "default"\n'
    for number, row in enumerate(rows):
        path = (ROOT if row.model.startswith(OURS) else Path(FOLDER).resolve()) / row.model
        schemes = [*row.schemes]
        text += f'[models.truth{number}]\npath = "{path}"\nschemes = {schemes}\n'
    policy, reports = tmp_path / "qnn.toml", tmp_path / "reports"
    policy.write_text(text, encoding="utf-8")
    argv = [sys.executable, "-m", "ci", lane, "--policy", str(policy), "--reports", str(reports)]
    argv += ["--diagnose", DIAGNOSE_S]  # all of them may take four times as long together
    argv += [word for number in range(len(rows)) for word in ("--model", f"truth{number}")]
    run_to_end(argv, timeout_s=3600, codes=JUDGED)

    lines = ["| case | said | truth | verdict |", "|---|---|---|---|"]
    wrong = []
    for case in read_report(reports / lane.replace("-", "_")).cases:
        row = rows[int(case.model.removeprefix("truth"))]
        printed_text, verdict = judge_cause(case, row.cause)
        name = f"{row.model} {case.scheme}"
        lines.append(
            f"| {name} | {printed_text[:300]} | {row.cause} | {verdict} |".replace("\n", " ")
        )
        if verdict == WRONG:
            wrong.append((name, printed_text))
    folder = Path(TABLE or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / f"true-causes-{lane}.md"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert wrong == [], "\n".join(lines)
