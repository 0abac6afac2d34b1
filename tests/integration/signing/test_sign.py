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

from ci.signing.record import check_record

KILLS = int(os.environ.get("QNN_CI_SIGNING_KILLS", "6"))


def test_skels_of_every_version_are_signed_and_proven(verb, skels, tmp_path: Path) -> None:
    folder = tmp_path / "unsigned"
    folder.mkdir()
    for path in skels.values():
        shutil.copy(path, folder)
    ended = verb.run("sign", "--json", "--out", "signed", *skels.values())
    assert ended.returncode == 0, ended.stderr
    data = json.loads(ended.stdout)
    versions = [report["hexagon_version"] for report in data["reports"].values()]
    assert versions == ["V68", "V69", "V73", "V75", "V79", "V81"]
    assert {report["verdict"] for report in data["reports"].values()} == {"proven"}
    assert data["record"]["qnn_sdk"] == "2.49.40"
    verified = verb.run("sign", "--verify", "--input", folder, "signed")
    assert verified.returncode == 0, verified.stdout
    assert "matches" in verified.stdout
    assert check_record(tmp_path / "signed") == ()
    unsigned = verb.run("sign", "--verify", "--expect", "unsigned", folder)
    assert (unsigned.returncode, unsigned.stdout.count(": genuine\n")) == (0, 6)


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


def kill_at(verb, delay_s: float, *words: str | Path) -> None:
    process = verb.start("sign", *words)
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while list_runs_on(words[-1]):  # the signer has a moment to end after the verb is gone
        time.sleep(0.02)


def list_runs_on(library: str | Path) -> list[Path]:
    """Processes that have the directory of a library in their command lines."""
    folder, runs = bytes(Path(library).parents[1]), []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            runs += [path] * (folder in path.read_bytes())
    return runs


@pytest.mark.parametrize(
    "existing",
    [pytest.param(False, marks=pytest.mark.nightly, id="fresh"), pytest.param(True, id="existing")],
)
def test_a_killed_signing_run_leaves_all_signed_files_or_none(
    verb, libraries, tmp_path: Path, existing: bool
) -> None:
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
