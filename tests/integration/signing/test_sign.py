"""Real skels signed by the stand-in: proven, recorded, published whole."""

from __future__ import annotations

import json
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from ci.signing.record import check_record
from tests.stand_ins.waits import wait_until


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


def list_runs_on(library: str | Path) -> list[Path]:
    """Processes that have the directory of a library in their command lines."""
    folder, runs = bytes(Path(library).parents[1]), []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            runs += [path] * (folder in path.read_bytes())
    return runs


SIGN = """
import sys
from ci.__main__ import main
from tests.stand_ins import kills
{}
sys.exit(main(["sign", *sys.argv[1:]]))
"""
STAGING = r"\.signed\.staging-\w+"
# The steps of a signing run, and how it is killed (SIGKILL) at each of them.
STEPS = {
    "before a directory is staged": ("os.mkdir", f"{STAGING}$"),
    "before a library is copied": ("open", rf"{STAGING}/.*\.so$"),
    "before the signer starts": ("subprocess.Popen", "elfsigner"),
    "before the record": ("open", f"{STAGING}/.*signing.json"),
    "before the signed files are published": ("os.rename", f"{STAGING}$"),
    "before signed files replace others": ("ctypes.dlsym", "renameat2"),
    "before the replaced files are removed": ("os.rmdir", STAGING),
}
ONLY_FRESH = {"before the signed files are published"}
ONLY_EXISTING = {"before signed files replace others", "before the replaced files are removed"}


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
    assert verb.run("sign", *words).returncode == 0
    for step in STEPS.keys() - (ONLY_FRESH if existing else ONLY_EXISTING):
        if not existing:
            shutil.rmtree(out, ignore_errors=True)
        code = SIGN.format(f"kills.kill_before(*{STEPS[step]!r})")
        killed = verb.forks.run(code, *map(str, words), cwd=verb.directory, env=verb.environment)
        assert killed.returncode == -signal.SIGKILL, (step, killed)
        wait_until(lambda: not list_runs_on(libraries[0]))  # the signer ends after the verb
        assert out.exists() == existing
        if out.exists():
            assert check_record(out) == ()
            assert len(list(out.glob("*.so"))) == len(libraries)
    # The next run clears what the killed ones left.
    assert verb.run("sign", *words).returncode == 0
    assert [path.name for path in folder.iterdir()] == ["signed"]
