"""The corpus as a user's files: a policy for each lane with models, data, labels and metrics.

``write_corpus`` writes torch/qnn.toml, onnx/qnn.toml, the .onnx files and the arrays.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import data
import faults
import numpy as np
import onnx_files
from cases import LANES, OF_DATA, OF_MODEL, Case, Entry

HERE = Path(__file__).parent


def write_corpus(place: Path, cases: list[Case]) -> None:
    """What the cases need; a policy names no others."""
    for lane, entries in LANES.items():
        folder = place / lane
        (folder / "data").mkdir(parents=True, exist_ok=True)
        lines = ['extends = "default"', ""]
        cases_of_lane = [case for case in cases if case.lane == lane]
        for model in dict.fromkeys(case.model for case in cases_of_lane):
            write_sets(folder / "data", model, entries[model])
        for name, case in {case.name: case for case in cases_of_lane}.items():
            schemes = [
                case_of_lane.scheme for case_of_lane in cases_of_lane if case_of_lane.name == name
            ]
            lines += describe(folder, case, schemes, entries[case.model])
        (folder / "qnn.toml").write_text("\n".join(lines))


def write_sets(place: Path, model: str, entry: Entry) -> None:
    """MODEL-calibration.npz, MODEL-inputs.npz and MODEL-labels.npy, and spoilt sets."""
    arrays_by_kind: dict[str, list[Any]] = {}
    make = getattr(data, entry.sets)
    for kind in ("calibration", "inputs"):
        *arrays, labels = make(entry.judged, kind == "inputs")
        arrays_by_kind[kind] = [
            array if array.dtype == np.int32 else array.astype(np.float32) for array in arrays
        ]
    np.save(place / f"{model}-labels.npy", labels)
    for fault in ("", *(OF_DATA if entry.spoilt else ())):
        for kind, arrays in arrays_by_kind.items():
            spoilt = faults.spoil_sets(arrays, fault, judged=kind == "inputs")
            if not fault or spoilt is not arrays:
                name = f"{model}-{fault}" if fault else model
                np.savez(place / f"{name}-{kind}.npz", *spoilt)


def find_sets(folder: Path, case: Case, kind: str) -> str:
    """The file of a case's sets: those that its fault spoilt, or else its model's."""
    spoilt = f"data/{case.name}-{kind}.npz"
    return spoilt if (folder / spoilt).is_file() else f"data/{case.model}-{kind}.npz"


def describe(folder: Path, case: Case, schemes: list[str], entry: Entry) -> list[str]:
    """The lines of a case in the policy; its .onnx is written."""
    spoilt = case.fault in OF_MODEL
    if case.lane == "onnx":
        path = f"{case.name if spoilt else case.model}.onnx"
        onnx_files.write_model(case.model, case.fault if spoilt else "", folder / path)
    elif spoilt:
        path = f"{HERE / 'faults.py'}:{case.model}__{case.fault}"
    else:
        path = f"{HERE / 'nets.py'}:{case.model}"
    sets = {kind: find_sets(folder, case, kind) for kind in ("calibration", "inputs")}
    return [
        f"[models.{case.name}]",
        f"path = {json.dumps(path)}",
        f"schemes = {json.dumps(schemes)}",
        *(f"{kind} = {json.dumps(file)}" for kind, file in sets.items()),
        f"[models.{case.name}.metric]",
        f"function = {json.dumps(str(HERE / 'metrics.py') + ':' + entry.metric)}",
        f'labels = "data/{case.model}-labels.npy"',
        f"max_drop = {entry.drop}",
        f"min = {entry.lowest}",
        *(
            line
            for scheme in schemes
            if entry.cpu
            for line in (f"[models.{case.name}.limits.{scheme}]", "full_delegation = false")
        ),
        "",
    ]
