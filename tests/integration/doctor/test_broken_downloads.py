"""A staged set of libraries with one fault each, as copies and downloads leave them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning.__main__ import main
from tests.stand_ins.android_apps import make_set

SKEL, SYSTEM = "libQnnHtpV75Skel.so", "libQnnSystem.so"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
APPLE_DOUBLE = bytes.fromhex("0005160700020000") + bytes(80)


def edit(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return run


def add(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(data) and None


@pytest.mark.parametrize(
    ("damage", "finding_ids"),
    [
        (lambda folder: None, set()),
        (edit(SYSTEM, lambda data: make_set()[SKEL]), {"QNN212"}),
        (edit("libQnnHtpV75Stub.so", lambda data: make_set()[SKEL]), {"QNN212"}),
        (edit(SYSTEM, lambda data: data[:512] + bytes(len(data) - 512)), {"QNN207"}),
        (add("._libQnnHtp.so", APPLE_DOUBLE), {"QNN208"}),
        (add("._m.pte", APPLE_DOUBLE), set()),
        (add("m.pte", POINTER), {"QNN322"}),
        (add("m.pte", gzip.compress(b"ET12")), {"QNN322"}),
        (add("m.pte", bytes(4096)), {"QNN322"}),
        (add("m.pte", b"<html>404</html>"), {"QNN322"}),
        (add("m.pte", b"\x3c\0\0\0XT12" + bytes(range(256))), {"QNN322"}),
    ],
)
def test_each_damaged_download_gets_its_finding_ids(
    damage: Callable[[Path], None],
    finding_ids: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, data in make_set().items():
        (tmp_path / name).write_bytes(data)
    damage(tmp_path)
    code = main(["doctor", "staged", "--root", f"staging={tmp_path}", "--json"])
    rows = json.loads(capsys.readouterr().out)["findings"]
    assert {row["id"] for row in rows} == finding_ids
    assert bool(code) == any(row["severity"] == "error" for row in rows)
