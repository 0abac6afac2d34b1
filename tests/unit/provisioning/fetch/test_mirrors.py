"""The user's mirror in each of its forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.errors import UnfitError
from provisioning.fetch.download import mirror_urls


def urls(mirror: str, name: str = "a.zip", sha256: str = "") -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QNN_CI_MIRROR", mirror)
        return mirror_urls(name, sha256)


def test_a_directory_of_a_home_or_of_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert urls("~/m") == ["file:///home/me/m/a.zip"]
    assert urls("m") == [f"{Path.cwd().as_uri()}/m/a.zip"]
    assert urls("/m//") == ["file:///m/a.zip"]
    monkeypatch.setenv("QNN_CI_CALLER_DIR", "/caller")
    assert urls("m") == ["file:///caller/m/a.zip"]
    assert urls("/X/") == ["file:///X/a.zip"]
    assert urls("/m/{sha256}", sha256="5e") == ["file:///m/5e"]


@pytest.mark.parametrize(
    ("mirror", "url"),
    [
        ("https://h/c/{filename}?sv=1&sig=a%2Fb", "https://h/c/a%20b.zip?sv=1&sig=a%2Fb"),
        ("https://h/c?sig=x", "https://h/c/a%20b.zip?sig=x"),
        ("https://h/get?file={filename}", "https://h/get?file=a%20b.zip"),
        ("/m/{filename}", "file:///m/a%20b.zip"),
        ("https://h/v2/me/sdks/blobs/sha256:{sha256}", "https://h/v2/me/sdks/blobs/sha256:5e"),
        ("/m i/{sha256}/{filename}", "file:///m%20i/5e/a%20b.zip"),
        ("https://h/m/", "https://h/m/a%20b.zip"),
    ],
)
def test_a_mirror_may_be_a_template_or_have_a_query(mirror: str, url: str) -> None:
    assert urls(mirror, "a b.zip", "5e") == [url]


def test_every_place_in_a_template_is_filled() -> None:
    template = "https://h/{filename}/{sha256}/{filename}"
    assert urls(template, sha256="5e") == ["https://h/a.zip/5e/a.zip"]
    assert urls(template) == []
    assert urls("https://h/{filename}") == ["https://h/a.zip"]
    assert urls("https://h/{other}") == ["https://h/{other}/a.zip"]
    assert urls("https://h/m?q=1#f", "a+b.zip") == ["https://h/m/a%2Bb.zip?q=1#f"]


@pytest.mark.parametrize("mirror", ["~nobody-has-this-name/x", "https://[::1/x"])
def test_what_is_no_mirror_is_said(mirror: str) -> None:
    with pytest.raises(UnfitError) as caught:
        urls(mirror)
    assert caught.value.what == "QNN_CI_MIRROR is neither a directory nor a URL"
    assert "qnn-ci fetch NAME --to DIR" in caught.value.fix
    assert caught.value.why
    assert caught.value.why != "None"


def test_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_MIRROR", "/m")
    assert mirror_urls("a.zip") == ["file:///m/a.zip"]
    monkeypatch.delenv("QNN_CI_MIRROR")
    assert mirror_urls("a.zip") == []
