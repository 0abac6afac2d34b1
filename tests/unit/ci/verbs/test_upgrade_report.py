"""What an argument of `upgrade-report` stands for."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.audit.upgrade import Difference
from ci.report.schema import Case, JudgementFacts, Status, Tool
from ci.report.write import write_report
from ci.verbs import sides, upgrade_report, upgrade_runs
from ci.verbs.sides import (
    EMULATOR,
    HTP,
    LIBRARIES,
    ONNX,
    SDK,
    Side,
    fetch_package,
    find_side,
    lay_out_libraries,
)
from ci.verbs.upgrade_runs import UpgradeRequest, find_qnn, run_side
from provisioning.artifacts.choice import python_tag
from provisioning.console.progress import Progress
from provisioning.errors import (
    DownloadError,
    ExitCode,
    StoreError,
    ToolError,
    UnfitError,
    UsageError,
)
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


def test_a_version_is_an_sdk_of_the_store_unless_a_directory_has_its_name(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find("2.49.0") == Side("2.49.0", session=EMULATOR, sdk="2.49.0")
    sdk = place / "2.49.0"
    sdk.mkdir()
    named = Side("2.49.0", session=EMULATOR, sdk=str(sdk), tree=sdk)
    assert find("2.49.0") == named
    monkeypatch.delenv("QNN_CI_CALLER_DIR")
    assert find("2.49.0") == named


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

    monkeypatch.setattr(sides, "fetch_package", fetch)
    pins = ["onnxruntime==1.2", "onnxruntime-qnn==2.7"][::order]
    side = find("+".join(pins))
    tree = place / "onnxruntime-qnn-2.7" / SDK
    assert side.packages == tuple(place / pin.replace("==", "-") for pin in pins)
    assert (side.session, side.tree, side.sdk) == (ONNX, tree, str(tree))


# -- the runs -------------------------------------------------------------------------------------


class Runs:
    """Stands in for run_process. ``leaves`` is what a run leaves, given its arguments."""

    def __init__(self, leaves: Any = lambda *_: None) -> None:
        self.leaves = leaves
        self.argv: list[str] = []
        self.keywords: dict[str, Any] = {}

    def __call__(self, argv: list[str], **keywords: Any) -> Any:
        self.argv, self.keywords = argv, keywords
        self.leaves(argv)
        return SimpleNamespace(describe=lambda: "exited with 3", output=" one\n\n  two \n")


NONE = UpgradeRequest(("old", "new"), EMULATOR, (), (), (), None, Path("out"))


def test_a_run_without_a_report_is_a_difference_that_names_its_log(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    log = Path("out", "2.49.0_rc.log")
    log.parent.mkdir()
    log.write_text("the user's")
    runs = Runs(lambda _: runs.keywords["log"].write_text("of the run"))
    monkeypatch.setattr(upgrade_runs, "run_process", runs)
    noted: list[Difference] = []
    side = Side("2.49.0 rc", session=EMULATOR, sdk="2.49.0")
    assert run_side(side, NONE, Progress(), noted) is None
    assert runs.keywords["env"]["PYTHONPATH"] == str(upgrade_runs.OWN)
    (difference,) = noted
    assert (difference.subject, difference.verdict) == ("2.49.0 rc", "worse")
    assert difference.now == "exited with 3: one two (whole log: out/2.49.0_rc.log)"
    assert log.read_text() == "of the run"
    assert log.with_name(f"{log.name}.old").read_text() == "the user's"


def test_qnn_version_of_a_side_is_read_from_its_libraries_or_else_its_report(place: Path) -> None:
    named = make_report([], toolchain=(Tool(name="x", version="1"), Tool(name=HTP, version=BUILD)))
    path = place / LIBRARIES / HTP
    tree = Side("a", tree=place)
    for report, qnn in ((None, ""), (make_report([]), ""), (named, "2.49.99")):
        assert find_qnn(tree, report) == find_qnn(Side("a"), report) == qnn
    path.parent.mkdir(parents=True)
    path.write_bytes(library(HTP))
    assert find_qnn(tree, None) == "2.49.99"
    path.write_bytes(library(HTP, "v2.48.99.260702151143"))
    assert find_qnn(tree, named) == "2.48.99"


# -- packages -------------------------------------------------------------------------------------


def test_a_package_that_cannot_be_fetched_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(place / "home"))

    def fail(_: list[str]) -> None:
        raise ToolError("pip failed", why="no such version")

    monkeypatch.setattr(sides, "run_process", Runs(fail))
    with pytest.raises(DownloadError) as caught:
        fetch_package("executorch", "9.9", Progress())
    assert (caught.value.why, bool(caught.value.fix)) == ("no such version", True)
    assert not [path for path in (place / "home").rglob("*") if path.is_file()]


def test_the_libraries_of_a_wheel_are_laid_out_like_an_sdk(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(place / "home"))

    def leave(argv: list[str]) -> None:
        target = Path(argv[-2])
        for name in (HTP, "libGenie.so", "libonnxruntime_providers_qnn.so", "__init__.py"):
            write(target / "onnxruntime_qnn" / name, library(HTP) if name == HTP else b"")
        for name in ("libc++-0a1b.so.1.0", "libother-0a1b.so.1.0", "x"):
            write(target / "onnxruntime_qnn.libs" / name, b"")

    monkeypatch.setattr(sides, "run_process", Runs(leave))
    tree = fetch_package("onnxruntime-qnn", "2.5.0", Progress()) / SDK
    names = {path.name for path in (tree / LIBRARIES).iterdir()}
    linked = {"libc++-0a1b.so.1.0", "libother-0a1b.so.1.0", HTP, "libGenie.so"}
    assert names == {*linked, "libc++.so.1"}
    assert (tree / LIBRARIES / "libc++.so.1").readlink() == Path("libc++-0a1b.so.1.0")
    assert (tree / "sdk.yaml").read_text().splitlines()[-1] == "version: 2.49.99"
    assert (tree / "QNN_README.txt").is_file()
    (place / "empty/onnxruntime_qnn").mkdir(parents=True)
    (place / "empty/onnxruntime_qnn" / HTP).touch()
    lay_out_libraries(place / "empty")
    assert "version: 0\n" in (place / "empty" / SDK / "sdk.yaml").read_text()


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_a_package_that_another_process_fetched_meanwhile_is_used(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(place / "home"))
    theirs = place / "home" / FETCHED / f"executorch-1.4.1-{python_tag()}"

    def leave(argv: list[str]) -> None:
        write(theirs / "theirs", b"")
        write(Path(argv[-2]) / "ours", b"")

    monkeypatch.setattr(sides, "run_process", Runs(leave))
    assert fetch_package("executorch", "1.4.1", Progress()) == theirs
    assert [path.name for path in theirs.iterdir()] == ["theirs"]


# -- the whole comparison -------------------------------------------------------------------------


CASES = [
    Case(model="mlp", scheme="fp16", soc="SM8650", judgement=JudgementFacts(status=status))
    for status in (Status.PASSED, Status.FAILED)
]


@pytest.mark.parametrize(
    ("builds", "statuses", "compared", "code"),
    [
        (("2.49.0", "2.50.0"), (0, 0), True, ExitCode.OK),
        (("2.49.0", "2.49.0"), (0, 1), False, ExitCode.FAILED),
        (("2.49.0", "2.50.0"), (1, 0), True, ExitCode.OK),
        (("", "2.50.0"), (0, 0), False, ExitCode.OK),
    ],
)
def test_two_versions_are_compared_by_their_cases_and_known_faults(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    builds: tuple[str, str],
    statuses: tuple[int, int],
    compared: bool,
    code: ExitCode,
) -> None:
    for name, build, status in zip(("old", "new"), builds, statuses, strict=True):
        tools = (Tool(name=HTP, version=f"v{build}.260101000000"),) if build else ()
        write_report(make_report([CASES[status]], toolchain=tools), place / name)
    difference = Difference("a fault", "fault", "wrong", "right", "better")
    monkeypatch.setattr(upgrade_report, "list_ends", lambda side, qnn, *_: (side.name, qnn))
    ends: list[Any] = []
    monkeypatch.setattr(
        upgrade_report, "compare_faults", lambda *arguments: ends.extend(arguments) or [difference]
    )
    outcome = upgrade_report.execute(args_of("old", "new", reports=place / "out"), Progress())
    assert ends == ([*zip(("old", "new"), builds, strict=True)] if compared else [])
    subjects = [
        difference["subject"]
        for difference in outcome.data["differences"]
        if difference["what"] == "fault"
    ]
    assert subjects == ["a fault"] * compared
    assert (outcome.exit_code, bool(outcome.text)) == (code, True)
    assert (place / "out/index.html").is_file()


def args_of(old: str, new: str, **changes: Any) -> Namespace:
    usual: dict[str, Any] = {"session": EMULATOR, "policy": None, "reports": Path("out")}
    usual |= {"model": [], "scheme": [], "soc": [], "options": (), "matrix": False, "sides": []}
    return Namespace(old=old, new=new, **{**usual, **changes})


@pytest.mark.parametrize(
    ("old", "new", "reports", "error"),
    [
        ("2.49.0", "nowhere", "out", UsageError),
        ("torch==2.0", "2.49.0", "out", UsageError),
        ("onnxruntime-qnn==latest", "2.49.0", "out", UsageError),
        ("2.49.0", "onnxruntime==1.22.0+executorch==1.5.1", "out", UsageError),
        ("2.48.0", "2.49.0", "file", StoreError),
    ],
)
def test_nothing_is_fetched_unless_both_arguments_and_the_directory_can_be_used(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    reports: str,
    error: type[Exception],
) -> None:
    (place / "file").touch()
    monkeypatch.setattr(upgrade_report, "find_side", None)
    with pytest.raises(error):
        upgrade_report.execute(args_of(old, new, reports=place / reports), Progress())


@pytest.mark.parametrize(
    ("words", "models", "needed"),
    [
        (("onnxruntime-qnn==2.5.0", "2.49.0"), [], ["onnx", "onnxruntime", "torch", "onnxscript"]),
        (("onnxruntime-qnn==2.5.0", "report"), ["net.onnx"], ["onnx", "onnxruntime"]),
        (("executorch==1.5.1", "report"), [], ["torch"]),
        (("2.49.0", "report"), [], ["torch", "executorch"]),
    ],
)
def test_required_packages_are_checked_before_anything_is_fetched(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, str],
    models: list[str],
    needed: list[str],
) -> None:
    def refuse(names: list[str], _: str) -> None:
        raise UnfitError(" ".join(names))

    write_report(make_report([CASES[0]]), place / "report")
    (place / "net.onnx").touch()
    monkeypatch.setattr(upgrade_report, "require_packages", refuse)
    monkeypatch.setattr(sides, "fetch_package", None)
    with pytest.raises(UnfitError) as caught:
        upgrade_report.execute(args_of(*words, model=models), Progress())
    assert caught.value.what == " ".join(needed)


@pytest.mark.parametrize(
    ("old", "options", "expected"),
    [
        ("2.49.0", {"scheme": ["nope"]}, "no scheme 'nope'"),
        ("2.49.0", {"soc": ["SM1"]}, "no SoC 'SM1'"),
        ("2.49.0", {"model": ["gone.py:net"]}, "gone.py"),
        ("onnxruntime-qnn==2.7.0", {"scheme": ["8a8w_qat"]}, "8a8w_qat"),
    ],
)
def test_cases_that_no_run_can_have_are_refused_before_packages_are_required(
    place: Path, old: str, options: dict[str, list[str]], expected: str
) -> None:
    write_report(make_report([CASES[0]]), place / "report")
    with pytest.raises(UsageError) as caught:
        upgrade_report.execute(args_of(old, "report", **options), Progress())
    assert expected in str(caught.value)
