"""Bytes on their way to a device and back: a bundle, a case to run by hand, starts that differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from ci.cases.engine import Sets
from ci.device.bundle import BUNDLE, FILES, Bundle, BundleFile, Target, read_bundle
from ci.device.by_hand import INPUT_LIST, PROGRAM, RUN_CASES, write_by_hand
from ci.device.runner import DeviceProgram
from ci.models.lowering_options import ONE_RUN
from provisioning.errors import UnfitError, UsageError
from provisioning.files import hash_file, write_json


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of two files."""
    place = tmp_path / "bundle"
    (place / FILES).mkdir(parents=True)
    rows = []
    for name in ("libQnnHtp.so", "runner"):
        path = place / FILES / name
        path.write_text(f"the bytes of {name}")
        rows.append(BundleFile(name, hash_file(path), path.stat().st_size))
    made = Bundle(target=Target.LINUX, socs=("SM8650",), runner="runner", qnn="", files=tuple(rows))
    write_json(place / BUNDLE, msgspec.to_builtins(made))
    return place


def test_a_bundle_is_read_while_every_byte_is_as_it_was_staged(bundle: Path) -> None:
    whole = read_bundle(bundle)
    assert [one.name for one in whole.files] == ["libQnnHtp.so", "runner"]
    file = bundle / FILES / "libQnnHtp.so"
    text = file.read_text()
    file.write_text(text.swapcase())
    with pytest.raises(UnfitError, match=r"libQnnHtp\.so is not the file"):
        read_bundle(bundle)
    file.unlink()
    with pytest.raises(UnfitError, match=r"libQnnHtp\.so is not the file"):
        read_bundle(bundle)
    file.write_text(text)
    assert read_bundle(bundle).digest == whole.digest


@pytest.mark.parametrize("field", ["runner", "files"])
def test_a_bundle_names_no_file_outside_of_it(bundle: Path, field: str) -> None:
    record = msgspec.json.decode((bundle / BUNDLE).read_bytes())
    if field == "runner":
        record["runner"] = "../runner"
    else:
        record["files"][0]["name"] = "../bundle.json"
    (bundle / BUNDLE).write_bytes(msgspec.json.encode(record))
    with pytest.raises(UsageError, match="no name for a file"):
        read_bundle(bundle)


def test_a_case_to_run_by_hand_has_each_set_of_its_own_inputs(tmp_path: Path) -> None:
    artifact = tmp_path / "kept" / "mlp-8a8w-SM8650" / "artifact"
    (artifact / "inputs").mkdir(parents=True)
    record = {"compiled": {"program": "model.pte", "sets": 3, "inputs": [{}, {}]}}
    (artifact / "artifact.json").write_bytes(msgspec.json.encode(record))
    (artifact / "model.pte").write_bytes(b"the program")
    names = [f"{number}_{index}.raw" for number in range(3) for index in range(2)]
    for name in names:
        (artifact / "inputs" / name).write_text(name)
    target = tmp_path / "bundle"
    target.mkdir()
    write_by_hand(target, "runner", tmp_path / "kept")
    case = target / "cases" / "mlp-8a8w-SM8650"
    assert (case / PROGRAM).read_bytes() == b"the program"
    rows = (case / INPUT_LIST).read_text().splitlines()
    assert [row.split() for row in rows] == [names[:2], names[2:4], names[4:]]
    assert [(case / name).read_text() for name in names] == names
    assert (target / RUN_CASES).stat().st_mode & 0o111


@dataclass
class Starts(DeviceProgram):
    """Gives what a test says at each start; nothing is sent."""

    gives: Any = ()

    def send(self, sets: Sets) -> None:
        del sets

    def run_once(self, sets: int) -> Sets:
        del sets
        given: Sets = self.gives.pop(0)
        return given


def start(*outputs: list[list[Any]]) -> Starts:
    runner: Any = SimpleNamespace(
        starts=len(outputs), bundle=SimpleNamespace(target=Target.LINUX), name="adb:1"
    )
    program: Any = SimpleNamespace(spec=SimpleNamespace(source=SimpleNamespace(run=ONE_RUN)))
    made = Starts(runner, program, 1.0)
    made.gives = list(outputs)
    return made


def test_a_start_that_gives_other_bytes_is_a_fault_of_the_case() -> None:
    right = [[np.float32([1, 2])], [np.float32([3, 4])]]
    other = [[np.float32([1, 2])], [np.float32([3, 5])]]
    one = start(right, other, right, other)
    assert one.run([]) == right
    assert one.unequal == [2, 4]
    assert start(right, other).run([]) == right
    last = start(right, right, other)
    last.run([])
    assert last.unequal == [3]
    negative = [[np.float32([0.0])]]
    signs = start(negative, [[np.float32([-0.0])]])
    signs.run([])
    assert signs.unequal == [2]  # bytes, not values
