"""When a push runs everything."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from ci.verbs.plan import find_base
from provisioning.errors import UsageError


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
