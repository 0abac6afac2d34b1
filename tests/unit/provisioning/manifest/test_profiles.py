"""Profiles that are like another one."""

from __future__ import annotations

from provisioning.manifest.reader import Profile, ProfileArtifact


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
