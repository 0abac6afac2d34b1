"""uv and a bare system find packages where this machine's pip does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci.packages.locks import ROOT
from ci.packages.pip_settings import SettingsError, read_settings
from tests.stand_ins.tiny_wheels import write_wheel

SCRIPT = ROOT / "ci" / "packages" / "pip_settings.py"


def run_script(target: Path, **variables: str) -> list[str]:
    env = {**{name: text for name, text in os.environ.items() if "PIP_" not in name}, **variables}
    argv = [sys.executable, str(SCRIPT), str(target)]
    ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    below = str(target.parent)  # this machine may have others
    return [line for line in ended.stdout.splitlines() if line.startswith(below)]


def test_settings_of_user_and_variables_are_merged_and_their_directories_listed(
    tmp_path: Path,
) -> None:
    for name in ("index/simple", "wheels", "more", "home/.config/pip"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "home/.config/pip/pip.conf").write_text(
        f"[global]\ntimeout = 7\nextra-index-url =\n    file://{tmp_path}/index/simple\n"
        f"    https://example.com/%7Eteam\nfind-links = {tmp_path}/wheels https://example.com\n"
    )
    target = tmp_path / "pip.conf"
    home = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": ""}
    assert run_script(target, **home) == [f"{tmp_path}/index", f"{tmp_path}/wheels"]
    settings = read_settings({"PIP_CONFIG_FILE": str(target)})
    assert settings["timeout"] == "7"
    index = f"file://{tmp_path}/index/simple\nhttps://example.com/%7Eteam"
    assert settings["extra-index-url"] == index
    directories = run_script(target, PIP_FIND_LINKS=f"{tmp_path}/more wheels", **home)
    assert directories == [f"{tmp_path}/index", f"{tmp_path}/more"]


USER = "[global]\nquiet = 2\nfind-links =\n    /a\n    /b c\ntimeout = 5\n[download]\ntimeout = 7\n"
NAMED = "[global]\nfind_links = /named\n[install]\ntimeout = 6\nindex-url =\n"


@pytest.mark.parametrize(
    ("variables", "settings"),
    [
        ({}, {"find-links": "/a\n/b c", "timeout": "5", "quiet": "2"}),
        ({"PIP_TIMEOUT": "8", "PIP_FIND_LINKS": ""}, {"find-links": "/a\n/b c", "timeout": "8"}),
        ({"PIP_CONFIG_FILE": "named"}, {"find-links": "/named", "timeout": "6"}),
        ({"PIP_CONFIG_FILE": "named", "PIP_NO_INDEX": "1"}, {"timeout": "6", "no-index": "1"}),
        ({"PIP_CONFIG_FILE": "none"}, {"timeout": "5"}),
        ({"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "https://b/it's"}, None),
    ],
)
def test_settings_of_pip_have_pips_precedence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    settings: dict[str, str] | None,
) -> None:
    """Files of the system may have more settings. The named file counts more than they do,
    whichever name sorts first: pip 26 lists both."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "etc/pip").mkdir(parents=True)
    (tmp_path / "etc/pip/pip.conf").write_text("[global]\nfind-links = /system\ntimeout = 9\n")
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text(USER)
    (tmp_path / "named").write_text(NAMED)
    places = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "etc")}
    pip_settings = read_settings({**places, **variables})
    if settings is None:
        assert pip_settings == {"index-url": "https://b/it's"}
    else:
        assert pip_settings | settings == pip_settings


@pytest.mark.parametrize("content", [b"[global", b"[a]\nb = 1\nb = 2\n", b"\xff", b"text"])
def test_a_file_that_pip_cannot_read_is_named(tmp_path: Path, content: bytes) -> None:
    named = tmp_path / "pip.conf"
    named.write_bytes(content)
    with pytest.raises(SettingsError, match=r"pip\.conf, pip's settings, cannot be read"):
        read_settings({"PIP_CONFIG_FILE": str(named)})


def test_uv_installs_from_a_folder_that_only_a_file_of_pip_names(tmp_path: Path) -> None:
    wheels, home = tmp_path / "wheels", tmp_path / "home"
    wheels.mkdir()
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text(f"[global]\nfind-links = {wheels}\n")
    write_wheel(wheels, "there", "1.0")
    env = {name: text for name, text in os.environ.items() if "PIP_" not in name}
    env |= {"HOME": str(home), "XDG_CONFIG_HOME": "", "UV_OFFLINE": "1"}
    words = ["pip", "install", f"--target={tmp_path / 'installed'}", "there==1.0"]
    argv = [sys.executable, "-m", "ci.packages.uv", *words]
    ended = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "installed" / "there-1.0.dist-info").is_dir()


def test_a_tool_that_uv_runs_has_the_certificates_of_pip(tmp_path: Path) -> None:
    """pip-audit asks by requests, which does not read SSL_CERT_FILE."""
    settings, certificates = tmp_path / "pip.conf", tmp_path / "company.pem"
    settings.write_text(f"[global]\ncert = {certificates}\n")
    certificates.write_text("")
    env = {name: text for name, text in os.environ.items() if "PIP_" not in name}
    env.pop("REQUESTS_CA_BUNDLE", None)
    env |= {"PIP_CONFIG_FILE": str(settings), "UV_OFFLINE": "1"}
    words = ["run", "--no-project", f"--python={sys.executable}", "python", "-c"]
    argv = [sys.executable, "-m", "ci.packages.uv", *words]
    argv.append("import os; print(os.environ['REQUESTS_CA_BUNDLE'])")
    ended = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ended.stdout == f"{certificates}\n", ended.stderr
