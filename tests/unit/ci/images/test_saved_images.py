"""Images as an engine saves them: made equal, searched for what must not be pushed, and pruned.

The engine is a stand-in that answers with tars made here; tests/integration/images has a real one.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest
from docker.client import DockerClient

from ci.images.build import TOOLCHAINS_LABEL, Built
from ci.images.digest import Comparison, find_differences
from ci.images.normalize import normalize_image, saved_layers
from ci.images.prune import find_stale
from ci.images.push import push_image
from provisioning.console.progress import Progress
from provisioning.errors import ToolError, UsageError

BUILT = Built("executorch-qnn-ci/tiny:1", "sha256:1", 0, fresh=True)
SETTINGS = {"Cmd": ["sh"], "Env": ["A=b"], "Hostname": "box", "Labels": {"one": "1"}}


def pack(files: Mapping[str, bytes], link: str = "", **fields: Any) -> bytes:
    """A tar of files, each member with ``fields``; with ``link`` the empty ones are links to it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if link and not data:
                info.type, info.linkname = tarfile.SYMTYPE, link
            for field, value in fields.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def save(*layers: bytes, **settings: Any) -> bytes:
    """An image as an engine saves it; an empty layer is a link to the first."""
    names = [f"{index}/layer.tar" for index in range(len(layers))]
    config = {"architecture": "amd64", "os": "linux", "config": {**SETTINGS, **settings}}
    rows = [{"Config": "config.json", "Layers": names, "RepoTags": ["tiny:1"]}]
    files = {"manifest.json": json.dumps(rows).encode(), "config.json": json.dumps(config).encode()}
    return pack({**files, **dict(zip(names, layers, strict=True))}, link="../0/layer.tar")


def normalize(folder: Path, data: bytes, keep_layers: int = 1) -> Path:
    saved, target = folder / "saved.tar", folder / "image.tar"
    saved.write_bytes(data)
    normalize_image(saved, target, keep_layers=keep_layers, time_s=86400, labels={"made.by": "us"})
    return target


BASE = pack({"base": b"base"}, mtime=5, uname="them")


def test_layers_of_equal_contents_become_equal_bytes(tmp_path: Path) -> None:
    xattr = {"SCHILY.xattr.user.a": "b"}
    first = pack({"f": b"same"}, mtime=1, uname="me", gname="us", pax_headers={**xattr, "x": "1"})
    second = pack({"f": b"same"}, mtime=2, uname="you", pax_headers=xattr)
    targets = [
        normalize(tmp_path, save(BASE, layer, Hostname=name)).read_bytes()
        for layer, name in ((first, "one"), (second, "two"))
    ]
    assert targets[0] == targets[1]
    (base,), (member,) = (list(layer) for layer in saved_layers(tmp_path / "image.tar"))
    assert (base.mtime, base.uname) == (5, "them")
    assert (member.mtime, member.uname, member.gname) == (86400, "", "")
    assert member.pax_headers == xattr


def test_a_configuration_keeps_what_a_container_needs(tmp_path: Path) -> None:
    target = normalize(tmp_path, save(BASE, pack({"f": b"1"})))
    with tarfile.open(target) as archive:
        (row,) = json.loads(archive.extractfile("manifest.json").read())  # type: ignore[union-attr]
        config = json.loads(archive.extractfile(row["Config"]).read())  # type: ignore[union-attr]
    labels = {"one": "1", "made.by": "us"}
    assert config["config"] == {"Cmd": ["sh"], "Env": ["A=b"], "Labels": labels}
    assert config["created"] == "1970-01-02T00:00:00Z"
    assert config["rootfs"]["diff_ids"] == [
        f"sha256:{name.removesuffix('.tar')}" for name in row["Layers"]
    ]


def test_a_layer_that_is_a_link_is_read_where_it_leads(tmp_path: Path) -> None:
    target = normalize(tmp_path, save(BASE, b""), keep_layers=2)
    assert [[member.name for member in layer] for layer in saved_layers(target)] == [["base"]] * 2


def connect(images: Mapping[str, tuple[bytes, ...]], **labels: str) -> Any:
    """An engine that has these images of some layers, and a registry."""

    def get(name: str) -> SimpleNamespace:
        return SimpleNamespace(
            save=lambda named: [save(*images[name])],
            labels=labels,
            attrs={"RootFS": {"Layers": [hashlib.sha256(one).digest() for one in images[name]]}},
        )

    client = create_autospec(DockerClient, instance=True)
    client.api = Mock()
    client.images.get.side_effect = get
    client.images.push.return_value = [{"status": "sent"}, {"aux": {"Digest": "sha256:2"}}]
    return client


def test_paths_that_differ_are_named_by_their_layer() -> None:
    one, other = (pack({"same": b"s", "made": text}) for text in (b"1", b"2"))
    client = connect({"a": (BASE, one), "b": (BASE, other)})
    assert find_differences(client, "a", "a") == {}
    found = find_differences(client, "a", "b")
    assert found == {1: ("made",)}
    compared = Comparison("tiny", ("a", "b"), 2, found)
    assert not compared.equal
    assert Comparison("tiny", ("a", "a"), 2, {}).equal
    assert not Comparison("tiny", ("a", "b"), 2, {}).equal
    assert not Comparison("tiny", ("a", "a"), 2, found).equal


TOOLCHAIN, CREDENTIAL = "a vendor's toolchain", "a setting that can hold a credential"


@pytest.mark.parametrize(
    ("path", "what"),
    [
        *(
            (name, TOOLCHAIN)
            for name in ("opt/sdk/lib/libQnnHtp.so", "opt/android-ndk-r26c/README")
        ),
        *((name, TOOLCHAIN) for name in ("./qairt/x", "a/libGenie.a", "bin/hexagon-clang++")),
        *((name, CREDENTIAL) for name in ("etc/pip.conf", "root/.config/pip/pip.conf")),
        *((name, CREDENTIAL) for name in ("root/.docker/config.json", "root/.ssh/id_ed25519")),
        *((name, CREDENTIAL) for name in ("etc/apt/auth.conf.d/x", "run/secrets/a", "x/.netrc")),
        ("./run/secrets/a", CREDENTIAL),
        *((name, "") for name in ("libqnn.so", "PyQnnManagerAdaptor.so", "pip.conf.md", "ssh")),
        *((name, "") for name in ("auth.confetti", "libQnnHtp.sol", "etc/.wh.pip.conf")),
    ],
)
def test_what_any_layer_holds_is_not_pushed(path: str, what: str) -> None:
    """A file that a later layer deletes is still in the layer below."""
    deletion = pack({f"{Path(path).parent}/.wh.{Path(path).name}": b""})
    client = connect({BUILT.image_id: (BASE, pack({path: b""}), deletion)})
    if not what:
        assert push_image(client, BUILT, "host/tiny:2", Progress()) == "sha256:2"
        client.api.tag.assert_called_once_with(BUILT.image_id, "host/tiny", "2")
        return
    with pytest.raises(UsageError) as caught:
        push_image(client, BUILT, "host/tiny:2", Progress())
    assert caught.value.why == f"layer 1: {path} is {what}"
    client.images.push.assert_not_called()


def test_an_image_with_toolchains_is_never_pushed() -> None:
    client = connect({BUILT.image_id: (BASE,)}, **{TOOLCHAINS_LABEL: "qnn-sdk-2.37"})
    with pytest.raises(UsageError) as caught:
        push_image(client, BUILT, "host/tiny:2", Progress())
    assert "qnn-sdk-2.37" in caught.value.why


def test_a_reference_is_judged_completed_and_may_be_refused() -> None:
    client = connect({BUILT.image_id: (BASE,)})
    with pytest.raises(UsageError, match="is not an image reference"):
        push_image(client, BUILT, "-x", Progress())
    push_image(client, BUILT, "host:5000/tiny", Progress())
    client.api.tag.assert_called_once_with(BUILT.image_id, "host:5000/tiny", "1")
    client.images.push.return_value = [{"error": "denied"}]
    with pytest.raises(ToolError, match="was not pushed"):
        push_image(client, BUILT, "host/tiny:2", Progress())


@pytest.mark.parametrize("domain", ["", "docker.io/"])
@pytest.mark.parametrize(("tag", "stale"), [("1", False), ("2", True)])
def test_today_s_image_is_not_stale_under_either_name(domain: str, tag: str, stale: bool) -> None:
    """Podman puts a domain before the names of images."""
    client = connect({})
    image = SimpleNamespace(
        tags=[f"{domain}executorch-qnn-ci/tiny:{tag}"], id="sha256:1", attrs={"Size": 1}
    )
    client.images.list.return_value = [image]
    client.containers.list.return_value = client.volumes.list.return_value = []
    found = find_stale(client, {BUILT.reference})
    assert [one.name for one in found] == (["sha256:1"] if stale else [])
