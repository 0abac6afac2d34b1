"""The search for the smallest part that is wrong, on machines that are wrong by rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ci.audit.localise_search import (
    MOST_BYTES,
    Cut,
    Departure,
    Laboratory,
    Mend,
    Operator,
    Search,
    Trial,
    minimize,
)

Rule = Callable[[Cut], Mapping[str, float]]
CHAIN = tuple(
    Operator(name=name, kind=name, inputs=inputs)
    for name, inputs in (("a", ()), ("b", ("a",)), ("c", ("b",)), ("d", ("c",)))
)


def depart(name: str, lost_db: float = 0.0, *, faithful: bool = False) -> Departure:
    return Departure(
        operator=name,
        reached_db=60 - lost_db,
        predicted_db=60,
        faithful=faithful or not lost_db,
    )


def search(
    loses: Rule,
    operators: Sequence[Operator] = CHAIN,
    outputs: Sequence[str] = ("d",),
    refuses: Callable[[Cut], bool | str] = lambda _: False,
    suspects: Sequence[Sequence[str]] = (),
    limit: int = 99,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[Any, list[Cut]]:
    """What is found on a machine whose programs lose so many dB per output, and what was tried."""

    def try_cut(cut: Cut) -> Trial:
        if reason := refuses(cut):
            return Trial(refused=reason if isinstance(reason, str) else "QNN refuses")
        lost = loses(cut)
        return Trial(tuple(depart(name, lost.get(name, 0.0)) for name in cut.outputs))

    laboratory = Laboratory(try_cut, limit, report)
    operators_by_name = {operator.name: operator for operator in operators}
    searched = Search(operators_by_name, tuple(outputs), laboratory, suspects)
    located = structs.asdict(searched.run())
    further = {"exposed": searched.exposed, "smallest": searched.smallest}
    return SimpleNamespace(**located, **further), [*laboratory.tried]


@pytest.mark.parametrize(
    ("lost_db", "faithful", "wrong"), [(5.9, False, False), (6, False, True), (40, True, False)]
)
def test_an_output_is_wrong_if_it_is_far_off_and_the_gate_rejects_it(
    lost_db: float, faithful: bool, wrong: bool
) -> None:
    assert depart("a", lost_db, faithful=faithful).wrong is wrong


def test_operators_are_dropped_until_no_further_round_drops_any() -> None:
    """The first round drops one operator at a time, the second two at once."""
    names = "abcdef"
    chain = [
        Operator(name=name, kind=name, inputs=tuple(names[:n][-1:])) for n, name in enumerate(names)
    ]
    wrong = {("a", *"bcdef"), (*"bcdef",), (*"cdef",), (*"ef",)}
    located, _ = search(lambda cut: {"f": 30.0 * (cut.operators in wrong)}, chain, ("f",))
    assert [operator.name for operator in located.part] == ["e", "f"]


def test_a_model_that_is_right_is_not_divided() -> None:
    located, tried = search(lambda _: {})
    assert len(tried) == 2  # the whole, and with all results exposed
    assert (located.first, located.smallest, located.part) == (None, None, ())


def test_a_model_that_is_wrong_only_with_all_results_exposed_is_shrunk_with_them() -> None:
    def loses(cut: Cut) -> dict[str, float]:
        return {"b": 40.0 * ({"b", "c", "d"} <= {*cut.outputs})}

    located, tried = search(loses)
    assert located.smallest
    assert {"b", "c", "d"} <= {*located.smallest.outputs}
    assert all(set(cut.outputs) <= set(cut.operators) for cut in tried)


def test_a_part_is_not_shrunk_if_most_of_the_departure_disappears() -> None:
    """c alone loses 15 dB of the 40 that b and c lose together."""

    def loses(cut: Cut) -> dict[str, float]:
        lost = 40.0 if {"b", "c"} <= {*cut.operators} else 15.0 if "c" in cut.operators else 0.0
        return {"d": lost, "c": lost}

    located, _ = search(loses)
    assert [operator.name for operator in located.part] == ["b", "c"]
    assert [(output.operator, output.excess_db) for output in located.part_outputs] == [("c", 40.0)]


def test_a_suspected_part_is_shrunk_within_itself() -> None:
    def loses(cut: Cut) -> dict[str, float]:
        return dict.fromkeys(("c", "d"), 40.0) if "c" in cut.operators else {}

    located, tried = search(loses, outputs=("c", "d"), suspects=[("c", "d")])
    assert [operator.name for operator in located.part] == ["c"]
    assert [len(cut.operators) for cut in tried[:3]] == [2, 4, 4]  # the suspect, and the whole
    assert all({"c", "d"} >= set(cut.operators) for cut in tried[3:])
    assert len(tried) > 3


def test_results_too_large_for_one_program_are_exposed_in_several_halved_programs() -> None:
    """These programs do not count as refused by QNN, however often they are halved."""
    large = [Operator(name=name, kind=name, size_bytes=MOST_BYTES // 2 + 1) for name in "abcdefghi"]
    located, tried = search(lambda _: {}, large, outputs=("i",))
    assert max(len(cut.outputs) for cut in tried) == 2
    assert {departure.operator for departure in located.exposed} == {*"abcdefghi"}


@pytest.mark.parametrize(("wrong", "hidden"), [("f", 3), ("c", 8)])
def test_after_a_refusal_results_that_depend_on_a_wrong_one_are_not_exposed(
    wrong: str, hidden: int
) -> None:
    """QNN refuses more than three exposed results, and the result of "c", which may have a known
    fault."""

    def refuses(cut: Cut) -> bool:
        return len(cut.outputs) > 3 or ("c" in cut.outputs and len(cut.operators) > 1)

    located, _ = search(
        lambda _: dict.fromkeys((wrong, "i"), 40.0),
        [Operator(name=name, kind=name) for name in "abcdefghi"],
        ("i",),
        refuses,
        [("c",)],
    )
    assert located.first
    assert (located.first.name, located.not_compared) == (wrong, hidden)


def test_a_search_stops_exposing_results_after_three_refusals() -> None:
    operators = [Operator(name=name, kind=name) for name in "abcdefghi"]
    located, tried = search(
        lambda _: {}, operators, outputs=("i",), refuses=lambda cut: len(cut.outputs) > 1
    )
    assert [len(cut.outputs) - 1 for cut in tried] == [0, 8, 4, 2]
    assert (located.exposed, located.first, located.ended) == ((), None, "")
    assert [output.operator for output in located.outputs] == ["i"]


DIES = "QNN refuses 'n0'"
# Why parts are refused, which contain these operators; what is found, and the most programs.
REFUSALS: dict[str, tuple[dict[str, str], str, str, int]] = {
    "one operator": ({"c": DIES}, "c", "", 5),
    "two together": ({"bc": DIES}, "bc", "", 8),
    "only the whole": ({"abcd": DIES}, "", "no smaller part is refused so", 8),
    "parts for another reason": ({"abcd": DIES, "c": "it dies"}, "", "no smaller part", 8),
    "another name in the reason": ({"abcd": DIES, "c": "QNN refuses 'n7'"}, "c", "", 5),
    "a limit": ({"c": "it did not end within 60 s"}, "", "each may take as long", 1),
    "nothing taken": ({"": "QNN takes no operator of the model"}, "", "", 1),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_graph_that_qnn_refuses_is_shrunk(name: str) -> None:
    reasons, part, ended, most = REFUSALS[name]

    def refuse(cut: Cut) -> str:
        fitting = (reasons[key] for key in reasons if {*key} <= {*cut.operators})
        return next(fitting, "")

    located, tried = search(lambda _: {}, refuses=refuse)
    assert (located.outputs, located.first) == ((), None)
    assert "".join(operator.name for operator in located.part) == part
    assert (located.smallest is None) is (not part)
    assert "no program that runs: " in located.ended
    assert ended in located.ended
    assert len(tried) <= most


def test_a_refused_suspect_is_shrunk_first() -> None:
    refuses = lambda cut: DIES if "c" in cut.operators else ""  # noqa: E731
    located, tried = search(lambda _: {}, refuses=refuses, suspects=["cd"])
    assert [operator.name for operator in located.part] == ["c"]
    assert [len(cut.operators) for cut in tried] == [2, 4, 1, 1]


def test_the_limit_ends_the_search_for_a_refusal() -> None:
    refuses = lambda cut: DIES if "c" in cut.operators else ""  # noqa: E731
    located, tried = search(lambda _: {}, refuses=refuses, limit=2)
    assert len(tried) == 2
    assert "the limit of 2 programs" in located.ended


@pytest.mark.parametrize("limit", range(1, 9))
def test_a_search_that_reaches_its_limit_reports_what_it_has_found(limit: int) -> None:
    """c is wrong only together with b, so a complete search takes more programs than the smallest
    limit."""

    def loses(cut: Cut) -> dict[str, float]:
        return dict.fromkeys(("c", "d"), 40.0 * ({"b", "c"} <= {*cut.operators}))

    complete, needed = search(loses)
    located, tried = search(loses, limit=limit)
    assert tried == needed[:limit]
    assert located.outputs == complete.outputs
    assert located.ended == (
        ""
        if limit >= len(needed)
        else f"the limit of {limit} program{'s' * (limit != 1)} (--limit) is reached"
    )
    wrong = [cut for cut in tried if {"b", "c"} <= {*cut.operators}]
    if limit > 2:  # the whole, and with all results exposed
        assert located.first == complete.first
    if located.smallest:
        assert located.smallest in wrong
        assert [operator.name for operator in located.part] == [*located.smallest.operators]


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_minimize_finds_the_needed_items_in_few_tries(size_and_needed: Any) -> None:
    size, needed = size_and_needed
    tried: list[list[int]] = []

    def holds(items: Sequence[int]) -> bool:
        tried.append([*items])
        return needed <= {*items}

    minimal = minimize(range(size), holds)
    assert minimal == sorted(needed) or (not needed and len(minimal) == 1)
    assert len(tried) <= 2 * (len(needed) + 1) * (size.bit_length() + 1) + 2 * len(minimal) ** 2


def quantized(name: str, **fields: object) -> Operator:
    return Operator(name=name, kind=str(fields.pop("kind", name)), **fields)  # type: ignore[arg-type]


def test_only_operators_that_join_results_are_named_for_a_shared_range() -> None:
    shared = (-1.0, 1.0)
    operators = [
        quantized("key", range=shared),
        quantized("other", range=(-2.0, 2.0)),
        quantized("like", range=shared),
        quantized("stack", range=shared, inputs=("key", "other")),
    ]
    located, _ = search(
        lambda cut: {"key": 40.0 * ("key" in cut.operators)}, operators, ("key", "stack")
    )
    assert [operator.name for operator in located.part] == ["key"]
    assert [operator.name for operator in located.sharing] == ["stack"]


@pytest.mark.parametrize(
    ("bias_off", "refused", "mended"),
    [
        (0.5, False, (Mend.BIASES,)),
        (0.5, True, ()),
        (0.0, False, None),
        (1e-4, False, None),
        (2e-4, False, (Mend.BIASES,)),
    ],
    ids=["cause", "refused", "in its scale", "rounded", "more than rounded"],
)
def test_a_bias_is_blamed_only_if_correcting_its_scale_makes_the_program_right(
    bias_off: float, refused: bool, mended: tuple[Mend, ...] | None
) -> None:
    operators = [quantized("linear", bias_off=bias_off)]
    located, tried = search(
        lambda cut: {"linear": 0.0 if cut.mended else 40.0},
        operators,
        ("linear",),
        refuses=lambda cut: refused and bool(cut.mended),
    )
    assert located.mended_by == (mended or ())
    assert any(cut.mended for cut in tried) is (mended is not None)


@pytest.mark.parametrize(
    ("refused", "exposed_db", "cured"),
    [(False, 0.0, ["b"]), (False, 40.0, ["b"]), (True, 0.0, [])],
    ids=["right", "wrong itself", "refused"],
)
def test_exposing_a_result_is_a_cure_if_it_makes_the_outputs_of_the_part_right(
    refused: bool, exposed_db: float, cured: list[str]
) -> None:
    """c is wrong as long as b is computed in the same program and not returned."""

    def loses(cut: Cut) -> dict[str, float]:
        fused = {"b", "c"} <= {*cut.operators} and "b" not in cut.outputs
        return {
            "c": 40.0 * fused,
            "d": 40.0 * fused,
            "b": exposed_db if "c" in cut.operators else 0.0,
        }

    located, _ = search(
        loses, refuses=lambda cut: refused and "b" in cut.outputs and len(cut.operators) < 4
    )
    assert [operator.name for operator in located.part] == ["b", "c"]
    assert [operator.name for operator in located.cured_by] == cured


def test_a_part_is_cured_if_each_of_its_outputs_is_right() -> None:
    """c and d are outputs; exposing a mends c, exposing b mends d, and both are needed."""
    operators = [
        Operator(name=name, kind=name, inputs=inputs)
        for name, inputs in (("a", ()), ("b", ()), ("c", ("a", "b")), ("d", ("a", "b")))
    ]

    def loses(cut: Cut) -> dict[str, float]:
        returns_both = len(cut.operators) == 4 and {"c", "d"} <= {*cut.outputs}
        return {
            "c": 40.0 * (returns_both and "a" not in cut.outputs),
            "d": 40.0 * (returns_both and "b" not in cut.outputs),
        }

    located, _ = search(loses, operators, ("c", "d"))
    assert [operator.name for operator in located.part] == ["a", "b", "c", "d"]
    assert [operator.name for operator in located.cured_by] == ["a", "b"]
    assert [reader.name for reader in located.readers] == ["c"]
    assert [output.wrong for output in located.part_outputs] == [True, True]
