"""Whether an adaptor creates a device with an SDK's libraries: tried once for the bytes of both."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from provisioning.console.process import run_process
from provisioning.doctor.survey import device_probe
from provisioning.errors import StoreError, ToolError
from provisioning.files import hash_file, write_whole

TIMEOUT_S = 120.0
QNN_SAYS = re.compile(r"<E> ([^\n]+)")
ANSWER = re.compile(r"^device (.*)$", re.MULTILINE)


def try_device(
    python: Path | None,
    adaptor: Path,
    libraries: Path,
    variables: Mapping[str, str],
    remembered: Path,
) -> str:
    """Why ``adaptor`` creates no device with the libQnnHtp.so in ``libraries``; empty if it does.

    What came out for the same bytes is in ``remembered``, a directory.
    """
    key = hashlib.sha256()
    for path in (adaptor, libraries / "libQnnHtp.so", Path(device_probe.__file__)):
        key.update(hash_file(path).encode())
    kept = remembered / f"device-{key.hexdigest()[:32]}.txt"
    if kept.is_file():
        return kept.read_text("utf-8")
    why = _try_device(python or Path(sys.executable), variables)
    with suppress(OSError, StoreError):  # then it is tried again
        write_whole(kept, why)
    return why


def _try_device(python: Path, variables: Mapping[str, str]) -> str:
    try:
        ended = run_process(
            [python, device_probe.__file__], env=variables, timeout_s=TIMEOUT_S, check=False
        )
    except ToolError as error:
        return str(error.why or error.what)
    found = ANSWER.findall(ended.output)
    if found and found[-1] == "ok":
        return ""
    said: list[str] = [*QNN_SAYS.findall(ended.output), *found, f"it {ended.describe()}"]
    return said[0].strip()
