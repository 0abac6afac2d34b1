"""CMake's file API, asked at configure time.

https://cmake.org/cmake/help/latest/manual/cmake-file-api.7.html
"""

from __future__ import annotations

import json
from pathlib import Path

from provisioning.errors import ToolError

API = Path(".cmake/api/v1")
CODE_MODEL = "codemodel-v2"


def ask_file_api(build: Path) -> None:
    """Ask for the targets; cmake answers when it configures."""
    query = build / API / "query"
    query.mkdir(parents=True, exist_ok=True)
    (query / CODE_MODEL).touch()


def read_cmake_targets(build: Path) -> frozenset[str]:
    """The names of a configured project's targets. Raises ToolError without a reply."""
    reply = build / API / "reply"
    try:
        index = json.loads(max(reply.glob("index-*.json")).read_text(encoding="utf-8"))
        name = index["reply"][CODE_MODEL]["jsonFile"]
        model = json.loads((reply / name).read_text(encoding="utf-8"))
        return frozenset(
            target["name"] for part in model["configurations"] for target in part["targets"]
        )
    except (OSError, ValueError, KeyError) as error:
        raise ToolError(f"cmake left no file API reply in {build}", why=repr(error)) from error
