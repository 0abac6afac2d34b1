"""``python -m tests.sessions [NAME...]``: run each session of ``./nox`` and each verb once.

Each row of tests/documented/sessions.py is typed in a fresh clone with an empty home, one after
the other. What a command prints is in reports/sessions/NAME.log; report.json and junit.xml there
have the results. The exit code is 1 if a command did not do what its row promises.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from docker.errors import ImageNotFound

from ci.images.engine import connect_engine
from ci.report.claim import claim_reports
from provisioning.console.git import ask_git
from provisioning.errors import QnnCiError, UnfitError
from tests.documented.pages import ROOT, Command
from tests.documented.place import Ended, share_folder
from tests.documented.runner import Run, judge, open_place, type_all
from tests.documented.sessions import BASE_IMAGE, ROWS, SessionRow
from tests.documented.table import Row
from tests.programs import FAILED, PASSED, SKIPPED, missing_programs

REPORTS = ROOT / "reports" / "sessions"
LAST_LINES = 8  # of a green command, in which its promise stands
SHOWN_LINES = 30  # of a red command


@dataclass(frozen=True)
class Result:
    """How a row's command ended. ``exit_code`` is None if it did not run, ``reason`` says why it
    was skipped or has failed, and ``text`` is what it printed."""

    name: str
    command: str
    outcome: str
    seconds: float = 0
    exit_code: int | None = None
    reason: str = ""
    stand_in: str = ""
    log: str = ""


def run_row(row: SessionRow, shared: Path) -> tuple[Result, str]:
    """Run a row's command; the result, and what the command printed."""
    result = Result(row.name, row.command, SKIPPED, stand_in=row.stand_in)
    if reason := find_obstacle(row):
        return replace(result, reason=reason), ""
    run = Run(Command("tests/documented/sessions.py", row.command), "", below=False)
    promise = Row("", row.last, row.code, row.before, row.needs, slow=row.minutes)
    begun = time.monotonic()
    ended = Ended(-1, "")
    try:
        place = open_place(run, shared)
        if row.engine:  # other readers have none
            host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
            place = replace(place, set_variables={"DOCKER_HOST": host})
        begun = time.monotonic()  # the clone and the downloads are there before a reader types
        with (row.meanwhile or nullcontext)(place) as ready_place:
            ended = type_all(run, promise, ready_place)
        judge(run, replace(promise, says=""), ended)
        last_lines = find_last_lines(ended.text)
        assert promise.is_kept_by(last_lines), f"its last lines do not contain {row.last!r}"
        if row.after:
            row.after(ready_place)
        outcome, reason = PASSED, ""
    except (AssertionError, OSError, pytest.fail.Exception) as error:
        outcome, reason = FAILED, str(error).partition("\n")[0] or type(error).__name__
        ended = replace(ended, text=ended.text or str(error))
    except pytest.skip.Exception as error:
        outcome, reason = SKIPPED, str(error)
    seconds = round(time.monotonic() - begun, 1)
    code = ended.code if ended.code >= 0 else None
    return replace(
        result, outcome=outcome, reason=reason, seconds=seconds, exit_code=code
    ), ended.text


def find_obstacle(row: SessionRow) -> str:
    """Why a row does not run on this machine or in this run, '' if it runs."""
    if row.run_by:
        return f"run by {row.run_by}"
    if reason := missing_programs(*row.needs):
        return reason
    return find_engine_obstacle() if row.engine else ""


def find_engine_obstacle() -> str:
    """Why images cannot be built on this machine, '' if they can."""
    try:
        with connect_engine() as client:
            client.images.get(BASE_IMAGE)
    except UnfitError as error:
        return f"{error.what}: {error.why}"
    except ImageNotFound:
        return f"the engine has no image {BASE_IMAGE}, which .ci/run makes as root"
    return ""


def find_last_lines(text: str) -> str:
    """The last lines of an output, without those in which nox says that a session has ended."""
    lines = [line for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not re.match("nox > (Session|Ran) ", line)]
    return "\n".join(lines[-LAST_LINES:])


def run_rows(
    rows: Sequence[SessionRow], shared: Path, reports: Path, show: Callable[[str], None]
) -> list[Result]:
    """Run the rows one after the other, and write what each printed, and the results, into
    ``reports``."""
    results = []
    used: Counter[str] = Counter()
    for number, row in enumerate(rows, 1):
        show(f"[{number}/{len(rows)}] {row.name}: {row.command}")
        if row.stand_in:
            show(f"    stand-in: {row.stand_in}")
        result, text = run_row(row, shared)
        used[row.name] += 1
        suffix = f"-{used[row.name]}" if used[row.name] > 1 else ""
        log = reports / f"{row.name}{suffix}.log"
        log.write_text(text, encoding="utf-8")
        result = replace(result, log=log.name)
        results.append(result)
        code = "" if result.exit_code is None else f", exit code {result.exit_code}"
        reason = f": {result.reason}" if result.reason else ""
        show(f"    {result.outcome}, {result.seconds:.0f} s{code}{reason}")
        if result.outcome == FAILED:
            for line in text.splitlines()[-SHOWN_LINES:]:
                show(f"    | {line}")
            show(f"    all that it printed: {log}")
        write_reports(results, reports)
    return results


def write_reports(results: Sequence[Result], reports: Path) -> None:
    """Write report.json and junit.xml, anew after each command: a run may be killed."""
    commit = ask_git(ROOT, "rev-parse", "HEAD").decode().strip()
    document = {"commit": commit, "rows": [asdict(result) for result in results]}
    (reports / "report.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    counts = Counter(result.outcome for result in results)
    suite = ET.Element(
        "testsuite",
        name="sessions",
        tests=str(len(results)),
        failures=str(counts[FAILED]),
        skipped=str(counts[SKIPPED]),
        time=f"{sum(result.seconds for result in results):.1f}",
    )
    for result in results:
        words = {"classname": f"sessions.{result.name}", "name": result.command}
        case = ET.SubElement(suite, "testcase", **words, time=str(result.seconds))
        if result.outcome == FAILED:
            ET.SubElement(case, "failure", message=result.reason).text = result.log
        elif result.outcome == SKIPPED:
            ET.SubElement(case, "skipped", message=result.reason)
    ET.ElementTree(suite).write(reports / "junit.xml", encoding="utf-8", xml_declaration=True)


def render_table(results: Sequence[Result]) -> str:
    """One line per row: its name, seconds, exit code, outcome and command."""
    width = max((len(result.name) for result in results), default=0)
    lines = []
    for result in results:
        code = "-" if result.exit_code is None else result.exit_code
        lines.append(
            f"{result.name:{width}} {result.seconds:6.0f} s  {code:>3}  {result.outcome:7}  "
            f"{result.command}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sessions", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="sessions or verbs; default: all")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="where to write")
    words = parser.parse_args(arguments)
    names, reports = words.names, words.reports
    if unknown := sorted({*names} - {row.name for row in ROWS}):
        parser.error(f"no row is named {unknown[0]}; see tests/documented/sessions.py")
    rows = [row for row in ROWS if not names or row.name in names]
    try:
        claim_reports(reports)
    except QnnCiError as error:
        parser.error(str(error))
    for log in reports.glob("*.log"):  # of an earlier run
        log.unlink()

    def show(line: str) -> None:
        print(line, flush=True)

    begun = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, it ends the command, too
    try:
        with share_folder() as shared:
            results = run_rows(rows, shared, reports, show)
    except KeyboardInterrupt:
        return 130
    show(render_table(results))
    show(f"all sessions: {time.monotonic() - begun:.0f} s")
    counts = Counter(result.outcome for result in results)
    show(", ".join(f"{counts[outcome]} {outcome}" for outcome in (PASSED, FAILED, SKIPPED)))
    return int(counts[FAILED] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
