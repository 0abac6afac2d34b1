"""Fetch the Python packages of an image with this machine's pip and its settings, and check their
hashes.

The engine gets only the fetched files, not the indexes, credentials and proxies of this machine, so
no layer contains these.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

from ci.images.definition import ImagePlan, wanted_requirements
from provisioning.console.process import module_command, run_process
from provisioning.console.progress import Progress
from provisioning.documents import decode_json, read_text
from provisioning.errors import DownloadError, ToolError, UnfitError
from provisioning.store.store import store_home

# QNN needs glibc 2.34, so the wheels may need it too.
PLATFORMS = (*(f"manylinux_2_{n}_x86_64" for n in range(34, 16, -1)), "manylinux2014_x86_64")
# torch may come from different indexes, with different bytes, so it has no hash.
UNHASHED = "torch"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# A package that has no wheel (antlr4-python3-runtime) is built with these in the image.
SOURCE_BUILDERS = ("setuptools", "wheel")
# Packages that only a CUDA build of torch requires.
CUDA = re.compile(r"(nvidia|cuda|triton)(-|$)")


def resolve_lock(plan: ImagePlan, progress: Progress) -> str:
    """Return the requirements for the base's Python, each with its version and, except for torch,
    its hash.

    pip evaluates markers for the Python that runs it, so a Python of the base's version is needed.
    Raises UnfitError if there is none, and DownloadError if pip fails.
    """
    python = shutil.which(f"python{plan.base.python}")
    if python is None:
        raise UnfitError(
            f"python{plan.base.python} is not on PATH",
            why="pip resolves packages for the Python that runs it",
            fix=f"install this Python, or run this command in a container of {plan.base.image}",
        )
    progress.step(f"resolving the packages of Python {plan.base.python}")
    answer = _run_pip(
        ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"],
        [*wanted_requirements(plan.checkout), *SOURCE_BUILDERS],
        python,
    )
    rows = decode_json(answer[answer.index("{") :], dict[str, Any])["install"]
    return "".join(sorted(pin_lines(rows)))


def pin_lines(rows: Sequence[dict[str, dict[str, object]]]) -> Iterator[str]:
    """Yield the lines of a lock for the packages in pip's report, except those that only a CUDA
    build of torch needs.
    """
    for row in rows:
        name = str(row["metadata"]["name"]).lower().replace("_", "-")
        if CUDA.match(name):
            continue
        pin = f"{name}=={str(row['metadata']['version']).split('+')[0]}"
        hashes = row["download_info"]["archive_info"]["hashes"]  # type: ignore[index]
        yield f"{pin}\n" if name == UNHASHED else f"{pin} --hash=sha256:{hashes['sha256']}\n"


def fetch_wheels(plan: ImagePlan, progress: Progress) -> list[Path]:
    """Fetch the packages in the lock into the store's downloads, and return their files.

    Raises UnfitError if there is no lock, and DownloadError if pip fails.
    """
    if not plan.python_lock.is_file():
        raise UnfitError(
            f"there is no package lock for Python {plan.base.python}",
            why=f"{plan.python_lock} is missing",
            fix=f"run `qnn-ci image lock {plan.name} --write` with the same --base",
        )
    lines = read_text(plan.python_lock).splitlines()
    directory = store_home() / "downloads" / "wheels" / f"python-{plan.base.python}"
    directory.mkdir(parents=True, exist_ok=True)
    hashed = directory / "requirements.txt"
    hashed.write_text("".join(f"{line}\n" for line in lines if "--hash" in line), "utf-8")
    progress.step(f"fetching {len(lines)} wheels for Python {plan.base.python}")
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    target = ["--python-version", plan.base.python, *platforms]
    common = ["download", "--quiet", "--no-deps", "--dest", str(directory), *target]
    _run_pip(common, ["--require-hashes", "-r", hashed])
    _fetch_torch([*common, *(line for line in lines if "--hash" not in line)])
    pins = (line.split()[0].split("==") for line in lines)
    wanted = {(canonicalize_name(name), version) for name, version in pins}
    return sorted(path for path in directory.iterdir() if read_pin(path) in wanted)


def _fetch_torch(words: Sequence[str | Path]) -> None:
    """Fetch torch from the same index as ./nox.

    This is the index in QNN_CI_TORCH_INDEX. If the variable is empty or ``none``, it is pip's
    index. If the variable is not set, it is PyTorch's index for the CPU, or pip's index if that
    fails.
    """
    named = os.environ.get("QNN_CI_TORCH_INDEX")
    if named is None:
        try:
            _run_pip(words, ["--index-url", CPU_INDEX, "--timeout", "5", "--retries", "0"])
            return
        except DownloadError:
            named = ""
    _run_pip(words, ["--index-url", named] if named not in {"", "none"} else [])


def read_pin(path: Path) -> tuple[str, str] | None:
    """Return the normalized name of the package and its version, without a local part, for a wheel
    or a source archive. Return None for any other file."""
    parse = parse_wheel_filename if path.suffix == ".whl" else parse_sdist_filename
    try:
        name, version = parse(path.name)[:2]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
    return name, version.public


def _run_pip(
    command: Sequence[str | Path], words: Sequence[str | Path], python: str = sys.executable
) -> str:
    pip = [*module_command("pip", python), "--disable-pip-version-check", "--no-input"]
    argv = [*pip, *command, *words]
    try:
        return run_process(argv, fix="check pip's index, proxy and certificates").output
    except ToolError as error:
        raise DownloadError(
            "pip could not fetch the image's packages", why=error.why, fix=error.fix
        ) from error
