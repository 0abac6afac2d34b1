"""What a plan is made of, when a push runs everything, and how it is shown."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from ci.verbs.plan import find_base
from provisioning.errors import UsageError


@pytest.mark.parametrize(
    ("event", "counts", "everything"),
    [
        ("push", (9, 10), "this is due every 10 commits of main, here at commit 10"),
        ("push", (10, 19), ""),
        ("push", (3, 25), "this is due every 10 commits of main, here at commit 10"),
        ("pull_request", (9, 10), ""),
        ("", (9, 10), ""),
    ],
)
def test_one_in_so_many_commits_of_a_push_runs_everything(
    event: str, counts: tuple[int, int], everything: str
) -> None:
    for head in ("head", ""):
        numbers = dict(zip(("base", head or "HEAD"), counts, strict=True))
        repository: Any = SimpleNamespace(
            find_base=lambda base, head, wanted=head: base if head == wanted else "",
            count_commits=numbers.__getitem__,
            rules=SimpleNamespace(branch="main", every_nth=10),
        )
        args = Namespace(base="base", event=event)
        assert find_base(args, repository, head) == ("base", everything)


@pytest.mark.parametrize("event", ["push", "pull_request", ""])
def test_only_a_push_without_its_base_runs_everything(event: str) -> None:
    def fail(*_: str) -> str:
        raise UsageError("gone")

    repository: Any = SimpleNamespace(find_base=fail, resolve=lambda one: f"{one}!")
    args = Namespace(base="0123456789abcdef", event=event)
    if event == "push":
        for head, found in (("", "HEAD!"), ("topic", "topic!")):
            base, why = find_base(args, repository, head)
            assert (base, "0123456789ab cannot" in why) == (found, True)
        return
    with pytest.raises(UsageError):
        find_base(args, repository, "")
