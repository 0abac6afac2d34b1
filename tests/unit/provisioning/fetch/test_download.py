"""One file from its URLs: each answer at its limit, and what is left on disk afterwards."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning.console.progress import Progress
from provisioning.errors import IntegrityError
from provisioning.fetch import download
from provisioning.fetch.download import PAGE_BYTES, SPARE_BYTES, Pin, fetch_file, mirror_urls
from provisioning.fetch.part_file import PartFile
from tests.build.fetch import (
    DATA,
    ONCE,
    PIN,
    QUICK,
    SHA256,
    SIZE,
    UNKNOWN,
    Story,
    fetch,
    names_in,
    outcome,
    piece,
    resumed,
    unsized,
)
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer, Fault
from tests.stand_ins.snapshots import check_snapshot

WRONG = b"x" + DATA[1:]
CUT = bad.cut(0.5)


def refuse(path: Path) -> None:
    raise IntegrityError("a.zip is wrong", why="it is no archive")


STORIES = {
    "a file that is there": Story(),
    "the first URL that has it gives it": Story(
        urls=["none?sig=secret", "wrong?sig=secret", "good?sig=secret", "never"],
        files={"good": DATA, "wrong": WRONG, "never": DATA},
    ),
    "nobody has it": Story(urls=["none", "other"]),
    "nobody has it, and one has another": Story(urls=["b", "none"], files={"b": DATA[:-1]}),
    "there is no URL": Story(urls=[]),
    "an absurd size": Story(
        [bad.whole(length=1 << 50)] * 9, Pin(sha256=SHA256), ["a", "b"], {"b": DATA}
    ),
    "an absurd size, and nobody else has it": Story(
        [bad.whole(length=1 << 50)] * 9, UNKNOWN, ["a", "none"]
    ),
    "who asks for patience is asked last": Story(
        [bad.status(503, Retry_After="2"), bad.status(503, Retry_After="3")], urls=["a", "none"]
    ),
    "who asks for patience is asked once more": Story(
        [bad.status(503, Retry_After="9")] * 9, urls=["a", "none"]
    ),
    "a cut, all pinned": Story([CUT]),
    "a cut, nothing pinned": Story([CUT], UNKNOWN),
    "a cut, the size pinned": Story([CUT], Pin(SIZE)),
    "a cut, the hash pinned": Story([CUT], Pin(0, SHA256)),
    "a cut of an earlier process": Story(before=[CUT]),
    "a cut, and the rest is as long as is not said": Story(
        [CUT, resumed(piece(sized=False, Content_Range="bytes 50000-99999/*"))]
    ),
    "a cut, and the whole instead of the rest": Story([CUT, bad.whole()]),
    "a cut, and the rest begins elsewhere, always": Story(
        [resumed(bad.part(-5))] * 9, before=[CUT]
    ),
    "a cut, and the rest is of another ETag": Story([CUT, resumed(bad.part(ETag='"w"'))]),
    "a cut, and the rest is of another total": Story(
        [CUT, resumed(bad.part(Content_Range="bytes 50000-99999/100001"))]
    ),
    "a cut, and the rest is not there": Story([CUT, bad.status(404)]),
    "a cut of a longer file": Story(before=[bad.cut(0.9)], old=DATA + DATA, pin=UNKNOWN),
    "a part that is not what came": Story(before=[CUT, CUT], edit=lambda data: b"x" + data[1:]),
    "a cut of a file that is wrong": Story([CUT], files={"a": WRONG}),
    "a part that is whole": Story(before=[CUT], edit=lambda _: DATA),
    "a part that is whole, nothing pinned": Story(before=[CUT], edit=lambda _: DATA, pin=UNKNOWN),
    "a part that is too long": Story(before=[CUT], edit=lambda _: DATA + b"x"),
    "a 416 of fewer bytes than came": Story([CUT, bad.status(416, Content_Range="bytes */49999")]),
    "a 416 to nothing": Story([bad.status(416, Content_Range="bytes */0")] * 9, UNKNOWN),
    "a part that was not asked for": Story([piece(1)]),
    "the whole as a part": Story([piece(0)]),
    "one byte more than pinned": Story([bad.chunked(1)], files={"a": DATA + b"x"}),
    "another length than pinned": Story(files={"a": DATA + b"x"}),
    "shorter than said, to its end": Story([unsized(DATA[:-1])] * 3),
    "nothing": Story([bad.whole(b"")] * 3),
    "nothing, and nothing is known": Story([bad.whole(b"")] * 3, UNKNOWN, files={"a": b""}),
    "a small body that is refused": Story([unsized(b"\n <oops>\x1b")] * 3, UNKNOWN, judge=refuse),
    "a large body that is refused": Story([unsized(DATA)] * 3, UNKNOWN, judge=refuse),
    "a large body of a known length that is refused": Story(pin=UNKNOWN, judge=refuse),
    "no URL": Story(urls=["http://[::1", "a"]),
}


def test_messages_and_result_of_each_download_read_as_their_snapshot(
    server: BadServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "free_bytes", lambda _: 1 << 40)
    stories = []
    for name, story in STORIES.items():
        (directory := tmp_path / name.replace(" ", "_")).mkdir()
        stories.append(f"# {name}\n{story.tell(server, directory)}")
    check_snapshot(Path(__file__).parent / "snapshots/downloads.txt", "\n".join(stories))


def test_a_downloaded_file_has_its_mode_and_no_part_file_is_left(
    server: BadServer, tmp_path: Path
) -> None:
    server.files["a"] = DATA
    deep = tmp_path / "deep/er"
    deep.mkdir(parents=True)
    other_names = [".[ab].zip.txt", ".a.zip.1.part", ".[ab].zipp.1.part", "[ab].zip.1.part"]
    for name in (".[ab].zip.1.part", ".[ab].zip.2.json", *other_names):
        (deep / name).touch()
    target = deep / "[ab].zip"
    assert fetch_file([server.url("a")], target, PIN, Progress(), policy=QUICK) == SHA256
    assert target.read_bytes() == DATA
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert names_in(deep) == sorted(["[ab].zip", *other_names])


HTML = "<!DOCTYPE HTML>"
SAID, SHORT = "bytes instead of the file, with status 200: ", "the body ended after"


@pytest.mark.parametrize(
    ("start", "extra", "kind", "pinned", "unknown"),
    [
        ("PK", 0, "", SAID, "ok"),
        ("PK", 1, "", SHORT, "ok"),
        ("PK", 1, "application/xhtml+xml", SAID, SAID),
        ("PK", 1, "TEXT/HTML; charset=x", SAID, SAID),
        (HTML, 1, "", SAID, SAID),
        ('{"error"', 1, "", SHORT, "ok"),
    ],
)
def test_an_html_page_is_not_accepted_as_the_file(
    server: BadServer, tmp_path: Path, start: str, extra: int, kind: str, pinned: str, unknown: str
) -> None:
    """With a pin, a small body of another size also counts as an error page."""
    body = start.encode().ljust(PAGE_BYTES + extra, b"x")
    for pin, message in ((PIN, pinned), (UNKNOWN, unknown)):
        server.faults["a"] = [unsized(body, Content_Type=kind)]
        target = tmp_path / f"{pin.size_bytes}" / "a.zip"

        def bring(target: Path = target, pin: Pin = pin) -> str:
            fetch_file([server.url("a")], target, pin, Progress(), policy=ONCE)
            return "ok"

        ended = outcome(bring)
        assert message in ended
        assert (SAID in ended and repr(start)[:-1] in ended) == (message == SAID)


HINTED = "at least 100000 bytes long, but at most 99999 are expected"


@pytest.mark.parametrize(
    ("fault", "pin", "room", "ending"),
    [
        (bad.serve, PIN, 0, "ok"),
        (bad.serve, Pin(most_bytes=SIZE - 1), 1 << 40, HINTED),
        (unsized(DATA), Pin(most_bytes=SIZE), SIZE, "ok"),
        (unsized(DATA), Pin(most_bytes=SIZE - 1), 1 << 40, HINTED),
        (bad.serve, UNKNOWN, SIZE, "ok"),
        (bad.serve, UNKNOWN, SIZE - 1, "the file is at least 100000 bytes long, too large for"),
        (unsized(DATA), UNKNOWN, SIZE - 1, "the file is at least 100000 bytes long, too large for"),
    ],
)
def test_file_grows_to_its_pin_its_limit_or_the_room_on_the_disk(
    server: BadServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    pin: Pin,
    room: int,
    ending: str,
) -> None:
    """The free space is measured before the download starts."""

    def free_bytes(directory: Path) -> int:
        used = sum(path.stat().st_size for path in directory.glob("*.part"))
        return room + SPARE_BYTES - used

    monkeypatch.setattr(download, "free_bytes", free_bytes)
    server.faults["a"] = [fault] * 9
    server.files["a"] = DATA
    assert ending in fetch([server.url("a")], tmp_path, pin)
    assert names_in(tmp_path) == (["a.zip"] if ending == "ok" else [])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_leaves_no_part_file(
    server: BadServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(part: PartFile, data: bytes) -> None:
        raise OSError(code, "no room")

    server.files["a"] = DATA
    monkeypatch.setattr(PartFile, "append", fail)
    assert "no room" in fetch([server.url("a")], tmp_path)
    assert len(names_in(tmp_path)) == (2 if code == errno.EIO else 0)


def make_local(path: Path, kind: str) -> str:
    """The URL of something on this machine."""
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "/dev/zero":
        path.symlink_to(kind)
    elif kind == "a directory":
        path.mkdir()
    elif kind != "nothing":
        path.write_bytes({"longer": DATA + b"x", "other": WRONG}[kind])
    return str(path)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nothing", "No such file or directory"),
        ("a directory", "it is a directory"),
        ("a pipe", ""),
        ("/dev/zero", ""),
        ("longer", "it is 100001 bytes long, not the pinned 100000"),
        ("other", "its SHA-256 is"),
    ],
)
def test_a_local_url_that_is_no_readable_file_is_skipped_without_retries(
    tmp_path: Path, kind: str, words: str
) -> None:
    url, target = make_local(tmp_path / "from", kind), tmp_path / "to"
    ended = fetch([url], target, PIN)
    assert ended.startswith(("DownloadError", "IntegrityError"))
    assert f": {words}" in ended
    (tmp_path / "good").write_bytes(DATA)
    assert fetch([url, str(tmp_path / "good")], target, PIN) == "ok"
    assert names_in(target) == ["a.zip"]


@pytest.mark.parametrize("make", [Path.as_uri, str, lambda path: path.as_uri().replace("a", "%61")])
def test_a_file_of_this_machine_is_copied(tmp_path: Path, make: Callable[[Path], str]) -> None:
    source = tmp_path / "a from here"
    source.write_bytes(DATA)
    for most_bytes, ending in ((SIZE, "ok"), (SIZE - 1, "at most 99999 are expected")):
        pin = Pin(most_bytes=most_bytes)
        assert ending in fetch([make(source)], tmp_path / str(most_bytes), pin)
    assert names_in(tmp_path / str(SIZE - 1)) == []
    assert fetch([make(source)], tmp_path / "to") == "ok"
    ended = fetch([make(source)], tmp_path / "judged", judge=refuse)
    assert "the content is wrong: it is no archive; it starts with" in ended


# -- the user's mirror ---------------------------------------------------------------------------

HERE = Path.cwd().as_uri()


@pytest.mark.parametrize(
    ("mirror", "name", "sha256", "urls"),
    [
        (None, "a.zip", "", []),
        ("~/m", "a.zip", "", ["file:///home/me/m/a.zip"]),
        ("/m/{sha256}", "a.zip", "5e", ["file:///m/5e"]),
        ("/m i/{sha256}/{filename}", "a b.zip", "5e", ["file:///m%20i/5e/a%20b.zip"]),
        ("https://h/m/", "a b.zip", "5e", ["https://h/m/a%20b.zip"]),
        ("https://h/c?sig=x", "a b.zip", "5e", ["https://h/c/a%20b.zip?sig=x"]),
        ("https://h/g?f={filename}&s=a%2Fb", "a b", "5e", ["https://h/g?f=a%20b&s=a%2Fb"]),
        ("https://h/{filename}/{sha256}", "a", "", []),
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
def test_an_invalid_mirror_variable_is_refused_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, mirror: str, why: str
) -> None:
    monkeypatch.setenv("QNN_CI_MIRROR", mirror)
    directory = "a directory such as `qnn-ci fetch emulator --to mirror` fills"
    fix = f"{directory}, or to its URL, or unset it"
    assert str(outcome(lambda: mirror_urls("a.zip"))).splitlines() == [
        "UnfitError: QNN_CI_MIRROR is neither a directory nor a URL",
        f"  why: {why}",
        f"  fix: set it to {fix}",
    ]
