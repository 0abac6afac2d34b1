"""What an argument of `upgrade-report` stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.report.write import write_report
from ci.verbs import upgrade_report
from ci.verbs.upgrade_report import EMULATOR, ONNX, SDK, Side, find_side, split_pins
from provisioning.console.progress import Progress
from tests.stand_ins.reports import make_report


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    return tmp_path


def find(word: str) -> Side:
    return find_side(word, EMULATOR, Progress())


def test_a_version_is_an_sdk_of_the_store_unless_a_directory_has_its_name(place: Path) -> None:
    assert find("2.49.0") == Side("2.49.0", session=EMULATOR, sdk="2.49.0")
    sdk = place / "2.49.0"
    sdk.mkdir()
    assert find("2.49.0") == Side("2.49.0", session=EMULATOR, sdk=str(sdk), tree=sdk)


def test_a_report_is_a_file_or_in_a_directory(place: Path) -> None:
    write_report(make_report([]), place / "out")
    for word in ("out", "out/report.json"):
        side = find(word)
        assert side.report is not None
        assert (side.session, side.tree) == ("", None)


@pytest.mark.parametrize("order", [1, -1])
def test_all_packages_of_an_argument_are_fetched_and_the_first_sdk_in_them_is_the_tree(
    place: Path, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    def fetch(name: str, version: str, _: Progress) -> Path:
        target = place / f"{name}-{version}"
        (target / SDK if name == "onnxruntime-qnn" else target).mkdir(parents=True)
        return target

    monkeypatch.setattr(upgrade_report, "fetch_package", fetch)
    pins = ["onnxruntime==1.2", "onnxruntime-qnn==2.7"][::order]
    side = find("+".join(pins))
    tree = place / "onnxruntime-qnn-2.7" / SDK
    assert side.packages == tuple(place / pin.replace("==", "-") for pin in pins)
    assert (side.session, side.tree, side.sdk) == (ONNX, tree, str(tree))


def test_a_directory_may_be_named_like_a_package(place: Path) -> None:
    assert split_pins("onnxruntime==1.2+executorch==1") == [
        ("onnxruntime", "1.2"),
        ("executorch", "1"),
    ]
    (place / "onnxruntime==1.2").mkdir()
    assert split_pins("onnxruntime==1.2") == []
