"""How the packages of a lock are installed: by uv, or by pip where uv's wheel cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ci.packages.locks import ROOT, Lock, list_pins
from ci.packages.pip_settings import read_settings
from ci.packages.uv import translate

if TYPE_CHECKING:
    import nox

TORCH_VARIABLE = "QNN_CI_TORCH_INDEX"
# On the default package index, torch is a CUDA build of several GB. uv knows this index itself.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# A machine without access to that index soon uses pip's.
IMPATIENT = {"UV_HTTP_RETRIES": "0", "UV_HTTP_CONNECT_TIMEOUT": "3"}


def install_with_uv(session: nox.Session, uv: str, folder: Path, lock: Lock) -> None:
    """Create the environment in ``folder`` with the packages of a lock. Its files are hard links to
    those of uv's cache, if both are in one file system. Raises CommandFailed of nox."""
    settings = read_settings(os.environ)
    env = translate(settings, os.environ)
    place_cache(env)
    quiet = ["--quiet", f"--python={folder / 'bin' / 'python'}"]
    if settings.get("no-index", "").lower() in {"1", "true", "yes", "on"}:
        quiet.append("--no-index")

    def install(env: Mapping[str, str], files: Sequence[Path], *options: str) -> None:
        words = [f"--requirements={file}" for file in files]
        # A package that has no wheel is built with packages of the lock.
        build = f"--build-constraints={lock.path}"
        command = [uv, "pip", "install", "--no-deps", *quiet, *options, build, *words]
        session.run(*command, env=env, silent=True, log=False)

    create = [uv, "venv", "--quiet", "--clear", "--no-project", f"--python={sys.executable}"]
    session.run(*create, str(folder), env=env, silent=True, log=False)
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


def place_cache(variables: dict[str, str]) -> None:
    """Put uv's cache next to the environments if this user cannot write where it usually is."""
    usual = Path(variables.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "uv")
    existing = next(folder for folder in (usual, *usual.parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        variables.setdefault("UV_CACHE_DIR", str(ROOT / ".nox" / "uv-cache"))


def choose_torch(
    resolve: Sequence[str], env: Mapping[str, str], lock: Lock
) -> tuple[list[str], dict[str, str]]:
    """Return the requirements of torch, and of what only the build of it needs that this machine
    finds, and the variables with which uv finds them. If there is no such build, the installation
    fails, and uv reports why.

    The requirements have the hashes of the lock. A build that the lock does not know, such as that
    of a company's index, has none.
    """
    torch, source = f"torch=={lock.torch}", dict[str, str]()
    files = [f"--constraints={path}" for path in (lock.path, lock.cuda)]
    command = [*resolve, "--no-header", "--no-annotate", *files, "-"]
    for source in list_sources(env):
        patience = IMPATIENT if "UV_TORCH_BACKEND" in source else {}
        variables = {**env, **source, **patience}
        ended = subprocess.run(
            command, env=variables, input=torch, capture_output=True, text=True, check=False
        )
        if ended.returncode == 0:
            lines = ended.stdout.splitlines()
            break
    else:
        lines = [torch]
    installed = {pin.name for pin, _ in list_pins(lock.path)}
    locked_lines = {}
    for path in (lock.builds, lock.cuda):
        for pin, line in list_pins(path):
            locked_lines[f"{pin.name}{pin.specifier}"] = line
    pins = [line for line in lines if line and line.partition("==")[0] not in installed]
    return [locked_lines.get(pin, pin) for pin in pins], source


def list_sources(variables: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield variables of uv for each place where torch is looked for, one after the other."""
    index = os.environ.get(TORCH_VARIABLE)
    if index is None:
        yield {"UV_TORCH_BACKEND": "cpu"}
    if index in {None, "", "none"}:
        yield {}
    else:  # of equal versions, uv takes that of the first index
        yield {"UV_INDEX": f"{index} {variables.get('UV_INDEX', '')}".strip()}


def install_with_pip(session: nox.Session, folder: Path, lock: Lock) -> None:
    """Create the environment in ``folder`` with the packages of a lock. pip does not check the
    hashes of torch. Raises CommandFailed of nox."""
    # nox depends on virtualenv, so it is there before anything is installed.
    virtualenv = [sys.executable, "-m", "virtualenv", "-q", str(folder)]
    session.run(*virtualenv, silent=True, log=False)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--no-compile"]
    packages = ["--no-deps", "--require-hashes", "-r", str(lock.path)]
    session.run(*pip, *packages, silent=True, log=False)
    if not lock.torch:
        return
    torch, index = f"torch=={lock.torch}", os.environ.get(TORCH_VARIABLE)
    if index is None:
        env = {**os.environ, "PIP_INDEX_URL": CPU_INDEX, "PIP_RETRIES": "0", "PIP_TIMEOUT": "3"}
        ended = subprocess.run([*pip, torch], env=env, capture_output=True, check=False)
        if ended.returncode == 0:
            return
    env = {"PIP_INDEX_URL": index} if index not in {None, "", "none"} else {}
    session.run(*pip, torch, env=env, silent=True, log=False)
