"""What runs a session with one version of QNN or ExecuTorch, for ``upgrade-report``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.audit.upgrade import Difference
from ci.cases.policy import LANES, read_emulator_policy
from ci.cases.spec import select_cases
from ci.models import schemes
from ci.report.export import check_session
from ci.report.schema import Report
from ci.report.write import read_report
from ci.verbs.sides import EMULATOR, HTP, LIBRARIES, ONNX, Side, find_session
from ci.verbs.user_policy import OURS
from provisioning.artifacts.choice import SDK_VARIABLE
from provisioning.console.caller import shown_path
from provisioning.console.process import module_command, run_process
from provisioning.console.progress import Progress
from provisioning.console.user_folder import UserFolder
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.manifest.targets import read_socs
from provisioning.versions import parse_version

SCHEMES = {EMULATOR: schemes.EXECUTORCH, ONNX: schemes.ONNX}
LAST_LINES = 6
OWN = Path(__file__).parents[2]  # where this package is found
OWN_VARIABLES = (SDK_VARIABLE, "QNN_CI_CAUSE_FILE")  # set for this call; not passed to the runs


@dataclass(frozen=True)
class UpgradeRequest:
    """Two versions to compare, and what their runs test. ``policy`` is the policy of both runs, or
    None for this project's own suite."""

    words: tuple[str, str]
    session: str
    models: tuple[str, ...]
    schemes: tuple[str, ...]
    socs: tuple[str, ...]
    policy: Path | None
    reports: Path

    @property
    def selecting(self) -> list[str]:
        """Return the words that select the cases in a run."""
        policy = [str(self.policy or OURS)]
        options: dict[str, Sequence[str]] = {
            "model": self.models,
            "scheme": self.schemes,
            "soc": self.socs,
            "policy": policy,
        }
        return list_words(options)


def check_cases(word: str, request: UpgradeRequest) -> None:
    """Raise UsageError, as the session does, if the run of an argument cannot have the models,
    schemes and SoCs of the command line."""
    if session := find_session(word, request.session):
        policy = read_emulator_policy(request.policy, LANES[session])
        select_cases(
            policy.suite,
            sorted(read_socs()),
            entries=policy.models,
            models=request.models,
            schemes=request.schemes,
            soc_names=request.socs,
            lane=SCHEMES[session],
        )


def list_words(values: Mapping[str, Sequence[str]]) -> list[str]:
    """Return options with several values as words of a command, each value after its flag."""
    words = []
    for name, values_of_option in values.items():
        for value in values_of_option:
            words += [f"--{name}", value]
    return words


def run_side(
    side: Side, request: UpgradeRequest, progress: Progress, failures: list[Difference]
) -> Report | None:
    """Return the side's report, or else the report of a new run. If the run leaves no report,
    return None and add the reason to ``failures``."""
    if side.report:
        return side.report
    directory = request.reports / side.slug
    report = directory / side.session / "report.json"
    check_session(report.parent)  # what is not a report is the user's
    # A run that fails would otherwise be judged by the report of an earlier one.
    report.unlink(missing_ok=True)
    words = [*request.selecting, *(["--sdk", side.sdk] if side.sdk else [])]
    verb = side.session.replace("_", "-")
    argv = [*module_command("ci"), verb, *words, "--reports", str(directory)]
    # PYTHONPATH, because it comes before site-packages: the version under test hides the installed
    # one.
    paths = [*map(str, (*side.packages, OWN)), os.environ.get("PYTHONPATH", "")]
    variables = {name: text for name, text in os.environ.items() if name not in OWN_VARIABLES}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    progress.step(f"{side.name}: {verb} {' '.join(words)}")
    failure = run_logged(argv, variables, request.reports / f"{side.slug}.log", progress)
    if report.is_file():
        return read_report(report)
    failures.append(Difference(side.name, "run", "a report", failure, "worse"))
    return None


def run_logged(
    argv: Sequence[str], variables: Mapping[str, str], log: Path, progress: Progress
) -> str:
    """Run a program whose output goes to ``log``, and return how it ended, with its last lines. An
    earlier file of the user's is renamed."""
    folder = UserFolder(log.parent)
    with folder.stage() as scratch:
        ended = run_process(argv, env=variables, check=False, log=scratch / log.name)
        folder.publish(scratch, force=True).say_aside(progress)
    lines = (line.strip() for line in ended.output.splitlines()[-LAST_LINES:])
    return f"{ended.describe()}: {' '.join(filter(None, lines))} (whole log: {shown_path(log)})"


def find_qnn(side: Side, report: Report | None) -> str:
    """Return the QNN version of a side, from its libraries or, if there are none, from its report.
    Return an empty string if neither states one."""
    library = side.tree / LIBRARIES / HTP if side.tree else None
    if library and library.is_file() and (build := find_qnn_build(library)):
        return build.version or ""
    tools = report.toolchain if report else ()
    named = next((tool.version for tool in tools if tool.name == HTP), "")
    return str(parse_version(named)) if named else ""
