"""What an argument of `upgrade-report` stands for."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.audit.upgrade import Difference
from ci.report.schema import Tool
from ci.report.write import write_report
from ci.verbs import upgrade_report
from ci.verbs.upgrade_report import (
    EMULATOR,
    HTP,
    LIBRARIES,
    ONNX,
    SDK,
    Side,
    fetch_package,
    find_qnn,
    find_side,
    run_side,
    split_pins,
)
from provisioning.artifacts.choice import SDK_VARIABLE, python_tag
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, ToolError
from provisioning.store.collect import FETCHED
from tests.stand_ins.android_apps import BUILD, library
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


# -- the runs -------------------------------------------------------------------------------------


class Runs:
    """Stands in for run_process. ``leaves`` is what a run leaves, given its arguments."""

    def __init__(self, leaves: Any = lambda *_: None) -> None:
        self.leaves = leaves
        self.argv: list[str] = []
        self.more: dict[str, Any] = {}

    def __call__(self, argv: list[str], **more: Any) -> Any:
        self.argv, self.more = argv, more
        self.leaves(argv)
        return SimpleNamespace(describe=lambda: "exited with 3", output=" one\n\n  two \n")


NONE = Namespace(model=[], scheme=[], soc=[], policy=None, reports=Path("out"))
CHOSEN = Namespace(
    model=["mlp", "cnn"],
    scheme=["8a8w"],
    soc=["SM8650"],
    policy=Path("qnn.toml"),
    reports=Path("out"),
)


@pytest.mark.parametrize(
    ("side", "args", "words", "path"),
    [
        (Side("2.49.0", session=EMULATOR, sdk="2.49.0"), NONE, ["--sdk", "2.49.0"], []),
        (
            Side("x==1+y==2", session=ONNX, packages=(Path("/p"), Path("/q"))),
            CHOSEN,
            [
                *("--model", "mlp", "--model", "cnn", "--scheme", "8a8w", "--soc", "SM8650"),
                *("--policy", "HERE/qnn.toml"),
            ],
            ["/p", "/q"],
        ),
    ],
)
def test_a_version_is_tried_by_a_session_with_its_packages_and_the_same_choice(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    side: Side,
    args: Namespace,
    words: list[str],
    path: list[str],
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/before")
    monkeypatch.setenv(SDK_VARIABLE, "other")
    monkeypatch.setenv("QNN_CI_CAUSE_FILE", "cause")
    monkeypatch.setenv("HOME", "/home")
    directory = place / "out" / side.slug
    (directory / "old").mkdir(parents=True)

    def leave(argv: list[str]) -> None:
        assert not directory.exists()
        write_report(make_report([]), Path(argv[-1]) / side.session)

    runs = Runs(leave)
    monkeypatch.setattr(upgrade_report, "run_process", runs)
    noted: list[Difference] = []
    assert run_side(side, args, Progress(), noted) == make_report([])
    assert noted == []
    assert runs.argv[0] == sys.executable
    session = side.session.replace("_", "-")
    start = runs.argv.index("ci")
    assert runs.argv[start:] == [
        *("ci", session),
        *(word.replace("HERE", str(place)) for word in words),
        *("--reports", str(directory)),
    ]
    env = runs.more.pop("env")
    assert env["PYTHONPATH"].split(os.pathsep) == [*path, str(upgrade_report.OWN), "/before"]
    assert (SDK_VARIABLE in env, "QNN_CI_CAUSE_FILE" in env, env["HOME"]) == (
        *(False, False),
        "/home",
    )
    assert runs.more == {"check": False, "log": Path(f"out/{side.slug}.log"), "keep_lines": 6}


def test_a_run_without_a_report_is_a_difference_that_names_its_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    runs = Runs()
    monkeypatch.setattr(upgrade_report, "run_process", runs)
    noted: list[Difference] = []
    side = Side("2.49.0 rc", session=EMULATOR, sdk="2.49.0")
    assert run_side(side, NONE, Progress(), noted) is None
    assert runs.more["env"]["PYTHONPATH"] == str(upgrade_report.OWN)
    (one,) = noted
    assert (one.subject, one.verdict) == ("2.49.0 rc", "worse")
    assert one.now == "exited with 3: one two (whole log: out/2.49.0_rc.log)"


def test_a_side_that_is_a_report_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade_report, "run_process", None)
    report = make_report([])
    assert run_side(Side("a", report), NONE, Progress(), []) is report


def test_a_side_s_qnn_is_that_of_its_libraries_else_of_its_report(place: Path) -> None:
    named = make_report([], toolchain=(Tool(name="x", version="1"), Tool(name=HTP, version=BUILD)))
    path = place / LIBRARIES / HTP
    tree = Side("a", tree=place)
    for report, own in ((None, ""), (make_report([]), ""), (named, "2.49.99")):
        assert find_qnn(tree, report) == find_qnn(Side("a"), report) == own
    path.parent.mkdir(parents=True)
    path.write_bytes(library(HTP))
    assert find_qnn(tree, None) == "2.49.99"
    path.write_bytes(library(HTP, "v2.48.99.260702151143"))
    assert find_qnn(tree, named) == "2.48.99"


# -- packages -------------------------------------------------------------------------------------


def test_a_package_is_fetched_once_without_its_dependencies(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(place / "home"))
    runs = Runs(lambda argv: (Path(argv[-2]) / "executorch").mkdir(parents=True))
    monkeypatch.setattr(upgrade_report, "run_process", runs)
    found = fetch_package("executorch", "1.4.1", Progress())
    assert found.name == f"executorch-1.4.1-{python_tag()}"
    assert found.parent.name == FETCHED
    assert [one.name for one in found.iterdir()] == ["executorch"]
    assert [*found.parent.iterdir()] == [found]
    assert "--no-deps" in runs.argv
    assert runs.argv[runs.argv.index("--only-binary") :][:3] == [
        *("--only-binary", ":all:", "--target"),
    ]
    assert runs.argv[-1] == "executorch==1.4.1"
    monkeypatch.setattr(upgrade_report, "run_process", None)
    assert fetch_package("executorch", "1.4.1", Progress()) == found


def test_a_package_that_cannot_be_fetched_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(place / "home"))

    def fail(_: list[str]) -> None:
        raise ToolError("pip failed", why="no such version")

    monkeypatch.setattr(upgrade_report, "run_process", Runs(fail))
    with pytest.raises(DownloadError) as caught:
        fetch_package("executorch", "9.9", Progress())
    assert (caught.value.why, bool(caught.value.fix)) == ("no such version", True)
    assert not [one for one in (place / "home").rglob("*") if one.is_file()]
