"""A file of an image that names the machine that built it is found."""

from __future__ import annotations

from pathlib import Path

from docker.client import DockerClient

from ci.images.definition import LABEL
from tests.documented.images import find_leaks
from tests.integration.images.conftest import build, pack


def test_only_files_above_the_base_that_contain_a_word_are_leaks(
    engine: DockerClient, busybox: str, tmp_path: Path
) -> None:
    files = {"etc/one": b"from proxy.invalid:1\n", "etc/two": b"nothing\n", "opt/three": b"root:x"}
    dockerfile = f"FROM {busybox}\nADD root.tar /\nLABEL {LABEL}.base={busybox}\n"
    image = build(engine, dockerfile, {"root.tar": pack(files)})
    leaks = find_leaks(engine, image, ["proxy.invalid", "root:x"], tmp_path)
    assert sorted(leaks) == [("etc/one", "proxy.invalid"), ("opt/three", "root:x")]
