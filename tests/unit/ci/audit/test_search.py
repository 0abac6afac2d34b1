"""The search for the smallest part that is wrong, on machines that are wrong by rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from ci.audit.localise_search import (
    MOST_BYTES,
    Cut,
    Departure,
    Laboratory,
    Located,
    Mend,
    Operator,
    Search,
    Trial,
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
    refuses: Callable[[Cut], bool] = lambda _: False,
    suspects: Sequence[Sequence[str]] = (),
) -> tuple[Located, list[Cut]]:
    """What is found on a machine whose programs lose so many dB per output, and what was tried."""

    def try_cut(cut: Cut) -> Trial:
        if refuses(cut):
            return Trial(refused="QNN refuses")
        lost = loses(cut)
        return Trial(tuple(depart(name, lost.get(name, 0.0)) for name in cut.given))

    laboratory = Laboratory(try_cut, 99)
    known = {one.name: one for one in operators}
    return Search(known, tuple(outputs), laboratory, suspects).run(), [*laboratory.tried]


@pytest.mark.parametrize(
    ("lost_db", "faithful", "wrong"), [(5.9, False, False), (6, False, True), (40, True, False)]
)
def test_an_output_is_wrong_if_it_is_far_off_and_the_gate_rejects_it(
    lost_db: float, faithful: bool, wrong: bool
) -> None:
    assert depart("a", lost_db, faithful=faithful).wrong is wrong


def test_the_worst_output_of_a_part_is_the_one_that_loses_most() -> None:
    worst = Trial((depart("a", 10), depart("b", 30), depart("c", 50, faithful=True))).worst
    assert worst
    assert worst.operator == "b"


def test_an_operator_is_named_with_its_line_and_module() -> None:
    assert str(Operator(name="n", kind="linear", line="net.py:3", module="head")) == (
        "linear [net.py:3] of head"
    )
    assert str(Operator(name="n", kind="linear")) == "linear"


def test_each_program_is_told_once_with_how_it_ended() -> None:
    told: list[str] = []
    trials = {
        ("a",): Trial((depart("a"),)),
        ("b",): Trial((depart("b", 20),)),
        ("c",): Trial(refused="QNN refuses\nmore"),
    }
    laboratory = Laboratory(lambda cut: trials[cut.given], 9, told.append)
    for name in ("a", "b", "c", "a"):
        laboratory.measure(Cut(("a", "b"), (name,)), f"up to {name}")
    first, second, third = told
    assert first.strip() == "[1/9] up to a (2 operators, 1 outputs): right"
    assert "40.0 dB" in second
    assert "60.0 predicted" in second
    assert third.endswith("QNN refuses")


def test_a_model_that_is_right_is_not_divided() -> None:
    found, tried = search(lambda _: {})
    assert len(tried) == 2  # the whole, and with all results exposed
    assert (found.first, found.smallest, found.part) == (None, None, ())


def test_a_model_that_is_wrong_only_with_all_results_exposed_is_shrunk_with_them() -> None:
    def loses(cut: Cut) -> dict[str, float]:
        return {"b": 40.0 * ({"b", "c", "d"} <= {*cut.given})}

    found, tried = search(loses)
    assert found.smallest
    assert {"b", "c", "d"} <= {*found.smallest.given}
    assert all(set(one.given) <= set(one.kept) for one in tried)


def test_a_part_that_keeps_little_of_the_departure_is_too_small() -> None:
    """c alone loses 15 dB of the 40 that b and c lose together."""

    def loses(cut: Cut) -> dict[str, float]:
        lost = 40.0 if {"b", "c"} <= {*cut.kept} else 15.0 if "c" in cut.kept else 0.0
        return {"d": lost, "c": lost}

    found, _ = search(loses)
    assert [one.name for one in found.part] == ["b", "c"]
    assert [(one.operator, one.excess_db) for one in found.departures] == [("c", 40.0)]


def test_a_suspected_part_is_shrunk_within_itself() -> None:
    def loses(cut: Cut) -> dict[str, float]:
        return dict.fromkeys(("c", "d"), 40.0) if "c" in cut.kept else {}

    found, tried = search(loses, outputs=("c", "d"), suspects=[("c", "d")])
    assert [one.name for one in found.part] == ["c"]
    start = next(index for index, one in enumerate(tried) if set(one.kept) == {"c", "d"})
    assert all({"c", "d"} >= set(one.kept) for one in tried[start:])
    assert len(tried) > start + 1


def test_a_part_gives_its_outputs_even_if_it_reads_them_itself() -> None:
    """b is an output of the model, and wrong as long as c, which reads it, is in the part."""

    def loses(cut: Cut) -> dict[str, float]:
        return {"b": 40.0 * ({"b", "c"} <= {*cut.kept})}

    found, _ = search(loses, outputs=("b", "d"))
    assert found.smallest
    assert set(found.smallest.kept) == {"b", "c"}
    assert "b" in found.smallest.given


def test_results_that_are_too_large_for_one_program_are_exposed_by_halves() -> None:
    large = [
        Operator(name=name, kind=name, size_bytes=MOST_BYTES // 2 + 1) for name in ("a", "b", "c")
    ]
    found, tried = search(lambda _: {}, large, outputs=("c",))
    assert max(len(one.given) for one in tried) == 2
    assert {one.operator for one in found.exposed} == {"a", "b", "c"}


def quantized(name: str, **fields: object) -> Operator:
    return Operator(name=name, kind=str(fields.pop("kind", name)), **fields)  # type: ignore[arg-type]


def test_only_what_joins_results_is_named_for_its_range() -> None:
    shared = (-1.0, 1.0)
    operators = [
        quantized("key", range=shared),
        quantized("other", range=(-2.0, 2.0)),
        quantized("like", range=shared),
        quantized("stack", range=shared, inputs=("key", "other")),
    ]
    found, _ = search(lambda cut: {"key": 40.0 * ("key" in cut.kept)}, operators, ("key", "stack"))
    assert [one.name for one in found.part] == ["key"]
    assert [one.name for one in found.sharing] == ["stack"]


@pytest.mark.parametrize(
    ("bias_off", "refused", "mended"),
    [(0.5, False, (Mend.BIASES,)), (0.5, True, ()), (0.0, False, None)],
    ids=["cause", "refused", "in its scale"],
)
def test_a_bias_is_the_cause_if_its_scale_is_another_and_a_right_one_helps(
    bias_off: float, refused: bool, mended: tuple[Mend, ...] | None
) -> None:
    operators = [quantized("linear", bias_off=bias_off)]
    found, tried = search(
        lambda cut: {"linear": 0.0 if cut.mended else 40.0},
        operators,
        ("linear",),
        refuses=lambda cut: refused and bool(cut.mended),
    )
    assert found.mended_by == (mended or ())
    assert any(one.mended for one in tried) is (mended is not None)


@pytest.mark.parametrize(
    ("refused", "exposed_db", "cured"),
    [(False, 0.0, ["b"]), (False, 40.0, ["b"]), (True, 0.0, [])],
    ids=["right", "wrong itself", "refused"],
)
def test_an_exposure_cures_if_the_outputs_of_the_part_are_right_with_it(
    refused: bool, exposed_db: float, cured: list[str]
) -> None:
    """c is wrong as long as b is computed with it and not given."""

    def loses(cut: Cut) -> dict[str, float]:
        fused = {"b", "c"} <= {*cut.kept} and "b" not in cut.given
        return {"c": 40.0 * fused, "d": 40.0 * fused, "b": exposed_db if "c" in cut.kept else 0.0}

    found, _ = search(loses, refuses=lambda cut: refused and "b" in cut.given and len(cut.kept) < 4)
    assert [one.name for one in found.part] == ["b", "c"]
    assert [one.name for one in found.cured_by] == cured


def test_a_suspect_that_is_right_alone_is_no_start() -> None:
    found, _ = search(lambda cut: {"d": 40.0 * ("d" in cut.kept)}, suspects=[("a", "b")])
    assert [one.name for one in found.part] == ["d"]
