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
        own = [case for case in cases if case.lane == lane]
        for model in dict.fromkeys(case.model for case in own):
            write_sets(folder / "data", model, entries[model])
        for name, case in {case.name: case for case in own}.items():
            schemes = [one.scheme for one in own if one.name == name]
            lines += describe(folder, case, schemes, entries[case.model])
        (folder / "qnn.toml").write_text("\n".join(lines))


def write_sets(place: Path, model: str, entry: Entry) -> None:
    """MODEL-calibration.npz, MODEL-inputs.npz and MODEL-labels.npy, and spoilt sets."""
    made: dict[str, list[Any]] = {}
    make = getattr(data, entry.sets)
    for kind in ("calibration", "inputs"):
        *arrays, labels = make(entry.judged, kind == "inputs")
        made[kind] = [
            array if array.dtype == np.int32 else array.astype(np.float32) for array in arrays
        ]
    np.save(place / f"{model}-labels.npy", labels)
    for fault in ("", *(OF_DATA if entry.spoilt else ())):
        for kind, arrays in made.items():
            spoilt = faults.spoil_sets(arrays, fault, judged=kind == "inputs")
            if not fault or spoilt is not arrays:
                name = f"{model}-{fault}" if fault else model
                np.savez(place / f"{name}-{kind}.npz", *spoilt)


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
    sets = {
        kind: next(
            f"data/{name}-{kind}.npz"
            for name in (case.name, case.model)
            if (folder / f"data/{name}-{kind}.npz").is_file()
        )
        for kind in ("calibration", "inputs")
    }
    return [
        f"[models.{case.name}]",
        f"path = {json.dumps(path)}",
        f"schemes = {json.dumps(schemes)}",
        *(f"{kind} = {json.dumps(file)}" for kind, file in sets.items()),
        f"[models.{case.name}.metric]",
        f"function = {json.dumps(str(HERE / 'metrics.py') + ':' + entry.metric)}",
        f'labels = "data/{case.model}-labels.npy"',
        f"max_drop = {entry.drop}",
        f"min = {entry.least}",
        *(
            line
            for scheme in schemes
            if entry.cpu
            for line in (f"[models.{case.name}.limits.{scheme}]", "full_delegation = false")
        ),
        "",
    ]
