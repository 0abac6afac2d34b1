"""Links of the README and docs/: relative ones, headings included, and those to other hosts.

Whether a page of another host is still there is asked every night.
"""

from __future__ import annotations

import itertools
import re
import socket
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
ANSWER_S, GONE = 20.0, {404, 410}
# Vendors, and the projects that a page names.
HOSTS = {
    "abseil.io", "ai.google.dev", "app.aihub.qualcomm.com", "bazel.build", "buck2.build",
    "clang.llvm.org", "cmake.org", "developer.android.com", "developer.apple.com", "docs.astral.sh",
    "docs.docker.com", "docs.github.com", "docs.gradle.org", "docs.kernel.org", "docs.oracle.com",
    "docs.pydantic.dev", "docs.python.org", "docs.pytorch.org", "docs.qualcomm.com",
    "docs.unity3d.com", "docs.yoctoproject.org", "download.pytorch.org", "download.samba.org",
    "gcc.gnu.org", "git-scm.com", "github.com", "gstreamer.freedesktop.org", "huggingface.co",
    "in-toto.io", "jumpstarter.dev", "learn.microsoft.com", "lld.llvm.org", "man7.org",
    "manpages.ubuntu.com", "musl.libc.org", "mutmut.readthedocs.io", "ninja-build.org",
    "onnxruntime.ai", "pip.pypa.io", "pytorch.org", "quic.github.io", "review.coreboot.org",
    "snapcraft.io", "source.android.com", "sourceware.org", "www.gnu.org", "www.qualcomm.com",
    "www.sudo.ws",
}  # fmt: skip


@cache
def tokens_of(text: str) -> tuple[Token, ...]:
    tokens: list[Token] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        tokens += [token, *(token.children or [])]
    return tuple(tokens)


def targets_of(text: str) -> list[str]:
    targets = (token.attrs.get("href") or token.attrs.get("src") for token in tokens_of(text))
    return [str(target) for target in targets if target]


def links_of(text: str) -> list[str]:
    return [target for target in targets_of(text) if not urlsplit(target).scheme]


def list_outside() -> list[str]:
    """The links of all pages to other hosts, each once."""
    targets = (target for page in PAGES for target in targets_of(page.read_text(encoding="utf-8")))
    return sorted({target for target in targets if urlsplit(target).scheme})


def find_strange(links: Iterable[str]) -> list[str]:
    """Links that are not https, or whose host is not listed in HOSTS."""
    parts = ((link, urlsplit(link)) for link in links)
    return [
        link
        for link, parts_of_link in parts
        if parts_of_link.scheme != "https" or parts_of_link.netloc not in HOSTS
    ]


def find_dead(links: Iterable[str]) -> dict[str, str]:
    """Links to pages that are gone or whose host does not answer, with the reason."""
    all_links = list(links)
    with ThreadPoolExecutor(8) as pool:
        reasons = zip(all_links, pool.map(_ask, all_links), strict=True)
        return {link: reason for link, reason in reasons if reason}


def _ask(link: str) -> str:
    """Why a page cannot be reached, asked up to twice; empty if its host answers anything but GONE.

    A host may refuse HEAD, or refuse to answer a program.
    """
    reason = ""
    for method in ("HEAD", "GET"):
        request = Request(link, method=method, headers={"User-Agent": "Mozilla/5.0"})
        try:
            with urlopen(request, timeout=ANSWER_S):
                return ""
        except HTTPError as error:
            reason = f"status {error.code}" if error.code in GONE else ""
        except (OSError, HTTPException) as error:
            reason = str(error)
    return reason


@cache  # many links lead to one page
def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    pairs = itertools.pairwise(tokens_of(text))
    titles = [after.content.lower() for token, after in pairs if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in titles}


def leads_somewhere(link: str, page: Path) -> bool:
    parts = urlsplit(link)
    target = page.parent / unquote(parts.path) if parts.path else page
    if not target.exists():
        return False
    if not parts.fragment or target.suffix != ".md":
        return True
    return parts.fragment in anchors_of(target.read_text(encoding="utf-8"))


def broken_links(page: Path) -> list[str]:
    links = links_of(page.read_text(encoding="utf-8"))
    return [link for link in links if not leads_somewhere(link, page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {index.parent / link for link in links_of(index.read_text("utf-8"))}
    assert {index, *listed} >= {page for page in PAGES if page.parent != ROOT}


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A head: line\n[a](page.md#a-head-line) [b](page.md#other) [c](gone.md) ![d](d.png)\n"
        "[e](https://example.org) `[f](code.md)`\n"
    )
    assert broken_links(page) == ["page.md#other", "gone.md", "d.png"]


def test_every_schema_is_on_the_page_of_schemas() -> None:
    page = ROOT / "docs/reference/sessions.md"
    linked = {Path(link).name for link in links_of(page.read_text(encoding="utf-8"))}
    assert {path.name for path in (ROOT / "docs/schemas").iterdir()} <= linked


def test_links_to_other_hosts_are_https_and_lead_to_known_hosts() -> None:
    links = list_outside()
    assert find_strange(links) == []
    assert {urlsplit(link).netloc for link in links} == HOSTS


def test_a_link_to_an_unknown_or_insecure_host_is_found() -> None:
    strange = ["http://github.com/a", "https://github.com.example.org/b", "ftp://github.com/c"]
    assert find_strange(["https://github.com/d", *strange]) == strange


@pytest.mark.nightly
def test_linked_pages_of_other_hosts_exist() -> None:
    try:
        socket.getaddrinfo("github.com", 443)
    except OSError as error:
        pytest.skip(f"this machine does not reach github.com: {error}")
    assert find_dead(list_outside()) == {}


class Host(BaseHTTPRequestHandler):
    """A path is the status of its answers; ``get`` refuses HEAD, ``moved`` leads to 200."""

    def do_HEAD(self) -> None:
        word = self.path.strip("/")
        status = {"get": 405, "moved": 301}.get(word) or int(word)
        self.send_response(status)
        self.send_header("Location", "/200")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.path = self.path.replace("get", "200")
        self.do_HEAD()

    def log_message(self, *_: object) -> None: ...


def test_a_dead_external_link_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ANSWER_S", 5.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Host) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        words = ("200", "moved", "get", "403", "429", "503", "404", "410")
        dead = find_dead(f"{base}/{word}" for word in words)
        server.shutdown()
    assert dead == {f"{base}/404": "status 404", f"{base}/410": "status 410"}
    (reason,) = find_dead([f"{base}/200"]).values()  # the server has ended
    assert "refused" in reason
