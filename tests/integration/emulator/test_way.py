"""The way of a case in CONTRIBUTING.md names the modules that a case is really passed through."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.emulator import make_home

pytestmark = [pytest.mark.emulator, pytest.mark.nightly]
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
ROOT = Path(__file__).resolve().parents[3]
OTHER_DOCUMENTS = {"report/evidence.py", "report/github.py", "report/junit.py"}
# Loaded by each Python process: notes the modules of ci with a function that gets a case, its
# options or its row.
TRACER = """
import os, sys, threading
FORMS = set("Namespace Options Setup ModelEntry Source CaseSpec CaseRun CompileJob CompileResult"
            " Artifact Program Evidence CaseResult Case".split())
seen = set()
def note(frame, event, _):
    name, code = str(frame.f_globals.get("__name__")), frame.f_code
    if event != "call" or not name.startswith("ci.") or name in seen or code.co_name[0] in "<_":
        return
    for word in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        value = frame.f_locals.get(word)
        value = value[0] if type(value) in (list, tuple) and value else value
        if type(value).__name__ in FORMS:
            seen.add(name)
            with open(os.environ["WAY"], "a") as file:
                file.write(name.partition(".")[2].replace(".", "/") + ".py\\n")
            return
sys.setprofile(note)
threading.setprofile(note)
"""


def test_a_case_is_passed_through_the_modules_that_the_page_names(tmp_path: Path) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    part = page.partition("## The way of a case")[2].partition("\n## ")[0]
    named = re.findall(r"`(\w+/\w+\.py)`", part)
    assert f"through {len(named)} modules" in part
    assert len(named) <= 18
    (tmp_path / "sitecustomize.py").write_text(TRACER)
    subprocess.run(
        [*(sys.executable, "-m", "ci", "test-emulator", "--model", "mlp", "--scheme", "fp16")],
        cwd=tmp_path,
        env={
            **os.environ,
            "WAY": str(tmp_path / "way.txt"),
            "PYTHONPATH": f"{tmp_path}:{ROOT}",
            "QNN_CI_HOME": str(make_home(tmp_path / "home")),
        },
        timeout=500,
        check=True,
    )
    seen = {*(tmp_path / "way.txt").read_text().splitlines()}
    assert seen - OTHER_DOCUMENTS == {*named}
