"""Decoders that are known by name, from a directory, the store or the network."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from ci.llm import subject as known
from ci.llm.subject import find_files
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, IntegrityError
from provisioning.manifest.targets import KnownDecoder, PinnedFile
from provisioning.store.home import store_home

CONTENT = {"w.bin": b"weights", "t.bin": b"tokenizer"}


def pin(name: str) -> PinnedFile:
    digest = hashlib.sha256(CONTENT[name]).hexdigest()
    return PinnedFile(f"https://example.org/a/{name}", digest, len(CONTENT[name]))


@pytest.fixture(autouse=True)
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    decoder = KnownDecoder("a story", "MIT", ("Once",), pin("w.bin"), pin("t.bin"))
    monkeypatch.setattr(known, "read_decoders", lambda: {"story": decoder})
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    user_folder = tmp_path / "given"
    user_folder.mkdir()
    for name, data in CONTENT.items():
        (user_folder / name).write_bytes(data)
    return user_folder


def find(environ: dict[str, str], *, offline: bool = True) -> tuple[Path, Path]:
    return find_files("story", Progress(), offline=offline, environ=environ)


def test_model_files_are_taken_from_the_directory_of_the_variable(story: Path) -> None:
    assert find({"QNN_CI_STORY": str(story)}) == (story / "w.bin", story / "t.bin")


@pytest.mark.parametrize("name", ["w.bin", "t.bin"])
@pytest.mark.parametrize("data", [b"another", b"tokenizes", None])
def test_other_model_files_than_the_pinned_ones_are_refused(
    data: bytes | None, name: str, story: Path
) -> None:
    (story / name).unlink()
    if data:
        (story / name).write_bytes(data)
    with pytest.raises(IntegrityError) as caught:
        find({"QNN_CI_STORY": str(story)}, offline=False)
    assert caught.value.what == f"{story / name} is missing or not the pinned file"


def test_offline_the_missing_model_file_is_named() -> None:
    with pytest.raises(DownloadError, match=r"w\.bin is not in the store"):
        find({})


def test_a_model_file_is_fetched_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def fetch(urls: list[str], target: Path, pinned_file: Any, progress: Progress) -> None:
        fetched.append(urls[0])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(CONTENT[target.name])
        assert (pinned_file.size_bytes, pinned_file.sha256) == (
            len(CONTENT[target.name]),
            hashlib.sha256(CONTENT[target.name]).hexdigest(),
        )

    monkeypatch.setattr(known, "fetch_file", fetch)
    weights, tokenizer = find({}, offline=False)
    assert weights.parent == tokenizer.parent == store_home() / "decoders" / "story"
    assert (weights.read_bytes(), tokenizer.read_bytes()) == (b"weights", b"tokenizer")
    assert find({}) == find({"QNN_CI_STORY": ""}) == (weights, tokenizer)
    assert fetched == ["https://example.org/a/w.bin", "https://example.org/a/t.bin"]
