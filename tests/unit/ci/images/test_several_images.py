"""`image` with several names: each is told, and each can fail the call."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from ci.images.build import Built
from ci.images.digest import Comparison
from ci.images.prune import Stale
from ci.verbs import image as verb
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode

CLIENT: Any = None


@pytest.mark.parametrize("equal", [(True, True), (False, True), (True, False)])
def test_one_image_of_several_that_differs_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, equal: tuple[bool, bool]
) -> None:
    answers = dict(zip(("aot", "emulator"), equal, strict=True))

    def compare(_client: Any, name: str, *_: Any, base: str) -> Comparison:
        assert base == "own"
        return Comparison(name, ("a", "a" if answers[name] else "b"), 3, {})

    monkeypatch.setattr(verb, "compare_builds", compare)
    args = Namespace(words=[*answers], check=True, base="own")
    outcome = verb._digest(CLIENT, args, Progress())
    assert (outcome.exit_code == ExitCode.OK) is all(equal)
    assert [(row["name"], row["equal"]) for row in outcome.data["images"]] == [*answers.items()]


def test_digests_of_several_images_are_told_each_with_its_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        verb, "build_image", lambda _, name, *__, **___: Built(name, f"id-{name}", 1, fresh=True)
    )
    monkeypatch.setattr(
        verb, "describe_digest", lambda _, one: {"diff_ids": [f"{one.reference}-1", "2"]}
    )
    outcome = verb._digest(CLIENT, Namespace(words=["a", "b"], check=False, base=""), Progress())
    rows = [line.split()[-1] for line in outcome.text.splitlines()]
    assert rows == ["a", "id-a", "a-1", "2", "b", "id-b", "b-1", "2"]
    assert outcome.exit_code == ExitCode.OK


@pytest.mark.parametrize(
    ("sizes", "code"),
    [
        ((100_000_000, 1), ExitCode.OK),
        ((100_000_000, 101_000_000), ExitCode.FAILED),
        ((101_000_000, 1), ExitCode.FAILED),
    ],
)
def test_each_image_has_a_budget_in_megabytes(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int], code: ExitCode
) -> None:
    left = [*sizes]
    plan = SimpleNamespace(image=SimpleNamespace(budget_mb=100))
    monkeypatch.setattr(verb, "plan_image", lambda *_: plan)
    monkeypatch.setattr(
        verb, "build", lambda _, name, *__: Built(name, "i", left.pop(0), fresh=False)
    )
    args = Namespace(words=["aot", "emulator"], base="", with_toolchains=False, push="")
    outcome = verb._build(CLIENT, args, Progress())
    assert outcome.exit_code == code
    assert [row["size_mb"] for row in outcome.data["images"]] == [round(one / 1e6) for one in sizes]
    assert outcome.text.count("over its budget") == sum(one > 100_000_000 for one in sizes)


def test_every_lock_that_differs_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    diffs = {"a": "", "b": "-1\n", "c": "+2\n"}
    monkeypatch.setattr(verb, "write_locks", lambda _, name, *__, **___: diffs[name])
    args = Namespace(words=[*diffs], base="", write=False)
    assert verb._lock(CLIENT, args, Progress()).text == "-1\n+2\n"
    args.words = ["a"]
    assert "up to date" in verb._lock(CLIENT, args, Progress()).text


@pytest.mark.parametrize(("dry", "told"), [(True, "would be removed"), (False, "removed")])
def test_what_prune_removes_is_told_in_megabytes(
    monkeypatch: pytest.MonkeyPatch, dry: bool, told: str
) -> None:
    stale = [Stale("image", "a", 2_000_000_000), Stale("volume", "b")]
    monkeypatch.setattr(verb, "read_images", lambda: SimpleNamespace(images={}, bases={}))
    monkeypatch.setattr(verb, "find_bases", lambda _: set())
    monkeypatch.setattr(verb, "find_stale", lambda *_: stale)
    monkeypatch.setattr(verb, "remove_stale", lambda _, found: found[:1])
    outcome = verb._prune(CLIENT, Namespace(base="", dry_run=dry), Progress())
    lines = [f"{told}: image a 2000 MB", f"{told}: volume b 0 MB"]
    assert outcome.text.splitlines() == (lines if dry else lines[:1])
    assert (outcome.data["dry_run"], len(outcome.data["stale"])) == (dry, 1 + dry)
