"""The user's mirror in each of its forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.fetch.download import mirror_urls
from tests.build.fetch import outcome

HERE = Path.cwd().as_uri()


@pytest.mark.parametrize(
    ("mirror", "name", "sha256", "urls"),
    [
        (None, "a.zip", "", []),
        ("~/m", "a.zip", "", ["file:///home/me/m/a.zip"]),
        ("m", "a.zip", "", [f"{HERE}/m/a.zip"]),
        ("/m//", "a.zip", "", ["file:///m/a.zip"]),
        ("/m/{sha256}", "a.zip", "5e", ["file:///m/5e"]),
        ("/m i/{sha256}/{filename}", "a b.zip", "5e", ["file:///m%20i/5e/a%20b.zip"]),
        ("https://h/m/", "a b.zip", "5e", ["https://h/m/a%20b.zip"]),
        ("https://h/c?sig=x", "a b.zip", "5e", ["https://h/c/a%20b.zip?sig=x"]),
        ("https://h/m?q=1#f", "a+b.zip", "", ["https://h/m/a%2Bb.zip?q=1#f"]),
        ("https://h/g?f={filename}&s=a%2Fb", "a b", "5e", ["https://h/g?f=a%20b&s=a%2Fb"]),
        ("https://h/blobs/sha256:{sha256}", "a", "5e", ["https://h/blobs/sha256:5e"]),
        ("https://h/{filename}/{sha256}", "a", "", []),
        ("https://h/{other}", "a", "", ["https://h/{other}/a"]),
    ],
)
def test_a_mirror_is_a_directory_a_url_or_a_template(
    monkeypatch: pytest.MonkeyPatch, mirror: str | None, name: str, sha256: str, urls: list[str]
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("QNN_CI_MIRROR", raising=False)
    if mirror is not None:
        monkeypatch.setenv("QNN_CI_MIRROR", mirror)
    assert mirror_urls(name, sha256) == urls
    monkeypatch.setenv("QNN_CI_CALLER_DIR", "/caller")
    assert mirror_urls(name, sha256) == [url.replace(HERE, "file:///caller") for url in urls]


@pytest.mark.parametrize(
    ("mirror", "why"),
    [
        ("~nobody-has-this-name/x", "Could not determine home directory."),
        ("https://[::1/x", "Invalid IPv6 URL"),
    ],
)
def test_what_is_no_mirror_is_said(monkeypatch: pytest.MonkeyPatch, mirror: str, why: str) -> None:
    monkeypatch.setenv("QNN_CI_MIRROR", mirror)
    fix = "a directory that `qnn-ci fetch NAME --to DIR` filled, or to its URL, or unset it"
    assert str(outcome(lambda: mirror_urls("a.zip"))).splitlines() == [
        "UnfitError: QNN_CI_MIRROR is neither a directory nor a URL",
        f"  why: {why}",
        f"  fix: set it to {fix}",
    ]
