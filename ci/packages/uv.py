"""The pinned uv, and this machine's settings of pip as variables of uv. uv itself does not read
them.

``python -m ci.packages.uv WORD...`` runs uv with them.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ci.packages.locks import BOOTSTRAP, ROOT, list_pins
from ci.packages.pip_settings import read_settings

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
    (pin,) = (pin for pin, _ in list_pins(BOOTSTRAP) if pin.name == "uv")
    folders = [Path(sys.executable).parent, ROOT / ".nox" / "bootstrap" / "bin"]
    folders += map(Path, os.get_exec_path())
    for uv in (str(folder / "uv") for folder in folders):
        with suppress(OSError, IndexError, subprocess.CalledProcessError):
            ended = subprocess.run([uv, "--version"], capture_output=True, text=True, check=True)
            if pin.specifier.contains(ended.stdout.split()[1]):
                return uv
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
    of_user = {name: text for name, text in variables.items() if name.startswith("UV_")}
    return {**variables, **values, **of_user}


def list_options(settings: Mapping[str, str]) -> list[str]:
    """Return those of pip's ``settings`` for which uv has an option, but no variable."""
    is_offline = settings.get("no-index", "").lower() in {"1", "true", "yes", "on"}
    return ["--no-index"] if is_offline else []


def place_cache(variables: Mapping[str, str]) -> dict[str, str]:
    """Return ``variables`` with uv's cache next to the environments if this user cannot write where
    it usually is."""
    usual = Path(variables.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "uv")
    existing = next(folder for folder in (usual, *usual.parents) if folder.exists())
    if os.access(existing, os.W_OK):
        return {**variables}
    return {"UV_CACHE_DIR": str(ROOT / ".nox" / "uv-cache"), **variables}


def run(words: Sequence[str]) -> int:
    """Run uv with pip's settings, and return its exit code. Raises SettingsError if pip cannot read
    them, and FileNotFoundError if there is no uv of the locked version."""
    uv = find_uv()
    if uv is None:
        raise FileNotFoundError(f"no uv of the version in {BOOTSTRAP} was found")
    env = translate(read_settings(os.environ), os.environ)
    # A tool that uv runs may use requests, which reads another variable, and its own certificates
    # where that is not set.
    certificates = env.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if certificates:
        env.setdefault("REQUESTS_CA_BUNDLE", certificates)
    return subprocess.run([uv, *words], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
