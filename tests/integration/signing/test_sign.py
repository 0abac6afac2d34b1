"""Real skels signed by the stand-in: proven, recorded, published whole."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from ci.signing.mbn import parse_image
from ci.signing.record import check_record
from ci.signing.verdict import Verdict
from ci.signing.verify import verify_bytes
from tests.stand_ins.elfsigner.keys import make_key
from tests.stand_ins.elfsigner.mbn_writer import PLACES, Key, sign_elf

# Every format with every part of a file, once.
FLIPS = int(os.environ.get("QNN_CI_SIGNING_FLIPS", "72"))
KILLS = int(os.environ.get("QNN_CI_SIGNING_KILLS", "6"))


def test_skels_of_every_version_are_signed_and_proven(verb, skels, tmp_path: Path) -> None:
    folder = tmp_path / "unsigned"
    folder.mkdir()
    for path in skels.values():
        shutil.copy(path, folder)
    ended = verb.run("sign", "--json", "--out", "signed", *skels.values())
    assert ended.returncode == 0, ended.stderr
    data = json.loads(ended.stdout)
    versions = [one["hexagon_version"] for one in data["reports"].values()]
    assert versions == ["V68", "V69", "V73", "V75", "V79", "V81"]
    assert {one["verdict"] for one in data["reports"].values()} == {"proven"}
    assert data["record"]["qnn_sdk"] == "2.49.40"
    verified = verb.run("verify-signature", "--input", folder, "signed")
    assert verified.returncode == 0, verified.stdout
    assert "matches" in verified.stdout
    assert check_record(tmp_path / "signed") == ()
    unsigned = verb.run("verify-signature", "--expect", "unsigned", folder)
    assert (unsigned.returncode, unsigned.stdout.count(": genuine\n")) == (0, 6)
    assert verb.run("verify-signature", folder).returncode == 1


def test_source_date_makes_output_and_record_reproducible(
    verb, libraries, take_snapshot, tmp_path: Path
) -> None:
    results = []
    for name in ("one", "two"):
        ended = verb.run("sign", "--out", name, *libraries, SOURCE_DATE_EPOCH="1700000000")
        assert ended.returncode == 0, ended.stderr
        results.append(take_snapshot(tmp_path / name))
    assert results[0] == results[1]
    assert b"2023-11-14T22:13:20+00:00" in results[0]["signing.json"]


def find_spans(data: bytes, key: Key, version: int) -> dict[str, tuple[int, int]]:
    """Where the parts of a file lie that the stand-in signed."""
    image = parse_image(memoryview(data))
    (segment,) = image.hash_segments
    chain = segment.end - 0x1800
    signature = chain - key.size
    header = segment.offset + PLACES[version]
    metadata = header + {6: 120, 7: 144}.get(version, 0)
    spans = {
        "headers": (0, image.headers.end),
        "MBN header": (segment.offset, header),
        "metadata": (header, metadata),
        "hash table": (metadata, signature),
        "signature": (signature, chain),
        "chain": (chain, segment.end),
        "segments": (segment.end, len(data)),
        "padding": (image.headers.end, segment.offset),
        "anywhere": (0, len(data)),
    }
    return {name: span for name, span in spans.items() if span[0] < span[1]}


def test_flipped_bytes_are_never_proven(skels) -> None:
    key = make_key()
    rng = random.Random(20261120)
    formats = [(version, algo) for version in (3, 5, 6, 7) for algo in ("sha256", "sha384")]
    missed: Counter[tuple[str, str]] = Counter()
    smallest = min((path.read_bytes() for path in skels.values()), key=len)
    for index, (version, algorithm) in enumerate(formats):
        data = bytearray(sign_elf(smallest, key, version, algorithm))
        spans = find_spans(data, key, version)
        assert verify_bytes(memoryview(data), memoryview(smallest)).verdict is Verdict.PROVEN
        for turn in range(index, FLIPS, len(formats)):
            region = list(spans)[turn // len(formats) % len(spans)]
            position, bit = rng.randrange(*spans[region]), 1 << rng.randrange(8)
            data[position] ^= bit
            report = verify_bytes(memoryview(data), memoryview(smallest))
            if report.verdict is not Verdict.INVALID:
                missed[region, report.verdict.value] += 1
            data[position] ^= bit
    assert not missed


def kill_at(verb, delay_s: float, *words: str | Path) -> None:
    process = verb.start("sign", *words)
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while list_runs_on(words[-1]):  # the signer has a moment to end after the verb is gone
        time.sleep(0.02)


def list_runs_on(library: str | Path) -> list[Path]:
    """Processes that have the directory of a library in their command lines."""
    folder, found = bytes(Path(library).parents[1]), []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [path] * (folder in path.read_bytes())
    return found


@pytest.mark.parametrize("existing", [False, True], ids=["fresh", "existing"])
def test_kill_leaves_all_or_nothing(verb, libraries, tmp_path: Path, existing: bool) -> None:
    folder = tmp_path / "area"
    folder.mkdir()
    out = folder / "signed"
    words = ["--force", "--out", out, *libraries]
    started = time.monotonic()
    assert verb.run("sign", *words).returncode == 0
    whole_s = time.monotonic() - started
    rng = random.Random(7 + existing)
    results: Counter[str] = Counter()
    for _ in range(KILLS // 2):
        if not existing:
            shutil.rmtree(out, ignore_errors=True)
        kill_at(verb, rng.uniform(0, whole_s * 1.1), *words)
        results["whole" if out.exists() else "nothing"] += 1
        if out.exists():
            assert check_record(out) == ()
            assert len(list(out.glob("*.so"))) == len(libraries)
    print(f"{sum(results.values())} kills: {dict(results)}")
    assert not existing or results["nothing"] == 0
    # The next run clears what the killed ones left.
    assert verb.run("sign", *words).returncode == 0
    assert [path.name for path in folder.iterdir()] == ["signed"]
