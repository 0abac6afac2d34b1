"""Judge trained models as a user would, and hold the verdicts against what is true of them.

``./nox -s test_trained`` installs packages that have weights inside (requirements.txt), writes a
policy with data, labels and a metric for each (corpus.py), runs test-emulator and test-onnx on it,
and prints a table: case, true verdict (truth.json), the project's, the question that it named. Ends
with 1 if a bad case is green or more than one good case in twenty is red. ``--causes`` compares the
causes that are named for bad cases (causes.toml), and ends with 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.report.claim import claim_reports
from provisioning.errors import QnnCiError

if TYPE_CHECKING:  # arguments are checked in a Python without packages
    from ci.report.schema import Case as ReportedCase

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = ROOT / ".nox" / "trained"
VERBS = {"torch": "test-emulator", "onnx": "test-onnx"}
GREEN, MOST_RED = ("passed",), 20  # one good case in so many may be red
DIAGNOSE_S = 300  # of experiments; all cases may take four times as long together


def install() -> None:
    """pip install the packages, without what they depend on, unless that was done."""
    digest = hashlib.sha256((HERE / "requirements.txt").read_bytes()).hexdigest()
    stamp = PACKAGES / "installed.sha256"
    if stamp.is_file() and stamp.read_text() == digest:
        return
    argv = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes"]
    argv += ["--upgrade", "--target", str(PACKAGES), "-r", str(HERE / "requirements.txt")]
    subprocess.run(argv, check=True)
    stamp.write_text(digest)


def list_path() -> str:
    """The PYTHONPATH of a process that reads the models."""
    return os.pathsep.join(
        [str(PACKAGES), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    )


def run_lane(lane: str, place: Path, diagnose_s: int = 0) -> dict[tuple[str, str], ReportedCase]:
    """The project's report of a lane's cases, by policy name and scheme, each with so many seconds
    of experiments."""
    from ci.report.write import read_report

    reports = place / "reports"
    report = reports / VERBS[lane].replace("-", "_") / "report.json"
    report.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "ci", VERBS[lane], "--policy", str(place / lane / "qnn.toml")]
    argv += ["--reports", str(reports), "--timeout-s", "1200", "--diagnose", str(diagnose_s)]
    code = subprocess.run(argv, cwd=ROOT, check=False).returncode
    if not report.is_file():
        sys.exit(code or 1)
    return {(case.model, case.scheme): case for case in read_report(report).cases}


def record(place: Path, cases: list[Any]) -> None:
    """Run the plain script on the cases and keep what it found in truth.json."""
    import truth

    from provisioning.artifacts.environment import provision_profile
    from provisioning.console.progress import Progress

    variables = provision_profile("emulator", Progress()).apply(os.environ)
    for lane in VERBS:
        words = [f"{case.name}:{case.scheme}" for case in cases if case.lane == lane]
        if not words:
            continue
        argv = [sys.executable, str(HERE / "plain.py"), str(place / lane), lane, *words]
        ended = subprocess.run(argv, env=variables, capture_output=True, text=True, check=True)
        lines = [line for line in ended.stdout.splitlines() if line.startswith("RESULT ")]
        truth.write_truth([json.loads(line.partition(" ")[2]) for line in lines])


def judge(case: Any, row: dict[str, Any], judged: ReportedCase) -> tuple[str, str]:
    """What is wrong with the project's verdict, empty where nothing is, and the line to print."""
    import truth

    verdict, cause = row["verdict"], truth.name_cause(row)
    status, findings = judged.judgement.status.value, judged.judgement.findings
    named = findings[0].question.value if findings and status == "failed" else ""
    green = status in GREEN
    if verdict == truth.BAD and green:
        wrong = "bad and green"
    elif verdict == truth.GOOD and not green:
        wrong = "good and red"
    elif (verdict == truth.BAD or case.fault) and not green and named not in ("", cause):
        wrong = "another question named"
    else:
        wrong = ""
    words = f"{verdict} ({cause})" if cause else verdict
    cells = (case.lane, case.name, case.scheme, words, status, named or "-")
    return wrong, "{:5} {:24} {:6} {:20} {:11} {:9} ".format(*cells) + wrong


def judge_cases(place: Path, lanes: list[str], chosen: list[Any], truths: Any) -> int:
    """Run the project's verbs on the cases, print the table, and return the exit code."""
    import truth

    counts: Counter[str] = Counter()
    lines = []
    for lane in lanes:
        cases_of_lane = [case for case in chosen if case.lane == lane]
        reports_of_lane = run_lane(lane, place) if cases_of_lane else {}
        for case in cases_of_lane:
            row = truths[case]
            report = reports_of_lane.get((case.name, case.scheme))
            if report is None:  # the run was interrupted
                counts["not judged"] += 1
                continue
            wrong, line = judge(case, row, report)
            counts.update([row["verdict"], wrong])
            lines.append(line)
    print("\n".join(lines))
    good, red, green = (
        counts[verdict] for verdict in (truth.GOOD, "good and red", "bad and green")
    )
    print(f"{counts[truth.BAD]} bad cases, {green} green; {good} good cases, {red} red")
    print(f"another question named: {counts['another question named']}")
    if counts["not judged"]:
        print(f"not judged: {counts['not judged']}")
    return int(bool(green or counts["not judged"]) or red * MOST_RED > good)


def read_causes() -> dict[tuple[str, str, str], str]:
    """The patterns of true causes, by lane, policy name and scheme."""
    from provisioning.manifest.reader import tomllib

    rows = tomllib.loads((HERE / "causes.toml").read_text("utf-8"))
    return {
        (lane, *case.split()): pattern
        for lane, patterns in rows.items()
        for case, pattern in patterns.items()
    }


def judge_causes(place: Path, lanes: list[str], chosen: list[Any]) -> int:
    """Run the project's verbs on bad cases, print what each says of its cause, and return the exit
    code."""
    from tests.named_causes import UNKNOWN, judge_cause

    counts: Counter[str] = Counter()
    causes = read_causes()
    for lane in lanes:
        cases_of_lane = [case for case in chosen if case.lane == lane]
        reports_of_lane = run_lane(lane, place, DIAGNOSE_S) if cases_of_lane else {}
        for case in cases_of_lane:
            report = reports_of_lane.get((case.name, case.scheme))
            said, verdict = "", "not judged"
            if report is not None:
                said, verdict = judge_cause(report, causes[lane, case.name, case.scheme])
            counts[verdict] += 1
            print(f"{lane:5} {case.name:24} {case.scheme:6} {verdict:10} {said[:300]}")
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return int(bool(counts.keys() - {"right", UNKNOWN}))


def main() -> int:
    parser = argparse.ArgumentParser(prog="nox -s test_trained --", description=__doc__)
    parser.add_argument("--lane", choices=VERBS, action="append", help="one lane only")
    parser.add_argument("--model", default="*", help="MODEL or MODEL-FAULT, also as a glob")
    parser.add_argument(
        "--record", action="store_true", help="write into truth.json what is true of them, and stop"
    )
    parser.add_argument(
        "--prepare", action="store_true", help="write the models' files and policies, and stop"
    )
    parser.add_argument(
        "--causes", action="store_true", help="compare the causes that are named for bad cases"
    )
    parser.add_argument("--reports", type=Path, default=ROOT / "reports" / "test_trained")
    words = parser.parse_args()
    rows = json.loads((HERE / "truth.json").read_text("utf-8"))
    is_judged = not words.record and not words.prepare
    if is_judged and not fnmatch.filter([row["case"] for row in rows], words.model):
        parser.error(f"no case is named {words.model}")
    if os.environ.get("QNN_CI_ONLY_PARSE"):
        return 0
    try:
        claim_reports(words.reports)
    except QnnCiError as error:
        parser.error(str(error))
    install()
    sys.path[:0] = [str(PACKAGES), str(HERE)]
    os.environ["PYTHONPATH"] = list_path()
    import cases
    import corpus
    import truth

    place = words.reports.resolve()
    lanes = words.lane or [*VERBS]
    truths = truth.read_truth()
    chosen = [
        case
        for case in cases.list_cases()
        if case.lane in lanes
        and fnmatch.fnmatch(case.name, words.model)
        and (not is_judged or truths.get(case, {}).get("verdict") in truth.COMPARED)
        and (not words.causes or (case.lane, case.name, case.scheme) in read_causes())
    ]
    if not chosen:
        parser.error(f"no case of which a verdict is known is named {words.model}")
    corpus.write_corpus(place, chosen)
    if words.prepare:
        return 0
    if words.record:
        record(place, chosen)
        return 0
    if words.causes:
        return judge_causes(place, lanes, chosen)
    return judge_cases(place, lanes, chosen, truths)


if __name__ == "__main__":
    sys.exit(main())
