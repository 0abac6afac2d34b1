"""What is true of a case, decided from the plain script's figures, and what is held against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cases import LANES, OF_CALIBRATION, Case

FILE = Path(__file__).parent / "truth.json"
QUESTIONS = ("faithful", "quantized", "task")
GOOD, BAD, DOUBTFUL, REFUSED = "good", "bad", "doubtful", "refused"
# Of another case, no verdict can be wrong: the project may prepare a model that the script's calls
# refuse, so that the provider takes it.
COMPARED = (GOOD, BAD)
# dB over all samples. Most fp16 programs have 40 dB and more; a quantized one that errs as its
# quantized model does is as near to the float model.
FP16_DB, MARGIN_DB = 24.0, 6.0
# So much further off, a program is bad even if the metric does not notice.
FAR_DB = 14.0
# A quantized model below it is no longer the float model: right decisions are luck.
POOR_DB = 6.0

Row = dict[str, Any]


def read_truth() -> dict[Case, Row]:
    return {identify(row): row for row in json.loads(FILE.read_text("utf-8"))}


def write_truth(rows: list[Row]) -> None:
    """Add the rows of the plain script, each decided, to those that the file has."""
    rows_by_case = read_truth() if FILE.is_file() else {}
    rows_by_case |= {identify(row): row | decide(row) for row in rows}
    lines = [json.dumps(rows_by_case[case]) for case in sorted(rows_by_case, key=repr)]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")


def identify(row: Row) -> Case:
    model, _, fault = str(row["case"]).partition("-")
    return Case(row["lane"], model, fault, row["scheme"])


def decide(row: Row) -> Row:
    """Whether each question is answered well, and the verdict that follows."""
    if "program" not in row.get("metric", {}):
        return {"verdict": REFUSED}
    case = identify(row)
    entry = LANES[case.lane][case.model]
    right = {kind: -9.0 if value is None else value for kind, value in row["metric"].items()}
    lowest = {kind: value - entry.drop - 1e-6 for kind, value in right.items()}
    near = [figures[0] for figures in row["program_float"]]
    if case.scheme == "fp16":
        required_db = [FP16_DB] * len(near)
    else:
        required_db = [figures[0] - MARGIN_DB for figures in row["quantized_float"]]
    poor = any(figures[0] < POOR_DB for figures in row["quantized_float"])
    far = any(
        reached < required - FAR_DB for reached, required in zip(near, required_db, strict=True)
    )
    answers = {
        "faithful": (poor or right["program"] >= lowest["quantized"])
        and all(reached >= required for reached, required in zip(near, required_db, strict=True)),
        "quantized": not poor and right["quantized"] >= lowest["float"],
        "task": right["program"] >= max(entry.lowest, lowest["float"]),
    }
    if not answers["task"] or far:
        verdict = BAD
    elif all(answers.values()) and case.fault not in OF_CALIBRATION:
        verdict = GOOD
    else:
        verdict = DOUBTFUL
    return {**answers, "verdict": verdict}


def name_cause(row: Row) -> str:
    """The question that has to be named for a case that is not good: "task" where the float model
    has not what is asked either, else the first that is answered badly. Calibration faults are
    faults of quantization, whatever they spoil."""
    case, metric = identify(row), row.get("metric", {})
    if "program" not in metric:
        return ""
    floats = metric["float"]
    if floats is None or floats < LANES[case.lane][case.model].lowest:
        return QUESTIONS[-1]
    if case.fault in OF_CALIBRATION:
        return QUESTIONS[1]
    return next((question for question in QUESTIONS if row.get(question) is False), "")
