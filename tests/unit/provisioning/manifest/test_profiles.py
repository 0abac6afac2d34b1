"""Profiles that are like another one."""

from __future__ import annotations

import pytest

from provisioning.errors import UsageError
from provisioning.manifest.reader import Profile, ProfileArtifact, read_profile, read_profiles


def test_what_a_profile_says_comes_before_what_the_one_says_that_it_is_like() -> None:
    base = Profile(
        "base",
        (ProfileArtifact("sdk", version="1"), ProfileArtifact("ndk", version="1")),
        {"A": "base", "B": "base"},
        ("HOME",),
    )
    own = Profile("own", (ProfileArtifact("sdk", version="2"),), {"B": "own"}, ("TERM",), "base")
    both = own.over(base)
    assert [(one.name, one.version) for one in both.artifacts] == [("sdk", "2"), ("ndk", "1")]
    assert both.variables == {"A": "base", "B": "own"}
    assert (both.summary, both.from_caller, both.like) == ("own", ("HOME", "TERM"), "base")


def test_a_word_changes_the_version_of_the_artifacts_that_it_names_and_nothing_else() -> None:
    plain = read_profile("android")
    assert plain == read_profiles()["android"]
    changed = read_profile("android+android-ndk@r99+qnn-sdk@9.9")
    before = {one.name: one.version for one in plain.artifacts}
    after = {one.name: one.version for one in changed.artifacts}
    assert after == {**before, "android-ndk": "r99", "qnn-sdk": "9.9"}
    assert (changed.variables, changed.like) == (plain.variables, "android")
    for wrong in ("android+torch@2", "android+qnn-sdk", "android+qnn-sdk@"):
        with pytest.raises(UsageError, match="ARTIFACT@VERSION"):
            read_profile(wrong)
    with pytest.raises(UsageError, match="no profile"):
        read_profile("none+qnn-sdk@1")
