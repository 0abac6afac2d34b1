"""What fuzz, the matrix and the suite of faults exit with, on a provider that stands in."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")

from msgspec import structs

from ci.__main__ import main
from ci.faults.expected import GRAPH, MENDED, Rerun
from ci.faults.graph import Graph, parse_graph
from ci.faults.known import RIGHT, WRONG, describe, find_pattern, read_faults
from ci.faults.results import Item, Result
from ci.models.schemes import Scheme
from ci.report.schema import Status
from ci.report.write import read_report
from ci.verbs import faults, fuzz, sides, upgrade_matrix, upgrade_report
from ci.verbs.environments import choose_emulator
from ci.verbs.faults import make_case
from ci.verbs.sides import Side
from ci.verbs.trials import Bench
from provisioning.artifacts.choice import QnnChoice
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, ExitCode, UsageError
from provisioning.manifest.reader import manifests_root

PLANTED = read_faults()[0]
IsWrong = Callable[[Graph], bool]


def has_planted(graph: Graph) -> bool:
    return bool(find_pattern(PLANTED.pattern, describe(graph)))


class StandIn(Bench):
    """Computes rightly, except graphs that are wrong."""

    def __init__(self, is_wrong: IsWrong) -> None:
        super().__init__("onnx", Path(), None, Path())
        self.is_wrong, self.qnn = is_wrong, "2.49.40"

    def make(self, scheme: object, soc: str) -> Any:
        self.requested = (scheme, soc)
        return self

    def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
        del bundle, late
        for item in items:
            bad = self.is_wrong(parse_graph(item.text)) and not item.rewrite
            yield Result(item.text, item.seed, WRONG if bad else RIGHT, 2.0 if bad else 61.0, 60.0)


def open_stand_in(is_wrong: IsWrong) -> Any:
    @contextmanager
    def open_bench(*_: object, **__: object) -> Iterator[Bench]:
        yield StandIn(is_wrong)

    return open_bench


def call(verb: Any, *words: str, progress: Progress | None = None) -> Outcome:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    outcome: Outcome = verb.execute(parser.parse_args(words), progress or Progress())
    return outcome


def run(form: str, end: str, expected: str) -> Rerun:
    return Rerun(
        fault="a",
        form=form,
        frontend="onnx",
        scheme="fp16",
        qnn="2.49.40",
        end=end,
        expected=expected,
        sqnr_db=2.0,
        predicted_db=60.0,
    )


@pytest.mark.parametrize(
    ("rerun", "status", "word"),
    [
        (run(GRAPH, WRONG, WRONG), Status.PASSED, ""),
        (run(GRAPH, RIGHT, WRONG), Status.FAILED, "the fault is gone"),
        (run(GRAPH, WRONG, ""), Status.UNSUPPORTED, "records no result with QNN"),
    ],
)
def test_a_known_fault_with_an_unexpected_outcome_fails_its_case(
    rerun: Rerun, status: Status, word: str
) -> None:
    case = make_case(rerun, "SM8650")
    assert case.judgement.status is status
    assert (case.model, case.scheme, case.soc) == (f"a {rerun.form} onnx", "fp16", "SM8650")
    assert (case.judgement.outcome, case.judgement.sqnr_db, case.judgement.predicted_sqnr_db) == (
        rerun.end,
        2.0,
        60.0,
    )
    assert word in case.reason


@pytest.mark.parametrize(
    ("is_wrong", "fetched", "code"),
    [
        (has_planted, True, ExitCode.OK),
        (lambda _: False, True, ExitCode.FAILED),  # the fault is gone
        (has_planted, False, ExitCode.FAILED),
    ],
)
def test_a_matrix_fails_if_a_graph_ends_otherwise_or_a_version_is_missing(
    is_wrong: IsWrong,
    fetched: bool,
    code: ExitCode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_side(word: str, *_: object) -> Side:
        if not fetched and word.endswith("2.6.0"):
            raise DownloadError("pip could not fetch it")
        return Side(word)

    monkeypatch.setattr(sides, "open_bench", open_stand_in(is_wrong))
    monkeypatch.setattr(upgrade_matrix, "find_side", find_side)
    pins = [word for two in ("2.5.0", "2.6.0") for word in ("--with", f"onnxruntime-qnn=={two}")]
    outcome = call(
        upgrade_report, "--matrix", *pins, "--fault", PLANTED.name, "--reports", str(tmp_path)
    )
    assert outcome.exit_code == code
    not_run = "not run: onnxruntime-qnn==2.6.0: pip could not fetch it"
    assert (not_run in outcome.text) == (not fetched)
    matrix = json.loads((tmp_path / "versions_matrix/matrix.json").read_bytes())
    assert matrix["runs"][0]["fault"] == PLANTED.name


@pytest.mark.parametrize("installed", [("onnx", "executorch"), ("onnx",), ("executorch",), ()])
def test_the_suite_runs_the_faults_that_the_filter_selects_in_each_front_end(
    installed: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QNN_CI_SDK", "QNN_CI_ADAPTOR"):
        monkeypatch.setenv(name, "")
    reruns: list[tuple[str, tuple[str, ...], str, QnnChoice, bool]] = []

    class Recorder(StandIn):
        def rerun(self, faults: Any, soc: str, _: Any) -> list[Rerun]:
            names = tuple(fault.name for fault in faults)
            reruns.append((self.frontend, names, soc, *self.choices))
            return [run(GRAPH, WRONG, WRONG), run(MENDED, WRONG, RIGHT)]

    @contextmanager
    def open_bench(frontend: Any, choice: Any, _: Any, *, offline: bool) -> Iterator[Bench]:
        bench = Recorder(has_planted)
        bench.frontend, bench.choices = frontend, (choice, offline)
        yield bench

    found_packages = {faults.NEEDS[front_end] for front_end in installed}
    monkeypatch.setattr(
        faults.importlib.util, "find_spec", lambda name: name in found_packages or None
    )
    monkeypatch.setattr(faults, "open_bench", open_bench)
    user_table = tmp_path / "faults.toml"
    shipped_table = (manifests_root() / "policies/faults.toml").read_text("utf-8")
    user_table.write_text(
        shipped_table.replace(f'name = "{read_faults()[2].name}"', 'name = "own"'), "utf-8"
    )
    names = [fault.name for fault in read_faults(user_table)]
    words = ["test-emulator", "--suite", "faults", "--soc", "SM8750", "--reports", str(tmp_path)]
    words += ["--policy", str(user_table), "--filter"]
    two_selected = tuple(name for name in names if name.startswith(names[0]) or name == names[2])
    wheel = ["--sdk", "wheel", "--adaptor", "wheel", "--offline"]
    for selection, selected, choice in (
        ([f"{names[0]}*", "--filter", names[2]], two_selected, (QnnChoice(), False)),
        ([f"{names[0]} graph onnx", *wheel], (names[0],), (QnnChoice("wheel", "wheel"), True)),
    ):
        code = main([*words, *selection])
        assert reruns == [(front_end, selected, "SM8750", *choice) for front_end in installed]
        assert code == (ExitCode.FAILED if installed else ExitCode.ENVIRONMENT)
        reruns.clear()
    if not installed:
        return
    report = read_report(tmp_path / faults.SUITE / "report.json")
    assert [case.judgement.status for case in report.cases] == [Status.PASSED, Status.FAILED] * len(
        installed
    )
    assert [(tool.name, tool.version) for tool in report.toolchain] == [
        (f"QNN of {front_end}", "2.49.40") for front_end in installed
    ]
    for name in faults.NEEDS:
        assert any(f"{name}: not run" in remark for remark in report.remarks) == (
            name not in installed
        )
    assert [phase.name for phase in report.summary.phases] == list(installed)
    assert report.remarks[-1].startswith(f"{len(installed)} of {2 * len(installed)} graphs")
    assert report.command.endswith(" --adaptor wheel --suite faults --soc SM8750")
    assert main([*words, "zzz"]) == ExitCode.USAGE


def test_the_suite_of_litert_runs_the_graphs_that_were_tried_with_it_in_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("QNN_CI_SDK", "QNN_CI_ADAPTOR"):
        monkeypatch.setenv(name, "")
    opened: list[tuple[str, QnnChoice]] = []

    @contextmanager
    def open_bench(frontend: Any, choice: QnnChoice, *_: object, **__: object) -> Iterator[Bench]:
        opened.append((frontend, choice))
        bench = StandIn(lambda _: True)
        bench.frontend, bench.qnn = frontend, "2.51.0"
        yield bench

    monkeypatch.setattr(faults, "open_bench", open_bench)
    schemes_by_name: dict[str, set[str]] = {}
    for fault in read_faults():
        schemes = {row.scheme for row in fault.tried if row.frontend == "litert"}
        schemes_by_name.setdefault(fault.name, schemes)
    float_name = next(name for name, schemes in schemes_by_name.items() if "fp16" in schemes)
    integer_name = next(name for name, schemes in schemes_by_name.items() if schemes == {"int8"})
    words = ["test-emulator", "--suite", "faults", "--runtime", "litert"]
    words += ["--reports", str(tmp_path), "--filter"]
    main([*words, float_name, "--filter", integer_name])
    assert opened == [("litert", QnnChoice())]
    report = read_report(tmp_path / faults.SUITE / "report.json")
    assert {(case.model.split()[0], case.scheme) for case in report.cases} == {(float_name, "fp16")}
    assert report.command.endswith(" --suite faults --runtime litert")
    assert main([*words, integer_name]) == ExitCode.USAGE
    assert "no graph of the selected faults was tried with litert" in capsys.readouterr().err
    assert choose_emulator(words) == "litert-torch"


@pytest.mark.parametrize("words", [("2.9.40", "2.10.0"), ("2.10.0", "2.9.40"), ("2.10.0",) * 2])
def test_a_matrix_is_ordered_by_version_whatever_the_order_of_the_command(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a regression would be called a fix."""

    def rerun(side: Side, *_: object) -> tuple[str, list[Rerun]]:
        end = WRONG if side.name == "2.10.0" else RIGHT
        return side.name, [structs.replace(run(GRAPH, end, ""), qnn=side.name)]

    monkeypatch.setattr(upgrade_matrix, "find_side", lambda word, *_: Side(word))
    monkeypatch.setattr(upgrade_matrix, "check_word", lambda _: None)
    monkeypatch.setattr(upgrade_matrix, "rerun_faults", rerun)
    options = [word for version in words for word in ("--sdk", version)]
    call(upgrade_report, "--matrix", *options, "--reports", str(tmp_path))
    matrix = json.loads((tmp_path / "versions_matrix/matrix.json").read_bytes())
    assert matrix["versions"] == [version for version in ("2.9.40", "2.10.0") if version in words]
    assert (len(matrix["regressions"]), matrix["fixes"]) == (len(set(words)) - 1, [])


def test_no_version_is_run_unless_all_versions_can_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade_matrix, "find_side", None)
    for wrong in (["--with", "onnxruntime-qnn==latest"], ["--sdk", "nowhere"]):
        words = ["--with", "onnxruntime-qnn==2.7.0", *wrong]
        with pytest.raises(UsageError, match=wrong[1]):
            call(upgrade_report, "--matrix", *words, "--reports", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("is_wrong", "words", "code"),
    [
        (lambda _: False, [], ExitCode.OK),
        (lambda graph: "mul" in graph.operators, [], ExitCode.FAILED),
        (has_planted, [], ExitCode.OK),  # known faults alone
        (has_planted, ["--without-known"], ExitCode.OK),
    ],
)
def test_a_search_fails_if_it_finds_a_fault_that_is_not_known(
    is_wrong: IsWrong,
    words: list[str],
    code: ExitCode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fuzz, "open_bench", open_stand_in(is_wrong))
    usual = ["--scheme", "fp16", "--graphs", "48", "--jobs", "1", "--reports", str(tmp_path)]
    assert call(fuzz, *usual, *words).exit_code == code
    (search,) = json.loads((tmp_path / "fuzz/fuzz.json").read_bytes())
    pages = list((tmp_path / "fuzz").glob("*.md"))
    assert len(pages) == len(search["findings"]) + 1  # coverage.md
    assert search["graphs"] == 48


@pytest.mark.parametrize(
    ("words", "is_refused"),
    [
        (["--minutes", "0"], True),
        (["--jobs", "0"], True),
        (["--graphs", "-1"], True),
        (["--seed", "-1"], True),
        (["--graphs", "0", "--seed", "0", "--minutes", "0.01", "--jobs", "1"], False),
    ],
)
def test_a_search_refuses_minutes_jobs_or_counts_below_their_minimum(
    words: list[str], is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "open_bench", open_stand_in(lambda _: False))
    words += ["--scheme", "fp16", "--reports", str(tmp_path)]
    if is_refused:
        with pytest.raises(UsageError, match="is too small"):
            call(fuzz, *words)
    else:
        assert call(fuzz, *words).exit_code == ExitCode.OK


@pytest.mark.parametrize(("is_wrong", "code"), [(has_planted, 1), (lambda _: False, 0)])
def test_a_graph_of_a_file_is_tried_with_ten_seeds(
    is_wrong: IsWrong, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "graph.txt"
    file.write_text(PLANTED.graph, encoding="utf-8")
    for name in ("QNN_CI_SDK", "QNN_CI_ADAPTOR"):
        monkeypatch.setenv(name, "")
    bench, opened = StandIn(is_wrong), []

    def open_bench(*words: Any, **keywords: Any) -> Any:
        opened.append((words[:2], keywords))
        return nullcontext(bench)

    monkeypatch.setattr(fuzz, "open_bench", open_bench)
    words = ("--graph", str(file), "--scheme", "fp16", "--reports", str(tmp_path), "--offline")
    words += ("--soc", "SM8750", "--sdk", "wheel", "--adaptor", "wheel")
    stream = io.StringIO()
    outcome = call(fuzz, *words, progress=Progress(stream))
    assert (outcome.exit_code, len(outcome.text.splitlines())) == (code, 10)
    assert [result["seed"] for result in outcome.data["results"]] == [*range(10)]
    assert opened == [(("onnx", QnnChoice("wheel", "wheel")), {"offline": True})]
    assert bench.requested == (Scheme.FP16, "SM8750")
    pages = [*tmp_path.rglob("fp16-01-*.md")]
    assert len(pages) == code
    reports = [line for line in stream.getvalue().splitlines() if line.startswith("report: ")]
    assert reports == [f"report: {page}" for page in pages]
    assert fuzz.read_graph(tmp_path / PLANTED.name) == PLANTED.graph


@pytest.mark.parametrize("wrong", [0, 9])
def test_a_graph_that_is_wrong_with_one_seed_of_one_scheme_fails(wrong: int) -> None:
    class Once:
        def run(self, items: Iterable[Item], _: int) -> Iterator[Result]:
            for number, item in enumerate(items):
                yield Result(item.text, item.seed, WRONG if number == wrong else RIGHT, 2.0, 60.0)

    once: Any = Once()
    right: Any = StandIn(lambda _: False)
    for trials, code in (([once, right], 1), ([right, once], 1), ([right], 0)):
        pairs = [(Scheme.FP16, trial) for trial in trials]
        outcome, findings = fuzz.try_graph(PLANTED.graph, pairs, frontend="onnx", soc="SM8650")
        assert outcome.exit_code == code
        assert [(finding.failed, finding.repeats, finding.end) for finding in findings] == [
            (1, 10, WRONG)
        ] * code


@pytest.mark.parametrize(
    "text",
    [
        "x = input(2, 4)\ny = mean(x, dims=[1])\nreturn y\n",
        "x = input(2, 9, 8)\ny = gru(x, constant(1, 8), constant(3, 1))\nreturn y\n",
        "x = input(2, 8)\ny = lstm(x, constant(16, 8), constant(16, 4))\nreturn y\n",
        "x = input(2, 9, 8)\ny = gru(x, constant(6, 8), constant(6, 2), constant(6))\nreturn y\n",
    ],
)
def test_a_graph_that_cannot_be_computed_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "graph.txt"
    file.write_text(text, encoding="utf-8")
    monkeypatch.setattr(fuzz, "open_bench", open_stand_in(has_planted))
    with pytest.raises(UsageError, match="cannot compute"):
        call(fuzz, "--graph", str(file), "--scheme", "fp16", "--reports", str(tmp_path))
