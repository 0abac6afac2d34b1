"""What is reachable in a graph, compared with a search from each name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ci.parity.compare.groups import Graph
from ci.parity.facts import closure

NAME = st.sampled_from("abcdefghij")


@given(
    rows=st.dictionaries(NAME, st.sets(NAME, max_size=4)),
    starts=st.lists(st.sets(NAME, max_size=3)),
    other_names=st.sets(st.sampled_from("abcxyz")),
)
def test_graph_reach_agrees_with_a_plain_search(
    rows: dict[str, set[str]], starts: list[set[str]], other_names: set[str]
) -> None:
    graph = Graph(lambda name: rows.get(name, ()))
    for start in starts:
        expected = closure(start, lambda name: rows.get(name, ()))
        reached = graph.reach(start)
        assert ({*reached}, len(reached)) == (expected, len(expected))
        assert (other_names & reached, reached - other_names) == (
            other_names & expected,
            expected - other_names,
        )
        assert reached.isdisjoint(other_names) == expected.isdisjoint(other_names)
