"""A bare system finds packages where this machine's pip does."""

from __future__ import annotations

import os
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "pip_settings.py"


def run_script(target: Path, **variables: str) -> list[str]:
    env = {**{name: text for name, text in os.environ.items() if "PIP_" not in name}, **variables}
    argv = [sys.executable, str(SCRIPT), str(target)]
    ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    return ended.stdout.splitlines()


def test_settings_of_user_and_variables_are_merged_and_their_directories_listed(
    tmp_path: Path,
) -> None:
    for name in ("index/simple", "wheels", "more", "home/.config/pip"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "home/.config/pip/pip.conf").write_text(
        f"[global]\ntimeout = 7\nextra-index-url =\n    file://{tmp_path}/index/simple\n"
        "    https://example.com/simple\n[install]\nfind-links = /nonexistent/wheels\n"
    )
    named = tmp_path / "named.conf"
    named.write_text(f"[global]\ntimeout = 8\nfind-links = {tmp_path}/wheels https://example.com\n")
    target = tmp_path / "pip.conf"
    variables = {"HOME": str(tmp_path / "home"), "PIP_FIND_LINKS": f"{tmp_path}/more wheels"}
    variables["XDG_CONFIG_HOME"] = ""
    directories = run_script(target, PIP_CONFIG_FILE=str(named), **variables)
    mine = [line for line in directories if line.startswith(str(tmp_path))]
    assert mine == [f"{tmp_path}/index", f"{tmp_path}/wheels", f"{tmp_path}/more"]
    settings = RawConfigParser()
    settings.read(target)
    assert settings.get("global", "timeout") == "8"
    assert settings.get("install", "find-links") == "/nonexistent/wheels"
    assert run_script(target, PIP_CONFIG_FILE=os.devnull, HOME=str(tmp_path / "home")) == []
    assert target.read_text() == ""
