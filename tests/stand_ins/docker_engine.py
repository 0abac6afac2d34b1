"""A Docker engine in this process: images, containers and volumes as dicts, and a record of calls.

It answers as far as ci.images asks. What it builds is its base with one layer more, as a tar that
an engine saves; tests/integration/images has a real one.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import IO, Any

from docker.errors import APIError, ImageNotFound

from tests.stand_ins.waits import wait_until

FILES = {
    "/usr/lib/os-release": b'ID=debian\nVERSION_ID="12"\n',
    "/etc/passwd": b"root:x\n",
    "/etc/group": b"root:x\n",
}
LAYER = "layer.tar"


def pack(files: dict[str, bytes], *, mtime: int = 0) -> bytes:
    """Return a tar of files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), mtime
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


@dataclass
class FakeImage:
    """An image: ``layers`` are tars, the lowest first."""

    layers: list[bytes]
    labels: dict[str, str] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    id: str = ""

    def __post_init__(self) -> None:
        text = json.dumps(
            [[hashlib.sha256(layer).hexdigest() for layer in self.layers], self.labels]
        )
        self.id = self.id or f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    @property
    def attrs(self) -> dict[str, Any]:
        digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in self.layers]
        return {"Size": sum(map(len, self.layers)), "RootFS": {"Layers": digests}}

    def save(self, *, named: bool) -> list[bytes]:
        assert not named
        names = [f"{index}/{LAYER}" for index in range(len(self.layers))]
        config = {"architecture": "amd64", "os": "linux", "config": {"Labels": self.labels}}
        rows = [{"Config": "config.json", "Layers": names, "RepoTags": None}]
        files = {"manifest.json": rows, "config.json": config}
        texts = {name: json.dumps(value).encode() for name, value in files.items()}
        return [pack({**texts, **dict(zip(names, self.layers, strict=True))})]


class FakeEngine:
    """The client of such an engine: ``calls`` are (name, arguments), in their order.

    ``remote`` are images that can be pulled, ``events`` what a build says if it is not to work,
    ``exit_code`` that of every container, ``refused`` the ids that are in use.
    """

    def __init__(self) -> None:
        self.store: dict[str, FakeImage] = {}
        self.remote: dict[str, FakeImage] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.contexts: list[dict[str, bytes]] = []
        self.events: list[dict[str, Any]] = []
        self.exit_code = 0
        self.made: dict[str, SimpleNamespace] = {}
        self.names: dict[str, dict[str, str]] = {}
        self.refused: set[str] = set()
        self.podman = False
        self.images = SimpleNamespace(
            get=self.get, list=self.list_images, load=self.load, remove=self.remove
        )
        self.containers = SimpleNamespace(
            create=self.make_container,
            list=self.list_containers,
            get=self.made.__getitem__,
            run=self.run,
        )
        self.volumes = SimpleNamespace(
            list=self.list_volumes, create=self.make_volume, get=self.get_volume
        )
        self.api = SimpleNamespace(
            build=self.build,
            pull=self.pull,
            tag=self.tag,
            create_host_config=lambda **words: words,
            create_container=self.create_container,
            remove_container=self.remove_container,
            wait=self.wait,
            start=lambda name: self.note("start", id=name),
            kill=lambda name, number: self.note("kill", id=name, signal=number),
            put_archive=lambda name, path, data: self.note("put", path=path, files=unpack(data)),
            get_archive=lambda _, path: ([pack({path.rpartition("/")[2]: FILES[path]})], {}),
        )

    def note(self, name: str, /, **words: Any) -> None:
        self.calls.append((name, words))

    def called(self, name: str) -> list[dict[str, Any]]:
        """The arguments of every call of a name."""
        return [words for called, words in self.calls if called == name]

    def add(self, image: FakeImage, *tags: str) -> FakeImage:
        image.tags += tags
        self.store[image.id] = image
        return image

    def get(self, name: str) -> FakeImage:
        for image in self.store.values():
            if name == image.id or name in image.tags:
                return image
        raise ImageNotFound(f"no {name}")

    def list_images(self, name: str = "", filters: dict[str, str] | None = None) -> list[FakeImage]:
        label = (filters or {}).get("label", "")
        prefix = name.rstrip("*")
        images = []
        for image in self.store.values():
            has_label = not label or label in image.labels
            if has_label and (not prefix or any(prefix in tag for tag in image.tags)):
                images.append(image)
        return images

    def load(self, file: IO[bytes]) -> list[FakeImage]:
        self.note("load")
        files = unpack(file.read())
        (row,) = json.loads(files["manifest.json"])
        labels = json.loads(files[row["Config"]])["config"]["Labels"]
        return [self.add(FakeImage([files[name] for name in row["Layers"]], labels))]

    def remove(self, name: str, *, force: bool) -> None:
        assert force
        if name in self.refused:
            self.refused.discard(name)
            raise APIError("in use")
        del self.store[name]
        self.note("remove", id=name)

    def pull(self, name: str, *, stream: bool, decode: bool) -> Iterator[dict[str, str]]:
        assert stream
        assert decode
        self.note("pull", name=name)
        if name not in self.remote:
            return iter([{"status": "Pulling"}, {"error": "dial tcp: no route to host"}])
        self.add(self.remote[name], name)
        return iter([{"status": "done"}])

    def build(self, **words: Any) -> list[dict[str, Any]]:
        self.contexts.append(unpack(words["fileobj"].read()))
        self.note("build", **words)
        if self.events:
            return self.events
        arguments = words.get("buildargs")
        text = self.contexts[-1].get("Dockerfile", b"").decode()
        base = self.get(arguments["BASE"] if arguments else text.split()[1])
        number = len(self.called("build"))
        layers = [*base.layers, pack({"made": b"same"}, mtime=number)]
        labels = {**base.labels, **words.get("labels", {})}
        image = self.add(FakeImage(layers, labels, id=f"sha256:raw{number}"))
        return [{"stream": "Step 1/1 : FROM\n"}, {"aux": {"ID": image.id}}]

    def tag(self, image_id: str, repository: str, tag: str) -> None:
        self.note("tag", id=image_id, name=f"{repository}:{tag}")
        for image in self.store.values():
            image.tags = [name for name in image.tags if name != f"{repository}:{tag}"]
        self.store[image_id].tags.append(f"{repository}:{tag}")

    def run(self, image_id: str, words: list[str], **options: Any) -> bytes:
        self.note("run", image=image_id, words=words, **options)
        return b"dash=1\nsed=2\n"

    def make_container(self, image_id: str, words: list[str]) -> SimpleNamespace:
        self.note("probe", image=image_id, words=words)
        return SimpleNamespace(id="probe", remove=lambda: self.note("probe removed"))

    def create_container(self, image: str, words: Any, **options: Any) -> dict[str, str]:
        name = f"c{len(self.called('container'))}"
        self.note("container", id=name, image=image, words=words, **options)
        return {"Id": name}

    def remove_container(self, name: str, *, force: bool) -> None:
        assert force
        self.note("container removed", id=name)

    def wait(self, name: str, *, condition: str) -> dict[str, int]:
        """Return once the container has started, as its commands end at once."""
        assert condition == "next-exit"
        wait_until(lambda: {"id": name} in self.called("start"))
        self.note("waited", id=name)
        return {"StatusCode": self.exit_code}

    def list_containers(self, **words: Any) -> list[SimpleNamespace]:
        self.note("list containers", **words)
        return list(self.made.values())

    def list_volumes(self, filters: dict[str, Any]) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(name=name)
            for name, labels in self.names.items()
            if filters["label"] in labels
            if not (filters.get("dangling") and name in self.refused)
        ]

    def make_volume(self, name: str, labels: dict[str, str]) -> None:
        self.names[name] = labels

    def get_volume(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remove=lambda: self.names.pop(name))

    def version(self) -> dict[str, Any]:
        return {"Components": [{"Name": "Podman Engine" if self.podman else "Engine"}]}

    @contextmanager
    def connect(self) -> Iterator[FakeEngine]:
        """In the place of connect_engine."""
        yield self


def unpack(data: bytes) -> dict[str, bytes]:
    """Return the regular files of a tar."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        contents = {}
        for member in archive:
            if member.isreg():
                body = archive.extractfile(member)
                contents[member.name] = body.read() if body else b""
        return contents
