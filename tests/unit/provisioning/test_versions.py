"""Versions of packages, of tools and of vendors, compared by one rule."""

from __future__ import annotations

import pytest

from provisioning.versions import is_older, is_same, is_version, parse_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.13.0+cpu", "2.13.0+cpu"),
        ("1.5.0.dev20260101", "1.5.0.dev20260101"),
        ("2.37.0.250724", "2.37.0"),
        ("v2.37.0.250724175447_124859", "2.37.0"),
        ("v2.23.0.24.06.24", "2.23.0"),
        ("26.2.11394342", "26.2.11394342"),
        ("6.4.0.2", "6.4.0.2"),
        ("3.28.1-g1234", "3.28.1"),
        ("unknown", "0"),
        ("release 2.37", "0"),
        ("", "0"),
    ],
)
def test_a_version_is_read_without_a_vendors_date(text: str, version: str) -> None:
    assert str(parse_version(text)) == version


@pytest.mark.parametrize("text", ["2.43", "2.43.0.260128"])
def test_a_version_is_two_numbers_or_more(text: str) -> None:
    assert is_version(text)
    not_versions = (f"v{text}", f"{text}-rc1", f"/opt/{text}", f"{text}/", f"{text}.", f"{text}\n")
    assert not any(map(is_version, (*not_versions, "27", "", "pinned")))


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("2.9", "2.34"),
        ("2.37.0.250724", "2.39"),
        ("2.39.0.250101", "2.39.1"),
        ("6.4.0.1", "6.4.0.2"),
        ("26.1.10909125", "26.2.11394342"),
        ("2.14.0.dev20260101", "2.14.0"),
        ("unknown", "2.39"),
    ],
)
def test_an_older_version_sorts_before_a_newer_one(older: str, newer: str) -> None:
    assert is_older(older, newer)
    assert not is_older(newer, older)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("13", "13.0"),
        ("2.39.0", "2.39.0.250926"),
        ("2.37.0.250724", "v2.37.0.250724175447_124859"),
    ],
)
def test_two_spellings_of_one_version_are_equal(left: str, right: str) -> None:
    assert is_same(left, right)
    assert not is_older(left, right)
    assert not is_older(right, left)


@pytest.mark.parametrize(
    "text", ["2.13.0+cpu", "2.13.0a0", "2.13.0rc1", "2.13.0.post1", "2.13.0.dev20260101", "2.13"]
)
def test_a_suffix_does_not_make_another_release(text: str) -> None:
    assert is_same(text, "2.13.0")
    assert is_same("2.13.0", text)
    assert not is_same(text, "2.13.1")


def test_versions_with_different_numbers_are_different_releases() -> None:
    assert not is_same("2.48.40", "2.49.40")
