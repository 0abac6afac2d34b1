"""Whether an adaptor creates a device with an SDK's libraries: tried once for the bytes of both."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from provisioning.console.process import run_process
from provisioning.doctor.survey import device_probe
from provisioning.errors import StoreError, ToolError
from provisioning.files import hash_file, write_whole
from provisioning.manifest.backends import Backend

TIMEOUT_S = 120.0
QNN_SAYS = re.compile(r"(?:<E> |\[ERROR\] \[Qnn ExecuTorch\]: )([^\n]+)")
ANSWER = re.compile(r"^device (.*)$", re.MULTILINE)


def try_device(
    python: Path,
    adaptor: Path,
    library: Path,
    variables: Mapping[str, str],
    remembered: Path,
    *,
    backend: Backend = Backend.HTP,
) -> str:
    """Why the adaptor that ``python`` finds creates no device with a backend's ``library``, which
    for a backend beside HTP is the backend alone; empty if it does.

    ``remembered`` is a directory for what came out of the same bytes.
    """
    key = hashlib.sha256(backend.value.encode())
    for path in (adaptor, library, Path(device_probe.__file__)):
        key.update(hash_file(path).encode())
    kept = remembered / f"device-{key.hexdigest()[:32]}.txt"
    if kept.is_file():
        return kept.read_text("utf-8")
    why = _try_device(python, variables, backend)
    with suppress(OSError, StoreError):  # then it is tried again
        write_whole(kept, why)
    return why


def _try_device(python: Path, variables: Mapping[str, str], backend: Backend) -> str:
    words = [str(python), device_probe.__file__, backend.value]
    try:
        ended = run_process(words, env=variables, timeout_s=TIMEOUT_S, check=False)
    except ToolError as error:
        return str(error.why or error.what)
    found = ANSWER.findall(ended.output)
    if found and found[-1] == "ok":
        return ""
    said: list[str] = [*QNN_SAYS.findall(ended.output), *found, f"it {ended.describe()}"]
    return said[0].strip()
