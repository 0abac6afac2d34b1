"""``cache info|clean`` on a store of real files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioning.__main__ import main
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from provisioning.store import collect
from tests.stand_ins import toolchains


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with an artifact, lowered programs, a download and a checkout's environments."""
    world = toolchains.make_world(tmp_path / "world")
    for name, value in world.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("QNN_SDK_ROOT", raising=False)
    toolchains.keep_wheel(world)
    provision_profile("emulator", Progress())
    for name in (f"lowered/ab/{'ab' * 32}", "builds/aot-0123456789", "pins"):
        (world.home / name).mkdir(parents=True, exist_ok=True)
        (world.home / name / "file").write_bytes(b"x" * 1000)
    checkout = tmp_path / "checkout"
    for name in ("bootstrap", "core", "lowering"):
        (checkout / ".nox" / name).mkdir(parents=True)
        (checkout / ".nox" / name / "file").write_bytes(b"x" * 1000)
    (checkout / "noxfile.py").touch()
    monkeypatch.setattr(collect, "CHECKOUT", checkout)
    return world.home


def call(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["cache", *words, "--json"]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def sizes(capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    rows = call(capsys, "info")["parts"]
    assert isinstance(rows, list)
    return {row["name"]: row["size_bytes"] for row in rows}


def test_cache_clean_all_keeps_pins_and_environments(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(capsys, "clean", "all")
    left = {name: size for name, size in sizes(capsys).items() if size}
    assert left == {"environments": 1000}  # nox itself may be running
    assert (home / "pins" / "file").is_file()
    assert provision_profile("emulator", Progress()).artifacts


def test_cache_clean_keeps_what_may_be_of_the_user_whose_directory_the_store_is_in(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "downloads" / "holiday.zip").touch()
    (home / "notes.txt").touch()
    rows = call(capsys, "clean", "all")["kept"]
    assert isinstance(rows, list)
    reasons = {row["path"]: row["why"] for row in rows}
    assert "notes.txt" in reasons[str(home / "lowered" / "ab")]
    assert (home / "downloads" / "holiday.zip").is_file()
    assert any((home / "lowered" / "ab").rglob("file"))
    assert not any((home / "store").iterdir())  # a tree has a record of what this project wrote


def test_cache_clean_removes_only_what_the_store_wrote_into_a_folder_of_the_user(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No other name in the folder shows that it is the user's."""
    files = [
        *(
            "downloads/holiday.zip",
            "downloads/wheels/car.txt",
            "builds/app-1/notes",
            "tmp/image.png",
        ),
        *("lowered/one/file", "lowered/cd/file", "parity/found.json", "packages/mine/file"),
        *("decoders/mine/model.bin", "doctor/device-1.txt", "store/mine/file", "bench/file"),
    ]
    for file in files:
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).touch()
    before = {path for path in (home / "downloads").iterdir() if path.suffix == ".whl"}
    assert before
    rows = call(capsys, "clean", "all")["kept"]
    assert isinstance(rows, list)
    assert {row["why"] for row in rows if str(home) in row["path"]} == {"qnn-ci did not create it"}
    assert [file for file in files if not (home / file).exists()] == []
    left = {path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()}
    assert {name for name in left if not name.startswith(("locks/", "pins/"))} == {*files}


def test_cache_clean_does_not_follow_a_link_in_place_of_a_cache_directory(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (home / "doctor").rename(home / "old") if (home / "doctor").exists() else None
    (home / "doctor").symlink_to(tmp_path / "mine")
    call(capsys, "clean", "doctor")
    assert (tmp_path / "mine" / "file").exists()
