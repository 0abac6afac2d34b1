"""``buck2 build`` as the final word on the Buck side: what it cannot build, as findings.

Source: buck2's documentation, "Build report": ``results`` by target, whose ``errors`` refer to
texts in ``strings``, and ``failures`` by target.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.parity.compare.findings import Finding, Kind
from ci.parity.facts import ParityFacts, Place
from provisioning.console.process import run_process
from provisioning.errors import MissingToolError, ToolError

LIMIT_S = 7200.0
PLACE = re.compile(r"(?:root//|\./)?([\w./+-]+\.\w+|[\w./+-]*(?:BUCK|TARGETS)(?:\.v2)?):(\d+)")
LABEL = re.compile(r"^(?:\w*//)(.*?)(?: \(.*\))?$")


def find_buck() -> str:
    """The path of buck2. Raises MissingToolError."""
    path = shutil.which("buck2")
    if path is None:
        raise MissingToolError(
            "buck2 is not installed",
            why="--build-buck lets it build the targets that were compared",
            fix="put the release that .ci/docker/ci_commit_pins/buck2.txt of the tree names, from "
            "github.com/facebook/buck2/releases, on PATH as buck2, and check out the submodule "
            "third-party/prelude",
        )
    return path


def build_targets(root: Path, facts: ParityFacts, scope: Sequence[str]) -> list[Finding]:
    """Build everything below ``scope`` in the work tree ``root``.

    Raises MissingToolError without buck2, and ToolError when it ends without a report.
    """
    program = find_buck()
    patterns = [f"//{folder}/..." for folder in scope] or ["//..."]
    with tempfile.TemporaryDirectory(prefix="parity-buck-") as folder:
        path = Path(folder) / "report.json"
        words = [program, "build", "--keep-going", f"--build-report={path}", *patterns]
        ended = run_process(words, cwd=root, timeout_s=LIMIT_S, check=False, keep_lines=200)
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            lines = ended.output.strip().splitlines() or [str(error)]
            raise ToolError("buck2 build left no report", why=lines[-1]) from error
    return [as_finding(facts, label, text) for label, text in sorted(read_failures(report))]


def read_failures(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The targets of a build report that failed, each with what buck2 says."""
    texts = report.get("strings", {})
    failures = dict(report.get("failures", {}))
    for label, row in report.get("results", {}).items():
        if str(row.get("success", "")).upper() == "SUCCESS":
            continue
        keys = (str(error.get("message_content", "")) for error in row.get("errors", ()))
        messages = [str(texts.get(key, "")) for key in keys]
        known = str(texts.get(str(failures.get(label)), failures.get(label) or ""))
        failures[label] = next(filter(None, messages), known)
    for label, text in failures.items():
        yield label, str(texts.get(str(text), text))


def as_finding(facts: ParityFacts, label: str, text: str) -> Finding:
    """A failed target at the line of the tree that its message names, else at the target."""
    match = LABEL.match(label)
    short = f"//{match[1]}" if match else label
    known = {target.label: target.place for target in facts.buck.targets}
    named = (Place(m[1], int(m[2])) for m in PLACE.finditer(text) if m[1] in facts.files)
    place = next(named, known.get(short, Place(short.strip("/").partition(":")[0] or ".")))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = next((line for line in lines if "error" in line.lower()), "".join(lines[:1]))
    return Finding(
        kind=Kind.BUILD,
        path=place.path,
        message=f"buck2 does not build {short}: {reason or 'it says nothing'}",
        detail=short,
        buck_target=short,
        buck_place=place,
        fix=f"run `buck2 build {short}` and fix what it reports",
    )
