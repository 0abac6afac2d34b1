"""``qnn-ci`` in the tests of workflows: its lanes run no model, and keep their words."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import ci.__main__
from ci.verbs import setup
from provisioning.artifacts.environment import Environment, provision_profile
from provisioning.doctor.examine import Verdict

LANES = ("test-emulator", "test-onnx", "test-litert", "build")


def main() -> int:
    """The real verbs, except those, which end with QUICK_CODE. With QUICK_SETUP, ``setup`` takes
    what is in the store for whole and fit: it is 220 MB, and most tests are not about it."""
    if sys.argv[1] in LANES:
        return note_run(sys.argv[1])
    if os.environ.get("QUICK_SETUP"):
        vars(setup).update(provision_profile=provision, examine=examine)
    return ci.__main__.main()


def provision(profile: str, *arguments: Any, verify: bool, **options: Any) -> Environment:
    del verify
    return provision_profile(profile, *arguments, **options)


def examine(profile: str, *_: object, **__: object) -> Verdict:
    return Verdict(profile, (), {})


def leave_runner(folder: Path) -> None:
    """What a build leaves: a file with its symbols, and the record that names them."""
    folder.mkdir()
    paths = [folder.parent.parent / name for name in ("runner", "runner.debug")]
    row = {key: str(path) for key, path in zip(("path", "symbols"), paths, strict=True)}
    for path in paths:
        path.touch()
    (folder / "artifacts.json").write_text(json.dumps({"builds": [{"artifacts": [row]}]}))


def note_run(lane: str) -> int:
    """A report of nothing but the command line."""
    folder = Path("reports") / lane.replace("-", "_")
    folder.mkdir(parents=True)
    (folder / "words.json").write_text(json.dumps(sys.argv[2:]))
    (folder / "report.json").write_text("{}")
    if text := os.environ.get("QUICK_CCACHE"):
        Path(os.environ["CCACHE_DIR"]).mkdir()
        Path(os.environ["CCACHE_DIR"], "object").write_text(text)
    if lane == "build":
        leave_runner(Path("reports/build_android"))
    if os.environ.get("QUICK_EVIDENCE"):
        (folder / "evidence").mkdir()
        (folder / "evidence" / "0.intoto.json").write_text("{}")
    if "--sarif" in sys.argv:
        log = {"runs": [{"results": ["a failure"]}]}
        Path(sys.argv[sys.argv.index("--sarif") + 1]).write_text(json.dumps(log))
    return int(os.environ.get("QUICK_CODE", "0"))
