"""The search on a provider that stands in, with a fault that is planted and with none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")

from msgspec.structs import replace

from ci.cases.pool import Ended
from ci.diagnosis.experiments import RemedyChoice
from ci.faults.blocks import Cell
from ci.faults.generate import generate
from ci.faults.graph import Graph, parse_graph
from ci.faults.known import CRASHED, REFUSED, RIGHT, WRONG, describe, find_pattern, read_faults
from ci.faults.render import render_markdown, render_searches
from ci.faults.results import LATE, UNJUDGED, UNTRIED, Finding, Item, Result, Searched
from ci.faults.search import COSTLY_SHARE, Search
from ci.faults.shrink import SEEDS
from ci.faults.torch_graphs import Module, draw_sets
from ci.faults.trial import Trial, TrialJob
from ci.models.schemes import Scheme
from ci.onnx.fallback import StageError
from provisioning.console.progress import Progress
from tests.stand_ins.clocks import stop_clock
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


def find_planted(item: Item, _: int) -> str:
    return WRONG if has_planted(parse_graph(item.text)) else RIGHT


def always(end: str) -> Callable[[Item, int], str]:
    return lambda *_: end


def holds(word: str, end: str = WRONG) -> Callable[[Item, int], str]:
    """A graph with this operator ends so, and any other is right."""
    return lambda item, _: end if f" {word}(" in item.text else RIGHT


class StandIn:
    """A provider in which ``ends`` tells how a graph ends in a program of its own (in a bundle of
    1) or with others; ``fields`` are those of each result. ``calls`` are a bundle, a limit and
    items."""

    def __init__(self, ends: Callable[[Item, int], str], **fields: Any) -> None:
        self.ends, self.fields = ends, fields
        self.calls: list[tuple[int, float, list[Item]]] = []

    def run(self, items: Iterable[Item], bundle: int = 0, *late: float) -> Iterator[Result]:
        run_items = [*items]
        self.calls.append((bundle, *late, run_items))  # type: ignore[arg-type]
        for item in run_items:
            end = self.ends(item, bundle)
            sqnr_db = 61.0 if end == RIGHT else 2.0
            yield replace(Result(item.text, item.seed, end, sqnr_db, 60.0), **self.fields)


def make_search(
    ends: Callable[[Item, int], str], *, uses_known: bool = False, jobs: int = 2, **fields: Any
) -> Search:
    return Search(
        trial=StandIn(ends, **fields),
        frontend="onnx",
        scheme="fp16",
        soc="SM8650",
        seed=5,
        jobs=jobs,
        progress=Progress(),
        qnn="2.49.40",
        uses_known=uses_known,
    )


def write_graph(*operators: str) -> str:
    """A graph of these operators, each on the result of the one before it."""
    names = ["x", *"abc"[: len(operators) - 1], "y"]
    calls = zip(names[1:], operators, names, strict=False)
    rows = [f"{name} = {operator}({read})" for name, operator, read in calls]
    return "\n".join(["x = input(2, 4)", *rows, "return y", ""])


def suspect(*operators: str, end: str = WRONG) -> Result:
    return Result(write_graph(*operators), 0, end)


def test_a_planted_fault_is_found_and_shrunk() -> None:
    searched = make_search(holds("mul")).run(1e18, 40)
    assert (searched.graphs, sum(searched.ends.values())) == (40, 40)
    identity = (searched.frontend, searched.scheme, searched.soc, searched.seed)
    assert identity == ("onnx", "fp16", "SM8650", 5)
    (first,) = searched.findings
    assert (first.frontend, first.scheme, first.soc, first.seed) == ("onnx", "fp16", "SM8650", 5)
    assert (first.operators, "mul" in generate(5, first.number).operators) == (("mul",), True)
    assert first.suspects == searched.ends[WRONG] > 1
    assert (first.end, first.sqnr_db, first.predicted_db) == (WRONG, 2.0, 60.0)
    assert first.failed == first.repeats >= 8
    assert "10/10" in render_searches([searched])
    page = render_markdown(first, "2.5.0", "QNN 2.49.40")
    assert "onnxruntime" in page
    compile(page.partition("```python\n")[2].partition("```")[0], "script", "exec")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_graph_fails_if_it_fails_with_any_seed(seed: int) -> None:
    graphs = [parse_graph(PLANTED.graph)] * 3
    search = make_search(lambda item, _: WRONG if item.seed == seed else RIGHT)
    assert search.fails(WRONG, graphs) == [True] * 3
    assert search.fails(REFUSED, graphs) == [False] * 3


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
        names_of_script: dict[str, Any] = {"torch": torch}
        exec(script[start:end], names_of_script)  # noqa: S102 - the part that needs no ExecuTorch
        net = names_of_script["Net"]()
        inputs = torch.from_numpy(draw_sets(graph, 0)[0][0])
        module = Module(graph, 0)
        net.load_state_dict(module.state_dict())
        torch.testing.assert_close(net(inputs), module(inputs))


def test_a_known_fault_is_only_counted_unless_the_table_is_off() -> None:
    text = str(parse_graph(FIRST))
    for uses_table in (True, False):
        finder = make_search(find_planted, uses_known=uses_table)
        assert finder.examine([(7, Result(text, 0, WRONG, 2.0, 60.0))]) == []
        operators_and_known = [(finding.operators, finding.known) for finding in finder.findings]
        assert operators_and_known == (
            [] if uses_table else [(("add", "layer_norm"), PLANTED.name)]
        )
        assert dict(finder.known_suspects) == ({PLANTED.name: 1} if uses_table else {})
        # A second suspect with these operators is counted, not shrunk.
        assert finder.examine([(8, Result(text, 0, WRONG, 2.0, 60.0))]) == []
        assert [finding.suspects for finding in finder.findings] == ([] if uses_table else [2])
    for end in (WRONG, REFUSED, CRASHED, LATE):  # however its graph ends
        finder = make_search(always(RIGHT), uses_known=True)
        assert finder.examine([(7, Result(text, 0, end))]) == []
        assert (dict(finder.known_suspects), finder.unconfirmed) == ({PLANTED.name: 1}, 0)


CURE = RemedyChoice("cure", "t", "the constant is not expanded", (PLANTED.name,))
NO_CAUSE = "no experiment shows the cause"
OTHER = RemedyChoice("other", "t", "the sum is fused", ())


def cured_by(*names: str) -> Callable[[Item, int], str]:
    """The planted fault, which these rewrites cure together; a rewrite without a known one finds
    nothing to change."""

    def find(item: Item, bundle: int) -> str:
        if "nothing" in item.rewrite:
            return UNJUDGED
        is_cured = item.rewrite and {*names} <= {*item.rewrite.split()}
        return RIGHT if is_cured else find_planted(item, bundle)

    return find


@pytest.mark.parametrize(
    ("ends", "remedies", "counted", "finding"),
    [
        # The remedy of the fault makes the graph right: it is the cause.
        (cured_by("cure"), [OTHER, CURE], True, None),
        # It does not: the fault has the pattern only, and what the graph has is new, with what was
        # tried or with what cures it.
        (
            find_planted,
            [OTHER, CURE],
            False,
            (
                "",
                f"{NO_CAUSE}: the model has 2.0 dB; tried: cure (2.0 dB), other (2.0 dB)",
                (),
            ),
        ),
        (
            cured_by("other"),
            [OTHER, CURE],
            False,
            (
                "",
                "the sum is fused (proven: the model has 2.0 dB, and 61.0 dB with other)",
                ("other",),
            ),
        ),
        # No remedy can be tried: the pattern is all that is known.
        (find_planted, [OTHER], True, None),
        (cured_by("cure"), [replace(CURE, name="nothing")], True, None),
    ],
)
def test_a_known_fault_is_the_cause_only_if_its_remedies_do_not_contradict(
    ends: Callable[[Item, int], str],
    remedies: list[RemedyChoice],
    counted: bool,
    finding: tuple[str, str, tuple[str, ...]] | None,
) -> None:
    finder = make_search(ends, uses_known=True)
    finder.remedies = remedies
    red = Result(str(parse_graph(FIRST)), 0, WRONG, 2.0, 60.0)
    assert finder.examine([(7, red)]) == []
    assert dict(finder.known_suspects) == ({PLANTED.name: 1} if counted else {})
    shown = [(item.known, item.cause, item.mended_by) for item in finder.findings]
    assert shown == ([finding] if finding else [])


def test_a_fault_that_was_proven_in_a_block_is_counted_there_without_experiments() -> None:
    finder = make_search(cured_by("cure"), uses_known=True)
    finder.remedies = [CURE]
    red = Result(str(parse_graph(FIRST)), 0, WRONG, 2.0, 60.0)
    finder.cells = {7: Cell("attention", "small"), 8: Cell("attention", "small")}
    assert finder.examine([(7, red)]) == []
    tried = len(finder.trial.calls)  # type: ignore[attr-defined]
    assert finder.examine([(8, red), (9, red)]) == []
    calls = finder.trial.calls[tried:]  # type: ignore[attr-defined]
    assert [item.rewrite for _, _, items in calls for item in items] == ["cure"]  # of the third
    assert dict(finder.known_suspects) == {PLANTED.name: 3}


@pytest.mark.parametrize(
    ("end", "left_s", "expected"),
    [
        (WRONG, 1e9, (("gelu",), True, 10)),
        (WRONG, 4.0, (("tanh", "gelu"), False, 2)),  # the others need more than this
        (WRONG, -1.0, (("tanh", "gelu"), False, 2)),
        (CRASHED, -1.0, (("tanh", "gelu"), False, 2)),
        (REFUSED, -1.0, None),
        (WRONG, -99.0, None),
    ],
)
def test_a_suspect_is_confirmed_but_not_shrunk_at_the_end_of_the_search(
    monkeypatch: pytest.MonkeyPatch,
    end: str,
    left_s: float,
    expected: tuple[tuple[str, ...], bool, int] | None,
) -> None:
    same_operators = "abs", "gelu", "neg"  # with the first one's operators, but another order
    suspects = [(7, suspect("tanh", "gelu", end=end)), (8, suspect(*same_operators, end=end))]
    finder = make_search(holds("gelu", end))
    finder.deadline = stop_clock(monkeypatch).now_s + left_s
    left = finder.examine(suspects, all_of_them=True)
    assert left == ([] if expected else suspects)
    findings = [(finding.operators, finding.shrunk, finding.repeats) for finding in finder.findings]
    assert findings[:1] == ([expected] if expected else [])
    assert len(findings) + len(left) == (1 if expected and expected[1] else 2)


def test_a_search_leaves_time_to_confirm_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, tries = stop_clock(monkeypatch), list[Item]()

    def tell(item: Item, _: int) -> str:
        tries.append(item)
        return WRONG if not item.seed and len(tries) < 3 else RIGHT

    finder = make_search(tell, jobs=1)
    finder.examining_s[False] = [1e18]
    searched = finder.run(clock.now_s + 9.0)  # two wrong graphs need ten seconds
    assert (searched.graphs, searched.unconfirmed, searched.unexamined) == (48, 2, 0)


@pytest.mark.parametrize(
    ("end", "name", "limit_s", "expected"),
    [
        (LATE, "COSTLY_S", 99.0, (10, False, True)),
        (LATE, "COSTLY_S", 0.01, (2, False, False)),
        (WRONG, "SHRINK_S", 0.01, (10, True, False)),
    ],
)
def test_a_hanging_suspect_gets_few_confirming_tries_and_limited_shrinking(
    monkeypatch: pytest.MonkeyPatch, end: str, name: str, limit_s: float, expected: tuple[Any, ...]
) -> None:
    clock = stop_clock(monkeypatch)

    def hang(item: Item, _: int) -> str:
        clock.forward(0.02)
        return end if "gelu" in item.text else RIGHT

    monkeypatch.setattr(f"ci.faults.search.{name}", limit_s)
    finder = make_search(hang)
    # Of the time since then, a share is for suspects like this one.
    finder.started = clock.now_s - 2 * limit_s / COSTLY_SHARE
    assert finder.examine([(7, Result(str(parse_graph(FIRST)), 0, end))]) == []
    (finding,) = finder.findings
    is_varied, is_single = bool(finding.right + finding.also_wrong), len(finding.operators) == 1
    assert (finding.repeats, is_varied, is_single) == expected
    assert finding.shrunk == expected[2]


def test_refused_suspects_wait_for_wrong_ones_and_only_refusals_explain_them() -> None:
    def tell(item: Item, _: int) -> str:
        return REFUSED if "tanh" in item.text else WRONG if "gelu" in item.text else RIGHT

    finder = make_search(tell)
    refused, wrong = suspect("tanh", end=REFUSED), suspect("gelu")
    assert finder.examine([(0, refused), (1, wrong)]) == []
    assert [finding.end for finding in finder.findings] == [WRONG, REFUSED]
    wrong_then_refused = replace(wrong, end=REFUSED)
    finder.trial.ends = always(REFUSED)  # type: ignore[attr-defined]
    finder.examine([(1, wrong), (2, wrong_then_refused), (3, wrong), (4, wrong_then_refused)])
    assert [finding.end for finding in finder.findings] == [WRONG, REFUSED, REFUSED]
    assert [finding.suspects for finding in finder.findings] == [3, 1, 2]


def test_a_search_without_confirmed_faults_reports_its_counts() -> None:
    right = make_search(always(RIGHT)).run(1e18, 40)
    assert (right.findings, right.ends, right.unconfirmed) == ((), {RIGHT: 40}, 0)
    once = make_search(lambda item, _: RIGHT if item.seed else WRONG, jobs=1).run(1e18, 5)
    assert (once.findings, once.unconfirmed) == ((), 5)
    late = make_search(always(WRONG)).run(0.0)
    assert (late.graphs, late.seconds, late.per_minute, late.cpu_s) == (0, 0.0, 0, 0.0)


@pytest.mark.parametrize(
    ("last", "unfit", "failed"),
    [(100, (), []), (104, (), []), (105, (), [5]), (104, (110,), []), (105, (110,), [5])],
)
def test_a_suspect_that_fails_with_few_of_ten_or_nine_seeds_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, last: int, unfit: tuple[int, ...], failed: list[int]
) -> None:
    monkeypatch.setattr("ci.faults.search.find_unfit", lambda _, seed: "why" * (seed in unfit))
    finder = make_search(lambda item, _: WRONG if item.seed <= last else RIGHT)
    assert finder.examine([(0, suspect("relu"))]) == []
    assert [finding.failed for finding in finder.findings] == failed
    assert {finding.repeats for finding in finder.findings} <= {10 - len(unfit)}
    assert finder.unconfirmed == 1 - len(failed)


def test_a_graph_that_fails_only_together_with_others_is_reported_whole() -> None:
    finder = make_search(
        lambda item, bundle: (
            UNJUDGED
            if "relu" in item.text
            else WRONG
            if "tanh" in item.text and (bundle == 0 or "gelu" in item.text)
            else RIGHT
        )
    )
    grouped = suspect("gelu", "tanh")
    assert finder.examine([(0, grouped)]) == []
    (finding,) = finder.findings
    assert (finding.graph, finding.operators) == (grouped.text, ("gelu", "tanh"))
    assert finding.failed == 10
    assert "without gelu" in finding.also_wrong
    assert "with sigmoid as the last operator" in finding.right
    assert "with relu as the last operator" not in finding.right + finding.also_wrong


def test_suspects_without_time_in_a_round_wait_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = stop_clock(monkeypatch)
    finder = make_search(lambda item, _: REFUSED if "tanh" in item.text else WRONG)
    wrong, refused = (0, suspect("gelu")), (1, suspect("tanh", end=REFUSED))
    third = clock.now_s / 3  # with one more that takes as long, examining has more than half
    for spent, left in (
        ({False: [1e18], True: [1e18]}, [wrong, refused]),
        ({False: [1e18], True: []}, [wrong]),
        ({False: [third]}, [wrong]),
    ):
        finder.examining_s |= spent
        assert finder.examine([wrong, refused]) == left
    assert finder.examine([wrong, refused], all_of_them=True) == []
    assert [finding.operators for finding in finder.findings] == [("tanh",), ("gelu",)]


def test_a_suspect_with_an_operator_that_was_not_examined_comes_before_smaller_ones() -> None:
    first, reordered, new = (
        suspect(*operators)
        for operators in (("tanh", "gelu"), ("gelu", "tanh"), ("abs", "neg", "sin"))
    )
    texts = {suspected.text for suspected in (first, reordered, new)}
    finder = make_search(lambda item, _: WRONG if item.text in texts else RIGHT)
    assert finder.examine([*enumerate((first, reordered, new))]) == []
    assert [finding.graph for finding in finder.findings] == [first.text, new.text, reordered.text]


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


def test_a_search_report_reads_as_its_snapshot() -> None:
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
    refused_fields: dict[str, Any] = {
        "block": "norm vit-ti",
        "known": "first-fault",
        "why": "QNN says no",
    }
    refused = make_finding(
        end=REFUSED,
        sqnr_db=None,
        predicted_db=None,
        failed=9,
        repeats=10,
        shrunk=False,
        **refused_fields,
    )
    usual: dict[str, Any] = {"soc": "SM8650", "per_minute": 90, "cpu_s": 0.25, "unjudged": {}}
    searches = [
        Searched(
            frontend="onnx",
            scheme="u8",
            seed=4,
            graphs=40,
            seconds=26.0,
            ends={WRONG: 3, RIGHT: 36, REFUSED: 1},
            unconfirmed=5,
            unexamined=3,
            unexamined_ends={REFUSED: 2, WRONG: 1},
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
            unexamined_ends={CRASHED: 1},
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
    text = "\n".join([render_searches(searches), *pages])
    check_snapshot(Path(__file__).parent / "snapshots" / "results.txt", text)


# -- programs in workers ---------------------------------------------------------------------------


class Dying:
    """Workers that compute rightly, die of a tanh, hang at a sin, and are slow otherwise. They have
    a clock of their own, so that no load of the machine makes them late."""

    def __init__(self, slow_s: float = 0.0) -> None:
        self.slow_s = slow_s
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def run(self, job: TrialJob, log: Path, timeout_s: float, *, max_bytes: float) -> Ended:
        log.write_text("noise")
        assert max_bytes < 1 << 33
        texts = " ".join(item.text for item in job.items)
        if "tanh" in texts:
            return Ended(None, "its process was ended by SIGSEGV", "")
        if "sin" in texts or self.slow_s > timeout_s:
            self.now_s += min(timeout_s, self.slow_s)
            return Ended(None, f"did not end within {timeout_s:g} s", "")
        self.now_s += self.slow_s
        return Ended([Result(item.text, item.seed, RIGHT) for item in job.items], "", "")


def test_a_graph_whose_worker_the_machine_starved_is_untried(tmp_path: Path) -> None:
    class Busy(Dying):
        def run(self, job: TrialJob, log: Path, timeout_s: float, *, max_bytes: float) -> Ended:
            ended = super().run(job, log, timeout_s, max_bytes=max_bytes)
            return dataclasses.replace(ended, starved=True)

    job = TrialJob((), "onnx", Scheme.FP16, "SM8650", {})
    results = Trial(Busy(), job, tmp_path).run(ITEMS, 1)  # type: ignore[arg-type]
    ends = [result.end for result in results]
    assert ends == [RIGHT, RIGHT, UNTRIED, RIGHT, UNTRIED, RIGHT, RIGHT]


UNARY = ["relu", "abs", "tanh", "neg", "sin", "cos", "exp"]


ITEMS = [Item(f"x = input(2)\ny = {operator}(x)\nreturn y\n", 0) for operator in UNARY]


@pytest.mark.parametrize(("stage", "end"), [("QNN", REFUSED), ("QNN's quantizer", UNJUDGED)])
def test_an_error_before_qnn_is_not_counted_as_a_refusal_by_qnn(stage: str, end: str) -> None:
    sizes = []

    class Raises(TrialJob):
        def run_together(self, items: Any) -> list[Result]:
            sizes.append(len(items))
            if any("tanh" in item.text for item in items):
                raise StageError(stage) from ValueError("no")
            return [Result(item.text, item.seed, RIGHT) for item in items]

    results = Raises(ITEMS[:4], "onnx", Scheme.FP16, "SM8650", {})()
    assert [result.end for result in results] == [RIGHT, RIGHT, end, RIGHT]
    Raises([*ITEMS[:4], *ITEMS[:4:3] * 2], "onnx", Scheme.FP16, "SM8650", {})()
    assert sizes == [4, 1, 1, 1, 1, 8, 2, 2, 1, 1, 2, 2]


def test_a_batch_continues_after_graphs_that_crash_or_hang_their_worker(tmp_path: Path) -> None:
    job = TrialJob((), "onnx", Scheme.FP16, "SM8650", {})
    trial = Trial(Dying(), job, tmp_path)  # type: ignore[arg-type]
    for bundle in (1, 2, 4, 0):
        results = list(trial.run(ITEMS, bundle))
        assert [result.text for result in results] == [item.text for item in ITEMS]
        ends = [result.end for result in results]
        assert ends == [RIGHT, RIGHT, CRASHED, RIGHT, LATE, RIGHT, RIGHT]
    assert not list(tmp_path.iterdir())


def test_graphs_that_the_deadline_interrupts_are_untried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, workers = TrialJob((), "onnx", Scheme.FP16, "SM8650", {}), Dying(slow_s=0.05)
    monkeypatch.setattr("ci.faults.trial.time", workers)
    trial = Trial(workers, job, tmp_path)  # type: ignore[arg-type]
    results = list(trial.run([*ITEMS[:2], *ITEMS[5:]], 1, 0.12))
    assert [result.end for result in results] == [RIGHT, RIGHT, UNTRIED, UNTRIED]
    results = list(trial.run([ITEMS[4]] * 2, 2, workers.now_s + 0.05))
    assert [result.end for result in results] == [UNTRIED] * 2
    assert not list(tmp_path.iterdir())
