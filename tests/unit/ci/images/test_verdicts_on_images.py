"""What is decided about images, to the letter: what they are made of.

Each test states whole values, so that a small fault anywhere in the deciding modules shows.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ci.images import definition
from ci.images.definition import (
    chain,
    find_checkout,
    find_image,
    plan_image,
    read_images,
)
from ci.images.engine import normalize_image
from provisioning.errors import ToolError, UnfitError, UsageError
from tests.stand_ins.docker_engine import FakeEngine, FakeImage, pack

IMAGES = read_images()
ROW = IMAGES.bases[IMAGES.default_base]
OWN = "team/debian:12"
LOW = pack({"low": b"l"})


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An engine with a base of the user's own and the default one."""
    fake_engine = FakeEngine()
    fake_engine.add(FakeImage([LOW]), OWN)
    fake_engine.add(FakeImage([pack({"base": b"ubuntu"})]), ROW.image)
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    return fake_engine


def write_layer(*members: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for fields in members:
            body = fields.get("body", b"")
            info = tarfile.TarInfo(fields["name"])
            info.size = len(body)
            for key in fields.keys() - {"name", "body"}:
                setattr(info, key, fields[key])
            archive.addfile(info, io.BytesIO(body))
    return out.getvalue()


PLAIN = {"name": "f", "body": b"1", "mode": 0o644, "uid": 1, "gid": 2}


# -- what an image is made of ----------------------------------------------------------------------


def test_an_unknown_image_or_a_build_outside_a_checkout_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError) as caught:
        find_image("gone")
    assert "image 'gone'" in caught.value.what
    assert caught.value.fix.endswith("one of: " + ", ".join(IMAGES.images))
    assert chain("full")[-1] == "full"
    assert chain("full")[:-1] == chain(IMAGES.images["full"].parent)
    monkeypatch.setattr(definition, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    with pytest.raises(UnfitError) as lost:
        find_checkout()
    assert lost.value.what == "images can only be built from a checkout"
    assert lost.value.why == f"{tmp_path} has no docker/Dockerfile"
    assert "docker_build" in lost.value.fix


@pytest.mark.parametrize(
    ("release", "python"),
    [
        (b'ID=ubuntu\nVERSION_ID="22.04"\n', "3.10"),
        (b"NAME=x\nVERSION_ID=24.04\nID=ubuntu\n", "3.12"),
        (b'ID=debian\nVERSION_ID="13"\n', "3.13"),
        (b"ID=fedora\nVERSION_ID=44\n", ""),
        (b"#ID=debian\n", ""),
    ],
)
def test_the_python_of_a_base_image_is_that_of_its_distribution(
    engine: Any, monkeypatch: pytest.MonkeyPatch, release: bytes, python: str
) -> None:
    files_read: list[tuple[str, str]] = []

    def read(client: Any, container: str, path: str) -> str:
        assert client is engine
        files_read.append((container, path))
        return release.decode()

    monkeypatch.setattr(definition, "read_file", read)
    if python:
        assert plan_image(engine, "aot", OWN).base.python == python
    else:
        with pytest.raises(UsageError) as caught:
            plan_image(engine, "aot", OWN)
        name = "fedora-44" if b"fedora" in release else "None-None"
        assert caught.value.what == f"{OWN} is based on {name}, whose Python version is unknown"
        assert all(release in caught.value.fix for release in definition.PYTHONS)
    assert files_read == [("probe", "/usr/lib/os-release")]
    assert engine.calls[-1] == ("probe removed", {})


# -- bytes of an image -----------------------------------------------------------------------------


def save(folder: Path, layers: list[bytes], config: Mapping[str, Any]) -> Path:
    names = [f"{index}/layer.tar" for index in range(len(layers))]
    rows = [{"Config": "c.json", "Layers": names, "RepoTags": None}]
    files = {"manifest.json": json.dumps(rows), "c.json": json.dumps(config)}
    texts = {name: text.encode() for name, text in files.items()}
    saved = folder / "saved.tar"
    saved.write_bytes(pack({**texts, **dict(zip(names, layers, strict=True))}))
    return saved


def test_layers_of_equal_contents_become_equal_bytes(tmp_path: Path) -> None:
    xattr = {"SCHILY.xattr.user.a": "b"}
    fields_of_layers = (
        {"mtime": 1, "uname": "me", "pax_headers": {**xattr, "x": "1"}},
        {"pax_headers": xattr},
    )
    base = write_layer({**PLAIN, "mtime": 5, "uname": "them"})
    targets = []
    for name, fields in zip(("one", "two"), fields_of_layers, strict=True):
        layers = [base, write_layer({**PLAIN, **fields})]
        configuration = {"architecture": "amd64", "os": "linux", "config": {"Hostname": name}}
        words: dict[str, Any] = {"keep_layers": 1, "time_s": 86400, "labels": {}}
        normalize_image(save(tmp_path, layers, configuration), tmp_path / "image.tar", **words)
        targets.append((tmp_path / "image.tar").read_bytes())
    assert targets[0] == targets[1]
    with tarfile.open(tmp_path / "image.tar") as image:
        layers = [
            member_of_image.name
            for member_of_image in image
            if member_of_image.name.endswith(".tar")
        ]
        members = []
        for name in layers:
            with tarfile.open(fileobj=image.extractfile(name)) as layer:
                members += layer.getmembers()
    base_member, member = members
    assert (base_member.mtime, base_member.uname) == (5, "them")
    assert (member.mtime, member.uname, member.pax_headers) == (86400, "", xattr)


def test_a_saved_image_whose_member_is_no_file_is_an_error_of_the_engine(
    tmp_path: Path,
) -> None:
    folder = write_layer({"name": "manifest.json", "type": tarfile.DIRTYPE})
    (tmp_path / "saved.tar").write_bytes(folder)
    with pytest.raises(ToolError) as caught:
        normalize_image(
            tmp_path / "saved.tar", tmp_path / "t.tar", keep_layers=0, time_s=0, labels={}
        )
    assert caught.value.what == "the engine saved an unreadable image"
    assert caught.value.why == "manifest.json is not a file"
