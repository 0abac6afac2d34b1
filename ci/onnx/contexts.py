"""Context models: ONNX files whose EPContext nodes contain QNN's context binary, or its file name.

The execution provider (EP) accepts a binary compiled for another SoC, or one with changed weights,
and the emulator runs both (seen with onnxruntime-qnn 2.3.0 to 2.7.0). A device rejects the binary
for another SoC, and returns wrong values for the one with changed weights. A binary of a newer QNN
is rejected without a reason (INVALID_ARGUMENT). This module therefore checks the binary itself.

provisioning/elf/programs.py reads the fields inside a binary. The EP writes the target of the
compilation to the model's metadata: ``v2:BACKEND:QNN:FORMAT:ARCH:SOC:VTCM:0``, with commas between
the numbers of several SoCs.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from ci.onnx.fallback import PROVIDER, tell_untaken
from ci.onnx.models import MISSING, count_untaken, find_location_fault, parse_model
from provisioning.documents import CONTENT_BYTES, open_regular, read_bytes
from provisioning.elf.programs import (
    ARCHIVE,
    NO_SOC,
    Blob,
    Target,
    find_context_damage,
    find_targets,
)
from provisioning.elf.qnn_build import search_whole
from provisioning.errors import FailedError, UnfitError, UsageError
from provisioning.files import write_whole
from provisioning.manifest.targets import find_any_soc, read_all_socs
from provisioning.versions import parse_version

COMPATIBILITY = f"ep_compatibility_info.{PROVIDER}"
SEAL = "qnn_ci.context_sha256"
AGAIN = "compile the model again; keep NAME_ctx.onnx and NAME_ctx_qnn.bin together"


@dataclass(frozen=True, slots=True)
class Context:
    """A context model and its binary.

    ``source`` is the provider that the model names. ``qnn`` is the QNN version in the binary,
    ``sdk_version`` the one in the model's main EPContext node. ``socs`` are QNN's SoC numbers in
    the metadata, and ``targets`` are the hardware for which the binary's graphs were compiled, if
    they are known. ``seal`` is the SHA-256 of the binary that seal_context wrote, if any.
    """

    partitions: tuple[str, ...]
    source: str
    sdk_version: str
    qnn: str
    socs: tuple[int, ...]
    targets: tuple[Target, ...]
    seal: str


def open_context(path: Path) -> tuple[Any, Context, Blob]:
    """Return the model at ``path``, what it and its binary contain, and the binary.

    Raises UsageError if the file is not a context model of QNN, and FailedError if its binary is
    missing, damaged, or belongs to another model.
    """
    model = parse_model(path)
    metadata = {prop.key: str(prop.value) for prop in model.metadata_props}
    nodes = [_map_attributes(node) for node in model.graph.node if node.op_type == "EPContext"]
    if not nodes:
        fix = "compile it first: `test_onnx` with --keep-artifacts keeps the context model"
        if untaken := count_untaken(model):
            fix = f"{fix}; {tell_untaken(untaken)}"
        raise UsageError(f"{path.name} is not a context model: it has no EPContext node", fix=fix)
    sources = {_text(node, "source") for node in nodes}
    if sources - {PROVIDER, "QNN", ""}:
        why = f"the source of its EPContext nodes is {', '.join(sorted(sources))}"
        raise UsageError(f"{path.name} is not a context model of {PROVIDER}", why=why)
    main = [node for node in nodes if _number(node, "main_context")]
    if len(main) != 1:
        raise _broken(
            path,
            f"it has {len(main)} EPContext nodes with main_context=1; it must have exactly one",
        )
    blob = _read_binary(path, main[0])
    build = search_whole(blob, 0, len(blob))
    claimed = re.match(r"v?(\d+(?:\.\d+){2})", _text(main[0], "ep_sdk_version"))
    fields = metadata.get(COMPATIBILITY, "").split(":")
    numbers = fields[5].split(",") if len(fields) > 5 and fields[0] == "v2" else ()
    context = Context(
        partitions=tuple(_text(node, "partition_name") for node in nodes),
        source=_text(main[0], "source"),
        sdk_version=claimed[1] if claimed else "",
        qnn=build.version or "" if build else "",
        socs=tuple(int(number) for number in numbers if number.isdecimal() and number != "0"),
        targets=find_targets(blob),
        seal=metadata.get(SEAL, ""),
    )
    damage = find_context_damage(blob)
    if fault := (damage and f"its context binary {damage}") or _find_strangeness(context, blob):
        raise _broken(path, fault)
    return model, context, blob


def check_context(path: Path, soc: str) -> Blob:
    """Return the binary of the context at ``path``, after checking that it is for ``soc``, such as
    SM8750.

    Raises UsageError and FailedError as open_context does, and UnfitError if the context is for
    another SoC.
    """
    _, context, blob = open_context(path)
    required = find_any_soc(soc)
    # A binary names no SoC if it was compiled without soc_model, and a model may have no metadata.
    names = {target.soc for target in context.targets} - {NO_SOC}
    socs = read_all_socs()
    compiled = {socs[name].id for name in names if name in socs}
    listed = set(context.socs) or compiled
    if required.id not in listed or (compiled and required.id not in compiled):
        binary_socs = () if required.id in compiled else sorted(names)
        made_for = " and ".join(binary_socs) or ", ".join(map(str, context.socs))
        if made_for:
            problem = f"{path.name} is compiled for {made_for}, not for {soc}"
        else:
            problem = f"{path.name} does not name the SoC that it was compiled for"
        raise UnfitError(
            problem,
            why=f"{soc} has SoC number {required.id} and Hexagon V{required.hexagon}; a device"
            " rejects the context with error 5005 or 14001, although the emulator runs it",
            fix=f"compile it with soc_model={required.id}",
        )
    return blob


def seal_context(path: Path) -> None:
    """Write the SHA-256 of the binary to the context model's metadata, unless it is already there.

    open_context can then detect a changed binary. Raises UsageError or FailedError as open_context
    does.
    """
    _, context, blob = open_context(path)
    if not context.seal:
        # Protobuf parses concatenated messages as one, so the provider's bytes do not change.
        entry = onnx.StringStringEntryProto(key=SEAL, value=hashlib.sha256(blob).hexdigest())
        added = onnx.ModelProto(metadata_props=[entry])
        write_whole(path, read_bytes(path, CONTENT_BYTES) + added.SerializeToString())


def _read_binary(path: Path, node: Mapping[str, Any]) -> Blob:
    mode = _number(node, "embed_mode")
    cache = node["ep_cache_context"].s if "ep_cache_context" in node else b""
    if not cache:
        raise _broken(path, "its EPContext node has no ep_cache_context")
    if mode == 1:
        return cache
    if mode != 0:
        raise _broken(path, f"its embed_mode is {mode}; it must be 0 or 1")
    location = _text(node, "ep_cache_context")
    if fault := find_location_fault(location, path.parent):
        back = (
            "put the binary back next to the model; if several sessions share it, open the last one"
            " with ep.stop_share_ep_contexts=1, because that session writes it"
        )
        why = f"its context binary, {location!r}, {fault}"
        raise _broken(path, why, back if fault == MISSING else AGAIN)
    try:
        with open_regular(path.parent / location) as stream:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    # mmap raises this for an empty file.
    except ValueError as error:
        raise _broken(path, f"its context binary, {location}, is empty") from error
    except OSError as error:
        raise _broken(path, f"its context binary cannot be read: {error.strerror}") from error


def _find_strangeness(context: Context, blob: Blob) -> str:
    """Return what shows that a binary was not compiled from its model, or was changed later; empty
    if nothing does."""
    actual, claimed = context.qnn, context.sdk_version
    if not actual and blob[:4] != ARCHIVE:
        return "its context binary does not contain a QNN version"
    if actual and claimed and parse_version(actual) != parse_version(claimed):
        return f"its context binary is from QNN {actual}, but its EPContext node names {claimed}"
    for name in context.partitions:
        if name and blob.find(b"\0%b\0" % name.encode()) < 0:
            return f"its context binary has no graph {name!r}: it belongs to another model"
    if context.seal and hashlib.sha256(blob).hexdigest() != context.seal:
        return "its context binary was changed after compilation: its SHA-256 differs"
    return ""


def _map_attributes(node: Any) -> dict[str, Any]:
    return {attribute.name: attribute for attribute in node.attribute}


def _text(node: Mapping[str, Any], name: str) -> str:
    return node[name].s[:4096].decode("utf-8", "replace") if name in node else ""


def _number(node: Mapping[str, Any], name: str) -> int:
    """Return an integer attribute; 1 if it is missing."""
    return node[name].i if name in node else 1


def _broken(path: Path, why: str, fix: str = AGAIN) -> FailedError:
    return FailedError(f"the context {path.name} cannot be loaded", why=why, fix=fix)


def measure_constant(tensor: onnx.TensorProto) -> int:
    """Return the size in bytes of a tensor's values. They can be raw, in a field such as
    ``float_data``, or in another file."""
    if tensor.raw_data:
        return len(tensor.raw_data)
    if tensor.string_data:
        return sum(map(len, tensor.string_data))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return math.prod(tensor.dims) * int(dtype.itemsize)
