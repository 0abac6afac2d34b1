"""Facts about the machine and the moment of a run."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from ci.report.schema import Host
from provisioning.console.clock import read_clock


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
    """The moment as UTC ISO 8601. Raises UsageError as read_clock does."""
    return f"{read_clock(environ)[0]:%Y-%m-%dT%H:%M:%S}Z".zfill(20)
