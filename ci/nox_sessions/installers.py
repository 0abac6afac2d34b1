"""How the packages of a lock are installed: by uv, or by pip where uv's wheel cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import nox

from ci.packages.locks import Lock
from ci.packages.pip_settings import read_settings
from ci.packages.torch_builds import TORCH_VARIABLE, choose_torch, list_indexes, point_pip
from ci.packages.uv import list_options, place_cache, translate


def install_with_uv(session: nox.Session, uv: str, folder: Path, lock: Lock) -> None:
    """Create the environment in ``folder`` with the packages of a lock. Its files are hard links to
    those of uv's cache, if both are in one file system. Raises CommandFailed of nox."""
    settings = read_settings(os.environ)
    env = place_cache(translate(settings, os.environ))
    quiet = ["--quiet", f"--python={folder / 'bin' / 'python'}", *list_options(settings)]

    def install(env: Mapping[str, str], files: Sequence[Path], *options: str) -> None:
        words = [f"--requirements={file}" for file in files]
        # A package that has no wheel is built with packages of the lock.
        build = f"--build-constraints={lock.path}"
        command = [uv, "pip", "install", "--no-deps", *quiet, *options, build, *words]
        session.run_install(*command, env=env, silent=True, log=False)

    create = [uv, "venv", "--quiet", "--clear", "--no-project", f"--python={sys.executable}"]
    session.run_install(*create, str(folder), env=env, silent=True, log=False)
    if not lock.torch:
        install(env, [lock.path], "--require-hashes")
        return
    torch, source = choose_torch([uv, "pip", "compile", *quiet], env, lock)
    if len(torch) > 1:
        session.log(f"torch: a CUDA build, 3 GB; {TORCH_VARIABLE}=URL chooses another index")
    file = folder / "torch.txt"
    file.write_text("".join(f"{line}\n" for line in torch), "utf-8")
    if not source and all("--hash" in line for line in torch):
        install(env, [lock.path, file], "--require-hashes")
    else:  # an index for torch has other builds of other packages, and other builds no known hash
        install(env, [lock.path], "--require-hashes")
        install({**env, **source}, [file])


def install_with_pip(session: nox.Session, folder: Path, lock: Lock) -> None:
    """Create the environment in ``folder`` with the packages of a lock. pip does not check the
    hashes of torch. Raises CommandFailed of nox."""
    # nox depends on virtualenv, so it is there before anything is installed.
    virtualenv = [sys.executable, "-m", "virtualenv", "-q", str(folder)]
    session.run_install(*virtualenv, silent=True, log=False)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--no-compile"]
    packages = ["--no-deps", "--require-hashes", "-r", str(lock.path)]
    session.run_install(*pip, *packages, silent=True, log=False)
    if not lock.torch:
        return
    torch = f"torch=={lock.torch}"
    *other_indexes, last_index = list_indexes()
    for index in other_indexes:
        env = {**os.environ, **point_pip(index)}
        ended = subprocess.run([*pip, torch], env=env, capture_output=True, check=False)
        if ended.returncode == 0:
            return
    session.run_install(*pip, torch, env=point_pip(last_index), silent=True, log=False)
