"""Programs on PATH and what version they say they are."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from provisioning.console.process import run_process
from provisioning.doctor.facts import ToolFacts
from provisioning.errors import ToolError

TIMEOUT_S = 10.0
VERSION = re.compile(r"\d+(?:\.\d+)+")


def survey_tools(
    programs: Mapping[str, str], variables: Mapping[str, str]
) -> tuple[ToolFacts, ...]:
    """Find each program (name -> the words of its candidates) on the PATH of ``variables``."""
    with ThreadPoolExecutor(4) as pool:
        rows = pool.map(lambda item: _survey_tool(item[0], item[1], variables), programs.items())
        return tuple(rows)


def _survey_tool(name: str, program: str, variables: Mapping[str, str]) -> ToolFacts:
    found = shutil.which(program, path=variables.get("PATH", ""))
    return ask_version(name, Path(found), variables) if found else ToolFacts(name, None)


def ask_version(name: str, path: Path, variables: Mapping[str, str] | None = None) -> ToolFacts:
    """Run ``path --version``; the version is the first number with a dot in what it says."""
    try:
        ended = run_process(
            [path, "--version"], env=variables, timeout_s=TIMEOUT_S, check=False, keep_lines=20
        )
    except ToolError as error:
        return ToolFacts(name, str(path), None, error.why)
    said = ended.output.strip().splitlines()
    first = said[0] if said else ended.describe()
    if ended.returncode != 0 or ended.timed_out:
        return ToolFacts(name, str(path), None, f"{ended.describe()}: {first}")
    version = VERSION.search(ended.output)
    return ToolFacts(name, str(path), version[0] if version else None, first)
