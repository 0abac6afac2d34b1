"""The search on a provider that stands in, with a fault that is planted and with none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")

from msgspec.structs import replace

from ci.cases.pool import Ended
from ci.faults.expected import (
    GRAPH,
    MENDED,
    Rerun,
    list_tried,
    make_matrix,
    render_matrix,
    rerun,
)
from ci.faults.generate import find_unfit, generate
from ci.faults.graph import Graph, parse_graph
from ci.faults.known import (
    CRASHED,
    ENDS,
    REFUSED,
    RIGHT,
    WRONG,
    Tried,
    describe,
    find_pattern,
    read_faults,
)
from ci.faults.render import describe_finding, render_found, render_markdown
from ci.faults.results import (
    EXTRA_DB,
    LATE,
    LEFT,
    UNJUDGED,
    UNTRIED,
    Finding,
    Item,
    Output,
    Result,
    Runs,
    Searched,
    judge,
    judge_graphs,
)
from ci.faults.search import CONFIRM_S, MOST_SHRUNK, REPEATS, Search
from ci.faults.shrink import (
    SEEDS,
    fit_variations,
    is_fit,
    list_relations,
    list_simpler,
    measure,
    resize,
    shrink,
    vary,
    vary_last,
)
from ci.faults.torch_graphs import Module, draw_sets
from ci.faults.trial import Trial, TrialJob
from ci.models.schemes import Scheme
from ci.onnx.stages import StageError
from provisioning.console.progress import Progress
from tests.stand_ins.snapshots import check_snapshot

PLANTED = read_faults()[0]
FIRST = """\
x = input(3, 16, 64)
y = input(3, 16, 64)
p = constant(1, 16, 64, like="positive")
w = constant(64, like="positive")
g = gelu(x)
a = abs(y)
m = mul(g, a)
s = add(m, p)
n = layer_norm(s, w)
t = tanh(n)
return t, m
"""


def has_planted(graph: Graph) -> bool:
    return bool(find_pattern(PLANTED.pattern, describe(graph)))


class StandIn:
    """A provider that computes rightly, except graphs with the planted fault."""

    def __init__(self, is_wrong: Callable[[Graph], bool]) -> None:
        self.is_wrong = is_wrong

    def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
        del bundle, late
        for one in items:
            if self.is_wrong(parse_graph(one.text)):
                yield Result(one.text, one.seed, WRONG, 2.0, 60.0, 40.0, "output 0, set 0, row 1")
            else:
                yield Result(one.text, one.seed, RIGHT, 61.0, 60.0, -6.0)


def make_search(is_wrong: Callable[[Graph], bool], *, known: bool = False) -> Search:
    return Search(
        trial=StandIn(is_wrong),
        frontend="onnx",
        scheme="fp16",
        soc="SM8650",
        seed=5,
        jobs=2,
        progress=Progress(),
        qnn="2.49.40",
        uses_known=known,
    )


def search(is_wrong: Callable[[Graph], bool], graphs: int) -> Searched:
    return make_search(is_wrong).run(1e18, graphs)


def test_a_planted_fault_is_found_and_shrunk() -> None:
    found = search(lambda graph: "mul" in graph.operators, 40)
    assert found.graphs == 40
    (first,) = found.findings
    assert first.operators == ("mul",)
    assert first.suspects == found.ends[WRONG] > 1
    assert (first.end, first.sqnr_db, first.predicted_db) == (WRONG, 2.0, 60.0)
    assert first.failed == first.repeats >= 8
    assert "10/10" in render_found([found])
    page = render_markdown(first, "2.5.0", "QNN 2.49.40")
    assert "onnxruntime" in page
    compile(page.partition("```python\n")[2].partition("```")[0], "script", "exec")


class Seeded(StandIn):
    """Graphs are wrong with one seed alone."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
        for one in items:
            yield Result(one.text, one.seed, WRONG if one.seed == self.seed else RIGHT, 2.0, 60.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_graph_fails_if_it_does_with_any_seed(seed: int) -> None:
    graphs = [parse_graph(PLANTED.graph)] * 3
    made = make_search(has_planted)
    made.trial = Seeded(seed)
    assert made.fails(WRONG, graphs) == [True] * 3
    assert made.fails(REFUSED, graphs) == [False] * 3
    assert made.fails(REFUSED, graphs, anything=True) == [True] * 3


def make_finding(**fields: Any) -> Finding:
    """A finding in the planted graph."""
    graph = parse_graph(PLANTED.graph)
    usual: dict[str, Any] = {
        "graph": str(graph),
        "end": WRONG,
        "frontend": "onnx",
        "scheme": "fp16",
        "soc": "SM8650",
        "sqnr_db": 2.0,
        "predicted_db": 60.0,
        "place": "",
        "why": "",
        "operators": graph.operators,
        "relations": (),
    }
    return Finding(**{**usual, **fields})


def test_a_finding_in_one_line_has_each_figure_at_its_place() -> None:
    one = make_finding(
        failed=7,
        repeats=9,
        predicted_db=68.9,
        relations=("add: over_batch",),
        right=("smaller",),
        also_wrong=("larger",),
        known="a-fault",
    )
    assert describe_finding(one) == (
        "wrong: add -> layer_norm (add: over_batch), 2.0 dB instead of 68.9, 7/9 seeds,"
        " known: a-fault"
    )
    page = render_markdown(one, "2.5.0", "QNN 2.49.40")
    assert "with 7 of 9 other seeds" in page
    assert "| none | wrong: 2.0 dB, 68.9 dB expected |" in page
    assert "| smaller | right |" in page
    assert "| larger | not right |" in page


def test_a_report_of_executorch_has_a_script_that_computes_the_graph() -> None:
    torch = pytest.importorskip("torch")
    graph = parse_graph(PLANTED.graph)
    for scheme in ("fp16", "16a8w"):
        finding = make_finding(frontend="executorch", scheme=scheme)
        page = render_markdown(finding, "1.5.1", "QNN 2.49.40")
        script = page.partition("```python\n")[2].partition("```")[0]
        compile(script, "script", "exec")
        assert ("QuantDtype.use_16a8w" in script) == (scheme == "16a8w")
        start, end = script.index("normal = "), script.index("net, inputs")
        held: dict[str, Any] = {"torch": torch}
        exec(script[start:end], held)  # noqa: S102 - the part that needs no ExecuTorch
        net = held["Net"]()
        given = torch.from_numpy(draw_sets(graph, 0)[0][0])
        module = Module(graph, 0)
        net.load_state_dict(module.state_dict())
        torch.testing.assert_close(net(given), module(given))


def test_a_known_fault_is_counted_and_found_again_without_the_table() -> None:
    suspect = Result(str(parse_graph(FIRST)), 0, WRONG, 2.0, 60.0)
    for known in (True, False):
        finder = make_search(has_planted, known=known)
        assert finder.examine([(7, suspect)]) == []
        found = [(one.operators, one.known) for one in finder.findings]
        chain = ("add", "layer_norm")
        assert found == ([] if known else [(chain, PLANTED.name)])
        assert dict(finder.known) == ({PLANTED.name: 1} if known else {})
        # A second one with these operators is counted, not shrunk.
        assert finder.examine([(8, suspect)]) == []
        assert (len(finder.findings), finder.covered[0]) == ((0, 0) if known else (1, 1))


@pytest.mark.parametrize("end", [WRONG, REFUSED, CRASHED, LATE])
def test_a_known_fault_is_counted_however_its_graph_ends(end: str) -> None:
    finder = make_search(lambda _: False, known=True)
    assert finder.examine([(7, Result(str(parse_graph(FIRST)), 0, end))]) == []
    assert (dict(finder.known), finder.unconfirmed) == ({PLANTED.name: 1}, 0)


def test_a_suspect_is_not_shrunk_after_the_end_of_the_search() -> None:
    text = "x = input(2, 4)\na = tanh(x)\ny = gelu(a)\nreturn y\n"
    suspect, graph = Result(text, 0, WRONG), parse_graph(text)
    for deadline, operators in ((0.0, ("tanh", "gelu")), (1e18, ("gelu",))):
        finder = make_search(lambda graph: "gelu" in graph.operators)
        finder.deadline = deadline
        finder.locate(7, suspect, graph)
        assert [one.operators for one in finder.findings] == [operators]
    late = make_search(lambda _: True)
    late.deadline = 0.0
    assert late.examine([(7, suspect)], all_of_them=True) == [(7, suspect)]


def test_a_suspect_that_hangs_is_confirmed_with_few_tries_and_shrunk_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = 0

    class Hangs(StandIn):
        def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
            nonlocal tries
            for one in super().run(items, bundle, *late):
                tries += 1
                time.sleep(0.02)
                yield replace(one, end=LATE) if "gelu" in one.text else one

    suspect = Result(str(parse_graph(FIRST)), 0, LATE)
    counts = []
    for slow_s, shrink_s in ((99.0, 99.0), (99.0, 0.0), (0.01, 0.0)):
        monkeypatch.setattr("ci.faults.search.SLOW_S", slow_s)
        monkeypatch.setattr("ci.faults.search.SHRINK_S", shrink_s)
        tries = 0
        finder = make_search(lambda _: False)
        finder.trial = Hangs(lambda _: False)
        assert finder.examine([(7, suspect)]) == []
        (found,) = finder.findings
        varied = bool(found.right + found.also_wrong)
        counts.append((tries, found.repeats, varied, len(found.operators)))
    whole, unshrunk, slow = counts
    assert whole[3] == 1 < unshrunk[3]
    assert whole[1] == 10
    assert unshrunk[1:3] == (10, True)
    assert slow[1:3] == (2, False)
    assert slow[0] < whole[0] / 2


def test_what_is_refused_waits_for_what_is_wrong() -> None:
    class Refuses(StandIn):
        def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
            for one in super().run(items, bundle, *late):
                refused = "tanh" in one.text
                yield Result(one.text, one.seed, REFUSED) if refused else one

    finder = make_search(lambda graph: "gelu" in graph.operators)
    finder.trial = Refuses(finder.trial.is_wrong)
    texts = [f"x = input(2, 4)\ny = {one}(x)\nreturn y\n" for one in ("tanh", "gelu")]
    suspects = [(n, Result(text, 0, (REFUSED, WRONG)[n])) for n, text in enumerate(texts)]
    waiting = finder.examine(suspects)
    assert [one.end for one in finder.findings] == [WRONG]
    assert waiting == suspects[:1]
    assert finder.examine(waiting) == []
    assert [one.end for one in finder.findings] == [WRONG, REFUSED]


def test_a_finding_explains_only_suspects_that_end_like_it() -> None:
    def suspect(end: str, operator: str = "gelu") -> tuple[int, Result]:
        return 0, Result(f"x = input(2, 4)\ny = {operator}(x)\nreturn y\n", 0, end)

    class Refuses(StandIn):
        def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
            return (Result(one.text, one.seed, REFUSED) for one in items)

    finder = make_search(lambda graph: "gelu" in graph.operators)
    answering = finder.trial
    finder.trial = Refuses(answering.is_wrong)
    assert finder.examine([suspect(REFUSED)]) == []
    finder.trial = answering
    assert finder.examine([suspect(WRONG)]) == []
    assert [one.end for one in finder.findings] == [REFUSED, WRONG]
    finder.examine([suspect(WRONG), suspect(REFUSED), suspect(WRONG)])
    assert len(finder.findings) == 2
    assert dict(finder.covered) == {0: 1, 1: 2}


def test_the_worst_of_the_new_findings_comes_first() -> None:
    finder = make_search(lambda _: True)
    finder.run(1e18, 1)
    (one,) = finder.findings
    rows = [
        replace(one, known="broadcast-add", sqnr_db=1.0),
        replace(one, end=CRASHED, sqnr_db=None),
        replace(one, sqnr_db=20.0),
        replace(one, sqnr_db=-3.0),
    ]
    finder.findings = rows
    assert [replace(found, suspects=1) for found in finder.run(0.0, 1).findings] == rows[::-1]


def test_a_provider_without_a_fault_has_no_suspects() -> None:
    found = search(lambda _: False, 40)
    assert (found.findings, found.ends) == ((), {RIGHT: 40})


def test_a_suspect_that_is_right_with_other_seeds_is_no_finding() -> None:
    class Once(StandIn):
        def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
            for one in super().run(items, bundle, *late):
                yield one if one.seed == 0 else Result(one.text, one.seed, RIGHT)

    finder = Search(
        trial=Once(lambda _: True),
        frontend="onnx",
        scheme="fp16",
        soc="SM8650",
        seed=5,
        jobs=1,
        progress=Progress(),
    )
    found = finder.run(1e18, 5)
    assert (found.findings, found.unconfirmed) == ((), 5)


@pytest.mark.parametrize(
    ("last", "unfit", "failed"),
    [(100, (), []), (104, (), []), (105, (), [5]), (104, (110,), []), (105, (110,), [5])],
)
def test_a_suspect_that_fails_with_few_of_ten_or_nine_seeds_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, last: int, unfit: tuple[int, ...], failed: list[int]
) -> None:
    class Seldom(StandIn):
        def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
            for one in super().run(items, bundle, *late):
                yield one if one.seed <= last else Result(one.text, one.seed, RIGHT)

    monkeypatch.setattr("ci.faults.search.find_unfit", lambda _, seed: "why" * (seed in unfit))
    finder = make_search(lambda _: True)
    finder.trial = Seldom(lambda _: True)
    suspect = Result("x = input(2, 4)\ny = relu(x)\nreturn y\n", 0, WRONG)
    assert finder.examine([(0, suspect)]) == []
    assert [one.failed for one in finder.findings] == failed
    assert {one.repeats for one in finder.findings} <= {10 - len(unfit)}
    assert finder.unconfirmed == 1 - len(failed)


def test_a_search_without_time_has_tried_nothing() -> None:
    found = make_search(lambda _: True).run(0.0)
    assert (found.graphs, found.seconds, found.per_minute, found.cpu_s) == (0, 0.0, 0, 0.0)


@pytest.mark.parametrize(
    ("end", "why", "bundle"),
    [
        (WRONG, "", 0),
        (REFUSED, f"Tanh{LEFT}", 0),
        (REFUSED, "ValueError: no", 1),
        (CRASHED, "", 1),
        (LATE, "", 1),
    ],
)
def test_a_suspect_is_tried_alone_then_shrunk_with_others_if_they_can_run(
    end: str, why: str, bundle: int
) -> None:
    """Every gelu behind a tanh fails, and every sigmoid ends otherwise. The program that is shrunk
    is found again alone, varied and repeated."""
    calls: list[tuple[int, float, int, tuple[str, int]]] = []

    def is_bad(text: str) -> bool:
        return "gelu(x0)" in text and "tanh" in text

    class Noting(StandIn):
        def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
            own = [*items]
            for one in own:
                calls.append((bundle, late[0], len(own), (one.text, one.seed)))
                otherwise = LATE if end == CRASHED else CRASHED
                found = end if is_bad(one.text) else otherwise if "sigmoid" in one.text else RIGHT
                yield Result(one.text, one.seed, found, 1.26, 61.04, why=why, is_left=is_left)

    finder = make_search(lambda _: True)
    is_left = why.endswith(LEFT)
    finder.trial, finder.deadline = Noting(lambda _: True), 1e18
    finder.started = time.monotonic() - 7700
    text = "x = input(2, 4)\na = abs(x)\nx0 = tanh(a)\ny = gelu(x0)\nreturn y\n"
    suspect = Result(text, 0, end, why=why, is_left=is_left)
    assert finder.examine([(7, suspect)]) == []
    (found,) = finder.findings
    assert 7700 <= found.seconds < 7760
    small = parse_graph(found.graph)
    varied = fit_variations(small, "onnx")
    bad = [is_bad(str(one)) or "sigmoid" in str(one) for _, one in varied]
    assert {*bad} == {True, False}
    assert found == Finding(
        graph=str(small),
        end=end,
        frontend="onnx",
        scheme="fp16",
        soc="SM8650",
        sqnr_db=1.3 if end == WRONG else None,
        predicted_db=61.0 if end == WRONG else None,
        place="",
        why=why,
        operators=("tanh", "gelu"),
        relations=(),
        right=tuple(text for (text, _), one in zip(varied, bad, strict=True) if not one),
        also_wrong=tuple(text for (text, _), one in zip(varied, bad, strict=True) if one),
        failed=10,
        repeats=10,
        seed=5,
        number=7,
        seconds=found.seconds,
    )
    assert {until for _, until, *_ in calls} == {1e18 + CONFIRM_S}
    used = [(one, *seen) for one, _, _, seen in calls]
    alone = [(1, str(parse_graph(text)), seed) for seed in SEEDS]
    again = [(1, str(small), seed) for seed in SEEDS]
    others = [(bundle, str(one), seed) for _, one in varied for seed in SEEDS]
    repeats = [(1, str(small), seed) for seed in REPEATS]
    last = [*again, *others, *repeats]
    assert used[:2] == alone
    assert used[-len(last) :] == last
    assert {(one, seed) for one, _, seed in used[2 : -len(last)]} == {(bundle, SEEDS[0])}
    most = max(size for _, _, size, _ in calls[2 : -len(last)])  # of each of two jobs
    assert (most == 2) if bundle else (2 < most <= 8)


def test_a_suspect_is_shrunk_with_a_seed_with_which_it_fails() -> None:
    class Second(StandIn):
        def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
            for one in items:
                bad = "gelu" in one.text and one.seed != SEEDS[0]
                yield Result(one.text, one.seed, WRONG if bad else RIGHT, 1.0, 60.0)

    finder = make_search(lambda _: True)
    finder.trial = Second(lambda _: True)
    text = "x = input(2, 4)\na = tanh(x)\ny = gelu(a)\nreturn y\n"
    assert finder.examine([(0, Result(text, 0, WRONG))]) == []
    assert [one.operators for one in finder.findings] == [("gelu",)]


def test_a_graph_that_fails_only_together_with_others_is_reported_whole() -> None:
    class Together(StandIn):
        def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
            for one in items:
                bad = "tanh" in one.text and (bundle == 0 or "gelu" in one.text)
                yield Result(one.text, one.seed, WRONG if bad else RIGHT, 1.0, 60.0)

    finder = make_search(lambda _: True)
    finder.trial = Together(lambda _: True)
    text = "x = input(4)\ns = gelu(x)\ny = tanh(s)\nreturn y\n"
    assert finder.examine([(0, Result(text, 0, WRONG))]) == []
    (found,) = finder.findings
    assert (found.graph, found.operators, found.failed) == (text, ("gelu", "tanh"), 10)
    assert found.also_wrong[:1] == ("without gelu",)
    assert "with sigmoid as the last operator" in found.right


@pytest.mark.parametrize(
    ("first", "most", "numbers"),
    [(0, 0, range(96)), (96, 0, range(96, 192)), (96, 100, range(96, 100)), (100, 100, range(0))],
)
def test_the_graphs_of_a_round_are_numbered_up_to_the_last(
    monkeypatch: pytest.MonkeyPatch, first: int, most: int, numbers: range
) -> None:
    monkeypatch.setattr("ci.faults.search.generate", lambda *given: given)
    made = make_search(lambda _: False).make_items(first, most)
    assert made == [Item(str((5, number, "onnx")), 0) for number in numbers]


def test_everything_that_a_search_counts_is_in_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of 48 and 12 graphs. The last ones are not tried; most suspects, which are more
    than two rounds examine, are right when they are tried again, one is known, and one cannot be
    tried again in time."""
    clock = iter(range(100000))
    monkeypatch.setattr("ci.faults.search.time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(
        "ci.faults.search.generate",
        lambda _, number, __: f"x = input({number + 2})\ny = relu(x)\nreturn y\n",
    )
    ends = {4: UNJUDGED, 50: UNJUDGED, 6: WRONG, 7: WRONG, 51: CRASHED, 52: WRONG, 53: REFUSED}
    ends |= dict.fromkeys((57, 58, 59), UNTRIED) | dict.fromkeys(range(10, 30), WRONG)

    class Ending(StandIn):
        def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
            for one in items:
                number = parse_graph(one.text).tensors["x"].shape[0] - 2
                again = UNTRIED if number == 53 else RIGHT
                end = again if bundle else ends.get(number, RIGHT)
                yield Result(one.text, one.seed, end, why="why" * 40, cpu_s=0.5)

    finder = make_search(lambda _: False, known=True)
    finder.jobs, finder.trial = 1, Ending(lambda _: False)
    finder.find_known = lambda one: "a" if one.tensors["x"].shape == (54,) else ""  # type: ignore[method-assign]
    assert finder.run(1e18, 60) == Searched(
        frontend="onnx",
        scheme="fp16",
        soc="SM8650",
        seed=5,
        graphs=57,
        seconds=2.0,
        per_minute=1710,
        cpu_s=round(30 / 57, 4),
        ends={RIGHT: 30, UNJUDGED: 2, WRONG: 23, CRASHED: 1, REFUSED: 1},
        unjudged={"why" * 20: 2},
        known={"a": 1},
        unconfirmed=23,
        unexamined=1,
        findings=(),
    )


def test_a_graph_shrinks_to_the_fault_and_its_condition() -> None:
    small = shrink(parse_graph(FIRST), lambda graphs: [has_planted(one) for one in graphs])
    assert small.operators == ("add", "layer_norm")
    shapes = [one.shape for one in small.tensors.values()]
    assert sorted(map(len, shapes)) == [2, 3]
    assert max(shapes, key=len)[0] == 2
    found = search(has_planted, 1)
    assert found.graphs == 1


def test_what_else_has_to_follow_is_tried_with_an_axis_that_a_norm_needs() -> None:
    graph = parse_graph(
        "x = input(2, 16, 1)\np = constant(16, 1)\ns = add(x, p)\ny = sigmoid(s)\nreturn y"
    )
    varied = dict(fit_variations(graph, "onnx"))
    norm = varied["with layer_norm as the last operator and a last axis of size 16"]
    assert norm.operators == ("add", "layer_norm")
    assert has_planted(norm)
    assert varied["with relu as the last operator"].operators == ("add", "relu")
    assert not any("rms_norm" in one for one in varied)  # which ONNX's graphs do not have
    assert any("rms_norm" in text for text, _ in fit_variations(graph, "executorch"))


def test_generated_graphs_are_the_same_for_a_seed_and_may_be_judged() -> None:
    graphs = [generate(3, number) for number in range(30)]
    assert [str(one) for one in graphs] == [str(generate(3, number)) for number in range(30)]
    assert len({str(one) for one in graphs}) > 25
    assert not any(find_unfit(one, 0) for one in graphs)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("x = input(4, 8)\nc = constant(8)\ny = div(x, c)\nreturn y", "divisor"),
        ("x = input(4, 8)\ny = log(x)\nreturn y", "divisor|logarithm"),
        ("x = input(4, 8, value=70.0)\ny = mul(x, x)\nreturn y", "too large"),
        ("x = input(4, 8, value=0.001)\ny = mul(x, x)\nreturn y", "near zero"),
    ],
)
def test_what_rounding_alone_decides_is_not_judged(text: str, word: str) -> None:
    fault = find_unfit(parse_graph(text), 1)
    assert any(one in fault for one in word.split("|"))


def test_a_graph_is_unfit_if_any_of_its_input_sets_is(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    graph = parse_graph("x = input(4)\ny = relu(x)\nreturn y")
    good, large = ({"x": one, "y": one} for one in (torch.ones(4), torch.full((4,), 1e3)))
    for sets in ([good, large], [large, good], [good, good]):
        monkeypatch.setattr("ci.faults.generate.compute", lambda *_, sets=sets: sets)
        assert bool(find_unfit(graph, 0)) is any(one is large for one in sets)


def make_output(error: float, row: int | None = None, step: float = 0.0) -> Output:
    dice = np.random.default_rng(0)
    right = dice.standard_normal((2, 3, 8, 16)).astype(np.float32)
    runs = (dice.standard_normal((8, *right.shape)) * 1e-3).astype(np.float32)
    off = dice.standard_normal(right.shape) * error
    if row is not None:
        off[:, [one for one in range(3) if one != row]] *= 1e-3
    return Output(right, runs, (right + off).astype(np.float32), step)


@pytest.mark.parametrize(
    ("output", "end", "place"),
    [
        (make_output(1e-3), RIGHT, ""),
        (make_output(3e-3), RIGHT, ""),  # within the margin
        (make_output(4e-3), RIGHT, ""),  # 48 dB are good enough
        (make_output(9e-3), WRONG, ""),
        (make_output(0.5), WRONG, ""),
        (make_output(0.5, row=2), WRONG, "row 2"),
        (make_output(0.02, step=0.5), RIGHT, ""),  # less than a step of eight bits
    ],
)
def test_an_output_is_judged_by_row_and_prediction(output: Output, end: str, place: str) -> None:
    result = judge(Item("", 0), [output], 45.0)
    assert result.end == end
    assert place in result.place


def test_one_row_that_is_hard_to_predict_leaves_an_output_judged() -> None:
    output = make_output(2e-3, row=2)
    off = output.made - output.right
    output.right[:, 2] *= 1e-3
    output = output._replace(made=output.right + off)
    result = judge(Item("", 0), [output], 45.0)
    assert result.end in {RIGHT, WRONG}
    assert result.predicted_db is not None
    assert result.predicted_db < 6
    assert "row 2" in result.place


@pytest.mark.parametrize(
    ("shape", "place"), [((2, 3, 8), (1, 2)), ((3, 2, 8), (2, 1)), ((2,), (1,))]
)
def test_the_place_of_an_error_has_its_output_set_and_row(
    shape: tuple[int, ...], place: tuple[int, ...]
) -> None:
    right = np.ones(shape, np.float32)
    good = Output(right, np.full((8, *shape), 1e-3, np.float32), right)
    made = right.copy()
    made[place] = 9.0
    found = judge(Item("", 0), [good, good._replace(made=made)], 45.0)
    rows = f", row {place[1]}:" if len(place) > 1 else ":"
    assert (found.end, found.place.partition(":")[0] + ":") == (
        WRONG,
        f"output 1, set {place[0]}{rows}",
    )


def test_outputs_that_prove_nothing_and_those_that_are_not_numbers() -> None:
    good = make_output(1e-3)
    nan = good._replace(made=np.full_like(good.made, np.nan))
    zero = good._replace(right=np.zeros_like(good.right), made=np.zeros_like(good.made))
    assert judge(Item("", 0), [good, nan], 45.0).end == WRONG
    assert judge(Item("", 0), [zero], 45.0).end == UNJUDGED
    right = good.right.copy()
    right[0, 1] = 0  # a single row
    assert judge(Item("", 0), [good._replace(right=right, made=right)], 45.0).end == UNJUDGED
    short = good._replace(made=good.made[:, :1])
    assert judge(Item("", 0), [short], 45.0).place == "shape"
    one = good.made.copy()
    one[1, 2, 3, 4] = np.inf
    for outputs in ([good._replace(made=one)], [good, good._replace(made=one), good]):
        result = judge(Item("", 0), outputs, 45.0)
        assert result.end == WRONG
        assert "NaN or infinite" in result.why


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 4)])
def test_a_result_has_the_figures_of_the_row_that_exceeds_its_prediction_most(
    shape: tuple[int, ...],
) -> None:
    """The prediction is 60 dB for the first set and 40 dB for the second, whose error is larger."""
    right = np.full(shape, 2.0, np.float32)
    runs, made = np.full((8, *shape), 2e-3, np.float32), right.copy()
    runs[:, 1] = 2e-2
    made[1] += 0.5
    made[0] += 0.3
    result = judge(Item("text", 3), [Output(right, runs, made)], 45.0)
    assert (result.text, result.seed, result.end, result.why) == ("text", 3, WRONG, "")
    assert result.place.startswith("output 0, set 0, row 0: ")
    assert result.sqnr_db == pytest.approx(20 * np.log10(2 / 0.3), abs=1e-4)
    assert result.predicted_db == pytest.approx(60, abs=0.1)


@pytest.mark.parametrize(("error", "end"), [(1.04, RIGHT), (1.06, WRONG)])
def test_an_output_may_be_a_step_off(error: float, end: str) -> None:
    right = np.full((2, 3, 4), 100.0, np.float32)
    runs = np.full((8, 2, 3, 4), 1e-2, np.float32)
    output = Output(right, runs, right + np.float32(error), 1.0)
    assert judge(Item("", 0), [output], 90.0).end == end
    assert judge(Item("", 0), [output._replace(step=0.0)], 90.0).end == WRONG


def test_an_output_that_proves_nothing_is_left_out_if_another_does() -> None:
    good, near = make_output(1e-3), make_output(2.4e-3)
    zero = good._replace(right=np.zeros_like(good.right), made=np.zeros_like(good.made))
    for outputs in ([zero, good], [good, zero]):
        assert judge(Item("", 0), outputs, 45.0).end == RIGHT
    for outputs in ([near, good], [good, near]):  # the worst is told
        found = judge(Item("", 0), outputs, 45.0)
        assert found.over_db == judge(Item("", 0), [near], 45.0).over_db
    why = "the graph has no output"
    assert judge(Item("text", 3), [], 45.0) == Result("text", 3, UNJUDGED, why=why)


def test_a_little_more_than_the_prediction_is_no_fault() -> None:
    assert judge(Item("", 0), [make_output(2.4e-3)], 90.0).end == RIGHT
    assert judge(Item("", 0), [make_output(5e-3)], 90.0).end == WRONG


def test_the_wrong_output_of_several_decides() -> None:
    near, wrong = make_output(0.02, step=0.5), make_output(9e-3)
    assert judge(Item("", 0), [near, wrong], 45.0).end == WRONG
    assert judge(Item("", 0), [wrong, near], 45.0).end == WRONG


def test_a_row_is_held_against_its_own_prediction() -> None:
    plain = make_output(1e-3)
    runs, made = plain.runs.copy(), plain.made.copy()
    runs[:, :, 0] *= 100
    made[:, 0] = plain.right[:, 0] + runs[0, :, 0]
    assert judge(Item("", 0), [Output(plain.right, runs, made)], 45.0).end == RIGHT
    made[:, 1] += (runs[1, :, 1] * 300).astype(np.float32)
    result = judge(Item("", 0), [Output(plain.right, runs, made)], 45.0)
    assert result.end == WRONG
    assert "row 1" in result.place


def test_one_element_that_leaves_its_row_as_predicted_is_no_fault() -> None:
    plain = make_output(6e-3)
    made = plain.made.copy()
    made[0, 1, 3, 3] = plain.right[0, 1, 3, 3] + 0.085
    result = judge(Item("", 0), [Output(plain.right, plain.runs * 6, made)], 45.0)
    assert result.over_db > EXTRA_DB
    assert result.end == RIGHT


def test_each_graph_of_a_program_is_judged_by_its_own_outputs() -> None:
    """Graphs with 1, 2, 1, 1 and 1 outputs; the second is refused, the third is wrong, and an 8-bit
    step or its own prediction excuses the last two."""
    coarse = make_output(0.02)
    outputs = [make_output(1e-3) for _ in range(3)]
    outputs += [make_output(0.5), make_output(0.02, step=0.5)]
    outputs.append(coarse._replace(runs=coarse.runs * 30))
    runs = Runs(
        [[one.right[n] for one in outputs] for n in range(2)],
        [[one.made[n] for one in outputs] for n in range(2)],
        [one.runs for one in outputs],
        [one.step for one in outputs],
    )
    items = [Item(str(number), number) for number in range(5)]
    left = {1: "erf is left to the CPU"}
    results = judge_graphs(items, (1, 2, 1, 1, 1), runs, left, Scheme.FP16)
    assert [one.end for one in results] == [RIGHT, REFUSED, WRONG, RIGHT, RIGHT]
    assert [(one.text, one.seed) for one in results] == [(str(n), n) for n in range(5)]
    assert [one.is_left for one in results] == [False, True, False, False, False]


def test_what_is_good_enough_depends_on_the_bits() -> None:
    """An output of 38 dB, with hardly any noise predicted."""
    near = make_output(1.3e-2)
    runs = Runs(
        [[near.right[n]] for n in range(2)],
        [[near.made[n]] for n in range(2)],
        [near.runs],
        [0.0],
    )
    ends = {
        scheme: judge_graphs([Item("", 0)], (1,), runs, {}, scheme)[0].end
        for scheme in (Scheme.A8W8, Scheme.A16W8, Scheme.FP16)
    }
    assert ends == {Scheme.A8W8: RIGHT, Scheme.A16W8: WRONG, Scheme.FP16: WRONG}


def test_an_output_that_rounding_alone_ruins_proves_nothing() -> None:
    one = make_output(0.5)
    assert judge(Item("", 0), [one._replace(runs=one.runs * 1e3)], 45.0).end == UNJUDGED


class Dying:
    """Workers that compute rightly, die of a tanh, hang at a sin, and are slow otherwise."""

    def __init__(self, slow_s: float = 0.0) -> None:
        self.slow_s = slow_s

    def run(self, job: TrialJob, log: Path, timeout_s: float, *, max_bytes: float) -> Ended:
        del log
        assert max_bytes < 1 << 33
        texts = " ".join(one.text for one in job.items)
        if "tanh" in texts:
            return Ended(None, "its process was ended by SIGSEGV", "")
        if "sin" in texts or self.slow_s > timeout_s:
            time.sleep(min(timeout_s, self.slow_s))
            return Ended(None, f"did not end within {timeout_s:g} s", "")
        time.sleep(self.slow_s)
        return Ended([Result(one.text, one.seed, RIGHT) for one in job.items], "", "")


UNARY = ["relu", "abs", "tanh", "neg", "sin", "cos", "exp"]
ITEMS = [Item(f"x = input(2)\ny = {one}(x)\nreturn y\n", 0) for one in UNARY]


@pytest.mark.parametrize(("stage", "end"), [("QNN", REFUSED), ("QNN's quantizer", UNJUDGED)])
def test_an_error_before_qnn_is_no_refusal_of_its(stage: str, end: str) -> None:
    class Raises(TrialJob):
        def run_together(self, items: Any) -> list[Result]:
            if any("tanh" in one.text for one in items):
                raise StageError(stage) from ValueError("no")
            return [Result(one.text, one.seed, RIGHT) for one in items]

    results = Raises(ITEMS[:4], "onnx", Scheme.FP16, "SM8650", {})()
    assert [one.end for one in results] == [RIGHT, RIGHT, end, RIGHT]


@pytest.mark.parametrize("frontend", ["onnx", "executorch"])
def test_a_job_runs_its_graphs_in_its_front_end(
    monkeypatch: pytest.MonkeyPatch, frontend: str
) -> None:
    asked: list[Any] = []

    def run(*given: Any) -> list[Result]:
        asked.append(given)
        if len(given[0]) > 1:
            raise ValueError("one of the graphs fails")
        return [Result(one.text, one.seed, RIGHT) for one in given[0]]

    own = {"onnx": ("onnx_runner", "run_items"), "executorch": ("executorch_runner", "run_modules")}
    for module, function in own.values():
        stand_in = SimpleNamespace(**{function: run}) if module == own[frontend][0] else None
        monkeypatch.setitem(sys.modules, f"ci.faults.{module}", stand_in)
    options = {"vtcm_mb": "4"}
    results = TrialJob(ITEMS[:2], frontend, Scheme.FP16, "SM8650", options)()
    assert [one.text for one in results] == [one.text for one in ITEMS[:2]]
    more = options if frontend == "onnx" else "SM8650"
    parts = ITEMS[:2], ITEMS[:1], ITEMS[1:2]
    assert asked == [(items, Scheme.FP16, more) for items in parts]


def test_a_batch_goes_on_behind_the_graphs_that_end_their_worker(tmp_path: Path) -> None:
    trial = Trial(Noting(), "onnx", Scheme.FP16, "SM8650", {}, tmp_path)  # type: ignore[arg-type]
    for bundle in (1, 2, 4, 0):
        results = list(trial.run(ITEMS, bundle))
        assert [one.text for one in results] == [one.text for one in ITEMS]
        assert [one.end for one in results] == [RIGHT, RIGHT, CRASHED, RIGHT, LATE, RIGHT, RIGHT]
    assert not list(tmp_path.iterdir())


class Noting(Dying):
    """Workers that note what they are asked, and write to their logs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, float, float]] = []
        self.logs: set[Path] = set()

    def run(self, job: TrialJob, log: Path, timeout_s: float, *, max_bytes: float) -> Ended:
        log.write_text("noise")
        self.logs.add(log)
        self.calls.append((len(job.items), timeout_s, max_bytes))
        return super().run(job, log, timeout_s, max_bytes=max_bytes)


@pytest.mark.parametrize(
    ("frontend", "bundle", "sizes"),
    [("onnx", 0, [8, 8, 4]), ("executorch", 0, [16, 4]), ("onnx", 7, [7, 7, 6])],
)
def test_each_program_has_a_limit_for_its_graphs_and_a_log_for_a_while(
    tmp_path: Path, frontend: str, bundle: int, sizes: list[int]
) -> None:
    workers = Noting()
    trial = Trial(workers, frontend, Scheme.FP16, "SM8650", {}, tmp_path)  # type: ignore[arg-type]
    items = [ITEMS[0]] * 20
    results = trial.run(items, bundle) if bundle else trial.run(items)
    assert [one.end for one in results] == [RIGHT] * 20
    assert workers.calls == [(size, 60.0 + 10.0 * size, 3 << 30) for size in sizes]
    assert len(workers.logs) == len(sizes)
    assert not list(tmp_path.iterdir())
    workers.calls.clear()
    [*trial.run(items, 20, time.monotonic() + 5)]
    assert [(size, 4 < limit_s <= 5) for size, limit_s, _ in workers.calls] == [(20, True)]


def test_a_graph_that_ends_its_worker_tells_how() -> None:
    class Talking(Dying):
        def run(self, job: TrialJob, log: Path, timeout_s: float, *, max_bytes: float) -> Ended:
            return Ended(None, "its process was killed" + "!" * 300, "")

    trial = Trial(Talking(), "onnx", Scheme.FP16, "SM8650", {}, Path())
    (one,) = trial.run(ITEMS[1:2])
    text, seed = ITEMS[1].text, ITEMS[1].seed
    assert one == Result(text, seed, CRASHED, why="its process was killed" + "!" * 278)


def test_graphs_of_a_job_share_its_time_and_each_has_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Raises(TrialJob):
        def run_together(self, items: Any) -> list[Result]:
            if any("tanh" in one.text for one in items):
                raise StageError("QNN") from ValueError("no\n  tanh" + "!" * 300)
            if any("sin" in one.text for one in items):
                raise ValueError("no sin")
            return [Result(one.text, one.seed, RIGHT) for one in items]

    clock = iter((1.0, 4.5))
    stand_in = SimpleNamespace(process_time=lambda: next(clock))
    monkeypatch.setattr("ci.faults.trial.time", stand_in)
    results = Raises(ITEMS, "onnx", Scheme.FP16, "SM8650", {})()
    whys = {
        "tanh": (REFUSED, ("ValueError: no tanh" + "!" * 300)[:300]),
        "sin": (UNJUDGED, "ValueError: no sin"),
    }
    ends = [whys.get(one, (RIGHT, "")) for one in UNARY]
    assert results == [
        Result(one.text, one.seed, end, why=why, cpu_s=0.5)
        for one, (end, why) in zip(ITEMS, ends, strict=True)
    ]


def test_graphs_that_the_deadline_interrupts_are_untried(tmp_path: Path) -> None:
    trial = Trial(Dying(slow_s=0.05), "onnx", Scheme.FP16, "SM8650", {}, tmp_path)
    start = time.monotonic()
    results = list(trial.run([*ITEMS[:2], *ITEMS[5:]], 1, start + 0.12))
    assert [one.end for one in results] == [RIGHT, RIGHT, UNTRIED, UNTRIED]
    results = list(trial.run([ITEMS[4]] * 2, 2, time.monotonic() + 0.05))
    assert [one.end for one in results] == [UNTRIED] * 2
    assert not list(tmp_path.iterdir())


def test_a_search_ends_with_its_time_and_counts_only_what_was_tried(tmp_path: Path) -> None:
    made = make_search(lambda _: False)
    made.trial = Trial(Dying(slow_s=0.02), "onnx", Scheme.FP16, "SM8650", {}, tmp_path)
    found = made.run(time.monotonic() + 0.3)
    assert found.graphs < 96
    assert UNTRIED not in found.ends
    assert sum(found.ends.values()) == found.graphs


def test_a_suspect_without_time_to_confirm_it_is_left_unexamined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(StandIn):
        def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
            for one in super().run(items, bundle, *late):
                yield one if bundle != 1 else replace(one, end=UNTRIED)

    monkeypatch.setattr("ci.faults.search.CONFIRM_S", 0.0)
    made = make_search(lambda _: True)
    made.trial = Slow(lambda _: True)
    found = made.run(1e18, 3)
    assert (found.unexamined, found.unconfirmed, found.findings) == (3, 0, ())


@pytest.mark.parametrize(
    ("wrong", "qnn", "problem"),
    [
        (has_planted, "2.49.40", ""),
        (lambda _: False, "2.49.40", "the fault is gone"),
        (lambda _: True, "2.49.40", "the mended graph is wrong"),
        (has_planted, "9.0.0", ""),
    ],
)
def test_a_known_fault_that_ends_otherwise_is_a_problem(
    wrong: Callable[[Graph], bool], qnn: str, problem: str
) -> None:
    stand_in = StandIn(wrong)
    runs = list(rerun([PLANTED], "onnx", qnn, lambda _, items: stand_in.run(items)))
    assert [one.form for one in runs] == [GRAPH, MENDED]
    problems = [one.problem for one in runs if one.problem]
    assert bool(problems) == bool(problem)
    assert not problem or problems[0].startswith(problem)
    assert runs[0].expected == (WRONG if qnn == "2.49.40" else "")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"end": WRONG}, ""),
        ({"end": REFUSED, "expected": ""}, ""),
        ({"end": REFUSED}, "the result differs: refused instead of wrong"),
        ({"end": REFUSED, "why": "no"}, "the result differs: refused instead of wrong (no)"),
        (
            {"end": RIGHT, "sqnr_db": 0.0, "predicted_db": 60.04},
            "the fault is gone: right instead of wrong (0.0 dB, 60.0 dB predicted)",
        ),
        (
            {"end": CRASHED, "expected": RIGHT},
            "the fault is new in QNN 2.50: crashed instead of right",
        ),
        (
            {"end": WRONG, "form": MENDED, "expected": RIGHT, "why": "no"},
            "the mended graph is wrong, not right (no)",
        ),
    ],
)
def test_a_result_tells_how_it_differs_from_the_expected_one(
    fields: dict[str, Any], problem: str
) -> None:
    usual = {"fault": "a", "form": GRAPH, "frontend": "onnx", "scheme": "u8", "qnn": "2.50"}
    assert Rerun(**{"expected": WRONG, **usual, **fields}).problem == problem


def test_one_seed_that_ends_otherwise_is_a_problem() -> None:
    def attempt(_: str, items: Iterable[Item]) -> Iterator[Result]:
        for one in items:
            bad = "constant(16" in one.text or one.seed == 23
            yield Result(one.text, one.seed, WRONG if bad else RIGHT, 2.0 if bad else 61.0, 60.0)

    graph, mended = rerun([PLANTED], "onnx", "2.49.40", attempt)
    assert not graph.problem
    assert mended.problem.startswith("the mended graph is wrong")


@pytest.mark.parametrize(
    ("qnn", "ends", "end"),
    [
        ("2.49.40", (WRONG, RIGHT, CRASHED), RIGHT),  # wrong is expected
        ("2.49.40", (WRONG, WRONG, CRASHED), CRASHED),
        ("2.49.40", (WRONG, WRONG, WRONG), WRONG),
        ("9.0.0", (WRONG, RIGHT, CRASHED), WRONG),  # nothing is expected
        ("9.0.0", (RIGHT, WRONG, WRONG), RIGHT),
    ],
)
def test_a_graph_ends_as_the_first_seed_that_is_not_as_expected_or_as_the_first_of_all(
    qnn: str, ends: tuple[str, str, str], end: str
) -> None:
    def attempt(_: str, items: Sequence[Item]) -> Iterator[Result]:
        for one, ended in zip(items, ends, strict=True):
            yield Result(one.text, one.seed, ended, float(one.seed), 60.0 + one.seed)

    graph, _ = rerun([PLANTED], "onnx", qnn, attempt)
    seed = 21 + ends.index(end)
    figures = (None, None) if end == CRASHED else (float(seed), 60.0 + seed)
    assert (graph.end, graph.sqnr_db, graph.predicted_db) == (end, *figures)


def test_the_figures_of_a_graph_are_those_of_the_seed_that_loses_most() -> None:
    reached = {21: 9.0, 22: 2.0, 23: 5.0}

    def attempt(_: str, items: Iterable[Item]) -> Iterator[Result]:
        for one in items:
            yield Result(one.text, one.seed, WRONG, reached[one.seed], 60.0 + one.seed)

    for one in rerun([PLANTED], "onnx", "2.49.40", attempt):
        assert (one.end, one.sqnr_db, one.predicted_db) == (WRONG, 2.0, 82.0)


@pytest.mark.parametrize("now", [WRONG, CRASHED, REFUSED])
def test_a_graph_that_ends_in_any_other_way_than_right_is_a_regression(now: str) -> None:
    run = Rerun(
        fault="f", form=GRAPH, frontend="onnx", scheme="fp16", qnn="1", end=RIGHT, expected=""
    )
    matrix = make_matrix(["1", "2"], [run, replace(run, qnn="2", end=now)])
    assert (len(matrix.regressions), matrix.fixes) == (1, ())
    back = make_matrix(["1", "2"], [replace(run, end=now), replace(run, qnn="2")])
    assert (back.regressions, len(back.fixes)) == ((), 1)
    for one in (matrix, back, make_matrix(["1"], [run], ["why"])):
        assert "\n\n| fault |" in render_matrix(one)  # Markdown needs the empty line
    assert render_matrix(make_matrix(["1"], [run])).startswith("| fault |")


def test_the_matrix_names_what_changes_between_versions() -> None:
    fault = next(one for one in read_faults() if one.name == "broadcast-mul-before-norm")
    runs = []
    for qnn, is_wrong in (("2.47.0", False), ("2.48.40", False), ("2.49.40", True)):
        stand_in = StandIn(lambda graph, bad=is_wrong: bad and "mul" in graph.operators)  # type: ignore[misc]
        runs += list(rerun([fault], "onnx", qnn, lambda _, items, own=stand_in: own.run(items)))  # type: ignore[misc]
    matrix = make_matrix(["2.47.0", "2.48.40", "2.49.40"], runs)
    assert matrix.regressions[0].endswith("fp16: right before QNN 2.49.40, wrong with it")
    assert matrix.fixes == ()
    page = render_matrix(matrix)
    assert page.startswith("- regression: broadcast-mul-before-norm")
    assert "| right, 61.0 dB | right, 61.0 dB | wrong, 2.0 dB |" in page


def test_a_graph_that_was_refused_and_is_now_wrong_is_a_regression() -> None:
    runs = [
        Rerun(fault="a", form=GRAPH, frontend="onnx", scheme="u8", qnn=qnn, end=end, expected="")
        for qnn, end in (("1.0", "refused"), ("1.1", WRONG), ("1.2", "late"), ("1.3", RIGHT))
    ]
    matrix = make_matrix(["1.0", "1.1", "1.2", "1.3"], runs)
    assert matrix.regressions == ("a (graph) in u8: refused before QNN 1.1, wrong with it",)
    assert matrix.fixes == ("a (graph) in u8: wrong before QNN 1.3, right with it",)


def test_a_matrix_of_two_faults_has_a_row_of_each_form_and_scheme() -> None:
    def run(fault: str, form: str, scheme: str, qnn: str, end: str, db: float | None) -> Rerun:
        return Rerun(
            fault=fault,
            form=form,
            frontend="onnx",
            scheme=scheme,
            qnn=qnn,
            end=end,
            expected="",
            sqnr_db=db,
        )

    runs = [
        run("a", GRAPH, "fp16", "1.0", RIGHT, 60.0),
        run("a", GRAPH, "fp16", "1.1", RIGHT, 61.0),
        run("b", GRAPH, "u8", "1.0", WRONG, 2.0),
        run("b", GRAPH, "u8", "1.1", RIGHT, 62.0),
        run("b", MENDED, "u8", "1.0", RIGHT, 63.0),
        run("b", MENDED, "u8", "1.1", CRASHED, None),
        run("b", GRAPH, "fp16", "1.1", REFUSED, None),
        run("c", GRAPH, "u8", "1.0", WRONG, 3.0),
        run("c", GRAPH, "u8", "1.1", RIGHT, 64.0),
        run("d", GRAPH, "u8", "1.0", RIGHT, 65.0),
        run("d", GRAPH, "u8", "1.1", WRONG, 0.0),
    ]
    assert render_matrix(make_matrix(["1.0", "1.1"], runs, ["why 1.2", "why 1.3"])) == (
        "- regression: b (mended) in u8: right before QNN 1.1, crashed with it\n"
        "- regression: d (graph) in u8: right before QNN 1.1, wrong with it\n"
        "- fixed: b (graph) in u8: wrong before QNN 1.1, right with it\n"
        "- fixed: c (graph) in u8: wrong before QNN 1.1, right with it\n"
        "- not run: why 1.2\n"
        "- not run: why 1.3\n"
        "\n"
        "| fault | form | scheme | 1.0 | 1.1 |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| b | graph | u8 | wrong, 2.0 dB | right, 62.0 dB |\n"
        "| b | mended | u8 | right, 63.0 dB | crashed |\n"
        "| c | graph | u8 | wrong, 3.0 dB | right, 64.0 dB |\n"
        "| d | graph | u8 | right, 65.0 dB | wrong, 0.0 dB |\n"
        "| a | graph | fp16 | right, 60.0 dB | right, 61.0 dB |\n"
        "| b | graph | fp16 | not run | refused |\n"
    )


def test_each_of_two_faults_is_run_in_each_scheme_and_form() -> None:
    faults = [
        replace(
            PLANTED,
            name=name,
            graph=f"graph {name}",
            mended=mended,
            tried=tuple(Tried(frontend, scheme, wrong=("2.1",)) for frontend, scheme in tried),
        )
        for name, mended, tried in (
            ("a", "mended a", (("onnx", "u8"), ("executorch", "8a8w"), ("onnx", "fp16"))),
            ("b", "", (("onnx", "u8"),)),
        )
    ]
    asked = []

    def attempt(scheme: str, items: Sequence[Item]) -> list[Result]:
        asked.append((scheme, items[0].text, len({one.seed for one in items})))
        return [
            Result(one.text, one.seed, WRONG, 9.0 - number, 50.0)
            for number, one in enumerate(items)
        ]

    runs = list(rerun(faults, "onnx", "2.1", attempt))
    assert asked == [
        *(("u8", "graph a", 3), ("u8", "mended a", 3)),
        *(("fp16", "graph a", 3), ("fp16", "mended a", 3), ("u8", "graph b", 3)),
    ]
    assert [(one.fault, one.scheme, one.form, one.expected) for one in runs] == [
        ("a", "u8", GRAPH, WRONG),
        ("a", "u8", MENDED, RIGHT),
        ("a", "fp16", GRAPH, WRONG),
        ("a", "fp16", MENDED, RIGHT),
        ("b", "u8", GRAPH, WRONG),
    ]
    assert {(one.sqnr_db, one.predicted_db) for one in runs} == {(7.0, 50.0)}
    problem = "the mended graph is wrong, not right (7.0 dB, 50.0 dB predicted)"
    assert [one.problem for one in runs] == ["", problem, "", problem, ""]
    listed = [(one.fault, one.scheme, one.end) for one in list_tried(faults, "onnx")]
    assert listed == [("a", "u8", WRONG), ("a", "fp16", WRONG), ("b", "u8", WRONG)]


TWO_OF_EACH = """\
x = input(2, 3)
y = input(2, 3, like="positive")
a = constant(3, value=0.5)
b = constant(2, 3, like="large")
s = add(x, a)
m = mul(s, b)
d = sub(m, y)
z = constant(3, value=0)
e = add(d, z)
return e, s
"""


@pytest.mark.parametrize(
    ("scheme", "fp16", "convolution"),
    [("fp16", True, False), ("8a8w", False, False), ("16a4w_block", False, True)],
)
def test_a_script_lowers_as_the_search_does(scheme: str, fp16: bool, convolution: bool) -> None:
    page = render_markdown(make_finding(frontend="executorch", scheme=scheme), "1", "QNN 2")
    assert f"(use_fp16={fp16})" in page
    assert f"convert_linear_to_conv2d={convolution})" in page
    assert ("QuantDtype" in page) is not fp16


def test_results_with_two_of_everything_read_as_their_snapshot() -> None:
    """Two searches, ends, known faults, findings, variations, inputs, constants and outputs."""
    several: dict[str, Any] = {
        "graph": TWO_OF_EACH,
        "operators": ("add", "mul", "sub"),
        "relations": ("add: over_rows", "mul: whole"),
        "right": ("first change", "second change", "third change"),
        "also_wrong": ("fourth change", "fifth change"),
        "suspects": 17,
        "failed": 6,
        "repeats": 8,
        "predicted_db": 70.0,
    }
    refused = make_finding(
        end=REFUSED, sqnr_db=None, predicted_db=None, why="QNN says no", failed=9, repeats=10
    )
    usual: dict[str, Any] = {
        "soc": "SM8650",
        "per_minute": 90,
        "cpu_s": 0.25,
        "unjudged": {},
    }
    searches = [
        Searched(
            frontend="onnx",
            scheme="u8",
            seed=4,
            graphs=40,
            seconds=26.0,
            ends={WRONG: 3, RIGHT: 36, REFUSED: 1},
            unconfirmed=5,
            unexamined=2,
            findings=(make_finding(**several), refused),
            known={"first-fault": 7, "second-fault": 8},
            **usual,
        ),
        Searched(
            frontend="executorch",
            scheme="fp16",
            seed=9,
            graphs=1,
            seconds=3.0,
            ends={},
            unconfirmed=1,
            unexamined=1,
            findings=(),
            **usual,
        ),
    ]
    pages = [
        render_markdown(
            make_finding(**several, frontend=frontend, scheme=scheme), "2.5.0", "QNN 2.1"
        )
        for frontend, scheme in (
            *(("onnx", "fp16"), ("onnx", "u16a8w_channel")),
            *(("executorch", "fp16"), ("executorch", "16a4w_block")),
        )
    ]
    for page in pages:
        compile(page.partition("```python\n")[2].partition("```")[0], "script", "exec")
    pages.append(render_markdown(refused, "2.6.0", "QNN 2.2"))
    text = "\n".join([render_found(searches), *pages])
    check_snapshot(Path(__file__).parent / "snapshots" / "results.txt", text)


def test_a_graph_is_wrong_if_any_of_its_outputs_is() -> None:
    good, bad = make_output(1e-3), make_output(0.5)
    for place in (1, 2):
        outputs = [bad if number == place else good for number in range(3)]
        runs = Runs(
            [[one.right[n] for one in outputs] for n in range(2)],
            [[one.made[n] for one in outputs] for n in range(2)],
            [one.runs for one in outputs],
            [0.0] * 3,
        )
        (result,) = judge_graphs([Item("", 0)], (3,), runs, {}, Scheme.FP16)
        assert (result.end, result.place[:8]) == (WRONG, f"output {place}")


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (1, [1]), (2, [1, 1]), (5, [3, 2])])
def test_graphs_are_divided_among_the_jobs(count: int, sizes: list[int]) -> None:
    asked: list[tuple[int, ...]] = []

    class Counting(StandIn):
        def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
            own = [*items]
            asked.append((len(own), bundle, *map(int, late)))
            return super().run(own, bundle, *late)

    finder = make_search(lambda _: False)
    finder.trial = Counting(lambda _: False)
    items = [Item(f"x = input(2, {n + 2})\ny = relu(x)\nreturn y\n", 0) for n in range(count)]
    assert [one.text for one in finder.try_items(items, 3, 9.0)] == [one.text for one in items]
    assert sorted(asked, reverse=True) == [(size, 3, 9) for size in sizes]


def test_the_rate_of_a_search_is_that_of_its_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100000))
    monkeypatch.setattr("ci.faults.search.time", SimpleNamespace(monotonic=lambda: next(clock)))
    found = make_search(lambda _: False).run(1e18, 40)
    assert (found.seconds, found.per_minute) == (1.0, 2400)


@pytest.mark.parametrize(
    ("text", "relations"),
    [
        (
            "x = input(2, 3, 8)\np = constant(3, 8)\ns = add(x, p)\nt = mul(p, s)\nreturn t\n",
            ("add: over_batch", "add: batch", "mul: first", "mul: over_batch", "mul: batch"),
        ),
        ("x = input(1, 3, 8)\np = constant(1, 3, 8)\ns = add(x, p)\nreturn s\n", ("add: whole",)),
        ("x = input(2, 3, 8)\ns = relu(x)\nreturn s\n", ()),
    ],
)
def test_relations_of_constants_are_told_by_operator(text: str, relations: tuple[str, ...]) -> None:
    assert list_relations(parse_graph(text)) == relations


def test_a_search_names_its_front_end_scheme_soc_and_the_number_of_a_graph() -> None:
    found = search(lambda graph: "mul" in graph.operators, 40)
    assert [found.frontend, found.scheme, found.soc, found.seed] == ["onnx", "fp16", "SM8650", 5]
    (one,) = found.findings
    assert [one.frontend, one.scheme, one.soc, one.seed] == ["onnx", "fp16", "SM8650", 5]
    assert "mul" in generate(5, one.number).operators
    assert sum(found.ends.values()) == 40


def test_variations_of_a_graph_are_told_with_what_they_change() -> None:
    graph = parse_graph(
        "x = input(2, 3, 8)\ny = input(2, 3, 8)\np = constant(3, 8)\nq = constant(8)\n"
        "s = add(x, p)\nm = mul(s, q)\nt = mul(m, y)\nn = tanh(t)\nreturn n, s\n"
    )
    varied = dict(vary(graph))
    assert [*varied] == [
        "with a first axis of size 1",
        "with p expanded to [2, 3, 8]",
        "with p as an input",
        "without add",
        "returning only s",
        "with q expanded to [2, 3, 8]",
        "with q as an input",
        "without mul",
        "also returning m",
        "also returning t",
        "without tanh",
        "returning only n",
    ]
    single = varied["with a first axis of size 1"]
    assert [one.shape for one in single.tensors.values()] == [(1, 3, 8), (1, 3, 8), (3, 8), (8,)]
    assert varied["with p expanded to [2, 3, 8]"].tensors["p"].shape == (2, 3, 8)
    assert varied["with q as an input"].inputs == ["x", "y", "q"]
    assert varied["also returning m"].outputs == ("n", "s", "m")
    assert varied["returning only s"].outputs == ("s",)
    assert varied["without add"].nodes["m"].reads == ("x", "q")


def test_the_batch_of_a_graph_is_that_of_its_first_input_with_axes() -> None:
    graph = parse_graph(
        "z = input()\np = constant(5, 1)\nx = input(2, 5, 4)\n"
        "s = mul(x, z)\nt = add(s, p)\nreturn t"
    )
    single = dict(vary(graph))["with a first axis of size 1"].tensors
    assert [one.shape for one in single.values()] == [(), (5, 1), (1, 5, 4)]


@pytest.mark.parametrize("outputs", ["b, a", "a, b"])
def test_the_last_operator_is_replaced_even_if_an_earlier_one_is_also_returned(
    outputs: str,
) -> None:
    graph = parse_graph(f"x = input(2, 8)\na = exp(x)\nb = tanh(a)\nreturn {outputs}\n")
    varied = [one for _, one in vary_last(graph, "onnx")]
    assert {one.nodes["a"].operator for one in varied} == {"exp"}
    assert len({one.nodes["b"].operator for one in varied} - {"tanh"}) == len(varied) > 3


SIMPLIFIED = """\
x = input(2, 3, 8)
y = input(1, 8)
p = constant(3, 8, like="large")
q = constant(1, value=2)
w = constant(8, like="positive")
s = add(x, p)
r = reshape(s, shape=[6, 8])
m = mul(r, y)
n = layer_norm(m, w)
k = mul(n, q)
return k, s
"""
FOLLOWED = """\
x = input({0}, 3, 8)
p = constant(8)
b = constant({0}, 1, 8)
c = constant({0}, 3, 8)
r = relu(x)
s = add(r, p)
t = sub(s, b)
u = div(t, c)
y = {1}
return y
"""


def describe_change(before: Graph, after: Graph) -> str:
    """The measure of a graph, and the lines that are only in one of the two."""
    old, new = ([*str(one).splitlines(), ""] for one in (before, after))
    lines = [f"- {one}" for one in old if one not in new]
    lines += [f"+ {one}" for one in new if one not in old]
    return "\n".join([str(measure(after)[:5]), *lines])


def test_simpler_graphs_and_variations_read_as_their_snapshot() -> None:
    graph = parse_graph(SIMPLIFIED)
    told = [describe_change(graph, one) for one in list_simpler(graph)]
    for frontend, batch, last in (
        ("onnx", 3, "softmax(u, axis=-1)"),
        ("executorch", 1, "rms_norm(u)"),
        ("onnx", 1, "linear(u, p)"),
    ):
        graph = parse_graph(FOLLOWED.format(batch, last))
        every: Any = (*vary(graph), *vary_last(graph, frontend))  # type: ignore[arg-type]
        told += [f"{frontend}, {text}: {describe_change(graph, one)}" for text, one in every]
    check_snapshot(Path(__file__).parent / "snapshots" / "simpler.txt", "\n\n".join(told) + "\n")


def test_a_size_is_changed_where_it_is_one_and_not_in_axes_that_are_the_same_number() -> None:
    text = (
        "x = input({0}, 4, 3)\nc = constant({0}, 1)\nr = reshape(x, shape=[{0}, 3, 4])\n"
        "s = mean(r, axes=[2], keep=0)\ny = add(s, c)\nreturn y\n"
    )
    assert resize(parse_graph(text.format(2)), 2, 1) == parse_graph(text.format(1))


def test_a_round_tries_graphs_that_are_simpler_and_the_simplest_first() -> None:
    graph = parse_graph(
        "x = input(2, 3)\nc = constant(1, 3)\ne = expand(c, shape=[16, 3])\n"
        "s = sum(e, axes=[0], keep=1)\ny = add(x, s)\nreturn y"
    )
    tried: list[Graph] = []

    def fails(graphs: Sequence[Graph]) -> list[bool]:
        tried.extend(graphs)
        return [False] * len(graphs)

    assert shrink(graph, fails) == graph
    fit = [one for one in list_simpler(graph) if is_fit(one)]
    simpler = [one for one in fit if measure(one) < measure(graph)]
    assert len(simpler) < len(fit)
    assert tried == sorted(simpler, key=measure) != simpler


def test_graphs_are_tried_one_by_one_until_one_fails() -> None:
    graph = parse_graph("x = input(2, 4)\na = tanh(x)\ny = gelu(a)\nreturn y\n")
    tried: list[tuple[str, ...]] = []

    def fails(graphs: Sequence[Graph]) -> list[bool]:
        tried.extend(one.operators for one in graphs)
        return ["tanh" in one.operators for one in graphs]

    assert shrink(graph, fails, 1).operators == ("tanh",)
    assert tried[0] == ("gelu",)  # the simplest, which is right


def test_only_the_last_of_several_operators_is_replaced_and_rounds_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = parse_graph("x = input(2, 4)\ny = relu(x)\nreturn y")
    assert [*vary_last(one, "onnx")] == []
    assert fit_variations(one, "onnx") == []  # not even without its only operator
    two = parse_graph(
        "x = input(8)\nc = constant(4)\ns = sum(x, axes=[0], keep=1)\n"
        "a = add(s, c)\ny = relu(a)\nreturn y"
    )
    norm = dict(vary_last(two, "onnx"))[
        "with layer_norm as the last operator and a last axis of size 16"
    ]
    assert [tensor.shape for tensor in norm.tensors.values()] == [(16,), (4,)]
    weighted = parse_graph(
        "x = input(2, 8)\nc = constant(8)\nr = relu(x)\ny = layer_norm(r, c)\nreturn y"
    )
    assert {other.nodes["y"].reads for _, other in vary_last(weighted, "onnx")} == {("r",)}
    monkeypatch.setattr("ci.faults.shrink.MOST_ROUNDS", 2)
    rounds: list[int] = []

    def fails(graphs: Sequence[Graph]) -> list[bool]:
        rounds.append(len(graphs))
        return [number == 0 for number, _ in enumerate(graphs)]

    small = shrink(parse_graph(FIRST), fails, 1)
    assert rounds == [1, 1]
    assert measure(small) < measure(parse_graph(FIRST))


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("x = input(2, 4)\ny = relu(x)\nreturn y", True),
        ("x = constant(2, 4)\ny = relu(x)\nreturn y", False),  # it has no input
        ("x = input(2, 4)\nc = constant(3)\ny = add(x, c)\nreturn y", False),
        ("x = input(2, 4)\ny = log(x)\nreturn y", False),
        ("x = input(2, 4)\ny = slice(x, axis=0, start=0, stop=9)\nreturn y", False),
        ("x = input(2, 4)\ny = softmax(x, axis=5)\nreturn y", False),
        ("x = input(2, 4)\ny = softmax(x)\nreturn y", False),
    ],
)
def test_only_a_graph_that_can_be_judged_is_fit(text: str, fits: bool) -> None:
    graph = parse_graph(text)
    assert is_fit(graph) is fits
    assert not is_fit(Graph(graph.tensors, {}, ()))
    assert not is_fit(Graph({}, graph.nodes, graph.outputs))


@pytest.mark.parametrize("bad", SEEDS)
def test_a_graph_is_fit_only_if_it_is_with_every_seed(
    monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    monkeypatch.setattr("ci.faults.shrink.find_unfit", lambda _, seed: "why" if seed == bad else "")
    assert not is_fit(parse_graph(FIRST))


def test_inputs_are_neither_expanded_nor_replaced_and_vectors_are_no_batches() -> None:
    graph = parse_graph(
        "x = input(2, 3, 2)\ny = input(2)\nc = constant(2)\nb = constant(2, 1, 1)\n"
        "s = add(x, y)\nt = mul(c, s)\nu = add(t, b)\nreturn u\n"
    )
    varied = dict(vary(graph))
    assert [*varied] == [
        *("with a first axis of size 1", "without add", "also returning s"),
        *("with c expanded to [2, 3, 2]", "with c as an input", "without mul", "also returning t"),
        *("with b expanded to [2, 3, 2]", "with b as an input"),
    ]
    single = varied["with a first axis of size 1"].tensors
    assert {name: one.shape for name, one in single.items()} == {
        "x": (1, 3, 2),
        "y": (1,),
        "c": (2,),
        "b": (1, 1, 1),
    }


class Louder(StandIn):
    """Each seed fails with another SQNR, and what is right is much better."""

    def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
        for one in super().run(items, bundle, *late):
            worse = -float(one.seed % 7) if one.end == WRONG else 0.0
            yield replace(one, sqnr_db=one.sqnr_db + worse, predicted_db=60.0 - one.seed % 5)


def test_a_finding_has_the_figures_of_its_worst_seed() -> None:
    finder = make_search(lambda graph: "mul" in graph.operators)
    finder.trial = Louder(finder.trial.is_wrong)
    (one,) = finder.run(1e18, 40).findings
    seeds = [seed for seed in REPEATS if not find_unfit(parse_graph(one.graph), seed)]
    worst = max(seeds, key=lambda seed: seed % 7)
    assert (one.sqnr_db, one.predicted_db) == (2.0 - worst % 7, 60.0 - worst % 5)


def test_a_seed_that_is_right_is_not_the_worst() -> None:
    """Steps of 8 bits excuse an SQNR that is low."""

    class Excused(StandIn):
        def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
            for one in super().run(items, bundle, *late):
                excused = one.seed == REPEATS[3]
                yield replace(one, end=RIGHT, sqnr_db=-9.0) if excused else one

    finder = make_search(lambda _: True)
    finder.trial = Excused(lambda _: True)
    text = "x = input(2, 4)\ny = relu(x)\nreturn y\n"
    assert finder.examine([(0, Result(text, 0, WRONG))]) == []
    (found,) = finder.findings
    assert (found.sqnr_db, found.failed, found.repeats) == (2.0, 9, 10)


def test_suspects_that_a_round_has_no_time_for_wait_for_the_next() -> None:
    unary = ["relu", "sigmoid", "tanh", "gelu", "abs", "neg", "sin", "cos", "exp"]
    texts = [f"x = input(2, 4)\ny = {one}(x)\nreturn y\n" for one in unary]
    finder = make_search(lambda _: True)
    suspects = [(n, Result(text, 0, WRONG, 2.0, 60.0)) for n, text in enumerate(texts)]
    waiting = finder.examine(suspects)
    assert waiting == suspects[MOST_SHRUNK:]
    assert [one.number for one in finder.findings] == [*range(MOST_SHRUNK)]
    assert finder.examine(waiting) == []
    assert [one.operators[0] for one in finder.findings] == unary
    right = {text for one in finder.findings for text in one.right}
    assert right == set()  # nothing is right here, whatever is varied


def test_ends_are_suspect_and_ranked_by_how_bad_they_are() -> None:
    suspects = {one for one in (*ENDS, LATE, UNJUDGED, UNTRIED) if Result("", 0, one).is_suspect}
    assert suspects == {WRONG, REFUSED, CRASHED, LATE}
    order = [RIGHT, REFUSED, CRASHED, WRONG]
    run = Rerun(
        fault="a", form=GRAPH, frontend="onnx", scheme="u8", qnn="1", end=RIGHT, expected=""
    )
    for before, was in enumerate(order):
        for after, now in enumerate(order):
            runs = [replace(run, end=was), replace(run, end=now, qnn="2")]
            matrix = make_matrix(["1", "2"], runs)
            assert bool(matrix.regressions) is (after > before)
            assert bool(matrix.fixes) is (after < before)
    finder = make_search(lambda _: True)
    text = "x = input(2, 4)\ny = {}(x)\nreturn y\n"
    ends = {"relu": REFUSED, "tanh": LATE, "gelu": CRASHED, "abs": WRONG}
    suspect = [(n, Result(text.format(op), 0, end)) for n, (op, end) in enumerate(ends.items())]
    asked: list[str] = []
    finder.locate = lambda number, one, graph: asked.append(one.end)  # type: ignore[method-assign]
    finder.examine(suspect, all_of_them=True)
    assert asked == [WRONG, CRASHED, LATE, REFUSED]
