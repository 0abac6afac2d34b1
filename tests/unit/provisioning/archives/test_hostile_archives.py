"""Archives made to do harm: every one is refused, and nothing is written outside."""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioning.archives.layout import Layout, Limits, check_members, make_links, place_members
from provisioning.archives.tarballs import extract_tar
from provisioning.archives.zipfiles import FileSource, extract_members, read_directory
from provisioning.errors import IntegrityError

LIMITS = Limits(unpacked_bytes=4_000_000)
GOOD = {"pkg/a.so": b"abc" * 1000, "pkg/sub/b.txt": b"hello"}


def unpack(path: Path, root: Path, limits: Limits = LIMITS) -> list[str]:
    """Extract as the sources do; the written paths."""
    root.mkdir(exist_ok=True)
    if path.suffix != ".zip":
        entries, links = extract_tar(path, root, Layout(), limits)
        entries += make_links(root, links, path.name, [entry.path for entry in entries])
        return [entry.path for entry in entries]
    source = FileSource(path)
    try:
        members = read_directory(source)
        check_members(source.name, members, limits)
        placed = list(place_members(members, Layout()))
        entries, links = extract_members(source, root, placed)
        entries += make_links(root, links, path.name, [entry.path for entry in entries])
        return [entry.path for entry in entries]
    finally:
        source.close()


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in [*GOOD.items(), *members]:
            archive.writestr(name, data)
    return out.getvalue()


def info(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.create_system = 3
    entry.external_attr = mode << 16
    return entry


def tarred(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz", format=tarfile.GNU_FORMAT) as archive:
        for name, data in GOOD.items():
            archive.addfile(tar_info(name, size=len(data)), io.BytesIO(data))
        for item, data in members:
            archive.addfile(item, io.BytesIO(data))
    return out.getvalue()


def tar_info(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0
) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size = kind, link, size
    return entry


LINK = stat.S_IFLNK | 0o777
# What each field may hold is in test_layout, test_forged_zips and test_forged_tars: here is one of
# each kind, through all that judges a ZIP or tarball.
ZIPS: dict[str, tuple[Callable[[], bytes], str]] = {
    "absolute path": (lambda: zipped(("/etc/evil", b"x")), "absolute path"),
    "link that leaves": (
        lambda: zipped((info("pkg/l", LINK), b"../../evil")),
        "points outside the tree",
    ),
    "link through a link": (
        lambda: zipped((info("pkg/up", LINK), b".."), (info("out", LINK), b"pkg/up/../evil")),
        "points outside the tree",
    ),
    "links in a circle": (
        lambda: zipped((info("a", LINK), b"b"), (info("b", LINK), b"a")),
        "points outside the tree",
    ),
    "link to nothing": (lambda: zipped((info("pkg/l", LINK), b"sub/none")), "not in the tree"),
    "file below a link": (
        lambda: zipped((info("pkg/l", LINK), b"sub"), ("pkg/l/evil", b"x")),
        "is a symlink but contains",
    ),
    "names in two cases": (lambda: zipped(("pkg/A.so", b"x")), "differ only in case"),
    "bomb by total": (lambda: zipped(("pkg/zeros", bytes(4_000_000))), "unpacks to more than"),
    "cut in the middle": (lambda: zipped()[60:], "is outside|cut short|fewer|no local header"),
}


def plain_tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    return lzma.decompress(tarred(*members))


TARS: dict[str, tuple[Callable[[], bytes], str]] = {
    "absolute path": (lambda: tarred((tar_info("/etc/evil"), b"")), "absolute path"),
    "parent path": (lambda: tarred((tar_info("pkg/../../evil"), b"")), "is outside the tree"),
    "link that leaves": (
        lambda: tarred((tar_info("pkg/l", tarfile.SYMTYPE, "../../evil"), b"")),
        "points outside the tree",
    ),
    "written through a link": (
        lambda: tarred(
            (tar_info("pkg/l", tarfile.SYMTYPE, "/etc"), b""), (tar_info("pkg/l/evil"), b"")
        ),
        "is a symlink but contains|points outside the tree",
    ),
    "hard link that leaves": (
        lambda: tarred((tar_info("pkg/l", tarfile.LNKTYPE, "/etc/passwd"), b"")),
        "not a file in it",
    ),
    "names in two cases": (lambda: tarred((tar_info("pkg/A.so"), b"")), "differ only in case"),
    "cut": (lambda: tarred()[:-60], "cannot be read"),
}


def check_refused(archive: Path, data: bytes, words: str) -> IntegrityError:
    """Nothing of it is beside its root, and no link in that; ``words`` say why, or others."""
    root = archive.with_name("root")
    archive.write_bytes(data)
    with pytest.raises(IntegrityError) as caught:
        unpack(archive, root)
    assert any(word in caught.value.why for word in words.split("|")), caught.value.why
    assert {path.name for path in root.parent.iterdir()} == {archive.name, "root"}
    assert not any(path.is_symlink() for path in root.rglob("*"))
    return caught.value


@pytest.mark.parametrize("name", ZIPS)
def test_a_hostile_zip_is_refused(tmp_path: Path, name: str) -> None:
    make, words = ZIPS[name]
    assert "bad.zip is refused" in check_refused(tmp_path / "bad.zip", make(), words).what


@pytest.mark.parametrize("name", TARS)
def test_a_hostile_tarball_is_refused(tmp_path: Path, name: str) -> None:
    make, words = TARS[name]
    check_refused(tmp_path / "bad.tar.xz", make(), words)


@pytest.mark.parametrize("damage", ["wrong", "missing", "half"])
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=["gz", "xz"])
def test_a_wrong_or_missing_trailer_is_refused(
    tmp_path: Path, pack: Callable[[bytes], bytes], damage: str
) -> None:
    data = pack(plain_tar())
    cuts = {"wrong": data[:-6] + bytes([data[-6] ^ 1]) + data[-5:], "missing": data[:-8]}
    archive = tmp_path / ("a.tar.gz" if pack is gzip.compress else "a.tar.xz")
    archive.write_bytes(cuts.get(damage, data[:-3]))
    with pytest.raises(IntegrityError, match="is refused"):
        unpack(archive, tmp_path / "root")


def test_an_xz_archive_with_a_huge_dictionary_is_refused(tmp_path: Path) -> None:
    """The block header (xz file format, 3.1) declares a dictionary of 1.5 GiB."""
    data = bytearray(lzma.compress(plain_tar()))
    size = (data[12] + 1) * 4
    data[16] = 37  # 2**30 * 1.5
    data[12 + size - 4 : 12 + size] = struct.pack("<I", zlib.crc32(data[12 : 12 + size - 4]))
    (tmp_path / "a.tar.xz").write_bytes(data)
    with pytest.raises(IntegrityError) as caught:
        unpack(tmp_path / "a.tar.xz", tmp_path / "root")
    assert "emory" in caught.value.why


def test_links_through_links_and_empty_directories_are_kept(tmp_path: Path) -> None:
    """``lib64 -> lib``, and a link that goes through it."""
    links = {"pkg/lib64": "lib", "pkg/usr/x.so": "../lib64/x.so.1"}
    folder = tar_info("pkg/share/empty", tarfile.DIRTYPE)
    library = (tar_info("pkg/lib/x.so.1", size=1), b"x")
    linked = [(tar_info(name, tarfile.SYMTYPE, end), b"") for name, end in links.items()]
    (tmp_path / "a.tar.xz").write_bytes(tarred(library, (folder, b""), *linked))
    in_zip = [(info(name, LINK), end.encode()) for name, end in links.items()]
    members = [("pkg/lib/x.so.1", b"x"), (info("pkg/share/empty/", 0o040755), b""), *in_zip]
    (tmp_path / "a.zip").write_bytes(zipped(*members))
    for name in ("a.tar.xz", "a.zip"):
        root = tmp_path / f"root of {name}"
        written = unpack(tmp_path / name, root)
        assert sorted(written) == sorted([*GOOD, *links, "pkg/lib/x.so.1", "pkg/share/empty/"])
        assert (root / "pkg/usr/x.so").read_bytes() == b"x"
        assert (root / "pkg/share/empty").is_dir()


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_mutated_zip_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    archive = bytearray(zipped((info("pkg/l", LINK), b"a.so")))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(archive) - 1))
        archive[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 40))
    directory = tmp_path_factory.mktemp("fuzz")
    (directory / "a.zip").write_bytes(bytes(archive[: len(archive) - cut]))
    with contextlib.suppress(IntegrityError):
        unpack(directory / "a.zip", directory / "root")
    assert {path.name for path in directory.iterdir()} <= {"a.zip", "root"}
