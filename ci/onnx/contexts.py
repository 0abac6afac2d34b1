"""Context models: ONNX files whose EPContext nodes hold, or name, QNN's context binary.

The EP loads the binary of another SoC, of a newer QNN and one with changed weights, and the
emulator runs it (seen with 2.5.0 and QNN 2.49.40); on a device the first two fail, and the third
gives wrong values. So the bytes are judged here.

Seen of a binary: two big-endian u32 2 and 3, at 24 and 32 little-endian u64, where the graphs
begin and their size, which together are the size of the file. Each graph has the options that it
was compiled with as text, ``soc_type=SM8750;arch=79;...;vtcm_size=8388608;``. The binary for
several SoCs is a DLC, a zip archive. The EP writes what it compiled for into the model's metadata:
``v2:BACKEND:QNN:FORMAT:ARCH:SOC:VTCM:0``, numbers of several SoCs with commas.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import re
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ci.onnx.files.faults import find_location_fault
from ci.onnx.files.graph import Model, Node, read_graph
from ci.onnx.files.wire import field
from ci.onnx.option_table import read_options
from provisioning.elf.qnn_build import search_whole
from provisioning.errors import FailedError, QnnCiError, UnfitError, UsageError
from provisioning.files import write_whole
from provisioning.manifest.socs import find_soc, read_socs
from provisioning.versions import is_older, parse_version

PROVIDER = "QNNExecutionProvider"
COMPATIBILITY = f"ep_compatibility_info.{PROVIDER}"
SEAL = "qnn_ci.context_sha256"
METADATA_FIELD = 14  # ModelProto.metadata_props
COMPILED = re.compile(
    rb"soc_type=([^;]{1,40});arch=(\d{1,3});.{1,4000}?;vtcm_size=(\d{1,12});", re.DOTALL
)
NO_SOC = "UNKNOWN_SDM"  # compiled without a soc_model
HEADER = struct.Struct("<24xQQ")
ARCHIVE = b"PK\x03\x04"
AGAIN = "compile the model again; keep NAME_ctx.onnx and NAME_ctx_qnn.bin together"


@dataclass(frozen=True, slots=True)
class Target:
    """What a graph was compiled for, by its own bytes."""

    soc: str
    hexagon: int
    vtcm_mb: int


@dataclass(frozen=True, slots=True)
class Context:
    """A context model and its binary. ``file`` is None where the binary is in the model;
    ``qnn`` is the version in the binary's bytes, ``sdk_version`` the one that the model claims;
    ``socs`` are QNN's numbers by the model's metadata, empty without.
    """

    path: Path
    partitions: tuple[str, ...]
    source: str
    sdk_version: str
    qnn: str
    socs: tuple[int, ...]
    targets: tuple[Target, ...]
    file: Path | None
    size_bytes: int
    sealed: bool

    def as_data(self) -> dict[str, object]:
        """For JSON."""
        return {
            "model": self.path.name,
            "binary": self.file.name if self.file else None,
            "size_bytes": self.size_bytes,
            "embedded": self.file is None,
            "provider": self.source,
            "qnn": self.qnn,
            "claimed_qnn": self.sdk_version,
            "soc_models": list(self.socs),
            "targets": [asdict(one) for one in self.targets],
            "partitions": list(self.partitions),
            "sealed": self.sealed,
        }


def read_context(path: Path) -> Context:
    """What a context model and its binary hold.

    Raises UsageError for a file that is not a context model of QNN's, FailedError where its binary
    is missing, damaged, or not the one that belongs to it.
    """
    return _read_whole(path)[0]


def _read_whole(path: Path) -> tuple[Context, memoryview]:
    """The context, and its binary."""
    model = read_graph(path)
    nodes = [node for node in model.graph.nodes if node.op_type == "EPContext"]
    if not nodes:
        raise UsageError(
            f"{path.name} is not a context model: it has no EPContext node",
            fix="compile it first: ep.context_enable=1 writes NAME_ctx.onnx",
        )
    sources = {_text(node, "source") for node in nodes}
    if sources - {PROVIDER, "QNN", ""}:
        why = f"its nodes are of {', '.join(sorted(sources))}"
        raise UsageError(f"{path.name} is not a context model of {PROVIDER}", why=why)
    main = [node for node in nodes if _number(node, "main_context", 1)]
    if len(main) != 1:
        raise _broken(path, f"{len(main)} of its EPContext nodes are main ones, one has to be")
    file, blob = _find_binary(path, main[0])
    _check_blob(path, blob)
    context = _describe(model, nodes, main[0], file, blob)
    for reason in _find_strangeness(context, model, blob):
        raise _broken(path, reason)
    return context, blob


def check_context(path: Path, soc: str, runtime: str = "") -> Context:
    """Judge a context for ``soc`` (SM8750) and the QNN ``runtime`` (2.49.40; "" skips it).

    Raises UsageError and FailedError as read_context does, UnfitError for another SoC's, and for
    one that a newer QNN has compiled.
    """
    context = read_context(path)
    if fault := find_misfit(context, soc, runtime):
        raise fault
    return context


def find_misfit(context: Context, soc: str, runtime: str) -> QnnCiError | None:
    """Why a context that is whole does not fit; None when it does."""
    wanted = find_soc(soc)
    names = {one.soc for one in context.targets} - {NO_SOC}
    made_for = " and ".join(sorted(names)) or ", ".join(map(str, context.socs)) or "no SoC"
    known = {name: one.id for name, one in [*read_socs().items(), *read_options().socs.items()]}
    others = {known[name] for name in names if name in known}
    fits = wanted.id in context.socs if context.socs else wanted.id in others
    if not fits or (others and wanted.id not in others):
        return UnfitError(
            f"{context.path.name} is compiled for {made_for}, not for {soc}",
            why=f"{soc} has number {wanted.id} and V{wanted.hexagon}; on a device this is error"
            " 5005 or 14001, while the emulator runs it",
            fix=f"compile it with soc_model={wanted.id}",
        )
    newest = max(filter(None, (context.qnn, context.sdk_version)), key=parse_version, default="")
    if runtime and newest and is_older(runtime, newest):
        return UnfitError(
            f"{context.path.name} is compiled with QNN {newest}, the runtime is {runtime}",
            why="a runtime loads what an older QNN or its own has compiled, nothing newer",
            fix=f"take a runtime of {newest} or newer, or compile it with {runtime}",
        )
    return None


def seal_context(path: Path) -> str:
    """Write the SHA-256 of the binary into the context model's metadata; returns it.

    Afterwards read_context finds a binary that was changed. Raises as read_context does.
    """
    context, blob = _read_whole(path)
    digest = hashlib.sha256(blob).hexdigest()
    if not context.sealed:
        pair = field(1, SEAL.encode()) + field(2, digest.encode())
        write_whole(path, path.read_bytes() + field(METADATA_FIELD, pair))
    return digest


def _find_binary(path: Path, node: Node) -> tuple[Path | None, memoryview]:
    mode = _number(node, "embed_mode", 1)
    cache = node.attributes.get("ep_cache_context")
    if cache is None or not cache.data:
        raise _broken(path, "its EPContext node has no ep_cache_context")
    if mode == 1:
        return None, cache.data
    if mode != 0:
        raise _broken(path, f"its embed_mode is {mode}, 0 or 1 has to be")
    location = bytes(cache.data[:4096]).decode("utf-8", "replace")
    if fault := find_location_fault(location, path.parent):
        gone = "is not there" in fault
        raise _broken(
            path,
            f"its context binary, {location!r}, {fault}",
            "put it back beside the model. Where contexts are shared, the last session writes"
            " it, with ep.stop_share_ep_contexts=1"
            if gone
            else AGAIN,
        )
    file = path.parent / location
    try:
        if not file.stat().st_size:
            raise _broken(path, f"its context binary, {location}, is empty")
        with file.open("rb") as stream:
            return file, memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise _broken(path, f"its context binary cannot be read: {error.strerror}") from error


def _check_blob(path: Path, blob: memoryview) -> None:
    if blob[:4] == ARCHIVE:
        try:
            zipfile.ZipFile(io.BytesIO(blob)).close()
        except (zipfile.BadZipFile, OSError) as error:
            raise _broken(path, f"its context binary is cut short: {error}") from error
        return
    if len(blob) < HEADER.size:
        raise _broken(path, f"its context binary has {len(blob)} bytes")
    begin, size = HEADER.unpack_from(blob)
    if begin + size != len(blob):
        told = begin + size if begin + size < 1 << 40 else "no size that can be"
        raise _broken(
            path,
            f"its context binary has {len(blob)} bytes and its header tells {told}: it was cut"
            " short, or is not one of QNN's",
        )


def _describe(
    model: Model, nodes: list[Node], main: Node, file: Path | None, blob: memoryview
) -> Context:
    build = search_whole(_searchable(blob), 0, len(blob))
    found = {
        Target(name.decode("ascii", "replace"), int(arch), int(size) >> 20)
        for name, arch, size in COMPILED.findall(blob)
    }
    return Context(
        path=model.path,
        partitions=tuple(_text(node, "partition_name") for node in nodes),
        source=_text(main, "source"),
        sdk_version=_plain(_text(main, "ep_sdk_version")),
        qnn=build.version or "" if build else "",
        socs=_parse_socs(model.metadata.get(COMPATIBILITY, "")),
        targets=tuple(sorted(found, key=lambda one: one.soc)),
        file=file,
        size_bytes=len(blob),
        sealed=SEAL in model.metadata,
    )


def _searchable(blob: memoryview) -> bytes | mmap.mmap:
    return blob.obj if isinstance(blob.obj, mmap.mmap) and blob.obj[:4] == blob[:4] else bytes(blob)


def _find_strangeness(context: Context, model: Model, blob: memoryview) -> Iterator[str]:
    if not context.qnn and blob[:4] != ARCHIVE:
        yield "its context binary names no version of QNN"
    made, claimed = context.qnn, context.sdk_version
    if made and claimed and parse_version(made) != parse_version(claimed):
        yield f"its context binary is of QNN {made}, and the model says {claimed}"
    data = _searchable(blob)
    for name in context.partitions:
        if name and data.find(b"\0%b\0" % name.encode()) < 0:
            yield f"its context binary has no graph {name!r}: it is of another model"
    if context.sealed and hashlib.sha256(blob).hexdigest() != model.metadata[SEAL]:
        yield "its context binary is not the one that was compiled: its SHA-256 is another"


def _plain(build: str) -> str:
    """``v2.49.40.260810104044`` as ``2.49.40``."""
    found = re.match(r"v?(\d+(?:\.\d+){2})", build)
    return found[1] if found else ""


def _parse_socs(text: str) -> tuple[int, ...]:
    parts = text.split(":")
    numbers = parts[5].split(",") if len(parts) > 5 and parts[0] == "v2" else ()
    return tuple(int(one) for one in numbers if one.isdecimal() and one != "0")


def _text(node: Node, name: str) -> str:
    found = node.attributes.get(name)
    return bytes(found.data[:4096]).decode("utf-8", "replace") if found else ""


def _number(node: Node, name: str, default: int) -> int:
    found = node.attributes.get(name)
    return found.number if found else default


def _broken(path: Path, why: str, fix: str = AGAIN) -> FailedError:
    return FailedError(f"the context {path.name} cannot be loaded", why=why, fix=fix)
