"""Facts about the machine and the moment of a run."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from ci.report.schema import Host
from provisioning.errors import UsageError


def read_host() -> Host:
    """Facts about this machine; ``processor`` is the kernel's name of it, where it has one."""
    return Host(
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        processor=_processor_name(),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        libc=" ".join(platform.libc_ver()).strip(),
        python=platform.python_version(),
    )


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def started_now(environ: Mapping[str, str] = os.environ) -> str:
    """The moment as UTC ISO 8601; SOURCE_DATE_EPOCH, seconds since 1970, stands in for the clock.

    Raises UsageError when that variable is no such number.
    """
    text = environ.get("SOURCE_DATE_EPOCH", "")
    try:
        moment = datetime.fromtimestamp(int(text) if text else int(time.time()), timezone.utc)
        return f"{moment:%Y-%m-%dT%H:%M:%S}Z".zfill(20)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"SOURCE_DATE_EPOCH is {text!r}",
            why=str(error),
            fix="set it to seconds since 1970, or unset it",
        ) from error
