"""Cases of a model share a recipe where that makes none of them worse."""

from __future__ import annotations

from dataclasses import make_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from ci.analysis.steps import Operand, Step
from ci.cases.spec import CaseSpec
from ci.facts.finding import Finding
from ci.facts.kinds import NOISE, ON_CPU, QUANTIZED_BADLY
from ci.mend.mending import Mended, Mending
from ci.mend.mixture_search import Unit
from ci.mend.precision import FaultTrials, MixTrials
from ci.mend.search import Recipe, Search
from ci.mend.trials import Attempt
from ci.models.schemes import EXECUTORCH, Scheme
from ci.models.user_models import Source
from ci.report.schema import Case, JudgementFacts, Status
from tests.stand_ins.reports import change_case

REWRITTEN = Recipe(rewrites=("r",))
OTHER = Recipe(scheme="16a8w")
BOTH = Recipe(rewrites=("r",), scheme="16a8w")
LIMITS = SimpleNamespace(
    limits_of=lambda *_: SimpleNamespace(min_sqnr_db=15.0, min_sqnr_db_all=20.0)
)


def mended(scheme: str, sqnr_db: float, recipe: Recipe | None = None) -> Mended:
    """A case whose SQNR with a recipe is known; from 20 dB on it is green."""
    case = judged(scheme, sqnr_db)
    mended_case = Mended(CaseSpec("net", Scheme(scheme), "SM8650", Source("net.py:factory")), case)
    mended_case.recipe = recipe or Recipe()
    return mended_case


def judged(scheme: str, sqnr_db: float) -> Case:
    status = Status.FAILED if sqnr_db < 20 else Status.PASSED
    return Case(
        model="net",
        scheme=scheme,
        soc="SM8650",
        judgement=JudgementFacts(status=status, sqnr_db=sqnr_db),
    )


def mending(folder: Path, cases: list[Mended], sqnr_db: float, fault: str) -> Mending:
    """The verdict on each unchanged case with the rewrite is known."""
    setup: Any = SimpleNamespace(
        work=folder,
        options=SimpleNamespace(jobs=1, policy=LIMITS, timeout_s=9),
        pool=SimpleNamespace(close=None),
    )
    run = Mending(setup, EXECUTORCH, SimpleNamespace(step=str), float("inf"))  # type: ignore[arg-type]
    for case in cases:
        name = run.name(case.spec, ("r",))
        run.attempts[name] = Attempt(names=("r",), fault=fault)
        if case.recipe == Recipe():
            run.verdicts[case.spec, REWRITTEN] = judged(case.spec.scheme.value, sqnr_db)
    return run


@pytest.mark.parametrize(
    ("sqnr_db", "fault", "recipe"),
    [(40, "", REWRITTEN), (19, "", Recipe()), (30, "", Recipe()), (40, "differs", Recipe())],
)
def test_a_passing_scheme_takes_over_the_recipe_unless_it_becomes_worse(
    tmp_path: Path, sqnr_db: float, fault: str, recipe: Recipe
) -> None:
    cases = [mended("fp16", 40), mended("8a8w", 30, REWRITTEN)]
    mending(tmp_path, cases, sqnr_db, fault).unify(cases)
    assert [case.recipe for case in cases] == [recipe, REWRITTEN]
    assert cases[0].is_green


@pytest.mark.parametrize(
    ("first", "second", "recipes"),
    [
        ((30, OTHER), (40, REWRITTEN), [BOTH, REWRITTEN]),
        ((30, BOTH), (40, Recipe()), [OTHER, Recipe()]),
        ((30, BOTH), (19, Recipe()), [BOTH, REWRITTEN]),  # the second was red
        ((30, REWRITTEN), (40, Recipe()), [REWRITTEN, Recipe()]),  # no other scheme
    ],
)
def test_a_scheme_and_the_one_that_falls_back_to_it_get_one_recipe(
    tmp_path: Path,
    first: tuple[float, Recipe],
    second: tuple[float, Recipe],
    recipes: list[Recipe],
) -> None:
    cases = [mended("8a8w", *first), mended("16a8w", *second)]
    cases.append(replace(cases[1], spec=replace(cases[1].spec, soc="SM8550")))
    mending(tmp_path, cases, 0, "").join_schemes(cases)
    assert [case.recipe for case in cases] == [*recipes, second[1]]


IN_FP16 = Recipe(rewrites=("r",), scheme="fp16")


@pytest.mark.parametrize(
    ("red_db", "sqnr_db", "recipe"),
    [
        (3, 40, IN_FP16),
        (3, 14, Recipe()),
        (21.6, 21.6, IN_FP16),
        (21.6, 20.2, Recipe()),  # green, and less accurate than the red program
    ],
)
def test_a_case_without_a_remedy_falls_back_to_a_passing_scheme_of_its_model(
    tmp_path: Path, red_db: float, sqnr_db: float, recipe: Recipe
) -> None:
    red, green = mended("16a8w", red_db), mended("fp16", sqnr_db, REWRITTEN)
    judgement = structs.replace(red.before.judgement, status=Status.FAILED)
    red.before = red.case = structs.replace(red.before, judgement=judgement)
    findings = (NOISE.find("not faithful"),)
    red.search = Search(change_case(red.before, findings=findings), (), schemes=("fp16",))
    mending(tmp_path, [], 0, "").fall_back([red, green])
    assert red.recipe == recipe
    assert red.is_green is (recipe != Recipe())


LOSSY, CPU_NODE = QUANTIZED_BADLY.find("not quantized well"), ON_CPU.find("1 node falls back")


@pytest.mark.parametrize(
    ("finding", "other_findings", "mixes", "schemes"),
    [
        (LOSSY, {}, True, ["16a8w", "fp16"]),
        (CPU_NODE, {}, False, ["16a8w", "fp16"]),
        (CPU_NODE, {"16a8w": CPU_NODE, "fp16": LOSSY}, False, ["fp16"]),
        (CPU_NODE, {"16a8w": CPU_NODE, "fp16": CPU_NODE}, False, []),
        (LOSSY, {"16a8w": CPU_NODE}, True, ["16a8w", "fp16"]),
    ],
)
def test_a_node_on_the_cpu_gets_no_precision_that_cannot_cure_it(
    tmp_path: Path,
    finding: Finding,
    other_findings: dict[str, Finding],
    mixes: bool,
    schemes: list[str],
) -> None:
    run = mending(tmp_path, [], 0, "")
    options: Any = run.setup.options
    options.policy = SimpleNamespace(**vars(LIMITS), models={}, schemes=["16a8w", "fp16"])
    cases = [mended(scheme, 10) for scheme in ("8a8w", *other_findings)]
    for case, case_finding in zip(cases, (finding, *other_findings.values()), strict=True):
        case.before = change_case(case.before, findings=(case_finding,))
    search = run.start(cases[0], cases)
    assert (search.faults, [*search.schemes]) == (mixes, schemes)


@pytest.mark.parametrize(("reached_db", "target_db"), [(5, 20), (17, 20), (21, 24)])
def test_a_mixture_should_reach_all_limits_or_more_than_before(
    tmp_path: Path, reached_db: float, target_db: float
) -> None:
    run = mending(tmp_path, [], 0, "")
    assert run.find_target(mended("8a8w", reached_db).spec, reached_db) == target_db


def test_a_node_of_several_operators_is_one_part_of_a_mixture() -> None:
    trials = MixTrials("n.py:f", Source("n.py:f"), (), Scheme.A8W8, Scheme.A16W8, "SM8650", 30, 9)
    parts = trials.make_parts([Unit(("add", "mul")), Unit(("mul", "relu"))], "node")
    assert [part.node for part in parts] == ["add", "mul", "relu"]


@pytest.mark.parametrize(
    ("selectable", "nodes"), [(None, ["add"]), ({"add": "sum"}, ["sum"]), ({}, [])]
)
def test_a_part_whose_node_the_quantizer_does_not_have_is_left_out(
    monkeypatch: pytest.MonkeyPatch, selectable: dict[str, str] | None, nodes: list[str]
) -> None:
    mask = (Operand((4, 4), False), Operand((4, 4), True, 1e9))
    steps = (
        Step("add", "add", mask, ("", ""), (4, 4)),
        Step("softmax", "softmax", (Operand((4, 4), False),), ("add",), (4, 4)),
    )
    trials = FaultTrials(
        "n.py:f", Source("n.py:f"), ("r",), Scheme.A8W8, "SM8650", (Scheme.FP16,), ()
    )
    monkeypatch.setattr(FaultTrials, "describe", lambda _: (steps, [], selectable))
    assert [part.node for parts in trials() for part in parts if part.node != "softmax"] == nodes


@pytest.mark.parametrize(
    ("reference", "scheme", "mixes"),
    [
        ("net.py:factory", "8a8w", True),
        ("net.py:factory", "16a4w_block", False),
        ("net.onnx", "u8", True),
        ("net.onnx", "u16a8w_channel", False),
        ("net.onnx", "fp16", False),
    ],
)
def test_a_scheme_with_a_finer_one_may_be_mixed_with_it(
    tmp_path: Path, reference: str, scheme: str, mixes: bool
) -> None:
    run = mending(tmp_path, [], 0, "")
    options: Any = run.setup.options
    options.policy = SimpleNamespace(**vars(LIMITS), models={}, schemes=[])
    case = mended(scheme, 10)
    case.spec = replace(case.spec, source=Source(reference))
    assert run.start(case).mixes == mixes


def test_a_search_ends_if_the_first_judgement_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = mending(tmp_path, [], 0, "")
    options = make_dataclass("Options", ["jobs", "timeout_s", "experiments"])(1, 9, None)
    fields = {**vars(run.setup), "options": options}
    run.setup = make_dataclass("Setup", fields)(**fields)  # type: ignore[assignment]
    monkeypatch.setattr("ci.mend.mending.CaseRun", lambda *_: None)
    monkeypatch.setattr("ci.mend.mending.run_cases", lambda *_: [])
    with pytest.raises(KeyboardInterrupt):
        run.run([mended("fp16", 40).spec])
