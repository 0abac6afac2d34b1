"""Compile a small library that this machine lacks. The C compiler is Zig's, which comes from a
pinned wheel.

``write`` of the release contains the sources and, in the file ``arguments``, the compiler's
arguments. The layout puts the compiler at ``zig``. The same compiler and sources produce the same
bytes, so a lock can pin the library's hash, as it does for a downloaded file.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from provisioning.artifacts.sources import FillJob
from provisioning.artifacts.sources.unpacking import copy_file, unpack_file
from provisioning.artifacts.sources.wheel import find_release, mirror, obtain_wheel
from provisioning.console.process import run_process
from provisioning.errors import DownloadError
from provisioning.manifest.releases import ZigRelease
from provisioning.store.tree import TreeEntry

__all__ = ["fill", "find_release", "mirror"]

TIMEOUT_S = 300


def fill(job: FillJob) -> tuple[TreeEntry, ...]:
    """Compile the library, and return the entries of its sources and of the library. Raises
    DownloadError if the wheel with the compiler cannot be fetched, and ToolError if it fails.
    """
    release = job.request.release_as(ZigRelease)
    name = Path(release.output).name
    try:
        wheel = obtain_wheel(job)
    except DownloadError as error:
        raise DownloadError(
            f"{name} is not on this machine, and the compiler to build it could not be fetched",
            why=error.why,
            fix=f"install the library: {release.instead}",
        ) from error
    with tempfile.TemporaryDirectory(dir=job.root.parent) as directory:
        scratch = Path(directory)
        unpack_file(wheel, replace(job, root=scratch, only=None))
        job.progress.step(f"{job.request.label}: compiling {name}")
        # Files are unpacked with the modes in the wheel, which may lack the executable bit.
        (scratch / "zig").chmod(0o500)
        run_process(
            [scratch / "zig", "cc", "@arguments"],
            # Nothing of the user's environment, which may contain flags that change the library's
            # bytes.
            env={"ZIG_GLOBAL_CACHE_DIR": directory, "ZIG_LOCAL_CACHE_DIR": directory},
            cwd=scratch,
            timeout_s=TIMEOUT_S,
            fix=f"install the library: {release.instead}",
        )
        (scratch / release.output).chmod(0o644)  # regardless of the umask
        paths = sorted(path for path in (*release.write, release.output) if job.wants(path))
        return tuple(copy_file(scratch / path, job.root, path) for path in paths)
