"""How the packages of a lock are installed: by uv, with the settings of pip, or by pip itself."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ci.nox_sessions.locks import BOOTSTRAP, ROOT, Lock, list_pins
from ci.nox_sessions.pip_settings import read_settings

if TYPE_CHECKING:
    import nox

TORCH_VARIABLE = "QNN_CI_TORCH_INDEX"
# On the default package index, torch is a CUDA build of several GB. uv knows this index itself.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# A machine without access to that index soon uses pip's.
IMPATIENT = {"UV_HTTP_RETRIES": "0", "UV_HTTP_CONNECT_TIMEOUT": "3"}
# Settings of pip, the variables with which uv has them, and what separates the items of a list.
SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", ""),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", ""),
    "client-cert": ("SSL_CLIENT_CERT", ""),
    "proxy": ("ALL_PROXY", ""),
    "default-timeout": ("UV_HTTP_TIMEOUT", ""),
    "timeout": ("UV_HTTP_TIMEOUT", ""),
    "retries": ("UV_HTTP_RETRIES", ""),
    "keyring-provider": ("UV_KEYRING_PROVIDER", ""),
}


def find_uv() -> str | None:
    """Return the path of a uv of the locked version: that of ./nox, or one on PATH."""
    pins = [pin for pin, _ in list_pins(BOOTSTRAP) if pin.name == "uv"]
    paths = [Path(sys.executable).parent / "uv", ROOT / ".nox" / "bootstrap" / "bin" / "uv"]
    paths += [Path(path) for path in [shutil.which("uv")] if path]
    for path in paths:
        with suppress(OSError, IndexError, subprocess.CalledProcessError):
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
            if any(pin.specifier.contains(said.stdout.split()[1]) for pin in pins):
                return str(path)
    return None


def translate(settings: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return ``variables`` and those with which uv has pip's ``settings``. uv's own variables count
    more.

    No setting becomes an option, because everyone can see the options of a process, and the URL of
    an index may contain a password.
    """
    values = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_PYTHON_DOWNLOADS": "never"}
    if Path(ssl.get_default_verify_paths().cafile or "/").is_file():
        values["UV_SYSTEM_CERTS"] = "1"  # as pip does; a system may have no certificates
    for name in ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        if variables.get(name):
            values["SSL_CERT_FILE"] = variables[name]
    for option, (name, separator) in SETTINGS.items():
        if option in settings:
            words = settings[option].split()
            values[name] = separator.join(words) if separator else settings[option]
    if proxy := values.get("ALL_PROXY"):  # the variables of one scheme would count more
        values.update(HTTPS_PROXY=proxy, HTTP_PROXY=proxy)
    own = {name: text for name, text in variables.items() if name.startswith("UV_")}
    return {**variables, **values, **own}


def place_cache(variables: dict[str, str]) -> None:
    """Put uv's cache next to the environments if this user cannot write where it usually is."""
    usual = Path(variables.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "uv")
    existing = next(folder for folder in (usual, *usual.parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        variables.setdefault("UV_CACHE_DIR", str(ROOT / ".nox" / "uv-cache"))


def install_with_uv(session: nox.Session, uv: str, folder: Path, lock: Lock) -> None:
    """Create the environment in ``folder`` with the packages of a lock. Its files are hard links to
    those of uv's cache, if both are in one file system. Raises CommandFailed of nox."""

    def run(*words: str, env: Mapping[str, str]) -> None:
        session.run(uv, *words, env=env, silent=True, log=False)

    settings = read_settings(os.environ)
    env = translate(settings, os.environ)
    place_cache(env)
    run(
        "venv",
        "--quiet",
        "--clear",
        "--no-project",
        "--python",
        sys.executable,
        str(folder),
        env=env,
    )
    common = ["--quiet", "--python", str(folder / "bin" / "python")]
    if settings.get("no-index", "").lower() in {"1", "true", "yes", "on"}:
        common.append("--no-index")
    path = str(lock.path)
    # A package that has no wheel is built with packages of the lock.
    run("pip", "sync", *common, "--require-hashes", "--build-constraints", path, path, env=env)
    if not lock.torch:
        return
    chosen = folder / "torch.txt"
    chosen.write_text(f"torch=={lock.torch}\n", "utf-8")
    resolve = [uv, "pip", "compile", *common, "--no-header", "--no-annotate", str(chosen)]
    for file in (path, lock.cuda):
        resolve += ["--constraints", str(file)]
    for options, changes in list_sources(env):
        source = {**env, **changes}
        command = [*resolve, *options]
        ended = subprocess.run(command, env=source, capture_output=True, text=True, check=False)
        if ended.returncode == 0:
            chosen.write_text(pin_torch(ended.stdout.split("\n"), lock), "utf-8")
            break
    if len(chosen.read_text("utf-8").splitlines()) > 1:
        session.log(f"torch: a CUDA build, 3 GB; {TORCH_VARIABLE}=URL chooses another index")
    install = ["pip", "install", *common, *options, "--no-deps", "--requirements", str(chosen)]
    run(*install, env={**env, **changes})


def list_sources(variables: Mapping[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield where torch is looked for, one after the other: options and variables of uv."""
    index = os.environ.get(TORCH_VARIABLE)
    if index is None:
        yield ["--torch-backend", "cpu"], IMPATIENT
    if index in {None, "", "none"}:
        yield [], {}
    else:  # of equal versions, uv takes that of the first index
        yield [], {"UV_INDEX": f"{index} {variables.get('UV_INDEX', '')}".strip()}


def pin_torch(resolved: Sequence[str], lock: Lock) -> str:
    """Return the requirements of torch and of what only the resolved build of it needs, with the
    hashes of the lock. A build that the lock does not know, such as that of a company's index, has
    no hash."""
    installed = {pin.name for pin, _ in list_pins(lock.path)}
    known = {}
    for path in (lock.builds, lock.cuda):
        for pin, line in list_pins(path):
            known[f"{pin.name}{pin.specifier}"] = line
    pins = [pin for pin in resolved if pin and pin.partition("==")[0] not in installed]
    return "".join(f"{known.get(pin, pin)}\n" for pin in pins)


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
