"""``qnn-ci`` in the tests of workflows: its test-emulator runs no model, and keeps its words."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import ci.__main__


def main() -> int:
    """The real verbs, but for that one, which ends with QUICK_CODE."""
    return note_run() if sys.argv[1:2] == ["test-emulator"] else ci.__main__.main()


def note_run() -> int:
    """A report of nothing but the command line."""
    folder = Path("reports/test_emulator")
    folder.mkdir(parents=True)
    (folder / "words.json").write_text(json.dumps(sys.argv[2:]))
    (folder / "report.json").write_text("{}")
    if "--sarif" in sys.argv:
        log = {"runs": [{"results": ["a failure"]}]}
        Path(sys.argv[sys.argv.index("--sarif") + 1]).write_text(json.dumps(log))
    return int(os.environ.get("QUICK_CODE", "0"))
